"""Corrects queue entries that a consumer has found not to lead to their records, long before the scrub gets
there.

Entries and records have one order, so the record of a wrong entry lies in the log between those of the nearest
right entries. That stretch is walked from record to record.

Must not know who asks.
"""

from __future__ import annotations

from mqspark.record.record import CheckedRecord, Verdict, check_record, tags_code
from mqspark.record.recordlayout import MAGIC_V1, MAGIC_V2, fields
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, FILLER_SIZE, ConsumeQueue
from mqspark.store.storedata import StoreData

_HEAD = fields("size", "magic", "queue_id", "queue_offset")
"""Size, magic, queue id and queue offset of a record."""
_SEARCH_BYTES = 8 << 20
"""Limit of the log walked in one call: some tens of milliseconds of the loop's thread. The scrub finds what lies
farther."""
_MAX_NEIGHBOURS = 64
"""Limit of the entries that are looked at for a right one on either side."""
_MAX_GIVEN_UP = 1000


class EntryHealer:
    """Corrects nothing while the store is read-only."""

    def __init__(self, data: StoreData, pipeline: CommitPipeline, condition: Condition) -> None:
        self._log = data.log
        self._levels = data.levels
        self._pipeline = pipeline
        self._condition = condition
        self._note = data.note
        self._left_bytes = 0
        """Bytes that the current call may still walk."""
        self._given_up: dict[tuple[str, int, int], None] = {}
        """Entries (topic, queue, offset) whose record was not found: they are not searched again."""

    def heal(self, queue: ConsumeQueue, first: int, end: int) -> bool:
        """Correct the wrong ones of the entries [first, end). Returns whether there were any that could be
        corrected. Raises OSError."""
        if self._condition.read_only is not None:
            return False
        self._left_bytes = _SEARCH_BYTES
        healed = [offset for offset in range(first, end) if self._heal(queue, offset)]
        if healed:
            text = (
                f"{len(healed)} entries of queue {queue.topic}/{queue.queue_id} from {healed[0]} on did not lead"
                " to their records; a consumer met them"
            )
            self._note(Damage("queue.differs", Outcome.HEALED, text))
        return bool(healed)

    def _heal(self, queue: ConsumeQueue, offset: int) -> bool:
        key = (*queue.key, offset)
        entry = queue.packed_entry(offset)
        if entry is None or len(entry) != ENTRY_BYTES or key in self._given_up:
            return False
        if ENTRY.unpack(entry)[1] == FILLER_SIZE:
            return False
        if len(self._given_up) >= _MAX_GIVEN_UP or self._left_bytes <= 0:
            return False
        if self._end_of(queue, offset) is not None or self._is_expired(queue, offset):
            return False  # the entry is right; its record is damaged or gone
        record = self._find(queue, offset)
        if record is None:
            self._given_up[key] = None
            return False
        code = tags_code(record.properties)
        if queue.is_schedule:
            code = self._levels.schedule_tags_code(record.properties, code, record.store_timestamp_ms)
        queue.replace(offset, ENTRY.pack(record.physical_offset, record.size_bytes, code))
        return True

    def _end_of(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Where the record of a right entry ends in the log; None for a wrong entry."""
        entry = queue.entry(offset)
        if entry is None:
            return None
        position, size, _ = entry
        found = self._head(position) if size > 0 else None
        if found is None or found != (size, queue.queue_id, offset) or self._is_of_other(queue, position):
            return None
        return position + size

    def _is_of_other(self, queue: ConsumeQueue, position: int) -> bool:
        """Whether the record at a position of the log is one of another topic."""
        segment = self._log.segment_of(position)
        if segment is None:
            return True
        view, low, high = self._log.around(segment, position, min(segment.end, self._pipeline.visible_end))
        record = check_record(view, low, high, verify_crc=False)
        return record.verdict is Verdict.VALID and record.topic != queue.topic

    def _is_expired(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether retention has removed the record. Behind a record that is there none has been removed."""
        entry = queue.entry(offset)
        if entry is None or entry[0] >= self._log.min_offset:
            return False
        return offset == queue.min_offset or self._end_of(queue, offset - 1) is None

    def _head(self, position: int) -> tuple[int, int, int] | None:
        """Size, queue id and queue offset of what looks like a record at this place of the visible log."""
        log = self._log
        if not log.min_offset <= position or position + _HEAD.size > self._pipeline.visible_end:
            return None
        head = log.slice(position, _HEAD.size)
        if head is None:
            return None
        size, magic, queue_id, queue_offset = _HEAD.unpack(head)
        return (size, queue_id, queue_offset) if magic in (MAGIC_V1, MAGIC_V2) and size > 0 else None

    def _find(self, queue: ConsumeQueue, offset: int) -> CheckedRecord | None:
        low, high = self._stretch(queue, offset)
        stop = min(high, low + self._left_bytes)
        self._left_bytes -= max(stop - low, 0)
        while low < stop:
            found = self._head(low)
            segment = self._log.segment_of(low)
            if segment is None:
                return None
            if found is None:
                if segment.end >= stop:
                    return None
                low = segment.end  # the rest of a segment; what is damaged is for the scrub
                continue
            size, queue_id, queue_offset = found
            if queue_id == queue.queue_id and queue_offset == offset:
                view, start, limit = self._log.around(
                    segment, low, min(segment.end, self._pipeline.visible_end)
                )
                record = check_record(view, start, limit, verify_crc=True)
                if record.verdict is Verdict.VALID and (record.topic, record.physical_offset) == (
                    queue.topic,
                    low,
                ):
                    return record
            low += size
        return None

    def _stretch(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """The part of the log that the record of a wrong entry lies in."""
        low, high = self._log.min_offset, self._pipeline.visible_end
        for before in range(offset - 1, max(queue.min_offset, offset - _MAX_NEIGHBOURS) - 1, -1):
            end = self._end_of(queue, before)
            if end is not None:
                low = end
                break
        for behind in range(offset + 1, min(queue.max_offset, offset + _MAX_NEIGHBOURS)):
            if self._end_of(queue, behind) is not None:
                entry = queue.entry(behind)
                high = entry[0] if entry is not None else high
                break
        return low, high
