"""Whatever becomes of messages and of their consumers: a committed offset never passes a message that is not consumed.

First one queue whose owners change, with the old ones still working and committing (``ProcessQueue`` alone); then one
owner whose listeners succeed, fail and hang while brokers take failures back or do not (``Concurrent`` on a real loop).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqspark.base.clock import SystemClock
from mqspark.client.delivery.delivery import ConsumeStatus, make_delivery
from mqspark.client.delivery.process_queue import FlowLimits, ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.life.timers import Timers
from mqspark.client.push.concurrent import Concurrent
from mqspark.errors import RequestTimeout
from mqspark.message import MessageExt
from mqspark.testing import FakeClock
from tests.support.draws import draws
from tests.unit.client.test_decisions import message

NUMBERS = st.integers(0, 100)


@dataclass
class Owner:
    process: ProcessQueue
    pending: list[MessageExt] = field(default_factory=list)
    """Given to listeners."""
    finished: list[MessageExt] = field(default_factory=list)


class OwnersOfAQueue(RuleBasedStateMachine):
    """Any number of owners at once: who lost the queue may learn of it late, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[bool] = []
        """By offset: whether the message is for us; a filter passes over the others."""
        self.consumed: set[int] = set()
        self.committed = 0
        self.owners = [Owner(ProcessQueue(0))]

    def _owner(self, number: int) -> Owner:
        return self.owners[number % len(self.owners)]

    def _left(self, upto: int) -> set[int]:
        return {n for n, is_wanted in enumerate(self.wanted[:upto]) if is_wanted} - self.consumed

    @rule(wanted=st.lists(st.sampled_from([True, True, False]), min_size=1, max_size=6))
    def send(self, wanted: list[bool]) -> None:
        self.wanted += wanted

    @rule(number=NUMBERS, most=st.integers(1, 5), early=st.integers(0, 2))
    def pull(self, number: int, most: int, early: int) -> None:
        """``early``: a record that holds several messages begins before the offset that was asked for."""
        owner = self._owner(number)
        process = owner.process
        if process.dropped:
            return
        end = min(len(self.wanted), process.next_offset + most)
        first = max(0, process.next_offset - early)
        found = [message(n, b"x" * (n % 3)) for n in range(first, end) if self.wanted[n]]
        fresh = process.put(found, end)
        assert [each.queue_offset for each in fresh] == [
            each.queue_offset for each in found if each.queue_offset >= first + min(early, end - first)
        ] or early
        owner.pending += fresh

    @precondition(lambda self: any(owner.pending for owner in self.owners))
    @rule(number=NUMBERS, which=NUMBERS)
    def finish(self, number: int, which: int) -> None:
        owner = self._owner(number)
        if owner.pending:
            done = owner.pending.pop(which % len(owner.pending))
            self.consumed.add(done.queue_offset)
            owner.process.complete(done)
            owner.finished.append(done)

    @rule(number=NUMBERS, which=NUMBERS)
    def finish_again(self, number: int, which: int) -> None:
        """A listener that took too long comes to its end after all."""
        owner = self._owner(number)
        if owner.finished:
            again = owner.finished[which % len(owner.finished)]
            assert not owner.process.holds(again)
            owner.process.complete(again)

    @rule(number=NUMBERS)
    def commit(self, number: int) -> None:
        process = self._owner(number).process
        if not process.dropped:
            self.committed = process.commit_offset

    @rule(number=NUMBERS)
    def lose(self, number: int) -> None:
        """It gives the queue up, and says how far it is."""
        process = self._owner(number).process
        if not process.dropped:
            process.drop()
            self.committed = process.commit_offset

    @precondition(lambda self: len(self.owners) < 4)
    @rule()
    def another_takes_over(self) -> None:
        self.owners.append(Owner(ProcessQueue(self.committed)))

    @invariant()
    def nothing_before_the_commit_is_left(self) -> None:
        assert not self._left(self.committed)
        for owner in self.owners:
            assert not self._left(owner.process.commit_offset)

    @invariant()
    def the_counts_are_what_is_cached(self) -> None:
        for process, pending in ((owner.process, owner.pending) for owner in self.owners):
            if process.dropped:
                assert (process.message_count, process.size_bytes, process.span) == (0, 0, 0)
                continue
            assert process.message_count == len(pending)
            assert process.size_bytes == sum(len(each.body) for each in pending)
            offsets = sorted(each.queue_offset for each in pending)
            assert all(process.holds(each) for each in pending)
            if offsets:
                assert process.commit_offset == process.min_offset == offsets[0]
                assert process.is_full(FlowLimits(max_messages=len(offsets) - 1))
            else:
                assert process.commit_offset == process.next_offset
            assert not process.is_full(FlowLimits(max_messages=len(offsets)))

    def teardown(self) -> None:
        """One more owner, with all the time it needs."""
        last = Owner(ProcessQueue(self.committed))
        end = len(self.wanted)
        for each in last.process.put([message(n) for n in range(self.committed, end) if self.wanted[n]], end):
            self.consumed.add(each.queue_offset)
            last.process.complete(each)
        assert last.process.commit_offset == max(end, self.committed)
        assert not self._left(end)


