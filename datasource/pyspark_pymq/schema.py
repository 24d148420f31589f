"""The columns of a ``pymq`` DataFrame, as Spark names them and as Arrow carries them.

The first six are the Kafka source's, so that a query can switch by changing the format: ``partition`` is the
queue id, ``offset`` the queue offset, ``timestamp`` the store time. With more than one broker a queue is
identified by (``broker``, ``partition``).

Spark does not tell a Python source which columns a query needs, and each string column costs about as much as the
body. So a read without ``.schema(...)`` has only the first seven: Kafka's, and the tags, without which a copied
topic would lose them.

Spark 4.2 compares Arrow schemas strictly: every field nullable, timestamps in microseconds of "UTC", no large or
view types. Must not import pyspark or pyarrow at import time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mqspark.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PROPERTIES = "properties"
HEADERS = "headers"
"""The properties in the shape of Kafka's record headers."""

COLUMNS: dict[str, str] = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "tags": "string",
    "broker": "string",
    "bornTimestamp": "timestamp",
    "msgId": "string",
    PROPERTIES: "map<string,string>",
    HEADERS: "array<struct<key:string,value:binary>>",
    "physicalOffset": "bigint",
    "sysFlag": "int",
    "reconsumeTimes": "int",
}
"""Name to Spark type. The columns from ``broker`` on are present only if an option or ``.schema(...)`` selects
them."""

_DEFAULT = ("key", "value", "topic", "partition", "offset", "timestamp", "tags")
STORE_COLUMNS = ("broker", "bornTimestamp", "msgId", "physicalOffset", "sysFlag")
"""What a read of a store has in addition."""


def default_columns(*asked: str) -> tuple[str, ...]:
    """The columns if the user selected none: the default ones and those in ``asked``."""
    return tuple(name for name in COLUMNS if name in asked or name in _DEFAULT)


def spark_schema(types: Mapping[str, str], names: Iterable[str] | None = None) -> StructType:
    """Columns for Spark, all of ``types`` or those named: objects, because DDL text means what the session's settings
    say. There ``timestamp`` may be TIMESTAMP_NTZ, and ``offset`` a reserved word."""
    from pyspark.sql import types as kinds

    known = {
        "string": kinds.StringType(),
        "binary": kinds.BinaryType(),
        "boolean": kinds.BooleanType(),
        "int": kinds.IntegerType(),
        "bigint": kinds.LongType(),
        "date": kinds.DateType(),
        "timestamp": kinds.TimestampType(),
        "map<string,string>": kinds.MapType(kinds.StringType(), kinds.StringType()),
        "array<struct<key:string,value:binary>>": kinds.ArrayType(
            kinds.StructType().add("key", kinds.StringType()).add("value", kinds.BinaryType())
        ),
    }
    schema = kinds.StructType()
    for name in types if names is None else names:
        schema.add(name, known[types[name]])
    return schema


def selected_columns(schema: Any) -> tuple[str, ...]:
    """The columns of a Spark StructType, validated. Raises ConfigError(key="schema") naming the column."""
    columns = []
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise ConfigError(
                f"schema: the pymq source has no column {field.name!r}; it has {', '.join(COLUMNS)}",
                key="schema",
            )
        found = field.dataType.simpleString()
        if found != expected:
            hint = "cast it after the load"
            if (found, expected) == ("timestamp_ntz", "timestamp"):
                hint = "write timestamp_ltz: spark.sql.timestampType says what timestamp means"
            raise ConfigError(
                f"schema: column {field.name!r} is {expected}, not {found}; {hint}",
                key="schema",
            )
        # Spark's workers compare nullability with the data, also of nested fields, which simpleString does not
        # show.
        if not field.nullable or ":false" in field.dataType.json():
            raise ConfigError(
                f"schema: column {field.name!r} may be null, outside and inside; leave out NOT NULL",
                key="schema",
            )
        if field.name in columns:
            raise ConfigError(f"schema: column {field.name!r} is named twice", key="schema")
        columns.append(field.name)
    if not columns:
        raise ConfigError("schema: select at least one column", key="schema")
    return tuple(columns)


def arrow_type(column: str) -> pa.DataType:
    return arrow_type_of(COLUMNS[column])


@functools.cache
def arrow_type_of(kind: str) -> pa.DataType:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "array<struct<key:string,value:binary>>": pa.list_(
            pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
        ),
    }
    return types[kind]


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(name, arrow_type(name), nullable=True) for name in columns])
