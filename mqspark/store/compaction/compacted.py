"""Compacted queues: the last value of each key, at its original offset, in files of ours beside RocketMQ's.

    mqspark.compacted/<topic>/<queue id>/current     which generation counts, and up to which offset (JSON)
    mqspark.compacted/<topic>/<queue id>/<n>.log     the kept records, as they were in the CommitLog, back to back
    mqspark.compacted/<topic>/<queue id>/<n>.queue   28 bytes each: queue offset i64, position in <n>.log i64, size i32,
                                                     tags code i64 (little-endian), by offset

Offsets below ``end`` come from the generation, all others from the log, so what arrives after a compaction is read as
ever. What lies between them, because the log has expired under a RocketMQ broker, comes from what that has compacted
(``mqspark.store.compaction.rocketcompaction``). ``current`` is replaced by renaming when the files it names
are on disk: a read sees one generation, never a mix.
The generation before stays until the next one comes, for readers that are about to open it.

Compaction itself is a Spark job (``mqspark_jobs.compact``), a process of its own; the store reads here and never
writes. Both go through the file layer. Semantics: reference store-and-broker §18. Must not know the CommitLog.
"""

from __future__ import annotations

import json
import struct
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqspark.errors import ConfigError
from mqspark.names import path_below
from mqspark.store.compaction.rocketcompaction import (
    COMPACTION,
    RocketCompaction,
    compacted_by_rocketmq,
    topics_compacted_by_rocketmq,
)
from mqspark.store.disk.files import FileLayer, OsFiles
from mqspark.store.disk.mapping import MapBudget, try_map
from mqspark.store.messages.fetch import GetResult, GetStatus

__all__ = [
    "COMPACTED",
    "CompactedQueues",
    "Current",
    "Generation",
    "GenerationWriter",
    "compaction_topics",
    "is_compacted",
    "publish",
    "read_current",
]

COMPACTED = "mqspark.compacted"
KEPT_DTYPE = np.dtype([("offset", "<i8"), ("position", "<i8"), ("size", "<i4"), ("tags_code", "<i8")])
_LOOK_MS = 1000
"""How old the knowledge of ``current`` may be."""
_WRITE_BYTES = 1 << 20
_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28
"""In a record."""


@dataclass(slots=True, frozen=True)
class Current:
    """What ``current`` says."""

    generation: int
    end: int
    """Offsets below are in the generation, or compacted away."""
    messages: int
    size_bytes: int


def read_current(directory: Path, files: FileLayer | None = None) -> Current | None:
    data = (files or OsFiles()).read(directory / "current")
    return Current(**json.loads(data)) if data is not None else None


def publish(directory: Path, current: Current, files: FileLayer | None = None) -> None:
    """Make a complete generation the one that counts, then remove those that nobody can be about to open. Raises
    OSError."""
    files = files or OsFiles.like(directory)
    temporary = directory / "current.tmp"
    fd = files.open(temporary, create=True)
    try:
        files.set_length(fd, 0)
        files.write(fd, json.dumps(asdict(current)).encode(), 0)
        files.sync(fd)
    finally:
        files.close(fd)
    # First the names of the files that ``current`` means, then its own.
    files.sync_directory(directory)
    files.rename(temporary, directory / "current")
    files.sync_directory(directory)
    for name in files.names(directory):
        number = name.partition(".")[0]
        if number.isdigit() and int(number) < current.generation - 1:
            files.remove(directory / name)


