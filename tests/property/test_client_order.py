"""Random lives of a group that consumes in order: members come, go, die and fall silent, listeners fail, time passes.

The parts are the real ones: the broker's locks, the client's plan, its ordered queues and process queues. What is
played here is only who speaks when. Whatever happens, nobody sees a message before all earlier ones of its queue were
consumed, no two listeners are at one queue at a time, what is committed is consumed; and when it is quiet at last,
every queue has one owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.locks import QueueLocks
from mqspark.client.consumer.allocate import Allocation, Averagely, AveragelyByCircle, ConsistentHash
from mqspark.client.consumer.rebalance import plan
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.push.ordered import OrderedQueue
from mqspark.message import MessageQueue
from mqspark.testing import FakeClock
from tests.support.draws import draws
from tests.support.invariants import lock_holders
from tests.unit.client.test_decisions import message

QUEUES = [MessageQueue("T", "b", number) for number in range(3)]
GROUP = "G"
NUMBERS = st.integers(0, 3)
DEEDS = ["rebalance", "renew", "persist", "work", "work", "done", "failed"]


@dataclass
class Reader:
    ordered: OrderedQueue
    process: ProcessQueue
    batch: list[int] = field(default_factory=list)
    """Offsets that the listener is at."""
    taken_from: ProcessQueue | None = None
    since_ms: int = 0


@dataclass
class Consumer:
    client_id: str
    readers: dict[MessageQueue, Reader] = field(default_factory=dict)
    leaving: dict[MessageQueue, Reader] = field(default_factory=dict)
    is_cut_off: bool = False
    """Nothing it says reaches the broker, and the broker thinks it has gone."""

    def all(self) -> list[tuple[MessageQueue, Reader]]:
        return [*self.readers.items(), *self.leaving.items()]


class OrderedGroup(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.locks = QueueLocks(BrokerConfig(), self.clock)
        self.members: dict[str, Consumer] = {}
        self.number = 0
        self.stored = dict.fromkeys(QUEUES, 0)
        self.committed = dict.fromkeys(QUEUES, 0)
        self.consumed: dict[MessageQueue, set[int]] = {queue: set() for queue in QUEUES}
        self.allocation: Allocation = Averagely()
        self.batch_size = 1

    @initialize(
        allocation=st.sampled_from([Averagely(), AveragelyByCircle(), ConsistentHash()]),
        batch_size=st.integers(1, 3),
    )
    def choose(self, allocation: Allocation, batch_size: int) -> None:
        self.allocation, self.batch_size = allocation, batch_size
        self.join()
        self.join()

    # --- members ---

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def join(self) -> None:
        self.number += 1
        client_id = f"c{self.number}"
        self.members[client_id] = Consumer(client_id)

    @precondition(lambda self: len(self.members) > 1)
    @rule(number=NUMBERS)
    def die(self, number: int) -> None:
        """Without a word: its locks stay until they expire."""
        del self.members[self._member(number).client_id]

    @rule(number=NUMBERS, is_cut_off=st.booleans())
    def cut(self, number: int, is_cut_off: bool) -> None:
        self._member(number).is_cut_off = is_cut_off

    @precondition(lambda self: len(self.members) > 1)
    @rule(number=NUMBERS, others_leave=st.booleans())
    def be_away(self, number: int, others_leave: bool) -> None:
        """A member falls silent for longer than locks live, the others consume what it had, and it comes back."""
        away = self._member(number)
        self._finish(away, succeeds=False)
        self._pull(away)
        away.is_cut_off = True
        for _ in range(2):
            self.wait(61_000)
            for member in list(self.members.values()):
                self._rebalance(member)
                self._renew(member)
                self._pull(member)
                self._run(member)
                self._finish(member, succeeds=True)
                self._persist(member)
        if others_leave:
            self.members = {away.client_id: away}
            self.wait(61_000)
        away.is_cut_off = False
        self._renew(away)
        self._run(away)

    @rule(number=NUMBERS, deeds=st.lists(st.sampled_from(DEEDS), max_size=8))
    def act(self, number: int, deeds: list[str]) -> None:
        member = self._member(number)
        for deed in deeds:
            if deed == "rebalance":
                self._rebalance(member)
            elif deed == "renew":
                self._renew(member)
            elif deed == "persist":
                self._persist(member)
            elif deed == "work":
                self._pull(member)
                self._run(member)
            else:
                self._finish(member, succeeds=deed == "done")

    def _member(self, number: int) -> Consumer:
        return list(self.members.values())[number % len(self.members)]

    # --- what a member does ---

    def _rebalance(self, member: Consumer) -> None:
        if member.is_cut_off:
            return
        known = [each.client_id for each in self.members.values() if not each.is_cut_off]
        change = plan(
            member.readers, QUEUES, client_id=member.client_id, members=known, allocation=self.allocation
        )
        for queue in change.drop:
            reader = member.leaving[queue] = member.readers.pop(queue)
            reader.ordered.closing = True
        self._leave(member)
        free = [queue for queue in change.add if queue not in member.leaving]
        asked_ms = self.clock.monotonic_ms()
        for queue in self.locks.lock(GROUP, member.client_id, free):
            ordered = OrderedQueue(batch_size=self.batch_size, needs_lock=True)
            ordered.renewed(asked_ms)
            process = ProcessQueue(self.committed[queue])
            ordered.restart(process)
            member.readers[queue] = Reader(ordered, process)

    def _leave(self, member: Consumer) -> None:
        """Hand over what no listener is at."""
        if member.is_cut_off:
            return
        for queue, reader in list(member.leaving.items()):
            if not reader.batch:
                if not reader.process.dropped:
                    self.committed[queue] = reader.process.commit_offset
                self.locks.unlock(GROUP, member.client_id, [queue])
                del member.leaving[queue]

    def _renew(self, member: Consumer) -> None:
        if member.is_cut_off:
            return
        asked_ms = self.clock.monotonic_ms()
        ours = set(self.locks.lock(GROUP, member.client_id, [queue for queue, _ in member.all()]))
        for queue, reader in member.all():
            if queue in ours:
                reader.ordered.renewed(asked_ms)
            else:
                reader.ordered.lost()
            if reader.ordered.lapsed:
                reader.process.drop()
                if reader.ordered.locked(asked_ms) and not reader.ordered.closing:
                    reader.process = ProcessQueue(self.committed[queue])
                    reader.ordered.restart(reader.process)

    def _persist(self, member: Consumer) -> None:
        if not member.is_cut_off:
            for queue, reader in member.readers.items():
                if not reader.process.dropped:
                    self.committed[queue] = reader.process.commit_offset

    def _pull(self, member: Consumer) -> None:
        now_ms = self.clock.monotonic_ms()
        for queue, reader in member.readers.items():
            ordered = reader.ordered
            if member.is_cut_off or ordered.lapsed or reader.process.dropped or not ordered.locked(now_ms):
                continue
            start, end = reader.process.next_offset, self.stored[queue]
            ordered.add(reader.process.put([message(offset) for offset in range(start, end)], end))

    def _run(self, member: Consumer) -> None:
        for queue, reader in member.all():
            messages = reader.ordered.next(self.clock.monotonic_ms())
            if not messages:
                continue
            assert not reader.batch, "one listener a queue"
            others = [
                other.client_id
                for other in self.members.values()
                for place, busy in other.all()
                if place == queue and busy.batch and other is not member
            ]
            assert not others, f"{member.client_id} and {others} are both at {queue}"
            reader.batch = [each.queue_offset for each in messages]
            reader.taken_from = reader.process
            reader.since_ms = self.clock.monotonic_ms()
            assert reader.batch == list(range(reader.batch[0], reader.batch[0] + len(messages)))
            assert set(range(reader.batch[0])) <= self.consumed[queue], "an earlier message was not consumed"
            assert reader.batch[0] >= self.committed[queue], "the group is further on already"
            assert lock_holders(self.locks)[GROUP, queue] == member.client_id, "the lock is another's"

    def _finish(self, member: Consumer, *, succeeds: bool) -> None:
        for queue, reader in member.all():
            if not reader.batch or reader.taken_from is None:
                continue
            if succeeds:
                self.consumed[queue].update(reader.batch)
                reader.ordered.done(reader.taken_from)
            else:
                reader.ordered.put_back(reader.taken_from, self.clock.monotonic_ms() + 1_000)
            reader.batch = []
        self._leave(member)

    # --- the world ---

    @precondition(lambda self: self.stored[QUEUES[0]] < 40)
    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        for queue in QUEUES:
            self.stored[queue] += count

    @rule(ms=st.sampled_from([500, 11_000, 29_000, 61_000]))
    def wait(self, ms: int) -> None:
        """No listener here takes longer than a broker keeps a lock beyond what its client believes."""
        self.clock.advance(ms)
        oldest_ms = self.clock.monotonic_ms() - 25_000
        for member in self.members.values():
            if any(reader.batch and reader.since_ms <= oldest_ms for _, reader in member.all()):
                self._finish(member, succeeds=False)
        self.locks.expire()

    @invariant()
    def what_is_committed_is_consumed(self) -> None:
        for queue, offset in self.committed.items():
            assert set(range(offset)) <= self.consumed[queue]

    def teardown(self) -> None:
        """Quiet for two minutes: who was cut off is back, and all is consumed by its one owner."""
        for _ in range(30 if self.members else 0):
            for member in self.members.values():
                member.is_cut_off = False
                self._finish(member, succeeds=True)
                self._renew(member)
                self._rebalance(member)
                for _ in range(4):
                    self._pull(member)
                    self._run(member)
                    self._finish(member, succeeds=True)
            self.clock.advance(5_000)
            self.locks.expire()
        for queue in QUEUES if self.members else ():
            owners = [member.client_id for member in self.members.values() if queue in member.readers]
            assert len(owners) == 1, (queue, owners)
            assert not any(queue in member.leaving for member in self.members.values())
            assert self.consumed[queue] == set(range(self.stored[queue]))


TestOrderedGroup = OrderedGroup.TestCase
TestOrderedGroup.settings = settings(max_examples=draws(60), stateful_step_count=40)
