"""Producers and consumers with a serializer, beside Confluent's serializers as they are."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2

from mqspark import (
    AdminClient,
    Credentials,
    LitePullConsumer,
    Message,
    MessageExt,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
    aio,
)
from mqspark.client.typed import serializer
from mqspark.errors import ConfigError, InvalidMessage, NoSchemaRegistry, SchemaRefused
from mqspark.message import dlq_topic
from mqspark.schemas.parsedschema import Schema
from mqspark.schemas.parsing import parse
from mqspark.testing import Cluster
from tests.support.users import add_user, with_users

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": "string", "default": ""}],
}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"],
}  # fmt: skip
Serializer = functools.partial(serializer.Serializer, timeout_ms=120_000)
"""Syncs of a busy machine are slow."""
ORDER = {"id": 300, "note": "Käse"}
TIME = timestamp_pb2.Timestamp(seconds=7, nanos=5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, http=True) as running:
        yield running


def ours(kind: str) -> tuple[Schema | type[Any], Any]:
    """What a serializer takes, and a value."""
    if kind == "protobuf":
        return timestamp_pb2.Timestamp, TIME
    return parse(kind.upper(), json.dumps(AVRO if kind == "avro" else JSON)), ORDER


def theirs(kind: str, registry: SchemaRegistryClient) -> tuple[Any, Any]:
    """Serializer and deserializer."""
    if kind == "avro":
        return AvroSerializer(registry, json.dumps(AVRO)), AvroDeserializer(registry)
    if kind == "json":
        return JSONSerializer(json.dumps(JSON), registry), JSONDeserializer(json.dumps(JSON))
    options = {"use.deprecated.format": False}
    return (
        ProtobufSerializer(timestamp_pb2.Timestamp, registry, options),
        ProtobufDeserializer(timestamp_pb2.Timestamp, options),
    )


def received(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    messages: list[MessageExt] = []
    while len(messages) < count:
        more = consumer.poll(20_000)
        assert more
        messages += more
    return messages


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_both_sides_read_what_the_other_writes(cluster: Cluster, kind: str) -> None:
    topic = f"Both-{kind}"
    schema, value = ours(kind)
    context = SerializationContext(topic, MessageField.VALUE)
    with (
        SchemaRegistryClient({"url": cluster.http_urls[0]}) as registry,
        AdminClient(cluster.namesrv) as admin,
        Producer(
            cluster.namesrv, group="typed", serializer=Serializer(cluster.http_urls[0], schema)
        ) as producer,
        LitePullConsumer(
            cluster.namesrv,
            group=f"typed-{kind}",
            serializer=Serializer(cluster.http_urls[0]),
            consume_from="earliest",
        ) as consumer,
    ):
        admin.create_topic(topic, queues=1, attributes={"schemaValidation": "reject"})
        consumer.subscribe(topic)
        write, read = theirs(kind, registry)
        producer.send(Message.of(topic, value=value, keys="one"))
        producer.send(Message.of(topic, write(value, context)))
        producer.send_async(Message.of(topic, value=value)).result()
        producer.send_batch([Message.of(topic, value=value), Message.of(topic, value=value)])
        producer.send_oneway(Message.of(topic, value=value))
        found = received(consumer, 6)
        assert len({message.body for message in found}) == 1
        assert [read(message.body, context) for message in found] == [value] * 6
        if kind == "protobuf":
            assert [message.value.SerializeToString() for message in found] == [TIME.SerializeToString()] * 6
        else:
            assert [message.value for message in found] == [value] * 6
        assert found[0].value is found[0].value
        assert found[0].keys == "one"


def test_coroutines_and_listeners_in_threads_get_values(cluster: Cluster) -> None:
    topic = "Listened"
    url = cluster.http_urls[0]
    got: list[Any] = []
    done = threading.Event()

    def take(value: Any) -> None:
        got.append(value)
        if len(got) == 4:
            done.set()

    async def hear(message: MessageExt) -> None:
        take(message.value)

    async def program() -> None:
        serializer = Serializer(url, parse("AVRO", json.dumps(AVRO)))
        async with aio.Producer(cluster.namesrv, group="typed-aio", serializer=serializer) as producer:
            await producer.send(Message.of(topic, value={"id": 1}))
            await producer.send_oneway(Message.of(topic, value={"id": 2, "note": "x"}))
            await producer.send_batch([Message.of(topic, value={"id": 3, "note": "y"})])
            with pytest.raises(InvalidMessage, match="does not fit its schema"):
                await producer.send(Message.of(topic, value={"id": "three"}))
            sent = await producer.send_async(Message.of(topic, value={"id": 4, "note": "z"}))
            await sent
        consumer = aio.PushConsumer(
            cluster.namesrv,
            group="heard-aio",
            listener=hear,
            serializer=Serializer(url),
            consume_from="earliest",
        )
        consumer.subscribe(topic)
        async with consumer:
            await asyncio.to_thread(done.wait, 60)
        async with aio.LitePullConsumer(
            cluster.namesrv, group="polled-aio", serializer=Serializer(url), consume_from="earliest"
        ) as polled:
            polled.subscribe(topic)
            values = []
            async for message in polled:
                values.append(message.value)
                if len(values) == 4:
                    break
            assert sorted(each["id"] for each in values) == [1, 2, 3, 4]

    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    asyncio.run(program())
    assert sorted(got, key=lambda each: int(each["id"])) == [
        {"id": 1, "note": ""}, {"id": 2, "note": "x"}, {"id": 3, "note": "y"}, {"id": 4, "note": "z"},
    ]  # fmt: skip


def test_a_bad_body_is_a_failure_of_its_listener_and_ends_in_the_dead_letters(cluster: Cluster) -> None:
    topic, group = "Bad", "bad-readers"
    url = cluster.http_urls[0]
    problems: list[str] = []
    values: list[Any] = []
    done = threading.Event()

    def listener(message: MessageExt) -> None:
        try:
            values.append(message.value)
        except InvalidMessage as error:
            problems.append(str(error))
            raise
        finally:
            if len(problems) + len(values) == 5:
                done.set()

    with (
        AdminClient(cluster.namesrv) as admin,
        Producer(
            cluster.namesrv, group="bad", serializer=Serializer(url, parse("AVRO", json.dumps(AVRO)))
        ) as producer,
    ):
        for each in (topic, "Elsewhere"):
            admin.create_topic(each, queues=1)
        good = Serializer(url, parse("AVRO", json.dumps(AVRO))).write(topic, ORDER)
        other = parse("AVRO", json.dumps({**AVRO, "name": "Elsewhere"}))
        producer.send(Message.of(topic, value=ORDER))
        for body in (
            good[:-1],
            b"no prefix",
            b"\0\0\0\x7f\xff\x00",
            Serializer(url, other).write("Elsewhere", ORDER),
        ):
            producer.send(Message.of(topic, body))
        consumer = PushConsumer(
            cluster.namesrv,
            group=group,
            listener=listener,
            serializer=Serializer(url),
            consume_from="earliest",
            max_reconsume_times=0,
        )
        consumer.subscribe(topic)
        with consumer:
            assert done.wait(60)
        assert values == [ORDER]
        for text in ("cut short|end", "begin with the id", "32767", "is none of subject Bad-value"):
            assert any(any(part in each for part in text.split("|")) for each in problems), (text, problems)
        with LitePullConsumer(
            cluster.namesrv, group="bury", serializer=Serializer(url), consume_from="earliest"
        ) as graves:
            graves.subscribe(dlq_topic(group))
            assert len(received(graves, 4)) == 4


def test_pop_consumers_and_transactions_have_values(cluster: Cluster) -> None:
    topic, group = "Popped", "typed-pop"
    url = cluster.http_urls[0]
    got: list[Any] = []
    done = threading.Event()

    def listener(message: MessageExt) -> None:
        got.append(message.value)
        done.set()

    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(group)
        admin.set_consume_mode(topic, group, "POP")
    schema = parse("AVRO", json.dumps(AVRO))
    with TransactionProducer(
        cluster.namesrv,
        group="typed-tx",
        check=lambda message: TransactionState.COMMIT,
        execute=lambda message: TransactionState.COMMIT,
        serializer=Serializer(url, schema),
    ) as producer:
        producer.send_in_transaction(Message.of(topic, value=ORDER))
    consumer = PopConsumer(
        cluster.namesrv, group=group, listener=listener, serializer=Serializer(url), consume_from="earliest"
    )
    consumer.subscribe(topic)
    with consumer:
        assert done.wait(60)
    assert got == [ORDER]


def test_a_reader_resolves_to_its_own_schema_and_a_writer_takes_the_latest(cluster: Cluster) -> None:
    url = cluster.http_urls[0]
    first = Serializer(url, parse("AVRO", json.dumps(AVRO)))
    body = first.write("Evolving", {"id": 1, "note": "a"})
    new = json.loads(json.dumps(AVRO))
    new["fields"].append({"name": "count", "type": "long", "default": 7})
    newer = Serializer(url, parse("AVRO", json.dumps(new)))
    with pytest.raises(SchemaRefused) as missing:
        Serializer(url, parse("AVRO", json.dumps(new)), register=False).write("Evolving", {"id": 1})
    assert missing.value.code == 40403
    newer.write("Evolving", {"id": 2, "note": "b"})
    assert newer.read("Evolving", body) == {"id": 1, "note": "a", "count": 7}
    latest = Serializer(url)
    assert latest.read("Evolving", latest.write("Evolving", {"id": 3})) == {"id": 3, "note": "", "count": 7}
    broken = {**AVRO, "fields": [{"name": "id", "type": "string"}]}
    with pytest.raises(SchemaRefused) as refused:
        Serializer(url, parse("AVRO", json.dumps(broken))).write("Evolving", {"id": "1"})
    assert refused.value.status == 409
    with pytest.raises(InvalidMessage, match="not compatible with the reader"):
        Serializer(url, parse("AVRO", json.dumps(broken))).read("Evolving", body)


def test_without_a_serializer_or_a_registry_the_error_says_what_to_do(cluster: Cluster) -> None:
    url = cluster.http_urls[0]
    with Producer(cluster.namesrv, group="plain") as producer:
        with pytest.raises(InvalidMessage, match="serializer=Serializer"):
            producer.send(Message.of("Plain", value=1))
        producer.send(Message.of("Plain", b"x"))
    with LitePullConsumer(cluster.namesrv, group="plain-reader", consume_from="earliest") as consumer:
        consumer.subscribe("Plain")
        (message,) = received(consumer, 1)
        with pytest.raises(ConfigError, match="serializer=Serializer"):
            _ = message.value
    away = "http://127.0.0.1:9"
    with pytest.raises(NoSchemaRegistry, match=r"127\.0\.0\.1:9"):
        Serializer(away).write("Plain", 1)
    both = Serializer([away, url], parse("AVRO", json.dumps(AVRO)))
    assert both.read("Plain", both.write("Plain", ORDER)) == ORDER


def test_users_have_their_rights_and_their_secrets_stay_where_they_are(tmp_path: Path) -> None:
    schema = parse("AVRO", json.dumps(AVRO))
    with Cluster(1, http=True, settings=with_users()) as cluster:
        url = cluster.http_urls[0]
        add_user(url, "maker", "Topic:Orders", "Pub")
        add_user(url, "reader", "Topic:Orders", "Sub")
        body = Serializer(url, schema, credentials=Credentials("maker", "maker-secret")).write(
            "Orders", ORDER
        )
        reader = Serializer(url, credentials=Credentials("reader", "reader-secret"))
        assert reader.read("Orders", body) == ORDER
        for credentials, status in ((Credentials("reader", "reader-secret"), 403), (False, 401)):
            with pytest.raises(SchemaRefused) as refused:
                Serializer(url, schema, credentials=credentials).write("Orders", ORDER)
            assert refused.value.status == status
        with pytest.raises(SchemaRefused) as wrong:
            Serializer(url, credentials=Credentials("reader", "wrong-secret")).read("Orders", body)
        assert wrong.value.status in (401, 403)
        assert "wrong-secret" not in str(wrong.value)
