"""What a store directory has on disk, as tests look at it: the segments, the log in them, its records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

BLANK_MAGIC = 0xCBD43194
"""Written here once more, independent of what is tested."""


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
