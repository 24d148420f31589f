"""compact: topics with cleanup.policy=COMPACTION keep the last value of each key.

The previous generation and the queue's new messages are read in pieces; Spark finds the newest offset of each
key, however many keys there are; one task per queue copies the kept records into the next generation, in order. A
rename then makes the generation current. A job killed before that has changed nothing, and a new run repeats the
work. A broker may serve the store meanwhile; it uses the new generation within a second
(``mqspark.store.compaction.compactedqueues``).

If a RocketMQ broker has compacted a queue, offsets that are neither in a generation nor in the log are read from
RocketMQ's files. A store that comes from RocketMQ, even repeatedly, thus serves the same messages here
(``mqspark.store.compaction.rocketcompaction``).

A record with an empty body is a tombstone: it deletes its key. It is removed when it is older than the delete
retention, so that every reader within that time sees the deletion. A record without a key is not kept (brokers
refuse such messages).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mqspark.arrow.files.logfiles import local_log
from mqspark.base.clock import wall_ms
from mqspark.base.names import path_below
from mqspark.errors import ConfigError, StoreLocked
from mqspark.record.recordlayout import QUEUE_OFFSET_AT, queue_offset_of
from mqspark.store.compaction.compactedqueues import (
    COMPACT_LOCK,
    COMPACTED,
    DELETE_RETENTION_MS,
    Current,
    Generation,
    GenerationWriter,
    adopt,
    compaction_topics,
    read_current,
)
from mqspark.store.compaction.rocketcompaction import RocketCompaction
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.durable import DurableNote
from mqspark.store.tools.reader import READ_OFFSETS, StoreReader
from mqspark_jobs.job import ProgressLine, Summary
from mqspark_jobs.rowfiles import SPAN_BYTES
from pyspark_pymq.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PIECE_OFFSETS = 1 << 20
_OLD, _THEIRS = (-1, -1), (-2, -2)
"""Used in place of a range of offsets: the previous generation; RocketMQ's files."""
_LOCK_WAIT_S = 600
"""How long a run waits for the broker's own compaction, which works on one queue at a time."""


@dataclass(frozen=True, slots=True)
class CompactOptions:
    store: Path
    """storePathRootDir, on this host."""
    commit_log: str | None = None
    topics: tuple[str, ...] = ()
    """Empty: the topics with the attribute."""
    delete_retention_ms: int = DELETE_RETENTION_MS
    min_dirty_ratio: float = 0.0
    """A queue is skipped while the share of its new messages is smaller."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """One queue: its previous generation, and the offsets [start, end) that are new."""

    topic: str
    queue_id: int
    current: Current | None
    start: int
    end: int
    has_theirs: bool = False
    """Whether RocketMQ has compacted the offsets between the previous generation and ``start``."""

    @property
    def is_partial(self) -> bool:
        """Whether keys whose last value is older may be missing (``Current.is_partial``)."""
        was_partial = self.current is not None and self.current.is_partial
        return was_partial or (not self.has_theirs and self.start > self.old_end)

    @property
    def old_end(self) -> int:
        """The end of the offsets in the previous generation."""
        return self.current.end if self.current is not None else 0

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The ranges to read; the previous generation and RocketMQ's files are one piece each."""
        kept = [_OLD] if self.current is not None else []
        theirs = [_THEIRS] if self.has_theirs else []
        new = [
            (low, min(low + _PIECE_OFFSETS, self.end)) for low in range(self.start, self.end, _PIECE_OFFSETS)
        ]
        return [*kept, *theirs, *new]


def plan_queue(
    topic: str,
    queue_id: int,
    current: Current | None,
    low: int,
    high: int,
    min_dirty_ratio: float,
    *,
    has_theirs: bool = False,
) -> QueuePlan | None:
    """The plan; None if there is nothing to do. ``low``, ``high``: the queue's offsets. ``has_theirs``: whether
    RocketMQ has the offsets between the generation and ``low``."""
    if has_theirs and high > 0:
        return QueuePlan(topic, queue_id, current, low, high, has_theirs=True)
    start = max(low, current.end if current is not None else 0)
    kept = current.messages if current is not None else 0
    if high <= start or (high - start) / (kept + high - start) < min_dirty_ratio:
        return None
    return QueuePlan(topic, queue_id, current, start, high)


