"""Brokers that give a Spark worker other messages than were asked for, or the same ones for ever, and name servers that
name a broker for each pull."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from mqspark.errors import InvalidMessage, MQError, ProtocolError
from mqspark.message import INNER_BATCH, NEED_UNWRAP, MessageQueue
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import PullMessageResponseHeader
from mqspark.record.batchitems import encode_items
from mqspark.record.record import encode_record

pytest.importorskip("pyspark", reason="the reader is Spark's")

from mqspark.arrow.cluster.cluster_queues import BrokerPlace
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import ReadTask
from mqspark.arrow.reading import openplaces, rangepulls
from mqspark.arrow.reading import range_fetch as fetch

QUEUE = MessageQueue("T", "b", 0)


def record(offset: int, topic: str = "T", queue_id: int = 0, **more: Any) -> bytes:
    return encode_record(
        **{"topic": topic, "body": b"%d" % offset, "queue_id": queue_id, "queue_offset": offset} | more
    )


@contextmanager
def answering(
    found: bytes = b"", following: int | None = None, code: int = ResponseCode.SUCCESS
) -> Iterator[tuple[str, list[int]]]:
    """An address where every pull finds these records, and is told to go on there (None: where it was); and the
    offsets that were asked for."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[int] = []

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                receiver = Connection()
                while data := received(peer):
                    for command in receiver.receive_data(data):
                        first = int(command.ext["queueOffset"])
                        asked.append(first)
                        header = PullMessageResponseHeader(
                            suggest_which_broker_id=0,
                            next_begin_offset=first if following is None else following,
                            min_offset=0,
                            max_offset=1 << 50,
                        )
                        peer.sendall(encode_response(command.opaque, code, header, found))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        for connection in openplaces.KEPT.connections.values():
            connection.close()
        openplaces.KEPT.connections.clear()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1 << 16)
    except ConnectionError:  # the reader has given up
        return b""


def read(address: str, **changes: Any) -> list[bytes]:
    work = ReadTask(
        ranges=(QueueRange(QUEUE, 3, 1 << 40),),
        places={"b": BrokerPlace(address)},
        columns=("value",),
        tags=(),
        group="readers",
        fail_on_data_loss=False,
    )
    return [row["value"] for batch in fetch.read_task(replace(work, **changes)) for row in batch.to_pylist()]


def batch_of(offset: int, count: int) -> bytes:
    body = encode_items([(0, b"x", b"")] * count)
    return record(offset, body=body, sys_flag=INNER_BATCH | NEED_UNWRAP)


LIES = {
    "another topic": (record(3, "U"), 4),
    "a longer topic": (record(3, "TT"), 4),
    "another queue": (record(3, queue_id=1), 4),
    "one of another topic": (record(3) + record(4, "U"), 5),
    "a topic that is no text": (record(3).replace(b"\x01T", b"\x01\xff"), 4),
    "before what was asked": (record(2) + record(3), 4),
    "behind the next": (record(3) + record(1 << 39), 5),
    "out of order": (record(4) + record(3), 5),
    "twice": (record(3) + record(3), 4),
    "a batch that is too long": (batch_of(3, 4), 5),
    "a batch over the next": (batch_of(3, 4) + record(4), 8),
    "no progress": (record(3), 3),
    "back": (record(3), 1),
    "far": (record(3), 1 << 60),
    "negative": (record(3), -5),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("fail_on_data_loss", [False, True])
def test_records_that_were_not_asked_for_are_refused(lie: str, *, fail_on_data_loss: bool) -> None:
    """Whatever the query accepts to lose. They would become messages of the queue, or hide what comes behind them."""
    found, following = LIES[lie]
    end = following if 3 < following < 10 else 10
    with answering(found, following) as (address, asked):
        with pytest.raises((ProtocolError, InvalidMessage)) as refused:
            read(address, ranges=(QueueRange(QUEUE, 3, end),), fail_on_data_loss=fail_on_data_loss)
        assert asked == [3]
    if "topic" in lie and "text" not in lie:
        assert "broker b gives a message of queue 0 of topic" in str(refused.value)
        assert "for queue 0 of topic T" in str(refused.value)


@pytest.mark.parametrize("columns", [("value",), ("topic", "partition", "value")])
def test_what_was_asked_for_is_read(columns: tuple[str, ...]) -> None:
    for found in (record(3) + record(4) + record(6), batch_of(1, 4) + record(6)):
        with answering(found, 7) as (address, _):
            assert len(read(address, columns=columns, ranges=(QueueRange(QUEUE, 3, 7),))) in (2, 3)


def test_a_light_queue_has_records_of_other_topics() -> None:
    light = MessageQueue("%LMQ%x", "b", 0)
    dispatched = record(3, properties=b"INNER_MULTI_DISPATCH\x01%LMQ%w,%LMQ%x\x02")
    with answering(dispatched, 4) as (address, _):
        assert read(address, ranges=(QueueRange(light, 3, 4),)) == [b"3"]
    with answering(record(3), 4) as (address, _), pytest.raises(InvalidMessage):
        read(address, ranges=(QueueRange(light, 3, 4),))


def test_connections_of_a_worker_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openplaces, "_MAX_CONNECTIONS", 2)
    with answering() as (first, _), answering() as (second, _), answering() as (third, _):
        for address in (first, second, third):
            with pytest.raises(MQError):
                read(address)
        assert [key[1] for key in openplaces.KEPT.connections] == [second, third]


def test_a_queue_that_gives_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rangepulls, "_EMPTY_RETRIES", 3)
    with answering(b"", code=ResponseCode.PULL_NOT_FOUND) as (address, asked):
        with pytest.raises(MQError, match="does not give offset 3"):
            read(address)
        assert asked == [3] * 4
