"""Lets the index follow the log: reads new records in slices and adds their keys, or adds those that are known without
reading (``aheadkeys``).

A slice has several stages, and a turn of the loop that owns the index does few of them. How long they take decides how
much the next ones do (``stagepace``); the bytes of properties are bounded besides.

The index is always built this way, for new records, after a crash, and for a directory without an index. It
never decides whether a message is accepted. On a full disk it waits. After any other error it stays as it is
until the next start, while the log continues.

Must not know queues.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from time import perf_counter
from typing import NamedTuple

import numpy as np

from mqspark.base.logs import sparing
from mqspark.errors import NotNow, is_shortage
from mqspark.record.record import Verdict, check_record
from mqspark.record.recordlayout import BLANK_BYTES, BLANK_MAGIC, MAGIC_PREFIX, SIZE_MAGIC
from mqspark.store.disk.diskjobs import run_here
from mqspark.store.index.aheadkeys import AheadKeys, KnownRow
from mqspark.store.index.index import IndexJob, MessageIndex, ReadSlotsJob
from mqspark.store.index.indexfile import IndexFile
from mqspark.store.index.keys import NO_KEYS, KeyColumns, key_steps, run_keys
from mqspark.store.index.stagepace import StagePace
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
    """Keys that are added at once, if they are of several records."""
    stage_s: float
    """How long a stage may take, about; the next ones are smaller if it took longer."""


SHORT = Slice(3072, 256 << 10, 3072, 0.0005)
"""For the loop of a broker, where no callback may take two milliseconds. Of more records at once, one costs no less."""
_FIRST_RECORDS = 256
_FIRST_KEYS = 16
"""Keys that are added while nothing is known of their slots. Each touches another page, which the disk may have to
read: some 0.1 ms."""
_KEYS_OF_SYNC = 128
"""Keys that are added at once while a sync runs, after which each page of slots costs a fault again: some 4 µs."""
_KNOWN_S = 1.0
"""So long after a measure, pages that were in memory are taken to be there."""
KEPT_MS = 60_000
"""Slots that were not used for so long may have left memory: a job reads them before keys are added again."""
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
        self._bounds = bounds
        self._records = StagePace(_FIRST_RECORDS, bounds.records, bounds.stage_s)
        self._keys = StagePace(_FIRST_KEYS, bounds.keys, bounds.stage_s)
        self._keys_until_s = 0.0
        """When what was measured of keys is too old."""
        self._touching = 0
        """``touching`` of the index when they were measured."""
        self._read_file: IndexFile | None = None
        """Its slots were read by a job."""
        self._used_ms = 0
        """When slots were used or read last."""
        self._slots_job: ReadSlotsJob | None = None
        """Until it is done, no keys are added in turns of the loop."""
        self._is_slots_job_due = False
        self._slice_bytes = min(_STEP_BYTES // 4, window_bytes)
        """The log of the next slice, by the records of the last one; the first is careful."""
        self._known_bytes = 0
        """The log of as many records as a stage adds the keys of, while these are known."""
        self._stages: Generator[None, None, None] | None = None
        """The slice that begins at the index's position, after its first stage; None before."""
        self._index = index
        self._monotonic_ms = monotonic_ms
        self._credit_ms = 0.0
        self._credited_ms = 0
        self.next_end = 0
        """End of the log from which on ``arrived`` does something. To be looked at only."""
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
        self._credited_ms = self._used_ms = self._monotonic_ms()
        self._slots_job, self._read_file = None, None
        self._next_sync_ms = self._credited_ms + _SYNC_INTERVAL_MS
        try:
            index.load(clean=clean, safe_timestamp_ms=safe_timestamp_ms)
            index.cut(end)
        except (OSError, NotNow) as error:
            index.disable(f"opening the index failed: {error}")

    # --- follow -----------------------------------------------------------------------------------------------

    def arrived(self, end: int, durable: int) -> None:
        """Call this after every dispatch. Small groups are collected, and the index gets its share of the
        time, a turn a call, and more only when it is too far behind."""
        if end < self.next_end:
            return
        started_ms = self._monotonic_ms()
        self._credit_ms += (started_ms - self._credited_ms) * _TIME_SHARE
        self._credit_ms = min(self._credit_ms, _MAX_CREDIT_MS)
        self._credited_ms = started_ms
        has_credit = self._credit_ms > 0
        has_turn = has_credit or self.behind_bytes(end) > _MAX_BEHIND_BYTES
        has_turn = has_turn and not self._must_read_slots(started_ms)
        if has_turn:
            self._follow(end, durable, 1, one_turn=True)
        if has_credit:
            self._credit_ms -= self._monotonic_ms() - started_ms
        self._collect_from(end)
        is_behind = self._stages is not None or self.behind_bytes(end) >= self._collected_bytes
        if has_turn and self._index.failed is None and is_behind:
            self.next_end = end  # the next call goes on

    def _must_read_slots(self, now_ms: int) -> bool:
        """Whether ``slots_job`` comes first: keys touch pages all over the slots, and a slow disk takes ten
        milliseconds to bring some of them."""
        if self._slots_job is not None:
            return True
        files = self._index.index_files
        if not files:  # the first one is made with the first keys
            self._used_ms = now_ms
            return False
        is_there = files[-1].is_in_use or files[-1] is self._read_file
        if is_there and now_ms - self._used_ms < KEPT_MS:
            self._used_ms = now_ms
            return False
        self._slots_job, self._is_slots_job_due = self._index.read_slots(self._slots_read), True
        return True

    def _slots_read(self, file: IndexFile) -> None:
        self._slots_job = None
        self._read_file, self._used_ms = file, self._monotonic_ms()
        self.next_end = 0  # the next call goes on

    def slots_job(self) -> ReadSlotsJob | None:
        """Reads slots that are needed; returned once."""
        job = self._slots_job if self._is_slots_job_due else None
        self._is_slots_job_due = False
        return job

    @property
    def _collected_bytes(self) -> int:
        return max(self._slice_bytes, self._known_bytes, _STEP_BYTES)

    def _collect_from(self, end: int) -> None:
        self.next_end = end + self._collected_bytes

    def follow(self, end: int, durable: int, max_bytes: int) -> bool:
        """Index the log before ``end``, in this call not much more than ``max_bytes``. Returns whether
        ``end`` is reached.

        Never raises. A full disk is retried by the next call; another error ends the index (``problem``).
        """
        return self._follow(end, durable, max_bytes)

    def _follow(self, end: int, durable: int, max_bytes: int, *, one_turn: bool = False) -> bool:
        """With ``one_turn``: at most as much as a turn may do."""
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
                        if one_turn:
                            break
                        continue
                    low = end
                segment = log.segment_of(index.position)
                if segment is not None:
                    self._advance(segment, min(end, segment.end, low))
                    if one_turn:
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
        began_s = perf_counter()
        keys, records, position = row.columns(end, self._keys_at_once(began_s))
        if not records:
            return False
        self._stages = None
        self._slice_bytes = min(self._slice_bytes, _STEP_BYTES)
        record_bytes = (position - row.start) // records
        self._put(keys, position, began_s)
        self._known_bytes = min(record_bytes * self._keys.size, self._window.window_bytes)
        row.forget(records, position)
        return True

    def _keys_at_once(self, now_s: float) -> int:
        """How many keys the next stage adds."""
        index, keys = self._index, self._keys
        if now_s >= self._keys_until_s or index.touching != self._touching:
            self._keys_until_s, self._touching = now_s + _KNOWN_S, index.touching
            keys.begin_anew()
        most = min(keys.size, index.room or _FIRST_KEYS)  # a new file is begun with few
        return min(most, _KEYS_OF_SYNC) if index.is_syncing else most

    def _put(self, keys: KeyColumns, position: int, began_s: float) -> None:
        self._index.put(keys, position)
        self._keys.note(len(keys.hashes), perf_counter() - began_s)

    def _skip(self, position: int) -> None:
        self._stages = None
        self._index.skip(position)

    def _advance(self, segment: Segment, end: int) -> None:
        """Do the next stage of a slice, and further ones while they are short. A slice that cannot be finished is begun
        anew."""
        stages, self._stages = self._stages, None
        if stages is None:
            stages = self._slice(segment, end)
        last_start_s = perf_counter() + self._bounds.stage_s / 2
        for _ in stages:
            if perf_counter() >= last_start_s:
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
        stop = self._index.position + _QUERY_BYTES
        while self._index.position < min(end, stop) and self._take_turn(end, durable):
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
        """Do as much as a turn may."""
        if self._must_read_slots(self._monotonic_ms()) or not self._take_turn(end, durable):
            self._idle_stop = 0
        self._tell()

    def _take_turn(self, end: int, durable: int) -> bool:
        """Returns whether the next turn would come further."""
        before = self._index.position
        is_done = self._follow(end, durable, 1, one_turn=True)
        return not is_done and (self._stages is not None or self._index.position != before)

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
        index, start, pace = self._index, segment.start, self._records
        self._known_bytes = 0
        began_s = perf_counter()
        limit = min(end, index.position + self._slice_bytes)
        run = self._window.read_run(segment, index.position, limit, verify_crc=False, min_records=1)
        if run is None:  # damage, or a record longer than the window
            view, low, high = self._log.around(segment, index.position, min(end, start + segment.length))
            run = read_run(view, low, high, index.position - low, verify_crc=False, min_records=1)
        if run is None:
            index.skip(self._behind_gap(segment, index.position, end))
            return
        record_bytes = (run.end_position - index.position) // len(run.positions)
        run, whole = run.first(pace.size, self._bounds.text_bytes), len(run.positions)
        count = len(run.positions)
        longest_s = perf_counter() - began_s
        yield
        began_s = perf_counter()
        keys = NO_KEYS
        for step in key_steps(run):
            keys = step
            longest_s = max(longest_s, perf_counter() - began_s)
            yield
            began_s = perf_counter()
        pace.note(count, longest_s)
        most = pace.size if count == whole else min(pace.size, 2 * count)
        self._slice_bytes = min(record_bytes * most, self._window.window_bytes)
        low = 0
        while len(keys.positions) - low > (most := self._keys_at_once(began_s)):
            # Whole records, so that the index has all keys of what is before its position and no others.
            next_position = keys.positions[low + most]
            high = int(np.searchsorted(keys.positions, next_position))
            if high == low:
                high = int(np.searchsorted(keys.positions, next_position, "right"))
                yield from self._warm(keys.part(low, high), began_s)
                began_s = perf_counter()
                if high == len(keys.positions):
                    break
            self._put(keys.part(low, high), int(keys.positions[high]), began_s)
            low = high
            yield
            began_s = perf_counter()
        self._put(keys.part(low, len(keys.positions)), run.end_position, began_s)

    def _warm(self, keys: KeyColumns, began_s: float) -> Iterator[None]:
        """The slots of a record's keys, which are added at once, are in memory afterwards."""
        low, count = 0, len(keys.hashes)
        while low < count:
            part = keys.part(low, low + self._keys_at_once(began_s))
            self._index.warm(part)
            self._keys.note(len(part.hashes), perf_counter() - began_s)
            low += len(part.hashes)
            yield
            began_s = perf_counter()

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
