"""The upkeep of an open store: what is due about once a second, beside putting and reading.

Must not know who runs the jobs.
"""

from __future__ import annotations

from mqspark.store.compaction.compactedend import CompactedEnd
from mqspark.store.disk.directory import StoreDirectory
from mqspark.store.disk.diskjobs import Job
from mqspark.store.disk.notes.beginnote import BeginNote
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.reads import Reads
from mqspark.store.recovery.scrub import Scrub
from mqspark.store.storedata import StoreData
from mqspark.store.topicdeletion import TopicDeletion
from mqspark.store.upkeep.checkpoints import Checkpoints
from mqspark.store.upkeep.cleaning import Cleaner
from mqspark.store.upkeep.compactduty import CompactDuty
from mqspark.store.upkeep.cutback import CutBack
from mqspark.store.upkeep.walltime import WallTime

IDLE_MAP_MS = 60_000
"""A file that was not read for this long is unmapped, at the latest after twice this time."""


class Maintenance:
    """Retention, checkpoints, scrub, and what else keeps one store in order."""

    def __init__(
        self,
        data: StoreData,
        condition: Condition,
        pipeline: CommitPipeline,
        directory: StoreDirectory,
        member: MemberNote,
        reads: Reads,
        checkpoints: Checkpoints,
        topics: TopicDeletion,
        compacted_end: CompactedEnd,
    ) -> None:
        self._clock = clock = data.clock
        self._data = data
        self._condition = condition
        self._pipeline = pipeline
        self._directory = directory
        self._member = member
        self._reads = reads
        self._deletions = topics.deletions
        self.checkpoints = checkpoints
        self.compacted_end = compacted_end
        self.begin_note = BeginNote(data.paths.begin, data.files)
        self.wall_time = WallTime(clock, data.paths.wall_time, data.files)
        """Whether the clock may decide what is too old."""
        self.compact_duty = CompactDuty(data.config, clock)
        self.cleaner = Cleaner(data, condition, self.compact_duty, self.wall_time, self.begin_note)
        self.scrub = Scrub(data, pipeline)
        """Compares log and queues in the background. It stays here after its last job."""
        self.cut_back = CutBack(
            data,
            pipeline,
            condition,
            directory.note,
            member,
            checkpoints,
            topics.deletions,
            self.compact_duty,
            compacted_end,
            self.scrub,
        )
        self._next_unmap_ms = clock.monotonic_ms() + IDLE_MAP_MS

    def open(self) -> None:
        """Start after recovery."""
        self.scrub.open()
        self.compact_duty.begin()
        self.wall_time.open()
        self.cleaner.open()

    def jobs(self) -> list[Job]:
        """The blocking jobs that are due, without the job of ``deletions``, which has to be run first."""
        condition, now_ms = self._condition, self._clock.monotonic_ms()
        condition.notice_failed_save()
        self._reads.retry_failed()
        self._reads.fetcher.grow_old(now_ms)
        if condition.read_only is None:
            self._directory.check()
        if condition.read_only is not None:
            return []
        if self.cut_back.position is not None:  # alone: every other job knows the log as it is
            return [job for job in (self.cut_back.job(),) if job is not None]
        is_unmap_due = now_ms >= self._next_unmap_ms
        if is_unmap_due:
            self._next_unmap_ms = now_ms + IDLE_MAP_MS
        due = (
            self._data.unmap_job(idle=is_unmap_due),
            self._member.job(),
            *(self._data.log.extend_room() if self._data.log.room_due else ()),
            *self._index_jobs(),
            self._deletions.room_job(),
            self._cleaning_job(),
            self._scrub_job(),
        )
        jobs: list[Job] = [job for job in due if job is not None]
        self._follow_disk()
        # Deletions have to be on disk first: entries that are cut from queues meanwhile must be rebuilt from
        # the log. Queues that lack entries of visible records cannot be checkpointed.
        if not self._deletions.behind and self.checkpoints.is_due:
            jobs.append(self.checkpoints.begin())
        return jobs

    def _index_jobs(self) -> tuple[Job | None, ...]:
        indexer = self._data.indexer
        if indexer is None:
            return ()
        return indexer.slots_job(), indexer.idle(self._pipeline.visible_end, self._data.log.durable)

    def _cleaning_job(self) -> Job | None:
        checkpoints = self.checkpoints
        return self.cleaner.round(checkpoints.settled, checkpoint_running=checkpoints.is_running)

    def _scrub_job(self) -> Job | None:
        return None if self._deletions.behind else self.scrub.job()

    def _follow_disk(self) -> None:
        """Take messages again once the disk has room, and none while it is full."""
        condition, cleaner = self._condition, self.cleaner
        if condition.no_space is not None and cleaner.has_room():
            condition.lack_space(None)  # perhaps nobody sends, because the broker says that it refuses
        if condition.disk_full is not None:
            self._data.log.hold()  # the next put asks for room and is refused
        if cleaner.needs_checkpoint and not self.checkpoints.is_running:
            cleaner.needs_checkpoint = False
            self.checkpoints.wanted = True
