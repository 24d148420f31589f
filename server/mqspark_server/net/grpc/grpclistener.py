"""All gRPC connections of one port, within the bounds of remoting (``remotingserver``). Everything here runs on the
event loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Mapping
from time import monotonic

from mqspark_server.net.addresses import listening
from mqspark_server.net.deadlines import NO_SLOT, STEP_S, Deadlines
from mqspark_server.net.grpc.connectionturns import ConnectionTurns
from mqspark_server.net.grpc.grpcconnection import GrpcConnection
from mqspark_server.net.grpc.grpcwords import GrpcAbort, GrpcCode
from mqspark_server.net.grpc.servedcalls import GrpcMethod, ServedCall
from mqspark_server.net.guards import IDLE_SCAN_S, ConnectionLimits, GuardedServer
from mqspark_server.net.heldbytes import MIN_BYTES_PER_S
from mqspark_server.net.servertls import Certificates

MAX_STREAMS = 4_096
"""Calls of one connection at a time."""
_STOPS = GrpcAbort(GrpcCode.UNAVAILABLE, "the server stops")
_LATE = GrpcAbort(GrpcCode.DEADLINE_EXCEEDED, "the time of the call is over")
_DOES_NOT_ARRIVE = GrpcAbort(GrpcCode.DEADLINE_EXCEEDED, "the request does not arrive")


class GrpcListener(GuardedServer[GrpcConnection]):
    """Serves ``methods``, by their paths, with requests of at most ``max_message_bytes``. ``unread_fields`` of their
    metadata are left out."""

    def __init__(
        self,
        methods: Mapping[str, GrpcMethod],
        tls: Certificates | None,
        *,
        name: str,
        unread_fields: Collection[str] = (),
        max_message_bytes: int,
        max_calls: int,
        max_age_s: float = 0.0,
        limits: ConnectionLimits,
    ) -> None:
        """``max_age_s`` of a connection; 0: any."""
        super().__init__(name, tls, limits)
        self.methods = methods
        self.max_streams = MAX_STREAMS
        self.unread_fields = unread_fields
        self.max_message_bytes = max_message_bytes
        self._max_calls = max_calls
        self._idle_s = limits.idle_s
        self._max_age_s = max_age_s
        self._scan_s = min(IDLE_SCAN_S, limits.idle_s, max_age_s or limits.idle_s)
        self.request_s = limits.partial_frame_s
        self.deadlines: Deadlines[ServedCall] = Deadlines(self.loop, self._expire)
        self.calls = 0
        """Calls that are being served."""
        self.begun_calls = 0
        """All since the start."""
        self.turns = ConnectionTurns(self.loop)
        self._server: asyncio.Server | None = None
        self._idle_handle: asyncio.TimerHandle | None = None
        self._no_calls: asyncio.Future[None] | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Accept on a bound socket, which is closed at the end. Raises OSError."""
        with listening(self.name, sock):
            self._server = await self.loop.create_server(
                lambda: GrpcConnection(self), sock=sock, backlog=self.sockets.backlog
            )
        self.watch()
        self._idle_handle = self.loop.call_later(self._scan_s, self._close_idle)

    # --- calls ----------------------------------------------------------------------------------------------------

    def may_begin(self) -> bool:
        """Whether there may be one more call, which then counts."""
        if self.calls >= self._max_calls:
            return False
        self.calls += 1
        self.begun_calls += 1
        return True

    def _expire(self, call: ServedCall) -> None:
        """A deadline is over: that of the call, or that of its request."""
        now = self.loop.time()
        if call.deadline is not None and call.deadline <= now + STEP_S:
            call.fail(_LATE)
        elif call.is_arriving(int(MIN_BYTES_PER_S * self.request_s)):
            self.deadlines.add(call, now + self.request_s)
        else:
            call.fail(_DOES_NOT_ARRIVE)

    def call_ended(self, call: ServedCall) -> None:
        self.calls -= 1
        if call.slot != NO_SLOT:
            self.deadlines.discard(call)
        if not self.calls and self._no_calls is not None and not self._no_calls.done():
            self._no_calls.set_result(None)

    def _close_idle(self) -> None:
        """Close what is silent and serves no call, and what is too old. A peer with calls may be silent, as long as it
        answers pings."""
        self._idle_handle = self.loop.call_later(self._scan_s, self._close_idle)
        now = monotonic()
        oldest = now - self._idle_s
        for connection in self.sockets:
            if self._max_age_s and connection.is_older(now, self._max_age_s):
                connection.retire(now)
                continue
            if connection.active_at >= oldest:
                continue
            if connection.is_idle:
                self.counts.idle += 1
                connection.close(f"idle for {self._idle_s:.0f} s")
            elif not connection.check_alive():
                self.drop(connection, "its peer does not answer a ping")

    # --- the end --------------------------------------------------------------------------------------------------

    async def close(self, grace_s: float | None) -> None:
        """Calls get a moment to end, then they are cancelled. ``grace_s`` None: at once, as when the process is
        killed."""
        self.sockets.refuse_all()
        if self._server is not None:
            self._server.close()
        if self._idle_handle is not None:
            self._idle_handle.cancel()
        if grace_s is not None:
            await self._drain(grace_s)
        await self.close_all(abruptly=grace_s is None)
        self.deadlines.close()

    async def _drain(self, grace_s: float) -> None:
        for connection in self.sockets:
            connection.announce_end()
        if self.calls:
            self._no_calls = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._no_calls
        for connection in self.sockets:
            connection.cancel_calls(_STOPS)
        await asyncio.sleep(0)
