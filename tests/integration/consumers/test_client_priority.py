"""Messages with priorities, over real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import mqspark
from mqspark import aio
from mqspark.errors import InvalidMessage
from mqspark.testing import Broker
from tests.support.waiting import eventually

pytest_plugins = ["mqspark.testing.pytest_plugin"]

QUEUES = 8
FIRST = mqspark.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def make_topic(broker: Broker, topic: str) -> str:
    """A group that pops it."""
    with mqspark.AdminClient(broker.namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES, attributes={"message.type": "PRIORITY"})
        admin.set_consume_mode(topic, f"pop-{topic}", "POP")
    return f"pop-{topic}"


def test_the_highest_priority_comes_first(broker: Broker, mq_topic: str) -> None:
    group = make_topic(broker, mq_topic)
    received: list[int | None] = []

    def listen(message: mqspark.MessageExt) -> None:
        received.append(message.priority)

    with mqspark.Producer(broker.namesrv, group="p", auto_batch=mqspark.AutoBatch()) as producer:
        for priority in (0, 5, 7, 3, 99):
            sent = producer.send(mqspark.Message.of(mq_topic, "m", priority=priority))
            assert sent.queue.queue_id == min(priority, QUEUES - 1)
        assert len({producer.send(mqspark.Message.of(mq_topic, "m")).queue.queue_id for _ in range(16)}) > 1
    consumer = mqspark.PopConsumer(
        broker.namesrv, group=group, listener=listen, consume_from=FIRST, concurrency=1
    )
    consumer.subscribe(mq_topic)
    with consumer:
        eventually(lambda: len(received) == 21)
    of_priority = [priority for priority in received if priority is not None]
    assert of_priority == [7, 99, 5, 3, 0]


def test_a_backlog_of_low_priority_does_not_hold_up_a_message_of_high_priority(
    broker: Broker, mq_topic: str
) -> None:
    group = make_topic(broker, mq_topic)
    received: list[int | None] = []
    may_go_on, has_begun = threading.Event(), threading.Event()

    def listen(message: mqspark.MessageExt) -> None:
        has_begun.set()
        may_go_on.wait(20)
        received.append(message.priority)

    with mqspark.Producer(broker.namesrv, group="p") as producer:
        for _ in range(200):
            producer.send(mqspark.Message.of(mq_topic, "low", priority=0))
        consumer = mqspark.PopConsumer(
            broker.namesrv,
            group=group,
            listener=listen,
            consume_from=FIRST,
            concurrency=1,
            pop_batch_size=1,
            max_unacknowledged=2,
        )
        consumer.subscribe(mq_topic)
        with consumer:
            assert has_begun.wait(20)
            producer.send(mqspark.Message.of(mq_topic, "high", priority=6))
            may_go_on.set()
            eventually(lambda: 6 in received)
            assert received.index(6) < 10
            deadline = time.monotonic() + 20
            while len(received) < 201 and time.monotonic() < deadline:
                time.sleep(0.05)
    assert sorted(received, key=str) == [0] * 200 + [6]


async def test_what_a_priority_cannot_be_combined_with(broker: Broker, mq_topic: str) -> None:
    with_priority = aio.Message.of(mq_topic, "m", priority=1)
    async with aio.Producer(broker.namesrv, group="p") as producer:
        with pytest.raises(InvalidMessage, match="batch"):
            await producer.send_batch([aio.Message.of(mq_topic, "m"), with_priority])
        assert (await producer.send(with_priority)).queue.queue_id == 1
    async with aio.TransactionProducer(broker.namesrv, group="t", check=_never) as transactions:
        with pytest.raises(InvalidMessage, match="priority"):
            await transactions.prepare(with_priority)


def _never(message: aio.MessageExt) -> aio.TransactionState:
    raise AssertionError(message)
