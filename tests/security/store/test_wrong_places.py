"""Files of a store that hold what belongs elsewhere, as a file system leaves it that has lost track of its blocks: no
message that the log has is skipped, not even by the consumer that comes first."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from mqspark.store import MessageStore
from mqspark.store.disk.damage import LostOffsets
from mqspark.store.disk.notes.archivednote import encode_archived
from mqspark.store.index.indexfile import HEADER_BYTES, Shape
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.storestats import store_stats
from tests.support.store_tools import checkpoint, crash, drain, flush, make_store, opened, put, query
from tests.unit.store.queue.test_store_batch import SMALL
from tests.unit.store.queue.test_store_batch import fill as fill_batches

MESSAGES = 60
FILES = 6
BATCH_FILES = 5
QUEUE_OFFSET_AT = 20
"""In a record."""


def queue_file(root: Path, topic: str, number: int) -> Path:
    return root / "consumequeue" / topic / "0" / f"{number * 200:020d}"


def batch_file(root: Path, number: int) -> Path:
    return (
        root
        / "batchconsumequeue"
        / "B"
        / "0"
        / f"{number * SMALL['mapper_file_size_batch_consume_queue']:020d}"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two queues whose records have the same sizes, offsets and queue id."""
    store = opened(tmp_path)
    for number in range(MESSAGES):
        for topic in ("T", "U"):
            put(store, topic, 0, b"%s%02d" % (topic.encode(), number), b"KEYS\x01k%02d\x02" % number)
    flush(store)
    store.close()
    return tmp_path


def consumed(store: MessageStore, topic: str) -> list[bytes]:
    return [message.body for message in drain(store, topic, 0)]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(("source", "target"), [(4, 2), (FILES - 1, 0), (0, 3), (1, FILES - 1)])
def test_a_queue_has_one_of_its_files_twice(root: Path, source: int, target: int, is_killed: bool) -> None:
    shutil.copy(queue_file(root, "T", source), queue_file(root, "T", target))
    if is_killed:
        (root / "abort").write_bytes(b"")
    store = opened(root)
    assert consumed(store, "T") == [b"T%02d" % number for number in range(MESSAGES)]
    assert {damage.outcome for damage in store.damages.found} == {"healed"}
    assert put(store, "T", 0, b"x")[0] == MESSAGES


@pytest.mark.parametrize("numbers", [[3], [FILES - 1], list(range(FILES))])
def test_a_queue_has_files_of_another(root: Path, numbers: list[int]) -> None:
    for number in numbers:
        shutil.copy(queue_file(root, "U", number), queue_file(root, "T", number))
    store = opened(root)
    assert consumed(store, "T") == [b"T%02d" % number for number in range(MESSAGES)]
    assert {damage.kind for damage in store.damages.found} == {"queue.differs"}
    assert consumed(store, "U") == [b"U%02d" % number for number in range(MESSAGES)]


@pytest.mark.parametrize(("source", "target"), [(4, 3), (4, 2), (3, 0), (1, 3), (0, 4)])
def test_a_batch_queue_has_one_of_its_files_twice(tmp_path: Path, source: int, target: int) -> None:
    store = opened(tmp_path, **SMALL)
    bodies = fill_batches(store, 4 * BATCH_FILES)
    store.close()
    shutil.copy(batch_file(tmp_path, source), batch_file(tmp_path, target))
    store = opened(tmp_path, **SMALL)
    assert consumed(store, "B") == bodies
    assert {damage.outcome for damage in store.damages.found} == {"healed"}
    assert put(store, "B", 0, b"x")[0] == len(bodies)
    store.close()


def test_a_segment_that_ends_in_the_head_of_a_record_is_read_on_behind_it(root: Path) -> None:
    """The map of the file ends there, too."""
    path = root / "commitlog" / f"{4096:020d}"
    data = path.read_bytes()
    whole = fsck(OfflineStore(make_store(root).config)).records
    lost = data.index(b"T30") - 88  # where its record begins
    for length in (lost + 8, lost + 30, lost + 87):
        os.truncate(path, length)
        store = opened(root)
        found = consumed(store, "T")
        assert b"T29" in found
        assert b"T30" not in found
        assert found[-1] == b"T%02d" % (MESSAGES - 1)
        assert {damage.kind for damage in store.damages.found} >= {"log.segment-length"}
        store.abandon()
        path.write_bytes(data)
    assert fsck(OfflineStore(make_store(root).config)).records == whole


