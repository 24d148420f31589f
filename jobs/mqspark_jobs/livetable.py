"""tables: keeps Delta tables that follow topics, every message exactly once.

A table has one Structured Streaming query. Each batch becomes one commit of the table, and one of the table of
rejected rows when there are such rows. A commit names the checkpoint and the batch (Delta's transaction id), so a
batch that runs again after a kill writes nothing that is there already. The checkpoint lies inside the table. If it
is lost, a new one continues behind the last offset of each queue in the table.

The process reads the definitions (``tabledefs``) every second: it starts new tables, stops paused and removed ones,
and starts queries that failed again, ever more rarely.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqspark.arrow.files.deltafiles import delta_table
from mqspark.base.clock import wall_ms
from mqspark.errors import MQError
from mqspark_jobs.deltacommit import make_table
from mqspark_jobs.job import ProgressLine, Summary, relevant_text
from mqspark_jobs.tablecheckpoint import checkpoint_of
from mqspark_jobs.tabledefs import TableDefinition, TableDirectory, TableState, place_options
from mqspark_jobs.topicqueues import first_offsets
from pyspark_pymq.lineage import ABORT, COMPLETE, FAIL, START, LineageRun, table_dataset, topic_dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATE = "date"
REASON = "reason"
BODY_CRC = "bodyCrc"
"""Of a typed table, which has no bodies: CRC-32 of each, null for an empty one."""
ROW_COLUMNS = (
    "key", "value", "broker", "partition", "offset", "timestamp", "tags", "bornTimestamp", "msgId", "properties"
)  # fmt: skip
_POLL_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LONGEST_LOOK_S = 8.0
"""Between looks whether another process still keeps a table."""
_KEPT_ELSEWHERE = "another process keeps this table"
_BATCH_BYTES = "256m"
"""Of a batch, unless the definition has a limit: a table that begins far back does not read everything at once."""


@dataclass(frozen=True, slots=True)
class TablesOptions:
    directory: TableDirectory
    names: tuple[str, ...] = ()
    """Only these; empty: all."""
    once: bool = False
    """Take what is there, and end."""
    interval_ms: int = 1_000
    """Between the starts of two batches of a table."""


@dataclass(slots=True)
class _RunningTable:
    definition: TableDefinition
    query: Any
    lock: int
    lineage: LineageRun
    shown: int = -1
    """The batch that the table's state names."""


@dataclass(slots=True)
class _TablePause:
    """After a query that failed."""

    until: float
    length_s: float


