"""Listeners get every argument once, as many at a time as are allowed when they wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from mqspark.client.delivery.delivery import Delivery, Ended, Listener, Outcome, Skipped, make_delivery
from mqspark.client.delivery.process_queue import ProcessQueue

PROCESS = ProcessQueue(0)
WAIT_S = 60


class Finished:
    """What was reported; ``all`` is over when there is nothing left of what was expected."""

    def __init__(self, expected: int) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._expected = expected
        self._over = asyncio.Event()

    def __call__(self, ended: Sequence[Ended]) -> None:
        for _, argument, outcome, _ in ended:
            assert argument not in self.outcomes
            self.outcomes[argument] = outcome
        if len(self.outcomes) == self._expected:
            self._over.set()

    async def all(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._over.wait()


def delivery(listener: Listener, finished: Finished) -> Delivery:
    return make_delivery(listener, concurrency=4, finished=finished)


async def test_coroutines_that_wait_run_as_many_at_a_time_as_are_allowed() -> None:
    finished = Finished(10)
    running: set[int] = set()
    together = asyncio.Event()

    async def listen(number: int) -> None:
        running.add(number)
        if len(running) == 4:
            together.set()
        await together.wait()
        await asyncio.sleep(0)
        assert len(running) <= 4
        running.discard(number)

    delivering = delivery(listen, finished)
    delivering.submit(PROCESS, range(2))
    delivering.submit(PROCESS, range(2, 10))
    await finished.all()
    assert finished.outcomes == dict.fromkeys(range(10))
    assert await delivering.stop(1_000)


async def test_coroutines_that_do_not_wait_run_in_order() -> None:
    finished = Finished(300)
    seen: list[int] = []

    async def listen(number: int) -> None:
        seen.append(number)
        assert len(delivering.running()) == 1

    delivering = delivery(listen, finished)
    for start in range(0, 300, 30):
        delivering.submit(PROCESS, range(start, start + 30))
    await finished.all()
    assert seen == list(range(300))
    assert set(finished.outcomes.values()) == {None}


async def test_what_comes_as_the_last_coroutine_ends_is_not_forgotten() -> None:
    finished = Finished(2)
    submitted = False

    def reported(ended: Sequence[Ended]) -> None:
        nonlocal submitted
        finished(ended)
        if not submitted:  # after the worker has looked for more, and before its task counts as ended
            submitted = True
            asyncio.get_running_loop().call_soon(delivering.submit, PROCESS, [1])

    async def listen(number: int) -> None:
        pass

    delivering = make_delivery(listen, concurrency=1, finished=reported)
    delivering.submit(PROCESS, [0])
    await finished.all()
    assert await delivering.stop(WAIT_S * 1000)


async def test_functions_that_block_run_as_many_at_a_time_as_are_allowed() -> None:
    finished = Finished(12)
    barrier = threading.Barrier(4)

    def listen(number: int) -> None:
        barrier.wait(WAIT_S)

    delivering = delivery(listen, finished)
    delivering.submit(PROCESS, range(1))
    delivering.submit(PROCESS, range(1, 12))
    await finished.all()
    assert finished.outcomes == dict.fromkeys(range(12))
    assert await delivering.stop(WAIT_S * 1000)


async def test_functions_get_each_argument_once() -> None:
    finished = Finished(3_000)
    seen: list[int] = []

    def listen(number: int) -> None:
        seen.append(number)
        if number % 100 == 0:
            raise ValueError(number)

    delivering = delivery(listen, finished)
    for start in range(0, 3_000, 30):
        delivering.submit(PROCESS, range(start, start + 30))
        await asyncio.sleep(0)
    await finished.all()
    assert sorted(seen) == list(range(3_000))
    failed = {number for number, outcome in finished.outcomes.items() if outcome is not None}
    assert failed == set(range(0, 3_000, 100))
    assert await delivering.stop(WAIT_S * 1000)


async def test_what_no_function_has_begun_is_skipped_when_it_stops() -> None:
    finished = Finished(20)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def listen(number: Any) -> None:
        begun.release()
        go_on.wait(WAIT_S)

    delivering = delivery(listen, finished)
    delivering.submit(PROCESS, range(20))
    for _ in range(4):
        assert await asyncio.to_thread(begun.acquire, timeout=WAIT_S)
    stopping = asyncio.ensure_future(delivering.stop(WAIT_S * 1000))
    await asyncio.sleep(0)
    go_on.set()
    assert await stopping
    await finished.all()
    skipped = [number for number, outcome in finished.outcomes.items() if isinstance(outcome, Skipped)]
    assert len(skipped) == 16


async def test_what_no_coroutine_has_begun_is_skipped_when_it_stops() -> None:
    finished = Finished(20)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def listen(number: int) -> None:
        if len(delivering.running()) == 4:
            begun.set()
        await go_on.wait()

    delivering = delivery(listen, finished)
    delivering.submit(PROCESS, range(20))
    await begun.wait()
    stopping = asyncio.ensure_future(delivering.stop(WAIT_S * 1000))
    await asyncio.sleep(0)
    go_on.set()
    assert await stopping
    await finished.all()
    skipped = [number for number, outcome in finished.outcomes.items() if isinstance(outcome, Skipped)]
    assert len(skipped) == 16
