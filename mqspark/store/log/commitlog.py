"""The CommitLog: segments of fixed length that form one byte space of records (CommitLog, MappedFileQueue).

Appending has two steps. ``append`` takes encoded records into ``pending`` and moves ``position``. Then
``write_pending``, or a flush job with the result of ``take_pending``, writes everything into the active
segment with one ``pwrite``. ``make_room`` reserves what an append needs on disk (the segment file, its
blocks) before the append is accepted, so a full disk refuses a message and never breaks one.

Must not know topics or queues.

Facts: docs/rocketmq/messages.md#end-of-a-segment.
"""

from __future__ import annotations

import bisect
import errno
import itertools
from collections import Counter
from collections.abc import Iterable
from mmap import MADV_NORMAL, MADV_RANDOM, mmap
from pathlib import Path

from mqspark.base.config import INT64_MAX
from mqspark.errors import MessageTooLarge, NotNow, StoreCorrupt
from mqspark.record.recordlayout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    SIZE_MAGIC,
    STORE_TIME_HEAD_BYTES,
    store_time_ms,
)
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.diskjobs import Job, ReadAheadJob, joined
from mqspark.store.disk.files import FileLayer, disk_full_as_typed, is_disk_full
from mqspark.store.disk.layout import BEYOND, file_name, file_start, is_beyond
from mqspark.store.disk.logpaths import LogPaths
from mqspark.store.disk.mapping import MapBudget, MapsByUse, try_map
from mqspark.store.log.nextsegment import NextSegmentJob
from mqspark.store.log.zeroahead import ZeroAheadJob

_REWRITE_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 20
MAX_COPY_BYTES = 64 << 20
"""Largest record that is copied when its segment cannot be mapped. A record that claims to be longer counts
as damaged, and no memory is allocated for it."""
_SMALL_SYNC_BYTES = 64 << 10
"""Zeros ahead of the log save much of the time of syncs that make less durable, on average of a step."""
_STEPS_AHEAD = 4
"""The next segment is made so many steps before the end of the active one, when a segment has twice as many."""


def _beyond(path: Path) -> StoreCorrupt:
    return StoreCorrupt(f"{path} reaches position 2^63, {BEYOND}", path=str(path))


class Segment:
    """One file of the log: bytes [start, end) of the log's space."""

    __slots__ = ("end", "length", "path", "start")

    def __init__(self, path: Path, start: int, length: int, end: int) -> None:
        self.path = path
        self.start = start
        self.length = length
        """Length of the file. Shorter than end - start only when another program truncated it."""
        self.end = end


def _advise(view: memoryview, *, reads_ahead: bool) -> None:
    mapping = view.obj
    if isinstance(mapping, mmap):
        mapping.madvise(MADV_NORMAL if reads_ahead else MADV_RANDOM)


