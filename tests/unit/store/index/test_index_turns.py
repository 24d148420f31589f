"""What the index does in one turn of the loop: a stage of a slice, with few keys, whatever there is to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.record.record import encode_record
from mqspark.store.disk.files import OsFiles
from mqspark.store.index import indexer
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexer import Indexer, Slice
from mqspark.store.index.indexfile import Shape
from mqspark.store.log.commitlog import CommitLog
from tests.unit.store.index.index_kit import EVER, loaded

ROOMY = Shape(1000, 10_000)


def log_of(folder: Path, properties: list[str]) -> tuple[CommitLog, list[int], int]:
    """A log of one segment; where its records begin, and its end."""
    content, positions = bytearray(), []
    for n, text in enumerate(properties):
        positions.append(len(content))
        content += encode_record(
            topic="T",
            body=b"x" * 50,
            properties=text.encode(),
            physical_offset=len(content),
            store_timestamp_ms=1000 + n,
        )
    folder.mkdir()
    (folder / f"{0:020d}").write_bytes(bytes(content).ljust(1 << 20, b"\0"))
    log = CommitLog(folder, OsFiles(), segment_bytes=1 << 20, allocation_step=4096, max_mapped=2)
    log.load()
    return log, positions, len(content)


def number_of_keys(index: MessageIndex) -> int:
    return sum(file.header.next_number - 1 for file in index.index_files)


def stages(follower: Indexer, index: MessageIndex, end: int) -> Iterator[tuple[int, int]]:
    """After each turn: the position of the index, and the number of its keys."""
    follower.idle(end, end)
    while True:
        yield index.position, number_of_keys(index)
        if not follower.has_more(end):
            return
        follower.step(end, end)


@pytest.mark.parametrize("words", [1, 3, 40])
def test_a_turn_adds_few_keys_and_all_those_of_a_record(tmp_path: Path, words: int) -> None:
    keys = [[f"k{n}-{word}" for word in range(words)] for n in range(60)]
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01{' '.join(each)}\x02" for each in keys])
    index = loaded(tmp_path, ROOMY)
    follower = Indexer(log, index, lambda: 0, bounds=Slice(100, 1 << 20, 16, 16))
    seen = [(0, 0), *stages(follower, index, end)]
    assert max(after - before for (_, before), (_, after) in itertools.pairwise(seen)) <= max(16, words)
    for position, count in seen:
        assert position in {*positions, end}
        assert count == words * sum(each < position for each in positions), (
            "keys of records behind the position"
        )
    assert seen[-1] == (end, words * 60)
    for n, each in enumerate(keys):
        assert index.find("T", each[-1], 10, 0, EVER) == [positions[n]]


def test_a_slice_of_long_properties_has_few_records(tmp_path: Path) -> None:
    log, positions, end = log_of(
        tmp_path / "log", [f"KEYS\x01k{n:03d}\x02NOTE\x01{'x' * 1000}\x02" for n in range(100)]
    )
    index = loaded(tmp_path, ROOMY)
    follower = Indexer(log, index, lambda: 0, bounds=Slice(1000, 5_500, 1000, 1000))
    seen = [0, *(position for position, _ in stages(follower, index, end))]
    assert seen[-1] == end
    assert max(after - before for before, after in itertools.pairwise(seen)) == positions[5]
    one = Indexer(log, loaded(tmp_path / "other", ROOMY), lambda: 0, bounds=Slice(1000, 10, 1000, 1000))
    assert one.follow(end, end, end), "a record is never too long"


def test_a_slice_has_few_records_however_short_they_are(tmp_path: Path) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01k{n}\x02" for n in range(300)])
    index = loaded(tmp_path, ROOMY)
    follower = Indexer(log, index, lambda: 0, bounds=Slice(20, 1 << 20, 1000, 1000))
    seen = [0, *(position for position, _ in stages(follower, index, end))]
    assert seen[-1] == end
    assert max(after - before for before, after in itertools.pairwise(seen)) <= positions[21] - positions[0]


def test_a_slice_of_what_was_cut_off_is_dropped(tmp_path: Path) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01a{n}\x02" for n in range(10)])
    index = loaded(tmp_path, ROOMY)
    follower = Indexer(log, index, lambda: 0)
    for _ in itertools.islice(stages(follower, index, end), 3):
        assert index.position == 0, "a slice is read, and its keys are not in the index yet"
    follower.cut(0)
    _, _, other_end = log_of(tmp_path / "new", [f"KEYS\x01b{n}\x02" for n in range(5)])
    (tmp_path / "log" / f"{0:020d}").write_bytes((tmp_path / "new" / f"{0:020d}").read_bytes())
    assert follower.follow(other_end, other_end, other_end)
    assert index.find("T", "a1", 10, 0, EVER) == []
    assert index.find("T", "b1", 10, 0, EVER) == [positions[1]]


def test_the_broker_s_slices_are_short(tmp_path: Path) -> None:
    log, _, end = log_of(tmp_path / "log", [f"KEYS\x01a{n} b{n} c{n}\x02" for n in range(3_000)])
    index = loaded(tmp_path, ROOMY)
    seen = [(0, 0), *stages(Indexer(log, index, lambda: 0), index, end)]
    assert seen[-1] == (end, 9_000)
    assert (
        max(after - before for (_, before), (_, after) in itertools.pairwise(seen))
        <= indexer.SHORT.warm_keys
        <= 512
    )
    assert len(seen) > 3 * 3_000 // indexer.SHORT.records, "a slice has several stages"


def test_a_turn_adds_more_keys_where_the_slots_were_touched(tmp_path: Path) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01k{n}\x02" for n in range(600)])
    index = loaded(tmp_path, Shape(20_000, 100_000))
    bounds, warm_at = Slice(200, 1 << 20, 10, 50), 20_000 * 4 // 1024
    follower = Indexer(log, index, lambda: 0, bounds=bounds)

    def added(stop: int) -> list[int]:
        counts = [number_of_keys(index)]
        while index.position < stop:
            follower.step(stop, stop)
            counts.append(number_of_keys(index))
        return [after - before for before, after in itertools.pairwise(counts) if after > before]

    first = added(positions[200])
    assert set(first[: warm_at // 10]) == {10}
    assert max(first) == 50
    index.note_durable(positions[200])
    job = index.begin_sync()
    assert job is not None
    assert max(added(positions[300])) == 10, "a sync makes pages that have to be touched anew"
    job.run()
    job.done()
    assert max(added(positions[360])) == 10
    assert max(added(end)) == 50
