"""A slave that acts as master, and a master that takes over what it did; without sockets."""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.pop import acting_revival
from mqspark.broker.pop.acting_pops import RevivePlace
from mqspark.broker.replication.acting import ANNOUNCED_MS, FRESH_MS, SETTLE_MS, ActingMaster
from mqspark.broker.replication.escape import (
    MAX_ESCAPEES,
    EscapeBridge,
    Escapee,
    OtherMaster,
    escape_targets,
    is_stored,
)
from mqspark.errors import ConfigError, NotNow
from mqspark.message import MASTER_ID, SCHEDULE_TOPIC, TRANS_HALF_TOPIC, decode_properties, encode_properties
from mqspark.protocol.bodies.admin_bodies import ConsumerOffsetSerializeWrapper
from mqspark.protocol.bodies.topic_bodies import BrokerData, DataVersion, QueueData, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.slices import finished
from mqspark.record.record import Parts
from mqspark.store.timer.timerfiles import TimerCheckpoint
from tests.support.invariants import validate
from tests.unit.broker.replication.test_follower import connected, make_master, make_slave, pieces
from tests.unit.broker.replication.test_slave_metadata import copy_log, next_request, one_round
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.pop_kit import ACK, POP, Popped, handed_out, pop_ext, put

ACTING = {"enable_slave_acting_master": True}
ESCAPING = {**ACTING, "enable_remote_escape": True}
SERVER = "10.0.0.9:9876"
HA = {"masterHaAddress": "10.0.0.1:10912", "masterAddress": "10.0.0.1:10911"}
TRANS_GROUP = "CID_RMQ_SYS_TRANS"


def acting_of(bench: Bench) -> ActingMaster:
    assert bench.broker.role.acting is not None
    return bench.broker.role.acting


