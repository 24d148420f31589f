"""``mqspark.begin``: where the log may begin. Retention notes it before it deletes segments.

A log that begins later has lost its first segments: without the note that would look as after retention. RocketMQ
ignores the file, and deletes without it, so it counts only when no RocketMQ broker has run on the directory since:

    mqspark-begin-1 00000000001073741824 9d0ad5c7      position, CRC-32 of what is before

It is shorter than a sector and written in place. A log that begins earlier is one whose deletion was interrupted.
"""

from __future__ import annotations

import re
from pathlib import Path
from zlib import crc32

from mqspark.store.disk.files import FileLayer, is_disk_full

_NOTE = re.compile(rb"(mqspark-begin-1 (\d{20})) ([0-9a-f]{8})\n")


class BeginNote:
    """The note of one store. In any thread, but not concurrently."""

    def __init__(self, path: Path, files: FileLayer) -> None:
        self._path = path
        self._files = files

    def load(self) -> int | None:
        """None if nothing, or nothing sound, is noted. Raises OSError."""
        found = _NOTE.fullmatch(self._files.read(self._path) or b"")
        if found is None or found[3] != b"%08x" % crc32(found[1]):
            return None
        return int(found[2])

    def save(self, position: int) -> None:
        """Durable when this returns. A full disk keeps no note rather than an old one: neither a start nor retention
        waits for space that only retention frees. Raises OSError."""
        try:
            self._write(position)
        except OSError as error:
            if not is_disk_full(error):
                raise
            if self._files.read(self._path) is not None:
                self._files.remove(self._path)
                self._files.sync_directory(self._path.parent)

    def _write(self, position: int) -> None:
        files, text = self._files, b"mqspark-begin-1 %020d" % position
        is_new = files.read(self._path) is None
        fd = files.open(self._path, create=True)
        try:
            files.write(fd, text + b" %08x\n" % crc32(text), 0)
            files.sync(fd)
        finally:
            files.close(fd)
        if is_new:
            files.sync_directory(self._path.parent)
