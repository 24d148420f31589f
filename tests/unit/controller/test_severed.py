"""A master that is cut off from all its slaves, while all of them reach the controller, is replaced; no other is."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mqspark.controller.severed import HOLD_TIMEOUTS
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.servers.byid import decode_by_id, decode_ids, encode_by_id, encode_ids
from tests.unit.controller_kit import ControllerBench, address, named

TIMEOUT_MS = 8_000
END = 1_000


class Set:
    """Replicas that send heartbeats every second. ``silences_ms[a, b]``: for how long a has not heard b."""

    def __init__(self, directory: Path, *members: int, least: int = 2) -> None:
        self.bench = ControllerBench(directory)
        self.members = members
        self.silences_ms: dict[tuple[int, int], int] = {}
        self.cuts: set[tuple[int, int]] = set()
        """From, to."""
        self.reached: dict[int, set[int]] = {}
        """Who has answered whom."""
        self.quiet: set[int] = set()
        """Who sends no heartbeats."""
        for broker_id in members:
            self.bench.incarnations[broker_id] = f"first-{broker_id}"
            self.bench.join(broker_id)
        assert self.bench.elect(1).code == 0
        assert self.bench.alter(1, 1, {*members}, 1, minInSyncReplicas=least).code == 0
        self.seconds(2)
        assert self.master == 1

    @property
    def master(self) -> int | None:
        return self.bench.info()[0]

    def hears(self, receiver: int, sender: int) -> bool:
        return (sender, receiver) not in self.cuts

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.bench.clock.advance(1_000)
            for broker_id in self.members:
                self._beat(broker_id)
            self.bench.core.tick()
            self.bench.save()

    def _beat(self, broker_id: int) -> None:
        master = self.master
        others = [each for each in self.members if each != broker_id]
        for other in others if broker_id == master else [master] if master is not None else []:
            heard = self.hears(broker_id, other)
            self.silences_ms[broker_id, other] = (
                0 if heard else self.silences_ms.get((broker_id, other), 0) + 1_000
            )
        if broker_id in self.quiet:
            return
        own = {other: ms for (one, other), ms in self.silences_ms.items() if one == broker_id}
        if broker_id != master:
            own = {other: ms for other, ms in own.items() if other == master}
        reached = self.reached.get(broker_id, set())
        header = named(
            broker_id, brokerAddr=address(broker_id), incarnation=f"first-{broker_id}", epoch=1, maxOffset=END,
            heartbeatTimeoutMills=TIMEOUT_MS, silences=encode_by_id(own), reaches=encode_ids(reached),
        )  # fmt: skip
        answer = self.bench.brokers[broker_id].ask(RequestCode.BROKER_HEARTBEAT, header)
        tries = decode_by_id(answer.ext.get("tries"))
        assert all(at == address(each) for each, at in tries.items())
        self.reached[broker_id] = {
            each for each in tries if self.hears(each, broker_id) and self.hears(broker_id, each)
        }

    def cut(self, one: int, other: int, ways: str = "both") -> None:
        self.cuts |= {(one, other)} if ways != "to" else set()
        self.cuts |= {(other, one)} if ways != "from" else set()

    def cut_off(self, one: int, ways: str = "both") -> None:
        """From all others."""
        for other in {*self.members} - {one}:
            self.cut(one, other, ways)


@pytest.fixture
def trio(tmp_path: Path) -> Set:
    return Set(tmp_path, 1, 2, 3)


@pytest.mark.parametrize("ways", ["both", "from", "to"])
def test_a_master_that_is_cut_off_from_its_slaves_is_replaced(trio: Set, ways: str) -> None:
    """Bytes in one direction only copy no log."""
    trio.cut_off(1, ways)
    trio.seconds(3)
    assert trio.master == 1, "not at the first silence"
    trio.seconds(2)
    assert trio.bench.info()[:3] == (2, 2, {2})
    trio.cuts.clear()
    trio.seconds(60)
    assert trio.master == 2, "it does not move back by itself"


def test_a_master_with_one_slave_that_hears_it_stays(trio: Set) -> None:
    """The other slave may hear nobody."""
    trio.cut(1, 2)
    trio.cut(2, 3)
    trio.seconds(60)
    assert trio.master == 1


def test_slaves_that_do_not_reach_each_other_could_not_lead(trio: Set) -> None:
    for one, other in ((1, 2), (1, 3), (2, 3)):
        trio.cut(one, other)
    trio.seconds(60)
    assert trio.master == 1
    trio.cuts -= {(2, 3), (3, 2)}
    trio.seconds(3)
    assert trio.master in (2, 3)


def test_one_slave_of_two_replicas_is_no_majority(tmp_path: Path) -> None:
    pair = Set(tmp_path, 1, 2)
    pair.cut(1, 2)
    pair.seconds(60)
    assert pair.master == 1


def test_a_dead_slave_is_no_witness(trio: Set) -> None:
    trio.quiet.add(3)
    trio.cut_off(1)
    trio.seconds(60)
    assert trio.master == 1


def test_a_majority_is_enough(tmp_path: Path) -> None:
    five = Set(tmp_path, 1, 2, 3, 4, 5)
    five.cut_off(1)
    for other in (3, 4, 5):
        five.cut(2, other)
    five.seconds(5)
    assert five.master == 3, "2 reaches nobody, and 3 reaches more than half"


def test_a_master_that_says_nothing_of_its_slaves_is_left_alone(trio: Set) -> None:
    """RocketMQ's, and one that is still starting."""
    trio.cut_off(1)
    trio.quiet.add(1)
    for _ in range(8):
        trio.bench.heartbeat(1, epoch=1, maxOffset=END, heartbeatTimeoutMills=TIMEOUT_MS)
        trio.seconds(1)
    assert trio.master == 1


