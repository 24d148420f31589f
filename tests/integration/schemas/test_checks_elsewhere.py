"""Topics whose messages are checked at brokers that keep no registry, in a cluster with users."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from mqspark import AdminClient, Credentials, Message, MessageQueue, Producer
from mqspark.errors import BrokerError
from mqspark.protocol.codes import ResponseCode
from mqspark.testing import Cluster
from tests.support.users import with_users

ROOT = Credentials("root", "root-secret")
SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
LATER = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "note", "type": "string", "default": ""}]}
ELSEWHERE = MessageQueue("Orders", "dev-1", 0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(2, http=True, settings=with_users()) as running:
        yield running


def sent(producer: Producer, body: bytes, queue: MessageQueue = ELSEWHERE) -> int:
    """The code of the answer, once it is no temporary one."""
    code = int(ResponseCode.SYSTEM_BUSY)
    for _ in range(100):
        try:
            producer.send(Message.of("Orders", body), queue=queue)
        except BrokerError as error:
            code = error.code
        else:
            return 0
        if code != ResponseCode.SYSTEM_BUSY:
            break
        time.sleep(0.1)
    return code


def test_every_broker_checks_and_goes_on_while_the_keeper_is_away(cluster: Cluster) -> None:
    context = SerializationContext("Orders", MessageField.VALUE)
    registry = SchemaRegistryClient({"url": cluster.http_urls[1], "basic.auth.user.info": "root:root-secret"})
    with (
        registry,
        AdminClient(cluster.namesrv, credentials=ROOT) as admin,
        Producer(cluster.namesrv, group="p", credentials=ROOT) as producer,
    ):
        admin.create_topic("Orders", queues=1, attributes={"schemaValidation": "reject"})
        body = AvroSerializer(registry, json.dumps(SCHEMA))({"id": 1}, context)
        for queue in (ELSEWHERE, MessageQueue("Orders", "dev-0", 0)):
            assert sent(producer, body, queue) == 0
            for wrong in (body[:-1], body + b"\x02", b"plain", b"\0\0\0\x7f\xff\x02"):
                assert sent(producer, wrong, queue) == ResponseCode.MESSAGE_ILLEGAL
        # A version that is registered now is known there by itself.
        later = AvroSerializer(registry, json.dumps(LATER))({"id": 1, "note": "x"}, context)
        assert sent(producer, later) == 0
        cluster.kill(0)
        assert sent(producer, body) == 0
        assert sent(producer, later[:-1]) == ResponseCode.MESSAGE_ILLEGAL
        # So does a broker that starts while the keeper is away.
        cluster.shut_down(1)
        cluster.restart(1)
        assert sent(producer, body) == 0
        assert sent(producer, later[:-1]) == ResponseCode.MESSAGE_ILLEGAL
        unknown = later[:4] + b"\x63" + later[5:]
        with pytest.raises(
            BrokerError, match="schema 99 of subject Orders-value is not known here yet"
        ) as busy:
            producer.send(Message.of("Orders", unknown), queue=ELSEWHERE)
        assert busy.value.code == ResponseCode.SYSTEM_BUSY
