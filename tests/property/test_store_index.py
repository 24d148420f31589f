"""The vectorised index against the plain one: RocketMQ's steps for one key after the other."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.message import decode_properties
from mqspark.record.record import encode_record
from mqspark.store.disk.files import OsFiles
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexfile import Shape
from mqspark.store.index.keys import KeyColumns, index_hash, run_keys, tag_key
from mqspark.store.log.scan import read_run
from tests.support.draws import draws

SHAPE = Shape(7, 12)


class PlainFile:
    """IndexFile.putKey and selectPhyOffset, step by step (docs/rocketmq/store.md#index)."""

    def __init__(self, end_position: int, end_ms: int) -> None:
        self.begin_ms = self.end_ms = end_ms
        self.begin_position = self.end_position = end_position
        self.used, self.count = 0, 1
        self.slots = [0] * SHAPE.slots
        self.entries = [(0, 0, 0, 0)] * SHAPE.entries

    def put(self, key_hash: int, position: int, now_ms: int) -> bool:
        if self.count >= SHAPE.entries:
            return False
        slot = key_hash % SHAPE.slots
        seconds = min(max((now_ms - self.begin_ms) // 1000, 0), 0x7FFFFFFF) if self.begin_ms > 0 else 0
        self.entries[self.count] = (key_hash, position, seconds, self.slots[slot])
        self.used += self.slots[slot] == 0
        self.slots[slot] = self.count
        if self.count == 1:
            self.begin_position, self.begin_ms = position, now_ms
        self.count += 1
        self.end_position, self.end_ms = position, now_ms
        return True

    def encode(self) -> bytes:
        return (
            struct.pack(
                ">qqqqii",
                self.begin_ms,
                self.end_ms,
                self.begin_position,
                self.end_position,
                self.used,
                self.count,
            )
            + struct.pack(f">{SHAPE.slots}i", *self.slots)
            + b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        )

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> list[int]:
        found = []
        number = self.slots[key_hash % SHAPE.slots]
        while number > 0:
            entry_hash, position, seconds, number = self.entries[number]
            time_ms = self.begin_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms <= time_ms <= end_ms:
                found.append(position)
            if time_ms < begin_ms:
                break
        return found


HASHES = st.sampled_from([0, 1, 2, 7, 8, 14, 700, 0x7FFFFFFF])
GROUPS = st.lists(st.lists(st.tuples(HASHES, st.integers(-900, 5000)), max_size=30), max_size=6)


@given(groups=GROUPS, begin_ms=st.integers(0, 200_000), span_ms=st.integers(0, 200_000))
@settings(max_examples=draws(150))
def test_files_and_answers_are_those_of_one_key_after_the_other(
    groups: list[list[tuple[int, int]]], begin_ms: int, span_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        index = MessageIndex(root / "index", root / "mark", OsFiles(), lambda: 1_700_000_000_000, shape=SHAPE)
        index.load(clean=True, safe_timestamp_ms=0)
        plain: list[PlainFile] = []
        position, now_ms = 0, 1000
        for group in groups:
            rows = []
            for key_hash, step_ms in group:
                position, now_ms = position + 100, max(now_ms + step_ms, 1)
                rows.append((key_hash, position, now_ms))
                if not plain or not plain[-1].put(key_hash, position, now_ms):
                    last = plain[-1] if plain else None
                    plain.append(PlainFile(last.end_position if last else 0, last.end_ms if last else 0))
                    assert plain[-1].put(key_hash, position, now_ms)
            index.put(KeyColumns(*np.array(rows, dtype=np.int64).reshape(-1, 3).T), position + 1)
        assert [file.path.read_bytes() for file in index.index_files] == [file.encode() for file in plain]
        for file, expected in zip(index.index_files, plain, strict=True):
            for key_hash in (0, 1, 7, 700, 3):
                for limit in (1, 100):
                    answer = file.find(key_hash, limit, begin_ms, begin_ms + span_ms)
                    assert answer == expected.find(key_hash, begin_ms, begin_ms + span_ms)[:limit]


NAMES = st.sampled_from(["KEYS", "UNIQ_KEY", "TAGS", "XKEYS", "KEYS2", "U", "EY", "XUNIQ_KEY"])
VALUES = st.text(st.sampled_from(" ab#é键🚀\x01"), max_size=12)
PROPERTIES = st.lists(st.tuples(NAMES, VALUES), max_size=6)


@given(
    records=st.lists(
        st.tuples(st.sampled_from(["T", "topic", "t" * 140]), PROPERTIES, st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_keys_are_those_of_the_decoded_properties(
    records: list[tuple[str, list[tuple[str, str]], bool]],
) -> None:
    data = b""
    expected, untagged = [], []
    for topic, pairs, is_terminated in records:
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + "\x02" * is_terminated
        properties = decode_properties(text)
        keys = (properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" "))
        if properties.get("TAGS"):
            keys += (tag_key(properties["TAGS"]),)
        expected += [(len(data), index_hash(topic, key)) for key in keys if key]
        untagged += [(len(data), index_hash(topic, key)) for key in keys if key and not key.startswith("T#")]
        data += encode_record(
            topic=topic,
            body=text.encode()[:9],
            properties=text.encode(),
            physical_offset=len(data),
            store_timestamp_ms=1,
        )
    if not records:
        return
    run = read_run(memoryview(data), 0, len(data), 0, verify_crc=False, min_records=1)
    assert run is not None
    assert (run.end, len(run.positions)) == (len(data), len(records))
    found = run_keys(run)
    assert list(zip(found.positions.tolist(), found.hashes.tolist(), strict=True)) == expected
    found = run_keys(run, tags=False)
    assert list(zip(found.positions.tolist(), found.hashes.tolist(), strict=True)) == untagged


@given(
    data=st.binary(max_size=400),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
)
def test_no_bytes_break_the_reader_of_keys(data: bytes, flips: list[tuple[int, int]]) -> None:
    record = encode_record(topic="T", body=b"body", properties=b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02")
    noisy = bytearray(record + data + record * 3)
    for at, value in flips:
        noisy[at % len(noisy)] = value
    run = read_run(memoryview(noisy), 0, len(noisy), 0, verify_crc=False, min_records=1)
    if run is not None:
        assert 0 < run.end <= len(noisy)
        assert set(run_keys(run).positions.tolist()) <= set(run.positions.tolist())
