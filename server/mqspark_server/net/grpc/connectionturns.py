"""What connections of gRPC do in one turn of the loop, so that none of them makes others wait: one write each, and a
bounded time for taking bytes and for beginning calls. The rest goes on in later turns, a connection behind the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Protocol

from mqspark_server.net.grpc.callturns import TURN_S, CallTurns

READ_S = 0.0015
"""Time of a turn for taking bytes of all connections."""


class TakesTurns(Protocol):
    def write_out(self) -> None: ...
    def serve_waiting(self, most: int, until: float) -> int:
        """Begin at most so many calls, and none after that time but for the first. Returns how many have begun."""
        ...

    def take_later(self) -> None:
        """Take bytes that were left."""
        ...


class ConnectionTurns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.calls = CallTurns()
        self._begun = 0
        """Calls that have begun in this turn."""
        self._to_write: list[TakesTurns] = []
        self._ring: deque[TakesTurns] = deque()
        """Those with calls that wait."""
        self._ring_is_scheduled = False
        self._steps_began_s = 0.0
        self._at_once_s = 0.0
        """What calls of this turn took that did without a task."""
        self._readers: deque[TakesTurns] = deque()
        """Those with bytes that they have not taken."""
        self._readers_are_scheduled = False
        self._read_until = 0.0
        """When the time for taking bytes ends in this turn; 0: it has not begun."""

    # --- writes ---

    def schedule_write(self, connection: TakesTurns) -> None:
        """Write what the connection has to send at the end of this turn."""
        if not self._to_write:
            self._loop.call_soon(self._write_all)
        self._to_write.append(connection)

    def _write_all(self) -> None:
        self._begun = 0
        connections, self._to_write = self._to_write, []
        for connection in connections:
            connection.write_out()

    # --- calls ---

    def may_start(self) -> bool:
        """Whether one more call may begin in this turn, which then counts. While others wait, it waits behind them."""
        if self._ring or self._begun >= self.calls.most:
            return False
        self._begun += 1
        return True

    def start_later(self, connection: TakesTurns) -> None:
        """Its calls begin when its turn comes."""
        self._ring.append(connection)
        self._schedule_ring()

    def _schedule_ring(self) -> None:
        if not self._ring_is_scheduled:
            self._ring_is_scheduled = True
            self._loop.call_soon(self._serve_ring)

    def _serve_ring(self) -> None:
        """Begin as many calls as fit into a turn, of each connection its share. One with more enters again, behind the
        others."""
        self._ring_is_scheduled = False
        ring, most, begun = self._ring, self.calls.most, 0
        share = max(1, most // len(ring))
        self._loop.call_soon(self._first_steps_begin)
        began_s = monotonic()
        for _ in range(len(ring)):
            begun += ring.popleft().serve_waiting(min(share, most - begun), began_s + TURN_S)
            if begun >= most or monotonic() >= began_s + TURN_S:
                break
        self._at_once_s = monotonic() - began_s
        self._loop.call_soon(self._first_steps_end, begun)
        self._begun = begun
        if ring:
            self._schedule_ring()

    def _first_steps_begin(self) -> None:
        self._steps_began_s = monotonic()

    def _first_steps_end(self, calls: int) -> None:
        if calls:
            self.calls.took(self._at_once_s + monotonic() - self._steps_began_s, calls)

    # --- bytes ---

    def may_read(self) -> bool:
        """Whether connections may take more of what they have read in this turn."""
        now = monotonic()
        if not self._read_until:
            self._read_until = now + READ_S
            self._loop.call_soon(self._end_reading)
        return now < self._read_until

    def _end_reading(self) -> None:
        self._read_until = 0.0

    def read_later(self, connection: TakesTurns) -> None:
        """Let it go on in a later turn."""
        self._readers.append(connection)
        self._schedule_readers()

    def _schedule_readers(self) -> None:
        if not self._readers_are_scheduled:
            self._readers_are_scheduled = True
            self._loop.call_soon(self._serve_readers)

    def _serve_readers(self) -> None:
        self._readers_are_scheduled = False
        self._read_until = 0.0
        readers = self._readers
        for _ in range(len(readers)):
            if not self.may_read():
                break
            readers.popleft().take_later()  # it enters again, behind the others, if more is left
        if readers:
            self._schedule_readers()
