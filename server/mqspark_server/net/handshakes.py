"""The unfinished TLS handshakes of one server: each waits for its turn, because it costs processor time.

Must not know TLS.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, Protocol, TypeVar

HANDSHAKE_S = 10.0
"""A TLS handshake that takes longer is aborted."""


class Shaker(Protocol):
    """A connection that begins with a handshake."""

    def shake_hands(self) -> None: ...


C = TypeVar("C", bound=Shaker)


class Handshakes(Generic[C]):
    """``drop`` drops a connection, for a reason that is one of a few texts. ``turn_s``: the time in one iteration of
    the loop for all handshakes."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, drop: Callable[[C, str], None], *, turn_s: float
    ) -> None:
        self._loop = loop
        self._drop = drop
        self._turn_s = turn_s
        self._since: dict[C, float] = {}
        """Connections with an unfinished handshake, and since when."""
        self._ready: deque[C] = deque()
        """Connections that have received bytes of their handshake."""

    def begin(self, connection: C) -> None:
        self._since[connection] = monotonic()

    def end(self, connection: C) -> None:
        """The handshake is complete, or the connection has ended."""
        self._since.pop(connection, None)

    def schedule(self, connection: C) -> None:
        """Continue the handshake when its turn comes."""
        if not self._ready:
            self._loop.call_soon(self._serve)
        self._ready.append(connection)

    def _serve(self) -> None:
        """As many as the time allows in this iteration of the loop, at least one."""
        ready = self._ready
        end = monotonic() + self._turn_s
        try:
            while ready:
                ready.popleft().shake_hands()
                if monotonic() >= end:
                    break
        finally:  # one that fails costs the others their turn in this iteration, but not for ever
            if ready:
                self._loop.call_soon(self._serve)

    def watch(self, now: float) -> None:
        """Drop the connections whose handshakes take too long."""
        for connection, since in list(self._since.items()):
            if now - since > HANDSHAKE_S:
                self._drop(connection, f"its TLS handshake is not complete after {HANDSHAKE_S:.0f} s")
