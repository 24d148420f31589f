"""Carries out retention: measures, asks ``retention.decide``, and removes old data from log, queues and
index.

A crash at any moment leaves a store that opens:

* A segment is deleted only when the checkpoint on disk lies after it, so that neither recovery nor the end of
  any queue depends on it, and when the segment after it is on disk.
* Segments are unlinked oldest first, each unlink synced before the next: the log never has a gap. Where it begins
  then is noted before (``beginnote``), so that a lost segment is not taken for a deleted one.
* A queue's min offset follows the log. Its files are removed after the log's, never its last one, and not
  before the name of that one is synced: it determines the queue's next offset.

Segments and files of the index are forgotten on the store's thread. A job unlinks them (unlinking a gigabyte takes
time) and finds in the queues' files where each queue begins now. What grows with the queues is done in slices.

Must not know puts and gets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from mqspark.errors import is_shortage
from mqspark.store.disk.diskjobs import PreparedJob
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.notes.archivednote import ARCHIVED, decode_archived
from mqspark.store.disk.notes.beginnote import BeginNote
from mqspark.store.disk.retention import OldSegment, decide
from mqspark.store.disk.savedtables import SteppedJob
from mqspark.store.log.commitlog import Segment
from mqspark.store.messages.condition import Condition
from mqspark.store.queue.consumequeue import ConsumeQueue
from mqspark.store.storedata import StoreData
from mqspark.store.upkeep.compactduty import CompactDuty
from mqspark.store.upkeep.walltime import WallTime

_ASKED_RUNS = 20
"""Value of DefaultMessageStore.executeDeleteFilesManually."""
_QUEUE_FILES_PER_ROUND = 8
"""Limit of queue files removed per round on the store's thread: each takes up to 0.2 ms. A segment of 1 GiB has the
records of 36 files at the most."""
SLICE_QUEUES = 512
"""Queues that are looked at in one turn: up to half a millisecond."""

_RETURN_MS = 20_000
"""How long the space of deleted segments is waited for. A reader on this host lets go of one within half of it
(``mqspark.store.tools.reader``), and some file systems free blocks in the background."""

_ROOM_BYTES = 1 << 20
"""Free space at which a log and its queues can grow again for a while."""

_Looked = tuple[ConsumeQueue, list[int], int, int]
"""A queue, its files, and the range of its offsets when the job was created."""


class Cleaner:
    """Retention of one open store; call ``round`` about once a second. A failure is reported (``problem``)
    and retried."""

    def __init__(
        self,
        data: StoreData,
        condition: Condition,
        compaction: CompactDuty,
        wall_time: WallTime,
        begin_note: BeginNote,
    ) -> None:
        self._begin_note = begin_note
        self._config = data.config
        self._wall_time = wall_time
        self._compaction = compaction
        self._condition = condition
        self._paths = data.paths
        self._log = data.log
        self._tables = data.tables
        self._index = data.index if data.indexer is not None else None
        self._files = data.files
        self._clock = data.clock
        self._next_ms = 0
        self._asked_runs = 0
        self._unlinked_next: list[Path] = []
        self._queues_behind = False
        self._with_dead_files: dict[ConsumeQueue, None] = {}
        self._job: CleaningJob | None = None
        self._returning = _Returning()
        self.problem: str | None = None
        """Why the last measurement or deletion failed, or None."""
        self.used_percent = 0.0
        """Usage of the fullest disk at the last measurement."""
        self.needs_checkpoint = False
        """Whether segments wait for a checkpoint."""
        self.deleted_segments = 0

    def open(self) -> None:
        """Start after recovery, which has set the queues' min offsets."""
        self._next_ms = self._clock.monotonic_ms() + self._config.clean_resource_interval
        self._with_dead_files.clear()
        for _ in self.kept():
            continue

    def kept(self) -> Iterator[list[_Looked]]:
        """The queues that have messages, slice by slice. Those with files to remove are noted."""
        for table in self._tables:
            keys = iter(table.in_order)
            while some := list(islice(keys, SLICE_QUEUES)):
                queues = [queue for queue in map(table.queues.get, some) if queue is not None]
                self._note_dead(queues)
                yield [
                    (queue, queue.file_starts.copy(), queue.min_offset, queue.max_offset)
                    for queue in queues
                    if queue.file_starts
                ]

    def _note_dead(self, queues: Iterable[ConsumeQueue]) -> None:
        self._with_dead_files |= {queue: None for queue in queues if queue.dead_files}

    @property
    def is_hour(self) -> bool:
        """Whether it is one of the hours of deleteWhen."""
        hour = time.localtime(self._clock.now_ms() / 1000).tm_hour
        return hour in self._config.retention_rules.delete_hours

    def ask(self) -> None:
        """Delete expired segments now and in the next runs, at any hour. An operator asks, who knows the time."""
        self._wall_time.trust()
        self._asked_runs = _ASKED_RUNS
        self._next_ms = 0

    def ask_queues(self) -> None:
        """Let the queues follow the log. Requested by an operator."""
        self._queues_behind = True

    def has_room(self) -> bool:
        """Whether the disks of log and queues have some space."""
        files, paths = self._files, self._paths
        try:
            log = [files.disk(path)[1].free_bytes for path in paths.commit_logs.writable]
            return min(max(log), files.disk(paths.consume_queue)[1].free_bytes) >= _ROOM_BYTES
        except OSError as error:
            self.problem = f"measuring the disk failed: {error}"
            return False

    def round(self, settled: int, *, checkpoint_running: bool) -> CleaningJob | None:
        """``settled``: position of a checkpoint on disk; everything before it is in log and queues, synced."""
        if self._job is not None:
            return None
        by_age = self._wall_time.is_trusted  # asked each time, so that health and log say it at once
        now_ms = self._clock.monotonic_ms()
        is_due = now_ms >= self._next_ms
        if is_due:
            self._next_ms = now_ms + self._config.clean_resource_interval
        try:
            if is_due:
                self.problem = None
                self._decide(settled, by_age=by_age)
            if not checkpoint_running:
                self._remove_queue_files()
        except OSError as error:
            self.problem = f"cleaning failed: {error}"
        if not self._queues_behind and not (self._unlinked_next and is_due):
            return None
        looks, self._queues_behind = self._queues_behind, False
        self._job = CleaningJob(
            self,
            self._files,
            self._begin_note,
            self._unlinked_next,
            self._log.min_offset,
            self.kept() if looks else iter(()),
        )
        return self._job

    def _decide(self, settled: int, *, by_age: bool) -> None:
        config, log, files = self._config, self._log, self._files
        log_paths = self._paths.commit_logs
        log_disks = {path: files.disk(path) for path in log_paths.writable}
        # The log has room as long as one of its directories has.
        _, log_disk = min(log_disks.values(), key=lambda found: found[1].used_percent)
        mark = min(config.disk_space_clean_forcibly_ratio, config.disk_space_warning_level_ratio)
        log_paths.full = frozenset(path for path, (_, disk) in log_disks.items() if disk.used_percent > mark)
        queue_device, queue_disk = files.disk(self._paths.consume_queue)
        others = [queue_disk] if all(queue_device != device for device, _ in log_disks.values()) else []
        self.used_percent = max(disk.used_percent for disk in (log_disk, *others))
        now_ms = self._clock.now_ms()
        old = log.segments[:-1][: config.delete_file_batch_max]
        if config.delete_archived_only:
            archived = decode_archived(files.read(self._paths.root / ARCHIVED))
            old = [segment for segment in old if segment.end <= archived]
        ages = [self._age(segment) for segment in old]
        decision = decide(
            ages,
            log_disk,
            others,
            config.retention_rules,
            now_ms=now_ms,
            hour=time.localtime(now_ms / 1000).tm_hour,
            asked=self._asked_runs > 0,
            refusing=self._condition.disk_full is not None,
            by_age=by_age,
            returning_bytes=self._returning.left(log_disk.used_bytes, self._clock.monotonic_ms()),
        )
        self._asked_runs = max(self._asked_runs - 1, 0)
        wanted = decision.delete
        compacted = self._compaction.position
        if compacted is not None:
            wanted = sum(1 for segment in old[:wanted] if segment.end <= compacted)
        held = decision.delete - wanted
        self._compaction.hold(held, is_full=decision.immediately)
        full = None
        if decision.refuse_writes:
            full = (
                f"the disk is {self.used_percent:.1f}% full, more than diskSpaceWarningLevelRatio"
                f" ({config.disk_space_warning_level_ratio}%) allows; messages are accepted again at"
                f" diskSpaceCleanForciblyRatio ({config.disk_space_clean_forcibly_ratio}%)"
            )
            if held:
                full += f"; {held} segments wait for their compaction (deleteCompactedOnly)"
        self._condition.disk_full = full
        # Strictly less: the segment after it is then synced, too.
        count = sum(1 for segment in old[:wanted] if segment.end < settled)
        self.needs_checkpoint = count < wanted
        if count:
            self._returning.expect(
                log_disk.used_bytes,
                sum(each.size_bytes for each in ages[:count]),
                self._clock.monotonic_ms(),
            )
            self._unlinked_next += log.forget_oldest(count)
            self.deleted_segments += count
            self._queues_behind = True
            if self._index is not None:
                self._unlinked_next += self._index.forget_before(log.min_offset)

    def _age(self, segment: Segment) -> OldSegment:
        try:
            return self._files.age(segment.path)
        except FileNotFoundError:  # an operator has removed it
            return OldSegment(0, 0)

    def _remove_queue_files(self) -> None:
        if self._unlinked_next:
            return  # the log's files go first
        waiting, later = self._with_dead_files, list[ConsumeQueue]()
        left = _QUEUE_FILES_PER_ROUND
        try:
            for _ in range(min(SLICE_QUEUES, len(waiting))):
                if not left:
                    break
                queue, _ = waiting.popitem()
                later.append(queue)
                while left and queue.is_current and queue.is_settled and queue.dead_files:
                    queue.remove_oldest_file()
                    left -= 1
                if not queue.is_current or not queue.dead_files:
                    later.pop()
        finally:  # what is left waits for the next round, or until a checkpoint has settled it
            waiting |= dict.fromkeys(later)

    def finish(self, job: CleaningJob) -> Iterator[None]:
        self._job = None
        del self._unlinked_next[: job.unlinked]
        if job.error is not None:
            self.problem = f"deleting a segment of the log failed: {str(job.error) or repr(job.error)}"
        begins = iter(job.begins)
        while some := list(islice(begins, SLICE_QUEUES)):
            there = [(queue, offset) for queue, offset in some if queue.is_current]
            for queue, offset in there:
                queue.raise_min_offset(offset)
            self._note_dead(queue for queue, _ in there)
            yield


