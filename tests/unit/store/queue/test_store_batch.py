"""BatchConsumeQueues: offsets, times, limits, recovery and retention over records that hold several messages."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from mqspark.errors import InvalidMessage, MessageTooLarge
from mqspark.message import INNER_BATCH, NEED_UNWRAP, Message
from mqspark.record.batchitems import encode_batch
from mqspark.record.record import decode_records
from mqspark.store import GetStatus, MessageStore
from mqspark.store.config import FlushDiskType
from mqspark.store.queue.batchqueue import BATCH_DTYPE, BatchEntry, BatchQueue
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.remake import remake
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.store_tools import (
    RoomyFiles,
    checkpoint,
    clean,
    crash,
    drain,
    flush,
    leave,
    make_store,
    opened,
    pending,
    put,
    put_synced,
)

FILE_BYTES = 4 * BATCH_DTYPE.itemsize
SYS_FLAG_END = 40
"""Where the system flag of the log's first record ends."""
SMALL = {"mapper_file_size_batch_consume_queue": FILE_BYTES}


def put_many(store: MessageStore, bodies: list[bytes], queue_id: int = 0, topic: str = "B") -> int:
    """One inner batch; gives back its first queue offset."""
    body = encode_batch([Message(topic=topic, body=body) for body in bodies])
    return store.appender.put_inner_batch(pending(topic, queue_id, body, b"UNIQ_KEY\x01u\x02"), len(bodies))[
        0
    ]


def fill(store: MessageStore, records: int, clock: ManualClock | None = None) -> list[bytes]:
    """Batches of 1 to 5 messages and single ones; gives back the bodies in order."""
    bodies: list[bytes] = []
    store.appender.use_batch_queues("B")
    for number in range(records):
        if clock is not None:
            clock.advance(1000)
        count = number % 5 + 1
        new = [b"%d" % (len(bodies) + index) for index in range(count)]
        if count == 1:
            assert put(store, "B", 0, new[0], b"TAGS\x01one\x02")[0] == len(bodies)
        else:
            assert put_many(store, new) == len(bodies)
        bodies += new
        flush(store)
    return bodies


def served(store: MessageStore) -> list[bytes]:
    messages = drain(store, "B", 0)
    assert [message.queue_offset for message in messages] == list(
        range(store.offsets.min_offset("B", 0), store.offsets.max_offset("B", 0))
    )
    return [message.body for message in messages]


