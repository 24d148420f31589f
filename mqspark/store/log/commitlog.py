"""The CommitLog: segments of fixed length that together are one byte space of records (CommitLog,
MappedFileQueue).

Appending is split in two. ``MessageStore.put`` encodes into ``pending`` and moves ``position``;
``write_pending``, or a flush job with what ``take_pending`` gives it, puts everything into the active segment with
one ``pwritev``. Whatever an append needs on disk (the segment file, its blocks) is reserved by ``make_room`` before
the append is accepted, so a full disk refuses a message and never breaks one.

Must not know topics or queues.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import struct
from collections import Counter, OrderedDict
from mmap import mmap
from pathlib import Path

from mqspark.errors import MessageTooLarge, NotNow, StoreCorrupt
from mqspark.record import BLANK_BYTES, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.files import FileLayer, disk_full_as_typed, is_disk_full
from mqspark.store.disk.flush import ReadAheadJob, joined
from mqspark.store.disk.layout import file_name, file_start
from mqspark.store.disk.logpaths import LogPaths
from mqspark.store.disk.mapping import MapBudget, try_map

__all__ = ["MAX_COPY_BYTES", "CommitLog", "Segment", "missing_parts", "segment_size"]

_BLANK = struct.Struct(">ii")
_REWRITE_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 20
MAX_COPY_BYTES = 64 << 20
"""Of one record that cannot be mapped: what says it is longer is taken for damage before memory is taken for it."""
_MARK = -1
"""Among the mapped segments in the order of their use: see ``drop_idle``."""
_I64 = struct.Struct(">q")
_RECORD_STORE_TIME = struct.Struct(">36xi16xq")
"""System flag and store timestamp of a record whose born host is IPv4 (12 bytes later for IPv6)."""


class Segment:
    """One file of the log: bytes [start, end) of the log's space."""

    __slots__ = ("end", "length", "path", "start")

    def __init__(self, path: Path, start: int, length: int, end: int) -> None:
        self.path = path
        self.start = start
        self.length = length
        """Of the file; shorter than end - start only when somebody cut it."""
        self.end = end


