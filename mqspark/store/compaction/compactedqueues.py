"""Compacted queues: the last value of each key at its original offset, in files of this project beside
RocketMQ's.

    mqspark.compacted/<topic>/<queue id>/current     the current generation, and its end offset (JSON, then its CRC-32)
    mqspark.compacted/<topic>/<queue id>/<n>.log     the kept records, as they were in the CommitLog, contiguous
    mqspark.compacted/<topic>/<queue id>/<n>.queue   28 bytes each: queue offset i64, position in <n>.log i64, size i32,
                                                     tags code i64 (little-endian), by offset

Offsets below ``end`` come from the generation, all others from the log, so records that arrive after a
compaction are read as usual. When the log of a RocketMQ broker has expired in between, the offsets in the gap
come from RocketMQ's own compaction (``mqspark.store.compaction.rocketcompaction``). ``current`` is replaced
by renaming once the files it names are on disk, so a read sees one generation, never a mix. The previous
generation stays until the next one, for readers that are about to open it. The files of a generation get their names
while ``current.tmp`` describes it: without that, files newer than ``current`` tell that ``current`` is lost or old.

When the log has lost its end (``CompactedQueues.cut``), ``current`` is replaced by one that describes the first part of
the same files: what the log still has is read from there again. Values that what was lost had replaced are gone then if
the log is not old enough to have them, and the generation ``is_partial``. So it is when a queue is compacted for the
first time after its log has begun to expire. A slave gets a whole one from its master.

Compaction itself is done in other processes, by the broker's own (``mqspark.store.tools.compactor``) or by a Spark
job (``mqspark_jobs.compact``); the store only reads here. Each holds ``COMPACT_LOCK`` while it works on a queue,
writes under temporary names and calls ``adopt``. The semantics are those of RocketMQ's CompactionStore.

A generation that is published while its topic is deleted counts for nothing: its records come from before the
position of the deletion (``Deletions.positions``).

Must not know the CommitLog.
"""

from __future__ import annotations

import errno
import itertools
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mqspark.base.crc import crc32
from mqspark.base.logs import sparing
from mqspark.base.names import path_below
from mqspark.errors import ConfigError
from mqspark.message import MAX_DIGITS
from mqspark.record.record import CheckedRecord, Verdict, check_record
from mqspark.record.recordlayout import fields, record_position
from mqspark.store.compaction.rocketcompaction import (
    COMPACTION,
    RocketCompaction,
    compacted_by_rocketmq,
    topics_compacted_by_rocketmq,
)
from mqspark.store.disk.damage import Damage, LostOffsets, Note, Outcome
from mqspark.store.disk.files import FileLayer, OsFiles
from mqspark.store.disk.mapping import MapBudget, try_map
from mqspark.store.messages.fetch import GetResult, GetStatus

_log = sparing(__name__, lines=20)

COMPACTED = "mqspark.compacted"
COMPACT_LOCK = "mqspark.compact.lock"
"""In the root of the store: locked by whoever compacts."""
DELETE_RETENTION_MS = 24 * 3_600_000
"""How long a tombstone is kept, so that readers see the deletion: Kafka's delete.retention.ms. (RocketMQ removes it
with its key.)"""
KEPT_DTYPE = np.dtype([("offset", "<i8"), ("position", "<i8"), ("size", "<i4"), ("tags_code", "<i8")])
_NEXT = "current.tmp"
_MAX_CHECKED = 4096
LOOK_MS = 1000
"""How long the content of ``current`` is cached."""
_WRITE_BYTES = 1 << 20
_SYNC_BYTES = 64 << 20
"""A generation is synced in steps: the syncs of a broker on the same disk wait for what one sync has to write."""
_PLACE_BYTES = fields("position").size
"""Offset in a record."""


