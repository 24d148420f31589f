"""Builds ConsumeQueues and index files from the log alone, in independent pieces.

Three steps, each of which can run in as many processes as there are segments, queues and index files:

1. ``scan_segment`` reads one segment as recovery does (damage is skipped) and writes files of queue entries,
   of batch queue entries and of index keys, and finally a manifest of which rows belong to which queue.
2. ``build_queue`` puts the entries of one queue, segment by segment, into files that the store's own code
   writes.
3. ``build_index_file`` does the same with the keys of one index file.

The result is byte-identical to that of a broker that dispatched the same log, because the same code writes
it. Memory is bounded by a piece of a segment (65,536 records), whatever the sizes. Nothing here touches the
store that is rebuilt: the output goes to a separate directory, and ``mqspark_jobs.rebuild_index`` swaps it
in.
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mqspark.errors import StoreCorrupt
from mqspark.message import BORN_HOST_V6
from mqspark.record.record import CheckedRecord
from mqspark.record.recordlayout import AT, MAGIC_V1, MAGIC_V2, V6_EXTRA_BYTES, record_size
from mqspark.store.disk.cuts import GuardedMap, guarded_map
from mqspark.store.disk.files import FileLayer, OsFiles
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.index.indexfile import IndexFile, IndexHeader, IndexMaps, Shape
from mqspark.store.index.keys import Ints, KeyColumns, run_keys
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.scan import Run, chain
from mqspark.store.queue.batchqueue import BATCH_DTYPE, BATCH_ENTRY, BatchEntry, BatchTable
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, ENTRY_DTYPE, FILLER_SIZE
from mqspark.store.queue.delaylevels import DelayLevels
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery import columns
from mqspark.store.recovery.recovery import QueueChunk, Recovery

_ENTRY_FIELDS = ("position", "size", "tags_code")
_KEYS_AT_ONCE = 1 << 18
_RECORDS_AT_ONCE = 1 << 16
_MAX_MAPPED = 64
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux draws it at each start."""


@dataclass(slots=True, frozen=True)
class QueuePart:
    """Some entries of one queue, in log order."""

    topic: str
    queue_id: int
    at: int
    """Their start in the segment's file of entries, in bytes."""
    count: int


@dataclass(slots=True)
class ScanManifest:
    """The content of one segment. Written last, so it also marks the files beside it as complete."""

    identity: str
    """Identifies the segment and the settings of the scan. A different value requires a new scan."""
    start: int
    end: int
    """Physical offset of the end of the last valid record; the segment's end when it is full."""
    records: int = 0
    entries: int = 0
    keys: int = 0
    last_store_timestamp_ms: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)
    parts: list[QueuePart] = field(default_factory=list)
    batch_parts: list[QueuePart] = field(default_factory=list)
    """The same in the file of batches: BatchConsumeQueue entries."""
    batch_topics: list[str] = field(default_factory=list)
    """Topics newly found to have batches. All segments have to be scanned again with this knowledge."""

    @classmethod
    def load(cls, directory: Path) -> ScanManifest | None:
        """None when the segment was not scanned completely, or a power cut has left something else."""
        try:
            document = json.loads((directory / "manifest.json").read_bytes())
            for name in ("parts", "batch_parts"):
                document[name] = [QueuePart(**part) for part in document[name]]
            document["damaged"] = [(low, high) for low, high in document["damaged"]]
            return cls(**document)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def save(self, directory: Path) -> None:
        target = directory / "manifest.json"
        temporary = target.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)))
        os.replace(temporary, target)


# --- one segment to positions ---------------------------------------------------------------------------------


