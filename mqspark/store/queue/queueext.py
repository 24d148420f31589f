"""ConsumeQueueExt: additional data of a queue entry, one unit per entry (enableConsumeQueueExt).

A unit (size i16, tags code i64, store time i64, bitmap length i16, bitmap) lies in a separate file. The tags
code of the entry is then the address of the unit, a negative number below every hash (ConsumeQueueExt). Units
are contiguous, because RocketMQ walks them; where the next one does not fit, size -1 means that it is in the
next file. Bitmaps, RocketMQ's preliminary test of SQL92 subscriptions, are skipped and never written: without
one RocketMQ evaluates the message.

Like queue entries, units get room before their message is accepted and are written when it becomes visible.

Must not know queues.

Facts: docs/rocketmq/store.md#consumequeueext.
"""

from __future__ import annotations

import struct
from mmap import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mqspark.record.recordlayout import I16
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.layout import file_length, file_name, file_start
from mqspark.store.disk.mapping import MapBudget, try_map

EXT_ADDRESS_BELOW = -(1 << 31)
"""Tags codes below this are addresses of units."""

_FIRST_ADDRESS = -(1 << 63)
_UNIT = struct.Struct(">hqqh")
UNIT_BYTES = _UNIT.size
_END_BYTES = 4
"""Bytes reserved at the end of a file (ConsumeQueueExt.END_BLANK_DATA_LENGTH)."""
_STEP_BYTES = 1 << 16

Int64s = npt.NDArray[np.int64]


class Unsynced:
    """What the next checkpoint has to sync. It takes the sets away, so nobody keeps one of them."""

    def __init__(self) -> None:
        self.dirty_files: set[str] = set()
        """Files written since the last checkpoint."""
        self.new_directories: set[str] = set()
        """Directories whose names are not synced yet."""


