"""Copies the log of another broker: raw bytes of it become records of this log, at the same positions, and queue
entries (DefaultHAClient, ReputMessageService).

Every record is checked before it is appended: magic, lengths, CRC, position. Queue entries are made as recovery
makes them. Nothing of a record that cannot be stored yet (no space, too many queues) is changed, so the caller
tries again with the same bytes.

Must not know where the bytes come from, nor what of them is written, durable or visible.
"""

from __future__ import annotations

from array import array

import numpy as np

from mqspark.errors import InvalidMessage, NotNow
from mqspark.record.record import CheckedRecord, Verdict, check_record
from mqspark.record.recordlayout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    SIZE_MAGIC,
    store_time_ms,
)
from mqspark.store.disk.layout import is_storable_topic
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.log.commitlog import MAX_COPY_BYTES
from mqspark.store.log.scan import read_run
from mqspark.store.messages.append import Appender
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.unsettled import Queue, Unsettled
from mqspark.store.queue.batchqueue import BatchEntry, BatchQueue, BatchTable
from mqspark.store.queue.consumequeue import ENTRY_BYTES, FILLER, FILLER_SIZE, ConsumeQueue
from mqspark.store.recovery.recovery import Recovery
from mqspark.store.storedata import StoreData

_RUN_BYTES = 4 << 20
"""Bytes read as one run; fewer records than ``Recovery`` settles at once."""
MAX_GAP = 1 << 20
"""Most queue offsets that one record may skip: its master has lost the records between."""


def sound_record(
    view: memoryview, at: int, limit: int, base: int, verify_property_crc: bool
) -> CheckedRecord | None:
    """The record at ``at``, if it is whole and belongs there. ``base``: the position of the view in the log."""
    record = check_record(view, at, limit, verify_crc=True, verify_property_crc=verify_property_crc)
    if (
        record.verdict is not Verdict.VALID
        or record.physical_offset != base + at
        or not is_storable_topic(record.topic)
        or record.properties.endswith(b"\0")
    ):
        return None
    return record


