"""The parts of the log that hold no valid record now.

They lie below its end, were found by recovery, by the scrub or by a reader, and are not healed.

A part is *led into* while a queue has an entry for a record in it: a consumer that gets there misses a message. After
recovery has put a filler in the place of a record, nobody is led there, but the bytes are still to be healed.

A place is *suspect* where a reader has found no record: the scrub looks what is there.

Must not know who finds damage, and who heals it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

MAX_RANGES = 1_000
"""Further damage is joined with the range before it, or the first one: more is read again than has to be."""
MAX_SUSPECTS = 100


class DamagedRange(NamedTuple):
    """Bytes [low, high) of the log's space."""

    low: int
    high: int
    is_led_into: bool


class OpenDamage:
    """Disjoint ranges in order. Belongs to the store's thread."""

    def __init__(self) -> None:
        self._ranges: list[DamagedRange] = []
        self._suspects: dict[int, None] = {}
        self._healed: tuple[int, int] | None = None
        """What was healed since ``watch``, as one range."""

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[DamagedRange]:
        return iter(list(self._ranges))

    def clear(self) -> None:
        self._ranges.clear()
        self._suspects.clear()
        self._healed = None

    def suspect(self, position: int) -> None:
        """A reader finds no record at this place."""
        if len(self._suspects) < MAX_SUSPECTS and not self.covers(position, position + 1):
            self._suspects[position] = None

    def take_suspects(self) -> list[int]:
        """The suspect places, once."""
        taken = list(self._suspects)
        self._suspects.clear()
        return taken

    def covers(self, low: int, high: int) -> bool:
        """Whether [low, high) is known, and readers may be led into it."""
        return any(each.low <= low and high <= each.high for each in self._ranges)

    def add(self, low: int, high: int, *, is_led_into: bool) -> None:
        """Note that [low, high) holds no valid record."""
        if not 0 <= low < high:
            raise AssertionError(f"the range {low} to {high} is empty")
        touching = [each for each in self._ranges if each.low <= high and low <= each.high]
        if not touching and len(self._ranges) >= MAX_RANGES:
            touching = [self._ranges[max(bisect.bisect(self._ranges, (low,)) - 1, 0)]]
        joined = DamagedRange(
            min(low, *(each.low for each in touching)) if touching else low,
            max(high, *(each.high for each in touching)) if touching else high,
            is_led_into or any(each.is_led_into for each in touching),
        )
        self._ranges = [each for each in self._ranges if each not in touching]
        bisect.insort(self._ranges, joined)

    def remove(self, low: int, high: int) -> None:
        """Forget what lies in [low, high): it holds valid records again, or is gone."""
        left: list[DamagedRange] = []
        for each in self._ranges:
            if each.low < min(low, each.high):
                left.append(each._replace(high=min(low, each.high)))
            if max(high, each.low) < each.high:
                left.append(each._replace(low=max(high, each.low)))
        self._ranges = left

    def heal(self, low: int, high: int) -> None:
        """There are valid records in [low, high) again."""
        self.remove(low, high)
        begin, end = self._healed or (low, high)
        self._healed = min(begin, low), max(end, high)

    def watch(self) -> None:
        """Somebody begins to read the log in another thread: see ``was_healed``."""
        self._healed = None

    def was_healed(self, low: int, high: int) -> bool:
        """Whether something in [low, high) may have been healed since ``watch``, so that what was read there is old."""
        return self._healed is not None and low < self._healed[1] and self._healed[0] < high

    @property
    def damaged_bytes(self) -> int:
        return sum(each.high - each.low for each in self._ranges)

    @property
    def problem(self) -> str | None:
        """Why consumers may miss messages now, or None."""
        led = [each for each in self._ranges if each.is_led_into]
        if not led:
            return None
        size = sum(each.high - each.low for each in led)
        return f"{size} bytes of the log, the first at {led[0].low}, hold no valid record"
