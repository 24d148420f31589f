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
connections (``memory_budget``), and incomplete first frames have a further, lower bound, since any peer can begin one;
the mark of each connection falls as the space for unread answers shrinks. A connection is dropped when it transfers
fewer than MIN_BYTES_PER_S for too long. The number of connections is limited per address, in total, and by the file
descriptors of the process. At the limit, the oldest connection without a complete frame is closed for a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from mqspark.logs import sparing
from mqspark.protocol.session import Core, Session
from mqspark_server.net.descriptors import PROCESS
from mqspark_server.net.durations import Durations
from mqspark_server.net.lateness import Lateness, Overload
from mqspark_server.net.localpeer import LocalPeer
from mqspark_server.net.memory_budget import MemoryBudget
from mqspark_server.net.servertls import Certificates
from mqspark_server.net.tcpconnection import CONNECTION_S, MIN_BYTES_PER_S, RemotingConnection

__all__ = ["Listener", "RemotingServer"]

log = sparing("mqspark.tcp")

TURN_BYTES = 64 * 1024
"""After this many bytes the commands received so far are stored and answered before the loop reads on. Peers with large
requests then send their next ones earlier (1.06 to 1.11 times the rate of Java's BatchProducer)."""

RING_S = 0.020
"""Time in one iteration of the loop for all waiting commands; long work gets the time of one connection in
addition."""

NOTE_BYTES = 16 * 1024
"""Unread answers of a connection are tracked from this size on: smaller amounts are usually sent before a check."""

SHARE = 8
"""A connection may hold unread an eighth of the room that is left for all, so that one that fills its share
leaves room for others (the dynamic thresholds of shared-memory switches)."""

WATCH_S = 0.5
"""Interval of the checks of connections with unread answers or incomplete frames."""

BLOCKED_S = 0.02
"""Interval after which blocked connections are checked for room again; longer when many are blocked."""

BLOCKED_AT_ONCE = 256

HANDSHAKE_S = 10.0
"""A TLS handshake that takes longer is aborted."""

MIN_BACKLOG = 128

MAX_EVICTED = 16
"""Connections that may be closing at the same time to make room for others."""

IDLE_SCAN_S = 5.0

FAILED_TICK_MS = 500
"""Delay of the next tick after an exception in the core."""

SHUTDOWN_GRACE_S = 2.0