@dataclass(slots=True, frozen=True)
class Current:
    """The content of ``current``."""

    generation: int
    end: int
    """Offsets below this are in the generation, or were compacted away."""
    messages: int
    size_bytes: int
    """The files may be longer: what is behind that was taken back."""
    is_partial: bool = False
    """Keys whose last value was stored before ``end`` may be missing."""

    def encode(self) -> bytes:
        fields = asdict(self)
        if not self.is_partial:
            del fields["is_partial"]
        text = json.dumps(fields).encode()
        return text + b"\n%08x\n" % crc32(text)


def read_current(directory: Path, files: FileLayer | None = None) -> Current | None:
    """None without a generation. Raises OSError, EBADMSG for content that is no description of one, or of one that is
    older than what is there."""
    files = files or OsFiles()
    path = directory / "current"
    names = files.names(directory)  # before the content: what is published meanwhile must not look newer
    data = files.read(path)
    current = _decoded(path, data) if data is not None else None
    newest = max((number for name in names if (number := _generation_of(name)) is not None), default=0)
    if newest > (current.generation if current is not None else 0) and _NEXT not in names:
        why = "it is missing" if current is None else f"it describes generation {current.generation}"
        raise _damaged(path, f"{why}, and there is generation {newest}")
    return current


def _decoded(path: Path, data: bytes) -> Current:
    """Raises OSError. A file from before there was a CRC has none."""
    text, _, crc = data.partition(b"\n")
    try:
        current = Current(**json.loads(text))
        numbers = current.generation, current.end, current.messages, current.size_bytes
        is_sound = all(type(number) is int and number >= 0 for number in numbers)
        is_sound = is_sound and isinstance(current.is_partial, bool)
    except (ValueError, TypeError, RecursionError):
        is_sound = False
    if not is_sound or crc not in (b"", b"%08x\n" % crc32(text)):
        raise _damaged(path, "it describes no generation")
    return current


def _generation_of(name: str) -> int | None:
    """The number in the name of a generation's file; None for another name."""
    number, _, kind = name.partition(".")
    is_ours = kind in ("log", "queue") and number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS
    return int(number) if is_ours else None


def _damaged(path: Path, why: str) -> OSError:
    return OSError(
        errno.EBADMSG,
        f"damaged: {why}; restore it, or remove its directory: then the log serves what it has",
        str(path),
    )


def publish(directory: Path, current: Current, files: FileLayer | None = None) -> None:
    """Make a complete generation the current one, then remove those that no reader can be about to open.
    Raises OSError."""
    files = files or OsFiles.like(directory)
    _announce(directory, current, files)
    _make_current(directory, current, files)


