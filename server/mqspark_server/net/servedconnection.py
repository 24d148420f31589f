"""What a connection of remoting and one of gRPC do alike towards the guards of their server (``guards``), and their
socket (``tlsgate``)."""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import abstractmethod
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar, cast

from mqspark_server.net.guards import GuardHost
from mqspark_server.net.heldbytes import MIN_BYTES_PER_S
from mqspark_server.net.memory_budget import Pace

H = TypeVar("H", bound=GuardHost[Any])


class ServedConnection(asyncio.Protocol, Generic[H]):
    __slots__ = (
        "_closed_here", "_host", "_in_ring", "_is_noted", "_transport", "_write_paused", "_written",
        "active_at", "address", "dropped", "evicted", "is_unidentified", "pace", "read_bytes",
    )  # fmt: skip

    logger: ClassVar[logging.Logger]

    def __init__(self, host: H) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self.address = ("", 0)
        """The peer's."""
        self._in_ring = self._write_paused = self._closed_here = False
        self.is_unidentified = True
        """It has said nothing complete so far."""
        self._is_noted = False
        """What it holds of requests is noted."""
        self.dropped = self.evicted = False
        self._written = self.read_bytes = 0
        """Bytes written, and how many of them the peer had read at the last check."""
        self.pace = Pace(MIN_BYTES_PER_S, host.unread.unread_s)
        """The rate at which the peer reads."""
        self.active_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of asyncio's
        host = self._host
        sock = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)  # noqa: S104 - gone before we asked
        self.address = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        problem = host.sockets.admit(self, sock.fileno() if sock is not None else 0, self.address[0])
        if problem is not None:
            self.logger.warning("%s: a connection of %s is refused: %s", host.name, self.address[0], problem)
            self._closed_here = True
            transport.abort()
            return
        self._transport = transport
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=host.unread.high_water_bytes)
        self.active_at = monotonic()
        self.admitted(transport)

    @abstractmethod
    def admitted(self, transport: asyncio.Transport) -> None:
        """It is one of the server's from now on."""

    @abstractmethod
    def measure(self, now: float) -> None:
        """Note the unread answers."""

    @abstractmethod
    def close(self, reason: str, *, level: int = ...) -> None:
        """Close once everything already written has been sent."""

    def does_not_read(self, now: float) -> bool:
        """Whether the peer has read nothing, or almost nothing, for too long."""
        if self._transport is None:
            return False
        self.measure(now)
        read = self._written - self._transport.get_write_buffer_size()
        return self._host.unread.is_stalled(self, read, now)

    # --- for the TLS gate -----------------------------------------------------------------------------------------

    def write_cipher(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def hold(self, count: int) -> None:
        self._host.partial.note(self, count, afresh=False)

    def end_of_stream(self) -> None:
        if self._transport is not None:  # once the last requests have been handled
            self._host.loop.call_soon(self._transport.close)

    def fail(self, reason: str) -> None:
        """Close because of what the peer has sent."""
        self._host.counts.malformed += 1
        self.close(reason)