class Pair:
    """A master, and a slave that has all of it; then the master is away."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.master = make_master(directory / "m", **{**ACTING, "skip_pre_online": True, **settings})
        self.slave = make_slave(directory / "s", **{**ESCAPING, **settings})
        self.arrived: list[Escapee] = []
        self.accepts = True

    def lose_master(self, *others: Bench) -> None:
        """``others``: brokers that live at the same time."""
        copy_log(self.master, self.slave)
        one_round(self.master, self.slave)
        self.slave.clock.wall_ms = self.master.clock.wall_ms
        self.slave.clock.mono_ms = self.master.clock.mono_ms
        self.master.store.abandon()
        self.run(1_000)
        assert acting_of(self.slave).is_acting
        for other in others:
            other.clock.wall_ms = self.slave.clock.wall_ms

    def run(self, ms: int) -> None:
        """Let the slave work; other brokers store what it sends them."""
        for _ in range(max(1, ms // 100)):
            acting_of(self.slave).members.heard(SERVER, {1: self.slave.config.address})
            self.slave.run_for(100)
            self.carry()
            self.slave.run_jobs()

    def carry(self) -> None:
        for bridge in acting_of(self.slave).bridges:
            for message in bridge.take():
                self.arrived.append(message)
                if self.accepts:
                    is_record = message.topic.startswith("rmq_sys_REVIVE_LOG_")
                    place = RevivePlace("b-b", message.queue_id or 0) if is_record else None
                    bridge.stored(message.position, message.place or place)
            validate(bridge.ledger)

    def return_master(self) -> Bench:
        """The master starts again, and talks to its slave before it goes online."""
        settings = {**self.master.settings, "skip_pre_online": False}
        master = self.master = make_master(self.directory / "m", **settings)
        master.clock.wall_ms, master.clock.mono_ms = self.slave.clock.wall_ms, self.slave.clock.mono_ms
        assert self.slave.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, HA).code == 0
        self.run(SETTLE_MS + 1_000)
        assert acting_of(self.slave).may_follow
        pre_online = master.broker.role.pre_online
        assert pre_online is not None
        master.run_for(2_000)
        talk, peer = pre_online.progress(), self.slave.peer()
        try:
            request = next(talk)
            while True:
                request = talk.send(peer.ask(request.code, request.header)) if request else next(talk)
        except StopIteration:
            master.broker.go_online()
        return master


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def bodies(messages: list[Escapee]) -> list[bytes]:
    return sorted(message.body for message in messages)


# --- who acts -----------------------------------------------------------------------------------------------


@pytest.fixture
def slave(tmp_path: Path) -> Bench:
    return make_slave(tmp_path, **{**ESCAPING, "broker_id": 2})


@pytest.mark.parametrize(
    ("answers", "acts"),
    [
        ([], False),
        ([{}], False),
        ([{2: "a"}], True),
        ([{2: "a", 3: "b"}], True),
        ([{1: "a", 2: "b"}], False),
        ([{MASTER_ID: "m", 2: "a"}], False),
        ([{2: "a"}, {MASTER_ID: "m", 2: "a"}], False),
        ([{3: "b"}], False),
    ],
)
def test_the_slave_with_the_smallest_id_acts_when_no_name_server_knows_a_master(
    slave: Bench, answers: list[dict[int, str]], acts: bool
) -> None:
    for number, members in enumerate(answers):
        acting_of(slave).members.heard(f"ns{number}", members)
    slave.broker.tick()
    assert acting_of(slave).is_acting is acts


def test_old_answers_do_not_count(slave: Bench) -> None:
    acting_of(slave).members.heard(SERVER, {2: "a"})
    slave.broker.tick()
    assert acting_of(slave).is_acting
    slave.later(FRESH_MS + 1)
    assert not acting_of(slave).is_acting


def test_a_slave_that_is_connected_to_its_master_does_not_act(tmp_path: Path) -> None:
    master, slave = make_master(tmp_path / "m"), make_slave(tmp_path / "s", **ESCAPING)
    put(master, "m")
    with connected(master, slave) as link:
        link.carry(pieces(1))
        acting_of(slave).members.heard(SERVER, {1: "a"})
        slave.broker.tick()
        assert not acting_of(slave).is_acting
    slave.broker.tick()
    assert acting_of(slave).is_acting


def test_a_master_that_announces_itself_and_never_comes_is_waited_for(slave: Bench) -> None:
    acting = acting_of(slave)
    asked: list[int] = []
    acting.ask = lambda: asked.append(1)
    assert slave.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, HA).code == 0
    assert asked
    acting.members.heard(SERVER, {2: "a"})
    slave.broker.tick()
    assert not acting.is_acting
    assert acting.announced == ("10.0.0.1:10912", "10.0.0.1:10911")
    slave.clock.advance(ANNOUNCED_MS)
    acting.members.heard(SERVER, {2: "a"})
    slave.broker.tick()
    assert acting.is_acting


def test_a_master_that_is_gone_again_is_not_waited_for(slave: Bench) -> None:
    acting = acting_of(slave)
    assert slave.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, HA).code == 0
    for members in ({MASTER_ID: "m", 2: "a"}, {2: "a"}):
        acting.members.heard(SERVER, members)
        slave.broker.tick()
    assert acting.is_acting


@pytest.mark.parametrize("address", ["nowhere", ":1", "h:99999", "h:-1", f"{'h' * 400}:1", "h:1x"])
def test_an_announcement_without_an_address_is_refused(slave: Bench, address: str) -> None:
    answer = slave.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, {**HA, "masterHaAddress": address})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert acting_of(slave).announced is None


def test_a_notice_makes_the_slave_ask_and_nothing_else(slave: Bench) -> None:
    asked: list[int] = []
    acting_of(slave).ask = lambda: asked.append(1)
    notice = {"minBrokerId": "2", "brokerName": "b-a", "minBrokerAddr": "a", "offlineBrokerAddr": "b"}
    assert slave.peer().ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice).code == 0
    slave.broker.tick()
    assert asked
    assert not acting_of(slave).is_acting


def test_a_master_says_where_its_log_is(tmp_path: Path) -> None:
    master = make_master(tmp_path, **ACTING)
    answer = master.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, {})
    assert answer.ext["masterHaAddress"] == master.config.ha_address
    assert answer.ext["masterAddress"] == master.config.address


def test_a_broker_that_does_not_take_part_answers_those_that_do(tmp_path: Path) -> None:
    """RocketMQ's slave with enableSlaveActingMaster goes online only when its master has said where its log is."""
    master, slave = make_master(tmp_path / "m"), make_slave(tmp_path / "s")
    answer = master.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, {})
    assert (answer.code, answer.ext["masterHaAddress"]) == (0, master.config.ha_address)
    assert slave.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, {}).ext == {}
    for broker in (master, slave):
        assert broker.peer().ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "1"}).code == 0
        assert broker.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, HA).code == ResponseCode.SYSTEM_ERROR
        broker.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_remote_escape": True},
        {**ACTING, "enable_controller_mode": True, "controller_addr": "h:1"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Bench(tmp_path, **settings)


def test_an_acting_slave_serves_pulls_without_slave_read_enable(pair: Pair) -> None:
    put(pair.master, "read")
    copy_log(pair.master, pair.slave)
    assert pair.slave.peer().pull().code == ResponseCode.SYSTEM_BUSY
    pair.lose_master()
    answer = pair.slave.peer().pull()
    assert answer.code == 0
    assert b"read" in bytes(answer.body)


# --- what is delivered --------------------------------------------------------------------------------------


def delayed(master: Bench, count: int = 3) -> list[bytes]:
    texts = [b"delayed %d" % number for number in range(count)]
    for text in texts:
        header = send_ext(properties=encode_properties({"DELAY": "2", "TAGS": "x"}).decode())
        assert master.peer().ask(SEND, header, text).code == 0
    return texts


def timed(master: Bench, delay_ms: int, count: int = 3) -> list[bytes]:
    texts = [b"timed %d" % number for number in range(count)]
    for text in texts:
        due = {"TIMER_DELIVER_MS": str(master.clock.now_ms() + delay_ms)}
        assert master.peer().ask(SEND, send_ext(properties=encode_properties(due).decode()), text).code == 0
    return texts


def test_delayed_messages_go_to_other_brokers_and_count_once_they_are_stored(pair: Pair) -> None:
    texts = delayed(pair.master)
    pair.accepts = False
    pair.lose_master()
    pair.run(3_000)
    assert pair.arrived == []
    pair.run(4_000)
    assert bodies(pair.arrived) == sorted(texts)
    for message in pair.arrived:
        assert message.topic == "T"
        properties = decode_properties(message.properties.encode())
        assert "DELAY" not in properties
        assert properties["TAGS"] == "x"
    assert delay_offset(pair.slave, 2) in (None, 0)
    for bridge in acting_of(pair.slave).bridges:
        for message in pair.arrived:
            bridge.stored(message.position)
    pair.run(100)
    assert delay_offset(pair.slave, 2) == len(texts)
    shown = {"acting": True, "delivering": True, "delivered": len(texts), "refused": 0}
    assert acting_of(pair.slave).as_dict() == shown


def delay_offset(bench: Bench, level: int) -> int | None:
    answer = bench.peer().ask(RequestCode.GET_ALL_DELAY_OFFSET)
    offset = json.loads(quoted(bytes(answer.body)))["offsetTable"].get(str(level))
    return None if offset is None else int(offset)


def quoted(body: bytes) -> str:
    return re.sub(r"([{,\t\n ])(\d+):", r'\1"\2":', body.decode())


def test_the_master_delivers_only_what_the_slave_did_not(pair: Pair) -> None:
    first = delayed(pair.master)
    pair.lose_master()
    known = pair.slave.broker.services.delays.offsets.data_version.counter
    pair.run(6_000)
    assert bodies(pair.arrived) == sorted(first)
    master = pair.return_master()
    assert pair.slave.broker.services.delays.offsets.data_version.counter > known, (
        "a RocketMQ master compares this"
    )
    master.run_for(10_000)
    assert master.records("T") == []
    pair.run(1_000)
    assert bodies(pair.arrived) == sorted(first)


def test_timer_messages_are_delivered_by_the_slave_or_the_master_never_by_both(pair: Pair) -> None:
    soon, late = timed(pair.master, 3_000), [b"late"]
    due = {"TIMER_DELIVER_MS": str(pair.master.clock.now_ms() + 60_000)}
    assert (
        pair.master.peer().ask(SEND, send_ext(properties=encode_properties(due).decode()), b"late").code == 0
    )
    pair.lose_master()
    pair.run(1_000)
    assert pair.arrived == []
    pair.run(5_000)
    assert bodies(pair.arrived) == sorted(soon)
    master = pair.return_master()
    master.run_for(5_000)
    assert master.records("T") == []
    master.run_for(60_000, 1_000)
    assert [record.body for record in master.records("T")] == late


def test_the_master_delivers_what_its_slave_never_had(pair: Pair) -> None:
    """A timer message of an asynchronous master that is not in the slave's log, though its time is over there."""
    timed(pair.master, 3_000)
    copy_log(pair.master, pair.slave)
    one_round(pair.master, pair.slave)
    due = {"TIMER_DELIVER_MS": str(pair.master.clock.now_ms() + 3_000)}
    peer = pair.master.peer()
    assert peer.ask(SEND, send_ext(properties=encode_properties(due).decode()), b"unknown").code == 0
    pair.master.flush()
    pair.slave.clock.wall_ms, pair.slave.clock.mono_ms = pair.master.clock.wall_ms, pair.master.clock.mono_ms
    pair.master.store.abandon()
    pair.run(6_000)
    assert len(pair.arrived) == 3
    master = pair.return_master()
    master.run_for(3_000)
    assert [record.body for record in master.records("T")] == [b"unknown"]


def test_a_message_beyond_the_wheel_waits_at_another_broker(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.slave.close()
    pair.slave = make_slave(tmp_path / "s", {"timer_roll_window_slot": 4}, **ESCAPING)
    (text,) = timed(pair.master, 30_000, 1)
    due_ms = pair.master.clock.now_ms() + 30_000
    pair.lose_master()
    pair.run(5_000)
    (message,) = pair.arrived
    assert message.body == text
    assert message.topic == "T"
    properties = decode_properties(message.properties.encode())
    assert properties["TIMER_DELIVER_MS"] == str(due_ms)
    assert "TIMER_OUT_MS" not in properties


def half(master: Bench, body: bytes, unique_id: str, **more: str) -> None:
    properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": unique_id, **more}
    header = send_ext(properties=encode_properties(properties).decode(), f="4")
    assert master.peer().ask(SEND, header, body).code == 0


def trans_offset(bench: Bench) -> int:
    return bench.broker.state.offsets.query(TRANS_GROUP, TRANS_HALF_TOPIC, 0)


def test_open_transactions_go_on_at_other_brokers(pair: Pair) -> None:
    half(pair.master, b"one", "U1")
    half(pair.master, b"two", "U2", DELAY="3")
    pair.lose_master()
    pair.run(1_000)
    assert bodies(pair.arrived) == [b"one", b"two"]
    for message in pair.arrived:
        assert message.topic == "T"
        assert message.group == "PG"
        assert message.sys_flag & 0xC == 0x4
        properties = decode_properties(message.properties.encode())
        assert properties["TRAN_MSG"] == "true"
        assert "REAL_TOPIC" not in properties
        assert properties.get("DELAY") == ("3" if message.body == b"two" else None)
    assert trans_offset(pair.slave) == 2
    master = pair.return_master()
    assert trans_offset(master) == 2
    assert master.broker.transactions.open_count == 0


def test_messages_that_a_dead_master_handed_out_come_back_elsewhere(pair: Pair) -> None:
    put(pair.master, "a", "b", "c")
    popped = handed_out(pair.master.peer().ask(POP, pop_ext(pair.master, invisibleTime="5000")))
    assert len(popped) == 3
    pair.lose_master()
    pair.run(4_000)
    assert pair.arrived == []
    pair.run(10_000)
    assert bodies(pair.arrived) == [b"a", b"b", b"c"]
    assert acting_of(pair.slave).as_dict()["delivered"] == 3, "check points are not counted"
    for message in pair.arrived:
        assert message.topic.startswith("%RETRY%CG")
        assert message.like == "T"
        assert message.reconsume_times == 1
    master = pair.return_master()
    master.run_for(15_000)
    retries = [topic.name for topic in master.broker.state.topics if topic.name.startswith("%RETRY%CG_")]
    assert not any(master.records(name) for name in retries)


def ack_ext(message: Popped) -> dict[str, str]:
    receipt = message.receipt
    return {
        "consumerGroup": "CG",
        "topic": message.topic,
        "queueId": str(receipt.queue_id),
        "extraInfo": receipt.encode(),
        "offset": str(receipt.offset),
    }


@pytest.mark.parametrize("waits_ms", [1_000, 6_000])
def test_what_consumers_acknowledge_at_the_slave_does_not_come_back(pair: Pair, waits_ms: int) -> None:
    """Whether their check point is due by then or not."""
    put(pair.master, "a", "b", "c")
    popped = handed_out(pair.master.peer().ask(POP, pop_ext(pair.master, invisibleTime="7000")))
    pair.lose_master()
    peer = pair.slave.peer()
    pair.run(waits_ms - 1_000)
    assert peer.ask(ACK, ack_ext(popped[1])).code == 0
    pair.run(15_000)
    assert bodies(pair.arrived) == [b"a", b"c"]
    pair.return_master()
    assert peer.ask(ACK, ack_ext(popped[0])).code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.fixture
def few_early_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting_revival, "MAX_EARLY_ACKS", 3)


@pytest.mark.usefixtures("few_early_acks")
def test_acknowledgements_of_nothing_are_forgotten(pair: Pair) -> None:
    """A slave cannot know which check points are still to come from the log."""
    put(pair.master, "a")
    (real,) = handed_out(pair.master.peer().ask(POP, pop_ext(pair.master, invisibleTime="7000")))
    pair.lose_master()
    peer = pair.slave.peer()

    def code(number: int) -> int:
        receipt = real.receipt
        forged = real._replace(receipt=receipt._replace(pop_time_ms=receipt.pop_time_ms + number))
        return peer.ask(ACK, ack_ext(forged)).code

    assert [code(number) for number in (1, 2, 3, 4)] == [0, 0, 0, ResponseCode.SYSTEM_BUSY]
    pair.slave.clock.advance(7_000 + acting_revival.FORGOTTEN_MS + acting_revival.FORGET_INTERVAL_MS)
    assert code(80_000) == 0


def test_a_failing_disk_delays_acting_and_loses_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = timed(pair.master, 3_000)
    restart, failures = pair.slave.broker.timers.files.restart, iter([True, True])

    def fail(checkpoint: TimerCheckpoint) -> None:
        if next(failures, False):
            raise OSError(errno.ENOSPC, "no space left on device")
        restart(checkpoint)

    monkeypatch.setattr(pair.slave.broker.timers.files, "restart", fail)
    pair.lose_master()
    assert not acting_of(pair.slave).is_delivering
    pair.run(8_000)
    assert bodies(pair.arrived) == sorted(texts)
    failures = iter([True])
    master = pair.return_master()
    master.run_for(10_000)
    assert master.records("T") == []


def test_without_remote_escape_nothing_is_delivered_and_nothing_lost(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.slave.close()
    pair.slave = make_slave(tmp_path / "s", **ACTING)
    texts = delayed(pair.master)
    half(pair.master, b"half", "U1")
    pair.lose_master()
    pair.run(20_000)
    assert pair.arrived == []
    master = pair.return_master()
    master.run_for(10_000)
    assert sorted(record.body for record in master.records("T")) == sorted(texts)
    assert master.broker.transactions.open_count == 1


def test_an_acting_slave_that_is_killed_goes_on(pair: Pair) -> None:
    timed(pair.master, 3_000)
    texts = [*delayed(pair.master), b"timed 0", b"timed 1", b"timed 2"]
    pair.lose_master()
    pair.run(1_000)
    pair.slave.crash()
    pair.run(10_000)
    assert bodies(pair.arrived) == sorted(texts)


def test_progress_of_a_master_that_is_not_online_is_not_copied(pair: Pair) -> None:
    """Its slave would forget what it did before the master could ask."""
    delayed(pair.master)
    pair.lose_master()
    pair.run(7_000)
    done = delay_offset(pair.slave, 2)
    assert done == 3
    pair.master = make_master(pair.directory / "m", **ACTING)
    assert pair.slave.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, HA).code == 0
    pair.run(SETTLE_MS + 1_000)
    asked = one_round(pair.master, pair.slave)
    assert RequestCode.GET_ALL_DELAY_OFFSET not in asked
    acting_of(pair.slave).members.heard(SERVER, {MASTER_ID: "m", 1: "a"})
    asked = one_round(pair.master, pair.slave)
    assert RequestCode.GET_ALL_DELAY_OFFSET in asked


def test_a_second_slave_knows_what_the_first_did(pair: Pair) -> None:
    """The master dies, a slave acts, and dies, too: the other one goes on where that had come to."""
    soon, late = timed(pair.master, 3_000), b"late"
    due = {"TIMER_DELIVER_MS": str(pair.master.clock.now_ms() + 20_000)}
    assert pair.master.peer().ask(SEND, send_ext(properties=encode_properties(due).decode()), late).code == 0
    texts = delayed(pair.master)
    other = make_slave(pair.directory / "other", **{**ESCAPING, "broker_id": 2})
    copy_log(pair.master, other)
    one_round(pair.master, other)
    pair.lose_master()
    pair.run(7_000)
    assert bodies(pair.arrived) == sorted([*soon, *texts])
    other.clock.wall_ms, other.clock.mono_ms = pair.slave.clock.wall_ms, pair.slave.clock.mono_ms
    acting = acting_of(other)
    acting.members.heard(SERVER, {1: "first:1", 2: "other:1"})
    assert acting.stand_in == "first:1"
    assert not acting.is_acting
    metadata, peer = other.broker.role.metadata, pair.slave.peer()
    assert metadata is not None
    requests = metadata.progress()
    with contextlib.suppress(StopIteration):
        request = next_request(requests)
        while True:
            request = next_request(requests, peer.ask(request.code, request.ext))
    pair.slave.close()
    pair.slave = other
    pair.arrived.clear()
    for _ in range(300):
        acting.members.heard(SERVER, {2: "other:1"})
        other.run_for(100)
        pair.carry()
    assert bodies(pair.arrived) == [late]


def test_a_master_that_comes_back_decides_nothing_before_it_is_online(tmp_path: Path) -> None:
    master = make_master(tmp_path, **ACTING)
    put(master, "sends are taken")
    for code in (POP, RequestCode.END_TRANSACTION):
        assert master.peer().ask(code, {}).code == ResponseCode.SERVICE_NOT_AVAILABLE
    master.broker.go_online()
    assert handed_out(master.peer().ask(POP, pop_ext(master)))


@pytest.mark.parametrize(
    ("counter", "expected"),
    [(8, {0: 5, 1: 5, 2: 5}), (7, {0: 9, 1: 5, 2: 5}), (6, {0: 9, 1: 5, 2: 5})],
    ids=["newer", "the same", "older"],
)
def test_a_master_takes_over_offsets(tmp_path: Path, counter: int, expected: dict[int, int]) -> None:
    """Older ones only where they are further: what the slave has not changed is a copy from before."""
    master = make_master(tmp_path, **ACTING)
    offsets = master.broker.state.offsets
    for queue_id, offset in ((0, 9), (1, 3)):
        offsets.commit("CG", "T", queue_id, offset)
    offsets.data_version = DataVersion(state_version=0, timestamp=1, counter=7)
    found = ConsumerOffsetSerializeWrapper(
        offset_table={"T@CG": {0: 5, 1: 5, 2: 5}},
        data_version=DataVersion(state_version=0, timestamp=1, counter=counter),
    )
    assert found.data_version is not None
    finished(offsets.catch_up(deque([found.offset_table]), found.data_version))
    assert offsets.queues("CG", "T") == expected


def test_queue_locks_are_an_acting_slaves(pair: Pair) -> None:
    put(pair.master, "a")
    pair.lose_master()
    queue = {"brokerName": "b-a", "queueId": 0, "topic": "T"}

    def locked(client: str) -> int:
        body = json.dumps({"clientId": client, "consumerGroup": "CG", "mqSet": [queue]}).encode()
        answer = pair.slave.peer().ask(RequestCode.LOCK_BATCH_MQ, {}, body)
        return len(json.loads(bytes(answer.body))["lockOKMQSet"])

    assert (locked("c1"), locked("c2"), locked("c1")) == (1, 0, 1)


# --- the bridge ---------------------------------------------------------------------------------------------


def parts(body: bytes = b"x") -> Parts:
    return Parts(SCHEDULE_TOPIC, 0, 0, 0, 0, 0, 1, b"", 1, b"", 0, 0, memoryview(body), b"")


def test_a_bridge_is_durable_up_to_the_first_message_that_is_on_its_way(slave: Bench) -> None:
    bridge = EscapeBridge("test", slave.config, 1_000)
    ends = [bridge.relay(parts(), "T", 0, b"").end_offset for _ in range(5)]
    assert bridge.durable == 0
    for number in (1, 0, 3, 4):
        bridge.stored(ends[number])
    assert bridge.durable == ends[1]
    bridge.stored(ends[2])
    bridge.stored(ends[2])
    assert bridge.durable == bridge.end == ends[4]
    assert bridge.is_settled
    assert bridge.ledger.bytes == 0


def test_a_bridge_is_bounded(slave: Bench) -> None:
    bridge = EscapeBridge("test", slave.config, 1_000)
    for _ in range(MAX_ESCAPEES):
        bridge.relay(parts(), "T", 0, b"")
    with pytest.raises(NotNow):
        bridge.relay(parts(), "T", 0, b"")
    bridge.clear()
    assert bridge.ledger.bytes == 0
    bridge.relay(parts(bytes(40 << 20)), "T", 0, b"")
    with pytest.raises(NotNow):
        bridge.relay(parts(), "T", 0, b"")


def test_a_bridge_takes_masters_of_other_names_that_take_sends() -> None:
    def queue(name: str, perm: int, queues: int = 4) -> QueueData:
        return QueueData(broker_name=name, perm=perm, read_queue_nums=4, write_queue_nums=queues)

    def broker(name: str, **addresses: str) -> BrokerData:
        return BrokerData(
            cluster="C",
            broker_name=name,
            broker_addrs={int(key[1:]): value for key, value in addresses.items()},
        )

    route = TopicRouteData(
        queue_datas=[queue("own", 6), queue("a", 6), queue("b", 4), queue("c", 6), queue("d", 6, 1 << 30)],
        broker_datas=[
            broker("own", _0="own:1"),
            broker("a", _0="a:1", _1="a:2"),
            broker("b", _0="b:1"),
            broker("c", _1="c:2"),
            broker("d", _0="d:1"),
        ],
    )
    assert escape_targets(route, "own") == [OtherMaster("a", "a:1", 4)]


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ResponseCode.SUCCESS, True),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, True),
        (ResponseCode.SYSTEM_BUSY, False),
        (ResponseCode.TOPIC_NOT_EXIST, False),
        (ResponseCode.MESSAGE_ILLEGAL, None),
    ],
)
def test_what_an_answer_means(code: int, verdict: bool | None) -> None:
    assert is_stored(code) is verdict
