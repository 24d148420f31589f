"""The files of a Delta table, from its log, read without a JVM for Python workers that read Parquet themselves.

Follows the Delta transaction log protocol for tables of reader version 1: JSON commits on top of a classic
checkpoint. Later reader features (deletion vectors, column mapping) are refused, not misread. Must not know
messages.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from mqspark.arrow.files.locations import join, names, open_input, read_bytes
from mqspark.errors import MQError

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


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A table at its newest version; empty when there is none."""

    files: list[DeltaFile]
    transactions: dict[str, int]
    """Application id to the version of its newest transaction."""


def delta_table(url: str) -> DeltaTable:
    """Raises MQError for a table of another kind."""
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
    if following and int(following[0][:20]) != start + 1:
        raise MQError(f"archive: the log of {url} has no version {start + 1}")
    for name in following:
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
    return DeltaTable([_file(url, live[path]) for path in sorted(live)], transactions)


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
    )
