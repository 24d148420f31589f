"""A slave's side of replication, without sockets: bytes of a master in, reports out."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.follower import CHECK_BYTES, Follower
from mqspark.errors import InvalidMessage, MQError, NotNow, ProtocolError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.servers.haframes import DataFrames, data_head
from tests.unit.broker_kit import SEND, Bench, send_ext

SEGMENT = 1 << 16
STORE = {
    "mapped_file_size_commit_log": SEGMENT,
    "allocation_step_commit_log": 1 << 12,
    "mapped_file_size_consume_queue": 2_000,
}


def make_master(directory: Path, **settings: Any) -> Bench:
    return Bench(directory, store_settings=STORE, **settings)


def make_slave(directory: Path, store: dict[str, Any] | None = None, **settings: Any) -> Bench:
    role = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
    return Bench(directory, store_settings={**STORE, **(store or {})}, **{**role, **settings})


def follower_of(slave: Bench) -> Follower:
    assert slave.broker.role.follower is not None
    return slave.broker.role.follower


class Link:
    """A connection between the two, whose bytes arrive in pieces."""

    def __init__(self, master: Bench, slave: Bench) -> None:
        self.master, self.slave = master, slave
        self.follower = follower_of(slave)
        self.replica = master.broker.role.replicas.connect("s:1")
        store = master.store
        first = self.follower.connect("m:1", store.log.min_offset, store.log.position)
        self.replica.received(first)

    def carry(self, sizes: Iterator[int], limit: int = 1 << 40) -> int:
        """Carry up to ``limit`` bytes to the slave. Returns how many there were."""
        carried = 0
        while carried < limit and (out := self.replica.data(1 << 20)):
            data = b"".join(out)[: limit - carried]
            carried += len(data)
            while data:
                size = next(sizes)
                self.follower.received(data[:size])
                data = data[size:]
                self.slave.broker.turn()
                self.slave.housekeeping()
                if report := self.follower.report():
                    self.replica.received(report)
        return carried

    def close(self) -> None:
        self.master.broker.role.replicas.disconnect(self.replica)
        self.follower.disconnected()


@contextmanager
def connected(master: Bench, slave: Bench) -> Iterator[Link]:
    link = Link(master, slave)
    try:
        yield link
    finally:
        link.close()


def pieces(seed: int) -> Iterator[int]:
    """Sizes of reads: tiny, and larger than a frame."""
    chance = random.Random(seed)
    while True:
        yield chance.choice((1, 7, 13, 100, 5_000, 70_000))


def fill(master: Bench, count: int, seed: int = 0) -> None:
    chance = random.Random(seed)
    peer = master.peer()
    for _ in range(count):
        body = chance.randbytes(chance.choice((1, 100, 3_000)))
        header = send_ext(topic=chance.choice(("T", "U")), properties=f"TAGS\x01t{chance.randrange(3)}\x02")
        assert peer.ask(SEND, header, body).code == 0


def files(bench: Bench, folder: str) -> dict[str, bytes]:
    """The content of a directory of the store, without the zeros at the end of files."""
    root = bench.directory / folder
    return {
        str(path.relative_to(root)): path.read_bytes().rstrip(b"\0")
        for path in root.rglob("0*")
        if path.is_file()
    }


def assert_equal(master: Bench, slave: Bench) -> None:
    end = master.store.log.position
    assert slave.store.log.position == slave.store.pipeline.stored_end == end
    for folder in ("commitlog", "consumequeue"):
        assert files(slave, folder) == files(master, folder)


@given(
    parts=st.lists(st.tuples(st.integers(0, 1 << 40), st.binary(max_size=50)), max_size=8),
    cuts=st.lists(st.integers(1, 30)),
)
def test_frames_come_in_any_pieces(parts: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(data_head(position, len(part)) + part for position, part in parts)
    frames, found = DataFrames(), dict[int, bytes]()
    heads = 0
    for size in [*cuts, len(data)]:
        for position, part in frames.receive_data(data[:size]):
            heads += not part
            for index, octet in enumerate(bytes(part)):
                found[position + index] = bytes((octet,))
        data = data[size:]
    assert heads == sum(not part for _, part in parts)
    expected = dict[int, bytes]()
    for position, part in parts:
        expected |= {position + index: bytes((octet,)) for index, octet in enumerate(part)}
    assert found == expected


@pytest.mark.parametrize(("position", "count"), [(-1, 1), (0, -1), (0, (4 << 20) + 1)])
def test_a_master_cannot_claim_what_it_likes(position: int, count: int) -> None:
    with pytest.raises(ProtocolError, match=f"sent {count} bytes of the log at {position}"):
        DataFrames().receive_data(data_head(position, count))


@pytest.mark.slow(
    "dozens of lives; pieces of frames, torn records and what is stored later are the fast twins"
)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 20), sync=st.booleans(), cuts=st.lists(st.integers(1, 200_000), max_size=4))
def test_a_copy_is_the_log_whatever_is_cut_and_killed(seed: int, sync: bool, cuts: list[int]) -> None:
    """The connection breaks after each of ``cuts`` bytes; every second time the slave is killed, too."""
    with tempfile.TemporaryDirectory() as folder:
        master = make_master(Path(folder, "m"))
        slave = make_slave(Path(folder, "s"), sync=sync)
        fill(master, 100, seed)
        for number, cut in enumerate(cuts):
            with connected(master, slave) as link:
                link.carry(pieces(seed), cut)
                acked = link.replica.acked
                assert acked <= slave.store.pipeline.stored_end or acked == 1
            if number % 2:
                slave.store.abandon()
                slave.open()
                assert slave.store.pipeline.stored_end >= acked or acked == 1
            fill(master, 20, seed + number)
        with connected(master, slave) as link:
            link.carry(pieces(seed))
            assert link.replica.acked == master.store.pipeline.stored_end
        assert_equal(master, slave)
        assert [one.body for one in slave.records("T")] == [one.body for one in master.records("T")]
        master.close()
        slave.close()


def test_records_that_a_crash_tore_are_copied_again(master: Bench, slave: Bench) -> None:
    fill(master, 60)
    with connected(master, slave) as link:
        link.carry(pieces(1))
    slave.store.abandon()
    newest = max((slave.directory / "commitlog").iterdir())
    data = newest.read_bytes()
    end = slave.store.log.position % SEGMENT
    newest.write_bytes(data[: end - 37] + bytes(SEGMENT - end + 37))
    slave.open()
    assert slave.store.log.position < master.store.log.position
    with connected(master, slave) as link:
        link.carry(pieces(2))
    assert_equal(master, slave)


@pytest.mark.parametrize("newest_only", [False, True])
def test_an_empty_slave_asks_for_everything_or_for_the_newest_segment(
    tmp_path: Path, newest_only: bool
) -> None:
    master = make_master(tmp_path / "m")
    slave = make_slave(tmp_path / "s", sync_from_last_file=newest_only)
    fill(master, 100)
    with connected(master, slave) as link:
        assert link.follower.begin == (0 if newest_only else 1)
        link.carry(pieces(3))
    begin = master.store.log.newest_segment_start if newest_only else 0
    assert begin > 0 or not newest_only
    assert slave.store.log.min_offset == begin
    ours = files(slave, "commitlog")
    assert ours == {name: data for name, data in files(master, "commitlog").items() if int(name) >= begin}
    for topic in ("T", "U"):
        assert slave.store.offsets.max_offset(topic, 0) == master.store.offsets.max_offset(topic, 0)
        low = slave.store.offsets.min_offset(topic, 0)
        assert (low > 0) == newest_only
        there = [one.body for one in master.records(topic, offset=low)]
        assert [one.body for one in slave.records(topic, offset=low)] == there
    slave.close()
    slave.open()
    fill(master, 10, seed=5)
    with connected(master, slave) as link:
        link.carry(pieces(4))
    assert slave.store.pipeline.stored_end == master.store.pipeline.stored_end


def test_an_empty_slave_of_an_empty_master_waits_for_its_first_message(master: Bench, slave: Bench) -> None:
    with connected(master, slave) as link:
        assert link.carry(pieces(1)) == 0
        fill(master, 3)
        link.carry(pieces(1))
    assert_equal(master, slave)


def test_a_slave_whose_master_has_deleted_what_it_lacks_says_so(master: Bench, slave: Bench) -> None:
    fill(master, 5)
    with connected(master, slave) as link:
        link.carry(pieces(1))
    end = slave.store.log.position
    with pytest.raises(ProtocolError, match=f"its log begins at {SEGMENT}, but the one here ends at {end}"):
        follower_of(slave).connect("m:1", SEGMENT, 2 * SEGMENT)


def test_reports_never_exceed_what_is_synced(tmp_path: Path) -> None:
    """RocketMQ's slave acknowledges what is in its memory."""
    master, slave = make_master(tmp_path / "m"), make_slave(tmp_path / "s", sync=True)
    fill(master, 3)
    link = Link(master, slave)
    link.follower.received(b"".join(link.replica.data(1 << 20)))
    slave.broker.turn()
    assert slave.store.log.position == master.store.log.position
    assert link.follower.report() == b""
    slave.flush()
    assert link.follower.report() == struct.pack(">q", master.store.log.position)
    assert link.follower.report() == b""
    slave.clock.advance(5_000)
    assert link.follower.report() == struct.pack(">q", master.store.log.position)
    link.close()