class CommitLog:
    """The log. ``position``: where the next record goes. ``written``: end of what is in the files or taken by
    a flush job. ``durable``: end of what is synced."""

    def __init__(
        self,
        directories: Path | LogPaths,
        files: FileLayer,
        *,
        segment_bytes: int,
        allocation_step: int,
        max_mapped: int,
        budget: MapBudget | None = None,
        syncs_often: bool = False,
    ) -> None:
        """``max_mapped``: number of segments; 0 to copy all that is read. ``budget``: of address space.
        ``syncs_often``: whether small syncs are to be expected from the start on."""
        self._directories = LogPaths((directories,)) if isinstance(directories, Path) else directories
        self._files = files
        self._step = max(4096, allocation_step)
        self._ahead = _STEPS_AHEAD * self._step
        """Nearer to its end than that, a segment needs the next one soon."""
        self._max_mapped = max_mapped
        self._budget = budget if budget is not None else MapBudget()
        self._views: MapsByUse[int, memoryview] = MapsByUse()
        """By the segments' starts."""
        self._reads_ahead = True
        self._fd = -1
        self._allocated_end = 0
        self._room_asked_end = 0
        self._next: NextSegmentJob | None = None
        """The next segment, once ``extend_room`` has begun to make it."""
        self._zeros: ZeroAheadJob | None = None
        """What writes zeros behind ``_allocated_end``, in the active segment: there is no room before it ends, or is
        stopped (``_take_zeros``)."""
        self._syncs_often = syncs_often
        self._syncs = self._counted_from = 0
        """Syncs since the log was there."""
        self._unsynced: list[int] = []
        self._new_directories: list[Path] = []
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.pending: list[bytes | memoryview] = []
        self.position = 0
        self.written = 0
        self.durable = 0
        self.room_end = -1
        """Records that end at or before this position need no further preparation; -1 while nothing may be
        appended."""

    # --- load and position (recovery) -----------------------------------------------------------------------

    def load(
        self,
        note: Note = lambda damage: None,
        known_end: int = 0,
        known_segment_bytes: int = 0,
        *,
        begin: int | None = None,
        heals: bool = False,
    ) -> None:
        """Find the segments. ``note`` receives the missing parts. ``known_end``: a position that the log is
        known to have reached. ``known_segment_bytes``: the length of its files, if it is noted; else 0. ``begin``:
        where it may begin, if that is known. ``heals``: a replica gets the first segments from another one, so an
        empty file is made in their place.

        Raises StoreCorrupt when the files do not form one log.
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
        # A crash during the creation of a file leaves an empty file, always the last.
        if starts and lengths[starts[-1]] == 0:
            files.remove(paths[starts.pop()])
        if starts:
            self.segment_bytes = size = segment_size(
                {start: lengths[start] for start in starts},
                known_segment_bytes or self.segment_bytes,
                INT64_MAX if known_segment_bytes else known_end,
            )
            for start in starts:
                if start % size:
                    raise StoreCorrupt(
                        f"{paths[start]} does not belong to a log of {size}-byte segments",
                        path=str(paths[start]),
                        offset=start,
                    )
                if is_beyond(start, size):
                    raise _beyond(paths[start])
        self.segments = [
            Segment(paths[start], start, min(lengths[start], self.segment_bytes), start + self.segment_bytes)
            for start in starts
        ]
        first = missing_begin(self.segments, begin)
        if first is not None:
            note(first)
            if heals and first.offset is not None:
                self._make_empty(first.offset, lengths)
        for damage in missing_parts(self.segments, lengths):
            note(damage)

    def _make_empty(self, start: int, lengths: dict[int, int]) -> None:
        """An empty first segment, so that the queues keep what they say of it."""
        path = self._directories.writable[0] / file_name(start)
        self._files.close(self._files.open(path, create=True))
        self._files.sync_directory(path.parent)
        self.segments.insert(0, Segment(path, start, 0, start + self.segment_bytes))
        lengths[start] = 0

    def start_at(self, position: int) -> None:
        """Append from this position on; everything before it counts as durable. Creates the segment when it
        is missing."""
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
        self._allocated_end = self._counted_from = position
        self._syncs = 0
        # Who syncs often gets the first step made by a job, too, before the first append if it is in time.
        self._room_asked_end = -1 if self._syncs_often else position
        self._set_room()

    def cut(self, position: int) -> int:
        """Zero everything from ``position`` on and remove later segments. Returns the number of bytes up to
        the last nonzero byte of each.

        The tail is zeroed, not truncated: an old record must not reappear, and the file may be mapped.
        """
        cleared = 0
        while self.segments and self.segments[-1].start > position:
            cleared += self._count_data(self.segments[-1], self.segments[-1].start, clear=False)
            self._remove_last()
        if self.segments and position < self.segments[-1].end:
            cleared += self._count_data(self.segments[-1], position, clear=True)
        return cleared

    def _remove_last(self) -> None:
        """Remove the last segment. A power cut must not take the one before it instead: the log would have a gap."""
        segment = self.segments.pop()
        self._unmap(segment.start)
        self._files.remove(segment.path)
        self._files.sync_directory(segment.path.parent)

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
        """Write the bytes of [start, end) over themselves, so that the next sync has to write them to the
        disk. Blocking. Returns the number of bytes."""
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

    def mend(self, position: int, data: bytes | memoryview) -> None:
        """Write over bytes of one segment that were synced, and sync them. A file that is missing is made, and one
        that another program has cut gets its length back. Blocking. Raises DiskFull, OSError."""
        segment, files = self.segment_of(position), self._files
        with disk_full_as_typed(f"healing the CommitLog at {position}"):
            if segment is None:
                segment, fd, _ = self._create_segment(position - position % self.segment_bytes)
                bisect.insort(self.segments, segment, key=_segment_start)
                files.sync_directory(segment.path.parent)
            else:
                fd = files.open(segment.path)
            try:
                if segment.length < self.segment_bytes:
                    files.set_length(fd, self.segment_bytes)
                    segment.length = self.segment_bytes
                    self._unmap(segment.start)
                files.write(fd, data, position - segment.start)
                files.sync(fd)
            finally:
                files.close(fd)

    def sync_from(self, position: int) -> None:
        """Make every segment from ``position`` on durable, at the end of recovery. Blocking."""
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
        """Drop the first segments, never the active one. Returns the paths of their files, which still exist.

        A slice of a dropped segment stays readable for its holder.
        """
        gone, self.segments[:count] = self.segments[:count], []
        for segment in gone:
            self._set_aside(segment.start)
        return [segment.path for segment in gone]

    # --- append ---------------------------------------------------------------------------------------------

    def make_room(self, size_bytes: int) -> int:
        """Reserve blocks for one record or one batch. Rolls to the next segment when it does not fit.

        Returns where the record starts. Raises DiskFull or MessageTooLarge with nothing changed. Raises
        OSError when writing the end of the old segment failed; the caller must poison the store then.
        """
        if size_bytes > self.segment_bytes - BLANK_BYTES:
            raise MessageTooLarge("record", size_bytes, self.segment_bytes - BLANK_BYTES)
        if self.position + size_bytes + BLANK_BYTES > self.segments[-1].end:
            self._roll()
        active = self.segments[-1]
        need = self.position + size_bytes + BLANK_BYTES
        if need > self._allocated_end:
            self._take_zeros()
        if need > self._allocated_end:
            self._allocated_end = self._allocate(self._fd, active, self._allocated_end, need)
        self._set_room()
        return self.position

    def append_raw(self, records: bytes | memoryview) -> None:
        """Append complete records of another broker's log at ``position``, as they are. They must end in the
        active segment, with room for its blank record. Raises DiskFull with nothing changed.

        ``room_end`` stays as it is: a copy of a log takes no other record.
        """
        end = self.position + len(records)
        if end + BLANK_BYTES > self._allocated_end:
            self._take_zeros()
        if end + BLANK_BYTES > self._allocated_end:
            active = self.segments[-1]
            self._allocated_end = self._allocate(self._fd, active, self._allocated_end, end + BLANK_BYTES)
        self.append((records,), len(records))

    def end_segment(self) -> None:
        """Write the blank record and continue in the next segment. Raises as ``make_room``."""
        self._roll()

    def restart_at(self, position: int) -> None:
        """Let an empty log begin at ``position``, the start of a segment."""
        self._drop_next()
        self._take_zeros()
        self._files.close(self._fd)
        self._fd = -1
        while self.segments:
            self._remove_last()
        self.start_at(position)

    def cut_back(self, position: int) -> None:
        """Zero everything from ``position`` on and append from there. Everything must be written and synced."""
        self._take_zeros()
        for fd in (*self._unsynced, self._fd):
            self._files.close(fd)
        self._unsynced, self._fd = [], -1
        self._drop_next()
        room_end = self.room_end
        self.cut(position)
        self.sync_from(position)
        self.start_at(position)
        self.room_end = min(room_end, self.room_end)

    def append(self, parts: Iterable[bytes | memoryview], size_bytes: int) -> int:
        """Append a record, or several of one put, for which there is room. Returns their end."""
        self.pending += parts
        end = self.position + size_bytes
        self.position = end
        return end

    def hold(self) -> None:
        """Let the next append ask for room, wherever it ends."""
        self.room_end = -1

    def drop_pending(self) -> None:
        """Forget what is not written, and take no more, because the store is read-only from now on."""
        self.pending.clear()
        self.hold()

    def write_pending(self) -> None:
        """Write everything appended since the last write, with one pwrite. After an OSError any part may be
        on disk."""
        if self.pending:
            self._files.write(self._fd, joined(self.pending), self.written - self.segments[-1].start)
            self.pending = []
            self.written = self.position

    def take_pending(self) -> tuple[int, list[bytes | memoryview]]:
        """The file offset at which the caller has to write, and everything appended since the last write."""
        offset, buffers = self.written - self.segments[-1].start, self.pending
        self.pending = []
        self.written = self.position
        return offset, buffers

    def _roll(self) -> None:
        old = self.segments[-1]
        self._take_zeros()
        segment, fd, allocated_end = self._take_next(old.end) or self._create_segment(old.end)
        if self.position < old.end:
            self.pending.append(SIZE_MAGIC.pack(old.end - self.position, BLANK_MAGIC))
        try:
            self.write_pending()
        except OSError:
            self._files.close(fd)
            if self.position < old.end:
                self.pending.pop()  # the next attempt adds it again
            raise
        self.segments.append(segment)
        self._unsynced.append(self._fd)
        self._fd = fd
        self.position = self.written = old.end
        self._allocated_end = allocated_end

    def _take_next(self, start: int) -> tuple[Segment, int, int] | None:
        """The segment that was made ahead, as from ``_create_segment``."""
        job, self._next = self._next, None
        fd = None if job is None else job.take()
        if job is None or fd is None:
            return None
        self._new_directories.append(job.path.parent)
        segment = Segment(job.path, start, self.segment_bytes, start + self.segment_bytes)
        return segment, fd, start + job.first_bytes

    def _drop_next(self) -> None:
        job, self._next = self._next, None
        if job is not None:
            job.drop()

    def _create_segment(self, start: int) -> tuple[Segment, int, int]:
        """The new segment, its open descriptor, and the end of its allocated range. DiskFull leaves no file
        behind."""
        if is_beyond(start, self.segment_bytes):
            raise OSError(errno.EOVERFLOW, f"another segment would reach position 2^63, {BEYOND}")
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
        """Allocate whole steps when the disk has room, otherwise only what is needed."""
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
        """Whether less than a step is reserved ahead of the position, or the next segment is needed soon, and no
        attempt was made yet."""
        position = self.position
        if self._allocated_end - position >= self._step and self.segments[-1].end - position >= self._ahead:
            return False  # as for nearly every turn that asks
        return self._is_step_due or self._is_next_due

    @property
    def _is_step_due(self) -> bool:
        end = self._allocated_end
        is_near, is_new = end - self.position < self._step, self._room_asked_end != end
        return is_near and is_new and end < self.segments[-1].end

    @property
    def _is_next_due(self) -> bool:
        ahead, end = self._ahead, self.segments[-1].end
        is_near, is_worth_it = end - self.position < ahead, 2 * ahead <= self.segment_bytes
        return is_near and is_worth_it and self._next is None and not is_beyond(end, self.segment_bytes)

    def extend_room(self) -> list[Job]:
        """Reserve the next step of the active segment, and have the next one made. Returns jobs for another thread."""
        jobs: list[Job | None] = [self._extend() if self._is_step_due else None]
        start = self.segments[-1].end
        if self._is_next_due:
            path = self._directories.for_segment(start // self.segment_bytes) / file_name(start)
            self._next = NextSegmentJob(
                self._files, path, start, self.segment_bytes, self._step, with_zeros=self._syncs_often
            )
            jobs.append(self._next)
        return [job for job in jobs if job is not None]

    def _extend(self) -> Job | None:
        """Reserve the next step.

        Only the appending thread reserves. On a file system without fallocate the C library writes zeros into
        blocks that it found empty, which would overwrite a record that was written in between.
        """
        active, start = self.segments[-1], self._allocated_end
        end = min(active.end, start - start % self._step + self._step)
        self._room_asked_end = start
        try:
            self._files.allocate(self._fd, start - active.start, end - start)
        except OSError:
            return None  # the append that needs this room asks again and gets the error
        appended = self.position - self._counted_from
        if appended >= self._step:
            self._syncs_often = self._syncs * _SMALL_SYNC_BYTES >= appended
            self._syncs, self._counted_from = 0, self.position
        if self._syncs_often:
            self._zeros = ZeroAheadJob(self._files, active.path, active.start, start, end, self._zeros_end)
            return self._zeros
        self._give_room(end)
        return ReadAheadJob(self._files, active.path, start - active.start, end - start)

    def _zeros_end(self, job: ZeroAheadJob) -> None:
        if job is self._zeros:
            self._take_zeros()

    def _take_zeros(self) -> None:
        """Take the range in which zeros are written, whether all of them are or not."""
        job, self._zeros = self._zeros, None
        if job is not None:
            job.take()
            self._give_room(job.high)

    def _give_room(self, end: int) -> None:
        self._allocated_end = end
        if self.room_end >= 0:
            self._set_room()

    def _set_room(self) -> None:
        self.room_end = min(self._allocated_end, self.segments[-1].end) - BLANK_BYTES

    # --- flush ----------------------------------------------------------------------------------------------

    def take_unsynced(self) -> tuple[list[int], int, list[Path]]:
        """What a flush job has to sync: the descriptors of finished segments, the active descriptor, and the
        directories with new names."""
        self._syncs += 1
        unsynced, self._unsynced = self._unsynced, []
        directories, self._new_directories = self._new_directories, []
        return unsynced, self._fd, directories

    def synced(self, left_descriptors: list[int], durable: int) -> None:
        for fd in left_descriptors:
            self._files.close(fd)
        self.durable = durable

    def close(self) -> None:
        self._take_zeros()
        while self._unmap_oldest():
            continue
        for fd in (*self._unsynced, self._fd):
            if fd >= 0:
                self._files.close(fd)
        self._unsynced = []
        self._fd = -1
        self._drop_next()
        self.hold()

    # --- read -----------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.segments[0].start if self.segments else 0

    @property
    def newest_segment_start(self) -> int:
        return self.segments[-1].start

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that were put and are not written yet."""
        return self.position - self.written

    def segment_of(self, position: int) -> Segment | None:
        index = bisect.bisect_right(self.segments, position, key=_segment_start) - 1
        if index >= 0 and position < self.segments[index].end:
            return self.segments[index]
        return None

    def mapped(self, segment: Segment) -> memoryview | None:
        """The whole file, read-only, or None when it cannot be mapped. ``copied``, ``around`` and ``find``
        still read it then.

        Only [start, written) may be read (see files.py).
        """
        start, used = segment.start, self._views.used
        view = used.get(start)
        if view is not None:
            used.move_to_end(start)
            return view
        view = self._views.used_again(start)
        if view is not None:
            return view
        if not segment.length:
            return memoryview(b"")  # another program emptied the file, and an empty file cannot be mapped
        while len(self._views) >= max(self._max_mapped, 1):
            # Not closed: slices may still be in a send buffer. The last of them unmaps the file.
            self._unmap_oldest()
        if self._max_mapped:
            mapping = try_map(
                self._files,
                segment.path,
                segment.length,
                self._budget,
                self._unmap_oldest,
                scattered=not self._reads_ahead,
            )
            view = memoryview(mapping) if mapping is not None else None
        if view is not None:
            used[start] = view
        return view

    def adopt(self, segment: Segment, view: memoryview) -> None:
        """Use a map of the whole file that another thread has made."""
        self._views.used[segment.start] = view
        self._budget.used_bytes += len(view)
        if not self._reads_ahead:
            _advise(view, reads_ahead=False)

    def set_read_ahead(self, enabled: bool) -> None:
        """Whether the kernel reads ahead of those who read mapped segments."""
        if enabled != self._reads_ahead:
            self._reads_ahead = enabled
            for view in (*self._views.idle.values(), *self._views.used.values()):
                _advise(view, reads_ahead=enabled)

    def view(self, segment: Segment) -> memoryview:
        """As ``mapped``, but raises OSError when the segment cannot be mapped. For tools."""
        view = self.mapped(segment)
        if view is None:
            raise OSError(errno.ENOMEM, "this part of the log cannot be mapped", str(segment.path))
        return view

    def _unmap_oldest(self) -> bool:
        """Returns False when nothing is mapped."""
        if not self._views:
            return False
        _, view = self._views.pop_oldest()
        self._budget.used_bytes -= len(view)
        return True

    def _unmap(self, start: int) -> memoryview | None:
        view = self._views.pop(start)
        if view is not None:
            self._budget.used_bytes -= len(view)
        return view

    def read_into(self, segment: Segment, buffer: memoryview, position: int) -> int:
        """Copy bytes from ``position`` on into ``buffer``. Returns their number, which is less at the end of
        the segment."""
        fd = self._files.open_read(segment.path)
        try:
            return self._files.read_into(fd, buffer, position - segment.start)
        finally:
            self._files.close(fd)

    def length_now(self, segment: Segment) -> int:
        """Current length of the file. Another program may have truncated it."""
        fd = self._files.open_read(segment.path)
        try:
            return self._files.length(fd)
        finally:
            self._files.close(fd)

    def copied(self, segment: Segment, ranges: list[tuple[int, int]]) -> memoryview:
        """Copies of the ranges [low, high) of a segment's file, one after the other. Shorter at the end of
        the file."""
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
        """A buffer with the record at ``position``, the record's start in it, and the end of what may be
        read. The record is incomplete when it goes beyond ``limit`` or the end of the file. Raises OSError."""
        view = self.mapped(segment)
        low = position - segment.start
        high = max(min(limit - segment.start, segment.length), low)
        if view is not None:
            return view, low, high
        head = self.copied(segment, [(low, min(low + SIZE_MAGIC.size, high))])
        size, magic = SIZE_MAGIC.unpack(head) if len(head) == SIZE_MAGIC.size else (0, 0)
        if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD_BYTES <= size <= min(
            high - low, MAX_COPY_BYTES
        ):
            return head, 0, len(head)
        record = self.copied(segment, [(low, low + size)])
        return record, 0, len(record)

    @property
    def mapped_segments(self) -> int:
        return len(self._views)

    def drop_idle(self) -> None:
        """Unmap the segments that were not used since the last call. A slice of one stays readable for its
        holder."""
        while self._views.idle:
            self._set_aside(next(iter(self._views.idle)))
        self._views.age()

    def _set_aside(self, start: int) -> None:
        view = self._unmap(start)
        if view is not None:
            self._budget.unmapped.append(view)

    def find(self, segment: Segment, pattern: bytes, low: int, high: int) -> int:
        """Position of the first ``pattern`` in [low, high) of the segment's file, or -1."""
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
        """Bytes of the log as they are on disk now, or None when no single segment holds all of them."""
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
        """Store time of the record at this position; -1 when there is no record."""
        head = self.slice(position, STORE_TIME_HEAD_BYTES)
        return -1 if head is None else store_time_ms(head)


