"""What peers make a server keep for them, and whose has to go when it is too much.

A server has two hoards: answers that their peers do not read, and what came of frames that are not complete. Each
connection has its own bound, which is enough for one; all together have ``most``. Above it whoever has held most for
longest goes first, in bytes times seconds: that is neither a peer whose large frame is just coming in, nor one that
reads as fast as its line allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Hoard", "Pace"]

T = TypeVar("T")

KEPT = 7 / 8
"""Of ``most`` is kept when something has to go, so that it is not asked for with every byte."""


class Hoard(Generic[T]):
    """Bytes by owner. Times are seconds of one monotonic clock."""

    __slots__ = ("_held", "most", "total")

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: dict[T, tuple[int, float]] = {}
        """Bytes, and since when."""

    def __contains__(self, owner: T) -> bool:
        return owner in self._held

    def __iter__(self) -> Iterator[T]:
        """As they are now: owners may go meanwhile."""
        return iter(list(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, owner: T, count: int, now: float, *, afresh: bool = False) -> None:
        """``owner`` holds so many bytes now, none if 0. ``afresh``: others than before, and not for so long."""
        before, since = self._held.get(owner, (0, now))
        self.total += count - before
        if count:
            self._held[owner] = count, now if afresh else since
        elif before:
            del self._held[owner]

    def held(self, owner: T) -> tuple[int, float]:
        """How many bytes, and since when."""
        return self._held.get(owner, (0, 0.0))

    def surplus(self, now: float) -> list[T]:
        """Who has to go, the worst first."""
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
    """Whether something goes on at ``least`` bytes a second, over periods of ``period_s``."""

    __slots__ = ("_count", "_since", "least", "period_s")

    def __init__(self, least: float, period_s: float) -> None:
        self.least = least
        self.period_s = period_s
        self._since = 0.0
        self._count = -1

    def rest(self) -> None:
        """There is nothing to do: the next period begins when there is."""
        self._count = -1

    def is_too_slow(self, count: int, now: float) -> bool:
        """``count``: how many bytes in all, until now."""
        if self._count < 0 or count - self._count >= self.least * self.period_s:
            self._since, self._count = now, count
        return now - self._since > self.period_s
