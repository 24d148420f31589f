"""The file of a controller's state: replaced as a whole, with a version and a checksum.

    mqspark-controller VERSION CRC32 LENGTH\\n
    LENGTH bytes of JSON

There is no backup copy: an older state could assign an epoch twice. A damaged file is an error at the start.
"""

from __future__ import annotations

from pathlib import Path

from mqspark.base.crc import crc32
from mqspark.errors import StoreCorrupt
from mqspark.store.disk.files import FileLayer, OsFiles

VERSION = 1
_MAGIC = b"mqspark-controller"


class StateFile:
    """``directory`` belongs to this process from ``lock`` to ``close``. ``save`` blocks on the disk and may run in any
    thread, but not twice at once."""

    def __init__(self, directory: Path, files: FileLayer | None = None) -> None:
        self.path = directory / "controller.state"
        self._lock_path = directory / "lock"
        self._files: FileLayer = files if files is not None else OsFiles()
        self._lock_fd = -1

    def lock(self) -> None:
        """Raises StoreLocked when another process has the directory, and OSError."""
        self._files.make_directory(self.path.parent, durable=True)
        self._lock_fd = self._files.lock(self._lock_path)

    def load(self) -> bytes | None:
        """The content, or None before the first save. Raises StoreCorrupt and OSError."""
        data = self._files.read(self.path)
        return None if data is None else self._checked(data)

    def _checked(self, data: bytes) -> bytes:
        head, newline, content = data.partition(b"\n")
        words = head.split(b" ")
        if not newline or len(words) != 4 or words[0] != _MAGIC:
            raise self.corrupt("it does not begin as a state file")
        if words[1] != str(VERSION).encode():
            raise self.corrupt(f"it has version {words[1][:20]!r}, and this program reads version {VERSION}")
        if words[3] != str(len(content)).encode():
            raise self.corrupt(f"{len(content)} bytes follow its head, which says {words[3][:20]!r}")
        if words[2] != _checksum(content):
            raise self.corrupt("its checksum is wrong")
        return content

    def corrupt(self, why: str) -> StoreCorrupt:
        text = (
            f"{self.path} is damaged: {why}. The master cannot be guessed. Restore the file, or stop all brokers, move"
            " it away, and with it brokerIdentity and epochFileCheckpoint (and their .bak) of every broker. Then start"
            " the broker with the longest log first: it becomes master, whatever messages it has"
        )
        return StoreCorrupt(text, path=str(self.path))

    def save(self, content: bytes) -> None:
        """Replace the content, durably. After OSError the file has either the old or the new content."""
        files = self._files
        head = b"%s %d %s %d\n" % (_MAGIC, VERSION, _checksum(content), len(content))
        new = self.path.with_name(self.path.name + ".new")
        fd = files.open(new, create=True)
        try:
            files.set_length(fd, 0)
            files.write(fd, head + content, 0)
            files.sync(fd)
        finally:
            files.close(fd)
        files.rename(new, self.path)
        files.sync_directory(self.path.parent)

    def close(self) -> None:
        if self._lock_fd >= 0:
            self._files.unlock(self._lock_path, self._lock_fd)
            self._lock_fd = -1


def _checksum(content: bytes) -> bytes:
    return b"%08x" % crc32(content)
