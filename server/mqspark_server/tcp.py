"""Sockets around a Core: bytes of ``data_received`` to commands, outgoing frames to one write a connection
and turn.

    data_received -> Connection.receive_data -> core.received       as often as the loop has bytes
    one call_soon per loop iteration, or TURN_BYTES have come: core.turn() -> every session of the outbox written once
    what a connection sent beyond its time of an iteration waits in a ring, with the core's long work: _serve_ring

Must not know a request code, nor what is in a body. Source of the numbers: remoting-protocol.md §3.3 (idle
close after 120 s, backlog 1024, TCP_NODELAY, no keep-alive). TLS is not available yet.

What bounds time: in one iteration of the loop a connection is served for CONNECTION_S, and what waits of all of them
for RING_S; the one command that is then under way comes to its end. A peer whose commands wait is not read from.

What bounds memory: a frame's length is checked before it is buffered (Connection); a connection whose peer
does not read its answers is not read from either, and what it had already sent is handed to the core in
slices, so that at most one slice of answers lies above the high-water mark; the number of connections is
limited, and so are the bytes of incomplete frames of all of them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Protocol, cast

from mqspark.errors import ProtocolError
from mqspark.logs import sparing
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import MAX_KNOWN_HEADER_BYTES, Connection
from mqspark.protocol.headers import Header
from mqspark.protocol.session import Core, Session
from mqspark_server.lateness import Lateness, Overload

__all__ = ["Listener", "LocalPeer", "RemotingServer", "bind_pair", "bind_socket"]

log = sparing("mqspark.tcp")

SLICE_COMMANDS = 64
"""Commands handed to the core before the size of its answers is looked at."""

JOIN_BYTES = 64 * 1024
"""Up to this size answers are copied into one buffer; a copy is then cheaper than a longer iovec."""

READ_BYTES = 256 * 1024
"""A read of what a peer left behind."""

TURN_BYTES = 64 * 1024
"""When so much has come, it is stored and answered before the loop reads on: peers with large requests have their next
ones ready by then, instead of waiting for all of each other's (1.06 to 1.11 times the rate of Java's BatchProducer)."""

CONNECTION_S = 0.005
"""In one iteration of the loop the commands of one connection are handled for so long. Several hundred sends are not;
who asks for more than that waits for the others' turns."""

RING_S = 0.020
"""For so long the commands that wait are handled in one iteration, all connections together; long work for as long
again as one connection."""

IDLE_SCAN_S = 5.0
FAILED_TICK_MS = 500
"""After a fault of the core."""

PORT_PAIR_ATTEMPTS = 64
SHUTDOWN_GRACE_S = 2.0


class _Writer(Protocol):
    def write_out(self, out: list[bytes | memoryview]) -> None: ...

    def close(self, reason: str) -> None: ...


