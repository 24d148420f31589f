"""Takes back the end of a log that is a copy: where it differs from its master's log, the master's is right
(AutoSwitchHAService.truncateSuffixByOffset).

What is taken back is first saved in ``mqspark.diverged/``, as it is in the log, and synced. A file is named after the
position of its first byte and the time.

Must not know the master.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from mqspark.base.logs import sparing
from mqspark.errors import NotNow
from mqspark.record.recordlayout import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, SIZE_MAGIC
from mqspark.store.compaction.compactedend import CompactedEnd
from mqspark.store.disk.files import disk_full_as_typed
from mqspark.store.disk.notes.durable import DurableNote
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.log.commitlog import Segment
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.queue.consumequeue import FILLER_SIZE, ConsumeQueue
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery.deletions import Deletions
from mqspark.store.recovery.scrub import Scrub
from mqspark.store.storedata import StoreData
from mqspark.store.upkeep.checkpoints import Checkpoints
from mqspark.store.upkeep.compactduty import CompactDuty

_log = sparing(__name__)

_COPY_BYTES = 1 << 20
MAX_WALK = 100_000


def last_whole_record(tables: tuple[QueueTable, ...], begin: int, end: int) -> int | None:
    """The end of the last record that lies in [begin, end) of the log and is in a queue."""
    best: int | None = None
    for table in tables:
        for queue in table.queues.values():
            after = queue.first_where(
                lambda position, size, _tags: position + size > end, queue.min_offset, queue.max_offset
            )
            entry = queue.entry_before(after)
            if entry is None or entry[0] < begin or entry[0] + entry[1] > end:
                continue
            best = max(best or 0, entry[0] + entry[1])
    return best


def walk_records(read: Callable[[int, int], bytes], begin: int, end: int) -> int | None:
    """The first end of a record at or after ``end``, from ``begin`` on, where one begins; None if there is none within
    MAX_WALK records. Few are passed, because ``begin`` is the end of the last record in a queue. Raises OSError."""
    at = begin
    for _ in range(MAX_WALK):
        if at >= end:
            return at
        head = read(at, SIZE_MAGIC.size)
        if len(head) < SIZE_MAGIC.size:
            return None
        size, magic = SIZE_MAGIC.unpack(head)
        if size <= 0 or magic not in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC):
            return None
        at += size
    return None


class CutBack:
    """The end of one store's log that is to be taken back, with all that follows from the log."""

    def __init__(
        self,
        data: StoreData,
        pipeline: CommitPipeline,
        condition: Condition,
        note: DurableNote,
        member: MemberNote,
        checkpoints: Checkpoints,
        deletions: Deletions,
        compact_duty: CompactDuty,
        compacted_end: CompactedEnd,
        scrub: Scrub,
    ) -> None:
        self._clock = data.clock
        self.data = data
        self._pipeline = pipeline
        self._condition = condition
        self._note = note
        self._member = member
        self._checkpoints = checkpoints
        self._deletions = deletions
        self._compact_duty = compact_duty
        self._compacted_end = compacted_end
        self._scrub = scrub
        self.position: int | None = None
        """Where the log is to end; None: where it ends."""
        self.cuts = 0
        """How often the end of the log was taken back: places behind the cut may be inside of records then."""
        self._was_gated = False

    def ask(self, position: int) -> None:
        """Let the next job take the log back to ``position``, the end of a record."""
        if self.position is None:
            self._was_gated = self._pipeline.is_gated
            self._pipeline.show_all()  # what is cut has its queue entries
        self.position = position

    def job(self) -> CutBackJob | None:
        """The job that takes the log back, once everything is written and synced."""
        if self.position is None or not self._pipeline.is_quiet:
            return None
        return CutBackJob(self, self.position, self._clock.now_ms())

    def may_begin(self, end: int) -> bool:
        """Whether everything is written and synced, the log still ends at ``end``, and nobody else writes what follows
        from the log. If so, nobody does until ``finish``, or ever again if the cut fails."""
        if self.data.log.position != end or not self._pipeline.is_quiet:
            return False
        self._compact_duty.stop()
        return self._compacted_end.hold()

    def prepare(self, position: int) -> None:
        """Let a start expect that the log ends at ``position``. Without this, a start after a crash would take what is
        cut for lost, and never assign its offsets again. Raises OSError."""
        self._checkpoints.begin_cut()
        self._member.lower(position)
        self._note.lower(position)

    def finish(self, position: int) -> None:
        """The log ends at ``position`` now: so does what follows from it. Raises OSError."""
        self.position = None
        if self._was_gated:
            self._pipeline.gate_at(position)
        self._checkpoints.cut(position)
        self._deletions.end_at(position)
        self._compact_duty.forget()
        self._compacted_end.cut_held()
        self._scrub.cut(position)
        self.cuts += 1

    def fail(self, error: Exception) -> None:
        """Log and queues may disagree now."""
        self._condition.poison("taking back the end of the CommitLog failed", error)


