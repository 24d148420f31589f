"""Rebuilds ConsumeQueues and index from the CommitLog while no broker runs; for a large log in two processes.

Recovery and the indexer do the work, as in a broker that finds an empty directory, so the bytes are the same.
Everything is built separately and swapped in at the end. In between ``abort`` marks the store as not cleanly
stopped and no checkpoint covers queues, so a start after a crash at any moment repairs it.

What the log does not contain is taken from the old queues: offsets whose records were deleted by age are
never assigned again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mqspark.base.clock import Clock
from mqspark.record.recordlayout import MIN_RECORD_BYTES
from mqspark.store.config import StoreConfig
from mqspark.store.disk.diskjobs import CheckpointJob
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.disk.notes.durable import DurableNote
from mqspark.store.index.indexfile import Shape
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.log.scan import Run
from mqspark.store.queue.batchqueue import BatchQueue, BatchTable
from mqspark.store.queue.consumequeue import ConsumeQueue
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery.queueends import EndsFile, QueueEnds, Range
from mqspark.store.recovery.recovery import Recovery
from mqspark.store.recovery.rocksdb import refuse_rebuild
from mqspark.store.tools.indexbuild import (
    MAX_MAPPED,
    WORTH_A_PROCESS_BYTES,
    BuiltIndex,
    IndexBuild,
    IndexTask,
)
from mqspark.store.tools.offlinestore import RELEASE_BYTES, OfflineStore, release, require_store

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes of the log done, and the total."""


@dataclass(slots=True)
class Remade:
    records: int
    entries: int
    queues: int
    lost_entries: int
    index_files: int
    index_entries: int
    damaged: list[tuple[int, int]]
    end_offset: int
    """End of the log."""
    torn_bytes: int
    """Bytes after it that were cut, because they were not a record."""
    lost_bytes: int
    """Bytes by which the log is shorter than when its checkpoint and its queues were written."""
    lost_queue_entries: int
    """Entries of the old queues for these bytes."""
    was_clean: bool
    """Whether the last broker stopped cleanly and left no torn tail."""


def remake(config: StoreConfig, clock: Clock, progress: Progress = lambda step, done, total: None) -> Remade:
    """Take the lock, build, swap. Raises StoreLocked, StoreCorrupt, DiskFull or OSError and then changes
    nothing but the torn tail of the log, which is cut as at a start."""
    paths = config.paths
    files = OsFiles.like(paths.commit_log)
    require_store(paths)
    lock = files.lock(paths.lock)
    work = paths.root / "mqspark.rebuild"
    try:
        refuse_rebuild(paths, files)
        shutil.rmtree(work, ignore_errors=True)
        files.make_directory(work)
        if OfflineStore(config).unreadable_deletions is not None:
            _set_aside(files, paths.deletions)
        made = _build(config, clock, files, paths, StorePaths(work), progress)
        _swap(files, paths, work)
        return made
    finally:
        shutil.rmtree(work, ignore_errors=True)
        files.unlock(paths.lock, lock)


