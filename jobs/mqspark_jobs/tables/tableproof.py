"""table-verify: compares a live table with the log: no row lost, doubled or invented, no body changed.

Both sides are summed up by queue: rows, CRCs of the bodies, offsets. What differs is then looked at offset by offset.
The comparison ends where the newest version of the table ends, so its query and producers may go on. Messages that
the brokers no longer have cannot be compared; the rows of them are counted.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from mqspark.errors import ConfigError, StoreCorrupt
from mqspark_jobs.job import ProgressLine, Summary
from mqspark_jobs.tables.tabledefs import TableDefinition, TableDirectory, raw_options
from mqspark_jobs.tables.tablerecord import newest_version
from mqspark_jobs.tables.tablerows import BODY_CRC
from mqspark_jobs.tables.topicqueues import queue_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_LOGGED = "concat(broker, ':', `partition`) queue", "`offset`", "crc32(value) crc"
_SHOWN = 5
"""Offsets of each kind that an error names."""


def verify(directory: TableDirectory, name: str, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Raises ConfigError for a table that cannot be compared, and StoreCorrupt where it differs from the log."""
    started = time.monotonic()
    definition = directory.load(name)
    version = newest_version(definition.url)
    if version.record is None:
        raise ConfigError.of("name", f"the table {name} has no complete batch")
    ends = version.record.ends
    firsts = _comparable(definition, ends)
    progress.show("compares", 0, len(firsts), "queues")
    table = _rows_of_table(spark, definition, version.number)
    log = _rows_of_log(spark, definition, firsts, ends)
    if definition.is_upsert:
        if newest_version(definition.rejected_url).number >= 0:
            log = log.join(
                _rejected(spark, definition).select("queue", "offset"), ["queue", "offset"], "left_anti"
            )
        log = _newest(log)
    kept = _within(spark, table, firsts, ends).cache()
    try:
        here, there = _sums(kept), _sums(log.select("queue", "offset", "crc"))
        differing = sorted(
            queue for queue in here.keys() | there.keys() if here.get(queue) != there.get(queue)
        )
        progress.show("compares", len(firsts), len(firsts), "queues")
        if differing:
            raise StoreCorrupt(
                f"the table {name} differs from the log of {definition.topic}: {_differences(kept, log, differing)}",
                path=definition.url,
            )
        rows = sum(each[0] for each in here.values())
        return {
            "job": "table-verify",
            "table": name,
            "queues": len(firsts),
            "rows": rows,
            "older_rows": int(table.count()) - rows,
            "elapsed_s": round(time.monotonic() - started, 3),
        }
    finally:
        kept.unpersist()


def _comparable(definition: TableDefinition, ends: dict[str, int]) -> dict[str, int]:
    """The first offset of each queue that both the log and the table have to have."""
    bounds = queue_bounds(raw_options(definition), ends)
    for queue, end in ends.items():
        if end > bounds.ends.get(queue, end):
            raise StoreCorrupt(
                f"the table {definition.name} has offset {end - 1} of {queue}, where the log ends at "
                f"{bounds.ends[queue]}",
                path=definition.url,
            )
    return {queue: max(first, definition.starts.get(queue, 0)) for queue, first in bounds.firsts.items()}


def _rows_of_table(spark: SparkSession, definition: TableDefinition, version: int) -> DataFrame:
    crc = f"`{definition.own(BODY_CRC)}`" if definition.is_typed else f"crc32(`{definition.own('value')}`)"
    frame = _placed(spark.read.option("versionAsOf", version), definition, definition.url, crc)
    if newest_version(definition.rejected_url).number >= 0 and not definition.is_upsert:
        frame = frame.unionAll(_rejected(spark, definition))
    return frame


def _rejected(spark: SparkSession, definition: TableDefinition) -> DataFrame:
    return _placed(spark.read, definition, definition.rejected_url, f"crc32(`{definition.own('value')}`)")


