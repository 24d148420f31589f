"""The columns of messages, as the ``pymq`` source of Spark and ``mqspark.arrow`` have them.

The first six are the Kafka source's, so that a query can switch by changing the format: ``partition`` is the
queue id, ``offset`` the queue offset, ``timestamp`` the store time. With more than one broker a queue is
identified by (``broker``, ``partition``).

Spark does not tell a Python source which columns a query needs, and each string column costs about as much as the
body. So a read that names no columns has only the first seven: Kafka's, and the tags, without which a copied
topic would lose them.

Spark 4.2 compares Arrow schemas strictly: every field nullable, timestamps in microseconds of "UTC", no large or
view types. Must not import pyarrow at import time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqspark.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

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

PLACE = ("topic", "partition", "offset")
"""What an error says of a message."""

_DEFAULT = ("key", "value", "topic", "partition", "offset", "timestamp", "tags")
STORE_COLUMNS = ("broker", "bornTimestamp", "msgId", "physicalOffset", "sysFlag")
"""What a read of a store has in addition."""


def default_columns(*asked: str) -> tuple[str, ...]:
    """The columns if the user selected none: the default ones and those in ``asked``."""
    return tuple(name for name in COLUMNS if name in asked or name in _DEFAULT)


def named_columns(names: Iterable[str], default: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of these names, each once; ``*`` is the default ones. Raises ConfigError."""
    named: list[str] = []
    for name in names:
        if name != "*" and name not in COLUMNS:
            raise ConfigError.of(
                "columns",
                f"names separated by commas, and * for {', '.join(default)}; {name!r} is none of "
                f"{', '.join(COLUMNS)}",
            )
        named += default if name == "*" else (name,)
    return tuple(dict.fromkeys(named))


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
