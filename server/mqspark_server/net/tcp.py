"""Sockets around a Core: bytes of ``data_received`` to commands, outgoing frames to one write a connection
and turn.

    data_received -> Connection.receive_data -> core.received       whenever the loop has bytes
    one call_soon per loop iteration, or after TURN_BYTES: core.turn() -> every session of the outbox is written once
    commands beyond a connection's time share wait in a ring, together with the core's long work: _serve_ring

Must not know a request code or the content of a body. Source of the numbers: NettyServerConfig (idle close after
120 s, backlog 1024, TCP_NODELAY, no keep-alive).
A connection whose first byte begins a TLS handshake is decrypted on the way in and encrypted on the way out.

Time bounds: in one iteration of the loop each connection is served for at most CONNECTION_S, and all waiting commands
together for RING_S; a command that has begun is completed. A connection with waiting commands is not read from.

Memory bounds: the length of a frame is checked before the frame is buffered (Connection). A connection whose peer does
not read its answers is not read from. While its unread answers reach the high-water mark, its waiting commands are not
handled, so it exceeds the mark by one answer at most. Unread answers and incomplete frames are also bounded over all
connections (``memory_budget``); the mark of each connection falls as the space for unread answers shrinks. A connection
is dropped when it transfers fewer than MIN_BYTES_PER_S for too long. The number of connections is limited per
address, in total, and by the file descriptors of the process. At the limit, the oldest connection without a complete
frame is closed for a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Protocol, cast

from mqspark.errors import ProtocolError
from mqspark.logs import sparing
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, Connection
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Core, Session
from mqspark_server.net.descriptors import PROCESS
from mqspark_server.net.durations import Durations
from mqspark_server.net.lateness import Lateness, Overload
from mqspark_server.net.memory_budget import MemoryBudget, Pace
from mqspark_server.net.servertls import HANDSHAKE_BYTE, Certificates, TlsStream

__all__ = ["Listener", "LocalPeer", "RemotingServer"]

log = sparing("mqspark.tcp")

SLICE_COMMANDS = 64
"""Commands handed to the core between two checks of the size of its answers."""

JOIN_BYTES = 64 * 1024
"""Up to this size answers are copied into one buffer, because a copy is cheaper than a longer iovec."""

READ_BYTES = 256 * 1024
"""Size of one read from the kernel's buffer after a peer has disconnected."""

TURN_BYTES = 64 * 1024
"""After this many bytes the commands received so far are stored and answered before the loop reads on. Peers with large
requests then send their next ones earlier (1.06 to 1.11 times the rate of Java's BatchProducer)."""

CONNECTION_S = 0.005
"""Time in one iteration of the loop for the commands of one connection: enough for several hundred sends. Commands
beyond it wait until the other connections have been served."""

RING_S = 0.020
"""Time in one iteration of the loop for all waiting commands; long work gets the time of one connection in
addition."""

NOTE_BYTES = 16 * 1024
"""Unread answers of a connection are tracked from this size on: smaller amounts are usually sent before a check."""

SHARE = 8
"""A connection may hold unread an eighth of the room that is left for all, so that one that fills its share
leaves room for others (the dynamic thresholds of shared-memory switches)."""

COMMAND_BYTES = 512
"""Bytes of a waiting command besides its frame."""

REST_BYTES = 1024 * 1024
"""The limit of reads from the kernel's buffer after a peer has disconnected."""

MIN_BYTES_PER_S = 1024
"""A peer that reads or sends at this rate is slow; a slower one counts as stalled."""

WATCH_S = 0.5
"""Interval of the checks of connections with unread answers or incomplete frames."""

BLOCKED_S = 0.02
"""Interval after which blocked connections are checked for room again; longer when many are blocked."""

BLOCKED_AT_ONCE = 256

LINGER_S = 5.0
"""Data that a closed connection has not read by then is dropped."""

HANDSHAKE_S = 10.0
"""A TLS handshake that takes longer is given up."""

MIN_BACKLOG = 128

