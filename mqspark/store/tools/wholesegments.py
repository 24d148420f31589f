"""Gives every file of the log its whole length, for a RocketMQ broker that takes over a store.

RocketMQ does not start on a log with a file that is shorter or longer than the others (MappedFileQueue). What such a
file lacks gets a blank record, which ends a segment: recovery then goes on in the next file. Zeros would make it end
the log there, and remove what follows (CommitLog.recoverNormally).

The bytes in question can no longer be healed from another replica.

Queues and index have to be rebuilt first: after a crash in between, the files still tell that this is to be done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mqspark.record.record import CheckedRecord
from mqspark.record.recordlayout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from mqspark.store.config import StoreConfig
from mqspark.store.disk.files import OsFiles, disk_full_as_typed
from mqspark.store.disk.layout import file_name
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.logread import LogReader
from mqspark.store.log.scan import Run
from mqspark.store.tools.offlinestore import OfflineStore, require_store


def incomplete_segments(config: StoreConfig) -> list[Path]:
    """The files that ``complete_segments`` would change. Raises FileNotFoundError or StoreCorrupt."""
    return [segment.path for segment, _ in _incomplete(OfflineStore(config))]


def complete_segments(config: StoreConfig) -> None:
    """Complete, shorten or make the files that RocketMQ would refuse. Raises StoreLocked, StoreCorrupt, DiskFull or
    OSError."""
    paths = config.paths
    files = OsFiles.like(paths.commit_log)
    require_store(paths)
    lock = files.lock(paths.lock)
    try:
        store = OfflineStore(config)
        for segment, end in list(_incomplete(store)):
            with disk_full_as_typed(f"CommitLog segment {segment.path.name}"):
                fd = files.open(segment.path, create=True)
                try:
                    if segment.end - end >= BLANK_BYTES:
                        files.write(fd, SIZE_MAGIC.pack(segment.end - end, BLANK_MAGIC), end - segment.start)
                        files.sync(fd)  # a file of whole length is not looked at again
                    files.set_length(fd, segment.end - segment.start)
                    files.sync(fd)
                finally:
                    files.close(fd)
            files.sync_directory(segment.path.parent)
    finally:
        files.unlock(paths.lock, lock)


class _EndReader(LogReader):
    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        super().__init__(log, verify_crc=True, verify_property_crc=config.verify_property_crc)

    def end(self, segment: Segment) -> int:
        """Where the last record ends."""
        return self._scan(segment.start)

    def _take(self, record: CheckedRecord, position: int) -> None:
        """Only its end counts, as of all that is read here."""

    def _take_run(self, run: Run) -> None: ...

    def _take_damaged(self, record: CheckedRecord, position: int) -> None: ...


def _incomplete(store: OfflineStore) -> Iterator[tuple[Segment, int]]:
    """Each segment whose file has another length, or is missing, and where its records end: at its own end if the log
    just stops in it."""
    segments, size = store.log.segments, store.log.segment_bytes
    for number, segment in enumerate(segments):
        for start in range(segments[number - 1].end, segment.start, size) if number else ():
            path = store.paths.commit_logs.for_segment(start // size) / file_name(start)
            yield Segment(path, start, 0, start + size), start
        length = store.lengths[segment.start]
        if number == len(segments) - 1:
            if length not in (0, size):  # RocketMQ removes an empty one itself
                yield segment, segment.end
        elif length != size:
            store.log.segments = [segment]
            yield segment, _EndReader(store.log, store.config).end(segment) if length else segment.start
    store.log.segments = segments
