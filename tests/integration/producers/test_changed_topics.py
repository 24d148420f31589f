"""Topics that change, or are deleted and made again, under producers and groups that know them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mqspark.aio import (
    AdminClient,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    PopConsumer,
    Producer,
    PushConsumer,
)
from mqspark.errors import InvalidMessage
from mqspark.testing import Broker
from tests.integration.client.client_kit import FIRST
from tests.support.waiting import eventually_async


@asynccontextmanager
async def knowing(broker: Broker, topic: str, queues: int) -> AsyncIterator[tuple[AdminClient, Producer]]:
    """A producer that knows the topic with this many queues, for half a minute."""
    async with AdminClient(broker.namesrv) as admin, Producer(broker.namesrv, group="p") as producer:
        await admin.create_topic(topic, queues=queues)
        for number in range(queues):
            await producer.send(Message.of(topic, str(number)))
        yield admin, producer


@pytest.mark.parametrize("how", ["chosen in turn", "by key", "by selector", "without retries", "in batches"])
async def test_a_topic_with_fewer_queues_is_looked_up_at_once(
    mq_broker: Broker, mq_topic: str, how: str
) -> None:
    async with knowing(mq_broker, mq_topic, 8) as (admin, known):
        producer = Producer(mq_broker.namesrv, group="q", retries=0) if how == "without retries" else known
        async with producer:
            await producer.send(Message.of(mq_topic, b"x"))
            await admin.create_topic(mq_topic, queues=2)
            turns = itertools.cycle(range(8))
            for number in range(24):
                message = Message.of(mq_topic, b"x")
                if how == "by key":
                    result = await producer.send(message, hash_key=number)
                elif how == "by selector":
                    result = await producer.send(
                        message, selector=lambda queues, _: queues[next(turns) % len(queues)]
                    )
                elif how == "in batches":
                    result = await producer.send_batch([message, message])
                else:
                    result = await producer.send(message)
                assert result.queue.queue_id < 2


async def test_a_new_queue_is_taken_at_once_and_a_missing_one_is_refused(
    mq_broker: Broker, mq_topic: str
) -> None:
    async with knowing(mq_broker, mq_topic, 2) as (admin, producer):
        (queue, *_) = await producer.queues(mq_topic)
        await admin.create_topic(mq_topic, queues=4)
        result = await producer.send(Message.of(mq_topic, b"x"), queue=queue._replace(queue_id=3))
        assert result.queue.queue_id == 3
        await admin.create_topic(mq_topic, queues=5)
        assert len(await producer.queues(mq_topic)) == 5
        with pytest.raises(InvalidMessage, match="not a writable queue"):
            await producer.send(Message.of(mq_topic, b"x"), queue=queue._replace(queue_id=7))
        await admin.create_topic(mq_topic, queues=1)
        with pytest.raises(InvalidMessage, match="not a writable queue"):
            await producer.send(Message.of(mq_topic, b"x"), queue=queue._replace(queue_id=4))


async def test_a_topic_that_was_made_again_with_fewer_queues(mq_broker: Broker, mq_topic: str) -> None:
    async with knowing(mq_broker, mq_topic, 8) as (admin, producer):
        await admin.delete_topic(mq_topic)
        await admin.create_topic(mq_topic, queues=1)
        for number in range(16):
            result = await producer.send(Message.of(mq_topic, str(number)))
            assert result.queue == MessageQueue(mq_topic, result.queue.broker_name, 0)


@pytest.mark.parametrize("kind", ["push", "lite", "pop"])
async def test_a_group_reads_a_topic_that_was_made_again(mq_broker: Broker, mq_topic: str, kind: str) -> None:
    """Its parked request is answered, and it begins at the beginning of the younger queue."""
    group, seen = f"g-{mq_topic}", list[bytes]()

    async def listen(message: MessageExt) -> None:
        seen.append(message.body)

    async def poll(consumer: LitePullConsumer) -> None:
        while True:
            seen.extend(message.body for message in await consumer.poll())

    async with knowing(mq_broker, mq_topic, 1) as (admin, producer):
        consumer: PushConsumer | LitePullConsumer | PopConsumer
        if kind == "push":
            consumer = PushConsumer(mq_broker.namesrv, group=group, listener=listen, consume_from=FIRST)
        elif kind == "lite":
            consumer = LitePullConsumer(mq_broker.namesrv, group=group, consume_from=FIRST)
        else:
            await admin.set_consume_mode(mq_topic, group, "POP")
            consumer = PopConsumer(mq_broker.namesrv, group=group, listener=listen, consume_from=FIRST)
        consumer.subscribe(mq_topic)
        async with consumer:
            polling = asyncio.create_task(poll(consumer)) if isinstance(consumer, LitePullConsumer) else None
            for number in range(1, 20):
                await producer.send(Message.of(mq_topic, f"old-{number}"))
            await eventually_async(lambda: len(seen) == 20, "the old messages")
            await asyncio.sleep(0.2)  # the next request is parked
            await admin.delete_topic(mq_topic)
            await admin.create_topic(mq_topic, queues=1)
            if kind == "pop":
                await admin.set_consume_mode(mq_topic, group, "POP")
            for number in range(5):
                await producer.send(Message.of(mq_topic, f"new-{number}"))
            expected = {b"new-%d" % number for number in range(5)}
            await eventually_async(lambda: expected <= set(seen), lambda: seen, timeout_s=20)
            if polling is not None:
                polling.cancel()
