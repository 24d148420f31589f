"""Parts of the log that were set aside in ``mqspark.diverged/`` because the master's log differed, and their messages.

A file is named after the position of its first byte and the time. Its bytes are as they were in the log, so damage in
them is stepped over, and told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from mqspark.message import MessageExt
from mqspark.record.record import Verdict, check_record, decode_record
from mqspark.record.recordlayout import BLANK_BYTES, BLANK_MAGIC, MAGICS, record_size
from mqspark.store.disk.files import FileLayer, OsFiles

_NAME = re.compile(r"(\d{20})-(\d{1,15})\.log")

_PIECE_BYTES = 1 << 20


class SavedPart(NamedTuple):
    path: Path
    position: int
    """Where its first byte was in the log."""
    saved_ms: int
    size_bytes: int


class Damaged(NamedTuple):
    """Bytes without a valid record."""

    position: int
    size_bytes: int


def saved_parts(directory: Path, files: FileLayer | None = None) -> list[SavedPart]:
    """The files of ``mqspark.diverged/``, the oldest first; none without such a directory. Raises OSError."""
    layer = files if files is not None else OsFiles()
    found = []
    for name in layer.names(directory):
        if (matched := _NAME.fullmatch(name)) is None:
            continue
        path = directory / name
        fd = layer.open_read(path)
        try:
            found.append(SavedPart(path, int(matched[1]), int(matched[2]), layer.length(fd)))
        finally:
            layer.close(fd)
    return sorted(found, key=lambda each: (each.saved_ms, each.position))


def messages_of(part: SavedPart) -> Iterator[MessageExt | Damaged]:
    """The messages of a part, in the order of the log, and what of it is no message. Raises OSError."""
    layer, end = OsFiles(), part.size_bytes
    if not end:
        return
    fd = layer.open_read(part.path)
    try:
        data = layer.map_read(fd, end)
    finally:
        layer.close(fd)
    low = 0
    while low + BLANK_BYTES <= end:
        message = _message_at(data, low, end, part.position)
        if message is not None:
            yield message
            low += message.store_size_bytes
            continue
        following = _next_record(data, low + 1, end, part.position)
        if not _is_padding(data, low, following):
            yield Damaged(part.position + low, following - low)
        low = following


def _is_record(data: mmap, low: int, end: int, begin: int) -> bool:
    record = check_record(data, low, end, verify_crc=True)
    return record.verdict is Verdict.VALID and record.physical_offset == begin + low


def _message_at(data: mmap, low: int, end: int, begin: int) -> MessageExt | None:
    if not _is_record(data, low, end, begin):
        return None
    size = record_size(data, low)
    return decode_record(data[low : low + size], 0, decompress=False)


def _next_record(data: mmap, low: int, end: int, begin: int) -> int:
    """Where the next valid record begins; ``end`` without one."""
    while True:
        found = [at - 4 for magic in MAGICS if (at := data.find(magic, low + 4)) >= 0]
        if not found:
            return end
        low = min(found)
        if _is_record(data, low, end, begin):
            return low
        low += 1


def _is_padding(data: mmap, low: int, high: int) -> bool:
    """Whether it is the end of a segment: a head that says so, or nothing, and zeros."""
    if data[low + 4 : low + 8] == BLANK_MAGIC.to_bytes(4, "big", signed=True):
        low += BLANK_BYTES
    return all(
        not data[at : min(at + _PIECE_BYTES, high)].strip(b"\0") for at in range(low, high, _PIECE_BYTES)
    )