def test_only_the_tail_is_compared(tmp_path: Path) -> None:
    big = {"mapped_file_size_commit_log": 1 << 22}
    master = Bench(tmp_path / "m", store_settings=big)
    slave = make_slave(tmp_path / "s", big)
    for _ in range(30):
        assert master.peer().ask(SEND, send_ext(), random.Random(1).randbytes(50_000)).code == 0
    with connected(master, slave) as link:
        link.carry(pieces(1))
    end = master.store.log.position
    with connected(master, slave) as link:
        assert link.follower.begin == end - CHECK_BYTES
        assert link.carry(pieces(1)) > CHECK_BYTES
        assert link.replica.acked == end


@pytest.mark.parametrize("damage", ["magic", "size", "crc", "position", "topic"])
def test_bytes_that_are_no_record_are_not_appended(master: Bench, slave: Bench, damage: str) -> None:
    fill(master, 40)
    (record,) = master.store.reads.get("T", 0, 3, 1, 1 << 20).buffers
    data = bytearray(master.store.copy.log_bytes(0, SEGMENT))
    at = data.index(bytes(record))
    offset = {"magic": 4, "size": 0, "crc": 8, "position": 28, "topic": 88}[damage]
    data[at + offset] ^= 0x11
    follower = follower_of(slave)
    follower.connect("m:1", 0, len(data))
    with pytest.raises(
        (InvalidMessage, ProtocolError), match=f"the bytes at {at} of the log to copy are no valid record"
    ):
        follower.received(data_head(1, len(data) - 1) + data[1:])
    assert slave.store.log.position == at
    slave.broker.turn()
    assert all(one.queue_offset < 3 for one in slave.records("T"))


