"""The front door of a store: its parts, and what concerns several of them. One thread owns a store; only ``Job.run``
may run in another.

A message passes four positions of the log. Each position is at or behind the one before it:

    position  encoded into the pending buffer, offset assigned   appender.put
    written   in the file, one pwritev for everything pending    pipeline.commit (SYNC_FLUSH: FlushJob.run)
    durable   fdatasync returned                                 pipeline.begin_flush / FlushJob.run / .end_flush
    acked     the producer may be told OK                        written (ASYNC_FLUSH) or durable (SYNC_FLUSH)

Consumers see what is acked. A failed write or sync *poisons* the store, also that of a file of ``config/``. A
poisoned store takes no more writes until it is opened again, acks nothing more, and keeps serving reads;
``condition.read_only`` gives the reason. A full disk does not poison: space is reserved before a message is accepted,
so DiskFull refuses one message and breaks none. A shortage of descriptors or memory does not poison either:
the work is retried later, and messages may be refused (NoResources) until then.

Must not know commands, sockets or consumer groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from mqspark.base.bounded import Ledger
from mqspark.base.clock import Clock
from mqspark.base.logs import printable
from mqspark.errors import InvalidMessage, StoreReadOnly
from mqspark.store.compaction.compacted import CompactedQueues
from mqspark.store.compaction.compactedend import CompactedEnd
from mqspark.store.config import StoreConfig
from mqspark.store.disk.beginnote import BeginNote
from mqspark.store.disk.checkpoint import Checkpoint
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Damages, Outcome
from mqspark.store.disk.directory import StoreDirectory
from mqspark.store.disk.files import FileLayer, OsFiles, descriptor_limit, disk_full_as_typed
from mqspark.store.disk.flush import CheckpointJob, Job, StoreProgress, run_here
from mqspark.store.disk.layout import StorePaths, is_storable_topic
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.disk.membernote import MemberNote
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexer import Indexer
from mqspark.store.index.indexfile import Shape
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.log.opendamage import OpenDamage
from mqspark.store.messages.append import Appender
from mqspark.store.messages.commit import Arrival, CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.messages.fetch import Fetcher, GetResult, GetStatus
from mqspark.store.messages.healing import EntryHealer
from mqspark.store.offsets import QueueOffsets
from mqspark.store.older import OlderMessages
from mqspark.store.queue.batchqueue import BatchTable, batch_topics
from mqspark.store.queue.delay import DelayLevels
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.reads import Reads
from mqspark.store.recovery.deletions import Deletions
from mqspark.store.recovery.mending import LogMender
from mqspark.store.recovery.queueends import QueueEnds
from mqspark.store.recovery.recovery import Recovery
from mqspark.store.recovery.recoveryreport import RecoveryReport, lost_offsets
from mqspark.store.recovery.rocksdb import refuse_rocksdb
from mqspark.store.recovery.scrub import Scrub
from mqspark.store.status import StoreStatus
from mqspark.store.upkeep.checkpoints import Checkpoints
from mqspark.store.upkeep.cleaning import Cleaner
from mqspark.store.upkeep.compactduty import CompactDuty
from mqspark.store.upkeep.logcopy import LogCopy
from mqspark.store.upkeep.walltime import WallTime

__all__ = ["GetResult", "GetStatus", "MessageStore", "StoreProgress"]

MAX_MAPPED_SEGMENTS = 1024

OTHER_DESCRIPTORS = 48
"""Descriptors beside the maps of log and queues: those of the index, of timers, and of files being written."""

IDLE_MAP_MS = 60_000
"""A file that was not read for this long is unmapped, at the latest after twice this time."""

REMOVED_AT_ONCE = 32
"""Queues of a deleted topic whose files are removed in one step, a few milliseconds of the loop's thread."""