class CommitLog:
    """``position`` is where the next record goes, ``written`` what the files have or a flush job takes there,
    ``durable`` what is synced."""

    __slots__ = (
        "_allocated_end",
        "_budget",
        "_directories",
        "_fd",
        "_files",
        "_max_mapped",
        "_new_directories",
        "_room_asked_end",
        "_step",
        "_unsynced",
        "_views",
        "durable",
        "pending",
        "position",
        "room_end",
        "segment_bytes",
        "segments",
        "written",
    )

    def __init__(
        self,
        directories: Path | LogPaths,
        files: FileLayer,
        *,
        segment_bytes: int,
        allocation_step: int,
        max_mapped: int,
        budget: MapBudget | None = None,
    ) -> None:
        """``max_mapped``: segments; 0 when all that is read shall be copied. ``budget``: of address space."""
        self._directories = LogPaths((directories,)) if isinstance(directories, Path) else directories
        self._files = files
        self._step = max(4096, allocation_step)
        self._max_mapped = max_mapped
        self._budget = budget if budget is not None else MapBudget()
        self._views: OrderedDict[int, memoryview | None] = OrderedDict()
        self._fd = -1
        self._allocated_end = 0
        self._room_asked_end = 0
        self._unsynced: list[int] = []
        self._new_directories: list[Path] = []
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.pending: list[bytes | memoryview] = []
        self.position = 0
        self.written = 0
        self.durable = 0
        self.room_end = -1
        """Records that end at or before this need no further preparation; -1 while nothing may be
        appended."""

    # --- load and position (recovery) -----------------------------------------------------------------------

    def load(self, note: Note = lambda damage: None, known_end: int = 0) -> None:
        """Find the segments. ``note`` hears what is missing of them; ``known_end``: so far the log surely went once.

        Raises StoreCorrupt when the files are not one log.
        """
        files = self._files
        paths: dict[int, Path] = {}
        for directory in self._directories.all:
            if directory in self._directories.writable:
                files.make_directory(directory, durable=True)
            for name in files.names(directory):
                start = file_start(name)
                if start is not None and start in paths:
                    raise StoreCorrupt(
                        f"both {paths[start]} and {directory / name} are the same part of the log",
                        path=str(directory / name),
                        offset=start,
                    )
                if start is not None:
                    paths[start] = directory / name
        starts = sorted(paths)
        lengths: dict[int, int] = {}
        for start in starts:
            fd = files.open_read(paths[start])
            try:
                lengths[start] = files.length(fd)
            finally:
                files.close(fd)
        # A crash while a file is made leaves an empty one, always the last.
        if starts and lengths[starts[-1]] == 0:
            files.remove(paths[starts.pop()])
        if starts:
            self.segment_bytes = size = segment_size(
                {start: lengths[start] for start in starts}, self.segment_bytes, known_end
            )
            for start in starts:
                if start % size:
                    raise StoreCorrupt(
                        f"{paths[start]} does not belong to a log of {size}-byte segments",
                        path=str(paths[start]),
                        offset=start,
                    )
        self.segments = [
            Segment(paths[start], start, min(lengths[start], self.segment_bytes), start + self.segment_bytes)
            for start in starts
        ]
        for damage in missing_parts(self.segments, lengths):
            note(damage)

    def start_at(self, position: int) -> None:
        """Append from here on; everything before is taken for durable. Makes the segment when it is
        missing."""
        if not self.segments or position >= self.segments[-1].end:
            segment, self._fd, _ = self._create_segment(position - position % self.segment_bytes)
            self.segments.append(segment)
        else:
            self._fd = self._files.open(self.segments[-1].path)
        active = self.segments[-1]
        if active.length < self.segment_bytes:
            self._files.set_length(self._fd, self.segment_bytes)
            active.length = self.segment_bytes
            self._unmap(active.start)
        self.position = self.written = self.durable = position
        self._allocated_end = self._room_asked_end = position
        self._set_room()

    def cut(self, position: int) -> int:
        """Zero everything from ``position`` on and remove later segments; gives back how many bytes of each lie before
        its zeros.

        Zeros, not ftruncate: an old record must not reappear, and the file may be mapped.
        """
        cleared = 0
        while self.segments and self.segments[-1].start > position:
            segment = self.segments.pop()
            cleared += self._count_data(segment, segment.start, clear=False)
            self._unmap(segment.start)
            self._files.remove(segment.path)
        if self.segments and position < self.segments[-1].end:
            cleared += self._count_data(self.segments[-1], position, clear=True)
        return cleared

    def _count_data(self, segment: Segment, position: int, *, clear: bool) -> int:
        files = self._files
        found = 0
        zeros = bytes(1 << 16)
        fd = files.open(segment.path)
        try:
            for low, high in list(files.data_ranges(fd, position - segment.start, segment.length)):
                for at in range(low, high, len(zeros)):
                    chunk = files.read_at(fd, min(len(zeros), high - at), at)
                    if chunk != zeros[: len(chunk)]:
                        found = at + len(chunk.rstrip(b"\0")) - (position - segment.start)
                        if clear:
                            files.write(fd, zeros[: len(chunk)], at)
            if clear and found:
                files.sync(fd)
        finally:
            files.close(fd)
        return found

    def data_ranges(self, segment: Segment, start: int) -> list[tuple[int, int]]:
        """Absolute ranges from ``start`` on that may hold records."""
        fd = self._files.open_read(segment.path)
        try:
            ranges = self._files.data_ranges(fd, start - segment.start, segment.length)
            return [(segment.start + low, segment.start + high) for low, high in ranges]
        finally:
            self._files.close(fd)

    def rewrite(self, start: int, end: int) -> int:
        """Blocking: write the bytes of [start, end) over themselves, so that the next sync has to put them on the disk;
        gives back how many."""
        count = 0
        for segment in self.segments:
            low, high = max(start, segment.start), min(end, segment.start + segment.length)
            if low >= high:
                continue
            fd = self._files.open(segment.path)
            try:
                for at in range(low - segment.start, high - segment.start, _REWRITE_BYTES):
                    data = self._files.read_at(fd, min(_REWRITE_BYTES, high - segment.start - at), at)
                    self._files.write(fd, data, at)
                    count += len(data)
            finally:
                self._files.close(fd)
        return count

    def sync_from(self, position: int) -> None:
        """Blocking: make every segment from ``position`` on durable (the end of recovery)."""
        for segment in self.segments:
            if segment.end > position:
                fd = self._files.open(segment.path)
                try:
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)
        for directory in self._directories.writable:
            self._files.sync_directory(directory)

    # --- retention ------------------------------------------------------------------------------------------

    def forget_oldest(self, count: int) -> list[Path]:
        """Leave out the first segments, never the active one; gives back the files, which are still there.

        Whoever holds a slice of one keeps it readable.
        """
        gone, self.segments[:count] = self.segments[:count], []
        for segment in gone:
            self._unmap(segment.start)
        return [segment.path for segment in gone]

    # --- append ---------------------------------------------------------------------------------------------

    def make_room(self, size_bytes: int) -> int:
        """Reserve blocks for one record (or one batch), rolling to the next segment when it does not fit.

        Gives back where the record starts. Raises DiskFull or MessageTooLarge with nothing changed; OSError
        when writing the old segment's end failed (the caller must poison the store then).
        """
        if size_bytes > self.segment_bytes - BLANK_BYTES:
            raise MessageTooLarge("record", size_bytes, self.segment_bytes - BLANK_BYTES)
        if self.position + size_bytes + BLANK_BYTES > self.segments[-1].end:
            self._roll()
        active = self.segments[-1]
        need = self.position + size_bytes + BLANK_BYTES
        if need > self._allocated_end:
            self._allocated_end = self._allocate(self._fd, active, self._allocated_end, need)
        self._set_room()
        return self.position

    def write_pending(self) -> None:
        """One pwritev for everything appended since the last. OSError: any part of it may be on disk."""
        if self.pending:
            self._files.write(self._fd, joined(self.pending), self.written - self.segments[-1].start)
            self.take_pending()

    def take_pending(self) -> tuple[int, list[bytes | memoryview]]:
        """Everything appended since the last write, and where in the active file the caller has to write it."""
        offset, buffers = self.written - self.segments[-1].start, self.pending
        self.pending = []
        self.written = self.position
        return offset, buffers

    def _roll(self) -> None:
        old = self.segments[-1]
        segment, fd, allocated_end = self._create_segment(old.end)
        if self.position < old.end:
            self.pending.append(_BLANK.pack(old.end - self.position, BLANK_MAGIC))
        try:
            self.write_pending()
        except OSError:
            self._files.close(fd)
            if self.position < old.end:
                self.pending.pop()  # whoever tries again adds it again
            raise
        self.segments.append(segment)
        self._unsynced.append(self._fd)
        self._fd = fd
        self.position = self.written = old.end
        self._allocated_end = allocated_end

    def _create_segment(self, start: int) -> tuple[Segment, int, int]:
        """With an open descriptor and the end of its allocated range. DiskFull leaves no file behind."""
        path = self._directories.for_segment(start // self.segment_bytes) / file_name(start)
        segment = Segment(path, start, self.segment_bytes, start + self.segment_bytes)
        with disk_full_as_typed(f"a new CommitLog segment {path.name}"):
            fd = self._files.open(path, create=True)
            try:
                self._files.set_length(fd, self.segment_bytes)
                allocated_end = self._allocate(fd, segment, start, start + BLANK_BYTES)
            except (OSError, NotNow):
                self._files.close(fd)
                self._files.remove(path)
                raise
        self._new_directories.append(path.parent)
        return segment, fd, allocated_end

    def _allocate(self, fd: int, segment: Segment, allocated_end: int, need: int) -> int:
        """Whole steps if the disk has them, else just what is needed."""
        step_end = min(segment.end, -(-need // self._step) * self._step)
        with disk_full_as_typed(f"CommitLog segment {segment.path.name}"):
            try:
                self._files.allocate(fd, allocated_end - segment.start, step_end - allocated_end)
            except OSError as error:
                if step_end == need or not is_disk_full(error):
                    raise
                self._files.allocate(fd, allocated_end - segment.start, need - allocated_end)
                return need
        return step_end

    @property
    def room_due(self) -> bool:
        """Less than a step is reserved ahead of what is appended, and more was not tried yet."""
        end = self._allocated_end
        is_near, is_new = end - self.position < self._step, self._room_asked_end != end
        return is_near and is_new and end < self.segments[-1].end

    def extend_room(self) -> ReadAheadJob | None:
        """Reserve the next step of the active segment; gives back what another thread may do for it.

        Reserving stays in the thread that appends: where the file system has no such call the C library writes zeros
        into blocks that it found empty, and a record may have got there meanwhile.
        """
        active, start = self.segments[-1], self._allocated_end
        end = min(active.end, start - start % self._step + self._step)
        self._room_asked_end = start
        try:
            self._files.allocate(self._fd, start - active.start, end - start)
        except OSError:
            return None  # the append that gets there asks again, and is told why there is none
        self._allocated_end = end
        if self.room_end >= 0:
            self._set_room()
        return ReadAheadJob(self._files, active.path, start - active.start, end - start)

    def _set_room(self) -> None:
        self.room_end = min(self._allocated_end, self.segments[-1].end) - BLANK_BYTES

    # --- flush ----------------------------------------------------------------------------------------------

    def take_unsynced(self) -> tuple[list[int], int, list[Path]]:
        """What a flush job has to sync: descriptors of left segments, the active one, directories with new
        names."""
        unsynced, self._unsynced = self._unsynced, []
        directories, self._new_directories = self._new_directories, []
        return unsynced, self._fd, directories

    def synced(self, left_descriptors: list[int], durable: int) -> None:
        for fd in left_descriptors:
            self._files.close(fd)
        self.durable = durable

    def close(self) -> None:
        while self._unmap_oldest():
            continue
        for fd in (*self._unsynced, self._fd):
            if fd >= 0:
                self._files.close(fd)
        self._unsynced = []
        self._fd = -1
        self.room_end = -1

    # --- read -----------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.segments[0].start if self.segments else 0

    def segment_of(self, position: int) -> Segment | None:
        index = bisect.bisect_right(self.segments, position, key=_segment_start) - 1
        if index >= 0 and position < self.segments[index].end:
            return self.segments[index]
        return None

    def mapped(self, segment: Segment) -> memoryview | None:
        """The whole file, read-only, or None when it cannot be mapped: then ``copied`` and the like still read it.

        Only [start, written) may be looked at (see files.py).
        """
        view = self._views.get(segment.start)
        if view is not None:
            self._views.move_to_end(segment.start)
            return view
        if not segment.length:
            return memoryview(b"")  # somebody emptied the file, and nothing can be mapped of it
        while len(self._views) >= max(self._max_mapped, 1):
            # Not closed: slices may still wait in somebody's send buffer; the last of them unmaps it.
            self._unmap_oldest()
        if self._max_mapped:
            mapping = try_map(self._files, segment.path, segment.length, self._budget, self._unmap_oldest)
            view = memoryview(mapping) if mapping is not None else None
        if view is not None:
            self._views[segment.start] = view
        return view

    def adopt(self, segment: Segment, view: memoryview) -> None:
        """A map of the whole file that somebody else has made."""
        self._views[segment.start] = view
        self._budget.used_bytes += len(view)

    def view(self, segment: Segment) -> memoryview:
        """As ``mapped``, for tools. Raises OSError when it cannot be mapped."""
        view = self.mapped(segment)
        if view is None:
            raise OSError(errno.ENOMEM, "this part of the log cannot be mapped", str(segment.path))
        return view

    def _unmap_oldest(self) -> bool:
        """Whether there was one."""
        while self._views:
            _, view = self._views.popitem(last=False)
            if view is not None:
                self._budget.used_bytes -= len(view)
                return True
        return False

    def _unmap(self, start: int) -> None:
        view = self._views.pop(start, None)
        if view is not None:
            self._budget.used_bytes -= len(view)

    def read_into(self, segment: Segment, buffer: memoryview, position: int) -> int:
        """Copy what is at ``position`` on into ``buffer``; gives back how many bytes, fewer at the segment's end."""
        fd = self._files.open_read(segment.path)
        try:
            return self._files.read_into(fd, buffer, position - segment.start)
        finally:
            self._files.close(fd)

    def length_now(self, segment: Segment) -> int:
        """Of the file, which somebody may have cut since it was found."""
        fd = self._files.open_read(segment.path)
        try:
            return self._files.length(fd)
        finally:
            self._files.close(fd)

    def copied(self, segment: Segment, ranges: list[tuple[int, int]]) -> memoryview:
        """Copies of these ranges [low, high) of a segment's file, each behind the one before; less where the file
        ends."""
        copy = memoryview(bytearray(sum(high - low for low, high in ranges)))
        at = 0
        fd = self._files.open_read(segment.path)
        try:
            for low, high in ranges:
                at += self._files.read_into(fd, copy[at : at + high - low], low)
        finally:
            self._files.close(fd)
        return copy[:at]

    def around(self, segment: Segment, position: int, limit: int) -> tuple[memoryview, int, int]:
        """Bytes that hold the record at ``position`` unless it goes beyond ``limit``; where in them it begins, and
        where they end for it. Raises OSError."""
        view = self.mapped(segment)
        low, high = position - segment.start, limit - segment.start
        if view is not None:
            return view, low, high
        high = max(min(high, segment.length), low)
        head = self.copied(segment, [(low, min(low + _BLANK.size, high))])
        size, magic = _BLANK.unpack(head) if len(head) == _BLANK.size else (0, 0)
        if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD_BYTES <= size <= min(
            high - low, MAX_COPY_BYTES
        ):
            return head, 0, len(head)
        record = self.copied(segment, [(low, low + size)])
        return record, 0, len(record)

    @property
    def mapped_segments(self) -> int:
        return len(self._views) - (_MARK in self._views)

    def drop_idle(self) -> None:
        """Unmap the segments that nobody looked at since the last call; who holds a slice of one keeps it."""
        while _MARK in self._views:
            self._unmap(next(iter(self._views)))
        self._views[_MARK] = None

    def find(self, segment: Segment, pattern: bytes, low: int, high: int) -> int:
        """Where ``pattern`` first occurs in [low, high) of the segment's file, or -1."""
        view = self.mapped(segment)
        if view is not None:
            mapping = view.obj
            return mapping.find(pattern, low, high) if isinstance(mapping, mmap) else -1
        while low + len(pattern) <= high:
            end = min(low + _SEARCH_BYTES, high)
            found = bytes(self.copied(segment, [(low, end)])).find(pattern)
            if found >= 0:
                return low + found
            low = end - len(pattern) + 1
        return -1

    def slice(self, position: int, size_bytes: int) -> memoryview | None:
        """Bytes of the log as they are on disk now, or None when no segment holds them all."""
        segment = self.segment_of(position)
        if segment is None or size_bytes <= 0 or position + size_bytes > segment.start + segment.length:
            return None
        low = position - segment.start
        view = self.mapped(segment)
        if view is None:
            copy = self.copied(segment, [(low, low + size_bytes)])
            return copy if len(copy) == size_bytes else None
        return view[low : low + size_bytes]

    def store_timestamp_at(self, position: int) -> int:
        """Of the record there; -1 when there is none."""
        head = self.slice(position, _RECORD_STORE_TIME.size + 12)
        if head is None:
            return -1
        sys_flag, timestamp = _RECORD_STORE_TIME.unpack_from(head)
        if sys_flag & 0x10:
            (timestamp,) = _I64.unpack_from(head, 68)
        return int(timestamp)


def segment_size(lengths: dict[int, int], configured: int, known_end: int) -> int:
    """The length of a full file, by where the files of a log begin: the directory knows better than the settings.

    Most files are whole, whatever became of one. Of a log that is one file nothing tells its length but how far the
    log went (``known_end``).
    """
    counts = Counter(length for length in lengths.values() if length)
    if not counts:
        return configured
    if len(lengths) == 1:
        ((start, length),) = lengths.items()
        if length < configured and start + length < known_end and start % configured == 0:
            return configured
    starts = sorted(lengths)
    step = min((after - start for start, after in itertools.pairwise(starts)), default=0)
    if step in counts and not any(start % step for start in starts):
        return step
    # Files are missing, or some are not of this log: who asked finds out.
    return max(counts, key=lambda size: (counts[size], size))


def missing_parts(segments: list[Segment], lengths: dict[int, int]) -> list[Damage]:
    """What the files themselves tell to be missing between the first and the last of them. ``lengths`` by start."""
    found = []
    for number, segment in enumerate(segments):
        before = segments[number - 1] if number else segment
        if segment.start > before.end:
            length = segment.start - before.end
            text = f"{length} bytes of the log are missing: no segment begins at {before.end}"
            found.append(Damage("log.gap", Outcome.LOST, text, before.end, length))
        length = lengths[segment.start]
        if length > segment.length:
            text = (
                f"{segment.path} has {length} bytes; what lies behind the first {segment.length} is not read"
            )
            found.append(Damage("log.segment-length", Outcome.WRONG, text, segment.start, length))
        elif segment.start + length < segment.end and number < len(segments) - 1:
            missing = segment.end - segment.start - length
            text = f"{segment.path} has {length} bytes instead of {segment.end - segment.start}"
            found.append(Damage("log.segment-length", Outcome.LOST, text, segment.start + length, missing))
    return found


def _segment_start(segment: Segment) -> int:
    return segment.start
