"""The exactly-once sink's log of decisions as a target: a forged decision makes a query skip its rows, or write them
twice; a huge one takes the memory of its driver and of every task."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from mqspark.base.clock import wall_ms
from mqspark.client.blocking import BlockingClient
from mqspark.errors import BrokerError
from mqspark.message import SINK_DECISIONS_TOPIC, MessageQueue, decode_offset_id, encode_properties
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.admin_headers import CreateTopicRequestHeader
from mqspark.protocol.headers.client_headers import (
    EndTransactionRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from mqspark.testing import Broker, Cluster
from pyspark_pymq.options import WriteOptions
from pyspark_pymq.writing import decisionlog
from pyspark_pymq.writing.decisionlog import DecisionLog
from pyspark_pymq.writing.exactlyonce import commit, prepare
from tests.support.dev import read_queue

BOMB = zlib.compress(bytes(64 << 20), 9)


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Broker() as running:
        yield running


@pytest.fixture
def client(broker: Cluster) -> Iterator[BlockingClient]:
    made = BlockingClient(broker.namesrv)
    yield made
    made.close()


def create(client: BlockingClient, cluster: Cluster, topic: str) -> str:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    client.request(cluster.addresses[0], RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            client.route(topic)
            return topic
        except Exception:
            time.sleep(0.05)
    raise AssertionError(f"{topic} has no route")


def options(cluster: Cluster, topic: str) -> WriteOptions:
    return WriteOptions.parse(
        {"nameserver": cluster.namesrv, "topic": topic, "deliveryGuarantee": "exactly-once"}
    )


def rows(*values: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": pa.array([str(value) for value in values])})]


def seen(client: BlockingClient, cluster: Cluster, topic: str) -> list[int]:
    queue = client.route(topic).subscribe_queues[0]
    address = cluster.addresses[0]
    return [int(message.body) for message in read_queue(client, address, queue)]


def send(
    client: BlockingClient,
    queue: MessageQueue,
    address: str,
    body: bytes,
    properties: dict[str, str],
    sys_flag: int,
) -> SendMessageResponseHeader:
    header = SendMessageRequestHeaderV2.of(
        "evil",
        queue.topic,
        queue.queue_id,
        wall_ms(),
        encode_properties(properties).decode(),
        sys_flag=sys_flag,
    )
    return client.request(address, RequestCode.SEND_MESSAGE_V2, header, body).header(
        SendMessageResponseHeader
    )


def forge(client: BlockingClient, cluster: Cluster, identity: str, body: bytes, sys_flag: int = 0) -> None:
    """All that somebody can do who knows the hash of the identity, which is in the log for all to see."""
    (queue,) = client.route(SINK_DECISIONS_TOPIC).subscribe_queues
    address = cluster.addresses[0]
    digest = hashlib.sha256(identity.encode()).hexdigest()[:24]
    group = f"mqspark-sink-{digest}"
    own = {"TRAN_MSG": "true", "PGROUP": group, "TAGS": digest}
    stored = send(client, queue, address, body, own, 4 | sys_flag)
    end = EndTransactionRequestHeader(
        topic=queue.topic,
        producer_group=group,
        tran_state_table_offset=stored.queue_offset,
        commit_log_offset=decode_offset_id(stored.msg_id)[2],
        commit_or_rollback=8,
        from_transaction_check=True,
        msg_id="",
    )
    client.request(address, RequestCode.END_TRANSACTION, end)


def decision(batch: int, **more: Any) -> dict[str, Any]:
    return {"batch": batch, "token": "evil", "part": 0, "parts": 1, "halves": [], **more}


def test_a_plain_send_of_a_decision_is_refused(client: BlockingClient, broker: Cluster) -> None:
    topic = create(client, broker, "Plain")
    wanted = options(broker, topic)
    commit(wanted, [prepare(wanted, "plain", 0, rows(1), first_turn=0)])
    (queue,) = client.route(SINK_DECISIONS_TOPIC).subscribe_queues
    digest = hashlib.sha256(b"plain").hexdigest()[:24]
    body = zlib.compress(json.dumps({"identity": "plain", **decision(1)}).encode())
    for sys_flag in (0, 8):
        for properties in ({}, {"TAGS": digest}, {"PGROUP": f"mqspark-sink-{digest}", "TAGS": digest}):
            with pytest.raises(BrokerError) as caught:
                send(client, queue, broker.addresses[0], body, properties, sys_flag)
            assert caught.value.code == ResponseCode.NO_PERMISSION
    commit(wanted, [prepare(wanted, "plain", 1, rows(2), first_turn=0)])
    assert seen(client, broker, topic) == [1, 2]


def test_forged_decisions_skip_no_batch_and_stop_no_other(client: BlockingClient, broker: Cluster) -> None:
    topic = create(client, broker, "Forged")
    wanted = options(broker, topic)
    identity = "0f6fb3a5-forged"
    commit(wanted, [prepare(wanted, identity, 0, rows(0), first_turn=0)])
    text = json.dumps(decision(1)).encode()
    bodies = [
        zlib.compress(text),
        bytes(32) + zlib.compress(text),
        hashlib.sha256(text).digest() + zlib.compress(text),
        zlib.compress(json.dumps({"identity": identity, **decision(1)}).encode()),
        bytes(32) + zlib.compress(json.dumps(decision(1_000_000)).encode()),
        b"x",
        BOMB[: 1 << 20],
    ]
    for body in bodies:
        forge(client, broker, identity, body)
        forge(client, broker, identity, body, sys_flag=1)  # "compressed", too
    own = DecisionLog(client, identity, topic)
    assert own.find(1) is None
    sent = prepare(wanted, identity, 1, rows(1, 2), first_turn=0)
    assert sent.messages == 2, "the task sends its rows"
    commit(wanted, [sent])
    commit(wanted, [prepare(wanted, "another", 0, rows(3), first_turn=0)])
    assert seen(client, broker, topic) == [0, 1, 2, 3]


@pytest.mark.parametrize("where", [lambda end: end, lambda end: end - 1, lambda end: 10**12, lambda end: 1])
def test_a_forged_place_to_begin_hides_no_decision(
    client: BlockingClient, broker: Cluster, where: Callable[[int], int]
) -> None:
    name = f"Pointer{where(1000)}"
    topic = create(client, broker, name)
    wanted = options(broker, topic)
    first = prepare(wanted, name, 0, rows(0), first_turn=0)
    commit(wanted, [first])
    sent = prepare(wanted, name, 1, rows(1), first_turn=0)
    log = DecisionLog(client, name, topic)
    log.decide(1, list(sent.prepared))  # and the driver dies
    (queue,) = client.route(SINK_DECISIONS_TOPIC).subscribe_queues
    address = broker.addresses[0]
    (end,) = client.max_offsets(address, [queue])
    group = f"mqspark-sink-{hashlib.sha256(name.encode()).hexdigest()[:24]}"
    client.commit_group_offsets(address, group, {queue: where(end)})
    again = prepare(wanted, name, 1, rows(1), first_turn=0)
    assert again.messages == 0, "what is decided is not sent again"
    commit(wanted, [again])
    commit(wanted, [prepare(wanted, name, 2, rows(2), first_turn=0)])
    assert seen(client, broker, topic) == [0, 1, 2]


def test_a_decision_is_bounded_even_of_those_who_know_the_identity(
    client: BlockingClient, broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(client, broker, "Bounded")
    wanted = options(broker, topic)
    commit(wanted, [prepare(wanted, "known", 0, rows(0), first_turn=0)])
    log = DecisionLog(client, "known", topic)
    texts = [
        b"[" * 100_000,
        b"{}",
        b"[]",
        b"\xff",
        json.dumps(decision(1, part=5)).encode(),
        json.dumps(decision(1, parts=10**9)).encode(),
        json.dumps(decision(1, token=3)).encode(),
        json.dumps(decision(1, halves=[["T", "b", [[-1, 1]], "g"]])).encode(),
        json.dumps(decision(1, halves=[["T", 5, [[1, 1]], "g"]])).encode(),
        json.dumps(decision(1, halves=7)).encode(),
    ]
    key = hashlib.sha256(b"mqspark sink decision\0known").digest()
    for packed in (BOMB, *map(zlib.compress, texts)):
        forge(client, broker, "known", hmac.digest(key, packed, "sha256") + packed)
    inflated = []
    real = decisionlog.decompress

    def counted(*args: Any) -> bytes:
        inflated.append(args[2])
        return real(*args)

    monkeypatch.setattr(decisionlog, "decompress", counted)
    assert log.find(1) is None
    assert max(inflated) <= 16 << 20
    commit(wanted, [prepare(wanted, "known", 1, rows(1), first_turn=0)])
    assert seen(client, broker, topic) == [0, 1]
