"""BatchConsumeQueues: the queues of a topic with ``queue.type=BatchCQ``, where a record holds several
messages.

An entry (46 bytes) has the position of an inner-batch record, its store time, the queue offset of its first
message and the number of messages (BatchConsumeQueue). Entries are contiguous from the beginning of the
queue's space, whatever their offsets. The array of entries is a ConsumeQueue whose offsets are entry numbers;
this class maps them to message offsets. A lost record needs no filler, because the next entry has its own
base offset.

Must not know the log.

Facts: docs/rocketmq/store.md#batchconsumequeue.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mqspark.base.bounded import Ledger
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.queue.consumequeue import ConsumeQueue
from mqspark.store.queue.mapped import Entries
from mqspark.store.queue.queuetable import QueueTable

BATCH_ENTRY = struct.Struct(">qiqqqhii")
BATCH_DTYPE = np.dtype(
    [
        ("position", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_ms", ">i8"),
        ("base", ">i8"),
        ("count", ">i2"),
        ("compacted", ">i4"),
        ("reserved", ">i4"),
    ]
)
NO_COMPACTED_OFFSET = -1
_ORDER_ROWS = 1 << 15
MAX_BATCH = 0x7FFF
"""Most messages in one record."""


class BatchEntry(NamedTuple):
    position: int
    size: int
    tags_code: int
    store_ms: int
    base: int
    """Queue offset of the record's first message."""
    messages: int
    compacted: int = NO_COMPACTED_OFFSET
    reserved: int = 0

    def pack(self) -> bytes:
        return BATCH_ENTRY.pack(*self)

    def precedes(self, other: BatchEntry) -> bool:
        """Whether its record and its offsets end before those of another entry begin."""
        return self.position + self.size <= other.position and self.base + self.messages <= other.base


class BatchQueue:
    """One queue, in offsets of messages. ``max_offset``: end of what consumers may see. ``next_offset``:
    offset of the next put."""

    __slots__ = ("_max_offset", "array", "floor", "next_offset")

    def __init__(self, array: ConsumeQueue) -> None:
        self.array = array
        """The entries, by number."""
        self._max_offset = -1
        self.next_offset = 0
        self.floor = 0
        """Offsets below this one are not assigned, even if no entry has them."""

    def __repr__(self) -> str:
        return f"BatchQueue({self.topic!r}, {self.queue_id}, [{self.min_offset}, {self.max_offset}))"

    @property
    def topic(self) -> str:
        return self.array.topic

    @property
    def queue_id(self) -> int:
        return self.array.queue_id

    @property
    def entries(self) -> bytearray:
        """Entries of the records appended since the last commit, not visible yet."""
        return self.array.entries

    @property
    def max_offset(self) -> int:
        if self._max_offset < 0:
            last = self.entry(self.array.max_offset - 1) if self.array.max_offset else None
            self._max_offset = last.base + last.messages if last is not None else 0
        return self._max_offset

    @property
    def min_offset(self) -> int:
        """Offset of the first record that the log still has; the max offset when there is none."""
        first = self.entry(self.array.min_offset) if self.array.min_offset < self.array.max_offset else None
        return first.base if first is not None else self.max_offset

    def reserve(self) -> None:
        """Allocate room for one more entry. Raises DiskFull with nothing changed."""
        if self.array.next_offset >= self.array.reserved_end:
            self.array.reserve(1)

    def advance(self, entry: BatchEntry) -> None:
        """Give the next offsets to the messages of an entry, visible after the next commit. Its room must be
        reserved."""
        self.array.advance(entry.pack())
        self.next_offset = entry.base + entry.messages

    def take_entries(self) -> bytearray:
        """The entries that the next commit makes visible."""
        return self.array.take_entries()

    def show(self) -> tuple[str, int, int]:
        """Make them visible. Returns topic, queue id and max offset. Has the entries still after an OSError."""
        entries = self.array.entries
        self.array.show()
        return self._shown(entries)

    def settle(self, entry: BatchEntry) -> None:
        """Append an entry that is visible at once. Raises DiskFull, OSError."""
        self.array.reserve(1)
        self.array.settle(entry.pack())
        self._max_offset = -1
        self.next_offset = entry.base + entry.messages

    def skip_to(self, offset: int) -> None:
        """Leave out the offsets below this one."""
        self.floor = offset
        self.next_offset = max(self.next_offset, offset)

    def append(self, entries: bytes | bytearray) -> tuple[str, int, int]:
        """Make entries visible. Returns topic, queue id and max offset."""
        self.array.append(entries)
        return self._shown(entries)

    def _shown(self, entries: bytes | bytearray) -> tuple[str, int, int]:
        # Not read from the file: after an error they would be appended once more.
        if entries:
            last = BatchEntry(*BATCH_ENTRY.unpack_from(entries, len(entries) - BATCH_ENTRY.size))
            self._max_offset = last.base + last.messages
        return self.topic, self.queue_id, self.max_offset

    def recovered(self) -> None:
        """Set the offsets from the array, once recovery has finished it."""
        self._max_offset = -1
        self.next_offset = max(self.max_offset, self.floor)

    def entry(self, number: int) -> BatchEntry | None:
        """The entry, visible or not; None when no file has it."""
        data = self.array.packed_entry(number)
        return BatchEntry(*BATCH_ENTRY.unpack(data)) if data is not None else None

    def read(self, number: int, limit: int) -> Entries:
        """Visible entries from a number on, up to ``limit`` of them and the end of their file."""
        return self.array.read(number, limit)

    def check_order(self, most: int) -> int:
        """Check that the visible entries are in the order of the log and of their offsets, if there are at most
        ``most``. Otherwise note a doubt in the table: such an entry hides messages, and the search for an offset
        passes by others. Returns the number of entries read. Raises OSError."""
        array = self.array
        first = array.first_file_offset if array.file_starts else 0
        if array.max_offset - first > most:
            return 0
        end = (-1, -1)
        for low in range(first, array.max_offset, _ORDER_ROWS):
            data = array.rows(low, min(low + _ORDER_ROWS, array.max_offset))
            rows = np.frombuffer(data, BATCH_DTYPE)
            ends = np.column_stack((rows["position"] + rows["size"], rows["base"] + rows["count"]))
            before = np.vstack((np.array([end], np.int64), ends[:-1]))
            wrong = (rows["size"] <= 0) | (rows["count"] <= 0) | (rows["base"] < 0) | (rows["position"] < 0)
            wrong |= (rows["position"] < before[:, 0]) | (rows["base"] < before[:, 1])
            if wrong.any():
                number = low + int(np.argmax(wrong))
                text = f"entry {number} is out of order"  # because of itself, or of those before
                array.doubt(number, "queue.differs", text)
                break
            end = (int(ends[-1, 0]), int(ends[-1, 1]))
        return array.max_offset - first

    def number_of(self, offset: int) -> int:
        """Number of the entry that contains an offset of [min_offset, max_offset), or of the next one when
        the record is lost."""
        return self._first_after(lambda entry: entry.base + entry.messages <= offset)

    def _first_after(self, is_before: Callable[[BatchEntry], bool]) -> int:
        low, high = self.array.min_offset, self.array.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and is_before(entry):
                low = middle + 1
            else:
                high = middle
        return low

    def offset_by_time(self, timestamp_ms: int) -> int:
        """Offset of the first message of the first record stored at or after a time; the max offset when
        there is none."""
        number = self._first_after(lambda entry: entry.store_ms < timestamp_ms)
        entry = self.entry(number) if number < self.array.max_offset else None
        return entry.base if entry is not None else self.max_offset


