"""A store directory for tools: opened without its broker, read and never changed.

``OfflineStore`` finds segments, queues and index files. ``LogScan`` reads the log record by record with
recovery's rules, so it calls damaged what a broker would skip. Both stream: pages are released after reading,
whatever the size of the store. The directory of a running broker can be read as well; its tail then changes.

Must not write. Tools that change a directory take its lock first.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from mqspark.errors import StoreCorrupt
from mqspark.record.record import CheckedRecord
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.directory import refuse_unfinished
from mqspark.store.disk.files import OsFiles, StrPath, is_locked_directory, lock_name, open_regular
from mqspark.store.disk.layout import StorePaths, file_start, is_beyond
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.index.indexfile import HEADER_BYTES, IndexFile, IndexHeader, IndexMaps, Shape, find_shape
from mqspark.store.log.commitlog import CommitLog, Segment, segment_size
from mqspark.store.log.scan import Run
from mqspark.store.queue.batchqueue import BatchTable, batch_topics
from mqspark.store.queue.delaylevels import DelayLevels
from mqspark.store.queue.mapped import Entries
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery.deletions import read_deletions
from mqspark.store.recovery.queueends import QueueEnds
from mqspark.store.recovery.recovery import Recovery
from mqspark.store.recovery.rocksdb import found_in_rocksdb

RELEASE_BYTES = 32 << 20
_MAX_MAPPED = 8


class ReadOnlyFiles(OsFiles):
    """A file layer that changes nothing.

    Loading creates directories and sets lengths that are already correct: these two operations do nothing.
    Others are refused.
    """

    def open(self, path: StrPath, *, create: bool = False) -> int:
        if create:
            raise _refused(path)
        return open_regular(path, os.O_RDONLY)

    def make_directory(self, path: StrPath, *, durable: bool = False) -> None:
        return

    def set_length(self, fd: int, length: int) -> None:
        return

    def allocate(self, fd: int, offset: int, length: int) -> None:
        raise _refused(str(fd))

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        raise _refused(str(fd))

    def map_write(self, fd: int, length: int) -> mmap.mmap:
        return self.map_read(fd, min(length, self.length(fd)))

    def rename(self, source: StrPath, target: StrPath) -> None:
        raise _refused(source)

    def remove(self, path: StrPath) -> None:
        raise _refused(path)

    def remove_tree(self, path: StrPath) -> None:
        raise _refused(path)

    def is_locked(self, path: StrPath) -> bool:
        """Whether a broker, of this project or RocketMQ's, holds the lock of a store."""
        # Closing a descriptor would release the lock of this process.
        name = lock_name(path)
        if name in self._locked:
            return True
        if is_locked_directory(os.path.dirname(name)):
            return True
        try:
            fd = self.open(path)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except (BlockingIOError, PermissionError):
            return True
        finally:
            os.close(fd)
        return False


class UnchangingFiles(ReadOnlyFiles):
    """A file layer on which a start changes nothing although it believes so: what it does shows what it would do."""

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        return

    def remove(self, path: StrPath) -> None:
        return


def _refused(path: StrPath) -> OSError:
    return OSError(errno.EROFS, "this tool only reads", str(path))


def release(view: memoryview, low: int, high: int) -> None:
    """Release the pages of [low, high) of a mapped file: they stay in the page cache but no longer count for
    this process."""
    mapping = view.obj
    if isinstance(mapping, mmap.mmap):
        low -= low % mmap.PAGESIZE
        high = min(high, len(mapping))
        if high > low:
            mapping.madvise(mmap.MADV_DONTNEED, low, high - low)


def require_store(paths: StorePaths) -> None:
    """Raises FileNotFoundError when there is no such directory, StoreCorrupt when it is not a store, or not all of one.
    A mistyped path must neither look healthy nor get files."""
    os.stat(paths.root)
    refuse_unfinished(paths, OsFiles())
    if any(path.is_dir() for path in paths.commit_logs.all):
        return
    if (paths.root / "store" / "commitlog").is_dir():
        hint = f"the store is {paths.root / 'store'}"
    elif paths.root.name == "commitlog":
        hint = f"the store is {paths.root.parent}"
    else:
        hint = "if the log lies elsewhere, give its place with -c FILE or --set storePathCommitLog=DIR"
    raise StoreCorrupt(
        f"{paths.root} is not a store: there is no {paths.commit_log}; {hint}", path=str(paths.root)
    )


