"""Compacts the queues of a store for the broker that serves it, in a process of its own and in bounded memory.

A pass over a queue reads its new records and notes the newest offset of each key, until the records or the map of keys
end. It then writes the next generation: of the previous one what has a key without a newer value, of the new records
the newest of each key. The generation ends where the map ended, so the next pass goes on there, and a kill costs one
pass. Format, names, lock and publication are those of ``store.compaction.compactedqueues``, as for the Spark job.

Only records before ``CompactTask.end`` are taken. Each is checked as recovery checks it. A record that does not fit its
queue entry ends the pass before it and is reported, because the entry may be wrong and the broker may be able to
correct it; the broker's next task says up to where that was tried, and what is damaged before that is stepped over,
as readers step over it.

The semantics are those of RocketMQ's CompactionLog, except for tombstones (``DELETE_RETENTION_MS``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from mqspark.base.logs import printable
from mqspark.base.names import path_below
from mqspark.base.propertystring import find_property
from mqspark.errors import MQError, Picklable, StoreCorrupt, StoreLocked
from mqspark.message import HOST_FLAGS
from mqspark.record.record import CheckedRecord, Verdict, check_record
from mqspark.record.recordlayout import HEADS
from mqspark.store.compaction.compactedqueues import (
    COMPACT_LOCK,
    COMPACTED,
    DELETE_RETENTION_MS,
    Current,
    Generation,
    GenerationWriter,
    adopt,
    read_current,
)
from mqspark.store.compaction.rocketcompaction import RocketCompaction
from mqspark.store.disk.files import FileLayer
from mqspark.store.tools.reader import StoreReader

KEY_BYTES = 256
"""Memory of a key in the map, at most: 64 for its digest, 32 for its offset, and its place in a dict that has just
grown."""
_FEWEST_KEYS = 100
"""The fewest keys of a pass, as in RocketMQ (CompactionLog.OffsetMap)."""
_DIGEST_BYTES = 16
_KEYS = b"KEYS"
_LARGE_BYTES = 1 << 20
_MAX_DAMAGED = 64
"""Damaged entries that one report names of a queue."""
_MAX_DAMAGED_QUEUES = 100
"""Such queues in one report. The others are for the next one."""
_MAX_PROBLEMS = 20
_RECORDS_A_SIGN = 4096
"""Records between two signs of life."""


class TopicToCompact(msgspec.Struct, frozen=True):
    name: str
    floor: int = 0
    """Records before this position are those of a deleted topic of the same name."""
    examined: dict[int, int] = {}
    """Queue id → the offset before which the broker has tried to correct what is damaged."""


class CompactTask(msgspec.Struct, frozen=True):
    root: str
    """storePathRootDir."""
    commit_log: str | None
    """All directories of the log, separated by commas; None: below the root."""
    end: int
    """A position of the log: what lies before it is visible, final and in the queues."""
    topics: list[TopicToCompact]
    map_bytes: int
    """Bound of the map of keys (maxOffsetMapSize)."""
    now_ms: int
    measure_only: bool = False
    """Only find out how much of the log is compacted already."""
    sync_found: bool = False
    """Sync the generations that are found: whoever published them may have ended before that."""


class DamagedEntries(msgspec.Struct, frozen=True):
    topic: str
    queue_id: int
    offsets: list[int]


class CompactReport(msgspec.Struct):
    compacted_to: int = 0
    """Every record of these topics that lies before this position of the log is compacted."""
    queues: int = 0
    """Queues with a new generation."""
    passes: int = 0
    records_read: int = 0
    records_kept: int = 0
    bytes_written: int = 0
    stepped_over: int = 0
    """Damaged records."""
    failed: int = 0
    """Queues that could not be compacted."""
    problems: list[str] = []
    """Why, of the first ones."""
    busy: str = ""
    """Who else compacts this store, if that ended the run."""
    damaged: list[DamagedEntries] = []


class _NewRecord(NamedTuple):
    offset: int
    position: int
    """In the log; -1 for a record of RocketMQ's compaction."""
    record: memoryview
    checked: CheckedRecord
    code: int