def segment_size(lengths: dict[int, int], configured: int, known_end: int) -> int:
    """The segment size of a log, from the starts and lengths of its files. It overrides the configured size.

    Most files of a damaged log are still complete. The size of a single file is ambiguous; it counts as
    truncated when the log is known to have been longer (``known_end``).
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
    # Files are missing, or some do not belong to this log. The caller detects that.
    return max(counts, key=lambda size: (counts[size], size))


def missing_begin(segments: list[Segment], begin: int | None) -> Damage | None:
    """What a log lacks that may begin at ``begin``, if that is known."""
    if begin is None or not segments or begin >= segments[0].start:
        return None
    size = segments[0].end - segments[0].start
    begin -= begin % size
    length = segments[0].start - begin
    text = (
        f"the first {length} bytes of the log are missing: it begins at {segments[0].start}, and retention has deleted"
        f" what was before {begin} (if an operator has removed them, remove mqspark.begin while no broker runs)"
    )
    return Damage("log.begin", Outcome.LOST, text, begin, length)


def missing_parts(segments: list[Segment], lengths: dict[int, int]) -> list[Damage]:
    """The missing parts between the first and the last segment, from the file names and ``lengths`` by
    start."""
    found = []
    for number, segment in enumerate(segments):
        before = segments[number - 1] if number else segment
        if segment.start > before.end:
            length = segment.start - before.end
            text = f"{length} bytes of the log are missing: no segment begins at {before.end}"
            found.append(Damage("log.gap", Outcome.LOST, text, before.end, length))
        length = lengths[segment.start]
        if length > segment.length:
            text = f"{segment.path} has {length} bytes; those after the first {segment.length} are ignored"
            found.append(Damage("log.segment-length", Outcome.WRONG, text, segment.start, length))
        elif segment.start + length < segment.end and number < len(segments) - 1:
            missing = segment.end - segment.start - length
            text = f"{segment.path} has {length} bytes instead of {segment.end - segment.start}"
            found.append(Damage("log.segment-length", Outcome.LOST, text, segment.start + length, missing))
    return found


def _segment_start(segment: Segment) -> int:
    return segment.start
