"""The offsets of many queues in one request, and one by one from brokers that know no such request."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from mqspark.client.blocking import BlockingClient
from mqspark.errors import ProtocolError
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.admin_bodies import MAX_QUEUES_ASKED, OffsetsOfQueues, QueuesOfTopics
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.command import Command
from tests.support.dev import DevCluster
from tests.support.scripted import Answer, Scripted

QUEUES = [MessageQueue(f"Topic{number:03d}", "b", queue) for number in range(500) for queue in range(4)]


def asked_of(script: Scripted, queues: list[MessageQueue], times: int = 1) -> list[list[int]]:
    """The max offsets that a client gets from the broker, which serves in a thread of its own."""
    client = BlockingClient("127.0.0.1:1", retry_ms=0)
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with script.serving():
            ready.set()
            await asyncio.to_thread(over.wait)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(60)
        return [list(client.max_offsets(script.address, queues)) for _ in range(times)]
    finally:
        client.close()
        over.set()
        server.join()


def many(command: Command) -> Answer:
    topics = decode_body(QueuesOfTopics, command.body).topics
    offsets = [int(each.topic[5:]) * 10 + queue for each in topics for queue in each.queue_ids]
    return 0, {"offset": "0"}, encode_body(OffsetsOfQueues(offsets))


def one(command: Command) -> Answer:
    """As RocketMQ's broker answers: for the queue in the header."""
    return 0, {"offset": str(int(command.ext["topic"][5:]) * 10 + int(command.ext["queueId"]))}, b""


EXPECTED = [int(queue.topic[5:]) * 10 + queue.queue_id for queue in QUEUES]


def test_one_request_for_many_queues() -> None:
    broker = Scripted(many)
    assert asked_of(broker, QUEUES) == [EXPECTED]
    assert len(broker.asked) == -(-len(QUEUES) // MAX_QUEUES_ASKED) == 2


def test_a_broker_of_rocketmq_is_asked_queue_by_queue() -> None:
    broker = Scripted(one)
    assert asked_of(broker, QUEUES, times=2) == [EXPECTED, EXPECTED]
    assert len(broker.asked) == 1 + 2 * len(QUEUES)  # it is tried once


def test_an_answer_of_another_length_is_refused() -> None:
    broker = Scripted(lambda command: (0, {"offset": "0"}, encode_body(OffsetsOfQueues([1]))))
    with pytest.raises(ProtocolError, match="1 offsets of 3 queues"):
        asked_of(broker, QUEUES[:3])


def test_a_real_broker(tmp_path: Path) -> None:
    with DevCluster(tmp_path / "store") as cluster:
        queues = []
        for topic, count in (("A", 3), ("B", 10)):
            cluster.create_topic(topic, 4)
            cluster.send_numbers(topic, range(count))
            queues += cluster.client.route(topic).subscribe_queues
        assert list(cluster.client.max_offsets(cluster.address, queues)) == [1, 1, 1, 0, 3, 3, 2, 2]
        assert list(cluster.client.min_offsets(cluster.address, queues)) == [0] * 8
