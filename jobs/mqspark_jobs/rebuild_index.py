"""rebuild-index: rebuilds ConsumeQueues and index files from the CommitLog, in parallel by segment.

The plan is computed from names, lengths and manifests alone. Results are kept in ``mqspark.rebuild`` in the
store's root if the job is killed; the next run continues with the missing parts.

* No broker serves the store: the job holds the store's lock, and at the end swaps ``consumequeue`` and ``index`` as
  a whole by renaming. If it is killed during the swap, the next run renames the rest; a broker that starts instead
  builds what is missing.
* A broker serves the store: only files whose last entry lies in sealed segments are compared with the broker's files
  and replaced where they differ, one by one. The files that are being written stay.

A queue without a record in the log keeps its last file, which holds the queue's next offset. BatchConsumeQueues,
whose entries are numbered from the first record in the log, and queues with ConsumeQueueExt are rebuilt as a whole,
and therefore only when no broker serves the store.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqspark.arrow.files.logfiles import LogFile, find_log, list_log
from mqspark.base.names import path_below
from mqspark.errors import ConfigError, StoreLocked
from mqspark.message import LMQ_PREFIX
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.directory import refuse_unfinished
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths
from mqspark.store.index.indexfile import DEFAULT_SHAPE, HEADER_BYTES, IndexHeader, Shape, find_shape
from mqspark.store.queue.batchqueue import BATCH_ENTRY, batch_topics
from mqspark.store.queue.consumequeue import ENTRY_BYTES
from mqspark.store.recovery.deletions import load_deletions
from mqspark.store.recovery.rebuild import QueueShape, ScanManifest, fetch_keys
from mqspark.store.recovery.rocksdb import refuse_rebuild
from mqspark_jobs.job import ProgressLine, Summary, run_tasks
from mqspark_jobs.rebuild_plan import (
    BuiltQueue,
    IndexFileTask,
    QueueTask,
    RebuildOptions,
    build,
    index_names,
    plan_index,
    plan_queues,
    plan_scans,
    scan,
)
from mqspark_jobs.swap import Swap, names_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_WORK = "mqspark.rebuild"
_QUEUE_TASKS_PER_CORE = 3


def check(options: RebuildOptions) -> None:
    """Raises ConfigError for a directory that is not a store, StoreCorrupt for one that a restore has not finished;
    nothing is written to it."""
    if not options.store.is_dir():
        raise ConfigError.of("store", f"{options.store} is not a directory")
    refuse_unfinished(StorePaths(options.store), OsFiles())
    find_log(options.commit_log or str(StorePaths(options.store).commit_log))


def run(options: RebuildOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Raises ConfigError, StoreError, OSError."""
    check(options)
    paths = StorePaths(options.store)
    work = options.store / _WORK
    files = OsFiles.like(paths.commit_log)
    files.make_directory(work)
    own_lock = files.lock(work / "lock")
    try:
        try:
            store_lock = files.lock(paths.lock)
        except StoreLocked:
            return _Rebuild(options, paths, work, spark, progress, is_live=True).run()
        try:
            refuse_rebuild(paths, files)
            return _Rebuild(options, paths, work, spark, progress, is_live=False).run()
        finally:
            files.unlock(paths.lock, store_lock)
    finally:
        files.unlock(work / "lock", own_lock)