def test_a_batch_is_one_record_with_many_offsets(tmp_path: Path) -> None:
    store = opened(tmp_path, **SMALL)
    bodies = fill(store, 20)
    assert served(store) == bodies
    assert store.offsets.queues() == {"B": [0]}
    assert (store.offsets.min_offset("B", 0), store.offsets.max_offset("B", 0)) == (0, len(bodies))
    assert store.appender.put_count == len(bodies)
    for offset in range(len(bodies)):
        found = store.reads.get("B", 0, offset, 1, 1)
        messages = decode_records(b"".join(found.buffers))
        assert found.count == len(messages)
        assert offset in [message.queue_offset for message in messages]
        assert found.next_offset == messages[-1].queue_offset + 1
    assert store.reads.get("B", 0, len(bodies), 1, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.reads.get("B", 0, 999, 1, 1).next_offset == len(bodies)


def test_entries_are_added_once_when_their_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> BatchEntry:
        raise OSError(errno.EMFILE, "too many files")

    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    put_many(store, [b"0", b"1"])
    with monkeypatch.context() as patch:
        patch.setattr(BatchQueue, "entry", short)
        flush(store)
    put_many(store, [b"2"])
    flush(store)
    assert store.batch_table.batch_queues["B", 0].array.max_offset == 2
    assert served(store) == [b"0", b"1", b"2"]


def test_limits_count_messages_and_never_split_a_record(store: MessageStore) -> None:
    for number in range(4):
        put_many(store, [b"%d.%d" % (number, index) for index in range(10)])
    flush(store)
    assert store.reads.get("B", 0, 0, 32, 1 << 20).count == 30
    assert store.reads.get("B", 0, 5, 3, 1 << 20).count == 10
    assert store.reads.get("B", 0, 5, 32, 1).count == 10
    assert store.reads.get("B", 0, 12, 40, 1 << 20).next_offset == 40


def test_tags_are_left_to_the_reader_where_the_batch_has_none(store: MessageStore) -> None:
    store.appender.use_batch_queues("B")
    put_many(store, [b"a", b"b"])
    put(store, "B", 0, b"c", b"TAGS\x01red\x02")
    put_synced(store, "B", 0, b"d", b"TAGS\x01blue\x02")
    wanted = frozenset({put_code("blue")})
    found = store.reads.get("B", 0, 0, 32, 1 << 20, wanted)
    assert [message.body for message in decode_records(b"".join(found.buffers))] == [b"a", b"b", b"d"]
    assert found.next_offset == 4
    assert store.reads.get("B", 0, 2, 1, 1 << 20, frozenset({put_code("none")})).next_offset == 4


def put_code(tags: str) -> int:
    from mqspark.message import java_hash

    return java_hash(tags)


def test_offsets_by_time(tmp_path: Path, clock: ManualClock) -> None:
    start = clock.wall_ms
    store = opened(tmp_path, clock, **SMALL)
    fill(store, 10, clock)  # at start + 1 s, + 2 s, ...: of 1, 2, 3, 4, 5, 1, ... messages
    at = [0, 1, 3, 6, 10, 15, 16, 18, 21, 25]
    for number, offset in enumerate(at):
        time_ms = start + 1000 * (number + 1)
        assert store.offsets.offset_by_timestamp("B", 0, time_ms) == offset
        assert store.offsets.offset_by_timestamp("B", 0, time_ms - 999) == offset
        assert store.offsets.store_timestamp_at("B", 0, offset) == time_ms
    assert store.offsets.offset_by_timestamp("B", 0, start + 2500, upper=True) == 2
    assert store.offsets.offset_by_timestamp("B", 0, start + 60_000) == store.offsets.max_offset("B", 0) == 30
    assert store.offsets.offset_by_timestamp("B", 0, 0) == 0
    assert store.offsets.store_timestamp_at("B", 0, 30) == -1


@pytest.mark.parametrize("way", ["clean", "kill", "queues gone", "tail of the queue gone"])
def test_recovery(tmp_path: Path, way: str) -> None:
    store = opened(tmp_path, **SMALL)
    bodies = fill(store, 12)
    checkpoint(store)
    bodies += [body + b"!" for body in fill_more(store, len(bodies), 7)]
    leave(store, killed=way != "clean")
    queue = tmp_path / "batchconsumequeue/B/0"
    files = {path.name: path.read_bytes() for path in sorted(queue.iterdir())}
    if way == "queues gone":
        shutil.rmtree(queue)
    elif way == "tail of the queue gone":
        last = sorted(queue.iterdir())[-1]
        last.write_bytes(bytes(FILE_BYTES))
    store = opened(tmp_path, **SMALL)
    assert served(store) == bodies
    assert {path.name: path.read_bytes() for path in sorted(queue.iterdir())} == files
    fill_more(store, len(bodies), 3)
    assert store.offsets.max_offset("B", 0) == len(bodies) + 9


def fill_more(store: MessageStore, offset: int, records: int) -> list[bytes]:
    bodies: list[bytes] = []
    for _ in range(records):
        new = [b"%d" % (offset + len(bodies) + index) for index in range(3)]
        assert put_many(store, [body + b"!" for body in new]) == offset + len(bodies)
        bodies += new
    flush(store)
    return bodies


def test_damage_costs_the_messages_of_one_record(tmp_path: Path) -> None:
    store = opened(tmp_path, **SMALL)
    bodies = fill(store, 10)
    position = store.batch_table.batch_queues["B", 0].entry(4).position  # type: ignore[union-attr]
    crash(store)
    shutil.rmtree(tmp_path / "batchconsumequeue")
    with (tmp_path / "commitlog/00000000000000000000").open("r+b") as file:
        file.seek(position + 100)
        file.write(b"\xff")
    store = opened(tmp_path, **SMALL)
    messages = drain(store, "B", 0)
    assert [message.body for message in messages] == bodies[:10] + bodies[15:]
    assert store.offsets.max_offset("B", 0) == len(bodies)
    assert store.reads.get("B", 0, 12, 1, 1).count == 1


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("number", some([0, 3, -1], 1))
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "zeroed", "random"])
def test_fsck_repairs_a_damaged_file(tmp_path: Path, damage: str, number: int, stopped: bool) -> None:
    store = opened(tmp_path, **SMALL)
    bodies = fill(store, 30)
    checkpoint(store)
    config = store.config
    store.close() if stopped else crash(store)
    path = sorted((tmp_path / "batchconsumequeue/B/0").iterdir())[number]
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        changed = {"empty": b"", "cut": content[:13], "zeroed": bytes(len(content))}
        path.write_bytes(changed.get(damage, random.Random(3).randbytes(len(content))))
    report = fsck(OfflineStore(config))
    assert {"queue.behind", "queue.no-record"} & {finding.kind for finding in report.findings}
    remake(config, ManualClock())
    report = fsck(OfflineStore(config))
    assert not [finding for finding in report.findings if finding.severity != "note"]
    store = opened(tmp_path, **SMALL)
    assert served(store) == bodies
    assert put_many(store, [b"next"]) == len(bodies)


