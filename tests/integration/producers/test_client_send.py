"""Sends that are not quite ordinary: put together on their way, or delivered later."""

from __future__ import annotations

import asyncio
import time

import pytest

import mqspark
from mqspark.aio import (
    AdminClient,
    AutoBatch,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    SendStatus,
)
from mqspark.errors import BrokerError, ConfigError, InvalidMessage
from mqspark.testing import Broker, FakeClock

pytest_plugins = ["mqspark.testing.pytest_plugin"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def create(broker: Broker, topic: str, queues: int = 1) -> list[MessageQueue]:
    async with AdminClient(broker.namesrv) as admin:
        return list((await admin.create_topic(topic, queues=queues)).publish_queues)


async def read(broker: Broker, queues: list[MessageQueue], count: int) -> list[MessageExt]:
    received: list[MessageExt] = []
    async with LitePullConsumer(broker.namesrv, group="read-all", consume_from=FIRST) as consumer:
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_begin(queue)
        deadline = time.monotonic() + 60
        while len(received) < count and time.monotonic() < deadline:
            received += await consumer.poll(200)
    return received


async def test_single_sends_travel_together_and_get_their_own_results(
    mq_broker: Broker, mq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place,) = await create(mq_broker, mq_topic)
    producer = Producer(
        mq_broker.namesrv,
        group="auto",
        send_timeout_ms=30_000,
        auto_batch=AutoBatch(max_delay_ms=20, max_bytes=1_000),
    )
    async with producer:
        await producer.queues(mq_topic)
        batches = 0
        begin_batch = producer.begin_batch

        def counting(*arguments: object) -> None:
            nonlocal batches
            batches += 1
            begin_batch(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(producer, "begin_batch", counting)
        futures = [
            await producer.send_async(Message.of(mq_topic, b"%d" % number, tags="A" if number % 2 else "B"))
            for number in range(60)
        ]
        results = [await future for future in futures]
        assert batches == 2, "one for each tag"
        large = [await producer.send_async(Message.of(mq_topic, b"x" * 400)) for _ in range(7)]
        await asyncio.gather(*large)
        assert batches == 4
        alone = await producer.send(Message.of(mq_topic, b"alone", keys="k"))
        delayed = await producer.send(Message.of(mq_topic, b"later", delay_ms=1_000))
        assert batches == 4
        left = await producer.send_async(Message.of(mq_topic, b"left"))
    assert (await left).status is SendStatus.SEND_OK
    assert len({result.message_id for result in results}) == 60
    assert sorted(result.queue_offset for result in results) == list(range(60))
    received = {got.queue_offset: got for got in await read(mq_broker, [place], 70)}
    for number, result in enumerate(results):
        got = received[result.queue_offset]
        assert (got.body, got.message_id, got.offset_message_id) == (
            b"%d" % number, result.message_id, result.offset_message_id,
        )  # fmt: skip
        assert result.queue == place
    assert received[alone.queue_offset].keys == "k"
    assert {b"left", b"later"} <= {got.body for got in received.values()}
    assert delayed.status is SendStatus.SEND_OK


async def test_a_bad_message_spoils_no_batch(mq_broker: Broker, mq_topic: str) -> None:
    (place,) = await create(mq_broker, mq_topic)
    async with Producer(
        mq_broker.namesrv, group="auto", send_timeout_ms=30_000, auto_batch=AutoBatch()
    ) as producer:
        good = await producer.send_async(Message.of(mq_topic, b"good"))
        for bad in (
            Message.of(mq_topic, b""),
            Message.of(mq_topic, b"x", properties={"a": "\x01"}),
            Message.of("no such/name", b"x"),
            Message(mq_topic, "text"),  # type: ignore[arg-type]
            Message(mq_topic, b"x", properties=[]),  # type: ignore[arg-type]
            Message(mq_topic, b"x", flag=1 << 40),
        ):
            with pytest.raises(InvalidMessage):
                await producer.send(bad)
        changed = Message.of(mq_topic, b"as it was")
        sent = await producer.send_async(changed)
        changed.body, changed.properties = b"", {"a": "\x01"}
        assert (await good).status is SendStatus.SEND_OK
        stored = (await sent).queue_offset
        changed = Message.of(mq_topic, b"alone")
        sent = await producer.send_async(changed)
        changed.body, changed.properties = b"", {"a": "\x01"}
        alone = (await sent).queue_offset
        lost = await producer.send_async(
            Message.of(mq_topic, b"x"), queue=MessageQueue(mq_topic, "nowhere", 0)
        )
        with pytest.raises(InvalidMessage):
            await lost
    received = {got.queue_offset: got.body for got in await read(mq_broker, [place], 3)}
    assert (received[stored], received[alone]) == (b"as it was", b"alone")
    with pytest.raises(ConfigError):
        AutoBatch(max_delay_ms=0)


async def test_a_batch_is_no_larger_than_a_message_may_be(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    long = {"long": "p" * 1_000}
    async with Producer(
        mq_broker.namesrv,
        group="auto",
        send_timeout_ms=30_000,
        max_message_bytes=4_000,
        auto_batch=AutoBatch(max_delay_ms=1_000),
    ) as producer:
        messages = [
            Message(mq_topic, b"%d" % number, properties=long if number % 2 else {}) for number in range(40)
        ]
        messages += [Message(mq_topic, b"x" * 600) for _ in range(10)]
        messages.append(Message(mq_topic, b"x" * 3_000, properties={"long": "p" * 3_000}))
        futures = [await producer.send_async(message) for message in messages]
        results = [await future for future in futures]
    assert sorted(result.queue_offset for result in results) == list(range(len(messages)))


def test_threads_share_batches(mq_broker: Broker, mq_topic: str) -> None:
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        admin.create_topic(mq_topic, queues=1)
    with mqspark.Producer(
        mq_broker.namesrv, group="auto", send_timeout_ms=30_000, auto_batch=mqspark.AutoBatch()
    ) as producer:
        futures = [producer.send_async(Message.of(mq_topic, b"%d" % number)) for number in range(500)]
        offsets = [future.result(60).queue_offset for future in futures]
    assert sorted(offsets) == list(range(500))


async def test_a_delay_is_a_parameter(mq_broker: Broker, mq_topic: str) -> None:
    (place,) = await create(mq_broker, mq_topic)
    now_ms = time.time_ns() // 1_000_000
    async with Producer(mq_broker.namesrv, group="later", send_timeout_ms=30_000) as producer:
        for message in (
            Message.of(mq_topic, b"level", delay_level=1),
            Message.of(mq_topic, b"delay", delay_ms=1_000),
            Message.of(mq_topic, b"at", deliver_at_ms=now_ms + 1_000),
        ):
            assert (await producer.send(message)).status is SendStatus.SEND_OK
        with pytest.raises(InvalidMessage, match="batch"):
            await producer.send_batch([Message.of(mq_topic, b"x"), Message.of(mq_topic, b"y", delay_ms=5)])
    received = await read(mq_broker, [place], 3)
    assert {got.body for got in received} == {b"level", b"delay", b"at"}
    assert all(got.store_timestamp_ms >= now_ms + 900 for got in received)
    with pytest.raises(InvalidMessage):
        Message.of(mq_topic, b"x", delay_level=1, delay_ms=1)


async def test_a_timed_message_is_taken_back(mq_topic: str) -> None:
    clock = FakeClock()
    with Broker(settings={"recallMessageEnable": True}, clock=clock) as broker:
        (place,) = await create(broker, mq_topic)
        async with Producer(
            broker.namesrv, group="recall", send_timeout_ms=30_000, clock=clock.running
        ) as producer:
            doomed = await producer.send(Message.of(mq_topic, b"doomed", delay_ms=3_000))
            assert doomed.recall_handle is not None
            assert await producer.recall(mq_topic, doomed.recall_handle) == doomed.message_id
            with pytest.raises(InvalidMessage):
                await producer.recall(mq_topic, "nonsense")
            now = await producer.send(Message.of(mq_topic, b"now"))
            assert now.recall_handle is None
            # Both that follow are due later than the one that was taken back.
            await producer.send(Message.of(mq_topic, b"later", delay_ms=4_000))
        await asyncio.to_thread(clock.advance, 6_000)
        received = await read(broker, [place], 2)
        assert [got.body for got in received] == [b"now", b"later"]


async def test_a_broker_that_recalls_nothing_says_so(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    async with Producer(mq_broker.namesrv, group="recall", send_timeout_ms=30_000) as producer:
        sent = await producer.send(Message.of(mq_topic, b"stays", delay_ms=1_000))
        if sent.recall_handle is not None:
            with pytest.raises(BrokerError, match="recall"):
                await producer.recall(mq_topic, sent.recall_handle)