def _placed(reader: DataFrameReader, definition: TableDefinition, url: str, crc: str) -> DataFrame:
    broker, queue_id, offset = (f"`{definition.own(name)}`" for name in ("broker", "partition", "offset"))
    frame = reader.format("delta").load(url)
    return frame.selectExpr(f"concat({broker}, ':', {queue_id}) queue", f"{offset} offset", f"{crc} crc")


def _rows_of_log(
    spark: SparkSession, definition: TableDefinition, firsts: dict[str, int], ends: dict[str, int]
) -> DataFrame:
    reader = spark.read.format("pymq").options(**raw_options(definition))
    bounded = {queue: max(first, ends.get(queue, first)) for queue, first in firsts.items()}
    reader = reader.option("startingOffsets", json.dumps({definition.topic: firsts}))
    reader = reader.option("endingOffsets", json.dumps({definition.topic: bounded}))
    frame = reader.option("columns", "key,value,broker,partition,offset,timestamp").load()
    return frame.selectExpr(*_LOGGED, "key", "value", "timestamp", "broker", "`partition`")


def _newest(rows: DataFrame) -> DataFrame:
    """What an upsert table has of these: the newest row of each key, unless it has no body."""
    from pyspark.sql import functions as f

    order = f.struct("timestamp", "broker", "partition", "offset")
    newest = (
        rows.where("key IS NOT NULL")
        .withColumn("o", order)
        .withColumn("r", f.struct("queue", "offset", "value"))
    )
    newest = newest.groupBy("key").agg(f.max_by("r", "o").alias("newest")).selectExpr("newest.*")
    newest = newest.where("value IS NOT NULL AND length(value) > 0")
    return newest.selectExpr("queue", "`offset`", "crc32(value) crc")


def _within(spark: SparkSession, rows: DataFrame, firsts: dict[str, int], ends: dict[str, int]) -> DataFrame:
    bounds = spark.createDataFrame(
        [(queue, first, ends.get(queue, first)) for queue, first in firsts.items()],
        "bounded string, low bigint, high bigint",
    )
    joined = rows.join(bounds.hint("broadcast"), rows["queue"] == bounds["bounded"])
    return joined.where("`offset` >= low AND `offset` < high").select("queue", "offset", "crc")


def _sums(rows: DataFrame) -> dict[str, tuple[int, int, int]]:
    """Queue to its rows, CRCs and offsets."""
    from pyspark.sql import functions as f

    found = rows.groupBy("queue").agg(
        f.first("queue").alias("q"),
        f.count("*").alias("n"),
        f.sum("crc").alias("c"),
        f.sum("offset").alias("o"),
    )
    return {row["q"]: (int(row["n"]), int(row["c"] or 0), int(row["o"])) for row in found.collect()}


def _differences(table: DataFrame, log: DataFrame, queues: list[str]) -> str:
    from pyspark.sql import functions as f

    here, there = (
        rows.where(f.col("queue").isin(queues)).select("queue", "offset", "crc") for rows in (table, log)
    )
    doubled = here.groupBy("queue", "offset").agg(
        f.first("queue").alias("q"), f.first("offset").alias("o"), f.count("*").alias("n")
    )
    kinds: dict[str, Any] = {
        "lost": there.join(here, ["queue", "offset"], "left_anti").selectExpr("queue q", "`offset` o"),
        "doubled": doubled.where("n > 1").select("q", "o"),
        "invented": here.join(there, ["queue", "offset"], "left_anti").selectExpr("queue q", "`offset` o"),
        "changed": here.join(there.withColumnRenamed("crc", "logged"), ["queue", "offset"])
        .where("NOT crc <=> logged")
        .selectExpr("queue q", "`offset` o"),
    }
    said = []
    for kind, rows in kinds.items():
        count = rows.count()
        if count:
            shown = ", ".join(
                f"{row['q']}@{row['o']}" for row in rows.orderBy("q", "o").limit(_SHOWN).collect()
            )
            said.append(f"{count} {kind} ({shown})")
    return "; ".join(said)