def test_a_frozen_master_is_replaced_by_its_timeout_only(trio: Set) -> None:
    trio.cut_off(1, "from")
    trio.quiet.add(1)
    trio.seconds(7)
    assert trio.master == 1
    trio.seconds(2)
    assert trio.master == 2


def test_one_silence_that_ends_moves_nothing(trio: Set) -> None:
    """A process that stood still hears everybody again at once."""
    for _ in range(10):
        trio.cut_off(1)
        trio.seconds(3)
        trio.cuts.clear()
        trio.seconds(1)
    assert trio.master == 1


def test_who_was_left_out_when_the_set_became_too_small_may_lead(trio: Set) -> None:
    """The master has taken out both slaves before it was found to be cut off."""
    trio.cut_off(1)
    assert trio.bench.alter(1, 1, {1}, 2, minInSyncReplicas=2).code == 0
    trio.seconds(5)
    assert trio.master == 2


def test_who_serves_alone_is_not_replaced(tmp_path: Path) -> None:
    """minInSyncReplicas=1: it has acknowledged messages that the others do not have."""
    trio = Set(tmp_path, 1, 2, 3, least=1)
    trio.cut_off(1)
    assert trio.bench.alter(1, 1, {1}, 2, minInSyncReplicas=1).code == 0
    trio.seconds(60)
    assert trio.master == 1


def test_a_new_master_that_was_well_may_be_replaced_soon(trio: Set) -> None:
    trio.cut_off(1)
    trio.seconds(5)
    assert trio.master == 2
    trio.cuts.clear()
    assert trio.bench.alter(2, 2, {1, 2, 3}, trio.bench.info()[3], minInSyncReplicas=2).code == 0
    trio.seconds(11)
    trio.cut_off(2)
    trio.seconds(6)
    assert trio.master in (1, 3)


def test_leadership_does_not_go_to_and_fro(trio: Set) -> None:
    """Whoever leads is cut off at once: each time it stays for longer."""
    moves: list[int] = []
    before = trio.master
    for second in range(600):
        leading = trio.master
        if leading != before:
            moves.append(second)
            before = leading
            if leading is not None:
                members = {*trio.members}
                info = trio.bench.info()
                assert trio.bench.alter(leading, info[1], members, info[3], minInSyncReplicas=2).code == 0
        trio.cuts.clear()
        trio.cut_off(leading or 0)
        trio.seconds(1)
    waits = [later - earlier for earlier, later in itertools.pairwise(moves)]
    assert waits[0] * 1_000 >= HOLD_TIMEOUTS * TIMEOUT_MS
    assert all(later >= 1.8 * earlier for earlier, later in itertools.pairwise(waits))
    assert len(moves) <= 5


def test_fields_of_several_replicas_are_bounded() -> None:
    assert decode_ids(encode_ids({3, 1})) == {1, 3}
    assert decode_by_id(encode_by_id({3: "a:1", 1: 7})) == {1: "7", 3: "a:1"}
    for text in (None, "", "x", "1;", "-1", "1;x", "1" * 19, ";".join(["1"] * 65)):
        assert decode_ids(text) == frozenset(), text
    for text in (
        None,
        "",
        "x",
        "1",
        "1=2;",
        "x=2",
        "=2",
        "1" * 19 + "=2",
        ";".join(["1=2"] * 65),
        "1=" + "2" * 20_000,
    ):
        assert decode_by_id(text) == {}, text