MAX_EVICTED = 16
"""Connections that may be closing at the same time to make room for others."""

IDLE_SCAN_S = 5.0
FAILED_TICK_MS = 500
"""Delay of the next tick after an exception in the core."""

SHUTDOWN_GRACE_S = 2.0


class _FrameWriter(Protocol):
    def write_out(self, out: list[bytes | memoryview], size: int) -> None:
        """``size``: of all of them."""
        ...

    def close(self, reason: str) -> None: ...


class Listener:
    """A listening socket and its address."""

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
        max_unsent_bytes: int = 256 * 1024 * 1024,
        unread_s: float = 60.0,
        partial_frame_s: float = 30.0,
        max_connections_per_address: int = 0,
        backlog: int = 1024,
        after_turn: Callable[[], None] | None = None,
        overload: Overload | None = None,
        tls: Certificates | None = None,
    ) -> None:
        self.core = core
        self.name = name
        self.high_water_bytes = high_water_bytes
        self.partial: MemoryBudget[_RemotingConnection] = MemoryBudget(max_buffered_bytes)
        """Incomplete frames, and waiting commands."""
        self.unsent: MemoryBudget[_RemotingConnection] = MemoryBudget(max_unsent_bytes)
        """Unread answers."""
        self.unread_s = unread_s
        self.partial_frame_s = partial_frame_s
        self.floor = 0
        """A connection with no more ``room`` than that gets no command handled."""
        self.noted_below = high_water_bytes - min(NOTE_BYTES, high_water_bytes // 2)
        """A connection with less room is in ``unsent``."""
        self._measure_above = 0
        self._shares_shrink_above = max_unsent_bytes - SHARE * high_water_bytes
        """Up to this total every connection may fill its high-water mark."""
        self._blocked: set[_RemotingConnection] = set()
        """Connections whose commands wait until unread answers have been read."""
        self._unblock_handle: asyncio.TimerHandle | None = None
        self._unblock_s = BLOCKED_S
        self.tls = tls
        self._handshakes: dict[_RemotingConnection, float] = {}
        """Connections with an unfinished TLS handshake, and since when."""
        self._shaking: deque[_RemotingConnection] = deque()
        """Those for whose handshake something has arrived."""
        self.rejected_connections = 0
        self.dropped_connections = 0
        """Connections closed because their peers did not read, did not complete a frame, or sent nothing."""
        self.protocol_errors = 0
        self._outbox = outbox
        self._idle_s = idle_s
        self._max_connections = max_connections
        self._max_per_address = max_connections_per_address
        self._addresses: dict[str, int] = {}
        self._unidentified: dict[_RemotingConnection, None] = {}
        """Connections without a complete frame so far, oldest first."""
        self._evicted = 0
        self._backlog = backlog
        self._after_turn = after_turn
        self._loop = asyncio.get_running_loop()
        # asyncio's own transport either joins in writelines (3.11) or does not pause the protocol there (seen on
        # 3.13.0), and a protocol that was not paused is never resumed.
        self.gathers = type(self._loop).__module__.startswith("uvloop")
        self._listeners: list[Listener] = []
        self._sockets: set[_RemotingConnection] = set()
        self._writers: dict[int, _FrameWriter] = {}
        self._last_session_id = 0
        self._scheduled = False
        self.iteration = 0
        """Number of the current iteration of the loop; iterations without input do not count."""
        self._ring: deque[_RemotingConnection] = deque()
        """Connections with waiting commands, in the order of their turns."""
        self._ring_scheduled = False
        self._unturned_bytes = 0
        self._lateness = Lateness(overload)
        self._closing = False
        self._tick_handle: asyncio.TimerHandle | None = None
        self._tick_due_s = math.inf
        self.lags = Durations()
        """How much later than due the loop runs its timers."""
        self._idle_handle: asyncio.TimerHandle | None = None
        self._watch_handle: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._sockets)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of incomplete frames, over all connections."""
        return self.partial.total

    async def listen(self, sock: socket.socket, *, fast: bool = False) -> Listener:
        """Accept on a bound socket; ``fast`` marks its sessions as those of the fast port.

        Takes the socket over.
        """
        host, port = sock.getsockname()[:2]
        # The kernel may accept this many connections before the first is checked.
        backlog = min(self._backlog, max(MIN_BACKLOG, PROCESS.room // 4))
        server = await self._loop.create_server(
            lambda: _RemotingConnection(self, port, fast), sock=sock, backlog=backlog
        )
        listener = Listener(server, host, port)
        self._listeners.append(listener)
        return listener

    def start(self) -> None:
        """Run the core's timers and the idle scan."""
        self._run_tick()
        self._idle_handle = self._loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)
        self._watch_handle = self._loop.call_later(WATCH_S, self._watch)

    # -- the turn ----------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Ask for one turn in the next loop iteration."""
        if not self._scheduled:
            self._scheduled = True
            self._lateness.turn_begins()
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        """The end of an iteration of the loop: what it brought is committed and answered."""
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
        """Queue the connection behind the others with waiting commands."""
        self._ring.append(connection)
        self.schedule_ring()

    def schedule_ring(self) -> None:
        if not self._ring_scheduled:
            self._ring_scheduled = True
            self._loop.call_soon(self._serve_ring)

    def _serve_ring(self) -> None:
        """Serve each waiting connection once, for at most RING_S; the rest waits for the next iteration."""
        self._ring_scheduled = False
        ring = self._ring
        was_scheduled, self._scheduled = self._scheduled, True  # the turn follows here
        try:
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
        finally:
            self._scheduled = was_scheduled
        self._do_turn()
        if ring:
            self.schedule_ring()

    def begin_handshake(self, connection: _RemotingConnection) -> None:
        self._handshakes[connection] = monotonic()

    def end_handshake(self, connection: _RemotingConnection) -> None:
        self._handshakes.pop(connection, None)

    def schedule_handshake(self, connection: _RemotingConnection) -> None:
        """Go on with it when it is its turn."""
        if not self._shaking:
            self._loop.call_soon(self._serve_handshakes)
        self._shaking.append(connection)

    def _serve_handshakes(self) -> None:
        """As many as CONNECTION_S allows in this iteration of the loop, at least one."""
        shaking = self._shaking
        end = monotonic() + CONNECTION_S
        while shaking:
            shaking.popleft().shake_hands()
            if monotonic() >= end:
                break
        if shaking:
            self._loop.call_soon(self._serve_handshakes)

    def arrived(self, count: int) -> None:
        """``count`` bytes were handed to the core. After TURN_BYTES the turn ends at once."""
        self._unturned_bytes += count
        if self._unturned_bytes >= TURN_BYTES:
            self._do_turn()

    def write_outbox(self) -> None:
        """Write all outgoing frames of the core, one write per connection."""
        outbox = self._outbox
        if not outbox:
            return
        sessions = outbox[:]
        outbox.clear()
        writers = self._writers
        for session in sessions:
            writer = writers.get(session.id)
            size = session.out_bytes
            out = session.take()
            if writer is None:
                continue
            if out:
                writer.write_out(out, size)
            if not session.open:
                writer.close("the server closed it")

    def _run_tick(self) -> None:
        self.lags.record(max(0.0, self._loop.time() - self._tick_due_s))
        try:
            wait_ms = self.tick()
        except Exception:  # without a next tick the core's timers would stop
            log.exception("%s: a tick failed and is retried", self.name)
            wait_ms = FAILED_TICK_MS
        self._tick_due_s = self._loop.time() + max(wait_ms, 1) / 1000
        self._tick_handle = self._loop.call_at(self._tick_due_s, self._run_tick)

    def tick(self) -> int:
        """Run what is due; returns the milliseconds until the next tick is due. The next tick is already scheduled:
        tests that move the clock call this."""
        wait_ms = self.core.tick()
        self.write_outbox()
        if self._after_turn is not None:
            self._after_turn()
        if self.core.work_waits:
            self.schedule_ring()
        return wait_ms

    # -- sessions ----------------------------------------------------------------------------------

    def _open_session(
        self, writer: _FrameWriter, peer: tuple[str, int], local_port: int, fast: bool
    ) -> Session:
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

    def local_peer(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> LocalPeer:
        """A connection without a socket, for requests from this process (HTTP) in the name of who is at ``address``."""
        peer = LocalPeer(self)
        peer.session = self._open_session(peer, address, 0, False)
        return peer

    def _close_idle(self) -> None:
        self._idle_handle = self._loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)
        oldest = self._loop.time() - self._idle_s
        for connection in [c for c in self._sockets if c.active_at < oldest]:
            if connection in self.unsent:
                self.drop(connection, f"idle for {self._idle_s:.0f} s, with answers unread")
            else:
                connection.close(f"idle for {self._idle_s:.0f} s", level=logging.INFO)

    # -- memory held for peers ---------------------------------------------------------------------

    def note_unsent(self, connection: _RemotingConnection, count: int) -> None:
        """``count`` bytes of answers are unread by the peer."""
        if connection.dropped:
            return
        unsent = self.unsent
        unsent.keep(connection, count, monotonic())
        if unsent.total > self._measure_above:
            self._measure_unsent()
        if self.floor or unsent.total > self._shares_shrink_above:
            self._set_floor()

    def _set_floor(self) -> None:
        share = max((self.unsent.most - self.unsent.total) // SHARE, NOTE_BYTES)
        self.floor = max(0, self.high_water_bytes - share)

    def _measure_unsent(self) -> None:
        """Measure all unread answers again, and drop connections while they exceed the limit."""
        unsent, now = self.unsent, monotonic()
        for connection in unsent:
            connection.measure(now)
        for connection in unsent.surplus(now):
            self.drop(connection, f"the answers that peers do not read exceed {unsent.most} bytes")
        # A measurement costs time per connection, so the next one waits for a considerable increase.
        self._measure_above = max(
            unsent.total + unsent.most // SHARE, unsent.most - SHARE * self.high_water_bytes
        )
        self._measure_above = min(self._measure_above, unsent.most)

    def note_partial(self, connection: _RemotingConnection, count: int, *, afresh: bool) -> None:
        if connection.dropped:
            return
        partial, now = self.partial, monotonic()
        partial.keep(connection, count, now, afresh=afresh)
        if partial.total > partial.most:
            for each in partial.surplus(now):
                self.drop(each, f"incomplete frames of all connections exceed {partial.most} bytes")

    def drop(self, connection: _RemotingConnection, reason: str) -> None:
        """Drop a connection whose memory is needed; unread answers are lost. ``reason`` is one of a few texts."""
        self.dropped_connections += 1
        connection.dropped = True
        now = monotonic()
        self.unsent.keep(connection, 0, now)
        self.partial.keep(connection, 0, now)
        connection.abort(reason)

    def block(self, connection: _RemotingConnection) -> None:
        """Check the connection for room again after BLOCKED_S."""
        self._blocked.add(connection)
        if self._unblock_handle is None:
            self._unblock_handle = self._loop.call_later(self._unblock_s, self._unblock)

    def _unblock(self) -> None:
        self._unblock_handle = None
        blocked, self._blocked = self._blocked, set()
        self._unblock_s = BLOCKED_S * (1 + len(blocked) // BLOCKED_AT_ONCE)
        for connection in blocked:
            connection.unblock()

    def _watch(self) -> None:
        self._watch_handle = self._loop.call_later(WATCH_S, self._watch)
        now = monotonic()
        for connection in self.unsent:
            if connection.does_not_read(now):
                self.drop(connection, f"its answers were not read for {self.unread_s:.0f} s")
        self._set_floor()
        for connection in self.partial:
            count, since = self.partial.held(connection)
            age = now - since
            if age > self.partial_frame_s and count < MIN_BYTES_PER_S * age and not connection.waits:
                self.drop(connection, f"a frame of it is not complete after {self.partial_frame_s:.0f} s")
        for connection, since in list(self._handshakes.items()):
            if now - since > HANDSHAKE_S:
                self.drop(connection, f"its TLS handshake is not complete after {HANDSHAKE_S:.0f} s")

    # -- shutdown ----------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.stop()

    async def close(self, *, abruptly: bool = False) -> None:
        """Write what is due, close every connection, and wait for them up to SHUTDOWN_GRACE_S. ``abruptly``:
        write nothing more, as when the process is killed."""
        self._closing = True
        self.stop_accepting()
        for handle in (self._tick_handle, self._idle_handle, self._watch_handle, self._unblock_handle):
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

    def _admit(self, connection: _RemotingConnection, descriptor: int, address: str) -> str | None:
        """Why the connection is refused, or None."""
        problem = None
        here = self._addresses.get(address, 0)
        if self._closing:
            problem = "the server stops"
        elif 0 < self._max_per_address <= here:
            problem = f"{here} of its address are open"
        elif len(self._sockets) >= self._max_connections and not self._evict():
            problem = f"{len(self._sockets)} are open"
        elif not PROCESS.take(descriptor) and not (self._evict() and PROCESS.take(descriptor, MAX_EVICTED)):
            problem = f"{PROCESS.connections} of this process are open, and files need descriptors"
        if problem is not None:
            self.rejected_connections += 1
            return problem
        self._sockets.add(connection)
        self._unidentified[connection] = None
        self._addresses[address] = here + 1
        return None

    def _evict(self) -> bool:
        """Close the connection that has been open for longest without a complete frame. False if there is none."""
        oldest = next(iter(self._unidentified), None)
        if oldest is None or self._evicted >= MAX_EVICTED:
            return False
        del self._unidentified[oldest]
        self._evicted += 1
        self._sockets.discard(oldest)
        oldest.evicted = True
        self.drop(oldest, "it sent no complete frame, and its place is needed")
        return True

    def known(self, connection: _RemotingConnection) -> None:
        """A complete frame has arrived."""
        self._unidentified.pop(connection, None)

    def _forget(self, connection: _RemotingConnection, address: str) -> None:
        """An admitted connection is closed."""
        PROCESS.give_back()
        self._handshakes.pop(connection, None)
        self._unidentified.pop(connection, None)
        self._blocked.discard(connection)
        if connection.evicted:
            self._evicted -= 1
        left = self._addresses.pop(address, 1) - 1
        if left:
            self._addresses[address] = left
        self._sockets.discard(connection)
        if self._all_gone is not None and not self._sockets and not self._all_gone.done():
            self._all_gone.set_result(None)


class _RemotingConnection(asyncio.Protocol):
    __slots__ = (
        "_address",
        "_closed_here",
        "_decode",
        "_fast",
        "_in_ring",
        "_is_noted",
        "_is_unidentified",
        "_iteration",
        "_local_port",
        "_pace",
        "_parser",
        "_read",
        "_server",
        "_session",
        "_tls",
        "_transport",
        "_until",
        "_waiting",
        "_waiting_bytes",
        "_write_paused",
        "_written",
        "active_at",
        "dropped",
        "evicted",
    )

    def __init__(self, server: RemotingServer, local_port: int, fast: bool) -> None:
        self._server = server
        self._local_port = local_port
        self._fast = fast
        self._parser = Connection(in_slices=True, reads_over=True)
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._tls: TlsStream | None = None
        self._decode: Callable[[bytes], bytes] | None = None if server.tls is None else self._choose
        """From received bytes to those of frames; None: they are the same."""
        self._waiting: deque[Command] = deque()
        self._waiting_bytes = 0
        self._write_paused = False
        self._closed_here = False
        self._address = ""
        self._is_unidentified = True
        self._is_noted = False
        """Its last read ended in an incomplete frame."""
        self.evicted = False
        self._written = self._read = 0
        """Bytes written, and how many of them the peer had read at the last check."""
        self.dropped = False
        self._pace = Pace(MIN_BYTES_PER_S, server.unread_s)
        """The rate at which the peer reads."""
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
        sock = transport.get_extra_info("socket")
        peer = _peer(transport)
        problem = server._admit(self, sock.fileno() if sock is not None else 0, peer[0])
        if problem is not None:
            log.warning("%s: a connection of %s is refused: %s", server.name, peer[0], problem)
            transport.abort()
            return
        self._address = peer[0]
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=server.high_water_bytes)
        self.active_at = server._loop.time()
        self._session = server._open_session(self, peer, self._local_port, self._fast)
        self._session.room = server.high_water_bytes

    def data_received(self, data: bytes) -> None:
        server, session = self._server, self._session
        if session is None:
            return
        if self._decode is not None:
            data = self._decode(data)
            if not data:
                return
        self.active_at = now = monotonic()
        if self._iteration != server.iteration:
            self._iteration = server.iteration
            self._until = now + CONNECTION_S
        try:
            commands = self._parser.receive_data(data)
        except ProtocolError as error:
            server.protocol_errors += 1
            self.close(str(error))
            return
        buffered = self._parser.buffered_bytes
        if buffered or self._is_noted:
            self._is_noted = buffered > 0
            server.note_partial(self, buffered + self._waiting_bytes, afresh=bool(commands))
        if not commands:
            return
        if self._is_unidentified:
            self._is_unidentified = False
            server.known(self)
        if (
            self._waiting
            or self._write_paused
            or session.long_answers
            or now >= self._until
            or (session.room <= server.floor and not self._has_room(session, now))
        ):
            self._waiting.extend(commands)
            self._waiting_bytes += len(data) + COMMAND_BYTES * len(commands)
            server.note_partial(self, buffered + self._waiting_bytes, afresh=False)
            self._wait()
            return
        if not server._scheduled:
            server.schedule()
        elif now > server._lateness.late_at:
            commands = server._lateness.sift(session, commands)
        if len(commands) == 1:
            self._deliver(session, commands)
        else:
            self._waiting.extend(commands)
            self._deliver(session, self._paced(session))
            if self._waiting:
                self._deliver_waiting()
            if self._waiting:
                self._waiting_bytes = len(data) + COMMAND_BYTES * len(self._waiting)
                server.note_partial(self, buffered + self._waiting_bytes, afresh=False)
        server.arrived(len(data))

    def connection_lost(self, error: Exception | None) -> None:
        session, transport = self._session, self._transport
        self._transport = None
        if session is None:
            return  # it was refused
        self._server.note_unsent(self, 0)
        log.debug("%s: connection of %s ended (%s)", self._server.name, session.peer, error or "closed")
        session.open = False
        if self._closed_here:
            self._waiting.clear()
        elif error is not None and transport is not None:
            self._read_rest(transport)
        self._server.note_partial(self, self._waiting_bytes, afresh=False)
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

    # -- TLS ---------------------------------------------------------------------------------------

    def _choose(self, data: bytes) -> bytes:
        """The first bytes of the connection decide."""
        tls = self._server.tls
        if tls is not None and data[0] == HANDSHAKE_BYTE:
            self._tls = TlsStream(tls.context())
            self._decode = self._collect
            self._server.begin_handshake(self)
            return self._collect(data)
        if tls is not None and tls.settings.required:
            self._server.protocol_errors += 1
            self.close("it does not speak TLS (tls.server.mode=enforcing)")
            return b""
        self._decode = None
        return data

    def _collect(self, data: bytes) -> bytes:
        """A handshake costs processor time: this one waits for its turn."""
        tls, transport = self._tls, self._transport
        if tls is None or transport is None or transport.is_closing():
            return b""
        try:
            tls.receive(data)
        except ProtocolError as error:
            self._fail_tls(error)
        else:
            self._server.schedule_handshake(self)
        return b""

    def shake_hands(self) -> None:
        tls, transport = self._tls, self._transport
        if tls is None or transport is None or transport.is_closing() or tls.established:
            return
        try:
            is_complete = tls.shake_hands()
        except ProtocolError as error:
            self._fail_tls(error)
            return
        transport.write(tls.to_send())
        if is_complete:
            self._server.end_handshake(self)
            self._decode = self._decrypt
            self.data_received(b"")  # the first request may have come with the end of the handshake

    def _decrypt(self, data: bytes) -> bytes:
        tls, transport = self._tls, self._transport
        if tls is None:
            return b""
        plain = b""
        try:
            tls.receive(data)
            plain = tls.read()
        except ProtocolError as error:
            self._fail_tls(error)
        except EOFError:
            if transport is not None and not transport.is_closing():
                transport.close()
        else:
            if tls.ended and transport is not None:  # once the last requests have been handled
                self._server._loop.call_soon(transport.close)
        if (reply := tls.to_send()) and transport is not None:
            transport.write(reply)
        return plain

    def _fail_tls(self, error: ProtocolError) -> None:
        self._server.protocol_errors += 1
        if self._transport is not None and self._tls is not None:
            self._transport.write(self._tls.to_send())  # an alert says why
        self.close(str(error))

    # -- what the peer has not read ----------------------------------------------------------------

    def measure(self, now: float) -> None:
        """Measure the unread answers, and with them the room for more."""
        transport, session = self._transport, self._session
        if transport is None or session is None or self.dropped:
            return
        server = self._server
        held = transport.get_write_buffer_size() + session.out_bytes
        session.room = server.high_water_bytes - held
        server.unsent.keep(self, held if session.room < server.noted_below else 0, now)

    def _has_room(self, session: Session, now: float) -> bool:
        self.measure(now)
        return session.room > self._server.floor

    def does_not_read(self, now: float) -> bool:
        """Whether the peer has read nothing, or almost nothing, for too long."""
        if self._transport is None:
            return False
        self.measure(now)
        unsent = self._server.unsent
        count, _ = unsent.held(self)
        if not count:
            self._pace.rest()
            return False
        read = self._written - self._transport.get_write_buffer_size()
        if read - self._read >= count // 8:  # it makes progress
            unsent.keep(self, count, now, afresh=True)
        self._read = read
        return self._pace.is_too_slow(read, now)

    @property
    def waits(self) -> bool:
        """Whether this server, not the peer, has stopped the connection."""
        return bool(self._waiting) or self._write_paused

    def unblock(self) -> None:
        if self._waiting and self._session is not None:
            self._wait()

    # -- commands in -------------------------------------------------------------------------------

    def _deliver(self, session: Session, commands: Iterable[Command]) -> None:
        try:
            self._server.core.received(session, commands)
        except Exception:
            # A bug must affect only this connection, and must be logged.
            log.exception("%s: a request of %s could not be handled", self._server.name, session.peer)
            self.close("internal error")
        server = self._server
        if session.room < server.noted_below:
            server.note_unsent(self, server.high_water_bytes - session.room)
        if not server._scheduled:
            server.schedule()

    def _paced(self, session: Session) -> Iterator[Command]:
        """Waiting commands: at least one, until the time is over, an answer is slow to make or the peer has to read."""
        waiting, until, floor = self._waiting, self._until, self._server.floor
        popleft = waiting.popleft
        if len(waiting) <= SLICE_COMMANDS and self._parser.unparsed:
            self._parse_more()
        for _ in range(min(SLICE_COMMANDS, len(waiting))):
            yield popleft()
            if session.long_answers or session.room <= floor or monotonic() >= until:
                return

    def _parse_more(self) -> None:
        """Parse the next slice of the buffer, so that ``_waiting`` is empty only when the buffer is, too."""
        try:
            self._waiting.extend(self._parser.receive_data(b""))
        except ProtocolError as error:
            self._server.protocol_errors += 1
            self.close(str(error))

    def _wait(self) -> None:
        """Let other connections go first."""
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
        self._iteration = self._server.iteration  # what its socket already has does not get time of its own
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
        server = self._server
        if session.room < server.noted_below:
            self.measure(monotonic())
        is_time = True
        while (
            waiting
            and session.room > server.floor
            and is_time
            and not session.long_answers
            and not transport.is_closing()
        ):
            self._deliver(session, self._paced(session))
            is_time = monotonic() < self._until
        if transport.is_closing():
            return
        if not waiting:
            if self._waiting_bytes:  # else they have not waited, and reading was not paused
                self._waiting_bytes = 0
                server.note_partial(self, self._parser.buffered_bytes, afresh=True)
                if not self._write_paused:
                    transport.resume_reading()
        elif session.room > server.floor:
            self._wait()
        else:
            transport.pause_reading()
            server.block(self)

    def _read_rest(self, transport: asyncio.Transport) -> None:
        """Read what the peer sent before it disconnected. It is still in the kernel's buffer when a write to the closed
        socket failed first. A consumer commits its last offsets by one-way requests right before it closes."""
        sock = transport.get_extra_info("socket")
        if sock is None:
            return
        with contextlib.suppress(OSError, ProtocolError):  # the peer is gone, so no error can be sent to it
            for _ in range(REST_BYTES // READ_BYTES):
                if not (data := os.read(sock.fileno(), READ_BYTES)):
                    break
                if self._decode is not None:
                    data = self._decode(data)
                commands = self._parser.receive_data(data)
                self._waiting.extend(commands)
                self._waiting_bytes += len(data) + COMMAND_BYTES * len(commands)

    def _deliver_rest(self, session: Session) -> None:
        """Hand over what the peer sent before it disconnected. Answers are dropped. Then the session ends."""
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
        self._server.partial.keep(self, 0, 0.0)
        self._server._close_session(session)
        self._server._forget(self, self._address)

    # -- frames out --------------------------------------------------------------------------------

    def write_out(self, out: list[bytes | memoryview], size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        server, session = self._server, self._session
        self.active_at = server._loop.time()
        if self._tls is not None:
            try:
                out = [self._tls.encrypt(_coalesced(out))]
            except ProtocolError as error:  # it ends this connection, not the turn of the others
                self._fail_tls(error)
                return
        if len(out) == 1:
            self._written += len(out[0])
            transport.write(out[0])
        else:
            self._written += size
            if not server.gathers or size <= JOIN_BYTES:
                transport.write(b"".join(out))
            else:
                transport.writelines(_coalesced(out))
        if session is not None and session.room < server.noted_below:
            held = transport.get_write_buffer_size()
            session.room = server.high_water_bytes - held
            if session.room < server.noted_below:
                server.note_unsent(self, held)
        if self._waiting:
            self._wait()

    # -- the end -----------------------------------------------------------------------------------

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Close once everything already written has been sent."""
        session = self._session
        if session is not None and self._transport is not None and not self._transport.is_closing():
            log.log(level, "%s: connection of %s closed: %s", self._server.name, session.peer, reason)
            self._closed_here = True
            if self._tls is not None:
                self._transport.write(self._tls.end())
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._server._loop.call_later(LINGER_S, self.abort)

    def abort(self, reason: str | None = None) -> None:
        """Close at once; unwritten data is dropped."""
        if reason is not None and self._session is not None:
            log.warning("%s: connection of %s dropped: " + reason, self._server.name, self._session.peer)
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
        self._requests = Connection()
        self._answers = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES)
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

    def write_out(self, out: list[bytes | memoryview], size: int) -> None:
        try:
            commands = self._answers.receive_data(b"".join(out))
        except ProtocolError as error:  # an answer exceeds the frame limit: only these requests fail
            self._answers = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES)
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(ConnectionError(str(error)))
            return
        for command in commands:
            waiting = self._pending.get(command.opaque)
            if command.is_response and waiting is not None and not waiting.done():
                waiting.set_result(command)

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
