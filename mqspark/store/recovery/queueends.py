"""``mqspark.ends``: where every queue began and ended at the checkpoints. RocketMQ ignores it.

An entry missing at the end of a queue leaves no trace in the queue: its offset would be assigned again. So each
checkpoint records the queues that changed, and a start compares. The file consists of blocks, one per checkpoint:

    mqspark-ends-1 00000000000000004711          the position of the checkpoint
    17@900 4711 3 TopicA                         begin, end, queue id, topic
    0 80+3 0 TopicB
    9d0ad5c7                                     CRC-32 of the block's other lines

``@900``: log position of the first record, for a queue of several files. ``+3``: offsets after the last entry that
are not assigned again, because their records were lost (BatchConsumeQueues only; others have fillers). ``0 0``: the
queue was deleted. The last line of a queue counts. A block counts once the checkpoint has reached its position,
because entries of what lies before stay. A torn last block is the work of a kill. Until a start that rebuilds queues
has ended, and made a checkpoint, all blocks count: the next start may have nothing else that says where queues ended.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mqspark.base.config import INT64_MAX
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import FileLayer, disk_full_as_typed
from mqspark.store.disk.savedtables import PAUSE_S
from mqspark.store.queue.batchqueue import BATCH_ENTRY, BatchEntry, BatchQueue, BatchTable
from mqspark.store.queue.consumequeue import ENTRY, ConsumeQueue, Doubt
from mqspark.store.queue.queuetable import QueueTable, united

_TITLE = b"mqspark-ends-1 "
_LINE = re.compile(r"(\d+)(?:@(\d+))? (\d+)(?:\+(\d+))? (\d+) (.+)")
_LAST_LINE = re.compile(rb"\n[0-9a-f]{8}\n")
_LAST_LINE_BYTES = 10
_LINES_AT_ONCE = 1024
_BYTES_AT_ONCE = 1 << 15
"""One call for all of a large file would hold the interpreter for many milliseconds, in a thread, too."""
_MERGE_BYTES = 1 << 16
"""The blocks are merged once they take this much more than twice the size of one block with everything."""
Key = tuple[str, int]


class Range(NamedTuple):
    """Begin and end of a queue, in offsets of messages."""

    position: int
    """Position of the checkpoint that recorded it."""
    begin: int
    begin_position: int
    """Log position of the record at ``begin``; -1 when it is not known."""
    end: int
    skipped: int = 0
    """Number of offsets from ``end`` on that are not assigned again."""

    @property
    def assigned(self) -> int:
        return self.end + self.skipped


_GONE = Range(0, 0, -1, 0)


@dataclass(slots=True, frozen=True)
class QueueEnds:
    """Ends of the queues at log position ``position``."""

    position: int
    ranges: dict[Key, Range]
    """By topic and queue id."""
    sound_bytes: int = 0
    """Length of the blocks in the file that count."""
    is_torn: bool = False
    """The last block is incomplete."""
    is_damaged: bool = False
    """A block before the last one is invalid."""

    @staticmethod
    def encode(position: int, ranges: Iterable[tuple[Key, Range]]) -> bytes:
        """One block."""
        lines, pieces, crc = [b"%s%020d\n" % (_TITLE, position)], [], 0
        for number, ((topic, queue_id), each) in enumerate(ranges, 1):
            at = b"@%d" % each.begin_position if each.begin_position >= 0 else b""
            more = b"+%d" % each.skipped if each.skipped else b""
            lines.append(b"%d%s %d%s %d %s\n" % (each.begin, at, each.end, more, queue_id, topic.encode()))
            if number % _LINES_AT_ONCE == 0:
                pieces.append(b"".join(lines))
                lines.clear()
        pieces.append(b"".join(lines))
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        return b"".join((*pieces, b"%08x\n" % crc))

    def merged(self) -> bytes:
        """All blocks as one per position, without what no longer counts."""
        by_position: dict[int, list[tuple[Key, Range]]] = {}
        for key, each in self.ranges.items():
            by_position.setdefault(each.position, []).append((key, each))
        by_position.setdefault(self.position, [])
        return b"".join(self.encode(position, by_position[position]) for position in sorted(by_position))

    @classmethod
    def decode(cls, data: bytes | None, limit: int = INT64_MAX) -> QueueEnds | None:
        """The blocks up to checkpoint ``limit``. None when there is no file or not one valid block."""
        ranges: dict[Key, Range] = {}
        position, low = -1, 0
        data = data or b""
        while low < len(data):
            high = _end_of_block(data, low)
            block = _decode_block(data[low:high])
            if block is None:
                if position < 0:
                    return None
                is_last = data.find(_TITLE, low + 1) < 0
                return cls(position, ranges, low, is_torn=is_last, is_damaged=not is_last)
            if block[0] > limit:
                break
            position, low = block[0], high
            for key, each in block[1].items():
                if each.assigned:
                    ranges[key] = each
                else:
                    ranges.pop(key, None)
        return cls(position, ranges, low) if position >= 0 else None

    @classmethod
    def load(
        cls, path: Path, files: FileLayer, limit: int, *, clean: bool
    ) -> tuple[QueueEnds | None, str | None]:
        """The ends that count with the checkpoint at ``limit``, and why some of the file cannot be used, or None.
        ``clean``: the last process stopped cleanly, so no block can be torn."""
        data = files.read(path) if limit >= 0 else None
        ends = cls.decode(data, limit)
        if data is not None and ends is None:
            return None, f"{path.name} cannot be read: the ends of the queues are not compared with it"
        if ends is not None and (ends.is_damaged or (clean and ends.is_torn)):
            return ends, f"the end of {path.name} cannot be read: it is used up to position {ends.position}"
        return ends, None

    def counting(self, deleted: Mapping[str, int]) -> Iterator[tuple[Key, Range]]:
        """The queues without those of deleted topics (``Deletions.positions``)."""
        for key, each in self.ranges.items():
            if each.position > deleted.get(key[0], -1):
                yield key, each

    def doubts(
        self,
        table: QueueTable,
        batch_table: BatchTable | None,
        deleted: Mapping[str, int],
        log_begin: int,
        *,
        exactly: bool,
    ) -> Iterator[tuple[ConsumeQueue, Doubt]]:
        """The queues that are shorter than before, and those that lack files at their beginning although the
        log has their records. With ``exactly`` (nothing has changed since) also the queues that are longer."""
        for key, was in self.counting(deleted):
            array = table.queues.get(key)
            batches = batch_table.batch_queues.get(key) if batch_table is not None and array is None else None
            if batches is not None:
                array, end, begin = batches.array, batches.max_offset, _first_base(batches)
            elif array is not None:
                end, begin = array.max_offset, _first_number(array)
            else:
                continue
            if begin > was.begin and was.begin_position >= log_begin:
                # An entry number of a BatchConsumeQueue is at most the offset of its first message.
                sure = array.file_start_of(was.begin) if batches is None else 0
                text = f"it began at {was.begin} before and begins at {begin} now"
                yield array, Doubt(sure, "queue.file-gone", text)
            elif end < was.end:
                text = f"it ended at {was.end} before and ends at {end} now"
                yield array, Doubt(array.max_offset, "queue.short", text)
            elif exactly and end > was.end and batches is None:
                text = f"it ended at {was.end} before and ends at {end} now"
                yield array, Doubt(was.end, "queue.long", text)


def _end_of_block(data: bytes, low: int) -> int:
    for at in range(low, len(data), _BYTES_AT_ONCE):
        last_line = _LAST_LINE.search(data, at, at + _BYTES_AT_ONCE + _LAST_LINE_BYTES - 1)
        if last_line is not None:
            return last_line.end()
    return len(data)


def _lines(text: bytes) -> Iterator[str]:
    low = 0
    while low < len(text):
        high = text.find(b"\n", low + _BYTES_AT_ONCE) + 1 or len(text)
        yield from text[low:high].decode().splitlines()
        low = high


def _decode_block(block: bytes) -> tuple[int, dict[Key, Range]] | None:
    text, _, crc = block.removesuffix(b"\n").rpartition(b"\n")
    text += b"\n"
    if crc != b"%08x" % zlib.crc32(text) or not text.startswith(_TITLE):
        return None
    lines = _lines(text)
    position = int(next(lines).split()[1])
    ranges: dict[Key, Range] = {}
    for line in lines:
        if (found := _LINE.fullmatch(line)) is None:
            return None
        begin, at, end, skipped, queue_id, topic = found.groups()
        ranges[topic, int(queue_id)] = Range(
            position, int(begin), int(at) if at else -1, int(end), int(skipped or 0)
        )
    return position, ranges


def _first_number(array: ConsumeQueue) -> int:
    """Number of the first entry that a file has room for."""
    return array.first_file_offset if array.file_starts else 0


def _first_base(queue: BatchQueue) -> int:
    first = queue.entry(_first_number(queue.array)) if queue.array.file_starts else None
    return first.base if first is not None else 0


class _Shot(NamedTuple):
    """A queue as it was when the slices of a checkpoint came to it."""

    array: ConsumeQueue
    number_end: int
    """End of the entries, by number."""
    end: int
    begin: int
    begin_number: int
    floor: int
    is_batch: bool
    has_files: bool
    """Whether it has several files."""


class EndsBlock:
    """The block of one checkpoint. ``keys`` and ``take`` are called in the store's thread, slice by slice, then
    ``write`` in the checkpoint's thread."""

    __slots__ = ("_behind", "_durable", "_file", "_is_whole", "_noted", "_taken", "_visible")

    def __init__(self, file: EndsFile, noted: set[Key], durable: int, *, is_whole: bool) -> None:
        """``noted``: queues that changed, besides those with files to sync. ``is_whole``: it replaces the file."""
        self._file = file
        self._noted = noted
        self._behind: set[Key] = set()
        """Queues with entries of records that are not durable yet."""
        self._taken: list[dict[Key, _Shot | None]] = []
        """Slice by slice: one table of all would stop the loop whenever it grows, and when it is freed."""
        self._durable = durable
        self._visible = durable
        self._is_whole = is_whole

    def keys(self, changed: Iterable[Key]) -> Iterator[Key]:
        """The queues to ``take``. One with several files may come again, which does no harm."""
        return self._file.all_keys() if self._is_whole else chain(self._noted, changed)

    def take(self, keys: Iterable[Key], visible: int) -> None:
        """Shots of these queues. ``visible``: end of the last record that is in a queue now. What was put behind the
        durable end of the log is left out by ``write``; a queue that was noted since is left out here, and the next
        block has it."""
        self._visible = visible
        taken: dict[Key, _Shot | None] = {}
        for key in keys:
            if not self._file.is_noted(key):
                shot = self._file.shot(key)
                taken[shot.array.key if shot is not None else key] = shot
        self._taken.append(taken)

    def write(self) -> None:
        """Write and sync. Blocking. Raises DiskFull, OSError."""
        self._file.append(QueueEnds.encode(self._durable, self._lines()), whole=self._is_whole)

    def _lines(self) -> Iterator[tuple[Key, Range]]:
        for taken in self._taken:
            for key, shot in taken.items():
                taken[key] = None
                try:
                    line = self._range(shot) if shot is not None else _GONE
                except FileNotFoundError:
                    continue  # its topic was deleted since; the next block says so
                if shot is not None and line.end < shot.end:
                    self._behind.add(key)
                yield key, line
            time.sleep(PAUSE_S)

    def finish(self, *, failed: bool) -> None:
        """Note what the next block has to have, in the store's thread."""
        if not failed:
            self._file.note(self._behind)
            return
        for keys in (self._noted, *map(set, self._taken)):
            self._file.note(keys)
        if self._is_whole:
            self._file.is_whole = True

    def _range(self, shot: _Shot) -> Range:
        array, end = shot.array, shot.end
        if self._visible > self._durable:
            number_end = array.end_before(self._durable, shot.begin_number, shot.number_end)
            if number_end < shot.number_end:
                end = number_end
                if shot.is_batch:
                    end = shot.begin
                    if number_end > shot.begin_number:
                        last = BatchEntry(*BATCH_ENTRY.unpack(array.row(number_end - 1)))
                        end = last.base + last.messages
        begin_position = -1
        if shot.has_files and shot.begin_number < shot.number_end:
            begin_position = ENTRY.unpack_from(array.row(shot.begin_number))[0]
        return Range(self._durable, shot.begin, begin_position, end, max(0, shot.floor - end))


