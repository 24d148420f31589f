"""The front door of a store: put, commit, flush and get. One thread owns a store; only ``Job.run`` may run in
another.

A message passes four positions of the log. Each position is at or behind the one before it:

    position  encoded into the pending buffer, offset assigned   put
    written   in the file, one pwritev for everything pending    commit (SYNC_FLUSH: FlushJob.run)
    durable   fdatasync returned                                 begin_flush / FlushJob.run / end_flush
    acked     the producer may be told OK                        written (ASYNC_FLUSH) or durable (SYNC_FLUSH)

Consumers see what is acked. A failed write or sync *poisons* the store, also that of a file of ``config/``. A
poisoned store takes no more writes until it is opened again, acks nothing more, and keeps serving reads;
``read_only`` gives the reason. A full disk does not poison: space is reserved before a message is accepted,
so DiskFull refuses one message and breaks none. A shortage of descriptors or memory does not poison either:
the work is retried later, and messages may be refused (NoResources) until then.

Must not know commands, sockets or consumer groups.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

from mqspark.bounded import Ledger
from mqspark.clock import Clock
from mqspark.config import INT64_MAX
from mqspark.errors import (
    DiskFull,
    InvalidMessage,
    NoResources,
    NotNow,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreUnreadable,
    is_shortage,
)
from mqspark.logs import printable, sparing
from mqspark.record import Parts
from mqspark.store.compaction.compacted import CompactedQueues
from mqspark.store.config import FlushDiskType, StoreConfig
from mqspark.store.disk.checkpoint import Checkpoint
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Damages, Outcome
from mqspark.store.disk.durable import DurableNote
from mqspark.store.disk.files import FileLayer, OsFiles, descriptor_limit, disk_full_as_typed
from mqspark.store.disk.flush import CheckpointJob, FlushJob, Job, StoreProgress, run_here
from mqspark.store.disk.layout import StorePaths, is_storable_topic
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexer import Indexer
from mqspark.store.index.indexfile import Shape
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.messages.append import Appender, Group, Queue
from mqspark.store.messages.fetch import Fetcher, GetResult, GetStatus
from mqspark.store.messages.healing import EntryHealer
from mqspark.store.offsets import QueueOffsets
from mqspark.store.queue.batchqueue import BatchTable, batch_topics
from mqspark.store.queue.consumequeue import ConsumeQueue
from mqspark.store.queue.delay import DelayLevels
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery.copying import LogCopier
from mqspark.store.recovery.deletions import Deletions
from mqspark.store.recovery.queueends import QueueEnds
from mqspark.store.recovery.recovery import Recovery
from mqspark.store.recovery.recoveryreport import RecoveryReport
from mqspark.store.recovery.scrub import Scrub
from mqspark.store.upkeep.checkpoints import Checkpoints
from mqspark.store.upkeep.cleaning import Cleaner
from mqspark.store.upkeep.cutback import CutBackJob, last_whole_record, walk_records

__all__ = ["GetResult", "GetStatus", "MessageStore", "StoreProgress"]

_log = sparing(__name__)

MAX_UNWRITTEN_BYTES = 4 * 1024 * 1024
"""Limit of the bytes that wait in memory while a sync runs. One-way sends wait for no answer, so only this
bounds them."""

MAX_MAPPED_SEGMENTS = 1024

SHORTAGE_PAUSE_MS = 50
"""Pause before work that lacked a descriptor or memory is retried."""

MAX_UNDISPATCHED = 1_000
"""Limit of the runs of entries that wait for the files of their queues. Above it, messages are refused."""

OTHER_DESCRIPTORS = 48
"""Descriptors beside the maps of log and queues: those of the index, of timers, and of files being written."""

IDLE_MAP_MS = 60_000
"""A file that was not read for this long is unmapped, at the latest after twice this time."""

REMOVED_AT_ONCE = 32
"""Queues of a deleted topic whose files are removed in one step, a few milliseconds of the loop's thread."""


