"""The front door of a store: its parts, and what concerns several of them. One thread owns a store; only ``Job.run``
may run in another.

A message passes four positions of the log. Each position is at or behind the one before it:

    position  encoded into the pending buffer, offset assigned   appender.put
    written   in the file, one pwrite for everything pending    pipeline.commit (SYNC_FLUSH: FlushJob.run)
    durable   fdatasync returned                                 pipeline.begin_flush / FlushJob.run / .end_flush
    acked     the producer may be told OK                        written (ASYNC_FLUSH) or durable (SYNC_FLUSH)

Consumers see what is acked. A failed write or sync *poisons* the store, also that of a file of ``config/``. A
poisoned store takes no more writes until it is opened again, acks nothing more, and keeps serving reads;
``condition.read_only`` gives the reason. A full disk does not poison: space is reserved before a message is accepted,
so DiskFull refuses one message and breaks none. Lack of descriptors, memory or permissions does not poison either:
the work is retried later, and messages may be refused (NoResources) until then.

Must not know commands, sockets or consumer groups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from pathlib import Path

from mqspark.base.bounded import Ledger
from mqspark.base.clock import Clock
from mqspark.errors import StoreReadOnly
from mqspark.store.compaction.compactedend import CompactedEnd
from mqspark.store.compaction.compactedqueues import CompactedQueues
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damages
from mqspark.store.disk.directory import StoreDirectory
from mqspark.store.disk.diskjobs import Job, run_here
from mqspark.store.disk.files import FileLayer, OsFiles
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.maintenance import Maintenance
from mqspark.store.messages.append import Appender
from mqspark.store.messages.commit import Arrival, CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.messages.fetch import Fetcher
from mqspark.store.messages.healing import EntryHealer
from mqspark.store.messages.unsettled import Unsettled
from mqspark.store.offsets import QueueOffsets
from mqspark.store.oldermessages import OlderMessages
from mqspark.store.opening import Opening
from mqspark.store.reads import Reads
from mqspark.store.recovery.mending import LogMender
from mqspark.store.recovery.recoveryreport import RecoveryReport
from mqspark.store.status import StoreStatus
from mqspark.store.storedata import StoreData
from mqspark.store.topicdeletion import TopicDeletion
from mqspark.store.upkeep.checkpoints import Checkpoints
from mqspark.store.upkeep.logcopy import LogCopy


class MessageStore:
    """One store directory. Call ``open`` before anything else and ``close`` when done.

    Who serves messages uses these parts, and the methods for what concerns several parts:

        appender   puts messages                       pipeline  writes, syncs and shows them
        reads      gets messages                       offsets   bounds of queues, and offsets by time and position
        condition  whether messages are taken          status    what health and metrics show
        log        the CommitLog and its positions     copy      the log as a copy of a master's
        upkeep     retention, checkpoints, the scrub   mender    replaces damaged bytes by those of a replica

    The other parts are public for those who look into a store."""

    def __init__(
        self, config: StoreConfig, clock: Clock, *, store_host: bytes, files: FileLayer | None = None
    ) -> None:
        """``store_host``: brokerIP1 and listenPort as encoded by ``mqspark.message.encode_host``."""
        if files is None:
            files = OsFiles(file_mode=config.file_mode, directory_mode=config.directory_mode)
        self.config = config
        self.store_host = store_host
        self.clock = clock
        self.files: FileLayer = files
        """The file layer, also for other files kept in the directory."""
        self.damages = Damages()
        """Damage found since the store was opened."""

        # What is stored.
        self.data = data = StoreData(config, clock, files, self.damages.note)
        self.paths, self.log, self.log_damage = data.paths, data.log, data.damage
        self.table, self.batch_table, self.index = data.table, data.batch_table, data.index

        # How it gets there.
        unsettled = Unsettled(data.log)
        self.condition = condition = Condition(data.paths.root, data.log, unsettled)
        self.directory = directory = StoreDirectory(data.paths, files, condition.poison)
        self.member = member = MemberNote(data.paths.member, files, condition.distrust)
        """The note of a replica in controller mode, which opens it."""
        self.appender = appender = Appender(data, store_host, condition, unsettled)
        self.pipeline = pipeline = CommitPipeline(data, appender, condition, unsettled, directory.note)

        # How it is read.
        compacted = CompactedQueues(data.paths.root, files, clock.monotonic_ms, data.deleted, data.note)
        self.offsets = QueueOffsets(data, compacted)
        fetcher = Fetcher(data, pipeline, EntryHealer(data, pipeline, condition))
        self.reads = reads = Reads(data, fetcher, compacted, self.offsets, pipeline)

        # How it is kept in order, and ends.
        checkpoints = Checkpoints(data, condition, pipeline)
        self._topics = TopicDeletion(data, condition, pipeline, compacted, reads, checkpoints)
        self.deletions = self._topics.deletions
        compacted_end = CompactedEnd(data, compacted, self.offsets.stored_bounds)
        self.upkeep = upkeep = Maintenance(
            data, condition, pipeline, directory, member, reads, checkpoints, self._topics, compacted_end
        )
        self.status = StoreStatus(data, condition, pipeline, reads, upkeep)

        # How it follows other replicas.
        self.copy = LogCopy(
            data, appender, pipeline, condition, unsettled, checkpoints, upkeep.begin_note, upkeep.cut_back
        )  # fmt: skip
        """The log as a copy of another broker's, once ``copy.follow`` was called."""
        self.mender = LogMender(data, fetcher, condition)
        """Puts bytes of another replica in the place of damaged ones."""

    def serve_older(self, older: OlderMessages) -> None:
        """From now on, reads before the first message of a queue's log go to ``older``."""
        self.offsets.older = self.reads.older = older

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
        self.directory.lock()
        try:
            opening = Opening(
                self.data, self.directory, self.member, self.reads.compacted, self.deletions, self.upkeep, self.damages,
            )  # fmt: skip
            report = opening.recover()
        except BaseException:
            self._release()
            raise
        self.pipeline.begin(max(report.last_store_timestamp_ms, opening.checkpoint_store_ms))
        opening.note_damage(report)
        self.status.begin(was_clean=opening.clean, sure_position=report.sure_position)
        self.reads.fetcher.begin(report.end_position)
        self.upkeep.open()
        self.condition.begin()
        self.reads.begin()
        return report

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
                self._topics.finish_all()
            if self.condition.read_only is None:
                if (indexer := self.data.indexer) is not None:
                    indexer.close(self.pipeline.visible_end, self.log.durable)
                for queue in self.data.table.queues.values():
                    with contextlib.suppress(OSError):  # the next start does it
                        queue.mark_last_fillers()
                checkpoints = self.upkeep.checkpoints
                run_here(checkpoints.begin())
                if checkpoints.current.position < self.log.durable:
                    checkpoints.ends.forget()  # space is short: what it says is older than the queues
            if self.condition.read_only is not None:
                raise StoreReadOnly(self.condition.read_only)
            if (left := self.pipeline.remainder) is not None:
                raise StoreReadOnly(left)
            self.upkeep.wall_time.close()
            self.directory.end()
        finally:
            self.condition.read_only = "the store is closed"
            self._release()

    def abandon(self) -> None:
        """Release the files as a dying process does: nothing is flushed or saved, ``abort`` stays, and the
        next start recovers. No job may be running."""
        if self.directory.is_locked:
            self.condition.read_only = "the store is abandoned"
            self._release()

    def _release(self) -> None:
        self.pipeline.abandon()
        self.upkeep.checkpoints.close()
        self.data.close()
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
        indexer, log = self.data.indexer, self.log
        if indexer is None or log.written < indexer.next_end or self.condition.read_only is not None:
            return
        indexer.arrived(self.pipeline.visible_end, log.durable)

    def follow_with_index(self) -> Generator[None, None, None]:
        """What ``maintenance`` has begun: the index catches up, slice by slice."""
        indexer = self.data.indexer
        while (
            indexer is not None
            and self.condition.read_only is None
            and not self.copy.is_cutting
            and indexer.has_more(self.pipeline.visible_end)
        ):
            yield
            indexer.step(self.pipeline.visible_end, self.log.durable)

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
        return self.upkeep.jobs()

    def clean_expired(self) -> None:
        """Delete segments older than fileReservedTime in the next 20 runs, at any hour (request code 329)."""
        self.upkeep.cleaner.ask()

    def clean_expired_queues(self) -> None:
        """Move the start of every queue to the current start of the log (request code 306).

        RocketMQ removes queues whose records are all gone and restarts their offsets at 0. Here a queue keeps
        its last file, so an offset never refers to another message.
        """
        self.upkeep.cleaner.ask_queues()

    # --- topics -----------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        self.delete_topics([topic])

    def delete_topics(self, topics: Collection[str]) -> None:
        """Remove the queues of these topics. They disappear at once; the removal is permanent as soon as
        ``deletions`` is no longer behind. The records stay in the log until retention deletes them. Raises
        InvalidMessage for a name that no topic can have."""
        self._topics.delete(topics)
