"""A log that is a copy of another broker's: what is added to it, and what is taken back from its end.

Must not know the master, and how its bytes arrive.
"""

from __future__ import annotations

from mqspark.errors import InvalidMessage, NotNow, StoreReadOnly
from mqspark.record.record import Verdict, check_record
from mqspark.record.recordlayout import BLANK_MAGIC, SIZE_MAGIC
from mqspark.store.disk.notes.beginnote import BeginNote
from mqspark.store.messages.append import Appender
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.messages.unsettled import Unsettled
from mqspark.store.recovery.logcopier import LogCopier
from mqspark.store.recovery.recoveryreport import RecoveryReport
from mqspark.store.storedata import StoreData
from mqspark.store.upkeep.checkpoints import Checkpoints
from mqspark.store.upkeep.cutback import CutBack, CutBackJob, last_whole_record, walk_records


class LogCopy:
    """The log of one store as a copy, from ``follow`` on."""

    def __init__(
        self,
        data: StoreData,
        appender: Appender,
        pipeline: CommitPipeline,
        condition: Condition,
        unsettled: Unsettled,
        checkpoints: Checkpoints,
        begin_note: BeginNote,
        cut_back: CutBack,
    ) -> None:
        self._data = data
        self._log = data.log
        self._tables = data.tables
        self._appender = appender
        self._pipeline = pipeline
        self._condition = condition
        self._unsettled = unsettled
        self._checkpoints = checkpoints
        self._begin_note = begin_note
        self._cut_back = cut_back
        self._copier: LogCopier | None = None

    def follow(self) -> None:
        """From now on only ``append`` adds to the log."""
        self._log.hold()
        self._condition.is_copy = True
        self._copier = LogCopier(self._data, self._appender, self._pipeline, self._unsettled)

    def begin_at(self, position: int) -> None:
        """Let the empty log begin at ``position``. Raises InvalidMessage when no segment can begin there,
        StoreReadOnly, DiskFull."""
        log = self._log
        if log.position > log.min_offset or position % log.segment_bytes:
            raise InvalidMessage(
                f"a log that ends at {log.position} and has segments of {log.segment_bytes} bytes cannot"
                f" begin at {position}: mappedFileSizeCommitLog must be the same",
                field="log",
            )
        if self._condition.read_only is not None:
            raise StoreReadOnly(self._condition.read_only)
        try:
            self._unsettled.write_in_flight()
            self._begin_note.save(position)
            log.restart_at(position)
            log.sync_from(position)
        except OSError as error:
            raise self._condition.poison(f"beginning the CommitLog at {position} failed", error) from error
        finally:
            log.hold()

    def append(self, data: bytes | memoryview) -> None:
        """Append complete records of the other log, which begin at the end of this one (``LogCopier.append``). Raises
        InvalidMessage for bytes that are no records of this place, StoreReadOnly, and NotNow when it has to be tried
        again; the records before are appended then."""
        if self._condition.read_only is not None or self._copier is None:
            raise StoreReadOnly(self._condition.read_only or "it is not a copy")
        try:
            self._copier.append(data)
        except NotNow:
            raise
        except OSError as error:
            raise self._condition.poison("copying the CommitLog failed", error) from error

    def pass_over(self, topic: str, queue_id: int, end: int) -> None:
        """Never assign the offsets before ``end`` of a queue that has none here: the other log had such messages, and
        lost them to retention. Raises InvalidMessage, StoreReadOnly, DiskFull, TableFull; then nothing has changed."""
        if self._condition.read_only is not None:
            raise StoreReadOnly(self._condition.read_only)
        table, batch_table = self._tables
        key = topic, queue_id
        try:
            if topic in table.batch_topics:
                if key not in batch_table.batch_queues:
                    batch_table.admit(topic)
                    batch_table.create(*key)
                batches = batch_table.batch_queues[key]
                if batches.next_offset:
                    return
                batches.skip_to(end)
            else:
                queue = table.queues.get(key)
                if queue is None:
                    table.admit(topic)
                    queue = table.create(*key)
                if queue.next_offset or queue.file_starts:
                    return
                queue.begin_empty(end)
        except OSError as error:
            raise self._condition.poison("making a queue failed", error) from error
        self._checkpoints.ends.note({key})
        self._checkpoints.wanted = True

    # --- comparing ------------------------------------------------------------------------------------------

    def log_bytes(self, position: int, size_bytes: int) -> bytes:
        """Bytes of the log from ``position`` on as they are in its files, visible or not: at most ``size_bytes``,
        of one segment. Empty when none are written there. Raises OSError."""
        segment = self._log.segment_of(position)
        end = min(position + size_bytes, self._log.written, segment.end if segment is not None else position)
        return bytes(self._log.slice(position, end - position) or b"")

    def last_whole_record(self, begin: int, end: int) -> int | None:
        """The end of the last record that lies in [begin, end) of the log and is in a queue."""
        return last_whole_record(self._tables, begin, end)

    def is_record_end(self, position: int) -> bool:
        """Whether a record of the log, or the padding of a segment, ends at ``position``. Raises OSError."""
        begin = self._log.min_offset
        if position <= begin:
            return position == begin
        at = self.last_whole_record(begin, position) or begin
        return walk_records(self.log_bytes, at, position) == position

    def is_sound(self, position: int) -> bool:
        """Whether a valid record, or the padding of a segment, begins at ``position``. Raises OSError."""
        head = self.log_bytes(position, SIZE_MAGIC.size)
        if len(head) < SIZE_MAGIC.size:
            return False
        size, magic = map(int, SIZE_MAGIC.unpack(head))
        if magic == BLANK_MAGIC:
            return size > 0
        data = self.log_bytes(position, max(0, size))
        record = check_record(data, 0, len(data), verify_crc=True)
        return record.verdict is Verdict.VALID and record.physical_offset == position

    # --- taking back ----------------------------------------------------------------------------------------

    def cut_back(self, position: int) -> None:
        """Take the log back to ``position``, the end of a record, with the next maintenance of the store. The rest is
        saved in ``mqspark.diverged``. ``is_cutting`` until then."""
        self._cut_back.ask(position)

    def cut_at_hole(self, report: RecoveryReport) -> None:
        """Take the log back, at once, to the first hole that a power cut has left behind what was synced: a slave
        copies no hole, so that nothing behind it would ever be replicated. Only for a log of which nothing counts that
        is not synced. For the start, after ``MessageStore.open``; blocking. Raises OSError, DiskFull."""
        hole = min((low for low, _ in report.damaged if low >= report.sure_position), default=None)
        if hole is None:
            return
        self.cut_back(hole)
        job = self.job()
        if job is None:
            raise RuntimeError("a store that was just opened has nothing to write")
        job.run()
        job.done()

    @property
    def is_cutting(self) -> bool:
        return self._cut_back.position is not None

    @property
    def cuts(self) -> int:
        """How often the log was taken back since the store was opened (``CutBack.cuts``)."""
        return self._cut_back.cuts

    def job(self) -> CutBackJob | None:
        return self._cut_back.job()
