"""Ordered pops as a whole: whatever consumers do and whenever the broker stops, a queue is in one pair of hands at a
time, goes on where its first unconsumed message is, and leaves nothing out."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqspark.protocol.command import Command
from mqspark.protocol.receipts import parse_order_counts
from tests.support.invariants import validate
from tests.unit.broker_kit import Bench, Peer
from tests.unit.pop_kit import (
    ACK,
    BATCH_ACK,
    POP,
    Popped,
    ack_ext,
    batch_body,
    change,
    handed_out,
    pass_time,
    pop_ext,
    put,
)

QUEUES = 2
INVISIBLE_MS = (5_000, 20_000, 60_000)
ATTEMPTS = st.sampled_from([None, "one", "two"])


@dataclass
class Hold:
    """What the last pop of a queue handed out."""

    attempt: str | None
    given: dict[int, Popped]
    """By queue offset, as all that follows."""
    visible_ms: dict[int, int]
    counts: dict[int, int]
    acked: set[int] = field(default_factory=set)

    def blocks(self, now_ms: int) -> bool:
        return any(now_ms < at for offset, at in self.visible_ms.items() if offset not in self.acked)


@dataclass
class Queue:
    bodies: list[str] = field(default_factory=list)
    reached: int = 0
    """The first offset that is not consumed, nor any behind it counted."""
    hold: Hold | None = None
    old: list[Popped] = field(default_factory=list)
    """Receipts that a later pop replaced."""
    is_known: bool = True
    """False: after a crash nobody can say who holds what, until the next pop."""
    consumed: set[int] = field(default_factory=set)
    """Acknowledged, by whomever."""


@dataclass
class Waiting:
    """A pop that is parked."""

    peer: Peer
    number: int
    attempt: str | None
    invisible_ms: int


class OrderedPops(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench: Bench | None = None
        self.queues = [Queue() for _ in range(QUEUES)]
        self.waiting: list[Waiting] = []

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, sync=False)
        for number in range(QUEUES):
            self.send(2, number)

    @property
    def it(self) -> Bench:
        assert self.bench is not None
        return self.bench

    @property
    def now_ms(self) -> int:
        return self.it.clock.now_ms()

    def committed(self, number: int) -> int:
        return max(0, self.it.broker.state.offsets.query("CG", "T", number))

    def open_places(self) -> list[tuple[int, int]]:
        """(queue, offset) of what is in somebody's hands."""
        return [
            (number, offset)
            for number, queue in enumerate(self.queues)
            if queue.hold is not None and queue.is_known
            for offset in queue.hold.given
            if offset not in queue.hold.acked
        ]

    def teardown(self) -> None:
        if self.bench is None:
            return
        self.everything_is_consumed()
        self.it.close()
        shutil.rmtree(self.folder)

    def everything_is_consumed(self) -> None:
        for _ in range(100):
            if all(queue.reached == len(queue.bodies) for queue in self.queues):
                return
            self.let_time_pass(120_000)
            self.take(-1, 32, INVISIBLE_MS[0], None)
            for number, offset in self.open_places():
                self.acknowledge_one(number, offset)
        raise AssertionError(f"not everything comes: {self.queues}")

    # --- what happens ---

    @rule(count=st.integers(1, 4), number=st.integers(0, QUEUES - 1))
    def send(self, count: int, number: int) -> None:
        queue = self.queues[number]
        bodies = [f"{number}-{len(queue.bodies) + step}" for step in range(count)]
        put(self.it, *bodies, queue_id=number)
        queue.bodies += bodies

    @rule(
        number=st.integers(-1, QUEUES - 1),
        most=st.integers(1, 6),
        invisible_ms=st.sampled_from(INVISIBLE_MS),
        attempt=ATTEMPTS,
    )
    def take(self, number: int, most: int, invisible_ms: int, attempt: str | None) -> None:
        answer = self.it.peer().ask(POP, self.ext(number, most, invisible_ms, attempt))
        popped = self.taken(answer, attempt, invisible_ms)
        room = most - sum(map(len, popped.values()))
        for asked in range(QUEUES) if number < 0 else [number]:
            if asked not in popped and room:
                self.is_nothing_for(asked, attempt)

    def ext(self, number: int, most: int, invisible_ms: int, attempt: str | None) -> dict[str, str]:
        more = {"attemptId": attempt} if attempt else {}
        return pop_ext(
            self.it,
            order="true",
            queueId=str(number),
            maxMsgNums=str(most),
            invisibleTime=str(invisible_ms),
            **more,
        )

    def taken(self, answer: Command, attempt: str | None, invisible_ms: int) -> dict[int, dict[int, Popped]]:
        popped: dict[int, dict[int, Popped]] = {}
        for one in handed_out(answer):
            popped.setdefault(one.receipt.queue_id, {})[one.receipt.offset] = one
        counts = parse_order_counts(answer.ext.get("orderCountInfo"))
        for found, given in popped.items():
            told = {offset: counts.of(found, offset) for offset in given}
            self.given(found, given, told, attempt, invisible_ms)
        return popped

    def is_nothing_for(self, number: int, attempt: str | None) -> None:
        """The queue has nothing for this attempt, or another has it."""
        queue = self.queues[number]
        if queue.is_known and queue.reached < len(queue.bodies):
            assert queue.hold is not None, f"queue {number} is free, and nothing came"
            assert queue.hold.blocks(self.now_ms)
            assert attempt is None or attempt != queue.hold.attempt

    @rule(
        number=st.integers(-1, QUEUES - 1),
        most=st.integers(1, 6),
        invisible_ms=st.sampled_from(INVISIBLE_MS),
        attempt=ATTEMPTS,
    )
    def wait(self, number: int, most: int, invisible_ms: int, attempt: str | None) -> None:
        """A pop that is parked when there is nothing. Of those who wait each has an attempt of its own: which of two
        comes first nobody could tell."""
        if attempt and any(each.attempt == attempt for each in self.waiting):
            return
        peer = self.it.peer()
        peer.give(POP, self.ext(number, most, invisible_ms, attempt) | {"pollTime": "60000"})
        self.it.broker.turn()
        self.it.housekeeping()
        self.waiting.append(Waiting(peer, number, attempt, invisible_ms))

    @invariant()
    def the_broker_agrees_with_itself(self) -> None:
        if self.bench is not None:
            validate(self.bench.broker)

    @invariant()
    def who_waits_gets_what_there_is(self) -> None:
        answered = [(each, answer) for each in self.waiting for answer in each.peer.heard()]
        for each, answer in answered:
            self.waiting.remove(each)
            self.taken(answer, each.attempt, each.invisible_ms)
        for each in self.waiting:
            for asked in range(QUEUES) if each.number < 0 else [each.number]:
                hold = self.queues[asked].hold
                if hold is None or each.attempt is None or each.attempt != hold.attempt:
                    self.is_nothing_for(asked, each.attempt)

    @invariant()
    def what_is_committed_is_consumed(self) -> None:
        if self.bench is not None:
            for number, queue in enumerate(self.queues):
                assert set(range(self.committed(number))) <= queue.consumed

    def given(
        self,
        number: int,
        given: dict[int, Popped],
        told: dict[int, int],
        attempt: str | None,
        invisible_ms: int,
    ) -> None:
        queue, offsets = self.queues[number], list(given)
        before = queue.hold
        if not queue.is_known:
            assert set(range(offsets[0])) <= queue.consumed
            queue.reached = offsets[0]
        assert offsets == list(range(queue.reached, queue.reached + len(offsets)))
        assert [one.body.decode() for one in given.values()] == [queue.bodies[offset] for offset in offsets]
        is_again = before is not None and attempt is not None and attempt == before.attempt
        if before is not None and queue.is_known:
            assert is_again or not before.blocks(self.now_ms), f"queue {number} is in the hands of another"
            if is_again:
                counts = before.counts
            else:
                counts = {n: before.counts.get(n, 0) + 1 for n in offsets if n in before.given}
            assert told == {offset: counts.get(offset, min_count(counts, offsets)) for offset in offsets}
        else:
            counts = {offset: count for offset, count in told.items() if count}
        if before is not None:
            queue.old += before.given.values()
        queue.hold = Hold(attempt, given, dict.fromkeys(offsets, self.now_ms + invisible_ms), counts)
        queue.is_known = True

    @precondition(lambda self: bool(self.open_places()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """In any order."""
        self.acknowledge_one(*data.draw(st.sampled_from(self.open_places())))

    def acknowledge_one(self, number: int, offset: int) -> None:
        hold = self.queues[number].hold
        assert hold is not None
        for _ in range(2):
            assert self.it.peer().ask(ACK, ack_ext(hold.given[offset])).code == 0
        self.acked(number, {offset})

    @precondition(lambda self: any(queue.hold and not queue.is_known for queue in self.queues))
    @rule(data=st.data())
    def acknowledge_after_a_crash(self, data: st.DataObject) -> None:
        lost = [queue for queue in self.queues if queue.hold and not queue.is_known]
        queue = data.draw(st.sampled_from(lost))
        assert queue.hold is not None
        offset = data.draw(st.sampled_from(list(queue.hold.given)))
        queue.consumed.add(offset)
        # 13: what the broker still knows is an earlier pop of the same millisecond.
        assert self.it.peer().ask(ACK, ack_ext(queue.hold.given[offset])).code in (0, 13)
        queue.reached = max(queue.reached, self.committed(self.queues.index(queue)))

    @precondition(lambda self: bool(self.open_places()))
    @rule(number=st.integers(0, QUEUES - 1))
    def acknowledge_all(self, number: int) -> None:
        hold = self.queues[number].hold
        if hold is not None and self.queues[number].is_known:
            assert self.it.peer().ask(BATCH_ACK, {}, batch_body(list(hold.given.values()))).code == 0
            self.acked(number, set(hold.given))

    def acked(self, number: int, offsets: set[int]) -> None:
        queue = self.queues[number]
        assert queue.hold is not None
        queue.hold.acked |= offsets
        queue.consumed |= offsets
        rest = [offset for offset in queue.hold.given if offset not in queue.hold.acked]
        queue.reached = min(rest, default=max(queue.hold.given) + 1)
        assert self.committed(number) == queue.reached

    @precondition(lambda self: bool(self.open_places()))
    @rule(data=st.data(), ms=st.sampled_from([100, 3_000, 100_000]))
    def change(self, data: st.DataObject, ms: int) -> None:
        """The message is renewed, or given back; its receipt stays good."""
        number, offset = data.draw(st.sampled_from(self.open_places()))
        hold = self.queues[number].hold
        assert hold is not None
        assert isinstance(change(self.it.peer(), hold.given[offset], ms), Popped)
        hold.visible_ms[offset] = self.now_ms + ms

    @precondition(lambda self: any(queue.old and queue.is_known for queue in self.queues))
    @rule(data=st.data())
    def use_an_old_receipt(self, data: st.DataObject) -> None:
        """It takes nothing out of another's hands."""
        number = data.draw(
            st.sampled_from([n for n, queue in enumerate(self.queues) if queue.old and queue.is_known])
        )
        queue = self.queues[number]
        old = data.draw(st.sampled_from(queue.old))
        if (
            queue.hold is not None
            and queue.hold.given[min(queue.hold.given)].receipt.pop_time_ms == old.receipt.pop_time_ms
        ):
            return  # the same attempt within the same millisecond: the same receipt
        assert self.it.peer().ask(ACK, ack_ext(old)).code == 0
        assert self.committed(number) == queue.reached
        refusal = change(self.it.peer(), old, 100)
        assert isinstance(refusal, Command) == (old.receipt.offset >= queue.reached)

    @rule(ms=st.sampled_from([100, 4_000, 30_000, 70_000]))
    def let_time_pass(self, ms: int) -> None:
        pass_time(self.it, ms, ms)
        self.who_waits_gets_what_there_is()

    @rule()
    def restart(self) -> None:
        self.waiting.clear()
        self.it.reopen()

    @rule(is_saved=st.booleans())
    def die(self, is_saved: bool) -> None:
        """What was not saved is forgotten: then a queue may begin again where its group was before."""
        if is_saved:
            self.it.flush()
            self.it.clock.advance(self.it.config.flush_consumer_offset_interval)
            self.it.run_jobs()
        else:
            self.it.flush()
        self.waiting.clear()
        self.it.crash()
        for number, queue in enumerate(self.queues):
            if is_saved and queue.is_known:
                assert self.committed(number) == queue.reached
            else:
                queue.is_known = False


def min_count(counts: dict[int, int], offsets: list[int]) -> int:
    """The count of those of which nothing is said: none of these were handed out before."""
    return min(counts.values(), default=0) if len(counts) == len(offsets) else 0


OrderedPops.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestOrderedPops = OrderedPops.TestCase
