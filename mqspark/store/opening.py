"""One start of a store: finds out what is in its directory, and makes log, queues and index agree.

Must not know what is done with the store afterwards.
"""

from __future__ import annotations

from mqspark.store.compaction.compactedqueues import CompactedQueues
from mqspark.store.disk.damage import Damage, Damages, Outcome
from mqspark.store.disk.directory import StoreDirectory
from mqspark.store.disk.files import disk_full_as_typed
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.maintenance import Maintenance
from mqspark.store.queue.batchqueue import batch_topics
from mqspark.store.recovery.deletions import Deletions
from mqspark.store.recovery.queueends import QueueEnds
from mqspark.store.recovery.recovery import Recovery
from mqspark.store.recovery.recoveryreport import RecoveryReport, lost_offsets
from mqspark.store.recovery.rocksdb import refuse_rocksdb
from mqspark.store.storedata import StoreData


class Opening:
    """Blocking. The directory is locked."""

    def __init__(
        self,
        data: StoreData,
        directory: StoreDirectory,
        member: MemberNote,
        compacted: CompactedQueues,
        deletions: Deletions,
        upkeep: Maintenance,
        damages: Damages,
    ) -> None:
        """Read what the last process has noted. Raises StoreCorrupt, OSError."""
        self._data = data
        self._directory = directory
        self._member = member
        self._compacted = compacted
        self._deletions = deletions
        self._upkeep = upkeep
        self._damages = damages
        self._missing: list[Damage] = []
        """What the log has lost."""
        paths, files = data.paths, data.files
        refuse_rocksdb(paths, files)
        self.clean = directory.is_clean
        self._synced = directory.note.load()
        self._checkpoint = upkeep.checkpoints.load()
        damages.clear()
        problem = Checkpoint.problem(paths.checkpoint, paths.mark, files, data.clock.now_ms())
        if problem is not None:
            self._heal_checkpoint(f"{problem}; more of the log was read instead")

    @property
    def checkpoint_store_ms(self) -> int:
        """The store time up to which the last checkpoint has log and queues."""
        return min(self._checkpoint.physic_msg_timestamp_ms, self._checkpoint.logics_msg_timestamp_ms)

    def recover(self) -> RecoveryReport:
        """Log, queues and index then end at one record. Raises StoreCorrupt, DiskFull, OSError."""
        data, checkpoint = self._data, self._checkpoint
        # Without a mark a RocketMQ broker may have run here, and deleted segments.
        begin = self._upkeep.begin_note.load() if checkpoint.position >= 0 else None
        self._load_log(begin)
        had_segments = bool(data.log.segments)
        self._load_queues()
        report = self._recovery().run()
        self._follow(report)
        if begin is None or not had_segments:
            self._upkeep.begin_note.save(data.log.min_offset)
        # The store may be new when it has no checkpoint.
        self._directory.begin(report.end_position, is_new=checkpoint.position < 0)
        return report

    def _load_log(self, begin: int | None) -> None:
        is_replica = self._member.look()
        noted = self._member.noted
        known_end = max(self._checkpoint.position, -1 if self.clean else self._synced, noted.acknowledged)
        self._data.log.load(
            self._missing.append, known_end, noted.segment_bytes, begin=begin, heals=is_replica
        )

    def _load_queues(self) -> None:
        data, deleted = self._data, self._data.deleted
        self._deletions.load(data.log.min_offset)
        data.batch_table.load()
        data.batch_table.leave_out(deleted, remove=True)
        data.table.load(data.paths.batch_consume_queue)
        data.table.leave_out(deleted, remove=True)
        data.table.batch_topics |= batch_topics(data.paths.config / "topics.json", data.files)
        self._compacted.leave_out(deleted)

    def _recovery(self) -> Recovery:
        data, checkpoints = self._data, self._upkeep.checkpoints
        config = data.config
        return Recovery(
            data.log,
            data.table,
            self._checkpoint,
            data.levels,
            clean=self.clean,
            synced=self._synced,
            verify_crc=config.check_crc_on_recover,
            verify_property_crc=config.verify_property_crc,
            batch_table=data.batch_table,
            multi_dispatch=config.multi_dispatch,
            deleted=data.deleted,
            ends=self._load_ends(),
            missing=self._missing,
            note=self._damages.note,
            before_heal=checkpoints.distrust,
        )

    def _load_ends(self) -> QueueEnds | None:
        ends, problem = self._upkeep.checkpoints.ends.load(self._checkpoint.ends_limit, clean=self.clean)
        if problem is not None:
            self._heal_checkpoint(problem)
        return ends

    def _heal_checkpoint(self, problem: str) -> None:
        self._damages.note(Damage("checkpoint.damaged", Outcome.HEALED, problem))

    def _follow(self, report: RecoveryReport) -> None:
        """What follows from the log ends with it."""
        end, indexer = report.end_position, self._data.indexer
        self._upkeep.checkpoints.ends.end_at(end)
        with disk_full_as_typed("the list of deleted topics"):
            self._deletions.end_at(end)
        self._upkeep.compacted_end.heal()
        if indexer is not None:
            safe_ms = self._checkpoint.index_msg_timestamp_ms
            indexer.open(end, clean=self.clean, safe_timestamp_ms=safe_ms)

    def note_damage(self, report: RecoveryReport) -> None:
        """Note what holds no valid record now."""
        data = self._data
        data.damage.clear()
        gone = [
            (each.offset, each.offset + each.length)
            for each in self._missing
            if each.offset is not None and each.length and each.outcome is Outcome.LOST
        ]
        for low, high in gone + report.damaged:
            low, high = max(low, data.log.min_offset), min(high, report.end_position)
            if low < high:
                lost = lost_offsets(data.table.queues.values(), low, high, most=1)
                data.damage.add(low, high, is_led_into=bool(lost))
