"""A master's side of replication, without sockets."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.replicas import Replica
from mqspark.errors import ProtocolError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.servers.haframes import Reports, data_head
from mqspark.store.timer.timerfiles import TimerCheckpoint
from tests.support.storefiles import log_bytes
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

SEGMENT = 1 << 16


def report(position: int) -> bytes:
    return struct.pack(">q", position)


def frames(out: list[bytes | memoryview]) -> list[tuple[int, bytes]]:
    """(position, bytes of the log) of what goes to a slave."""
    data = b"".join(out)
    found, at = [], 0
    while at < len(data):
        position, count = struct.unpack_from(">qi", data, at)
        found.append((position, data[at + 12 : at + 12 + count]))
        at += 12 + count
    assert at == len(data)
    return found


def make(tmp_path: Path, **settings: Any) -> Bench:
    store_settings = {"mapped_file_size_commit_log": SEGMENT, "allocation_step_commit_log": 1 << 12}
    return Bench(tmp_path, store_settings=store_settings, **settings)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make(tmp_path)


def fill(peer: Peer, count: int, size: int = 1000) -> None:
    for number in range(count):
        assert peer.ask(SEND, send_ext(), b"%d" % number * size).code == 0


def log_of(bench: Bench) -> bytes:
    return log_bytes(bench.directory, bench.store.log.position)


@given(positions=st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), cuts=st.lists(st.integers(1, 20)))
def test_reports_come_in_any_pieces(positions: list[int], cuts: list[int]) -> None:
    data, reports, found = b"".join(map(report, positions)), Reports(), []
    for size in cuts:
        found += reports.receive_data(data[:size])
        data = data[size:]
    assert found + reports.receive_data(data) == positions


def test_the_head_of_data() -> None:
    assert data_head(1 << 40, 32) == bytes.fromhex("0000010000000000 00000020")


def test_a_slave_gets_the_log_as_it_is(bench: Bench, peer: Peer) -> None:
    fill(peer, 10)
    slave = bench.broker.role.replicas.connect("s:1")
    assert slave.data(1 << 20) == [], "it has not said where to begin"
    slave.received(report(0))
    copy = b""
    for _ in range(200):
        for position, part in frames(slave.data(20_000)):
            assert position == len(copy)
            assert 0 < len(part) <= 32 * 1024
            assert position // SEGMENT == (position + len(part) - 1) // SEGMENT, "a frame is of one segment"
            copy += part
        slave.received(report(len(copy)))
        if len(copy) > 3 * SEGMENT and len(copy) == bench.store.log.position:
            break
        fill(peer, 1)
    assert copy == log_of(bench)
    assert len(copy) > 3 * SEGMENT


def test_a_slave_without_anything_gets_the_newest_segment(bench: Bench) -> None:
    fill(bench.peer(), 200)
    slave = bench.broker.role.replicas.connect("s:1")
    slave.received(report(0))
    ((position, _), *_) = frames(slave.data(1 << 20))
    assert position == bench.store.log.position // SEGMENT * SEGMENT > 0


def test_a_slave_goes_on_where_it_was(bench: Bench) -> None:
    fill(bench.peer(), 200)
    end = bench.store.log.position
    for begin in (0x1000, SEGMENT, end - 100, end):
        slave = bench.broker.role.replicas.connect("s:1")
        slave.received(report(begin))
        found = frames(slave.data(1 << 24))
        assert b"".join(part for _, part in found) == log_of(bench)[begin:]
        bench.broker.role.replicas.disconnect(slave)


@pytest.mark.parametrize("beyond", [1, 1 << 40])
def test_a_slave_with_another_log_is_let_go(bench: Bench, beyond: int) -> None:
    fill(bench.peer(), 3)
    slave = bench.broker.role.replicas.connect("s:1")
    with pytest.raises(
        ProtocolError, match=r"it asks for the log from \d+ on, but the log here spans 0 to \d+"
    ):
        slave.received(report(bench.store.pipeline.stored_end + beyond))
    with pytest.raises(ProtocolError, match="it asks for the log from -5 on"):
        bench.broker.role.replicas.connect("s:1").received(report(-5))


def test_a_slave_cannot_have_more_than_it_was_sent(bench: Bench) -> None:
    fill(bench.peer(), 3)
    slave = bench.broker.role.replicas.connect("s:1")
    slave.received(report(0))
    (position, part) = frames(slave.data(100))[0]
    assert position == 0
    with pytest.raises(
        ProtocolError, match=f"it reports {len(part) + 1} bytes of the log but was sent {len(part)}"
    ):
        slave.received(report(len(part) + 1))


def test_a_slave_that_stays_behind_what_is_kept_is_let_go(bench: Bench) -> None:
    fill(bench.peer(), 200)
    slave = bench.broker.role.replicas.connect("s:1")
    slave.received(report(100))
    bench.store.log.forget_oldest(1)
    with pytest.raises(ProtocolError, match=f"it is at 100 of the log, which now starts at {SEGMENT}"):
        slave.data(1 << 20)


def test_nothing_that_a_power_cut_takes_back_goes_out(tmp_path: Path) -> None:
    bench = make(tmp_path, sync=True)
    peer = bench.peer()
    fill(peer, 1)
    slave = bench.broker.role.replicas.connect("s:1")
    slave.received(report(0))
    sent = sum(len(part) for _, part in frames(slave.data(1 << 20)))
    assert sent == bench.store.log.durable
    peer.give(SEND, send_ext(), b"x")
    bench.broker.turn()
    assert bench.store.log.position > sent
    assert slave.data(1 << 20) == []
    bench.flush()
    assert slave.data(1 << 20) != []


def test_heartbeats_say_where_the_log_stands(bench: Bench) -> None:
    fill(bench.peer(), 1)
    slave = bench.broker.role.replicas.connect("s:1")
    slave.received(report(0))
    slave.data(1 << 20)
    end = bench.store.log.position
    bench.clock.advance(4_999)
    assert slave.data(1 << 20) == []
    bench.clock.advance(1)
    assert frames(slave.data(1 << 20)) == [(end, b"")]
    assert slave.data(1 << 20) == []
    assert not slave.is_silent
    bench.clock.advance(15_001)
    assert slave.is_silent
    slave.received(report(end))
    assert not slave.is_silent


def connected(bench: Bench, *acked: int) -> list[Replica]:
    slaves = []
    for position in acked:
        slaves.append(bench.broker.role.replicas.connect("s:1"))
        slaves[-1].received(report(position))
        slaves[-1].data(1 << 24)
    return slaves


def test_a_sync_master_answers_when_enough_have_the_message(tmp_path: Path) -> None:
    bench = make(tmp_path, broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=3)
    peer = bench.peer()
    peer.give(SEND, send_ext(), b"a")
    bench.broker.turn()
    assert peer.heard() == [], "nobody follows"
    first, second = connected(bench, 0, 0)
    end = bench.store.log.position
    first.received(report(end))
    bench.broker.replicated()
    assert peer.heard() == [], "one of two"
    second.received(report(end - 1))
    bench.broker.replicated()
    assert peer.heard() == [], "not all of it"
    second.received(report(end))
    bench.broker.replicated()
    assert [answer.code for answer in peer.heard()] == [0]
    bench.broker.role.replicas.disconnect(first)
    peer.give(SEND, send_ext(), b"b")
    bench.broker.turn()
    second.data(1 << 20)
    second.received(report(bench.store.log.position))
    bench.broker.replicated()
    assert peer.heard() == []
    bench.later(2_999)
    assert peer.heard() == []
    bench.later(1)
    (answer,) = peer.heard()
    assert (answer.code, answer.remark) == (
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        "the replication did not finish in time",
    )
    assert {"msgId", "queueId", "queueOffset"} <= answer.ext.keys()


def test_how_many_must_have_a_message_can_be_changed_at_any_time(tmp_path: Path) -> None:
    bench = make(tmp_path, broker_role=BrokerRole.SYNC_MASTER)
    slave = connected(bench, 0)[0]
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(), b"alone").code == 0
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"inSyncReplicas=2\n").code == 0
    peer.give(SEND, send_ext(), b"both")
    bench.broker.turn()
    assert peer.heard() == []
    slave.data(1 << 20)
    has_all(slave, bench)
    bench.broker.replicated()
    (answer,) = peer.heard()
    assert answer.code == 0


def test_neither_flush_nor_replication_alone_is_enough(tmp_path: Path) -> None:
    bench = make(tmp_path, sync=True, broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    peer = bench.peer()
    (slave,) = connected(bench, 0)
    peer.give(SEND, send_ext(), b"a")
    bench.broker.turn()
    bench.flush()
    assert peer.heard() == []
    slave.data(1 << 20)
    slave.received(report(bench.store.log.position))
    bench.broker.replicated()
    assert [answer.code for answer in peer.heard()] == [0]
    peer.give(SEND, send_ext(), b"b")
    bench.broker.turn()
    bench.later(3_000)
    assert peer.heard() == [], "the disk has longer"
    bench.later(2_000)
    assert [answer.code for answer in peer.heard()] == [ResponseCode.FLUSH_DISK_TIMEOUT]


@pytest.mark.parametrize("settings", [{"broker_role": BrokerRole.SYNC_MASTER}, {"in_sync_replicas": 2}])
def test_others_do_not_wait(tmp_path: Path, settings: dict[str, Any]) -> None:
    """inSyncReplicas counts the master, and is of a SYNC_MASTER."""
    bench = make(tmp_path, **settings)
    assert bench.peer().ask(SEND, send_ext(), b"a").code == 0


def test_tools_see_who_follows(tmp_path: Path) -> None:
    bench = make(tmp_path, ha_max_gap_not_in_sync=5_000)
    peer = bench.peer()
    fill(peer, 10)
    end = bench.store.log.position
    near, far = connected(bench, end - 4_999, end - 5_000)
    bench.broker.role.replicas.connect("silent:1")
    bench.clock.advance(1_000)
    near.measure()
    answer = peer.ask(RequestCode.GET_BROKER_HA_STATUS)
    info = json.loads(bytes(answer.body))
    assert (info["master"], info["masterCommitLogMaxOffset"], info["inSyncSlaveNums"]) == (True, end, 1)
    row = {"addr": "s:1", "transferFromWhere": end}
    assert info["haConnectionInfo"] == [
        {
            **row,
            "slaveAckOffset": end - 4_999,
            "diff": 4_999,
            "inSync": True,
            "transferredByteInSecond": 4_999,
        },
        {**row, "slaveAckOffset": end - 5_000, "diff": 5_000, "inSync": False, "transferredByteInSecond": 0},
        {
            "addr": "silent:1",
            "transferFromWhere": 0,
            "slaveAckOffset": 0,
            "diff": end,
            "inSync": False,
            "transferredByteInSecond": 0,
        },
    ]
    assert far.acked == end - 5_000


def test_slaves_copy_what_delayed_and_timer_messages_need(bench: Bench, peer: Peer) -> None:
    delays = json.loads(bytes(peer.ask(RequestCode.GET_ALL_DELAY_OFFSET).body))
    assert delays["offsetTable"] == {}
    timers = bytes(peer.ask(RequestCode.GET_TIMER_CHECK_POINT).body)
    begun = TimerCheckpoint.decode(timers)
    assert begun == TimerCheckpoint(read_time_ms=begun.read_time_ms)
    age_s = (bench.clock.now_ms() - begun.read_time_ms) // 1000
    assert 0 <= age_s < 7 * 24 * 3600, "an acting slave walks through these seconds"
    assert len(timers) == 56
    soon = str(bench.clock.now_ms() + 100_000)
    assert peer.ask(SEND, send_ext(properties=f"TIMER_DELIVER_MS\x01{soon}\x02"), b"t").code == 0
    bench.broker.tick()
    metrics = json.loads(bytes(peer.ask(RequestCode.GET_TIMER_METRICS).body))
    assert {topic: entry["count"] for topic, entry in metrics["timingCount"].items()} == {"T": 1}
    again = json.loads(bytes(peer.ask(RequestCode.GET_TIMER_METRICS).body))
    assert again["dataVersion"] == metrics["dataVersion"], "asking changes nothing"


def test_without_a_wheel_there_is_nothing_to_copy(tmp_path: Path) -> None:
    bench = make(tmp_path)
    bench.close()
    bench.store_settings["timer_wheel_enable"] = False
    bench.open()
    for code, remark in (
        (RequestCode.GET_TIMER_CHECK_POINT, "The checkpoint is null"),
        (RequestCode.GET_TIMER_METRICS, "The timer message store is null"),
    ):
        answer = bench.peer().ask(code)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)


def has_all(slave: Replica, bench: Bench) -> None:
    slave.data(1 << 24)
    slave.received(report(bench.store.log.position))
    bench.broker.replicated()


def test_with_too_few_in_sync_nothing_is_stored(tmp_path: Path) -> None:
    bench = make(tmp_path, broker_role=BrokerRole.SYNC_MASTER, min_in_sync_replicas=2)
    peer = bench.peer()
    answer = peer.ask(SEND, send_ext(), b"alone")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "in-sync replicas not enough: 1 of minInSyncReplicas=2",
    )
    assert bench.store.log.position == 0
    (slave,) = connected(bench, 0)
    bench.broker.replicated()
    peer.give(SEND, send_ext(), b"two")
    bench.broker.turn()
    assert peer.heard() == [], "never acknowledged with fewer than minInSyncReplicas"
    has_all(slave, bench)
    assert [answer.code for answer in peer.heard()] == [0]
    bench.broker.role.replicas.disconnect(slave)
    bench.broker.replicated()
    assert peer.ask(SEND, send_ext(), b"alone again").code == ResponseCode.SYSTEM_ERROR


def test_a_sync_master_may_wait_for_everybody_who_is_in_sync(tmp_path: Path) -> None:
    bench = make(tmp_path, broker_role=BrokerRole.SYNC_MASTER, all_ack_in_sync_state_set=True)
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(), b"a").code == 0, "it is the only one"
    first, second = connected(bench, bench.store.log.position, bench.store.log.position)
    peer.give(SEND, send_ext(), b"b")
    bench.broker.turn()
    has_all(first, bench)
    assert peer.heard() == []
    has_all(second, bench)
    assert [answer.code for answer in peer.heard()] == [0]
    peer.give(SEND, send_ext(), b"c")
    bench.broker.turn()
    has_all(first, bench)
    bench.broker.role.replicas.disconnect(second)
    bench.broker.replicated()
    assert [answer.code for answer in peer.heard()] == [0]


def test_a_sync_master_may_do_with_fewer_while_slaves_are_away(tmp_path: Path) -> None:
    bench = make(
        tmp_path, broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=3, enable_auto_in_sync_replicas=True
    )
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(), b"alone").code == 0
    (slave,) = connected(bench, bench.store.log.position)
    peer.give(SEND, send_ext(), b"two")
    bench.broker.turn()
    assert peer.heard() == []
    has_all(slave, bench)
    assert [answer.code for answer in peer.heard()] == [0]


@pytest.mark.parametrize("sync", [False, True])
def test_consumers_see_only_what_all_slaves_in_sync_have(tmp_path: Path, sync: bool) -> None:
    bench = make(
        tmp_path,
        sync=sync,
        broker_role=BrokerRole.SYNC_MASTER,
        in_sync_replicas=2,
        all_ack_in_sync_state_set=True,
    )
    (slave,) = connected(bench, 0)
    sender, reader = bench.peer(), bench.peer()
    suspended = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}
    bench.broker.state.topics.ensure("T", 4)
    reader.give_pull(**suspended)
    sender.give(SEND, send_ext(queue_id=0), b"a")
    bench.broker.turn()
    bench.flush()
    end = bench.store.log.position
    assert bench.store.pipeline.stored_end == end == bench.store.pipeline.unconfirmed_bytes
    assert reader.heard() == [], "a new master might not have it"
    assert bench.store.offsets.max_offset("T", 0) == 0
    assert bench.store.reads.record_at(0) is None
    bench.run_jobs()
    slave.data(1 << 24)
    slave.received(report(end))
    bench.broker.replicated()
    assert [answer.code for answer in reader.heard()] == [0]
    assert [answer.code for answer in sender.heard()] == [0]
    assert bench.store.offsets.max_offset("T", 0) == 1
    bench.broker.role.replicas.disconnect(slave)
    bench.broker.replicated()
    assert bench.store.reads.record_at(0) is not None, "what was visible stays so"
    sender.give(SEND, send_ext(queue_id=0), b"b")
    bench.broker.turn()
    bench.flush()
    assert bench.store.offsets.max_offset("T", 0) == 1
    bench.close()
    bench.open()
    assert [one.body for one in bench.records("T")] == [b"a", b"b"]


def test_what_waits_for_slaves_is_bounded(tmp_path: Path) -> None:
    bench = make(
        tmp_path,
        broker_role=BrokerRole.SYNC_MASTER,
        in_sync_replicas=2,
        all_ack_in_sync_state_set=True,
        ha_max_gap_not_in_sync=5_000,
    )
    peer = bench.peer()
    codes = []
    for _ in range(10):
        peer.give(SEND, send_ext(), bytes(1_000))
        bench.broker.turn()
        codes += [answer.code for answer in peer.heard()]
    assert codes
    assert set(codes) == {ResponseCode.SYSTEM_ERROR}
    assert bench.store.pipeline.unconfirmed_bytes < 7_000


def test_a_kill_leaves_nothing_out_that_was_not_confirmed(tmp_path: Path) -> None:
    bench = make(
        tmp_path, broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=2, all_ack_in_sync_state_set=True
    )
    peer = bench.peer()
    for number in range(5):
        peer.give(SEND, send_ext(), b"%d" % number)
        bench.broker.turn()
        bench.flush()
        bench.run_jobs()
    assert bench.records("T") == []
    bench.store.abandon()
    bench.open()
    assert [one.body for one in bench.records("T")] == [b"%d" % number for number in range(5)]