class EndsFile:
    """``mqspark.ends`` of an open store. ``append`` is called in the checkpoint's thread, the rest in the store's."""

    def __init__(self, path: Path, files: FileLayer, table: QueueTable, batch_table: BatchTable) -> None:
        self._path = path
        self._files = files
        self._table = table
        self._batch_table = batch_table
        self._changed: set[Key] = set()
        """Queues that changed since the last block. Bounded by the number of queues, and of those deleted since."""
        self.is_whole = True
        """Whether the next block has to have all queues."""
        self._bytes = self._merge_at = self._position = 0

    def load(self, position: int, *, clean: bool) -> tuple[QueueEnds | None, str | None]:
        """As ``QueueEnds.load``. The next block is added to what counts."""
        ends, problem = QueueEnds.load(self._path, self._files, position, clean=clean)
        self._changed.clear()
        # Written by a broker that has no such file, as those of older versions: what it put is in no block.
        is_older = ends is not None and ends.position != position
        self.is_whole = ends is None or problem is not None or is_older
        self._bytes, self._position = (ends.sound_bytes, ends.position) if ends is not None else (0, 0)
        self._merge_at = 2 * self._bytes + _MERGE_BYTES
        return ends, problem

    def end_at(self, position: int) -> None:
        """The log ends at ``position``, possibly before what the blocks refer to."""
        self.is_whole = self.is_whole or position < self._position

    def forget(self) -> None:
        """Remove the file. Blocking. Raises OSError."""
        self._files.remove(self._path)
        self.is_whole = True

    def note(self, keys: set[Key]) -> None:
        """These queues have changed, or are deleted. The set belongs to the file then."""
        self._changed = united(self._changed, keys)

    def is_noted(self, key: Key) -> bool:
        """Whether a queue was noted since the last block was begun."""
        return key in self._changed

    def all_keys(self) -> Iterator[Key]:
        return chain(self._table.in_order, self._batch_table.in_order)

    def block(self, durable: int) -> EndsBlock:
        """The block for a checkpoint at ``durable``, the durable end of the log."""
        noted, self._changed = self._changed, set()
        whole, self.is_whole = self.is_whole, False
        return EndsBlock(self, noted, durable, is_whole=whole)

    def shot(self, key: Key) -> _Shot | None:
        array = self._table.queues.get(key)
        if array is not None:
            begin, end = array.min_offset, array.max_offset
            return _Shot(array, end, end, begin, begin, 0, False, len(array.file_starts) > 1)
        batches = self._batch_table.batch_queues.get(key)
        if batches is None:
            return None
        array = batches.array
        return _Shot(
            array,
            array.max_offset,
            batches.max_offset,
            batches.min_offset,
            array.min_offset,
            batches.floor,
            True,
            len(array.file_starts) > 1,
        )

    def append(self, block: bytes, *, whole: bool) -> None:
        """Write and sync. Blocking. Raises DiskFull, OSError."""
        with disk_full_as_typed(self._path.name):
            if not whole and self._bytes + len(block) > self._merge_at:
                data = (self._files.read(self._path) or b"")[: self._bytes] + block
                ends = QueueEnds.decode(data)
                if ends is not None and ends.sound_bytes == len(data):
                    block, whole = ends.merged(), True
                while ends is not None and ends.ranges:  # one by one: the loop would wait for all at once
                    ends.ranges.popitem()
            if whole:
                ConfigFile(self._path, self._files, with_backup=False).save(block)
                self._bytes = len(block)
                self._merge_at = 2 * len(block) + _MERGE_BYTES
                return
            fd = self._files.open(self._path, create=True)
            try:
                length = self._files.length(fd)
                if length < self._bytes:  # somebody removed it; the next block has all queues
                    self._bytes, self.is_whole = 0, True
                if length != self._bytes:
                    self._files.set_length(fd, self._bytes)
                self._files.write(fd, block, self._bytes)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            self._bytes += len(block)
