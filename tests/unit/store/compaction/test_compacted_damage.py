"""A damaged generation of a compacted queue hides no message silently: who reads is told, and so is the health."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.errors import StoreUnreadable
from mqspark.store.compaction.compacted import COMPACTED, Current, GenerationWriter, publish
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offline import OfflineStore
from tests.support.store_tools import TestClock, checkpoint, drain, flush, make_store, opened, put

GENERATION = Path(COMPACTED) / "T" / "0"


def noise(data: bytes) -> bytes:
    return random.Random(5).randbytes(len(data))


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "current is empty": ("current", lambda data: b""),
    "current is random": ("current", noise),
    "current is another object": ("current", lambda data: b'{"generation": 1}'),
    "current is negative": ("current", lambda data: data.replace(b'"end": ', b'"end": -')),
    "entries are cut": ("1.queue", lambda data: data[:-28]),
    "an entry is cut": ("1.queue", lambda data: data[:-3]),
    "entries are zero": ("1.queue", lambda data: bytes(len(data))),
    "entries are random": ("1.queue", noise),
    "an entry is flipped": ("1.queue", lambda data: data[:40] + bytes([data[40] ^ 0x20]) + data[41:]),
    "records are cut": ("1.log", lambda data: data[:-1]),
    "records are gone": ("1.log", lambda data: b""),
}


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    """A store whose first 30 messages are compacted: every third is kept."""
    store = opened(tmp_path)
    for number in range(40):
        put(store, "T", 0, b"%d" % number)
    flush(store)
    writer = GenerationWriter(tmp_path / GENERATION, "1")
    for offset in range(0, 30, 3):
        result = store.reads.get("T", 0, offset, 1, 1 << 20)
        writer.append(bytes(result.buffers[0]), offset, 0)
    writer.finish()
    for kind in ("log", "queue"):
        (tmp_path / GENERATION / f"1.{kind}.tmp").rename(tmp_path / GENERATION / f"1.{kind}")
    publish(tmp_path / GENERATION, Current(1, 30, writer.messages, writer.size_bytes))
    store.close()
    return tmp_path


def found_by_fsck(root: Path) -> list[str]:
    report = fsck(OfflineStore(make_store(root).config))
    return [finding.kind for finding in report.findings if finding.kind != "store.unclean"]


def test_a_sound_one_is_served(compacted: Path) -> None:
    store = opened(compacted)
    assert [int(message.body) for message in drain(store, "T", 0)] == [*range(0, 30, 3), *range(30, 40)]
    store.close()
    assert found_by_fsck(compacted) == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_told(compacted: Path, damage: str) -> None:
    name, change = DAMAGE[damage]
    path = compacted / GENERATION / name
    sound = path.read_bytes()
    path.write_bytes(change(sound))
    assert found_by_fsck(compacted) == ["compaction.damaged"]
    clock = TestClock()
    store = opened(compacted, clock)
    with pytest.raises(StoreUnreadable, match="damaged"):
        store.reads.get("T", 0, 0, 10, 1 << 20)
    assert "damaged" in (store.status.read_problem or "")
    assert store.offsets.min_offset("T", 0) == 0
    put(store, "T", 0, b"goes on")
    flush(store)

    path.write_bytes(sound)
    clock.now += 2000
    checkpoint(store)
    assert store.status.read_problem is None
    assert len(drain(store, "T", 0)) == 21
    store.close()
