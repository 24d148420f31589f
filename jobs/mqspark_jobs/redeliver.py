"""redeliver: sends messages parked for the far future, and dead letters, to their topics, each exactly once.

**Parked messages.** Messages with delays beyond the broker's timers (days to years) are sent to an ordinary topic
with the properties ``MQSPARK_DELIVER_AT_MS`` and ``MQSPARK_TARGET_TOPIC``. A run moves that topic to a Delta
table (a stream, so exactly once) and then claims due rows: one Delta commit gives them a batch number, which is
the version of that commit and so only increases. The batch is written through the exactly-once sink and its rows
are deleted. After a kill at any point, the next run finds the claimed rows and writes that batch again, which
sends nothing twice. Batches are those of the table's id, which Delta draws: a table that is created again at the same
place numbers them anew, and its first ones are not taken for those that were sent.

**Dead letters** (``%DLQ%group``) go back to their group alone, through its retry topic, or to the topic that they came
from. A letter that says to come from a topic that the group does not consume is sent only where that topic is named:
whoever may consume for a group has a say in its letters. The offsets of a run are written to a state file before
anything is sent, so a run that was killed is repeated with the same offsets and the same batch number. The file has an
id of its own, so a new state directory begins anew.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mqspark.arrow.files.locations import join, read_bytes, write_bytes
from mqspark.base.clock import wall_ms
from mqspark.base.logs import printable
from mqspark.errors import ConfigError, MQError
from mqspark.message import DLQ_ORIGIN_TOPIC, DLQ_PREFIX, RETRY_TOPIC, SET_BY_BROKERS, retry_topic
from mqspark_jobs.deltacommit import make_table
from mqspark_jobs.job import ProgressLine, Summary
from mqspark_jobs.tables.topicqueues import queue_bounds
from pyspark_pymq.lineage import lineage_of, table_dataset, topic_dataset
from pyspark_pymq.schema import spark_schema
from pyspark_pymq.work.verdicts import REASONS

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

DELIVER_AT, TARGET = "MQSPARK_DELIVER_AT_MS", "MQSPARK_TARGET_TOPIC"
_OWN = (DELIVER_AT, TARGET)
_NAMED = 5
"""Topics of a refusal."""
_SCHEMA = {
    "targetTopic": "string",
    "deliverAt": "timestamp",
    "key": "string",
    "tags": "string",
    "value": "binary",
    "properties": "map<string,string>",
    "parkedOffset": "bigint",
    "parkedQueue": "int",
    "batch": "bigint",
}


@dataclass(frozen=True, slots=True)
class ParkedOptions:
    nameserver: str
    table: str
    """URL of the Delta table."""
    topic: str | None = None
    """The topic to park messages from; None: only deliver messages that are in the table."""
    now_ms: int | None = None
    """Deliver messages that are due at this time; None: now."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DlqOptions:
    nameserver: str
    group: str
    state: str
    """Directory of the state files, path or URL."""
    to: Literal["group", "topic"] = "group"
    """``group``: to its retry topic, so that no other group gets them; ``topic``: to the original topics."""
    target: str | None = None
    """The topic to send all of them to, instead."""
    origin: str | None = None
    """Only those of this original topic, whether the group consumes it or not."""
    from_ms: int | None = None
    to_ms: int | None = None
    """Store times in the dead-letter topic, [from, to)."""
    key: str | None = None
    sql_filter: str | None = None
    """SQL92, evaluated by the broker."""
    dry_run: bool = False

    @property
    def name(self) -> str:
        """The name of this selection; each selection has its own state."""
        chosen: list[str | int | None]
        chosen = [self.group, self.target, self.from_ms, self.to_ms, self.key, self.sql_filter]
        if self.to == "group" and self.target is None:
            chosen.append(self.to)  # not in the names of earlier versions, which sent to the original topics
        if self.origin is not None:
            chosen += ["origin", self.origin]
        return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:16]


# --- parked messages ------------------------------------------------------------------------------------------