class SegmentRecords:
    """The records of one segment by position. Damage is skipped as in recovery; the CRCs of bodies are not
    checked.

    ``view``: the mapped file. ``damaged``: ranges found so far that hold no valid record but are followed by
    one.
    """

    def __init__(
        self,
        path: Path,
        start: int,
        segment_bytes: int,
        *,
        guarded: bool = False,
        files: FileLayer | None = None,
    ) -> None:
        """``guarded``: another process may truncate the file meanwhile; ``check`` then tells whether the data
        read is valid."""
        files = files or OsFiles()
        fd = files.open_read(path)
        close = weakref.finalize(self, files.close, fd)
        self._segment = Segment(path, start, files.length(fd), start + segment_bytes)
        self._map: GuardedMap | None = None
        if not guarded:
            close()
        else:
            self._map = guarded_map(fd, self._segment.length)
            if self._map is not None:
                self._map.keep()
        view = self._map.view if self._map is not None else None
        self._scan = _RebuildScan(
            self._segment, DelayLevels(""), set(), verify_crc=False, view=view, files=files
        )
        self.view = self._scan.view
        self.damaged: list[tuple[int, int]] = []

    def check(self) -> None:
        """Raises StoreCorrupt when the file was truncated since it was mapped."""
        if self._map is not None and not self._map.is_whole():
            path = self._segment.path
            raise StoreCorrupt(f"{path} was truncated while it was read", path=str(path))

    def between(self, low: int, high: int) -> Iterator[Ints]:
        """Positions within the file, ascending, in runs of at most 65,536 records. ``low``: the start of a
        record."""
        segment, scan = self._segment, self._scan
        position = max(low, segment.start)
        data_end = min(scan.data_end(position), max(high, position))
        while position < data_end:
            at = scan.in_place(self._starts(position - segment.start, data_end - segment.start))
            if len(at):
                yield at
                last = int(at[-1])
                position = segment.start + last + record_size(self.view, last)
                continue
            if scan.is_blank(position, data_end):
                return
            following = scan.next_valid(position, data_end)
            if following is None:
                return
            self.damaged.append((position, following))
            position = following

    def _starts(self, low: int, high: int) -> Ints:
        """Starts of consecutive records from ``low`` on, in a piece large enough for columns."""
        parts: list[Ints] = []
        found = 0
        while found < _RECORDS_AT_ONCE:
            at, low = chain(self.view, low, high)
            if not len(at):
                break
            parts.append(at)
            found += len(at)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


# --- one segment to rows --------------------------------------------------------------------------------------


