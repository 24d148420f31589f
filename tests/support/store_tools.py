"""Small helpers for the tests of the store."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from mqspark.message import MessageExt, encode_host
from mqspark.record.record import PendingRecord, decode_records, tags_code
from mqspark.store import (
    FileLayer,
    FlushDiskType,
    GetStatus,
    MessageStore,
    OsFiles,
    RecoveryReport,
    StoreConfig,
)
from mqspark.store.disk.diskjobs import Job
from mqspark.store.disk.files import StrPath
from mqspark.store.disk.kernelsync import KernelSync
from mqspark.store.disk.retention import DiskUsage, OldSegment
from mqspark.store.index.keys import Sought
from tests.support import leftopen
from tests.support.clocks import ManualClock
from tests.support.slices import sliced

BORN_HOST = encode_host("10.0.0.1", 50000)
STORE_HOST = encode_host("127.0.0.1", 10911)


def make_store(
    root: Path,
    clock: ManualClock | None = None,
    files: FileLayer | None = None,
    *,
    sync: bool = False,
    **settings: Any,
) -> MessageStore:
    """A store with small files, so that every test rolls over. The fill level of this machine's disk does not matter.

    Nothing is synced unless ``files`` does so: these tests do not cut the power, and syncs would only slow them down.
    Unless ``files`` may fail, it is closed when the test is over.
    """
    config = StoreConfig(
        **{
            "store_path_root_dir": str(root),
            "mapped_file_size_commit_log": 4096,
            "mapped_file_size_consume_queue": 200,
            "max_hash_slot_num": 16,
            "max_index_num": 32,
            "disk_max_used_space_ratio": 100,
            "disk_space_clean_forcibly_ratio": 100,
            "disk_space_warning_level_ratio": 100,
            "flush_disk_type": FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
            **settings,
        }
    )
    kind = _KeptStore if files is None or isinstance(files, RoomyFiles) else MessageStore
    return kind(config, clock or ManualClock(), store_host=STORE_HOST, files=files or QuickFiles())


class _KeptStore(MessageStore):
    def open(self) -> RecoveryReport:
        report = super().open()
        leftopen.opened(self)
        return report

    def leave(self) -> None:
        if self.condition.read_only is None:
            self.close()
        else:
            self.abandon()

    def close(self) -> None:
        leftopen.closed(self)
        super().close()

    def abandon(self) -> None:
        leftopen.closed(self)
        super().abandon()


def copy_store(source: Path, target: Path) -> Path:
    """A copy that keeps holes in files: a timer wheel has 37 MB, nearly all of them a hole."""
    shutil.copytree(source, target, copy_function=_copy_file)
    return target


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as old, open(target, "wb") as new:
        size, position = os.fstat(old.fileno()).st_size, 0
        new.truncate(size)
        while position < size:
            try:
                position = os.lseek(old.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data from here on
                    break
                raise
            end = os.lseek(old.fileno(), position, os.SEEK_HOLE)
            new.seek(position)
            while position < end:
                part = os.pread(old.fileno(), min(end - position, 1 << 20), position)
                new.write(part)
                position += len(part)
    shutil.copystat(source, target)


def opened(root: Path, *args: Any, **settings: Any) -> MessageStore:
    store = make_store(root, *args, **settings)
    store.open()
    return store


def pending(
    topic: str = "T", queue_id: int = 0, body: bytes = b"", properties: bytes = b"", **more: Any
) -> PendingRecord:
    more = {"tags_code": tags_code(properties), "born_timestamp_ms": 1, "born_host": BORN_HOST, **more}
    return PendingRecord(topic=topic, queue_id=queue_id, body=body, properties=properties, **more)


def put(
    store: MessageStore, topic: str, queue_id: int, body: bytes, properties: bytes = b"", **more: Any
) -> tuple[int, int, int]:
    return store.appender.put(pending(topic, queue_id, body, properties, **more))


def flush(store: MessageStore) -> list[tuple[str, int, int]]:
    """Commit and sync; returns everything that became visible."""
    arrivals = store.pipeline.commit().arrivals
    job = store.pipeline.begin_flush()
    if job is not None:
        job.run()
        arrivals += store.pipeline.end_flush(job).arrivals
    return arrivals


def put_synced(store: MessageStore, *args: Any, **more: Any) -> None:
    put(store, *args, **more)
    flush(store)


def checkpoint(store: MessageStore) -> None:
    finish_deletions(store)
    complete(maintain(store))


def maintain(store: MessageStore) -> list[Job]:
    """The jobs that are due, and what a broker does in its loop meanwhile."""
    jobs = store.maintenance()
    for _ in store.follow_with_index():
        pass
    return jobs


def complete(jobs: Iterable[Job]) -> None:
    """Run each job and take its result, as a server between its turns."""
    for job in jobs:
        job.run()
        job.done()


def finish_deletions(store: MessageStore) -> None:
    """Complete deletions, so that no crash brings a deleted topic back."""
    if store.deletions.behind:
        complete([store.deletions.job()])


def drain(
    store: MessageStore, topic: str, queue_id: int, *, begin: int = 0, **limits: Any
) -> list[MessageExt]:
    """All visible messages from ``begin`` on, read in order as a consumer does."""
    messages: list[MessageExt] = []
    offset = max(store.offsets.min_offset(topic, queue_id), begin)
    limits = {"max_messages": 32, "max_bytes": 1 << 20, **limits}
    while True:
        result = store.reads.get(topic, queue_id, offset, **limits)
        if result.status is GetStatus.FOUND:
            found = decode_records(b"".join(result.buffers), decompress=False)
            assert len(found) == result.count
            messages += found
        elif result.status not in (GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE):
            return messages
        assert result.next_offset > offset
        offset = result.next_offset


def crash(store: MessageStore) -> None:
    """End a store as SIGKILL does: nothing more is written, the lock is released, ``abort`` stays."""
    store.abandon()


def leave(store: MessageStore, *, killed: bool) -> None:
    if killed:
        crash(store)
    else:
        store.close()


class QuickFiles(OsFiles):
    """Files that are never synced: for tests that do not cut the power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: StrPath) -> None:
        pass


