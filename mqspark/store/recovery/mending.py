"""Puts the bytes of another replica in the place of damaged ones, at the same positions.

Nothing is written that is no valid record of its place. What is healed gets its queue entries back, where fillers or
nothing stand for them, and its keys.

Inner batches that a BatchConsumeQueue lacks in its middle get no entry again; ``fsck --repair`` makes such a queue
anew.

Must not know replicas, nor who is right where two valid records differ.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.errors import InvalidMessage, StoreReadOnly
from mqspark.record.record import Verdict, check_record
from mqspark.record.recordlayout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGICS,
    MIN_RECORD_BYTES,
    SIZE_MAGIC,
)
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.log.commitlog import MAX_COPY_BYTES
from mqspark.store.log.scan import read_run
from mqspark.store.messages.condition import Condition
from mqspark.store.messages.fetch import Fetcher
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, FILLER, FILLER_SIZE
from mqspark.store.queue.multidispatch import is_lmq
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery.logcopier import MAX_GAP, sound_record
from mqspark.store.recovery.recovery import Recovery, is_queued
from mqspark.store.storedata import StoreData

_MAGICS = (*MAGICS, BLANK_MAGIC.to_bytes(4, "big", signed=True))
_BEHIND_BYTES = 1 << 16
"""How many bytes of valid records behind a healed part, whose entries are looked at, too."""


class Whole(NamedTuple):
    """How far bytes of the log are valid records."""

    size_bytes: int
    ends_segment: bool
    """Whether the last of them is the blank record, so that the log goes on in the next segment."""


class _Entries(Recovery):
    """Collects the queue entries of healed records."""

    def of(self, run_view: memoryview, base: int) -> None:
        at = 0
        while at < len(run_view):
            run = read_run(run_view, at, len(run_view), base, verify_crc=False, min_records=1)
            if run is None:
                return
            self._take_run(run)
            at = run.end

    def take(self) -> list[tuple[tuple[str, int], int, bytes]]:
        """Queue, offset and entry, in the order of the log within each queue."""
        chunk, self._chunk, self._batch_chunk = self._chunk, {}, {}
        return [
            (key, offset, bytes(packed[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES]))
            for key, (offsets, packed) in chunk.items()
            for index, offset in enumerate(offsets)
        ]

    def next_place(self, position: int, end: int) -> int | None:
        """The next place in the segment of ``position``, behind it, at which a valid record begins. Raises OSError."""
        segment = self._log.segment_of(position)
        end = min(end, segment.start + segment.length) if segment is not None else 0
        return None if segment is None or position >= end else self._next_valid(segment, position, end)

    def _settle(self) -> None:
        """Nothing: ``take`` hands the entries over."""

    def _convert_to_batches(self, topic: str) -> None:
        self._table.batch_topics.add(topic)


class LogMender:
    """The mender of one open store. Belongs to the store's thread; blocking for a write and a sync where it heals."""

    def __init__(self, data: StoreData, fetcher: Fetcher, condition: Condition) -> None:
        self._log = data.log
        self._table = data.table
        self._batch_table = data.batch_table
        self._levels = data.levels
        self._indexer = data.indexer
        self._damage = data.damage
        self._deleted = data.deleted
        self._fetcher = fetcher
        self._condition = condition
        self._note = data.note
        self._verify_property_crc = data.config.verify_property_crc
        self._multi_dispatch = data.config.multi_dispatch
        self.healed_bytes = 0
        self._healed_to = -1
        """The end of the last piece."""

    # --- looking --------------------------------------------------------------------------------------------

    def segment_end(self, position: int) -> int:
        size = self._log.segment_bytes
        return position - position % size + size

    def read(self, position: int, size_bytes: int) -> bytes:
        """The bytes of one segment from ``position`` on, at most so many, but all of the record that begins there.
        Empty where the log has no file. Raises OSError."""
        log = self._log
        segment = log.segment_of(position)
        if segment is None:
            return b""
        most = min(segment.start + segment.length, log.written) - position
        data = bytes(log.slice(position, min(size_bytes, most)) or b"") if most > 0 else b""
        if len(data) >= SIZE_MAGIC.size:
            size, magic = SIZE_MAGIC.unpack_from(data)
            if len(data) < size <= min(most, MAX_COPY_BYTES) and magic != BLANK_MAGIC:
                data = bytes(log.slice(position, size) or b"")
        return data

    def whole(self, position: int, data: bytes | memoryview) -> Whole:
        """How far ``data``, the bytes from ``position`` on, are valid records of this place."""
        view, at, end = memoryview(data), 0, self.segment_end(position)
        while at < len(view):
            run = read_run(
                view,
                at,
                len(view),
                position,
                verify_crc=True,
                verify_property_crc=self._verify_property_crc,
            )
            if run is not None:
                at = run.end
                continue
            record = sound_record(view, at, len(view), position, self._verify_property_crc)
            if record is not None:
                at += record.size_bytes
                continue
            if len(view) - at >= BLANK_BYTES:
                size, magic = SIZE_MAGIC.unpack_from(view, at)
                if magic == BLANK_MAGIC and position + at + size == end:
                    return Whole(at + BLANK_BYTES, ends_segment=True)
            break
        return Whole(at, ends_segment=False)

    def next_whole(self, position: int, end: int) -> int | None:
        """Where the next valid record begins behind damage at ``position``, in its segment. Raises OSError."""
        return self._reader().next_place(position, end)

    def fits(self, record: bytes, position: int) -> bool | None:
        """Whether the queue that a valid record names leads to it. None where queues cannot tell."""
        found = check_record(record, 0, len(record), verify_crc=False)
        if found.verdict is not Verdict.VALID or not is_queued(found.sys_flag):
            return None
        if found.topic in self._table.batch_topics or position < self._deleted.get(found.topic, 0):
            return None
        queue = self._table.queues.get((found.topic, found.queue_id))
        if queue is None:
            return False
        if not queue.min_offset <= found.queue_offset < queue.max_offset:
            return False
        entry = queue.entry(found.queue_offset)
        if entry is None or entry[1] == FILLER_SIZE:
            return None
        return entry[:2] == (position, found.size_bytes)

    # --- healing --------------------------------------------------------------------------------------------

    def heal(self, position: int, data: bytes | memoryview, *, is_right: bool = False) -> int:
        """Put records of ``data`` in the place of bytes that are none, from ``position`` on, until the log has a valid
        record again or ``data`` ends; records that are valid already are passed, and no damage. With ``is_right`` the
        first record is written whatever stands there. Returns how many bytes were passed, the blank record to the end
        of its segment. Raises InvalidMessage for ``data`` that does not begin with a valid record, StoreReadOnly,
        DiskFull, OSError."""
        if self._condition.read_only is not None:
            raise StoreReadOnly(self._condition.read_only)
        whole = self.whole(position, data)
        view = memoryview(data)[: whole.size_bytes]
        if not view or not self._log.min_offset <= position < self._log.written:
            raise InvalidMessage(f"the bytes at {position} are no valid record of this log", field="log")
        end = self._end_of_healing(position, view, is_right=is_right)
        if not end:
            sound = self.whole(position, self.read(position, len(view))).size_bytes
            self._damage.remove(position, position + sound)
            return sound
        passed = end
        if whole.ends_segment and end == whole.size_bytes:
            passed = self.segment_end(position) - position
        self._write(position, view[:end], position + passed)
        return passed

    def _end_of_healing(self, position: int, view: memoryview, *, is_right: bool) -> int:
        at, heads = 0, self.read(position, len(view))
        while at < len(view):
            size = BLANK_BYTES if len(view) - at == BLANK_BYTES else SIZE_MAGIC.unpack_from(view, at)[0]
            # Mostly there are zeros, or something else that does not even begin as a record.
            if (at or not is_right) and heads[at + 4 : at + 8] in _MAGICS:
                own = self.read(position + at, MIN_RECORD_BYTES)
                if self.whole(position + at, own).size_bytes:
                    break
            at += size
        return at

    def _write(self, low: int, view: memoryview, high: int) -> None:
        try:
            self._log.mend(low, view)
        except OSError as error:
            raise self._condition.poison(f"healing the CommitLog at {low} failed", error) from error
        self.healed_bytes += len(view)
        self._damage.heal(low, high)
        self._restore_entries(low, view)
        # A start gives a filler to a record alone between two damaged parts, because no neighbour confirms its offset.
        behind = self.read(high, _BEHIND_BYTES) if high < self._log.written else b""
        if sound := self.whole(high, behind).size_bytes if behind else 0:
            self._restore_entries(high, memoryview(behind)[:sound])
        if self._indexer is not None:
            self._indexer.healed(low, high)
        self._fetcher.healed(low, high)
        if low != self._healed_to:  # a large part comes in many pieces
            text = f"the log was healed from another replica, from {low} on"
            self._note(Damage("log.damaged", Outcome.HEALED, text, low))
        self._healed_to = high

    def _reader(self) -> _Entries:
        private = QueueTable(
            self._table.directory, self._table.files, file_bytes=self._table.file_bytes, max_mapped=1
        )
        private.batch_topics = set(self._table.batch_topics)
        return _Entries(
            self._log,
            private,
            Checkpoint(),
            self._levels,
            clean=True,
            verify_crc=True,
            verify_property_crc=self._verify_property_crc,
            batch_table=self._batch_table,
            multi_dispatch=self._multi_dispatch,
            deleted=self._deleted,
        )

    def _restore_entries(self, low: int, view: memoryview) -> None:
        reader = self._reader()
        reader.of(view, low)
        for key, offset, entry in reader.take():
            queue = self._table.queues.get(key)
            if queue is None:
                self._table.admit(key[0])
                queue = self._table.create(*key)
                queue.set_end(offset)
            if offset < queue.max_offset:
                if queue.min_offset <= offset and self._is_replaceable(key[0], queue.entry(offset), entry):
                    queue.replace(offset, entry)
            elif queue.next_offset == queue.max_offset and offset - queue.max_offset < MAX_GAP:
                missing = offset - queue.max_offset
                queue.settle_last_fillers()
                queue.reserve(missing + 1)
                queue.settle(FILLER * missing + entry)

    def _is_replaceable(self, topic: str, now: tuple[int, int, int] | None, entry: bytes) -> bool:
        """Whether an entry that is there may be replaced: it is a filler, is empty, or leads to no record."""
        if now is None or now[:2] == ENTRY.unpack(entry)[:2]:
            return False
        if now[1] <= 0 or now[1] == FILLER_SIZE:
            return True
        return not is_lmq(topic) and not self.whole(now[0], self.read(now[0], MIN_RECORD_BYTES)).size_bytes
