"""rebuild-index: ConsumeQueues and index files made anew from the CommitLog, in parallel by segment.

The plan is made of names, lengths and manifests alone. Work goes to ``mqspark.rebuild`` in the store's root and stays
there when the job is killed; run again, it goes on with what is missing.

* Nobody serves the store: the job holds its lock, and at the end swaps ``consumequeue`` and ``index`` as a whole by
  renaming. Killed in between, the next run renames the rest; a broker that starts instead builds what is missing.
* A broker serves it: only files whose last entry lies in sealed segments are compared with the broker's own and
  replaced where they differ, one by one. The files that are being written stay.

A queue without a record in the log keeps its last file: it says where the queue's offsets go on. BatchConsumeQueues,
whose entries are numbered from the first record that the log still has, and queues with ConsumeQueueExt are made as a
whole, so only when nobody serves the store.
"""

from __future__ import annotations

import filecmp
import heapq
import os
import shutil
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mqspark.errors import ConfigError, StoreLocked
from mqspark.message import LMQ_PREFIX
from mqspark.store.batchqueue import BATCH_ENTRY, batch_topics
from mqspark.store.config import DEFAULT_DELAY_LEVELS, StoreConfig
from mqspark.store.consumequeue import ENTRY, ENTRY_BYTES
from mqspark.store.files import OsFiles
from mqspark.store.index import MessageIndex
from mqspark.store.indexfile import DEFAULT_SHAPE, HEADER_BYTES, Header, Shape, find_shape
from mqspark.store.layout import StorePaths, file_start
from mqspark.store.rebuild import (
    QueuePart,
    QueueShape,
    ScanManifest,
    build_index_file,
    build_queue,
    fetch_keys,
    scan_segment,
)
from mqspark_jobs.job import Progress, Summary, run_tasks
from pyspark_pymq.logfiles import LogFile, find_log, list_log, local_copy, segment_bytes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "IndexTask",
    "QueueTask",
    "RebuildOptions",
    "ScanTask",
    "check",
    "plan_index",
    "plan_queues",
    "plan_scans",
    "run",
]

_WORK = "mqspark.rebuild"
_QUEUE_TASKS_PER_CORE = 3


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    store: Path
    """storePathRootDir."""
    commit_log: str | None = None
    """Path or URL; None: ``commitlog`` in the store."""
    delay_levels: str = DEFAULT_DELAY_LEVELS
    verify_crc: bool = True
    with_index: bool = True
    queue_file_bytes: int | None = None
    """For a store that has no queue file yet; None: RocketMQ's default."""
    index_shape: Shape | None = None
    """The same for index files."""


@dataclass(frozen=True, slots=True)
class ScanTask:
    file: LogFile
    segment_bytes: int
    directory: Path
    identity: str
    delay_levels: str
    batch_topics: frozenset[str]
    verify_crc: bool
    multi_dispatch: bool
    with_times: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class QueueTask:
    """Whole queues: for each the scan directories and rows that hold its entries, in the log's order."""

    queues: tuple[tuple[tuple[Path, QueuePart], ...], ...]
    shape: QueueShape


@dataclass(frozen=True, slots=True)
class IndexTask:
    sources: tuple[tuple[Path, int], ...]
    number: int
    path: Path
    shape: Shape


@dataclass(frozen=True, slots=True)
class BuiltQueue:
    topic: str
    queue_id: int
    max_offset: int
    entries: int
    lost_entries: int


# --- the plan: pure functions ---------------------------------------------------------------------------------


def plan_scans(
    log: Sequence[LogFile],
    work: Path,
    options: RebuildOptions,
    batch_topics: frozenset[str],
    *,
    sealed_only: bool,
    multi_dispatch: bool = False,
    with_times: bool = False,
) -> list[ScanTask]:
    """One task a segment. ``sealed_only`` leaves out the last one, which is being written."""
    size = segment_bytes_of(list(log))
    wanted = log[:-1] if sealed_only else log
    return [
        ScanTask(
            file,
            size,
            work / "scan" / f"{file.start:020d}",
            f"2:{file.length}:{file.stamp}:{options.delay_levels}:{options.verify_crc}:{sorted(batch_topics)}:"
            f"{multi_dispatch}:{with_times}",
            options.delay_levels,
            batch_topics,
            options.verify_crc,
            multi_dispatch,
            with_times,
            is_last=file is log[-1],
        )
        for file in wanted
    ]


