"""The file of the log's next segment, made before an append needs it (AllocateMappedFileService).

To make a file, to reserve its first blocks and to bring them into the page cache takes some milliseconds, in which the
loop would serve nobody. RocketMQ, too, leaves such a file behind when it stops: full length, zeros only.

Must not know what is appended.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from mqspark.errors import NotNow
from mqspark.store.disk.files import FileLayer
from mqspark.store.log.zeroahead import zeros


class NextSegmentJob:
    """``run`` in any thread; everything else on the thread of the log."""

    def __init__(
        self, files: FileLayer, path: Path, start: int, length: int, first_bytes: int, *, with_zeros: bool
    ) -> None:
        """``with_zeros``: as of ``zeroahead``."""
        self._files = files
        self._length = length
        self._with_zeros = with_zeros
        self._lock = threading.Lock()
        self._is_over = False
        """It was made, could not be made, or is no longer wanted."""
        self._fd = -1
        self.path = path
        self.start = start
        self.first_bytes = first_bytes
        """How much of it is allocated."""

    def run(self) -> None:
        files = self._files
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            # The append that needs the file asks again, and gets the error.
            with contextlib.suppress(OSError, NotNow):
                fd = files.open(self.path, create=True)
                try:
                    files.set_length(fd, self._length)
                    files.allocate(fd, 0, self.first_bytes)
                    if self._with_zeros:
                        for at, piece in zeros(0, self.first_bytes):
                            files.write(fd, piece, at)
                            files.sync(fd)
                    else:
                        files.read_ahead(fd, 0, self.first_bytes)
                except (OSError, NotNow):
                    files.close(fd)
                    files.remove(self.path)
                    raise
                self._fd = fd

    def done(self, error: BaseException | None = None) -> None:
        """The log takes the file when it needs it."""

    def take(self) -> int | None:
        """Its descriptor, once; None when the caller has to make it. Waits for ``run`` if it is under way: two threads
        must not reserve blocks of one file."""
        with self._lock:
            self._is_over = True
            fd, self._fd = self._fd, -1
        return None if fd < 0 else fd

    def drop(self) -> None:
        """Remove the file: the log goes on elsewhere, or ends."""
        fd = self.take()
        if fd is not None:
            self._files.close(fd)
            # One that is left has zeros only: a start removes it, and an append takes it as it is.
            with contextlib.suppress(OSError):
                self._files.remove(self.path)
