"""What a task of the sink does with its rows, without Spark: order within a queue whatever breaks, sizes of sends."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqspark.arrow.writing.sendrows import send_rows
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import BrokerError, ConnectionLost
from mqspark.message import MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from pyspark_pymq.options import WriteOptions
from tests.support.dev import DevCluster, read_queue

ROWS = 3000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    root = tmp_path_factory.mktemp("sender") / "store"
    with DevCluster(root, "flushDiskType=ASYNC_FLUSH") as running:
        yield running


def send(cluster: DevCluster, topic: str, rows: int = ROWS, **more: str) -> int:
    """Values 0, 1, 2, ... in small sends; how many were acknowledged."""
    options = WriteOptions.parse(
        {"nameserver": cluster.nameserver, "topic": topic, "batchBytes": "1k"} | more
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, 1000):
            texts = [str(number) for number in range(first, min(first + 1000, rows))]
            yield pa.record_batch({"value": pa.array(texts), "key": pa.array([t[-1] for t in texts])})

    return send_rows(options, batches(), first_turn=0)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.arrow.writing.pipeline._FIRST_PAUSE_S", 0.0)


def queues(cluster: DevCluster, topic: str) -> dict[MessageQueue, list[int]]:
    found: dict[MessageQueue, list[int]] = {}
    client = BlockingClient(cluster.nameserver)
    for queue in client.route(topic).subscribe_queues:
        found[queue] = [int(message.body) for message in read_queue(client, cluster.address, queue)]
    client.close()
    return found


def check(found: dict[MessageQueue, list[int]], rows: int = ROWS) -> None:
    """Everything is there and each queue in order, both by the first and by the last copy of a row."""
    assert sorted({value for values in found.values() for value in values}) == list(range(rows))
    for values in found.values():
        assert list(dict.fromkeys(values)) == sorted(set(values))
        assert list(dict.fromkeys(reversed(values))) == sorted(set(values), reverse=True)


@pytest.mark.usefixtures("no_pauses")
def test_a_broker_that_is_busy_now_and_then(broker: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.create_topic("Busy", 3)
    chance = random.Random(1)
    original = BlockingConnection.send
    refused: set[tuple[int, int]] = set()

    def sent(self: BlockingConnection, code: int, *arguments: Any, **more: Any) -> int:
        if code == RequestCode.SEND_BATCH_MESSAGE and chance.random() < 0.1:
            opaque = original(self, RequestCode.GET_BROKER_RUNTIME_INFO)
            refused.add((id(self), opaque))
            return opaque
        return original(self, code, *arguments, **more)

    poll = BlockingConnection.poll

    def polled(self: BlockingConnection, opaques: Iterable[int], timeout_s: float) -> dict[int, Command]:
        answers = poll(self, opaques, timeout_s)
        for opaque in answers.keys() & {opaque for owner, opaque in refused if owner == id(self)}:
            answers[opaque] = Command(code=ResponseCode.SYSTEM_BUSY, opaque=opaque, flag=1, remark="busy")
        return answers

    monkeypatch.setattr(BlockingConnection, "send", sent)
    monkeypatch.setattr(BlockingConnection, "poll", polled)
    assert send(broker, topic) == ROWS
    monkeypatch.undo()
    assert len(refused) >= 5
    found = queues(broker, topic)
    check(found)
    assert sum(map(len, found.values())) == ROWS


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("after", [False, True])
def test_connections_that_break(broker: DevCluster, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """Before a send, and after it has arrived: then rows are there twice, but never out of order."""
    topic = broker.create_topic(f"Breaks-{after}", 3)
    chance = random.Random(2)
    original: Callable[..., int] = BlockingConnection.send
    broken = [0]

    def breaking(self: BlockingConnection, code: int, *arguments: Any, **more: Any) -> int:
        is_broken = code == RequestCode.SEND_BATCH_MESSAGE and chance.random() < 0.1
        opaque = 0
        if not is_broken or after:
            opaque = original(self, code, *arguments, **more)
        if is_broken:
            broken[0] += 1
            if after:
                self.wait(opaque)
            self.close()
            raise ConnectionLost(self.address, "broken on purpose")
        return opaque

    monkeypatch.setattr(BlockingConnection, "send", breaking)
    assert send(broker, topic) == ROWS
    monkeypatch.undo()
    assert broken[0] >= 5
    found = queues(broker, topic)
    check(found)
    if after:
        assert sum(map(len, found.values())) > ROWS


def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    rows = 30_000
    with DevCluster(tmp_path / "store", "flushDiskType=ASYNC_FLUSH") as cluster:
        topic = cluster.create_topic("Killed", 2)
        problems: list[BaseException] = []

        def work() -> None:
            try:
                send(cluster, topic, rows, sendTimeoutMs="5000")
            except BaseException as error:
                problems.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(2):
            before = sum(cluster.max_offsets(topic).values())
            deadline = time.monotonic() + 60
            while sum(cluster.max_offsets(topic).values()) == before and thread.is_alive():
                assert time.monotonic() < deadline
            cluster.stop(signal.SIGKILL)
            cluster.start()
            cluster.create_topic(topic, 2)  # returns when the name server knows it again
        thread.join(120)
        assert not thread.is_alive()
        assert problems == []
        check(queues(cluster, topic), rows)


def test_it_gives_up_at_last(broker: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.create_topic("Hopeless", 1)
    original: Callable[..., int] = BlockingConnection.send

    def broken(self: BlockingConnection, code: int, *arguments: Any, **more: Any) -> int:
        if code == RequestCode.SEND_BATCH_MESSAGE:
            raise ConnectionLost(self.address, "for ever")
        return original(self, code, *arguments, **more)

    monkeypatch.setattr(BlockingConnection, "send", broken)
    with pytest.raises(ConnectionLost, match="for ever") as caught:
        send(broker, topic, rows=10, retryTimeout="1s")
    assert caught.value.__notes__ == ["Nothing was stored for retryTimeout (1 s)."]
    monkeypatch.undo()
    with pytest.raises(BrokerError):
        send_large(broker, topic)


def send_large(cluster: DevCluster, topic: str) -> None:
    options = WriteOptions.parse({"nameserver": cluster.nameserver, "topic": topic})
    send_rows(options, [pa.record_batch({"value": pa.array([b"x" * 5_000_000])})], first_turn=0)


def test_sends_are_cut_by_bytes(broker: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.create_topic("Sizes", 1)
    sizes: list[int] = []
    original: Callable[..., int] = BlockingConnection.send

    def measured(self: BlockingConnection, code: int, header: Any, body: Any = b"", **more: Any) -> int:
        if code == RequestCode.SEND_BATCH_MESSAGE:
            sizes.append(len(body))
        return original(self, code, header, body, **more)

    monkeypatch.setattr(BlockingConnection, "send", measured)
    send(broker, topic)
    assert max(sizes) <= 1024
    assert sum(sizes) / len(sizes) > 900
