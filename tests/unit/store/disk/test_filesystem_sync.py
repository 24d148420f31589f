"""A checkpoint of many queues: one sync of the file system, and syncs of files where that is not enough."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.store.disk import diskjobs, filesystemsync
from mqspark.store.disk.diskjobs import CheckpointJob
from mqspark.store.disk.files import OsFiles, StrPath
from mqspark.store.disk.filesystemsync import FilesystemSync, filesystem_sync
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.checkpoint import Checkpoint
from tests.support.store_tools import QuickFiles, checkpoint, complete, make_store, put
from tests.support.store_tools import flush as flush_store

EXT4, TMPFS = 0xEF53, 0x01021994


class CountedFiles(OsFiles):
    """Which files and directories are synced one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync(self, fd: int) -> None:
        self.synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    def sync_directory(self, path: StrPath) -> None:
        self.synced.append(str(path))


class ScriptedFilesystem(FilesystemSync):
    """Has all paths but those that end with "elsewhere"."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.syncs = 0

    def has(self, path: StrPath) -> bool:
        return not str(path).endswith("elsewhere")

    def sync(self) -> None:
        self.syncs += 1
        if self.error is not None:
            raise self.error


def checkpoint_of(
    root: Path, count: int, filesystem: FilesystemSync | None, *more: str
) -> tuple[list[str], set[str]]:
    """The syncs of a checkpoint of so many files, and the files."""
    names = [*(f"q{number}" for number in range(count)), *more]
    paths = [str(root / name) for name in names]
    for path in paths:
        Path(path).touch()
    files = CountedFiles()
    finished: list[CheckpointJob] = []
    job = CheckpointJob(
        files, StorePaths(root), Checkpoint(), {*paths, str(root / "deleted")}, {str(root)}, finished.append,
        filesystem=filesystem,
    )  # fmt: skip
    complete([job])
    assert job.error is None
    assert finished == [job]
    own = {*paths, str(root)}
    return [path for path in files.synced if path in own], own


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(diskjobs, "_MANY_FILES", 5)
    return 5


def test_many_files_are_synced_together(tmp_path: Path, many: int) -> None:
    filesystem = ScriptedFilesystem()
    synced, _ = checkpoint_of(tmp_path, many, filesystem, "elsewhere")
    # The checkpoint itself is written afterwards, and syncs its directory.
    assert [path for path in synced if path != str(tmp_path)] == [str(tmp_path / "elsewhere")]
    assert filesystem.syncs == 1


def test_few_files_are_synced_one_by_one(tmp_path: Path, many: int) -> None:
    filesystem = ScriptedFilesystem()
    synced, own = checkpoint_of(tmp_path, many - 3, filesystem)
    assert set(synced) == own
    assert filesystem.syncs == 0
    synced, own = checkpoint_of(tmp_path, many, None)
    assert set(synced) == own


def test_after_a_failure_each_file_says_whether_it_failed(tmp_path: Path, many: int) -> None:
    filesystem = ScriptedFilesystem(OSError(errno.EIO, "a file of somebody else"))
    synced, own = checkpoint_of(tmp_path, many, filesystem)
    assert set(synced) == own
    assert filesystem.syncs == 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The kind of every file system, and the error of the next syncs."""
    answers = {"kind": EXT4, "error": 0}

    class Library:
        def __init__(self, *_: object, **__: object) -> None:
            """As CDLL."""

        def fstatfs(self, fd: int, described: Any) -> int:
            os.fstat(fd)
            described[:8] = answers["kind"].to_bytes(8, "little")
            return 0

        def syncfs(self, fd: int) -> int:
            os.fstat(fd)
            ctypes.set_errno(answers["error"])
            return -1 if answers["error"] else 0

    monkeypatch.setattr(filesystemsync.ctypes, "CDLL", Library)
    monkeypatch.setattr(filesystemsync.platform, "release", lambda: "6.1.0-13-amd64")
    return answers


def test_what_a_file_system_says(
    tmp_path: Path, library: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.freeze()  # what is other tests' is theirs
    before = len(os.listdir("/proc/self/fd"))
    found = filesystem_sync(OsFiles(), tmp_path)
    assert found is not None
    assert found.has(tmp_path)
    assert not found.has(tmp_path / "missing")
    assert not found.has("/proc/self")
    (tmp_path / "moved").symlink_to("/proc")  # a directory that an operator has moved to another disk
    assert not found.has(tmp_path / "moved")
    found.sync()
    library["error"] = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        found.sync()
    library["error"] = 0
    with monkeypatch.context() as patched:
        described = SimpleNamespace(f_flag=os.ST_RDONLY)
        patched.setattr(filesystemsync.os, "fstatvfs", lambda _: described)
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            found.sync()
    found.sync()
    del found
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_it_is_not_used(
    tmp_path: Path, library: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filesystem_sync(QuickFiles(), tmp_path) is None
    library["kind"] = TMPFS
    assert filesystem_sync(OsFiles(), tmp_path) is None
    library["kind"] = EXT4
    for release, is_used in (
        ("5.8.0", True),
        ("10.0", True),
        ("5.7.19", False),
        ("4.18.0", False),
        ("?", False),
    ):
        monkeypatch.setattr(filesystemsync.platform, "release", lambda release=release: release)
        assert (filesystem_sync(OsFiles(), tmp_path) is not None) is is_used, release


def test_a_store_with_many_queues(tmp_path: Path, library: dict[str, int], many: int) -> None:
    """It is closed and opened again: its checkpoint is one of all queues."""
    for turn in range(2):
        store = make_store(tmp_path / "store", files=OsFiles())
        report = store.open()
        assert (report.clean, report.lost_entries) == (True, 0)
        for number in range(2 * many):
            put(store, f"T{number}", 0, b"body")
        flush_store(store)
        checkpoint(store)
        assert {store.offsets.max_offset(f"T{number}", 0) for number in range(2 * many)} == {turn + 1}
        store.close()