def _announce(directory: Path, current: Current, files: FileLayer) -> None:
    """Write ``current.tmp``."""
    fd = files.open(directory / _NEXT, create=True)
    try:
        files.set_length(fd, 0)
        files.write(fd, current.encode(), 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.sync_directory(directory)


def _make_current(directory: Path, current: Current, files: FileLayer) -> None:
    """Let ``current.tmp`` be ``current``."""
    for name in files.names(directory):
        if (_generation_of(name) or 0) > current.generation:
            files.remove(directory / name)  # left by an attempt that did not end
    # The names of the files that ``current`` refers to must be on disk before its own.
    files.sync_directory(directory)
    files.rename(directory / _NEXT, directory / "current")
    files.sync_directory(directory)
    for name in files.names(directory):
        number = _generation_of(name)
        if number is not None and number < current.generation - 1:
            files.remove(directory / name)


def adopt(
    directory: Path, current: Current, log_path: Path, queue_path: Path, files: FileLayer | None = None
) -> None:
    """Give the finished files of a generation their names and publish it; then remove what earlier attempts have
    left. The caller holds ``COMPACT_LOCK``. Raises OSError."""
    files = files or OsFiles.like(directory)
    _announce(directory, current, files)
    files.rename(log_path, directory / f"{current.generation}.log")
    files.rename(queue_path, directory / f"{current.generation}.queue")
    _make_current(directory, current, files)
    for name in files.names(directory):
        if name.endswith(".tmp"):
            files.remove(directory / name)


def compaction_topics(root: Path) -> list[str]:
    """The topics with cleanup.policy=COMPACTION in the broker's table, sorted. ``root``: storePathRootDir.
    Raises ConfigError when the table is missing or invalid."""
    path = root / "config" / "topics.json"
    data = OsFiles().read(path)
    if data is None:
        raise ConfigError.of("store", f"{path} does not exist")
    try:
        table = json.loads(data)["topicConfigTable"]
        return sorted(
            name
            for name, topic in table.items()
            if (topic.get("attributes") or {}).get("cleanup.policy") == "COMPACTION"
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError.of("store", f"{path} is not a table of topics") from None


def is_compacted(root: Path, topic: str) -> bool:
    """Whether the broker serves more than the log for this topic. ``root``: storePathRootDir."""
    topic_name = path_below(root / COMPACTED, topic).name
    return topic_name in OsFiles().names(root / COMPACTED) or compacted_by_rocketmq(root, topic)


class Generation:
    """One generation, mapped, or copied from its open file where it cannot be mapped."""

    __slots__ = ("__weakref__", "_fd", "_files", "_queue_path", "_view", "current", "entries")

    def __init__(self, directory: Path, current: Current, files: FileLayer | None = None) -> None:
        """Raises FileNotFoundError when the generation was replaced twice in the meantime, OSError with EBADMSG when
        its files are not those that ``current`` describes."""
        self.current = current
        self._files = files = files or OsFiles()
        self._queue_path = path = directory / f"{current.generation}.queue"
        budget = MapBudget()
        mapping = try_map(files, path, None, budget, lambda: False)
        data = memoryview(mapping) if mapping is not None else memoryview(_whole(files, path))
        whole = current.messages * KEPT_DTYPE.itemsize
        if len(data) < whole:
            raise _damaged(path, f"{len(data)} bytes for {current.messages} messages")
        self.entries: npt.NDArray[Any] = np.frombuffer(data[:whole], KEPT_DTYPE)
        if (wrong := self._wrong_entry()) is not None:
            raise _damaged(path, f"entry {wrong} is impossible")
        path = directory / f"{current.generation}.log"
        mapping = try_map(files, path, None, budget, lambda: False)
        self._view = memoryview(mapping) if mapping is not None else None
        self._fd = -1
        if mapping is None:
            self._fd = files.open_read(path)
            weakref.finalize(self, files.close, self._fd)
        length = len(self._view) if self._view is not None else files.length(self._fd)
        if length < current.size_bytes:
            raise _damaged(path, f"{length} bytes instead of {current.size_bytes}")

    def is_before(self, position: int) -> bool:
        """Whether the kept records come from before a position of the log. Without any, nobody can tell them from
        those of a deleted topic: then the result is True."""
        if not len(self.entries):
            return True
        return self._log_position(len(self.entries) - 1) < position

    def _log_position(self, number: int) -> int:
        """Where in the log a kept record was."""
        position = int(self.entries["position"][number])
        head = self._bytes(position, _PLACE_BYTES)
        return record_position(head)

    def cut(self, low: int, log_begin: int) -> Current:
        """The first part of this generation: what the log does not have. ``low``: the first offset that it has;
        ``log_begin``: the position at which it begins."""
        count = int(self.entries["offset"].searchsorted(low))
        while count < len(self.entries) and self._log_position(count) < log_begin:
            count += 1  # the queue says less than the log has had
        end, size_bytes = low, 0
        if count:
            last = self.entries[count - 1]
            end = max(low, int(last["offset"]) + 1)
            size_bytes = int(last["position"]) + int(last["size"])
        is_partial = self.current.is_partial or end > 0
        return Current(self.current.generation, end, count, size_bytes, is_partial)

    def _wrong_entry(self) -> int | None:
        """The first entry that is not behind the one before, of some thousand spread over all."""
        count: int = len(self.entries)
        end = (-1, 0)
        step = max(1, count // _MAX_CHECKED)
        number: int
        for number in sorted({*range(0, count, step), count - 1} - {-1}):
            offset, position, size, _ = self.entries[number].tolist()
            is_next = step == 1 or number == 0
            in_order = position == end[1] if is_next else position > end[1] - 1
            if not (end[0] < offset < self.current.end and in_order and size > 0):
                return number
            end = offset, position + size
        is_whole: bool = end[1] == self.current.size_bytes
        return None if is_whole else count - 1

    @property
    def view(self) -> memoryview:
        """All records; a copy where they cannot be mapped."""
        return self._bytes(0, self.current.size_bytes)

    def _bytes(self, position: int, size: int) -> memoryview:
        """Fewer, or none, when an entry says what cannot be."""
        size = min(size, self.current.size_bytes - position)
        if position < 0 or size <= 0:
            return memoryview(b"")
        if self._view is None:
            return memoryview(self._files.read_at(self._fd, size, position))
        return self._view[position : position + size]

    def record(self, offset: int) -> memoryview:
        """The record at this offset. Raises KeyError when it was not kept."""
        index = int(self.entries["offset"].searchsorted(offset))
        if index == len(self.entries) or int(self.entries["offset"][index]) != offset:
            raise KeyError(offset)
        position, size = int(self.entries["position"][index]), int(self.entries["size"][index])
        return self._bytes(position, size)

    def get(
        self, offset: int, max_messages: int, max_bytes: int, tag_codes: frozenset[int] | None
    ) -> tuple[list[tuple[int, memoryview]], int]:
        """Kept records from ``offset`` on with their offsets, unchecked, and the offset at which the reader
        continues. Raises OSError, EBADMSG for entries that are out of order."""
        first = int(self.entries["offset"].searchsorted(offset))
        rest = self.entries[first:]
        if tag_codes:
            rest = rest[np.isin(rest["tags_code"], list(tag_codes))]
        chosen = rest[: max(1, max_messages)]
        within = int(chosen["size"].astype(np.int64).cumsum().searchsorted(max_bytes, "right"))
        chosen = chosen[: max(1, within)]
        if not len(chosen):
            return [], self.current.end
        near = rest["offset"][
            : len(chosen) + 1
        ].tolist()  # with the next one: the reader may not be led past it
        if not all(low < high for low, high in itertools.pairwise([offset - 1, *near, self.current.end])):
            raise _damaged(self._queue_path, f"entries from offset {offset} on are out of order")
        found = [(at, self._bytes(position, size)) for at, position, size, _ in chosen.tolist()]
        return found, found[-1][0] + 1


def sound_record(record: memoryview, topic: str, queue_id: int, offset: int) -> CheckedRecord | None:
    """A kept record as it is checked; None for what is damaged, or is not the one of its entry."""
    checked = check_record(record, 0, len(record), verify_crc=True)
    if checked.verdict is not Verdict.VALID or checked.size_bytes != len(record):
        return None
    is_own = (checked.topic, checked.queue_id, checked.queue_offset) == (topic, queue_id, offset)
    return checked if is_own else None


def generations(root: Path, files: FileLayer) -> Iterator[tuple[str, int, Generation | str]]:
    """Topic, queue id and current generation of each compacted queue, or what is wrong if it cannot be served.
    ``root``: storePathRootDir."""
    for topic in sorted(files.names(root / COMPACTED)):
        names = files.names(path_below(root / COMPACTED, topic))
        queue_ids = [int(name) for name in names if name.isascii() and name.isdigit()]
        for queue_id in sorted(queue_ids):
            directory = path_below(root / COMPACTED, topic, queue_id)
            try:
                current = read_current(directory, files)
                generation = Generation(directory, current, files) if current is not None else None
            except OSError as error:
                yield topic, queue_id, str(error)
                continue
            if generation is not None:
                yield topic, queue_id, generation


def _whole(files: FileLayer, path: Path) -> bytes:
    """The content of a file that cannot be mapped."""
    fd = files.open_read(path)
    try:
        return files.read_at(fd, files.length(fd), 0)
    finally:
        files.close(fd)


class CompactedQueues:
    """The compacted queues of a store, as its broker serves them."""

    def __init__(
        self,
        root: Path,
        files: FileLayer,
        monotonic_ms: Callable[[], int],
        deleted: Mapping[str, int] = MappingProxyType({}),
        note: Note = lambda damage: None,
    ) -> None:
        """``deleted``: the positions of deletions as they are now (``Deletions.positions``). ``note`` receives the
        damage that readers meet."""
        self._note = note
        self._store = root
        self._deleted = deleted
        self._files = files
        self._root = root / COMPACTED
        self._monotonic_ms = monotonic_ms
        self._topics: frozenset[str] | None = None
        """The directory's names; None before the first look."""
        self._topics_at_ms = -LOOK_MS
        self._known: dict[str, dict[int, tuple[int, Generation | None]]] = {}
        """By topic and queue id."""
        # Cached: RocketMQ does not run on the directory at the same time, so this does not change.
        self._their_topics: set[str] | None = None
        self._theirs: dict[str, dict[int, RocketCompaction]] = {}

    def _is_theirs(self, topic: str) -> bool:
        if self._their_topics is None:
            # A kill while a topic is forgotten may leave entries alone.
            entries = self._files.names(self._store / COMPACTION / "compactionCq")
            self._their_topics = topics_compacted_by_rocketmq(self._store, self._files).union(entries)
        return topic in self._their_topics

    def _rocketmq(self, topic: str, queue_id: int) -> RocketCompaction | None:
        if not self._is_theirs(topic):
            return None
        found = self._theirs.get(topic, {}).get(queue_id)
        if found is None:
            found = RocketCompaction(self._store, topic, queue_id, self._files)
            if not found:  # clients may ask for any queue id: cache only existing queues
                return None
            self._theirs.setdefault(topic, {})[queue_id] = found
        return found

    def _generation(self, topic: str, queue_id: int) -> Generation | None:
        now_ms = self._monotonic_ms()
        if now_ms - self._topics_at_ms >= LOOK_MS:
            self._look(now_ms)
        if self._topics is None or topic not in self._topics:
            return None
        looked_at_ms, known = self._known.get(topic, {}).get(queue_id, (-LOOK_MS, None))
        if now_ms - looked_at_ms >= LOOK_MS:
            directory = path_below(self._root, topic, queue_id)
            current = read_current(directory, self._files)
            if current is None:
                known = None
            elif known is None or known.current != current:
                known = Generation(directory, current, self._files)
                deleted_at = self._deleted.get(topic)
                if deleted_at is not None and known.is_before(deleted_at):
                    known = None
                    self._files.remove_tree(directory)
            if known is not None:  # clients may ask for any queue id
                self._known.setdefault(topic, {})[queue_id] = now_ms, known
            else:
                self._known.get(topic, {}).pop(queue_id, None)
        return known

    def _look(self, now_ms: int) -> None:
        """Without a descriptor, for example, what was found before is good enough: a topic that nobody compacts needs
        none. Raises OSError at the first look: the log alone would lead readers past what is kept."""
        try:
            self._topics = frozenset(self._files.names(self._root))
        except OSError:
            if self._topics is None:
                raise
        self._topics_at_ms = now_ms

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
        log_bounds: Callable[[str, int], tuple[int, int]],
    ) -> GetResult | None:
        """Kept records, or None for what is not compacted and must be read from the log. ``log_bounds``:
        returns the offsets of a queue that the log has."""
        generation = self._generation(topic, queue_id)
        theirs = self._rocketmq(topic, queue_id)
        if (generation is None and theirs is None) or offset < 0:
            return None
        low, max_offset = log_bounds(topic, queue_id)
        if generation is not None and offset < generation.current.end:
            found, following = generation.get(offset, max_messages, max_bytes, tag_codes)
            buffers = [record for at, record in found if self._is_sound(topic, queue_id, at, record)]
        elif theirs is not None and offset < low:
            buffers, following = theirs.get(offset, low, max_messages, max_bytes, tag_codes)
        else:
            return None
        status = GetStatus.FOUND if buffers else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, following, 0, max_offset, buffers, len(buffers), sum(map(len, buffers)))

    def _is_sound(self, topic: str, queue_id: int, offset: int, record: memoryview) -> bool:
        """Whether a kept record can be served. One that is damaged is left out: its size may be wrong, and a client
        would drop every record after it."""
        if sound_record(record, topic, queue_id, offset) is not None:
            return True
        text = f"what compaction has kept of offset {offset} of queue {topic}/{queue_id} is damaged"
        lost = (LostOffsets(topic, queue_id, offset, offset + 1),)
        self._note(Damage("compaction.damaged", Outcome.LOST, text, queues=lost))
        return False

    def begins(self, topic: str, queue_id: int) -> bool:
        """Whether reading may begin at 0, even if the log begins later."""
        try:
            return (
                self._generation(topic, queue_id) is not None or self._rocketmq(topic, queue_id) is not None
            )
        except OSError:
            return True  # who reads is told

    def look_again(self) -> None:
        """Generations were published: the next reads serve them."""
        self._topics_at_ms = -LOOK_MS
        self._known = {
            topic: {queue_id: (-LOOK_MS, generation) for queue_id, (_, generation) in queues.items()}
            for topic, queues in self._known.items()
        }

    def cut(self, bounds: Callable[[str, int], tuple[int, int] | None], log_begin: int) -> list[str]:
        """The log may have lost its end: let each generation that has more than its queue end where the log begins, so
        that what is stored now in the place of what is gone is read from the log. ``bounds``: the first offset that
        the log has of a queue, and the first that it has not yet; None for an unknown queue. Returns the queues whose
        keys may have lost values. The caller holds ``COMPACT_LOCK``. Raises OSError."""
        partial = []
        for topic, queue_id, directory, generation in self._beyond(bounds):
            low, end = bounds(topic, queue_id) or (0, 0)
            current = generation.cut(low, log_begin)
            publish(directory, current, self._files)
            self._known.get(topic, {}).pop(queue_id, None)
            _log.warning(
                "queue %s/%d was compacted to offset %d and ends at %d now: it is compacted to %d",
                topic,
                queue_id,
                generation.current.end,
                end,
                current.end,
            )
            if current.is_partial:
                partial.append(f"{topic}/{queue_id}")
        return partial

    def is_beyond(self, bounds: Callable[[str, int], tuple[int, int] | None]) -> bool:
        """Whether ``cut`` would change anything."""
        return next(self._beyond(bounds), None) is not None

    def _beyond(
        self, bounds: Callable[[str, int], tuple[int, int] | None]
    ) -> Iterator[tuple[str, int, Path, Generation]]:
        """The generations that have more than their queues."""
        for topic in sorted(self._files.names(self._root)):
            for name in sorted(self._files.names(path_below(self._root, topic))):
                if not (name.isascii() and name.isdigit()):
                    continue
                directory = path_below(self._root, topic, int(name))
                found = bounds(topic, int(name))
                try:
                    current = read_current(directory, self._files)
                    if current is None or found is None or current.end <= found[1]:
                        continue
                    generation = Generation(directory, current, self._files)
                except OSError as error:
                    if error.errno not in (errno.EBADMSG, errno.ENOENT):
                        raise
                    continue  # who reads it is told
                yield topic, int(name), directory, generation

    def leave_out(self, deleted: Mapping[str, int]) -> None:
        """Remove what is left of deleted topics (``Deletions.positions``)."""
        kept = frozenset(self._files.names(self._root))
        for topic, position in deleted.items():
            if path_below(self._root, topic).name in kept and self._is_before(topic, position):
                self.forget(topic)

    def _is_before(self, topic: str, position: int) -> bool:
        """Whether the kept records of a topic come from before a position of the log."""
        for name in self._files.names(path_below(self._root, topic)):
            directory = path_below(self._root, topic) / name
            try:
                current = read_current(directory, self._files)
                generation = Generation(directory, current, self._files) if current is not None else None
            except OSError:
                if not self._is_rest_before(directory, position):
                    return False  # it may be of a new topic of this name; who reads it is told
                continue
            if generation is not None and len(generation.entries):
                return generation.is_before(position)
        return True

    def _is_rest_before(self, directory: Path, position: int) -> bool:
        """Whether what a kill may have left of a generation that was being removed has no record at or behind a
        position of the log."""
        for name in self._files.names(directory):
            if not name.endswith(".log"):
                continue
            fd = self._files.open_read(directory / name)
            try:
                head = self._files.read_at(fd, _PLACE_BYTES, 0)
            finally:
                self._files.close(fd)
            if len(head) == _PLACE_BYTES and record_position(head) >= position:
                return False
        return True

    def forget(self, topic: str) -> None:
        """Remove the generations of a deleted topic, and RocketMQ's compaction of it. RocketMQ keeps the
        latter, and then accepts no message of a new topic of the same name until its offsets are higher."""
        if self._is_theirs(topic):
            for name in ("compactionLog", "compactionCq"):
                self._files.remove_tree(path_below(self._store / COMPACTION, name, topic))
            self._theirs.pop(topic, None)
            if self._their_topics is not None:
                self._their_topics.discard(topic)
        self._known.pop(topic, None)
        self._files.remove_tree(path_below(self._root, topic))


class GenerationWriter:
    """Writes ``<n>.log`` and ``<n>.queue`` under temporary names; ``finish`` makes them durable."""

    def __init__(self, directory: Path, name: str, files: FileLayer | None = None) -> None:
        self._files = files = files or OsFiles.like(directory.parent.parent)
        files.make_directory(directory, durable=True)
        self.log_path = directory / f"{name}.log.tmp"
        self.queue_path = directory / f"{name}.queue.tmp"
        self._log = _Growing(files, self.log_path)
        self._queue = _Growing(files, self.queue_path)
        self.messages = 0
        self.size_bytes = 0

    def append(self, record: bytes | memoryview, offset: int, tags_code: int) -> None:
        """Append a record. Offsets must be ascending."""
        self._queue.write(np.array([(offset, self.size_bytes, len(record), tags_code)], KEPT_DTYPE).tobytes())
        self._log.write(record)
        self.size_bytes += len(record)
        self.messages += 1

    def finish(self) -> None:
        for file in (self._log, self._queue):
            file.finish()

    def abandon(self) -> None:
        """Remove the files, which may take the space that others need."""
        for file, path in ((self._log, self.log_path), (self._queue, self.queue_path)):
            file.close()
            self._files.remove(path)


class _Growing:
    """A file that is written sequentially, a MiB at a time."""

    __slots__ = ("__weakref__", "_buffer", "_fd", "_files", "_length", "_synced", "close")

    def __init__(self, files: FileLayer, path: Path) -> None:
        self._files = files
        self._fd = files.open(path, create=True)
        self.close = weakref.finalize(self, files.close, self._fd)
        files.set_length(self._fd, 0)  # left from an earlier attempt
        self._buffer = bytearray()
        self._length = self._synced = 0

    def write(self, data: bytes | memoryview) -> None:
        self._buffer += data
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self._files.write(self._fd, self._buffer, self._length)
        self._length += len(self._buffer)
        self._buffer = bytearray()
        if self._length - self._synced >= _SYNC_BYTES:
            self._files.sync(self._fd)
            self._synced = self._length

    def finish(self) -> None:
        self._write()
        self._files.sync(self._fd)
        self.close()