def plan_queues(
    scanned: Sequence[tuple[Path, ScanManifest]], shape: QueueShape, *, tasks: int
) -> list[QueueTask]:
    """Every queue in exactly one task; tasks of like numbers of entries."""
    queues: dict[tuple[str, int], list[tuple[Path, QueuePart]]] = {}
    for source, manifest in scanned:
        for part in manifest.batch_parts if shape.is_batch else manifest.parts:
            queues.setdefault((part.topic, part.queue_id), []).append((source, part))
    loads = [(0, index) for index in range(min(tasks, len(queues)))]
    chosen: list[list[tuple[tuple[Path, QueuePart], ...]]] = [[] for _ in loads]
    weights = {key: sum(part.count for _, part in parts) for key, parts in queues.items()}
    for key in sorted(queues, key=lambda key: (-weights[key], key)):
        load, index = heapq.heappop(loads)
        chosen[index].append(tuple(queues[key]))
        heapq.heappush(loads, (load + weights[key], index))
    return [QueueTask(tuple(each), shape) for each in chosen]


def plan_index(
    scanned: Sequence[tuple[Path, ScanManifest]], directory: Path, *, shape: Shape, names: Sequence[str]
) -> list[IndexTask]:
    """One task for each index file that the keys fill."""
    sources = tuple((source, manifest.keys) for source, manifest in scanned)
    capacity = shape.entries - 1
    count = -(-sum(keys for _, keys in sources) // capacity)
    if count > len(names):
        raise ValueError(f"{count} index files and {len(names)} names")
    return [IndexTask(sources, number, directory / names[number], shape) for number in range(count)]


def index_names(times_ms: Sequence[int], existing: Sequence[str]) -> list[str]:
    """Names of index files that begin at these store times: those there are, then by time, always ascending.

    A broker names a file by the local time of its creation, which nothing else keeps.
    """
    names = list(existing[: len(times_ms)])
    for time_ms in times_ms[len(names) :]:
        local = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()
        name = local.strftime("%Y%m%d%H%M%S%f")[:17]
        names.append(max(name, f"{int(names[-1]) + 1:017d}") if names else name)
    return names


# --- tasks: what workers run ----------------------------------------------------------------------------------


def scan(task: ScanTask) -> ScanManifest:
    with local_copy(task.file) as path:
        return scan_segment(
            path,
            task.file.start,
            task.segment_bytes,
            task.directory,
            identity=task.identity,
            delay_levels=task.delay_levels,
            batch_topics=set(task.batch_topics),
            verify_crc=task.verify_crc,
            is_last=task.is_last,
            multi_dispatch=task.multi_dispatch,
            with_times=task.with_times,
        )


def write_queues(task: QueueTask) -> list[BuiltQueue]:
    built = []
    for parts in task.queues:
        topic, queue_id = parts[0][1].topic, parts[0][1].queue_id
        # What an attempt before this one has written would be taken for the queue's beginning.
        for directory in (task.shape.directory, task.shape.ext_directory):
            if directory is not None:
                shutil.rmtree(directory / topic / str(queue_id), ignore_errors=True)
        built.append(BuiltQueue(topic, queue_id, *build_queue(parts, task.shape)))
    return built


def write_index_file(task: IndexTask) -> int:
    return build_index_file(task.sources, task.number, task.path, shape=task.shape).next_number - 1


# --- the job --------------------------------------------------------------------------------------------------


def check(options: RebuildOptions) -> None:
    """Raises ConfigError for a directory that is no store: nothing is written into it."""
    if not options.store.is_dir():
        raise ConfigError(f"store: {options.store} is no directory", key="store")
    find_log(options.commit_log or str(StorePaths(options.store).commit_log))


def run(options: RebuildOptions, spark: SparkSession, progress: Progress) -> Summary:
    """Raises ConfigError, StoreError, OSError."""
    check(options)
    paths = StorePaths(options.store)
    work = options.store / _WORK
    work.mkdir(exist_ok=True)
    files = OsFiles()
    own_lock = files.lock(work / "lock")
    try:
        try:
            store_lock = files.lock(paths.lock)
        except StoreLocked:
            return _Rebuild(options, paths, work, spark, progress, is_live=True).run()
        try:
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
        progress: Progress,
        *,
        is_live: bool,
    ) -> None:
        self._options = options
        self._paths = paths
        self._work = work
        self._new = work / "new"
        self._spark = spark
        self._progress = progress
        self._is_live = is_live

    def run(self) -> Summary:
        started = time.monotonic()
        options = self._options
        swapped_before = self._is_ready()
        scanned: list[tuple[Path, ScanManifest]] = []
        built: list[BuiltQueue] = []
        keys = 0
        log = list_log(options.commit_log or str(self._paths.commit_log))
        if not swapped_before:
            scanned = self._scan(log)
            shutil.rmtree(self._new, ignore_errors=True)
            built = self._build_queues(scanned)
            if options.with_index:
                keys = self._build_index(scanned)
        summary: Summary = {
            "job": "rebuild-index",
            "mode": "sealed segments of a live broker" if self._is_live else "offline",
            "segments": len(scanned),
            "records": sum(manifest.records for _, manifest in scanned),
            "queues": len(built),
            "queue_entries": sum(queue.entries for queue in built),
            "lost_entries": sum(queue.lost_entries for queue in built),
            "index_keys": keys,
            "damaged": [[low, high] for _, manifest in scanned for low, high in manifest.damaged],
            "resumed_swap": swapped_before,
        }
        if self._is_live:
            summary |= self._replace_files(scanned)
        else:
            if not swapped_before:
                self._keep_silent_queues({(queue.topic, queue.queue_id) for queue in built})
                self._mark_ready(scanned)
            self._swap()
        for leftover in ("scan", "new", "old"):
            shutil.rmtree(self._work / leftover, ignore_errors=True)
        seconds = time.monotonic() - started
        summary["elapsed_s"] = round(seconds, 3)
        summary["records_per_s"] = round(summary["records"] / seconds)
        return summary

    # --- build ------------------------------------------------------------------------------------------------

    def _scan(self, log: list[LogFile]) -> list[tuple[Path, ScanManifest]]:
        paths = self._paths
        known = frozenset(_names(paths.batch_consume_queue)) | batch_topics(
            paths.config / "topics.json", OsFiles()
        )
        while True:
            scans = plan_scans(
                log,
                self._work,
                self._options,
                known,
                sealed_only=self._is_live,
                # A store with LMQ queues is one whose broker dispatches to them.
                multi_dispatch=any(name.startswith(LMQ_PREFIX) for name in _names(paths.consume_queue)),
                with_times=self._has_ext,
            )
            manifests = run_tasks(self._spark, scan, scans, self._progress, "scanned", "segments")
            found = {topic for manifest in manifests for topic in manifest.batch_topics}
            if found <= known:
                return [(task.directory, manifest) for task, manifest in zip(scans, manifests, strict=True)]
            # A topic turned out to have batches: what was taken for queue entries of another kind is read again.
            known |= found

    @property
    def _has_ext(self) -> bool:
        """A store with units is one whose broker writes them."""
        return not self._is_live and bool(_names(self._paths.consume_queue_ext))

    def _build_queues(self, scanned: Sequence[tuple[Path, ScanManifest]]) -> list[BuiltQueue]:
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
        built: list[BuiltQueue] = []
        for shape in shapes:
            shape.directory.mkdir(parents=True)
            tasks = plan_queues(scanned, shape, tasks=cores * _QUEUE_TASKS_PER_CORE)
            results = run_tasks(self._spark, write_queues, tasks, self._progress, "built", "groups of queues")
            built += [queue for queues in results for queue in queues]
        return built

    @staticmethod
    def _file_bytes(root: Path, default: int, entry_bytes: int) -> int:
        """A store keeps the length that its files have (as QueueTable.load does)."""
        for topic in _names(root):
            for queue in _names(root / topic):
                length = max((each.stat().st_size for each in (root / topic / queue).iterdir()), default=0)
                if length:
                    return length
        return -(-default // entry_bytes) * entry_bytes

    def _build_index(self, scanned: Sequence[tuple[Path, ScanManifest]]) -> int:
        shape = self._index_shape()
        existing = [name for name in _names(self._paths.index) if name.isascii() and name.isdigit()]
        sources = [(source, manifest.keys) for source, manifest in scanned]
        total, capacity = sum(keys for _, keys in sources), shape.entries - 1
        times_ms = [
            int(next(fetch_keys(sources, first, 1)).timestamps_ms[0]) for first in range(0, total, capacity)
        ]
        tasks = plan_index(scanned, self._new / "index", shape=shape, names=index_names(times_ms, existing))
        (self._new / "index").mkdir(parents=True)
        return sum(run_tasks(self._spark, write_index_file, tasks, self._progress, "built", "index files"))

    def _index_shape(self) -> Shape:
        """An index keeps the shape that its last file has (as MessageIndex.load does)."""
        wanted = self._options.index_shape or DEFAULT_SHAPE
        files = OsFiles()
        for name in reversed(
            [name for name in _names(self._paths.index) if name.isascii() and name.isdigit()]
        ):
            fd = files.open(self._paths.index / name)
            try:
                length = files.length(fd)
                if length in (0, wanted.file_bytes):
                    continue
                header = Header.decode(files.read_at(fd, HEADER_BYTES, 0))
                found = find_shape(files, fd, length, header)
            finally:
                files.close(fd)
            if found is not None:
                return found
        return wanted

    # --- swap in as a whole -----------------------------------------------------------------------------------

    def _keep_silent_queues(self, built: set[tuple[str, int]]) -> None:
        for root in (self._paths.consume_queue, self._paths.batch_consume_queue):
            for topic in _names(root):
                for queue in _names(root / topic):
                    directory = root / topic / queue
                    names = [name for name in _names(directory) if file_start(name) is not None]
                    if queue.isdigit() and names and (topic, int(queue)) not in built:
                        target = self._new / root.name / topic / queue
                        target.mkdir(parents=True)
                        shutil.copyfile(directory / max(names), target / max(names))
                        units = self._paths.consume_queue_ext / topic / queue
                        if self._has_ext and root == self._paths.consume_queue and units.is_dir():
                            shutil.copytree(units, self._new / units.parent.parent.name / topic / queue)

    def _is_ready(self) -> bool:
        return (self._new / "ready").exists()

    def _mark_ready(self, scanned: Sequence[tuple[Path, ScanManifest]]) -> None:
        """From here on the new files are complete and on disk, whatever happens."""
        if (self._new / "index").is_dir():
            # The mark speaks of the new files: until they are in place it says nothing about the old ones.
            end = max((manifest.end for _, manifest in scanned), default=0)
            files = OsFiles()
            index = MessageIndex(
                self._new / "index",
                self._new / self._paths.index_mark.name,
                files,
                lambda: 0,
                shape=self._index_shape(),
            )
            index.load(clean=True, safe_timestamp_ms=0)
            index.skip(end)
            index.note_durable(end)
            job = index.begin_sync()
            if job is not None:
                job.run()
                if job.error is not None:
                    raise job.error
            index.close()
        _sync_tree(self._new)
        (self._new / "ready").touch()
        _sync_directory(self._new)

    def _swap(self) -> None:
        """Rename the old ones away and the new ones in; each step is skipped when it was done already."""
        old = self._work / "old"
        old.mkdir(exist_ok=True)
        paths = self._paths
        queues, ext = paths.consume_queue.name, paths.consume_queue_ext.name
        # Entries name units: neither old ones with new units nor the other way round may ever be seen together.
        self._away(queues)
        for name in (ext, paths.batch_consume_queue.name, queues, "index"):
            if name == "index" and (self._new / name).is_dir():
                for path in (paths.index_mark, paths.index_mark.with_name("mqspark.index.bak")):
                    path.unlink(missing_ok=True)
            self._away(name)
            if (self._new / name).is_dir():
                os.rename(self._new / name, self._options.store / name)
        mark = self._new / self._paths.index_mark.name
        if mark.exists():
            os.replace(mark, self._paths.index_mark)
        _sync_directory(self._options.store)
        (self._new / "ready").unlink(missing_ok=True)
        _sync_directory(self._new)

    def _away(self, name: str) -> None:
        """The old ones, if the new ones wait."""
        here, old = self._options.store / name, self._work / "old" / name
        if (self._new / name).is_dir() and here.is_dir():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(here, old)

    # --- or file by file --------------------------------------------------------------------------------------

    def _replace_files(self, scanned: Sequence[tuple[Path, ScanManifest]]) -> Summary:
        sealed_end = max((manifest.end for _, manifest in scanned), default=0)
        compared = replaced = 0
        built = [] if _names(self._paths.consume_queue_ext) else list((self._new / "consumequeue").rglob("*"))
        for new in sorted([*built, *(self._new / "index").rglob("*")]):
            live = self._options.store / new.relative_to(self._new)
            if not new.is_file() or not live.is_file():
                continue
            siblings = [name for name in _names(live.parent) if name.isdigit()]
            if live.name == max(siblings) or not _is_full(new, sealed_end):
                continue
            compared += 1
            if not filecmp.cmp(new, live, shallow=False):
                os.replace(new, live)
                _sync_directory(live.parent)
                replaced += 1
        return {"files_compared": compared, "files_replaced": replaced}


_LAST_POSITION = struct.Struct(">q")


def _is_full(path: Path, sealed_end: int) -> bool:
    """Whether the last entry of a queue or index file is used, and speaks of a sealed segment."""
    length = path.stat().st_size
    with path.open("rb") as file:
        if path.parent.name == "index":
            header = Header.decode(os.pread(file.fileno(), HEADER_BYTES, 0))
            last = os.pread(file.fileno(), ENTRY_BYTES, length - ENTRY_BYTES)
            (position,) = _LAST_POSITION.unpack_from(last, 4)
            return bool(0 < position == header.end_position and position < sealed_end)
        position, size, _ = ENTRY.unpack(os.pread(file.fileno(), ENTRY_BYTES, length - ENTRY_BYTES))
        return bool(size > 0 and position + size <= sealed_end)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _sync_tree(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        _sync_directory(Path(directory))


def _sync_directory(path: Path) -> None:
    OsFiles().sync_directory(path)
