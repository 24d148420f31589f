"""archive: the CommitLog to a Delta table, every visible record exactly once, proved range by range.

A run continues where the last one ended, by physical offset. The log is cut into units, at most one segment each; a few
units become one Delta commit, which carries the end of its last unit as the version of the transaction
``mqspark-archive:<broker>``: Delta drops a commit whose version it has seen, so a run that was killed in the middle
repeats nothing. After a commit the rows of each unit are read back from Delta and compared with the log (count, CRC-32
of the values, offsets), then the unit's manifest is written; a reader believes the manifests alone
(``pyspark_pymq.archive``). A local store's file ``mqspark.archived`` says how far that is.

Of a store that is being served, what a checkpoint has on disk is archived; of any other, all valid records.
"""

from __future__ import annotations

import itertools
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mqspark.errors import ConfigError, StoreCorrupt, StoreLocked
from mqspark.message import TRANSACTION_PREPARED_TYPE, is_system_topic
from mqspark.store.archived import ARCHIVED, decode_archived, encode_archived
from mqspark.store.checkpoint import Checkpoint
from mqspark.store.files import OsFiles
from mqspark.store.layout import StorePaths
from mqspark_jobs.job import Progress, Summary, run_tasks
from pyspark_pymq.archive import Manifest, load_manifests
from pyspark_pymq.deltafiles import delta_table
from pyspark_pymq.locations import is_remote, join, local_path, write_bytes
from pyspark_pymq.logfiles import LogFile, list_log, segment_bytes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArchiveOptions", "Unit", "archived_mark", "group_units", "plan_units", "run"]

_COLUMNS = (
    "key string, value binary, topic string, partition int, offset bigint, timestamp timestamp, tags string, "
    "broker string, bornTimestamp timestamp, msgId string, properties map<string,string>, physicalOffset bigint, "
    "sysFlag int"
)
_DEFAULT_COMMIT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    store: str
    """storePathRootDir, path or URL."""
    archive: str
    """Of the Delta table."""
    broker: str
    """Its name: what a queue is called by."""
    commit_log: str | None = None
    topics: str | None = None
    """A regular expression for whole names; None: all but system topics."""
    commit_bytes: int = _DEFAULT_COMMIT_BYTES
    """Of log in one Delta commit, about."""
    allow_gap: bool = False
    """Go on although segments were deleted that are not in the archive."""


@dataclass(frozen=True, slots=True)
class Unit:
    """[low, high) of the log, inside one segment."""

    file: LogFile
    segment_bytes: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class SurveyTask:
    unit: Unit
    broker: str
    topics: str | None


# --- the plan: pure functions ---------------------------------------------------------------------------------


def plan_units(
    log: Sequence[LogFile], low: int, high: int | None, *, cut_at: Iterable[int] = ()
) -> list[Unit]:
    """The range in pieces of at most one segment. ``cut_at``: where commits of an earlier run ended."""
    size = segment_bytes_of(list(log))
    cuts = sorted(cut_at)
    units = []
    for file in log:
        end = file.start + size
        first, last = max(low, file.start), end if high is None else min(high, end)
        if first >= last:
            continue
        bounds = [first, *(cut for cut in cuts if first < cut < last), last]
        units += [Unit(file, size, a, b) for a, b in itertools.pairwise(bounds)]
    return units


def group_units(units: Sequence[Manifest], commit_bytes: int, committed: int) -> list[list[Manifest]]:
    """Neighbours that become one commit; none holds both what is committed already and what is not."""
    groups: list[list[Manifest]] = []
    for unit in units:
        last = groups[-1] if groups else None
        if (
            last is not None
            and unit.high - last[0].low <= commit_bytes
            and (last[0].high <= committed) == (unit.high <= committed)
        ):
            last.append(unit)
        else:
            groups.append([unit])
    return groups


# --- a task: what workers run ---------------------------------------------------------------------------------


