"""ConsumeQueues: for each (topic, queue id) an array of 20-byte entries that locate its records in the log.

Entry k (physical offset i64, record size i32, tags code i64) lies at byte 20 k of the queue's space, in files
of fixed length (ConsumeQueue). A queue that starts in the middle of a file has *fillers* (0, 0x7FFFFFFF, 0)
before its first entry. A filler also stands for a record that was lost to damage. RocketMQ treats a filler as
valid and correctly finds no record for it in the log.

Files are mapped on demand, up to a limit. Stores go only into ranges that ``reserve`` has allocated. A put
reserves before it is accepted, so dispatching never meets a full disk.

A table (``queuetable.py``) may have wider entries that begin with the same three fields. BatchConsumeQueues
are such arrays; their "offsets" here are entry numbers (``batchqueue.py``).

Must not know the log.

Facts: docs/rocketmq/store.md#consumequeue.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import struct
from collections.abc import Callable
from mmap import mmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mqspark.base.names import path_below
from mqspark.errors import StoreCorrupt
from mqspark.message import SCHEDULE_TOPIC
from mqspark.record.record import topic_field
from mqspark.store.disk.files import disk_full_as_typed
from mqspark.store.disk.layout import file_name, file_start
from mqspark.store.queue.mapped import Entries
from mqspark.store.queue.queueext import EXT_ADDRESS_BELOW

if TYPE_CHECKING:
    from mqspark.store.queue.queuetable import QueueTable


ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size
ENTRY_DTYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
FILLER_SIZE = 0x7FFFFFFF
FILLER = ENTRY.pack(0, FILLER_SIZE, 0)
LAST_FILLER = ENTRY.pack(1 << 62, FILLER_SIZE, 0)
"""A filler that no entry follows. RocketMQ drops it at its start, since no log is as long. After a plain one it would
add nothing to the queue before its log is 2 GiB long (``maxPhysicOffset`` in ConsumeQueue.putMessagePositionInfo)."""

_MAX_STEP_BYTES = 1 << 20
_PAGE_BYTES = 4096
_ROWS_BACK = 512
_AROUND_BYTES = 2 * _PAGE_BYTES
"""Bytes read around a queue's end at start."""
_ZEROS = bytes(_AROUND_BYTES)
_NO_TAIL = bytearray()


class Doubt(NamedTuple):
    """The reason why entries of a queue contradict the log."""

    sure_end: int
    """The entries before this offset are not in doubt."""
    kind: str
    text: str