def bind_socket(host: str, port: int) -> socket.socket:
    """Bound, not listening yet: a port in use is known before a store is opened, and no client waits in a
    backlog.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket | None]:
    """The broker's port and its fast port two below (remoting-protocol.md §11).

    With port 0 a free pair is looked for. With a fixed port a taken fast port gives None: few clients use
    it, and none by default.
    """
    if port:
        main = bind_socket(host, port)
        try:
            return main, bind_socket(host, port - 2)
        except (OSError, OverflowError):
            return main, None
    kept: list[socket.socket] = []  # held until the end, so that the kernel proposes another port each time
    try:
        for _ in range(PORT_PAIR_ATTEMPTS):
            main = bind_socket(host, 0)
            try:
                return main, bind_socket(host, main.getsockname()[1] - 2)
            except OSError:
                kept.append(main)
        return kept.pop(), None
    finally:
        for sock in kept:
            sock.close()


class Listener:
    """A listening socket and where it is."""

    def __init__(self, server: asyncio.Server, host: str, port: int) -> None:
        self._server = server
        self.host = host
        self.port = port

    def stop(self) -> None:
        self._server.close()


class RemotingServer:
    """All connections of one core. Everything here runs on the event loop's thread."""

    def __init__(
        self,
        core: Core,
        outbox: list[Session],
        *,
        name: str,
        idle_s: float = 120.0,
        max_connections: int = 10_000,
        high_water_bytes: int = 4 * 1024 * 1024,
        max_buffered_bytes: int = 256 * 1024 * 1024,
        backlog: int = 1024,
        after_turn: Callable[[], None] | None = None,
        overload: Overload | None = None,
    ) -> None:
        self.core = core
        self.name = name
        self.high_water_bytes = high_water_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.buffered_bytes = 0
        """Of frames not yet complete, over all connections."""
        self.rejected_connections = 0
        self.protocol_errors = 0
        self._outbox = outbox
        self._idle_s = idle_s
        self._max_connections = max_connections
        self._backlog = backlog
        self._after_turn = after_turn
        self._loop = asyncio.get_running_loop()
        # asyncio's own transport either joins in writelines (3.11) or does not pause the protocol there (seen on
        # 3.13.0), and a protocol that was not paused is never resumed.
        self.gathers = type(self._loop).__module__.startswith("uvloop")
        self._listeners: list[Listener] = []
        self._sockets: set[_RemotingConnection] = set()
        self._writers: dict[int, _Writer] = {}
        self._last_session_id = 0
        self._scheduled = False
        self.iteration = 0
        """Of the loop, among those in which something came."""
        self._ring: deque[_RemotingConnection] = deque()
        """Connections whose commands wait for their turn."""
        self._ring_scheduled = False
        self._unturned_bytes = 0
        self._lateness = Lateness(overload)
        self._closing = False
        self._tick_handle: asyncio.TimerHandle | None = None
        self._idle_handle: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._sockets)

    async def listen(self, sock: socket.socket, *, fast: bool = False) -> Listener:
        """Accept on a bound socket; ``fast`` marks its sessions as those of the fast port.

        Takes the socket over.
        """
        host, port = sock.getsockname()[:2]
        server = await self._loop.create_server(
            lambda: _RemotingConnection(self, port, fast), sock=sock, backlog=self._backlog
        )
        listener = Listener(server, host, port)
        self._listeners.append(listener)
        return listener

    def start(self) -> None:
        """Run the core's timers and the idle scan."""
        self._run_tick()
        self._idle_handle = self._loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)

    # -- the turn ----------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Ask for one turn in the next loop iteration."""
        if not self._scheduled:
            self._scheduled = True
            self._lateness.turn_begins()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self.iteration += 1
        self._lateness.turn_is_read()
        self._do_turn()

    def _do_turn(self) -> None:
        self._unturned_bytes = 0
        self.core.turn()
        self.write_outbox()
        if self._after_turn is not None:
            self._after_turn()
        if self.core.work_waits:
            self.schedule_ring()

    def enter_ring(self, connection: _RemotingConnection) -> None:
        """Its commands are handled when those of the others that wait have been."""
        self._ring.append(connection)
        self.schedule_ring()

    def schedule_ring(self) -> None:
        if not self._ring_scheduled:
            self._ring_scheduled = True
            self._loop.call_soon(self._serve_ring)

    def _serve_ring(self) -> None:
        """Once each, for as long as there is time; then whoever is ready comes before the rest."""
        self._ring_scheduled = False
        ring = self._ring
        now = monotonic()
        end = now + RING_S
        for _ in range(len(ring)):
            ring.popleft().serve_waiting(min(now + CONNECTION_S, end))
            now = monotonic()
            if now >= end:
                break
        end = now + CONNECTION_S
        more = self.core.work()
        while more and monotonic() < end:
            more = self.core.work()
        self._do_turn()
        if ring:
            self.schedule_ring()

    def arrived(self, count: int) -> None:
        """So many bytes were handed over. Much is not left waiting for the end of the loop's iteration."""
        self._unturned_bytes += count
        if self._unturned_bytes >= TURN_BYTES:
            self._do_turn()

    def write_outbox(self) -> None:
        """Write all that the core has to say, one write a connection."""
        outbox = self._outbox
        if not outbox:
            return
        sessions = outbox[:]
        outbox.clear()
        writers = self._writers
        for session in sessions:
            writer = writers.get(session.id)
            out = session.take()
            if writer is None:
                continue
            if out:
                writer.write_out(out)
            if not session.open:
                writer.close("the server ended it")

    def _run_tick(self) -> None:
        try:
            wait_ms = self.tick()
        except Exception:  # without a next tick the core would know no time any more
            log.exception("%s: what was due failed and is tried again", self.name)
            wait_ms = FAILED_TICK_MS
        self._tick_handle = self._loop.call_later(max(wait_ms, 1) / 1000, self._run_tick)

    def tick(self) -> int:
        """What is due by the clock, now; milliseconds until the core wants the next one. It gets that one by itself:
        for whoever moves the clock."""
        wait_ms = self.core.tick()
        self.write_outbox()
        if self._after_turn is not None:
            self._after_turn()
        if self.core.work_waits:
            self.schedule_ring()
        return wait_ms

    # -- sessions ----------------------------------------------------------------------------------

    def _open_session(self, writer: _Writer, peer: tuple[str, int], local_port: int, fast: bool) -> Session:
        self._last_session_id += 1
        session = Session(self._last_session_id, *peer, self._outbox, local_port=local_port, fast=fast)
        self._writers[session.id] = writer
        self.core.connected(session)
        self.schedule()
        return session

    def _close_session(self, session: Session) -> None:
        session.open = False
        del self._writers[session.id]
        session.take()
        self.core.disconnected(session)
        self.schedule()

    def local_peer(self) -> LocalPeer:
        """A connection without a socket, for requests from this process (HTTP)."""
        peer = LocalPeer(self)
        peer.session = self._open_session(peer, ("127.0.0.1", 0), 0, False)
        return peer

    def _close_idle(self) -> None:
        self._idle_handle = self._loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)
        oldest = self._loop.time() - self._idle_s
        for connection in [c for c in self._sockets if c.active_at < oldest]:
            connection.close(f"idle for {self._idle_s:.0f} s", level=logging.INFO)

    # -- shutdown ----------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.stop()

    async def close(self, *, abruptly: bool = False) -> None:
        """Write what is due, close every connection, wait for them up to SHUTDOWN_GRACE_S. ``abruptly``: write
        nothing more, as when the process dies."""
        self._closing = True
        self.stop_accepting()
        for handle in (self._tick_handle, self._idle_handle):
            if handle is not None:
                handle.cancel()
        if not abruptly:
            self.write_outbox()
        for writer in list(self._writers.values()):
            if isinstance(writer, LocalPeer):
                writer.close("the server stops")
        if self._sockets:
            self._all_gone = self._loop.create_future()
            for connection in list(self._sockets):
                if abruptly:
                    connection.abort()
                else:
                    connection.close("the server stops", level=logging.DEBUG)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHUTDOWN_GRACE_S):
                    await self._all_gone
            for connection in list(self._sockets):
                connection.abort()
            await asyncio.sleep(0)

    # -- called by connections ---------------------------------------------------------------------

    def _admit(self, connection: _RemotingConnection) -> bool:
        if self._closing or len(self._sockets) >= self._max_connections:
            self.rejected_connections += 1
            return False
        self._sockets.add(connection)
        return True

    def _forget(self, connection: _RemotingConnection) -> None:
        self._sockets.discard(connection)
        if self._all_gone is not None and not self._sockets and not self._all_gone.done():
            self._all_gone.set_result(None)


