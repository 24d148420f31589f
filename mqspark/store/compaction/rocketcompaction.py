"""Reads RocketMQ's own compacted queues, in a store directory that comes from RocketMQ.

    compaction/compactionLog/<topic>/<queue id>/<position>    records as in a CommitLog, with their queue offsets; their
                                                              physical offset is the position in this log

``compaction/compactionCq`` repeats this information and is not needed. A compaction writes its files to
``compacting``, renames those that they replace to ``<position>.delete``, moves its own up and unlinks the
others. So after a kill a record may be in any of these. A replica fetches missing records to ``replicating``
(CompactionLog). All directories are read: of a key the newest offset counts.

Nothing is written here. A broker serves from these files what its log no longer has, and the job ``compact``
converts them into generations (``mqspark.store.compaction.compactedqueues``).

Facts: docs/rocketmq/store.md#compaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mqspark.base.names import path_below
from mqspark.record.record import check_record, tags_code
from mqspark.record.recordlayout import QUEUE_OFFSET_AT
from mqspark.store.disk.files import FileLayer, OsFiles
from mqspark.store.disk.layout import file_start
from mqspark.store.index.keys import Ints
from mqspark.store.recovery.rebuild import SegmentRecords

COMPACTION = "compaction"

_LOOK_AT = 4096
"""Records that one read examines when few of them match a tag filter."""
_PLACES = ("", "compacting", "replicating")
_REPLACED = ".delete"


def compacted_by_rocketmq(root: Path, topic: str) -> bool:
    """Whether RocketMQ has compacted anything of the topic. ``root``: storePathRootDir."""
    name = path_below(root / COMPACTION, "compactionLog", topic).name
    return name in topics_compacted_by_rocketmq(root, OsFiles())


def topics_compacted_by_rocketmq(root: Path, files: FileLayer) -> set[str]:
    """The topics that RocketMQ has compacted. ``root``: storePathRootDir."""
    return set(files.names(root / COMPACTION / "compactionLog"))


class RocketCompaction:
    """One queue. Its truth value is False when RocketMQ has compacted nothing of it."""

    def __init__(self, root: Path, topic: str, queue_id: int, files: FileLayer | None = None) -> None:
        """``root``: storePathRootDir."""
        self._layer = files = files or OsFiles()
        directory = path_below(root / COMPACTION, "compactionLog", topic, queue_id)
        self._files = sorted(
            (start, place / name)
            for place in (directory / each for each in _PLACES)
            for name in files.names(place)
            if (start := file_start(name.removesuffix(_REPLACED))) is not None
        )
        self._known: tuple[Ints, Ints, Ints] | None = None
        self._views: list[memoryview] = []

    def __bool__(self) -> bool:
        return bool(self._files)

    def runs(self) -> Iterator[tuple[memoryview, Ints]]:
        """Positions of records in the view of a file, ascending, at most 65,536 at a time."""
        for start, path in self._files:
            fd = self._layer.open_read(path)
            try:
                length = self._layer.length(fd)
            finally:
                self._layer.close(fd)
            if length:
                records = SegmentRecords(path, start, length, files=self._layer)
                for positions in records.between(start, start + length):
                    yield records.view, positions

    def offsets(self, low: int, high: int) -> list[int]:
        """The kept offsets in [low, high), ascending. The first call reads all files."""
        offsets, _, _ = self._known or self._read_files()
        first, last = offsets.searchsorted([low, high])
        return [int(offset) for offset in offsets[first:last]]

    def record(self, offset: int) -> tuple[memoryview, int]:
        """The record at a queue offset, and its tags code. Raises KeyError when it was not kept."""
        offsets, views, positions = self._known or self._read_files()
        index = int(offsets.searchsorted(offset))
        if index == len(offsets) or int(offsets[index]) != offset:
            raise KeyError(offset)
        return self._at(int(views[index]), int(positions[index]))

    def _at(self, number: int, position: int) -> tuple[memoryview, int]:
        view = self._views[number]
        record = check_record(view, position, len(view), verify_crc=False)
        return view[position : position + record.size_bytes], tags_code(record.properties)

    def get(
        self, offset: int, end: int, max_messages: int, max_bytes: int, tag_codes: frozenset[int] | None
    ) -> tuple[list[memoryview], int]:
        """Kept records of the offsets [``offset``, ``end``), at least one if any matches, and the offset at
        which the reader continues.

        The first call reads all files.
        """
        offsets, views, positions = self._known or self._read_files()
        first, last = offsets.searchsorted([offset, end]).tolist()
        looked_at = min(last, first + _LOOK_AT)
        buffers: list[memoryview] = []
        size_bytes = 0
        for index in range(first, looked_at):
            record, code = self._at(int(views[index]), int(positions[index]))
            if tag_codes and code not in tag_codes:
                continue
            if buffers and (len(buffers) >= max_messages or size_bytes + len(record) > max_bytes):
                return buffers, int(offsets[index])
            buffers.append(record)
            size_bytes += len(record)
        return buffers, end if looked_at == last else int(offsets[looked_at])

    def _read_files(self) -> tuple[Ints, Ints, Ints]:
        """Ascending queue offsets, and for each its view and its position there."""
        columns: list[tuple[Ints, Ints, Ints]] = []
        for view, positions in self.runs():
            if not self._views or self._views[-1] is not view:
                self._views.append(view)
            longs = np.ndarray((len(view) - 7,), ">i8", buffer=view, strides=(1,))
            offsets = longs[positions + QUEUE_OFFSET_AT].astype(np.int64)
            columns.append((offsets, np.full(len(offsets), len(self._views) - 1), positions))
        if not columns:
            nothing = np.empty(0, np.int64)
            self._known = (nothing, nothing, nothing)
        else:
            offsets, views, positions = (np.concatenate(column) for column in zip(*columns, strict=True))
            # The later copy of an offset counts.
            order = np.argsort(offsets[::-1], kind="stable")
            order = len(offsets) - 1 - order
            first = np.flatnonzero(np.diff(offsets[order], prepend=-1))
            order = order[first]
            self._known = (offsets[order], views[order], positions[order])
        return self._known
