"""How far the log is synced, noted in the ``abort`` file after every sync.

After a failed ``fdatasync`` the kernel may keep pages that are not on disk and call them clean. The next
process would read them, sync nothing, and take them for durable. So recovery rewrites everything that no
successful sync is known to have reached. This note keeps that short; without it recovery would rewrite
everything since the last checkpoint.

The note itself is never synced. It is needed only as long as the page cache lives, and then it is read from
there. After a power failure an older note may be found, which is true as well. RocketMQ writes its process id
into ``abort`` at start and only checks that the file exists. So an existing note proves that no other broker
has run since.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from mqspark.store.disk.files import FileLayer


class DurableNote:
    """The ``abort`` file of one store. ``write`` may be called in another thread, but not concurrently."""

    def __init__(self, path: Path, files: FileLayer) -> None:
        self._path = path
        self._files = files
        self._fd = -1
        self._pid = 0

    def load(self) -> int:
        """The position noted by the last process; -1 without a readable note."""
        text, _, crc = (self._files.read(self._path) or b"").rstrip(b"\n").rpartition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            return -1
        return int(text.split()[1])

    def open(self, pid: int, position: int) -> None:
        """Create the file, which marks the store as not cleanly stopped. Raises OSError."""
        self._pid = pid
        self._fd = self._files.open(self._path, create=True)
        self._files.set_length(self._fd, 0)
        self.write(position)

    def write(self, position: int) -> None:
        """Note that everything before ``position`` is synced. Raises OSError."""
        text = b"%d %020d" % (self._pid, position)
        self._files.write(self._fd, text + b" %08x\n" % zlib.crc32(text), 0)

    def lower(self, position: int) -> None:
        """Note, durably, that the log is about to end at ``position``. Blocking. Raises OSError."""
        self.write(position)
        self._files.sync(self._fd)

    def close(self) -> None:
        """Close the file without removing it."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