def _build(
    config: StoreConfig,
    clock: Clock,
    files: OsFiles,
    paths: StorePaths,
    work: StorePaths,
    progress: Progress,
) -> Remade:
    old = OfflineStore(config)
    log = CommitLog(
        paths.commit_logs,
        files,
        segment_bytes=config.mapped_file_size_commit_log,
        allocation_step=config.allocation_step_commit_log,
        max_mapped=MAX_MAPPED,
    )
    log.load()
    table = QueueTable(
        work.consume_queue,
        files,
        file_bytes=old.table.file_bytes,
        max_mapped=MAX_MAPPED,
        ext_directory=work.consume_queue_ext if config.enable_consume_queue_ext else None,
        ext_file_bytes=config.mapped_file_size_consume_queue_ext,
        ext_enabled=config.enable_consume_queue_ext,
    )
    batch_table = BatchTable(
        work.batch_consume_queue, files, file_bytes=old.batch_table.file_bytes, max_mapped=MAX_MAPPED
    )
    table.batch_topics = set(old.table.batch_topics)
    recovery = _Remake(config, old, log, table, batch_table, progress)
    indexing = _begin_index(config, clock, log, old, work) if config.message_index_enable else None
    try:
        report = recovery.run()
        index = BuiltIndex(0, 0, 0)
        if indexing is not None:
            begin, end = log.min_offset, report.end_position
            index = indexing.finish(end, lambda position: progress("index", position - begin, end - begin))
        checkpoint = Checkpoint(
            physic_msg_timestamp_ms=report.last_store_timestamp_ms,
            logics_msg_timestamp_ms=report.last_store_timestamp_ms,
            index_msg_timestamp_ms=index.full_timestamp_ms,
            master_flushed_offset=old.checkpoint.master_flushed_offset,
            confirm_physical_offset=report.end_position,
            position=report.end_position,
            queue_count=table.used_queues + batch_table.used_queues,
        )
        _save(files, work, checkpoint, table, batch_table)
    finally:
        if indexing is not None:
            indexing.abandon()
        log.close()
        table.maps.clear()
        batch_table.maps.clear()
    return Remade(
        report.records,
        report.entries,
        table.used_queues + batch_table.used_queues,
        report.lost_entries,
        index.files,
        index.entries,
        report.damaged,
        report.end_position,
        report.torn_bytes,
        *_count_lost(old, report.end_position),
        old.clean,
    )


def _save(
    files: OsFiles, work: StorePaths, checkpoint: Checkpoint, table: QueueTable, batch_table: BatchTable
) -> None:
    """Sync the queues, and write where they end and the checkpoint. Raises DiskFull, OSError."""
    ends = EndsFile(work.ends, files, table, batch_table)
    block = ends.block(checkpoint.position)
    block.take(ends.all_keys(), checkpoint.position)
    job = CheckpointJob(
        files,
        work,
        checkpoint,
        table.dirty_files | batch_table.dirty_files,
        table.new_directories | batch_table.new_directories,
        lambda job: None,
        block.write,
    )
    job.run()
    if job.error is not None:
        raise job.error


def _count_lost(old: OfflineStore, end: int) -> tuple[int, int]:
    """Bytes of the log, and entries of the old queues, after ``end``."""
    queues = [*old.table.queues.values(), *old.batch_table.queues.values()]
    known = max([old.checkpoint.position, *(queue.locate_end(None)[1] for queue in queues)])
    if known - end < MIN_RECORD_BYTES:  # the rest of a segment, too short for a record
        return 0, 0
    return known - end, sum(queue.max_offset - queue.locate_end(end)[0] for queue in queues)


def _known_ends(old: OfflineStore) -> QueueEnds | None:
    """The ends that the queues are known to have reached."""
    mark = old.checkpoint.position
    end = old.log.segments[-1].end if old.log.segments else 0
    if mark <= end:
        return old.ends
    # The end of the log is lost: the old queues know best how far it went.
    queues: list[ConsumeQueue | BatchQueue] = [*old.table.queues.values()]
    queues += old.batch_table.batch_queues.values()
    ranges = dict(old.ends.ranges) if old.ends is not None else {}
    for queue in queues:
        key = (queue.topic, queue.queue_id)
        was = ranges.get(key, Range(mark, 0, -1, 0))
        end = max(queue.max_offset, was.end)
        ranges[key] = Range(mark, queue.min_offset, -1, end, max(was.assigned - end, 0))
    return QueueEnds(mark, ranges)


def _begin_index(
    config: StoreConfig, clock: Clock, log: CommitLog, old: OfflineStore, work: StorePaths
) -> IndexBuild:
    shape = (
        old.index_files[-1].shape
        if old.index_files
        else Shape(config.max_hash_slot_num, config.max_index_num)
    )
    directories = tuple(str(path) for path in old.paths.commit_logs.all)
    return IndexBuild(
        IndexTask(directories, log.segment_bytes, str(work.root), *shape, now_ms=clock.now_ms()),
        in_process=sum(segment.length for segment in log.segments) >= WORTH_A_PROCESS_BYTES,
    )