def test_segments_of_another_size_are_refused(tmp_path: Path) -> None:
    master = make_master(tmp_path / "m")
    slave = make_slave(tmp_path / "s", {"mapped_file_size_commit_log": SEGMENT * 2})
    fill(master, 60)
    with (
        connected(master, slave) as link,
        pytest.raises(
            MQError, match=f"ends at {SEGMENT}, one here at {SEGMENT * 2}: mappedFileSizeCommitLog"
        ),
    ):
        link.carry(pieces(1))


def test_a_gap_in_the_stream_is_refused(tmp_path: Path) -> None:
    slave = make_slave(tmp_path / "s")
    follower = follower_of(slave)
    follower.connect("m:1", 0, 1000)
    with pytest.raises(ProtocolError, match="it sends its log from 77 on, but 1 was next"):
        follower.received(data_head(77, 1) + b"x")


def test_what_cannot_be_stored_now_is_stored_later(
    master: Bench, slave: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(master, 40)
    link = Link(master, slave)
    data = b"".join(link.replica.data(1 << 20))
    monkeypatch.setattr(slave.store.table.ledger, "_bound", lambda: 1)
    with pytest.raises(NotNow, match="the table queues is full"):
        link.follower.received(data)
    monkeypatch.undo()
    link.follower.take_rest()
    slave.broker.turn()
    assert_equal(master, slave)
    link.close()


def test_a_topic_that_was_made_again_begins_again(master: Bench, slave: Bench) -> None:
    fill(master, 30)
    with connected(master, slave) as link:
        link.carry(pieces(1))
        peer = master.peer()
        assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        for number in range(3):
            assert peer.ask(SEND, send_ext(topic="T"), b"again %d" % number).code == 0
        link.carry(pieces(2))
    assert [one.body for one in slave.records("T")] == [b"again 0", b"again 1", b"again 2"]
    slave.close()
    slave.open()
    assert [one.body for one in slave.records("T")] == [b"again 0", b"again 1", b"again 2"]
    assert slave.store.offsets.max_offset("U", 0) == master.store.offsets.max_offset("U", 0)


def test_a_slave_refuses_what_only_its_master_does(tmp_path: Path) -> None:
    slave = make_slave(tmp_path / "s")
    peer = slave.peer()
    answer = peer.ask(SEND, send_ext(), b"x")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]system busy, this broker is a slave: its master stores messages",
    )
    for code, expected in (
        (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.SYSTEM_ERROR),
        (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_BUSY),
        (RequestCode.POP_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE),
    ):
        assert peer.ask(code).code == expected
    assert slave.store.log.position == 0


def test_tools_see_whom_a_slave_follows(master: Bench, slave: Bench) -> None:
    fill(master, 3)
    with connected(master, slave) as link:
        link.carry(pieces(1))
        info = json.loads(bytes(slave.peer().ask(RequestCode.GET_BROKER_HA_STATUS).body))
        assert info["master"] is False
        assert info["haClientRuntimeInfo"]["masterAddr"] == "m:1"
        assert info["haClientRuntimeInfo"]["maxOffset"] == master.store.log.position
