"""A log that begins later than retention has noted lost its first segments; one that retention shortened did not."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from mqspark.store.disk.damage import Outcome
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from tests.support.store_tools import RoomyFiles, leave, opened
from tests.unit.store.disk.test_retention import assert_serves_the_rest, expire, filled, run

SEGMENT = 4096


def found(store: object) -> list[tuple[str, str, int | None, int | None]]:
    return [
        (each.kind, each.outcome.value, each.offset, each.length)
        for each in store.damages.found  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("end", ["close", "crash"])
@pytest.mark.parametrize("after", ["a start", "retention"])
def test_lost_first_segments_are_told_from_deleted_ones(tmp_path: Path, after: str, end: str) -> None:
    store, written, files = filled(tmp_path)
    begin = 0
    if after == "retention":
        expire(store, files, 4)
        begin = 4 * SEGMENT
    run(store, files)
    assert store.log.min_offset == begin
    leave(store, killed=end == "crash")
    store = opened(tmp_path, files.clock, files)
    assert found(store) == []
    gone = [segment.path for segment in store.log.segments[:2]]
    store.close()
    for path in gone:
        path.unlink()
    config = store.config
    wanted = ("log.begin", Outcome.LOST.value, begin, 2 * SEGMENT)
    report = fsck(OfflineStore(config))
    assert [(each.kind, each.severity, each.offset, each.length) for each in report.findings] == [wanted]
    store = opened(tmp_path, files.clock, files)
    assert found(store) == [wanted]
    assert len(store.log_damage) == 0, "no reader is led there"
    assert_serves_the_rest(store, written)
    expire(store, files, 1)
    run(store, files)
    assert store.log.min_offset == begin + 3 * SEGMENT
    store.close()
    store = opened(tmp_path, files.clock, files)
    assert found(store) == [], "retention has come by"


@pytest.mark.parametrize("why", ["no note", "damaged note", "another broker"])
def test_what_is_not_known_is_not_told(tmp_path: Path, why: str) -> None:
    """A RocketMQ broker deletes without a note; it leaves another checkpoint."""
    store, _, files = filled(tmp_path)
    run(store, files)
    store.close()
    note = tmp_path / "mqspark.begin"
    if why == "no note":
        note.unlink()
    elif why == "damaged note":
        note.write_bytes(note.read_bytes().replace(b"0 ", b"1 "))
    else:
        path = tmp_path / "checkpoint"
        path.write_bytes(path.read_bytes()[:8] + bytes(8) + path.read_bytes()[16:])
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    for _ in range(2):
        store = opened(tmp_path, files.clock, files)
        assert [each for each in found(store) if each[0] == "log.begin"] == []
        store.close()


def test_an_older_note_beside_a_newer_log_says_what_is_missing(tmp_path: Path) -> None:
    """As after a backup without the log's files was restored: retention has deleted them, which nobody knows then."""
    store, _, files = filled(tmp_path)
    shutil.copy(tmp_path / "mqspark.begin", tmp_path / "older")
    expire(store, files, 1)
    run(store, files)
    store.close()
    (tmp_path / "older").rename(tmp_path / "mqspark.begin")
    store = opened(tmp_path, files.clock, files)
    assert found(store) == [("log.begin", "lost", 0, SEGMENT)]


class NoRoomForNotes(RoomyFiles):
    """A full disk: what is new, or larger than before, is not written."""

    is_full = False

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        if self.is_full and bytes(data[:14]) == b"mqspark-begin-":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, offset)


@pytest.mark.parametrize("when", ["before the first start", "before retention"])
def test_a_full_disk_keeps_neither_a_start_nor_retention_from_their_work(tmp_path: Path, when: str) -> None:
    """Only retention makes room again."""
    store, written, files = filled(tmp_path, NoRoomForNotes)
    run(store, files)
    if when == "before the first start":
        store.close()
        (tmp_path / "mqspark.begin").unlink()
        files.is_full = True
        store = opened(tmp_path, files.clock, files)
    files.is_full = True
    expire(store, files, 3)
    run(store, files)
    assert store.log.min_offset == 3 * SEGMENT
    assert_serves_the_rest(store, written)
    store.close()
    files.is_full = False
    store = opened(tmp_path, files.clock, files)
    assert found(store) == [], "an old note would tell of lost segments"