class _RebuildScan(Recovery):
    """Recovery's reading of the log, with the entries written to files instead of queues."""

    def __init__(
        self,
        segment: Segment,
        levels: DelayLevels,
        batch_topics: set[str],
        *,
        verify_crc: bool,
        multi_dispatch: bool = False,
        with_times: bool = False,
        deleted: Mapping[str, int] | None = None,
        view: memoryview | None = None,
        files: FileLayer | None = None,
    ) -> None:
        """``view``: a map of the segment, if there is one already."""
        files = files or OsFiles()
        log = CommitLog(
            segment.path.parent,
            files,
            segment_bytes=segment.end - segment.start,
            allocation_step=0,
            max_mapped=1,
        )
        log.segments = [segment]
        if view is not None:
            log.adopt(segment, view)
        table = QueueTable(Path(), files, file_bytes=ENTRY_BYTES, max_mapped=1)
        table.batch_topics = batch_topics
        super().__init__(
            log,
            table,
            Checkpoint(),
            levels,
            clean=True,
            verify_crc=verify_crc,
            multi_dispatch=multi_dispatch,
            batch_table=BatchTable(Path(), files, file_bytes=BATCH_ENTRY.size, max_mapped=1),
            deleted=deleted,
        )
        self._segment = segment
        self.view = log.view(segment)
        self.parts: list[QueuePart] = []
        self.batch_parts: list[QueuePart] = []
        self.batch_topics: set[str] = set()
        self.entries = 0
        self.keys = 0
        self._with_times = with_times
        self._keys: list[KeyColumns] = []
        self._waiting_keys = 0
        self._out: dict[str, BinaryIO] = {}

    def data_end(self, position: int) -> int:
        return self._data_end(self._segment, position)

    def is_blank(self, position: int, data_end: int) -> bool:
        return self._is_blank(self._segment, position, data_end)

    def next_valid(self, position: int, data_end: int) -> int | None:
        return self._next_valid(self._segment, position, data_end)

    def in_place(self, starts: Ints) -> Ints:
        """The starts before the first that is not a record or has another position."""
        if not len(starts):
            return starts
        longs = np.ndarray((len(self.view) - 7,), "<i8", buffer=self.view, strides=(1,))
        ints = np.ndarray((len(self.view) - 3,), "<i4", buffer=self.view, strides=(1,))
        magics = ints[starts + AT["magic"]].byteswap()
        good = (magics == MAGIC_V1) | (magics == MAGIC_V2)
        good &= longs[starts + AT["position"]].byteswap() == starts + self._segment.start
        wrong = np.flatnonzero(~good)
        return starts[: wrong[0]] if len(wrong) else starts

    def write_to(self, out: dict[str, BinaryIO]) -> int:
        """Read the whole segment into the files ``entries``, ``keys`` and ``batches``. Returns the end of the
        last valid record, or of the segment."""
        self._out = out
        end = self._scan(self._segment.start)
        self._settle()
        self._write_keys()
        return end

    def _convert_to_batches(self, topic: str) -> None:
        if topic not in self._table.batch_topics:
            self._table.batch_topics.add(topic)
            self.batch_topics.add(topic)

    def _take(self, record: CheckedRecord, position: int) -> None:
        run = self._run_of(record, position)
        if run is not None:
            self._add_keys(run_keys(run))
        super()._take(record, position)

    def _take_run(self, run: Run) -> None:
        self._add_keys(run_keys(run))
        super()._take_run(run)

    def _add_keys(self, keys: KeyColumns) -> None:
        self._keys.append(keys)
        self._waiting_keys += len(keys.hashes)
        if self._waiting_keys >= _RECORDS_AT_ONCE:
            self._write_keys()

    def _write_keys(self) -> None:
        """Write a frame of columns: hash, position, store time."""
        if self._waiting_keys:
            self._out["keys"].write(
                columns.pack([np.concatenate(each) for each in zip(*self._keys, strict=True)])
            )
        self.keys += self._waiting_keys
        self._keys, self._waiting_keys = [], 0

    def _settle(self) -> None:
        """Write a frame of columns for each queue: offset, position, size, tags code and, where wanted, store
        time."""
        chunk, self._chunk, self._chunk_records = self._chunk, {}, 0
        for (topic, queue_id), (offsets, packed) in chunk.items():
            out = self._out["entries"]
            entries = np.frombuffer(packed, ENTRY_DTYPE)
            rows = [np.frombuffer(offsets, np.int64)]
            rows += [entries[name].astype(np.int64) for name in _ENTRY_FIELDS]
            if self._with_times:
                rows.append(self._store_times(entries))
            self.parts.append(QueuePart(topic, queue_id, out.tell(), len(entries)))
            self.entries += len(entries)
            out.write(columns.pack(rows))
        batches, self._batch_chunk = self._batch_chunk, {}
        for (topic, queue_id), found in batches.items():
            out = self._out["batches"]
            self.batch_parts.append(QueuePart(topic, queue_id, out.tell(), len(found)))
            out.write(b"".join(entry.pack() for entry in found))

    def _store_times(self, entries: npt.NDArray[Any]) -> Ints:
        """In milliseconds, 0 for fillers."""
        is_record = entries["size"] != FILLER_SIZE
        at = np.where(is_record, entries["position"].astype(np.int64) - self._segment.start, 0)
        flags = np.ndarray((len(self.view) - 3,), ">i4", buffer=self.view, strides=(1,))[at + AT["sys_flag"]]
        times = np.ndarray((len(self.view) - 7,), ">i8", buffer=self.view, strides=(1,))
        at = at + AT["store_ms"] + (flags & BORN_HOST_V6 != 0) * V6_EXTRA_BYTES
        return np.where(is_record, times[at], 0).astype(np.int64)


