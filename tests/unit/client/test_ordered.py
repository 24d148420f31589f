"""What may run of an ordered queue, step by step."""

import asyncio
import functools
import gc
from collections.abc import Awaitable, Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.client.consumer.consumer_settings import PushConsumerSettings
from mqspark.client.delivery.delivery import make_delivery
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.life.timers import Timers
from mqspark.client.push.ordered import LOCK_LIFETIME_MS, Ordered, OrderedQueue
from mqspark.message import MessageExt, MessageQueue
from tests.support.clocks import ManualClock
from tests.unit.client.test_decisions import message


def locked(batch_size: int = 1) -> tuple[OrderedQueue, ProcessQueue]:
    ordered, process = OrderedQueue(batch_size=batch_size, needs_lock=True), ProcessQueue(0)
    ordered.renewed(0)
    ordered.restart(process)
    return ordered, process


def fill(ordered: OrderedQueue, process: ProcessQueue, end: int) -> None:
    ordered.add(process.put([message(offset) for offset in range(process.next_offset, end)], end))


def run(ordered: OrderedQueue, now_ms: int = 0) -> list[int]:
    return [each.queue_offset for each in ordered.next(now_ms)]


def test_one_batch_at_a_time() -> None:
    ordered, process = locked(2)
    fill(ordered, process, 5)
    assert (run(ordered), run(ordered)) == ([0, 1], [])
    ordered.done(process)
    assert (process.commit_offset, run(ordered)) == (2, [2, 3])
    ordered.done(process)
    assert run(ordered) == [4]


def test_what_failed_comes_first_when_the_queue_has_rested() -> None:
    ordered, process = locked(2)
    fill(ordered, process, 3)
    first = ordered.next(0)
    ordered.put_back(process, 1_000)
    assert (run(ordered, 999), process.commit_offset) == ([], 0)
    assert run(ordered, 1_000) == [0, 1]
    assert [each.reconsume_times for each in first] == [1, 1]


def test_nothing_runs_without_a_fresh_lock() -> None:
    ordered, process = locked()
    fill(ordered, process, 3)
    assert ordered.locked(LOCK_LIFETIME_MS)
    assert run(ordered, LOCK_LIFETIME_MS + 1) == []
    assert OrderedQueue(batch_size=1, needs_lock=False).locked(1 << 40)


@pytest.mark.parametrize("denied", [False, True])
def test_after_a_lapse_what_was_cached_is_not_served(denied: bool) -> None:
    ordered, process = locked()
    fill(ordered, process, 3)
    if denied:
        ordered.lost()
        assert run(ordered, 10) == []
    ordered.renewed(LOCK_LIFETIME_MS + 1)
    assert ordered.lapsed
    assert run(ordered, LOCK_LIFETIME_MS + 2) == []
    again = ProcessQueue(2)
    ordered.restart(again)
    fill(ordered, again, 4)
    assert run(ordered, LOCK_LIFETIME_MS + 2) == [2]


def test_a_renewal_in_time_is_no_lapse() -> None:
    ordered, process = locked()
    fill(ordered, process, 1)
    ordered.renewed(LOCK_LIFETIME_MS)
    assert run(ordered, 2 * LOCK_LIFETIME_MS) == [0]


def test_what_runs_from_before_a_restart_is_waited_for_and_then_ignored() -> None:
    ordered, before = locked()
    fill(ordered, before, 3)
    assert run(ordered) == [0]
    before.drop()
    after = ProcessQueue(1)
    ordered.restart(after)
    fill(ordered, after, 3)
    assert run(ordered) == []
    ordered.done(before)
    assert (after.commit_offset, run(ordered)) == (1, [1])
    ordered.restart(ProcessQueue(2))
    ordered.put_back(after, 99)
    assert (ordered.resume_ms, list(ordered.waiting)) == (0, [])


def test_a_queue_that_is_given_up_starts_nothing() -> None:
    ordered, process = locked()
    fill(ordered, process, 3)
    ordered.closing = True
    assert run(ordered) == []


def test_a_dropped_queue_commits_what_it_would_have() -> None:
    process = ProcessQueue(0)
    process.put([message(0), message(1)], 5)
    process.complete(message(0))
    process.drop()
    assert process.commit_offset == 1
    assert not process.holds(message(1))


def test_what_is_held_is_consumed_with_the_commit() -> None:
    ordered, process = locked()
    fill(ordered, process, 4)
    for expected in ([0], [1]):
        assert run(ordered) == expected
        ordered.hold(process)
        assert process.commit_offset == 0
    assert run(ordered) == [2]
    ordered.done(process)
    assert (process.commit_offset, ordered.held) == (3, [])


