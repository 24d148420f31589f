"""Writes RocketMQ's ``compaction/`` directory, for a RocketMQ broker that takes over a store.

RocketMQ serves compacted topics only from there and adds only what it dispatches itself. Without these files
it would never serve what this project's broker has stored. The files contain what that broker serves: the
generation, what RocketMQ kept behind it, and the log up to the end of the queue
(``mqspark.store.compaction.compactedqueues``). RocketMQ dispatches what is not in the queue yet.

    compaction/compactionLog/<topic>/<queue id>/<position>    records, their physical offset replaced by the position
    compaction/compactionCq/<topic>/<queue id>/<position>     a BatchCQ entry for each; the names are those of the log

Both files of a pair are full when one of them is. The log then ends like a segment of the CommitLog, the
other file with an entry without a record (CompactionLog, SparseConsumeQueue). The directory is built
separately and then renamed. Without a position checkpoint RocketMQ compacts everything at the next run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mqspark.base.names import path_below
from mqspark.errors import ConfigError
from mqspark.record.record import check_record
from mqspark.record.recordlayout import BLANK_MAGIC, SIZE_MAGIC, queue_offset_of
from mqspark.store.compaction.compactedqueues import COMPACTED, Generation, read_current
from mqspark.store.compaction.rocketcompaction import COMPACTION, RocketCompaction
from mqspark.store.config import StoreConfig
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import file_name
from mqspark.store.queue.batchqueue import BATCH_ENTRY, BatchEntry
from mqspark.store.tools.offlinestore import require_store
from mqspark.store.tools.reader import READ_OFFSETS, StoreReader

_ENTRY_BYTES = BATCH_ENTRY.size
_LEAST_SEGMENTS = 5
"""Length of a log file in multiples of a queue file (CompactionLog.getCompactionLogSize)."""
_LAST_ENTRY = BatchEntry(-1, 0, 0, 0, 0, 0).pack()
_PHYSICAL_OFFSET = slice(28, 36)

Served = tuple[memoryview, int, int]
"""Record, queue offset, tags code."""


@dataclass(slots=True)
class Written:
    queues: int = 0
    records: int = 0


def write_compaction(config: StoreConfig, topics: Iterable[str]) -> Written:
    """Write the files of these topics; other topics are removed. Raises StoreLocked, StoreCorrupt,
    ConfigError or OSError and leaves the old directory then."""
    paths = config.paths
    root = paths.root
    files = OsFiles.like(paths.commit_log)
    require_store(paths)
    lock = files.lock(paths.lock)
    target, new, old = (
        root / name for name in (COMPACTION, "mqspark.compaction.new", "mqspark.compaction.old")
    )
    try:
        if old.is_dir() and not target.is_dir():  # killed between the two renames
            os.replace(old, target)
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        written = Written()
        files.make_directory(new)
        reader = StoreReader(root, config.store_path_commit_log)
        for topic in topics:
            directory = path_below(paths.consume_queue, topic)
            names = os.listdir(directory) if directory.is_dir() else []
            for queue_id in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
                writer = _QueueWriter(config, new, topic, queue_id)
                for record, offset, tags_code in served(reader, topic, queue_id):
                    writer.append(record, offset, tags_code)
                written.records += writer.finish()
                written.queues += 1
        for path in (*new.rglob("*"), new):
            _sync(path)
        if target.is_dir():
            os.replace(target, old)
        os.replace(new, target)
        _sync(root)
        shutil.rmtree(old, ignore_errors=True)
        return written
    finally:
        shutil.rmtree(new, ignore_errors=True)
        files.unlock(paths.lock, lock)


def served(reader: StoreReader, topic: str, queue_id: int) -> Iterator[Served]:
    """The records that this project's broker serves of a queue, in offset order."""
    root, end = reader.paths.root, 0
    directory = path_below(root / COMPACTED, topic, queue_id)
    current = read_current(directory)
    if current is not None:
        end = current.end
        generation = Generation(directory, current)
        for offset, _, _, tags_code in generation.entries.tolist():
            yield generation.record(offset), offset, tags_code
    low, high = reader.bounds(topic, queue_id)
    theirs = RocketCompaction(root, topic, queue_id)
    for offset in theirs.offsets(end, low):
        record, tags_code = theirs.record(offset)
        yield record, offset, tags_code
    for first in range(max(low, end), high, READ_OFFSETS):
        entries = reader.entries(topic, queue_id, first, min(first + READ_OFFSETS, high))
        for position, size, tags_code in entries.tolist():
            record = memoryview(reader.record(position, size))
            yield record, queue_offset_of(record), tags_code


class _QueueWriter:
    """Writes the two current files of one queue."""

    def __init__(self, config: StoreConfig, root: Path, topic: str, queue_id: int) -> None:
        self._folders = [
            path_below(root, name, topic, queue_id) for name in ("compactionLog", "compactionCq")
        ]
        self._files = OsFiles.like(root)
        for folder in self._folders:
            self._files.make_directory(folder)
        self._queue_bytes = config.compaction_cq_mapped_file_size // _ENTRY_BYTES * _ENTRY_BYTES
        self._log_bytes = _log_bytes(self._queue_bytes, config.compaction_mapped_file_size)
        self._start = 0
        self._log = bytearray()
        self._entries = bytearray()
        self._records = 0

    def append(self, record: memoryview, offset: int, tags_code: int) -> None:
        if len(record) + SIZE_MAGIC.size > self._log_bytes:
            raise ConfigError.of(
                "compactionMappedFileSize",
                f"a record of {len(record)} bytes is larger than a file of {self._log_bytes}",
            )
        room = self._log_bytes - len(self._log)
        if len(self._entries) + _ENTRY_BYTES >= self._queue_bytes or len(record) + SIZE_MAGIC.size > room:
            self._log += SIZE_MAGIC.pack(room, BLANK_MAGIC)
            self._entries += _LAST_ENTRY
            self._write()
            self._start += self._log_bytes
        position = self._start + len(self._log)
        copy = bytearray(record)
        copy[_PHYSICAL_OFFSET] = position.to_bytes(8, "big")
        store_ms = check_record(copy, 0, len(copy), verify_crc=False).store_timestamp_ms
        self._log += copy
        self._entries += BatchEntry(position, len(record), tags_code, store_ms, offset, 1).pack()
        self._records += 1

    def finish(self) -> int:
        """Finish the files. Returns the number of records."""
        if self._entries:
            self._write()
        return self._records

    def _write(self) -> None:
        pairs = ((self._log, self._log_bytes), (self._entries, self._queue_bytes))
        for folder, (data, length) in zip(self._folders, pairs, strict=True):
            with open(folder / file_name(self._start), "wb", opener=self._files.opener) as file:
                file.write(data)
                file.truncate(length)
            data.clear()


def _log_bytes(queue_bytes: int, wanted: int) -> int:
    """Length of a log file: a multiple of the queue file, computed as in RocketMQ, which refuses other
    lengths."""
    count, rest = divmod(wanted, queue_bytes)
    if count < _LEAST_SEGMENTS:
        return queue_bytes * _LEAST_SEGMENTS
    return queue_bytes * (count if 0 < rest < queue_bytes >> 1 else count + 1)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
