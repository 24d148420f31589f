"""An older state of a controller: it names nobody, and elects above all epochs once it has heard all replicas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.controller.doubts import HEAR_MS, Claim, read_claim
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.unit.controller_kit import ControllerBench, address, named

Code = ResponseCode
END = 1_000
NOW_KNOWN = {"knownEpoch": 3, "knownSetEpoch": 9, "knownSet": "2;3"}


@pytest.fixture
def older(tmp_path: Path) -> ControllerBench:
    """A backup of epoch 1, when 1 was the master. Since then 2 was elected, in epoch 3, with 3 in its set."""
    bench = ControllerBench(tmp_path / "c")
    for broker_id in (1, 2, 3):
        bench.incarnations[broker_id] = f"first-{broker_id}"
        bench.join(broker_id)
    assert bench.elect(1).code == 0
    assert bench.alter(1, 1, {1, 2, 3}, 1, minInSyncReplicas=2).code == 0
    bench.reopen()
    return bench


def ask(bench: ControllerBench, broker_id: int, **ext: object) -> Command:
    """A heartbeat that waits for its answer."""
    incarnation = bench.incarnations.get(broker_id, "")
    header = named(broker_id, brokerAddr=address(broker_id), incarnation=incarnation, **ext)
    return bench.brokers[broker_id].ask(RequestCode.BROKER_HEARTBEAT, header)


def test_no_lease_is_renewed_from_an_older_state(older: ControllerBench) -> None:
    assert ask(older, 1, epoch=1).code == 0
    refused = ask(older, 2, epoch=3, maxOffset=END, **NOW_KNOWN)
    assert refused.code == Code.CONTROLLER_MASTER_NOT_AVAILABLE
    assert "is older than what its brokers know, and 1, 3 may know more" in (refused.remark or "")
    assert ask(older, 1, epoch=1).code == Code.CONTROLLER_MASTER_NOT_AVAILABLE, "its own master neither"
    master, epoch, members, set_epoch = older.info()
    assert (master, epoch, members, set_epoch) == (None, 3, {2, 3}, 9), "what the broker knows is adopted"
    assert "masterBrokerId" not in older.register(3).ext
    for broker_id in (-1, 1, 2):
        assert older.elect(broker_id).code in (
            Code.CONTROLLER_MASTER_NOT_AVAILABLE,
            Code.CONTROLLER_ELECT_MASTER_FAILED,
        )
    assert older.alter(1, 1, {1, 2}, 9).code == Code.CONTROLLER_INVALID_MASTER


def test_a_master_is_elected_above_all_epochs_once_all_were_heard(older: ControllerBench) -> None:
    ask(older, 2, epoch=3, maxOffset=END, **NOW_KNOWN)
    ask(older, 1, epoch=1, maxOffset=9 * END)
    assert older.info()[0] is None
    answer = ask(older, 3, epoch=3, maxOffset=END - 1, **NOW_KNOWN)
    assert older.info()[:3] == (2, 4, {2}), "1 is not in the set that the others know"
    assert (answer.code, answer.ext["masterEpoch"]) == (0, "4")
    assert ask(older, 1, epoch=1).code == 0


def test_one_that_was_not_heard_may_know_more(older: ControllerBench) -> None:
    for _ in range(60):
        older.clock.advance(500)
        for broker_id in (2, 3):
            ask(older, broker_id, epoch=3, maxOffset=END, **NOW_KNOWN)
        older.core.tick()
    assert older.info()[0] is None
    ask(older, 1, epoch=5, maxOffset=END, knownEpoch=5, knownSetEpoch=12, knownSet="1;2")
    assert older.info()[:3] == (1, 6, {1}), "it does"


def test_an_operator_does_not_wait(older: ControllerBench) -> None:
    ask(older, 2, epoch=3, maxOffset=END, **NOW_KNOWN)
    assert older.elect(2, designate=True).code == 0
    assert older.info()[:3] == (2, 4, {2})


def test_another_start_of_the_controller_forgets_nothing_of_it(older: ControllerBench) -> None:
    ask(older, 2, epoch=3, maxOffset=END, **NOW_KNOWN)
    older.reopen()
    for broker_id in (1, 3):
        refused = ask(older, broker_id, epoch=1, maxOffset=END)
        assert refused.code == Code.CONTROLLER_MASTER_NOT_AVAILABLE
    older.advance(20_000, 1, 3)
    assert older.info()[0] is None


def test_who_knows_only_the_epoch_of_its_log_is_believed(older: ControllerBench) -> None:
    """As a broker that was started again, and RocketMQ's. Who is in the set is not known: logs decide."""
    ask(older, 3, epoch=2, maxOffset=END)
    ask(older, 1, epoch=1, maxOffset=9 * END)
    assert older.info()[:3] == (None, 2, {1, 2, 3})
    ask(older, 2, epoch=2, maxOffset=END - 1)
    assert older.info()[:3] == (3, 3, {3})


