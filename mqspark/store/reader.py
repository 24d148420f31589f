"""A store directory seen read-only from another process, live or dead: what Spark reads when it is on the
same host.

No lock, no recovery. What is in a ConsumeQueue is visible to consumers (the store writes an entry when its
record is), so the entries bound what may be read of the log; where they end is found by their sizes, which
are zero behind the last. File lengths are read from the files.

Must not write, and must not be asked for a range that retention may remove meanwhile: a segment that
disappears after it was mapped stays readable, one that is gone before raises StoreCorrupt.
"""

from __future__ import annotations

import bisect
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from mqspark.errors import InvalidMessage, StoreCorrupt
from mqspark.names import path_below
from mqspark.store.consumequeue import ENTRY_BYTES, ENTRY_DTYPE, FILLER_SIZE, Entries
from mqspark.store.files import OsFiles, open_regular
from mqspark.store.layout import StorePaths, file_name, file_start, is_storable_topic
from mqspark.store.queueext import EXT_ADDRESS_BELOW, QueueExt

__all__ = ["StoreReader"]


class StoreReader:
    """``root`` is storePathRootDir. Cheap to make; maps segments when they are asked for and keeps them."""

    def __init__(self, root: Path | str, commitlog_path: Path | str | None = None) -> None:
        """``commitlog_path``: as storePathCommitLog, all its directories separated by commas."""
        self.paths = StorePaths(Path(root), commitlog_path or None)
        self._starts: list[int] = []
        self._segments: dict[int, memoryview] = {}

    def nonce(self) -> str | None:
        """What the broker that serves this directory now says its nonce is; None when no broker of ours
        does."""
        try:
            return self.paths.nonce.read_text("ascii")
        except FileNotFoundError:
            return None

    def entries(self, topic: str, queue_id: int, from_offset: int, to_offset: int) -> Entries:
        """The entries of [from_offset, to_offset) as columns ``position``, ``size``, ``tags_code``, native
        integers.

        Fillers (lost records) are left out, and so is what lies behind the visible end: fewer entries than
        asked for are no error. Offsets are dense, so with ``len == to - from`` entry i has offset
        ``from_offset + i``; otherwise read smaller ranges or take queue offsets from the records.
        """
        if not is_storable_topic(topic):
            raise InvalidMessage(f"topic {topic!r} has characters that no topic has", field="topic")
        directory = path_below(self.paths.consume_queue, topic, queue_id)
        parts: list[Entries] = []
        low, end = max(from_offset, 0) * ENTRY_BYTES, to_offset * ENTRY_BYTES
        for start, length in _files(directory):
            if start + length <= low or start >= end:
                continue
            first, last = max(low, start), min(end, start + length)
            with open(directory / file_name(start), "rb", opener=open_regular) as file:
                data = os.pread(file.fileno(), last - first, first - start)
            part = np.frombuffer(data, dtype=ENTRY_DTYPE, count=len(data) // ENTRY_BYTES)
            unused = np.flatnonzero(part["size"] <= 0)
            parts.append(part[: unused[0]] if len(unused) else part)
            if len(unused):
                break
        if len(parts) == 1:
            (found,) = parts
        else:
            found = np.concatenate(parts) if parts else np.empty(0, dtype=ENTRY_DTYPE)
        there = found["size"] != FILLER_SIZE
        if not there.all():
            found = found[there]
        # Column by column: numpy converts a structure much slower than its fields.
        native: Entries = np.empty(len(found), dtype=_NATIVE_DTYPE)
        for name in _NATIVE_DTYPE.names or ():
            native[name] = found[name]
        if (native["tags_code"] < EXT_ADDRESS_BELOW).any():
            ext = QueueExt(
                path_below(self.paths.consume_queue_ext, topic, queue_id),
                OsFiles(),
                file_bytes=1,
                dirty_files=set(),
                new_directories=set(),
            )
            native["tags_code"] = ext.tags_codes(native["tags_code"])
        return native

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first offset whose record the log has, and the first that is not visible yet."""
        directory = path_below(self.paths.consume_queue, topic, queue_id)
        queue_files = _files(directory)
        if not queue_files:
            return 0, 0
        low = queue_files[0][0] // ENTRY_BYTES
        last, _ = queue_files[-1]
        # Not from the records, which may all have expired.
        with open(directory / file_name(last), "rb", opener=open_regular) as file:
            sizes = np.fromfile(file, dtype=ENTRY_DTYPE)["size"]
        unused = np.flatnonzero(sizes <= 0)
        high = last // ENTRY_BYTES + (int(unused[0]) if len(unused) else len(sizes))
        log_begins = min(
            (start for directory in self.paths.commit_logs.all for start, _ in _files(directory)), default=0
        )
        while low < high:
            entries = self.entries(topic, queue_id, low, min(low + _READ_OFFSETS, high))
            there = entries[entries["position"] >= log_begins]
            if len(there):
                return self._queue_offset(there[0]), high
            low += _READ_OFFSETS
        return high, high

    def _queue_offset(self, entry: Any) -> int:
        view, start = self.segment(int(entry["position"]))
        at = int(entry["position"]) - start + 20
        return int.from_bytes(view[at : at + 8], "big")

    def segment(self, physical_offset: int) -> tuple[memoryview, int]:
        """The segment that holds a position, mapped read-only, and where it starts in the log.

        Look only at records that ``entries`` gave. Raises StoreCorrupt when no segment holds the position.
        """
        index = bisect.bisect_right(self._starts, physical_offset) - 1
        if index >= 0:
            start = self._starts[index]
            view = self._segments[start]
            if physical_offset < start + len(view):
                return view, start
        for directory in self.paths.commit_logs.all:
            for start, length in _files(directory):
                if start <= physical_offset < start + length:
                    with open(directory / file_name(start), "rb", opener=open_regular) as file:
                        view = memoryview(mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ))
                    self._segments[start] = view
                    bisect.insort(self._starts, start)
                    return view, start
        raise StoreCorrupt(
            f"no CommitLog segment in {self.paths.commit_log} holds position {physical_offset}",
            path=str(self.paths.commit_log),
            offset=physical_offset,
        )


_READ_OFFSETS = 1 << 14
_NATIVE_DTYPE = np.dtype([("position", "<i8"), ("size", "<i4"), ("tags_code", "<i8")])


def _files(directory: Path) -> list[tuple[int, int]]:
    """(start, length) of every mapped file, ascending."""
    try:
        with os.scandir(directory) as found:
            return sorted(
                (start, entry.stat().st_size)
                for entry in found
                if (start := file_start(entry.name)) is not None
            )
    except FileNotFoundError:
        return []
