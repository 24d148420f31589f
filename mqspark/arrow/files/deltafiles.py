"""The files of a Delta table, from its log, read without a JVM for Python workers that read Parquet themselves.

Follows the Delta transaction log protocol for tables of reader version 1: JSON commits on top of a classic
checkpoint. Later reader features (deletion vectors, column mapping) are refused, not misread. Must not know
messages.
"""

from __future__ import annotations

import errno
import json
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqspark.arrow.files.locations import join, names, open_input, read_bytes
from mqspark.errors import MQError, StoreCorrupt

if TYPE_CHECKING:
    import pyarrow.parquet as pq

COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")

MAX_COMMIT_BYTES = 256 << 20
"""The most of one commit; one that adds 100,000 files has some 100 MiB."""


@dataclass(frozen=True, slots=True)
class DeltaFile:
    url: str
    size_bytes: int
    partition: dict[str, str | None] = field(hash=False)
    lowest: dict[str, Any] = field(hash=False)
    highest: dict[str, Any] = field(hash=False)
    """Column to its smallest and largest value, if the writer stored them."""
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A table at its newest version; empty when there is none."""

    files: list[DeltaFile]
    transactions: dict[str, int]
    """Application id to the version of its newest transaction."""
    version: int = -1
    """-1: there is no table."""


def delta_table(url: str) -> DeltaTable:
    """Raises MQError for a table of another kind, and for a log that lacks a commit."""
    log = join(url, "_delta_log")
    found = names(log)
    commits = sorted((int(match[1]), match[0]) for name in found if (match := COMMIT.fullmatch(name)))
    checkpoints: dict[int, list[str]] = {}
    for name in found:
        if match := _CHECKPOINT.fullmatch(name):
            checkpoints.setdefault(int(match[1]), []).append(name)
    start = -1
    live: dict[str, dict[str, Any]] = {}
    transactions: dict[str, int] = {}
    for version in sorted(checkpoints, reverse=True):
        parts = checkpoints[version]
        if len(parts) == _parts_wanted(parts[0]):
            start = version
            for part in parts:
                _take_checkpoint(join(log, part), live, transactions)
            break
    following = [name for version, name in commits if version > start]
    for version, name in enumerate(following, start + 1):
        if int(name[:20]) != version:
            raise MQError(f"archive: the log of {url} has no version {version}")
        for line in read_bytes(join(log, name), MAX_COMMIT_BYTES).splitlines():
            action = json.loads(line)
            if "protocol" in action:
                _check_protocol(url, action["protocol"])
            elif "add" in action:
                live[action["add"]["path"]] = action["add"]
            elif "remove" in action:
                live.pop(action["remove"]["path"], None)
            elif "txn" in action:
                transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
    return DeltaTable([_file(url, live[path]) for path in sorted(live)], transactions, start + len(following))


@contextmanager
def opened_parquet(file: DeltaFile) -> Iterator[pq.ParquetFile]:
    """A file of a table: the one that the table's log describes, and the checksums of its pages are compared.

    Raises StoreCorrupt for another one, for one that is not Parquet, and when a page cannot be decoded; OSError when it
    cannot be read, memory is short or a checksum is wrong."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_input(file.url) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            difference = _difference(file, parquet.metadata)
            if difference is not None:
                raise StoreCorrupt(
                    f"{file.url} is not the file of this name in the table: {difference}",
                    path=file.url,
                    offset=0,
                )
            yield parquet
    except pa.ArrowMemoryError as error:
        raise OSError(errno.ENOMEM, str(error)[:200], file.url) from None
    except pa.ArrowException as error:
        raise StoreCorrupt(f"{file.url} is damaged: {str(error)[:200]}", path=file.url, offset=0) from None


def _difference(file: DeltaFile, metadata: pq.FileMetaData) -> str | None:
    """Between what the log says of a file and what its footer says: an older copy, or a file in the place of another,
    has other rows."""
    if file.rows is not None and metadata.num_rows != file.rows:
        return f"it has {metadata.num_rows} rows instead of {file.rows}"
    bounds: dict[str, list[int]] = {}
    unsaid: set[str] = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            name = column.path_in_schema
            if _is_whole(file.lowest.get(name)) and _is_whole(file.highest.get(name)):
                statistics = column.statistics
                if statistics is None or not statistics.has_min_max or not _is_whole(statistics.min):
                    unsaid.add(name)  # or a time
                    continue
                bounds.setdefault(name, []).extend((statistics.min, statistics.max))
    for name, found in bounds.items():
        here, expected = (min(found), max(found)), (file.lowest[name], file.highest[name])
        if here != expected and name not in unsaid:
            return f"its {name} is {here[0]} to {here[1]} instead of {expected[0]} to {expected[1]}"
    return None


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _parts_wanted(name: str) -> int:
    pieces = name.split(".")
    return int(pieces[3]) if len(pieces) == 5 else 1


def _take_checkpoint(url: str, live: dict[str, dict[str, Any]], transactions: dict[str, int]) -> None:
    import pyarrow.parquet as pq

    with open_input(url) as file:
        table = pq.read_table(file, columns=["add", "protocol", "txn"])
    for protocol in table.column("protocol").drop_null().to_pylist():
        _check_protocol(url, protocol)
    for add in table.column("add").drop_null().to_pylist():
        live[add["path"]] = add | {"partitionValues": dict(add["partitionValues"])}
    for transaction in table.column("txn").drop_null().to_pylist():
        transactions[transaction["appId"]] = int(transaction["version"])


def _check_protocol(url: str, protocol: dict[str, Any]) -> None:
    if (protocol.get("minReaderVersion") or 1) > 1 or protocol.get("readerFeatures"):
        raise MQError(f"archive: the table {url} needs a newer Delta reader; read it with format('delta')")


def _file(url: str, add: dict[str, Any]) -> DeltaFile:
    if add.get("deletionVector"):
        raise MQError(f"archive: {url} has deletion vectors; read it with format('delta')")
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    path = urllib.parse.unquote(add["path"])
    if {"", ".", ".."} & set(path.split("/")):  # of another table, or of this host
        raise MQError(f"archive: {url} names the file {path[:200]!r}, which is not in it")
    return DeltaFile(
        join(url, path),
        int(add["size"]),
        dict(add["partitionValues"]),
        stats.get("minValues", {}),
        stats.get("maxValues", {}),
        stats.get("numRecords"),
    )
