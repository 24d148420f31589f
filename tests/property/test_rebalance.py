"""Random lives of a group on two brokers: members join, leave, die, fall silent and reconnect, brokers stop answering
and forget, the topic grows and shrinks. Whatever happens, some minutes of quiet later every queue has
exactly one owner, and it is alive.

The parts are the real ones: both brokers, the client's timer, plan and allocations. What is played here is who speaks
when.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqspark.client.consumer.allocate import (
    Allocation,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
)
from mqspark.client.consumer.rebalance import RebalanceTimer, plan
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import (
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    SubscriptionData,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from tests.support.clocks import ManualClock
from tests.support.draws import draws
from tests.support.invariants import validate
from tests.unit.broker_kit import Bench, Peer

GROUP = "G"
NAMES = ("b-a", "b-b")
HEARTBEAT_MS = 30_000
EXPIRY_MS = 120_000
QUIET_MS = EXPIRY_MS + 10_000 + 2 * 20_000
"""For the broker to see who is dead, at its next scan, and for a regular round, should a notice be lost."""
MOST_MEMBERS = 4
NUMBERS = st.integers(0, MOST_MEMBERS - 1)


def room_of(name: str) -> str:
    """The room of a client or a broker: what ends in a or in an even digit is in one room."""
    return "1" if name[-1] in "a02468" else "2"


ALLOCATIONS: list[Callable[[], Allocation]] = [
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    lambda: MachineRoomNearby(
        Averagely(), broker_room=lambda queue: room_of(queue.broker_name), client_room=room_of
    ),
]


@dataclass
class Member:
    client_id: str
    timer: RebalanceTimer
    peers: dict[str, Peer] = field(default_factory=dict)
    """By broker name."""
    owned: set[MessageQueue] = field(default_factory=set)
    next_beat_ms: int = 0
    silent_until_ms: int = 0
    """Nothing it says arrives, and it hears nothing."""


class Group(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.members: list[Member] = []
        self.number = 0
        self.queues_of = dict.fromkeys(NAMES, 2)
        self.deaf_until_ms = dict.fromkeys(NAMES, 0)
        self.benches: dict[str, Bench] = {}

    @initialize(
        allocation=st.sampled_from(ALLOCATIONS), members=st.integers(2, MOST_MEMBERS), notify=st.booleans()
    )
    def start(self, allocation: Callable[[], Allocation], members: int, notify: bool) -> None:
        """Not ``notify``: brokers tell nobody that a group has changed."""
        self.folder = Path(tempfile.mkdtemp(prefix="rebalance-"))
        self.allocation = allocation()
        self.clock = ManualClock()
        for name in NAMES:
            bench = Bench(
                self.folder / name,
                start=False,
                broker_name=name,
                notify_consumer_ids_changed_enable=notify,
            )
            bench.clock = self.clock
            bench.open()
            self.benches[name] = bench
        for _ in range(members):
            self.join()
        self._run(2_000)

    def teardown(self) -> None:
        if not self.benches:
            return
        try:
            self.everything_is_owned_in_the_end()
        finally:
            for bench in self.benches.values():
                bench.close()
            shutil.rmtree(self.folder)

    @invariant()
    def the_brokers_agree_with_themselves(self) -> None:
        for bench in self.benches.values():
            validate(bench.broker)

    # --- what happens ---

    @precondition(lambda self: len(self.members) < MOST_MEMBERS)
    @rule()
    def join(self) -> None:
        self.number += 1
        self.members.append(Member(f"127.0.0.1@{self.number}", RebalanceTimer(self.clock, 20_000)))

    @precondition(lambda self: len(self.members) > 1)
    @rule(number=NUMBERS, how=st.sampled_from(["word", "disconnect", "silence"]))
    def leave(self, number: int, how: str) -> None:
        """With a word, by a broken connection, or (a host without power) with neither."""
        member = self.members.pop(number % len(self.members))
        for name, peer in member.peers.items():
            if how == "word" and self._reaches(member, name):
                ext = {"clientID": member.client_id, "consumerGroup": GROUP}
                self._ask(peer, RequestCode.UNREGISTER_CLIENT, ext)
            if how == "disconnect":
                peer.disconnect()

    @rule(number=NUMBERS, ms=st.sampled_from([5_000, 50_000, 200_000]))
    def fall_silent(self, number: int, ms: int) -> None:
        self._member(number).silent_until_ms = self.clock.mono_ms + ms

    @rule(number=NUMBERS, name=st.sampled_from(NAMES))
    def lose_a_connection(self, number: int, name: str) -> None:
        """It is made again with the next heartbeat."""
        if (peer := self._member(number).peers.pop(name, None)) is not None:
            peer.disconnect()

    @rule(name=st.sampled_from(NAMES), ms=st.sampled_from([1_000, 40_000]))
    def a_broker_is_deaf(self, name: str, ms: int) -> None:
        self.deaf_until_ms[name] = self.clock.mono_ms + ms

    @rule(name=st.sampled_from(NAMES))
    def a_broker_restarts(self, name: str) -> None:
        """It knows nobody; clients notice that their connections have ended."""
        self.benches[name].reopen()
        for member in self.members:
            member.peers.pop(name, None)

    @rule(name=st.sampled_from(NAMES), queues=st.integers(0, 6))
    def the_topic_changes(self, name: str, queues: int) -> None:
        if queues or any(count for other, count in self.queues_of.items() if other != name):
            self.queues_of[name] = queues
            for member in self.members:
                member.timer.wake()  # its route has changed

    @rule(ms=st.sampled_from([100, 1_000, 15_000, 70_000]))
    def let_time_pass(self, ms: int) -> None:
        self._run(ms)

    # --- the world ---

    def _member(self, number: int) -> Member:
        return self.members[number % len(self.members)]

    def _reaches(self, member: Member, name: str) -> bool:
        return self.clock.mono_ms >= max(member.silent_until_ms, self.deaf_until_ms[name])

    def _ask(self, peer: Peer, code: int, ext: dict[str, str] | None, body: bytes = b"") -> Command:
        """As ``Peer.ask``, but it keeps what was said besides the answer."""
        opaque = peer.give(code, ext, body)
        peer.core.turn()
        heard = peer.heard()
        (answer,) = (command for command in heard if command.is_response and command.opaque == opaque)
        self._hear(peer, heard)
        return answer

    def _hear(self, peer: Peer, heard: list[Command]) -> None:
        for command in heard:
            if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and not command.is_response:
                for member in self.members:
                    if peer in member.peers.values():
                        member.timer.wake()

    def _run(self, ms: int) -> None:
        end_ms = self.clock.mono_ms + ms
        while self.clock.mono_ms < end_ms:
            self.clock.advance(min(1_000, end_ms - self.clock.mono_ms))
            for bench in self.benches.values():
                bench.broker.tick()
            for member in self.members:
                self._live(member)

    def _live(self, member: Member) -> None:
        for name, peer in list(member.peers.items()):
            if self._reaches(member, name):
                self._hear(peer, peer.heard())
        if self.clock.mono_ms >= member.next_beat_ms or len(member.peers) < len(NAMES):
            member.next_beat_ms = self.clock.mono_ms + HEARTBEAT_MS
            self._beat(member)
        if member.timer.wait_ms() == 0:
            member.timer.begin()
            member.timer.ran(balanced=self._rebalance(member))

    def _beat(self, member: Member) -> None:
        data = ConsumerData(group_name=GROUP, subscription_data_set=[SubscriptionData(topic="T")])
        body = encode_body(HeartbeatData(client_id=member.client_id, consumer_data_set=[data]))
        for name in NAMES:
            if self._reaches(member, name):
                if name not in member.peers:
                    member.peers[name] = self.benches[name].peer()
                assert self._ask(member.peers[name], RequestCode.HEART_BEAT, None, body).code == 0

    def _rebalance(self, member: Member) -> bool:
        """As the client does: any broker of the topic is asked who the members are."""
        name = NAMES[self.clock.mono_ms // 1_000 % len(NAMES)]
        if not self._reaches(member, name) or name not in member.peers:
            return False
        answer = self._ask(
            member.peers[name], RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}
        )
        if answer.code != 0:
            return False
        change = plan(
            member.owned,
            self._queues(),
            client_id=member.client_id,
            members=decode_body(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list,
            allocation=self.allocation,
        )
        assert not set(change.add) & member.owned
        assert set(change.drop) <= member.owned
        member.owned -= set(change.drop)
        member.owned |= set(change.add)
        return True

    def _queues(self) -> list[MessageQueue]:
        return [MessageQueue("T", name, n) for name, count in self.queues_of.items() for n in range(count)]

    def everything_is_owned_in_the_end(self) -> None:
        self.deaf_until_ms = dict.fromkeys(NAMES, 0)
        for member in self.members:
            member.silent_until_ms = 0
        self._run(QUIET_MS)
        owners = Counter(queue for member in self.members for queue in member.owned)
        assert owners == Counter(self._queues()), {each.client_id: each.owned for each in self.members}


Group.TestCase.settings = settings(
    max_examples=draws(30),
    stateful_step_count=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGroup = Group.TestCase


def test_rooms_share_their_own_queues_only() -> None:
    """``MachineRoom`` leaves queues of other rooms alone, so it has no place above."""
    allocation = MachineRoom(["r1"])
    queues = [MessageQueue("T", f"{room}@b", n) for room in ("r1", "r2") for n in range(3)]
    shares = [allocation(client, queues, ["c1", "c2"]) for client in ("c1", "c2")]
    assert sorted(queue for share in shares for queue in share) == queues[:3]
