"""Lets the index follow the log: reads what is new, slice by slice, and puts its keys.

The index is always made this way, whether records just arrived, are indexed again after a crash, or lie in a
directory that had no index. So it never decides whether a message is accepted: on a full disk it waits, and after any
other error it is left alone until the next start, while the log goes on.

Must not know queues.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from mqspark.errors import NotNow, is_shortage
from mqspark.record import BLANK_BYTES, BLANK_MAGIC, Verdict, check_record
from mqspark.store.index.index import IndexJob, MessageIndex
from mqspark.store.index.keys import run_keys
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.scan import read_run
from mqspark.store.log.stretch import LogWindow

__all__ = ["Indexer"]

_SLICE_RECORDS = 2048
"""That are indexed at once: who waits for it waits one to two milliseconds. Half of that is the same for one record."""
_WINDOW_BYTES = 2 << 20
"""Of log that is indexed at once, at most."""
_STEP_BYTES = 512 << 10
"""Of log that arrives before it is indexed, at least, however small the records of a slice are."""
_TIME_SHARE = 0.1
"""Of a busy thread's time that goes into the index as long as it is not too far behind: a burst is indexed after it."""
_MAX_CREDIT_MS = 20
_MAX_BEHIND_BYTES = 256 << 20
_QUERY_BYTES = _MAX_BEHIND_BYTES + 2 * _WINDOW_BYTES
_IDLE_BYTES = 16 << 20
_IDLE_INTERVAL_MS = 1000
_SYNC_INTERVAL_MS = 10_000
"""A sync writes every slot page that was touched, which under load is all of them; after a crash so much of the log
is indexed again."""
_SIZE_MAGIC = struct.Struct(">ii")
_MAGIC_PREFIX = b"\xda\xa3\x20"


