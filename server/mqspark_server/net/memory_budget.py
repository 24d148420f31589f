"""Memory that a server holds for its peers, and which connections to close when it exceeds its limit.

A server has two such tables: answers that peers do not read, and incomplete frames. Each connection has its own
limit; all together may hold ``most`` bytes. Above that, connections are closed in the order of bytes held times
seconds. That spares a peer whose large frame is still arriving, and one that reads as fast as its line allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT = 7 / 8
"""The share of ``most`` that is kept after an eviction, so that not every further byte causes another."""


class MemoryBudget(Generic[T]):
    """Bytes by owner. Times are seconds of one monotonic clock."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: dict[T, tuple[int, float]] = {}
        """Bytes, and since when."""

    def __contains__(self, owner: T) -> bool:
        return owner in self._held

    def __iter__(self) -> Iterator[T]:
        """A snapshot: owners may be removed during the iteration."""
        return iter(list(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, owner: T, count: int, now: float, *, afresh: bool = False) -> None:
        """Set the bytes that ``owner`` holds; 0 removes it. ``afresh``: the bytes are new, so their time
        restarts."""
        before, since = self._held.get(owner, (0, now))
        self.total += count - before
        if count:
            self._held[owner] = count, now if afresh else since
        elif before:
            del self._held[owner]

    def held(self, owner: T) -> tuple[int, float]:
        """The bytes, and since when."""
        return self._held.get(owner, (0, 0.0))

    def surplus(self, now: float) -> list[T]:
        """The owners to close, the worst first."""
        if self.total <= self.most:
            return []
        ranked = sorted(self._held, key=lambda owner: self._weight(owner, now), reverse=True)
        rest, gone = self.total, []
        for owner in ranked:
            if rest <= self.most * KEPT:
                break
            rest -= self._held[owner][0]
            gone.append(owner)
        return gone

    def _weight(self, owner: T, now: float) -> float:
        count, since = self._held[owner]
        return count * (now - since + 0.001)


class Pace:
    """Whether progress is at least ``least`` bytes per second, measured over periods of ``period_s``."""

    __slots__ = ("_count", "_since", "least", "period_s")

    def __init__(self, least: float, period_s: float) -> None:
        self.least = least
        self.period_s = period_s
        self._since = 0.0
        self._count = -1

    def rest(self) -> None:
        """Nothing is left to transfer: the next period starts with the next transfer."""
        self._count = -1

    def is_too_slow(self, count: int, now: float) -> bool:
        """``count``: the total number of bytes so far."""
        if self._count < 0 or count - self._count >= self.least * self.period_s:
            self._since, self._count = now, count
        return now - self._since > self.period_s
