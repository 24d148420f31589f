"""How much is done at once by a thread that others wait for, so that it takes about as long as it may.

Must not know what is done.
"""

from __future__ import annotations

_GROWTH = 8
"""Factor by which a size grows at most: what comes next may cost more than what was measured."""


class StagePace:
    """A size that follows what the last pieces of work took."""

    __slots__ = ("_budget_s", "_least", "_most", "size")

    def __init__(self, least: int, most: int, budget_s: float) -> None:
        self._most = most
        self._least = min(least, most)
        self._budget_s = budget_s
        self.size = self._least

    def begin_anew(self) -> None:
        """What was measured says nothing about what comes next."""
        self.size = self._least

    def note(self, done: int, took_s: float) -> None:
        """So much was done at once. Most of the time of a small piece is independent of its size, so that only one that
        took too long or was large is a measure."""
        if took_s <= self._budget_s and done * 2 < self.size:
            return
        fitting = done * self._budget_s / max(took_s, 1e-9)
        self.size = max(self._least, int(min(fitting, self._most, self.size * _GROWTH)))