class CutBackJob:
    """``run`` saves, in any thread; ``done`` cuts, on the thread of the store, unless more was written meanwhile."""

    def __init__(self, owner: CutBack, position: int, now_ms: int) -> None:
        data = owner.data
        self._owner = owner
        self._data = data
        self._files = data.files
        self._directory = data.paths.diverged
        self._position = position
        self._end = data.log.position
        self._segments = list(data.log.segments)
        self._path = self._directory / f"{position:020d}-{now_ms}.log"
        self._saved = False

    def run(self) -> None:
        """Save the bytes. Raises OSError, DiskFull; then no part of them is left on the disk, which may be full."""
        try:
            self._save_all()
        except (OSError, NotNow):
            with contextlib.suppress(OSError):
                self._files.remove(self._path)
            raise
        self._saved = True

    def _save_all(self) -> None:
        files = self._files
        files.make_directory(self._directory, durable=True)
        with disk_full_as_typed("the part of the log that differs from the master's"):
            out = files.open(self._path, create=True)
            try:
                for segment in self._segments:
                    self._save(segment, out)
                files.sync(out)
            finally:
                files.close(out)
        files.sync_directory(self._directory)

    def _save(self, segment: Segment, out: int) -> None:
        low, high = max(self._position, segment.start), min(self._end, segment.end)
        if low >= high:
            return
        fd = self._files.open_read(segment.path)
        try:
            for at in range(low, high, _COPY_BYTES):
                size = min(_COPY_BYTES, high - at)
                data = self._files.read_at(fd, size, at - segment.start)
                self._files.write(out, data, at - self._position)
        finally:
            self._files.close(fd)

    def done(self, error: BaseException | None = None) -> None:
        owner, data, position = self._owner, self._data, self._position
        if error is not None or not self._saved or not owner.may_begin(self._end):
            return
        try:
            owner.prepare(position)
            removed = sum(self._cut(queue) for table in data.tables for queue in table.queues.values())
            for batch_queue in data.batch_table.batch_queues.values():
                batch_queue.recovered()
            if data.indexer is not None:
                data.indexer.cut(position)
            data.log.cut_back(position)
            owner.finish(position)
        except Exception as failure:
            owner.fail(failure)
            return
        _log.warning(
            "%d bytes of the log from %d on (%d queue entries) were taken back, and are saved in %s",
            self._end - position,
            position,
            removed,
            self._path,
        )

    def _cut(self, queue: ConsumeQueue) -> int:
        before = queue.max_offset
        last = queue.entry(before - 1) if before > queue.min_offset else None
        if last is None or (last[1] != FILLER_SIZE and last[0] < self._position):
            return 0
        # Not ``locate_end``: its bisection would take fillers for what lies before the cut.
        end = queue.first_where(
            lambda position, _size, _tags: position >= self._position, queue.min_offset, before
        )
        # Fillers at the end stand for records behind the cut: the master may have them.
        while (
            end > queue.min_offset and (entry := queue.entry(end - 1)) is not None and entry[1] == FILLER_SIZE
        ):
            end -= 1
        queue.set_end(end)
        queue.clear_tail()
        return before - end
