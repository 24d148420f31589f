"""``mqspark.arrow.write``: an Arrow table, or a frame of Polars, pandas or DuckDB, to a topic.

The rows go the way of Spark's sink, at least once: when an error is raised, rows before it may be sent. Must not know
Spark or an event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from mqspark.arrow.messagecolumns import arrow_type_of
from mqspark.arrow.records.encode import Compression
from mqspark.arrow.signing import SigningOptions
from mqspark.arrow.writing.rowcolumns import COLUMN_TYPES, sent_columns
from mqspark.arrow.writing.sendchoice import BATCH_BYTES, LEAST_BATCH_BYTES, THRESHOLD_BYTES, SendChoice
from mqspark.arrow.writing.sendrows import send_rows
from mqspark.base.config import told_of
from mqspark.client.blocking import meet
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.message import check_group, check_topic
from mqspark.record.compression import LZ4, ZLIB, ZSTD, compressor

_KINDS = {"zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}
_SLICE_ROWS = 65_536
_SLICE_BYTES = 8 << 20
"""What is encoded at once."""


def write(
    nameserver: str,
    topic: str | None,
    rows: Any,
    *,
    group: str = "mqspark-arrow-writer",
    batch_bytes: int = BATCH_BYTES,
    compression: str | None = None,
    keep_broker_properties: bool = False,
    send_timeout_s: float = 10.0,
    retry_timeout_s: float = 300.0,
    credentials: Credentials | None = None,
) -> int:
    """Send each row as a message; returns how many there were when all are stored.

    ``rows``: a pyarrow table, batch or reader, or what has ``__arrow_c_stream__``: frames of Polars and pandas,
    relations of DuckDB. The columns are those of Spark's sink: ``value``, and if wanted ``key``, ``tags``,
    ``properties``, ``headers``, ``partition`` and more. ``topic``: None if a column names it. ``compression``:
    zlib, lz4 or zstd.

    >>> mqspark.arrow.write("127.0.0.1:9876", "Orders", pl.DataFrame({"key": ["order-1"], "value": ["book"]}))

    Raises ConfigError for columns that are no message, InvalidMessage for a row that is none, ClientError.
    """
    choice = SendChoice(
        nameserver=nameserver,
        topic=_checked_topic(topic),
        group=_checked_group(group),
        batch_bytes=_checked_size(batch_bytes),
        compression=_compression(compression),
        send_timeout_ms=int(send_timeout_s * 1000),
        retry_timeout_ms=int(retry_timeout_s * 1000),
        keep_broker_properties=keep_broker_properties,
        as_dead_letters=False,
        exactly_once=False,
        signing=SigningOptions(credentials),
    )
    reader = _reader(rows)
    schema = _target(reader.schema)
    names = sent_columns([(each.name, kind_of(each.type)) for each in schema], choice)
    meet(nameserver, credentials)
    wanted = pa.schema([schema.field(name) for name in names])
    return send_rows(choice, _slices(reader, wanted), first_turn=0)


def kind_of(kind: pa.DataType) -> str:
    """The type in Spark's words; in Arrow's for one that no column has."""
    return next((name for name in _NAMES if arrow_type_of(name) == kind), str(kind))


_NAMES = tuple(dict.fromkeys(name for names in COLUMN_TYPES.values() for name in names))


def _reader(rows: Any) -> pa.RecordBatchReader:
    """Raises ConfigError."""
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(rows.schema, [rows])
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(rows)
    raise ConfigError.of(
        "rows",
        "a pyarrow table, batch or reader, or a frame with __arrow_c_stream__ (Polars, pandas, DuckDB), not "
        f"{type(rows).__name__}",
    )


def _target(schema: pa.Schema) -> pa.Schema:
    """The same columns in the types that a message takes, as far as no value changes."""
    fields = []
    for field in schema:
        allowed = [arrow_type_of(name) for name in COLUMN_TYPES.get(field.name, ())]
        kind = field.type
        if allowed and kind not in allowed:
            kind = next((each for each in allowed if _is_alike(kind, each)), kind)
        fields.append(pa.field(field.name, kind))
    if len({field.name for field in fields}) < len(fields):
        raise ConfigError.of("rows", f"two columns have one name: {', '.join(schema.names)}")
    return pa.schema(fields)


def _is_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of the one are values of the other in another shape."""
    types = pa.types
    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _is_alike(given.value_type, wanted)
    if types.is_string(wanted):
        return bool(types.is_string(given) or types.is_large_string(given) or types.is_string_view(given))
    if types.is_binary(wanted):
        return bool(
            types.is_binary(given)
            or types.is_large_binary(given)
            or types.is_binary_view(given)
            or types.is_fixed_size_binary(given)
        )
    if types.is_integer(wanted):
        return bool(types.is_integer(given))
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(given) and given.tz)
    if types.is_list(wanted) and (types.is_list(given) or types.is_large_list(given)):
        inner, needed = given.value_type, wanted.value_type
        return (
            types.is_struct(inner)
            and [inner.field(index).name for index in range(inner.num_fields)] == ["key", "value"]
            and all(_is_alike(inner.field(index).type, needed.field(index).type) for index in range(2))
        )
    return False


def _slices(reader: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of these columns, a part at a time. Raises InvalidMessage for a value that a message cannot have."""
    for batch in reader:
        rows = min(_SLICE_ROWS, max(1, batch.num_rows * _SLICE_BYTES // max(1, batch.nbytes)))
        for first in range(0, batch.num_rows, rows):
            part = batch.slice(first, rows)
            yield pa.RecordBatch.from_arrays([_cast(part, field) for field in schema], schema=schema)


def _cast(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    column = batch.column(field.name)
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidMessage(f"{field.name}: {error}", field=field.name) from None


def _checked_topic(topic: str | None) -> str | None:
    if topic is not None:
        with told_of("topic", f"topic: {topic!r}"):
            check_topic(topic)
    return topic


def _checked_group(group: str) -> str:
    with told_of("group"):
        check_group(group)
    return group


def _checked_size(batch_bytes: int) -> int:
    if isinstance(batch_bytes, bool) or not isinstance(batch_bytes, int) or batch_bytes < LEAST_BATCH_BYTES:
        raise ConfigError.of(
            "batch_bytes", f"a whole number from {LEAST_BATCH_BYTES} on, not {batch_bytes!r}"
        )
    return batch_bytes


def _compression(name: str | None) -> Compression | None:
    if name is None:
        return None
    kind = _KINDS.get(name)
    if kind is None:
        raise ConfigError.of("compression", f"one of {', '.join(_KINDS)}, not {name!r}")
    with told_of("compression"):
        compressor(kind)
    return Compression(kind, THRESHOLD_BYTES)