def survey(task: SurveyTask) -> Manifest:
    """What the log holds, counted from the log itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from pyspark_pymq.options import StoreOptions
    from pyspark_pymq.storeread import SegmentRange, read_segment

    unit = task.unit
    options = StoreOptions("", (), task.broker, unit.low, unit.high, fail_on_data_loss=False)
    columns = ("topic", "partition", "offset", "value", "physicalOffset", "sysFlag")
    pattern = None if task.topics is None else re.compile(task.topics)
    wanted: dict[str, bool] = {}
    queues: dict[str, dict[str, list[int]]] = {}
    rows = crcs = offsets = positions = 0
    partition = SegmentRange(unit.file, unit.segment_bytes, unit.low, unit.high)
    for batch in read_segment(partition, options, columns):
        for topic in pc.unique(batch.column("topic")).to_pylist():
            wanted.setdefault(topic, _is_wanted(topic, pattern))
        kept = pc.is_in(
            batch.column("topic"), pa.array([name for name, yes in wanted.items() if yes], pa.string())
        )
        visible = (batch.column("sysFlag").to_numpy() & TRANSACTION_PREPARED_TYPE) == 0
        batch = batch.filter(pc.and_(kept, pa.array(visible)))
        rows += batch.num_rows
        crcs += _crc_sum(batch.column("value"))
        offsets += int(batch.column("offset").to_numpy().sum())
        positions += int((batch.column("physicalOffset").to_numpy() - unit.low).sum())
        found = pa.table({name: batch.column(name) for name in ("topic", "partition", "offset")})
        ends = found.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
        for row in ends.to_pylist():
            first, end = row["offset_min"], row["offset_max"] + 1
            known = queues.setdefault(row["topic"], {}).setdefault(str(row["partition"]), [first, end])
            known[0], known[1] = min(known[0], first), max(known[1], end)
    return Manifest(task.broker, unit.low, unit.high, rows, crcs, offsets, positions, queues)


def _crc_sum(values: Any) -> int:
    """Of the CRC-32 of every value; that of nothing (a null) is 0."""
    import numpy as np

    _, offsets, data = values.buffers()
    if data is None:
        return 0
    view = memoryview(data)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].tolist()
    return sum(zlib.crc32(view[first:last]) for first, last in itertools.pairwise(bounds))


def _is_wanted(topic: str, pattern: re.Pattern[str] | None) -> bool:
    return pattern.fullmatch(topic) is not None if pattern is not None else not is_system_topic(topic)


# --- the job --------------------------------------------------------------------------------------------------


def run(options: ArchiveOptions, spark: SparkSession, progress: Progress) -> Summary:
    """Raises ConfigError, StoreCorrupt (what Delta holds is not what the log holds), OSError."""
    started = time.monotonic()
    log_url = options.commit_log or join(options.store, "commitlog")
    try:
        log = list_log(log_url)
    except FileNotFoundError:
        raise ConfigError(f"store: there is no CommitLog at {log_url}", key="store") from None
    if not log:
        raise ConfigError(f"store: there is no segment at {log_url}", key="store")
    proved = load_manifests(options.archive, options.broker)
    committed = committed_end(options)
    low = proved[-1].high if proved else log[0].start
    if low < log[0].start:
        if not options.allow_gap:
            raise ConfigError(
                f"store: the log begins at {log[0].start}, the archive ends at {low}: what lies between was deleted "
                "and cannot be archived; allow the gap to go on, the archive's reader then begins behind it",
                key="store",
            )
        low = log[0].start
    high = safe_end(options, log)
    units = plan_units(log, low, high, cut_at=[committed])
    surveyed = run_tasks(
        spark,
        survey,
        [SurveyTask(unit, options.broker, options.topics) for unit in units],
        progress,
        "surveyed",
        "ranges of the log",
    )
    if high is None and surveyed:
        surveyed[-1] = replace(surveyed[-1], high=_last_end(units[-1]))
        surveyed = [each for each in surveyed if each.high > each.low]
    groups = group_units(surveyed, options.commit_bytes, committed)
    rows = 0
    for number, group in enumerate(groups):
        progress.show("archived", number, len(groups), "commits")
        if group[-1].high > committed:
            _write(spark, options, log_url, group)
        _prove(spark, options, group)
        for manifest in group:
            manifest.save(options.archive)
        rows += sum(manifest.rows for manifest in group)
    progress.show("archived", len(groups), len(groups), "commits")
    end = surveyed[-1].high if surveyed else low
    if not is_remote(options.store):
        write_bytes(join(options.store, ARCHIVED), encode_archived(end))
    seconds = time.monotonic() - started
    return {
        "job": "archive",
        "archive": options.archive,
        "from_position": low,
        "to_position": end,
        "rows": rows,
        "commits": len(groups),
        "manifests": len(surveyed),
        "log_bytes": end - low,
        "elapsed_s": round(seconds, 3),
        "rows_per_s": round(rows / seconds),
    }


def archived_mark(store: str) -> int:
    """How far a local store is archived; 0 where nothing is."""
    return decode_archived(OsFiles().read(local_path(store) / ARCHIVED))


def safe_end(options: ArchiveOptions, log: Sequence[LogFile]) -> int | None:
    """Up to where records will never be taken back; None: as far as there are valid ones."""
    if is_remote(options.store):
        return None
    paths = StorePaths(local_path(options.store))
    files = OsFiles()
    try:
        files.unlock(paths.lock, files.lock(paths.lock))
    except StoreLocked:
        mark = Checkpoint.load(paths.checkpoint, paths.mark, files).position
        return max(mark, log[-1].start)
    return None


def committed_end(options: ArchiveOptions) -> int:
    """The end of the newest commit of this broker; 0 without one. By Delta's own record of its transactions."""
    return delta_table(options.archive).transactions.get(_application(options), 0)


