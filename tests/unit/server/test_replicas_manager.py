"""What a master makes of a controller's answer to a change of the SyncStateSet."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.manager import ControllerRequest, LogState, ReplicasManager
from mqspark.broker.replication.rivals import Rivals
from mqspark.broker.replication.term import Term
from mqspark.errors import NotNow
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.cluster_headers import ApplyBrokerIdRequestHeader, BrokerHeartbeatRequestHeader
from mqspark.store.disk.notes.brokeridentity import IdentityFiles
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles

GROWN = b'{"syncStateSet":[1,2],"syncStateSetEpoch":4}'
LOG = LogState(1, 100, 90, 1)


class Master:
    """Broker 1, alone in the set of epoch 3."""

    def __init__(self, directory: Path) -> None:
        clock = self.clock = ManualClock()
        self.term = Term(clock, 1, 10_000)
        self.term.begin(1, 1, "m:1")
        self.term.decided({1}, 3)
        identity = IdentityFiles(directory, QuickFiles(), "c", "b")
        self.manager = ReplicasManager(BrokerConfig(), clock, identity, "i1")

    def alter(self, code: int, body: bytes = b"") -> None:
        """It wants 2 in the set, too, and is answered so."""
        talk = self.manager.alter(self.term, LOG, frozenset({1, 2}))
        next(talk)
        assert self.term.members == {1, 2}, "it counts from when it is asked for"
        with pytest.raises(StopIteration if code == ResponseCode.SUCCESS else NotNow):
            talk.send(Command(code, body=body))

    def ask_and_hear_nothing(self, *members: int) -> None:
        talk = self.manager.alter(self.term, LOG, frozenset(members))
        next(talk)
        talk.close()


Talk = Generator[ControllerRequest, Command, None]


def asked(request: ControllerRequest) -> tuple[list[int], int, bool]:
    """The set, the epoch that it is to replace, and whether it may be the same."""
    body = json.loads(request.body)
    confirms = getattr(request.header, "confirms", None) is True
    return body["syncStateSet"], body["syncStateSetEpoch"], confirms


def answer(talk: Talk, code: int, members: list[int], epoch: int) -> ControllerRequest | None:
    """The next request, or None at a good end."""
    body = json.dumps({"syncStateSet": members, "syncStateSetEpoch": epoch}).encode()
    try:
        return talk.send(Command(code, body=b"" if code else body))
    except StopIteration:
        return None


@pytest.fixture
def master(tmp_path: Path) -> Master:
    return Master(tmp_path)


def test_a_set_that_is_confirmed_is_the_set(master: Master) -> None:
    master.alter(ResponseCode.SUCCESS, GROWN)
    assert (master.term.sync_set, master.term.members) == ({1, 2}, {1, 2})


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    ],
)
def test_a_set_that_a_leader_has_refused_counts_no_longer(master: Master, code: int) -> None:
    master.alter(code)
    assert master.term.members == {1}


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.CONTROLLER_NOT_LEADER,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR,
    ],
)
def test_a_set_that_may_be_in_force_goes_on_counting(master: Master, code: int) -> None:
    """A leader that is deposed, or whose disk hangs, does not know whether the change holds. Whoever it would make
    electable must have what is acknowledged (apache/rocketmq 5663)."""
    master.alter(code)
    assert (master.term.sync_set, master.term.members) == ({1}, {1, 2})
    assert master.term.is_unsure
    master.term.decided({1, 2}, 4)
    assert master.term.members == {1, 2}
    assert not master.term.is_unsure
    master.term.decided({1}, 5)
    assert master.term.members == {1}


def test_a_refusal_does_not_end_an_earlier_request(master: Master) -> None:
    """The first one may still come into force. It cannot any more once the set has a newer epoch."""
    master.ask_and_hear_nothing(1, 2)
    talk = master.manager.alter(master.term, LOG, frozenset({1, 2}))
    next(talk)
    again = answer(talk, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, [], 0)
    assert again is not None
    assert master.term.members == {1, 2}
    assert asked(again) == ([1], 3, True)
    with pytest.raises(NotNow, match="accept"):
        answer(talk, ResponseCode.SUCCESS, [1], 4)
    assert (master.term.members, master.term.set_epoch) == ({1}, 4)


def test_a_member_that_may_never_come_is_waited_for_until_the_set_is_confirmed(master: Master) -> None:
    """The outcome of a request for a slave that died is not known: the master would wait for it for ever."""
    master.term.decided({1, 2}, 4)
    master.ask_and_hear_nothing(1, 2, 3)
    master.term.decided({1, 2}, 4)  # as a controller says that the request has not reached yet
    assert master.term.members == {1, 2, 3}
    talk = master.manager.settle(master.term, LOG)
    assert asked(next(talk)) == ([1, 2], 4, True)
    assert master.term.members == {1, 2, 3}
    assert answer(talk, ResponseCode.SUCCESS, [1, 2], 5) is None
    assert (master.term.sync_set, master.term.members, master.term.set_epoch) == ({1, 2}, {1, 2}, 5)


def test_a_set_that_has_changed_after_all_is_not_confirmed(master: Master) -> None:
    master.ask_and_hear_nothing(1, 2)
    talk = master.manager.settle(master.term, LOG)
    next(talk)
    with pytest.raises(NotNow):
        answer(talk, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, [], 0)
    assert master.term.members == {1, 2}
    assert master.term.is_unsure, "the next question tells it"


def test_under_a_controller_of_rocketmq_a_slave_goes_and_is_asked_back(master: Master) -> None:
    """It refuses a set that is no change, and keeps its epoch."""
    master.term.decided({1, 2, 4}, 4)
    master.ask_and_hear_nothing(1, 2, 3, 4)
    talk = master.manager.settle(master.term, LOG)
    next(talk)
    fewer = answer(talk, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, [], 0)
    assert fewer is not None
    assert asked(fewer) == ([1, 2], 4, False)
    assert answer(talk, ResponseCode.SUCCESS, [1, 2], 5) is None
    assert master.term.members == {1, 2}


def test_a_master_without_slaves_has_no_other_set_to_ask_such_a_controller_for(master: Master) -> None:
    master.ask_and_hear_nothing(1, 2)
    talk = master.manager.settle(master.term, LOG)
    next(talk)
    with pytest.raises(NotNow):
        answer(talk, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, [], 0)
    assert master.term.members == {1, 2}


@pytest.mark.parametrize(
    "code", [ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER]
)
def test_a_master_that_was_replaced_is_one_no_longer(master: Master, code: int) -> None:
    master.alter(code)
    assert master.term.is_over


def test_a_heartbeat_says_which_broker_is_preferred(tmp_path: Path) -> None:
    """brokerElectionPriority, controllerHeartBeatTimeoutMills."""
    config = BrokerConfig(broker_election_priority=3, controller_heart_beat_timeout_mills=4_000)
    manager = ReplicasManager(config, ManualClock(), IdentityFiles(tmp_path, QuickFiles(), "c", "b"), "i1")
    header = manager.heartbeat("a:1", LogState(1, 2, 3)).header
    assert isinstance(header, BrokerHeartbeatRequestHeader)
    assert (header.election_priority, header.heartbeat_timeout_mills) == (3, 4_000)


# --- what an older controller says ---


def registered(master: Master, *answers: tuple[int, dict[str, str]]) -> list[ControllerRequest]:
    """The requests of a registration that gets these answers."""
    talk = master.manager.register("m:1", LOG)
    asked = [next(talk)]
    for code, fields in answers:
        try:
            asked.append(talk.send(Command(code, ext_texts=fields)))
        except StopIteration:
            break
    return asked


def named(epoch: int, master_id: int = 2, address: str = "s:2") -> dict[str, str]:
    return {
        "masterBrokerId": str(master_id),
        "masterAddress": address,
        "masterEpoch": str(epoch),
        "syncStateSetEpoch": "3",
    }


def test_an_appointment_that_is_older_than_the_log_is_refused(master: Master) -> None:
    """The log is in epoch 1, and the newest appointment of epoch 4."""
    with pytest.raises(
        NotNow, match="of epoch 0, and this broker knows epoch 1: the state of the controller is older"
    ):
        registered(master, (0, named(0)))
    registered(master, (0, named(4)))
    with pytest.raises(NotNow, match="of epoch 3, and this broker knows epoch 4"):
        registered(master, (0, named(3, 3, "t:3")))
    assert master.manager.decision is not None
    assert (master.manager.decision.epoch, master.manager.decision.master_id) == (4, 2)


def test_a_heartbeat_says_how_much_is_to_be_healed(master: Master) -> None:
    headers = [master.manager.heartbeat("m:1", LOG._replace(damaged_bytes=size)).header for size in (0, 214)]
    assert [getattr(each, "damaged_bytes", 0) for each in headers] == [None, 214]


def test_epochs_of_a_damaged_log_are_no_reason_to_refuse(master: Master) -> None:
    talk = master.manager.register("m:1", LOG._replace(epoch=900, damage="forged"))
    next(talk)
    with pytest.raises(StopIteration):
        talk.send(Command(0, ext_texts=named(4)))


def test_the_same_master_may_have_another_address_in_its_epoch(master: Master) -> None:
    registered(master, (0, named(4)))
    registered(master, (0, named(4, address="s:3")))
    decision = master.manager.decision
    assert decision is not None
    assert (decision.epoch, decision.master_id, decision.master_address) == (4, 2, "s:3")
    registered(master, (0, named(4, master_id=3, address="t:1")))
    assert master.manager.decision == decision, "nobody else is the master of this epoch"


def test_a_number_that_an_older_state_does_not_know_is_applied_for_again(master: Master) -> None:
    master.manager.broker_id = 3
    asked = registered(
        master, (ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, {}), (0, {}), (0, named(4))
    )
    assert [each.code for each in asked] == [
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.CONTROLLER_REGISTER_BROKER,
    ]
    header = asked[1].header
    assert isinstance(header, ApplyBrokerIdRequestHeader)
    assert header.applied_broker_id == 3
    with pytest.raises(NotNow, match="grant broker id 3 again"):
        registered(
            master,
            (ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, {}),
            (ResponseCode.CONTROLLER_BROKER_ID_INVALID, {}),
        )


@pytest.mark.parametrize(
    ("code", "fields", "holds", "asks"),
    [
        (0, {}, True, False),  # RocketMQ's
        (0, {"masterEpoch": "1"}, True, False),
        (0, {"masterEpoch": "2", "stateId": "A"}, True, False),
        (0, {"masterEpoch": "0"}, False, False),
        (ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, {"masterEpoch": "3"}, False, True),
        (ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, {}, False, True),
    ],
)
def test_which_answer_to_a_heartbeat_renews_a_lease(
    master: Master, code: int, fields: dict[str, str], holds: bool, asks: bool
) -> None:
    """The master is in epoch 1; its lease of 10 s began when it was named."""
    master.term.renewed(master.clock.monotonic_ms())
    master.clock.advance(6_000)
    master.manager.heartbeat_answered(
        Command(code, ext_texts=fields), master.term, master.clock.monotonic_ms()
    )
    master.clock.advance(6_000)
    assert master.term.holds is holds
    assert master.manager.is_told is asks


def test_a_heartbeat_says_what_this_broker_knows(master: Master) -> None:
    registered(master, (0, named(1, 1, "m:1")))
    header = master.manager.heartbeat("m:1", LOG, master.term).header
    assert isinstance(header, BrokerHeartbeatRequestHeader)
    assert (header.known_epoch, header.known_set_epoch, header.known_set) == (1, 3, "1")
    registered(master, (0, named(4)))
    header = master.manager.heartbeat("m:1", LOG, master.term).header
    assert isinstance(header, BrokerHeartbeatRequestHeader)
    assert (header.known_epoch, header.known_set_epoch, header.known_set) == (4, None, None), "not that set"


# --- two controllers that both lead ---


def test_controllers_that_share_no_state_are_noticed(clock: ManualClock) -> None:
    rivals = Rivals(clock, 8_000)
    rivals.claims("a:1", "A")
    rivals.claims("b:1", "A")
    assert rivals.conflict == "", "one leads after the other"
    rivals.claims("b:1", "B")
    assert "a:1 (A), b:1 (B) have states of their own" in rivals.conflict
    rivals.claims("a:1", None)
    assert "a:1 (of RocketMQ)" in rivals.conflict
    rivals.claims("b:1", None)
    assert rivals.conflict == ""
    rivals.claims("b:1", "B")
    rivals.yields("b:1")
    assert rivals.conflict == ""
    rivals.claims("b:1", "B")
    clock.advance(8_001)
    rivals.claims("a:1", "A")
    assert rivals.conflict == "", "the other one has gone"
