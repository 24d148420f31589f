"""The only access of the store to the disk: a few operations that a test can record, refuse or lose.

Why a full disk cannot cause SIGBUS. A process dies with SIGBUS when it touches a page of a mapping that the
file system cannot back. The store maps files in two ways only:

* CommitLog segments read-only. The store never reads past the position for which ``write`` has returned
  (recovery: past ``data_ranges``). Those pages exist: ``pwrite`` made them, and it reports a full disk as
  ENOSPC.
* ConsumeQueue files writable. The store never writes outside a range for which ``allocate`` has returned.
  ``posix_fallocate`` reserves real blocks (or writes zeros where the file system has no such call) and
  reports a full disk as ENOSPC before anything is accepted.

A file of the store is a regular file. Anything else in its place (a FIFO, on which an open would block, a
device, a symbolic link to a file of another owner) is refused by name. New files and directories get the
modes of ``storeFileMode`` and ``storeDirectoryMode``, whatever the umask of the process. Those that root makes belong
to the owner of the directory that they are in: a repair by root leaves nothing that the broker's user cannot open.

No file is truncated while it is mapped: a cut writes zeros. Two risks remain that no user of mappings can
exclude: a medium that fails to read back a page, and another program that truncates the files.
``tests/crash/test_full_disk.py`` fills a real disk below a store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self

from mqspark.base.logs import printable, sparing
from mqspark.errors import DiskFull, NoResources, StoreLocked, is_shortage
from mqspark.store.disk.retention import DiskUsage, OldSegment

StrPath = str | Path

_PIECE_BYTES = 64 << 10
_MAX_PIECES = 256
"""Pieces per call of preadv, all read into the same buffer, which stays in the processor's cache: 16 MiB a
call."""
_log = sparing(__name__)

_MOST_READ = 512 << 20
"""The longest file that is read as a whole. Tables that peers can make grow take less."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def descriptor_limit() -> int:
    """Number of files that this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 20


def usable_memory_bytes(
    membership: StrPath = "/proc/self/cgroup", hierarchies: StrPath = "/sys/fs/cgroup"
) -> int:
    """Memory that this process may use: the machine's, or less where a control group limits it, as a container or a
    service's MemoryMax does. Most of it caches files."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_group_limits(Path(membership), Path(hierarchies))])


def _group_limits(membership: Path, hierarchies: Path) -> Iterator[int]:
    """The limits of this process's control group and of those above it, of either version (cgroups(7)). Inside of a
    container only the last of them may be visible."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return  # no Linux, or no /proc
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            root, name = hierarchies, "memory.max"
        elif "memory" in kinds.split(","):
            root, name = hierarchies / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = Path(path.lstrip("/"))
        for below in (place, *place.parents):
            try:
                text = (root / below / name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():  # else max
                yield int(text)


def zeroed_memory(length: int) -> mmap.mmap:
    """Zeros of which touched pages alone take memory. Never huge pages, which NumPy asks for: to clear one takes the
    kernel a quarter of a millisecond."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