class MessageStore:
    """One store directory. Call ``open`` before anything else and ``close`` when done.

    Who serves messages uses these parts, and the methods for what concerns several parts:

        appender   puts messages                       pipeline  writes, syncs and shows them
        reads      gets messages                       offsets   bounds of queues, and offsets by time and position
        condition  whether messages are taken          status    what health and metrics show
        log        the CommitLog and its positions     copy      the log as a copy of a master's

    The other parts are public for those who look into a store."""

    def __init__(
        self, config: StoreConfig, clock: Clock, *, store_host: bytes, files: FileLayer | None = None
    ) -> None:
        """``store_host``: brokerIP1 and listenPort as encoded by ``mqspark.message.encode_host``."""
        self.config = config
        self.store_host = store_host
        self.clock = clock
        if files is None:
            files = OsFiles(file_mode=config.file_mode, directory_mode=config.directory_mode)
        self.files: FileLayer = files
        """The file layer, also for other files kept in the directory."""
        self.damages = Damages()
        """Damage found since the store was opened."""
        self.log_damage = OpenDamage()
        """What of the log holds no valid record now."""
        root = Path(config.store_path_root_dir)
        log_budget, budget = MapBudget(config.max_mapped_bytes).halves()
        # A map keeps one descriptor. Half of the descriptors are for maps; the rest is more than a checkpoint
        # needs.
        share = descriptor_limit() // 2
        max_segments = max(1, min(config.max_mapped_files, MAX_MAPPED_SEGMENTS, share // 4))
        max_mapped = max(1, min(config.max_mapped_files, share // 2))
        max_batch_mapped = max(1, min(config.max_mapped_files, share // 8))
        self.descriptors = max_segments + max_mapped + max_batch_mapped + OTHER_DESCRIPTORS
        """The most descriptors that the files of this store use."""
        self.paths = StorePaths(
            root, config.store_path_commit_log or None, config.read_only_commit_log_store_paths
        )
        self.member = MemberNote(
            self.paths.member, files, lambda path, error: self.condition.distrust(path, error)
        )
        """The note of a replica in controller mode, which opens it."""
        self.log = CommitLog(
            self.paths.commit_logs,
            self.files,
            segment_bytes=config.mapped_file_size_commit_log,
            allocation_step=config.allocation_step_commit_log,
            max_mapped=max_segments,
            budget=log_budget,
        )
        self.log.set_read_ahead(config.data_read_ahead_enable)
        self.condition = condition = Condition(
            root,
            hold=self.log.hold,
            drop=lambda: self.pipeline.drop_unwritten(),
            disk_full=lambda: self.cleaner.full,
        )
        self.directory = StoreDirectory(self.paths, files, condition.poison)
        queues = Ledger(
            "queues",
            lambda: config.max_queue_table_bytes,
            "QueueTable.queues",
            "BatchTable.queues",
            "BatchTable.batch_queues",
            setting="maxQueueTableBytes",
        )
        self.table = QueueTable(
            self.paths.consume_queue,
            self.files,
            file_bytes=config.mapped_file_size_consume_queue,
            max_mapped=max_mapped,
            budget=budget,
            ledger=queues,
            ext_directory=self.paths.consume_queue_ext,
            ext_file_bytes=config.mapped_file_size_consume_queue_ext,
            ext_enabled=config.enable_consume_queue_ext,
        )
        self.batch_table = BatchTable(
            self.paths.batch_consume_queue,
            self.files,
            file_bytes=config.mapper_file_size_batch_consume_queue,
            max_mapped=max_batch_mapped,
            budget=budget,
            ledger=queues,
        )
        self.compacted = CompactedQueues(
            root, files, clock.monotonic_ms, lambda: self.deletions.positions, self.damages.note
        )
        self.deletions = Deletions(
            ConfigFile(self.paths.deletions, self.files, condition.distrust),
            self.files,
            self._remove_topic,
            self.damages.note,
        )
        """The deleted topics. While it is behind, its job has to be run."""
        self.table.before_create = self.batch_table.before_create = self._finish_deletion
        self.index = MessageIndex(
            self.paths.index,
            self.paths.index_mark,
            self.files,
            clock.now_ms,
            shape=Shape(config.max_hash_slot_num, config.max_index_num),
            budget=budget,
            note=self.damages.note,
        )
        self.indexer = (
            Indexer(self.log, self.index, clock.monotonic_ms) if config.message_index_enable else None
        )
        self.compact_duty = CompactDuty(
            config,
            clock,
            lambda: min(self.log.newest_segment_start, self.pipeline.visible_end, self.log.durable),
        )
        self.wall_time = WallTime(clock, self.paths.wall_time, self.files)
        """Whether the clock may decide what is too old."""
        self.begin_note = BeginNote(self.paths.begin, self.files)
        self.cleaner = Cleaner(
            config,
            self.paths,
            self.log,
            (self.table, self.batch_table),
            self.index if self.indexer is not None else None,
            self.files,
            clock,
            self.compact_duty,
            self.wall_time,
            self.begin_note,
        )
        self._levels = DelayLevels(config.message_delay_level)
        self.checkpoints = Checkpoints(
            self.paths,
            self.files,
            clock,
            self.table,
            self.batch_table,
            config,
            condition.poison,
        )
        self.appender = appender = Appender(
            config,
            clock,
            self.log,
            self.table,
            self.batch_table,
            self._levels,
            store_host,
            condition.check_writable,
            lambda: self.pipeline.write_in_flight(),
            condition.poison,
            condition.lack_space,
            self.indexer.expect_no_keys if self.indexer is not None else lambda start, end: None,
        )
        note = self.directory.note
        self.pipeline = pipeline = CommitPipeline(config, clock, files, self.log, appender, condition, note)
        healer = EntryHealer(self.log, self._levels, lambda: pipeline.visible_end, self.damages.note)
        fetcher = Fetcher(
            config,
            self.log,
            self.table,
            self.batch_table,
            lambda: pipeline.visible_end,
            clock.monotonic_ms,
            lambda queue, first, end: condition.read_only is None and healer.heal(queue, first, end),
            self._look_at,
            lambda topic: topic in self.deletions.positions,
        )
        self.offsets = QueueOffsets(self.log, self.table, self.batch_table, self.compacted)
        self.reads = Reads(
            config, self.log, fetcher, self.compacted, self.offsets.log_bounds, self.indexer, pipeline
        )
        self.status = StoreStatus(
            self.reads,
            self.checkpoints,
            self.cleaner,
            self.index,
            self.indexer,
            pipeline,
            self.log_damage,
            condition,
            self.wall_time,
        )
        self._compacted_end = CompactedEnd(
            root,
            files,
            self.compacted,
            self.offsets.stored_bounds,
            lambda: self.log.min_offset,
            self.damages.note,
        )
        self.copy = LogCopy(
            config,
            clock,
            self.files,
            self.paths,
            self.log,
            (self.table, self.batch_table),
            self._levels,
            appender,
            self.indexer,
            self.checkpoints,
            pipeline,
            condition,
            note,
            self.member,
            self.begin_note,
            self._hold_compaction,
            self._end_at,
        )
        """The log as a copy of another broker's, once ``copy.follow`` was called."""
        self.mender = LogMender(
            self.log,
            self.table,
            self.batch_table,
            self._levels,
            self.indexer,
            self.log_damage,
            condition,
            self.damages.note,
            fetcher.healed,
            lambda: self.deletions.positions,
            verify_property_crc=config.enabled_append_prop_crc or config.force_verify_prop_crc,
            multi_dispatch=config.multi_dispatch,
        )
        """Puts bytes of another replica in the place of damaged ones."""
        self.scrub: Scrub | None = None
        """Compares log and queues in the background. It stays here after its last job."""
        self._next_unmap_ms = clock.monotonic_ms() + IDLE_MAP_MS

    def serve_older(self, older: OlderMessages) -> None:
        """From now on, reads before the first message of a queue's log go to ``older``."""
        self.offsets.older = self.reads.older = older

    def _hold_compaction(self) -> bool:
        """Whether nobody compacts, and will until the end of a copy was taken back."""
        self.compact_duty.stop()
        return self._compacted_end.hold()

    def _end_at(self, position: int) -> None:
        """The end of a copy was taken back to ``position``."""
        self.deletions.end_at(position)
        self.compact_duty.forget()
        self._compacted_end.cut_held()
        if self.scrub is not None:
            self.scrub.cut(position)
        self.mender.cuts += 1

    def refresh_settings(self) -> None:
        """Apply changes of ``config`` to the values that are cached beside it."""
        self.appender.max_body_bytes = self.config.max_message_size
        self.log.set_read_ahead(self.config.data_read_ahead_enable)

    @property
    def ledgers(self) -> tuple[Ledger, Ledger]:
        """What the tables of queues and of deleted topics hold, and their bounds."""
        return self.table.ledger, self.deletions.ledger

    # --- life -----------------------------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock the directory, recover, and accept messages.

        Raises StoreLocked, StoreCorrupt, DiskFull, OSError; the lock is released then.
        """
        files, paths, directory = self.files, self.paths, self.directory
        directory.lock()
        try:
            refuse_rocksdb(paths, files)
            clean = directory.is_clean
            synced = directory.note.load()
            checkpoint = self.checkpoints.load()
            self.damages.clear()
            problem = Checkpoint.problem(paths.checkpoint, paths.mark, files, self.clock.now_ms())
            if problem is not None:
                text = f"{problem}; more of the log was read instead"
                self.damages.note(Damage("checkpoint.damaged", Outcome.HEALED, text))
            missing: list[Damage] = []
            is_replica = self.member.look()
            known = checkpoint.position, -1 if clean else synced, self.member.noted.acknowledged
            # Without a mark a RocketMQ broker may have run here, and deleted segments.
            begin = self.begin_note.load() if checkpoint.position >= 0 else None
            noted_bytes = self.member.noted.segment_bytes
            self.log.load(missing.append, max(known), noted_bytes, begin=begin, heals=is_replica)
            had_segments = bool(self.log.segments)
            self.deletions.load(self.log.min_offset)
            deleted = self.deletions.positions
            self.batch_table.load()
            self.batch_table.leave_out(deleted, remove=True)
            self.table.load(paths.batch_consume_queue)
            self.table.leave_out(deleted, remove=True)
            self.table.batch_topics |= batch_topics(paths.config / "topics.json", files)
            self.compacted.leave_out(deleted)
            report = Recovery(
                self.log,
                self.table,
                checkpoint,
                self._levels,
                clean=clean,
                synced=synced,
                verify_crc=self.config.check_crc_on_recover,
                verify_property_crc=self.config.enabled_append_prop_crc or self.config.force_verify_prop_crc,
                batch_table=self.batch_table,
                multi_dispatch=self.config.multi_dispatch,
                deleted=deleted,
                ends=self._load_ends(checkpoint, clean=clean),
                missing=missing,
                note=self.damages.note,
                before_heal=self.checkpoints.distrust,
            ).run()
            self.checkpoints.ends.end_at(report.end_position)
            with disk_full_as_typed("the list of deleted topics"):
                self.deletions.end_at(report.end_position)
            self._compacted_end.heal()
            if self.indexer is not None:
                self.indexer.open(
                    report.end_position,
                    clean=clean,
                    safe_timestamp_ms=checkpoint.index_msg_timestamp_ms,
                )
            if begin is None or not had_segments:
                self.begin_note.save(self.log.min_offset)
            # The store may be new when it has no checkpoint.
            directory.begin(report.end_position, is_new=checkpoint.position < 0)
        except BaseException:
            self._release()
            raise
        self.pipeline.begin(
            max(
                report.last_store_timestamp_ms,
                min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms),
            )
        )
        self._begin_damage(missing, report)
        self.scrub = self._new_scrub()
        self.status.begin(was_clean=clean, sure_position=report.sure_position)
        self.reads.fetcher.begin(report.end_position)
        self.compact_duty.begin()
        self.wall_time.open()
        self.cleaner.open()
        self.condition.begin()
        self.reads.begin()
        return report

    def validate(self) -> None:
        """Check the invariants of the log and of the queues. Raises AssertionError; for tests: it visits everything."""
        self.log.validate()
        self.table.validate()
        self.batch_table.validate()

    def close(self) -> None:
        """Flush all, write a checkpoint, remove ``abort``, unlock. A poisoned store keeps ``abort``, so that
        the next start recovers.

        Raises StoreReadOnly when the last flush failed. No job may be running.
        """
        if not self.directory.is_locked:
            return
        try:
            self.pipeline.finish()
            if self.condition.read_only is None:
                self._finish_deletions()
            if self.condition.read_only is None:
                if self.indexer is not None:
                    self.indexer.close(self.pipeline.visible_end, self.log.durable)
                run_here(self._begin_checkpoint())
                if self.checkpoints.current.position < self.log.durable:
                    self.checkpoints.ends.forget()  # space is short: what it says is older than the queues
            if self.condition.read_only is not None:
                raise StoreReadOnly(self.condition.read_only)
            if (left := self.pipeline.remainder) is not None:
                raise StoreReadOnly(left)
            self.wall_time.close()
            self.directory.end()
        finally:
            self.condition.read_only = "the store is closed"
            self._release()

    def _begin_damage(self, missing: list[Damage], report: RecoveryReport) -> None:
        """Note what the start has found to hold no valid record."""
        self.log_damage.clear()
        gone = [
            (each.offset, each.offset + each.length)
            for each in missing
            if each.offset is not None and each.length and each.outcome is Outcome.LOST
        ]
        for low, high in gone + report.damaged:
            low, high = max(low, self.log.min_offset), min(high, report.end_position)
            if low < high:
                lost = lost_offsets(self.table.queues.values(), low, high, most=1)
                self.log_damage.add(low, high, is_led_into=bool(lost))

    def _look_at(self, positions: Iterable[int]) -> None:
        """A reader finds no records at these places, where a queue says that they are."""
        if self.scrub is not None:
            for position in positions:
                self.scrub.look_at(position)

    def _new_scrub(self) -> Scrub:
        private = CommitLog(
            self.paths.commit_logs,
            self.files,
            segment_bytes=self.log.segment_bytes,
            allocation_step=0,
            max_mapped=0,
        )
        return Scrub(
            self.log,
            private,
            self.table,
            self._levels,
            self.files,
            self.damages.note,
            self.clock.monotonic_ms,
            bytes_per_second=self.config.scrub_bytes_per_second,
            readable_end=lambda: min(self.pipeline.visible_end, self.log.durable),
            damage=self.log_damage,
        )

    def _load_ends(self, checkpoint: Checkpoint, *, clean: bool) -> QueueEnds | None:
        ends, problem = self.checkpoints.ends.load(checkpoint.position, clean=clean)
        if problem is not None:
            self.damages.note(Damage("checkpoint.damaged", Outcome.HEALED, problem))
        return ends

    def abandon(self) -> None:
        """Release the files as a dying process does: nothing is flushed or saved, ``abort`` stays, and the
        next start recovers. No job may be running."""
        if self.directory.is_locked:
            self.condition.read_only = "the store is abandoned"
            self._release()

    def _release(self) -> None:
        self.pipeline.abandon()
        self.checkpoints.close()
        self.log.close()
        self.table.maps.clear()
        self.batch_table.maps.clear()
        self.index.maps.clear()
        self.member.close()
        self.directory.release()

    def config_file(self, name: str) -> ConfigFile:
        """A file of ``config/``. A failed save makes the store read-only; a full disk alone does not."""
        return ConfigFile(self.paths.config / name, self.files, self.condition.distrust, self.damages.note)

    def root_file(self, path: Path) -> ConfigFile:
        """The same for a file beside the log."""
        return ConfigFile(path, self.files, self.condition.distrust, self.damages.note)

    def confirm(self, position: int) -> list[Arrival]:
        """Show consumers only what lies before ``position`` (``CommitPipeline.confirm``). While the log is taken back,
        consumers see everything."""
        return [] if self.copy.is_cutting else self.pipeline.confirm(position)

    def catch_up(self) -> None:
        """Let the index follow what became visible. Call it after ``commit`` and ``end_flush``, once the
        answers are sent: nobody waits for the index."""
        if self.indexer is not None and self.condition.read_only is None:
            self.indexer.arrived(self.pipeline.visible_end, self.log.durable)

    @property
    def room_due(self) -> bool:
        """Whether ``maintenance`` has a job that appending needs soon."""
        return self.log.room_due and self.condition.read_only is None

    # --- maintenance ----------------------------------------------------------------------------------------

    def maintenance(self) -> list[Job]:
        """The blocking jobs that are due, without the job of ``deletions``, which has to be run first. Call
        about once a second.

        Run the jobs in another thread than the flushes, because producers wait for flushes.
        """
        self.condition.notice_failed_save()
        self.reads.retry_failed()
        self.reads.fetcher.grow_old(self.clock.monotonic_ms())
        if self.condition.read_only is None:
            self.directory.check()
        if self.condition.read_only is not None:
            return []
        if self.copy.is_cutting:  # alone: every other job knows the log as it is
            return [job] if (job := self.copy.job()) is not None else []
        jobs: list[Job] = []
        if (note_job := self.member.job()) is not None:
            jobs.append(note_job)
        if self.log.room_due and (ahead := self.log.extend_room()) is not None:
            jobs.append(ahead)
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._next_unmap_ms:
            self._next_unmap_ms = now_ms + IDLE_MAP_MS
            self.log.drop_idle()
            self.table.drop_idle()
            self.batch_table.drop_idle()
        if self.indexer is not None:
            index_job = self.indexer.idle(self.pipeline.visible_end, self.log.durable)
            if index_job is not None:
                jobs.append(index_job)
        self.deletions.keep_room()
        checkpoints = self.checkpoints
        cleaning_job = self.cleaner.round(checkpoints.settled, checkpoint_running=checkpoints.is_running)
        if cleaning_job is not None:
            jobs.append(cleaning_job)
        if self.scrub is not None and not self.deletions.behind:
            scrub_job = self.scrub.job(self.deletions.positions.copy())
            if scrub_job is not None:
                jobs.append(scrub_job)
        if self.condition.no_space is not None and self.cleaner.has_room():
            self.condition.lack_space(None)  # perhaps nobody sends, because the broker says that it refuses
        if self.cleaner.full is not None:
            self.log.hold()  # the next put asks for room and is refused
        if self.cleaner.needs_checkpoint and not checkpoints.is_running:
            self.cleaner.needs_checkpoint = False
            checkpoints.wanted = True
        # Deletions have to be on disk first: entries that are cut from queues meanwhile must be rebuilt from
        # the log. Queues that lack entries of visible records cannot be checkpointed.
        if (
            not self.deletions.behind
            and self.pipeline.may_checkpoint
            and checkpoints.is_due(self.log.durable)
        ):
            jobs.append(self._begin_checkpoint())
        return jobs

    def _begin_checkpoint(self) -> CheckpointJob:
        index_ms = self.index.full_timestamp_ms if self.indexer is not None else None
        return self.checkpoints.begin(
            self.log.durable, self.pipeline.visible_end, self.pipeline.durable_store_ms, index_ms
        )

    def clean_expired(self) -> None:
        """Delete segments older than fileReservedTime in the next 20 runs, at any hour (request code 329)."""
        self.cleaner.ask()

    def clean_expired_queues(self) -> None:
        """Move the start of every queue to the current start of the log (request code 306).

        RocketMQ removes queues whose records are all gone and restarts their offsets at 0. Here a queue keeps
        its last file, so an offset never refers to another message.
        """
        self.cleaner.ask_queues()

    # --- topics -----------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        self.delete_topics([topic])

    def delete_topics(self, topics: Collection[str]) -> None:
        """Remove the queues of these topics. They disappear at once; the removal is permanent as soon as
        ``deletions`` is no longer behind. The records stay in the log until retention deletes them. Raises
        InvalidMessage for a name that no topic can have."""
        for topic in topics:
            if not is_storable_topic(topic):
                raise InvalidMessage(
                    f"topic {printable(topic, 40)} cannot be stored, so it cannot be deleted", field="topic"
                )
        gone = frozenset(topics)
        self.pipeline.forget_topics(gone)
        self.table.hide_topics(gone)
        self.batch_table.hide_topics(gone)
        self.table.batch_topics -= gone
        for topic in topics:
            hidden = [*self.table.hidden.get(topic, ()), *self.batch_table.hidden.get(topic, ())]
            self.checkpoints.ends.note(queue.key for queue in hidden)
            if topic in self.table.hidden or topic in self.batch_table.hidden:
                self.deletions.add(topic, self.log.min_offset, self.log.position)
                if self.reads.older is not None:
                    self.reads.older.forget(topic, self.log.position)
            else:
                self.compacted.forget(topic)

    def _remove_topic(self, topic: str) -> bool:
        """Remove files of a topic whose deletion is on disk. Returns whether some are left."""
        for table in (self.table, self.batch_table):
            if table.remove_topic(topic, REMOVED_AT_ONCE):
                return True
        self.compacted.forget(topic)
        # Until the next checkpoint a start would find fewer queues than the last one counted, and read the
        # whole log.
        self.checkpoints.wanted = True
        return False

    def _finish_deletion(self, topic: str) -> None:
        """Finish the deletion of a topic before one of its queues is created again. Raises DiskFull,
        StoreReadOnly."""
        try:
            with disk_full_as_typed("the list of deleted topics"):
                self.deletions.finish(topic)
        except OSError as error:
            raise self.condition.poison(f"deleting topic {topic} failed", error) from error

    def _finish_deletions(self) -> None:
        try:
            if self.deletions.behind:
                run_here(self.deletions.job())
        except OSError as error:
            self.condition.poison("deleting topics failed", error)
