"""Brings a store directory into a consistent state when it is opened. Used once, at start.

The log is authoritative. Recovery chooses a position, reads every record from there on, and makes the queues
agree with the records:

1. Choose the start. After a clean stop: behind the last record that a queue knows. After a crash: behind the
   last record before the position of ``mqspark.checkpoint``, or (when there is none, or a RocketMQ broker
   wrote last) the segment that RocketMQ's checkpoint timestamps point to, as in
   CommitLog.isMappedFileMatchedRecover. A position is accepted only when the record before it is valid.
2. Read the records (``logread``). A damaged record is skipped. Only bytes that no valid record follows are a
   torn tail, which is zeroed.
3. Rewrite what no sync is known to have reached. A failed sync can leave pages that the kernel shows as clean
   although they are not on disk: another sync does nothing for them, another write does.
4. Rebuild the queues: one entry per record, in order. A lost record gets a filler, so an offset never refers
   to another message. A record with an impossible offset is counted and ignored. Records from before the
   deletion of their topic get no entry (``deletions``).

A queue whose files contradict their lengths, names or ends is rebuilt from the last trusted entry. Missing
parts of the log are reported with the queue offsets that they cost (``damage``); these offsets are never
assigned again.

Facts: docs/rocketmq/store.md#recovery.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.propertystring import find_property
from mqspark.errors import InvalidMessage
from mqspark.message import INNER_BATCH, SCHEDULE_TOPIC, TRANSACTION_PREPARED_TYPE, parse_number
from mqspark.record.record import CheckedRecord, Verdict, check_record, tags_code
from mqspark.record.recordlayout import MIN_RECORD_BYTES
from mqspark.store.disk.damage import Damage, LostOffsets, Note, Outcome
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.log.logread import LogReader
from mqspark.store.log.scan import Run
from mqspark.store.queue.batchqueue import BATCH_ENTRY, MAX_BATCH, BatchEntry, BatchTable
from mqspark.store.queue.consumequeue import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_DTYPE,
    FILLER,
    FILLER_SIZE,
    ConsumeQueue,
    Doubt,
)
from mqspark.store.queue.delaylevels import DelayLevels
from mqspark.store.queue.mapped import Entries
from mqspark.store.queue.multidispatch import DISPATCH_MARK, LMQ_QUEUE_ID, dispatched_queues, is_lmq
from mqspark.store.queue.queueext import QueueExt
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery.queueends import QueueEnds
from mqspark.store.recovery.recoveryreport import RecoveryReport, lost_offsets

_NOT_QUEUED = TRANSACTION_PREPARED_TYPE | INNER_BATCH
_LOOK_BACK_ENTRIES = 4096
"""Limit of the entries of a damaged queue that are searched backwards for one with a valid record."""
MAX_ORDER_CHECKED = 2_000_000
"""Limit of the entries of BatchConsumeQueues that a start checks, some 100 MB."""
_MAX_LISTED = 100
_MAX_UNCONFIRMED = 1 << 20
"""Offsets that the last record of a queue alone may leave out. No CRC covers its offset."""
_SETTLE_RECORDS = 1 << 16
"""Records read before their entries are written; bounds the memory of a rebuild."""


class QueueChunk(NamedTuple):
    """Entries read for one queue and not written yet."""

    offsets: array[int]
    """Queue offsets, 64 bits each."""
    entries: bytearray


def is_queued(sys_flag: int) -> bool:
    """Whether a record gets an ordinary queue entry: prepared and rolled back records get none, inner batches
    have entries of their own."""
    return not sys_flag & _NOT_QUEUED


class Recovery(LogReader):
    def __init__(
        self,
        log: CommitLog,
        table: QueueTable,
        checkpoint: Checkpoint,
        levels: DelayLevels,
        *,
        clean: bool,
        verify_crc: bool,
        synced: int = -1,
        verify_property_crc: bool = False,
        batch_table: BatchTable | None = None,
        multi_dispatch: bool = False,
        deleted: Mapping[str, int] | None = None,
        ends: QueueEnds | None = None,
        missing: Sequence[Damage] = (),
        note: Note = lambda damage: None,
        before_heal: Callable[[], None] = lambda: None,
    ) -> None:
        """``synced``: end of the log that the last process is known to have synced.

        ``ends``: queue ends at the last checkpoint, even if it counts no more. ``missing``: damage found while loading
        the log. ``note`` receives damage found in the directory. ``before_heal`` is called before the first repair: it
        makes a later start, should this one be interrupted, distrust every checkpoint.

        ``batch_table``: the queues of inner batches; without it they are ignored. ``multi_dispatch``: whether
        records also enter the LMQ queues that they name. ``deleted``: records of these topics before these
        positions enter no queue (``Deletions.positions``).
        """
        super().__init__(log, verify_crc=verify_crc, verify_property_crc=verify_property_crc)
        self._table = table
        self._checkpoint = checkpoint
        self._synced = synced
        self._levels = levels
        self._batch_table = batch_table
        self._multi_dispatch = multi_dispatch
        self._deleted = deleted or {}
        self._ends = ends if ends is not None and ends.position >= log.min_offset else None
        self._missing = missing
        self._note = note
        self._before_heal = before_heal
        self._is_healing = False
        self._fillers: list[LostOffsets] = []
        """Offsets of lost records that were filled."""
        self._last_lost: list[LostOffsets] = []
        """The same at the ends of queues."""
        self._known_end = 0
        """Position that the log is known to have reached."""
        self._batch_chunk: dict[tuple[str, int], list[BatchEntry]] = {}
        self._chunk: dict[tuple[str, int], QueueChunk] = {}
        self._chunk_records = 0
        self._undecided: dict[tuple[str, int], tuple[int, bytes]] = {}
        """Queue offset and entry of a queue's last record in the previous chunks. The next record decides
        whether the offset is right."""
        self._more_may_come = True
        self._first_entries: dict[tuple[str, int], bytes] = {}
        """The entries at offset 0 of queues that are rewritten from there on."""
        self._queued_before = -1
        """Records before this position have their entries, or belong to a deleted topic."""
        self.report = RecoveryReport(clean=clean, damaged=self.damaged)

    def run(self) -> RecoveryReport:
        """Recover; log and queues are then open for appending. Raises OSError, DiskFull, StoreCorrupt."""
        started = time.perf_counter()
        report = self.report
        log = self._log
        report.min_position = log.min_offset
        report.segments = len(log.segments)
        report.start_position = self._choose_start()
        report.end_position = self._scan(report.start_position)
        self._settle_all()
        self._compare_end()
        report.torn_bytes = log.cut(report.end_position)
        self._finish_queues()
        report.sure_position = report.end_position
        if not report.clean:
            report.sure_position = min(self._synced_end(), report.end_position)
            report.rewritten_bytes = log.rewrite(report.sure_position, report.end_position)
        log.sync_from(report.start_position)
        log.start_at(report.end_position)
        report.queues = sum(len(table.queues) for table in self._tables)
        self._note_damages()
        report.elapsed_ms = (time.perf_counter() - started) * 1000
        return report

    @property
    def _tables(self) -> list[QueueTable]:
        return [self._table] if self._batch_table is None else [self._table, self._batch_table]

    def _all_queues(self) -> Iterator[ConsumeQueue]:
        """The entry arrays of both kinds of queue, addressed by entry number."""
        for table in self._tables:
            yield from table.queues.values()

    # --- where from -----------------------------------------------------------------------------------------

    def _choose_start(self) -> int:
        mark = self._checkpoint.position
        minimum = self._log.min_offset
        queues = sum(table.used_queues for table in self._tables)
        self._known_end = max(mark, self._synced if not self.report.clean else -1, 0)
        if mark < 0 and self._ends is not None:
            self._begin_healing()  # as the start before did, which was interrupted
        if queues < self._checkpoint.queue_count or (mark < 0 and not queues):
            # Queues are missing, or it is unknown whether there were any: rebuild all.
            if queues < self._checkpoint.queue_count:
                missing = self._checkpoint.queue_count - queues
                text = f"{missing} of {self._checkpoint.queue_count} queues are missing; all were rebuilt"
                self._note(Damage("queue.lost", Outcome.HEALED, text))
            self._begin_healing()
            self._cut_queues(minimum)
            return minimum
        if queues == 0:
            self._queued_before = mark
            return max(mark, minimum)
        for table in self._tables:
            table.before_heal = self._begin_healing
        log_end = self._log.segments[-1].end if self._log.segments else 0
        for queue in self._all_queues():
            queue.remove_files(queue.check_files(minimum))
        start: int | None
        if self.report.clean or mark >= 0:
            start = self._cut_queues(
                None if self.report.clean else mark, mark if mark >= 0 else max(log_end, self._known_end)
            )
            if start is not None:
                self._queued_before = mark
        else:
            start = self._start_by_timestamp()
            self._cut_queues(start, log_end)
        self._compare_ends()
        self._check_batches()
        sure = [place for table in self._tables for place in self._settle_doubts(table)]
        if start is None or sure:
            start = min([self._start_by_timestamp() if start is None else start, *sure])
            self._queued_before = -1
            self._cut_queues(start)
            for queue, doubt in self._doubted():
                if doubt.sure_end < queue.max_offset:
                    queue.set_end(doubt.sure_end)
            self._batches_recovered()
        return start

    def _begin_healing(self) -> None:
        if not self._is_healing and self._log.segments:
            self._is_healing = True
            self._before_heal()

    def _doubted(self) -> list[tuple[ConsumeQueue, Doubt]]:
        return [found for table in self._tables for found in table.doubted.items()]

    def _compare_ends(self) -> None:
        """Compare the queues with their ends at the last checkpoint. Since then queues can only have grown or
        been deleted. Without a checkpoint all are rebuilt."""
        if self._ends is None or self._checkpoint.position < 0:
            return
        exactly = self.report.clean and self._ends.position == self._checkpoint.position
        found = self._ends.doubts(
            self._table, self._batch_table, self._deleted, self._log.min_offset, exactly=exactly
        )
        for queue, doubt in list(found):
            queue.doubt(*doubt)

    def _check_batches(self) -> None:
        """Check the order of the entries of the BatchConsumeQueues. The scrub does not read them."""
        left = MAX_ORDER_CHECKED
        for queue in self._batch_table.batch_queues.values() if self._batch_table is not None else ():
            left -= queue.check_order(left)

    def _settle_doubts(self, table: QueueTable) -> Iterator[int]:
        """For each doubted queue, where the record of its last trustworthy entry ends. What is behind that entry is in
        doubt, too."""
        for queue, doubt in table.doubted.items():
            end, place = self._trusted_before(queue, doubt.sure_end)
            table.doubted[queue] = doubt._replace(sure_end=end)
            yield place

    def _trusted_before(self, queue: ConsumeQueue, end: int) -> tuple[int, int]:
        """The end of the entries before ``end`` that are not wrong, and the end of the last record that they lead to.
        An entry of another place of the queue, or of another queue, leads to a record as well, but not to its own."""
        minimum, first_wrong = self._log.min_offset, end
        following = self._entry_of_record(queue, end)
        for offset in range(end - 1, max(end - 1 - _LOOK_BACK_ENTRIES, -1), -1):
            entry = queue.entry(offset)
            if entry is not None and entry[1] == FILLER_SIZE:
                continue
            if entry is None or entry[0] < minimum:
                return first_wrong, minimum
            found = self._entry_of_record(queue, offset)
            if found is not None and (following is None or found.precedes(following)):
                return first_wrong, found.position + found.size
            first_wrong = offset
        if first_wrong < end and queue.file_starts:
            first_wrong = queue.first_file_offset  # all of the log is read anyway
        return first_wrong, minimum

    def _entry_of_record(self, queue: ConsumeQueue, offset: int) -> BatchEntry | None:
        """An entry, of either kind, if it leads to a record of its queue with its offset. The record of a light message
        queue has another queue and offset, and the number of an entry of a BatchConsumeQueue is in no record."""
        packed = queue.packed_entry(offset)
        if packed is None:
            return None
        if len(packed) == ENTRY_BYTES:
            position, size, code = ENTRY.unpack(packed)
            entry = BatchEntry(position, size, code, 0, offset, 1)
        else:
            entry = BatchEntry(*BATCH_ENTRY.unpack(packed))
        record = self._believed(entry.position, entry.size)
        if record is None or record.size_bytes != entry.size:
            return None
        is_own = (record.topic, record.queue_id, record.queue_offset) == (*queue.key, entry.base)
        return entry if is_own or is_lmq(queue.topic) else None

    def _cut_queues(self, limit: int | None, log_end: int | None = None) -> int | None:
        """End every queue before ``limit``. Returns the end of the last record that the queues know, or None
        when it is not valid. ``log_end``: check the queue ends against it and note doubts in the tables."""
        known_end = 0
        mark = self._checkpoint.position
        last: ConsumeQueue | None = None
        for queue in self._all_queues():
            end_offset, end = queue.locate_end(limit, log_end)
            queue.set_end(end_offset)
            if not self.report.clean and (mark < 0 or queue.has_file_from(end_offset)):
                # The file was created after the checkpoint, which is what syncs file names.
                queue.unsettle()
            if end > known_end:
                known_end, last = end, queue
        self._batches_recovered()
        if last is None:
            return self._log.min_offset
        entry = last.entry(last.max_offset - 1)
        if entry is not None and entry[0] + entry[1] == known_end and self._believed(*entry[:2]) is not None:
            return known_end
        return None

    def _batches_recovered(self) -> None:
        if self._batch_table is not None:
            for batch_queue in self._batch_table.batch_queues.values():
                batch_queue.recovered()

    def _believed(self, position: int, size: int) -> CheckedRecord | None:
        """The record in these bytes of the log, if it is valid."""
        segment = self._log.segment_of(position) if size != FILLER_SIZE else None
        if segment is None or not 0 < size <= segment.start + segment.length - position:
            return None
        view, low, high = self._log.around(segment, position, position + size)
        record = check_record(
            view,
            low,
            high,
            verify_crc=self._verify_crc,
            verify_property_crc=self._verify_property_crc,
        )
        return record if record.verdict is Verdict.VALID and record.physical_offset == position else None

    def _synced_end(self) -> int:
        """End of the log that a successful sync is known to have reached."""
        mark = self._checkpoint.position
        return max(self._synced, mark if mark >= 0 else self._start_by_timestamp())

    def _start_by_timestamp(self) -> int:
        safe_ms = self._checkpoint.safe_timestamp_ms
        for segment in reversed(self._log.segments):
            record = self._record_at(segment, segment.start, self._data_end(segment, segment.start))
            if record is not None and 0 < record.store_timestamp_ms <= safe_ms:
                return segment.start
        return self._log.min_offset

    # --- queues ---------------------------------------------------------------------------------------------

    def _take(self, record: CheckedRecord, position: int) -> None:
        self.report.records += 1
        self.report.last_store_timestamp_ms = record.store_timestamp_ms
        if position < self._queued_before or record.sys_flag & TRANSACTION_PREPARED_TYPE:
            return
        code = self._levels.tags_code_of(record)
        is_deleted = self._is_deleted(record.topic, position)
        if record.sys_flag & INNER_BATCH or record.topic in self._table.batch_topics:
            if is_deleted:
                return
            self._collect_batch(
                (record.topic, record.queue_id),
                record.sys_flag,
                record.properties,
                BatchEntry(
                    position, record.size_bytes, code, record.store_timestamp_ms, record.queue_offset, 1
                ),
            )
            return
        entry = ENTRY.pack(position, record.size_bytes, code)
        if not is_deleted:
            self._collect(record, entry)
        if self._multi_dispatch:
            for name, offset in dispatched_queues(record.topic, record.properties):
                if not self._is_deleted(name, position):
                    self._collect(
                        record._replace(topic=name, queue_id=LMQ_QUEUE_ID, queue_offset=offset), entry
                    )

    def _take_run(self, run: Run) -> None:
        """``_take`` for all records of a run."""
        self.report.records += len(run.positions)
        self.report.last_store_timestamp_ms = int(run.store_timestamps_ms[-1])
        wanted = (run.positions >= self._queued_before) & (run.sys_flags & _NOT_QUEUED == 0)
        there = self._not_deleted(run)
        batched = (
            (run.sys_flags & INNER_BATCH != 0) & (run.sys_flags & TRANSACTION_PREPARED_TYPE == 0) & there
        )
        batch_topics = self._table.batch_topics
        if batched.any():
            for topic_id in np.unique(run.topic_ids[batched]).tolist():
                self._convert_to_batches(run.topics[topic_id])
        if not batch_topics.isdisjoint(run.topics):
            of_batch_topic = np.array([topic in batch_topics for topic in run.topics])[run.topic_ids]
            batched |= wanted & there & of_batch_topic
            wanted &= ~of_batch_topic
        if batched.any():
            batched &= run.positions >= self._queued_before
            self._collect_batches(run, np.flatnonzero(batched).tolist())
        if not wanted.any():
            return
        entries = np.empty(len(run.positions), ENTRY_DTYPE)
        entries["position"] = run.positions
        entries["size"] = run.sizes
        entries["tags_code"] = run.tags_codes()
        if SCHEDULE_TOPIC in run.topics:
            for index in np.flatnonzero(run.topic_ids == run.topics.index(SCHEDULE_TOPIC)).tolist():
                entries["tags_code"][index] = self._levels.schedule_tags_code(
                    run.properties_of(index),
                    int(entries["tags_code"][index]),
                    int(run.store_timestamps_ms[index]),
                )
        self._collect_run(run, wanted & there, entries)
        if self._multi_dispatch:
            self._dispatch_run(run, wanted, entries)
        self._chunk_records += int(np.count_nonzero(wanted))
        if self._chunk_records >= _SETTLE_RECORDS:
            self._settle()

    def _is_deleted(self, topic: str, position: int) -> bool:
        return position < self._deleted.get(topic, 0)

    def _not_deleted(self, run: Run) -> npt.NDArray[np.bool_] | np.bool_:
        """Mask of the records of a run that do not belong to a deleted topic."""
        if self._deleted.keys().isdisjoint(run.topics):
            return np.True_
        begins = np.array([self._deleted.get(topic, 0) for topic in run.topics], np.int64)
        return run.positions >= begins[run.topic_ids]

    def _collect_run(self, run: Run, wanted: npt.NDArray[np.bool_], entries: Entries) -> None:
        """Add the wanted records to their queues, in log order."""
        queues = run.topic_ids << 32 | run.queue_ids & 0xFFFFFFFF
        if len(run.topics) <= 256 and not (queues & 0xFFFFFF00).any():
            queues = (queues >> 24 | queues).astype(np.uint16)  # numpy sorts 16-bit keys by radix sort
        order = np.argsort(queues, kind="stable")
        if not wanted.all():
            order = order[wanted[order]]
            if not len(order):
                return
        queues = queues[order]
        bounds = [0, *(np.flatnonzero(queues[1:] != queues[:-1]) + 1).tolist(), len(order)]
        queue_offsets = run.queue_offsets[order].view(np.uint8).data
        packed = entries[order].view(np.uint8).data
        for low, high in itertools.pairwise(bounds):
            first = int(order[low])
            key = (run.topics[int(run.topic_ids[first])], int(run.queue_ids[first]))
            chunk = self._chunk_of(key)
            chunk.offsets.frombytes(queue_offsets[low * 8 : high * 8])
            chunk.entries.extend(packed[low * ENTRY_BYTES : high * ENTRY_BYTES])

    def _dispatch_run(self, run: Run, wanted: npt.NDArray[np.bool_], entries: Entries) -> None:
        """Add the records that also enter LMQ queues."""
        for index, properties in enumerate(run.properties):
            if DISPATCH_MARK in properties and wanted[index]:
                topic = run.topics[int(run.topic_ids[index])]
                for name, offset in dispatched_queues(topic, properties):
                    if self._is_deleted(name, int(run.positions[index])):
                        continue
                    offsets, packed = self._chunk_of((name, LMQ_QUEUE_ID))
                    offsets.append(offset)
                    packed += entries[index].tobytes()

    def _collect_batches(self, run: Run, indexes: list[int]) -> None:
        for index in indexes:
            properties = run.properties_of(index)
            self._collect_batch(
                (run.topics[int(run.topic_ids[index])], int(run.queue_ids[index])),
                int(run.sys_flags[index]),
                properties,
                BatchEntry(
                    int(run.positions[index]),
                    int(run.sizes[index]),
                    tags_code(properties),
                    int(run.store_timestamps_ms[index]),
                    int(run.queue_offsets[index]),
                    1,
                ),
            )

    def _convert_to_batches(self, topic: str) -> None:
        """Turn the queues of a topic into BatchConsumeQueues, because the log has an inner batch of it.
        Entries already collected for ordinary queues move there."""
        table = self._table
        if topic in table.batch_topics or self._batch_table is None:
            return
        self._settle_all()
        for key in table.keys_of(topic):
            queue = table.queues[key]
            for offset in range(queue.min_offset, queue.max_offset):
                entry = queue.entry(offset)
                if entry is not None and entry[1] != FILLER_SIZE:
                    store_ms = self._log.store_timestamp_at(entry[0])
                    self._batch_chunk.setdefault(key, []).append(BatchEntry(*entry, store_ms, offset, 1))
        table.remove_topic(topic)
        table.batch_topics.add(topic)

    def _collect_batch(
        self, key: tuple[str, int], sys_flag: int, properties: bytes, entry: BatchEntry
    ) -> None:
        """Add an entry to a BatchConsumeQueue. A record without the inner-batch bit is one message."""
        if self._batch_table is None:
            return
        if sys_flag & INNER_BATCH:
            self._convert_to_batches(key[0])
            messages = parse_number(find_property(properties, b"INNER_NUM"))
            if messages is None or not 0 < messages <= MAX_BATCH:
                self.report.ignored_records += 1
                return
            entry = entry._replace(messages=messages)
        self._batch_chunk.setdefault(key, []).append(entry)
        self._chunk_records += 1
        if self._chunk_records >= _SETTLE_RECORDS:
            self._settle()

    def _take_damaged(self, record: CheckedRecord, position: int) -> None:
        """Add a filler for a damaged record. Its queue offset is known, even when it was the last of the
        queue."""
        if (
            is_queued(record.sys_flag)
            and position >= self._queued_before
            and not self._is_deleted(record.topic, position)
        ):
            self._collect(record, FILLER)

    def _collect(self, record: CheckedRecord, entry: bytes) -> None:
        offsets, entries = self._chunk_of((record.topic, record.queue_id))
        offsets.append(record.queue_offset)
        entries += entry
        self._chunk_records += 1
        if self._chunk_records >= _SETTLE_RECORDS:
            self._settle()

    def _chunk_of(self, key: tuple[str, int]) -> QueueChunk:
        return self._chunk.setdefault(key, QueueChunk(array("q"), bytearray()))

    def _settle_all(self) -> None:
        """Write all collected entries, including those that wait for the next record."""
        for key in self._undecided:
            self._chunk_of(key)
        self._more_may_come = False
        self._settle()
        self._more_may_come = True

    def _settle(self) -> None:
        chunk, self._chunk, self._chunk_records = self._chunk, {}, 0
        for key in self._undecided.keys() & chunk.keys():
            offset, entry = self._undecided.pop(key)
            chunk[key] = QueueChunk(
                array("q", [offset]) + chunk[key].offsets, bytearray(entry) + chunk[key].entries
            )
        for key, (offsets, entries) in chunk.items():
            queue = self._table.queues.get(key)
            if queue is None:
                try:
                    queue = self._table.create(*key)
                except InvalidMessage:
                    self.report.ignored_records += len(offsets)
                    continue
            first = offsets[0]
            if queue.next_offset == 0 and queue.file_starts and key not in self._first_entries:
                self._first_entries[key] = queue.packed_entry(0) or b""
            dense = np.arange(first, first + len(offsets))
            if first == queue.next_offset and np.array_equal(np.frombuffer(offsets, np.int64), dense):
                self._append(queue, entries)
            else:
                self._settle_one_by_one(queue, offsets, entries)
        batches, self._batch_chunk = self._batch_chunk, {}
        for key, batch_entries in batches.items():
            self._settle_batches(key, batch_entries)

    def _settle_batches(self, key: tuple[str, int], entries: list[BatchEntry]) -> None:
        table = self._batch_table
        if table is None:
            return
        queue = table.batch_queues.get(key)
        if queue is None:
            try:
                table.create(*key)
            except InvalidMessage:
                self.report.ignored_records += len(entries)
                return
            queue = table.batch_queues[key]
        for entry in entries:
            if entry.base == 0 and queue.next_offset:
                # The topic was deleted and created again: the queue restarts here.
                queue.array.set_end(0)
                queue.recovered()
            if entry.base < queue.next_offset:
                self.report.ignored_records += 1
                continue
            queue.settle(entry)
            self.report.entries += 1

    def _settle_one_by_one(self, queue: ConsumeQueue, offsets: array[int], entries: bytearray) -> None:
        """Write entries with a jump in their offsets. A jump is accepted when the next record agrees, or there is none
        and the jump is not too long. A record whose offset cannot be right gets a filler in the place that it most
        likely had, so that this offset is not assigned again."""
        for index, offset in enumerate(offsets):
            entry = bytes(entries[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES])
            expected = queue.next_offset
            following = offsets[index + 1] if index + 1 < len(offsets) else None
            if offset != expected and following is None and self._more_may_come:
                self._undecided[queue.key] = (offset, entry)
                return
            agrees = following is None or following == offset + 1
            position = ENTRY.unpack(entry)[0]
            # A record takes at least 91 bytes of the log, which bounds the possible offsets.
            plausible = offset * MIN_RECORD_BYTES <= position
            if following is None and offset - expected > _MAX_UNCONFIRMED:
                plausible = offset <= self._assigned(queue)
            if offset == expected:
                self._append(queue, entry)
            elif offset > expected and agrees and plausible:
                if queue.file_starts:
                    if expected > queue.file_starts[0] // ENTRY_BYTES:  # else retention removed them
                        self._fill(queue, offset)
                    self._append_fillers(queue, offset)
                else:
                    queue.set_end(offset)
                self._append(queue, entry)
            elif offset == 0 and (following == 1 or self._was_first(queue, entry)):
                # The topic was deleted and created again: the queue restarts here.
                queue.set_end(0)
                self._append(queue, entry)
            elif following == expected + 1 or (following is None and offset > expected):
                self._fill(queue, expected + 1)
                self._append(queue, FILLER)
            else:
                self.report.ignored_records += 1

    def _assigned(self, queue: ConsumeQueue) -> int:
        """Offsets of a queue below this are known to have been assigned."""
        was = self._ends.ranges.get(queue.key) if self._ends is not None else None
        return was.assigned if was is not None else 0

    def _append_fillers(self, queue: ConsumeQueue, end: int) -> None:
        while queue.next_offset < end:
            self._append(queue, FILLER * min(end - queue.next_offset, _SETTLE_RECORDS))

    def _fill(self, queue: ConsumeQueue, end: int) -> None:
        """Report fillers for lost records up to ``end``."""
        self.report.lost_entries += end - queue.next_offset
        if len(self._fillers) < _MAX_LISTED:
            self._fillers.append(LostOffsets(queue.topic, queue.queue_id, queue.next_offset, end))

    def _was_first(self, queue: ConsumeQueue, entry: bytes) -> bool:
        """Whether the queue began with this record when the last process ended. An offset of 0 alone may be
        damage, because no CRC covers it."""
        return self._first_entries.get(queue.key, b"")[:12] == entry[:12]

    def _append(self, queue: ConsumeQueue, entries: bytes | bytearray) -> None:
        count = len(entries) // ENTRY_BYTES
        queue.reserve(count)
        if queue.ext_out is not None:
            entries = self._with_units(queue.ext_out, entries)
        queue.settle(entries)
        self.report.entries += count

    def _with_units(self, ext: QueueExt, entries: bytes | bytearray) -> bytes:
        changed = np.frombuffer(entries, ENTRY_DTYPE).copy()
        for index, (position, size, code) in enumerate(changed.tolist()):
            if size != FILLER_SIZE:
                changed["tags_code"][index] = ext.put(code, self._store_time_at(position))
        return changed.tobytes()

    def _store_time_at(self, position: int) -> int:
        return self._log.store_timestamp_at(position)

    def _finish_queues(self) -> None:
        min_position = self._log.min_offset
        lost = self.report.damaged
        if self.report.cut_bytes:
            lost = [*lost, (self.report.end_position, self._known_end)]
        for queue in self._table.queues.values():
            first = queue.next_offset
            for _ in self._lost_last_entries(queue, lost):
                self.report.lost_entries += 1
                self._append(queue, FILLER)
            if queue.next_offset > first and len(self._last_lost) < _MAX_LISTED:
                self._last_lost.append(LostOffsets(queue.topic, queue.queue_id, first, queue.next_offset))
        self._restore_ends()
        for queue in self._table.queues.values():
            if not self.report.clean or queue.file_starts:
                self.report.cleared_entries += queue.clear_tail()
            queue.correct_min_offset(min_position)
            queue.mark_last_fillers()
        if self._batch_table is not None:
            for array in self._batch_table.queues.values():
                if not self.report.clean or array.file_starts:
                    self.report.cleared_entries += array.clear_tail()
                array.correct_min_offset(min_position)
            for batch_queue in self._batch_table.batch_queues.values():
                batch_queue.recovered()

    def _lost_last_entries(self, queue: ConsumeQueue, lost: list[tuple[int, int]]) -> Iterator[None]:
        """Entries after the queue's last record that point into damage, or did at the last recovery: their
        offsets were already assigned."""
        while lost:
            entry = queue.entry(queue.next_offset)
            if entry is None or entry[1] <= 0:
                return
            if entry[1] != FILLER_SIZE and not any(low <= entry[0] < high for low, high in lost):
                return
            yield

    def _restore_ends(self) -> None:
        """Never assign offsets again that a queue had assigned before the last checkpoint, even if their
        records are lost."""
        if self._ends is None:
            return
        may_be_short = self._is_healing or self.report.cut_bytes
        for key, was in self._ends.counting(self._deleted):
            end = was.end
            if key[0] in self._table.batch_topics:
                batch = self._batch_table.batch_queues.get(key) if self._batch_table is not None else None
                if batch is None and self._batch_table is not None and (may_be_short or was.skipped):
                    self._batch_table.create(*key)
                    batch = self._batch_table.batch_queues[key]
                if batch is not None:
                    if batch.next_offset < end:
                        self._note_short(key, batch.next_offset, end)
                    batch.skip_to(was.assigned)
                continue
            if not may_be_short:
                continue
            queue = self._table.queues.get(key)
            if queue is None:
                queue = self._table.create(*key)
            short = end - queue.next_offset
            if short <= 0:
                continue
            self._note_short(key, queue.next_offset, end)
            self.report.lost_entries += short
            if not queue.file_starts:
                queue.begin_empty(end)
            self._append_fillers(queue, end)

    def _note_short(self, key: tuple[str, int], low: int, high: int) -> None:
        text = f"queue {key[0]}/{key[1]} ended at {high}, but the log has records up to {low} only"
        self._note(Damage("queue.lost-record", Outcome.LOST, text, queues=(LostOffsets(*key, low, high),)))

    # --- report ---------------------------------------------------------------------------------------------

    def _compare_end(self) -> None:
        """Compute ``cut_bytes`` from the position that the log is known to have reached."""
        if self._known_end - self.report.end_position >= MIN_RECORD_BYTES:
            self.report.cut_bytes = self._known_end - self.report.end_position

    def _note_damages(self) -> None:
        report = self.report
        for damage in self._missing:
            low, length = damage.offset or 0, damage.length or 0
            is_lost = damage.outcome is Outcome.LOST
            self._note(replace(damage, queues=self._lost_offsets(low, low + length) if is_lost else ()))
        if report.cut_bytes:
            low, high = report.end_position, self._known_end
            text = f"the log was cut: its last {report.cut_bytes} bytes, up to {high}, are missing"
            self._note(Damage("log.cut", Outcome.LOST, text, low, report.cut_bytes, tuple(self._last_lost)))
        for low, high in report.damaged:
            text = f"{high - low} bytes of the log hold no valid record"
            self._note(
                Damage("log.damaged", Outcome.LOST, text, low, high - low, self._lost_offsets(low, high))
            )
        if self._fillers:
            text = f"{report.lost_entries} offsets refer to records missing in the log"
            self._note(Damage("queue.lost-record", Outcome.LOST, text, queues=tuple(self._fillers)))
        for queue, doubt in self._doubted():
            text = f"queue {queue.topic}/{queue.queue_id}: {doubt.text}; rebuilt from {doubt.sure_end} on"
            self._note(Damage(doubt.kind, Outcome.HEALED, text))

    def _lost_offsets(self, low: int, high: int) -> tuple[LostOffsets, ...]:
        return lost_offsets(self._all_queues(), low, high)