class _Returning:
    """The space of the segments that were deleted last, until the disk shows it."""

    __slots__ = ("_bytes", "_until_ms", "_used_after")

    def __init__(self) -> None:
        self._bytes = self._used_after = self._until_ms = 0

    def left(self, used_bytes: int, now_ms: int) -> int:
        """How much of it the disk's usage probably still includes. New messages look the same; therefore the end."""
        self._bytes = (
            0 if now_ms >= self._until_ms else min(self._bytes, max(used_bytes - self._used_after, 0))
        )
        return self._bytes

    def expect(self, used_bytes: int, deleted_bytes: int, now_ms: int) -> None:
        """Segments are deleted now, in addition to what is left."""
        self._bytes += deleted_bytes
        self._used_after = used_bytes - self._bytes
        self._until_ms = now_ms + _RETURN_MS


class CleaningJob(PreparedJob, SteppedJob):
    """Unlinks what log and index have forgotten, and finds where queues begin now. In any thread. Keeps an error of
    the disk."""

    __slots__ = (
        "_begin_note",
        "_cleaner",
        "_files",
        "_looked",
        "_looks",
        "_min_physical_offset",
        "_paths",
        "begins",
        "error",
        "unlinked",
    )

    def __init__(
        self,
        cleaner: Cleaner,
        files: FileLayer,
        begin_note: BeginNote,
        paths: list[Path],
        min_physical_offset: int,
        looks: Iterator[list[_Looked]],
    ) -> None:
        self._cleaner = cleaner
        self._files = files
        self._begin_note = begin_note
        self._paths = paths.copy()
        self._min_physical_offset = min_physical_offset
        self._looks = looks
        self._looked: list[list[_Looked]] = []
        self.unlinked = 0
        self.begins: list[tuple[ConsumeQueue, int]] = []
        self.error: BaseException | None = None

    def prepare(self) -> Iterator[None]:
        for looked in self._looks:
            self._looked.append(looked)
            yield

    def run(self) -> None:
        files = self._files
        for _ in self.prepare():
            continue
        while self._looked:  # one by one: the loop would wait while very many are freed at once
            self._find_begins(self._looked.pop())
        try:
            if self._paths:
                self._begin_note.save(self._min_physical_offset)
            for path in self._paths:
                files.remove(path)
                files.sync_directory(path.parent)
                self.unlinked += 1
        except OSError as error:
            self.error = error

    def _find_begins(self, looked: list[_Looked]) -> None:
        for queue, file_starts, low, high in looked:
            try:
                found = queue.first_kept(self._min_physical_offset, file_starts, low, high)
            except OSError as error:
                if is_shortage(error):
                    self._cleaner.ask_queues()
                continue  # its topic was deleted; the next reader of the file meets any other fault
            if found > low:
                self.begins.append((queue, found))

    def done(self, error: BaseException | None = None) -> None:
        for _ in self.steps(error):
            continue

    def steps(self, error: BaseException | None = None) -> Iterator[None]:
        if error is not None:
            self.error = error
            self._cleaner.ask_queues()  # perhaps not all of them were looked at
        return self._cleaner.finish(self)
