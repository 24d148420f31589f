"""The only way the store touches a disk: a few verbs, so that a test can record, refuse or lose them.

Why no SIGBUS is possible for want of space. A process dies with SIGBUS when it touches a page of a mapping
that the file system cannot back. The store maps files in two ways only:

* CommitLog segments read-only, and it never looks past the position that ``write`` has returned for
  (recovery: past ``data_ranges``). Those pages exist: ``pwritev`` made them, and it reports a full disk as
  ENOSPC.
* ConsumeQueue files writable, and it never stores outside a range for which ``allocate`` has returned.
  ``posix_fallocate`` reserves real blocks (or writes zeros where the file system has no such call) and
  reports a full disk as ENOSPC before anything was accepted.

No file is ever made shorter while it is mapped: a cut is done with zeros. What is left is what no user of
mappings can exclude: a medium that fails to read back a page, or another program that truncates the files.
``tests/crash/test_full_disk.py`` fills a real disk below a store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mqspark.errors import DiskFull, NoResources, StoreLocked, is_shortage
from mqspark.store.retention import DiskUsage, OldSegment

__all__ = [
    "FileLayer",
    "OsFiles",
    "StrPath",
    "descriptor_limit",
    "disk_full_as_typed",
    "failed_sync",
    "is_disk_full",
    "memory_bytes",
]

StrPath = str | Path

_PIECE_BYTES = 64 << 10
_MAX_PIECES = 256
"""Read ahead into the same bytes again and again, which stay in the processor's cache: 16 MiB a call."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def descriptor_limit() -> int:
    """How many files this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 20


def memory_bytes() -> int:
    """The machine's memory, most of which caches files."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def disk_full_as_typed(what: str) -> Iterator[None]:
    """ENOSPC and EDQUOT become DiskFull, want of descriptors and memory NoResources; every other OSError passes."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(f"no space left for {what}: {error}") from error
        if is_shortage(error):
            raise NoResources(f"no room for {what} now", error) from error
        raise


def is_disk_full(error: OSError) -> bool:
    return error.errno in _NO_SPACE


def failed_sync(error_number: int) -> OSError:
    """Never one that ``is_shortage``: after a sync that did not succeed nobody knows what is on the disk."""
    error = OSError(error_number, os.strerror(error_number))
    return OSError(errno.EIO, f"the sync failed: {error.strerror}") if is_shortage(error) else error


class FileLayer(Protocol):
    """All verbs raise OSError; none retries what failed."""

    def open(self, path: StrPath, *, create: bool = False) -> int:
        """A descriptor for reading and writing."""

    def open_read(self, path: StrPath) -> int:
        """A descriptor for reading alone, which a read-only file system gives, too."""

    def close(self, fd: int) -> None: ...

    def length(self, fd: int) -> int: ...

    def set_length(self, fd: int, length: int) -> None:
        """Sparse when it grows."""

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Real blocks for a range inside the file's length; what is stored there stays."""

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        """Bring a range into the page cache. A hint: nothing fails without it."""

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """All of ``data`` or an OSError (after which any part may be on disk)."""

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        """Fewer bytes at the end of the file."""

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer``; gives back how many bytes, fewer at the end of the file."""

    def sync(self, fd: int) -> None:
        """fdatasync."""

    def sync_directory(self, path: StrPath) -> None: ...

    def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Parts of [start, end) that may hold something other than zeros."""

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        """ValueError when the file is shorter."""

    def map_write(self, fd: int, length: int) -> mmap.mmap: ...

    def make_directory(self, path: StrPath, *, durable: bool = False) -> None:
        """With parents; no error when it exists. ``durable``: the names of those that were made are synced."""

    def rename(self, source: StrPath, target: StrPath) -> None: ...

    def remove(self, path: StrPath) -> None:
        """A file or an empty directory; no error when it does not exist."""

    def read(self, path: StrPath) -> bytes | None:
        """A small file, or None when it does not exist."""

    def names(self, path: StrPath) -> list[str]:
        """What is in a directory, in any order; nothing when there is no such directory."""

    def disk(self, path: StrPath) -> tuple[int, DiskUsage]:
        """Which one a directory is on, and how full that is."""

    def is_read_only(self, path: StrPath) -> bool:
        """Whether the file system of a directory takes no writes."""

    def age(self, path: StrPath) -> OldSegment:
        """When a file was last written, and the blocks it has."""

    def lock(self, path: StrPath) -> int:
        """Exclusive lock on bytes 0..1, as Java's FileChannel.tryLock(0, 1). Raises StoreLocked."""

    def unlock(self, path: StrPath, fd: int) -> None: ...


