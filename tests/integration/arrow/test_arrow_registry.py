"""``schema=FromRegistry(url)``: what Confluent's serializers write, in columns of one version."""

from __future__ import annotations

import json
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import type_pb2

import mqspark.arrow
from mqspark.arrow import FromRegistry
from mqspark.errors import ConfigError, InvalidMessage, NoSchemaRegistry, SchemaRefused
from mqspark.testing import Broker

FIRST = {"type": "record", "name": "Price", "fields": [{"name": "id", "type": "long"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": "string", "default": "-"}]}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Price", "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"],
}  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


@pytest.fixture(scope="module")
def url(broker: Broker) -> str:
    return str(broker.http_url)


def sent(broker: Broker, topic: str, bodies: list[bytes]) -> None:
    table = pa.table({"value": bodies, "partition": [0] * len(bodies)})
    assert mqspark.arrow.write(broker.namesrv, topic, table) == len(bodies)


def test_avro_bodies_of_two_versions_become_the_columns_of_one(broker: Broker, url: str) -> None:
    context = SerializationContext("Prices", MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as registry:
        old = AvroSerializer(registry, json.dumps(FIRST))({"id": 1}, context)
        new = AvroSerializer(registry, json.dumps(SECOND))({"id": 2, "note": "x"}, context)
        elsewhere = SerializationContext("Elsewhere", MessageField.VALUE)
        other = AvroSerializer(registry, json.dumps({**FIRST, "name": "Other"}))({"id": 3}, elsewhere)
    sent(broker, "Prices", [old, new, other, new[:-1], b"plain", b"\0\0\0\x7f\xff\x02", old])
    latest = FromRegistry(url)
    for local in (True, False):
        rows = mqspark.arrow.read(
            broker.namesrv, "Prices", schema=latest, columns=["offset"], reason_column="why", local=local
        ).read_all()
        assert rows["id"].to_pylist() == [1, 2, None, None, None, None, 1]
        assert rows["note"].to_pylist() == ["-", "x", None, None, None, None, "-"]
        why = rows["why"].to_pylist()
        assert why[0] is why[1] is why[6] is None
        for reason, text in zip(
            why[2:6], ("none of subject Prices-value", "note", "id of a schema", "32767"), strict=True
        ):
            assert text in reason
    pinned = FromRegistry(url, version=1)
    assert mqspark.arrow.read(
        broker.namesrv, "Prices", schema=pinned, columns=[], end={0: 2, 1: 0, 2: 0, 3: 0}
    ).read_all().to_pylist() == [{"id": 1}, {"id": 2}]
    with pytest.raises(InvalidMessage, match=r"offset 2 of queue 0 of Prices: .*none of subject"):
        mqspark.arrow.read(broker.namesrv, "Prices", schema=latest).read_all()
    found = mqspark.arrow.scan(broker.namesrv, "Prices", schema=latest, reason_column="why").polars()
    assert found.filter(pl.col("why").is_null()).select("id").collect()["id"].to_list() == [1, 2, 1]


def test_json_and_protobuf(broker: Broker, url: str) -> None:
    context = SerializationContext("Typed", MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as registry:
        body = JSONSerializer(json.dumps(JSON), registry)({"id": 1, "note": "x"}, context)
        sent(broker, "Typed", [body, b'{"id":2}', b'\0\0\0\x7f\xff{"id":3}'])
        rows = mqspark.arrow.read(
            broker.namesrv, "Typed", schema=FromRegistry(url), columns=[], reason_column="why"
        ).read_all()
        assert rows["id"].to_pylist() == [1, 2, None]
        context = SerializationContext("Messages", MessageField.VALUE)
        write = ProtobufSerializer(type_pb2.EnumValue, registry, {"use.deprecated.format": False})
        sent(broker, "Messages", [write(type_pb2.EnumValue(name="A", number=7), context), b"x"])
    chosen = FromRegistry(url, message="google.protobuf.EnumValue")
    rows = mqspark.arrow.read(
        broker.namesrv, "Messages", schema=chosen, columns=[], reason_column="why"
    ).read_all()
    assert (rows["name"].to_pylist(), rows["number"].to_pylist()) == (["A", None], [7, None])


def test_what_cannot_be_read_is_told(broker: Broker, url: str) -> None:
    sent(broker, "Untyped", [b"x"])
    with pytest.raises(SchemaRefused) as missing:
        mqspark.arrow.read(broker.namesrv, "Untyped", schema=FromRegistry(url))
    assert missing.value.status == 404
    with pytest.raises(NoSchemaRegistry):
        mqspark.arrow.read(broker.namesrv, "Untyped", schema=FromRegistry("http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="unless one topic is read"):
        mqspark.arrow.read(broker.namesrv, ["Untyped", "Prices"], schema=FromRegistry(url))
    for version in (0, "1", True):
        with pytest.raises(ConfigError) as raised:
            FromRegistry(url, version=version)  # type: ignore[arg-type] # what a program may give
        assert raised.value.key == "version"