class BatchTable(QueueTable):
    """All BatchConsumeQueues of a store. ``queues`` are their arrays, ``batch_queues`` the queues
    themselves."""

    def __init__(
        self,
        directory: Path,
        files: FileLayer,
        *,
        file_bytes: int,
        max_mapped: int,
        budget: MapBudget | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__(
            directory,
            files,
            file_bytes=file_bytes,
            max_mapped=max_mapped,
            budget=budget,
            ledger=ledger,
            dtype=BATCH_DTYPE,
        )
        self.batch_queues: dict[tuple[str, int], BatchQueue] = {}

    def load(self, batch_directory: Path | None = None) -> None:
        """Find every queue. A store without any gets no directory for them."""
        if self.files.names(self.directory):
            super().load(batch_directory)

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        array = super().create(topic, queue_id)
        self.batch_queues[array.key] = BatchQueue(array)
        return array

    def hide_topics(self, topics: Set[str]) -> None:
        super().hide_topics(topics)
        self._follow()

    def leave_out(self, positions: Mapping[str, int], *, remove: bool = False) -> None:
        super().leave_out(positions, remove=remove)
        self._follow()

    def _follow(self) -> None:
        for key in self.batch_queues.keys() - self.queues.keys():
            del self.batch_queues[key]


def batch_topics(topics_file: Path, files: FileLayer) -> set[str]:
    """The topics with BatchCQ queues according to the broker's topic table, or its ``.bak``, in case the queues
    themselves are gone.

    Empty when the table cannot be read; the broker reports that.
    """
    file = ConfigFile(topics_file, files)
    texts = (files.read(topics_file), file.backup())
    if not any(text is not None and b"BatchCQ" in text for text in texts):
        return set()
    found: set[str] = set()

    def is_table(data: bytes) -> bool:
        try:
            table = json.loads(data)["topicConfigTable"]
            kinds = {name: (topic.get("attributes") or {}).get("queue.type") for name, topic in table.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return False
        found.update(name for name, kind in kinds.items() if kind == "BatchCQ")
        return True

    file.load(is_table)
    return found