def test_retention(tmp_path: Path, clock: ManualClock) -> None:
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files, **SMALL)
    bodies = fill(store, 90)
    segments = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    assert len(segments) > 3
    files.expired = set(segments[:2])
    checkpoint(store)
    clean(store, clock)
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == segments[2:]
    low = store.offsets.min_offset("B", 0)
    assert 0 < low < len(bodies)
    assert served(store) == bodies[low:]
    assert store.reads.get("B", 0, low - 1, 1, 1).status is GetStatus.OFFSET_TOO_SMALL
    names = sorted(path.name for path in (tmp_path / "batchconsumequeue/B/0").iterdir())
    assert names[0] != "0" * 20
    store.close()
    store = opened(tmp_path, **SMALL)
    assert (store.offsets.min_offset("B", 0), served(store)) == (low, bodies[low:])


def test_offsets_go_on_when_all_records_of_full_files_are_gone(tmp_path: Path, clock: ManualClock) -> None:
    """The file behind them was made for a message that a kill took: no entry in it says where offsets go on."""
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files, **SMALL)
    array_entries = store.batch_table.file_bytes // store.batch_table.entry_bytes
    bodies = fill(store, 2 * array_entries)
    for _ in range(100):
        put(store, "Other", 0, bytes(200))
    flush(store)
    files.expired = {path.name for path in (tmp_path / "commitlog").iterdir()}
    checkpoint(store)
    assert put_many(store, [b"lost"]) == len(bodies)
    store.upkeep.checkpoints.wanted = True
    clean(store, clock)
    assert store.offsets.min_offset("B", 0) == store.offsets.max_offset("B", 0) == len(bodies)
    crash(store)
    store = opened(tmp_path, clock, files, **SMALL)
    assert put_many(store, [b"next"]) == len(bodies)


@pytest.mark.parametrize("more", [0, 3])
def test_offsets_go_on_behind_a_rebuild_that_finds_no_record(tmp_path: Path, more: int) -> None:
    clock = ManualClock()
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files, **SMALL)
    bodies = fill(store, 17)
    for _ in range(100):
        put(store, "Other", 0, bytes(200))
    flush(store)
    files.expired = {path.name for path in (tmp_path / "commitlog").iterdir()}
    checkpoint(store)
    clean(store, clock)
    assert store.offsets.min_offset("B", 0) == len(bodies)
    for _ in range(more):
        put_many(store, [b"a", b"b"])
    store.close()
    end = len(bodies) + 2 * more
    for _ in range(2):
        remake(store.config, clock)
        store = opened(tmp_path, clock, files, **SMALL)
        assert (store.offsets.min_offset("B", 0), store.offsets.max_offset("B", 0)) == (len(bodies), end)
        assert served(store) == [b"a", b"b"] * more
        store.close()
    store = opened(tmp_path, clock, files, **SMALL)
    assert put_many(store, [b"next"]) == end


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("more", [0, 3])
def test_a_removed_file_that_a_power_cut_brings_back_is_no_damage(
    tmp_path: Path, clock: ManualClock, more: int, killed: bool
) -> None:
    """One that was removed after it stays away, so the queue has a gap."""
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files, **SMALL)
    bodies = fill(store, 11)
    for _ in range(100):
        put(store, "Other", 0, bytes(200))
    flush(store)
    paths = sorted((tmp_path / "batchconsumequeue/B/0").iterdir())
    content = paths[0].read_bytes()
    files.expired = {path.name for path in (tmp_path / "commitlog").iterdir()}
    checkpoint(store)
    clean(store, clock)
    assert [path.exists() for path in paths] == [False, False, True]
    for _ in range(more):
        put_many(store, [b"a", b"b"])
        flush(store)
    leave(store, killed=killed)
    paths[0].write_bytes(content)
    report = fsck(OfflineStore(store.config))
    assert not [finding for finding in report.findings if finding.severity != "note"]
    store = opened(tmp_path, clock, files, **SMALL)
    assert store.damages.summary() == {"healed": 0, "lost": 0, "wrong": 0}
    assert store.offsets.min_offset("B", 0) == len(bodies)
    assert served(store) == [b"a", b"b"] * more
    assert put_many(store, [b"next"]) == len(bodies) + 2 * more
    assert not paths[0].exists()


