"""Lets the index follow the log: reads new records in slices and adds their keys, or adds those that are known without
reading (``aheadkeys``).

A slice has several stages, and a turn of the loop that owns the index does one of them. How long a stage takes is
bounded by the records of a slice and by the bytes of their properties.

The index is always built this way, for new records, after a crash, and for a directory without an index. It
never decides whether a message is accepted. On a full disk it waits. After any other error it stays as it is
until the next start, while the log continues.

Must not know queues.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

import numpy as np

from mqspark.base.logs import sparing
from mqspark.errors import NotNow, is_shortage
from mqspark.record.record import Verdict, check_record
from mqspark.record.recordlayout import BLANK_BYTES, BLANK_MAGIC, MAGIC_PREFIX, SIZE_MAGIC
from mqspark.store.disk.diskjobs import run_here
from mqspark.store.index.aheadkeys import AheadKeys, KnownRow
from mqspark.store.index.index import IndexJob, MessageIndex
from mqspark.store.index.keys import run_keys
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.logwindow import LogWindow
from mqspark.store.log.scan import read_run

_log = sparing(__name__)


class Slice(NamedTuple):
    """Bounds of what is indexed at once; see the stages of ``Indexer``."""

    records: int
    text_bytes: int
    """Bytes of topics and properties, if there are several records: those of many keys take long to hash."""
    keys: int
    """Keys that are added at once, if they are of several records. The slots of a new file, or of one that was just
    synced, cost a page fault each: some 6 µs."""
    warm_keys: int
    """The same once the slots were touched: of few keys, most of the time is that of the calls."""


SHORT = Slice(1024, 256 << 10, 128, 512)
"""For the loop of a broker: some two milliseconds, a stage less than one. A quarter of that is independent of the
size."""
_WINDOW_BYTES = 2 << 20
"""Most bytes of the log that are indexed at once."""
_STEP_BYTES = 512 << 10
"""Bytes of the log to collect before they are indexed, however small the records are."""
_TIME_SHARE = 0.1
"""Share of a busy thread's time for the index while it is not too far behind. A burst is indexed afterwards."""
_MAX_CREDIT_MS = 20
_MAX_BEHIND_BYTES = 256 << 20
_QUERY_BYTES = _MAX_BEHIND_BYTES + 2 * _WINDOW_BYTES
_IDLE_BYTES = 16 << 20
"""Most bytes of the log that ``step`` indexes in an interval."""
_IDLE_INTERVAL_MS = 1000
_SYNC_INTERVAL_MS = 10_000
"""A sync writes every touched slot page, which under load is all of them. After a crash, the log of this
interval is indexed again."""