def compaction_topics(root: Path) -> list[str]:
    """Those that the broker's table says to have cleanup.policy=COMPACTION, sorted. ``root``: storePathRootDir. Raises
    ConfigError when there is no table or it is none."""
    path = root / "config" / "topics.json"
    data = OsFiles().read(path)
    if data is None:
        raise ConfigError(f"store: {path} does not exist", key="store")
    try:
        table = json.loads(data)["topicConfigTable"]
        return sorted(
            name
            for name, topic in table.items()
            if (topic.get("attributes") or {}).get("cleanup.policy") == "COMPACTION"
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(f"store: {path} is no table of topics", key="store") from None


def is_compacted(root: Path, topic: str) -> bool:
    """Whether the log alone is not what the broker serves of a topic. ``root``: storePathRootDir."""
    topic_name = path_below(root / COMPACTED, topic).name
    return topic_name in OsFiles().names(root / COMPACTED) or compacted_by_rocketmq(root, topic)


class Generation:
    """One generation, mapped, or copied from its open file where it cannot be mapped."""

    __slots__ = ("__weakref__", "_fd", "_files", "_view", "current", "entries")

    def __init__(self, directory: Path, current: Current, files: FileLayer | None = None) -> None:
        """Raises FileNotFoundError when it was replaced twice meanwhile."""
        self.current = current
        self._files = files = files or OsFiles()
        path, budget = directory / f"{current.generation}.queue", MapBudget()
        mapping = try_map(files, path, None, budget, lambda: False)
        data = memoryview(mapping) if mapping is not None else memoryview(_whole(files, path))
        whole = len(data) - len(data) % KEPT_DTYPE.itemsize
        self.entries: npt.NDArray[Any] = np.frombuffer(data[:whole], KEPT_DTYPE)
        path = directory / f"{current.generation}.log"
        mapping = try_map(files, path, None, budget, lambda: False)
        self._view = memoryview(mapping) if mapping is not None else None
        self._fd = -1
        if mapping is None:
            self._fd = files.open_read(path)
            weakref.finalize(self, files.close, self._fd)

    @property
    def view(self) -> memoryview:
        """All records; a copy where they cannot be mapped."""
        return self._view if self._view is not None else self._bytes(0, self._files.length(self._fd))

    def _bytes(self, position: int, size: int) -> memoryview:
        if self._view is None:
            return memoryview(self._files.read_at(self._fd, size, position))
        return self._view[position : position + size]

    def record(self, offset: int) -> memoryview:
        """Raises KeyError for an offset that is not kept."""
        index = int(self.entries["offset"].searchsorted(offset))
        if index == len(self.entries) or int(self.entries["offset"][index]) != offset:
            raise KeyError(offset)
        position, size = int(self.entries["position"][index]), int(self.entries["size"][index])
        return self._bytes(position, size)

    def get(
        self, offset: int, max_messages: int, max_bytes: int, tag_codes: frozenset[int] | None
    ) -> tuple[list[memoryview], int, int]:
        """Kept records from ``offset`` on, how many, and where the reader goes on."""
        first = int(self.entries["offset"].searchsorted(offset))
        rest = self.entries[first:]
        if tag_codes:
            rest = rest[np.isin(rest["tags_code"], list(tag_codes))]
        chosen = rest[: max(1, max_messages)]
        within = int(chosen["size"].astype(np.int64).cumsum().searchsorted(max_bytes, "right"))
        chosen = chosen[: max(1, within)]
        if not len(chosen):
            return [], 0, self.current.end
        bounds = zip(chosen["position"].tolist(), chosen["size"].tolist(), strict=True)
        buffers = [self._bytes(position, size) for position, size in bounds]
        return buffers, len(chosen), int(chosen["offset"][-1]) + 1


def _whole(files: FileLayer, path: Path) -> bytes:
    """Of a file that cannot be mapped."""
    fd = files.open_read(path)
    try:
        return files.read_at(fd, files.length(fd), 0)
    finally:
        files.close(fd)


class CompactedQueues:
    """What of a store's queues is compacted, as its broker serves it."""

    def __init__(self, root: Path, files: FileLayer, monotonic_ms: Callable[[], int]) -> None:
        self._store = root
        self._files = files
        self._root = root / COMPACTED
        self._monotonic_ms = monotonic_ms
        self._topics: frozenset[str] = frozenset()
        self._topics_at_ms = -_LOOK_MS
        self._known: dict[tuple[str, int], tuple[int, Generation | None]] = {}
        # RocketMQ does not serve the directory as long as we do: nothing of this changes.
        self._their_topics: set[str] | None = None
        self._theirs: dict[tuple[str, int], RocketCompaction] = {}

    def _rocketmq(self, topic: str, queue_id: int) -> RocketCompaction | None:
        if self._their_topics is None:
            self._their_topics = topics_compacted_by_rocketmq(self._store, self._files)
        if topic not in self._their_topics:
            return None
        found = self._theirs.get((topic, queue_id))
        if found is None:
            found = RocketCompaction(self._store, topic, queue_id, self._files)
            if not found:  # anybody may ask for any queue id: only what is there is kept
                return None
            self._theirs[topic, queue_id] = found
        return found

    def _generation(self, topic: str, queue_id: int) -> Generation | None:
        now_ms = self._monotonic_ms()
        if now_ms - self._topics_at_ms >= _LOOK_MS:
            self._topics_at_ms = now_ms
            self._topics = frozenset(self._files.names(self._root))
        if topic not in self._topics:
            return None
        looked_at_ms, known = self._known.get((topic, queue_id), (-_LOOK_MS, None))
        if now_ms - looked_at_ms >= _LOOK_MS:
            directory = path_below(self._root, topic, queue_id)
            current = read_current(directory, self._files)
            if current is None:
                known = None
            elif known is None or known.current != current:
                known = Generation(directory, current, self._files)
            if known is not None:  # anybody may ask for any queue id
                self._known[(topic, queue_id)] = now_ms, known
            else:
                self._known.pop((topic, queue_id), None)
        return known

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
        """None for what is not compacted: the log has it. ``log_bounds``: which offsets of a queue that are."""
        generation = self._generation(topic, queue_id)
        theirs = self._rocketmq(topic, queue_id)
        if (generation is None and theirs is None) or offset < 0:
            return None
        low, max_offset = log_bounds(topic, queue_id)
        if generation is not None and offset < generation.current.end:
            buffers, count, following = generation.get(offset, max_messages, max_bytes, tag_codes)
        elif theirs is not None and offset < low:
            buffers, following = theirs.get(offset, low, max_messages, max_bytes, tag_codes)
            count = len(buffers)
        else:
            return None
        status = GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, following, 0, max_offset, buffers, count, sum(map(len, buffers)))

    def begins(self, topic: str, queue_id: int) -> bool:
        """Whether reading may begin at 0, whatever the log still has."""
        return self._generation(topic, queue_id) is not None or self._rocketmq(topic, queue_id) is not None

    def leave_out(self, deleted: Mapping[str, int]) -> None:
        """Remove what is left of deleted topics (``Deletions.positions``)."""
        kept = frozenset(self._files.names(self._root))
        for topic, position in deleted.items():
            if path_below(self._root, topic).name in kept and self._is_before(topic, position):
                self.forget(topic)

    def _is_before(self, topic: str, position: int) -> bool:
        """Whether the records that are kept of it lay before a position of the log."""
        for name in self._files.names(path_below(self._root, topic)):
            directory = path_below(self._root, topic) / name
            current = read_current(directory, self._files)
            generation = Generation(directory, current, self._files) if current is not None else None
            if generation is not None and len(generation.entries):
                offset = int(generation.entries["offset"][-1])
                (at,) = _PHYSICAL_OFFSET.unpack_from(generation.record(offset), _PHYSICAL_OFFSET_AT)
                return bool(at < position)
        return True

    def forget(self, topic: str) -> None:
        """The topic was deleted: its generations go, and what RocketMQ has compacted of it. RocketMQ itself leaves that
        and then takes no message of a new topic of the name until its offsets are higher."""
        for key in [key for key in self._theirs if key[0] == topic]:
            del self._theirs[key]
        if self._their_topics is not None:
            self._their_topics.discard(topic)
        for name in ("compactionLog", "compactionCq"):
            self._files.remove_tree(path_below(self._store / COMPACTION, name, topic))
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]
        self._files.remove_tree(path_below(self._root, topic))


