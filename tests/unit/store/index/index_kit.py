"""What the tests of the index share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mqspark.record.record import decode_record
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.index import indexer
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexfile import Shape
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.store import MessageStore
from tests.support.store_tools import query

GOLDEN = Path(__file__).parents[3] / "golden"
SMALL = Shape(10, 20)
EVER = 1 << 62


def made(
    root: Path,
    shape: Shape = SMALL,
    files: OsFiles | None = None,
    now_ms: int = 1_700_000_000_000,
    budget: MapBudget | None = None,
) -> MessageIndex:
    return MessageIndex(
        root / "index",
        root / "mqspark.index",
        files or OsFiles(),
        lambda: now_ms,
        shape=shape,
        budget=budget,
    )


def loaded(
    root: Path, shape: Shape = SMALL, *, clean: bool = True, safe_timestamp_ms: int = 0
) -> MessageIndex:
    index = made(root, shape)
    index.load(clean=clean, safe_timestamp_ms=safe_timestamp_ms)
    return index


def follow(log: CommitLog, index: MessageIndex, end: int, window_bytes: int = 1 << 20) -> bool:
    return indexer.Indexer(log, index, lambda: 0, window_bytes=window_bytes).follow(end, end, end)


def read_manifest(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(GOLDEN / f"store/{name}.manifest.jsonl.gz", "rt") as lines:
        yield from (json.loads(line) for line in lines)


def asked(
    store: MessageStore, key: str, limit: int = 64, begin_ms: int = 0, end_ms: int = EVER
) -> list[bytes]:
    return [decode_record(record).body for record in query(store, "T", key, limit, begin_ms, end_ms)]
