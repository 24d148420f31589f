"""Replication in controller mode without sockets: the bytes, and how a slave joins a master."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.epochreplicas import EpochFollower, EpochReplicas
from mqspark.broker.replication.follower import FollowerDiverged
from mqspark.broker.replication.metadata import FRESH_MS
from mqspark.broker.replication.term import Term
from mqspark.errors import ProtocolError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.servers.epochframes import (
    EpochData,
    EpochFrames,
    MasterHello,
    SlaveHello,
    SlaveWords,
    encode_hello,
    encode_master_hello,
    encode_position,
    epoch_data_head,
)
from mqspark.record.record import decode_records
from tests.support.clocks import ManualClock
from tests.unit.broker.replication.test_slave_metadata import one_round
from tests.unit.broker_kit import PULL, SEND, Bench, pull_ext, send_ext

STORE = {
    "mapped_file_size_commit_log": 1 << 16,
    "allocation_step_commit_log": 1 << 12,
    "mapped_file_size_consume_queue": 2_000,
}
LEASE_MS = 10_000
SILENT_MS = 8_000
"""controllerHeartBeatTimeoutMills."""


# --- bytes ---------------------------------------------------------------------------------------------------------


def test_the_bytes_are_rocketmqs() -> None:
    assert encode_hello(SlaveHello(3, True, False)) == bytes.fromhex("00000001 0001 0000 0000000000000003")
    assert encode_hello(SlaveHello(3, False, True)) == bytes.fromhex("00000001 0000 0001 0000000000000003")
    assert encode_position(258) == bytes.fromhex("00000002 0000000000000102")
    assert encode_master_hello(512, [(1, 0), (2, 256)]) == bytes.fromhex(
        "00000001 00000018 0000000000000200 00000002  00000001 0000000000000000  00000002 0000000000000100"
    )
    assert epoch_data_head(256, 5, (2, 256), 255) == bytes.fromhex(
        "00000002 00000005 0000000000000100 00000002 0000000000000100 00000000000000ff"
    )


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        yield data[begin:end]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 200), max_size=10))
def test_they_come_in_any_pieces(cuts: list[int]) -> None:
    sent = encode_master_hello(9, [(1, 0), (2, 4)]) + epoch_data_head(4, 0, (2, 4), 3)
    sent += epoch_data_head(4, 5, (2, 4), 4) + b"abcde"
    frames, found, body = EpochFrames(), [], b""
    for piece in pieces(sent, cuts):
        for each in frames.receive_data(piece):
            if isinstance(each, EpochData) and each.part:
                assert each.position == 4 + len(body)
                body += each.part
                each = each._replace(part=memoryview(b""), position=0)
            found.append(each)
    assert body == b"abcde"
    empty = memoryview(b"")
    assert found[:2] == [MasterHello(9, ((1, 0), (2, 4))), EpochData(4, empty, 2, 4, 3)]
    assert set(found[2:]) == {EpochData(0, empty, 2, 4, 4)}
    words = SlaveWords()
    sent = encode_hello(SlaveHello(7)) + encode_position(0) + encode_position(1 << 40)
    assert [each for piece in pieces(sent, cuts) for each in words.receive_data(piece)] == [
        SlaveHello(7),
        0,
        1 << 40,
    ]


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 9),
        struct.pack(">qi", 0, 0),  # a classic master
        struct.pack(">iiqi", 1, 13, 0, 0),
        struct.pack(">iiqi", 1, 1 << 30, 0, 0),
        struct.pack(">iiqi", 1, 0, -1, 0),
        struct.pack(">iiqiqq", 2, -1, 0, 0, 0, 0),
        struct.pack(">iiqiqq", 2, 1 << 30, 0, 0, 0, 0),
        struct.pack(">iiqiqq", 2, 1, -1, 0, 0, 0),
        struct.pack(">iiqiqq", 2, 9, (1 << 63) - 2, 0, 0, 0),
        struct.pack(">iiqiqq", 2, 1, 0, 0, -5, 0),
    ],
)
def test_what_no_master_sends_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        EpochFrames().receive_data(sent)


@pytest.mark.parametrize(
    "sent", [struct.pack(">q", 5), struct.pack(">ihhq", 1, 0, 0, -1), struct.pack(">iq", 2, -1)]
)
def test_what_no_slave_sends_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        SlaveWords().receive_data(sent)


# --- brokers -------------------------------------------------------------------------------------------------------


def make(directory: Path, broker_id: int, master_id: int, epoch: int = 1, **more: Any) -> Bench:
    """A broker of a set, in a term that has just begun."""
    bench = Bench(directory, store_settings=STORE, start=False, **more)
    take_part(bench, broker_id, master_id, epoch)
    bench.open()
    return bench


def take_part(bench: Bench, broker_id: int, master_id: int, epoch: int) -> None:
    bench.term = term = Term(bench.clock, broker_id, LEASE_MS)
    term.begin(epoch, master_id, "m:1")
    term.decided({master_id}, epoch)
    term.renewed(bench.clock.monotonic_ms())
    is_master = broker_id == master_id
    bench.settings |= {
        "broker_role": BrokerRole.SYNC_MASTER if is_master else BrokerRole.SLAVE,
        "broker_id": 0 if is_master else broker_id,
    }


def change_part(bench: Bench, broker_id: int, master_id: int, epoch: int) -> None:
    """What the shell does when a controller decides."""
    bench.close()
    take_part(bench, broker_id, master_id, epoch)
    bench.open()


def replicas_of(bench: Bench) -> EpochReplicas:
    replicas = bench.broker.role.replicas
    assert isinstance(replicas, EpochReplicas)
    return replicas


class Pair:
    """A connection of a slave to a master."""

    def __init__(self, master: Bench, slave: Bench, *, has_tables: bool | None = True) -> None:
        """``has_tables``: None: what the slave has copied so far."""
        self.master, self.slave = master, slave
        assert slave.broker.role.metadata is not None
        if has_tables is not None:
            slave.broker.role.metadata.copied_ms = slave.clock.monotonic_ms() if has_tables else None
        assert isinstance(slave.broker.role.follower, EpochFollower)
        self.follower = slave.broker.role.follower
        self.replica = master.broker.role.replicas.connect("s:1")
        store = master.store
        self.replica.received(self.follower.connect("m:1", store.log.min_offset, store.log.position))

    def carry(self) -> None:
        while out := self.replica.data(1 << 20):
            self.follower.received(b"".join(out))
            self.tick()

    def tick(self) -> None:
        for _ in range(2):
            self.slave.broker.turn()
            self.slave.housekeeping()
            if report := self.follower.report():
                self.replica.received(report)
                self.master.broker.replicated()

    def close(self) -> None:
        self.master.broker.role.replicas.disconnect(self.replica)
        self.follower.disconnected()


@contextmanager
def joined(master: Bench, slave: Bench) -> Iterator[Pair]:
    """A slave that has followed until it has everything, also when its log has to be taken back first."""
    for _ in range(10):
        pair = Pair(master, slave)
        try:
            pair.carry()
        except FollowerDiverged:
            pair.close()
            slave.broker.turn()
            slave.housekeeping()
            for _ in range(3):
                slave.flush()
                slave.run_jobs()
            continue
        yield pair
        pair.close()
        return
    raise AssertionError("it does not come to an end")


def agree_on_set(master: Bench, members: set[int]) -> None:
    """What a controller answers to the set that the master wants."""
    assert master.term is not None
    assert replicas_of(master).wanted_set() == frozenset(members)
    master.term.ask(frozenset(members))
    master.term.decided(members, master.term.set_epoch + 1)
    master.broker.replicated()


def log_of(bench: Bench) -> bytes:
    store, at, out = bench.store, bench.store.log.min_offset, b""
    while part := store.copy.log_bytes(at, 1 << 20):
        out += part
        at += len(part)
    return out


def send(bench: Bench, count: int, size: int = 500) -> None:
    peer = bench.peer()
    for number in range(count):
        peer.give(SEND, send_ext("T", 0), b"%06d" % number + b"x" * size)
        bench.broker.turn()
    bench.flush()
    bench.broker.turn()


def test_a_slave_without_a_log_copies_log_and_epochs(tmp_path: Path) -> None:
    master, slave = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    send(master, 300)
    with joined(master, slave):
        assert log_of(slave) == log_of(master)
        assert slave.broker.role.epochs is not None
        assert slave.broker.role.epochs.entries == ((1, 0),)


def test_a_slave_without_its_masters_tables_is_not_counted_in(tmp_path: Path) -> None:
    master, slave = (make(tmp_path / str(number), number, 1) for number in (1, 2))
    send(master, 20)
    pair = Pair(master, slave, has_tables=False)
    pair.carry()
    assert log_of(slave) == log_of(master)
    assert replicas_of(master).wanted_set() is None
    assert slave.broker.role.metadata is not None
    slave.broker.role.metadata.copied_ms = slave.clock.monotonic_ms()
    pair.tick()
    assert replicas_of(master).wanted_set() == {1, 2}


def test_a_slave_that_was_away_is_not_counted_in_before_its_tables_are_fresh(tmp_path: Path) -> None:
    master, slave = (make(tmp_path / str(number), number, 1) for number in (1, 2))
    send(master, 20)
    pair = Pair(master, slave)
    pair.carry()
    pair.close()
    master.clock.advance(FRESH_MS + 1)
    slave.clock.advance(FRESH_MS + 1)
    assert master.term is not None
    master.term.renewed(master.clock.monotonic_ms())
    assert slave.broker.role.metadata is not None
    pair = Pair(master, slave, has_tables=None)
    pair.carry()
    assert replicas_of(master).wanted_set() is None
    one_round(master, slave)
    pair.tick()
    assert replicas_of(master).wanted_set() == {1, 2}
    slave.clock.advance(FRESH_MS + 1)
    send(master, 1)
    pair.carry()
    pair.tick()
    assert pair.replica.acked == slave.store.pipeline.stored_end == master.store.pipeline.stored_end, (
        "once it has had them, a slave that cannot copy them again goes on"
    )


def test_a_master_that_was_started_again_counts_no_slave_in_that_lacks_something(tmp_path: Path) -> None:
    """It does not know what it has acknowledged before in the same term, and the slave might be elected."""
    master, behind = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    send(master, 20)
    master.close()
    take_part(master, 1, 1, 1)
    assert master.term is not None
    master.term.decided({1, 3}, 2)  # and the third is not there yet
    master.open()
    pair = Pair(master, behind)
    pair.follower.received(b"".join(pair.replica.data(1 << 20)))  # only the handshake
    pair.tick()
    assert 0 <= pair.replica.acked < master.store.log.position
    assert replicas_of(master).wanted_set() is None
    pair.carry()
    assert replicas_of(master).wanted_set() == {1, 2, 3}


def test_a_replaced_master_gives_up_what_nobody_else_has(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    send(one, 50)
    with joined(one, two):
        agree_on_set(one, {1, 2})
    send(one, 30)  # only the first master has these
    common = two.store.log.position
    lost = log_of(one)[common:]
    change_part(two, 2, 2, 2)
    send(two, 80)  # more than what is cut
    change_part(one, 1, 2, 2)
    with joined(two, one):
        assert log_of(one) == log_of(two)
        assert one.broker.role.epochs is not None
        assert one.broker.role.epochs.entries == ((1, 0), (2, common))
    (saved,) = (tmp_path / "a" / "mqspark.diverged").iterdir()
    assert saved.read_bytes() == lost


def test_a_new_master_gives_no_offset_twice(tmp_path: Path) -> None:
    """Nor that of a message above what was confirmed when it took over (apache/rocketmq 7689)."""
    one, two = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    send(one, 30)
    with joined(one, two) as pair:
        agree_on_set(one, {1, 2})
        send(one, 20)
        while out := pair.replica.data(1 << 20):  # without what is confirmed by then
            pair.follower.received(b"".join(out))
            two.broker.turn()
            two.housekeeping()
    assert replicas_of(two).confirmed < two.store.log.position
    change_part(two, 2, 2, 2)
    send(two, 10)
    offsets = [record.queue_offset for record in decode_records(log_of(two))]
    assert offsets == list(range(60))


def test_a_start_shows_nothing_before_it_is_known_to_be_confirmed(tmp_path: Path) -> None:
    """A start shows all that is stored, and what only a replaced master has is taken back later."""
    one = make(tmp_path / "a", 1, 1, slave_read_enable=True)
    two = make(tmp_path / "b", 2, 1)
    send(one, 5)
    with joined(one, two):
        agree_on_set(one, {1, 2})
    send(one, 2)
    assert pull(one).code == 0
    one_round(one, two)
    change_part(two, 2, 2, 2)
    assert pull(two).code == 0, "nobody else can be elected"
    send(two, 1)
    change_part(one, 1, 2, 2)
    assert pull(one).code == ResponseCode.SYSTEM_BUSY
    assert pull(one, RequestCode.GET_MAX_OFFSET).code == ResponseCode.SYSTEM_BUSY
    with joined(two, one) as pair:
        pair.carry()
        one.broker.replicated()
        assert pull(one).code == 0
        assert shown_by(one) == 6


def test_a_slave_shows_nothing_while_its_log_is_taken_back(tmp_path: Path) -> None:
    master, slave = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1, slave_read_enable=True)
    send(master, 5)
    with joined(master, slave):
        confirmed = slave.store.log.position
        slave.broker.replicated()
        pull(master)
        one_round(master, slave)
        assert pull(slave).code == 0
        send(master, 2)
    with joined(master, slave):
        pass
    waiting = slave.peer()
    end = {"queueOffset": str(shown_by(slave)), "sysFlag": "6", "suspendTimeoutMillis": "15000"}
    waiting.give(PULL, pull_ext(topic="T", queueId="0") | end)
    slave.broker.turn()
    assert not waiting.heard()
    slave.store.copy.cut_back(confirmed)
    assert pull(slave).code == ResponseCode.SYSTEM_BUSY
    slave.broker.turn()
    for _ in range(3):
        slave.flush()
        slave.run_jobs()
        slave.broker.turn()
    assert [answer.code for answer in waiting.heard()] in ([], [ResponseCode.SYSTEM_BUSY])
    assert slave.store.log.position == slave.store.pipeline.visible_end == confirmed
    assert pull(slave).code == 0


def test_a_log_is_taken_back_also_when_its_end_was_not_written_yet(tmp_path: Path) -> None:
    master, slave = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    send(master, 5)
    with joined(master, slave):
        common = slave.store.log.position
    send(master, 2)
    pair = Pair(master, slave)
    while out := pair.replica.data(1 << 20):
        pair.follower.received(b"".join(out))
        if report := pair.follower.report():
            pair.replica.received(report)
    pair.close()
    assert slave.store.log.position > common
    slave.store.copy.cut_back(common)
    slave.broker.replicated()
    for _ in range(4):
        slave.broker.turn()
        slave.flush()
        slave.run_jobs()
        slave.broker.replicated()
    assert not slave.store.copy.is_cutting
    assert slave.store.log.position == common


def test_what_a_master_confirms_counts_for_what_is_known_to_be_its_log(tmp_path: Path) -> None:
    """A power cut may leave something else than the master has: that shows when the ends are compared."""
    slave = make(tmp_path / "b", 2, 2, 1)
    send(slave, 9)
    end = slave.store.log.position
    change_part(slave, 2, 1, 1)
    follower = slave.broker.role.follower
    assert isinstance(follower, EpochFollower)
    follower.connect("m:1", 0, end)
    follower.received(encode_master_hello(end, [(1, 0)]))
    first = follower.begin
    half = log_of(slave)[first : end // 2]
    follower.received(epoch_data_head(first, 0, (1, 0), end))
    assert follower.confirmed <= first
    assert not replicas_of(slave).is_sure
    follower.received(epoch_data_head(first, len(half), (1, 0), end) + half)
    assert follower.confirmed == first + len(half)
    follower.disconnected()
    assert follower.confirmed == first + len(half), "that does not change any more"
    assert not replicas_of(slave).is_sure


def pull(bench: Bench, code: int = PULL) -> Any:
    return bench.peer().ask(code, pull_ext(topic="T", queueId="0"))


def test_epochs_from_the_same_place_keep_logs_apart(tmp_path: Path) -> None:
    """Two masters after each other that begin at the same position: RocketMQ gives both the first one's epoch."""
    one, two = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    send(one, 50)
    with joined(one, two):
        agree_on_set(one, {1, 2})
    change_part(one, 1, 1, 2)
    assert one.term is not None
    one.term.decided({1, 2}, one.term.set_epoch + 1)
    send(one, 10)
    change_part(two, 2, 2, 3)
    send(two, 20)
    change_part(one, 1, 2, 3)
    with joined(two, one):
        assert log_of(one) == log_of(two)


