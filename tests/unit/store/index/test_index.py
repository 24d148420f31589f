"""The index against RocketMQ's own files, and what becomes of it in a crash, on a full disk and in a damaged log."""

from __future__ import annotations

import errno
import functools
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqspark.errors import DiskFull
from mqspark.message import INNER_BATCH, TRANSACTION_ROLLBACK_TYPE
from mqspark.record.record import encode_record
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.index import indexer, indexfile
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexfile import DEFAULT_SHAPE, IndexHeader, Shape, find_shape
from mqspark.store.index.keys import KeyColumns, index_hash, key_steps, run_keys, tag_key
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.log.scan import read_run
from tests.support.store_tools import FaultyFiles, checkpoint, complete, crash, flush, maintain, opened, put
from tests.unit.store.index.index_kit import EVER, GOLDEN, SMALL, asked, follow, loaded, made, read_manifest

VECTORS = [json.loads(line) for line in (GOLDEN / "vectors/hashes.jsonl").read_text().splitlines()]


@pytest.fixture
def index(tmp_path: Path) -> MessageIndex:
    return loaded(tmp_path)


def columns(rows: Iterable[tuple[str, int, int]]) -> KeyColumns:
    """Rows of ``topic#key``, physical offset, store time."""
    numbers = [(index_hash(*text.split("#", 1)), position, timestamp) for text, position, timestamp in rows]
    return KeyColumns(*np.array(numbers, dtype=np.int64).reshape(-1, 3).T)


def numbered(low: int, high: int) -> KeyColumns:
    """One key for each position, a second apart."""
    return columns((f"T#{n}", n, 1_000_000 + 1000 * n) for n in range(low, high))


def synced(index: MessageIndex) -> None:
    index.note_durable(index.position)
    job = index.begin_sync()
    assert job is not None
    complete([job])
    assert index.failed is None


def contents(index: MessageIndex) -> list[bytes]:
    return [file.path.read_bytes() for file in index.index_files]


def opened_log(directory: Path) -> CommitLog:
    log = CommitLog(directory, OsFiles(), segment_bytes=1 << 20, allocation_step=4096, max_mapped=8)
    log.load()
    return log


# --- RocketMQ's bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["op"] == "indexHash" and "#" in v["key"]], ids=lambda v: v["key"]
)
def test_hash_of_a_key(vector: dict[str, Any]) -> None:
    assert index_hash(*vector["key"].split("#", 1)) == vector["hash"]


def test_hash_without_a_positive() -> None:
    # "#" + this has the hash -2^31, which has no absolute value.
    key = "\x00\x00\x00" + "".join(map(chr, _units_with_hash(-(1 << 31) - 35 * 31**7)))
    assert index_hash("", key) == 0


