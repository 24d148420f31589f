"""What a store directory has on disk, as tests look at it, or write it: segments, records, the table of topics."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

BLANK_MAGIC = 0xCBD43194
"""Written here once more, independent of what is tested."""


def topic_config(name: str, queues: int, **more: object) -> dict[str, object]:
    """As brokers keep it, and as they tell it to name servers."""
    return {
        "topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicSysFlag": 0,
        "topicFilterType": "SINGLE_TAG", "order": False, **more,
    }  # fmt: skip


def save_table(store: Path, name: str, **tables: Mapping[str, object]) -> None:
    """Write a file of ``config/``, as of a broker that has saved it once."""
    path = store / "config" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    path.write_text(json.dumps({"dataVersion": version, **tables}))


def segments_of(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def log_bytes(store: Path, end: int | None = None) -> bytes:
    """The log, from its first segment on; ``end``: how far it is written, as a broker says."""
    paths = segments_of(store)
    log = b"".join(path.read_bytes() for path in paths)
    return log if end is None else log[: end - int(paths[0].name)]


def records(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and size of each record of a log, or of a part that begins with one."""
    at = 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">II", data, at)
        if size == 0:
            return
        if magic != BLANK_MAGIC:
            yield at, size
        at += size
