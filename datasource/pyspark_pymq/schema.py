"""The columns of a ``pymq`` DataFrame as Spark's types, and those of a user's ``.schema(...)``.

Must not import pyspark or pyarrow at import time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mqspark.arrow.messagecolumns import COLUMNS
from mqspark.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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


def checked_column(field: Any, expected: str | None) -> None:
    """``expected``: its type; None: any. Raises ConfigError(key="schema")."""
    found = field.dataType.simpleString()
    if expected is not None and found != expected:
        hint = "cast it after the load"
        if (found, expected) == ("timestamp_ntz", "timestamp"):
            hint = "write timestamp_ltz: spark.sql.timestampType says what timestamp means"
        raise ConfigError.of("schema", f"column {field.name!r} is {expected}, not {found}; {hint}")
    # Spark's workers compare nullability with the data, also of nested fields, which simpleString does not show.
    if not field.nullable or ":false" in field.dataType.json():
        raise ConfigError.of(
            "schema", f"column {field.name!r} may be null, outside and inside; leave out NOT NULL"
        )


def selected_columns(schema: Any) -> tuple[str, ...]:
    """The columns of a Spark StructType, validated. Raises ConfigError(key="schema") naming the column."""
    columns = []
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise ConfigError.of(
                "schema", f"the pymq source has no column {field.name!r}; it has {', '.join(COLUMNS)}"
            )
        checked_column(field, expected)
        if field.name in columns:
            raise ConfigError.of("schema", f"column {field.name!r} is named twice")
        columns.append(field.name)
    if not columns:
        raise ConfigError.of("schema", "select at least one column")
    return tuple(columns)