def test_logs_without_a_common_epoch_are_left_alone(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a", 1, 1, 4), make(tmp_path / "b", 2, 2, 5)
    send(one, 5)
    send(two, 9)
    before = log_of(one)
    change_part(one, 1, 2, 6)
    change_part(two, 2, 2, 6)
    pair = Pair(two, one)
    with pytest.raises(ProtocolError, match="no epoch in common"):
        pair.carry()
    pair.close()
    assert log_of(one) == before


def test_the_end_of_an_epoch_inside_a_record_is_refused(tmp_path: Path) -> None:
    slave = make(tmp_path / "b", 2, 2, 1)
    send(slave, 9)
    end = slave.store.log.position
    change_part(slave, 2, 1, 2)
    follower = slave.broker.role.follower
    assert isinstance(follower, EpochFollower)
    follower.connect("m:1", 0, end)
    with pytest.raises(ProtocolError, match="inside a record"):
        follower.received(encode_master_hello(end, [(1, 0), (2, end - 10)]))
    assert slave.store.log.position == end


def test_a_slave_follows_no_older_master(tmp_path: Path) -> None:
    slave = make(tmp_path / "b", 2, 2, 5)
    send(slave, 9)
    change_part(slave, 2, 1, 5)
    follower = slave.broker.role.follower
    assert isinstance(follower, EpochFollower)
    for epochs, problem in (([(4, 0)], "end before 5"), ([(6, 0)], "in epoch 6, the controller in 5")):
        follower.connect("m:1", 0, 1 << 40)
        with pytest.raises(ProtocolError, match=problem):
            follower.received(encode_master_hello(1 << 20, epochs))
        follower.disconnected()


# --- acknowledgements ----------------------------------------------------------------------------------------------


def ack_of(bench: Bench, peer: Any) -> list[int]:
    bench.flush()
    bench.broker.turn()
    return [answer.code for answer in peer.heard() if answer.is_response]


def shown_by(bench: Bench) -> int:
    return bench.store.offsets.max_offset("T", 0)


def give(peer: Any) -> None:
    peer.give(SEND, send_ext("T", 0), b"hello")
    peer.core.turn()


def test_everybody_who_may_become_the_master_must_have_a_message(tmp_path: Path) -> None:
    master, slave = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    peer = master.peer()
    give(peer)
    assert ack_of(master, peer) == [ResponseCode.SUCCESS]  # alone in the set
    with joined(master, slave) as pair:
        agree_on_set(master, {1, 2})
        give(peer)
        assert ack_of(master, peer) == []
        pair.carry()
        assert ack_of(master, peer) == [ResponseCode.SUCCESS]


def test_a_set_counts_from_when_it_is_asked_for(tmp_path: Path) -> None:
    """The answer of a controller that has grown it may be lost with the master (apache/rocketmq 5663)."""
    """The controller may have put the new set in force before its answer arrives, or never answers."""
    master, slave = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    peer = master.peer()
    with joined(master, slave) as pair:
        assert master.term is not None
        master.term.ask(frozenset({1, 2}))
        give(peer)
        assert ack_of(master, peer) == []
        pair.carry()
        assert ack_of(master, peer) == [ResponseCode.SUCCESS]
        master.term.decided({1, 2}, 9)
        master.term.ask(frozenset({1}))  # to remove a slave takes an answer, too
        give(peer)
        assert ack_of(master, peer) == []
        master.term.decided({1}, 10)
        master.broker.replicated()
        assert ack_of(master, peer) == [ResponseCode.SUCCESS]


def test_a_wanted_member_does_not_count_for_min_in_sync_replicas(tmp_path: Path) -> None:
    master = make(tmp_path / "a", 1, 1, min_in_sync_replicas=2)
    slave = make(tmp_path / "b", 2, 1)
    peer = master.peer()
    with joined(master, slave) as pair:
        assert master.term is not None
        master.term.ask(frozenset({1, 2}))
        answer = peer.ask(RequestCode.SEND_MESSAGE, send_ext("T", 0), b"x")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        master.term.decided({1, 2}, 9)
        master.broker.replicated()
        give(peer)
        pair.carry()
        assert ack_of(master, peer) == [ResponseCode.SUCCESS]


@pytest.mark.parametrize("properties", ["", "WAIT\x01false\x02"])
@pytest.mark.parametrize("how", ["lease", "epoch"])
def test_a_master_that_may_be_replaced_acknowledges_and_shows_nothing(
    tmp_path: Path, how: str, properties: str
) -> None:
    master = make(tmp_path / "a", 1, 1)
    peer = master.peer()
    give(peer)
    assert ack_of(master, peer) == [ResponseCode.SUCCESS]
    shown = shown_by(master)
    peer.give(SEND, send_ext("T", 0, properties), b"late")  # stored, and not answered yet
    assert master.term is not None
    if how == "lease":
        master.clock.advance(LEASE_MS)
    else:
        master.term.is_over = True
    master.broker.turn()
    assert ResponseCode.SUCCESS not in ack_of(master, peer)
    master.term.answered(master.clock.monotonic_ms())  # of a heartbeat: it does not say who is the master
    master.broker.replicated()
    assert ResponseCode.SUCCESS not in ack_of(master, peer)
    assert shown_by(master) == shown
    if how == "lease":
        master.term.renewed(master.clock.monotonic_ms())
        master.broker.replicated()
        assert ack_of(master, peer) == [ResponseCode.SUCCESS]


def test_who_belongs_to_the_set(tmp_path: Path) -> None:
    master, slave = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    learner = make(tmp_path / "c", 3, 1, async_learner=True)
    send(master, 20)
    with joined(master, learner):
        assert replicas_of(master).wanted_set() is None
    with joined(master, slave):
        agree_on_set(master, {1, 2})
        send(master, 1)
        master.clock.advance(LEASE_MS)  # less than haMaxTimeSlaveNotCatchup
        assert replicas_of(master).wanted_set() is None
        master.clock.advance(6_000)
        assert replicas_of(master).wanted_set() == frozenset({1})  # it lacks the last message
    assert replicas_of(master).wanted_set() == frozenset({1})  # it has left


@pytest.mark.parametrize("settings", [{}, {"min_in_sync_replicas": 3}], ids=["two do", "all are needed"])
def test_a_silent_slave_leaves_sooner_if_enough_are_left(tmp_path: Path, settings: dict[str, Any]) -> None:
    master = make(tmp_path / "a", 1, 1)
    slaves = [make(tmp_path / name, number, 1) for name, number in (("b", 2), ("c", 3))]
    send(master, 5)
    with joined(master, slaves[0]) as heard, joined(master, slaves[1]) as silent:
        agree_on_set(master, {1, 2, 3})
        for name, value in settings.items():
            setattr(master.config, name, value)
        master.clock.advance(20_000)
        assert replicas_of(master).wanted_set() is None, "it lacks nothing, so nobody waits for it"
        assert master.term is not None
        master.term.renewed(master.clock.monotonic_ms())
        send(master, 1)
        master.clock.advance(SILENT_MS - 1)
        heard.carry()
        assert replicas_of(master).wanted_set() is None
        master.clock.advance(1)
        assert replicas_of(master).wanted_set() == (None if settings else {1, 2})
        silent.carry()
        assert replicas_of(master).wanted_set() is None


def test_a_slow_slave_is_waited_for(tmp_path: Path) -> None:
    """Its disk stands still, but it says where it is: another message is as safe as before."""
    master = make(tmp_path / "a", 1, 1)
    slaves = [make(tmp_path / name, number, 1) for name, number in (("b", 2), ("c", 3))]
    send(master, 5)
    with joined(master, slaves[0]) as heard, joined(master, slaves[1]) as slow:
        agree_on_set(master, {1, 2, 3})
        assert replicas_of(master).wanted_set() is None
        send(master, 1)
        heard.carry()
        for _ in range(2):
            master.clock.advance(SILENT_MS - 1_000)
            slow.replica.received(encode_position(slow.replica.acked))
            assert replicas_of(master).wanted_set() is None
        master.clock.advance(2_000)
        assert replicas_of(master).wanted_set() == {1, 2}, "haMaxTimeSlaveNotCatchup"


def test_a_slave_is_told_what_is_confirmed(tmp_path: Path) -> None:
    master, slave = make(tmp_path / "a", 1, 1), make(tmp_path / "b", 2, 1)
    send(master, 5)
    with joined(master, slave) as pair:
        agree_on_set(master, {1, 2})
        send(master, 1)
        pair.carry()
        assert shown_by(slave) == 5
        send(master, 1)
        pair.carry()
        pair.tick()
        assert shown_by(slave) == 6


def test_the_monotonic_clock_decides(clock: ManualClock) -> None:
    term = Term(clock, 1, LEASE_MS)
    term.begin(1, 1, "m:1")
    found = [term.holds]  # no controller has answered yet
    term.renewed(clock.monotonic_ms())
    for wall_ms, mono_ms in ((10 * LEASE_MS, 0), (0, LEASE_MS)):
        clock.wall_ms += wall_ms
        clock.mono_ms += mono_ms
        found.append(term.holds)
    assert found == [False, True, False]


def test_a_lease_ends_before_the_time_of_a_controller_whose_clock_is_fast() -> None:
    clock, drift = ManualClock(), 0.01
    term = Term(clock, 1, LEASE_MS)
    term.begin(1, 1, "m:1")
    term.renewed(clock.monotonic_ms())
    clock.mono_ms += int(LEASE_MS * (1 - 3 * drift))
    assert term.holds
    clock.mono_ms += int(LEASE_MS * 2 * drift)
    assert not term.holds


def test_epochs_that_cannot_be_saved_hold_up_no_housekeeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(tmp_path, 1, 1)
    epochs = bench.broker.role.epochs
    assert epochs is not None
    epochs.append(2, 10)
    forget_before = epochs.forget_before
    monkeypatch.setattr(epochs, "forget_before", lambda position: forget_before(10))
    for number, read_only in ((errno.ENOSPC, None), (errno.EIO, "saving mqspark.member failed")):
        with monkeypatch.context() as patch:
            patch.setattr(bench.store.files, "sync", partial(_fail, number))
            bench.broker.jobs()
        assert (bench.store.condition.read_only or "").startswith(read_only or "")
        assert (bench.store.condition.read_only is None) == (read_only is None)
    bench.store.abandon()


def _fail(number: int, fd: int) -> None:
    raise OSError(number, os.strerror(number))
