"""Pulls from a slave, and where a busy master sends its consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.broker.state.slots import SLOT_MS
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.unit.broker.replication.test_follower import Link, make_master, make_slave, pieces
from tests.unit.broker.replication.test_slave_metadata import one_round
from tests.unit.broker_kit import SEND, Bench, send_ext

RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY


@pytest.fixture
def master(tmp_path: Path) -> Bench:
    return make_master(tmp_path / "m", slave_read_enable=True)


@pytest.fixture
def slave(tmp_path: Path) -> Bench:
    return make_slave(tmp_path / "s", slave_read_enable=True)


def copied(master: Bench, slave: Bench, count: int = 5) -> Link:
    for number in range(count):
        assert master.peer().ask(SEND, send_ext(), b"%d" % number).code == 0
    master.broker.state.subscriptions.find("CG", master.peer().session)
    link = Link(master, slave)
    link.carry(pieces(1))
    one_round(master, slave)
    return link


def pull(bench: Bench, offset: int, **more: str) -> Command:
    return bench.peer().pull(queueOffset=str(offset), **more)


def test_a_slave_serves_what_it_has_and_sends_consumers_back(master: Bench, slave: Bench) -> None:
    link = copied(master, slave)
    answer = pull(slave, 0)
    assert answer.code == 0
    assert bytes(answer.body) == bytes(pull(master, 0).body)
    assert answer.ext["suggestWhichBrokerId"] == "0"
    for offset in (5, 7):
        answer = pull(slave, offset)
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (RETRY, "0")
        assert answer.ext["nextBeginOffset"] == str(offset), "the master may have what the slave lacks"
    link.close()


def test_without_its_master_a_slave_lets_consumers_wait(master: Bench, slave: Bench) -> None:
    link = copied(master, slave)
    link.close()
    assert pull(slave, 0).code == 0
    for offset in (5, 7):
        peer = slave.peer()
        peer.give_pull(queueOffset=str(offset), sysFlag="6", suspendTimeoutMillis="15000")
        slave.broker.turn()
        assert peer.heard() == [], "it asks again only after a while"
        slave.later(15_000 + SLOT_MS)
        (answer,) = peer.heard()
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext["nextBeginOffset"] == str(offset)


def test_an_operator_may_let_a_slave_correct_offsets(master: Bench, slave: Bench) -> None:
    copied(master, slave).close()
    slave.config.offset_check_in_slave = True
    answer = pull(slave, 7)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "5")


def test_a_parked_pull_is_served_when_the_log_arrives(master: Bench, slave: Bench) -> None:
    link = copied(master, slave)
    link.follower.address = None  # as without a master
    peer = slave.peer()
    peer.give_pull(queueOffset="5", sysFlag="6", suspendTimeoutMillis="15000")
    slave.broker.turn()
    assert peer.heard() == []
    assert master.peer().ask(SEND, send_ext(), b"new").code == 0
    link.carry(pieces(2))
    (answer,) = peer.heard()
    assert answer.code == 0
    link.close()


def test_slaves_read_only_if_they_are_told_to(tmp_path: Path) -> None:
    master, slave = make_master(tmp_path / "m"), make_slave(tmp_path / "s")
    copied(master, slave).close()
    answer = pull(slave, 0)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark is not None
    assert "slaveReadEnable" in answer.remark
    assert pull(master, 0).ext["suggestWhichBrokerId"] == "0"


def test_consumers_of_old_messages_are_sent_to_a_slave(master: Bench) -> None:
    """The bench's machine has 1 GiB."""
    for number in range(40):
        assert master.peer().ask(SEND, send_ext(), b"%d" % number * 500).code == 0
    assert pull(master, 0).ext["suggestWhichBrokerId"] == "0"
    master.store_config.access_message_in_memory_max_ratio = 0
    assert pull(master, 0, maxMsgNums="1").ext["suggestWhichBrokerId"] == "1"
    assert pull(master, 39).ext["suggestWhichBrokerId"] == "0", "the newest is in memory"
    group = master.broker.state.subscriptions.configured("CG")
    assert group is not None
    group.which_broker_when_consume_slowly = 2
    assert pull(master, 0, maxMsgNums="1").ext["suggestWhichBrokerId"] == "2"
    master.config.slave_read_enable = False
    assert pull(master, 0, maxMsgNums="1").ext["suggestWhichBrokerId"] == "0"


def test_offsets_may_be_committed_to_a_slave(master: Bench, slave: Bench) -> None:
    copied(master, slave).close()
    ext = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "4"}
    assert slave.peer().ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code == 0
    assert slave.broker.state.offsets.query("CG", "T", 0) == 4