class Indexer:
    """``end``: end of the last record that consumers may see. ``durable``: end of what the log has synced."""

    def __init__(
        self,
        log: CommitLog,
        index: MessageIndex,
        monotonic_ms: Callable[[], int],
        *,
        window_bytes: int = _WINDOW_BYTES,
        bounds: Slice = SHORT,
    ) -> None:
        self._log = log
        self._window = LogWindow(log, window_bytes)
        self._window_bytes = window_bytes
        self._bounds = bounds
        self._slice_bytes = min(_STEP_BYTES // 4, window_bytes)
        """The log of the next slice, by the records of the last one; the first is careful."""
        self._stages: Generator[None, None, None] | None = None
        """The slice that begins at the index's position, after its first stage; None before."""
        self._index = index
        self._monotonic_ms = monotonic_ms
        self._credit_ms = 0.0
        self._credited_ms = 0
        self.next_end = 0
        """End of the log from which on ``arrived`` does something. To be looked at only."""
        self._collected_from = 0
        """End of the log when it did so last."""
        self._idle_stop = 0
        """Position of the index from which on ``step`` waits for the next interval."""
        self._next_idle_ms = 0
        self._next_sync_ms = 0
        self.ahead = AheadKeys()
        self._told: str | None = None
        """The problem that the log of the process has told last."""
        self.full_disk: str | None = None
        """Why the index is waiting for disk space, or None."""

    @property
    def problem(self) -> str | None:
        """Why the index does not follow the log, or None."""
        return self._index.failed or self.full_disk or self._index.full_disk

    def behind_bytes(self, end: int) -> int:
        return max(end - self._index.position, 0)

    def open(self, end: int, *, clean: bool, safe_timestamp_ms: int) -> None:
        """Start after recovery of a log that ends at ``end``. A failure disables the index; the store opens
        nevertheless."""
        index = self._index
        self._collect_from(end)
        self._credited_ms = self._monotonic_ms()
        self._next_sync_ms = self._credited_ms + _SYNC_INTERVAL_MS
        try:
            index.load(clean=clean, safe_timestamp_ms=safe_timestamp_ms)
            index.cut(end)
        except (OSError, NotNow) as error:
            index.disable(f"opening the index failed: {error}")

    # --- follow -----------------------------------------------------------------------------------------------

    def arrived(self, end: int, durable: int) -> None:
        """Call this after every dispatch. Small groups are collected, and the index gets its share of the
        time, a stage of a slice a call, and more only when it is too far behind."""
        if end < self.next_end:
            return
        arrived = end - self._collected_from
        started_ms = self._monotonic_ms()
        self._credit_ms += (started_ms - self._credited_ms) * _TIME_SHARE
        self._credit_ms = min(self._credit_ms, _MAX_CREDIT_MS)
        self._credited_ms = started_ms
        has_credit = self._credit_ms > 0
        if has_credit:
            self._follow(end, durable, 1, one_stage=True)
            self._credit_ms -= self._monotonic_ms() - started_ms
        elif self.behind_bytes(end) > _MAX_BEHIND_BYTES:
            self.follow(end, durable, arrived)
        self._collect_from(end)
        is_behind = self._stages is not None or self.behind_bytes(end) >= self._collected_bytes
        if has_credit and self._index.failed is None and is_behind:
            self.next_end = end  # the next call goes on

    @property
    def _collected_bytes(self) -> int:
        return max(self._slice_bytes, _STEP_BYTES)

    def _collect_from(self, end: int) -> None:
        self._collected_from, self.next_end = end, end + self._collected_bytes

    def follow(self, end: int, durable: int, max_bytes: int) -> bool:
        """Index the log before ``end``, in this call not much more than ``max_bytes``. Returns whether
        ``end`` is reached.

        Never raises. A full disk is retried by the next call; another error ends the index (``problem``).
        """
        return self._follow(end, durable, max_bytes)

    def _follow(self, end: int, durable: int, max_bytes: int, *, one_stage: bool = False) -> bool:
        """With ``one_stage``: at most one stage of a slice."""
        log, index = self._log, self._index
        if index.failed is not None:
            self.ahead.clear()
            return False
        stop = index.position + max_bytes
        try:
            while index.position < min(end, stop):
                row = self.ahead.ahead(index.position)
                low = end if row is None else row.start
                if row is not None and low <= index.position:
                    if not row.key_bytes:
                        stop += min(row.end, end) - index.position
                        self._skip(min(row.end, end))
                        continue
                    if self._put_known(row, end):
                        if one_stage:
                            break
                        continue
                    low = end
                segment = log.segment_of(index.position)
                if segment is not None:
                    self._advance(segment, min(end, segment.end, low))
                    if one_stage:
                        break
                else:  # retention has removed it
                    self._skip(min((s.start for s in log.segments if s.start > index.position), default=end))
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

    def _put_known(self, row: KnownRow, end: int) -> bool:
        """Add keys that were known when their records were stored. False: more of these must be visible first, or be
        read."""
        bounds, index = self._bounds, self._index
        keys, records, position = row.columns(end, bounds.warm_keys if index.is_warm else bounds.keys)
        if not records:
            return False
        self._stages = None
        self._slice_bytes = min(self._slice_bytes, _STEP_BYTES)  # fewer are collected: these cost little
        index.put(keys, position)
        row.forget(records, position)
        return True

    def _skip(self, position: int) -> None:
        self._stages = None
        self._index.skip(position)

    def _advance(self, segment: Segment, end: int) -> None:
        """Do the next stage of a slice. A slice that cannot be finished is begun anew."""
        stages, self._stages = self._stages, None
        if stages is None:
            stages = self._slice(segment, end)
        for _ in stages:
            self._stages = stages
            break

    def healed(self, low: int, high: int) -> None:
        """There are valid records in [low, high) of the log again: follow the log from there, if they were not there
        when the index passed them."""
        segment = self._log.segment_of(low)
        if self._index.failed is not None or self._index.position <= low or segment is None:
            return
        view, start, limit = self._log.around(segment, low, min(high, segment.end))
        run = read_run(view, start, limit, low - start, verify_crc=False, min_records=1)
        if run is not None and not self._index.has_one_of(run_keys(run)):
            self.cut(low)

    def cut(self, end: int) -> None:
        """Forget everything about the log from ``end`` on. A failure disables the index."""
        self.ahead.clear()
        self._window.forget()
        self._stages = None
        self._collect_from(end)
        if self._index.failed is None:
            try:
                self._index.cut(end)
            except (OSError, NotNow) as error:
                self._index.disable(f"cutting the index failed: {error}")

    def search(
        self, topic: str, key: str, begin_ms: int, end_ms: int, *, end: int, durable: int
    ) -> Iterator[list[int]]:
        """``MessageIndex.search``, after catching up with recent records (but not with a large backlog)."""
        for _ in range(_QUERY_BYTES // _WINDOW_BYTES):
            before = self._index.position
            if self.follow(end, durable, _WINDOW_BYTES) or self._index.position == before:
                break
            yield []
        yield from self._index.search(topic, key, begin_ms, end_ms)

    def idle(self, end: int, durable: int) -> IndexJob | None:
        """Begin to catch up, at most once a second: ``step`` does it. Returns, at intervals, a job that makes the index
        durable."""
        now_ms = self._monotonic_ms()
        if now_ms >= self._next_idle_ms:
            self._next_idle_ms = now_ms + _IDLE_INTERVAL_MS
            self._idle_stop = self._index.position + _IDLE_BYTES
            if self._index.failed is None:
                self._index.note_durable(durable)
            self._tell()
        if now_ms < self._next_sync_ms:
            return None
        self._next_sync_ms = now_ms + _SYNC_INTERVAL_MS
        return self._index.begin_sync()

    def has_more(self, end: int) -> bool:
        """Whether ``step`` has something to do in this interval."""
        return self._index.failed is None and self._index.position < min(end, self._idle_stop)

    def step(self, end: int, durable: int) -> None:
        """Do a stage of a slice."""
        before = self._index.position
        if self._follow(end, durable, 1, one_stage=True) or (
            self._stages is None and self._index.position == before
        ):
            self._idle_stop = 0  # done for this interval, or it would not come further
        self._tell()

    def _tell(self) -> None:
        """Log a problem once, and its end."""
        problem = self.problem
        if problem != self._told:
            if problem is not None:
                _log.error("new messages cannot be found by key: %s", problem)
            else:
                _log.warning("new messages can be found by key again")
            self._told = problem

    def close(self, end: int, durable: int) -> None:
        """Catch up and sync. Blocking. RocketMQ assumes that the index of a cleanly closed store is
        complete."""
        self.follow(end, durable, end)
        job = self._index.begin_sync()
        if job is not None:
            run_here(job)
        self._index.close()

    def _slice(self, segment: Segment, end: int) -> Generator[None, None, None]:
        """The stages of a slice from the index's position on. The log before ``end`` does not change meanwhile; when
        it is cut nevertheless, the slice is dropped (``cut``)."""
        index, start, bounds = self._index, segment.start, self._bounds
        limit = min(end, index.position + self._slice_bytes)
        run = self._window.read_run(segment, index.position, limit, verify_crc=False, min_records=1)
        if run is None:  # damage, or a record longer than the window
            view, low, high = self._log.around(segment, index.position, min(end, start + segment.length))
            run = read_run(view, low, high, index.position - low, verify_crc=False, min_records=1)
        if run is None:
            index.skip(self._behind_gap(segment, index.position, end))
            return
        record_bytes = (run.end_position - index.position) // len(run.positions)
        taken = run.first(bounds.records, bounds.text_bytes)
        most = bounds.records if taken is run else min(bounds.records, 2 * len(taken.positions))
        self._slice_bytes = min(record_bytes * most, self._window_bytes)
        run = taken
        yield
        run.layouts()
        yield
        keys = run_keys(run)
        low = 0
        while len(keys.positions) - low > (most := bounds.warm_keys if index.is_warm else bounds.keys):
            yield
            # Whole records, so that the index has all keys of what is before its position and no others.
            next_position = keys.positions[low + most]
            high = int(np.searchsorted(keys.positions, next_position))
            if high == low:
                high = int(np.searchsorted(keys.positions, next_position, "right"))
                if high == len(keys.positions):
                    break
            index.put(keys.part(low, high), int(keys.positions[high]))
            low = high
        yield
        index.put(keys.part(low, len(keys.positions)), run.end_position)

    def _behind_gap(self, segment: Segment, position: int, end: int) -> int:
        """Where to continue when no record begins at ``position``: the segment ends there, or something is
        damaged."""
        stop = min(end, segment.start + segment.length)
        size, magic = 0, 0
        if position + BLANK_BYTES <= stop:
            view, at, _ = self._log.around(segment, position, position + BLANK_BYTES)
            size, magic = SIZE_MAGIC.unpack_from(view, at)
        if magic == BLANK_MAGIC:
            return end
        if size > 0 and self._is_record(segment, position + size, stop):
            return position + size
        for data_start, data_end in self._log.data_ranges(segment, position):
            at = max(position, data_start - 1) - segment.start
            high = min(stop, data_end) - segment.start
            while (at := self._log.find(segment, MAGIC_PREFIX, at + 1, high)) >= 0:
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
