"""archive: copies the CommitLog to a Delta table, every visible record exactly once, verified range by range.

A run continues at the physical offset where the last one ended. The log is cut into units, pieces of segments.
Workers write each unit's rows as Parquet files directly from the log and sum them up. A few units become one
Delta commit. The end of its last unit is the version of the transaction ``mqspark-archive:<broker>``; a committed
version is not committed again, so a run after a kill repeats nothing. After a commit Spark reads the rows of each
unit back from Delta and compares them with the log (count, body CRCs, offsets). Then the unit's manifest is
written; readers rely on the manifests alone (``mqspark.arrow.cluster.archives``). In a local store the file
``mqspark.archived`` records the progress, unless only some topics are archived: a broker with deleteArchivedOnly
deletes the log up to there.

From a store in use, records up to the checkpoint are archived; from any other, all valid records.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mqspark.arrow.cluster.archives import Manifest, application, load_manifests, note_gap
from mqspark.arrow.files.deltafiles import delta_table
from mqspark.arrow.files.locations import is_remote, join, local_path, write_bytes
from mqspark.arrow.files.logfiles import LogFile, find_log, local_copy, segment_bytes_of
from mqspark.arrow.messagecolumns import COLUMNS, HEADERS
from mqspark.base.crc import crc32
from mqspark.errors import ConfigError, StoreCorrupt, StoreLocked
from mqspark.message import COMPRESSED, TRANSACTION_PREPARED_TYPE, is_system_topic
from mqspark.record.recordlayout import AT
from mqspark.store.disk.directory import refuse_unfinished
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.archivednote import ARCHIVED, encode_archived
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark_jobs.deltacommit import commit_files, make_table
from mqspark_jobs.job import ProgressLine, Summary, run_tasks
from mqspark_jobs.logcuts import cuts
from mqspark_jobs.rowfiles import ANY_RATIO, DATE, RowFile, RowFiles
from pyspark_pymq.lineage import lineage_of, table_dataset
from pyspark_pymq.schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {name: kind for name, kind in COLUMNS.items() if name != HEADERS} | {
    "flag": "int",
    "bornHost": "binary",
    DATE: "date",
}
_UNIT_BYTES = 128 << 20
_PIECE_BYTES = 8 << 20
_CRC_BITS = 0x7FFFFFFF
_DEFAULT_COMMIT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    store: str
    """storePathRootDir, path or URL."""
    archive: str
    """URL of the Delta table."""
    broker: str
    """The broker's name, which is part of the name of a queue."""
    commit_log: str | None = None
    topics: str | None = None
    """A regular expression for whole names; None: all but system topics."""
    commit_bytes: int = _DEFAULT_COMMIT_BYTES
    """Approximate bytes of log in one Delta commit."""
    allow_gap: bool = False
    """Continue although segments were deleted that are not in the archive."""


@dataclass(frozen=True, slots=True)
class Unit:
    """[low, high) of the log, inside one segment."""

    file: LogFile
    segment_bytes: int
    low: int
    high: int
    is_closed: bool = True
    """Whether ``high`` is fixed; otherwise the unit ends at the last valid record."""


@dataclass(frozen=True, slots=True)
class UnitTask:
    unit: Unit
    broker: str
    topics: str | None
    archive: str | None
    """URL of the table; None: only count, the rows exist already."""
    by_value: bool = False
    """Use the CRCs of the values themselves instead of those stored in the log."""


@dataclass(frozen=True, slots=True)
class ArchivedUnit:
    """A worker's result: ``manifest`` describes the unit according to the log, up to its last valid record."""

    manifest: Manifest
    files: tuple[RowFile, ...] = ()


# --- the plan: pure functions ---------------------------------------------------------------------------------


def plan_units(
    log: Sequence[LogFile], low: int, high: int | None, *, cut_at: Iterable[int] = ()
) -> list[Unit]:
    """The range in pieces of at most one segment. ``cut_at``: starts of records, including the ends of earlier
    commits. ``high`` None: as far as there are valid records."""
    size = segment_bytes_of(list(log))
    cuts = sorted(set(cut_at))
    units = []
    for file in log:
        end = file.start + size
        first, last = max(low, file.start), end if high is None else min(high, end)
        if first >= last:
            continue
        bounds = [first, *(cut for cut in cuts if first < cut < last), last]
        units += [Unit(file, size, a, b) for a, b in itertools.pairwise(bounds)]
    if units and high is None:
        units[-1] = replace(units[-1], is_closed=False)
    return units


def group_units(units: Sequence[Unit], commit_bytes: int, committed: int) -> list[list[Unit]]:
    """Groups neighbours into commits; no group mixes committed and uncommitted units."""
    groups: list[list[Unit]] = []
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