class _Rebuild:
    def __init__(
        self,
        options: RebuildOptions,
        paths: StorePaths,
        work: Path,
        spark: SparkSession,
        progress: ProgressLine,
        *,
        is_live: bool,
    ) -> None:
        self._options = options
        self._paths = paths
        self._work = work
        self._new = work / "new"
        self._swap = Swap(paths, work)
        self._spark = spark
        self._progress = progress
        self._is_live = is_live

    def run(self) -> Summary:
        started = time.monotonic()
        options = self._options
        swapped_before = self._swap.is_ready()
        scanned: list[tuple[Path, ScanManifest]] = []
        queues: list[BuiltQueue] = []
        keys = 0
        log = list_log(options.commit_log or str(self._paths.commit_log))
        if not swapped_before:
            scanned = self._scan(log)
            shutil.rmtree(self._new, ignore_errors=True)
            # Index files first: they are the longest tasks, and queues are built beside them.
            tasks = [*(self._plan_index(scanned) if options.with_index else ()), *self._plan_queues(scanned)]
            built = run_tasks(self._spark, build, tasks, self._progress, "built", "parts of queues and index")
            queues = [queue for each in built for queue in each.queues]
            keys = sum(each.keys for each in built)
        summary: Summary = {
            "job": "rebuild-index",
            "mode": "sealed segments of a live broker" if self._is_live else "offline",
            "segments": len(scanned),
            "records": sum(manifest.records for _, manifest in scanned),
            "queues": len(queues),
            "queue_entries": sum(queue.entries for queue in queues),
            "lost_entries": sum(queue.lost_entries for queue in queues),
            "index_keys": keys,
            "damaged": [[low, high] for _, manifest in scanned for low, high in manifest.damaged],
            "resumed_swap": swapped_before,
        }
        end = max((manifest.end for _, manifest in scanned), default=0)
        if self._is_live:
            summary |= self._swap.replace_files(end)
        else:
            if not swapped_before:
                built_queues = {(queue.topic, queue.queue_id) for queue in queues}
                self._swap.keep_silent_queues(built_queues, has_ext=self._has_ext)
                self._swap.mark_ready(end, self._index_shape())
            self._swap.swap()
        for leftover in ("scan", "new", "old"):
            shutil.rmtree(self._work / leftover, ignore_errors=True)
        seconds = time.monotonic() - started
        summary["elapsed_s"] = round(seconds, 3)
        summary["records_per_s"] = round(summary["records"] / seconds)
        return summary

    # --- build ------------------------------------------------------------------------------------------------

    def _scan(self, log: list[LogFile]) -> list[tuple[Path, ScanManifest]]:
        paths = self._paths
        known = frozenset(names_in(paths.batch_consume_queue)) | batch_topics(
            paths.config / "topics.json", OsFiles()
        )
        while True:
            scans = plan_scans(
                log,
                self._work,
                self._options,
                known,
                sealed_only=self._is_live,
                # A store with LMQ queues belongs to a broker that dispatches to them.
                multi_dispatch=any(name.startswith(LMQ_PREFIX) for name in names_in(paths.consume_queue)),
                with_times=self._has_ext,
                deleted=load_deletions(ConfigFile(paths.deletions)),
            )
            manifests = run_tasks(self._spark, scan, scans, self._progress, "scanned", "segments")
            found = {topic for manifest in manifests for topic in manifest.batch_topics}
            if found <= known:
                return [(task.directory, manifest) for task, manifest in zip(scans, manifests, strict=True)]
            # A topic has batches, so its entries have another format: scan again.
            known |= found

    @property
    def _has_ext(self) -> bool:
        """Whether the store has ext units; then its broker writes them."""
        return not self._is_live and bool(names_in(self._paths.consume_queue_ext))

    def _plan_queues(self, scanned: Sequence[tuple[Path, ScanManifest]]) -> list[QueueTask]:
        cores = self._spark.sparkContext.defaultParallelism
        paths, new = self._paths, self._new
        defaults = StoreConfig()
        ext = new / paths.consume_queue_ext.name if self._has_ext else None
        shapes = [
            QueueShape(
                new / paths.consume_queue.name,
                self._file_bytes(
                    paths.consume_queue,
                    self._options.queue_file_bytes or defaults.mapped_file_size_consume_queue,
                    ENTRY_BYTES,
                ),
                ext_directory=ext,
                ext_file_bytes=self._file_bytes(
                    paths.consume_queue_ext, defaults.mapped_file_size_consume_queue_ext, 1
                ),
            )
        ]
        if not self._is_live and any(manifest.batch_parts for _, manifest in scanned):
            default = defaults.mapper_file_size_batch_consume_queue
            shapes.append(
                QueueShape(
                    new / paths.batch_consume_queue.name,
                    self._file_bytes(paths.batch_consume_queue, default, BATCH_ENTRY.size),
                    is_batch=True,
                )
            )
        tasks: list[QueueTask] = []
        files = OsFiles.like(self._work)
        for shape in shapes:
            files.make_directory(shape.directory)
            tasks += plan_queues(scanned, shape, tasks=cores * _QUEUE_TASKS_PER_CORE)
        return tasks

    @staticmethod
    def _file_bytes(root: Path, default: int, entry_bytes: int) -> int:
        """The length of the store's files, which is kept (as QueueTable.load does)."""
        for topic in names_in(root):
            for queue in names_in(path_below(root, topic)):
                length = max(
                    (each.stat().st_size for each in path_below(root, topic, queue).iterdir()), default=0
                )
                if length:
                    return length
        return -(-default // entry_bytes) * entry_bytes

    def _plan_index(self, scanned: Sequence[tuple[Path, ScanManifest]]) -> list[IndexFileTask]:
        shape = self._index_shape()
        existing = [name for name in names_in(self._paths.index) if name.isascii() and name.isdigit()]
        sources = [(source, manifest.keys) for source, manifest in scanned]
        total, capacity = sum(keys for _, keys in sources), shape.entries - 1
        times_ms = [
            int(next(fetch_keys(sources, first, 1)).timestamps_ms[0]) for first in range(0, total, capacity)
        ]
        OsFiles.like(self._work).make_directory(self._new / "index")
        return plan_index(scanned, self._new / "index", shape=shape, names=index_names(times_ms, existing))

    def _index_shape(self) -> Shape:
        """The shape of the last index file, which is kept (as MessageIndex.load does)."""
        wanted = self._options.index_shape or DEFAULT_SHAPE
        files = OsFiles()
        for name in reversed(
            [name for name in names_in(self._paths.index) if name.isascii() and name.isdigit()]
        ):
            fd = files.open(self._paths.index / name)
            try:
                length = files.length(fd)
                if length in (0, wanted.file_bytes):
                    continue
                header = IndexHeader.decode(files.read_at(fd, HEADER_BYTES, 0))
                found = find_shape(files, fd, length, header)
            finally:
                files.close(fd)
            if found is not None:
                return found
        return wanted
