"""Positions at which a long segment may be split between tasks: known starts of records.

A search of the log for something that looks like a record could find one inside a body. The entries of a
ConsumeQueue are positions of records, in order, so the first one after a position is found by binary search. Must
not know Spark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mqspark.arrow.files.locations import is_remote, local_path
from mqspark.arrow.files.logfiles import LogFile
from mqspark.record.recordlayout import MAGIC_V1, MAGIC_V2, fields
from mqspark.store.disk.layout import file_start
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, FILLER_SIZE

_QUEUES = 8
"""The number of longest queues to search; one that is busy in the segment is enough."""
_PLACED = fields("magic", "position")


def cuts(consume_queues: Path, log: Sequence[LogFile], every_bytes: int) -> list[int]:
    """Positions about ``every_bytes`` apart; none if the queues have no entries there or the log is not local."""
    queues = _longest(consume_queues)
    found = []
    for file in log:
        if is_remote(file.url):
            continue
        for target in range(file.start + every_bytes, file.start + file.length, every_bytes):
            places = [place for queue in queues if (place := _first_from(queue, target)) is not None]
            near = min(places, default=target + every_bytes)
            if near < min(target + every_bytes, file.start + file.length) and _is_record(file, near):
                found.append(near)
    return found


def _longest(root: Path) -> list[list[tuple[Path, int]]]:
    """Files of the longest queues, each with its capacity in entries, oldest first."""
    queues = []
    for topic in _paths(root):
        for queue in _paths(topic):
            files = [
                (path, path.stat().st_size // ENTRY_BYTES)
                for path in _paths(queue)
                if file_start(path.name) is not None
            ]
            if files:
                queues.append(files)
    queues.sort(key=lambda files: -sum(room for _, room in files))
    return queues[:_QUEUES]


def _paths(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _first_from(queue: list[tuple[Path, int]], target: int) -> int | None:
    """The position of the queue's first record at or after ``target``."""
    for path, room in reversed(queue):
        with path.open("rb") as file:
            fd = file.fileno()

            def position(index: int, fd: int = fd) -> int | None:
                data = os.pread(fd, ENTRY_BYTES, index * ENTRY_BYTES)
                start, size, _ = ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0)
                return start if size > 0 and size != FILLER_SIZE else None

            first = position(0)
            if first is None or (first >= target and path is not queue[0][0]):
                continue
            low, high = 0, room
            while low < high:
                middle = (low + high) // 2
                here = position(middle)
                if here is None or here >= target:
                    high = middle
                else:
                    low = middle + 1
            return position(low) if low < room else None
    return None


def _is_record(file: LogFile, position: int) -> bool:
    with local_path(file.url).open("rb") as segment:
        head = os.pread(segment.fileno(), _PLACED.size, position - file.start)
    if len(head) < _PLACED.size:
        return False
    magic, own_position = _PLACED.unpack_from(head)
    return magic in (MAGIC_V1, MAGIC_V2) and own_position == position