def archive_unit(task: UnitTask) -> ArchivedUnit:
    """Sum up the unit's records in the log, and write them unless they are written already."""
    unit = task.unit
    chosen = _ArchiveChoice(task)
    files = RowFiles(task.archive, task.broker, f"{unit.low:020d}") if task.archive is not None else None
    try:
        end = _add_all(unit, chosen, files)
        written = tuple(files.finish()) if files is not None else ()
    except BaseException:
        if files is not None:
            files.abandon()
        raise
    # Bytes after the last record of a full segment, or of a fixed range, belong to the unit.
    high = unit.high if unit.is_closed else end
    return ArchivedUnit(chosen.manifest(high), written)


def _add_all(unit: Unit, chosen: _ArchiveChoice, files: RowFiles | None) -> int:
    """Sum up the unit's records and write them; returns where the last one ends."""
    from mqspark.arrow.records.records import Records, unwrap_inner_batches
    from mqspark.store.recovery.rebuild import SegmentRecords

    with local_copy(unit.file) as path:
        runs = SegmentRecords(path, unit.file.start, unit.segment_bytes, guarded=True)
        records = Records(runs.view)
        end = unit.low
        for run in runs.between(unit.low, unit.high):
            for positions in _pieces(run):
                for here, at in unwrap_inner_batches(records, positions, strict=False, limits=ANY_RATIO):
                    rows = chosen.of(here, at)
                    if rows is not None and files is not None:
                        files.add(here, *rows, decode_now=here is not records)
            last = int(run[-1])
            end = unit.file.start + last + int(records.ints(run[-1:])[0])
        if files is not None:
            files.flush(records)
        runs.check()
    return end


def _pieces(positions: Any) -> Iterable[Any]:
    first = 0
    while first < len(positions):
        last = max(first + 1, int(positions.searchsorted(positions[first] + _PIECE_BYTES)))
        yield positions[first:last]
        first = last


class _ArchiveChoice:
    """The records to archive, and their sums."""

    def __init__(self, task: UnitTask) -> None:
        from mqspark.arrow.records.decode import Decoder

        self._task = task
        self._pattern = None if task.topics is None else re.compile(task.topics)
        self._wanted: dict[str, bool] = {}
        self._topics = Decoder(("topic", "timestamp"), topic=None, broker="", queue_id=None)
        self._values = Decoder(
            ("value",), topic=None, broker="", queue_id=None, strict=False, limits=ANY_RATIO
        )
        self._rows = self._crcs = self._offsets = self._positions = 0
        self._queues: dict[tuple[str, int], list[int]] = {}

    def of(self, records: Any, at: Any) -> tuple[Any, Any, Any] | None:
        """Positions, topics and store times of the selected records; None if there are none."""
        import pyarrow as pa

        sys_flags = records.ints(at + AT["sys_flag"])
        heads = self._topics(records, at)
        coded = heads.column("topic").dictionary_encode()
        names = coded.dictionary.to_pylist()
        for name in names:
            if name not in self._wanted:
                self._wanted[name] = _is_wanted(name, self._pattern)
        codes = coded.indices.to_numpy()
        kept = np.array([self._wanted[name] for name in names], np.bool_)[codes]
        kept &= sys_flags & TRANSACTION_PREPARED_TYPE == 0
        times_ms = heads.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        topics = heads.column("topic")
        if not kept.all():
            at, codes, sys_flags, times_ms = at[kept], codes[kept], sys_flags[kept], times_ms[kept]
            topics = topics.filter(pa.array(kept))
        if not len(at):
            return None
        self._count(records, at, sys_flags, codes, names)
        return at, topics, times_ms

    def _count(self, records: Any, at: Any, sys_flags: Any, codes: Any, names: list[str]) -> None:
        offsets = records.longs(at + AT["queue_offset"])
        self._rows += len(at)
        self._offsets += int(offsets.sum())
        self._positions += int((records.longs(at + AT["position"]) - self._task.unit.low).sum())
        # The log's CRC covers the stored body, which is the value unless it is compressed.
        by_value = np.ones(len(at), np.bool_) if self._task.by_value else sys_flags & COMPRESSED != 0
        self._crcs += int((records.ints(at[~by_value] + AT["crc"]) & _CRC_BITS).sum())
        if by_value.any():
            for batch in self._values.batches(records, at[by_value]):
                values = batch.column(0).to_pylist()
                self._crcs += sum(crc32(value) & _CRC_BITS for value in values if value is not None)
        queues = codes.astype(np.int64) << 32 | records.ints(at + AT["queue_id"])
        order = np.lexsort((offsets, queues))
        queues, offsets = queues[order], offsets[order]
        firsts = np.flatnonzero(np.diff(queues, prepend=-1))
        lasts = np.append(firsts[1:], len(queues)) - 1
        for queue, first, last in zip(queues[firsts], offsets[firsts], offsets[lasts], strict=True):
            known = self._queues.setdefault(
                (names[int(queue) >> 32], int(queue) & 0xFFFFFFFF), [int(first), int(last) + 1]
            )
            known[0], known[1] = min(known[0], int(first)), max(known[1], int(last) + 1)

    def manifest(self, high: int) -> Manifest:
        queues: dict[str, dict[str, list[int]]] = {}
        for (topic, queue_id), ends in sorted(self._queues.items()):
            queues.setdefault(topic, {})[str(queue_id)] = ends
        low = self._task.unit.low
        return Manifest(
            self._task.broker, low, high, self._rows, self._crcs, self._offsets, self._positions, queues
        )