class FrameWriter(Protocol):
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
        max_stranger_bytes: int | None = None,
        max_unsent_bytes: int = 256 * 1024 * 1024,
        unread_s: float = 60.0,
        partial_frame_s: float = 30.0,
        max_connections_per_address: int = 0,
        backlog: int = 1024,
        after_turn: Callable[[], None] | None = None,
        overload: Overload | None = None,
        tls: Certificates | None = None,
        session_type: type[Session] = Session,
    ) -> None:
        self.core = core
        self.name = name
        self._session_type = session_type
        self.high_water_bytes = high_water_bytes
        self.partial: MemoryBudget[RemotingConnection] = MemoryBudget(max_buffered_bytes)
        """Incomplete frames, and waiting commands."""
        self.strangers: MemoryBudget[RemotingConnection] = MemoryBudget(
            max_buffered_bytes if max_stranger_bytes is None else max_stranger_bytes
        )
        """Those of connections without a complete frame so far."""
        self.unsent: MemoryBudget[RemotingConnection] = MemoryBudget(max_unsent_bytes)
        """Unread answers."""
        self.unread_s = unread_s
        self.partial_frame_s = partial_frame_s
        self.floor = 0
        """The commands of a connection wait while its ``room`` is at most this."""
        self.noted_below = high_water_bytes - min(NOTE_BYTES, high_water_bytes // 2)
        """A connection with less room is in ``unsent``."""
        self._measure_above = 0
        self._shares_shrink_above = max_unsent_bytes - SHARE * high_water_bytes
        """Up to this total every connection may fill its high-water mark."""
        self._blocked: dict[RemotingConnection, None] = {}
        """Connections whose commands wait until unread answers have been read."""
        self._unblock_handle: asyncio.TimerHandle | None = None
        self._unblock_s = BLOCKED_S
        self.tls = tls
        self._handshakes: dict[RemotingConnection, float] = {}
        """Connections with an unfinished TLS handshake, and since when."""
        self._shaking: deque[RemotingConnection] = deque()
        """Connections that have received bytes of their handshake."""
        self.rejected_connections = 0
        self.dropped_connections = 0
        """Connections closed because their peers did not read, did not complete a frame, or sent nothing."""
        self.protocol_errors = 0
        self.idle_closed = 0
        """Connections closed because they were idle."""
        self._outbox = outbox
        self._idle_s = idle_s
        self._max_connections = max_connections
        self._max_per_address = max_connections_per_address
        self._addresses: dict[str, int] = {}
        self._unidentified: dict[RemotingConnection, None] = {}
        """Connections without a complete frame so far, oldest first."""
        self._evicted = 0
        self._backlog = backlog
        self._after_turn = after_turn
        self.loop = asyncio.get_running_loop()
        # asyncio's own transport either joins in writelines (3.11) or does not pause the protocol there (seen on
        # 3.13.0), and a protocol that was not paused is never resumed.
        self.gathers = type(self.loop).__module__.startswith("uvloop")
        self._listeners: list[Listener] = []
        self._sockets: set[RemotingConnection] = set()
        self._writers: dict[int, FrameWriter] = {}
        self._last_session_id = 0
        self.scheduled = False
        self.iteration = 0
        """Number of the current iteration of the loop; iterations without input do not count."""
        self._ring: deque[RemotingConnection] = deque()
        """Connections with waiting commands, in the order of their turns."""
        self._ring_scheduled = False
        self._unturned_bytes = 0
        self.lateness = Lateness(overload)
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

        Takes ownership of the socket.
        """
        host, port = sock.getsockname()[:2]
        # The kernel may accept this many connections before the first is checked.
        backlog = min(self._backlog, max(MIN_BACKLOG, PROCESS.room // 4))
        server = await self.loop.create_server(
            lambda: RemotingConnection(self, port, fast), sock=sock, backlog=backlog
        )
        listener = Listener(server, host, port)
        self._listeners.append(listener)
        return listener

    def start(self) -> None:
        """Run the core's timers and the idle scan."""
        self._run_tick()
        self._idle_handle = self.loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)
        self._watch_handle = self.loop.call_later(WATCH_S, self._watch)

    # -- the turn ----------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Ask for one turn in the next loop iteration."""
        if not self.scheduled:
            self.scheduled = True
            self.lateness.turn_begins()
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        """The end of an iteration of the loop: commit and answer the requests that it brought."""
        self.scheduled = False
        self.iteration += 1
        self.lateness.turn_is_read()
        self._do_turn()

    def _do_turn(self) -> None:
        self._unturned_bytes = 0
        self.core.turn()
        self.write_outbox()
        if self._after_turn is not None:
            self._after_turn()
        if self.core.work_waits:
            self.schedule_ring()

    def enter_ring(self, connection: RemotingConnection) -> None:
        """Queue the connection behind the others with waiting commands."""
        self._ring.append(connection)
        self.schedule_ring()

    def schedule_ring(self) -> None:
        if not self._ring_scheduled:
            self._ring_scheduled = True
            self.loop.call_soon(self._serve_ring)

    def _serve_ring(self) -> None:
        """Serve each waiting connection once, for at most RING_S; the rest waits for the next iteration."""
        self._ring_scheduled = False
        ring = self._ring
        was_scheduled, self.scheduled = self.scheduled, True  # the turn follows here
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
            self.scheduled = was_scheduled
        self._do_turn()
        if ring:
            self.schedule_ring()

    def begin_handshake(self, connection: RemotingConnection) -> None:
        self._handshakes[connection] = monotonic()

    def end_handshake(self, connection: RemotingConnection) -> None:
        self._handshakes.pop(connection, None)

    def schedule_handshake(self, connection: RemotingConnection) -> None:
        """Continue the handshake when its turn comes."""
        if not self._shaking:
            self.loop.call_soon(self._serve_handshakes)
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
            self.loop.call_soon(self._serve_handshakes)

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
        self.lags.record(max(0.0, self.loop.time() - self._tick_due_s))
        try:
            wait_ms = self.tick()
        except Exception:  # without a next tick the core's timers would stop
            log.exception("%s: a tick failed and is retried", self.name)
            wait_ms = FAILED_TICK_MS
        self._tick_due_s = self.loop.time() + max(wait_ms, 1) / 1000
        self._tick_handle = self.loop.call_at(self._tick_due_s, self._run_tick)

    def tick(self) -> int:
        """Run due timers; returns the milliseconds until the next tick is due. The next tick is already scheduled:
        tests that move the clock call this."""
        wait_ms = self.core.tick()
        self.write_outbox()
        if self._after_turn is not None:
            self._after_turn()
        if self.core.work_waits:
            self.schedule_ring()
        return wait_ms

    # -- sessions ----------------------------------------------------------------------------------

    def open_session(
        self, writer: FrameWriter, peer: tuple[str, int], local_port: int, fast: bool
    ) -> Session:
        self._last_session_id += 1
        session = self._session_type(
            self._last_session_id, *peer, self._outbox, local_port=local_port, fast=fast
        )
        self._writers[session.id] = writer
        self.core.connected(session)
        self.schedule()
        return session

    def close_session(self, session: Session) -> None:
        """End a session. Does nothing if it has already ended."""
        session.open = False
        if self._writers.pop(session.id, None) is None:
            return
        session.take()
        self.core.disconnected(session)
        self.schedule()

    def local_peer(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> LocalPeer:
        """A connection without a socket, for requests that this process (HTTP) sends on behalf of the peer at
        ``address``."""
        peer = LocalPeer(self)
        peer.session = self.open_session(peer, address, 0, False)
        return peer

    def _close_idle(self) -> None:
        self._idle_handle = self.loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)
        oldest = self.loop.time() - self._idle_s
        for connection in [c for c in self._sockets if c.active_at < oldest]:
            self.idle_closed += 1
            if connection in self.unsent:
                self.drop(connection, f"idle for {self._idle_s:.0f} s, with answers unread")
            else:
                connection.close(f"idle for {self._idle_s:.0f} s", level=logging.INFO)

    # -- memory held for peers ---------------------------------------------------------------------

    def note_unsent(self, connection: RemotingConnection, count: int) -> None:
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

    def note_partial(self, connection: RemotingConnection, count: int, *, afresh: bool) -> None:
        if connection.dropped:
            return
        partial, now = self.partial, monotonic()
        partial.keep(connection, count, now, afresh=afresh)
        if partial.total > partial.most:
            for each in partial.surplus(now):
                self.drop(each, f"incomplete frames of all connections exceed {partial.most} bytes")
        strangers = self.strangers
        if connection in self._unidentified and not connection.dropped:
            strangers.keep(connection, count, now, afresh=afresh)
            for each in strangers.surplus(now) if strangers.total > strangers.most else ():
                self.drop(each, f"first frames that are incomplete exceed {strangers.most} bytes")

    def drop(self, connection: RemotingConnection, reason: str) -> None:
        """Drop a connection whose memory is needed; unread answers are lost. ``reason`` is one of a few texts."""
        self.dropped_connections += 1
        connection.dropped = True
        now = monotonic()
        for held in (self.unsent, self.partial, self.strangers):
            held.keep(connection, 0, now)
        connection.abort(reason)

    def block(self, connection: RemotingConnection) -> None:
        """Check the connection for room again after BLOCKED_S."""
        self._blocked[connection] = None
        if self._unblock_handle is None:
            self._unblock_handle = self.loop.call_later(self._unblock_s, self._unblock)

    def _unblock(self) -> None:
        self._unblock_handle = None
        blocked, self._blocked = self._blocked, {}
        self._unblock_s = BLOCKED_S * (1 + len(blocked) // BLOCKED_AT_ONCE)
        for connection in blocked:
            connection.unblock()

    def _watch(self) -> None:
        self._watch_handle = self.loop.call_later(WATCH_S, self._watch)
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
        """Write pending answers, close every connection, and wait for them up to SHUTDOWN_GRACE_S. ``abruptly``:
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
            self._all_gone = self.loop.create_future()
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

    def admit(self, connection: RemotingConnection, descriptor: int, address: str) -> str | None:
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

    def known(self, connection: RemotingConnection) -> None:
        """A complete frame has arrived."""
        self._unidentified.pop(connection, None)
        self.strangers.keep(connection, 0, 0.0)

    def forget(self, connection: RemotingConnection, address: str) -> None:
        """An admitted connection is closed."""
        PROCESS.give_back()
        self._handshakes.pop(connection, None)
        self._unidentified.pop(connection, None)
        self.strangers.keep(connection, 0, 0.0)
        self._blocked.pop(connection, None)
        if connection.evicted:
            self._evicted -= 1
        left = self._addresses.pop(address, 1) - 1
        if left:
            self._addresses[address] = left
        self._sockets.discard(connection)
        if self._all_gone is not None and not self._sockets and not self._all_gone.done():
            self._all_gone.set_result(None)