def _application(options: ArchiveOptions) -> str:
    return f"mqspark-archive:{options.broker}"


def _last_end(unit: Unit) -> int:
    """Where the last valid record of an open segment ends."""
    from mqspark.store.rebuild import SegmentRecords
    from pyspark_pymq.logfiles import local_copy

    with local_copy(unit.file) as path:
        records = SegmentRecords(path, unit.file.start, unit.segment_bytes)
        end = unit.low
        for positions in records.between(unit.low, unit.high):
            last = int(positions[-1])
            end = unit.file.start + last + int.from_bytes(records.view[last : last + 4], "big")
        return end


def _write(spark: SparkSession, options: ArchiveOptions, log_url: str, group: Sequence[Manifest]) -> None:
    low, high = group[0].low, group[-1].high
    topics = sorted({topic for manifest in group for topic in manifest.queues})
    reader = spark.read.format("pymq").option("store", options.store).option("commitLog", log_url)
    reader = reader.option("broker", options.broker).option("failOnDataLoss", "false")
    reader = reader.option("startingPosition", low).option("endingPosition", high)
    if topics:
        reader = reader.option("topic", ",".join(topics))
    # Nothing to archive is a commit too: it moves the transaction's version on.
    visible = f"(sysFlag & {TRANSACTION_PREPARED_TYPE}) = 0" if topics else "false"
    frame = reader.schema(_COLUMNS).load().where(visible)
    writer = frame.selectExpr("*", "to_date(timestamp) date").write.format("delta").mode("append")
    writer = writer.option("txnAppId", _application(options)).option("txnVersion", high)
    writer.partitionBy("topic", "date").save(options.archive)


def _prove(spark: SparkSession, options: ArchiveOptions, group: Sequence[Manifest]) -> None:
    """The rows in Delta are those of the log, range by range. Raises StoreCorrupt."""
    low, high = group[0].low, group[-1].high
    table: DataFrame = spark.read.format("delta").load(options.archive)
    here = table.where(table.broker == options.broker).where(
        f"physicalOffset >= {low} AND physicalOffset < {high}"
    )
    bounds = " ".join(f"WHEN physicalOffset < {manifest.high} THEN {manifest.low}" for manifest in group)
    sums = here.selectExpr(f"CASE {bounds} END low", "crc32(value) crc", "offset", "physicalOffset").groupBy(
        "low"
    )
    found = {
        row.low: (row.n, row.crcs or 0, row.offsets, row.positions - row.n * row.low)
        for row in sums.agg(
            *_aggregates(
                "count(*) n", "sum(crc) crcs", "sum(offset) offsets", "sum(physicalOffset) positions"
            )
        ).collect()
    }
    for manifest in group:
        expected = (manifest.rows, manifest.value_crcs, manifest.offsets, manifest.positions)
        got = found.get(manifest.low, (0, 0, 0, 0))
        if got != expected:
            raise StoreCorrupt(
                f"the archive {options.archive} holds {got} (rows, CRCs, offsets, positions) of the log from "
                f"{manifest.low} to {manifest.high}, the log {expected}: nothing was marked as archived",
                path=options.archive,
                offset=manifest.low,
            )


def _aggregates(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    columns = []
    for text in texts:
        expression, _, name = text.rpartition(" ")
        columns.append(expr(expression).alias(name))
    return columns
