"""History in Delta and the live tail as one topic: archived ranges, the boundary between the two, and reading the
archive.

The archive is a Delta table partitioned by ``topic`` and ``date``, and beside it, in ``_mqspark/<broker>/``, a
manifest for each range of the log whose rows are verified to be in the table. The manifests define how far the
archive reaches: rows after them (from a job killed between writing and verifying) are not read. A queue's offsets
below the end that the manifests give come from Delta, all others from the broker: there is no gap and no overlap
at the boundary.

A manifest may say that its range was deleted before it could be archived; readers begin after it. When the offsets
of a queue start again, its topic was deleted and created again; readers see the new topic alone, as at the broker.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.files.deltafiles import DeltaFile, DeltaTable, delta_table, opened_parquet
from mqspark.arrow.files.locations import join, names, read_bytes, write_bytes
from mqspark.arrow.messagecolumns import HEADERS, PROPERTIES, arrow_schema, arrow_type
from mqspark.errors import ConfigError, MQError
from mqspark.message import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

MANIFESTS = "_mqspark"
"""Delta ignores what begins with an underscore."""
_LIFE_S = 5.0
_TASK_BYTES = 256 << 20
_BATCH_ROWS = 65_536
VERSION = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The verified contents of the table for [low, high) of one broker's log."""

    broker: str
    low: int
    high: int
    rows: int
    value_crcs: int
    """Sum of the lower 31 bits of the CRC-32 of all values, as stored in the log."""
    offsets: int
    positions: int
    """Sums of the queue offsets, and of the physical offsets relative to ``low``."""
    queues: dict[str, dict[str, list[int]]] = field(hash=False)
    """Topic to queue id to [first offset, end offset)."""
    v: int = VERSION
    is_gap: bool = False
    """Nothing of the range is in the table: it was deleted from the log before it could be archived."""

    def url(self, archive: str) -> str:
        return join(archive, MANIFESTS, self.broker, f"{self.low:020d}.json")

    def save(self, archive: str) -> None:
        document = asdict(self)
        if not self.is_gap:
            del document["is_gap"]  # readers of an earlier version refuse names that they do not know
        write_bytes(self.url(archive), json.dumps(document, sort_keys=True).encode())


def application(broker: str) -> str:
    """The name of the job's transactions for one broker. Their version is the end of the log that the table has."""
    return f"mqspark-archive:{broker}"


def refuse_older_table(url: str, table: DeltaTable, broker: str, high: int) -> None:
    """``high``: the end of the newest manifest, which is written after its rows. Raises MQError for a table from before
    it, which storage may show that answers with what it had: rows would be passed over."""
    if table.version < 0 or table.transactions.get(application(broker), high) < high:
        raise MQError(
            f"archive: the log of the table {url} ends before the manifest that says that the log of broker {broker} "
            f"is archived up to {high}: its storage has answered with an older list of files"
        )


def load_manifests(archive: str, broker: str) -> list[Manifest]:
    """The consecutive manifests from the first one on. Raises MQError for a file that is none."""
    chain: list[Manifest] = []
    for manifest in _all_manifests(archive, broker):
        if chain and manifest.low != chain[-1].high:
            break
        chain.append(manifest)
    return chain


def note_gap(archive: str, broker: str, high: int) -> None:
    """Record that the log between the consecutive manifests and ``high`` was deleted. What lies beyond a hole that an
    earlier run has left stays."""
    low = load_manifests(archive, broker)[-1].high
    while low < high:
        later = [each.low for each in _all_manifests(archive, broker) if each.low > low]
        Manifest(broker, low, min([high, *later]), 0, 0, 0, 0, {}, is_gap=True).save(archive)
        low = load_manifests(archive, broker)[-1].high


def _all_manifests(archive: str, broker: str) -> list[Manifest]:
    root = join(archive, MANIFESTS, broker)
    found = [_manifest(join(root, name)) for name in names(root) if name.endswith(".json")]
    return sorted(found, key=lambda each: each.low)