# --- the job --------------------------------------------------------------------------------------------------


def check(options: CompactOptions) -> None:
    """Raises ConfigError for a directory that is not a store and for an unknown topic."""
    if not (options.store / "consumequeue").is_dir():
        raise ConfigError.of("store", f"{options.store} is not a store")
    for topic in options.topics:
        if not path_below(options.store / "consumequeue", topic).is_dir():
            raise ConfigError.of("topic", f"the store has no queues of {topic}")
    if not 0 <= options.min_dirty_ratio <= 1 or options.delete_retention_ms < 0:
        raise ConfigError(
            "min_dirty_ratio is between 0 and 1, delete_retention_ms not negative", key="min_dirty_ratio"
        )


def run(options: CompactOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Raises ConfigError, StoreError, OSError."""
    check(options)
    with local_log(options.commit_log) as commit_log:
        return _run(replace(options, commit_log=commit_log), spark, progress)


def _run(options: CompactOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    started = time.monotonic()
    store = options.store
    topics = options.topics or tuple(compaction_topics(store))
    files = OsFiles.like(store / "consumequeue")
    files.make_directory(store / COMPACTED)
    lock_path = store / COMPACT_LOCK
    lock = _locked(files, lock_path, progress)
    try:
        plans = _plans(options, topics)
        kept = _compact(options, plans, spark, progress) if plans else {}
        for number, plan in enumerate(plans):
            _publish(store, plan, kept.get(number))
        progress.show("compacted", len(plans), len(plans), "queues")
    finally:
        files.unlock(lock_path, lock)
    read = sum(plan.end - plan.start + (plan.current.messages if plan.current else 0) for plan in plans)
    messages = sum(int(row["messages"]) for row in kept.values())
    seconds = time.monotonic() - started
    return {
        "job": "compact",
        "topics": len(topics),
        "queues": len(plans),
        "records_read": read,
        "records_kept": messages,
        "bytes_kept": sum(int(row["size_bytes"]) for row in kept.values()),
        "elapsed_s": round(seconds, 3),
        "records_per_s": round(read / seconds),
    }


def _locked(files: OsFiles, path: Path, progress: ProgressLine) -> int:
    """Raises StoreLocked when the lock is not free in time."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return files.lock(path, alone=False)
        except StoreLocked:
            if time.monotonic() >= deadline:
                raise
        progress.show("waiting for another compaction", 0, 1, "locks")
        time.sleep(0.2)


def _plans(options: CompactOptions, topics: Iterable[str]) -> list[QueuePlan]:
    plans = []
    synced = DurableNote(StorePaths(options.store).abort, OsFiles()).load()
    """Only synced records may replace older values, because a power cut may revert others. -1: the broker has
    stopped, or is RocketMQ's."""
    for topic in topics:
        reader = StoreReader(options.store, options.commit_log)
        for queue_id in reader.queue_ids(topic):
            low, high = reader.bounds(topic, queue_id)
            high = reader.end_before(topic, queue_id, low, high, synced)
            current = read_current(_directory(options.store, topic, queue_id))
            theirs = RocketCompaction(options.store, topic, queue_id)
            has_theirs = (
                bool(theirs)
                if current is None
                else current.end < low and bool(theirs.offsets(current.end, low))
            )
            plan = plan_queue(
                topic, queue_id, current, low, high, options.min_dirty_ratio, has_theirs=has_theirs
            )
            if plan is not None:
                plans.append(plan)
    return plans


def _compact(
    options: CompactOptions, plans: list[QueuePlan], spark: SparkSession, progress: ProgressLine
) -> dict[int, dict[str, Any]]:
    from pyspark.sql import functions as f

    pieces = [(number, low, high) for number, plan in enumerate(plans) for low, high in plan.pieces]
    progress.show("reading", 0, len(pieces), "pieces of queues")
    store, commit_log = str(options.store), options.commit_log

    def keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                plan = plans[row["queue"]]
                yield from read_keys(store, commit_log, plan, row["queue"], row["low"], row["high"])

    def copied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_generations(store, commit_log, plans, batches)

    work = spark.createDataFrame(pieces, spark_schema(_PIECE)).repartition(len(pieces))
    newest = (
        work.mapInArrow(keys, spark_schema(_KEY))
        .groupBy("queue", "key")
        # With the queue: a session may leave out what is grouped by (spark.sql.retainGroupColumns).
        .agg(f.max(f.struct("offset", "tombstone", "time", "queue")).alias("last"))
        .select("last.queue", "last.offset", "last.tombstone", "last.time")
    )
    oldest_tombstone_ms = wall_ms() - options.delete_retention_ms
    is_wanted = ~f.col("tombstone") | (f.col("time") >= oldest_tombstone_ms)
    wanted = newest.where(is_wanted).select("queue", "offset")
    placed = wanted.repartition("queue").sortWithinPartitions("queue", "offset")
    rows = placed.mapInArrow(copied, spark_schema(_WRITTEN)).collect()
    # A task that was retried has written two files; each names its attempt.
    return {row.queue: row.asDict() for row in rows}


_PIECE = {"queue": "int", "low": "bigint", "high": "bigint"}
_KEY = {"queue": "int", "key": "string", "offset": "bigint", "tombstone": "boolean", "time": "bigint"}
_WRITTEN = {
    "queue": "int",
    "log": "string",
    "entries": "string",
    "messages": "bigint",
    "size_bytes": "bigint",
}


def _publish(store: Path, plan: QueuePlan, written: dict[str, Any] | None) -> None:
    directory = _directory(store, plan.topic, plan.queue_id)
    number = plan.current.generation + 1 if plan.current is not None else 1
    if written is None:  # nothing is left of the queue
        writer = GenerationWriter(directory, f"{number}-empty")
        writer.finish()
        written = {
            "log": str(writer.log_path),
            "entries": str(writer.queue_path),
            "messages": 0,
            "size_bytes": 0,
        }
    current = Current(number, plan.end, int(written["messages"]), int(written["size_bytes"]), plan.is_partial)
    adopt(directory, current, Path(written["log"]), Path(written["entries"]))


def _directory(store: Path, topic: str, queue_id: int) -> Path:
    return path_below(store / COMPACTED, topic, queue_id)


# --- what workers run -----------------------------------------------------------------------------------------


def read_keys(
    store: str, commit_log: str | None, plan: QueuePlan, number: int, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    """Key, offset, whether it is a tombstone, and store time of each record of one piece."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from mqspark.arrow.records.decode import Decoder
    from mqspark.arrow.records.records import Records

    decoder = Decoder(("key", "offset", "timestamp"), topic=plan.topic, broker="", queue_id=plan.queue_id)

    def rows(records: Records, positions: Any) -> Iterator[pa.RecordBatch]:
        # Arrow reserves memory for the whole range that a gather spans.
        first = 0
        while first < len(positions):
            last = max(first + 1, int(positions.searchsorted(positions[first] + SPAN_BYTES)))
            yield keys(records, positions[first:last])
            first = last

    def keys(records: Records, positions: Any) -> pa.RecordBatch:
        batch = decoder(records, positions)
        # Only the lengths of bodies are read, so memory does not depend on the bodies.
        batch = batch.append_column("tombstone", pa.array(records.body_lengths(positions) == 0))
        named = batch.filter(batch.column("key").is_valid())
        times = named.column("timestamp").cast(pa.int64())
        return pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(number, pa.int32()), named.num_rows),
                named.column("key"),
                named.column("offset"),
                named.column("tombstone"),
                pc.divide(times, 1000),
            ],
            names=["queue", "key", "offset", "tombstone", "time"],
        )

    if (low, high) == _THEIRS:
        for view, at in RocketCompaction(Path(store), plan.topic, plan.queue_id).runs():
            records = Records(view)
            offsets = records.longs(at + QUEUE_OFFSET_AT)
            older = at[(plan.old_end <= offsets) & (offsets < plan.start)]
            for first in range(0, len(older), READ_OFFSETS):
                yield from rows(records, older[first : first + READ_OFFSETS])
        return
    if (low, high) == _OLD and plan.current is not None:
        generation = Generation(_directory(Path(store), plan.topic, plan.queue_id), plan.current)
        records = Records(generation.view)
        positions = generation.entries["position"]
        for first in range(0, len(positions), READ_OFFSETS):
            yield from rows(records, positions[first : first + READ_OFFSETS])
        return
    reader = StoreReader(store, commit_log)
    for first in range(low, high, READ_OFFSETS):
        entries = reader.entries(plan.topic, plan.queue_id, first, min(first + READ_OFFSETS, high))
        for piece in reader.pieces(entries["position"], entries["size"].astype(np.int64), SPAN_BYTES):
            yield from rows(Records(piece.buffer), piece.places)


def write_generations(
    store: str, commit_log: str | None, plans: list[QueuePlan], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Copies the records of sorted (queue, offset) rows. Yields one row for each complete queue."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    copier: _CompactCopier | None = None
    for batch in batches:
        queues, offsets = batch.column("queue").to_numpy(), batch.column("offset").to_numpy()
        for number in np.unique(queues).tolist():
            if copier is None or copier.number != number:
                if copier is not None:
                    yield copier.finish()
                copier = _CompactCopier(store, commit_log, plans[number], number, attempt)
            copier.copy(offsets[queues == number])
    if copier is not None:
        yield copier.finish()
    else:
        yield pa.RecordBatch.from_pylist([], _written_schema())


def _written_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("queue", pa.int32()),
            ("log", pa.string()),
            ("entries", pa.string()),
            ("messages", pa.int64()),
            ("size_bytes", pa.int64()),
        ]
    )


class _CompactCopier:
    """Writes the next generation of one queue."""

    def __init__(
        self, store: str, commit_log: str | None, plan: QueuePlan, number: int, attempt: int
    ) -> None:
        directory = _directory(Path(store), plan.topic, plan.queue_id)
        self.number = number
        self._plan = plan
        self._reader = StoreReader(store, commit_log)
        self._old = Generation(directory, plan.current) if plan.current is not None else None
        self._theirs = RocketCompaction(Path(store), plan.topic, plan.queue_id) if plan.has_theirs else None
        self._writer = GenerationWriter(directory, f"next-{attempt}")

    def copy(self, offsets: Any) -> None:
        old_end = self._plan.old_end
        for offset in offsets[offsets < old_end].tolist():
            if self._old is not None:
                index = int(self._old.entries["offset"].searchsorted(offset))
                code = int(self._old.entries["tags_code"][index])
                self._writer.append(self._old.record(offset), offset, code)
        new = offsets[offsets >= old_end]
        if self._theirs is not None:
            for offset in new[new < self._plan.start].tolist():
                record, code = self._theirs.record(offset)
                self._writer.append(record, offset, code)
            new = new[new >= self._plan.start]
        while len(new):
            low = int(new[0])
            here = new[: int(new.searchsorted(low + READ_OFFSETS))]
            entries = self._reader.entries(self._plan.topic, self._plan.queue_id, low, int(here[-1]) + 1)
            wanted = set(here.tolist())
            for position, size, code in zip(
                entries["position"].tolist(),
                entries["size"].tolist(),
                entries["tags_code"].tolist(),
                strict=True,
            ):
                record = memoryview(self._reader.record(position, size))
                offset = queue_offset_of(record)
                if offset in wanted:
                    self._writer.append(record, offset, code)
            new = new[len(here) :]

    def finish(self) -> pa.RecordBatch:
        import pyarrow as pa

        writer = self._writer
        writer.finish()
        row = (self.number, str(writer.log_path), str(writer.queue_path), writer.messages, writer.size_bytes)
        names = _written_schema().names
        return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True))], _written_schema())
