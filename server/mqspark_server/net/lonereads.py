"""Requests of many threads that come one by one, because each wakes this process too early.

A peer's threads that wait for their answers send their next requests one after another. On a machine that both share,
the first request wakes this process, which takes the processor from the thread that would send the second one. Its
answer wakes one thread, whose request comes alone again: once this has begun it goes on, and each request costs a turn.
To let the others go first, once, ends it. Where nobody waits for the processor, that takes half a microsecond.

Must not know what is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable

IN_A_ROW = 2
"""After so many lone reads, one after another, the others go first."""
SHARE = 16
"""A lone read brings at most one in so many bytes of what another one brought lately."""
LATELY_S = 0.05


class LoneReads:
    """Those of one connection to a peer on this machine."""

    __slots__ = ("_in_a_row", "_let_others_go", "_most", "_until")

    def __init__(self, let_others_go: Callable[[], object] = os.sched_yield) -> None:
        self._let_others_go = let_others_go
        self._most, self._until = 0, 0.0
        """The largest read lately, and how long it counts."""
        self._in_a_row = 0

    def note(self, size: int, now: float) -> None:
        """So many bytes were read. Who sends alone never lets others go first."""
        if size >= self._most or now >= self._until:
            self._most, self._until, self._in_a_row = size, now + LATELY_S, 0
        elif size * SHARE > self._most:
            self._in_a_row = 0
        else:
            self._in_a_row += 1
            if self._in_a_row == IN_A_ROW:
                self._in_a_row = 0
                self._let_others_go()
