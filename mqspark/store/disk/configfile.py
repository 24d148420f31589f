"""``config/*.json`` and their like: small files replaced as a whole (ConfigManager, MixAll.string2File)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from mqspark.errors import is_shortage
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.files import FileLayer, OsFiles, is_disk_full

__all__ = ["ConfigFile"]


class ConfigFile:
    """One file with its ``.bak``. At every moment, and after every crash, ``load`` finds the old or the new
    content.

    ``save`` blocks on the disk and may run in any thread, one at a time for each object.
    """

    def __init__(
        self,
        path: Path | str,
        files: FileLayer | None = None,
        on_failure: Callable[[Path, OSError], None] | None = None,
        note: Note = lambda damage: None,
    ) -> None:
        """``on_failure`` hears, in the thread of ``save``, of every error that does not pass by itself: a full disk
        does, and want of descriptors or memory. ``note`` hears when ``load`` finds a file that is not valid and takes
        the ``.bak``."""
        self.path = Path(path)
        self._on_failure = on_failure
        self._note = note
        self._files: FileLayer = files if files is not None else OsFiles()
        self._lock = threading.Lock()

    def load(self, is_valid: Callable[[bytes], bool] = bool) -> bytes | None:
        """The content, or that of ``.bak`` when the file is missing or not valid, or None."""
        is_there = False
        for path in (self.path, self._sibling(".bak")):
            data = self._files.read(path)
            if data is not None and is_valid(data):
                if is_there:
                    text = (
                        f"{self.path} cannot be read, its .bak was taken: what the last save changed is lost"
                    )
                    self._note(Damage("config.unreadable", Outcome.HEALED, text))
                return data
            is_there = is_there or data is not None
        return None

    def backup(self) -> bytes | None:
        """What ``.bak`` says, as it is."""
        return self._files.read(self._sibling(".bak"))

    def save(self, data: bytes) -> None:
        """Write and sync a new file, keep the old one as ``.bak``, put the new one in its place. Raises OSError."""
        try:
            self._save(data)
        except OSError as error:
            if self._on_failure is not None and not is_disk_full(error) and not is_shortage(error):
                self._on_failure(self.path, error)
            raise

    def _save(self, data: bytes) -> None:
        files = self._files
        new = self._sibling(".new")
        with self._lock:
            files.make_directory(self.path.parent, durable=True)
            fd = files.open(new, create=True)
            try:
                files.set_length(fd, 0)
                files.write(fd, data, 0)
                files.sync(fd)
            finally:
                files.close(fd)
            if files.read(self.path):
                files.rename(self.path, self._sibling(".bak"))
            files.rename(new, self.path)
            files.sync_directory(self.path.parent)

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)