class RoomyFiles(QuickFiles):
    """A disk with a fill level, and segments with an age, that the test sets."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.used_percent = 10.0
        self.expired: set[str] = set()
        """Names of segments that count as old; all others count as new."""
        self.segment_bytes = 0
        """Disk space freed by removing a segment, in hundredths of a percent."""
        self.unlinks_left = -1
        """Number of segments that can be removed before a removal fails; negative: unlimited."""
        self.kept = False
        """Whether a removal has failed."""

    def disk(self, path: StrPath) -> tuple[int, DiskUsage]:
        used = round(self.used_percent * 100)
        return 1, DiskUsage(used, 10_000 - used)

    def age(self, path: StrPath) -> OldSegment:
        hours = 1000 if Path(path).name in self.expired else 0
        return OldSegment(self.clock.now_ms() - hours * 3_600_000, self.segment_bytes)

    def remove(self, path: StrPath) -> None:
        if Path(path).parent.name == "commitlog":
            if not self.unlinks_left:
                self.kept = True
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            self.unlinks_left -= 1
        super().remove(path)


class FaultyFiles(QuickFiles):
    """Files whose operations fail on demand and are recorded."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.faults: dict[str, Callable[[], None]] = {}

    def fail(self, verb: str, error: int, after: int = 0, *, for_ever: bool = True) -> None:
        """The call of ``verb`` after the next ``after`` ones (and, ``for_ever``, all that follow) raise."""
        left = [after]

        def fault() -> None:
            left[0] -= 1
            if left[0] == -1 or (left[0] < -1 and for_ever):
                raise OSError(error, os.strerror(error))

        self.faults[verb] = fault

    def heal(self) -> None:
        self.faults.clear()

    def _note(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.faults:
            self.faults[verb]()

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._note("write")
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._note("sync")

    def sync_directory(self, path: StrPath) -> None:
        self._note("sync_directory")

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._note("allocate")
        super().allocate(fd, offset, length)

    def set_length(self, fd: int, length: int) -> None:
        self._note("set_length")
        super().set_length(fd, length)

    def open(self, path: StrPath, *, create: bool = False) -> int:
        self._note("create" if create else "open")
        return super().open(path, create=create)

    def open_read(self, path: StrPath) -> int:
        self._note("open_read")
        return super().open_read(path)

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        self._note("map_read")
        return super().map_read(fd, length)

    def map_write(self, fd: int, length: int) -> mmap.mmap:
        self._note("map_write")
        return super().map_write(fd, length)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._note("rename")
        super().rename(source, target)


def kernel_sync() -> KernelSync:
    """The kernel's asynchronous sync. Skips the test where there is none."""
    try:
        return KernelSync()
    except OSError as error:
        pytest.skip(f"this machine's kernel does not sync by itself: {error}")


def clean(store: MessageStore, clock: ManualClock) -> int:
    """Remove what has expired; where the log begins then."""
    store.clean_expired()
    checkpoint(store)
    clock.advance(10_000)
    for _ in range(3):
        checkpoint(store)
    return store.log.min_offset


def query(
    store: MessageStore,
    topic: str,
    key: str,
    max_num: int,
    begin_ms: int,
    end_ms: int,
    *,
    is_tag: bool = False,
) -> list[memoryview]:
    """``search`` in one go."""
    return sliced(store.reads.search(Sought(topic, key, is_tag=is_tag), max_num, begin_ms, end_ms))[0]