@pytest.mark.parametrize(
    "code", [RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_GET_REPLICA_INFO]
)
def test_any_request_shows_it(older: ControllerBench, code: int) -> None:
    header = named(2, brokerAddress=address(2), knownEpoch=7, incarnation="first-2")
    answer = older.brokers[2].ask(code, header)
    assert answer.code == 0
    assert "masterBrokerId" not in answer.ext
    assert older.info()[:2] == (None, 7)


def test_a_change_of_the_set_shows_it(older: ControllerBench) -> None:
    older.heartbeat(1, epoch=1)
    assert older.alter(2, 3, {2, 3}, 9, knownEpoch=3).code == Code.CONTROLLER_INVALID_MASTER
    assert older.info()[:2] == (None, 3)


def test_a_replica_that_the_state_does_not_know_shows_it(older: ControllerBench) -> None:
    older.brokers[4] = older.connect()
    refused = ask(older, 4, epoch=3, knownEpoch=3, knownSetEpoch=9, knownSet="2;4")
    assert refused.code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    for broker_id in (1, 2, 3):
        refused = ask(older, broker_id, epoch=1, maxOffset=END)
    assert "and 4 may know more" in (refused.remark or "")


def test_damage_shows_nothing(older: ControllerBench) -> None:
    """A forged file of epochs of one replica must not stop the others."""
    ask(older, 1, epoch=1)
    ask(older, 3, epoch=900, knownEpoch=900, damage="its epochs are not those that it had")
    assert older.info()[:2] == (1, 1)


def test_an_impossible_epoch_of_a_set_is_none_and_the_state_can_be_read(older: ControllerBench) -> None:
    ask(older, 1, epoch=1)
    ask(older, 2, epoch=1, knownEpoch=1, knownSetEpoch=(1 << 31) - 1, knownSet="2;3")
    assert older.alter(1, 1, {1, 2}, 2).code == 0
    older.reopen()
    assert older.info() == (1, 1, {1, 2}, 3)


def test_an_empty_state_elects_nobody_by_itself(tmp_path: Path) -> None:
    """It does not know who else there is."""
    bench = ControllerBench(tmp_path / "c")
    bench.join(1)
    ask(bench, 1, epoch=3, maxOffset=END)
    refused = bench.elect(1)
    assert refused.code == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert "let an operator elect" in (refused.remark or "")
    bench.join(2)
    ask(bench, 2, epoch=3, maxOffset=END, knownEpoch=3, knownSetEpoch=9, knownSet="1;2")
    ask(bench, 1, epoch=3, maxOffset=END)
    assert bench.info()[:3] == (1, 4, {1}), "one of them knows it"


def test_a_start_waits_for_the_first_heartbeats(older: ControllerBench) -> None:
    """The master that the older state names was started again, with an older log: the others know better."""
    older.restart(1, epoch=1, maxOffset=10)
    older.alter(1, 1, {1}, 2)
    assert older.info()[0] is None
    refused = older.elect(1)
    assert "has just started and has not heard 2, 3" in (refused.remark or "")
    ask(older, 2, epoch=3, maxOffset=END, **NOW_KNOWN)
    older.advance(2 * HEAR_MS, 1)
    assert older.info()[0] is None


@pytest.mark.parametrize(
    ("claim", "known"),
    [
        (read_claim(None, None), None),
        (read_claim(-1), None),
        (read_claim(1 << 30), None),
        (read_claim(2, 3, None), Claim(3)),
        (read_claim(3, set_epoch=4, members="1;3"), Claim(3, 4, frozenset({1, 3}))),
        (read_claim(3, set_epoch=4, members=""), Claim(3)),
        (read_claim(3, set_epoch=4, members="0;1"), Claim(3)),
        (read_claim(3, set_epoch=4, members="1;x"), Claim(3)),
        (read_claim(3, set_epoch=4, members="1;" * 5_000), Claim(3)),
        (read_claim(3, set_epoch=None, members="1"), Claim(3)),
    ],
)
def test_what_a_broker_may_say(claim: Claim | None, known: Claim | None) -> None:
    assert claim == known


# --- identity --------------------------------------------------------------------------------------------------------


def metadata(bench: ControllerBench) -> str | None:
    return bench.operator.ask(RequestCode.CONTROLLER_GET_METADATA_INFO, {}).ext.get("stateId")


def test_a_state_has_an_identity_that_it_keeps(tmp_path: Path) -> None:
    bench = ControllerBench(tmp_path / "c")
    assert metadata(bench) is None, "not before it is on the disk"
    bench.join(1)
    first = metadata(bench)
    assert first
    assert ask(bench, 1).ext["stateId"] == first
    bench.reopen()
    assert metadata(bench) == first
    other = ControllerBench(tmp_path / "d")
    other.join(1)
    other.reopen()
    assert metadata(other)


def test_the_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    bench = ControllerBench(tmp_path / "c")
    bench.trio()
    sets = json.loads(bench.core.replicas.snapshot())["sets"]
    bench.core.replicas.load(json.dumps(sets).encode())
    assert bench.core.replicas.state_id == ""
