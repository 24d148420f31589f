"""The controller: ids, elections, the SyncStateSet, liveness, and that nothing is said before it is on the disk."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqspark.controller.config import ControllerConfig
from mqspark.controller.elected import ElectedController
from mqspark.controller.liveness import Liveness
from mqspark.controller.statefile import StateFile
from mqspark.errors import ConfigError, StoreCorrupt, StoreLocked
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.session import Session
from mqspark.store.disk.diskjobs import run_here
from tests.support.clocks import ManualClock
from tests.support.store_tools import FaultyFiles
from tests.unit.broker_kit import Peer
from tests.unit.controller_kit import ADDRESS, CLUSTER, NAME, NOT_ALIVE_MS, ControllerBench, address

Code = ResponseCode
ETCD: dict[str, Any] = {"controller_store": "etcd", "etcd_endpoints": "http://127.0.0.1:2379"}


@pytest.fixture
def bench(tmp_path: Path) -> ControllerBench:
    return ControllerBench(tmp_path / "c")


@pytest.fixture
def trio(bench: ControllerBench) -> ControllerBench:
    bench.trio()
    return bench


# --- ids -----------------------------------------------------------------------------------------------------------


def apply_id(
    bench: ControllerBench, broker_id: int, code: str, name: str = NAME, cluster: str = CLUSTER
) -> int:
    header = {
        "clusterName": cluster,
        "brokerName": name,
        "appliedBrokerId": str(broker_id),
        "registerCheckCode": code,
    }
    return bench.operator.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header).code


def test_an_id_belongs_to_one_broker(bench: ControllerBench) -> None:
    assert apply_id(bench, 2, "10.0.0.2:10911;1") == Code.CONTROLLER_BROKER_ID_INVALID, "the first id is 1"
    assert apply_id(bench, 1, "10.0.0.1:10911;1") == 0
    assert apply_id(bench, 1, "10.0.0.1:10911;1") == 0, "the same broker asks again"
    assert apply_id(bench, 1, "10.0.0.2:10911;1") == Code.CONTROLLER_BROKER_ID_INVALID
    assert apply_id(bench, 3, "10.0.0.2:10911;1") == Code.CONTROLLER_BROKER_ID_INVALID, "a gap"
    assert apply_id(bench, 2, "10.0.0.2:10911;1") == 0
    assert apply_id(bench, 3, "10.0.0.2:10911;1", cluster="c2") == Code.CONTROLLER_BROKER_ID_INVALID
    for code in ("", "no address", "10.0.0.3:10911;" + "x" * 1000):
        assert apply_id(bench, 3, code) == Code.CONTROLLER_BROKER_ID_INVALID
    for name in ("../x", "a/b", "x" * 300):
        assert apply_id(bench, 1, "10.0.0.1:10911;1", name=name) == Code.INVALID_PARAMETER


def test_a_broker_registers_with_its_id(bench: ControllerBench) -> None:
    bench.join(1)
    header = {"clusterName": CLUSTER, "brokerName": NAME, "brokerId": "2", "brokerAddress": address(2)}
    ask = bench.operator.ask
    unknown = Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert ask(RequestCode.CONTROLLER_REGISTER_BROKER, header).code == unknown
    assert ask(RequestCode.CONTROLLER_REGISTER_BROKER, header | {"brokerName": "x"}).code == unknown
    first = bench.register(1)
    assert "masterBrokerId" not in first.ext
    assert json.loads(first.body) == {"syncStateSet": [], "syncStateSetEpoch": 0}
    assert bench.elect(1).code == 0
    second = bench.register(1)
    assert second.ext == {
        "clusterName": CLUSTER,
        "brokerName": NAME,
        "masterBrokerId": "1",
        "masterAddress": address(1),
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }


def test_a_copied_directory_does_not_take_the_place_of_a_live_broker(trio: ControllerBench) -> None:
    elsewhere = "10.0.0.77:10911"
    assert trio.register(2, at=elsewhere).code == Code.CONTROLLER_BROKER_ID_INVALID
    trio.die(2)
    trio.brokers[2] = trio.connect()
    assert trio.register(2, at=elsewhere).code == 0
    trio.heartbeat(2, brokerAddr=elsewhere)
    assert trio.elect(2, designate=True).ext["masterAddress"] == elsewhere


def test_replicas_are_bounded(tmp_path: Path) -> None:
    bench = ControllerBench(tmp_path, max_replica_table_bytes=10_000)
    codes = [apply_id(bench, 1, "10.0.0.1:10911;1", name=f"b{number}") for number in range(20)]
    assert (codes[0], codes[-1]) == (0, Code.SYSTEM_BUSY)
    assert bench.core.replicas.ledger.entries == codes.count(0) == len(bench.core.replicas.sets)
    many = ControllerBench(tmp_path / "many")
    codes = [apply_id(many, number, f"10.0.0.{number}:1;1") for number in range(1, 66)]
    assert codes == [0] * 64 + [Code.SYSTEM_BUSY]


# --- elections -----------------------------------------------------------------------------------------------------


def test_the_first_election_and_who_stays(bench: ControllerBench) -> None:
    assert bench.elect(1).code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    bench.join(1)
    bench.join(2)
    assert bench.elect(7).code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "not even as the first"
    first = bench.elect(2)
    assert (first.code, first.remark) == (0, None)
    assert first.ext == {
        "masterBrokerId": "2",
        "masterAddress": address(2),
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert json.loads(first.body) == {
        "brokerMemberGroup": {
            "brokerAddrs": {"1": address(1), "2": address(2)},
            "brokerName": NAME,
            "cluster": CLUSTER,
        },
        "syncStateSet": [2],
    }
    second = bench.elect(1)
    assert (second.code, second.ext) == (Code.CONTROLLER_MASTER_STILL_EXIST, first.ext)
    assert json.loads(second.body) == {"syncStateSet": [2]}
    assert bench.elect(1, designate=True).code == Code.CONTROLLER_ELECT_MASTER_FAILED, "not in the set"
    assert bench.info() == (2, 1, {2}, 1)


def test_a_killed_master_is_replaced_at_once_and_everybody_is_told(trio: ControllerBench) -> None:
    trio.heartbeat(2, epoch=1, maxOffset=100)
    trio.heartbeat(3, epoch=1, maxOffset=200)
    trio.die(1)
    assert trio.info() == (3, 2, {3}, 3)
    notices = trio.core.take_notices()
    assert sorted(each.address for each in notices) == [address(2), address(3)]
    header = notices[0].header
    assert (header.master_address, header.master_broker_id) == (address(3), 3)
    assert (header.master_epoch, header.sync_state_set_epoch) == (2, 3)
    assert json.loads(notices[0].body) == {"syncStateSet": [3], "syncStateSetEpoch": 3}
    assert trio.core.take_notices() == []


def test_a_silent_master_is_replaced_after_its_own_timeout(trio: ControllerBench) -> None:
    trio.heartbeat(1, heartbeatTimeoutMills=3_000)
    trio.advance(2_500, 2, 3)
    assert trio.info()[0] == 1
    trio.advance(6_000, 2, 3)
    assert trio.info()[0] in (2, 3)
    assert trio.info()[1] == 2


def test_a_silent_master_is_replaced_as_soon_as_its_time_is_over(trio: ControllerBench) -> None:
    trio.advance(1_700, 1, 2, 3)
    trio.heartbeat(1, heartbeatTimeoutMills=3_000)
    since_ms, wait_ms = trio.clock.monotonic_ms(), 0
    while trio.info()[0] == 1:
        trio.clock.advance(wait_ms)
        wait_ms = trio.core.tick()
        trio.save()
    assert 3_000 < trio.clock.monotonic_ms() - since_ms <= 3_002


@pytest.mark.parametrize(
    ("two", "three", "best"),
    [
        ({"epoch": 1, "maxOffset": 1}, {"epoch": 0, "maxOffset": 9}, 2),
        ({"epoch": 1, "maxOffset": 1}, {"epoch": 1, "maxOffset": (1 << 33) + 1}, 3),
        (
            {"epoch": 1, "maxOffset": 5, "confirmOffset": 4},
            {"epoch": 1, "maxOffset": 5, "confirmOffset": 5},
            3,
        ),
        ({"epoch": 1, "maxOffset": 5}, {"epoch": 1, "maxOffset": 5 + (1 << 62)}, 3),
        ({"electionPriority": 7}, {"electionPriority": 3}, 3),
        ({"electionPriority": (1 << 31) - 1}, {"electionPriority": -1}, 3),
        ({}, {}, 2),
    ],
)
def test_the_best_of_the_set_is_elected(
    trio: ControllerBench, two: dict[str, Any], three: dict[str, Any], best: int
) -> None:
    trio.heartbeat(2, **two)
    trio.heartbeat(3, **three)
    trio.die(1)
    assert trio.info()[0] == best


def test_an_offset_that_was_truncated_counts_no_longer(trio: ControllerBench) -> None:
    trio.heartbeat(2, epoch=1, maxOffset=900)
    trio.heartbeat(2, epoch=1, maxOffset=100)
    trio.heartbeat(3, epoch=1, maxOffset=500)
    trio.die(1)
    assert trio.info()[0] == 3


def test_nobody_outside_the_set_is_elected(trio: ControllerBench) -> None:
    """A message that the set has acknowledged could be lost, and its offset given to another (7689)."""
    assert trio.alter(1, 1, {1, 2}, 2).code == 0
    trio.heartbeat(3, epoch=1, maxOffset=1 << 40)
    trio.die(2)
    trio.die(1)
    assert trio.info() == (None, 2, {1, 2}, 3), "the set stays: only its members may lead again"
    refused = trio.elect(3)
    assert (refused.code, refused.remark) == (
        Code.CONTROLLER_ELECT_MASTER_FAILED,
        "Failed to elect a new master: not heard: 1, 2",
    )
    assert trio.elect(3, designate=True).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert trio.elect(-1).code == Code.CONTROLLER_MASTER_NOT_AVAILABLE
    trio.advance(NOT_ALIVE_MS, 3)
    assert trio.info() == (None, 2, {1, 2}, 3), "and no epoch is spent on it"
    trio.brokers[2] = trio.connect()
    trio.heartbeat(2)
    trio.advance(6_000, 2, 3)
    assert trio.info() == (2, 3, {2}, 4), "a member that comes back"


def test_an_unclean_election_has_to_be_allowed(tmp_path: Path) -> None:
    bench = ControllerBench(tmp_path, enable_elect_unclean_master=True)
    bench.trio()
    assert bench.alter(1, 1, {1}, 2).code == 0
    bench.die(1)
    assert bench.info() == (2, 2, {2}, 4)


def test_an_operator_chooses_among_those_that_have_everything(trio: ControllerBench) -> None:
    trio.heartbeat(3, maxOffset=1_000)
    assert trio.elect(2, designate=True).code == 0
    assert trio.info() == (2, 2, {2}, 3)
    assert trio.elect(2, designate=True).code == Code.CONTROLLER_MASTER_STILL_EXIST
    trio.die(2)
    assert trio.info() == (None, 3, {2}, 3)
    assert trio.elect(2, designate=True).code == Code.CONTROLLER_ELECT_MASTER_FAILED, "it is dead"


def test_the_time_in_which_the_controller_stood_still_is_nobodys_silence(trio: ControllerBench) -> None:
    trio.clock.advance(60_000)  # SIGSTOP: no tick, no heartbeat read
    trio.core.tick()
    trio.advance(5_000, 2, 3)
    assert trio.info()[0] == 1, "it had no time to be heard"
    trio.advance(NOT_ALIVE_MS, 2, 3)
    assert trio.info()[0] in (2, 3)


def test_after_a_restart_the_master_has_time_to_be_heard(trio: ControllerBench) -> None:
    """And is replaced if it never is: it may have died with the controller (apache/rocketmq 5712)."""
    before = trio.info()
    trio.reopen()
    assert trio.info() == before
    trio.heartbeat(2, epoch=1, maxOffset=10)
    assert trio.register(2).ext["masterBrokerId"] == "1"
    assert trio.elect(2).code == Code.CONTROLLER_MASTER_STILL_EXIST
    trio.advance(6_000, 2, 3)
    assert trio.info() == before
    trio.advance(NOT_ALIVE_MS, 2)
    assert trio.info() == (2, 2, {2}, 3)


def test_a_broker_that_registers_is_given_no_dead_master(trio: ControllerBench) -> None:
    """It is elected itself, if it belongs to the set (apache/rocketmq 5631)."""
    assert trio.alter(1, 1, {1, 2}, 2).code == 0
    for number in (3, 2, 1):
        trio.die(number)
    for number, code in ((3, Code.CONTROLLER_ELECT_MASTER_FAILED), (2, Code.SUCCESS)):
        trio.brokers[number] = trio.connect()
        assert "masterBrokerId" not in trio.register(number).ext
        trio.heartbeat(number)
        assert trio.elect(number).code == code
    assert trio.info()[0] == 2
    assert trio.register(3).ext["masterAddress"] == address(2)


def test_one_connection_of_a_broker_ends_while_another_lives(trio: ControllerBench) -> None:
    old = trio.brokers[1]
    trio.brokers[1] = trio.connect()
    trio.heartbeat(1)
    old.disconnect()
    trio.save()
    assert trio.info()[0] == 1


# --- the SyncStateSet ----------------------------------------------------------------------------------------------


def test_only_the_master_of_the_epoch_changes_the_set(trio: ControllerBench) -> None:
    """What grows is known to the master: it asked, with what it knows (5663)."""
    before = trio.info()
    assert trio.alter(1, 1, {1, 2, 3}, 2).code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the same set"
    assert trio.alter(2, 1, {1, 2}, 2).code == Code.CONTROLLER_INVALID_MASTER
    assert trio.alter(1, 0, {1, 2}, 2).code == Code.CONTROLLER_FENCED_MASTER_EPOCH
    assert trio.alter(1, 2, {1, 2}, 2).code == Code.CONTROLLER_FENCED_MASTER_EPOCH
    assert trio.alter(1, 1, {1, 2}, 1).code == Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert trio.alter(1, 1, {1, 2, 9}, 2).code == Code.CONTROLLER_INVALID_REPLICAS
    assert trio.alter(1, 1, {2, 3}, 2).code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, (
        "without its master"
    )
    assert trio.alter(1, 1, set(), 2).code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert trio.info() == before
    trio.die(3)
    assert trio.alter(1, 1, {1, 2}, 2).code == 0
    assert trio.alter(1, 1, {1, 2, 3}, 3).code == Code.CONTROLLER_BROKER_NOT_ALIVE
    assert trio.alter(1, 1, {1, 2}, 9).code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert trio.info() == (1, 1, {1, 2}, 3)


def test_a_deposed_master_changes_nothing(trio: ControllerBench) -> None:
    trio.heartbeat(2, maxOffset=5)
    trio.die(1)
    trio.brokers[1] = trio.connect()
    trio.heartbeat(1)
    assert trio.alter(1, 1, {1}, 2).code == Code.CONTROLLER_INVALID_MASTER
    assert trio.info() == (2, 2, {2}, 3)


def test_an_answer_that_was_lost_can_be_asked_for(trio: ControllerBench) -> None:
    """The controller has grown its set, and its master has not heard so: the next question tells it (5663)."""
    trio.alter(1, 1, {1, 2}, 2)
    again = trio.alter(1, 1, {1, 2}, 2)
    assert again.code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert trio.info() == (1, 1, {1, 2}, 3)


def test_a_set_that_is_confirmed_fences_earlier_requests(trio: ControllerBench) -> None:
    """A request whose outcome its master does not know may arrive late."""
    trio.alter(1, 1, {1, 2}, 2)
    trio.die(2)
    assert trio.alter(1, 1, {1, 2}, 3, confirms=True).code == 0, "whether they are alive or not"
    assert trio.info() == (1, 1, {1, 2}, 4)
    assert trio.alter(1, 1, {1, 2, 3}, 3).code == Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    trio.reopen()
    assert trio.info() == (1, 1, {1, 2}, 4), "it is durable"


def test_only_the_master_confirms_its_set(trio: ControllerBench) -> None:
    before = trio.info()
    assert trio.alter(2, 1, {1, 2, 3}, 2, confirms=True).code == Code.CONTROLLER_INVALID_MASTER
    assert trio.alter(1, 0, {1, 2, 3}, 2, confirms=True).code == Code.CONTROLLER_FENCED_MASTER_EPOCH
    assert trio.alter(1, 1, {1, 2, 3}, 1, confirms=True).code == Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    trio.die(3)
    trio.alter(1, 1, {1, 2}, 2)
    grown = trio.alter(1, 1, {1, 2, 3}, 3, confirms=True)
    assert grown.code == Code.CONTROLLER_BROKER_NOT_ALIVE, "it is no other set"
    assert before == (1, 1, {1, 2, 3}, 2)
    assert trio.info() == (1, 1, {1, 2}, 3)


# --- durability ----------------------------------------------------------------------------------------------------


def test_nothing_is_said_before_it_is_on_the_disk(bench: ControllerBench) -> None:
    bench.trio()
    operator = bench.operator
    master = {"brokerName": NAME, "masterBrokerId": "1", "masterEpoch": "1"}
    body = b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}'
    first = operator.give(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, master, body)
    second = operator.give(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME})
    third = operator.give(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, master, body)
    assert operator.heard() == [], "not the change, not a question after it, not a refusal because of it"
    (job,) = bench.core.jobs()
    job.run()
    bench.brokers[1].disconnect()  # an election during the save
    fourth = operator.give(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME})
    assert operator.heard() == []
    job.done()
    assert [each.opaque for each in operator.heard()] == [first, second, third]
    assert bench.core.take_notices() == []
    assert bench.core.jobs_due
    bench.save()
    (last,) = operator.heard()
    assert (last.opaque, last.ext["masterEpoch"]) == (fourth, "2")
    assert len(bench.core.take_notices()) == 2
    assert not bench.core.jobs_due


def test_a_kill_before_the_save_takes_back_what_nobody_heard(trio: ControllerBench) -> None:
    before = trio.info()
    trio.operator.give(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        {"brokerName": NAME, "masterBrokerId": "1", "masterEpoch": "1"},
        b'{"syncStateSet":[1],"syncStateSetEpoch":2}',
    )
    trio.reopen()
    assert trio.info() == before


@pytest.mark.parametrize("verb", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_disk_that_fails_gets_an_error_and_then_the_state(tmp_path: Path, verb: str) -> None:
    files = FaultyFiles()
    bench = ControllerBench(tmp_path, files)
    bench.trio()
    files.fail(verb, errno.EIO)
    opaque = bench.operator.give(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        {"brokerName": NAME, "masterBrokerId": "1", "masterEpoch": "1"},
        b'{"syncStateSet":[1],"syncStateSetEpoch":2}',
    )
    (job,) = bench.core.jobs()
    with pytest.raises(OSError, match=r"Errno 5"):
        run_here(job)
    assert bench.operator.heard() == []
    bench.clock.advance(5_500)
    bench.core.tick()
    (answer,) = bench.operator.heard()
    assert (answer.opaque, answer.code) == (opaque, Code.SYSTEM_ERROR)
    assert "cannot be saved" in str(answer.remark)
    files.heal()
    bench.save()
    assert bench.info() == (1, 1, {1}, 3)
    bench.reopen()
    assert bench.info() == (1, 1, {1}, 3)


def test_what_waits_for_the_disk_is_bounded(trio: ControllerBench) -> None:
    give = trio.operator.give
    header = {"brokerName": NAME, "masterBrokerId": "1", "masterEpoch": "1"}
    give(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, b'{"syncStateSet":[1],"syncStateSetEpoch":2}')
    for _ in range(4_095):
        give(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME})
    assert trio.operator.heard() == []
    give(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME})
    (answer,) = trio.operator.heard()
    assert answer.code == Code.SYSTEM_BUSY


def _cut(data: bytes) -> bytes:
    return data[:-1]


def test_an_older_state_gives_no_epoch_a_second_time(
    trio: ControllerBench, caplog: pytest.LogCaptureFixture
) -> None:
    path = trio.directory / "controller.state"
    older = path.read_bytes()
    trio.heartbeat(2, epoch=1, maxOffset=100)
    trio.heartbeat(3, epoch=1, maxOffset=200)
    trio.die(1)
    assert trio.info() == (3, 2, {3}, 3)
    path.write_bytes(older)
    trio.reopen()
    assert trio.info()[:2] == (1, 1)
    trio.heartbeat(2, epoch=1, maxOffset=100)
    assert "is older than the log" not in caplog.text
    trio.heartbeat(3, epoch=2, maxOffset=300)
    assert "the log of 3 is in epoch 2, and the last one that this controller knows is 1" in caplog.text
    assert trio.elect(2, designate=True).code == 0
    assert trio.info()[:2] == (2, 3), "3 was a master in epoch 2"


def test_an_epoch_that_cannot_be_is_no_reason_for_the_next_one(trio: ControllerBench) -> None:
    trio.heartbeat(2, epoch=(1 << 31) - 1)
    trio.die(1)
    assert trio.info()[:2] == (2, 2)


def _flip(data: bytes) -> bytes:
    return data.replace(b'"master":1', b'"master":2')


def _newer(data: bytes) -> bytes:
    return data.replace(b"mqspark-controller 1 ", b"mqspark-controller 2 ")


def _empty(data: bytes) -> bytes:
    return b""


def _longer(data: bytes) -> bytes:
    return data + b" "


@pytest.mark.parametrize("damage", [_cut, _flip, _newer, _empty, _longer])
def test_a_damaged_state_is_refused(trio: ControllerBench, damage: Callable[[bytes], bytes]) -> None:
    path = trio.directory / "controller.state"
    data = path.read_bytes()
    assert damage(data) != data
    path.write_bytes(damage(data))
    with pytest.raises(StoreCorrupt, match=r"controller\.state is damaged: "):
        trio.reopen()


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b'{"b":{"cluster":"c","nextId":2,"master":1,"masterEpoch":1,"inSync":[],"inSyncEpoch":1,"replicas":{}}}',
        b'{"../b":{"cluster":"c","nextId":2,"master":null,"masterEpoch":1,"inSync":[],"inSyncEpoch":1,"replicas":{}}}',
        b'{"b":{"cluster":"c","nextId":1,"master":null,"masterEpoch":1,"inSync":[1],"inSyncEpoch":1,"replicas":{}}}',
    ],
)
def test_a_state_that_cannot_be_is_refused(tmp_path: Path, content: bytes) -> None:
    StateFile(tmp_path).save(content)
    with pytest.raises(StoreCorrupt):
        ControllerBench(tmp_path)


def test_a_directory_has_one_controller(tmp_path: Path) -> None:
    first = StateFile(tmp_path)
    first.lock()
    with pytest.raises(StoreLocked):
        StateFile(tmp_path).lock()
    first.close()
    StateFile(tmp_path).close()


# --- operators -----------------------------------------------------------------------------------------------------


def test_replicas_are_removed_only_when_they_are_dead(trio: ControllerBench) -> None:
    refused = Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert trio.clean().code == refused, "there is a master"
    assert trio.clean("2").code == refused, "it is alive"
    assert trio.clean("2;x").code == refused
    trio.die(3)
    assert trio.clean("3").code == 0
    assert trio.info() == (1, 1, {1, 2}, 3)
    assert trio.clean("3").code == 0, "it is not there any more"
    assert trio.alter(1, 1, {1}, 3).code == 0
    assert trio.clean("1", living=True).code == refused, "nobody else has everything"
    assert trio.clean("2", living=True).code == 0
    assert trio.info() == (1, 1, {1}, 4)
    assert trio.clean(living=True).code == 0
    answer = trio.operator.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME})
    assert answer.code == Code.CONTROLLER_BROKER_METADATA_NOT_EXIST
    assert trio.clean(living=True).code == refused
    assert trio.core.replicas.ledger.entries == trio.core.replicas.ledger.bytes == 0


def test_a_removed_master_is_deposed(trio: ControllerBench) -> None:
    assert trio.clean("1", living=True).code == 0
    master, epoch, members, _ = trio.info()
    assert (master, epoch, members) == (None, 2, {2, 3})
    trio.advance(6_000, 2, 3)
    assert trio.info()[:2] in ((2, 3), (3, 3))


def test_an_id_is_given_again_only_when_it_was_removed(trio: ControllerBench) -> None:
    trio.die(2)
    assert trio.clean("2").code == 0
    trio.brokers[4] = trio.connect()
    answer = trio.operator.ask(
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, {"clusterName": CLUSTER, "brokerName": NAME}
    )
    assert answer.ext["nextBrokerId"] == "4"


def test_sync_state_data(trio: ControllerBench) -> None:
    trio.alter(1, 1, {1, 2}, 2)
    trio.die(3)
    answer = trio.operator.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, b'["b-a","unknown"]')

    def identity(broker_id: int, alive: bool) -> dict[str, Any]:
        return {
            "alive": alive,
            "brokerAddress": address(broker_id),
            "brokerId": broker_id,
            "brokerName": NAME,
        }

    assert json.loads(answer.body) == {
        "replicasInfoTable": {
            NAME: {
                "inSyncReplicas": [identity(1, True), identity(2, True)],
                "masterAddress": address(1),
                "masterBrokerId": 1,
                "masterEpoch": 1,
                "notInSyncReplicas": [identity(3, False)],
                "syncStateSetEpoch": 3,
            }
        }
    }
    assert trio.operator.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA).code == Code.SYSTEM_ERROR


def test_metadata(bench: ControllerBench) -> None:
    answer = bench.operator.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert answer.ext == {
        "group": "mqspark",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": ADDRESS,
        "isLeader": "true",
        "peers": f"n0:{ADDRESS};",
    }


def test_heartbeats(trio: ControllerBench) -> None:
    header = {"clusterName": CLUSTER, "brokerName": NAME, "brokerAddr": address(1)}
    ask = trio.operator.ask
    assert ask(RequestCode.BROKER_HEARTBEAT, header).code == Code.CONTROLLER_INVALID_REQUEST
    answer = ask(RequestCode.BROKER_HEARTBEAT, header | {"brokerId": "1"})
    assert (answer.code, answer.remark) == (0, "Heart beat success")
    unknown = Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert ask(RequestCode.BROKER_HEARTBEAT, header | {"brokerId": "9"}).code == unknown
    assert ask(RequestCode.BROKER_HEARTBEAT, header | {"brokerId": "1", "clusterName": "c2"}).code == unknown


def test_a_broker_that_moved_is_registered_whatever_it_said_before(trio: ControllerBench) -> None:
    moved = "10.9.9.9:10911"
    trio.die(1)
    trio.brokers[1] = trio.connect()
    trio.heartbeat(1, brokerAddr=moved)
    assert trio.register(1, moved).code == 0
    trio.heartbeat(1, brokerAddr=moved)
    assert trio.register(1, "10.9.9.8:10911").code == Code.CONTROLLER_BROKER_ID_INVALID, "it is alive"


def test_a_copy_of_a_broker_does_not_speak_for_it(trio: ControllerBench) -> None:
    old = trio.brokers[1]
    trio.brokers[1] = trio.connect()
    trio.heartbeat(1, brokerAddr="10.9.9.9:10911")
    assert trio.info()[0] == 1
    old.disconnect()
    trio.save()
    assert trio.info()[0] == 2, "only the copy was heard"


def test_settings_over_the_wire(trio: ControllerBench) -> None:
    answer = trio.operator.ask(RequestCode.GET_CONTROLLER_CONFIG)
    assert b"enableElectUncleanMaster=false\n" in answer.body

    def update(text: bytes) -> int:
        return trio.operator.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, None, text).code

    assert update(b"notifyBrokerRoleChanged=false\nscanInactiveMasterInterval=100") == 0
    assert update(b"scanInactiveMasterInterval=0") == Code.SYSTEM_ERROR
    for fixed in (b"controllerStorePath=/tmp/x", b"configBlackList=x", b"configStorePath=x"):
        assert update(fixed) == Code.NO_PERMISSION
    assert update(b"colour=red") == Code.SYSTEM_ERROR
    trio.die(1)
    assert trio.info()[0] == 2
    assert trio.core.take_notices() == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"controller_store": "etcd"}, "needs etcdEndpoints"),
        (ETCD | {"etcd_endpoints": "http://a:1;b:2"}, "'b:2' is not http://host:port"),
        (ETCD | {"etcd_endpoints": "ftp://a:1"}, "is not http://host:port"),
        (ETCD | {"etcd_lease_seconds": 1}, "is not 2 to 60"),
        (ETCD | {"etcd_prefix": "x"}, "is not a path"),
        (ETCD | {"etcd_tls_cert_path": "/x"}, "belong together"),
        ({"controller_store": "raft"}, "is not embedded or etcd"),
        ({"controller_d_leger_peers": "n0-a:1;n1-b:1"}, "the state of a single controller"),
        ({"controller_d_leger_peers": "n1-a:1"}, "has no peer controllerDLegerSelfId"),
        ({"controller_d_leger_peers": "a:1"}, "is not of the form id-host:port"),
        ({"controller_d_leger_group": "a;b"}, "is not a name"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ControllerConfig(**settings)
    assert ControllerConfig(controller_d_leger_peers="n0-h:9878").advertised_address() == "h:9878"
    several = ControllerConfig(**ETCD, controller_d_leger_peers="n1-a:1;n0-b:2")
    assert several.advertised_address() == "b:2"
    assert several.peers("b:2") == "n1:a:1;n0:b:2;"


class MemoryState:
    def __init__(self, content: bytes | None = None) -> None:
        self.content = content

    def load(self) -> bytes | None:
        return self.content

    def save(self, content: bytes) -> None:
        self.content = content

    def corrupt(self, why: str) -> StoreCorrupt:
        return StoreCorrupt(why, path="memory")


def test_a_controller_of_several_answers_while_its_lease_holds(clock: ManualClock) -> None:
    core = ElectedController(ControllerConfig(**ETCD), clock, "me:1")
    state = MemoryState()
    peer = Peer(core, Session(1, "127.0.0.1", 40_001, []))
    names = {"clusterName": CLUSTER, "brokerName": NAME}
    apply = names | {"appliedBrokerId": "1", "registerCheckCode": "a:1;1"}

    def leads() -> bool:
        answer = peer.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
        return answer.ext["isLeader"] == "true" and answer.ext["controllerLeaderAddress"] == "me:1"

    assert not leads()
    core.follow("you:1")
    refused = peer.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, names)
    assert (refused.code, refused.remark) == (
        Code.CONTROLLER_NOT_LEADER,
        "This controller is not the leader; the leader is you:1",
    )
    assert peer.ask(RequestCode.GET_CONTROLLER_CONFIG).code == 0
    core.lead(state, clock.monotonic_ms() + 5_000)
    assert leads()
    peer.give(RequestCode.CONTROLLER_APPLY_BROKER_ID, apply)
    assert core.jobs_due
    for job in core.jobs():
        run_here(job)
    assert peer.heard()[-1].code == 0
    assert peer.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, names).ext["nextBrokerId"] == "2"

    clock.advance(4_999)
    core.renew(clock.monotonic_ms() + 5_000)
    clock.advance(4_999)
    assert leads()
    peer.give(RequestCode.CONTROLLER_APPLY_BROKER_ID, apply | {"appliedBrokerId": "2"})
    assert peer.heard() == [], "it waits for etcd"
    clock.advance(1)
    assert not leads()
    assert core.take_notices() == []
    assert peer.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, names).code == Code.CONTROLLER_NOT_LEADER
    core.tick()
    assert [answer.code for answer in peer.heard()] == [Code.CONTROLLER_NOT_LEADER]
    assert core.jobs() == []

    other = ElectedController(ControllerConfig(**ETCD), clock, "you:1")
    other.lead(state, clock.monotonic_ms() + 5_000)
    asked = Peer(other, Session(2, "127.0.0.1", 40_002, []))
    assert asked.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, names).ext["nextBrokerId"] == "2"
    with pytest.raises(StoreCorrupt):
        core.lead(MemoryState(b"{"), clock.monotonic_ms() + 5_000)


def test_a_controller_knows_who_is_alive_before_it_leads(clock: ManualClock) -> None:
    """A master that died with the leader is replaced by the next one (apache/rocketmq 5712)."""
    core = ElectedController(ControllerConfig(**ETCD), clock, "me:1")
    replicas = {str(number): {"address": f"h{number}:1", "checkCode": "x"} for number in (1, 2)}
    saved = {
        "cluster": CLUSTER,
        "nextId": 3,
        "master": 1,
        "masterEpoch": 1,
        "inSync": [1, 2],
        "inSyncEpoch": 1,
        "replicas": replicas,
    }
    state = MemoryState(json.dumps({NAME: saved}).encode())
    peer = Peer(core, Session(1, "127.0.0.1", 40_001, []))
    heartbeat = {
        "clusterName": CLUSTER,
        "brokerName": NAME,
        "brokerAddr": "h2:1",
        "brokerId": "2",
        "epoch": "1",
    }
    copy = heartbeat | {"brokerAddr": "h9:1", "brokerId": "1"}
    for _ in range(24):
        assert peer.ask(RequestCode.BROKER_HEARTBEAT, heartbeat).code == Code.CONTROLLER_NOT_LEADER
        assert peer.ask(RequestCode.BROKER_HEARTBEAT, copy).code == Code.CONTROLLER_NOT_LEADER
        clock.advance(500)
        core.tick()
    core.lead(state, clock.monotonic_ms() + 60_000)
    core.tick()
    for job in core.jobs():
        run_here(job)
    names = {"clusterName": CLUSTER, "brokerName": NAME}
    answer = peer.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, names)
    assert answer.ext["masterBrokerId"] == "2", (
        "the old master was not heard for 12 s, and needs no more time"
    )


def test_heartbeats_before_leading_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.controller.elected.MAX_HEARD", 10)
    core = ElectedController(ControllerConfig(**ETCD), ManualClock(), "me:1")
    peer = Peer(core, Session(1, "127.0.0.1", 40_001, []))
    for number in range(20):
        header = {"clusterName": "c", "brokerName": f"b-{number}", "brokerAddr": "h:1", "brokerId": "1"}
        assert peer.ask(RequestCode.BROKER_HEARTBEAT, header).code == Code.CONTROLLER_NOT_LEADER
    (liveness,) = [each for each in vars(core).values() if isinstance(each, Liveness)]
    assert len(liveness) == 10
    peer.disconnect()
    assert len(liveness) == 0
