"""What a master makes of a controller's answer to a change of the SyncStateSet."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.manager import ReplicasManager
from mqspark.broker.replication.term import Term
from mqspark.errors import NotNow
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.store.disk.brokeridentity import IdentityFiles
from tests.support.store_tools import QuickFiles
from tests.unit.broker_kit import ManualClock

GROWN = b'{"syncStateSet":[1,2],"syncStateSetEpoch":4}'


class Master:
    """Broker 1, alone in the set of epoch 3."""

    def __init__(self, directory: Path) -> None:
        clock = ManualClock()
        self.term = Term(clock, 1, 10_000)
        self.term.begin(1, 1, "m:1")
        self.term.decided({1}, 3)
        identity = IdentityFiles(directory, QuickFiles(), "c", "b")
        self.manager = ReplicasManager(BrokerConfig(), clock, identity)

    def alter(self, code: int, body: bytes = b"") -> None:
        """It wants 2 in the set, too, and is answered so."""
        talk = self.manager.alter(self.term, frozenset({1, 2}))
        next(talk)
        assert self.term.members == {1, 2}, "it counts from when it is asked for"
        with pytest.raises(StopIteration if code == ResponseCode.SUCCESS else NotNow):
            talk.send(Command(code, body=body))


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
    master.alter(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
    assert master.term.members == {1, 2}, "the first one may still come into force"
    master.term.decided({1, 2}, 4)
    assert master.term.members == {1, 2}
    master.term.decided({1}, 5)
    assert master.term.members == {1}


@pytest.mark.parametrize(
    "code", [ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER]
)
def test_a_master_that_was_replaced_is_one_no_longer(master: Master, code: int) -> None:
    master.alter(code)
    assert master.term.is_over