class QueueExt:
    """The units of one queue. ``end`` is the place of the next one, in bytes of the queue's space."""

    __slots__ = (
        "_allocated_end",
        "_budget",
        "_directory",
        "_file_bytes",
        "_files",
        "_lengths",
        "_maps",
        "_pending",
        "_unsynced",
        "_written",
        "end",
        "file_starts",
    )

    def __init__(
        self,
        directory: Path,
        files: FileLayer,
        *,
        file_bytes: int,
        unsynced: Unsynced,
        budget: MapBudget | None = None,
    ) -> None:
        """``budget``: of address space. ``unsynced`` receives what a checkpoint has to sync."""
        self._directory = directory
        self._files = files
        self._file_bytes = file_bytes
        self._unsynced = unsynced
        self._budget = budget if budget is not None else MapBudget()
        self._maps: dict[int, mmap] = {}
        self._pending = bytearray()
        self._written = 0
        self._allocated_end = 0
        self.end = 0
        self.file_starts = sorted(
            start for name in files.names(directory) if (start := file_start(name)) is not None
        )
        self._lengths = {start: self._length(start) for start in self.file_starts}
        """Those that were found, until ``set_end`` mends them."""
        lengths = list(self._lengths.values())
        self._file_bytes = file_length(self.file_starts, lengths, file_bytes, UNIT_BYTES + _END_BYTES)

    def _length(self, start: int) -> int:
        fd = self._files.open_read(self._path(start))
        try:
            return self._files.length(fd)
        finally:
            self._files.close(fd)

    # --- write ------------------------------------------------------------------------------------------------

    def reserve(self, units: int) -> None:
        """Reserve room for more units. After an OSError nothing relevant has changed."""
        need = self._end_of(units)
        while self._allocated_end < need:
            low = max(self._allocated_end, self.end)
            start = low - low % self._file_bytes
            high = min(start + self._file_bytes, max(need, low + _STEP_BYTES))
            is_new = start not in self.file_starts
            if is_new:
                self._files.make_directory(self._directory)
                # Up to the store's own directory: the directory of ext files may be new in it.
                parents = (self._directory, *list(self._directory.parents)[:3])
                self._unsynced.new_directories.update(map(str, parents))
            fd = self._files.open(self._path(start), create=is_new)
            try:
                if self._files.length(fd) != self._file_bytes:
                    self._files.set_length(fd, self._file_bytes)
                self._files.allocate(fd, low - start, high - low)
            finally:
                self._files.close(fd)
            if is_new:
                self.file_starts.append(start)
            self._allocated_end = high

    def _end_of(self, units: int) -> int:
        """End of the last of these units. Each full file keeps its end free."""
        used = self.end % self._file_bytes
        usable = self._file_bytes - _END_BYTES
        here = max(usable - used, 0) // UNIT_BYTES
        if units <= here:
            return self.end + units * UNIT_BYTES
        files, rest = divmod(units - here, usable // UNIT_BYTES)
        return self.end - used + (files + 1) * self._file_bytes + rest * UNIT_BYTES

    def put(self, tags_code: int, store_ms: int) -> int:
        """Append a unit, for which room must be reserved. Returns its address. ``write`` writes it to disk."""
        used = self.end % self._file_bytes
        if used + UNIT_BYTES > self._file_bytes - _END_BYTES:
            rest = self._file_bytes - used
            self._pending += I16.pack(-1) + bytes(rest - I16.size)
            self.end += rest
        address = self.end + _FIRST_ADDRESS
        self._pending += _UNIT.pack(UNIT_BYTES, tags_code, store_ms, 0)
        self.end += UNIT_BYTES
        return address

    def write(self) -> None:
        """Write everything that was put. Raises OSError; the next call continues."""
        data, self._pending = self._pending, bytearray()
        view = memoryview(data)
        while view:
            start = self._written - self._written % self._file_bytes
            count = min(len(view), start + self._file_bytes - self._written)
            path = self._path(start)
            try:
                fd = self._files.open(path)
                try:
                    self._files.write(fd, view[:count], self._written - start)
                finally:
                    self._files.close(fd)
            except OSError:
                self._pending = bytearray(view) + self._pending
                raise
            self._unsynced.dirty_files.add(str(path))
            self._written += count
            view = view[count:]

    # --- read -------------------------------------------------------------------------------------------------

    def tags_codes(self, codes: Int64s) -> Int64s:
        """The codes with each address replaced by the tags code of its unit. An address without a unit
        stays."""
        found = codes.copy()
        for index in np.flatnonzero(codes < EXT_ADDRESS_BELOW).tolist():
            unit = self._unit(int(codes[index]) - _FIRST_ADDRESS)
            if unit is not None:
                found[index] = unit[1]
        return found

    def _unit(self, position: int) -> tuple[int, int] | None:
        """Size and tags code."""
        start = position - position % self._file_bytes
        if start not in self.file_starts or position - start + UNIT_BYTES > self._file_bytes:
            return None
        mapping = self._maps.get(start)
        if mapping is None:
            mapping = try_map(self._files, self._path(start), self._file_bytes, self._budget, self._unmap_one)
            if mapping is not None:
                self._maps[start] = mapping
        low = position - start
        unit = mapping[low : low + UNIT_BYTES] if mapping is not None else self._copied(start, low)
        if len(unit) < UNIT_BYTES:
            return None
        size, tags_code, _, _ = _UNIT.unpack(unit)
        return (size, tags_code) if size >= UNIT_BYTES else None

    def _copied(self, start: int, low: int) -> bytes:
        fd = self._files.open_read(self._path(start))
        try:
            return self._files.read_at(fd, UNIT_BYTES, low)
        finally:
            self._files.close(fd)

    def _unmap_one(self) -> bool:
        if not self._maps:
            return False
        self._forget(next(iter(self._maps)))
        return True

    def _forget(self, start: int) -> None:
        mapping = self._maps.pop(start, None)
        if mapping is not None:
            self._budget.used_bytes -= len(mapping)

    def unmap(self) -> None:
        while self._unmap_one():
            continue

    # --- recovery and retention -------------------------------------------------------------------------------

    def set_end(self, last_address: int | None) -> None:
        """Continue after the unit of the last entry that has one, or at the beginning. What follows is
        zeroed, so that RocketMQ does not walk into it, and each file gets its length, without which RocketMQ does not
        start."""
        end = 0
        if last_address is not None:
            unit = self._unit(last_address - _FIRST_ADDRESS)
            end = last_address - _FIRST_ADDRESS + (unit[0] if unit is not None else UNIT_BYTES)
        elif self.file_starts:
            end = self.file_starts[0]
        self._pending.clear()
        self.end = self._written = self._allocated_end = end
        self._mend_lengths()
        for start in self.file_starts:
            low = max(end - start, 0)
            if low >= self._file_bytes:
                continue
            path = self._path(start)
            fd = self._files.open(path)
            try:
                for first, last in list(self._files.data_ranges(fd, low, self._file_bytes)):
                    if any(self._files.read_at(fd, last - first, first)):
                        self._files.write(fd, bytes(last - first), first)
                        self._unsynced.dirty_files.add(str(path))
            finally:
                self._files.close(fd)

    def _mend_lengths(self) -> None:
        for start, length in self._lengths.items():
            if length == self._file_bytes:
                continue
            self._forget(start)
            path = self._path(start)
            fd = self._files.open(path)
            try:
                self._files.set_length(fd, self._file_bytes)
            finally:
                self._files.close(fd)
            self._unsynced.dirty_files.add(str(path))
        self._lengths.clear()

    def delete_before(self, address: int) -> None:
        """Remove the files that end before a unit (ConsumeQueueExt.truncateByMinAddress)."""
        position = address - _FIRST_ADDRESS
        while len(self.file_starts) > 1 and self.file_starts[0] + self._file_bytes <= position:
            self._remove(self.file_starts.pop(0))

    def remove(self) -> None:
        for start in self.file_starts:
            self._remove(start)
        self.file_starts = []
        self._files.remove(self._directory)
        if not self._files.names(self._directory.parent):
            self._files.remove(self._directory.parent)

    def _remove(self, start: int) -> None:
        self._forget(start)
        self._unsynced.dirty_files.discard(str(self._path(start)))
        self._files.remove(self._path(start))

    def _path(self, start: int) -> Path:
        return self._directory / file_name(start)


def resolve_tags_codes(ext: QueueExt | None, codes: Int64s) -> Int64s:
    """Tags codes of entries as hashes (or deliver times). A dangling address stays."""
    if ext is None or not (codes < EXT_ADDRESS_BELOW).any():
        return codes
    return ext.tags_codes(codes)