class OfflineStore:
    """The files of one directory. Raises FileNotFoundError when it does not exist, StoreCorrupt when it is
    not a store or its files do not belong together."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.files = files = ReadOnlyFiles()
        self.paths = paths = config.paths
        require_store(paths)
        self.in_use = files.is_locked(paths.lock)
        self.in_rocksdb = list(found_in_rocksdb(paths, files))
        """What is in RocksDB alone: no broker starts with it."""
        self.clean = files.read(paths.abort) is None
        self.checkpoint = Checkpoint.load(paths.checkpoint, paths.mark, files)
        self.strange: list[Path] = []
        """Files in the directories of the log that are not segments."""
        self.blocking: list[Path] = []
        """Paths named like segments that are not regular files: no broker starts with them."""
        self._find_log()
        self._make_tables()
        self.older_deletions = ""
        """Why the copy of the list of deleted topics is used instead of it, or ''."""
        self.unreadable_deletions: str | None = None
        """Why the list of deleted topics cannot be read, or None."""
        self.deleted = self._read_deleted()
        """As ``Deletions.positions``."""
        self._load_queues()
        self.levels = DelayLevels(config.message_delay_level)
        self._index_maps = IndexMaps(files)
        self.strange_index_files: list[str] = []
        self.index_files = [
            file for name in sorted(files.names(paths.index)) if (file := self._index_file(name)) is not None
        ]

    def _find_log(self) -> None:
        config, paths, files = self.config, self.paths, self.files
        found = self._segments()
        size = segment_size(
            {segment.start: segment.length for segment in found},
            config.mapped_file_size_commit_log,
            self.checkpoint.position,
        )
        beyond = [segment for segment in found if is_beyond(segment.start, size)]
        self.beyond = [segment.path for segment in beyond]
        """Segments whose positions reach 2^63: no broker starts with them."""
        found = [segment for segment in found if segment not in beyond]
        segments = [segment for segment in found if segment.start % size == 0]
        self.misplaced = [segment.path for segment in found if segment.start % size]
        """Files named like segments, but not at a segment boundary of this log: no broker starts with them."""
        self.log = CommitLog(
            paths.commit_logs, files, segment_bytes=size, allocation_step=0, max_mapped=_MAX_MAPPED
        )
        self.log.segments = segments
        self.lengths = {segment.start: segment.length for segment in segments}
        """Lengths of the log's files by their starts."""
        for segment in segments:
            segment.end = segment.start + size
            segment.length = min(segment.length, size)

    def _make_tables(self) -> None:
        config, paths, files = self.config, self.paths, self.files
        self.table = QueueTable(
            paths.consume_queue,
            files,
            file_bytes=config.mapped_file_size_consume_queue,
            max_mapped=_MAX_MAPPED,
            ext_directory=paths.consume_queue_ext,
            ext_file_bytes=config.mapped_file_size_consume_queue_ext,
            ext_enabled=config.enable_consume_queue_ext,
        )
        self.batch_table = BatchTable(
            paths.batch_consume_queue,
            files,
            file_bytes=config.mapper_file_size_batch_consume_queue,
            max_mapped=_MAX_MAPPED,
        )

    def _read_deleted(self) -> dict[str, int]:
        try:
            saved = read_deletions(ConfigFile(self.paths.deletions, self.files), self.files)
        except StoreCorrupt as error:
            self.unreadable_deletions = str(error)
            return {}
        self.older_deletions = saved.problem
        begin = self.log.min_offset
        return {topic: position for topic, position in saved.positions.items() if position > begin}

    def _load_queues(self) -> None:
        paths, files = self.paths, self.files
        self.batch_table.load()
        self.batch_table.leave_out(self.deleted)
        self.table.load(paths.batch_consume_queue)
        self.table.leave_out(self.deleted)
        self.table.batch_topics |= batch_topics(paths.config / "topics.json", files)
        segments = self.log.segments
        log_end = max(segments[-1].end if segments else 0, self.checkpoint.position)
        for table in (self.table, self.batch_table):
            for queue in table.queues.values():
                queue.check_files(self.log.min_offset)
                queue.set_end(queue.locate_end(None, log_end)[0])
                queue.min_offset = queue.file_starts[0] // table.entry_bytes if queue.file_starts else 0
        for batch_queue in self.batch_table.batch_queues.values():
            batch_queue.recovered()
        self.ends, self.ends_problem = QueueEnds.load(
            paths.ends, files, self.checkpoint.ends_limit, clean=self.clean
        )
        if self.ends is not None and not self.in_use:
            exactly = self.clean and self.ends.position == self.checkpoint.position
            doubts = self.ends.doubts(
                self.table, self.batch_table, self.deleted, self.log.min_offset, exactly=exactly
            )
            for queue, doubt in list(doubts):
                queue.doubt(*doubt)

    def _segments(self) -> list[Segment]:
        found: dict[int, Segment] = {}
        for directory in self.paths.commit_logs.all:
            for name in self.files.names(directory):
                path, start = directory / name, file_start(name)
                if start is None or start in found:
                    self.strange.append(path)
                    continue
                if not path.is_file():
                    self.blocking.append(path)
                    continue
                length = path.stat().st_size
                found[start] = Segment(path, start, length, start + length)
        if found and not found[max(found)].length:  # a crash during the creation of a file leaves it empty
            del found[max(found)]
        return [found[start] for start in sorted(found)]

    def _index_file(self, name: str) -> IndexFile | None:
        path = self.paths.index / name
        if not name.isdigit() or not path.is_file():
            self.strange_index_files.append(name)
            return None
        shape: Shape | None = Shape(self.config.max_hash_slot_num, self.config.max_index_num)
        fd = self.files.open(path)
        try:
            length = self.files.length(fd)
            header = IndexHeader.decode(self.files.read_at(fd, HEADER_BYTES, 0))
            if shape is None or length != shape.file_bytes:
                shape = find_shape(self.files, fd, length, header)
        finally:
            self.files.close(fd)
        if shape is None or header.next_number > shape.entries:
            self.strange_index_files.append(name)
            return None
        return IndexFile(path, shape, header, self.files, self._index_maps)

    def where(self, position: int) -> str:
        """A position of the log as file name and byte."""
        segment = self.log.segment_of(position)
        if segment is None:
            return "in no segment"
        return f"{segment.path.name} at byte {position - segment.start}"


