"""Takes back the end of a log that is a copy: where it differs from its master's log, the master's is right
(AutoSwitchHAService.truncateSuffixByOffset).

What is taken back is first saved in ``mqspark.diverged/``, as it is in the log, and synced. A file is named after the
position of its first byte and the time.

Must not know the master.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from mqspark.base.logs import sparing
from mqspark.errors import NotNow
from mqspark.record.recordlayout import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, SIZE_MAGIC
from mqspark.store.disk.files import FileLayer, disk_full_as_typed
from mqspark.store.index.indexer import Indexer
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.queue.batchqueue import BatchTable
from mqspark.store.queue.consumequeue import FILLER_SIZE, ConsumeQueue
from mqspark.store.queue.queuetable import QueueTable

_log = sparing(__name__)

_COPY_BYTES = 1 << 20
MAX_WALK = 100_000


def last_whole_record(tables: tuple[QueueTable, ...], begin: int, end: int) -> int | None:
    """The end of the last record that lies in [begin, end) of the log and is in a queue."""
    best: int | None = None
    for table in tables:
        for queue in table.queues.values():
            after = queue.first_where(
                lambda position, size, _tags: position + size > end, queue.min_offset, queue.max_offset
            )
            entry = _entry_before(queue, after)
            if entry is None or entry[0] < begin or entry[0] + entry[1] > end:
                continue
            best = max(best or 0, entry[0] + entry[1])
    return best


def _entry_before(queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
    """The last entry before ``offset``. Fillers are passed over: they stand for what a power cut took."""
    while offset > queue.min_offset:
        offset -= 1
        entry = queue.entry(offset)
        if entry is None or entry[1] != FILLER_SIZE:
            return entry
    return None


def walk_records(read: Callable[[int, int], bytes], begin: int, end: int) -> int | None:
    """The first end of a record at or after ``end``, from ``begin`` on, where one begins; None if there is none within
    MAX_WALK records. Few are passed, because ``begin`` is the end of the last record in a queue. Raises OSError."""
    at = begin
    for _ in range(MAX_WALK):
        if at >= end:
            return at
        head = read(at, SIZE_MAGIC.size)
        if len(head) < SIZE_MAGIC.size:
            return None
        size, magic = SIZE_MAGIC.unpack(head)
        if size <= 0 or magic not in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC):
            return None
        at += size
    return None


class CutBackJob:
    """``run`` saves, in any thread; ``done`` cuts, on the thread of the store. ``is_quiet``: whether everything is
    written and synced, and the log still ends at ``end``; if not, ``done`` does nothing."""

    def __init__(
        self,
        log: CommitLog,
        tables: tuple[QueueTable, BatchTable],
        indexer: Indexer | None,
        files: FileLayer,
        directory: Path,
        position: int,
        now_ms: int,
        is_quiet: Callable[[int], bool],
        may_begin: Callable[[], bool],
        before: Callable[[int], None],
        after: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``may_begin``: whether nobody else writes what follows from the log; if so, nobody does until ``after``, or
        ever again if the cut fails. ``before`` makes a start expect that the log ends at the position that it gets, and
        distrust what was noted about its queues; ``after`` gets the log's new end."""
        self._log = log
        self._tables = tables
        self._indexer = indexer
        self._files = files
        self._directory = directory
        self._position = position
        self._end = log.position
        self._segments = list(log.segments)
        self._path = directory / f"{position:020d}-{now_ms}.log"
        self._is_quiet = is_quiet
        self._may_begin = may_begin
        self._before = before
        self._after = after
        self._failed = failed
        self._saved = False

    def run(self) -> None:
        """Save the bytes. Raises OSError, DiskFull; then no part of them is left on the disk, which may be full."""
        try:
            self._save_all()
        except (OSError, NotNow):
            with contextlib.suppress(OSError):
                self._files.remove(self._path)
            raise
        self._saved = True

    def _save_all(self) -> None:
        files = self._files
        files.make_directory(self._directory, durable=True)
        with disk_full_as_typed("the part of the log that differs from the master's"):
            out = files.open(self._path, create=True)
            try:
                for segment in self._segments:
                    self._save(segment, out)
                files.sync(out)
            finally:
                files.close(out)
        files.sync_directory(self._directory)

    def _save(self, segment: Segment, out: int) -> None:
        low, high = max(self._position, segment.start), min(self._end, segment.end)
        if low >= high:
            return
        fd = self._files.open_read(segment.path)
        try:
            for at in range(low, high, _COPY_BYTES):
                size = min(_COPY_BYTES, high - at)
                data = self._files.read_at(fd, size, at - segment.start)
                self._files.write(out, data, at - self._position)
        finally:
            self._files.close(fd)

    def done(self, error: BaseException | None = None) -> None:
        if error is not None or not self._saved or not self._is_quiet(self._end) or not self._may_begin():
            return
        position = self._position
        try:
            self._before(position)
            removed = sum(self._cut(queue) for table in self._tables for queue in table.queues.values())
            for batch_queue in self._tables[1].batch_queues.values():
                batch_queue.recovered()
            if self._indexer is not None:
                self._indexer.cut(position)
            self._log.cut_back(position)
            self._after(position)
        except Exception as failure:  # log and queues may disagree now
            self._failed(failure)
            return
        _log.warning(
            "%d bytes of the log from %d on (%d queue entries) were taken back, and are saved in %s",
            self._end - position,
            position,
            removed,
            self._path,
        )

    def _cut(self, queue: ConsumeQueue) -> int:
        before = queue.max_offset
        last = queue.entry(before - 1) if before > queue.min_offset else None
        if last is None or (last[1] != FILLER_SIZE and last[0] < self._position):
            return 0
        # Not ``locate_end``: its bisection would take fillers for what lies before the cut.
        end = queue.first_where(
            lambda position, _size, _tags: position >= self._position, queue.min_offset, before
        )
        # Fillers at the end stand for records behind the cut: the master may have them.
        while (
            end > queue.min_offset and (entry := queue.entry(end - 1)) is not None and entry[1] == FILLER_SIZE
        ):
            end -= 1
        queue.set_end(end)
        queue.clear_tail()
        return before - end