@contextlib.contextmanager
def disk_full_as_typed(what: str) -> Iterator[None]:
    """Turn lack of space (ENOSPC, EDQUOT, EFBIG) into DiskFull, and lack of descriptors, memory or permission
    (``is_shortage``) into NoResources. Every other OSError passes."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(f"no space left for {what}: {error}") from error
        if is_shortage(error):
            raise NoResources(f"{what} cannot be written now", error) from error
        raise


def is_disk_full(error: OSError) -> bool:
    return error.errno in _NO_SPACE


def failed_sync(error_number: int) -> OSError:
    """The OSError of a failed sync. It is never one for which ``is_shortage`` is true: after a failed sync
    the state of the disk is unknown."""
    error = OSError(error_number, os.strerror(error_number))
    return OSError(errno.EIO, f"the sync failed: {error.strerror}") if is_shortage(error) else error


_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
)


def open_regular(path: StrPath, flags: int, mode: int = 0o600) -> int:
    """``os.open`` of a regular file. Never blocks and follows no symbolic link. Raises OSError that names
    what else is in its place."""
    try:
        # lstat comes first, because opening a device may already have an effect.
        _refuse_other_kinds(path, os.lstat(path).st_mode)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        _refuse_other_kinds(path, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_other_kinds(path: StrPath, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, f"{kind} stands where a regular file belongs", str(path))


def give_to_owner(path: StrPath, fd: int | None = None) -> None:
    """Let what root has just made at ``path`` belong to the owner of its directory. A file is named by its
    descriptor, because that owner may have put another one in its place. One with a second name stays as it is: it
    may be a file of somebody else."""
    if os.geteuid() or (fd is not None and os.fstat(fd).st_nlink > 1):
        return
    directory = os.stat(os.path.dirname(os.path.abspath(path)))
    if directory.st_uid:
        # This root may not: of a container, or of another host's file system.
        with contextlib.suppress(OSError):
            if fd is not None:
                os.chown(fd, directory.st_uid, directory.st_gid)
            else:
                os.chown(path, directory.st_uid, directory.st_gid, follow_symlinks=False)


def _named(error: OSError, fd: int) -> OSError:
    """An error of a call on a descriptor, with the name of its file added."""
    text = os.strerror(error.errno or errno.EIO)
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        text += (
            ": longer than the file system's files can be"
            if limit == resource.RLIM_INFINITY
            else f": this process may write files of {limit} bytes (RLIMIT_FSIZE, ulimit -f)"
        )
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        path = f"descriptor {fd}"
    return OSError(error.errno, text, path)


def is_locked_directory(path: StrPath) -> bool:
    """Whether a process holds the lock of ``OsFiles.lock`` on this directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # where directories cannot be locked, only the file lock exists
    finally:
        os.close(fd)
    return False


def _holder(fd: int) -> str:
    """The holder of the lock on an open file or directory, from the kernel's list of locks: " by process ..."
    or ""."""
    try:
        found = os.fstat(fd)
        wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        with open("/proc/locks") as locks:
            for line in locks:
                words = line.split()
                if len(words) > 5 and words[1] != "->" and words[5] == wanted and int(words[4]) > 0:
                    return _process(int(words[4]))
    except (OSError, ValueError):
        return ""  # not every system has such a list
    return ""


def _process(pid: int) -> str:
    if pid == os.getpid():
        return f" by this process ({pid})"
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(200).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        command = ""
    return f" by process {pid}" + (f" ({printable(command, 120)})" if command else "")