def run(options: TablesOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Until SIGTERM or SIGINT, or with ``once`` until all has been read. Raises ConfigError for a table that is not
    there, and with ``once`` MQError for one that failed."""
    started = time.monotonic()
    for name in options.names:
        options.directory.load(name)
    keeper = _TableKeeper(options, spark, progress)
    with _until_stopped() as stopped:
        try:
            keeper.keep(stopped)
        finally:
            keeper.stop_all()
    if options.once and keeper.errors:
        raise MQError("; ".join(f"{name}: {error}" for name, error in sorted(keeper.errors.items())))
    return {
        "job": "tables",
        "tables": keeper.tables,
        "rows": keeper.rows,
        "batches": keeper.batches,
        "failures": keeper.failures,
        "elapsed_s": round(time.monotonic() - started, 3),
    }


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {each: signal.signal(each, lambda *_: stopped.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@dataclass(slots=True)
class _TableKeeper:
    options: TablesOptions
    spark: SparkSession
    progress: ProgressLine
    running: dict[str, _RunningTable] = field(default_factory=dict)
    pauses: dict[str, _TablePause] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Of queries that ended with one and have not been started again."""
    tables: int = 0
    rows: int = 0
    batches: int = 0
    failures: int = 0

    def keep(self, stopped: threading.Event) -> None:
        if self.options.once:
            for definition in self._wanted().values():
                self._start(definition)
            while self.running and not stopped.wait(_POLL_S / 10):
                self._look()
            return
        while not stopped.is_set():
            self._look()
            self._follow_definitions()
            stopped.wait(_POLL_S)

    def stop_all(self) -> None:
        for name in list(self.running):
            self._stop(name)

    def _wanted(self) -> dict[str, TableDefinition]:
        names = self.options.names or self.options.directory.names()
        found = {}
        for name in names:
            try:
                definition = self.options.directory.load(name)
            except MQError as error:
                if name not in self.errors:
                    self.progress.show(f"{name}: {error}", 0, 0, "rows")
                self.errors[name] = str(error)
                continue
            if not definition.is_paused:
                found[name] = definition
        return found

    def _follow_definitions(self) -> None:
        wanted = self._wanted()
        for name, each in list(self.running.items()):
            if wanted.get(name) != each.definition:
                self._stop(name)
        now = time.monotonic()
        for name, definition in wanted.items():
            pause = self.pauses.get(name)
            if name not in self.running and (pause is None or pause.until <= now):
                self._start(definition)

    def _start(self, definition: TableDefinition) -> None:
        lock = self.options.directory.lock(definition.name)
        if lock is None:
            # Said once, however often it is tried.
            if self.errors.get(definition.name) != _KEPT_ELSEWHERE:
                self.progress.show(f"{definition.name}: {_KEPT_ELSEWHERE}", self.rows, self.rows, "rows")
            self.errors[definition.name] = _KEPT_ELSEWHERE
            self._pause(definition.name, _LONGEST_LOOK_S)
            return
        try:
            query, columns = start(self.spark, definition, self.options)
        except Exception as error:
            # Of Spark, of the cluster or of the table's place: it is told, and the start is tried again.
            os.close(lock)
            self._failed(definition, error)
            return
        self.errors.pop(definition.name, None)
        lineage = LineageRun(
            f"table.{definition.name}",
            [topic_dataset(definition.nameserver, definition.topic)],
            [table_dataset(definition.url, columns), table_dataset(definition.rejected_url)],
        )
        lineage.tell(START)
        self.running[definition.name] = _RunningTable(definition, query, lock, lineage)
        self.tables += 1

    def _stop(self, name: str) -> None:
        each = self.running.pop(name)
        each.query.stop()
        each.lineage.tell(ABORT)
        os.close(each.lock)

    def _look(self) -> None:
        for name, each in list(self.running.items()):
            self._count(each)
            if each.query.isActive:
                continue
            error = each.query.exception()
            self._count(each)
            del self.running[name]
            os.close(each.lock)
            if error is None:
                self.pauses.pop(name, None)
                each.lineage.tell(COMPLETE)
            else:
                each.lineage.tell(FAIL, relevant_text(error))
                self._failed(each.definition, error)

    def _count(self, each: _RunningTable) -> None:
        shown = each.shown
        for one in each.query.recentProgress:
            number, rows = int(one["batchId"]), int(one["numInputRows"])
            if number <= shown or not rows:
                continue
            each.shown = number
            self.rows += rows
            self.batches += 1
            state = TableState(number, rows, wall_ms())
        if each.shown != shown:
            self.pauses.pop(each.definition.name, None)
            self.options.directory.save_state(each.definition.name, state)
            self.progress.show(f"{each.definition.name}: batch {each.shown}", self.rows, self.rows, "rows")

    def _pause(self, name: str, longest_s: float) -> float:
        """Twice as long as the pause before; returns the seconds."""
        before = self.pauses.get(name)
        length_s = _FIRST_PAUSE_S if before is None else min(2 * before.length_s, longest_s)
        self.pauses[name] = _TablePause(time.monotonic() + length_s, length_s)
        return length_s

    def _failed(self, definition: TableDefinition, error: BaseException) -> None:
        text = relevant_text(error)
        name = definition.name
        length_s = self._pause(name, _LONGEST_PAUSE_S)
        self.errors[name] = text
        self.failures += 1
        state = self.options.directory.state(name)
        self.options.directory.save_state(
            name, TableState(state.batch, state.rows, state.at_ms, text[:2_000])
        )
        self.progress.show(f"{name}: {text[:500]}; again in {length_s:.0f} s", self.rows, self.rows, "rows")


# --- one table ------------------------------------------------------------------------------------------------


def start(spark: SparkSession, definition: TableDefinition, options: TablesOptions) -> tuple[Any, Any]:
    """The running query of a table, and the columns of the table."""
    frame = read(spark, definition)
    if not frame.isStreaming:
        raise MQError(f"{definition.topic} is not read as a stream")
    batches = TableBatches(definition)
    columns = frame_schema(batches.good(frame))
    make_table(spark, definition.url, columns, partitions=(definition.own(DATE),))
    writer = frame.writeStream.foreachBatch(batches).queryName(f"{definition.group}-{definition.identity}")
    writer = writer.option("checkpointLocation", definition.checkpoint)
    if options.once:
        return writer.trigger(availableNow=True).start(), columns
    return writer.trigger(processingTime=f"{options.interval_ms} milliseconds").start(), columns


def read(spark: SparkSession, definition: TableDefinition) -> DataFrame:
    """The rows of a table as a stream; of a typed one with REASON and the body."""
    options = {**definition.options, **place_options(definition), "group": definition.group}
    reader = spark.readStream.format("pymq").options(**options)
    reader = reader.option("columns", ",".join(ROW_COLUMNS))
    if definition.is_typed:
        reader = reader.option("columnNameOfCorruptRecord", REASON)
    if not any(name.lower().startswith("max") for name in definition.options):
        reader = reader.option("maxBytesPerTrigger", _BATCH_BYTES)
    if checkpoint_of(definition.checkpoint) is None:
        reader = reader.option("startingOffsets", starting_offsets(spark, definition))
    frame = reader.load()
    return frame.withColumn(definition.own(DATE), frame[definition.own("timestamp")].cast("date"))


def frame_schema(frame: DataFrame) -> Any:
    """The table's columns: all may be null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(each.name, each.dataType, True) for each in frame.schema])


def starting_offsets(spark: SparkSession, definition: TableDefinition) -> str:
    """Where a query without a checkpoint begins: behind what the table has, and not before its first offsets."""
    firsts = first_offsets(definition.nameserver, definition.topic)
    behind = last_offsets(spark, definition)
    starts = {
        queue: max(definition.starts.get(queue, first), behind.get(queue, -1) + 1)
        for queue, first in firsts.items()
    }
    return json.dumps({definition.topic: starts})


def last_offsets(spark: SparkSession, definition: TableDefinition) -> dict[str, int]:
    """``broker:queue`` to the last offset in the table or among its rejected rows."""
    found: dict[str, int] = {}
    for url in (definition.url, definition.rejected_url):
        if not delta_table(url).files:
            continue
        broker, queue_id, last = (f"`{definition.own(name)}`" for name in ("broker", "partition", "offset"))
        rows = spark.read.format("delta").load(url)
        rows = rows.selectExpr(f"concat({broker}, ':', {queue_id}) q", f"{last} o")
        for row in rows.groupBy("q").agg({"q": "first", "o": "max"}).collect():
            queue, offset = row["first(q)"], row["max(o)"]
            found[queue] = max(offset, found.get(queue, -1))
    return found


class TableBatches:
    """What ``foreachBatch`` calls."""

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self._application: str | None = None

    def __call__(self, rows: DataFrame, number: int) -> None:
        definition = self._definition
        if not definition.is_typed and not definition.is_upsert:
            self.append(rows, definition.url, number)
            return
        rows = rows.persist()
        try:
            bad = self._bad(rows)
            if not bad.isEmpty():
                self.append(bad, definition.rejected_url, number)
            good = self.good(rows)
            if definition.is_upsert:
                self._merge(good)
            else:
                self.append(good, definition.url, number)
        finally:
            rows.unpersist()

    def good(self, rows: DataFrame) -> DataFrame:
        """What goes into the table."""
        definition = self._definition
        value = definition.own("value")
        if definition.is_upsert:
            rows = rows.where(f"`{definition.own('key')}` IS NOT NULL")
        if not definition.is_typed:
            return rows
        is_good = f"`{REASON}` IS NULL"
        if definition.is_upsert:
            is_good += f" OR {_is_empty(value)}"
        crc = f"IF({_is_empty(value)}, NULL, crc32(`{value}`)) `{definition.own(BODY_CRC)}`"
        rows = rows.where(is_good)
        return rows.selectExpr("*", crc).drop(value, REASON)

    def _bad(self, rows: DataFrame) -> DataFrame:
        """What goes beside the table, with the reason."""
        definition = self._definition
        reason = f"`{REASON}`" if definition.is_typed else "CAST(NULL AS STRING)"
        if definition.is_upsert:
            reason = f"IF({_is_empty(definition.own('value'))}, NULL, {reason})"
            reason = f"IF(`{definition.own('key')}` IS NULL, 'the message has no key', {reason})"
        own = [f"`{definition.own(name)}`" for name in (*ROW_COLUMNS, DATE)]
        return rows.selectExpr(*own, f"{reason} `{REASON}`").where(f"`{REASON}` IS NOT NULL")

    def append(self, rows: DataFrame, url: str, number: int) -> None:
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        writer = writer.partitionBy(self._definition.own(DATE))
        writer.option("txnAppId", self._transaction()).option("txnVersion", number).save(url)

    def _merge(self, rows: DataFrame) -> None:
        """The newest row of each key replaces an older one; one without a body removes it. A batch that runs again
        changes nothing."""
        from delta.tables import DeltaTable
        from pyspark.sql import functions as f

        own = self._definition.own
        key = f"`{own('key')}`"
        columns = ", ".join(f"`{name}`" for name in rows.columns)
        placed = rows.selectExpr(f"{key} k", f"struct({columns}) r", f"{self._order()} o")
        newest = placed.groupBy("k").agg(f.max_by("r", "o").alias("newest")).selectExpr("newest.*")
        table = DeltaTable.forPath(rows.sparkSession, self._definition.url)
        is_newer = f"{self._order('s.')} >= {self._order('t.')}"
        is_gone = f"s.`{own(BODY_CRC)}` IS NULL"
        if not self._definition.is_typed:
            is_gone = _is_empty(own("value"), "s.")
        merge = table.alias("t").merge(newest.alias("s"), f"t.{key} = s.{key}").withSchemaEvolution()
        merge = merge.whenMatchedDelete(f"{is_newer} AND {is_gone}").whenMatchedUpdateAll(is_newer)
        merge.whenNotMatchedInsertAll(f"NOT ({is_gone})").execute()

    def _order(self, side: str = "") -> str:
        names = ("timestamp", "broker", "partition", "offset")
        return f"struct({', '.join(f'{side}`{self._definition.own(name)}`' for name in names)})"

    def _transaction(self) -> str:
        """Names the checkpoint as well: the batches of another one have other rows under the same numbers."""
        if self._application is None:
            checkpoint = checkpoint_of(self._definition.checkpoint)
            if checkpoint is None:
                raise MQError(f"{self._definition.checkpoint} has gone while its query runs")
            self._application = f"mqspark-table:{self._definition.identity}:{checkpoint.query_id}"
        return self._application


def _is_empty(value: str, side: str = "") -> str:
    return f"({side}`{value}` IS NULL OR length({side}`{value}`) = 0)"
