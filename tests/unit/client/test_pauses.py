"""Pauses and time limits of a client, by a clock that a test moves."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mqspark.base.clock import MovableClock, SystemClock
from mqspark.client.life.timers import NOTHING_DUE_MS, Timers
from mqspark.testing import FakeClock

HOUR_S = 3_600


@pytest.fixture
def fake() -> FakeClock:
    return FakeClock()


def test_which_clocks_are_moved(fake: FakeClock) -> None:
    assert isinstance(fake.running, MovableClock)
    assert not isinstance(SystemClock(), MovableClock)


def test_the_running_clock_runs_and_is_moved(fake: FakeClock) -> None:
    real, running = SystemClock(), fake.running
    fake.advance(50_000)
    fake.step_wall_clock(-7_000)
    assert 0 <= running.monotonic_ms() - real.monotonic_ms() - 50_000 < 10_000
    assert 0 <= running.now_ms() - real.now_ms() - 43_000 < 10_000


async def test_what_is_due_is_called_in_order_and_at_its_time(fake: FakeClock) -> None:
    timers = Timers(fake.running)
    called: list[tuple[int, int]] = []
    timers.start()
    for pause_s in (300, 100, 200, 2 * HOUR_S):
        timers.call_later(pause_s, lambda pause_s=pause_s: called.append((pause_s, fake.advanced_ms)))
    fake.advance(HOUR_S * 1_000)
    timers.stop()
    assert [pause_s for pause_s, _ in called] == [100, 200, 300]
    for pause_s, at_ms in called:
        assert abs(at_ms - pause_s * 1_000) <= HOUR_S, "within a thousandth of the step"


async def test_a_cancelled_call_is_not_made(fake: FakeClock) -> None:
    timers = Timers(fake.running)
    called: list[int] = []
    timers.start()
    timers.call_later(10, called.append, 1).cancel()
    fake.advance(20_000)
    assert called == []
    timers.stop()


async def test_sleep_ends_when_the_clock_is_moved_by_another_thread(fake: FakeClock) -> None:
    timers = Timers(fake.running)
    timers.start()
    sleeping = asyncio.ensure_future(timers.sleep(HOUR_S))
    await asyncio.sleep(0)
    await asyncio.to_thread(fake.advance, 1_000)
    assert not sleeping.done()
    await asyncio.to_thread(fake.advance, HOUR_S * 1_000)
    await asyncio.wait_for(sleeping, 30)
    timers.stop()


async def test_who_waits_can_be_cancelled(fake: FakeClock) -> None:
    timers = Timers(fake.running)
    timers.start()
    waiting = asyncio.ensure_future(timers.sleep(HOUR_S))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert timers.follow() == NOTHING_DUE_MS, "nothing is left behind"
    fake.advance(HOUR_S * 1_000)
    timers.stop()


async def test_with_the_systems_clock_real_time_passes() -> None:
    timers, called = Timers(SystemClock()), threading.Event()
    timers.start()
    timers.call_later(0.01, called.set)
    await timers.sleep(0.02)
    assert called.is_set()
    assert timers.follow() == NOTHING_DUE_MS
    timers.stop()