def _manifest(url: str) -> Manifest:
    data = read_bytes(url)
    try:
        return Manifest(**json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise MQError(f"archive: {url} is not a manifest: {str(error)[:200]}") from None


class Archive:
    """The archived range of each queue, for a driver; refreshed every few seconds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._ranges: dict[MessageQueue, tuple[int, int]] = {}
        self._floors: dict[MessageQueue, int] = {}
        self._highs: dict[str, int] = {}
        self._read_at = -_LIFE_S

    def ranges(self) -> Mapping[MessageQueue, tuple[int, int]]:
        """Raises ConfigError if nothing is archived, because reading without history would hide a mistyped URL."""
        if time.monotonic() - self._read_at >= _LIFE_S:
            ranges: dict[MessageQueue, tuple[int, int]] = {}
            floors: dict[MessageQueue, int] = {}
            highs: dict[str, int] = {}
            brokers = names(join(self.url, MANIFESTS))
            if not brokers:
                raise ConfigError.of(
                    "archive", f"nothing is archived at {self.url!r}; run the job archive first"
                )
            for broker in brokers:
                for manifest in load_manifests(self.url, broker):
                    if manifest.is_gap:
                        ranges = {
                            queue: ends for queue, ends in ranges.items() if queue.broker_name != broker
                        }
                    else:
                        highs[broker] = manifest.high
                    for topic, queues in manifest.queues.items():
                        for queue_id, (first, end) in queues.items():
                            queue = MessageQueue(topic, broker, int(queue_id))
                            known = ranges.get(queue)
                            if known is None or first < known[1]:
                                known, floors[queue] = (first, end), manifest.low
                            ranges[queue] = (known[0], end)
            self._ranges, self._floors, self._highs = ranges, floors, highs
            self._read_at = time.monotonic()
        return self._ranges

    def floors(self) -> Mapping[MessageQueue, int]:
        """For each queue of ``ranges``, the position in its broker's log before which its rows are those of a deleted
        topic of the same name, or lie before a gap."""
        self.ranges()
        return self._floors

    def table(self) -> DeltaTable:
        """The table, which is no older than the ranges. Raises MQError."""
        self.ranges()
        highs = self._highs
        table = delta_table(self.url)
        for broker, high in highs.items():
            refuse_older_table(self.url, table, broker, high)
        return table

    def split(self, wanted: Sequence[QueueRange]) -> tuple[list[QueueRange], list[QueueRange]]:
        """Split the ranges into those read from the archive and those read from the brokers."""
        ranges = self.ranges()
        archived, live = [], []
        for each in wanted:
            end = min(each.end, max(each.start, ranges.get(each.queue, (0, 0))[1]))
            if end > each.start:
                archived.append(QueueRange(each.queue, each.start, end))
            if each.end > end:
                live.append(QueueRange(each.queue, end, each.end))
        return archived, live


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Some files of one topic, and the ranges to read from them."""

    topic: str
    files: tuple[DeltaFile, ...]
    ranges: tuple[QueueRange, ...]
    columns: tuple[str, ...]
    floors: tuple[int, ...] = ()
    """For each range, the position in the broker's log before which its rows do not count; empty: none."""


def plan_archive(
    archive: Archive, wanted: Sequence[QueueRange], columns: tuple[str, ...]
) -> list[ArchiveTask]:
    """Tasks of about 256 MiB of files; files without a wanted offset are skipped by their statistics."""
    if not wanted:
        return []
    files = archive.table().files
    floors_of = archive.floors()
    tasks = []
    for topic in sorted({each.queue.topic for each in wanted}):
        ranges = tuple(each for each in wanted if each.queue.topic == topic)
        floors = tuple(floors_of.get(each.queue, 0) for each in ranges)
        low, high = min(each.start for each in ranges), max(each.end for each in ranges)
        here = [
            file
            for file in files
            if file.partition.get("topic") == topic
            and file.lowest.get("offset", low) < high
            and file.highest.get("offset", low) >= low
        ]
        here.sort(key=lambda file: (file.lowest.get("physicalOffset", 0), file.url))
        chosen: list[DeltaFile] = []
        size = 0
        for file in here:
            if chosen and size + file.size_bytes > _TASK_BYTES:
                tasks.append(ArchiveTask(topic, tuple(chosen), ranges, columns, floors))
                chosen, size = [], 0
            chosen.append(file)
            size += file.size_bytes
        if chosen:
            tasks.append(ArchiveTask(topic, tuple(chosen), ranges, columns, floors))
    return tasks


def first_offsets(
    table: DeltaTable, times_ms: Mapping[MessageQueue, int], floors: Mapping[MessageQueue, int] | None = None
) -> dict[MessageQueue, int]:
    """For each queue, the first archived offset whose store time is not before the given time; queues without one
    are omitted. Reads the time column of the candidate files, oldest first. ``floors``: as of ``Archive``."""
    found: dict[MessageQueue, int] = {}
    for topic in sorted({queue.topic for queue in times_ms}):
        wanted = {queue: time_ms for queue, time_ms in times_ms.items() if queue.topic == topic}
        files = [file for file in table.files if file.partition.get("topic") == topic]
        files.sort(key=lambda file: (file.lowest.get("physicalOffset", 0), file.url))
        for file in files:
            if not wanted:
                break
            if _time_ms(file.highest.get("timestamp")) >= min(wanted.values()):
                here = _first_in_file(file, wanted, floors or {})
                for queue in here:
                    del wanted[queue]
                found |= here
    return found


def _time_ms(text: str | None) -> float:
    """The timestamp in a file's statistics, rounded up; without statistics any time is possible."""
    if text is None:
        return math.inf
    return math.ceil(datetime.fromisoformat(text).timestamp() * 1000) + 1


def _first_in_file(
    file: DeltaFile, wanted: Mapping[MessageQueue, int], floors: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[MessageQueue, int] = {}
    with opened_parquet(file) as parquet:
        columns = ["broker", "partition", "offset", "timestamp", "physicalOffset"]
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
            times_ms = (
                batch.column("timestamp").cast(arrow_type("timestamp")).cast(pa.int64()).to_numpy() // 1000
            )
            offsets, partitions = batch.column("offset").to_numpy(), batch.column("partition").to_numpy()
            positions = batch.column("physicalOffset").to_numpy()
            for queue, time_ms in wanted.items():
                inside = (times_ms >= time_ms) & (partitions == queue.queue_id)
                inside &= positions >= floors.get(queue, 0)
                if inside.any():
                    inside &= pc.equal(batch.column("broker"), queue.broker_name).to_numpy(
                        zero_copy_only=False
                    )
                if inside.any():
                    first = int(offsets[inside].min())
                    found[queue] = min(found.get(queue, first), first)
    return found


def read_archive(task: ArchiveTask) -> Iterator[pa.RecordBatch]:
    """Runs in a worker: the wanted rows of the task's files."""
    import pyarrow as pa

    schema = arrow_schema(task.columns)
    stored = {PROPERTIES if name == HEADERS else name for name in task.columns if name != "topic"}
    needed = sorted(stored | {"broker", "partition", "offset", "physicalOffset"})
    for file in task.files:
        with opened_parquet(file) as parquet:
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=needed):
                kept = batch.filter(_wanted(batch, task))
                if kept.num_rows:
                    arrays = [_column(kept, name, task.topic) for name in task.columns]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _wanted(batch: pa.RecordBatch, task: ArchiveTask) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = batch.column("offset").to_numpy()
    partitions = batch.column("partition").to_numpy()
    positions = batch.column("physicalOffset").to_numpy()
    floors = task.floors or (0,) * len(task.ranges)
    chosen = np.zeros(batch.num_rows, bool)
    for broker in sorted({each.queue.broker_name for each in task.ranges}):
        here = pc.equal(batch.column("broker"), broker).to_numpy(zero_copy_only=False)
        for each, floor in zip(task.ranges, floors, strict=True):
            if each.queue.broker_name == broker:
                inside = (offsets >= each.start) & (offsets < each.end) & (positions >= floor)
                chosen |= here & inside & (partitions == each.queue.queue_id)
    return pa.array(chosen)


def _column(batch: pa.RecordBatch, name: str, topic: str) -> pa.Array:
    import pyarrow as pa

    from mqspark.arrow.records.decode import as_headers

    if name == "topic":
        return pa.repeat(pa.scalar(topic, arrow_type(name)), batch.num_rows)
    if name == HEADERS:
        return as_headers(batch.column(PROPERTIES).cast(arrow_type(PROPERTIES)))
    column: Any = batch.column(name)
    return column if column.type == arrow_type(name) else column.cast(arrow_type(name))