OwnersOfAQueue.TestCase.settings = settings(max_examples=draws(100), stateful_step_count=40)
TestOwnersOfAQueue = OwnersOfAQueue.TestCase


# --- listeners -----------------------------------------------------------------------------------------------

MOST = 12
TWO_LATE_LISTENERS_OF_ONE_MESSAGE = [
    *[("succeed", 0)] * (MOST - 1),
    *[("expire", 0), ("not taken", 0), ("expire", 0)],
]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["succeed", "fail", "raise", "taken", "not taken", "expire", "turn", "drop"]), NUMBERS
    ),
    max_size=40,
)

AT_ONCE: Any = SimpleNamespace(retry_delay_ms=0, consume_timeout_ms=0)
"""No settings of users allow it."""


class Listeners:
    """Listeners and a broker that end when they are told to."""

    def __init__(self, batch_size: int) -> None:
        self.at: list[tuple[list[int], asyncio.Future[ConsumeStatus]]] = []
        self.returning: list[tuple[int, asyncio.Future[None]]] = []
        self.consumed: set[int] = set()
        """Or with the broker, which delivers it again."""
        self.returned_twice: set[int] = set()
        self.process = ProcessQueue(0)
        self.concurrent = Concurrent(
            "G",
            AT_ONCE,
            functools.partial(make_delivery, self.listen, concurrency=3),
            self.send_back,
            batch_size=batch_size,
            timers=Timers(SystemClock()),
            statistics=ConsumeStatistics(FakeClock()),
            consumed=lambda process: None,
        )

    async def listen(self, argument: MessageExt | list[MessageExt]) -> ConsumeStatus:
        messages = [argument] if isinstance(argument, MessageExt) else list(argument)
        end: asyncio.Future[ConsumeStatus] = asyncio.get_running_loop().create_future()
        self.at.append(([each.queue_offset for each in messages], end))
        return await end

    async def send_back(self, back: MessageExt, level: int) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if back.queue_offset in [offset for offset, _ in self.returning]:
            self.returned_twice.add(back.queue_offset)
        self.returning.append((back.queue_offset, end))
        await end

    def happen(self, event: str, number: int) -> None:
        if event in ("succeed", "fail", "raise") and self.at:
            offsets, end = self.at.pop(number % len(self.at))
            if event == "succeed":
                self.consumed.update(offsets)
                end.set_result(ConsumeStatus.CONSUME_SUCCESS)
            elif event == "fail":
                end.set_result(ConsumeStatus.RECONSUME_LATER)
            else:
                end.set_exception(ValueError("not now"))
        elif event in ("taken", "not taken") and self.returning:
            offset, taken = self.returning.pop(number % len(self.returning))
            if event == "taken":
                self.consumed.add(offset)
                taken.set_result(None)
            else:
                taken.set_exception(RequestTimeout("127.0.0.1:1", 1))
        elif event == "expire":
            self.concurrent.expire()
        elif event == "drop" and number < 3:
            self.process.drop()

    def check(self) -> None:
        left = set(range(self.process.commit_offset)) - self.consumed
        assert not left, f"{left} are passed over"
        assert not self.returned_twice, "it is on its way to the broker already"

    def finish(self) -> bool:
        """Let one listener and one return succeed; whether none is left."""
        self.happen("succeed", 0)
        self.happen("taken", 0)
        return not (self.at or self.returning) and (self.process.dropped or not self.process.message_count)

    async def settle(self, finish: Callable[[], bool]) -> None:
        for _ in range(1_000):
            for _ in range(6):
                await asyncio.sleep(0)
            self.check()
            if finish():
                return
        raise AssertionError("it does not come to an end")


@settings(max_examples=draws(150))
@given(events=EVENTS, batch_size=st.sampled_from([0, 1, 3]))
@example(events=TWO_LATE_LISTENERS_OF_ONE_MESSAGE, batch_size=0)
def test_listeners_that_fail_and_hang(events: list[tuple[str, int]], batch_size: int) -> None:
    async def live() -> None:
        listeners = Listeners(batch_size)
        process = listeners.process
        listeners.concurrent.add(process, process.put([message(n) for n in range(MOST)], MOST))
        try:
            for event, number in events:
                listeners.happen(event, number)
                await listeners.settle(lambda: True)
            await listeners.settle(listeners.finish)
            assert process.dropped or process.commit_offset == MOST
        finally:
            for _ in range(1_000):  # also when something is never done
                listeners.finish()
                await asyncio.sleep(0)
            assert await listeners.concurrent.stop(60_000)

    asyncio.run(live())