def scan_segment(
    path: Path,
    start: int,
    segment_bytes: int,
    directory: Path,
    *,
    identity: str,
    delay_levels: str,
    batch_topics: set[str],
    verify_crc: bool,
    is_last: bool,
    multi_dispatch: bool = False,
    with_times: bool = False,
    deleted: Mapping[str, int] | None = None,
) -> ScanManifest:
    """Scan the segment at ``path`` (``start``: log position of its first byte) into ``directory``.

    ``multi_dispatch``: records also enter the LMQ queues that they name. ``with_times``: also write store
    times, for ConsumeQueueExt. ``deleted``: topics and positions as in ``Deletions.positions``.

    A directory with a manifest of the same ``identity`` is already complete. It is not synced, so one from before the
    host was started does not count. Raises OSError.
    """
    identity = f"{identity}:{BOOT_ID.read_text().strip()}"
    done = ScanManifest.load(directory) if directory.is_dir() else None
    if done is not None and done.identity == identity:
        return done
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").unlink(missing_ok=True)
    segment = Segment(path, start, path.stat().st_size, start + segment_bytes)
    scan = _RebuildScan(
        segment,
        DelayLevels(delay_levels),
        set(batch_topics),
        verify_crc=verify_crc,
        multi_dispatch=multi_dispatch,
        with_times=with_times,
        deleted=deleted,
    )
    with ExitStack() as stack:
        names = ("entries", "keys", "batches")
        end = scan.write_to({name: stack.enter_context((directory / name).open("wb")) for name in names})
    report = scan.report
    damaged = list(report.damaged)
    if not is_last and end < segment.end:
        # The log continues after it, so it is not a torn tail.
        damaged.append((end, segment.end))
        end = segment.end
    manifest = ScanManifest(
        identity=identity,
        start=start,
        end=end,
        records=report.records,
        entries=scan.entries,
        keys=scan.keys,
        last_store_timestamp_ms=report.last_store_timestamp_ms,
        damaged=damaged,
        parts=scan.parts,
        batch_parts=scan.batch_parts,
        batch_topics=sorted(scan.batch_topics),
    )
    manifest.save(directory)
    return manifest


# --- rows to queues -------------------------------------------------------------------------------------------


class _QueueBuilder(Recovery):
    """Recovery's rules for a queue: ascending offsets, fillers for lost records."""

    def __init__(self, table: QueueTable, batch_table: BatchTable | None = None) -> None:
        log = CommitLog(Path(), table.files, segment_bytes=1, allocation_step=0, max_mapped=1)
        super().__init__(
            log, table, Checkpoint(), DelayLevels(""), clean=True, verify_crc=False, batch_table=batch_table
        )
        self._times: dict[int, int] = {}

    def add(self, part: QueuePart, scanned: Path) -> None:
        with (scanned / "entries").open("rb") as file:
            file.seek(part.at)
            offsets, *fields = columns.read(file)
        entries = np.empty(part.count, ENTRY_DTYPE)
        for name, column in zip(_ENTRY_FIELDS, fields, strict=False):
            entries[name] = column
        if self._table.ext_enabled:
            positions, *_, times = fields
            undecided = [ENTRY.unpack(entry)[0] for _, entry in self._undecided.values()]
            self._times = {position: self._times[position] for position in undecided}
            self._times.update(zip(positions.tolist(), times.tolist(), strict=True))
        chunk = QueueChunk(array("q", offsets.tobytes()), bytearray(entries.tobytes()))
        self._chunk[(part.topic, part.queue_id)] = chunk
        self._settle()

    def add_batches(self, part: QueuePart, scanned: Path) -> None:
        rows = np.fromfile(scanned / "batches", BATCH_DTYPE, count=part.count, offset=part.at)
        self._batch_chunk[(part.topic, part.queue_id)] = [BatchEntry(*row) for row in rows.tolist()]
        self._settle()

    def finish(self) -> None:
        """Finish after the last part."""
        self._settle_all()
        for queue in self._all_queues():
            queue.clear_tail()  # of an earlier topic of the same name
            queue.mark_last_fillers()

    def _store_time_at(self, position: int) -> int:
        return self._times[position]