class _RemotingConnection(asyncio.Protocol):
    __slots__ = (
        "_buffered_bytes",
        "_closed_here",
        "_fast",
        "_in_ring",
        "_iteration",
        "_local_port",
        "_parser",
        "_server",
        "_session",
        "_transport",
        "_until",
        "_waiting",
        "_write_paused",
        "active_at",
    )

    def __init__(self, server: RemotingServer, local_port: int, fast: bool) -> None:
        self._server = server
        self._local_port = local_port
        self._fast = fast
        self._parser = Connection()
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._waiting: deque[Command] = deque()
        self._write_paused = False
        self._closed_here = False
        self._buffered_bytes = 0
        self._in_ring = False
        self._iteration = -1
        self._until = 0.0
        """The time up to which commands are handled in this iteration."""
        self.active_at = 0.0

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        transport = cast(asyncio.Transport, transport)
        server = self._server
        self._transport = transport
        if not server._admit(self):
            log.warning("%s: connection refused, %d are open", server.name, server.connections)
            transport.abort()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=server.high_water_bytes)
        self.active_at = server._loop.time()
        self._session = server._open_session(self, _peer(transport), self._local_port, self._fast)

    def data_received(self, data: bytes) -> None:
        server, session = self._server, self._session
        if session is None:
            return
        self.active_at = monotonic()
        if self._iteration != server.iteration:
            self._iteration = server.iteration
            self._until = self.active_at + CONNECTION_S
        try:
            commands = self._parser.receive_data(data)
        except ProtocolError as error:
            server.protocol_errors += 1
            self.close(str(error))
            return
        self._count_buffered(self._parser.buffered_bytes)
        if not commands:
            return
        if self._waiting or self._write_paused or session.long_answers or self.active_at >= self._until:
            self._waiting.extend(commands)
            self._wait()
            return
        if not server._scheduled:
            server.schedule()
        elif self.active_at > server._lateness.late_at:
            commands = server._lateness.sift(session, commands)
        if len(commands) == 1:
            self._deliver(session, commands)
        else:
            self._waiting.extend(commands)
            self._deliver_waiting()
        server.arrived(len(data))

    def connection_lost(self, error: Exception | None) -> None:
        session, transport = self._session, self._transport
        self._transport = None
        self._count_buffered(0)
        if session is None:
            self._server._forget(self)
            return
        log.debug("%s: connection of %s ended (%s)", self._server.name, session.peer, error or "closed")
        session.open = False
        if self._closed_here:
            self._waiting.clear()
        elif error is not None and transport is not None:
            self._read_rest(transport)
        self._until = monotonic() + CONNECTION_S
        self._deliver_rest(session)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._waiting:
            self._wait()
        elif self._transport is not None:
            self._transport.resume_reading()

    def _count_buffered(self, buffered_bytes: int) -> None:
        """A frame's length is bounded for each connection, this bounds all of them together."""
        server = self._server
        server.buffered_bytes += buffered_bytes - self._buffered_bytes
        self._buffered_bytes = buffered_bytes
        if buffered_bytes and server.buffered_bytes > server.max_buffered_bytes:
            self.close(f"incomplete frames of all connections exceed {server.max_buffered_bytes} bytes")

    # -- commands in -------------------------------------------------------------------------------

    def _deliver(self, session: Session, commands: Iterable[Command]) -> None:
        try:
            self._server.core.received(session, commands)
        except Exception:
            # A fault of ours must cost this connection only, and must be seen.
            log.exception("%s: a request of %s could not be handled", self._server.name, session.peer)
            self.close("internal error")
        self._server.schedule()

    def _paced(self, session: Session) -> Iterator[Command]:
        """What waits, until the time is over or an answer takes long; one command at least."""
        waiting, until = self._waiting, self._until
        for _ in range(min(SLICE_COMMANDS, len(waiting))):
            yield waiting.popleft()
            if session.long_answers or monotonic() >= until:
                return

    def _wait(self) -> None:
        """Let the others go first."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        if not self._in_ring and not self._write_paused:
            self._in_ring = True
            self._server.enter_ring(self)

    def serve_waiting(self, until: float) -> None:
        """The connection's turn in the ring."""
        self._in_ring = False
        session = self._session
        if session is None:
            return
        self._until = until
        if self._transport is None:
            self._deliver_rest(session)
        elif not self._write_paused:
            self._deliver_waiting()

    def _deliver_waiting(self) -> None:
        """Hand over slices until the time is over or the answers reach the high-water mark; then wait for the others or
        for the peer to read."""
        transport, session, waiting = self._transport, self._session, self._waiting
        if transport is None or session is None or transport.is_closing():
            return
        room = self._server.high_water_bytes - transport.get_write_buffer_size()
        is_time = True
        while waiting and room > 0 and is_time and not session.long_answers and not transport.is_closing():
            before = len(session.out)
            self._deliver(session, self._paced(session))
            room -= sum(map(len, session.out[before:]))
            is_time = monotonic() < self._until
        if transport.is_closing():
            return
        if not waiting:
            if not self._write_paused:
                transport.resume_reading()
        elif room > 0:
            self._wait()
        else:
            transport.pause_reading()

    def _read_rest(self, transport: asyncio.Transport) -> None:
        """What the peer sent before it went away and is unread in the kernel's buffer, because an answer of ours met
        the closed socket first. A consumer's last offsets are one-way requests right before it closes."""
        sock = transport.get_extra_info("socket")
        if sock is None:
            return
        with contextlib.suppress(OSError, ProtocolError):  # the peer is gone: there is nobody to tell
            while data := os.read(sock.fileno(), READ_BYTES):
                self._waiting.extend(self._parser.receive_data(data))

    def _deliver_rest(self, session: Session) -> None:
        """Hand over what the peer sent before it went away; its answers go nowhere. The session ends after that."""
        waiting = self._waiting
        while waiting and not self._closed_here and monotonic() < self._until and not session.long_answers:
            self._deliver(session, self._paced(session))
        if waiting and not self._closed_here:
            self._write_paused = False
            self._wait()
            return
        self._end(session)

    def _end(self, session: Session) -> None:
        self._session = None
        self._waiting.clear()
        self._server._close_session(session)
        self._server._forget(self)

    # -- frames out --------------------------------------------------------------------------------

    def write_out(self, out: list[bytes | memoryview]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.active_at = self._server._loop.time()
        if len(out) == 1:
            transport.write(out[0])
        elif not self._server.gathers or sum(map(len, out)) <= JOIN_BYTES:
            transport.write(b"".join(out))
        else:
            transport.writelines(_coalesced(out))
        if self._waiting:
            self._wait()

    # -- the end -----------------------------------------------------------------------------------

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Close when what is already written has gone out."""
        session = self._session
        if session is not None and self._transport is not None and not self._transport.is_closing():
            log.log(level, "%s: connection of %s closed: %s", self._server.name, session.peer, reason)
            self._closed_here = True
            self._transport.close()

    def abort(self) -> None:
        self._closed_here = True
        if self._transport is not None:
            self._transport.abort()
        elif self._session is not None:
            self._end(self._session)


class LocalPeer:
    """A client in the same process: requests go to the core as from a socket, answers resolve futures."""

    session: Session

    def __init__(self, server: RemotingServer) -> None:
        self._server = server
        self._requests = Connection(max_header_bytes=MAX_KNOWN_HEADER_BYTES)
        self._answers = Connection()
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0

    async def request(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 5.0,
    ) -> Command:
        """Raises TimeoutError, and ConnectionError when the server ends first."""
        self._opaque += 1
        opaque = self._opaque
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._pending[opaque] = answer
        try:
            frame = encode_request(code, opaque, header, body)
            self._server.core.received(self.session, self._requests.receive_data(frame))
            self._server.schedule()
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._pending.pop(opaque, None)

    def write_out(self, out: list[bytes | memoryview]) -> None:
        for command in self._answers.receive_data(b"".join(out)):
            answer = self._pending.get(command.opaque)
            if command.is_response and answer is not None and not answer.done():
                answer.set_result(command)

    def close(self, reason: str = "closed") -> None:
        """Unanswered requests fail with ConnectionError."""
        if self.session.id in self._server._writers:
            self._server._close_session(self.session)
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(ConnectionError(reason))


def _peer(transport: asyncio.Transport) -> tuple[str, int]:
    name = transport.get_extra_info("peername")
    if not name:  # the peer is gone before we asked
        return "0.0.0.0", 0  # noqa: S104 - an address that means none
    return str(name[0]).removeprefix("::ffff:"), int(name[1])


def _coalesced(out: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Neighbouring small frames joined, large bodies left alone: few iovecs and no copy of a body."""
    merged: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for buffer in out:
        if len(buffer) < JOIN_BYTES // 16:
            small.append(buffer)
            continue
        if small:
            merged.append(small[0] if len(small) == 1 else b"".join(small))
            small = []
        merged.append(buffer)
    if small:
        merged.append(b"".join(small))
    return merged
