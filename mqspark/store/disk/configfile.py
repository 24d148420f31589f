"""``config/*.json`` and similar: small files that are replaced as a whole (ConfigManager,
MixAll.string2File).

Facts: docs/rocketmq/store.md#config-files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from mqspark.base.logs import printable, sparing
from mqspark.errors import is_shortage
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.files import FileLayer, OsFiles, is_disk_full

log = sparing(__name__, lines=20)


class ConfigFile:
    """One file with its ``.bak``. At any moment, also after a crash, ``load`` finds either the old or the new
    content. A file that ``load`` found invalid never becomes the ``.bak``: it is kept as ``.damaged``.

    ``save`` blocks on the disk and may run in any thread, but not concurrently for one object.
    """

    def __init__(
        self,
        path: Path | str,
        files: FileLayer | None = None,
        on_failure: Callable[[Path, OSError], None] | None = None,
        note: Note = lambda damage: None,
        *,
        with_backup: bool = True,
    ) -> None:
        """``on_failure`` is called, in the thread of ``save``, for every error that is not transient. A full
        disk and what ``is_shortage`` names are transient. ``note`` is called when ``load`` finds an
        invalid file and uses the ``.bak``. Without ``with_backup`` the path is never without a file: others read
        it."""
        self.path = Path(path)
        self._with_backup = with_backup
        self._on_failure = on_failure
        self._note = note
        self._files: FileLayer = files if files is not None else OsFiles()
        self._lock = threading.Lock()
        self.is_damaged = False
        """Whether the last ``load`` found a file that is invalid."""
        self.is_missing = False
        """Whether the last ``load`` found neither the file nor its ``.bak``."""
        self.is_latest = False
        """Whether the last ``load`` returned the file itself: not its ``.bak``, and not None."""

    def load(self, is_valid: Callable[[bytes], bool] = bool) -> bytes | None:
        """The content, or that of ``.bak`` when the file is missing or invalid, or None."""
        is_there = self.is_missing = False
        for path in (self.path, self._sibling(".bak")):
            data = self._files.read(path)
            is_good = data is not None and is_valid(data)
            if path == self.path:
                self.is_latest = is_good
                self.is_damaged = data is not None and not is_good
            if data is not None and is_good:
                if is_there:
                    text = f"{self.path} cannot be read; its .bak was used, and the last save is lost"
                    self._note(Damage("config.unreadable", Outcome.HEALED, text))
                elif path != self.path:
                    log.warning(
                        "%s is missing: its .bak is used, and the last save may be lost",
                        printable(str(self.path)),
                    )
                return data
            is_there = is_there or data is not None
        self.is_missing = not is_there
        return None

    @property
    def exists(self) -> bool:
        """Whether the file or its ``.bak`` is there, whatever it contains."""
        return self._files.read(self.path) is not None or self.backup() is not None

    def backup(self) -> bytes | None:
        """The content of ``.bak``, unchecked."""
        return self._files.read(self._sibling(".bak"))

    def save(self, data: bytes) -> None:
        """Write and sync a new file, keep the old one as ``.bak``, and rename the new one into place. Raises
        OSError."""
        self.save_pieces((data,))

    def save_pieces(self, pieces: Iterable[bytes]) -> None:
        """``save`` of a long content, which is never in memory as a whole. Raises also what ``pieces`` raises; nothing
        has changed then."""
        try:
            self._save(pieces)
        except OSError as error:
            if self._on_failure is not None and not is_disk_full(error) and not is_shortage(error):
                self._on_failure(self.path, error)
            raise

    def _save(self, pieces: Iterable[bytes]) -> None:
        files = self._files
        new = self._sibling(".new")
        with self._lock:
            files.make_directory(self.path.parent, durable=True)
            fd = files.open(new, create=True)
            try:
                files.set_length(fd, 0)
                position = 0
                for piece in pieces:
                    files.write(fd, piece, position)
                    position += len(piece)
                files.sync(fd)
            finally:
                files.close(fd)
            if self._with_backup and self._has_content():
                files.rename(self.path, self._sibling(".damaged" if self.is_damaged else ".bak"))
            files.rename(new, self.path)
            self.is_damaged = self.is_missing = False
            files.sync_directory(self.path.parent)

    def _has_content(self) -> bool:
        try:
            fd = self._files.open_read(self.path)
        except FileNotFoundError:
            return False
        try:
            return self._files.length(fd) > 0
        finally:
            self._files.close(fd)

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)
