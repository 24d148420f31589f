"""One file of the index: a hash table on disk, in RocketMQ's format (IndexFile, IndexHeader).

    header   40 bytes: begin and end timestamp i64, begin and end physical offset i64, slots in use i32, next number i32
    slots    i32 each: number of the newest entry whose hash falls into the slot, 0 without one
    entries  20 bytes: hash i32, physical offset i64, seconds since the begin timestamp i32, number of the entry that
             was the slot's newest before i32. Entry 0 is never written, so numbers start at 1.

Stores go only into allocated ranges (see files.py): header and slots are allocated at creation, the entries
in steps ahead of the writer. One of RocketMQ's 420 MB files costs 20 MB when it is new.

Must not know the log, nor the other files.

Facts: docs/rocketmq/store.md#index.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.store.disk.files import FileLayer, disk_full_as_typed
from mqspark.store.disk.mapping import MapBudget, try_map
from mqspark.store.index.keys import Ints, KeyColumns

_HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = _HEADER.size
_SLOT_BYTES = 4
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])

_MIN_STEP_BYTES = 1 << 16
_MAX_STEP_BYTES = 8 << 20
_MAX_SECONDS = 0x7FFFFFFF
_MAX_HOPS = 20_000
"""Entries that a query visits one by one. After that it scans the entries as columns (a key shared by
millions)."""
_STEP_HOPS = 512
"""Entries after which a search may pause."""
_BLOCK_ENTRIES = 1 << 18
_MAX_MAPPED_FILES = 8
_SEARCH_BYTES = 1 << 20
_MAX_PLACES = 10_000
"""Places at which a file's last entry is looked for. Most are wrong only in a file of zeros, which is damaged."""

Entries = npt.NDArray[Any]


class Shape(NamedTuple):
    """Numbers of slots and entries of the files (maxHashSlotNum, maxIndexNum)."""

    slots: int
    entries: int
    """Including entry 0."""

    @property
    def entries_at(self) -> int:
        return HEADER_BYTES + self.slots * _SLOT_BYTES

    @property
    def file_bytes(self) -> int:
        return self.entries_at + self.entries * _ENTRY.size


DEFAULT_SHAPE = Shape(5_000_000, 20_000_000)


class IndexHeader(NamedTuple):
    begin_timestamp_ms: int = 0
    """Store time of the first key; before there is one, the end of the previous file."""
    end_timestamp_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    """Physical offset of the last record with a key."""
    used_slots: int = 0
    next_number: int = 1
    """Number of the next entry."""

    @classmethod
    def decode(cls, data: bytes) -> IndexHeader:
        header = cls(*_HEADER.unpack(data.ljust(HEADER_BYTES, b"\0")[:HEADER_BYTES]))
        return header if header.next_number > 0 else header._replace(next_number=1)

    def encode(self) -> bytes:
        return _HEADER.pack(*self)


