"""A broker that gives a Spark worker the same messages for ever, and name servers that name a broker for each pull."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mqspark.errors import MQError
from mqspark.message import MessageQueue
from mqspark.protocol.command import encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import PullMessageResponseHeader
from mqspark.record import encode_record

pytest.importorskip("pyspark", reason="the reader is Spark's")

from pyspark_pymq.cluster.cluster_queues import BrokerPlace
from pyspark_pymq.cluster.planning import ReadTask
from pyspark_pymq.cluster.stream_offsets import QueueRange
from pyspark_pymq.reading import range_fetch as fetch

QUEUE = MessageQueue("T", "b", 0)
SAME = encode_record(topic="T", body=b"again", properties=b"", queue_id=0, queue_offset=0, physical_offset=0)


@contextmanager
def answering() -> Iterator[tuple[str, list[int]]]:
    """An address where every pull finds the message at offset 0, and is told to go on where it was; and the offsets
    that were asked for."""
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
                while data := peer.recv(1 << 16):
                    for command in receiver.receive_data(data):
                        first = int(command.ext["queueOffset"])
                        asked.append(first)
                        header = PullMessageResponseHeader(
                            suggest_which_broker_id=0,
                            next_begin_offset=first,
                            min_offset=0,
                            max_offset=1 << 50,
                        )
                        peer.sendall(encode_response(command.opaque, 0, header, SAME))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        for connection in fetch.open_connections.values():
            connection.close()
        fetch.open_connections.clear()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def read(address: str) -> int:
    work = ReadTask(
        ranges=(QueueRange(QUEUE, 0, 1 << 40),),
        places={"b": BrokerPlace(address)},
        columns=("value",),
        tags=(),
        group="readers",
        fail_on_data_loss=False,
    )
    return sum(batch.num_rows for batch in fetch.read_task(work))


def test_the_same_message_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_EMPTY_RETRIES", 3)
    with answering() as (address, asked):
        with pytest.raises(MQError, match="does not give offset 0"):
            read(address)
        assert asked == [0] * 4


def test_connections_of_a_worker_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_MAX_CONNECTIONS", 2)
    monkeypatch.setattr(fetch, "_EMPTY_RETRIES", 0)
    with answering() as (first, _), answering() as (second, _), answering() as (third, _):
        for address in (first, second, third):
            with pytest.raises(MQError):
                read(address)
        assert [key[1] for key in fetch.open_connections] == [second, third]