class Indexer:
    """``end`` is always where a record ends that consumers may see, ``durable`` what the log has synced."""

    __slots__ = (
        "_credit_ms",
        "_credited_ms",
        "_index",
        "_log",
        "_monotonic_ms",
        "_next",
        "_next_idle_ms",
        "_next_sync_ms",
        "_slice_bytes",
        "_slice_records",
        "_window",
        "_window_bytes",
        "_without_keys",
        "full_disk",
    )

    def __init__(
        self,
        log: CommitLog,
        index: MessageIndex,
        monotonic_ms: Callable[[], int],
        *,
        window_bytes: int = _WINDOW_BYTES,
        slice_records: int = _SLICE_RECORDS,
    ) -> None:
        self._log = log
        self._window = LogWindow(log, window_bytes)
        self._window_bytes = window_bytes
        self._slice_records = slice_records
        self._slice_bytes = _STEP_BYTES
        self._index = index
        self._monotonic_ms = monotonic_ms
        self._credit_ms = 0.0
        self._credited_ms = 0
        self._next = 0
        self._next_idle_ms = 0
        self._next_sync_ms = 0
        self._without_keys: deque[tuple[int, int]] = deque()
        """Stretches of the log in front of the index, in order, that need no look."""
        self.full_disk: str | None = None
        """Why the index cannot go on just now, or None."""

    @property
    def problem(self) -> str | None:
        """Why the index does not follow the log, or None."""
        return self._index.failed or self.full_disk or self._index.full_disk

    def behind_bytes(self, end: int) -> int:
        return max(end - self._index.position, 0)

    def open(self, end: int, *, clean: bool, safe_timestamp_ms: int) -> None:
        """The log was recovered and ends at ``end``. An index that cannot be opened keeps no store from opening."""
        index = self._index
        self._next = end + self._slice_bytes
        self._credited_ms = self._monotonic_ms()
        self._next_sync_ms = self._credited_ms + _SYNC_INTERVAL_MS
        try:
            index.load(clean=clean, safe_timestamp_ms=safe_timestamp_ms)
            index.cut(end)
        except (OSError, NotNow) as error:
            index.disable(f"opening the index failed: {error}")

    # --- follow -----------------------------------------------------------------------------------------------

    def arrived(self, end: int, durable: int) -> None:
        """After every dispatch. Small groups are collected, and the work gets its share of the time, more only when
        the index is too far behind."""
        if end < self._next:
            return
        arrived = end - self._next + self._slice_bytes
        started_ms = self._monotonic_ms()
        self._credit_ms += (started_ms - self._credited_ms) * _TIME_SHARE
        self._credit_ms = min(self._credit_ms, _MAX_CREDIT_MS)
        self._credited_ms = started_ms
        if self._credit_ms > 0:
            self.follow(end, durable, 2 * arrived)
            self._credit_ms -= self._monotonic_ms() - started_ms
        elif self.behind_bytes(end) > _MAX_BEHIND_BYTES:
            self.follow(end, durable, arrived)
        self._next = end + self._slice_bytes

    def expect_no_keys(self, start: int, end: int) -> None:
        """The records that will be stored in [start, end) have no properties."""
        stretches = self._without_keys
        if self._index.failed is not None:
            stretches.clear()
        elif stretches and stretches[-1][1] == start:
            stretches[-1] = stretches[-1][0], end
        else:
            stretches.append((start, end))

    def follow(self, end: int, durable: int, max_bytes: int) -> bool:
        """Index what lies before ``end``, but not much more than ``max_bytes``; gives back whether ``end`` is reached.

        Never raises: a full disk is met again by the next call, another error ends the index (``problem``).
        """
        log, index, without_keys = self._log, self._index, self._without_keys
        if index.failed is not None:
            return False
        stop = index.position + max_bytes
        try:
            while index.position < min(end, stop):
                low, high = without_keys[0] if without_keys else (end, end)
                if high <= index.position:
                    without_keys.popleft()
                    continue
                if low <= index.position:
                    stop += min(high, end) - index.position
                    index.skip(min(high, end))
                    continue
                segment = log.segment_of(index.position)
                if segment is not None:
                    self._slice(segment, min(end, segment.end, low))
                else:  # retention was faster
                    index.skip(min((s.start for s in log.segments if s.start > index.position), default=end))
            self.full_disk = None
        except NotNow as error:
            self.full_disk = str(error)
        except OSError as error:
            if is_shortage(error):
                self.full_disk = str(error)
            else:
                index.failed = f"writing the index failed: {error}"
        index.note_durable(durable)
        return index.position >= end

    def find(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, *, end: int, durable: int
    ) -> list[int]:
        """``MessageIndex.find``, after catching up with what arrived lately (but not with an old backlog)."""
        self.follow(end, durable, _QUERY_BYTES)
        return self._index.find(topic, key, limit, begin_ms, end_ms)

    def idle(self, end: int, durable: int) -> IndexJob | None:
        """Catch up, once a second however often it is called; from time to time a job that makes the index durable."""
        now_ms = self._monotonic_ms()
        if now_ms >= self._next_idle_ms:
            self._next_idle_ms = now_ms + _IDLE_INTERVAL_MS
            self.follow(end, durable, _IDLE_BYTES)
        if now_ms < self._next_sync_ms:
            return None
        self._next_sync_ms = now_ms + _SYNC_INTERVAL_MS
        return self._index.begin_sync()

    def close(self, end: int, durable: int) -> None:
        """Blocking: catch up, sync. RocketMQ takes the index of a store that was closed for complete."""
        self.follow(end, durable, end)
        job = self._index.begin_sync()
        if job is not None:
            job.run()
            job.done()
        self._index.close()

    def _slice(self, segment: Segment, end: int) -> None:
        index, start = self._index, segment.start
        limit = min(end, index.position + self._slice_bytes)
        run = self._window.read_run(segment, index.position, limit, verify_crc=False, min_records=1)
        if run is None:  # damage, or a record that is longer than the window
            view, low, high = self._log.around(segment, index.position, min(end, start + segment.length))
            run = read_run(view, low, high, index.position - low, verify_crc=False, min_records=1)
        if run is not None:
            record_bytes = (run.end_position - index.position) // len(run.positions)
            self._slice_bytes = min(max(record_bytes * self._slice_records, _STEP_BYTES), self._window_bytes)
            index.put(run_keys(run), run.end_position)
        else:
            index.skip(self._behind_gap(segment, index.position, end))

    def _behind_gap(self, segment: Segment, position: int, end: int) -> int:
        """Where to go on when no record begins at ``position``: the segment is over there, or something is damaged."""
        stop = min(end, segment.start + segment.length)
        size, magic = 0, 0
        if position + BLANK_BYTES <= stop:
            view, at, _ = self._log.around(segment, position, position + BLANK_BYTES)
            size, magic = _SIZE_MAGIC.unpack_from(view, at)
        if magic == BLANK_MAGIC:
            return end
        if size > 0 and self._is_record(segment, position + size, stop):
            return position + size
        for data_start, data_end in self._log.data_ranges(segment, position):
            at = max(position, data_start - 1) - segment.start
            high = min(stop, data_end) - segment.start
            while (at := self._log.find(segment, _MAGIC_PREFIX, at + 1, high)) >= 0:
                found = segment.start + at - 4
                if found > position and self._is_record(segment, found, stop):
                    return found
        return end

    def _is_record(self, segment: Segment, position: int, limit: int) -> bool:
        if position + BLANK_BYTES > limit:
            return False
        view, low, high = self._log.around(segment, position, limit)
        record = check_record(view, low, high, verify_crc=True)
        return record.verdict is Verdict.VALID and record.physical_offset == position
