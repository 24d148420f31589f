"""Sockets around a Core: bytes of ``data_received`` to commands, outgoing frames to one write a connection
and turn.

    data_received -> core.take, the rest -> Connection.receive_data -> core.received       whenever the loop has bytes
    one call_soon per loop iteration, or after TURN_BYTES, or at once while one connection alone sends:
                                     core.turn() -> every session of the outbox is written once
    commands beyond a connection's time share wait in a ring, together with the core's long work: _serve_ring

Must not know a request code or the content of a body. Source of the numbers: NettyServerConfig (idle close after
120 s, backlog 1024, TCP_NODELAY, no keep-alive).
A connection whose first byte begins a TLS handshake is decrypted on the way in and encrypted on the way out.

Time bounds: in one iteration of the loop each connection is served for at most CONNECTION_S, and all waiting commands
together for RING_S; a command that has begun is completed. A connection with waiting commands is not read from.

Memory bounds: the length of a frame is checked before the frame is buffered (Connection). A connection whose peer does
not read its answers is not read from. While its unread answers reach the high-water mark, its waiting commands are not
handled, so it exceeds the mark by one answer at most. Unread answers and incomplete frames are also bounded over all
connections (``heldbytes``), and incomplete first frames have a further, lower bound, since any peer can begin one;
the mark of each connection falls as the space for unread answers shrinks. A connection is dropped when it transfers
fewer than MIN_BYTES_PER_S for too long. The number of connections is limited, too (``opensockets``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic, thread_time
from typing import NamedTuple, Protocol

from mqspark.base.histogram import TIME_BOUNDS_S, Histogram
from mqspark.base.logs import sparing
from mqspark.protocol.session import Core, Session, Take
from mqspark_server.net.deadlines import Deadlines
from mqspark_server.net.guards import CONNECTION_S, IDLE_SCAN_S, ConnectionLimits, GuardedServer
from mqspark_server.net.lateness import Lateness, Overload
from mqspark_server.net.localpeer import Expires, LocalPeer
from mqspark_server.net.remotingconnection import LEAST_PIECE_BYTES, RemotingConnection
from mqspark_server.net.servertls import Certificates

log = sparing("mqspark.tcp")

TURN_BYTES = 64 * 1024
"""After this many bytes the commands received so far are stored and answered before the loop reads on. Peers with large
requests then send their next ones earlier (1.06 to 1.11 times the rate of Java's BatchProducer)."""

WORK_S = 0.000625
"""Time in one iteration of the loop for the core's long work, such as the index and answers in slices."""
RING_S = 0.00125
"""Time in one iteration of the loop for all waiting commands and long work: WORK_S of it, while there is some."""
WRITES_AT_ONCE = 32
"""Long work that tells many connections something rests when it has spoken to so many: each costs a write."""

PIECES_AT_ONCE = 2
"""Pieces of large answers that are written in one iteration of the loop, behind the first piece of each."""

FAILED_TICK_MS = 500
"""Delay of the next tick after an exception in the core."""


class FrameWriter(Protocol):
    @property
    def piece_bytes(self) -> int:
        """Longer answers are written in pieces."""

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


class _TurnEnds(NamedTuple):
    after: Callable[[], None]
    turn_taken: Callable[[], None] | None
    after_taken: Callable[[], None]


class RemotingServer(GuardedServer[RemotingConnection]):
    """All connections of one core. Everything here runs on the event loop's thread."""

    def __init__(
        self,
        core: Core,
        outbox: list[Session],
        *,
        name: str,
        limits: ConnectionLimits | None = None,
        after_turn: Callable[[], None] = lambda: None,
        turn_taken: Callable[[], None] | None = None,
        after_taken: Callable[[], None] | None = None,
        overload: Overload | None = None,
        tls: Certificates | None = None,
        session_type: type[Session] = Session,
        take: Take | None = None,
    ) -> None:
        """``take``: that of a core which has one. ``turn_taken``, ``after_taken``: what of the core's turn and of
        ``after_turn`` is due when a turn had only requests that ``take`` took; None: all."""
        limits = limits or ConnectionLimits()
        super().__init__(name, tls, limits)
        self.core = core
        self.take = take
        self._session_type = session_type
        self._outbox = outbox
        self._idle_s = limits.idle_s
        self._ends = _TurnEnds(after_turn, turn_taken, after_taken or after_turn)
        # asyncio's own transport either joins in writelines (3.11) or does not pause the protocol there (seen on
        # 3.13.0), and a protocol that was not paused is never resumed.
        self.gathers = type(self.loop).__module__.startswith("uvloop")
        self._listeners: list[Listener] = []
        self._writers: dict[int, FrameWriter] = {}
        self._unfinished: deque[Session] = deque()
        """Those of which a part is written. What is left of it is in their ``out``."""
        self._last_session_id = 0
        self.deadlines: Deadlines[Expires] = Deadlines(self.loop, lambda waiting: waiting.expire())
        """Deadlines of what clients in this process wait for."""
        self._before_turn: list[Callable[[], None]] = []
        self.scheduled = False
        self.last_read: RemotingConnection | None = None
        """Whose bytes came last. As long as one connection alone sends, its turns wait for no others."""
        self.iteration = 0
        """Number of the current iteration of the loop; iterations without input do not count."""
        self._ring: deque[RemotingConnection] = deque()
        """Connections with waiting commands, in the order of their turns."""
        self._ring_scheduled = False
        self._ring_turn_s = 0.0
        """What the turn of the last commands of the ring took: the next ones leave as much of their time to theirs."""
        self._unturned_bytes = 0
        self.lateness = Lateness(overload)
        self._tick_handle: asyncio.Handle | None = None
        self._tick_due_s = math.inf
        self.lags = Histogram(TIME_BOUNDS_S)
        """How much later than due the loop runs its timers."""
        self._idle_handle: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        return len(self.sockets)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of incomplete frames, over all connections."""
        return self.partial.budget.total

    async def listen(self, sock: socket.socket, *, fast: bool = False) -> Listener:
        """Accept on a bound socket; ``fast`` marks its sessions as those of the fast port.

        Takes ownership of the socket.
        """
        host, port = sock.getsockname()[:2]
        server = await self.loop.create_server(
            lambda: RemotingConnection(self, fast), sock=sock, backlog=self.sockets.backlog
        )
        listener = Listener(server, host, port)
        self._listeners.append(listener)
        return listener

    def start(self) -> None:
        """Run the core's timers and the idle scan."""
        self._run_tick()
        self._idle_handle = self.loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)
        self.watch()

    # -- the turn ----------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Ask for one turn in the next loop iteration."""
        if not self.scheduled:
            self.scheduled = True
            self.lateness.turn_begins()
            self.loop.call_soon(self.turn)

    def before_turn(self, work: Callable[[], None]) -> None:
        """Do this at the end of the iteration, before its turn."""
        self._before_turn.append(work)
        self.schedule()

    def turn(self) -> None:
        """The end of an iteration of the loop: commit and answer the requests that it brought."""
        self.scheduled = False
        self.iteration += 1
        self.lateness.turn_is_read()
        self._do_turn(self.core.turn, self._ends.after)

    def turn_at_once(self) -> None:
        """The turn of a read all of which the core took, which was not asked for (``schedule``)."""
        self.iteration += 1
        try:
            self._do_turn(self._ends.turn_taken or self.core.turn, self._ends.after_taken)
        except Exception:  # as the loop does when a turn fails: the connection whose read it was goes on
            log.exception("%s: a turn failed", self.name)

    def _do_turn(self, turn: Callable[[], None], after: Callable[[], None]) -> None:
        self._unturned_bytes = 0
        if self._before_turn:
            self._do_before_turn()
        turn()
        self.write_outbox()
        after()
        if self.core.work_waits:
            self.schedule_ring()

    def _do_before_turn(self) -> None:
        was_scheduled, self.scheduled = self.scheduled, True  # the turn follows here
        works, self._before_turn = self._before_turn, []
        for work in works:
            try:
                work()
            except Exception:  # the others' turn goes on
                log.exception("%s: work before a turn failed", self.name)
        self.scheduled = was_scheduled
        if self._before_turn:
            self.schedule()

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
            share = RING_S - WORK_S if self.core.work_waits else RING_S
            end = now + max(share / 4, share - self._ring_turn_s)
            for _ in range(len(ring)):
                ring.popleft().serve_waiting(min(now + CONNECTION_S, end))
                now = monotonic()
                if now >= end:
                    break
            self._work(now)
        finally:
            self.scheduled = was_scheduled
        began = thread_time()
        self._do_turn(self.core.turn, self._ends.after)
        self._ring_turn_s = thread_time() - began
        if ring:
            self.schedule_ring()

    def _work(self, now: float) -> None:
        """Slices of the core's long work: one, and more while another one as long as the longest fits."""
        end, longest = now + WORK_S, 0.0
        while self.core.work() and len(self._outbox) < WRITES_AT_ONCE:
            began, now = now, monotonic()
            longest = max(longest, now - began)
            if now + longest > end:
                break

    def arrived(self, count: int) -> None:
        """``count`` bytes were handed to the core. After TURN_BYTES the turn ends at once."""
        self._unturned_bytes += count
        if self._unturned_bytes >= TURN_BYTES:
            self._do_turn(self.core.turn, self._ends.after)

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
            if size > LEAST_PIECE_BYTES and writer is not None:
                self._write_piece(session, writer)
                continue
            out = session.take()
            if writer is None:
                continue
            if out:
                writer.write_out(out, size)
            if not session.open:
                writer.close("the server closed it")

    def _write_piece(self, session: Session, writer: FrameWriter) -> None:
        before = session.out_bytes
        out = session.take_first(writer.piece_bytes)
        writer.write_out(out, before - session.out_bytes)
        if session.out:
            if not self._unfinished:
                self.loop.call_soon(self._write_more)
            self._unfinished.append(session)
        elif not session.open:
            writer.close("the server closed it")

    def _write_more(self) -> None:
        """Go on with large answers, in turn."""
        unfinished, self._unfinished = self._unfinished, deque()
        for _ in range(min(PIECES_AT_ONCE, len(unfinished))):
            session = unfinished.popleft()
            writer = self._writers.get(session.id)
            if writer is None or not session.out:
                continue  # it was written at once, because the connection ends
            try:
                self._write_piece(session, writer)
            except Exception:  # the others' answers go on
                log.exception("%s: an answer for %s could not be written", self.name, session.peer)
                session.take()  # nothing makes sense to the peer behind what is missing
                writer.close("internal error")
        if unfinished:
            if not self._unfinished:
                self.loop.call_soon(self._write_more)
            unfinished.extend(self._unfinished)
            self._unfinished = unfinished

    def _run_tick(self) -> None:
        self.lags.record(max(0.0, self.loop.time() - self._tick_due_s))
        try:
            wait_ms = self.tick()
        except Exception:  # without a next tick the core's timers would stop
            log.exception("%s: a tick failed and is retried", self.name)
            wait_ms = FAILED_TICK_MS
        self._tick_due_s = self.loop.time() + max(wait_ms, 0) / 1000
        if wait_ms > 0:
            self._tick_handle = self.loop.call_at(self._tick_due_s, self._run_tick)
        else:  # after what has arrived; a timer of the loop would rest for a millisecond between slices
            self._tick_handle = self.loop.call_soon(self._run_tick)

    def tick(self) -> int:
        """Run due timers; returns the milliseconds until the next tick is due. The next tick is already scheduled:
        tests that move the clock call this."""
        wait_ms = self.core.tick()
        self.write_outbox()
        self._ends.after()
        if self.core.work_waits:
            self.schedule_ring()
        return wait_ms

    # -- sessions ----------------------------------------------------------------------------------

    def open_session(self, writer: FrameWriter, peer: tuple[str, int], fast: bool) -> Session:
        self._last_session_id += 1
        session = self._session_type(self._last_session_id, *peer, self._outbox, fast=fast)
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
        peer.session = self.open_session(peer, address, False)
        return peer

    def _close_idle(self) -> None:
        self._idle_handle = self.loop.call_later(min(IDLE_SCAN_S, self._idle_s), self._close_idle)
        oldest = self.loop.time() - self._idle_s
        for connection in self.sockets:
            if connection.active_at >= oldest:
                continue
            self.counts.idle += 1
            if connection in self.unread.budget:
                self.drop(connection, f"idle for {self._idle_s:.0f} s, with answers unread")
            else:
                connection.close(f"idle for {self._idle_s:.0f} s", level=logging.INFO)

    # -- shutdown ----------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.stop()

    async def close(self, *, abruptly: bool = False) -> None:
        """Write pending answers, and close every connection. ``abruptly``: write nothing more, as when the process is
        killed."""
        self.sockets.refuse_all()
        self.stop_accepting()
        for handle in (self._tick_handle, self._idle_handle):
            if handle is not None:
                handle.cancel()
        self.deadlines.close()
        if not abruptly:
            self.write_outbox()
        for writer in list(self._writers.values()):
            if isinstance(writer, LocalPeer):
                writer.close("the server stops")
        await self.close_all(abruptly=abruptly)
