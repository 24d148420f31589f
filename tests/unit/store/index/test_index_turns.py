"""What the index does in one turn of the loop: little of a slice, whatever there is to do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.record.record import encode_record
from mqspark.store.disk.files import OsFiles
from mqspark.store.index import indexer
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexer import SHORT, Indexer, Slice
from mqspark.store.index.indexfile import Shape
from mqspark.store.index.keys import KeyColumns
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.log.logwindow import LogWindow
from mqspark.store.log.scan import Run
from tests.support.store_tools import complete
from tests.unit.store.index.index_kit import EVER, loaded, made

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
    follower = Indexer(log, index, lambda: 0, bounds=Slice(100, 1 << 20, 16, 0.0))
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
    follower = Indexer(log, index, lambda: 0, bounds=Slice(1000, 5_500, 1000, 0.0))
    seen = [0, *(position for position, _ in stages(follower, index, end))]
    assert seen[-1] == end
    assert max(after - before for before, after in itertools.pairwise(seen)) == positions[5]
    one = Indexer(log, loaded(tmp_path / "other", ROOMY), lambda: 0, bounds=Slice(1000, 10, 1000, 0.0))
    assert one.follow(end, end, end), "a record is never too long"


def test_a_slice_has_few_records_however_short_they_are(tmp_path: Path) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01k{n}\x02" for n in range(300)])
    index = loaded(tmp_path, ROOMY)
    follower = Indexer(log, index, lambda: 0, bounds=Slice(20, 1 << 20, 1000, 0.0))
    seen = [0, *(position for position, _ in stages(follower, index, end))]
    assert seen[-1] == end
    assert max(after - before for before, after in itertools.pairwise(seen)) <= positions[21] - positions[0]


def test_a_slice_of_what_was_cut_off_is_dropped(tmp_path: Path) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01a{n}\x02" for n in range(10)])
    index = loaded(tmp_path, ROOMY)
    follower = Indexer(log, index, lambda: 0, bounds=SHORT._replace(stage_s=0.0))
    for _ in itertools.islice(stages(follower, index, end), 3):
        assert index.position == 0, "a slice is read, and its keys are not in the index yet"
    follower.cut(0)
    _, _, other_end = log_of(tmp_path / "new", [f"KEYS\x01b{n}\x02" for n in range(5)])
    (tmp_path / "log" / f"{0:020d}").write_bytes((tmp_path / "new" / f"{0:020d}").read_bytes())
    assert follower.follow(other_end, other_end, other_end)
    assert index.find("T", "a1", 10, 0, EVER) == []
    assert index.find("T", "b1", 10, 0, EVER) == [positions[1]]


class Costs:
    """A stopwatch that goes on by what the index does: a record that is read, and a key that is added or touched."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        record_s: float = 0.0,
        key_s: float = 1e-7,
        warm_s: float = 0.0,
    ) -> None:
        self.now_s = 0.0
        self.puts: list[int] = []
        self.warmed: list[int] = []
        read_run, put, warm = LogWindow.read_run, MessageIndex.put, MessageIndex.warm

        def slow_read(*args: Any, **named: Any) -> Run | None:
            run = read_run(*args, **named)
            self.now_s += record_s * len(run.positions) if run is not None else 0.0
            return run

        def slow_put(index: MessageIndex, keys: KeyColumns, position: int) -> None:
            self.puts.append(len(keys.hashes))
            self.now_s += key_s * len(keys.hashes)
            put(index, keys, position)

        def slow_warm(index: MessageIndex, keys: KeyColumns) -> None:
            self.warmed.append(len(keys.hashes))
            self.now_s += warm_s * len(keys.hashes)
            warm(index, keys)

        monkeypatch.setattr(indexer, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(LogWindow, "read_run", slow_read)
        monkeypatch.setattr(MessageIndex, "put", slow_put)
        monkeypatch.setattr(MessageIndex, "warm", slow_warm)


@pytest.mark.parametrize("record_s", [1e-7, 2e-6])
@pytest.mark.parametrize("key_s", [1e-7, 4e-6, 1e-4])
def test_a_turn_takes_as_long_whatever_records_and_keys_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_s: float, key_s: float
) -> None:
    log, _, end = log_of(tmp_path / "log", [f"KEYS\x01a{n} b{n}\x02" for n in range(4_000)])
    index = made(tmp_path, ROOMY)
    costs = Costs(monkeypatch, record_s=record_s, key_s=key_s)
    follower = Indexer(log, index, lambda: 0)
    follower.open(end, clean=True, safe_timestamp_ms=0)
    times = [costs.now_s, *(costs.now_s for _ in stages(follower, index, end))]
    assert number_of_keys(index) == 8_000
    assert max(after - before for before, after in itertools.pairwise(times)) < 0.002
    if key_s == record_s == 1e-7:
        assert max(costs.puts) == SHORT.keys, "few calls"
        assert len(times) < 20


