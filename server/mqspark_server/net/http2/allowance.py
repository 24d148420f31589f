"""How much a peer may do that serves nothing: pings, settings, resets, windows opened by a few bytes.

Each costs the server more than the peer, and each is legal, so only their number tells an attack (CVE-2019-9511 to
9518; CVE-2023-44487: streams that are opened and reset; CVE-2025-8671: streams that the server has to reset). nghttp2
has two such buckets: 1,000 resets and 33 more a second, 10,000 of the rest and 330 more a second.
"""

from __future__ import annotations

BURST = 10_000
PER_S = 1_000
FRAME_COST = 1
RESET_COST = 10
"""A stream that is reset has cost a request."""
CALL_EARNS = 2
"""An answered request entitles to some: clients ping and open windows as they receive."""


class Allowance:
    """A bucket of tokens. Times are seconds of one monotonic clock."""

    __slots__ = ("_left", "_seen")

    def __init__(self) -> None:
        self._left = float(BURST)
        self._seen: float | None = None

    def spend(self, cost: int, now: float) -> bool:
        """Whether the peer may."""
        if self._seen is not None:
            self._left = min(self._left + (now - self._seen) * PER_S, BURST)
        self._seen = now
        self._left -= cost
        return self._left >= 0

    def earn(self) -> None:
        self._left += CALL_EARNS