def _is_wanted(topic: str, pattern: re.Pattern[str] | None) -> bool:
    return pattern.fullmatch(topic) is not None if pattern is not None else not is_system_topic(topic)


# --- the job --------------------------------------------------------------------------------------------------


def check(options: ArchiveOptions) -> list[LogFile]:
    """The log. Raises ConfigError for impossible options."""
    if options.topics is not None:
        try:
            re.compile(options.topics)
        except re.error as error:
            raise ConfigError.of(
                "topics", f"{options.topics!r} is not a regular expression: {error}"
            ) from None
    if options.commit_bytes <= 0:
        raise ConfigError.of("commit_bytes", "must be positive")
    return find_log(options.commit_log or join(options.store, "commitlog"))


def run(options: ArchiveOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Raises ConfigError, StoreCorrupt (the rows in Delta differ from the log), StoreLocked, OSError."""
    check(options)
    with lineage_of("archive", [table_dataset(options.store)], [table_dataset(options.archive)]):
        return _run_alone(options, spark, progress)


def _run_alone(options: ArchiveOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    if is_remote(options.store):
        return _run(options, spark, progress)
    files = OsFiles.like(local_path(options.store))
    path = local_path(options.store) / "mqspark.archive.lock"
    lock = files.lock(path, alone=False)
    try:
        return _run(options, spark, progress)
    finally:
        files.unlock(path, lock)


def _run(options: ArchiveOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    started = time.monotonic()
    log = check(options)
    proved = load_manifests(options.archive, options.broker)
    committed = committed_end(options)
    low = proved[-1].high if proved else log[0].start
    if low < log[0].start:
        if not options.allow_gap:
            raise ConfigError.of(
                "store",
                f"the log begins at {log[0].start}, the archive ends at {low}: the messages between were"
                " deleted and cannot be archived. With --allow-gap the job continues, and readers of the archive"
                " begin after the gap",
            )
        note_gap(options.archive, options.broker, log[0].start)
        low = max(log[0].start, load_manifests(options.archive, options.broker)[-1].high)
    high = safe_end(options, log)
    cut_at = [committed]
    if not is_remote(options.store):
        cut_at += cuts(StorePaths(local_path(options.store)).consume_queue, log, _UNIT_BYTES)
    units = plan_units(log, low, high, cut_at=cut_at)
    make_table(spark, options.archive, spark_schema(_COLUMNS), partitions=("topic", DATE))
    groups = group_units(units, options.commit_bytes, committed)
    work = _ArchiveWork(options, spark, progress)
    end = low
    for group in groups:
        end = work.archive(group, is_written=group[-1].high <= committed)
    marks = not is_remote(options.store) and options.topics is None
    if marks:
        write_bytes(join(options.store, ARCHIVED), encode_archived(end))
    seconds = time.monotonic() - started
    return {
        "job": "archive",
        "archive": options.archive,
        "from_position": low,
        "to_position": end,
        "marked": marks,
        "rows": work.rows,
        "commits": work.commits,
        "manifests": work.manifests,
        "damaged": work.damaged,
        "log_bytes": end - low,
        "elapsed_s": round(seconds, 3),
        "rows_per_s": round(work.rows / seconds),
    }


class _ArchiveWork:
    """One run, commit by commit."""

    def __init__(self, options: ArchiveOptions, spark: SparkSession, progress: ProgressLine) -> None:
        self._options = options
        self._spark = spark
        self._progress = progress
        self.rows = self.commits = self.manifests = 0
        self.damaged: list[list[int]] = []
        """Ranges with a body that does not match its CRC; archived unchanged."""

    def archive(self, group: Sequence[Unit], *, is_written: bool) -> int:
        """Write, commit, verify and record; returns the position up to which the log is archived."""
        options = self._options
        step = "counted" if is_written else "written"
        target = None if is_written else options.archive
        done = [
            each for each in self._run(group, step, archive=target) if each.manifest.high > each.manifest.low
        ]
        if not done:
            return group[0].low
        manifests = [each.manifest for each in done]
        if not is_written:
            _commit(self._spark, options, manifests[-1].high, [file for each in done for file in each.files])
        manifests = self._proved(group, manifests)
        for manifest in manifests:
            manifest.save(options.archive)
        self.commits += 1
        self.manifests += len(manifests)
        self.rows += sum(manifest.rows for manifest in manifests)
        return manifests[-1].high

    def _run(
        self, group: Sequence[Unit], step: str, *, archive: str | None = None, by_value: bool = False
    ) -> list[ArchivedUnit]:
        tasks = [
            UnitTask(unit, self._options.broker, self._options.topics, archive, by_value) for unit in group
        ]
        return run_tasks(self._spark, archive_unit, tasks, self._progress, step, "ranges of the log")

    def _proved(self, group: Sequence[Unit], manifests: Sequence[Manifest]) -> list[Manifest]:
        wrong = _prove(self._spark, self._options, manifests)
        if not wrong:
            return list(manifests)
        # A body that is damaged in the log does not match its CRC; then the values have to match.
        by_low = {manifest.low: manifest for manifest in manifests}
        again = self._run([unit for unit in group if unit.low in wrong], "counted by value", by_value=True)
        for each in again:
            manifest, expected = each.manifest, by_low[each.manifest.low]
            manifest = replace(manifest, high=expected.high)
            if _sums(manifest) != wrong[manifest.low]:
                raise StoreCorrupt(
                    f"the archive {self._options.archive} holds {wrong[manifest.low]} (rows, CRCs, offsets, "
                    f"positions) of the log from {manifest.low} to {manifest.high}, the log {_sums(manifest)}: "
                    "nothing was marked as archived",
                    path=self._options.archive,
                    offset=manifest.low,
                )
            by_low[manifest.low] = manifest
            self.damaged.append([manifest.low, manifest.high])
        return [by_low[manifest.low] for manifest in manifests]


def safe_end(options: ArchiveOptions, log: Sequence[LogFile]) -> int | None:
    """The position before which records are never removed again; None: the end of the valid records. Raises
    StoreCorrupt for a store that a restore has not finished."""
    if is_remote(options.store):
        return None
    paths = StorePaths(local_path(options.store))
    files = OsFiles()
    refuse_unfinished(paths, files)
    try:
        files.unlock(paths.lock, files.lock(paths.lock))
    except StoreLocked:
        mark = Checkpoint.load(paths.checkpoint, paths.mark, files).position
        return max(mark, log[-1].start)
    return None


def committed_end(options: ArchiveOptions) -> int:
    """The end of this broker's newest commit, from Delta's own record of its transactions; 0 if there is none."""
    return delta_table(options.archive).transactions.get(application(options.broker), 0)


def _commit(spark: SparkSession, options: ArchiveOptions, end: int, files: Sequence[RowFile]) -> None:
    """Commit the files. An empty commit is made, too, because it advances the transaction's version."""
    commit_files(spark, options.archive, application(options.broker), end, files)


_Sums = tuple[int, int, int, int]


def _sums(manifest: Manifest) -> _Sums:
    return manifest.rows, manifest.value_crcs, manifest.offsets, manifest.positions


def _prove(spark: SparkSession, options: ArchiveOptions, manifests: Sequence[Manifest]) -> dict[int, _Sums]:
    """Read the rows back from Delta. Returns the ranges (by their starts) that differ from the manifests."""
    low, high = manifests[0].low, manifests[-1].high
    table: DataFrame = spark.read.format("delta").load(options.archive)
    here = table.where(table.broker == options.broker).where(
        f"physicalOffset >= {low} AND physicalOffset < {high}"
    )
    bounds = " ".join(f"WHEN physicalOffset < {manifest.high} THEN {manifest.low}" for manifest in manifests)
    sums = here.selectExpr(
        f"CASE {bounds} END low", f"crc32(value) & {_CRC_BITS} crc", "offset", "physicalOffset"
    ).groupBy("low")
    found: dict[int, _Sums] = {
        row.start: (row.n, row.crcs or 0, row.offsets, row.positions - row.n * row.start)
        for row in sums.agg(
            *_aggregates(
                "min(low) start",  # also in a session that leaves out what is grouped by
                "count(*) n",
                "sum(crc) crcs",
                "sum(`offset`) offsets",
                "sum(physicalOffset) positions",
            )
        ).collect()
    }
    return {
        manifest.low: found.get(manifest.low, (0, 0, 0, 0))
        for manifest in manifests
        if found.get(manifest.low, (0, 0, 0, 0)) != _sums(manifest)
    }


def _aggregates(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    columns = []
    for text in texts:
        expression, _, name = text.rpartition(" ")
        columns.append(expr(expression).alias(name))
    return columns
