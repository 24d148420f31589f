"""The tasks of rebuild-index: planned from names, lengths and manifests alone, and executed by workers.

Must not know Spark, or the final place of the new files.
"""

from __future__ import annotations

import heapq
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mqspark.arrow.files.logfiles import LogFile, local_copy, segment_bytes_of
from mqspark.base.names import path_below
from mqspark.store.config import DEFAULT_DELAY_LEVELS
from mqspark.store.index.indexfile import Shape
from mqspark.store.recovery.rebuild import (
    QueuePart,
    QueueShape,
    ScanManifest,
    build_index_file,
    build_queue,
    scan_segment,
)


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
    """Length of queue files in a store without any; None: RocketMQ's default."""
    index_shape: Shape | None = None
    """Shape of index files in a store without any; None: RocketMQ's default."""


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
    deleted: Mapping[str, int]
    is_last: bool


@dataclass(frozen=True, slots=True)
class QueueTask:
    """Whole queues: for each, the scan directories and rows that contain its entries, in log order."""

    queues: tuple[tuple[tuple[Path, QueuePart], ...], ...]
    shape: QueueShape


@dataclass(frozen=True, slots=True)
class IndexFileTask:
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


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build task."""

    queues: tuple[BuiltQueue, ...] = ()
    keys: int = 0


def plan_scans(
    log: Sequence[LogFile],
    work: Path,
    options: RebuildOptions,
    batch_topics: frozenset[str],
    *,
    sealed_only: bool,
    multi_dispatch: bool = False,
    with_times: bool = False,
    deleted: Mapping[str, int] | None = None,
) -> list[ScanTask]:
    """One task per segment. ``sealed_only`` skips the last one, which is being written. ``deleted``: topics and
    positions as in ``Deletions.positions``."""
    size = segment_bytes_of(list(log))
    deleted = deleted or {}
    deletions = zlib.crc32(repr(sorted(deleted.items())).encode())
    wanted = log[:-1] if sealed_only else log
    return [
        ScanTask(
            file,
            size,
            work / "scan" / f"{file.start:020d}",
            f"3:{file.length}:{file.stamp}:{options.delay_levels}:{options.verify_crc}:{sorted(batch_topics)}:"
            f"{multi_dispatch}:{with_times}:{deletions}",
            options.delay_levels,
            batch_topics,
            options.verify_crc,
            multi_dispatch,
            with_times,
            deleted,
            is_last=file is log[-1],
        )
        for file in wanted
    ]


def plan_queues(
    scanned: Sequence[tuple[Path, ScanManifest]], shape: QueueShape, *, tasks: int
) -> list[QueueTask]:
    """Every queue in exactly one task; tasks have similar numbers of entries."""
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
) -> list[IndexFileTask]:
    """One task per index file."""
    sources = tuple((source, manifest.keys) for source, manifest in scanned)
    capacity = shape.entries - 1
    count = -(-sum(keys for _, keys in sources) // capacity)
    if count > len(names):
        raise ValueError(f"{count} index files and {len(names)} names")
    return [IndexFileTask(sources, number, directory / names[number], shape) for number in range(count)]


def index_names(times_ms: Sequence[int], existing: Sequence[str]) -> list[str]:
    """Names of index files that begin at these store times: existing ones first, then by time, always ascending.

    A broker names a file after the local time of its creation, which is not stored anywhere else.
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
            deleted=task.deleted,
        )


def build(task: QueueTask | IndexFileTask) -> Built:
    if isinstance(task, IndexFileTask):
        header = build_index_file(task.sources, task.number, task.path, shape=task.shape)
        return Built(keys=header.next_number - 1)
    built = []
    for parts in task.queues:
        topic, queue_id = parts[0][1].topic, parts[0][1].queue_id
        # Output of an earlier attempt would be mistaken for the queue's beginning.
        for directory in (task.shape.directory, task.shape.ext_directory):
            if directory is not None:
                shutil.rmtree(path_below(directory, topic, queue_id), ignore_errors=True)
        built.append(BuiltQueue(topic, queue_id, *build_queue(parts, task.shape)))
    return Built(tuple(built))