def test_a_flipped_offset_of_the_last_record_costs_this_record(tmp_path: Path) -> None:
    """Far behind the start of the log it is possible that a queue has half a billion more offsets."""
    begin = 4096 * 25_000_000
    store = opened(tmp_path)
    store.upkeep.begin_note.save(begin)
    store.log.restart_at(begin)
    for number in range(5):
        put(store, "T", 0, b"%d" % number)
    flush(store)
    checkpoint(store)
    _, position, _ = put(store, "T", 0, b"5")
    put(store, "U", 0, b"other")
    flush(store)
    crash(store)
    path = tmp_path / "commitlog" / f"{begin:020d}"
    data = bytearray(path.read_bytes())
    data[position - begin + QUEUE_OFFSET_AT + 4] ^= 0x20
    path.write_bytes(data)
    store = opened(tmp_path)
    assert consumed(store, "T") == [b"%d" % number for number in range(5)]
    assert consumed(store, "U") == [b"other"]
    (damage,) = store.damages.found
    assert (damage.kind, damage.queues) == ("queue.lost-record", (LostOffsets("T", 0, 5, 6),))
    assert put(store, "T", 0, b"next")[0] == 6


@pytest.mark.parametrize(("source", "target"), [(3, 1), (3, 0), (1, 2), (2, 3)])
def test_an_index_has_one_of_its_files_twice(root: Path, source: int, target: int) -> None:
    names = sorted(path.name for path in (root / "index").iterdir())
    shutil.copy(root / "index" / names[source], root / "index" / names[target])
    store = opened(root)
    for number in range(MESSAGES):
        (found,) = query(store, "T", f"k{number:02d}", 5, 0, 1 << 60)
        assert b"T%02d" % number in bytes(found)
    assert {(damage.kind, damage.outcome) for damage in store.damages.found} == {("index.damaged", "healed")}


def test_fsck_finds_a_slot_and_an_entry_that_lead_to_another_chain(root: Path) -> None:
    """To entries that are there."""
    path = min((root / "index").iterdir())
    data = path.read_bytes()
    shape = Shape(16, 32)
    slots = np.frombuffer(data, ">i4", shape.slots, HEADER_BYTES)
    slot = int(np.argmax(slots == slots.max()))
    entry_at = shape.entries_at + 20 * int(slots[slot])
    for at, kind in ((HEADER_BYTES + 4 * slot, "index.slot"), (entry_at + 16, "index.chain")):
        changed = bytearray(data)
        (before,) = struct.unpack_from(">i", data, at)
        struct.pack_into(">i", changed, at, before - 1 if before > 1 else before + 1)
        path.write_bytes(changed)
        report = fsck(OfflineStore(make_store(root).config))
        assert [finding.kind for finding in report.findings] == [kind]
    path.write_bytes(data)
    assert fsck(OfflineStore(make_store(root).config)).findings == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_small_files_of_the_store_have_the_content_of_each_other(root: Path, is_killed: bool) -> None:
    names = ("checkpoint", "mqspark.checkpoint", "mqspark.ends", "mqspark.index")
    contents = {name: (root / name).read_bytes() for name in names}
    segment = (root / "commitlog" / f"{0:020d}").read_bytes()
    contents |= {"a segment": segment[:4096], "archived": encode_archived(1 << 40)}
    for target, sound in contents.items():
        for source, other in contents.items():
            if target not in names or source == target:
                continue
            (root / target).write_bytes(other)
            if is_killed:
                (root / "abort").write_bytes(b"")
            store_stats(OfflineStore(make_store(root).config))
            store = opened(root)
            assert len(consumed(store, "T")) == MESSAGES, (source, target)
            (found,) = query(store, "T", "k07", 5, 0, 1 << 60)
            assert b"T07" in bytes(found)
            store.abandon()
            (root / "abort").unlink()
            for name in names:
                (root / name).write_bytes(contents[name])
            assert (root / target).read_bytes() == sound
