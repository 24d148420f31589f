"""What Confluent's serializers write is checked by a broker, and comes out of a consumer as it went in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2

from mqspark import AdminClient, LitePullConsumer, Message, Producer
from mqspark.errors import BrokerError
from mqspark.protocol.codes import ResponseCode
from mqspark.testing import Cluster

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": "string"}],
}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"],
}  # fmt: skip
ORDER = {"id": 300, "note": "Käse"}
TIME = timestamp_pb2.Timestamp(seconds=7, nanos=5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, http=True) as running:
        yield running


def serializers(kind: str, registry: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    """Serializer, deserializer, a value."""
    if kind == "avro":
        return AvroSerializer(registry, json.dumps(AVRO)), AvroDeserializer(registry), ORDER
    if kind == "json":
        return JSONSerializer(json.dumps(JSON), registry), JSONDeserializer(json.dumps(JSON)), ORDER
    options = {"use.deprecated.format": False}
    return (
        ProtobufSerializer(timestamp_pb2.Timestamp, registry, options),
        ProtobufDeserializer(timestamp_pb2.Timestamp, options),
        TIME,
    )


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_serializers_of_confluent_and_a_broker_that_refuses(cluster: Cluster, kind: str) -> None:
    topic = f"Checked-{kind}"
    context = SerializationContext(topic, MessageField.VALUE)
    with (
        SchemaRegistryClient({"url": cluster.http_urls[0]}) as registry,
        AdminClient(cluster.namesrv) as admin,
        Producer(cluster.namesrv, group="checked") as producer,
        LitePullConsumer(cluster.namesrv, group=f"reads-{kind}") as consumer,
    ):
        admin.create_topic(topic, queues=1, attributes={"schemaValidation": "reject"})
        write, read, value = serializers(kind, registry)
        body = write(value, context)
        producer.send(Message.of(topic, body))
        for wrong in (body[:-1], body[:5] + b"\x09", b"\0\0\0\x7f\xff" + body[5:]):
            with pytest.raises(BrokerError, match="does not fit the schemas of topic") as refused:
                producer.send(Message.of(topic, wrong))
            assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(BrokerError, match="message 1 of the batch: "):
            producer.send_batch([Message.of(topic, each) for each in (body, body[:-1])])
        consumer.subscribe(topic)
        (message,) = consumer.poll(10_000)
        assert read(message.body, context) == value