def _units_with_hash(wanted: int) -> list[int]:
    """Four UTF-16 units below 0x800 whose Java hash is ``wanted`` modulo 2^32."""
    wanted %= 1 << 32
    for wrapped in range(8):
        rest, units = wanted + (wrapped << 32), []
        for power in (31**3, 31**2, 31, 1):
            unit = min(rest // power, 0xD7FF)
            units.append(unit)
            rest -= unit * power
        if not rest:
            return units
    raise AssertionError(wanted)


def test_a_file_has_the_bytes_of_rocketmq(tmp_path: Path) -> None:
    (vector,) = (v for v in VECTORS if v["op"].startswith("indexFile"))
    index = loaded(tmp_path, Shape(100, 400))
    index.put(columns(map(tuple, vector["puts"])), 5000)
    (data,) = contents(index)
    expected = bytes.fromhex(vector["file_hex_first_540_bytes"])
    assert data[: len(expected)] == expected
    assert (len(data), data.count(0, len(expected))) == (vector["file_len"], len(data) - len(expected))


def test_a_following_file_counts_the_first_seconds_from_the_end_of_the_one_before(tmp_path: Path) -> None:
    index = loaded(tmp_path, Shape(100, 3))
    index.put(columns([("T#a", 1024, 1700000000123), ("T#b", 2048, 1700000005999)]), 3000)
    assert len(index.index_files) == 1, "a full file gets a follower with the next key"
    index.put(columns([("T#c", 4096, 1700000009999)]), 5000)
    data = contents(index)[1]
    assert data[:40] == struct.pack(">qqqqii", 1700000009999, 1700000009999, 4096, 4096, 1, 2)
    assert data[440 + 20 : 440 + 40] == struct.pack(">iqii", index_hash("T", "c"), 4096, 4, 0)


@pytest.mark.parametrize("window_bytes", [100, 1500, 1 << 20])
@pytest.mark.parametrize("name", ["clean", "kill9", "variant"])
def test_an_index_built_from_a_log_of_rocketmq_is_the_one_it_built(
    golden_root: Path, tmp_path: Path, name: str, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By RocketMQ 5.3.3, which has no tags in it."""
    monkeypatch.setattr(indexer, "key_steps", functools.partial(key_steps, tags=False))
    root = golden_root / name / "store"
    index = loaded(tmp_path, Shape(500, 1000))
    assert follow(opened_log(root / "commitlog"), index, 3 << 20, window_bytes)
    assert contents(index) == [path.read_bytes() for path in sorted((root / "index").iterdir())]


@pytest.mark.parametrize("name", ["clean", "kill9", "variant"])
def test_every_message_with_a_key_is_found_in_the_index_of_rocketmq(
    golden_root: Path, tmp_path: Path, name: str
) -> None:
    # The settings are others than those of the files, which are believed.
    index = MessageIndex(golden_root / name / "store/index", tmp_path / "mark", OsFiles(), lambda: 0)
    index.load(clean=True, safe_timestamp_ms=0)
    assert index.index_files[-1].shape == Shape(500, 1000)
    assert not index.ignored_files
    looked_up = 0
    for message in read_manifest(name):
        for key in (message["msgId"], *(message["keys"] or "").split(" ")):
            if key and message["queueTopic"] == message["topic"]:
                found = index.find(message["topic"], key, 1000, 0, EVER)
                assert message["commitLogOffset"] in found, key
                assert found == sorted(found, reverse=True)
                looked_up += 1
    assert looked_up > 100


def test_a_damaged_file_is_searched_in_small_steps(tmp_path: Path) -> None:
    longest = 0

    class Counting(OsFiles):
        def read_at(self, fd: int, length: int, offset: int) -> bytes:
            nonlocal longest
            longest = max(longest, length)
            return super().read_at(fd, length, offset)

    header = IndexHeader(next_number=3)
    path = tmp_path / "20260101000000000"
    path.write_bytes(header.encode() + bytes(3 << 20))
    files = Counting()
    fd = files.open_read(path)
    assert find_shape(files, fd, path.stat().st_size, header) is None
    files.close(fd)
    assert longest <= (1 << 20) + 7


# --- queries --------------------------------------------------------------------------------------------------


def test_newest_first_over_files_up_to_the_limit(index: MessageIndex) -> None:
    index.put(columns(("T#same", n, 1_000_000 + 1000 * n) for n in range(50)), 50)
    assert len(index.index_files) == 3
    assert index.find("T", "same", 100, 0, EVER) == list(range(49, -1, -1))
    assert index.find("T", "same", 7, 0, EVER) == [49, 48, 47, 46, 45, 44, 43]
    assert index.find("T", "other", 7, 0, EVER) == []
    assert index.find("U", "same", 7, 0, EVER) == []
    assert index.last_update == (1_049_000, 49)


def test_only_the_time_asked_for(index: MessageIndex) -> None:
    index.put(columns(("T#same", n, 1_000_000 + 1000 * n) for n in range(50)), 50)
    assert index.find("T", "same", 100, 1_010_000, 1_012_999) == [12, 11, 10]
    assert index.find("T", "same", 100, 1_030_000, 1_030_000) == [30]
    assert index.find("T", "same", 100, 0, 999_999) == []
    assert index.find("T", "same", 100, 2_000_000, EVER) == []


def test_what_was_stored_before_the_clock_went_back_is_found(index: MessageIndex) -> None:
    index.put(columns(("T#same", n, 2_000_000 + 1000 * n) for n in range(19)), 19)
    index.put(columns(("T#same", n, 1_000_000 + 1000 * n) for n in range(19, 50)), 50)
    files = [(file.header.begin_timestamp_ms, file.header.end_timestamp_ms) for file in index.index_files]
    assert files[:2] == [(2_000_000, 2_018_000), (1_019_000, 1_037_000)]
    assert index.find("T", "same", 100, 2_010_000, 2_012_000) == [12, 11, 10]
    assert index.find("T", "same", 100, 1_025_000, 2_000_000) == [*range(49, 24, -1), 0]


def test_another_key_of_the_same_hash_is_found_too(index: MessageIndex) -> None:
    index.put(columns([("T#Aa", 1, 1000), ("T#BB", 2, 1000), ("T#Ab", 3, 1000)]), 4)
    assert index.find("T", "Aa", 9, 0, EVER) == index.find("T", "BB", 9, 0, EVER) == [2, 1]


def test_a_record_that_has_a_key_twice_is_found_once(index: MessageIndex) -> None:
    index.put(columns([("T#a", 1, 1000), ("T#a", 1, 1000), ("T#a", 2, 1000)]), 3)
    assert index.find("T", "a", 2, 0, EVER) == [2, 1]


def test_a_long_chain_is_read_as_columns_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = loaded(tmp_path, Shape(3, 500))
    index.put(columns((f"T#{n % 5}", n, 1_000_000 + 700 * n) for n in range(450)), 450)
    asked = [(key, limit, begin, end) for key in "035" for limit in (3, 400)
             for begin, end in ((0, EVER), (1_050_000, 1_200_000), (0, 1_100_000), (1_290_000, EVER))]  # fmt: skip
    by_chain = [index.find("T", *question) for question in asked]
    monkeypatch.setattr(indexfile, "_MAX_HOPS", 2)
    monkeypatch.setattr(indexfile, "_BLOCK_ENTRIES", 64)
    assert [index.find("T", *question) for question in asked] == by_chain


# --- records to keys ------------------------------------------------------------------------------------------


def keys_of(*records: dict[str, Any]) -> list[tuple[int, int]]:
    """(number of the record, hash) of every key."""
    data, positions = b"", []
    for record in records:
        positions.append(len(data))
        data += encode_record(
            **{"topic": "T", "body": b"x\x02KEYS\x01y", **record, "physical_offset": len(data) + 4096}
        )
    run = read_run(memoryview(data), 0, len(data), 4096, verify_crc=False, min_records=1)
    assert run is not None
    assert run.positions.tolist() == [position + 4096 for position in positions]
    keys = run_keys(run)
    rows = [positions.index(position - 4096) for position in keys.positions.tolist()]
    assert keys.timestamps_ms.tolist() == [records[row].get("store_timestamp_ms", 0) for row in rows]
    return list(zip(rows, keys.hashes.tolist(), strict=True))


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        ("", []),
        ("TAGS\x01A\x02WAIT\x01true\x02", ["T#A"]),
        ("TAGS\x01A b\x02KEYS\x01k\x02UNIQ_KEY\x01u", ["u", "k", "T#A b"]),
        ("TAGS\x01A\x02TAGS\x01键\x02", ["T#键"]),
        ("TAGS\x01\x02XTAGS\x01A\x02TAGSX\x01B\x02", []),
        ("KEYS\x01a\x02", ["a"]),
        ("KEYS\x01a", ["a"]),
        ("KEYS\x01a  b c \x02UNIQ_KEY\x01u\x02", ["u", "a", "b", "c"]),
        ("UNIQ_KEY\x01u v\x02KEYS\x01 \x02", ["u v"]),
        ("KEYS\x01\x02UNIQ_KEY\x01", []),
        ("KEYS\x01a\x02KEYS\x01b\x02UNIQ_KEY\x01u\x02UNIQ_KEY\x01\x02", ["u", "b"]),
        ("XKEYS\x01a\x02XUNIQ_KEY\x01b\x02KEYSX\x01c\x02", []),
        ("A\x01KEYS\x01b\x02B\x01UNIQ_KEY\x01c\x02", []),
        ("KEYS\x01a\x01b\x02", ["a\x01b"]),
        ("KEYS\x01键 🚀 é\x02UNIQ_KEY\x01ü\x02", ["ü", "键", "🚀", "é"]),
        ("UNIQ_KEY\x01" + "k" * 32000, ["k" * 32000]),
    ],
)
@pytest.mark.parametrize("others", [0, 3])
def test_keys_of_a_record(properties: str, keys: list[str], others: int) -> None:
    around = [{"properties": b"UNIQ_KEY\x01o\x02KEYS\x01p q"}] * others
    records = [*around, {"properties": properties.encode(), "store_timestamp_ms": 77}, *around]
    expected = [
        (n, index_hash("T", key))
        for n in range(len(records))
        for key in (keys if n == others else ["o", "p", "q"])
    ]
    assert keys_of(*records) == expected


def test_keys_beside_bytes_that_are_no_utf8() -> None:
    texts = [b"KEYS\x01\xff\xe9\x02", "KEYS\x01键 k\x02TAGS\x01é\x02".encode(), b"KEYS\x01\xf0\x9f\x02"]
    keys = [["\ufffd\ufffd"], ["键", "k", tag_key("é")], ["\ufffd"]]
    expected = [(n, index_hash("T", key)) for n, each in enumerate(keys) for key in each]
    assert keys_of(*({"properties": text} for text in texts)) == expected


def test_keys_of_records_with_other_heads() -> None:
    key = {"properties": b"KEYS\x01k\x02", "store_timestamp_ms": 99}
    long_topic, six = "t" * 200, bytes(20)
    expected = index_hash("T", "k")
    assert keys_of(
        key,
        {**key, "born_host": six},
        {**key, "store_host": six},
        {**key, "born_host": six, "store_host": six},
        {**key, "topic": long_topic},
        {**key, "sys_flag": TRANSACTION_ROLLBACK_TYPE},
        {**key, "sys_flag": INNER_BATCH},
        {**key, "property_crc": True},
        {**key, "body": b""},
    ) == [
        *((n, expected) for n in range(4)),
        (4, index_hash(long_topic, "k")),
        *((n, expected) for n in (6, 7, 8)),
    ]


def test_more_text_than_one_piece_holds() -> None:
    records = [{"properties": f"UNIQ_KEY\x01{n}\x02A\x01{'x' * 30000}".encode()} for n in range(12)]
    assert keys_of(*records) == [(n, index_hash("T", str(n))) for n in range(12)]


@pytest.mark.parametrize("at", [28, 84, 88 + 7, -3])
def test_a_record_whose_lengths_do_not_agree_ends_the_slice(at: int) -> None:
    record = encode_record(topic="T", body=b"payload", properties=b"KEYS\x01k")
    damaged = bytearray(record)
    damaged[at] ^= 0x55 if at != -3 else 0
    if at == -3:
        damaged[-len(b"KEYS\x01k") - 1] ^= 0x01
    data = memoryview(record + damaged + record)
    run = read_run(data, 0, len(data), 0, verify_crc=False, min_records=1)
    assert run is not None
    assert (len(run_keys(run).hashes), len(run.positions)) == (1, 1)


def test_a_head_longer_than_the_log_is_no_record() -> None:
    data = bytearray(encode_record(topic="T", body=b""))
    data[39] = 0x30
    assert read_run(memoryview(data), 0, len(data), 0, verify_crc=False, min_records=1) is None


# --- start, crash ---------------------------------------------------------------------------------------------


def test_after_a_clean_stop_of_ours_everything_is_there(tmp_path: Path, index: MessageIndex) -> None:
    index.put(numbered(0, 30), 40)
    synced(index)
    index.skip(55)
    synced(index)
    again = loaded(tmp_path)
    assert (again.position, contents(again)) == (55, contents(index))
    assert again.full_timestamp_ms == index.full_timestamp_ms == 1_018_000


def test_after_a_clean_stop_of_rocketmq_the_records_behind_the_last_key_are_looked_at_again(
    tmp_path: Path, index: MessageIndex
) -> None:
    index.put(numbered(0, 5), 40)
    again = loaded(tmp_path)
    assert again.position == 4
    again.put(numbered(4, 6), 7)
    assert [again.find("T", str(n), 9, 0, EVER) for n in range(6)] == [[n] for n in range(6)]
    assert again.index_files[-1].header.next_number == 7, "the last one was not put twice"


@pytest.mark.parametrize("synced_at", [0, 1, 5, 19, 20, 38, 45])
@pytest.mark.parametrize("crashed_at", [45, 47, 60, 90])
def test_a_crash_takes_back_what_was_not_synced_and_no_more(
    tmp_path: Path, synced_at: int, crashed_at: int
) -> None:
    whole = loaded(tmp_path / "whole")
    whole.put(numbered(0, 100), 100)
    index = loaded(tmp_path / "crashed")
    if synced_at:
        index.put(numbered(0, synced_at), synced_at)
    synced(index)
    index.put(numbered(synced_at, crashed_at), crashed_at)
    index = loaded(tmp_path / "crashed", clean=False)
    assert index.position == synced_at
    for n in range(crashed_at):
        assert index.find("T", str(n), 9, 0, EVER) == ([n] if n < synced_at else [])
    if synced_at < 100:
        index.put(numbered(synced_at, 100), 100)
    assert contents(index) == contents(whole)


def test_slots_and_entries_that_reached_the_disk_in_part_do_no_harm(tmp_path: Path) -> None:
    """After the last sync any page may be old or new: here the header and half the slots are new, the entries lost."""
    whole = loaded(tmp_path / "whole", Shape(100, 1000))
    whole.put(numbered(0, 600), 600)
    index = loaded(tmp_path / "crashed", Shape(100, 1000))
    index.put(numbered(0, 300), 300)
    synced(index)
    (before,) = contents(index)
    index.put(numbered(300, 600), 600)
    (after,) = contents(index)
    index.index_files[0].path.write_bytes(after[:240] + before[240:])
    index = loaded(tmp_path / "crashed", Shape(100, 1000), clean=False)
    assert contents(index) == [before]
    index.put(numbered(300, 600), 600)
    assert contents(index) == contents(whole)


def test_without_a_mark_files_behind_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    index = loaded(tmp_path)
    index.put(numbered(0, 50), 50)
    expected = contents(index)
    index = loaded(tmp_path, clean=False, safe_timestamp_ms=1_018_000)
    assert [file.header.end_position for file in index.index_files] == [18]
    assert index.position == 18, "its keys may have gone on in a file that was removed"
    index.put(numbered(18, 50), 50)
    assert [index.find("T", str(n), 9, 0, EVER) for n in range(50)] == [[n] for n in range(50)]
    index = loaded(tmp_path, clean=False)
    assert (index.index_files, index.position) == ([], 0)
    index.put(numbered(0, 50), 50)
    assert contents(index) == expected


def test_a_file_without_a_key_is_removed(tmp_path: Path, index: MessageIndex) -> None:
    index.put(numbered(0, 19), 19)
    for name in ("29990101000000000", "29990101000000001"):
        (tmp_path / "index" / name).write_bytes(bytes(SMALL.file_bytes if name.endswith("0") else 0))
    assert len(loaded(tmp_path).index_files) == 1
    assert len(os.listdir(tmp_path / "index")) == 1


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index/20200101000000000").write_bytes(b"\x07" * 5000)
    (tmp_path / "index/notes.txt").write_text("mine")
    index = loaded(tmp_path)
    assert index.ignored_files == ["20200101000000000", "notes.txt"]
    index.put(numbered(0, 3), 3)
    assert index.find("T", "2", 9, 0, EVER) == [2]


@pytest.mark.parametrize("end", [0, 1, 18, 19, 30, 49])
def test_a_log_that_ends_earlier_cuts_the_index(tmp_path: Path, end: int) -> None:
    whole = loaded(tmp_path / "whole")
    whole.put(numbered(0, end), end) if end else None
    index = loaded(tmp_path / "cut")
    index.put(numbered(0, 50), 50)
    synced(index)
    index = loaded(tmp_path / "cut")
    index.cut(end)
    assert index.position == end
    assert [data[40:] for data in map(_used, index.index_files)] == [
        data[40:] for data in map(_used, whole.index_files)
    ]
    again = loaded(tmp_path / "cut", clean=False)
    assert again.position == end, "the mark on disk does not speak of the lost part any more"


def _used(file: Any) -> bytes:
    end = file.shape.entries_at + file.header.next_number * 20
    return bytes(file.path.read_bytes()[:end])


def test_the_mark_never_speaks_of_what_the_log_may_lose(tmp_path: Path, index: MessageIndex) -> None:
    index.put(numbered(0, 10), 10)
    index.note_durable(10)
    index.put(numbered(10, 15), 15)
    index.note_durable(12)
    index.put(numbered(15, 17), 17)
    index.note_durable(14)
    job = index.begin_sync()
    assert job is not None
    assert index.begin_sync() is None, "one at a time"
    complete([job])
    assert loaded(tmp_path, clean=False).position == 10
    index.note_durable(17)
    synced(index)
    assert index.begin_sync() is None, "nothing new to say"


def test_names_ascend_whatever_the_clock_does(tmp_path: Path) -> None:
    times = iter([1_700_000_000_000, 1_600_000_000_000, 1_600_000_000_000, 1_800_000_000_000])
    index = MessageIndex(tmp_path / "index", tmp_path / "mark", OsFiles(), lambda: next(times), shape=SMALL)
    index.load(clean=True, safe_timestamp_ms=0)
    index.put(numbered(0, 60), 60)
    names = [file.name for file in index.index_files]
    assert names == sorted(set(names))
    assert [len(name) for name in names] == [17] * 4
    assert int(names[1]) == int(names[0]) + 1


# --- disk -----------------------------------------------------------------------------------------------------


def test_a_file_of_420_megabytes_costs_little_more_than_its_slots(tmp_path: Path) -> None:
    index = loaded(tmp_path, DEFAULT_SHAPE)
    index.put(numbered(0, 1000), 1000)
    status = index.index_files[0].path.stat()
    assert status.st_size == 420_000_040
    assert 20_000_000 < status.st_blocks * 512 < 20_300_000
    assert index.find("T", "999", 1, 0, EVER) == [999]


@pytest.mark.parametrize("then", [10, 2])
@pytest.mark.parametrize("after", range(8))
def test_a_full_disk_stops_the_index_until_there_is_room(tmp_path: Path, after: int, then: int) -> None:
    """It goes on with as many keys at once, or with fewer: how many depends on what else is done."""
    files, step = FaultyFiles(), 10
    index = made(tmp_path, files=files)
    index.load(clean=True, safe_timestamp_ms=0)
    files.fail("allocate", errno.ENOSPC, after)
    position, blocked = 0, 0
    while position < 100:
        try:
            index.put(numbered(position, position + step), position + step)
        except DiskFull:
            assert index.position == position
            blocked += 1
            files.heal()
            step = then
        else:
            position += step
    assert blocked == 1
    whole = loaded(tmp_path / "whole")
    whole.put(numbered(0, 100), 100)
    assert contents(index) == contents(whole)


def test_stores_go_into_allocated_ranges_only(tmp_path: Path, files: FaultyFiles) -> None:
    """Also in a file that RocketMQ left sparse, where a store into a hole could kill the process."""
    index = loaded(tmp_path)
    index.put(numbered(0, 5), 5)
    index = made(tmp_path, files=files)
    index.load(clean=True, safe_timestamp_ms=0)
    files.fail("allocate", errno.ENOSPC)
    before = contents(index)
    with pytest.raises(DiskFull):
        index.put(numbered(5, 7), 7)
    assert contents(index) == before


def test_a_failed_sync_ends_the_syncing_and_says_so(tmp_path: Path, files: FaultyFiles) -> None:
    index = made(tmp_path, files=files)
    index.load(clean=True, safe_timestamp_ms=0)
    index.put(numbered(0, 5), 5)
    index.note_durable(5)
    files.fail("sync", errno.EIO)
    job = index.begin_sync()
    assert job is not None
    complete([job])
    assert index.failed is not None
    assert "Input/output" in index.failed
    index.put(numbered(5, 7), 7)
    index.note_durable(7)
    assert index.begin_sync() is None


def test_a_job_unmaps_the_files_that_were_written(tmp_path: Path) -> None:
    budget = MapBudget()
    index = made(tmp_path, budget=budget)
    index.load(clean=True, safe_timestamp_ms=0)
    index.put(numbered(0, 19 * 10), 1_000)
    assert len(budget.unmapped) == 2, "a new file takes the place of the one that was used least recently"
    assert index.find("T", "3", 1, 0, EVER) == [3]
    assert len(budget.unmapped) == 4
    index.forget_before(19)
    assert len(budget.unmapped) == 4, "few pages of a file that was searched are in memory"
    assert budget.used_bytes == 7 * SMALL.file_bytes, "at most eight are mapped"


def test_files_that_speak_of_removed_records_only_are_removed(tmp_path: Path, index: MessageIndex) -> None:
    index.put(numbered(0, 50), 50)
    gone = [index.forget_before(end) for end in (0, 18, 19, 19, 1000)]
    assert list(map(len, gone)) == [0, 0, 1, 0, 1]
    assert {each.path for each in index.index_files}.isdisjoint(gone[2] + gone[4])
    for path in gone[2] + gone[4]:
        path.unlink()
    assert len(os.listdir(tmp_path / "index")) == 1
    assert index.find("T", "49", 1, 0, EVER) == [49]


def test_no_flipped_bit_in_the_first_header_stops_a_start(tmp_path: Path) -> None:
    """Every field that says where and when is compared with something; what contradicts it is built again."""
    store = opened(tmp_path, max_index_num=16)
    for number in range(40):
        put(store, "T", 0, b"%d" % number, b"KEYS\x01k%d" % number)
    flush(store)
    checkpoint(store)
    crash(store)
    first = min((tmp_path / "index").iterdir())
    content = first.read_bytes()
    for at in range(16, 32):
        first.write_bytes(content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :])
        store = opened(tmp_path, max_index_num=16)
        maintain(store)
        assert not [n for n in range(40) if asked(store, f"k{n}") != [b"%d" % n]], at
        crash(store)
        first = min((tmp_path / "index").glob("[0-9]*"))
        content = first.read_bytes()