def test_a_roll_back_brings_everything_since_the_last_commit_again() -> None:
    ordered, process = locked(2)
    fill(ordered, process, 7)
    assert run(ordered) == [0, 1]
    ordered.done(process)
    first = ordered.next(0)
    ordered.hold(process)
    assert run(ordered) == [4, 5]
    ordered.roll_back(process, 1_000)
    assert (run(ordered, 999), process.commit_offset) == ([], 2)
    assert run(ordered, 1_000) == [2, 3]
    assert [each.reconsume_times for each in first] == [0, 0]


def test_what_was_held_before_a_restart_is_forgotten() -> None:
    ordered, before = locked()
    fill(ordered, before, 3)
    run(ordered)
    ordered.hold(before)
    before.drop()
    after = ProcessQueue(0)
    ordered.restart(after)
    fill(ordered, after, 3)
    assert (run(ordered), ordered.held) == ([0], [])
    ordered.hold(before)
    assert ordered.held == []


@given(
    st.lists(st.sampled_from(["done", "commit", "again", "back"]), max_size=40),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_offset_to_commit_is_the_one_after_the_last_commit(
    words: list[str], batch_size: int, auto_commit: bool
) -> None:
    ordered, process = locked(batch_size)
    fill(ordered, process, 30)
    now = consumed = committed = 0
    for word in words:
        batch = run(ordered, now)
        assert batch == list(range(consumed, min(consumed + batch_size, 30)))
        if not batch:
            break
        if word == "again":
            ordered.put_back(process, now)
        elif word == "back":
            ordered.roll_back(process, now)
            consumed = committed
        elif word == "commit" or auto_commit:
            ordered.done(process)
            committed = consumed = batch[-1] + 1
        else:
            ordered.hold(process)
            consumed = batch[-1] + 1
        assert process.commit_offset == committed
        assert process.message_count == 30 - committed


class AllLocks:
    """Gives every lock; ``held`` are those that were not released."""

    def __init__(self) -> None:
        self.held: set[MessageQueue] = set()

    async def lock(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, bool]:
        self.held.update(queues)
        return dict.fromkeys(queues, True)

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        self.held.difference_update(queues)


def serving(listen: Callable[[MessageExt], Awaitable[None]], locks: AllLocks) -> Ordered:
    async def regained(queue: MessageQueue) -> None:
        raise AssertionError(f"{queue} was never lost")

    clock = ManualClock()
    return Ordered(
        "G",
        PushConsumerSettings(),
        functools.partial(make_delivery, listen, concurrency=1),
        None,
        locks,
        batch_size=0,
        timers=Timers(clock),
        statistics=ConsumeStatistics(clock),
        consumed=lambda process: None,
        regained=regained,
    )


async def test_a_stop_releases_the_locks_of_queues_whose_coroutine_has_not_begun() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        begun.set()
        await go_on.wait()

    locks = AllLocks()
    ordered = serving(listen, locks)
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    processes = [ProcessQueue(0) for _ in queues]
    assert await ordered.claim(queues) == set(queues)
    for queue, process in zip(queues, processes, strict=True):
        ordered.restart(queue, process)
        ordered.add(process, process.put([message(0)], 1))
    await begun.wait()
    stopping = asyncio.ensure_future(ordered.stop(60_000))
    await asyncio.sleep(0)
    go_on.set()
    assert await stopping
    await ordered.unclaim_idle()
    assert locks.held == set()
    assert [process.commit_offset for process in processes] == [1, 0, 0]


async def test_a_queue_whose_lock_is_lost_again_and_again_keeps_nothing_of_it() -> None:
    """Its listener processes one message all the while."""
    begun, go_on, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        (over if begun.is_set() else begun).set()
        await go_on.wait()

    def kept() -> int:
        gc.collect()
        return sum(isinstance(each, ProcessQueue) for each in gc.get_objects())

    ordered, before = serving(listen, AllLocks()), kept()
    queue = MessageQueue("T", "b", 0)
    await ordered.claim([queue])
    for number in range(20):
        process = ProcessQueue(0)
        ordered.restart(queue, process)
        ordered.add(process, process.put([message(0)], 1))
        if not number:
            await begun.wait()
    assert kept() - before == 2, "the one that runs, and the present one"
    go_on.set()
    await over.wait()
    assert await ordered.stop(60_000)
    assert kept() - before == 1
    assert process.commit_offset == 1
