"""A copied window of the log, for sequential reading.

Copying bytes from the page cache costs a tenth of the page faults of a fresh mapping, and the bytes read next
are in the processor's cache. For single records at scattered positions ``CommitLog.view`` is better.

Must not know how the records are used.
"""

from __future__ import annotations

import numpy as np

from mqspark.record.recordlayout import MIN_RECORD_BYTES
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.scan import MIN_RUN_RECORDS, Run, read_run

WINDOW_BYTES = 4 << 20


class LogWindow:
    """Window for sequential reads. It is not refreshed, so it is only for parts of the log that do not
    change, and told when they do (``forget``)."""

    def __init__(self, log: CommitLog, window_bytes: int = WINDOW_BYTES) -> None:
        self._log = log
        self.window_bytes = window_bytes
        self._buffer = memoryview(bytearray())
        self._start = self._end = 0
        """Log positions of the window."""

    def forget(self) -> None:
        """The log has changed."""
        self._start = self._end = 0

    def read_run(
        self,
        segment: Segment,
        position: int,
        limit: int,
        *,
        verify_crc: bool,
        verify_property_crc: bool = False,
        min_records: int = MIN_RUN_RECORDS,
    ) -> Run | None:
        """``scan.read_run`` from ``position`` on, up to the physical offset ``limit`` of this segment.

        The run's view is valid until the next call. Raises OSError.
        """
        if limit - position < min_records * MIN_RECORD_BYTES:
            return None
        while True:
            is_fresh = not self._start <= position < self._end
            if is_fresh:
                self._fill(segment, position, limit)
            run = read_run(
                self._buffer,
                position - self._start,
                min(self._end, limit) - self._start,
                self._start,
                verify_crc=verify_crc,
                verify_property_crc=verify_property_crc,
                min_records=min_records,
            )
            if run is not None or is_fresh or self._end >= limit:
                return run
            self._end = position  # the rest is too short: continue with a copy that begins there

    def _fill(self, segment: Segment, position: int, limit: int) -> None:
        size = min(limit - position, self.window_bytes)
        if len(self._buffer) < size:
            # glibc keeps as much free memory as the largest freed block. This block, of which no page is
            # touched, sets that size; without it the columns of every run would be returned to the kernel and
            # zeroed again.
            del self._buffer
            np.empty(self.window_bytes, np.uint8)
            self._buffer = np.empty(size, np.uint8).data
        self._start = position
        self._end = position + self._log.read_into(segment, self._buffer[:size], position)
