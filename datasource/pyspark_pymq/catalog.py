"""A catalog table as a saved topic: the OPTIONS of ``CREATE TABLE ... USING pymq``, kept in the table's columns.

Spark 4.1 to 4.3 pass a table's OPTIONS to a Python source only once, when a table without a column list is
created and ``schema`` is called. Queries of the table pass its columns and no option. So the options are stored
in the metadata of the first column, which Spark keeps in the catalog and passes to every read.

A write passes the columns of the query, whose metadata may be that of another table: an INSERT needs its own
options, in ``INSERT INTO t WITH (...)``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import CaseInsensitiveDict

from mqspark.errors import ConfigError
from pyspark_pymq.optiontexts import SECRETS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_METADATA = "pymq.options"
_PREFIX = "option."
"""Spark passes each option of OPTIONS twice while it creates a table: under its name, and with this prefix."""
_SELECTING = (
    "nameserver",
    "topic",
    "topics",
    "subscribe",
    "topicpattern",
    "subscribepattern",
    "assign",
    "store",
)
_KEYS = {name.lower(): name for name in SECRETS}


def options_of_created(options: Mapping[str, str]) -> Mapping[str, str] | None:
    """The OPTIONS of the table that Spark creates; None if it creates none. Only then are there prefixed names
    and ``provider``."""
    if "provider" not in options:
        return None
    _check_no_keys(name.removeprefix(_PREFIX) for name in options)
    saved: Mapping[str, str] = CaseInsensitiveDict(
        {name[len(_PREFIX) :]: value for name, value in options.items() if name.startswith(_PREFIX)}
    )
    return saved


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a new table that keep its options."""
    from pyspark.sql.types import StructField, StructType

    first = schema.fields[0]
    metadata = {**(first.metadata or {}), _METADATA: json.dumps(dict(options), sort_keys=True)}
    kept = StructField(first.name, first.dataType, first.nullable, metadata)
    return StructType([kept, *schema.fields[1:]])


def options_of_read(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a read: those of the table that ``schema`` belongs to, and the query's own, which override
    them. A query that names its source itself reads no table.

    Raises ConfigError for columns whose metadata is damaged.
    """
    if any(name in options for name in _SELECTING):
        return options
    for field in schema.fields:
        text = (field.metadata or {}).get(_METADATA)
        if text is not None:
            _check_no_keys(options)
            merged: Mapping[str, str] = CaseInsensitiveDict({**_parsed(text), **options})
            return merged
    return options


def _check_no_keys(names: Iterable[str]) -> None:
    """A catalog keeps options in clear, and a statement's text is logged. Raises ConfigError."""
    for name in names:
        if name.lower() in _KEYS:
            raise ConfigError.of(
                _KEYS[name.lower()],
                "no option of a table, whose options are kept and shown in clear; use the "
                "environment (MQSPARK_SECRET_KEY) or the option credentialsFile",
            )


def _parsed(text: object) -> dict[str, str]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError.of("nameserver", f"the table's saved options are damaged: {str(text)[:200]!r}")
    return found