class _Damaged(Picklable, Exception):
    """The pass may not go beyond ``offset``."""

    def __init__(self, offset: int, offsets: list[int]) -> None:
        super().__init__(offset)
        self.offset = offset
        self.offsets = offsets


@dataclass(slots=True)
class _Queue:
    topic: TopicToCompact
    queue_id: int
    directory: Path
    current: Current | None
    """The generation on disk."""
    old: Generation | None
    """The same unless it is of a deleted topic."""
    theirs: RocketCompaction | None
    log_begin: int
    stepped_over: set[int] = field(default_factory=set)

    @property
    def done(self) -> int:
        """Offsets below are compacted."""
        return self.old.current.end if self.old is not None else 0

    @property
    def is_partial(self) -> bool:
        return self.old is not None and self.old.current.is_partial


class Compactor:
    """One run over the topics of a task. ``alive`` is called now and then."""

    def __init__(self, task: CompactTask, files: FileLayer, alive: Callable[[], None] = lambda: None) -> None:
        self._task = task
        self._files = files
        self._alive = alive
        self._root = Path(task.root)
        self._reader = StoreReader(task.root, task.commit_log)
        self._most_keys = max(_FEWEST_KEYS, task.map_bytes // KEY_BYTES)
        self._secret = secrets.token_bytes(_DIGEST_BYTES)
        """Nobody who chooses keys can make two digests collide."""
        self._count = 0
        self._report = CompactReport(compacted_to=task.end)

    def run(self) -> CompactReport:
        """Never raises for what is wrong with a queue: that is in the report, and the queue counts as not compacted."""
        report = self._report
        for topic in self._task.topics:
            for queue_id in self._reader.queue_ids(topic.name):
                report.compacted_to = min(report.compacted_to, self._compact(topic, queue_id))
        return report

    def _compact(self, topic: TopicToCompact, queue_id: int) -> int:
        """The position before which the queue is compacted; 0 when nobody knows."""
        passes = self._report.passes
        try:
            if self._task.sync_found and (found := self._open(topic, queue_id)).current is not None:
                self._files.sync_directory(found.directory)
            while True:
                queue = self._open(topic, queue_id)
                needed_from = self._needed_from(queue)
                if needed_from >= self._task.end or self._task.measure_only or self._report.busy:
                    return needed_from
                lock_path = self._root / COMPACT_LOCK
                try:
                    lock = self._files.lock(lock_path, alone=False)
                except StoreLocked as error:
                    self._report.busy = str(error)
                    return needed_from
                try:
                    # Another process may have compacted it in between.
                    goes_on = self._pass(self._open(topic, queue_id))
                finally:
                    self._files.unlock(lock_path, lock)
                if not goes_on:
                    return self._needed_from(self._open(topic, queue_id))
        except _Damaged as damage:
            if len(self._report.damaged) < _MAX_DAMAGED_QUEUES:
                self._report.damaged.append(DamagedEntries(topic.name, queue_id, damage.offsets))
        except (OSError, MQError, MemoryError) as error:
            self._report.failed += 1
            if len(self._report.problems) < _MAX_PROBLEMS:
                text = f"queue {topic.name}/{queue_id}: {error or type(error).__name__}"
                self._report.problems.append(printable(text, 500))
        finally:
            self._report.queues += self._report.passes > passes
        return 0

    def _open(self, topic: TopicToCompact, queue_id: int) -> _Queue:
        directory = path_below(self._root / COMPACTED, topic.name, queue_id)
        current = read_current(directory, self._files)
        old = Generation(directory, current, self._files) if current is not None else None
        if old is not None and topic.floor and old.is_before(topic.floor):
            old = None
        theirs = RocketCompaction(self._root, topic.name, queue_id, self._files)
        return _Queue(
            topic, queue_id, directory, current, old, theirs if theirs else None, self._reader.log_begin()
        )

    # --- reading ------------------------------------------------------------------------------------------------

    def _needed_from(self, queue: _Queue) -> int:
        """The position of the first record that is not compacted."""
        for found in self._of_log(queue):
            return min(found.position, self._task.end)
        return self._task.end

    def _new(self, queue: _Queue) -> Iterator[_NewRecord]:
        """The records from ``queue.done`` on: those that only RocketMQ's compaction has, then those of the log.
        Raises _Damaged, OSError."""
        of_log = self._of_log(queue)
        first = next(of_log, None)
        if queue.theirs is not None:
            end = first.offset if first is not None else self._queue_end(queue)
            for offset in queue.theirs.offsets(queue.done, end):
                record, code = queue.theirs.record(offset)
                checked = check_record(record, 0, len(record), verify_crc=True)
                if checked.verdict is Verdict.VALID:
                    yield _NewRecord(offset, -1, record, checked, code)
                else:
                    queue.stepped_over.add(offset)
        if first is not None:
            yield first
            yield from of_log

    def _queue_end(self, queue: _Queue) -> int:
        """The end of a queue of which the log has nothing that is to be compacted."""
        end = queue.done
        for offsets, _ in self._reader.rows(queue.topic.name, queue.queue_id, queue.done):
            end = int(offsets[-1]) + 1
        return end

    def _of_log(self, queue: _Queue) -> Iterator[_NewRecord]:
        """The records of the log from ``queue.done`` on that lie before the end of the task."""
        is_live = False
        doubtful: int | None = None
        """The first of the empty entries behind the last expired one. Their records may be there."""
        examined = queue.topic.examined.get(queue.queue_id, 0)
        for offsets, entries in self._reader.rows(queue.topic.name, queue.queue_id, queue.done):
            places = list(
                zip(
                    offsets.tolist(),
                    entries["position"].tolist(),
                    entries["size"].tolist(),
                    entries["tags_code"].tolist(),
                    strict=True,
                )
            )
            for number, (offset, position, size, code) in enumerate(places):
                self._sign_of_life()
                if not is_live and position < queue.log_begin:
                    # Expired, as all before it. Behind a record that is there none has expired.
                    doubtful = None if size > 0 else offset if doubtful is None else doubtful
                    continue
                if doubtful is not None and (first := max(doubtful, examined)) < offset:
                    raise _Damaged(first, list(range(first, min(offset, first + _MAX_DAMAGED))))
                doubtful = None
                found = self._read(queue, offset, position, size, code)
                if found is None and offset >= examined:
                    raise _Damaged(offset, [offset, *self._damaged_of(queue, places[number + 1 :])])
                is_live = True
                if found is None:
                    queue.stepped_over.add(offset)
                elif position >= self._task.end:
                    return
                else:
                    yield found

    def _damaged_of(self, queue: _Queue, places: list[tuple[int, int, int, int]]) -> Iterator[int]:
        left = _MAX_DAMAGED - 1
        for offset, position, size, code in places:
            if left and self._read(queue, offset, position, size, code) is None:
                left -= 1
                yield offset

    def _read(self, queue: _Queue, offset: int, position: int, size: int, code: int) -> _NewRecord | None:
        """None for what is not the record of this offset. Raises OSError."""
        if size <= 0 or position < 0:
            return None
        try:
            if size > _LARGE_BYTES and int.from_bytes(self._reader.record(position, 4), "big") != size:
                return None  # before as much memory is taken as the entry claims
            record = self._reader.record(position, size)
        except StoreCorrupt:
            return None
        checked = check_record(record, 0, len(record), verify_crc=True)
        if (
            checked.verdict is not Verdict.VALID
            or (checked.topic, checked.queue_id) != (queue.topic.name, queue.queue_id)
            or (checked.queue_offset, checked.physical_offset) != (offset, position)
        ):
            return None
        return _NewRecord(offset, position, memoryview(record), checked, code)

    def _sign_of_life(self) -> None:
        self._count += 1
        if self._count % _RECORDS_A_SIGN == 0:
            self._alive()

    def _digest(self, properties: bytes) -> bytes | None:
        """Stands for the key; None without one."""
        key = find_property(properties, _KEYS)
        if key is None:
            return None
        return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()

    # --- writing ------------------------------------------------------------------------------------------------

    def _pass(self, queue: _Queue) -> bool:
        """Publish the next generation of a queue. Returns whether more may be done. Raises _Damaged when nothing can
        be done before what is damaged, OSError."""
        newest: dict[bytes, int] = {}
        end, goes_on = queue.done, False
        is_partial = queue.is_partial
        damage: _Damaged | None = None
        count = 0
        try:
            for found in self._new(queue):
                if not count and queue.theirs is None and found.offset > queue.done:
                    is_partial = True  # what is between has expired uncompacted
                digest = self._digest(found.checked.properties)
                if digest is not None:
                    if len(newest) >= self._most_keys and digest not in newest:
                        goes_on = True
                        break
                    newest[digest] = found.offset
                end = found.offset + 1
                count += 1
        except _Damaged as error:
            damage = error
        if end > queue.done:
            self._write(queue, newest, end, is_partial=is_partial)
            self._report.records_read += count
            self._report.stepped_over += sum(1 for offset in queue.stepped_over if offset < end)
        if damage is not None:
            raise damage
        return goes_on

    def _write(self, queue: _Queue, newest: dict[bytes, int], end: int, *, is_partial: bool) -> None:
        number = queue.current.generation + 1 if queue.current is not None else 1
        writer = GenerationWriter(queue.directory, "next-broker", self._files)
        try:
            for record, offset, code in self._kept(queue, newest, end):
                writer.append(record, offset, code)
            writer.finish()
            current = Current(number, end, writer.messages, writer.size_bytes, is_partial)
            adopt(queue.directory, current, writer.log_path, writer.queue_path, self._files)
        except BaseException:
            writer.abandon()
            raise
        self._report.passes += 1
        self._report.records_kept += writer.messages
        self._report.bytes_written += writer.size_bytes

    def _kept(
        self, queue: _Queue, newest: dict[bytes, int], end: int
    ) -> Iterator[tuple[memoryview, int, int]]:
        oldest_tombstone_ms = self._task.now_ms - DELETE_RETENTION_MS
        for offset, record, code in self._old_records(queue):
            self._sign_of_life()
            checked = check_record(record, 0, len(record), verify_crc=False)
            if checked.verdict is Verdict.VALID:
                digest = self._digest(checked.properties)
                if digest in newest or _is_old_tombstone(record, checked, oldest_tombstone_ms):
                    continue
            yield record, offset, code  # also what is damaged: nobody can tell what it was
        for found in self._new(queue):
            digest = self._digest(found.checked.properties)
            if (
                digest is not None
                and newest.get(digest) == found.offset
                and not _is_old_tombstone(found.record, found.checked, oldest_tombstone_ms)
            ):
                yield found.record, found.offset, found.code
            if found.offset + 1 >= end:
                return  # before the next one is looked at, which may be damaged

    def _old_records(self, queue: _Queue) -> Iterator[tuple[int, memoryview, int]]:
        if queue.old is None:
            return
        entries = queue.old.entries
        for first in range(0, len(entries), _RECORDS_A_SIGN):
            for offset, _, _, code in entries[first : first + _RECORDS_A_SIGN].tolist():
                yield offset, queue.old.record(offset), code


def _is_old_tombstone(record: memoryview, checked: CheckedRecord, oldest_ms: int) -> bool:
    head_bytes = HEADS[checked.sys_flag & HOST_FLAGS].size  # its last field is the length of the body
    return checked.store_timestamp_ms < oldest_ms and not any(record[head_bytes - 4 : head_bytes])
