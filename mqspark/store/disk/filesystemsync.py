"""One sync of a whole file system in the place of many syncs of files: Linux's ``syncfs``.

A sync of a file costs a commit of the file system's journal and a flush of the disk, whatever the file holds, so a
checkpoint of 10,000 queues takes half a minute. ``syncfs`` does that once for everything. It reports each failed write
since its descriptor was opened, from kernel 5.8 on; so the descriptor is opened with the store, and older kernels and
file systems of which that is not known are not used. A failure may be that of another program's file: whoever gets it
syncs file by file, where the kernel reports each file's own failure.

For real files (``OsFiles``). Must not know what is synced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import sys
import weakref

from mqspark.store.disk.files import FileLayer, OsFiles, StrPath, failed_sync

_KERNEL = (5, 8)
_KINDS = frozenset({0xEF53, 0x58465342, 0x9123683E})
"""ext4, XFS and btrfs (linux/magic.h)."""
_STATFS_BYTES = 256
"""More than ``struct statfs``, which begins with the kind."""


class FilesystemSync:
    """The file system that has ``directory``."""

    def __init__(self, directory: StrPath) -> None:
        """Raises OSError where a sync of the file system would not report every failure."""
        version = re.match(r"(\d+)\.(\d+)", platform.release())
        if sys.platform != "linux" or version is None or tuple(map(int, version.groups())) < _KERNEL:
            raise OSError(errno.ENOSYS, f"not on {sys.platform} {platform.release()}")
        library = ctypes.CDLL(None, use_errno=True)  # it releases the interpreter lock during a call
        self._syncfs = library.syncfs
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._device = os.fstat(self._fd).st_dev
        described = ctypes.create_string_buffer(_STATFS_BYTES)
        if library.fstatfs(self._fd, described):
            raise OSError(ctypes.get_errno(), "fstatfs failed", str(directory))
        kind = ctypes.c_long.from_buffer(described).value
        if kind not in _KINDS:
            raise OSError(errno.EOPNOTSUPP, f"not on a file system of kind {kind:#x}", str(directory))

    def has(self, path: StrPath) -> bool:
        """Whether the file or directory is on this file system. False for one that does not exist."""
        try:
            return os.stat(path).st_dev == self._device  # of what a symbolic link leads to
        except FileNotFoundError:
            return False

    def sync(self) -> None:
        """Blocking. Raises OSError when anything on the file system could not be written since the last call."""
        if self._syncfs(self._fd):
            raise failed_sync(ctypes.get_errno() or errno.EIO)
        # After an error of its own a file system is read-only, and then syncfs does nothing and succeeds.
        if os.fstatvfs(self._fd).f_flag & os.ST_RDONLY:
            raise failed_sync(errno.EROFS)


def filesystem_sync(files: FileLayer, directory: StrPath) -> FilesystemSync | None:
    """None where files have to be synced one by one."""
    if type(files) is not OsFiles:
        return None
    try:
        return FilesystemSync(directory)
    except (OSError, AttributeError):
        return None