class OsFiles:
    """FileLayer on the operating system."""

    _locked: set[str] = set()  # noqa: RUF012 - POSIX locks do not exclude their own process, so this set does

    def open(self, path: StrPath, *, create: bool = False) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def open_read(self, path: StrPath) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def length(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def set_length(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        os.posix_fallocate(fd, offset, length)

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        # Not posix_fadvise: of one call it reads no more than the device's read-ahead setting says, often 128 KiB.
        piece, end = bytearray(_PIECE_BYTES), offset + length
        while offset < end:
            count = os.preadv(fd, [piece] * min(_MAX_PIECES, -(-(end - offset) // _PIECE_BYTES)), offset)
            if not count:
                break
            offset += count

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        written = os.pwritev(fd, (data,), offset)
        if written < len(data):
            rest = memoryview(data)
            while written < len(data):
                count = os.pwritev(fd, (rest[written:],), offset + written)
                if count == 0:
                    raise OSError(errno.EIO, "pwritev wrote nothing")
                written += count

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        return os.pread(fd, length, offset)

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(fd, (buffer[done:],), offset + done)
            if not count:
                break
            done += count
        return done

    def sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise failed_sync(error.errno or errno.EIO) from error

    def sync_directory(self, path: StrPath) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise failed_sync(error.errno or errno.EIO) from error
        finally:
            os.close(fd)

    def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        while start < end:
            try:
                start = os.lseek(fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                if error.errno != errno.EINVAL:
                    raise
                yield start, end
                return
            if start >= end:
                return
            stop = min(os.lseek(fd, start, os.SEEK_HOLE), end)
            yield start, stop
            start = stop

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        return mmap.mmap(fd, length, access=mmap.ACCESS_READ)

    def map_write(self, fd: int, length: int) -> mmap.mmap:
        return mmap.mmap(fd, length, access=mmap.ACCESS_WRITE)

    def make_directory(self, path: StrPath, *, durable: bool = False) -> None:
        if not durable:
            os.makedirs(path, exist_ok=True)
            return
        missing: list[str] = []
        text = os.path.abspath(path)
        while not os.path.isdir(text):
            missing.append(text)
            text = os.path.dirname(text)
        if missing:
            # The last one that is there may be what a crash left of the same attempt: not synced yet.
            self.sync_directory(os.path.dirname(text))
        for each in reversed(missing):
            os.makedirs(each, exist_ok=True)
            self.sync_directory(os.path.dirname(each))

    def rename(self, source: StrPath, target: StrPath) -> None:
        os.replace(source, target)

    def remove(self, path: StrPath) -> None:
        try:
            if os.path.isdir(path):
                os.rmdir(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            return

    def read(self, path: StrPath) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, path: StrPath) -> list[str]:
        try:
            return os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def disk(self, path: StrPath) -> tuple[int, DiskUsage]:
        found = os.statvfs(path)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return os.stat(path).st_dev, DiskUsage(used, found.f_bavail * found.f_frsize)

    def is_read_only(self, path: StrPath) -> bool:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)

    def age(self, path: StrPath) -> OldSegment:
        found = os.stat(path)
        return OldSegment(found.st_mtime_ns // 1_000_000, found.st_blocks * 512)

    def lock(self, path: StrPath) -> int:
        name = os.path.realpath(path)
        # Closing any descriptor of a file drops the process's lock on it, so look before opening.
        if name in self._locked:
            raise StoreLocked(os.path.dirname(path))
        fd = self.open(path, create=True)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            os.pwrite(fd, b"lock", 0)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            raise StoreLocked(os.path.dirname(path)) from None
        except OSError:
            os.close(fd)
            raise
        self._locked.add(name)
        return fd

    def unlock(self, path: StrPath, fd: int) -> None:
        self._locked.discard(os.path.realpath(path))
        os.close(fd)