class FileLayer(Protocol):
    """The file operations. All raise OSError; none retries a failed call."""

    def open(self, path: StrPath, *, create: bool = False) -> int:
        """A descriptor of a regular file for reading and writing. OSError when something else is in its
        place."""

    def open_read(self, path: StrPath) -> int:
        """A descriptor for reading only, which also works on a read-only file system."""

    def close(self, fd: int) -> None: ...

    def length(self, fd: int) -> int: ...

    def set_length(self, fd: int, length: int) -> None:
        """Set the length of a file. Growing leaves a hole."""

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Allocate real blocks for a range inside the file's length. Existing content stays."""

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        """Bring a range into the page cache. A hint: its failure has no consequence."""

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data``. After an OSError any part may be on disk."""

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        """Read ``length`` bytes; fewer at the end of the file."""

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer``. Returns the number of bytes, which is less at the end of the file."""

    def sync(self, fd: int) -> None:
        """Make the content of a file durable (fdatasync)."""

    def sync_directory(self, path: StrPath) -> None: ...

    def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of [start, end) that may hold something other than zeros."""

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        """Map a file read-only. Raises ValueError when the file is shorter."""

    def map_write(self, fd: int, length: int) -> mmap.mmap: ...

    def make_directory(self, path: StrPath, *, durable: bool = False) -> None:
        """Create a directory and its parents; no error when it exists. ``durable``: sync the names of the new
        ones."""

    def rename(self, source: StrPath, target: StrPath) -> None: ...

    def remove(self, path: StrPath) -> None:
        """Remove a file or an empty directory; no error when it does not exist."""

    def remove_tree(self, path: StrPath) -> None:
        """Remove a directory with its content, without following links. No error when it does not exist."""

    def read(self, path: StrPath) -> bytes | None:
        """The content of a small file, or None when it does not exist."""

    def names(self, path: StrPath) -> list[str]:
        """The names in a directory, in any order; empty when there is no such directory."""

    def disk(self, path: StrPath) -> tuple[int, DiskUsage]:
        """The device number of a directory's disk, and its usage."""

    def is_read_only(self, path: StrPath) -> bool:
        """Whether the file system of a directory is read-only."""

    def age(self, path: StrPath) -> OldSegment:
        """When a file was last written, and its allocated blocks."""

    def lock(self, path: StrPath, *, alone: bool = True) -> int:
        """Take an exclusive lock on bytes 0..1, as Java's FileChannel.tryLock(0, 1), and, if this is the only
        lock in its directory (``alone``), one on the directory, which holds when the file is removed. Raises
        StoreLocked, which names the holder."""

    def lock_directory(self, path: StrPath) -> int:
        """Take an exclusive lock on a directory that has no lock file: a descriptor to be closed, or -1 where
        directories cannot be locked. Raises StoreLocked, which names the holder."""

    def relock(self, path: StrPath, fd: int) -> int:
        """The descriptor that locks the file now at ``path``. It is a new one when the old file was removed
        or replaced, because RocketMQ's broker checks only this file. Raises StoreLocked when another process
        holds the lock."""

    def unlock(self, path: StrPath, fd: int) -> None: ...


