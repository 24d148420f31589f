"""How far a live table is: each commit of its rows says where they end (Delta's ``userMetadata``).

Rows and progress are one atomic write, so neither can be lost without the other. Read without Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec

from mqspark.arrow.files.deltafiles import COMMIT, MAX_COMMIT_BYTES
from mqspark.arrow.files.locations import join, names, read_bytes
from mqspark.errors import MQError
from mqspark.protocol.headers.header import I64


class TableRecord(msgspec.Struct, frozen=True):
    """What a commit says beside its rows."""

    topic: str
    chain: str
    """Delta's transaction id. Of two processes that write the same batch of a chain, one fails."""
    run: str
    """The process that wrote it."""
    batch: I64
    ends: dict[str, I64]
    """``broker:queue`` to the offset of its next row. What is before is in the table or among its rejected rows."""


class _Metadata(msgspec.Struct, frozen=True):
    mqspark: TableRecord


@dataclass(frozen=True, slots=True)
class TableVersion:
    number: int
    """The newest version of the table; -1: there is no table."""
    record: TableRecord | None
    """The newest one up to that version; None: the table has none, or its log does not go back so far."""
    oldest: str | None = None
    """The least value of the column asked for, in the rows that came with the record."""


def metadata_of(record: TableRecord) -> str:
    """As a commit has it."""
    return msgspec.json.encode(_Metadata(record)).decode()


def newest_version(url: str) -> TableVersion:
    """Raises MQError for a log that cannot be read, OSError."""
    log = join(url, "_delta_log")
    numbers = sorted(
        (int(commit[1]) for name in names(log) if (commit := COMMIT.fullmatch(name))), reverse=True
    )
    for number in numbers:
        found = _record_of(log, number, None)
        if found is not None:
            return TableVersion(numbers[0], *found)
    return TableVersion(numbers[0] if numbers else -1, None)


def later_version(url: str, known: TableVersion, column: str | None = None) -> TableVersion:
    """The same, when a version and its record are known. ``column``: whose least value is wanted."""
    log = join(url, "_delta_log")
    while True:
        try:
            found = _record_of(log, known.number + 1, column)
        except FileNotFoundError:
            return known
        record, oldest = (known.record, known.oldest) if found is None else found
        known = TableVersion(known.number + 1, record, oldest)


def _record_of(log: str, number: int, column: str | None) -> tuple[TableRecord, str | None] | None:
    """The record of one commit. Raises FileNotFoundError."""
    record: TableRecord | None = None
    lowest: list[str] = []
    name = f"{number:020d}.json"
    try:
        for line in read_bytes(join(log, name), MAX_COMMIT_BYTES).splitlines():
            action = json.loads(line)
            if (text := action.get("commitInfo", {}).get("userMetadata")) is not None:
                record = _of_text(text)
            elif column is not None and "add" in action:
                least = json.loads(action["add"].get("stats") or "{}").get("minValues", {}).get(column)
                lowest += [] if least is None else [str(least)]
    except (ValueError, TypeError, AttributeError) as error:
        raise MQError(f"{log} has a damaged commit {name}: {error!r}") from error
    return None if record is None else (record, min(lowest, default=None))


def _of_text(text: str) -> TableRecord | None:
    try:
        return msgspec.json.decode(text, type=_Metadata).mqspark
    except msgspec.MsgspecError:
        return None  # the metadata of another writer
