"""Reads the log from a position on, record after record, for recovery and all tools.

Runs of valid records are checked together (``scan``). A damaged record is skipped: by its own length when a
valid record (or the segment's end) follows there, otherwise by a search for the next message magic whose
record is valid and has the right position. The length is tried first because a message body may contain bytes
that look like a record at the right position. The search could return such a record; the length cannot.

Must not know queues.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from mqspark.record.record import CheckedRecord, Verdict, check_record
from mqspark.record.recordlayout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGIC_PREFIX,
    MIN_RECORD_BYTES,
    SIZE_MAGIC,
    record_size,
)
from mqspark.store.disk.layout import is_storable_topic
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.logwindow import LogWindow
from mqspark.store.log.scan import Run, read_run


class LogReader(ABC):
    """The base of readers; subclasses process the records."""

    def __init__(self, log: CommitLog, *, verify_crc: bool, verify_property_crc: bool) -> None:
        self._log = log
        self._window = LogWindow(log)
        self._verify_crc = verify_crc
        self._verify_property_crc = verify_property_crc
        self.damaged: list[tuple[int, int]] = []
        """[from, to) ranges of the log that hold no valid record but are followed by one."""

    @abstractmethod
    def _take(self, record: CheckedRecord, position: int) -> None:
        """Process a valid record."""

    @abstractmethod
    def _take_run(self, run: Run) -> None:
        """Process all records of a run, as ``_take`` does."""

    @abstractmethod
    def _take_damaged(self, record: CheckedRecord, position: int) -> None:
        """Process a damaged record whose lengths and position are correct, so its head is probably intact."""

    def _scan(self, start: int) -> int:
        """Read every record from ``start`` on. Returns the end of the log."""
        end = start
        for segment in self._log.segments:
            if segment.end <= start:
                continue
            position = max(start, segment.start)
            data_end = self._data_end(segment, position)
            while position < data_end:
                run = self._read_run(segment, position, data_end)
                if run is not None:
                    self._step_over(end, position)
                    self._take_run(run)
                    position = end = run.end_position
                    continue
                record = self._record_at(segment, position, data_end)
                if record is None:
                    if self._is_blank(segment, position, data_end):
                        self._step_over(end, position)
                        end = segment.end
                        break
                    following = self._next_valid(segment, position, data_end)
                    if following is None:
                        break
                    position = following
                    continue
                self._step_over(end, position)
                self._take(record, position)
                position += record.size_bytes
                end = position
        return end

    def _read_run(self, segment: Segment, position: int, data_end: int) -> Run | None:
        return self._window.read_run(
            segment,
            position,
            data_end,
            verify_crc=self._verify_crc,
            verify_property_crc=self._verify_property_crc,
        )

    def _run_of(self, record: CheckedRecord, position: int) -> Run | None:
        """A valid record as a run of one; None when no segment has it."""
        segment = self._log.segment_of(position)
        if segment is None:
            return None
        view, low, high = self._log.around(segment, position, position + record.size_bytes)
        return read_run(view, low, high, position - low, verify_crc=False, min_records=1)

    def _step_over(self, end: int, position: int) -> None:
        """Note what lies between the last valid record and the valid one at ``position`` as damaged."""
        if end < position:
            self.damaged.append((end, position))
            segment = self._log.segment_of(end)
            if segment is not None:
                lost = self._record_at(
                    segment, end, min(position, segment.start + segment.length), verify_crc=False
                )
                if lost is not None:
                    self._take_damaged(lost, end)

    def _record_at(
        self, segment: Segment, position: int, limit: int, *, verify_crc: bool = True
    ) -> CheckedRecord | None:
        view, low, high = self._log.around(segment, position, limit)
        record = check_record(
            view,
            low,
            high,
            verify_crc=verify_crc and self._verify_crc,
            verify_property_crc=verify_crc and self._verify_property_crc,
        )
        if (
            record.verdict is not Verdict.VALID
            or record.physical_offset != position
            or not is_storable_topic(record.topic)
            # No CRC covers the properties, but no broker stores a string that ends in NUL: the tail is torn.
            or record.properties.endswith(b"\0")
        ):
            return None
        return record

    def _is_blank(self, segment: Segment, position: int, data_end: int) -> bool:
        if position + BLANK_BYTES > data_end:
            return False
        view, low, _ = self._log.around(segment, position, position + BLANK_BYTES)
        size, magic = SIZE_MAGIC.unpack_from(view, low)
        return bool(magic == BLANK_MAGIC and size == segment.end - position)

    def _next_valid(self, segment: Segment, position: int, data_end: int) -> int | None:
        """The next position in this segment, after a damaged one, with a valid record or the blank record."""
        if position + BLANK_BYTES <= data_end:
            view, at, _ = self._log.around(segment, position, position + BLANK_BYTES)
            size = record_size(view, at)
            if size >= MIN_RECORD_BYTES and self._is_record_or_blank(segment, position + size, data_end):
                return position + int(size)
        low = position + 1 - segment.start
        for range_start, range_end in self._log.data_ranges(segment, position + 1):
            at = max(low, range_start - segment.start)
            # No record beyond ``data_end`` is valid, which may lie far before the end of the segment's data.
            end = min(range_end, data_end) - segment.start
            while (at := self._log.find(segment, MAGIC_PREFIX, at, end)) >= 0:
                candidate = segment.start + at - 4
                if candidate > position and self._record_at(segment, candidate, data_end) is not None:
                    return candidate
                at += 1
        return None

    def _is_record_or_blank(self, segment: Segment, position: int, data_end: int) -> bool:
        return self._record_at(segment, position, data_end) is not None or self._is_blank(
            segment, position, data_end
        )

    def _data_end(self, segment: Segment, position: int) -> int:
        """End of the data in this segment. After it the file has only zeros, which are not read."""
        return max((high for _, high in self._log.data_ranges(segment, position)), default=position)
