"""The directory of an open store: locked, marked as in use, and with the secret of this run.

Must not know what is stored in it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from mqspark.base.logs import sparing
from mqspark.errors import StoreCorrupt, StoreLocked, is_shortage
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.durable import DurableNote

_log = sparing(__name__)

_IDENTITY_BYTES = 16
_IDENTITY = re.compile(f"[0-9a-f]{{{2 * _IDENTITY_BYTES}}}")


def refuse_unfinished(paths: StorePaths, files: FileLayer) -> None:
    """Raises StoreCorrupt for a directory that a restore has begun to fill."""
    if files.read(paths.restoring) is not None:
        raise StoreCorrupt(
            f"{paths.root} is incomplete: a restore did not finish. Run 'mqspark store restore' again, or empty the"
            " directory",
            path=str(paths.restoring),
        )


class StoreDirectory:
    """The directory of one store. ``poison`` makes the store read-only."""

    def __init__(
        self, paths: StorePaths, files: FileLayer, poison: Callable[[str, Exception], object]
    ) -> None:
        self._paths = paths
        self._files = files
        self._poison = poison
        self._lock_fd = -1
        self._log_fds: list[int] = []
        """The locks on directories of the log that lie elsewhere."""
        self.note = DurableNote(paths.abort, files)
        """How far the log is synced. Its file marks the directory as in use."""
        self.identity = ""
        """Names this store, also after a restart. Not secret."""
        self.nonce = ""
        """Secret of this run, written to ``mqspark.nonce`` only. A process that knows it can read this
        directory (``mqspark.store.disk.trusted``)."""

    @property
    def is_locked(self) -> bool:
        """Whether this process has the directory."""
        return self._lock_fd >= 0

    @property
    def is_clean(self) -> bool:
        """Whether the previous process that had the directory stopped cleanly. Only before ``begin``."""
        return self._files.read(self._paths.abort) is None

    def lock(self) -> None:
        """Create the directory if it is missing, and lock it, and those of the log that lie elsewhere: stores with
        roots of their own may name the same. Raises StoreLocked, StoreCorrupt for one that a restore has not finished,
        OSError."""
        self._files.make_directory(self._paths.root, durable=True)
        self._lock_fd = self._files.lock(self._paths.lock)
        root = os.path.normpath(self._paths.root)
        try:
            refuse_unfinished(self._paths, self._files)
            for path in self._paths.commit_logs.writable:
                if not Path(os.path.normpath(path)).is_relative_to(root):
                    self._files.make_directory(path, durable=True)
                    self._log_fds.append(self._files.lock_directory(path))
        except BaseException:
            self._unlock()
            raise

    def begin(self, position: int, *, is_new: bool) -> None:
        """Mark the directory as in use by this process, whose log is synced up to ``position``. ``is_new``: whether
        the name of the directory itself may not be on disk. Raises OSError."""
        files, paths = self._files, self._paths
        self.identity = self._known_identity() or self._new_identity()
        self.nonce = secrets.token_hex(16)
        self.note.open(os.getpid(), position)
        files.remove(paths.nonce)  # a file left by a crash may have wider permissions than a new one
        self._write_small(paths.nonce, self.nonce.encode())
        files.sync_directory(paths.root)
        if is_new:
            # Losing the name of the directory would lose everything acknowledged.
            files.sync_directory(paths.commit_log.parent)
            files.sync_directory(paths.root.parent)

    def _known_identity(self) -> str | None:
        text = (self._files.read(self._paths.identity) or b"").decode("ascii", "replace").strip()
        return text if _IDENTITY.fullmatch(text) else None

    def _new_identity(self) -> str:
        text = secrets.token_hex(_IDENTITY_BYTES)
        self._write_small(self._paths.identity, f"{text}\n".encode(), durable=True)
        return text

    def end(self) -> None:
        """Mark the directory as left cleanly. Raises OSError."""
        self._files.remove(self._paths.abort)
        self._files.remove(self._paths.nonce)
        self._files.sync_directory(self._paths.root)

    def release(self) -> None:
        """Let others have the directory."""
        self.note.close()
        self._unlock()

    def _unlock(self) -> None:
        while self._log_fds:
            if (fd := self._log_fds.pop()) >= 0:
                self._files.close(fd)
        self._files.unlock(self._paths.lock, self._lock_fd)
        self._lock_fd = -1

    def check(self) -> None:
        """Poison the store when its disk cannot be written any more, or when another broker has the directory. An idle
        broker would not notice."""
        if self._is_writable():
            self._keep_locked()

    def _is_writable(self) -> bool:
        """Whether the directories can be accessed and their file systems are not mounted read-only."""
        for path in (self._paths.root, *self._paths.commit_logs.writable):
            try:
                if self._files.is_read_only(path):
                    error = OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
                    self._poison("the file system is read-only", error)
                    return False
            except OSError as error:
                self._poison("the store directory cannot be accessed", error)
                return is_shortage(error)  # which says nothing about the disk
        return True

    def _keep_locked(self) -> None:
        """Lock the directory again when the lock file was removed."""
        try:
            self._lock_fd = self._files.relock(self._paths.lock, self._lock_fd)
        except StoreLocked as error:
            self._poison("another broker was started on the directory", error)
        except OSError as error:
            _log.warning("the lock file cannot be looked at, or be created again: %s", error)

    def _write_small(self, path: Path, data: bytes, *, durable: bool = False) -> None:
        fd = self._files.open(path, create=True)
        try:
            self._files.set_length(fd, 0)
            self._files.write(fd, data, 0)
            if durable:
                self._files.sync(fd)
        finally:
            self._files.close(fd)