class IndexFile:
    """One file. ``header`` is the content of its first bytes."""

    __slots__ = ("_allocated", "_files", "_maps", "header", "name", "path", "shape")

    def __init__(
        self, path: Path, shape: Shape, header: IndexHeader, files: FileLayer, maps: IndexMaps
    ) -> None:
        self._files = files
        self._maps = maps
        self._allocated = 0
        """Entries below this number have allocated blocks."""
        self.path = path
        self.name = path.name
        self.shape = shape
        self.header = header

    @property
    def is_full(self) -> bool:
        return self.header.next_number >= self.shape.entries

    @property
    def is_in_use(self) -> bool:
        """Whether this process has written to it."""
        return self._allocated > 0

    @property
    def next_entry_at(self) -> int:
        """Where in the file the next entry begins."""
        return self.shape.entries_at + self.header.next_number * _ENTRY.size

    # --- write ------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the file. Raises DiskFull or OSError and leaves no file behind then."""
        with disk_full_as_typed(f"index file {self.name}"):
            fd = self._files.open(self.path, create=True)
            try:
                self._files.set_length(fd, self.shape.file_bytes)
                self._allocate(fd, 1)
            except OSError:
                self._files.remove(self.path)
                raise
            finally:
                self._files.close(fd)

    def put(self, keys: KeyColumns) -> int:
        """Add as many keys as fit and return their number. Raises DiskFull or OSError with nothing changed."""
        header, shape = self.header, self.shape
        count = header.next_number
        taken = min(len(keys.hashes), shape.entries - count)
        if taken <= 0:
            return 0
        self._reserve(taken)
        hashes, positions, timestamps_ms = (column[:taken] for column in keys)
        mapping, slots, entries = self._maps.writable(self)

        previous, used_slots = link(hashes % shape.slots, count, slots)
        begin_ms, begin_position = header.begin_timestamp_ms, header.begin_position
        if count == 1:
            begin_ms, begin_position = int(timestamps_ms[0]), int(positions[0])
        rows = entries[count : count + taken]
        rows["hash"] = hashes
        rows["position"] = positions
        rows["seconds"] = _seconds(timestamps_ms, begin_ms)
        if count == 1:
            # RocketMQ computes the first entry from the begin timestamp inherited from the previous file.
            rows["seconds"][0] = _seconds(timestamps_ms[:1], header.begin_timestamp_ms)[0]
        rows["previous"] = previous
        self._set_header(
            IndexHeader(
                begin_ms,
                int(timestamps_ms[-1]),
                begin_position,
                int(positions[-1]),
                header.used_slots + used_slots,
                count + taken,
            ),
            mapping,
        )
        return taken

    def warm(self, keys: KeyColumns) -> None:
        """Let the slots of these keys be in memory that may be written. Raises DiskFull or OSError."""
        self._reserve(0)
        _, slots, _ = self._maps.writable(self)
        places = keys.hashes % self.shape.slots
        slots[places] = slots[places]

    def cut(self, header: IndexHeader) -> None:
        """Remove the entries from ``header.next_number`` on. Raises DiskFull or OSError."""
        self._reserve(0)
        mapping, slots, entries = self._maps.writable(self)
        count = header.next_number
        wrong = np.flatnonzero((slots >= count) | (slots < 0))
        if len(wrong):
            newest = np.zeros(self.shape.slots, dtype=np.int32)
            for low in range(1, count, _BLOCK_ENTRIES):
                high = min(low + _BLOCK_ENTRIES, count)
                # The last assignment to a slot wins.
                newest[entries["hash"][low:high].astype(np.int64) % self.shape.slots] = np.arange(low, high)
            slots[wrong] = newest[wrong]
        self._set_header(header._replace(used_slots=int(np.count_nonzero(slots))), mapping)

    def header_before(self, position: int) -> IndexHeader:
        """The header without the records at or after ``position``. The end timestamp is up to a second late,
        the resolution of entries."""
        header = self.header
        positions = self._maps.entries(self, 1, header.next_number)["position"]
        count = 1 + int(np.searchsorted(positions, position))
        if count == 1:
            return IndexHeader()
        last = self._maps.entries(self, count - 1, count)[0]
        end_ms = min(header.begin_timestamp_ms + int(last["seconds"]) * 1000 + 999, header.end_timestamp_ms)
        return header._replace(next_number=count, end_position=int(last["position"]), end_timestamp_ms=end_ms)

    def _set_header(self, header: IndexHeader, mapping: mmap) -> None:
        self.header = header
        mapping[:HEADER_BYTES] = header.encode()

    def _reserve(self, count: int) -> None:
        """Allocate blocks for more entries, and for header and slots."""
        if self.header.next_number + count > self._allocated:
            with disk_full_as_typed(f"index file {self.name}"):
                fd = self._files.open(self.path)
                try:
                    self._allocate(fd, count)
                finally:
                    self._files.close(fd)

    def _allocate(self, fd: int, count: int) -> None:
        shape = self.shape
        if not self._allocated:
            self._files.allocate(fd, 0, shape.entries_at)
        start = max(self._allocated, self.header.next_number)
        used_bytes = start * _ENTRY.size
        step = min(max(used_bytes, _MIN_STEP_BYTES), _MAX_STEP_BYTES) // _ENTRY.size
        end = min(shape.entries, max(start + step, self.header.next_number + count))
        if end > start:
            self._files.allocate(fd, shape.entries_at + used_bytes, (end - start) * _ENTRY.size)
        self._allocated = end

    # --- read -------------------------------------------------------------------------------------------------

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have keys of that time, both ends included (IndexFile.isTimeMatched)."""
        header = self.header
        return begin_ms <= header.end_timestamp_ms and end_ms >= header.begin_timestamp_ms

    def find(self, key_hash: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """The first ``limit`` of ``search``, each once."""
        return first_of(self.search(key_hash, begin_ms, end_ms), limit)

    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[list[int]]:
        """Physical offsets of records with that hash and a time in [begin_ms, end_ms], newest first, and an empty list
        after a stretch without one, so that a caller can pause. A record may come twice. Times have a resolution
        of a second, counted from the file's begin."""
        header = self.header
        if header.next_number <= 1:
            return
        begin_of_file_ms, entries_at = header.begin_timestamp_ms, self.shape.entries_at
        slot_at = HEADER_BYTES + key_hash % self.shape.slots * _SLOT_BYTES
        (number,) = _SLOT.unpack_from(*self._at(slot_at, _SLOT_BYTES))
        above = header.next_number
        hops = 0
        found: list[int] = []
        # Every entry points to an older one: damage can end a chain, but not make it a cycle.
        while 0 < number < above:
            if hops == _MAX_HOPS:
                yield found
                yield from self._scan(number + 1, key_hash, begin_ms, end_ms)
                return
            hops += 1
            entry_hash, position, seconds, previous = _ENTRY.unpack_from(
                *self._at(entries_at + number * _ENTRY.size, _ENTRY.size)
            )
            time_ms = begin_of_file_ms + seconds * 1000
            if seconds < 0:
                break
            if entry_hash == key_hash and begin_ms <= time_ms <= end_ms:
                found.append(position)
            if time_ms < begin_ms:
                break
            above, number = number, previous
            if hops % _STEP_HOPS == 0:
                yield found
                found = []
        yield found

    def _at(self, low: int, count: int) -> tuple[mmap | bytes, int]:
        """The buffer with these bytes of the file, and their place in it."""
        view = self._maps.view(self)
        return (view, low) if view is not None else (self._maps.copied(self, low, count), 0)

    def _scan(self, end: int, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[list[int]]:
        """Search as if following the chain from entry ``end`` - 1 on. For chains too long to follow."""
        low_seconds = -((self.header.begin_timestamp_ms - begin_ms) // 1000)
        high_seconds = (end_ms - self.header.begin_timestamp_ms) // 1000
        for high in range(end, 1, -_BLOCK_ENTRIES):
            block = self._maps.entries(self, max(1, high - _BLOCK_ENTRIES), high)
            same = np.flatnonzero(block["hash"] == key_hash)[::-1]
            seconds = block["seconds"][same]
            too_old = np.flatnonzero(seconds < max(low_seconds, 0))
            if len(too_old):
                same, seconds = same[: too_old[0]], seconds[: too_old[0]]
            positions: list[int] = block["position"][same[seconds <= high_seconds]].tolist()
            for first in range(0, max(len(positions), 1), _STEP_HOPS):
                yield positions[first : first + _STEP_HOPS]
            if len(too_old):
                return


def first_of(steps: Iterable[list[int]], limit: int) -> list[int]:
    """The first ``limit`` positions of a search, each once."""
    found: dict[int, None] = {}
    for step in steps:
        found.update(dict.fromkeys(step))
        if len(found) >= limit:
            break
    return list(found)[: max(limit, 0)]


def _seconds(timestamps_ms: Ints, begin_ms: int) -> Ints:
    if begin_ms <= 0:
        return np.zeros(len(timestamps_ms), dtype=np.int64)
    # Not np.clip, which takes twice as long for few.
    seconds: Ints = np.minimum(np.maximum(timestamps_ms - begin_ms, 0) // 1000, _MAX_SECONDS)
    return seconds


def link(slot: Ints, count: int, slots: npt.NDArray[Any]) -> tuple[Ints, int]:
    """Make keys the entries ``count``, ``count`` + 1, … of their slots. Returns the previous entry of each in
    its slot, and the number of slots that were empty."""
    # By slot, then by age. Sorting values is many times faster than argsort.
    ordered = np.sort(slot << 32 | np.arange(len(slot)))
    order = ordered & 0xFFFFFFFF
    ordered >>= 32
    numbers = order + count
    is_first = np.empty(len(slot), dtype=np.bool_)
    is_first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    touched = ordered[firsts]
    old = slots[touched].astype(np.int64)
    old[(old < 0) | (old > count)] = 0
    before = np.empty(len(slot), dtype=np.int64)
    before[1:] = numbers[:-1]
    before[firsts] = old
    previous = np.empty(len(slot), dtype=np.int64)
    previous[order] = before
    last = np.empty(len(firsts), dtype=np.int64)
    last[:-1] = firsts[1:]
    last[-1] = len(slot)
    slots[touched] = numbers[last - 1]
    return previous, int(np.count_nonzero(old == 0))


class IndexMaps:
    """The mapped files, up to a limit. The least recently used is evicted first; the last array on it unmaps
    it. A file that is only read is mapped read-only, or copied where it cannot be mapped."""

    def __init__(self, files: FileLayer, budget: MapBudget | None = None) -> None:
        self._files = files
        self._budget = budget if budget is not None else MapBudget()
        self._maps: OrderedDict[str, mmap] = OrderedDict()
        self._writable: set[str] = set()

    def writable(self, file: IndexFile) -> tuple[mmap, npt.NDArray[Any], Entries]:
        """The mapping, its slots and its entries. Raises OSError when it cannot be mapped."""
        mapping = self._maps.get(file.name) if file.name in self._writable else None
        if mapping is None:
            self.drop(file)
            mapping = self._map(file, write=True)
        if mapping is None:
            raise OSError(errno.ENOMEM, "the index file cannot be mapped", str(file.path))
        self._maps.move_to_end(file.name)
        return mapping, _slots(mapping, file.shape), _entries(mapping, file.shape)

    def view(self, file: IndexFile) -> mmap | None:
        """The file, or None when it cannot be mapped."""
        mapping = self._maps.get(file.name)
        if mapping is None:
            return self._map(file, write=False)
        self._maps.move_to_end(file.name)
        return mapping

    def slots(self, file: IndexFile) -> npt.NDArray[Any]:
        view, shape = self.view(file), file.shape
        if view is not None:
            return _slots(view, shape)
        return np.frombuffer(self.copied(file, HEADER_BYTES, shape.slots * _SLOT_BYTES), dtype=">i4")

    def entries(self, file: IndexFile, first: int, last: int) -> Entries:
        """Entries [first, last)."""
        view, shape = self.view(file), file.shape
        if view is not None:
            return _entries(view, shape)[first:last]
        size = ENTRY_DTYPE.itemsize
        data = self.copied(file, shape.entries_at + first * size, max(last - first, 0) * size)
        return np.frombuffer(data, dtype=ENTRY_DTYPE)

    def copied(self, file: IndexFile, low: int, count: int) -> bytes:
        """Bytes of the file; zeros for those that it no longer has."""
        fd = self._files.open_read(file.path)
        try:
            return self._files.read_at(fd, count, low).ljust(count, b"\0")
        finally:
            self._files.close(fd)

    def _map(self, file: IndexFile, *, write: bool) -> mmap | None:
        if len(self._maps) >= _MAX_MAPPED_FILES:
            self._set_aside(next(iter(self._maps)))
        length = file.shape.file_bytes
        mapping = try_map(
            self._files, file.path, length, self._budget, self._drop_oldest, write=write, scattered=True
        )
        if mapping is not None:
            self._maps[file.name] = mapping
            if write:
                self._writable.add(file.name)
        return mapping

    def _drop_oldest(self) -> bool:
        """Returns False when nothing is mapped."""
        if not self._maps:
            return False
        name, mapping = self._maps.popitem(last=False)
        self._forget(name, mapping)
        return True

    def _forget(self, name: str, mapping: mmap) -> None:
        self._budget.used_bytes -= len(mapping)
        self._writable.discard(name)

    def drop(self, file: IndexFile) -> None:
        self._set_aside(file.name)

    def _set_aside(self, name: str) -> None:
        mapping = self._maps.pop(name, None)
        if mapping is not None:
            if name in self._writable:  # most of its pages are in memory: to unmap them takes milliseconds
                self._budget.unmapped.append(mapping)
            self._forget(name, mapping)

    def clear(self) -> None:
        while self._drop_oldest():
            continue


def _slots(mapping: mmap, shape: Shape) -> npt.NDArray[Any]:
    return np.frombuffer(mapping, dtype=">i4", count=shape.slots, offset=HEADER_BYTES)


def _entries(mapping: mmap, shape: Shape) -> Entries:
    return np.frombuffer(mapping, dtype=ENTRY_DTYPE, count=shape.entries, offset=shape.entries_at)


def find_shape(files: FileLayer, fd: int, length: int, header: IndexHeader) -> Shape | None:
    """The shape of a file made with other settings: its last entry has the header's end offset, and its slot
    points to it."""
    last = header.next_number - 1
    places = _places_from_end(files, fd, length, struct.pack(">q", header.end_position))
    for at in itertools.islice(places, _MAX_PLACES if last > 0 else 0):
        shape = _shape_with(at - 4 - last * _ENTRY.size, length)
        if shape is not None and header.next_number <= shape.entries:
            (key_hash,) = struct.unpack(">i", files.read_at(fd, 4, at - 4))
            slot_at = HEADER_BYTES + key_hash % shape.slots * _SLOT_BYTES
            if struct.unpack(">i", files.read_at(fd, 4, slot_at)) == (last,):
                return shape
    return None


def _places_from_end(files: FileLayer, fd: int, length: int, needle: bytes) -> Iterator[int]:
    """Where ``needle`` is in the file, from the end on."""
    for low, high in reversed(list(files.data_ranges(fd, HEADER_BYTES, length))):
        end = high
        while end > low:
            begin = max(low, end - _SEARCH_BYTES)
            data = files.read_at(fd, min(end + len(needle) - 1, high) - begin, begin)
            at = data.rfind(needle)
            while at >= 0:
                yield begin + at
                at = data.rfind(needle, 0, at)
            end = begin


def _shape_with(entries_at: int, file_bytes: int) -> Shape | None:
    slots, slots_rest = divmod(entries_at - HEADER_BYTES, _SLOT_BYTES)
    entries, entries_rest = divmod(file_bytes - entries_at, _ENTRY.size)
    return (
        Shape(slots, entries) if slots > 0 and entries > 0 and not slots_rest and not entries_rest else None
    )
