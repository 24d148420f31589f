"""What protects a server from its connections: limits of their number, of the memory that they hold, and of how slow
they may be. Remoting (``remotingserver``) and gRPC (``grpc/grpclistener``) share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from time import monotonic
from typing import Generic, Protocol, TypeVar

from mqspark_server.net.handshakes import Handshakes, Shaker
from mqspark_server.net.heldbytes import AnswerReader, FrameSource, PartialFrames, UnreadAnswers
from mqspark_server.net.opensockets import ConnectionCounts, Evictable, OpenSockets
from mqspark_server.net.servertls import Certificates

CONNECTION_S = 0.00125
"""Time in one iteration of the loop for the commands of one connection: enough for a few hundred sends. Commands
beyond it wait until the other connections have been served. All handshakes together get as much time."""

WATCH_S = 0.5
"""Interval of the checks of connections with unread answers, incomplete frames or unfinished handshakes."""

IDLE_SCAN_S = 5.0

LINGER_S = 5.0
"""Data that a closed connection has not read by then is dropped."""

SHUTDOWN_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the connections of one server. ``max_connections_per_address``: 0 is no limit."""

    idle_s: float = 120.0
    max_connections: int = 10_000
    max_connections_per_address: int = 0
    backlog: int = 1024
    high_water_bytes: int = 4 << 20
    max_buffered_bytes: int = 256 << 20
    max_stranger_bytes: int = 256 << 20
    max_unsent_bytes: int = 256 << 20
    unread_s: float = 60.0
    partial_frame_s: float = 30.0


class GuardedConnection(Evictable, AnswerReader, FrameSource, Shaker, Protocol):
    def close(self, reason: str, *, level: int = ...) -> None: ...
    def abort(self, reason: str | None = None) -> None: ...


C = TypeVar("C", bound=GuardedConnection)


class GuardHost(Protocol[C]):
    """What a connection asks of the guards of its server."""

    name: str
    loop: asyncio.AbstractEventLoop
    tls: Certificates | None
    counts: ConnectionCounts
    sockets: OpenSockets[C]
    unread: UnreadAnswers[C]
    partial: PartialFrames[C]
    handshakes: Handshakes[C]

    def know(self, connection: C) -> None: ...
    def forget(self, connection: C, address: str) -> None: ...


class GuardedServer(Generic[C]):
    def __init__(self, name: str, tls: Certificates | None, limits: ConnectionLimits) -> None:
        self.name = name
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self.counts = ConnectionCounts()
        self.sockets: OpenSockets[C] = OpenSockets(
            self.counts,
            self.drop,
            max_connections=limits.max_connections,
            max_per_address=limits.max_connections_per_address,
            backlog=limits.backlog,
        )
        self.partial: PartialFrames[C] = PartialFrames(
            self.drop,
            most_bytes=limits.max_buffered_bytes,
            most_stranger_bytes=limits.max_stranger_bytes,
            frame_s=limits.partial_frame_s,
        )
        self.unread: UnreadAnswers[C] = UnreadAnswers(
            self.loop,
            self.drop,
            most_bytes=limits.max_unsent_bytes,
            high_water_bytes=limits.high_water_bytes,
            unread_s=limits.unread_s,
        )
        self.handshakes: Handshakes[C] = Handshakes(self.loop, self.drop, turn_s=CONNECTION_S)
        self._watch_handle: asyncio.TimerHandle | None = None

    def know(self, connection: C) -> None:
        """Its first frame is complete."""
        self.sockets.know(connection)
        self.partial.know(connection)

    def forget(self, connection: C, address: str) -> None:
        """An admitted connection has ended."""
        self.handshakes.end(connection)
        self.partial.know(connection)
        self.unread.unblock_never(connection)
        self.sockets.forget(connection, address)

    def drop(self, connection: C, reason: str) -> None:
        """Drop a connection whose memory is needed; unread answers are lost. ``reason`` is one of a few texts."""
        self.counts.dropped += 1
        connection.dropped = True
        now = monotonic()
        for budget in (self.unread.budget, self.partial.budget, self.partial.strangers):
            budget.keep(connection, 0, now)
        connection.abort(reason)

    def watch(self) -> None:
        """Drop what is too slow, from now on."""
        self._watch_handle = self.loop.call_later(WATCH_S, self.watch)
        now = monotonic()
        self.unread.watch(now)
        self.partial.watch(now)
        self.handshakes.watch(now)

    async def close_all(self, *, abruptly: bool) -> None:
        """Close every connection, and wait for them up to SHUTDOWN_GRACE_S. ``abruptly``: write nothing more, as when
        the process is killed."""
        if self._watch_handle is not None:
            self._watch_handle.cancel()
        self.unread.close()
        if not self.sockets:
            return
        all_gone = self.sockets.gone(self.loop)
        for connection in self.sockets:
            if abruptly:
                connection.abort()
            else:
                connection.close("the server stops", level=logging.DEBUG)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_GRACE_S):
                await all_gone
        for connection in self.sockets:
            connection.abort()
        await asyncio.sleep(0)
