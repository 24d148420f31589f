"""The timer wheel: for each tick of the previous and the coming days, the end of its chain in the timer log
(TimerWheel, Slot).

Tick t (a time in units of timerPrecisionMs) has slot t modulo the number of slots: 32 bytes with the tick it
belongs to i64, positions of its oldest and newest record in the timer log i64 each, number of messages i32
and an unused magic i32. A slot with another tick is empty. Records of its chain before the first position do
not count. (RocketMQ counts them: it delivers a half-delivered slot that it takes over from its beginning.)

The slots are in memory, where untouched ones cost nothing; an empty wheel is not searched. Changed pages are
written to the file, which is sparse until RocketMQ opens it.

Facts: docs/rocketmq/later.md#timer-wheel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.errors import StoreCorrupt
from mqspark.store.disk.files import FileLayer, zeroed_memory

SLOTS = 7 * 86_400 * 2
_SLOT = struct.Struct(">qqqii")
_unpack = _SLOT.unpack_from
_DTYPE = np.dtype([("tick", ">i8"), ("first", ">i8"), ("last", ">i8"), ("messages", ">i4"), ("magic", ">i4")])
WHEEL_BYTES = SLOTS * _SLOT.size
_PAGE_BYTES = 4096
_MASK = (1 << 64) - 1
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
"""Odd numbers, for ``Seal.digest``."""

Page = tuple[int, bytes]
"""Offset in the file, content."""


class Slot(NamedTuple):
    tick: int
    first: int
    last: int
    messages: int
    magic: int


class Seal(NamedTuple):
    """What tells the content of a wheel from that of an older or a damaged one."""

    used: int
    """Number of slots that are not empty."""
    digest: int
    """Sum of a hash of each of them, in 64 bits."""


def _slot_hash(tick: int, first: int, last: int) -> int:
    a, b, c, d = _FACTORS
    return (((tick * a) ^ (first * b) ^ (last * c)) & _MASK) * d & _MASK


def _digest(slots: npt.NDArray[Any]) -> int:
    """The sum of ``_slot_hash`` of slots that are not empty."""
    a, b, c, d = (np.uint64(factor) for factor in _FACTORS)
    tick, first, last = (slots[name].astype(np.int64).view(np.uint64) for name in ("tick", "first", "last"))
    return int((((tick * a) ^ (first * b) ^ (last * c)) * d).sum(dtype=np.uint64))


COPIED_AT_ONCE = 256
"""Pages copied in one slice."""


class Snapshot:
    """The changed pages of a wheel as they were when it was taken. They are copied slice by slice, and each before it
    changes; iteration copies what is left."""

    def __init__(self, numbers: set[int], memory: memoryview) -> None:
        self.numbers = sorted(numbers)
        self.left = numbers
        """Pages that are not copied yet."""
        self._memory = memory
        self._pages: dict[int, bytes] = {}

    def copy(self, number: int) -> None:
        self.left.remove(number)
        self._pages[number] = bytes(self._memory[number * _PAGE_BYTES : (number + 1) * _PAGE_BYTES])

    def copied(self) -> Iterator[None]:
        for first in range(0, len(self.numbers), COPIED_AT_ONCE):
            for number in self.numbers[first : first + COPIED_AT_ONCE]:
                if number in self.left:
                    self.copy(number)
            yield

    def __iter__(self) -> Iterator[Page]:
        for _ in self.copied():
            continue
        return ((number * _PAGE_BYTES, self._pages[number]) for number in self.numbers)


def _sum_of_messages(slots: npt.NDArray[Any]) -> int:
    return int(slots["messages"].sum(dtype=np.int64))


class TimerWheel:
    def __init__(self) -> None:
        self._slots = np.frombuffer(zeroed_memory(WHEEL_BYTES), _DTYPE)
        self._bytes = memoryview(self._slots.view(np.uint8).data)
        self._dirty: set[int] = set()
        """Numbers of changed pages."""
        self._snapshot: Snapshot | None = None
        """The last one; it may not be complete."""
        self.used_count = 0
        """Number of slots that are not empty."""
        self._messages = 0
        """Sum of what the slots count."""
        self._digest = 0

    @property
    def waiting(self) -> int:
        """Number of messages in all slots."""
        return max(0, self._messages)  # a slot from RocketMQ may count less than nothing

    @property
    def seal(self) -> Seal:
        return Seal(self.used_count, self._digest)

    def load(self, path: Path, files: FileLayer) -> bool:
        """Read the file. Returns False when there is none; the wheel is then empty. Raises StoreCorrupt,
        OSError."""
        if path.name not in files.names(path.parent):
            return False
        fd = files.open(path)
        try:
            length = files.length(fd)
            if length not in (0, WHEEL_BYTES):
                raise StoreCorrupt(
                    f"{path}: {length} bytes are not a timer wheel of {WHEEL_BYTES} bytes", path=str(path)
                )
            ranges = list(files.data_ranges(fd, 0, length))
            for low, high in ranges:
                self._bytes[low:high] = files.read_at(fd, high - low, low)
        finally:
            files.close(fd)
        self.used_count = self._digest = self._messages = counted = 0
        for low, high in ranges:
            first, counted = max(low // _SLOT.size, counted), -(-high // _SLOT.size)
            slots = self._slots[first:counted]
            used = slots[slots["tick"] != 0]
            self.used_count += len(used)
            self._messages += _sum_of_messages(used)
            self._digest = (self._digest + _digest(used)) & _MASK
        return True

    def get(self, tick: int) -> Slot | None:
        """The slot of a tick, or None when it is empty."""
        slot = Slot._make(_SLOT.unpack_from(self._bytes, tick % SLOTS * _SLOT.size))
        return slot if slot.tick == tick and tick else None

    def messages(self, tick: int) -> int:
        """How many the slot of a tick has."""
        stored, _, _, count, _ = _unpack(self._bytes, tick % SLOTS * _SLOT.size)
        return int(count) if stored == tick and tick else 0

    def put(self, tick: int, first: int, last: int, count: int) -> None:
        at = tick % SLOTS * _SLOT.size
        stored, older_first, older_last, older_count, _ = _unpack(self._bytes, at)
        if stored:
            self._digest -= _slot_hash(stored, older_first, older_last)
            self._messages -= older_count
        else:
            self.used_count += 1
        self._messages += count
        self._digest = (self._digest + _slot_hash(tick, first, last)) & _MASK
        self._changes(at // _PAGE_BYTES)
        _SLOT.pack_into(self._bytes, at, tick, first, last, count, 0)

    def _changes(self, page: int) -> None:
        """Call this before a page changes."""
        if self._snapshot is not None and page in self._snapshot.left:
            self._snapshot.copy(page)
        self._dirty.add(page)

    def clear(self, tick: int) -> None:
        slot = self.get(tick)
        if slot is not None:
            at = tick % SLOTS * _SLOT.size
            self._digest = (self._digest - _slot_hash(*slot[:3])) & _MASK
            self._changes(at // _PAGE_BYTES)
            _SLOT.pack_into(self._bytes, at, 0, 0, 0, 0, 0)
            self.used_count -= 1
            self._messages -= slot.messages

    def clear_before(self, tick: int) -> None:
        """Clear every slot of an earlier tick."""
        if not self.used_count:
            return
        self._clear_where((self._slots["tick"] < tick) & (self._slots["tick"] != 0))

    def used(self, tick: int) -> npt.NDArray[Any]:
        """The slots of that tick and later ones, as stored."""
        if not self.used_count:
            return self._slots[:0]
        found: npt.NDArray[Any] = self._slots[self._slots["tick"] >= max(tick, 1)]
        return found

    def clear_all(self) -> None:
        self._clear_where(self._slots["tick"] != 0)

    def restart(self) -> None:
        """Be empty, without a file."""
        if self.used_count:
            self.clear_all()
        self._dirty.clear()

    def first_behind(self, position: int) -> int | None:
        """The earliest record of the slots whose chain begins at or after ``position`` of the timer log."""
        if not self.used_count:
            return None
        behind = (self._slots["last"] >= position) & (self._slots["tick"] != 0)
        firsts = self._slots["first"][behind]
        return int(firsts.min()) if len(firsts) else None

    def clear_behind(self, position: int) -> None:
        """Clear every slot whose chain begins at or after ``position`` of the timer log."""
        if not self.used_count:
            return
        self._clear_where((self._slots["last"] >= position) & (self._slots["tick"] != 0))

    def _clear_where(self, mask: npt.NDArray[np.bool_]) -> None:
        found = np.flatnonzero(mask)  # of slots that are not empty
        self.used_count -= len(found)
        self._messages -= _sum_of_messages(self._slots[found])
        self._digest = (self._digest - _digest(self._slots[found])) & _MASK
        for page in np.unique(found * _SLOT.size // _PAGE_BYTES).tolist():
            self._changes(page)
        self._slots[found] = np.zeros(1, _DTYPE)

    def next_used(self, low: int, high: int) -> int | None:
        """The first tick in [low, high) whose slot is not empty."""
        if not self.used_count:
            return None
        if high - low >= SLOTS:
            ticks = self._slots["tick"]
            found = ticks[(ticks >= low) & (ticks < high) & (ticks != 0)]
            return int(found.min()) if len(found) else None
        while low < high:
            index = low % SLOTS
            count = min(high - low, SLOTS - index)
            ticks = self._slots["tick"][index : index + count]
            used = ticks == np.arange(low, low + count)
            if used.any():
                return low + int(used.argmax())
            low += count
        return None

    def count(self, low: int, high: int) -> int:
        """Number of messages in the slots of the ticks [low, high), found without a look at others."""
        if not self.used_count:
            return 0
        found = 0
        for slots in self._span(low, high):
            ticks = slots["tick"]
            found += _sum_of_messages(slots[(ticks >= low) & (ticks < high)])
        return max(0, found)

    def _span(self, low: int, high: int) -> list[npt.NDArray[Any]]:
        """The slots that the ticks [low, high) have, those of other ticks among them."""
        if high - low >= SLOTS:
            return [self._slots]
        first, last = low % SLOTS, high % SLOTS
        return [self._slots[first:last]] if first <= last else [self._slots[first:], self._slots[:last]]

    def revise(self, ticks: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> None:
        """Make the slots consistent with records of the timer log, given in log order."""
        if not len(ticks):
            return
        indexes = ticks % SLOTS
        # The last record of each index determines the tick of the slot and the start of the chain.
        slots, from_end = np.unique(indexes[::-1], return_index=True)
        lasts = len(ticks) - 1 - from_end
        owners = np.zeros(SLOTS, np.int64)
        owners[slots] = ticks[lasts]
        own = np.flatnonzero(owners[indexes] == ticks)
        firsts, at, counts = np.unique(indexes[own], return_index=True, return_counts=True)
        stored = self._slots[slots]
        other = stored["tick"] != ticks[lasts]
        used = stored[stored["tick"] != 0]  # an empty slot may count something
        self._digest -= _digest(used)
        self._messages -= _sum_of_messages(used)
        self.used_count += len(stored) - len(used)
        stored["tick"] = ticks[lasts]
        stored["last"] = positions[lasts]
        # ``firsts`` has the same indexes as ``slots``, because every last record is of its slot's own tick.
        stored["first"][other] = positions[own[at]][other]
        stored["messages"][other] = counts[other]
        for page in np.unique(slots * _SLOT.size // _PAGE_BYTES).tolist():
            self._changes(page)
        self._slots[firsts] = stored
        self._messages += _sum_of_messages(stored)
        self._digest = (self._digest + _digest(stored[stored["tick"] != 0])) & _MASK

    def has_all(self, ticks: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> bool:
        """Whether the chains of these ticks reach these positions of the timer log."""
        slots = self._slots[ticks % SLOTS]
        return bool(((slots["tick"] == ticks) & (slots["last"] >= positions)).all())

    def take_dirty(self) -> Snapshot:
        """The pages that changed since the last call, with their current content. Of two snapshots the earlier one is
        complete, or is not used any more."""
        snapshot = self._snapshot = Snapshot(self._dirty, self._bytes)
        self._dirty = set()
        return snapshot

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def put_back(self, pages: Snapshot) -> None:
        """Mark pages as changed again after a failed write."""
        self._dirty.update(pages.numbers)


def save_pages(path: Path, pages: Iterable[Page], files: FileLayer) -> None:
    """Write pages to the file. Blocking. Raises OSError."""
    fd = files.open(path, create=True)
    try:
        is_new = files.length(fd) != WHEEL_BYTES
        if is_new:
            files.set_length(fd, WHEEL_BYTES)
        for offset, content in pages:
            files.write(fd, content, offset)
        files.sync(fd)
    finally:
        files.close(fd)
    if is_new:
        files.sync_directory(path.parent)
