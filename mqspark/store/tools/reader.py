"""Read-only access to a store directory from another process, with or without a running broker. Used by Spark
on the same host.

Records are copied out of the segments, or read through maps that may be truncated meanwhile
(``mqspark.store.disk.cuts``): missing bytes of a truncated segment raise an error and never kill the process.

There is no lock and no recovery. What is in a ConsumeQueue is visible to consumers (the store writes an entry
when its record is visible), so the entries limit what may be read of the log. Their end is found by the
sizes, which are zero after the last one. File lengths are read from the files.

Must not write, and must not be asked for a range that retention may remove meanwhile. A segment that
disappears after it was opened stays readable until ``let_go_deleted`` lets go of it; then, and if it disappeared
before, reads raise StoreCorrupt.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.names import path_below
from mqspark.errors import InvalidMessage, StoreCorrupt
from mqspark.record.recordlayout import MIN_RECORD_BYTES, queue_offset_of
from mqspark.store.disk.cuts import guarded_map, release
from mqspark.store.disk.files import OsFiles, StrPath
from mqspark.store.disk.layout import StorePaths, file_name, file_start, is_storable_topic
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.disk.trusted import Trust
from mqspark.store.queue.consumequeue import ENTRY_BYTES, ENTRY_DTYPE, FILLER_SIZE
from mqspark.store.queue.mapped import Entries
from mqspark.store.queue.queueext import EXT_ADDRESS_BELOW, QueueExt, Unsynced

Int64s = npt.NDArray[np.int64]


class StoreReader:
    """``root`` is storePathRootDir. Cheap to create; opens segments on demand and keeps some open."""

    def __init__(
        self,
        root: Path | str,
        commitlog_path: Path | str | None = None,
        trust: Trust | None = None,
        *,
        maps: bool = False,
    ) -> None:
        """``commitlog_path``: as storePathCommitLog, with all directories separated by commas. ``trust``:
        given when a peer reports these directories; every call then raises Untrusted for what may not be
        opened. ``maps``: map segments where possible; ``check`` then has to confirm what was read of a piece."""
        self.paths = StorePaths(Path(root), commitlog_path or None)
        self._trust = trust
        self._maps = maps
        self._lock = threading.Lock()
        """Guards the two tables of open segments: ``let_go_deleted`` runs in another thread."""
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        self._starts: list[int] = []
        self._buffer = memoryview(bytearray())
        if trust is not None:
            for directory in (root, *self.paths.commit_logs.all):
                trust.add(directory)

    def _open(self, path: Path) -> int:
        return self._trust.open(path) if self._trust is not None else OsFiles().open_read(path)

    def nonce(self) -> str | None:
        """The nonce of the broker that serves this directory; None when no broker of this project does."""
        try:
            fd = self._open(self.paths.nonce)
        except FileNotFoundError:
            return None
        try:
            return os.read(fd, _NONCE_BYTES).decode("ascii", "replace").strip()
        finally:
            os.close(fd)

    def entries(self, topic: str, queue_id: int, from_offset: int, to_offset: int) -> Entries:
        """The entries of [from_offset, to_offset) as columns ``position``, ``size``, ``tags_code``, native
        integers.

        Fillers (lost records) and entries after the visible end are left out, so there may be fewer entries
        than requested. Offsets are dense: with ``len == to - from`` entry i has offset ``from_offset + i``.
        Otherwise read smaller ranges or take queue offsets from the records.
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
            data = self._read(directory / file_name(start), last - first, first - start)
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
        return self._native(topic, queue_id, found)

    def rows(self, topic: str, queue_id: int, from_offset: int) -> Iterator[tuple[Int64s, Entries]]:
        """All entries from an offset on, some thousand at a time, with their offsets and without fillers.

        An entry that is zero before the last one is damaged and not the end: its size is not positive.
        """
        directory = path_below(self.paths.consume_queue, topic, queue_id)
        low = max(from_offset, 0) * ENTRY_BYTES
        queue_files = _files(directory)
        for number, (start, length) in enumerate(queue_files):
            if start + length <= low:
                continue
            first = max(low, start)
            data = self._read(directory / file_name(start), start + length - first, first - start)
            found = np.frombuffer(data, dtype=ENTRY_DTYPE, count=len(data) // ENTRY_BYTES)
            if number == len(queue_files) - 1:
                used = np.flatnonzero(found["size"] > 0)
                found = found[: int(used[-1]) + 1 if len(used) else 0]
            offsets = np.arange(len(found)) + first // ENTRY_BYTES
            there = found["size"] != FILLER_SIZE
            offsets, found = offsets[there], found[there]
            for at in range(0, len(found), READ_OFFSETS):
                part = found[at : at + READ_OFFSETS]
                yield offsets[at : at + READ_OFFSETS], self._native(topic, queue_id, part)

    def log_begin(self) -> int:
        """The position of the first byte that the log has; 0 without a log."""
        return min(
            (start for directory in self.paths.commit_logs.all for start, _ in _files(directory)), default=0
        )

    def _native(self, topic: str, queue_id: int, found: Entries) -> Entries:
        """Entries as native integers, their tags codes resolved."""
        # Column by column: numpy converts a structure much more slowly than its fields.
        native: Entries = np.empty(len(found), dtype=_NATIVE_DTYPE)
        for name in _NATIVE_DTYPE.names or ():
            native[name] = found[name]
        if (native["tags_code"] < EXT_ADDRESS_BELOW).any():
            ext = QueueExt(
                path_below(self.paths.consume_queue_ext, topic, queue_id),
                _Files(self._open),
                file_bytes=1,
                unsynced=Unsynced(),
                budget=MapBudget(1),
            )
            native["tags_code"] = ext.tags_codes(native["tags_code"])
        return native

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that ever got a message, ascending."""
        try:
            names = os.listdir(path_below(self.paths.consume_queue, topic))
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first offset whose record the log has, and the first that is not visible yet."""
        directory = path_below(self.paths.consume_queue, topic, queue_id)
        queue_files = _files(directory)
        if not queue_files:
            return 0, 0
        low = queue_files[0][0] // ENTRY_BYTES
        last, _ = queue_files[-1]
        # Not from the records, which may all have expired.
        data = self._read(directory / file_name(last), queue_files[-1][1], 0)
        sizes = np.frombuffer(data, dtype=ENTRY_DTYPE, count=len(data) // ENTRY_BYTES)["size"]
        unused = np.flatnonzero(sizes <= 0)
        high = last // ENTRY_BYTES + (int(unused[0]) if len(unused) else len(sizes))
        log_begins = self.log_begin()
        while low < high:
            entries = self.entries(topic, queue_id, low, min(low + READ_OFFSETS, high))
            there = entries[entries["position"] >= log_begins]
            if len(there):
                return self._queue_offset(there[0]), high
            low += READ_OFFSETS
        return high, high

    def end_before(self, topic: str, queue_id: int, low: int, high: int, position: int) -> int:
        """The end of the offsets in [low, high) whose records lie before a position of the log; ``high`` for -1."""
        while position >= 0 and high > low:
            first = max(low, high - READ_OFFSETS)
            entries = self.entries(topic, queue_id, first, high)
            before = entries[entries["position"] < position]
            if len(before) == len(entries) and len(entries):
                return high
            if len(before):
                return min(high, max(first, self._queue_offset(before[-1]) + 1))
            high = first
        return high

    def _queue_offset(self, entry: Any) -> int:
        return self.queue_offset(int(entry["position"]))

    def queue_offset(self, position: int) -> int:
        """The queue offset in the record at a position of the log."""
        return queue_offset_of(self.record(position, MIN_RECORD_BYTES))

    def _read(self, path: Path, size: int, offset: int) -> bytes:
        fd = self._open(path)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def record(self, position: int, size: int) -> bytes:
        """Bytes of the log. Raises StoreCorrupt when no single segment has all of them."""
        segment = self._segment(position)
        data = os.pread(segment.fd, size, position - segment.start)
        if len(data) < size:
            raise self._missing(position)
        return data

    def pieces(self, positions: Int64s, sizes: Int64s, piece_bytes: int) -> Iterator[Piece]:
        """Records, given in log order, as pieces of about ``piece_bytes``, which never span segments. Raises
        StoreCorrupt when a file is gone or was truncated."""
        ends = positions + sizes
        mapped = np.cumsum(sizes)
        # Copying a small gap costs less than another call.
        gaps = np.empty(len(positions), np.int64)
        gaps[:1] = 0
        np.subtract(positions[1:], ends[:-1], out=gaps[1:])
        is_apart = (gaps > _GAP_BYTES) | (gaps < 0)
        costs = sizes + np.where(is_apart, 0, gaps)
        filled = np.cumsum(costs)
        first = 0
        while first < len(positions):
            segment = self._segment(int(positions[first]))
            bytes_of, each = (filled, costs) if segment.map is None else (mapped, sizes)
            before = int(bytes_of[first] - each[first])
            last = max(first + 1, int(bytes_of.searchsorted(before + piece_bytes, "right")))
            last = first + int(positions[first:last].searchsorted(segment.start + segment.length))
            if segment.map is None:
                yield self._piece(segment, positions, ends, is_apart, first, last)
            else:
                if int(ends[first:last].max()) > segment.start + segment.length:
                    raise self._missing(int(positions[first]))
                segment.map.keep()
                yield Piece(segment.map.view, positions[first:last] - segment.start, first, last, segment)
            first = last

    def check(self, piece: Piece) -> None:
        """Confirm that the bytes read of a piece were not truncated. Raises StoreCorrupt."""
        segment = piece.segment
        if segment is not None and segment.map is not None and not segment.map.is_whole():
            with self._lock:
                self._forget(segment)
            raise self._missing(segment.start)

    def _forget(self, segment: _Segment) -> None:
        if self._segments.get(segment.start) is segment:
            del self._segments[segment.start]
            self._starts.remove(segment.start)

    def let_go_deleted(self) -> None:
        """Let go of segments that their broker has deleted, so that the disk gets their space back. Call about
        once a second, in any thread. A read that goes on keeps its segment for a while (``_MAX_DELETED_LOOKS``);
        one that stalls meets the end of the file."""
        with self._lock:
            for segment in [each for each in self._segments.values() if each.is_due()]:
                self._forget(segment)
                segment.cut()

    def _piece(
        self,
        segment: _Segment,
        positions: Int64s,
        ends: Int64s,
        is_apart: npt.NDArray[np.bool_],
        first: int,
        last: int,
    ) -> Piece:
        cuts = np.flatnonzero(is_apart[first + 1 : last]) + first + 1
        low = positions[first] if not len(cuts) else positions[np.append(first, cuts)]
        high = ends[last - 1] if not len(cuts) else ends[np.append(cuts - 1, last - 1)]
        if not len(cuts):
            runs = [(int(low), int(high))]
            places = positions[first:last] - low
        else:
            runs = list(zip(low.tolist(), high.tolist(), strict=True))
            lengths = high - low
            shifts = low - (np.cumsum(lengths) - lengths)
            counts = np.diff(np.concatenate(([first], cuts, [last])))
            places = positions[first:last] - np.repeat(shifts, counts)
        total = sum(to - since for since, to in runs)
        end = segment.start + segment.length
        if any(not segment.start <= since <= to <= end for since, to in runs):
            raise self._missing(runs[0][0])
        if total > _LARGE_BYTES and len(runs) == 1 and last - first == 1:
            # Check the record's own size before allocating as much memory as its entry claims.
            head = os.pread(segment.fd, 4, runs[0][0] - segment.start)
            if int.from_bytes(head, "big") != total:
                raise self._missing(runs[0][0])
        if len(self._buffer) < total:
            self._buffer = memoryview(bytearray(total))
        at = 0
        for since, to in runs:
            count = to - since
            if os.preadv(segment.fd, (self._buffer[at : at + count],), since - segment.start) < count:
                raise self._missing(since)
            at += count
        return Piece(self._buffer[:total], places, first, last, None)

    def _missing(self, position: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"no CommitLog segment in {self.paths.commit_log} holds position {position}",
            path=str(self.paths.commit_log),
            offset=position,
        )

    def _segment(self, position: int) -> _Segment:
        """The open segment at a position. Raises StoreCorrupt when there is none."""
        with self._lock:
            index = bisect.bisect_right(self._starts, position) - 1
            if index >= 0:
                segment = self._segments[self._starts[index]]
                if position < segment.start + segment.length:
                    self._segments.move_to_end(segment.start)
                    segment.unused_looks = 0
                    return segment
        for directory in self.paths.commit_logs.all:
            for start, length in _files(directory):
                if start <= position < start + length:
                    segment = _Segment(self._open(directory / file_name(start)), start, maps=self._maps)
                    with self._lock:
                        while len(self._segments) >= _OPEN_SEGMENTS:
                            self._starts.remove(self._segments.popitem(last=False)[0])
                        self._segments.pop(start, None)
                        self._segments[start] = segment
                        if start not in self._starts:
                            bisect.insort(self._starts, start)
                    return segment
        raise self._missing(position)


class _Files(OsFiles):
    """The file layer for ConsumeQueueExt."""

    def __init__(self, open_read: Callable[[Path], int]) -> None:
        self._open_read = open_read

    def open_read(self, path: StrPath) -> int:
        return self._open_read(Path(path))


class _Segment:
    """An open segment; closed with its last reference."""

    __slots__ = ("__weakref__", "_deleted_looks", "fd", "length", "map", "start", "unused_looks")

    def __init__(self, fd: int, start: int, *, maps: bool) -> None:
        weakref.finalize(self, os.close, fd)
        self.fd = fd
        self.start = start
        self.length = os.fstat(fd).st_size
        self.map = guarded_map(fd, self.length) if maps else None
        self.unused_looks = self._deleted_looks = 0

    def is_due(self) -> bool:
        """Whether the file was deleted and nobody reads here, or has read for long enough since. A look."""
        self.unused_looks += 1
        self._deleted_looks += os.fstat(self.fd).st_nlink == 0
        return self._deleted_looks > (0 if self.unused_looks > _MAX_UNUSED_LOOKS else _MAX_DELETED_LOOKS)

    def cut(self) -> None:
        """Let go of the file now. Who still uses this segment finds it truncated."""
        if self.map is not None:
            self.map.cut()
        release(self.fd)


class Piece(NamedTuple):
    """Records [first, last) of the requested ones, and their starts in a buffer that is valid until the next
    piece."""

    buffer: memoryview
    places: Int64s
    first: int
    last: int
    segment: _Segment | None
    """The segment whose map the buffer is; None for a copy."""


_NONCE_BYTES = 256
_OPEN_SEGMENTS = 64
_MAX_UNUSED_LOOKS = 2
"""A deleted segment is let go if nobody has come back to it for more looks than these."""
_MAX_DELETED_LOOKS = 8
"""And after more looks than these in any case: ``mqspark.store.upkeep.cleaning`` counts on it."""
_GAP_BYTES = 4096
_LARGE_BYTES = 16 << 20
READ_OFFSETS = 1 << 14
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
