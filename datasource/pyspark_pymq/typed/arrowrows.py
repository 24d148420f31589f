"""Typed topics: ``payloadFormat=arrow``. A message is an Arrow IPC stream, a batch of rows with their own
columns.

The sink packs the rows of a DataFrame unchanged, about ``batchBytes`` per message; the source returns them with
their original columns. Without ``.schema(...)`` the columns are those of the newest message. Types may change
between messages as far as Arrow can cast them; a column that a message lacks is null. Offsets, limits and filters
apply to messages, not to rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mqspark.arrow.records.arrowstream import FreeRows, batches_of
from mqspark.base.logs import sparing
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.message import MessageQueue
from mqspark.record.compression import LIMITS, InflateLimits
from pyspark_pymq.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from mqspark.arrow.cluster.cluster_queues import ClusterQueues

log = sparing(__name__)

_SLICE_ROWS = 1 << 16
"""Rows cast at once: a column of few bytes may become large."""

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
"""The property ``contentType`` of such a message."""


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The schema that Spark expects from a reader. Raises ConfigError for a column that Spark does not pass to
    Python: an interval of months, a map of unknown types."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    # Spark 4.1: always UTC
    options = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    for field in schema.fields:
        try:
            to_arrow_schema(StructType([field]), **options)
        except (PySparkException, ValueError, pa.ArrowException) as error:
            raise ConfigError.of(
                "payloadFormat",
                f"column {field.name!r} cannot be {field.dataType.simpleString()}, which Spark and Arrow"
                f" do not exchange ({error}); cast it, or leave it out",
            ) from None
    return to_arrow_schema(schema, **options)


def spark_schema_of(schema: pa.Schema) -> StructType:
    """The columns of a message in Spark's types. Raises ConfigError for a column without a Spark type."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]))
        except PySparkException as error:
            raise ConfigError.of(
                "payloadFormat",
                f"Spark has no type for column {field.name!r} of the newest message, {field.type}"
                f" ({error}); give the columns by .schema(...), with another type or without it",
            ) from None
    return from_arrow_schema(schema)


def pack(batches: Iterable[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Packs rows into messages: each batch becomes rows of ``value`` and ``properties``, of about ``batch_bytes``
    each."""
    properties = pa.array([[("contentType", CONTENT_TYPE)]], pa.map_(pa.string(), pa.string()))
    for batch in batches:
        rows = max(1, batch_bytes * batch.num_rows // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            for part in _halved(batch.slice(first, rows), batch_bytes):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(part)
                body = pa.array([sink.getvalue().to_pybytes()], pa.binary())
                yield pa.RecordBatch.from_arrays([body, properties], ["value", "properties"])


def _halved(rows: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows in parts of at most twice ``batch_bytes``, or of one row. Large rows may be neighbours, and a broker
    refuses a message that is larger than maxMessageSize."""
    if rows.num_rows < 2 or rows.nbytes <= 2 * batch_bytes:
        yield rows
        return
    middle = rows.num_rows // 2
    yield from _halved(rows.slice(0, middle), batch_bytes)
    yield from _halved(rows.slice(middle), batch_bytes)


def unpack(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    strict: bool = True,
    limits: InflateLimits = LIMITS,
) -> Iterator[pa.RecordBatch]:
    """Unpacks batches of ``value`` and ``offset`` into rows, cast to ``schema``. ``strict``: raises
    InvalidMessage for a message that does not contain such rows or exceeds ``limits``; otherwise its rows are
    skipped, and a line in the log counts it."""
    places = _Places(schema)
    for batch in batches:
        offsets = batch.column("offset")
        free = FreeRows()
        for index, body in enumerate(batch.column("value")):
            if not body.is_valid:
                continue
            try:
                for rows in batches_of(body.as_buffer(), limits, free):
                    found = places.of(rows.schema)
                    for first in range(0, rows.num_rows, _SLICE_ROWS):
                        yield _cast(rows.slice(first, _SLICE_ROWS), schema, found)
            except (pa.ArrowException, InvalidMessage, OSError, MemoryError) as error:
                what = f"payloadFormat: the message at offset {offsets[index]} does not hold these columns ({error})"
                if strict:
                    raise InvalidMessage(
                        f"{what}; failOnDataLoss=false goes on behind it", field="value"
                    ) from None
                log.warning("%s; it is left out (failOnDataLoss=false)", what)


@dataclass(frozen=True)
class ArrowRows:
    """``unpack`` for a read."""

    schema: pa.Schema
    strict: bool
    limits: InflateLimits

    columns = ("offset", "value")
    """What is read of messages."""

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of batches of ``columns``."""
        return unpack(batches, self.schema, strict=self.strict, limits=self.limits)


class _Places:
    """Where the columns of ``schema`` are in messages, whose columns are mostly those of the message before."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
        self._last: tuple[pa.Schema, list[int | None]] | None = None

    def of(self, schema: pa.Schema) -> list[int | None]:
        """The place of each column; None if there is none."""
        if self._last is None or not self._last[0].equals(schema):
            self._last = schema, column_places(self._names, schema.names)
        return self._last[1]


def column_places(wanted: list[str], names: list[str]) -> list[int | None]:
    """Names that differ only in case match as in Spark."""
    exact: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        exact.setdefault(name, []).append(index)
        folded.setdefault(name.lower(), []).append(index)
    found: list[int | None] = []
    for name in wanted:
        alike = folded.get(name.lower(), [])
        alike = exact.get(name, []) if len(alike) > 1 else alike
        found.append(alike[0] if alike else None)
    return found


def _cast(rows: pa.RecordBatch, schema: pa.Schema, places: list[int | None]) -> pa.RecordBatch:
    """Raises ArrowInvalid for a null where ``schema`` allows none: Spark relies on that, and would fail or return
    wrong results."""
    arrays = []
    for field, index in zip(schema, places, strict=True):
        column: Any = pa.nulls(rows.num_rows, field.type) if index is None else rows.column(index)
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"column {field.name!r} is NOT NULL in the schema, and null here")
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            hint = "; give the columns by .schema(...)" if "null" in str(field.type) else ""
            raise pa.ArrowInvalid(
                f"column {field.name!r} is {column.type}, not {field.type}: {error}{hint}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def newest_schema(options: ReadOptions) -> pa.Schema:
    """The columns of the newest message. Raises ConfigError if there is no message."""
    from mqspark.arrow.cluster.cluster_queues import ClusterQueues

    cluster = ClusterQueues(options)
    try:
        newest: pa.Schema | None = None
        newest_ms = -1
        for queue, end in cluster.latest(cluster.queues()).items():
            found = _last_message(cluster, queue, end, options.limits)
            if found is not None and found[0] > newest_ms:
                newest_ms, newest = found
    finally:
        cluster.client.close()
    if newest is None:
        raise ConfigError.of(
            "payloadFormat", "the topic has no message yet that tells its columns; give them by .schema(...)"
        )
    return newest


def _last_message(
    cluster: ClusterQueues, queue: MessageQueue, end: int, limits: InflateLimits
) -> tuple[int, pa.Schema] | None:
    from mqspark.record.record import decode_records

    body = cluster.records_from(queue, max(0, end - 1))
    messages = decode_records(body, limits=limits) if len(body) else []
    if not messages:
        return None
    try:
        with pa.ipc.open_stream(messages[-1].body) as stream:
            return messages[-1].store_timestamp_ms, stream.schema
    except (pa.ArrowException, InvalidMessage, OSError) as error:
        raise ConfigError.of(
            "payloadFormat",
            f"the last of queue {queue.queue_id} of {queue.topic} is no Arrow stream ({error})",
        ) from None
