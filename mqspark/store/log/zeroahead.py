"""Zeros in the reserved blocks that the log reaches next, for a log that is synced often.

The first sync of a reserved block that was never written waits for the file system to say in its journal that the block
has data now: of small syncs that is half of the time or more (ext4). With zeros on the disk before, a sync writes the
records and nothing else.

A range belongs to its job until the log takes it: no record is written where zeros may still come.

Must not know what is appended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from mqspark.errors import NotNow
from mqspark.store.disk.files import FileLayer

_PIECE = bytes(512 << 10)
"""So much is written, and synced, at once: syncs of the log that come in between have to write it, too."""


def zeros(low: int, high: int) -> Iterator[tuple[int, memoryview]]:
    """Pieces of [low, high), and where they begin. Sync each before the next."""
    for at in range(low, high, len(_PIECE)):
        yield at, memoryview(_PIECE)[: high - at]


class ZeroAheadJob:
    """``run`` in any thread; everything else on the thread of the log."""

    def __init__(
        self,
        files: FileLayer,
        path: Path,
        start: int,
        low: int,
        high: int,
        finished: Callable[[ZeroAheadJob], None],
    ) -> None:
        """The range of log positions [low, high), in the file that starts at ``start``. Its blocks are reserved.
        ``finished`` is called when the log may take the range."""
        self._files = files
        self._path = path
        self._start = start
        self._low = low
        self._finished = finished
        self._lock = threading.Lock()
        self._is_taken = False
        self.high = high

    def run(self) -> None:
        files, start = self._files, self._start
        with contextlib.suppress(OSError, NotNow):  # the next sync of the log meets any error
            fd = files.open(self._path)
            try:
                for at, piece in zeros(self._low - start, self.high - start):
                    with self._lock:
                        if self._is_taken:
                            return
                        files.write(fd, piece, at)
                    files.sync(fd)
            finally:
                files.close(fd)

    def take(self) -> None:
        """Write no zeros from now on: the log writes there. Waits for a piece that is being written."""
        with self._lock:
            self._is_taken = True

    def done(self, error: BaseException | None = None) -> None:
        self._finished(self)