class OsFiles:
    """FileLayer of the operating system."""

    _locked: dict[str, int] = {}  # noqa: RUF012 - POSIX locks do not exclude their own process, so this table does
    """Locked files → the descriptor that holds the lock on their directory, or -1."""
    file_mode = 0o600
    directory_mode = 0o700

    def __init__(self, *, file_mode: int = 0o600, directory_mode: int = 0o700) -> None:
        """The modes apply to files and directories created here; existing ones keep theirs."""
        self.file_mode = file_mode
        self.directory_mode = directory_mode

    @classmethod
    def like(cls, directory: StrPath) -> Self:
        """A file layer whose new files have the permissions of ``directory``. For tools that write into a
        store."""
        try:
            mode = stat.S_IMODE(os.stat(directory).st_mode) & 0o777
        except FileNotFoundError:
            return cls()
        return cls(file_mode=0o600 | mode & 0o666, directory_mode=0o700 | mode)

    def open(self, path: StrPath, *, create: bool = False) -> int:
        if create:
            try:
                fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, self.file_mode)
            except FileExistsError:
                return open_regular(path, os.O_RDWR)
            if self.file_mode & ~stat.S_IMODE(os.fstat(fd).st_mode):  # whatever the umask
                os.fchmod(fd, self.file_mode)
            give_to_owner(path, fd)
            return fd
        return open_regular(path, os.O_RDWR)

    def opener(self, path: str, flags: int) -> int:
        """An opener for Python's ``open`` of a file that is created or overwritten."""
        fd = open_regular(path, flags, self.file_mode)
        if flags & os.O_CREAT:
            if self.file_mode & ~stat.S_IMODE(os.fstat(fd).st_mode):
                os.fchmod(fd, self.file_mode)
            give_to_owner(path, fd)
        return fd

    def open_read(self, path: StrPath) -> int:
        return open_regular(path, os.O_RDONLY)

    def close(self, fd: int) -> None:
        os.close(fd)

    def length(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def set_length(self, fd: int, length: int) -> None:
        try:
            os.ftruncate(fd, length)
        except OSError as error:
            raise _named(error, fd) from error

    def allocate(self, fd: int, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(fd, offset, length)
        except OSError as error:
            raise _named(error, fd) from error

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        # posix_fadvise is not used: one call reads no more than the device's read-ahead setting, often 128
        # KiB.
        piece, end = bytearray(_PIECE_BYTES), offset + length
        while offset < end:
            count = os.preadv(fd, [piece] * min(_MAX_PIECES, -(-(end - offset) // _PIECE_BYTES)), offset)
            if not count:
                break
            offset += count

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        try:
            written = os.pwrite(fd, data, offset)
            if written < len(data):
                rest = memoryview(data)
                while written < len(data):
                    count = os.pwrite(fd, rest[written:], offset + written)
                    if count == 0:
                        raise OSError(errno.EIO, "pwrite wrote nothing")
                    written += count
        except OSError as error:
            raise _named(error, fd) from error

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
        missing = []
        text = os.path.abspath(path)
        while not os.path.isdir(text):
            missing.append(text)
            text = os.path.dirname(text)
        if missing and durable:
            # The last existing parent may be left from a crash of the same attempt, and then its name is not
            # synced yet.
            self.sync_directory(os.path.dirname(text))
        for each in reversed(missing):
            try:
                os.mkdir(each, self.directory_mode)
            except FileExistsError:  # another process created it first, or it is not a directory
                if not os.path.isdir(each):
                    raise
            else:
                if self.directory_mode & ~stat.S_IMODE(os.stat(each).st_mode):
                    os.chmod(each, self.directory_mode)
                give_to_owner(each)
            if durable:
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

    def remove_tree(self, path: StrPath) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)

    def read(self, path: StrPath) -> bytes | None:
        try:
            fd = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            length = os.fstat(fd).st_size
            if length > _MOST_READ:
                text = f"damaged: no such file has {length} bytes; restore it, or move it away"
                raise OSError(errno.EOVERFLOW, text, str(path))
            return file.read()

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

    def lock(self, path: StrPath, *, alone: bool = True) -> int:
        name = lock_name(path)
        directory = os.path.dirname(name)
        # Closing any descriptor of a file drops the process's lock on it, so check before opening.
        if name in self._locked:
            raise StoreLocked(directory, _process(os.getpid()))
        held = self.lock_directory(directory) if alone else -1
        try:
            fd = self._lock_file(path, directory)
        except BaseException:
            if held >= 0:
                os.close(held)
            raise
        self._locked[name] = held
        return fd

    def _lock_file(self, path: StrPath, directory: str) -> int:
        while True:
            fd = self.open(path, create=True)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
                if _is_file(path, fd):
                    os.pwrite(fd, b"lock", 0)
                    return fd
            except (BlockingIOError, PermissionError):
                holder = _holder(fd)
                os.close(fd)
                raise StoreLocked(directory, holder) from None
            except OSError:
                os.close(fd)
                raise
            os.close(fd)  # removed or replaced between open and lock: this lock is on an unlinked file

    def lock_directory(self, path: StrPath) -> int:
        """It also holds against processes that find no lock file because it was removed. RocketMQ's broker does
        not use this lock."""
        directory = os.fspath(path)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            os.close(fd)
            raise StoreLocked(directory, holder) from None
        except OSError as error:
            os.close(fd)
            _log.warning("directory %s cannot be locked (%s): do not remove its lock file", directory, error)
            return -1
        return fd

    def relock(self, path: StrPath, fd: int) -> int:
        if _is_file(path, fd):
            return fd
        # The old descriptor is closed last, because closing a descriptor of the same file would free its
        # lock.
        new = self._lock_file(path, os.path.dirname(lock_name(path)))
        os.close(fd)
        _log.warning(
            "%s was removed or replaced while this process held its lock: created and locked again", path
        )
        return new

    def unlock(self, path: StrPath, fd: int) -> None:
        held = self._locked.pop(lock_name(path), -1)
        os.close(fd)
        if held >= 0:
            os.close(held)


def lock_name(path: StrPath) -> str:
    """The canonical path of a lock file, the same for every path to its directory. The file itself is not a
    link."""
    directory, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(directory), name)


def _is_file(path: StrPath, fd: int) -> bool:
    """Whether the path still names this open file."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))
