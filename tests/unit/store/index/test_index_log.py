"""The index as it follows the log of a store: damage, retention, restarts, bursts."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.record.record import encode_record
from mqspark.store.disk.files import OsFiles
from mqspark.store.index import indexer
from mqspark.store.index.indexfile import IndexHeader, Shape
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.messages.membertable import BatchMembers, batch_members
from mqspark.store.store import MessageStore
from tests.support.clocks import ManualClock
from tests.support.draws import draws, some
from tests.support.store_tools import (
    FaultyFiles,
    checkpoint,
    flush,
    leave,
    maintain,
    opened,
    pending,
    put,
    query,
)
from tests.unit.store.index.index_kit import EVER, asked, follow, loaded, read_manifest

# --- the log --------------------------------------------------------------------------------------------------


def write_log(directory: Path, count: int) -> list[int]:
    """Segments of 4096 bytes with a record of 200 bytes each; gives back their positions."""
    directory.mkdir()
    segments: list[bytearray] = [bytearray()]
    positions = []
    for n in range(count):
        if len(segments[-1]) + 208 > 4096:
            rest = 4096 - len(segments[-1])
            segments[-1] += struct.pack(">ii", rest, 0xCBD43194 - (1 << 32)).ljust(rest, b"\0")
            segments.append(bytearray())
        position = (len(segments) - 1) * 4096 + len(segments[-1])
        record = encode_record(
            topic="T", body=bytes(200 - 91 - 1 - 8), properties=f"KEYS\x01{n:03d}".encode(),
            physical_offset=position, store_timestamp_ms=1000 + n,
        )  # fmt: skip
        assert len(record) == 200
        segments[-1] += record
        positions.append(position)
    for number, segment in enumerate(segments):
        (directory / f"{number * 4096:020d}").write_bytes(segment.ljust(4096, b"\0"))
    return positions


@pytest.mark.parametrize("window_bytes", some([100, 700, 1 << 20], 1))
@pytest.mark.parametrize("damaged", [[], [0], [5], [18, 19, 20], [19], [59]])
@pytest.mark.parametrize("how", ["size", "magic", "middle", "all"])
def test_damaged_records_are_stepped_over(
    tmp_path: Path, damaged: list[int], how: str, window_bytes: int
) -> None:
    positions = write_log(tmp_path / "log", 60)
    for n in damaged:
        path = tmp_path / f"log/{positions[n] // 4096 * 4096:020d}"
        data, at = bytearray(path.read_bytes()), positions[n] % 4096
        low, high = {"size": (0, 4), "magic": (4, 8), "middle": (84, 120), "all": (0, 200)}[how]
        data[at + low : at + high] = b"\xa5" * (high - low)
        path.write_bytes(data)
    index = loaded(tmp_path / "store", Shape(100, 1000))
    assert follow(opened_log_of(tmp_path / "log"), index, positions[-1] + 200, window_bytes)
    assert index.position == positions[-1] + 200
    for n, position in enumerate(positions):
        assert index.find("T", f"{n:03d}", 9, 0, EVER) == ([] if n in damaged else [position])


def opened_log_of(directory: Path) -> CommitLog:
    log = CommitLog(directory, OsFiles(), segment_bytes=4096, allocation_step=4096, max_mapped=8)
    log.load()
    return log


def test_a_segment_that_was_made_shorter_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    positions = write_log(tmp_path / "log", 60)
    os.truncate(tmp_path / f"log/{4096:020d}", 1000)
    index = loaded(tmp_path / "store", Shape(100, 1000))
    assert follow(opened_log_of(tmp_path / "log"), index, positions[-1] + 200)
    found = [n for n in range(60) if index.find("T", f"{n:03d}", 9, 0, EVER)]
    assert found == [n for n, position in enumerate(positions) if not 4096 + 800 < position < 8192]


def test_segments_that_retention_removed_are_passed_over(tmp_path: Path) -> None:
    positions = write_log(tmp_path / "log", 60)
    (tmp_path / f"log/{0:020d}").unlink()
    index = loaded(tmp_path / "store", Shape(100, 1000))
    assert follow(opened_log_of(tmp_path / "log"), index, positions[-1] + 200)
    assert [index.find("T", f"{n:03d}", 9, 0, EVER) for n in range(60)] == [
        [p] if p >= 4096 else [] for p in positions
    ]


def test_the_header_survives_its_encoding() -> None:
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    assert IndexHeader.decode(header.encode()) == header
    assert IndexHeader.decode(b"") == IndexHeader()


# --- the store ------------------------------------------------------------------------------------------------


def put_keys(store: MessageStore, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        put(store, "T", n % 3, b"%d" % n, b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d even%d\x02" % (n, n, n % 2))


def many(items: list[tuple[int, bytes, bytes]]) -> BatchMembers:
    found = batch_members(
        b"".join(
            struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
            + body
            + struct.pack(">h", len(text))
            + text
            for flag, body, text in items
        )
    )
    assert found is not None
    return found


@pytest.mark.parametrize("sync", [False, True])
def test_what_consumers_see_can_be_queried_by_key(tmp_path: Path, clock: ManualClock, sync: bool) -> None:
    store = opened(tmp_path, clock, sync=sync)
    put_keys(store, 10)
    assert asked(store, "k3") == []
    store.pipeline.commit()
    assert asked(store, "k3") == ([] if sync else [b"3"])
    flush(store)
    assert asked(store, "k3") == asked(store, "u3") == [b"3"]
    assert asked(store, "even1") == [b"1", b"3", b"5", b"7", b"9"]
    assert asked(store, "even1", 2) == [b"7", b"9"], "the newest, in the order of the log"
    clock.advance(60_000)
    put_keys(store, 100, 10)
    flush(store)
    assert len(asked(store, "even0", 1000)) == 55
    assert asked(store, "even0", 1000, 0, clock.wall_ms - 1) == [b"0", b"2", b"4", b"6", b"8"]
    assert len(asked(store, "even0", 1000, clock.wall_ms - 1000, clock.wall_ms)) == 50
    assert store.status.index_last_update[0] == clock.wall_ms
    assert (store.status.index_behind_bytes, store.status.index_problem) == (0, None)


@pytest.mark.parametrize("ending", ["close", "crash", "crash behind a mark", "no index", "other index"])
def test_after_a_restart_every_key_is_there(tmp_path: Path, ending: str) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock)
    put_keys(store, 50)
    flush(store)
    if ending == "crash behind a mark":
        clock.advance(20_000)
        checkpoint(store)
        put_keys(store, 50, 50)
    else:
        put_keys(store, 50, 50)
    flush(store)
    leave(store, killed=ending != "close")
    if ending in ("no index", "other index"):
        shutil.rmtree(tmp_path / "index")
    if ending == "other index":
        (tmp_path / "index").mkdir()
        (tmp_path / "index/20010101000000000").write_bytes(b"nonsense" * 100)
    store = opened(tmp_path, clock)
    put_keys(store, 10, 100)
    flush(store)
    assert [asked(store, key) for n in range(110) for key in (f"u{n}", f"k{n}")] == [
        [b"%d" % n] for n in range(110) for _ in "uk"
    ]
    store.close()
    store = opened(tmp_path, clock, max_msgs_num_batch=1000)
    assert len(asked(store, "even1", 1000)) == 55


def test_an_index_that_cannot_be_written_stops_no_message(
    tmp_path: Path, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, None, files)
    put_keys(store, 5)
    flush(store)
    files.fail("map_write", errno.EIO)
    maintain(store)
    files.heal()
    assert store.status.index_problem is not None
    assert "Input/output" in store.status.index_problem
    assert [line.getMessage() for line in caplog.records if "found by key" in line.getMessage()] == [
        f"new messages cannot be found by key: {store.status.index_problem}"
    ]
    assert store.status.index_behind_bytes > 0
    put_keys(store, 5, 5)
    flush(store)
    assert (store.condition.read_only, store.offsets.max_offset("T", 0)) == (None, 4)
    store.close()
    store = opened(tmp_path)
    assert [asked(store, f"k{n}") for n in range(10)] == [[b"%d" % n] for n in range(10)]


def test_without_an_index_nothing_is_found_and_nothing_made(tmp_path: Path) -> None:
    store = opened(tmp_path, message_index_enable=False)
    put_keys(store, 5)
    flush(store)
    assert asked(store, "k1") == []
    store.close()
    assert not (tmp_path / "index").exists()
    store = opened(tmp_path)
    assert asked(store, "k1") == [b"1"]


def test_a_busy_store_indexes_as_it_goes_and_after_a_burst(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "_STEP_BYTES", 2000)
    monkeypatch.setattr(indexer, "_MAX_BEHIND_BYTES", 6000)
    monkeypatch.setitem(
        indexer.Indexer.__init__.__kwdefaults__, "bounds", indexer.Slice(10, 1 << 20, 10, 0.0)
    )
    store = opened(tmp_path, clock)
    behind = []
    for n in range(100):
        put_keys(store, 1, n)
        flush(store)
        store.catch_up()
        behind.append(store.status.index_behind_bytes)
    assert 6000 < max(behind) < 9000, "no time passed, so no share of it: only the bound holds"
    clock.advance(1000)
    put_keys(store, 20, 100)
    flush(store)
    for _ in range(30):  # a stage of a slice each
        store.catch_up()
    assert store.status.index_behind_bytes < max(behind)
    maintain(store)
    assert store.status.index_behind_bytes == 0
    put_keys(store, 1, 120)
    flush(store)
    maintain(store)
    assert store.status.index_behind_bytes > 0, (
        "a busy store's maintenance comes more often than once a second"
    )
    clock.advance(1000)
    maintain(store)
    assert store.status.index_behind_bytes == 0


def test_a_backlog_is_indexed_a_slice_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "_STEP_BYTES", 2000)
    monkeypatch.setitem(
        indexer.Indexer.__init__.__kwdefaults__, "bounds", indexer.Slice(10, 1 << 20, 10, 0.0)
    )
    store = opened(tmp_path)
    put_keys(store, 100)
    flush(store)
    behind = [store.status.index_behind_bytes]
    store.maintenance()
    behind.append(store.status.index_behind_bytes)
    behind.extend(store.status.index_behind_bytes for _ in store.follow_with_index())
    assert store.status.index_behind_bytes == 0
    assert max(before - after for before, after in itertools.pairwise(behind)) < 3000


def test_large_records_are_collected_before_they_are_indexed(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "perf_counter", lambda: 0.0)
    store = opened(tmp_path, clock, mapped_file_size_commit_log=1 << 24)
    numbers = iter(range(10_000))

    def send(total_bytes: int) -> int:
        end = 0
        while end < total_bytes:
            n = next(numbers)
            end += 4000
            put(store, "T", 0, b"x" * 4000, b"KEYS\x01k%d\x02" % n)
        clock.advance(100)
        flush(store)
        for _ in range(10):  # a slice each
            store.catch_up()
        return store.status.index_behind_bytes

    assert send(600 << 10) < 512 << 10, "how large they are is not known yet"
    assert send(1_200 << 10) < 1 << 20, "a slice that took no time: the next one is larger"
    behind = [send(300 << 10) for _ in range(6)]
    assert behind == sorted(behind)
    assert behind[0] > 300 << 10, behind
    assert behind[-1] > 1_800_000
    assert send(300 << 10) < 900 << 10
    assert asked(store, "k5") == [b"x" * 4000]


@given(
    st.lists(st.sampled_from(["keys", "plain", "batch", "flush", "catch up", "second"]), max_size=40),
    st.booleans(),
)
@settings(max_examples=draws(40))
def test_what_has_no_properties_is_passed_over_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], sync: bool
) -> None:
    plain = many([(0, b"x" * 20, b"")] * 70)
    clock = ManualClock()
    store = opened(tmp_path_factory.mktemp("index"), clock, sync=sync, mapped_file_size_commit_log=1 << 15)
    count = 0
    for step in steps:
        if step == "keys":
            put_keys(store, 3, count)
            count += 3
        elif step == "plain":
            store.appender.put_members(pending(), plain)
        elif step == "batch":
            numbers = range(count, count + 64)
            store.appender.put_members(
                pending("T", 1), many([(0, b"%d" % n, b"KEYS\x01k%d\x02" % n) for n in numbers])
            )
            count += 64
        elif step == "flush":
            flush(store)
        elif step == "catch up":
            store.catch_up()
        else:
            clock.advance(1000)
            maintain(store)
    flush(store)
    clock.advance(1000)
    maintain(store)
    assert store.status.index_behind_bytes == 0
    assert [asked(store, f"k{n}") for n in range(count)] == [[b"%d" % n] for n in range(count)]


def test_a_stretch_without_properties_is_not_read(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files, mapped_file_size_commit_log=1 << 20)
    store.appender.put_members(pending(), many([(0, b"x", b"")] * 100))
    store.appender.put_members(pending(), many([(0, b"x", b"")] * 100))
    flush(store)
    before = len(files.calls)
    maintain(store)
    assert store.status.index_behind_bytes == 0
    assert "open" not in files.calls[before:]
    store.close()


@pytest.mark.parametrize("name", some(["variant", "clean", "kill9"], 1))
def test_every_message_of_a_rocketmq_directory_is_found_by_key(
    golden_root: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(golden_root / name / "store", tmp_path / "store")
    store = opened(tmp_path / "store", max_msgs_num_batch=10_000)

    @functools.cache  # thousands of messages have one key
    def found(topic: str, key: str) -> frozenset[int]:
        return frozenset(map(zlib.crc32, query(store, topic, key, 10_000, 0, EVER)))

    for message in read_manifest(name):
        for key in (message["msgId"], *(message["keys"] or "").split(" ")):
            if key and message["queueTopic"] == message["topic"]:
                assert message["recordCrc32"] in found(message["topic"], key), key
