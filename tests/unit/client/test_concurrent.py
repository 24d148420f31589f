"""A concurrent consumer finishes, retries and leaves messages one by one, however many end together."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mqspark.client.consumer.consumer_settings import PushConsumerSettings
from mqspark.client.delivery.delivery import make_delivery
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.life.timers import Timers
from mqspark.client.push.concurrent import Concurrent
from mqspark.message import MessageExt
from tests.support.clocks import ManualClock
from tests.support.receivedmessages import received

WAIT_S = 60
TIMEOUT_MS = 1_000


def message(offset: int, topic: str = "T") -> MessageExt:
    return received(offset, topic=topic, properties={"UNIQ_KEY": str(offset)})


class World:
    """One queue and its consumer; ``sent_back`` has offsets and levels."""

    def __init__(self, listener: Callable[[Any], Any], batch_size: int, concurrency: int) -> None:
        self.clock = ManualClock()
        timers = Timers(self.clock)
        self.statistics = ConsumeStatistics(self.clock)
        self.process = ProcessQueue(0)
        self.sent_back: list[tuple[int, int]] = []
        self._changed = asyncio.Event()
        self.consumption = Concurrent(
            "G",
            PushConsumerSettings(retry_delay_ms=1_000, consume_timeout_ms=TIMEOUT_MS),
            functools.partial(make_delivery, listener, concurrency=concurrency, now_s=timers.now_s),
            self._send_back,
            batch_size=batch_size,
            timers=timers,
            statistics=self.statistics,
            consumed=lambda process: self._changed.set(),
        )

    async def _send_back(self, message: MessageExt, delay_level: int) -> None:
        self.sent_back.append((message.queue_offset, delay_level))

    def add(self, count: int) -> None:
        """In pulls of 32, as they come."""
        for start in range(self.process.next_offset, self.process.next_offset + count, 32):
            messages = [message(offset) for offset in range(start, min(start + 32, count))]
            self.consumption.add(self.process, self.process.put(messages, min(start + 32, count)))

    async def left(self, count: int) -> None:
        """Wait until no more than ``count`` messages are cached."""
        async with asyncio.timeout(WAIT_S):
            while self.process.message_count > count:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def consuming(
    listener: Callable[[Any], Any], *, batch_size: int = 0, concurrency: int = 4
) -> AsyncIterator[World]:
    world = World(listener, batch_size, concurrency)
    yield world
    assert await world.consumption.stop(WAIT_S * 1_000)


async def test_a_slow_function_holds_back_nothing_else() -> None:
    go_on = threading.Event()

    def listen(message: MessageExt) -> None:
        if message.queue_offset % 50 == 5:
            assert go_on.wait(WAIT_S)

    async with consuming(listen) as world:
        world.add(150)
        await world.left(3)
        assert world.process.commit_offset == 5
        go_on.set()
        await world.left(0)
        assert world.process.commit_offset == 150


async def test_a_slow_coroutine_holds_back_nothing_else() -> None:
    go_on = asyncio.Event()

    async def listen(message: MessageExt) -> None:
        if message.queue_offset % 50 == 5:
            await go_on.wait()

    async with consuming(listen) as world:
        world.add(150)
        await world.left(3)
        assert world.process.commit_offset == 5
        go_on.set()
        await world.left(0)
        assert world.process.commit_offset == 150


def judge(message: MessageExt) -> None:
    if message.queue_offset % 10 == 3:
        raise ValueError(message.queue_offset)


async def judge_later(message: MessageExt) -> None:
    judge(message)


@pytest.mark.parametrize("listener", [judge, judge_later])
async def test_a_failure_amid_successes_returns_alone(listener: Callable[[Any], Any]) -> None:
    async with consuming(listener) as world:
        world.add(100)
        await world.left(0)
    assert sorted(world.sent_back) == [(offset, 0) for offset in range(3, 100, 10)]
    assert world.process.commit_offset == 100
    world.clock.advance(1_000)
    rates = world.statistics.status("T")
    assert (rates.consume_ok_tps, rates.consume_failed_tps, rates.consume_failed_msgs) == (90, 10, 10)


def spoil(message: MessageExt) -> None:
    if message.queue_offset == 3:
        del message.properties
        raise ValueError("spoilt")


async def spoil_later(message: MessageExt) -> None:
    spoil(message)


@pytest.mark.parametrize("listener", [spoil, spoil_later])
async def test_an_outcome_that_cannot_be_handled_takes_no_other_along(
    listener: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with consuming(listener) as world:
        world.add(32)
        await world.left(1)
    assert world.process.commit_offset == 3
    assert caplog.text.count("could not be handled") == 1


async def test_each_topic_of_a_retry_queue_is_counted() -> None:
    async with consuming(lambda message: None) as world:
        messages = [message(offset, topic="TU"[offset % 3 == 0]) for offset in range(30)]
        world.consumption.add(world.process, world.process.put(messages, 30))
        await world.left(0)
    world.clock.advance(1_000)
    assert [world.statistics.status(topic).consume_ok_tps for topic in "TU"] == [20, 10]


async def test_a_stop_waits_for_what_runs_and_leaves_the_rest() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def listen(message: MessageExt) -> None:
        if message.queue_offset >= 10:
            begun.release()
            assert go_on.wait(WAIT_S)

    world = World(listen, 0, 2)
    world.add(40)
    for _ in range(2):
        assert await asyncio.to_thread(begun.acquire, timeout=WAIT_S)
    stopping = asyncio.ensure_future(world.consumption.stop(WAIT_S * 1_000))
    await asyncio.sleep(0)
    assert not stopping.done()
    go_on.set()
    assert await stopping
    assert world.process.commit_offset == 12
    assert world.process.message_count == 28
    assert world.sent_back == []


async def test_a_stop_does_not_wait_for_ever() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def listen(message: MessageExt) -> None:
        if message.queue_offset == 7:
            begun.set()
            assert go_on.wait(WAIT_S)

    world = World(listen, 0, 1)
    world.add(32)
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    assert not await world.consumption.stop(10)
    assert world.process.commit_offset == 7
    go_on.set()


async def test_a_function_that_takes_too_long_counts_as_failed_once() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def listen(message: MessageExt) -> None:
        if message.queue_offset == 20:
            begun.set()
            assert go_on.wait(WAIT_S)
            raise ValueError("late")

    async with consuming(listen, concurrency=2) as world:
        world.add(64)
        await world.left(1)
        assert begun.is_set()
        world.consumption.expire()
        await asyncio.sleep(0)
        assert world.sent_back == []
        world.clock.advance(TIMEOUT_MS)
        world.consumption.expire()
        await world.left(0)
        assert world.process.commit_offset == 64
        go_on.set()
    assert world.sent_back == [(20, 3)]


def empty(messages: list[MessageExt]) -> None:
    while messages:
        messages.pop()


async def empty_later(messages: list[MessageExt]) -> None:
    empty(messages)


@pytest.mark.parametrize("listener", [empty, empty_later])
async def test_a_listener_may_change_its_list(listener: Callable[[Any], Any]) -> None:
    async with consuming(listener, batch_size=5) as world:
        world.add(64)
        await world.left(0)
        assert world.process.commit_offset == 64


async def test_a_message_that_one_of_its_two_listeners_consumed_is_not_sent_back() -> None:
    """It was delivered again after a timeout, and both calls end in one run."""
    calls = 0
    both, go_on = asyncio.Event(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        nonlocal calls
        calls += 1
        number = calls
        if number == 2:
            both.set()
        if number <= 2:
            await go_on.wait()
        await asyncio.sleep(0)
        if number == 2:
            raise ValueError("the second one")

    async with consuming(listen, concurrency=2) as world:
        twice, other = world.process.put([message(0), message(1)], 2)
        for each in (twice, twice, other):
            world.consumption.add(world.process, [each])
        await both.wait()
        go_on.set()
        await world.left(0)
    assert world.sent_back == []


@pytest.mark.parametrize("left", [None, b"", b"x" * 1_000])
async def test_a_listener_may_change_the_body_of_its_message(left: bytes | None) -> None:
    async def listen(message: MessageExt) -> None:
        message.body = left  # type: ignore[assignment]

    async with consuming(listen) as world:
        world.add(64)
        await world.left(0)
        assert (world.process.commit_offset, world.process.size_bytes) == (64, 0)
