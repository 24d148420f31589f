"""A damaged generation of a compacted queue hides no message silently: who reads is told, and so is the health."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mqspark.errors import StoreUnreadable
from mqspark.store.compaction.compactedqueues import (
    COMPACTED,
    LOOK_MS,
    Current,
    GenerationWriter,
    adopt,
    publish,
    read_current,
)
from mqspark.store.disk.damage import LostOffsets, Outcome
from mqspark.store.disk.files import OsFiles, StrPath
from mqspark.store.tools.compactor import Compactor, CompactTask, TopicToCompact
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    QuickFiles,
    checkpoint,
    crash,
    drain,
    flush,
    make_store,
    opened,
    put,
    put_synced,
)

GENERATION = Path(COMPACTED) / "T" / "0"


def noise(data: bytes) -> bytes:
    return random.Random(5).randbytes(len(data))


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "current is empty": ("current", lambda data: b""),
    "current is random": ("current", noise),
    "current is another object": ("current", lambda data: b'{"generation": 1}'),
    "current is negative": ("current", lambda data: data.replace(b'"end": ', b'"end": -')),
    "current ends later": ("current", lambda data: data.replace(b'"end": 30', b'"end": 38')),
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


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def found_by_fsck(root: Path) -> list[str]:
    report = fsck(OfflineStore(make_store(root).config))
    return [finding.kind for finding in report.findings if finding.kind != "store.unclean"]


def test_a_directory_that_cannot_be_listed_now_leads_nobody_past_what_is_kept(
    compacted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, clock = QuickFiles(), ManualClock()
    store = opened(compacted, clock, files)
    put_synced(store, "U", 0, b"of the log")
    names = files.names

    def fail(path: StrPath) -> list[str]:
        if Path(path).name == COMPACTED:
            raise OSError(errno.EMFILE, "Too many open files")
        return names(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "names", fail)
        for _ in range(2):
            with pytest.raises(StoreUnreadable):
                store.reads.get("T", 0, 0, 1, 1 << 20)
    kept = [message.body for message in drain(store, "T", 0)]
    assert len(kept) == 20
    monkeypatch.setattr(files, "names", fail)
    clock.advance(2 * LOOK_MS)
    assert [message.body for message in drain(store, "T", 0)] == kept
    assert [message.body for message in drain(store, "U", 0)] == [b"of the log"]
    monkeypatch.undo()
    store.close()


def test_a_sound_one_is_served(compacted: Path) -> None:
    store = opened(compacted)
    assert [int(message.body) for message in drain(store, "T", 0)] == [*range(0, 30, 3), *range(30, 40)]
    store.close()
    assert found_by_fsck(compacted) == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_told(clock: ManualClock, compacted: Path, damage: str) -> None:
    name, change = DAMAGE[damage]
    path = compacted / GENERATION / name
    sound = path.read_bytes()
    path.write_bytes(change(sound))
    assert found_by_fsck(compacted) == ["compaction.damaged"]
    store = opened(compacted, clock)
    with pytest.raises(StoreUnreadable, match="damaged"):
        store.reads.get("T", 0, 0, 10, 1 << 20)
    assert "damaged" in (store.status.read_problem or "")
    assert store.offsets.min_offset("T", 0) == 0
    put_synced(store, "T", 0, b"goes on")

    path.write_bytes(sound)
    clock.advance(2000)
    checkpoint(store)
    assert store.status.read_problem is None
    assert len(drain(store, "T", 0)) == 21


@pytest.mark.parametrize("kind", ["size", "magic", "queue offset", "body", "topic"])
def test_a_damaged_record_is_left_out_and_told_and_those_behind_it_are_read(
    compacted: Path, kind: str
) -> None:
    path = compacted / GENERATION / "1.log"
    data = path.read_bytes()
    low = len(data) // 10 * 2
    place = {"size": 2, "magic": 6, "queue offset": 27, "body": 88, "topic": 90}[kind]
    path.write_bytes(flipped(data, low + place))
    assert found_by_fsck(compacted) == ["compaction.damaged"]
    store = opened(compacted)
    left = [number for number in (*range(0, 30, 3), *range(30, 40)) if number != 6]
    assert [int(message.body) for message in drain(store, "T", 0)] == left
    (damage,) = store.damages.found
    assert (damage.kind, damage.outcome) == ("compaction.damaged", Outcome.LOST)
    assert damage.queues == (LostOffsets("T", 0, 6, 7),)


@pytest.mark.parametrize("field", [0, 20])
def test_fsck_finds_an_entry_that_does_not_fit_its_record(compacted: Path, field: int) -> None:
    """An offset that is still between its neighbours, and a tags code."""
    path = compacted / GENERATION / "1.queue"
    path.write_bytes(flipped(path.read_bytes(), 28 * 2 + field))
    assert found_by_fsck(compacted) == ["compaction.damaged"]


@pytest.mark.parametrize(("field", "is_told"), [(5, True), (0, True), (9, False), (17, False)])
def test_an_entry_that_was_not_looked_at_leads_nobody_past_others(
    compacted: Path, monkeypatch: pytest.MonkeyPatch, field: int, is_told: bool
) -> None:
    """Only some entries of a long generation are looked at when it is opened."""
    monkeypatch.setattr("mqspark.store.compaction.compactedqueues._MAX_CHECKED", 2)
    path = compacted / GENERATION / "1.queue"
    data = bytearray(path.read_bytes())
    data[28 * 7 + field] ^= 0x10
    path.write_bytes(data)
    store = opened(compacted)
    if is_told:
        with pytest.raises(StoreUnreadable, match="out of order"):
            drain(store, "T", 0)
    else:
        left = [number for number in (*range(0, 30, 3), *range(30, 40)) if number != 21]
        assert [int(message.body) for message in drain(store, "T", 0)] == left
        assert [damage.queues for damage in store.damages.found] == [(LostOffsets("T", 0, 21, 22),)]


def next_generation(directory: Path, number: int) -> None:
    """What is kept is kept again."""
    files = OsFiles()
    paths = [directory / f"next.{kind}.tmp" for kind in ("log", "queue")]
    for path in paths:
        shutil.copy(directory / f"{number - 1}{path.suffixes[0]}", path)
    before = read_current(directory)
    assert before is not None
    adopt(directory, replace(before, generation=number), *paths, files)


@pytest.mark.parametrize("generations", [1, 3])
def test_a_lost_current_is_told_and_not_begun_anew(compacted: Path, generations: int) -> None:
    directory = compacted / GENERATION
    for number in range(2, generations + 1):
        next_generation(directory, number)
    (directory / "current").unlink()
    assert found_by_fsck(compacted) == ["compaction.damaged"]
    store = opened(compacted)
    with pytest.raises(StoreUnreadable, match=f"it is missing, and there is generation {generations}"):
        store.reads.get("T", 0, 0, 10, 1 << 20)
    report = Compactor(
        CompactTask(str(compacted), None, 1 << 40, [TopicToCompact("T")], 1 << 20, 1), QuickFiles()
    ).run()
    assert (report.failed, report.queues, report.compacted_to) == (1, 0, 0)
    store.close()
    assert (directory / f"{generations}.log").exists()


def test_an_older_current_is_told(compacted: Path) -> None:
    directory = compacted / GENERATION
    old = (directory / "current").read_bytes()
    next_generation(directory, 2)
    sound = (directory / "current").read_bytes()
    (directory / "current").write_bytes(old)
    with pytest.raises(OSError, match="describes generation 1, and there is generation 2"):
        read_current(directory)
    (directory / "current").write_bytes(sound)
    assert read_current(directory) is not None


def test_what_an_attempt_has_left_is_no_damage(compacted: Path) -> None:
    """A kill between the names of the files and that of ``current``."""
    directory = compacted / GENERATION
    (directory / "current.tmp").write_bytes(b"")
    for kind in ("log", "queue"):
        (directory / f"2.{kind}").write_bytes(b"unfinished")
    current = read_current(directory)
    assert current is not None
    publish(directory, current)  # as a cut does
    assert sorted(path.name for path in directory.iterdir()) == ["1.log", "1.queue", "current"]
    assert read_current(directory) == current
    # One from before there was a CRC.
    text, _, _ = (directory / "current").read_bytes().partition(b"\n")
    (directory / "current").write_bytes(text)
    assert read_current(directory) == current


@pytest.mark.parametrize("left", ["1.log", "1.queue", "current"])
def test_the_rest_of_a_deleted_topic_that_a_kill_left_is_removed(compacted: Path, left: str) -> None:
    store = opened(compacted)
    store.delete_topic("T")
    store.deletions.job().run()
    crash(store)
    for path in (compacted / GENERATION).iterdir():
        if path.name != left:
            path.unlink()
    store = opened(compacted)
    assert not (compacted / GENERATION).exists()
    put_synced(store, "T", 0, b"new")
    assert [message.body for message in drain(store, "T", 0)] == [b"new"]
