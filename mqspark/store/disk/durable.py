"""How far the log is synced, noted in the ``abort`` file after every sync.

After a failed ``fdatasync`` the kernel may keep showing pages that the disk never got, and calls them clean: the next
process would read them, sync nothing, and take them for durable. So recovery writes again what no successful sync is
known to have reached, and this note keeps that short: without it all would have to be written again that came after
the last checkpoint.

The note itself is never synced. It is needed only as long as the page cache lives, and then it is read from there;
after a power cut an older one may be found, which was as true. RocketMQ writes its process id into ``abort`` when it
starts and looks at nothing but the file's existence: a note that is still there was followed by no other broker.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from mqspark.store.disk.files import FileLayer

__all__ = ["DurableNote"]


class DurableNote:
    """``abort`` of one store. ``write`` may be called in another thread, one at a time."""

    __slots__ = ("_fd", "_files", "_path", "_pid")

    def __init__(self, path: Path, files: FileLayer) -> None:
        self._path = path
        self._files = files
        self._fd = -1
        self._pid = 0

    def load(self) -> int:
        """What the last process noted; -1 when it noted nothing that can be read."""
        text, _, crc = (self._files.read(self._path) or b"").rstrip(b"\n").rpartition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            return -1
        return int(text.split()[1])

    def open(self, pid: int, position: int) -> None:
        """Make the file: from now on the store was not stopped cleanly. Raises OSError."""
        self._pid = pid
        self._fd = self._files.open(self._path, create=True)
        self._files.set_length(self._fd, 0)
        self.write(position)

    def write(self, position: int) -> None:
        """Everything before ``position`` was synced. Raises OSError."""
        text = b"%d %020d" % (self._pid, position)
        self._files.write(self._fd, text + b" %08x\n" % zlib.crc32(text), 0)

    def close(self) -> None:
        """Leaves the file where it is."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