class ConsumeQueue:
    """One queue. ``max_offset``: end of what consumers may see. ``next_offset``: offset of the next put."""

    __slots__ = (
        "_directory", "_entry_bytes", "_file_bytes", "_has_last_fillers", "_plain_again", "_table", "_tail",
        "_tail_at", "_tail_end", "_tail_path", "entries", "ext", "ext_out", "file_starts", "is_schedule", "key",
        "max_offset", "min_offset", "next_offset", "overhead_bytes", "queue_id", "record_magic", "reserved_end",
        "tail_used", "topic", "topic_field",
    )  # fmt: skip

    def __init__(self, table: QueueTable, topic: str, queue_id: int) -> None:
        self._table = table
        self._directory = str(path_below(table.directory, topic, queue_id))
        self._file_bytes = table.file_bytes
        self._entry_bytes = table.entry_bytes
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        self.is_schedule = topic == SCHEDULE_TOPIC
        self.record_magic, self.topic_field = topic_field(topic)
        self.overhead_bytes = len(self.topic_field) + 2
        """Size of the topic field and of the other fields of a record beside head, body and properties."""
        self.entries = bytearray()
        """Entries of the records appended since the last commit, not visible yet."""
        self.ext = table.ext_of(topic, queue_id)
        """Resolves tags codes that are addresses of ext units, or None."""
        self.ext_out = self.ext if table.ext_enabled else None
        """The same when new entries get ext units as well, otherwise None."""
        self._tail: mmap | bytearray = _NO_TAIL
        """The map of the file of the next visible entry, which belongs at ``_tail_at``. Entries that end at or before
        ``_tail_end`` go there; none while that is -1."""
        self._tail_at, self._tail_end = 0, -1
        self._tail_path = ""
        self.tail_used = False
        self._has_last_fillers = False
        """Whether it may end with fillers. LAST_FILLERs become plain ones before an entry follows them."""
        self._plain_again: tuple[str, ...] = ()
        """Files in which LAST_FILLERs became plain ones, which may not be on disk yet."""
        self.file_starts: list[int] = []
        """Starts of the files in bytes of the queue's space, ascending."""
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.reserved_end = 0
        """Entries below this offset have allocated blocks."""

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic!r}, {self.queue_id}, [{self.min_offset}, {self.max_offset}))"

    # --- write ----------------------------------------------------------------------------------------------

    def reserve(self, count: int) -> None:
        """Allocate room for the entries next_offset … next_offset + count. Raises DiskFull with nothing
        changed."""
        with disk_full_as_typed(f"ConsumeQueue {self.topic}/{self.queue_id}"):
            while self.reserved_end < self.next_offset + count:
                self._reserve_step(max(self.reserved_end, self.next_offset) * self._entry_bytes)

    def _reserve_step(self, position: int) -> None:
        """Allocate a step from ``position`` on. Steps double: a queue of three messages costs a page, and a busy queue
        makes few calls."""
        files = self._table.files
        start = position - position % self._file_bytes
        end = start + self._file_bytes
        path = self._path(start)
        is_new = not self._has_file(start)
        if is_new:
            files.make_directory(self._directory)
            self.unsettle()
        fd = files.open(path, create=is_new)
        try:
            if files.length(fd) != self._file_bytes:
                files.set_length(fd, self._file_bytes)
            fill_from = position if self.file_starts else start
            step = min(max(position - start, _PAGE_BYTES - self._entry_bytes), _MAX_STEP_BYTES)
            step_end = min(end, position + max(step // self._entry_bytes, 1) * self._entry_bytes)
            files.allocate(fd, fill_from - start, step_end - fill_from)
            if fill_from < position:
                files.write(fd, FILLER * ((position - fill_from) // self._entry_bytes), 0)
        finally:
            files.close(fd)
        if self.ext_out is not None:
            self.ext_out.reserve(step_end // self._entry_bytes - self.next_offset)
        if is_new:
            if not self.file_starts:
                self.min_offset = position // self._entry_bytes
                self.max_offset = max(self.max_offset, self.min_offset)
                self._tail_end = -1
            bisect.insort(self.file_starts, start)
            self._table.files_made += 1
        self.reserved_end = step_end // self._entry_bytes

    def advance(self, entries: bytes | bytearray, count: int = 1) -> None:
        """Give the next ``count`` offsets to these entries, visible after the next commit. Their room must be
        reserved."""
        self.entries += entries
        self.next_offset += count

    def take_entries(self) -> bytearray:
        """The entries that the next commit makes visible."""
        entries, self.entries = self.entries, bytearray()
        return entries

    def show(self) -> tuple[str, int, int]:
        """Make them visible. Returns topic, queue id and max offset. Has the entries still after an OSError."""
        entries, low = self.entries, self._tail_at
        high = low + len(entries)
        if high > self._tail_end:
            self._append_anywhere(entries)
        else:  # as ``append``, without a call
            self._tail[low:high] = entries
            self._tail_at, self.tail_used = high, True
            self._table.dirty_files.add(self._tail_path)
            self.max_offset = self.next_offset
        self.entries = bytearray()
        return self.topic, self.queue_id, self.max_offset

    def settle(self, entries: bytes | bytearray) -> None:
        """Give the next offsets to these entries and make them visible at once. Their room must be reserved."""
        self.append(entries)
        self.next_offset = self.max_offset
        if entries[-ENTRY_BYTES:] == FILLER:
            self._has_last_fillers = True

    def append(self, entries: bytes | bytearray) -> tuple[str, int, int]:
        """Make entries visible. Their room must be reserved. Returns topic, queue id and max offset."""
        size, low = len(entries), self._tail_at
        high = low + size
        if high > self._tail_end:
            self._append_anywhere(entries)
        else:
            self._tail[low:high] = entries
            self._tail_at, self.tail_used = high, True
            self._table.dirty_files.add(self._tail_path)
            self.max_offset += size // self._entry_bytes
        return self.topic, self.queue_id, self.max_offset

    def _append_anywhere(self, entries: bytes | bytearray) -> None:
        self.tail_unmapped()
        if self.ext_out is not None:
            self.ext_out.write()
        self._end_last_fillers()
        files, done = self._table.files, 0
        position = self.max_offset * self._entry_bytes
        tail: mmap | None = None
        while done < len(entries):
            start = position - position % self._file_bytes
            count = min(len(entries) - done, start + self._file_bytes - position)
            path = self._path(start)
            part = entries if count == len(entries) else entries[done : done + count]
            low = position - start
            tail = self._table.maps.tail(path, self)
            if tail is None:
                fd = files.open(path)
                try:
                    files.write(fd, part, low)
                finally:
                    files.close(fd)
            else:
                tail[low : low + count] = part
                self._tail_path, self._tail_at = path, low + count
            self._table.dirty_files.add(path)
            position += count
            done += count
        self.max_offset = position // self._entry_bytes
        if tail is not None and self.ext_out is None:  # units of ext come first
            self._tail, self._tail_end = tail, self._file_bytes

    def tail_unmapped(self) -> None:
        self._tail, self._tail_end = _NO_TAIL, -1

    def mark_last_fillers(self) -> None:
        """Make LAST_FILLERs of the fillers that follow the last entry with a record."""
        if self._has_last_fillers:
            self._write_last_fillers(LAST_FILLER)
            self.tail_unmapped()  # so that the next append comes by

    def _end_last_fillers(self) -> None:
        if self._has_last_fillers:
            self._plain_again += tuple(self._write_last_fillers(FILLER))
            self._has_last_fillers = False  # not before: after an error this is repeated

    def _write_last_fillers(self, filler: bytes) -> list[str]:
        """Returns the files that this changes. A queue without a real entry keeps plain ones: they say where it
        begins."""
        end, parts = self.max_offset, list[tuple[int, int]]()
        has_real = False
        while self.file_starts and end > self.first_file_offset and not has_real:
            low = self.file_start_of(end - 1)
            rows = self.read(low, end - low)
            if len(rows) < end - low:
                break  # one of its files is missing, or short
            others = np.flatnonzero(rows["size"] != FILLER_SIZE)
            has_real = len(others) > 0
            first = low + int(others[-1]) + 1 if has_real else low
            parts.append((first, end - first))
            end = low
        wanted, changed = filler if has_real else FILLER, list[str]()
        for first, count in parts:
            if (self.read(first, count)["position"] != ENTRY.unpack(wanted)[0]).any():
                changed.append(self._overwrite(first, wanted * count))
        return changed

    # --- read -----------------------------------------------------------------------------------------------

    def read(self, offset: int, limit: int) -> Entries:
        """Entries from ``offset`` on, up to ``limit`` of them, the visible end, and the end of their file.

        Empty when the file is missing.
        """
        position = offset * self._entry_bytes
        start = position - position % self._file_bytes
        if not self._has_file(start):
            return np.empty(0, self._table.dtype)
        first = (position - start) // self._entry_bytes
        last = min(first + limit, self._file_bytes // self._entry_bytes, first + self.max_offset - offset)
        return self._table.maps.rows(self._path(start), first, last)

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of an entry, visible or not; None when no file has it."""
        packed = self._bytes_of(offset, ENTRY_BYTES)
        return None if packed is None else ENTRY.unpack(packed)

    def entry_before(self, offset: int) -> tuple[int, int, int] | None:
        """The last entry before ``offset``. Fillers are passed over: they stand for what a power cut took."""
        while offset > self.min_offset:
            offset -= 1
            entry = self.entry(offset)
            if entry is None or entry[1] != FILLER_SIZE:
                return entry
        return None

    def packed_entry(self, offset: int) -> bytes | None:
        """All bytes of an entry, visible or not; None when no file has it, or not all of it."""
        return self._bytes_of(offset, self._entry_bytes)

    def _bytes_of(self, offset: int, size_bytes: int) -> bytes | None:
        """The beginning of an entry."""
        position = offset * self._entry_bytes
        start = position - position % self._file_bytes
        if not self._has_file(start):
            return None
        packed = self._table.maps.bytes_at(self._path(start), position - start, size_bytes)
        return packed if len(packed) == size_bytes else None

    def row(self, offset: int) -> bytes:
        """As ``packed_entry``, from any thread: it opens the file itself. Raises OSError when there is no file."""
        return self._rows_before(offset + 1, 1)

    def rows(self, low: int, high: int) -> bytes:
        """The entries of [low, high), visible or not, as ``row``; zeros for what no file has."""
        parts: list[bytes] = []
        while high > low:
            count = min(high - low, high - self.file_start_of(high - 1))
            parts.append(
                self._rows_before(high, count)
                if self._has_file(self.file_start_of(high - 1) * self._entry_bytes)
                else bytes(count * self._entry_bytes)
            )
            high -= count
        return b"".join(reversed(parts))

    def end_before(self, position: int, low: int, high: int) -> int:
        """End of the entries in [low, high) that are fillers, or whose records lie before ``position`` in the log, from
        any thread. Raises OSError when a file is gone."""
        while high > low:
            data = self._rows_before(high, min(_ROWS_BACK, high - low))
            rows = np.frombuffer(data, self._table.dtype)
            before = np.flatnonzero((rows["position"] < position) | (rows["size"] == FILLER_SIZE))
            if len(before):
                return high - len(rows) + int(before[-1]) + 1
            high -= len(rows)
        return low

    def _rows_before(self, end: int, most: int) -> bytes:
        """The entries before ``end`` that lie in one file, at most so many."""
        last = (end - 1) * self._entry_bytes
        start = last - last % self._file_bytes
        low = max(start, end * self._entry_bytes - most * self._entry_bytes)
        fd = self._table.files.open_read(self._path(start))
        try:
            data = self._table.files.read_at(fd, end * self._entry_bytes - low, low - start)
        finally:
            self._table.files.close(fd)
        return data.ljust(end * self._entry_bytes - low, b"\0")

    def replace(self, offset: int, entry: bytes) -> None:
        """Overwrite an existing entry. Raises OSError."""
        self.settle_last_fillers()
        self._overwrite(offset, entry)
        self._has_last_fillers = self._entry_bytes == ENTRY_BYTES  # those behind it are the last ones again

    def settle_last_fillers(self) -> None:
        """Make its LAST_FILLERs plain ones on disk, before an entry follows them that no start writes again: what a
        checkpoint has passed. Other entries are written again after a power cut, and the fillers before them with them.
        Blocking. Raises OSError."""
        self._end_last_fillers()
        files = self._table.files
        while self._plain_again:
            with contextlib.suppress(FileNotFoundError):  # retention removed it since
                fd = files.open(self._plain_again[-1])
                try:
                    files.sync(fd)
                finally:
                    files.close(fd)
            self._plain_again = self._plain_again[:-1]

    def _overwrite(self, offset: int, entries: bytes) -> str:
        """Write entries in the place of existing ones of one file, which is returned."""
        position = offset * self._entry_bytes
        start = position - position % self._file_bytes
        path = self._path(start)
        fd = self._table.files.open(path)
        try:
            self._table.files.write(fd, entries, position - start)
        finally:
            self._table.files.close(fd)
        self._table.dirty_files.add(path)
        return path

    def next_existing_offset(self, offset: int) -> int:
        """Start of the next file, for an offset whose file is missing."""
        for start in self.file_starts:
            if start >= offset * self._entry_bytes:
                return start // self._entry_bytes
        return self.max_offset

    def first_where(self, is_right: Callable[[int, int, int], bool], low: int, high: int) -> int:
        """The first offset in [low, high) whose entry satisfies a monotone condition, otherwise ``high``.

        A filler has neither time nor position, so it counts as the entry after it.
        """
        end = high
        while low < high:
            middle = (low + high) // 2
            probe = self._skip_fillers(middle, high)
            entry = self.entry(probe) if probe < high else None
            if entry is None or is_right(*entry):
                high = middle
            else:
                low = probe + 1
        return self._skip_fillers(low, end)

    def _skip_fillers(self, offset: int, end: int) -> int:
        while offset < end:
            entry = self.entry(offset)
            if entry is None:
                offset = self.next_existing_offset(offset + 1)
            elif entry[1] == FILLER_SIZE:
                offset += 1
            else:
                return offset
        return end

    # --- recovery -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the files. ``locate_end`` then finds the end of their entries."""
        names = self._table.files.names(self._directory)
        starts = [start for name in names if (start := file_start(name)) is not None]
        self.file_starts = sorted(starts)
        for start in self.file_starts:
            if start % self._file_bytes:
                raise StoreCorrupt(
                    f"{self._path(start)} does not belong to a ConsumeQueue of {self._file_bytes}-byte files:"
                    " move it elsewhere",
                    path=self._path(start),
                )

    def locate_end(self, limit: int | None, log_end: int | None = None) -> tuple[int, int]:
        """Find the end: before the first entry that is empty or (with ``limit``) whose record lies at or
        after ``limit``. A filler has no position, and counts as the entry before it;
        nothing is before a limit of 0.

        Returns the end offset and where the record of the last entry ends in the log (0 without one, or when it is
        a filler). The search is a bisection, which is correct when everything before the limit is intact, as a
        checkpoint guarantees. With ``log_end``, after which no record ends, the entries around the end are checked.
        """
        found: tuple[int, int] | None = None
        """A file, and its entries before the end."""
        for start in reversed(self.file_starts):
            fd = self._table.files.open(self._path(start))
            try:
                self._repair_length(fd, start, limit)
                count, used = self._count_entries(fd, limit)
                if not count:
                    found = None
                elif found is None or count * self._entry_bytes < self._file_bytes:
                    found = start, count
                if used and found == (start, count):
                    return self._end_in(fd, start, count, log_end)
                if used:
                    break
            finally:
                self._table.files.close(fd)
        if found is None:
            return self.first_file_offset if self.file_starts else 0, 0
        fd = self._table.files.open_read(self._path(found[0]))
        try:
            return self._end_in(fd, *found, log_end)
        finally:
            self._table.files.close(fd)

    def _repair_length(self, fd: int, start: int, limit: int | None) -> None:
        length = self._table.files.length(fd)
        # A new file gets its length after its name, so a crash in between is not damage.
        if (0 < length < self._file_bytes) or (not length and limit is None):
            text = f"a file of it has {length} bytes instead of {self._file_bytes}"
            self.doubt((start + length) // self._entry_bytes, "queue.file-length", text)
        if length < self._file_bytes:
            self._table.files.set_length(fd, self._file_bytes)

    def _end_in(self, fd: int, start: int, count: int, log_end: int | None) -> tuple[int, int]:
        """What ``locate_end`` returns, when the end is after ``count`` entries of this file."""
        position, size, _ = self._read_entry(fd, count - 1)
        self._has_last_fillers = size == FILLER_SIZE and self._entry_bytes == ENTRY_BYTES
        if log_end is not None:
            self._check_end(fd, start // self._entry_bytes, count, log_end)
        return start // self._entry_bytes + count, 0 if size == FILLER_SIZE else position + size

    def check_files(self, min_position: int) -> list[int]:
        """Check by names and lengths that no file of a queue is missing, given that its log begins at
        ``min_position``, and that the first and last entries of its files are in order. Note a doubt in the table
        otherwise. ``locate_end`` checks the length and the end of the last file.

        Returns the starts of files to remove, which count no more: retention had removed them, and a power cut brought
        them back, but not all that were removed after them."""
        step, back = self._file_bytes, 0
        for number, (start, following) in enumerate(itertools.pairwise(self.file_starts), 1):
            is_gap = following != start + step
            if is_gap and self._reaches(following, min_position):
                self.doubt(
                    (start + step) // self._entry_bytes, "queue.file-gone", "one of its files is missing"
                )
                break
            if is_gap and self._is_past(start, min_position):
                back = number
            elif (length := self._length(start)) != step and self._reaches(following, min_position):
                text = f"a file of it has {length} bytes instead of {step}"
                self.doubt((start + min(length, step)) // self._entry_bytes, "queue.file-length", text)
                break
        removed, self.file_starts = self.file_starts[:back], self.file_starts[back:]
        if self not in self._table.doubted:
            self._check_borders()
        return removed

    def _check_borders(self) -> None:
        known = 0
        for start in self.file_starts:
            is_last = start == self.file_starts[-1]
            fd = self._table.files.open_read(self._path(start))
            try:
                if is_last and self._is_behind(fd, 0, None) and not self._has_entries(fd):
                    return  # made for an entry that did not come; the comparison of the ends tells otherwise
                for number in (0, self._file_bytes // self._entry_bytes - 1)[: 1 if is_last else 2]:
                    position, size, _ = self._read_entry(fd, number)
                    if size == FILLER_SIZE:
                        continue
                    if size <= 0 or position < known:
                        first = start // self._entry_bytes
                        text = (
                            f"entry {first + number} is out of order"  # because of itself, or of those before
                        )
                        self.doubt(first, "queue.differs", text)
                        return
                    known = position
            finally:
                self._table.files.close(fd)

    def _has_entries(self, fd: int) -> bool:
        return any(True for _ in self._table.files.data_ranges(fd, 0, self._file_bytes)) and any(
            self._table.files.read_at(fd, self._file_bytes, 0)
        )

    def doubt(self, sure: int, kind: str, text: str) -> None:
        """Note in the table that entries from offset ``sure`` on cannot be trusted."""
        self._table.before_heal()
        known = self._table.doubted.get(self)
        if known is None or sure < known.sure_end:
            self._table.doubted[self] = Doubt(sure, kind, text)

    def _check_end(self, fd: int, base: int, count: int, log_end: int) -> None:
        """Check the entries around the end, which is after ``count`` entries of this file."""
        low = max(count - 2, 0)
        data = self._table.files.read_at(fd, _AROUND_BYTES, low * self._entry_bytes)
        data = data.ljust((count - low) * self._entry_bytes, b"\0")
        at = (count - low) * self._entry_bytes
        position, size, _ = ENTRY.unpack_from(data, at - self._entry_bytes)
        if size != FILLER_SIZE:
            before, before_size, _ = ENTRY.unpack_from(data)
            if position + size > log_end or (
                count - low == 2 and before_size != FILLER_SIZE and before >= position
            ):
                self.doubt(
                    base + count - 1,
                    "queue.differs",
                    f"its last entry has the impossible position {position}",
                )
                return
        if data[at:] == _ZEROS[: len(data) - at]:
            return
        around = np.frombuffer(data, self._table.dtype, len(data) // self._entry_bytes)[count - low :]
        positions, sizes = around["position"], around["size"]
        behind = (sizes > 0) & (sizes != FILLER_SIZE) & (positions > (position if size != FILLER_SIZE else 0))
        if (behind & (positions + sizes <= log_end)).any():
            text = f"entry {base + count} is empty, but later entries are not"
            self.doubt(base + count, "queue.differs", text)

    def _reaches(self, start: int, min_position: int) -> bool:
        """Whether the log still has the first record of the file that begins at ``start``. Otherwise
        retention may have removed the files before it."""
        fd = self._table.files.open(self._path(start))
        try:
            position, size, _ = self._read_entry(fd, 0)
        finally:
            self._table.files.close(fd)
        return size == FILLER_SIZE or position > min_position

    def _is_past(self, start: int, min_position: int) -> bool:
        """Whether the log has no record any more of the entries of the file that begins at ``start``. A file of fillers
        does not say so."""
        fd = self._table.files.open_read(self._path(start))
        try:
            used = self._used_before(fd, self._file_bytes // self._entry_bytes)
            position, size, _ = self._read_entry(fd, used - 1) if used else (0, 0, 0)
        finally:
            self._table.files.close(fd)
        return size > 0 and 0 <= position < min_position

    def _length(self, start: int) -> int:
        fd = self._table.files.open(self._path(start))
        try:
            return self._table.files.length(fd)
        finally:
            self._table.files.close(fd)

    def _count_entries(self, fd: int, limit: int | None) -> tuple[int, int]:
        """How many entries of a file lie before its end, and how many of them up to the last one that is no filler.

        The bisection takes fillers for entries before the end. If one of those behind has misled it, the entry before
        that tells so, and the end is further to the front."""
        high = self._file_bytes // self._entry_bytes
        while True:
            count = self._first_behind(fd, high, limit)
            used = self._used_before(fd, count)
            if not used or not self._is_behind(fd, used - 1, limit):
                return count, used
            high = used - 1

    def _first_behind(self, fd: int, high: int, limit: int | None) -> int:
        low = 0
        while low < high:
            middle = (low + high) // 2
            if self._is_behind(fd, middle, limit):
                high = middle
            else:
                low = middle + 1
        return low

    def _used_before(self, fd: int, end: int) -> int:
        """``end`` without the fillers before it."""
        count = 1
        while end:
            low = max(0, end - count)
            data = self._table.files.read_at(fd, (end - low) * self._entry_bytes, low * self._entry_bytes)
            rows = np.frombuffer(data.ljust((end - low) * self._entry_bytes, b"\0"), self._table.dtype)
            others = np.flatnonzero(rows["size"] != FILLER_SIZE)
            if len(others):
                return low + int(others[-1]) + 1
            end, count = low, 1024
        return 0

    def _is_behind(self, fd: int, index: int, limit: int | None) -> bool:
        position, size, _ = self._read_entry(fd, index)
        if size == FILLER_SIZE:
            position = 0
        return size <= 0 or position < 0 or (limit is not None and position >= limit)

    def _read_entry(self, fd: int, index: int) -> tuple[int, int, int]:
        data = self._table.files.read_at(fd, self._entry_bytes, index * self._entry_bytes)
        return ENTRY.unpack_from(data.ljust(ENTRY_BYTES, b"\0"))

    def set_end(self, offset: int) -> None:
        """Continue at ``offset``. Entries from there on will be overwritten, or ``clear_tail`` clears them."""
        if offset < self.max_offset:
            self._has_last_fillers = self._entry_bytes == ENTRY_BYTES  # plain ones may be the last again
        self.max_offset = self.next_offset = self.reserved_end = offset
        self._tail_end = -1
        self.min_offset = min(self.min_offset, offset)
        if self.ext is not None:
            self.ext.set_end(self._last_address())

    def begin_empty(self, offset: int) -> None:
        """Let a queue without files continue at ``offset``, which its first file keeps. Raises DiskFull, OSError with
        nothing changed."""
        self.set_end(offset)
        self.min_offset = offset
        try:
            self.reserve(1)
        except BaseException:
            self.set_end(0)
            raise

    def has_file_from(self, offset: int) -> bool:
        """Whether a file begins at or after ``offset``."""
        return bool(self.file_starts) and self.file_starts[-1] >= offset * self._entry_bytes

    def _last_address(self) -> int | None:
        """Address of the last ext unit that an entry before the end refers to."""
        end = self.max_offset * self._entry_bytes
        for start in reversed(self.file_starts):
            last = min(max(end - start, 0), self._file_bytes) // self._entry_bytes
            codes = self._table.maps.rows(self._path(start), 0, last)["tags_code"]
            addresses = np.flatnonzero(codes < EXT_ADDRESS_BELOW)
            if len(addresses):
                return int(codes[addresses[-1]])
        return None

    def clear_tail(self) -> int:
        """Zero every entry from max_offset on and remove the files that begin there. Returns the number of
        entries removed.

        An entry without a record in the log must not be mistaken for a valid one later.
        """
        files = self._table.files
        cleared = 0
        end = self.max_offset * self._entry_bytes
        for start in self.file_starts:
            low = max(end - start, 0)
            if low >= self._file_bytes:
                continue
            path = self._path(start)
            fd = files.open(path)
            try:
                for low_data, high_data in list(files.data_ranges(fd, low, self._file_bytes)):
                    first = low_data // self._entry_bytes
                    last = -(-high_data // self._entry_bytes)
                    data = files.read_at(fd, (last - first) * self._entry_bytes, first * self._entry_bytes)
                    entries = np.frombuffer(
                        data, dtype=self._table.dtype, count=len(data) // self._entry_bytes
                    )
                    used = np.flatnonzero(entries["size"])
                    used = used[used + first >= low // self._entry_bytes]
                    if len(used):
                        cleared += len(used)
                        zeros = bytes((int(used[-1]) - int(used[0]) + 1) * self._entry_bytes)
                        files.write(fd, zeros, (first + int(used[0])) * self._entry_bytes)
                        self._table.dirty_files.add(path)
            finally:
                files.close(fd)
        while self.file_starts and self.file_starts[-1] >= end and len(self.file_starts) > 1:
            self._remove_file(self.file_starts.pop())
        return cleared

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the min offset to the first entry whose record the log still has
        (ConsumeQueue.correctMinOffset)."""
        offset = max(self.min_offset, self.file_starts[0] // self._entry_bytes if self.file_starts else 0)
        if offset < self.max_offset and self._has_file(offset * self._entry_bytes):
            fd = self._table.files.open_read(self._path(offset * self._entry_bytes))
            try:
                position, size, _ = self._read_entry(fd, 0)
            finally:
                self._table.files.close(fd)
            if size != FILLER_SIZE and position >= min_physical_offset:
                self.min_offset = offset
                return
        while offset < self.max_offset:
            entries = self.read(offset, self.max_offset - offset)
            if not len(entries):
                offset = self.next_existing_offset(offset + 1)
                continue
            kept = (entries["position"] >= min_physical_offset) & (entries["size"] != FILLER_SIZE)
            first = int(np.argmax(kept))
            if kept[first]:
                offset += first
                break
            offset += len(entries)
        self.min_offset = min(offset, self.max_offset)

    # --- retention ------------------------------------------------------------------------------------------

    def first_kept(self, min_physical_offset: int, file_starts: list[int], low: int, high: int) -> int:
        """The first offset in [low, high) whose record lies at or after ``min_physical_offset``, otherwise
        ``high``.

        May be called from any thread: it opens the files itself and reads only constant attributes of this
        object. ``file_starts`` is a copy. Raises OSError when a file is gone.
        """
        files = self._table.files
        for start in file_starts:
            base = start // self._entry_bytes
            first, end = max(low, base) - base, min(high - base, self._file_bytes // self._entry_bytes)
            if first >= end:
                continue
            fd = files.open_read(self._path(start))
            try:
                found = self._first_kept_in(fd, min_physical_offset, first, end)
            finally:
                files.close(fd)
            if found < end:
                return base + found
        return high

    def _first_kept_in(self, fd: int, min_physical_offset: int, low: int, end: int) -> int:
        """Bisection in one file. A filler counts as the entry after it."""
        high = end
        while low < high:
            middle = (low + high) // 2
            probe = self._skip_fillers_in(fd, middle, high)
            if probe >= high or self._read_entry(fd, probe)[0] >= min_physical_offset:
                high = middle
            else:
                low = probe + 1
        return self._skip_fillers_in(fd, low, end)

    def _skip_fillers_in(self, fd: int, low: int, end: int) -> int:
        count = 1
        while low < end:
            count = min(count, end - low)
            data = self._table.files.read_at(fd, count * self._entry_bytes, low * self._entry_bytes)
            sizes = np.frombuffer(data, dtype=self._table.dtype, count=len(data) // self._entry_bytes)["size"]
            others = np.flatnonzero(sizes != FILLER_SIZE)
            if len(others) or not len(sizes):
                return low + int(others[0]) if len(others) else end
            low += len(sizes)
            count = 1024
        return end

    def raise_min_offset(self, offset: int) -> None:
        self.min_offset = max(self.min_offset, min(offset, self.max_offset))

    @property
    def dead_files(self) -> int:
        """Number of files that lie entirely before the min offset. The file of the last entry never counts:
        it keeps the max offset, which in a BatchConsumeQueue only an entry records."""
        last = bisect.bisect_right(self.file_starts, (self.max_offset - 1) * self._entry_bytes) - 1
        return min(
            bisect.bisect_right(self.file_starts, self.min_offset * self._entry_bytes - self._file_bytes),
            max(last, 0),
        )

    @property
    def first_file_offset(self) -> int:
        """The first offset of the first file. There has to be one."""
        return self.file_starts[0] // self._entry_bytes

    def file_start_of(self, offset: int) -> int:
        """The first offset of the file that ``offset`` belongs to."""
        return offset - offset % (self._file_bytes // self._entry_bytes)

    @property
    def is_current(self) -> bool:
        """Whether the table still has this queue; its topic may have been deleted."""
        return self._table.queues.get(self.key) is self

    @property
    def is_settled(self) -> bool:
        """Whether the names of all its files are on disk."""
        return self._directory not in self._table.new_directories

    def unsettle(self) -> None:
        """Note that the names of its files may not be on disk: the next checkpoint syncs them."""
        topics = str(self._table.directory)
        # The directory of BatchConsumeQueues is created with the first queue, so its own name may be new,
        # too.
        parents = (self._directory, os.path.dirname(self._directory), topics, os.path.dirname(topics))
        self._table.new_directories.update(parents)

    def remove_oldest_file(self) -> None:
        self._remove_file(self.file_starts[0])
        del self.file_starts[0]
        self._table.dirty_files.add(
            self._path(self.file_starts[0])
        )  # the next checkpoint records where it begins
        first = self.entry(self.min_offset) if self.ext is not None else None
        if self.ext is not None and first is not None and first[2] < EXT_ADDRESS_BELOW:
            self.ext.delete_before(first[2])

    def files_before(self, position: int) -> list[int]:
        """Starts of the files without an entry of a record at or after ``position`` in the log. A file that
        has only fillers, or that holds the start of an empty queue, is not included."""
        found = []
        for start in self.file_starts:
            fd = self._table.files.open_read(self._path(start))
            try:
                count, used = self._count_entries(fd, None)
                if (start and not count) or (used and self._read_entry(fd, used - 1)[0] < position):
                    found.append(start)
            finally:
                self._table.files.close(fd)
        return found

    def remove_files(self, starts: list[int]) -> None:
        """Remove some files, or all of them. The next checkpoint makes that durable."""
        if starts:
            self.unsettle()
        for start in starts:
            self._remove_file(start)

    def remove(self) -> None:
        self.remove_files(self.file_starts)
        self.file_starts = []
        self._table.files.remove(self._directory)
        if self.ext is not None:
            self.ext.remove()

    def _remove_file(self, start: int) -> None:
        path = self._path(start)
        self._table.maps.drop(path)
        self._table.dirty_files.discard(path)
        self._table.files.remove(path)

    def _has_file(self, start: int) -> bool:
        index = bisect.bisect_left(self.file_starts, start)
        return index < len(self.file_starts) and self.file_starts[index] == start

    def _path(self, start: int) -> str:
        return f"{self._directory}/{file_name(start)}"