class MessageStore:
    """One store directory. Call ``open`` before anything else and ``close`` when done."""

    def __init__(
        self, config: StoreConfig, clock: Clock, *, store_host: bytes, files: FileLayer | None = None
    ) -> None:
        """``store_host``: brokerIP1 and listenPort as encoded by ``mqspark.message.encode_host``."""
        self.config = config
        self.store_host = store_host
        self._clock = clock
        if files is None:
            files = OsFiles(file_mode=config.file_mode, directory_mode=config.directory_mode)
        self._files: FileLayer = files
        self.damages = Damages()
        """Damage found since the store was opened."""
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
        self._log = CommitLog(
            self.paths.commit_logs,
            self._files,
            segment_bytes=config.mapped_file_size_commit_log,
            allocation_step=config.allocation_step_commit_log,
            max_mapped=max_segments,
            budget=log_budget,
        )
        queues = Ledger(
            "queues",
            lambda: config.max_queue_table_bytes,
            "QueueTable.queues",
            "BatchTable.queues",
            "BatchTable.batch_queues",
            setting="maxQueueTableBytes",
        )
        self._table = QueueTable(
            self.paths.consume_queue,
            self._files,
            file_bytes=config.mapped_file_size_consume_queue,
            max_mapped=max_mapped,
            budget=budget,
            ledger=queues,
            ext_directory=self.paths.consume_queue_ext,
            ext_file_bytes=config.mapped_file_size_consume_queue_ext,
            ext_enabled=config.enable_consume_queue_ext,
        )
        self._queues = self._table.queues
        self._batch_table = BatchTable(
            self.paths.batch_consume_queue,
            self._files,
            file_bytes=config.mapper_file_size_batch_consume_queue,
            max_mapped=max_batch_mapped,
            budget=budget,
            ledger=queues,
        )
        self._batch_queues = self._batch_table.batch_queues
        self._compacted = CompactedQueues(root, files, clock.monotonic_ms)
        self.deletions = Deletions(
            ConfigFile(self.paths.deletions, self._files, self.distrust), self._files, self._remove_topic
        )
        """The deleted topics. While it is behind, its job has to be run."""
        self.ledgers = (queues, self.deletions.ledger)
        self._table.before_create = self._batch_table.before_create = self._finish_deletion
        self._fetcher = Fetcher(
            config, self._log, self._table, self._batch_table, lambda: self._visible_end, self._heal_entries
        )
        self._index = MessageIndex(
            self.paths.index,
            self.paths.index_mark,
            self._files,
            clock.now_ms,
            shape=Shape(config.max_hash_slot_num, config.max_index_num),
            budget=budget,
            note=self.damages.note,
        )
        self._indexer = (
            Indexer(self._log, self._index, clock.monotonic_ms) if config.message_index_enable else None
        )
        self._cleaner = Cleaner(
            config,
            self.paths,
            self._log,
            (self._table, self._batch_table),
            self._index if self._indexer is not None else None,
            self._files,
            clock,
        )
        self._checkpoints = Checkpoints(
            self.paths,
            self._files,
            clock,
            self._table,
            self._batch_table,
            config,
            self._poison,
        )
        self._levels = DelayLevels(config.message_delay_level)
        self._healer = EntryHealer(self._log, self._levels, lambda: self._visible_end, self.damages.note)
        self._sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._appender = appender = Appender(
            config,
            clock,
            self._log,
            self._table,
            self._batch_table,
            self._levels,
            store_host,
            self._check_writable,
            self._write_in_flight,
            self._poison,
            self._indexer.expect_no_keys if self._indexer is not None else lambda start, end: None,
        )
        # Bound once, which saves a call per put.
        self.put = appender.put
        self.put_batch = appender.put_batch
        self.put_members = appender.put_members
        self.put_inner_batch = appender.put_inner_batch
        self.put_dispatched = appender.put_dispatched
        self.use_batch_queues = appender.use_batch_queues
        self._dirty = appender.dirty
        self._written_store_ms = 0
        self._durable_store_ms = 0
        self._groups: list[tuple[int, Group]] = []
        self._unreported_arrivals: list[tuple[str, int, int]] = []
        """Arrivals that the next progress reports as well."""
        self._undispatched: Group = []
        """Entries of visible records whose queue file could not be opened."""
        self._shortage: NoResources | None = None
        """The current shortage. Puts are refused until it is over."""
        self._flush_in_flight: FlushJob | None = None
        self._flush_retry_ms: int | None = None
        """Set while the flush in flight waits after a shortage: the monotonic time at which it runs again."""
        self._note = DurableNote(self.paths.abort, self._files)
        self.sure_position = 0
        """End of what was known to be synced when the store was opened. A power cut may have left holes behind it."""
        self._confirmed = INT64_MAX
        """Consumers see nothing at or after this position (``confirm``)."""
        self._cut_back_to: int | None = None
        self._gated_before_cut = False
        """Whether ``confirm`` decides what consumers see."""
        self.refusal: NotNow | None = None
        """Why puts are refused although the store is healthy (``refuse_puts``), or None."""
        self._copier: LogCopier | None = None
        """Set when the log is a copy of another broker's."""
        self._next_unmap_ms = clock.monotonic_ms() + IDLE_MAP_MS
        self._lock_fd = -1
        self._failed_save: tuple[str, OSError] | None = None
        """The file beside the log that could not be saved, and the error. Set in the thread that saved."""
        self._failed_read: Callable[[], object] | None = None
        self.read_problem: str | None = None
        """Why the last failed read failed, or None when it works again."""
        self.scrub: Scrub | None = None
        """Compares log and queues in the background. It stays here after its last job."""
        self.was_clean = True
        """Whether the previous process that had the store stopped cleanly."""
        self.nonce = ""
        """Secret of this run, written to ``mqspark.nonce`` only. A process that knows it can read this
        directory (``mqspark.store.disk.trusted``)."""
        self.read_only: str | None = "the store is not open"
        """Why puts are refused, or None."""
        self._bind_queries()

    def _bind_queries(self) -> None:
        offsets = QueueOffsets(self._log, self._table, self._batch_table, self._compacted)
        self.entries = offsets.entries
        self.max_offset = offsets.max_offset
        self.min_offset = offsets.min_offset
        self._log_bounds = offsets.log_bounds
        self.offset_by_timestamp = offsets.offset_by_timestamp
        self.offset_by_position = offsets.offset_by_position
        self.store_timestamp_at = offsets.store_timestamp_at
        self.queues = offsets.queues
        self.queues_since = offsets.queues_since
        self.has_queue = offsets.has_queue

    # --- a copy of another log ------------------------------------------------------------------------------

    def follow(self) -> None:
        """From now on the log is a copy of another broker's: only ``append_raw`` adds to it."""
        self._log.hold()
        self._copier = LogCopier(
            self._log,
            self._table,
            self._batch_table,
            self._levels,
            self._appender,
            verify_property_crc=self.config.enabled_append_prop_crc or self.config.force_verify_prop_crc,
            multi_dispatch=self.config.multi_dispatch,
            before_roll=self._write_in_flight,
            forget=self._forget_entries,
        )

    def begin_at(self, position: int) -> None:
        """Let the empty log of a copy begin at ``position``. Raises InvalidMessage when no segment can begin
        there, StoreReadOnly, DiskFull."""
        if self._log.position > self._log.min_offset or position % self._log.segment_bytes:
            raise InvalidMessage(
                f"a log that ends at {self._log.position} and has segments of {self._log.segment_bytes} bytes cannot"
                f" begin at {position}: mappedFileSizeCommitLog must be the same",
                field="log",
            )
        if self.read_only is not None:
            raise StoreReadOnly(self.read_only)
        try:
            self._write_in_flight()
            self._log.restart_at(position)
            self._log.sync_from(position)
        except OSError as error:
            raise self._poison(f"beginning the CommitLog at {position} failed", error) from error
        finally:
            self._log.hold()

    def append_raw(self, data: bytes | memoryview) -> None:
        """Append complete records of the other log, which begin at ``max_physical_offset``
        (``LogCopier.append``). Raises InvalidMessage for bytes that are no records of this place, StoreReadOnly,
        and NotNow when it has to be tried again; the records before are appended then."""
        if self.read_only is not None or self._copier is None:
            raise StoreReadOnly(self.read_only or "it is not a copy")
        try:
            self._copier.append(data)
        except NotNow:
            raise
        except OSError as error:
            raise self._poison("copying the CommitLog failed", error) from error

    def last_whole_record(self, begin: int, end: int) -> int | None:
        """The end of the last record that lies in [begin, end) of the log and is in a queue."""
        return last_whole_record((self._table, self._batch_table), begin, end)

    def is_record_end(self, position: int) -> bool:
        """Whether a record of the log, or the padding of a segment, ends at ``position``. Raises OSError."""
        begin = self.min_physical_offset
        if position <= begin:
            return position == begin
        at = self.last_whole_record(begin, position) or begin
        return walk_records(self.log_bytes, at, position) == position

    def cut_back(self, position: int) -> None:
        """Take the log of a copy back to ``position``, the end of a record, with the next ``maintenance``. The rest is
        saved in ``mqspark.diverged``. ``is_cutting`` until then."""
        if self._cut_back_to is None:
            self._gated_before_cut = self._confirmed != INT64_MAX
            self._unreported_arrivals += self.confirm(INT64_MAX)  # what is cut has its queue entries
        self._cut_back_to = position

    @property
    def is_cutting(self) -> bool:
        return self._cut_back_to is not None

    def _cut_back_job(self, position: int) -> CutBackJob:
        return CutBackJob(
            self._log,
            (self._table, self._batch_table),
            self._indexer,
            self._files,
            self.paths.diverged,
            position,
            self._clock.now_ms(),
            lambda end: self._log.position == end and self._is_quiet,
            self._before_cut,
            self._cut,
            self._note_cut_failure,
        )

    @property
    def _is_quiet(self) -> bool:
        """Whether everything that was put is synced and dispatched."""
        log = self._log
        return (
            log.durable == log.written == log.position
            and self._flush_in_flight is None
            and not self._groups
            and not self._undispatched
            and not self._dirty
        )

    def _before_cut(self, position: int) -> None:
        """Without this, a start after a crash would take what is cut for lost, and never assign its offsets again."""
        self._checkpoints.distrust()
        self._note.lower(position)

    def _cut(self, position: int) -> None:
        self._cut_back_to = None
        if self._gated_before_cut:
            self._confirmed = position
        self.deletions.end_at(position)
        self._checkpoints.cut(position)
        if self.scrub is not None:
            self.scrub.end = min(self.scrub.end, position)

    def _note_cut_failure(self, error: Exception) -> None:
        self._poison("taking back the end of the CommitLog failed", error)

    def log_bytes(self, position: int, size_bytes: int) -> bytes:
        """Bytes of the log from ``position`` on as they are in its files, visible or not: at most ``size_bytes``,
        of one segment. Empty when none are written there. Raises OSError."""
        segment = self._log.segment_of(position)
        end = min(position + size_bytes, self._log.written, segment.end if segment is not None else position)
        return bytes(self._log.slice(position, end - position) or b"")

    def _forget_entries(self, queue: Queue) -> None:
        """Drop entries of a queue that are not visible yet."""
        queue.take_entries()
        if queue in self._dirty:
            self._dirty.remove(queue)
        self._groups = [
            (end, [each for each in group if each[0] is not queue]) for end, group in self._groups
        ]
        self._undispatched = [each for each in self._undispatched if each[0] is not queue]

    def refresh_settings(self) -> None:
        """Apply changes of ``config`` to the values that are cached beside it."""
        self._appender.max_body_bytes = self.config.max_message_size

    # --- life -----------------------------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock the directory, recover, and accept messages.

        Raises StoreLocked, StoreCorrupt, DiskFull, OSError; the lock is released then.
        """
        files, paths = self._files, self.paths
        files.make_directory(paths.root, durable=True)
        self._lock_fd = files.lock(paths.lock)
        try:
            clean = files.read(paths.abort) is None
            synced = self._note.load()
            checkpoint = self._checkpoints.load()
            self.damages.clear()
            problem = Checkpoint.problem(paths.checkpoint, paths.mark, files, self._clock.now_ms())
            if problem is not None:
                text = f"{problem}; more of the log was read instead"
                self.damages.note(Damage("checkpoint.damaged", Outcome.HEALED, text))
            missing: list[Damage] = []
            self._log.load(missing.append, max(checkpoint.position, -1 if clean else synced))
            self.deletions.load(self._log.min_offset)
            deleted = self.deletions.positions
            self._batch_table.load()
            self._batch_table.leave_out(deleted, remove=True)
            self._table.load(paths.batch_consume_queue)
            self._table.leave_out(deleted, remove=True)
            self._table.batch_topics |= batch_topics(paths.config / "topics.json", files)
            self._compacted.leave_out(deleted)
            report = Recovery(
                self._log,
                self._table,
                checkpoint,
                self._levels,
                clean=clean,
                synced=synced,
                verify_crc=self.config.check_crc_on_recover,
                verify_property_crc=self.config.enabled_append_prop_crc or self.config.force_verify_prop_crc,
                batch_table=self._batch_table,
                multi_dispatch=self.config.multi_dispatch,
                deleted=deleted,
                ends=self._load_ends(checkpoint, clean=clean),
                missing=missing,
                note=self.damages.note,
                before_heal=self._checkpoints.distrust,
            ).run()
            self._checkpoints.ends.end_at(report.end_position)
            with disk_full_as_typed("the list of deleted topics"):
                self.deletions.end_at(report.end_position)
            if self._indexer is not None:
                self._indexer.open(
                    report.end_position,
                    clean=clean,
                    safe_timestamp_ms=checkpoint.index_msg_timestamp_ms,
                )
            self.nonce = secrets.token_hex(16)
            self._note.open(os.getpid(), report.end_position)
            files.remove(paths.nonce)  # a file left by a crash may have wider permissions than a new one
            self._write_small(paths.nonce, self.nonce.encode())
            files.sync_directory(paths.root)
            if checkpoint.position < 0:
                # The store may be new: losing the name of its directory would lose everything acknowledged.
                files.sync_directory(paths.commit_log.parent)
                files.sync_directory(paths.root.parent)
        except BaseException:
            self._release()
            raise
        self._written_store_ms = self._durable_store_ms = max(
            report.last_store_timestamp_ms,
            min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms),
        )
        self.was_clean = clean
        known = [
            (each.offset, each.offset + (each.length or 0)) for each in missing if each.offset is not None
        ]
        self.scrub = self._new_scrub(report.end_position, known + report.damaged)
        self.sure_position = report.sure_position
        self._fetcher.begin(report.end_position, report.damaged)
        self._cleaner.open()
        self.read_only = self._failed_save = None
        self._failed_read = self.read_problem = None
        return report

    def validate(self) -> None:
        """Check the invariants of the log and of the queues. Raises AssertionError; for tests: it visits everything."""
        self._log.validate()
        self._table.validate()
        self._batch_table.validate()

    def close(self) -> None:
        """Flush all, write a checkpoint, remove ``abort``, unlock. A poisoned store keeps ``abort``, so that
        the next start recovers.

        Raises StoreReadOnly when the last flush failed. No job may be running.
        """
        if self._lock_fd < 0:
            return
        try:
            if self._flush_retry_ms is not None:
                self._flush_retry_ms = 0
            self.commit()
            while self._flush_retry_ms in (None, 0) and (job := self.begin_flush()) is not None:
                job.run()
                self.end_flush(job)
            if self.read_only is None:
                self._unreported_arrivals += self.confirm(INT64_MAX)  # every start shows everything
                self._finish_deletions()
            if self.read_only is None:
                if self._indexer is not None:
                    self._indexer.close(self._visible_end, self._log.durable)
                run_here(self._begin_checkpoint())
                if self._checkpoints.current.position < self._log.durable:
                    self._checkpoints.ends.forget()  # space is short: what it says is older than the queues
            if self.read_only is not None:
                raise StoreReadOnly(self.read_only)
            if self._log.durable < self._log.written or self._undispatched:
                raise StoreReadOnly(str(self._shortage or "closed while a flush was under way"))
            self._files.remove(self.paths.abort)
            self._files.remove(self.paths.nonce)
            self._files.sync_directory(self.paths.root)
        finally:
            self.read_only = "the store is closed"
            self._release()

    def _new_scrub(self, end: int, known: list[tuple[int, int]]) -> Scrub:
        private = CommitLog(
            self.paths.commit_logs,
            self._files,
            segment_bytes=self._log.segment_bytes,
            allocation_step=0,
            max_mapped=0,
        )
        return Scrub(
            self._log,
            private,
            self._table,
            self._levels,
            self._files,
            self.damages.note,
            self._clock.monotonic_ms,
            bytes_per_second=self.config.scrub_bytes_per_second,
            begin=self._log.min_offset,
            end=end,
            known=known,
        )

    def _load_ends(self, checkpoint: Checkpoint, *, clean: bool) -> QueueEnds | None:
        ends, problem = self._checkpoints.ends.load(checkpoint.position, clean=clean)
        if problem is not None:
            self.damages.note(Damage("checkpoint.damaged", Outcome.HEALED, problem))
        return ends

    def abandon(self) -> None:
        """Release the files as a dying process does: nothing is flushed or saved, ``abort`` stays, and the
        next start recovers. No job may be running."""
        if self._lock_fd >= 0:
            self.read_only = "the store is abandoned"
            self._release()

    def _release(self) -> None:
        if self._flush_in_flight is not None and self._flush_retry_ms is not None:
            self._log.synced(self._flush_in_flight.left, self._log.durable)
        self._log.close()
        self._note.close()
        self._table.maps.clear()
        self._batch_table.maps.clear()
        self._index.maps.clear()
        self._files.unlock(self.paths.lock, self._lock_fd)
        self._lock_fd = -1

    def config_file(self, name: str) -> ConfigFile:
        """A file of ``config/``. A failed save makes the store read-only; a full disk alone does not."""
        return ConfigFile(self.paths.config / name, self._files, self.distrust, self.damages.note)

    def root_file(self, path: Path) -> ConfigFile:
        """The same for a file beside the log."""
        return ConfigFile(path, self._files, self.distrust, self.damages.note)

    def distrust(self, path: Path, error: OSError) -> None:
        """Note that a file beside the log could not be written or synced. The owner thread then makes the
        store read-only. May be called from any thread."""
        name = path.relative_to(self.paths.root) if path.is_relative_to(self.paths.root) else path
        self._failed_save = self._failed_save or (f"saving {name} failed", error)

    def _notice_failed_save(self) -> None:
        if self._failed_save is not None:
            self._poison(*self._failed_save)

    def _notice_read_only_disk(self) -> None:
        """Poison the store when the kernel has remounted the file system read-only. An idle broker would not
        notice."""
        for path in (self.paths.root, *self.paths.commit_logs.writable):
            try:
                if self._files.is_read_only(path):
                    error = OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
                    self._poison("the file system is read-only", error)
                    return
            except OSError as error:
                self._poison("the store directory cannot be accessed", error)
                return

    def _keep_locked(self) -> None:
        """Lock the directory again when the lock file was removed."""
        try:
            self._lock_fd = self._files.relock(self.paths.lock, self._lock_fd)
        except StoreLocked as error:
            self._poison("another broker was started on the directory", error)
        except OSError as error:
            _log.warning("the lock file was removed and cannot be created again: %s", error)

    def _write_small(self, path: Path, data: bytes) -> None:
        fd = self._files.open(path, create=True)
        try:
            self._files.set_length(fd, 0)
            self._files.write(fd, data, 0)
        finally:
            self._files.close(fd)

    def _poison(self, what: str, error: Exception) -> StoreError:
        """Make the store read-only and return the error to raise. A shortage poisons nothing."""
        if isinstance(error, OSError) and is_shortage(error):
            return NoResources(what, error)
        if self.read_only is None:
            self.read_only = f"{what}: {error}"
        self._log.drop_pending()
        self._dirty.clear()
        self._undispatched.clear()
        return StoreReadOnly(self.read_only)

    def refuse_puts(self, reason: NotNow | None) -> None:
        """Refuse every put with this error, until a call without one."""
        self.refusal = reason
        if reason is not None:
            self._log.hold()  # the next put asks for room and is refused

    def _check_writable(self) -> None:
        if self.read_only is not None or self._copier is not None:
            raise StoreReadOnly(self.read_only or "its log is a copy of a master's")
        if self.refusal is not None:
            raise self.refusal
        if self._cleaner.full is not None:
            raise DiskFull(self._cleaner.full)
        if self._shortage is not None:
            raise self._shortage

    @property
    def _is_short(self) -> bool:
        """Whether work that lacked resources is still waiting."""
        waits = bool(self._log.pending) or self._flush_retry_ms is not None
        return waits or len(self._undispatched) > MAX_UNDISPATCHED

    def _note_shortage(self, what: str, error: Exception) -> None:
        """Refuse puts until the shortage is over: the next put asks for room and fails."""
        self._shortage = NoResources(what, error)
        self._log.hold()

    # --- commit and flush -----------------------------------------------------------------------------------

    def commit(self) -> StoreProgress:
        """Write everything that was put. Under ASYNC_FLUSH it becomes visible here. Never raises and never
        syncs.

        Under SYNC_FLUSH the next flush job writes it, because nothing can be acked earlier. While a slow disk
        syncs, this method writes once MAX_UNWRITTEN_BYTES are waiting.
        """
        if self._failed_save is not None:
            self._notice_failed_save()
        if self._undispatched:
            self._unreported_arrivals += self._dispatch([])
        if self._shortage is not None and not self._is_short:
            self._shortage = None
        waiting = self._log.position - self._log.written
        if self._sync and (self._flush_in_flight is None or waiting < MAX_UNWRITTEN_BYTES):
            return self._progress([])
        return self._write()

    def write_now(self) -> bool:
        """Write everything that was put, also under SYNC_FLUSH, so that it survives this process. Returns whether it is
        written. Call it after ``commit``."""
        if self._sync:
            self._write()
        return not self._log.pending and self.read_only is None

    def _write(self) -> StoreProgress:
        if self.read_only is None and (self._log.pending or self._dirty):
            try:
                self._write_in_flight()
                self._log.write_pending()
            except OSError as error:
                if is_shortage(error):  # everything is still pending
                    self._note_shortage("writing the CommitLog", error)
                else:
                    self._poison("writing the CommitLog failed", error)
                return self._progress([])
            self._shortage = None
            self._written_store_ms = self._appender.now_ms
            group = self._appender.take_group()
            if not self._sync and self._confirmed == INT64_MAX:
                return self._progress(self._dispatch(group))
            self._groups.append((self._log.written, group))
        return self._progress(self._show() if self._groups and not self._sync else [])

    def _show(self) -> list[tuple[str, int, int]]:
        """Dispatch what has become visible."""
        end, groups = self._visible_end, self._groups
        if len(groups) == 1 and groups[0][0] <= end:  # almost always, and the fastest
            return self._dispatch(groups.pop()[1])
        merged: dict[Queue, bytearray] = {}
        while groups and groups[0][0] <= end:
            for queue, entries in groups.pop(0)[1]:
                if queue in merged:
                    merged[queue] += entries
                else:
                    merged[queue] = entries
        return self._dispatch(list(merged.items()))

    def confirm(self, position: int) -> list[tuple[str, int, int]]:
        """Show consumers only what lies before ``position``, which other brokers have, too; INT64_MAX: everything.
        What was visible stays so, and all is while the log is taken back. Returns the queues with newly visible
        messages: topic, queue id, new max offset."""
        if self._cut_back_to is None:
            self._confirmed = max(position, self._visible_end)
        return self._show() if self._groups and self.read_only is None else []

    def _write_in_flight(self) -> None:
        """Finish the write of a flush in flight before this thread writes. Otherwise a kill could leave a
        hole in the log, which looks like damage."""
        if self._flush_in_flight is not None:
            self._flush_in_flight.write()

    def begin_flush(self) -> FlushJob | None:
        """A job that makes the log durable, or None when there is nothing to do or a job is running.

        Under SYNC_FLUSH the job also writes; call this after every commit and every finished job. Under
        ASYNC_FLUSH call it every flush_interval_commit_log.
        """
        log = self._log
        if self.read_only is not None:
            return None
        if self._flush_in_flight is not None:
            if self._flush_retry_ms is None or self._clock.monotonic_ms() < self._flush_retry_ms:
                return None
            self._flush_retry_ms = None
            return self._flush_in_flight
        offset, buffers = 0, list[bytes | memoryview]()
        if self._sync and (log.pending or self._dirty):
            offset, buffers = log.take_pending()
            self._written_store_ms = self._appender.now_ms
            self._groups.append((log.written, self._appender.take_group()))
        if log.written <= log.durable:
            return None
        left, active, directories = log.take_unsynced()
        self._flush_in_flight = FlushJob(
            self._files,
            left,
            active,
            directories,
            log.written,
            self._written_store_ms,
            self._note,
            offset,
            buffers,
        )
        return self._flush_in_flight

    def end_flush(self, job: FlushJob) -> StoreProgress:
        """Finish a flush after ``job.run``. Under SYNC_FLUSH the flushed messages become visible here."""
        self._notice_failed_save()
        if job.error is not None and is_shortage(job.error) and self.read_only is None:
            self._note_shortage(f"{job.step} the CommitLog", job.error)
            job.error = None
            self._flush_retry_ms = self._clock.monotonic_ms() + SHORTAGE_PAUSE_MS
            return self._progress([])
        self._flush_in_flight = None
        arrivals: list[tuple[str, int, int]] = []
        if job.error is not None:
            self._poison(f"{job.step} the CommitLog failed", job.error)
            self._log.synced(job.left, self._log.durable)
        else:
            self._log.synced(job.left, job.end)
            self._shortage = None
            self._durable_store_ms = job.store_timestamp_ms
            arrivals = self._show()
        return self._progress(arrivals)

    def _dispatch(self, group: Group) -> list[tuple[str, int, int]]:
        arrivals: list[tuple[str, int, int]] = []
        if self._undispatched:
            group, self._undispatched = self._undispatched + group, []
        try:
            for queue, entries in group:
                queue.append(entries)
                arrivals.append((queue.topic, queue.queue_id, queue.max_offset))
        except OSError as error:
            if is_shortage(error):
                self._undispatched = group[len(arrivals) :]
                if len(self._undispatched) > MAX_UNDISPATCHED:
                    self._note_shortage("writing a ConsumeQueue", error)
            else:
                self._poison("writing a ConsumeQueue failed", error)
        return arrivals

    def catch_up(self) -> None:
        """Let the index follow what became visible. Call it after ``commit`` and ``end_flush``, once the
        answers are sent: nobody waits for the index."""
        if self._indexer is not None and self.read_only is None:
            self._indexer.arrived(self._visible_end, self._log.durable)

    def _progress(self, arrivals: list[tuple[str, int, int]]) -> StoreProgress:
        log = self._log
        if self._unreported_arrivals:
            arrivals, self._unreported_arrivals = self._unreported_arrivals + arrivals, []
        return StoreProgress(
            log.written, log.durable, log.durable if self._sync else log.written, arrivals, self.read_only
        )

    @property
    def room_due(self) -> bool:
        """Whether ``maintenance`` has a job that appending needs soon."""
        return self._log.room_due and self.read_only is None

    # --- maintenance ----------------------------------------------------------------------------------------

    def maintenance(self) -> list[Job]:
        """The blocking jobs that are due, without the job of ``deletions``, which has to be run first. Call
        about once a second.

        Run the jobs in another thread than the flushes, because producers wait for flushes.
        """
        self._notice_failed_save()
        self._retry_failed_read()
        if self.read_only is None:
            self._notice_read_only_disk()
        if self.read_only is None:
            self._keep_locked()
        if self.read_only is not None:
            return []
        if self._cut_back_to is not None:  # alone: every other job knows the log as it is
            return [self._cut_back_job(self._cut_back_to)] if self._is_quiet else []
        jobs: list[Job] = []
        if self._log.room_due and (ahead := self._log.extend_room()) is not None:
            jobs.append(ahead)
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_unmap_ms:
            self._next_unmap_ms = now_ms + IDLE_MAP_MS
            self._log.drop_idle()
            self._table.drop_idle()
            self._batch_table.drop_idle()
        if self._indexer is not None:
            index_job = self._indexer.idle(self._visible_end, self._log.durable)
            if index_job is not None:
                jobs.append(index_job)
        self.deletions.keep_room()
        checkpoints = self._checkpoints
        cleaning_job = self._cleaner.round(checkpoints.settled, checkpoint_running=checkpoints.is_running)
        if cleaning_job is not None:
            jobs.append(cleaning_job)
        if self.scrub is not None and not self.deletions.behind:
            scrub_job = self.scrub.job(self.deletions.positions.copy())
            if scrub_job is not None:
                jobs.append(scrub_job)
        if self._cleaner.full is not None:
            self._log.hold()  # the next put asks for room and is refused
        if self._cleaner.needs_checkpoint and not checkpoints.is_running:
            self._cleaner.needs_checkpoint = False
            checkpoints.wanted = True
        # Deletions have to be on disk first: entries that are cut from queues meanwhile must be rebuilt from
        # the log. Queues that lack entries of visible records cannot be checkpointed.
        behind = self.deletions.behind or self._undispatched or self._holds_durable
        if not behind and checkpoints.is_due(self._log.durable):
            jobs.append(self._begin_checkpoint())
        return jobs

    @property
    def _holds_durable(self) -> bool:
        """Whether durable records wait for their queue entries, because they are not confirmed."""
        return bool(self._groups) and self._groups[0][0] <= self._log.durable

    def _begin_checkpoint(self) -> CheckpointJob:
        index_ms = self._index.full_timestamp_ms if self._indexer is not None else None
        return self._checkpoints.begin(self._log.durable, self._visible_end, self._durable_store_ms, index_ms)

    def clean_expired(self) -> None:
        """Delete segments older than fileReservedTime in the next 20 runs, at any hour (request code 329)."""
        self._cleaner.ask()

    def clean_expired_queues(self) -> None:
        """Move the start of every queue to the current start of the log (request code 306).

        RocketMQ removes queues whose records are all gone and restarts their offsets at 0. Here a queue keeps
        its last file, so an offset never refers to another message.
        """
        self._cleaner.ask_queues()

    # --- get ------------------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None = None,
        *,
        bulk: bool = False,
    ) -> GetResult:
        """Visible messages from ``offset`` on (``Fetcher.get``). For a compacted queue, what compaction has
        kept. Raises StoreUnreadable."""
        try:
            kept = self._compacted.get(
                topic, queue_id, offset, max_messages, max_bytes, tag_codes, self._log_bounds
            )
            if kept is not None:
                return kept
            return self._fetcher.get(topic, queue_id, offset, max_messages, max_bytes, tag_codes, bulk=bulk)
        except (OSError, MemoryError) as error:
            raise self._unreadable(
                f"offset {offset} of queue {queue_id} of topic {topic}",
                lambda: self.get(topic, queue_id, offset, 1, 1, tag_codes),
                error,
            ) from error

    def _heal_entries(self, queue: ConsumeQueue, first: int, end: int) -> bool:
        """Correct entries of a queue that do not lead to their records. A read-only store stays as it is."""
        return self.read_only is None and self._healer.heal(queue, first, end)

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The visible record that begins at this offset, or None. Any number is allowed. Raises
        StoreUnreadable."""
        try:
            return self._fetcher.record_at(physical_offset)
        except (OSError, MemoryError) as error:
            again = functools.partial(self.record_at, physical_offset)
            raise self._unreadable(f"the log at {physical_offset}", again, error) from error

    def parts_at(self, physical_offset: int) -> Parts | None:
        """As ``record_at``, split into parts: body and properties as they are stored."""
        try:
            return self._fetcher.parts_at(physical_offset)
        except (OSError, MemoryError) as error:
            again = functools.partial(self.parts_at, physical_offset)
            raise self._unreadable(f"the log at {physical_offset}", again, error) from error

    def _unreadable(self, what: str, again: Callable[[], object], error: Exception) -> StoreUnreadable:
        """The error to raise for a failed read. ``read_problem`` shows it until ``again`` succeeds."""
        text = f"{what} cannot be read: {error or type(error).__name__}"
        if isinstance(error, StoreUnreadable):
            return error
        if self._failed_read is None:
            _log.error("%s", text)
        self._failed_read, self.read_problem = again, text
        return StoreUnreadable(text, error)

    def _retry_failed_read(self) -> None:
        """Retry the read that failed last."""
        if self._failed_read is None:
            return
        with contextlib.suppress(StoreUnreadable):
            self._failed_read()
            self._failed_read = self.read_problem = None
            _log.warning("the last failed read works again")

    def log_from(self, position: int, limit_bytes: int) -> memoryview:
        """Acknowledged bytes of the log from ``position`` on, confirmed or not, including the padding at segment
        ends: at most ``limit_bytes``, of one segment. Empty when there are none yet."""
        segment = self._log.segment_of(position)
        end = min(position + limit_bytes, self._stored_end, segment.end if segment is not None else position)
        try:
            return self._log.slice(position, end - position) or memoryview(b"")
        except (OSError, MemoryError) as error:
            again = functools.partial(self.log_from, position, limit_bytes)
            raise self._unreadable(f"the log at {position}", again, error) from error

    def query_message(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> list[memoryview]:
        """Visible records with a key of this hash, stored between the two times (inclusive, in whole
        seconds), in log order: the newest ``max_num``, but at most max_msgs_num_batch.

        Other keys may have the same hash, so the caller compares. Follows DefaultMessageStore.queryMessage.
        """
        if self._indexer is None:
            return []
        limit = min(max_num, self.config.max_msgs_num_batch)
        found = self._indexer.find(
            topic, key, limit, begin_ms, end_ms, end=self._visible_end, durable=self._log.durable
        )
        return [record for position in sorted(found) if (record := self.record_at(position)) is not None]

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
        arrivals = self._write().arrivals
        self._unreported_arrivals = [arrival for arrival in arrivals if arrival[0] not in gone]
        self._groups = [
            (end, [(queue, entries) for queue, entries in group if queue.topic not in gone])
            for end, group in self._groups
        ]
        self._undispatched = [each for each in self._undispatched if each[0].topic not in gone]
        self._table.hide_topics(gone)
        self._batch_table.hide_topics(gone)
        self._table.batch_topics -= gone
        for topic in topics:
            hidden = [*self._table.hidden.get(topic, ()), *self._batch_table.hidden.get(topic, ())]
            self._checkpoints.ends.note(queue.key for queue in hidden)
            if topic in self._table.hidden or topic in self._batch_table.hidden:
                self.deletions.add(topic, self._log.min_offset, self._log.position)
            else:
                self._compacted.forget(topic)

    def _remove_topic(self, topic: str) -> bool:
        """Remove files of a topic whose deletion is on disk. Returns whether some are left."""
        for table in (self._table, self._batch_table):
            if table.remove_topic(topic, REMOVED_AT_ONCE):
                return True
        self._compacted.forget(topic)
        # Until the next checkpoint a start would find fewer queues than the last one counted, and read the
        # whole log.
        self._checkpoints.wanted = True
        return False

    def _finish_deletion(self, topic: str) -> None:
        """Finish the deletion of a topic before one of its queues is created again. Raises DiskFull,
        StoreReadOnly."""
        try:
            with disk_full_as_typed("the list of deleted topics"):
                self.deletions.finish(topic)
        except OSError as error:
            raise self._poison(f"deleting topic {topic} failed", error) from error

    def _finish_deletions(self) -> None:
        try:
            if self.deletions.behind:
                run_here(self.deletions.job())
        except OSError as error:
            self._poison("deleting topics failed", error)

    def earliest_store_timestamp(self) -> int:
        """Store time of the first record of the log; -1 when the log is empty or cannot be read."""
        log = self._log
        try:
            return log.store_timestamp_at(log.min_offset) if self._visible_end > log.min_offset else -1
        except (OSError, MemoryError) as error:
            self._unreadable("the first record of the log", lambda: self.record_at(log.min_offset), error)
            return -1

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def put_count(self) -> int:
        """Number of messages put."""
        return self._appender.put_count

    @property
    def get_count(self) -> int:
        """Number of calls of ``get``."""
        return self._fetcher.get_count

    @property
    def got_count(self) -> int:
        """Number of messages returned by ``get``."""
        return self._fetcher.got_count

    @property
    def damaged_reads(self) -> int:
        """Number of records that ``get`` skipped because they do not match their queue entry or their CRC."""
        return self._fetcher.damaged_reads

    @property
    def damaged_offsets(self) -> list[int]:
        """Log positions at which recovery or a read found damage: the first thousand."""
        return sorted(self._fetcher.damaged)

    @property
    def next_store_time_ms(self) -> int:
        """Store time of the next put. All pending records have the time of the first."""
        return self._appender.now_ms if self._log.pending else self._clock.now_ms()

    @property
    def files(self) -> FileLayer:
        """The file layer, for other files kept in the directory."""
        return self._files

    @property
    def _visible_end(self) -> int:
        """End of the last record that consumers may see."""
        end, confirmed = self._stored_end, self._confirmed
        return end if end < confirmed else confirmed

    @property
    def _stored_end(self) -> int:
        """End of the last record that is stored as safely as flushDiskType says."""
        return self._log.durable if self._sync else self._log.written

    @property
    def index_last_update(self) -> tuple[int, int]:
        """Store time and physical offset of the newest record that can be found by key; zeros when there is
        none."""
        return self._index.last_update

    @property
    def index_behind_bytes(self) -> int:
        """Bytes of the log that cannot be queried by key yet."""
        return self._indexer.behind_bytes(self._visible_end) if self._indexer is not None else 0

    @property
    def checkpoint_problem(self) -> str | None:
        """Why the last checkpoint failed although the store is healthy, or None."""
        return self._checkpoints.problem

    @property
    def index_problem(self) -> str | None:
        """Why the index does not follow the log, or None."""
        return self._indexer.problem if self._indexer is not None else None

    @property
    def disk_full(self) -> str | None:
        """Why messages are refused although the store is healthy, or None."""
        return self._cleaner.full

    @property
    def disk_used_percent(self) -> float:
        """Usage of the fullest disk of this store at the last measurement; 0 before the first."""
        return self._cleaner.used_percent

    @property
    def deleted_segments(self) -> int:
        """Number of log segments deleted since the store was opened."""
        return self._cleaner.deleted_segments

    @property
    def retention_problem(self) -> str | None:
        """Why old files could not be deleted the last time, or None."""
        return self._cleaner.problem

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of the log that were put and are not written yet."""
        return self._log.position - self._log.written

    @property
    def max_physical_offset(self) -> int:
        """Physical offset of the next record."""
        return self._log.position

    @property
    def newest_segment_start(self) -> int:
        return self._log.segments[-1].start

    @property
    def flushed_offset(self) -> int:
        return self._log.durable

    @property
    def acked_offset(self) -> int:
        """End of the last record that this broker alone would acknowledge; consumers see it once it is confirmed."""
        return self._stored_end

    @property
    def shown_offset(self) -> int:
        """End of the last record that consumers see."""
        return self._visible_end

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes that are stored and not shown to consumers, because too few brokers have them (``confirm``)."""
        return self._stored_end - self._visible_end
