"""How many calls begin in one turn of the loop, so that nobody else waits for long: as many as take TURN_S, by what the
last ones took.

Others may cost a hundred times as much as a send: a call that hands out 32 messages does. What a call does after its
first step, once the broker has answered, is about as much again.
"""

from __future__ import annotations

TURN_S = 0.001
"""Time for first steps."""
FIRST_CALLS = 32
LEAST_CALLS, MOST_CALLS = 4, 128
_NEW_PARTS = 4
"""The last measurement counts as one of so many parts."""


class CallTurns:
    def __init__(self) -> None:
        self.most = FIRST_CALLS
        """The most calls of all connections in one turn."""
        self._each_s = TURN_S / FIRST_CALLS

    def took(self, seconds: float, calls: int) -> None:
        """The first steps of so many calls."""
        self._each_s += (seconds / calls - self._each_s) / _NEW_PARTS
        self.most = max(LEAST_CALLS, min(MOST_CALLS, int(TURN_S / max(self._each_s, 1e-6))))