class GenerationWriter:
    """Writes ``<n>.log`` and ``<n>.queue`` under names of its own; ``finish`` makes them durable."""

    def __init__(self, directory: Path, name: str, files: FileLayer | None = None) -> None:
        files = files or OsFiles.like(directory.parent.parent)
        files.make_directory(directory, durable=True)
        self.log_path = directory / f"{name}.log.tmp"
        self.queue_path = directory / f"{name}.queue.tmp"
        self._log = _Growing(files, self.log_path)
        self._queue = _Growing(files, self.queue_path)
        self.messages = 0
        self.size_bytes = 0

    def append(self, record: bytes | memoryview, offset: int, tags_code: int) -> None:
        """In ascending order of offsets."""
        self._queue.write(np.array([(offset, self.size_bytes, len(record), tags_code)], KEPT_DTYPE).tobytes())
        self._log.write(record)
        self.size_bytes += len(record)
        self.messages += 1

    def finish(self) -> None:
        for file in (self._log, self._queue):
            file.finish()


class _Growing:
    """A file that is written from its beginning to its end, a MiB at a time."""

    __slots__ = ("__weakref__", "_buffer", "_close", "_fd", "_files", "_length")

    def __init__(self, files: FileLayer, path: Path) -> None:
        self._files = files
        self._fd = files.open(path, create=True)
        self._close = weakref.finalize(self, files.close, self._fd)
        files.set_length(self._fd, 0)  # of an earlier attempt
        self._buffer = bytearray()
        self._length = 0

    def write(self, data: bytes | memoryview) -> None:
        self._buffer += data
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self._files.write(self._fd, self._buffer, self._length)
        self._length += len(self._buffer)
        self._buffer = bytearray()

    def finish(self) -> None:
        self._write()
        self._files.sync(self._fd)
        self._close()