def test_few_keys_are_added_where_the_slots_have_to_be_touched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01k{n} l{n}\x02" for n in range(4_000)])
    index = loaded(tmp_path, Shape(1_000, 3_900))
    costs = Costs(monkeypatch)
    follower = Indexer(log, index, lambda: 0)

    def added(stop: int) -> list[int]:
        costs.puts.clear()
        assert follower.follow(positions[stop], positions[stop], end)
        return costs.puts

    assert added(1_500)[:4] == [16, 16, 128, 352], "one makes the file"
    costs.now_s += 2.0
    assert added(1_600) == [16, 128, 56], "pages may have left the memory"
    job = index.begin_sync()
    assert job is not None
    assert max(added(1_800)) == 128, "a sync runs, and each page of the rest of the slots costs a fault"
    complete([job])
    assert added(1_900) == [16, 128, 56], "it has ended"
    added(2_500)
    assert [file.header.next_number for file in index.index_files] == [3_900, 1_102]
    assert costs.puts[costs.puts.index(98) + 1 :][:3] == [2, 16, 128], "the first file was full"


def test_the_slots_of_a_record_of_many_keys_are_touched_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{n:x}" for n in range(5_000)]
    texts = [
        "KEYS\x01a\x02",
        f"KEYS\x01{' '.join(words)}\x02",
        "KEYS\x01b\x02",
        f"KEYS\x01{' '.join(words)}\x02",
    ]
    log, positions, end = log_of(tmp_path / "log", texts)
    index = loaded(tmp_path, Shape(1_000, 20_000))
    costs = Costs(monkeypatch, warm_s=4e-6)
    follower = Indexer(log, index, lambda: 0)
    times = []
    for position, count in stages(follower, index, end):
        times.append(costs.now_s)
        assert count == sum(1 if n % 2 == 0 else 5_000 for n, at in enumerate(positions) if at < position), (
            "a record has all of its keys, or none"
        )
    assert sum(costs.warmed) == 10_000
    assert max(costs.warmed) <= 128
    assert costs.puts == [1, 5_000, 1, 5_000]
    assert max(after - before for before, after in itertools.pairwise(times)) < 0.002
    assert index.find("T", "4e2", 10, 0, EVER) == [positions[3], positions[1]]


@pytest.mark.parametrize("stage_s", [0.0, 0.0005, math.inf])
@pytest.mark.parametrize("keys", [3, 100])
def test_a_file_is_the_same_in_whatever_stages_it_was_written(
    tmp_path: Path, stage_s: float, keys: int
) -> None:
    texts = [f"UNIQ_KEY\x01u{n}\x02KEYS\x01{' '.join(map(str, range(n % 9)))}\x02" for n in range(700)]
    log, _, end = log_of(tmp_path / "log", texts)
    found = []
    for name, bounds in (("one", Slice(50, 1 << 20, keys, stage_s)), ("other", SHORT)):
        index = loaded(tmp_path / name, Shape(100, 1_000))
        assert Indexer(log, index, lambda: 0, bounds=bounds).follow(end, end, end)
        found.append([file.path.read_bytes() for file in index.index_files])
    assert found[0] == found[1]


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.mark.parametrize("rests", [False, True])
def test_slots_of_an_older_file_are_read_by_a_job_before_keys_are_added_in_a_turn(
    tmp_path: Path, rests: bool
) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01k{n}\x02" for n in range(300)])
    clock, index = Clock(), made(tmp_path, ROOMY)
    follower = Indexer(log, index, clock, bounds=Slice(20, 1 << 20, 1000, 0.0))
    follower.open(positions[100], clean=True, safe_timestamp_ms=0)
    list(stages(follower, index, positions[100]))
    assert follower.slots_job() is None, "a new file has no slots on the disk"
    if rests:
        clock.now_ms += indexer.KEPT_MS
    else:
        index.close()
        index = made(tmp_path, ROOMY)
        follower = Indexer(log, index, clock, bounds=Slice(20, 1 << 20, 1000, 0.0))
        follower.open(end, clean=True, safe_timestamp_ms=0)
    before = number_of_keys(index)
    for _ in range(3):
        follower.idle(end, end)
        follower.step(end, end)
        follower.arrived(end + (1 << 20), end)
        assert not follower.has_more(end)
        assert number_of_keys(index) == before
    job = follower.slots_job()
    assert job is not None
    assert follower.slots_job() is None, "it runs once"
    job.run()
    job.done()
    clock.now_ms += 1_000
    list(stages(follower, index, end))
    assert (index.position, number_of_keys(index)) == (end, 300)
    assert follower.slots_job() is None


def test_who_looks_for_a_key_does_not_wait_for_the_job(tmp_path: Path) -> None:
    log, positions, end = log_of(tmp_path / "log", [f"KEYS\x01k{n}\x02" for n in range(30)])
    clock, index = Clock(), made(tmp_path, ROOMY)
    follower = Indexer(log, index, clock)
    follower.open(positions[10], clean=True, safe_timestamp_ms=0)
    follower.follow(positions[10], positions[10], positions[10])
    clock.now_ms += indexer.KEPT_MS
    follower.idle(end, end)
    follower.step(end, end)
    assert follower.slots_job() is not None
    found = [each for step in follower.search("T", "k20", 0, EVER, end=end, durable=end) for each in step]
    assert found == [positions[20]]