def run_parked(options: ParkedOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Park new messages and deliver due ones. Raises ConfigError, MQError, OSError."""
    topics = [] if options.topic is None else [topic_dataset(options.nameserver, options.topic)]
    with lineage_of("redeliver", topics, [table_dataset(options.table)]):
        return _parked(options, spark, progress)


def _parked(options: ParkedOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    started = time.monotonic()
    now_ms = options.now_ms if options.now_ms is not None else wall_ms()
    _make_table(spark, options.table)
    parked = 0
    if options.topic is not None and not options.dry_run:
        progress.show("parking", 0, 1, "topics")
        parked = _park(spark, options)
    delivered = batches = 0
    identity = f"redeliver:{_table(spark, options).detail().collect()[0]['id']}"
    due = f"batch IS NULL AND deliverAt <= timestamp_millis({now_ms})"
    waiting = _rows(spark, options).where(f"NOT ({due})").count()
    if options.dry_run:
        return {
            "job": "redeliver",
            "dry_run": True,
            "due": _counts(_rows(spark, options).where(due), "targetTopic"),
            "waiting": waiting,
        }
    # Rows claimed by an earlier run come first, then the rows that are due now.
    for claim in (False, True):
        if claim and _rows(spark, options).where(due).take(1):
            table = _table(spark, options)
            version = table.history(1).collect()[0]["version"]
            table.update(due, {"batch": str(version + 1)})
        numbers = _rows(spark, options).where("batch IS NOT NULL").select("batch").distinct().collect()
        for batch in sorted(row.batch for row in numbers):
            delivered += _deliver(spark, options, identity, batch)
            batches += 1
            progress.show("delivered", delivered, delivered, "messages")
    return {
        "job": "redeliver",
        "parked": parked,
        "delivered": delivered,
        "batches": batches,
        "waiting": waiting,
        "elapsed_s": round(time.monotonic() - started, 3),
    }


def _rows(spark: SparkSession, options: ParkedOptions) -> DataFrame:
    """The rows as they are now."""
    return spark.read.format("delta").load(options.table)


def _table(spark: SparkSession, options: ParkedOptions) -> DeltaTable:
    from delta.tables import DeltaTable

    table: DeltaTable = DeltaTable.forPath(spark, options.table)
    return table


def _make_table(spark: SparkSession, url: str) -> None:
    make_table(spark, url, spark_schema(_SCHEMA))
    columns = set(spark.read.format("delta").load(url).columns)
    if not {"targetTopic", "deliverAt", "batch"} <= columns:
        raise MQError(f"table: {url} is not a table of parked messages: its columns are {sorted(columns)}")


def _park(spark: SparkSession, options: ParkedOptions) -> int:
    from pyspark.sql import functions as f

    source = spark.readStream.format("pymq").option("nameserver", options.nameserver)
    source = source.option("topic", options.topic).option("startingOffsets", "earliest")
    source = source.option("group", "mqspark-redeliver").option("includeProperties", "true")
    properties = f.col("properties")
    frame = source.load().select(
        properties.getItem(TARGET).alias("targetTopic"),
        f.timestamp_millis(properties.getItem(DELIVER_AT).try_cast("bigint")).alias("deliverAt"),
        "key",
        "tags",
        "value",
        f.expr(f"{_without(*_OWN, *SET_BY_BROKERS)} properties"),
        f.col("offset").alias("parkedOffset"),
        f.col("partition").alias("parkedQueue"),
        f.lit(None).cast("bigint").alias("batch"),
    )
    checked = frame.selectExpr(
        f"IF(targetTopic IS NULL OR deliverAt IS NULL, raise_error(concat('the message at offset ', parkedOffset, "
        f"' of queue ', parkedQueue, ' has no {TARGET} or no {DELIVER_AT}')), targetTopic) targetTopic",
        *frame.columns[1:],
    )
    writer = checked.writeStream.format("delta").option(
        "checkpointLocation", join(options.table, "_mqspark", "parking")
    )
    query = writer.trigger(availableNow=True).start(options.table)
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _deliver(spark: SparkSession, options: ParkedOptions, identity: str, batch: int) -> int:
    rows = _rows(spark, options).where(f"batch = {batch}")
    rows = rows.selectExpr("targetTopic topic", "key", "tags", "value", "properties")
    count = int(rows.count())
    _send(rows, options.nameserver, identity, batch)
    _table(spark, options).delete(f"batch = {batch}")
    return count


def _send(rows: DataFrame, nameserver: str, identity: str, batch: int) -> None:
    writer = rows.write.format("pymq").option("nameserver", nameserver)
    writer = writer.option("deliveryGuarantee", "exactly-once").option("transactionId", identity)
    # Brokers set the origin of what goes to a group: it is left.
    writer = writer.option("keepBrokerProperties", "true")
    writer.option("transactionBatch", batch).mode("append").save()


def _counts(rows: DataFrame, column: str) -> dict[Any, int]:
    """Rows by the value of a column, whether or not the session keeps what is grouped by
    (``spark.sql.retainGroupColumns``)."""
    from pyspark.sql import functions as f

    found = rows.groupBy(column).agg(f.min(column).alias("what"), f.count("*").alias("rows"))
    return {row["what"]: row["rows"] for row in found.collect()}


def _without(*properties: str) -> str:
    listed = ", ".join(f"'{name}'" for name in sorted({*properties, "KEYS", "TAGS"}))
    return f"map_filter(properties, (name, _) -> name NOT IN ({listed}))"


# --- dead letters ---------------------------------------------------------------------------------------------


def redrive(options: DlqOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Raises ConfigError, MQError, OSError."""
    dead = [topic_dataset(options.nameserver, DLQ_PREFIX + options.group)]
    to = options.target or (retry_topic(options.group) if options.to == "group" else None)
    with lineage_of("redeliver", dead, [] if to is None else [topic_dataset(options.nameserver, to)]):
        return _redriven(options, spark, progress)


def _redriven(options: DlqOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    started = time.monotonic()
    topic = DLQ_PREFIX + options.group
    url = join(options.state, f"{options.name}.json")
    state = _load(url) or _begun(options)
    pending = state["pending"]
    if pending is None:
        ends = queue_bounds({"nameserver": options.nameserver, "topic": topic}, state["done"]).ends
        # A queue that ends before what was sent is a new one: the topic was deleted and created again.
        starts = {
            queue: done if (done := state["done"].get(queue, -2)) <= end else -2
            for queue, end in ends.items()
        }
        pending = {"start": starts, "end": ends}
    rows = _dead_letters(spark, options, topic, pending)
    origins = _counts(rows, "origin")
    foreign = _foreign(options, origins)
    if options.dry_run:
        return {
            "job": "redeliver",
            "dry_run": True,
            "group": options.group,
            "would_send": {origin: count for origin, count in origins.items() if origin not in foreign},
            "foreign": {origin: origins[origin] for origin in foreign},
        }
    if None in origins and options.target is None:
        raise ConfigError.of("target", f"{origins[None]} dead letters do not name their original topic")
    if foreign:
        names = ", ".join(printable(origin, 80) for origin in foreign[:_NAMED])
        raise ConfigError.of(
            "origin",
            f"some dead letters say that they come from topics that {options.group} does not consume: {names};"
            " --origin sends those of one topic again",
        )
    state["pending"] = pending
    _save(url, state)
    count = sum(origins.values())
    progress.show("sending", 0, count, "dead letters")
    rows = rows.drop("origin")
    _send(rows, options.nameserver, f"redrive:{state.get('id', options.name)}", state["batch"])
    # What was sent of a queue whose broker is away now is not sent again when it is back.
    done = state["done"] | pending["end"]
    _save(url, state | {"batch": state["batch"] + 1, "done": done, "pending": None})
    progress.show("sending", count, count, "dead letters")
    return {
        "job": "redeliver",
        "group": options.group,
        "sent": count,
        "batch": state["batch"],
        "elapsed_s": round(time.monotonic() - started, 3),
    }


def _foreign(options: DlqOptions, origins: Iterable[str | None]) -> list[str]:
    """The topics that letters say to come from although the group consumes none of them."""
    if options.origin is not None or options.target is not None:  # where they go was said
        return []
    consumed = _consumed(options.nameserver, options.group)
    return sorted(origin for origin in origins if origin is not None and origin not in consumed)


def _consumed(nameserver: str, group: str) -> set[str]:
    from mqspark import AdminClient

    with AdminClient(nameserver) as admin:
        return admin.consumed_topics(group)


def _load(url: str) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(read_bytes(url))
    except FileNotFoundError:
        return None
    return state


def _begun(options: DlqOptions) -> dict[str, Any]:
    """Earlier versions sent to the original topics, unless a target was given: what they sent is not sent again."""
    state = {"id": secrets.token_hex(16), "batch": 0, "done": {}, "pending": None}
    earlier = _load(join(options.state, f"{replace(options, to='topic').name}.json"))
    if earlier is not None and options.to == "group" and options.target is None:
        if earlier["pending"] is not None:
            raise ConfigError.of(
                "to", "a run to the original topics has not ended; repeat it with --to topic"
            )
        state["done"] = earlier["done"]
    return state


def _save(url: str, state: dict[str, Any]) -> None:
    write_bytes(url, json.dumps(state, sort_keys=True).encode())


def _dead_letters(spark: SparkSession, options: DlqOptions, topic: str, pending: dict[str, Any]) -> DataFrame:
    reader = spark.read.format("pymq").option("nameserver", options.nameserver).option("topic", topic)
    reader = reader.option("includeProperties", "true").option("failOnDataLoss", "false")
    reader = reader.option("maxInflateRatio", "0")  # every message that was accepted once can be resent
    reader = reader.option("startingOffsets", json.dumps({topic: pending["start"]}))
    reader = reader.option("endingOffsets", json.dumps({topic: pending["end"]}))
    if options.sql_filter is not None:
        reader = reader.option("sqlFilter", options.sql_filter)
    frame = reader.load()
    if options.from_ms is not None:
        frame = frame.where(f"timestamp >= timestamp_millis({int(options.from_ms)})")
    if options.to_ms is not None:
        frame = frame.where(f"timestamp < timestamp_millis({int(options.to_ms)})")
    if options.key is not None:
        frame = frame.where(frame.key == options.key)
    from pyspark.sql.functions import col, create_map, expr, lit, map_concat

    frame = frame.withColumn(
        "origin", expr(f"coalesce(properties['{DLQ_ORIGIN_TOPIC}'], properties['{RETRY_TOPIC}'])")
    )
    if options.origin is not None:
        frame = frame.where(col("origin") == options.origin)
    properties = expr(_without(*SET_BY_BROKERS, *REASONS))
    target = col("origin")
    if options.target is not None:
        target = lit(options.target)
    elif options.to == "group":
        target = lit(retry_topic(options.group))
        # Its consumers take the topic from the property.
        properties = map_concat(properties, create_map(lit(RETRY_TOPIC), col("origin")))
    return frame.select(
        target.cast("string").alias("topic"), "key", "tags", "value", properties.alias("properties"), "origin"
    )