def test_what_is_refused(store: MessageStore) -> None:
    put(store, "T", 0, b"simple")
    with pytest.raises(InvalidMessage, match="SimpleCQ"):
        put_many(store, [b"a"], topic="T")
    with pytest.raises(InvalidMessage, match="32767"):
        store.appender.put_inner_batch(pending("B"), 0)
    with pytest.raises(MessageTooLarge):
        put_many(store, [bytes(4000)])
    put_many(store, [b"a"])
    flush(store)
    assert store.offsets.max_offset("B", 0) == 1
    store.delete_topic("B")
    assert store.offsets.queues() == {"T": [0]}
    put_synced(store, "B", 0, b"simple now")
    assert [message.body for message in drain(store, "B", 0)] == [b"simple now"]


@pytest.mark.parametrize("damaged", ["", '{"topicConfigTable":{"B":{"attributes":null}},', "[" * 100_000])
def test_the_topic_table_says_the_type_when_the_queues_are_gone(tmp_path: Path, damaged: str) -> None:
    store = opened(tmp_path)
    store.appender.use_batch_queues("B")
    put_synced(store, "B", 0, b"single")
    crash(store)
    shutil.rmtree(tmp_path / "batchconsumequeue")
    (tmp_path / "config").mkdir()
    table = tmp_path / "config" / ("topics.json.bak" if damaged else "topics.json")
    table.write_text(
        '{"topicConfigTable":{"A":{},"B":{"attributes":{"queue.type":"BatchCQ"},"topicName":"B"}}}'
    )
    if damaged:
        (tmp_path / "config/topics.json").write_text(damaged)
    store = opened(tmp_path)
    assert [message.body for message in drain(store, "B", 0)] == [b"single"]
    assert not (tmp_path / "consumequeue/B").exists()


@pytest.mark.parametrize("number", [b"9" * 5000, "²".encode(), b"", b"0"])
def test_a_batch_that_does_not_say_how_many_it_holds_costs_itself(tmp_path: Path, number: bytes) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 16)
    put(store, "B", 0, b"x", b"INNER_NUM\x01" + number + b"\x02")
    put_synced(store, "T", 0, b"after")
    crash(store)
    segment = tmp_path / "commitlog" / ("0" * 20)
    damaged = bytearray(segment.read_bytes())
    damaged[SYS_FLAG_END - 1] |= INNER_BATCH
    segment.write_bytes(damaged)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    again = make_store(tmp_path, mapped_file_size_commit_log=1 << 16)
    report = again.open()
    assert report.ignored_records == 1
    assert [message.body for message in drain(again, "T", 0)] == [b"after"]


@pytest.mark.parametrize("sys_flag", [INNER_BATCH, NEED_UNWRAP])
@pytest.mark.parametrize("topic", ["T", "B"])
def test_an_inner_batch_is_stored_as_such_alone(store: MessageStore, topic: str, sys_flag: int) -> None:
    """After a crash the topic would become a BatchCQ."""
    store.appender.use_batch_queues("B")
    with pytest.raises(InvalidMessage, match="inner batch is not stored as a message of"):
        put(store, topic, 0, b"x", sys_flag=sys_flag)
    assert store.log.position == 0