class LogCopier(Recovery):
    """Appends to an open store."""

    def __init__(
        self, data: StoreData, appender: Appender, pipeline: CommitPipeline, unsettled: Unsettled
    ) -> None:
        super().__init__(
            data.log,
            data.table,
            Checkpoint(),
            data.levels,
            clean=True,
            verify_crc=True,
            verify_property_crc=data.config.verify_property_crc,
            batch_table=data.batch_table,
            multi_dispatch=data.config.multi_dispatch,
        )
        self._appender = appender
        self._pipeline = pipeline
        self._unsettled = unsettled
        self._view = memoryview(b"")
        self._base = 0

    def append(self, data: bytes | memoryview) -> int:
        """Append the complete records at the start of ``data``, which begins at the log's position. Returns how
        many bytes are done with: more than there are when the rest of the segment is padding that has not come
        yet, fewer when a record is incomplete.

        Raises InvalidMessage when these bytes are no record of this place, and NotNow or OSError; what comes
        before is appended then, and ``log.position`` says how far.
        """
        log, view, at = self._log, memoryview(data), 0
        while at < len(view):
            if log.position == log.segments[-1].end:
                self._end_segment()
            end = self._append_records(view, at, log.position - at)
            if end == at:
                end = self._skip_padding(view, at)
                if end == at:
                    break
            at = end
        return at

    def _append_records(self, view: memoryview, at: int, base: int) -> int:
        """Append a run of records, or some single ones. Returns their end in the view."""
        log = self._log
        limit = min(len(view), log.segments[-1].end - BLANK_BYTES - base)
        run = read_run(
            view,
            at,
            min(limit, at + _RUN_BYTES),
            base,
            verify_crc=True,
            verify_property_crc=self._verify_property_crc,
        )
        self._chunk, self._batch_chunk, self._chunk_records = {}, {}, 0
        end = at
        if run is not None:
            self._take_run(run)
            end = run.end
        else:
            while (record := sound_record(view, end, limit, base, self._verify_property_crc)) is not None:
                self._take(record, base + end)
                end += record.size_bytes
        if end > at:
            self._view, self._base = view, base
            try:
                self._store(view[at:end])
            finally:
                self._view = memoryview(b"")
        return end

    def _skip_padding(self, view: memoryview, at: int) -> int:
        """The end of the segment's padding, if it begins here; ``at`` when more bytes are needed to know."""
        if len(view) - at < SIZE_MAGIC.size:
            return at
        log = self._log
        size, magic = SIZE_MAGIC.unpack_from(view, at)
        room = log.segments[-1].end - log.position
        if magic == BLANK_MAGIC:
            if size != room:
                raise InvalidMessage(
                    f"a segment of the log to copy ends at {log.position + size}, one here at"
                    f" {log.position + room}: mappedFileSizeCommitLog must be the same",
                    field="log",
                )
            self._end_segment()
            return at + int(size)
        most = min(room - BLANK_BYTES, MAX_COPY_BYTES)
        is_record = magic in (MAGIC_V1, MAGIC_V2) and MIN_RECORD_BYTES <= size <= most
        if not is_record or len(view) - at >= size:
            raise InvalidMessage(
                f"the bytes at {log.position} of the log to copy are no valid record", field="log"
            )
        return at

    def _end_segment(self) -> None:
        self._unsettled.write_in_flight()
        self._log.end_segment()

    # --- queue entries --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing: entries are settled with their records."""

    def _store(self, records: memoryview) -> None:
        """Append these records, whose entries are collected. Reserves everything before it changes anything."""
        plans = [self._plan(key, *collected) for key, collected in self._chunk.items()]
        batches = [self._plan_batches(key, entries) for key, entries in self._batch_chunk.items()]
        self._log.append_raw(records)
        appender = self._appender
        appender.now_ms = self.report.last_store_timestamp_ms
        for queue, entries in plans:
            if queue is None or not entries:
                continue
            if not queue.entries:
                self._unsettled.dirty.append(queue)
            if queue.ext_out is not None:
                entries = bytearray(self._with_units(queue.ext_out, entries))
            queue.advance(entries, len(entries) // ENTRY_BYTES)
        for batch_queue, batch_entries in batches:
            for entry in batch_entries:
                if not batch_queue.entries:
                    self._unsettled.dirty.append(batch_queue)
                batch_queue.advance(entry)

    def _store_time_at(self, position: int) -> int:
        return store_time_ms(self._view, position - self._base)

    def _plan(
        self, key: tuple[str, int], offsets: array[int], entries: bytearray
    ) -> tuple[ConsumeQueue | None, bytearray]:
        """The queue and what to add to it; fillers for offsets whose records the master has lost. The room is
        reserved."""
        queue = self._table.queues.get(key)
        if queue is None:
            try:
                self._table.admit(key[0])
                queue = self._table.create(*key)
            except InvalidMessage:
                self.report.ignored_records += len(offsets)
                return None, bytearray()
        zeros = [
            index for index, offset in enumerate(offsets) if offset == 0 and (index or queue.next_offset)
        ]
        if zeros:
            del offsets[: zeros[-1]]
            del entries[: zeros[-1] * ENTRY_BYTES]
            self._restart(queue)
        is_new = not queue.next_offset and not queue.file_starts and not queue.entries
        if is_new and offsets[0]:
            queue.set_end(offsets[0])  # this log begins in the middle of the queue
        if offsets[0] < queue.next_offset:
            self._take_fillers_back(queue, offsets[0])
        if not _is_dense(offsets, queue.next_offset):
            entries = self._filled(queue, offsets, entries)
        queue.reserve(len(entries) // ENTRY_BYTES)
        return queue, entries

    def _take_fillers_back(self, queue: ConsumeQueue, offset: int) -> None:
        """A start has put fillers for records that it has lost at the end of the queue, and now they come again."""
        if queue.next_offset != queue.max_offset or offset < queue.min_offset:
            return
        at = offset
        while at < queue.max_offset:
            rows = queue.read(at, queue.max_offset - at)
            if not len(rows) or (rows["size"] != FILLER_SIZE).any():
                return
            at += len(rows)
        queue.set_end(offset)
        queue.clear_tail()

    def _filled(self, queue: ConsumeQueue, offsets: array[int], entries: bytearray) -> bytearray:
        filled, expected = bytearray(), queue.next_offset
        for index, offset in enumerate(offsets):
            if offset < expected:
                self.report.ignored_records += 1
                continue
            if offset - expected > MAX_GAP:
                raise InvalidMessage(
                    f"offset {offset} of queue {queue.topic}/{queue.queue_id} cannot follow {expected - 1}",
                    field="log",
                )
            filled += FILLER * (offset - expected)
            filled += entries[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES]
            expected = offset + 1
        return filled

    def _plan_batches(
        self, key: tuple[str, int], entries: list[BatchEntry]
    ) -> tuple[BatchQueue, list[BatchEntry]]:
        table = self._batch_queues
        queue = table.batch_queues.get(key)
        if queue is None:
            table.admit(key[0])
            table.create(*key)
            queue = table.batch_queues[key]
        for index, entry in enumerate(entries):
            if not entry.base and (index or queue.next_offset):
                entries = entries[index:]
                self._restart(queue)
                break
        is_quiet = queue.array.next_offset == queue.array.max_offset
        # A start keeps the offsets of records that it has lost, and now they come again.
        planned, expected = [], queue.max_offset if is_quiet else queue.next_offset
        for entry in entries:
            if entry.base >= expected:
                planned.append(entry)
                expected = entry.base + entry.messages
        queue.array.reserve(len(planned))
        return queue, planned

    @property
    def _batch_queues(self) -> BatchTable:
        if self._batch_table is None:
            raise RuntimeError("a store has a table of BatchConsumeQueues")
        return self._batch_table

    def _restart(self, queue: Queue) -> None:
        """Let a queue begin again at offset 0: its topic was deleted and created again."""
        self._pipeline.forget_entries(queue)
        files = queue.array if isinstance(queue, BatchQueue) else queue
        files.set_end(0)
        files.clear_tail()
        if isinstance(queue, BatchQueue):
            queue.recovered()

    def _convert_to_batches(self, topic: str) -> None:
        """As in recovery, but the entries of what is stored already are visible."""
        table = self._table
        if topic in table.batch_topics:
            return
        keys = table.keys_of(topic)
        moved: dict[tuple[str, int], list[BatchEntry]] = {}
        for key in keys:
            queue = table.queues[key]
            if queue.next_offset != queue.max_offset:
                raise NotNow(f"topic {topic} becomes a topic of batches once its records are visible")
            for offset in range(queue.min_offset, queue.max_offset):
                entry = queue.entry(offset)
                if entry is not None and 0 < entry[1] != FILLER_SIZE:
                    store_ms = self._log.store_timestamp_at(entry[0])
                    moved.setdefault(key, []).append(BatchEntry(*entry, store_ms, offset, 1))
        if keys:
            table.remove_topic(topic)
        table.batch_topics.add(topic)
        for key, entries in moved.items():
            self._settle_batches(key, entries)


def _is_dense(offsets: array[int], first: int) -> bool:
    """Whether they are ``first`` and what follows it. A slave mostly gets one record."""
    if len(offsets) == 1:
        return offsets[0] == first
    dense = np.arange(first, first + len(offsets))
    return bool(np.array_equal(np.frombuffer(offsets, np.int64), dense))