class LogScan(Recovery):
    """Reads a log from a position on. Subclasses may override ``took`` and ``settled``, which receive what it
    finds."""

    def __init__(self, store: OfflineStore, *, verify_crc: bool = True) -> None:
        config = store.config
        super().__init__(
            store.log,
            QueueTable(store.paths.consume_queue, store.files, file_bytes=1, max_mapped=1),
            Checkpoint(),
            store.levels,
            clean=True,
            verify_crc=verify_crc,
            verify_property_crc=config.verify_property_crc,
            batch_table=store.batch_table,
            multi_dispatch=config.multi_dispatch,
            deleted=store.deleted,
        )
        self._table.batch_topics = set(store.table.batch_topics)
        self._released = 0

    def scan(self, start: int) -> int:
        """Read from ``start`` on. Returns the end of the last record."""
        end = self._scan(max(start, self._log.min_offset))
        self._settle()
        return end

    def next_valid(self, segment: Segment, position: int, data_end: int) -> int | None:
        """The next valid position in this segment after a damaged one."""
        return self._next_valid(segment, position, data_end)

    def note_records(self, segment: Segment, run: Run) -> None:
        """Called when the records of a run were read."""

    def _take_run(self, run: Run) -> None:
        super()._take_run(run)
        self._note_run(run)

    def _take(self, record: CheckedRecord, position: int) -> None:
        super()._take(record, position)
        run = self._run_of(record, position)
        if run is not None:
            self._note_run(run)

    def _note_run(self, run: Run) -> None:
        segment, end = self._log.segment_of(int(run.positions[0])), run.end_position
        if segment is None:
            return
        view = self._log.view(segment)
        self.note_records(segment, run)
        if end - self._released > RELEASE_BYTES or end < self._released:
            low = max(self._released, segment.start) - segment.start
            release(view, low, end - segment.start)
            self._released = end

    def _convert_to_batches(self, topic: str) -> None:
        self._table.batch_topics.add(topic)


def entries_of(store: OfflineStore, file: IndexFile, block: int = 1 << 16) -> Iterator[tuple[int, Entries]]:
    """The entries of an index file in blocks: number of the first, and columns hash, position, seconds,
    previous."""
    count = file.header.next_number
    for low in range(1, count, block):
        yield low, store._index_maps.entries(file, low, min(low + block, count))
        view = store._index_maps.view(file)
        if view is not None:
            release(memoryview(view), file.shape.entries_at, file.shape.entries_at + (low + block) * 20)