@dataclass(slots=True, frozen=True)
class QueueShape:
    """Where and how queues are built."""

    directory: Path
    file_bytes: int
    is_batch: bool = False
    """Whether they are BatchConsumeQueues."""
    ext_directory: Path | None = None
    """The directory of ConsumeQueueExt, or None without it."""
    ext_file_bytes: int = 0


def build_queue(parts: Sequence[tuple[Path, QueuePart]], shape: QueueShape) -> tuple[int, int, int]:
    """Build and sync the files of one queue. ``parts``: each with its scan directory, in log order.

    Returns the queue's max offset, the number of its entries, and how many of them are fillers for lost
    records. Raises OSError, DiskFull.
    """
    files = OsFiles.like(shape.directory)
    table: QueueTable
    if shape.is_batch:
        table = batches = BatchTable(
            shape.directory, files, file_bytes=shape.file_bytes, max_mapped=_MAX_MAPPED
        )
        nothing = QueueTable(Path(), files, file_bytes=ENTRY_BYTES, max_mapped=1)
        nothing.batch_topics = {part.topic for _, part in parts}
        builder = _QueueBuilder(nothing, batches)
        for scanned, part in parts:
            builder.add_batches(part, scanned)
        builder.finish()
        max_offset = max((queue.max_offset for queue in batches.batch_queues.values()), default=0)
    else:
        table = QueueTable(
            shape.directory,
            files,
            file_bytes=shape.file_bytes,
            max_mapped=_MAX_MAPPED,
            ext_directory=shape.ext_directory,
            ext_file_bytes=shape.ext_file_bytes,
            ext_enabled=shape.ext_directory is not None,
        )
        builder = _QueueBuilder(table)
        for scanned, part in parts:
            builder.add(part, scanned)
        builder.finish()
        max_offset = max((queue.max_offset for queue in table.queues.values()), default=0)
    for path in sorted(table.dirty_files):
        fd = files.open(path)
        try:
            files.sync(fd)
        finally:
            files.close(fd)
    for name in sorted(table.new_directories):
        files.sync_directory(name)
    return max_offset, builder.report.entries, builder.report.lost_entries


# --- keys to index files --------------------------------------------------------------------------------------


def fetch_keys(sources: Sequence[tuple[Path, int]], first: int, count: int) -> Iterator[KeyColumns]:
    """Keys [first, first + count) of all segments together. ``sources``: scan directories with their counts."""
    for directory, available in sources:
        if count <= 0:
            return
        if first >= available:
            first -= available
            continue
        taken = min(count, available - first)
        count -= taken
        with (directory / "keys").open("rb") as file:
            first = columns.skip(file, first)
            while taken > 0:
                parts: list[list[Ints]] = []
                found = 0
                while found < min(taken, _KEYS_AT_ONCE):
                    frame = columns.read(file)
                    parts.append([column[first:] for column in frame])
                    first = 0
                    found += len(parts[-1][0])
                keys = KeyColumns(*(np.concatenate(each)[:taken] for each in zip(*parts, strict=True)))
                taken -= len(keys.hashes)
                yield keys


def build_index_file(
    sources: Sequence[tuple[Path, int]], number: int, path: Path, *, shape: Shape
) -> IndexHeader:
    """Build and sync index file ``number`` (from 0 on) of the whole log at ``path``. Returns its header.

    An existing file is replaced. Raises OSError, DiskFull.
    """
    files = OsFiles.like(path.parent)
    capacity = shape.entries - 1
    header = IndexHeader()
    if number:
        # A new file has the end of the previous one until its first key
        # (IndexService.getAndCreateLastIndexFile).
        (last,) = fetch_keys(sources, number * capacity - 1, 1)
        time_ms, position = int(last.timestamps_ms[0]), int(last.positions[0])
        header = IndexHeader(time_ms, time_ms, position, position)
    path.unlink(missing_ok=True)
    files.make_directory(path.parent)
    file = IndexFile(path, shape, header, files, IndexMaps(files))
    file.create()
    for keys in fetch_keys(sources, number * capacity, capacity):
        file.put(keys)
    fd = files.open(path)
    try:
        files.sync(fd)
    finally:
        files.close(fd)
    return file.header
