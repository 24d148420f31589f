"""The catalog of one broker's archive: which offsets of which queues it has, and in which files.

Only ranges of the log with a manifest count: their rows were compared with the log (``mqspark_jobs.archive``). Anyone
with write access to the storage can write anything, so everything is checked before use: names, numbers, and that no
file lies outside the table.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from mqspark.arrow.cluster.archives import MANIFESTS, refuse_older_table
from mqspark.arrow.files.deltafiles import DeltaFile, DeltaTable, delta_table
from mqspark.arrow.files.locations import join, names, read_bytes
from mqspark.errors import StoreCorrupt
from mqspark.store.disk.layout import is_storable_topic

MAX_PARTS = 5_000_000
"""Limit of parts of queues in all ranges together, some 300 bytes each."""
MAX_QUEUES = 200_000
"""Limit of queues in the archive. The broker holds the bounds of each in memory, and loads all at once."""
_MANIFESTS_AT_ONCE = 8
"""Manifests that are read concurrently."""
_INT64 = 1 << 63

Queue = tuple[str, int]


class RangeOfLog(NamedTuple):
    """[low, high) of the broker's log."""

    low: int
    high: int


class ArchivedPart(NamedTuple):
    """The offsets [first, end) of a queue within a range of the log."""

    first: int
    end: int
    range: RangeOfLog


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file with rows of one topic."""

    entry: DeltaFile
    low: int
    high: int
    """Physical offsets of its first and last row."""

    @property
    def url(self) -> str:
        return self.entry.url


class ArchiveCatalog:
    """The catalog. ``refresh`` reads new entries; all other methods answer from memory."""

    def __init__(self, url: str, broker: str) -> None:
        self._url = url
        self._broker = broker
        self._ranges: dict[str, tuple[RangeOfLog, dict[Queue, tuple[int, int]]]] = {}
        """Name of the manifest → its range and the offsets of each queue."""
        self._version = ""
        self._files: dict[str, list[ArchivedFile]] = {}
        self._parts: dict[Queue, list[ArchivedPart]] = {}

    def refresh(self, floors: Mapping[str, int]) -> None:
        """Read new manifests. ``floors``: topic → log position before which its records belong to a deleted topic of
        the same name. Raises StoreCorrupt, MQError, OSError and the errors of fsspec's file systems, and then changes
        nothing. Storage that answers with what it had earlier is refused: messages would be passed over."""
        root = join(self._url, MANIFESTS, self._broker)
        there = [name for name in names(root) if name.endswith(".json")]
        if max(self._ranges, default="") > max(there, default=""):
            raise StoreCorrupt(f"{root} lacks {max(self._ranges)}, which was there", path=root, offset=0)
        new = [name for name in there if name not in self._ranges]
        with ThreadPoolExecutor(_MANIFESTS_AT_ONCE) as pool:
            loaded = list(pool.map(lambda name: self._load(join(root, name)), new))
        ranges = {name: self._ranges[name] for name in there if name in self._ranges} | dict(
            zip(new, loaded, strict=True)
        )
        parts = _chained(sorted(ranges.values(), key=lambda each: each[0]), floors, self._url)
        log = [name for name in names(join(self._url, "_delta_log")) if name.endswith((".json", ".parquet"))]
        version = max(log, default="")
        if version < self._version:
            raise StoreCorrupt(
                f"the log of {self._url} lacks {self._version}, which was there", path=root, offset=0
            )
        if version != self._version or new:
            table = delta_table(self._url)
            if high := max((each.high for each, queues in ranges.values() if queues), default=0):
                refuse_older_table(self._url, table, self._broker, high)
            self._files = _files(self._url, table)
            self._version = version
        self._ranges, self._parts = ranges, parts

    def _load(self, url: str) -> tuple[RangeOfLog, dict[Queue, tuple[int, int]]]:
        try:
            return _checked(json.loads(read_bytes(url)), self._broker)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreCorrupt(f"{url} is not a manifest: {error}", path=url, offset=0) from None

    def bounds(self) -> Iterator[tuple[str, int, int, int]]:
        """(topic, queue id, first offset, end offset) of the archived part of each queue."""
        for (topic, queue_id), parts in self._parts.items():
            yield topic, queue_id, parts[0].first, parts[-1].end

    def parts(self, topic: str, queue_id: int, offset: int) -> list[ArchivedPart]:
        """The parts of the queue with offsets at or after ``offset``, in order."""
        found = self._parts.get((topic, queue_id), [])
        return found[bisect.bisect_right(found, offset, key=lambda part: part.end) :]

    def part_of(self, topic: str, queue_id: int, wanted: RangeOfLog) -> ArchivedPart | None:
        """The part of the queue within the range."""
        found = self._parts.get((topic, queue_id), [])
        place = bisect.bisect_left(found, wanted.low, key=lambda part: part.range.low)
        return found[place] if place < len(found) and found[place].range == wanted else None

    def files(self, topic: str, wanted: RangeOfLog) -> list[ArchivedFile]:
        """The files of the topic with rows of a range of the log."""
        return [
            file for file in self._files.get(topic, []) if file.low < wanted.high and file.high >= wanted.low
        ]


def _checked(manifest: Any, broker: str) -> tuple[RangeOfLog, dict[Queue, tuple[int, int]]]:
    low, high = manifest["low"], manifest["high"]
    if manifest["broker"] != broker or not _is_range(low, high):
        raise ValueError(f"its range {str((low, high))[:80]} is invalid, or belongs to another broker")
    queues: dict[Queue, tuple[int, int]] = {}
    for topic, ends in manifest["queues"].items():
        if not is_storable_topic(topic):
            raise ValueError("a topic name is invalid")
        for queue_id, (first, end) in ends.items():
            if not queue_id.isdecimal() or len(queue_id) > 10 or not _is_range(first, end):
                raise ValueError(f"the offsets of queue {queue_id[:20]!r} are invalid")
            queues[topic, int(queue_id)] = (first, end)
    return RangeOfLog(low, high), queues


def _is_range(low: Any, high: Any) -> bool:
    return type(low) is int and type(high) is int and 0 <= low < high < _INT64


def _chained(
    ranges: list[tuple[RangeOfLog, dict[Queue, tuple[int, int]]]], floors: Mapping[str, int], url: str
) -> dict[Queue, list[ArchivedPart]]:
    """The parts of each queue, only of the newest incarnation of its topic: its offsets ascend with the log."""
    parts: dict[Queue, list[ArchivedPart]] = {}
    count = 0
    end = 0
    for each, queues in ranges:
        if each.low < end:
            raise StoreCorrupt(f"{url}: ranges of the log overlap at {each.low}", path=url, offset=each.low)
        end = each.high
        count += len(queues)
        if count > MAX_PARTS:
            raise StoreCorrupt(f"{url}: more than {MAX_PARTS} parts of queues", path=url, offset=each.low)
        if len(parts) > MAX_QUEUES:
            raise StoreCorrupt(f"{url}: more than {MAX_QUEUES} queues", path=url, offset=each.low)
        for queue, (first, last) in queues.items():
            known = parts.setdefault(queue, [])
            if each.low < floors.get(queue[0], 0):
                known.clear()
                continue
            if known and known[-1].end > first:
                known.clear()
            known.append(ArchivedPart(first, last, each))
    return {queue: found for queue, found in parts.items() if found}


def _files(url: str, table: DeltaTable) -> dict[str, list[ArchivedFile]]:
    files: dict[str, list[ArchivedFile]] = {}
    root = join(url, "")
    for each in table.files:
        topic = each.partition.get("topic")
        path = each.url.removeprefix(root)
        inside = (
            each.url.startswith(root) and not {"", ".", ".."} & set(path.split("/")) and "://" not in path
        )
        if not inside or topic is None or not is_storable_topic(topic):
            raise StoreCorrupt(
                f"{url} names the file {each.url[:200]!r}, which is not in it", path=url, offset=0
            )
        low, high = each.lowest.get("physicalOffset"), each.highest.get("physicalOffset")
        if type(low) is not int or type(high) is not int:
            low, high = 0, _INT64 - 1  # without statistics the file may hold any row
        files.setdefault(topic, []).append(ArchivedFile(each, low, high))
    for found in files.values():
        found.sort(key=lambda file: (file.low, file.url))
    return files
