"""The open connections of one server, and whether one more is admitted.

Their number is limited per address, in total, and by the file descriptors of the process. At the limit, the oldest
connection without a complete frame is closed for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mqspark_server.net.descriptors import PROCESS

MIN_BACKLOG = 128

MAX_EVICTED = 16
"""Connections that may be closing at the same time to make room for others."""


class Evictable(Protocol):
    """A connection that may have to make room for another."""

    evicted: bool


C = TypeVar("C", bound=Evictable)


@dataclass(slots=True)
class ConnectionCounts:
    """Numbers of connections since the server started."""

    refused: int = 0
    dropped: int = 0
    """Closed because their peers did not read, did not complete a frame, or sent nothing."""
    malformed: int = 0
    """Closed for what is no frame or no handshake."""
    idle: int = 0
    """Closed because they were idle."""


class OpenSockets(Generic[C]):
    """``drop`` drops a connection, for a reason that is one of a few texts. ``max_per_address``: 0 is no limit."""

    def __init__(
        self,
        counts: ConnectionCounts,
        drop: Callable[[C, str], None],
        *,
        max_connections: int,
        max_per_address: int,
        backlog: int,
    ) -> None:
        self._counts = counts
        self._drop = drop
        self._max = max_connections
        self._max_per_address = max_per_address
        self._backlog = backlog
        self._all: set[C] = set()
        self._unidentified: dict[C, None] = {}
        """Connections without a complete frame so far, oldest first."""
        self.by_address: dict[str, int] = {}
        self._evicted = 0
        self._is_closing = False
        self._all_gone: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[C]:
        """A snapshot: connections may end during the iteration."""
        return iter(list(self._all))

    @property
    def backlog(self) -> int:
        """How many connections the kernel may accept before the first is checked."""
        return min(self._backlog, max(MIN_BACKLOG, PROCESS.room // 4))

    def admit(self, connection: C, descriptor: int, address: str) -> str | None:
        """Why the connection is refused, or None."""
        problem = None
        here = self.by_address.get(address, 0)
        if self._is_closing:
            problem = "the server stops"
        elif 0 < self._max_per_address <= here:
            problem = f"{here} of its address are open"
        elif len(self._all) >= self._max and not self._evict():
            problem = f"{len(self._all)} are open"
        elif not PROCESS.take(descriptor) and not (self._evict() and PROCESS.take(descriptor, MAX_EVICTED)):
            problem = f"{PROCESS.connections} of this process are open, and files need descriptors"
        if problem is not None:
            self._counts.refused += 1
            return problem
        self._all.add(connection)
        self._unidentified[connection] = None
        self.by_address[address] = here + 1
        return None

    def _evict(self) -> bool:
        """Close the connection that has been open for longest without a complete frame. False if there is none."""
        oldest = next(iter(self._unidentified), None)
        if oldest is None or self._evicted >= MAX_EVICTED:
            return False
        del self._unidentified[oldest]
        self._evicted += 1
        self._all.discard(oldest)
        oldest.evicted = True
        self._drop(oldest, "it sent no complete frame, and its place is needed")
        return True

    def know(self, connection: C) -> None:
        """The first frame of the connection is complete."""
        self._unidentified.pop(connection, None)

    def forget(self, connection: C, address: str) -> None:
        """An admitted connection has ended."""
        PROCESS.give_back()
        self._unidentified.pop(connection, None)
        if connection.evicted:
            self._evicted -= 1
        left = self.by_address.pop(address, 1) - 1
        if left:
            self.by_address[address] = left
        self._all.discard(connection)
        if self._all_gone is not None and not self._all and not self._all_gone.done():
            self._all_gone.set_result(None)

    def refuse_all(self) -> None:
        """Admit no more: the server stops."""
        self._is_closing = True

    def gone(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Done when no connection is left. Only while there are some."""
        self._all_gone = loop.create_future()
        return self._all_gone
