"""compact without Spark: what RocketMQ has compacted is read, and kept records are copied with their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mqspark.message import encode_host
from mqspark.record.record import decode_record, encode_record, tags_code
from mqspark.store.compaction.compactedqueues import KEPT_DTYPE, Current, GenerationWriter, publish
from mqspark.store.compaction.rocketcompaction import RocketCompaction
from mqspark_jobs.compact import CompactOptions, _plans, read_keys, write_generations
from tests.support.store_tools import finish_deletions, flush, opened, put, put_synced

HOST = encode_host("127.0.0.1", 10911)
FILE_BYTES = 600


def theirs(root: Path, kept: list[tuple[int, str, bytes]]) -> None:
    """RocketMQ's directory with (offset, key, body) records, several files of them."""
    directory = root / "compaction/compactionLog/C/0"
    (directory / "compacting").mkdir(parents=True)
    start, data = 0, bytearray()
    for offset, key, body in kept:
        record = encode_record(
            topic="C", body=body, properties=f"KEYS\x01{key}\x02TAGS\x01t{offset % 3}\x02".encode(), queue_id=0,
            queue_offset=offset, physical_offset=start + len(data), flag=0, sys_flag=0, born_timestamp_ms=1,
            born_host=HOST, store_timestamp_ms=5, store_host=HOST, reconsume_times=0, prepared_transaction_offset=0,
        )  # fmt: skip
        if len(data) + len(record) > FILE_BYTES - 8:
            (directory / f"{start:020d}").write_bytes(data.ljust(FILE_BYTES, b"\0"))
            start, data = start + FILE_BYTES, bytearray()
            record = record[:28] + start.to_bytes(8, "big") + record[36:]
        data += record
    (directory / f"{start:020d}").write_bytes(data.ljust(FILE_BYTES, b"\0"))


