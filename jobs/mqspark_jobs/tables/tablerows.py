"""Writes the rows of batches into one live table, each exactly once.

A batch is at most two commits: rejected rows first, then rows, which say where the batch ends (``tablerecord``).
Whoever writes next begins there. Rejected rows behind it are of a batch that was cut off in between; they are not
written again. Nothing else is remembered.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqspark.base.clock import wall_ms
from mqspark.errors import MQError
from mqspark_jobs.deltacommit import append_rows, make_table
from mqspark_jobs.rowfiles import DATE
from mqspark_jobs.tables.tabledefs import BODIES, TableDefinition, place_options
from mqspark_jobs.tables.tablerecord import TableRecord, later_version, metadata_of, newest_version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_pymq.payloadoptions import PayloadOptions
    from pyspark_pymq.typed.typedcolumns import TypedRows

REASON = "reason"
BODY_CRC = "bodyCrc"
"""The column of a typed table, which has no bodies: CRC-32 of each, null for an empty one."""
ROW_COLUMNS = (
    "key", "value", "broker", "partition", "offset", "timestamp", "tags", "bornTimestamp", "msgId", "properties"
)  # fmt: skip
TOPIC = "topic"
Offsets = Mapping[str, int]
"""``broker:queue`` to an offset."""
_PROPERTIES = {
    "delta.enableDeletionVectors": "false",  # which not every reader reads
    "delta.checkpointInterval": "60",  # a checkpoint costs as much as a batch, and there is a commit each second
    "delta.logRetentionDuration": "interval 7 days",  # no less than removed files stay; by default 30
}
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_TRANSACTION = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    number: int
    rows: int
    """Messages; of an upsert table some may have replaced others."""
    at_ms: int
    delay_ms: int | None
    """From when the oldest of them was stored until the table had it; None: not known."""
    rejected: int
    """Messages that are beside the table, of all batches."""


class TableWriter:
    """One process writes a table. Methods raise MQError, OSError and what Spark raises."""

    def __init__(self, session: SparkSession, definition: TableDefinition) -> None:
        self.definition = definition
        self._session = session
        self._decoding = _decoding(definition) if definition.is_typed else None
        self._run = secrets.token_hex(8)
        self._busy = threading.Lock()
        self._is_closed = False
        self.last: WrittenBatch | None = None
        self.columns: Any = None
        """The columns of the table, as Spark has them, from ``make`` on."""
        self._version = newest_version(definition.url)
        record = self._version.record
        if record is not None and record.topic != definition.topic:
            raise MQError(f"the table at {definition.url} follows the topic {record.topic}")
        self._chain = secrets.token_hex(8) if record is None else record.chain
        self._batch = -1 if record is None else record.batch
        self.ends: dict[str, int] = dict(definition.starts)
        """Where each queue goes on; one that is not named goes on at its first message."""
        if record is not None:
            self.ends = dict(record.ends)
        elif self._version.number >= 0:
            self._go_on_behind_rows()
        self._written = self._rejected_behind()
        self._rejected = self._rejected_rows()

    def make(self, columns: DataFrame) -> None:
        """Create the table if there is none. ``columns``: rows as the source gives them."""
        self.columns = _all_null(self._good(self._placed(columns)))
        make_table(
            self._session,
            self.definition.url,
            self.columns,
            partitions=(self.definition.own(DATE),),
            properties=_PROPERTIES,
        )
        self._add_columns()
        if self.definition.catalog_name:
            self._register()

    def _add_columns(self) -> None:
        """Those that the table does not have. Raises what Spark raises for a column of another type."""
        known = self._session.read.format("delta").load(self.definition.url).schema
        if {(each.name.lower(), each.dataType.simpleString()) for each in self.columns} <= {
            (each.name.lower(), each.dataType.simpleString()) for each in known
        }:
            return
        writer = self._session.createDataFrame([], self.columns).write.format("delta").mode("append")
        writer.option("mergeSchema", "true").partitionBy(self.definition.own(DATE)).save(self.definition.url)

    def _register(self) -> None:
        """Give the table its name in Spark's catalog. Raises MQError if another one has it."""
        name = ".".join(f"`{each}`" for each in self.definition.catalog_name.split("."))
        place = _quoted(self.definition.url)
        self._session.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {place}")
        named, here = (
            self._session.sql(f"DESCRIBE DETAIL {each}").collect()[0].id
            for each in (name, f"delta.`{self.definition.url}`")
        )
        if named != here:
            raise MQError(f"the catalog has another table {self.definition.catalog_name}")

    def close(self) -> None:
        """Returns when nothing is written any more; batches that come later are ignored."""
        with self._busy:
            self._is_closed = True

    def has_news(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether a batch with these bounds has messages for the table."""
        return any(end > max(starts[queue], self.ends.get(queue, 0)) for queue, end in ends.items())

    def write(self, rows: DataFrame, starts: Offsets, ends: Offsets) -> None:
        """Write what the table does not have of the batch: ``rows`` of its topic from ``starts`` to ``ends``."""
        with self._busy:
            if self._is_closed or not self.has_news(starts, ends):
                return
            known = {queue: self.ends[queue] for queue in starts if starts[queue] < self.ends.get(queue, 0)}
            if known:
                rows = rows.where(f"`offset` >= {_of_queue(known)}")
            rows = self._placed(rows)
            count = sum(
                max(0, end - max(starts[queue], self.ends.get(queue, 0))) for queue, end in ends.items()
            )
            following = self.ends | {queue: max(end, self.ends.get(queue, 0)) for queue, end in ends.items()}
            record = TableRecord(self.definition.topic, self._chain, self._run, self._batch + 1, following)
            self._write(rows, record, count)
            self._seen(record, count)

    def _write(self, rows: DataFrame, record: TableRecord, count: int) -> None:
        """``count``: messages of the batch that the table does not have."""
        if not self.definition.is_upsert:
            wanted = self._without_written(rows) if self._written else rows

            def reject_others(written: int | None) -> None:
                # The files are written, and not yet in the table.
                if self._decoding is not None and written != count:
                    self._reject_bad(wanted)

            self.append(self._good(wanted), record, reject_others)
            return
        rows = rows.persist()
        try:
            wanted = self._without_written(rows) if self._written else rows
            self._reject_bad(wanted)
            self.merge(self._good(wanted), record)
        finally:
            rows.unpersist()

    def _reject_bad(self, wanted: DataFrame) -> None:
        bad = self._bad(wanted).persist()
        try:
            if count := bad.count():
                self.reject(bad)
                self._rejected += count
        finally:
            bad.unpersist()

    def _seen(self, record: TableRecord, count: int) -> None:
        """The batch is in the table, or nothing of it had to be written."""
        self._version = later_version(self.definition.url, self._version, self.definition.own("timestamp"))
        found = self._version.record
        if found is not None and found.run != self._run and found.batch >= record.batch:
            raise MQError(f"another process writes into {self.definition.url}")
        now_ms = wall_ms()
        oldest_ms = _milliseconds(self._version.oldest) if found == record else None
        self._batch = record.batch
        self.ends = dict(record.ends)
        self.last = WrittenBatch(
            record.batch,
            count,
            now_ms,
            None if oldest_ms is None else max(0, now_ms - oldest_ms),
            self._rejected,
        )
        if all(self.ends.get(queue, 0) > last for queue, last in self._written.items()):
            self._written = {}

    # --- rows -------------------------------------------------------------------------------------------------

    def _placed(self, rows: DataFrame) -> DataFrame:
        """With the day, and of a typed table with the fields of bodies and REASON."""
        if self._decoding is not None:
            rows = rows.mapInArrow(self._decoding, self._decoding.columns)
        own = self.definition.own
        return rows.withColumn(own(DATE), rows[own("timestamp")].cast("date"))

    def _good(self, rows: DataFrame) -> DataFrame:
        """What goes into the table."""
        value = self.definition.own("value")
        if self.definition.is_upsert:
            rows = rows.where(f"`{self.definition.own('key')}` IS NOT NULL")
        if self._decoding is None:
            return rows
        is_good = f"`{REASON}` IS NULL"
        if self.definition.is_upsert:
            is_good += f" OR {_is_empty(value)}"
        crc = f"IF({_is_empty(value)}, NULL, crc32(`{value}`)) `{self.definition.own(BODY_CRC)}`"
        return rows.where(is_good).selectExpr("*", crc).drop(value, REASON)

    def _bad(self, rows: DataFrame) -> DataFrame:
        """What goes beside the table, with the reason."""
        own = self.definition.own
        reason = f"`{REASON}`" if self._decoding is not None else "CAST(NULL AS STRING)"
        if self.definition.is_upsert:
            reason = f"IF({_is_empty(own('value'))}, NULL, {reason})"
            reason = f"IF(`{own('key')}` IS NULL, 'the message has no key', {reason})"
        columns = [f"`{own(name)}`" for name in (*ROW_COLUMNS, DATE)]
        return rows.selectExpr(*columns, f"{reason} `{REASON}`").where(f"`{REASON}` IS NOT NULL")

    # --- commits ----------------------------------------------------------------------------------------------

    def append(self, rows: DataFrame, record: TableRecord, written: Callable[[int | None], None]) -> None:
        """``written``: called with the number of rows before they are in the table."""
        append_rows(
            rows,
            self.definition.url,
            record.chain,
            record.batch,
            metadata_of(record),
            is_new=lambda version: self._is_new(record, version),
            written=written,
        )

    def _is_new(self, record: TableRecord, version: int) -> bool:
        """Whether the table has no such batch up to this version."""
        known = later_version(self.definition.url, self._version, self.definition.own("timestamp"))
        if known.number < version:
            raise MQError(f"the log of {self.definition.url} has no version {known.number + 1} any more")
        self._version = known
        return known.record is None or known.record.chain != record.chain or known.record.batch < record.batch

    def reject(self, rows: DataFrame) -> None:
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        writer.partitionBy(self.definition.own(DATE)).save(self.definition.rejected_url)

    def merge(self, rows: DataFrame, record: TableRecord) -> None:
        """The newest row of each key replaces an older one; one without a body removes it."""
        from delta.tables import DeltaTable
        from pyspark.sql import functions as f

        own = self.definition.own
        key = f"`{own('key')}`"
        columns = ", ".join(f"`{name}`" for name in rows.columns)
        placed = rows.selectExpr(f"{key} k", f"struct({columns}) r", f"{self._order()} o")
        newest = placed.groupBy("k").agg(f.max_by("r", "o").alias("newest")).selectExpr("newest.*")
        # A merge takes its options from the session: each table has one of its own.
        for name, value in (
            (_USER_METADATA, metadata_of(record)),
            (_TRANSACTION, record.chain),
            (_TRANSACTION_VERSION, str(record.batch)),
        ):
            self._session.conf.set(name, value)
        table = DeltaTable.forPath(self._session, self.definition.url)
        is_newer = f"{self._order('s.')} >= {self._order('t.')}"
        is_gone = f"s.`{own(BODY_CRC)}` IS NULL"
        if self._decoding is None:
            is_gone = _is_empty(own("value"), "s.")
        merge = table.alias("t").merge(newest.alias("s"), f"t.{key} = s.{key}").withSchemaEvolution()
        merge = merge.whenMatchedDelete(f"{is_newer} AND {is_gone}").whenMatchedUpdateAll(is_newer)
        merge.whenNotMatchedInsertAll(f"NOT ({is_gone})").execute()

    def _order(self, side: str = "") -> str:
        names = ("timestamp", "broker", "partition", "offset")
        return f"struct({', '.join(f'{side}`{self.definition.own(name)}`' for name in names)})"

    # --- after a cut ------------------------------------------------------------------------------------------

    def _places(self, url: str) -> DataFrame:
        broker, queue_id, offset = (
            f"`{self.definition.own(name)}`" for name in ("broker", "partition", "offset")
        )
        rows = self._session.read.format("delta").load(url)
        return rows.selectExpr(f"concat({broker}, ':', {queue_id}) q", f"{offset} o")

    def _rejected_behind(self) -> dict[str, int]:
        """The last offset of each queue that is among the rejected rows though the batch is not in the table."""
        if newest_version(self.definition.rejected_url).number < 0:
            return {}
        rows = self._places(self.definition.rejected_url)
        return _last_offsets(rows.where(f"o >= {_of_queue(self.ends, 'q')}"))

    def _rejected_rows(self) -> int:
        if newest_version(self.definition.rejected_url).number < 0:
            return 0
        return int(self._session.read.format("delta").load(self.definition.rejected_url).count())

    def _without_written(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        own = self.definition.own
        written = self._places(self.definition.rejected_url)
        queue = f.concat(rows[own("broker")], f.lit(":"), rows[own("partition")])
        return rows.join(
            written, (queue == written["q"]) & (rows[own("offset")] == written["o"]), "left_anti"
        )

    def _go_on_behind_rows(self) -> None:
        """For a table with rows whose log does not say how far it is: by the last rows that it has."""
        behind = _last_offsets(self._places(self.definition.url))
        if behind and newest_version(self.definition.rejected_url).number >= 0:
            rejected = _last_offsets(self._places(self.definition.rejected_url))
            behind |= {queue: max(last, behind.get(queue, last)) for queue, last in rejected.items()}
        for queue, last in behind.items():
            self.ends[queue] = max(last + 1, self.ends.get(queue, 0))


def _last_offsets(places: DataFrame) -> dict[str, int]:
    found = places.groupBy("q").agg({"q": "first", "o": "max"}).collect()
    return {row["first(q)"]: int(row["max(o)"]) for row in found}


def _of_queue(offsets: Offsets, queue: str = "concat(`broker`, ':', `partition`)") -> str:
    """An expression for the offset of a row's queue, 0 for others."""
    pairs = ", ".join(f"{_quoted(name)}, {offset}L" for name, offset in sorted(offsets.items()))
    return f"coalesce(element_at(map({pairs}), {queue}), 0L)" if pairs else "0L"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _is_empty(value: str, side: str = "") -> str:
    return f"({side}`{value}` IS NULL OR length({side}`{value}`) = 0)"


def _all_null(frame: DataFrame) -> Any:
    """The columns of a table: all may be null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(each.name, each.dataType, True) for each in frame.schema])


def _milliseconds(text: str | None) -> int | None:
    """The time in ms, of one as Delta's statistics have it."""
    from datetime import UTC, datetime

    if text is None:
        return None
    when = datetime.fromisoformat(text)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


# --- bodies ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Decoding:
    """Takes bodies apart in Spark's workers. It is pickled."""

    rows: TypedRows
    columns: Any
    """As Spark knows them."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.rows.rows(batches)


def payload_options(definition: TableDefinition) -> PayloadOptions:
    """How a typed table takes bodies apart. Raises ConfigError, and MQError for a table that is not typed."""
    from pyspark_pymq.options import ReadOptions

    # The registry gets the keys of the read.
    options = {
        name: value
        for name, value in definition.options.items()
        if BODIES.match(name) or name.lower() == "credentialsfile"
    }
    options |= {**place_options(definition), "columnNameOfCorruptRecord": REASON}
    payload = ReadOptions.parse(options, streaming=True).payload
    if payload is None:
        raise MQError(f"{definition.name} is not typed")
    return payload


def _decoding(definition: TableDefinition) -> _Decoding:
    """Raises ConfigError."""
    from pyspark.sql.types import StructType

    from pyspark_pymq.typed.typedcolumns import TypedRows, columns_of_source

    payload = payload_options(definition)
    found = columns_of_source(payload, ROW_COLUMNS, definition.topic)
    columns = StructType.fromDDL(found) if isinstance(found, str) else found
    return _Decoding(TypedRows.planned(payload, ROW_COLUMNS, columns, definition.topic), columns)