class _Remake(Recovery):
    def __init__(
        self,
        config: StoreConfig,
        old: OfflineStore,
        log: CommitLog,
        table: QueueTable,
        batch_table: BatchTable,
        progress: Progress,
    ) -> None:
        super().__init__(
            log,
            table,
            old.checkpoint,
            old.levels,
            clean=old.clean,
            verify_crc=config.check_crc_on_recover,
            synced=DurableNote(old.paths.abort, old.files).load(),
            verify_property_crc=config.verify_property_crc,
            batch_table=batch_table,
            multi_dispatch=config.multi_dispatch,
            deleted=old.deleted,
            ends=_known_ends(old),
        )
        self._is_healing = True  # offsets assigned by the old queues are not assigned again
        self._old = old
        self._new_batches = batch_table
        self._progress = progress
        self._released = 0
        self._total = sum(segment.length for segment in log.segments)

    def _choose_start(self) -> int:
        minimum = self._log.min_offset
        self._known_end = max(self._old.checkpoint.position, 0)
        for old_queue in self._old.table.queues.values():
            begin = old_queue.first_kept(
                minimum, old_queue.file_starts, old_queue.min_offset, old_queue.max_offset
            )
            if begin > 0 and old_queue.topic not in self._table.batch_topics:
                queue = self._table.create(*old_queue.key)
                queue.set_end(begin)
                queue.min_offset = begin
                if begin == old_queue.max_offset:
                    queue.reserve(1)  # no record is left: the last file keeps the offset
        for old_array in self._old.batch_table.queues.values():
            low, high = old_array.min_offset, old_array.max_offset
            if high and old_array.first_kept(minimum, old_array.file_starts, low, high) == high:
                self._keep_last(old_array)
        return minimum

    def _keep_last(self, old_array: ConsumeQueue) -> None:
        """Keep the last entry of a BatchConsumeQueue without records, because it holds the offset."""
        last = old_array.packed_entry(old_array.max_offset - 1)
        if last is not None:
            array = self._new_batches.create(*old_array.key)
            array.reserve(1)
            array.settle(last)
            self._new_batches.batch_queues[array.key].recovered()

    def _take_run(self, run: Run) -> None:
        super()._take_run(run)
        end = run.end_position
        self._progress("queues", end - self._log.min_offset, self._total)
        segment = self._log.segment_of(int(run.positions[0]))
        if segment is not None and (end - self._released > RELEASE_BYTES):
            release(self._log.view(segment), max(self._released - segment.start, 0), end - segment.start)
            self._released = end


def _set_aside(files: OsFiles, path: Path) -> None:
    """Rename an unreadable file and its ``.bak``, so that the next start ignores them."""
    for each in (path, path.with_name(path.name + ".bak")):
        if each.exists():
            files.rename(each, each.with_name(each.name + ".damaged"))
    files.sync_directory(path.parent)


def _swap(files: OsFiles, paths: StorePaths, work: Path) -> None:
    """Swap the new files in. First remove what could refer to them before they are complete."""
    root = paths.root
    files.close(files.open(paths.abort, create=True))
    marks = (
        paths.ends,
        paths.mark,
        paths.index_mark,
        paths.index_mark.with_name(paths.index_mark.name + ".bak"),
    )
    for mark in marks:
        files.remove(mark)
    files.sync_directory(root)
    old = work / "old"
    files.make_directory(old)
    names = [path.name for path in (paths.consume_queue, paths.consume_queue_ext, paths.batch_consume_queue)]
    for name in (*names, paths.index.name):
        if (root / name).exists():
            files.rename(root / name, old / name)
        if (work / name).exists():
            files.rename(work / name, root / name)
    files.sync_directory(root)
    for name in (paths.ends.name, paths.checkpoint.name, paths.index_mark.name, paths.mark.name):
        if (work / name).exists():
            files.rename(work / name, root / name)
    files.sync_directory(root)
    files.remove(paths.abort)
    files.remove(paths.nonce)
    files.sync_directory(root)