def records_in(buffer: memoryview) -> Iterator[memoryview]:
    """A buffer holds records that lie together in the log."""
    while buffer:
        size = int.from_bytes(buffer[:4], "big")
        yield buffer[:size]
        buffer = buffer[size:]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A queue of 100 offsets whose older half the log has no longer; RocketMQ kept every fifth of the first 60."""
    own = opened(tmp_path)
    for number in range(100):
        put(own, "C", 0, b"new%d" % number, b"KEYS\x01k%d\x02" % (number % 40))
        put_synced(own, "Other", 0, b"x" * 60)
    middle = own.table.queues[("C", 0)].entry(50)
    own.close()
    assert middle is not None
    for segment in (tmp_path / "commitlog").iterdir():
        if int(segment.name) + 4096 <= middle[0]:
            segment.unlink()
    theirs(tmp_path, [(offset, f"k{offset}", b"old%d" % offset) for offset in range(0, 60, 5)])
    return tmp_path


def test_theirs_is_read_as_it_lies(store: Path) -> None:
    found = RocketCompaction(store, "C", 0)
    assert found
    assert len(list(found.runs())) > 1
    for offset in range(0, 60, 5):
        record, code = found.record(offset)
        message = decode_record(record)
        assert (message.queue_offset, message.keys, message.body) == (offset, f"k{offset}", b"old%d" % offset)
        assert code == tags_code(b"TAGS\x01t%d\x02" % (offset % 3))
    for missing in (1, 61, 1 << 40):
        with pytest.raises(KeyError):
            found.record(missing)
    assert not RocketCompaction(store, "C", 1)
    assert not RocketCompaction(store / "none", "C", 0)


def test_what_is_older_than_the_log_comes_from_theirs(store: Path) -> None:
    (plan,) = _plans(CompactOptions(store), ["C"])
    assert plan.has_theirs
    assert 0 < plan.start <= 50
    assert plan.pieces[0] == (-2, -2)
    read = [batch for low, high in plan.pieces for batch in read_keys(str(store), None, plan, 0, low, high)]
    rows = pa.Table.from_batches(read).to_pylist()
    assert sorted(row["offset"] for row in rows) == [*range(0, plan.start, 5), *range(plan.start, 100)]
    newest: dict[str, int] = {}
    for row in rows:
        newest[row["key"]] = max(newest.get(row["key"], -1), row["offset"])
    kept = sorted(newest.values())
    asked = pa.RecordBatch.from_pydict({"queue": [0] * len(kept), "offset": kept})
    batches = list(write_generations(str(store), None, [plan], iter([asked])))
    (written,) = pa.Table.from_batches(batches).to_pylist()
    assert written["messages"] == len(kept)
    table = np.frombuffer(Path(written["entries"]).read_bytes(), KEPT_DTYPE)
    log = memoryview(Path(written["log"]).read_bytes())
    assert table["offset"].tolist() == kept
    for offset, position, size, _ in table.tolist():
        message = decode_record(log[position : position + size])
        assert message.queue_offset == offset
        assert message.body == (b"old%d" if offset < plan.start else b"new%d") % offset


def test_what_a_kill_left_between_old_files_and_new_ones_is_read(tmp_path: Path) -> None:
    """RocketMQ was killed while it replaced files: one is renamed only, one is moved up, one is not yet."""
    theirs(tmp_path, [(offset, f"k{offset}", b"old%d" % offset) for offset in range(0, 60, 5)])
    directory = tmp_path / "compaction/compactionLog/C/0"
    first, second, third, *_ = sorted(path for path in directory.iterdir() if path.is_file())
    first.rename(directory / f"{first.name}.delete")
    second.rename(directory / "compacting" / second.name)
    (directory / "replicating").mkdir()
    third.rename(directory / "replicating" / third.name)
    found = RocketCompaction(tmp_path, "C", 0)
    for offset in range(0, 60, 5):
        assert decode_record(found.record(offset)[0]).body == b"old%d" % offset


def test_what_theirs_got_after_a_generation_of_ours_is_read(store: Path) -> None:
    """Compacted here, then served and compacted by RocketMQ, whose log expired meanwhile: nothing else has it."""
    directory = store / "mqspark.compacted/C/0"
    writer = GenerationWriter(directory, "1")
    writer.append(b"x", 3, 0)
    writer.finish()
    writer.log_path.rename(directory / "1.log")
    writer.queue_path.rename(directory / "1.queue")
    publish(directory, Current(1, 20, 1, 1))
    (plan,) = _plans(CompactOptions(store), ["C"])
    assert plan.has_theirs
    assert plan.pieces == [(-1, -1), (-2, -2), (plan.start, 100)]
    read = list(read_keys(str(store), None, plan, 0, -2, -2))
    rows = pa.Table.from_batches(read).to_pylist()
    assert [row["offset"] for row in rows] == [*range(20, plan.start, 5)]
    asked = pa.RecordBatch.from_pydict({"queue": [0] * 3, "offset": [3, 20, 99]})
    (written,) = pa.Table.from_batches(write_generations(str(store), None, [plan], iter([asked]))).to_pylist()
    table = np.frombuffer(Path(written["entries"]).read_bytes(), KEPT_DTYPE)
    assert table["offset"].tolist() == [3, 20, 99]


def test_a_store_serves_what_the_log_has_no_longer_from_theirs(store: Path) -> None:
    own = opened(store)

    def pull(
        offset: int, count: int = 32, tags: frozenset[int] | None = None
    ) -> tuple[str, list[int], int, int]:
        got = own.reads.get("C", 0, offset, count, 1 << 20, tags)
        offsets = [
            decode_record(record).queue_offset for buffer in got.buffers for record in records_in(buffer)
        ]
        return got.status.name, offsets, got.next_offset, got.min_offset

    queue = own.table.queues[("C", 0)]
    low = queue.min_offset
    kept = list(range(0, low, 5))
    assert own.offsets.min_offset("C", 0) == 0
    assert pull(0, 4) == ("FOUND", kept[:4], 20, 0)
    assert pull(1) == ("FOUND", kept[1:], low, 0)
    assert pull(kept[-1] + 1) == ("NO_MATCHED_MESSAGE", [], low, 0)
    red = frozenset([tags_code(b"TAGS\x01t1\x02")])
    assert pull(0, tags=red) == ("FOUND", [offset for offset in kept if offset % 3 == 1], low, 0)
    assert pull(low, 3)[1] == [low, low + 1, low + 2]
    assert pull(100)[0] == "OFFSET_OVERFLOW_ONE"
    own.delete_topic("C")
    finish_deletions(own)
    assert not (store / "compaction/compactionLog/C").exists()
    assert own.offsets.min_offset("C", 0) == -1


def test_a_generation_of_ours_is_newer_than_theirs(store: Path) -> None:
    directory = store / "mqspark.compacted/C/0"
    directory.mkdir(parents=True)
    (directory / "current").write_text('{"generation": 1, "end": 80, "messages": 3, "size_bytes": 9}')
    (plan,) = _plans(CompactOptions(store), ["C"])
    assert not plan.has_theirs
    assert (plan.start, plan.end) == (80, 100)


def test_what_a_power_cut_may_take_back_replaces_nothing(tmp_path: Path) -> None:
    own = opened(tmp_path)
    for number in range(20):
        put(own, "C", 0, b"%d" % number, b"KEYS\x01k\x02")
    flush(own)
    for number in range(10):
        put(own, "C", 0, b"%d" % number, b"KEYS\x01k\x02")
    own.pipeline.commit()
    assert own.offsets.max_offset("C", 0) == 30
    (plan,) = _plans(CompactOptions(tmp_path), ["C"])
    assert (plan.start, plan.end) == (0, 20)
    flush(own)
    (plan,) = _plans(CompactOptions(tmp_path), ["C"])
    assert plan.end == 30
    own.close()
    (plan,) = _plans(CompactOptions(tmp_path), ["C"])
    assert (plan.end, plan.is_partial) == (30, False)
