"""The timer log: which message waits for which slot of the wheel, in files of fixed length (TimerLog).

The records of one slot are a chain from the newest to the oldest. A record of 52 bytes is

    size i32 (52), position of the slot's record before it i64 (-1: none), magic i32, time it was written i64,
    slot time minus that time i32, position of the message in the CommitLog i64, its size i32,
    hash of its real topic i32, reserved i64

with times in ms and magic 1, plus 2 when the message has to be put into the wheel again, plus 4 when it
deletes another. A file ends with a blank record where no other fits.

Must not know what a message is.

Facts: docs/rocketmq/later.md#timer-log.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.errors import StoreCorrupt
from mqspark.record.recordlayout import BLANK_MAGIC
from mqspark.store.disk.files import FileLayer, disk_full_as_typed
from mqspark.store.disk.layout import file_length, file_name, file_start
from mqspark.store.disk.mapping import MapBudget, try_map

_RECORD = struct.Struct(">iqiqiqiiq")
RECORD_BYTES = _RECORD.size
_DTYPE = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("position", ">i8"),
        ("message_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
_BLANK = struct.Struct(">iqi")

_LEAST_BYTES = RECORD_BYTES + _BLANK.size
"""The length of a file of one record."""

_DEFAULT, ROLL, DELETE = 1, 2, 4
NONE = -1
"""Marks the end of a chain."""

Records = npt.NDArray[Any]

_ALLOCATION_STEP = 256 << 10
_NEAR_SHARE = 4
"""The next file is made when less than this part of the last one is left."""
_ZEROS = bytes(1 << 20)
_READ_RECORDS = 1 << 16


class TimerRecord(NamedTuple):
    size: int
    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    position: int
    message_bytes: int
    topic_hash: int
    reserved: int


class TimerLog:
    """Call ``load`` first. To append: ``make_room`` for some records, ``add`` each, ``write`` all."""

    def __init__(
        self, directory: Path, files: FileLayer, *, file_bytes: int, budget: MapBudget | None = None
    ) -> None:
        """``file_bytes``: for a new log; an existing log keeps the length of its files. ``budget``: of
        address space."""
        self._directory = directory
        self._files = files
        self._file_bytes = file_bytes
        self._starts: list[int] = []
        """Starts of the files, ascending and without gaps."""
        self._allocated_end = 0
        self._budget = budget if budget is not None else MapBudget()
        self._views: dict[int, memoryview] = {}
        self._pending: list[tuple[int, bytearray]] = []
        """(position, bytes), each inside one file."""
        self._unsynced: set[int] = set()
        self._is_new = False
        self._made_ahead: int | None = None
        """Start of the next file, which another thread has made."""
        self.position = 0
        """Position of the next record."""

    def remove_all(self) -> None:
        """Remove every file of a log that is not loaded."""
        for name in self._files.names(self._directory):
            if file_start(name) is not None:
                self._files.remove(self._directory / name)

    def restart(self) -> None:
        """Be empty, without files. Raises OSError."""
        for start in list(self._views):
            self._forget(start)
        self._starts.clear()
        self._pending.clear()
        self._unsynced.clear()
        self._is_new = False
        self._made_ahead = None
        self.position = self._allocated_end = 0
        self.remove_all()

    def load(self) -> None:
        """Find the files; ``end_at`` sets the end of their valid content. Raises StoreCorrupt, OSError."""
        names = self._files.names(self._directory)
        starts = sorted(start for name in names if (start := file_start(name)) is not None)
        lengths = [self._length(start) for start in starts]
        # A file is empty when its length did not reach the disk before a power failure.
        self._file_bytes = file_length(starts, lengths, self._file_bytes, _LEAST_BYTES)
        if self._file_bytes < _LEAST_BYTES or any(start % self._file_bytes for start in starts):
            path = str(self._directory)
            raise StoreCorrupt(
                f"{path}: its files are not timer log files of {self._file_bytes} bytes", path=path
            )
        for start, length in zip(starts, lengths, strict=True):
            if self._starts and start != self._starts[-1] + self._file_bytes:
                # The name of the file in between was lost, so nothing after it was ever synced.
                self._files.remove(self._path(start))
                continue
            if length != self._file_bytes:
                with self._opened(start) as fd:
                    self._files.set_length(fd, self._file_bytes)
            self._starts.append(start)
        self.position = self._allocated_end = starts[0] if starts else 0

    def close(self) -> None:
        for start in list(self._views):
            self._forget(start)

    # --- append ---------------------------------------------------------------------------------------------

    def make_room(self, count: int) -> None:
        """Create files and allocate blocks for ``count`` more records. Raises DiskFull, OSError; readers then
        see no change."""
        end = self.position + count * RECORD_BYTES + _BLANK.size
        end += (end // self._file_bytes - self.position // self._file_bytes) * _LEAST_BYTES
        with disk_full_as_typed("the timer log"):
            while self._allocated_end < end:
                self._allocate()

    def _allocate(self) -> None:
        start = self._allocated_end - self._allocated_end % self._file_bytes
        if not self._starts or start > self._starts[-1]:
            self._create(start)
        offset = self._allocated_end - start
        step = min(_ALLOCATION_STEP, self._file_bytes - offset)
        with self._opened(start) as fd:
            self._files.allocate(fd, offset, step)
        self._allocated_end += step

    def _create(self, start: int) -> None:
        if not self._starts:
            self._files.make_directory(self._directory, durable=True)
        if start != self._made_ahead:
            self._make(start, 0)
        self._made_ahead = None
        self._starts.append(start)
        self._is_new = True

    def _make(self, start: int, allocated: int) -> None:
        fd = self._files.open(self._path(start), create=True)
        try:
            self._files.set_length(fd, self._file_bytes)
            if allocated:
                self._files.allocate(fd, 0, allocated)
        finally:
            self._files.close(fd)

    def next_start(self) -> int | None:
        """Start of the file that should be made ahead now; None while the last one has room."""
        if not self._starts:
            return None
        start = self._starts[-1] + self._file_bytes
        is_near = (start - self.position) * _NEAR_SHARE < self._file_bytes
        return start if is_near and start != self._made_ahead else None

    def make_ahead(self, start: int) -> None:
        """Make a file that the log does not have yet. Any thread may do so: if the log gets there meanwhile, it makes
        the same file. A start removes it if it is still unused. Raises OSError."""
        self._make(start, min(_ALLOCATION_STEP, self._file_bytes))

    def is_made_ahead(self, start: int) -> None:
        """``make_ahead`` has succeeded."""
        if self._starts and start == self._starts[-1] + self._file_bytes:
            self._made_ahead = start

    def add(
        self,
        previous: int,
        magic: int,
        written_ms: int,
        delay_ms: int,
        position: int,
        message_bytes: int,
        topic_hash: int,
    ) -> int:
        """Encode one record, for which there must be room. Returns its position. ``magic``: flags beyond the
        usual one."""
        left = self._file_bytes - self.position % self._file_bytes
        if left < _LEAST_BYTES:
            self._append(_BLANK.pack(left, 0, BLANK_MAGIC))
            self.position += left - _BLANK.size
        at = self.position
        self._append(
            _RECORD.pack(
                RECORD_BYTES,
                previous,
                magic | _DEFAULT,
                written_ms,
                delay_ms,
                position,
                message_bytes,
                topic_hash,
                0,
            )
        )
        return at

    def _append(self, data: bytes) -> None:
        last = self._pending[-1] if self._pending else None
        if last is None or last[0] + len(last[1]) != self.position or self.position % self._file_bytes == 0:
            last = (self.position, bytearray())
            self._pending.append(last)
        last[1].extend(data)
        self.position += len(data)

    def write(self) -> None:
        """Write everything added. Raises OSError; the log is then unusable until another call succeeds, which
        begins with what this one left."""
        pending = self._pending
        while pending:
            position, data = pending[0]
            start = position - position % self._file_bytes
            with self._opened(start) as fd:
                self._files.write(fd, data, position - start)
            self._unsynced.add(start)
            pending.pop(0)

    def take_unsynced(self) -> tuple[list[Path], Path | None]:
        """Files to sync, and the directory when it has new names."""
        unsynced, self._unsynced = [self._path(start) for start in sorted(self._unsynced)], set()
        is_new, self._is_new = self._is_new, False
        return unsynced, self._directory if is_new else None

    # --- read -----------------------------------------------------------------------------------------------

    def record(self, position: int) -> TimerRecord | None:
        """None where there is no record."""
        start = position - position % self._file_bytes
        if not self._starts or not self._starts[0] <= position <= self.position - RECORD_BYTES:
            return None
        record = TimerRecord._make(_RECORD.unpack(self._bytes(start, position - start, RECORD_BYTES)))
        return record if record.size == RECORD_BYTES and record.magic & ~0xF == 0 else None

    def records(self, start: int) -> tuple[npt.NDArray[np.int64], Records]:
        """Positions and records of the file that begins at ``start``, up to the log's end."""
        count = (min(self.position, start + self._file_bytes) - start) // RECORD_BYTES
        found = np.frombuffer(self._bytes(start, 0, count * RECORD_BYTES), dtype=_DTYPE)
        found = found[: self._count_valid(found)[0]]
        return start + np.arange(len(found), dtype=np.int64) * RECORD_BYTES, found

    def not_of(
        self, start: int, positions: npt.NDArray[Any], ticks: npt.NDArray[Any], precision_ms: int
    ) -> list[int]:
        """Those of these positions of one file that have no record of these ticks."""
        places, count = positions.astype(np.int64) - start, self._file_bytes // RECORD_BYTES
        good = (places % RECORD_BYTES == 0) & (places < count * RECORD_BYTES)
        good &= positions <= self.position - RECORD_BYTES
        whole = np.frombuffer(self._bytes(start, 0, count * RECORD_BYTES), dtype=_DTYPE)
        records = whole[np.where(good, places // RECORD_BYTES, 0)]
        said = (records["written_ms"].astype(np.int64) + records["delay_ms"]) // precision_ms
        good &= (records["size"] == RECORD_BYTES) & (records["magic"] & ~0xF == 0) & (said == ticks)
        found: list[int] = positions[~good].tolist()
        return found

    def files_from(self, position: int) -> list[int]:
        """Starts of the files that contain ``position`` or lie after it."""
        return [start for start in self._starts if start + self._file_bytes > position]

    @property
    def file_bytes(self) -> int:
        return self._file_bytes

    def _bytes(self, start: int, low: int, count: int) -> memoryview | bytes:
        """Bytes [low, low + count) of the file that begins at ``start``: mapped, or copied where that is
        impossible."""
        view = self._views.get(start)
        if view is None:
            path = self._path(start)
            mapping = try_map(self._files, path, self._file_bytes, self._budget, lambda: False)
            if mapping is None:
                with self._opened(start, to_read=True) as fd:
                    return self._files.read_at(fd, count, low).ljust(count, b"\0")
            view = self._views[start] = memoryview(mapping)
        return view[low : low + count]

    def _forget(self, start: int) -> None:
        view = self._views.pop(start, None)
        if view is not None:
            self._budget.used_bytes -= len(view)

    @staticmethod
    def _count_valid(records: Records) -> tuple[int, bool]:
        """Number of records before the first invalid one, and whether that is a blank."""
        valid = (records["size"] == RECORD_BYTES) & (records["magic"] & ~0xF == 0)
        count = len(records) if valid.all() else int(valid.argmin())
        return count, count < len(records) and int(records["magic"][count]) == BLANK_MAGIC

    # --- recovery, retention --------------------------------------------------------------------------------

    def find_end(self, position: int) -> int:
        """End of the valid records that begin in the file of ``position``. The log continues there; what
        follows is discarded. Raises OSError."""
        end = self.position
        for start in self.files_from(position):
            count, is_blank = self._valid_in(start)
            end = start + count * RECORD_BYTES
            if is_blank or self._file_bytes - count * RECORD_BYTES < _LEAST_BYTES:
                end = start + self._file_bytes
            else:
                break
        self._end_at(end)
        # A killed process may leave unsynced data and names.
        self._unsynced.update(self.files_from(position))
        self._is_new = bool(self._starts)
        return end

    def _valid_in(self, start: int) -> tuple[int, bool]:
        """``_count_valid`` of a whole file, of which no more is read than needed."""
        whole = self._file_bytes // RECORD_BYTES
        for first in range(0, whole, _READ_RECORDS):
            count = min(_READ_RECORDS, whole - first)
            data = self._bytes(start, first * RECORD_BYTES, count * RECORD_BYTES)
            valid, is_blank = self._count_valid(np.frombuffer(data, dtype=_DTYPE))
            if valid < count:
                return first + valid, is_blank
        return whole, False

    def _end_at(self, end: int) -> None:
        for start in [start for start in self._starts if start >= end and start > self._starts[0]]:
            self._forget(start)
            self._files.remove(self._path(start))
            self._starts.remove(start)
        if self._starts and end < self._starts[-1] + self._file_bytes:
            # RocketMQ leaves these bytes; a later search for the end could mistake them for records.
            start = self._starts[-1]
            with self._opened(start) as fd:
                self._clear(fd, end - start)
        self.position = self._allocated_end = end

    def _clear(self, fd: int, offset: int) -> None:
        for low, high in list(self._files.data_ranges(fd, offset, self._file_bytes)):
            while low < high:
                count = min(high - low, len(_ZEROS))
                self._files.write(fd, memoryview(_ZEROS)[:count], low)
                low += count

    def drop_before(self, min_position: int) -> list[Path]:
        """Drop the files whose messages all lie before ``min_position`` of the CommitLog, except the active
        one. Returns the paths to remove."""
        dropped = []
        last = self._file_bytes - _BLANK.size
        last -= last % RECORD_BYTES + RECORD_BYTES
        while len(self._starts) > 1:
            start = self._starts[0]
            record = TimerRecord._make(_RECORD.unpack(self._bytes(start, last, RECORD_BYTES)))
            if record.size != RECORD_BYTES or record.position >= min_position:
                break
            if self.records(start)[1]["position"].max() >= min_position:
                break  # its last message was put into the log again, after later ones
            self._forget(start)
            dropped.append(self._path(self._starts.pop(0)))
        return dropped

    # --- files ----------------------------------------------------------------------------------------------

    def _path(self, start: int) -> Path:
        return self._directory / file_name(start)

    def _length(self, start: int) -> int:
        with self._opened(start, to_read=True) as fd:
            return self._files.length(fd)

    @contextlib.contextmanager
    def _opened(self, start: int, *, to_read: bool = False) -> Iterator[int]:
        path = self._path(start)
        fd = self._files.open_read(path) if to_read else self._files.open(path)
        try:
            yield fd
        finally:
            self._files.close(fd)
