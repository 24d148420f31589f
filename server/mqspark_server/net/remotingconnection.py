"""One connection of a RemotingServer: its bytes to commands, its answers to bytes, TLS, and what its peer has not read.

Must not know the other connections: it reports to its server what it holds, and the server decides when it is served
and when it is dropped. The bounds are those of ``remotingserver``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Protocol

from mqspark.base.logs import sparing
from mqspark.errors import ProtocolError
from mqspark.protocol.binding import endpoint
from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import CERTIFICATE_NAME, Core, Session, Take
from mqspark_server.net.guards import CONNECTION_S, LINGER_S, GuardHost
from mqspark_server.net.lateness import Lateness
from mqspark_server.net.lonereads import LoneReads
from mqspark_server.net.servedconnection import ServedConnection
from mqspark_server.net.tlsgate import TlsGate

log = sparing("mqspark.tcp")

SLICE_COMMANDS = 64
"""Commands handed to the core between two checks of the size of its answers."""

JOIN_BYTES = 64 * 1024
"""Up to this size answers are copied into one buffer, because a copy is cheaper than a longer iovec."""

SMALL_BYTES = 4 * 1024
"""A buffer below this size is copied with its neighbours, however many they are."""

AT_ONCE_BYTES = 64 * 1024
"""A shorter read has emptied the socket: no other one of the connection follows before the loop looks for others."""

PIECE_BYTES = 1024 * 1024
"""Most bytes that are handed to the socket at once: the kernel copies them in less than a millisecond. It takes many
megabytes when it is offered them."""
LEAST_PIECE_BYTES = 256 * 1024
"""The same of bytes that are encrypted before."""

READ_BYTES = 256 * 1024
"""Size of one read from the kernel's buffer after a peer has disconnected."""

COMMAND_BYTES = 512
"""Bytes of a waiting command besides its frame."""

REST_BYTES = 1024 * 1024
"""The limit of reads from the kernel's buffer after a peer has disconnected."""


class ConnectionHost(GuardHost["RemotingConnection"], Protocol):
    """What a connection asks of the server that it belongs to (``remotingserver.RemotingServer``)."""

    core: Core
    take: Take | None
    lateness: Lateness
    gathers: bool
    scheduled: bool
    iteration: int
    last_read: RemotingConnection | None

    def open_session(self, writer: RemotingConnection, peer: tuple[str, int], fast: bool) -> Session: ...
    def close_session(self, session: Session) -> None: ...
    def schedule(self) -> None: ...
    def turn_at_once(self) -> None: ...
    def arrived(self, count: int) -> None: ...
    def enter_ring(self, connection: RemotingConnection) -> None: ...


class RemotingConnection(ServedConnection[ConnectionHost]):
    __slots__ = (
        "_fast", "_gate", "_iteration", "_lone_reads", "_parser", "_session", "_unread", "_until",
        "_waiting", "_waiting_bytes",
    )  # fmt: skip

    logger = log

    def __init__(self, server: ConnectionHost, fast: bool) -> None:
        super().__init__(server)
        self._unread = server.unread
        self._fast = fast
        self._parser = Connection(in_slices=True, reads_over=True)
        self._session: Session | None = None
        self._gate: TlsGate[RemotingConnection] | None = None
        """Turns received bytes into those of frames; None: they are the same."""
        if server.tls is not None:
            self._gate = TlsGate(server.tls, server.handshakes, self)
        self._waiting: deque[Command] = deque()
        self._waiting_bytes = 0
        self._lone_reads: LoneReads | None = None
        """None: the peer is on another machine."""
        self._iteration = -1
        self._until = 0.0
        """The time up to which commands are handled in this iteration."""

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def admitted(self, transport: asyncio.Transport) -> None:
        self._session = self._host.open_session(self, self.address, self._fast)
        self._session.local = endpoint(transport.get_extra_info("sockname"))
        self._session.room = self._unread.high_water_bytes
        if self._session.local.rpartition(":")[0] == self._session.peer.rpartition(":")[0]:
            self._lone_reads = LoneReads()

    def data_received(self, data: bytes) -> None:
        if self._gate is not None and self._session is not None:
            data = self._decoded(self._gate, data)
            if not data:
                return
        self._received(data)

    def _received(self, data: bytes) -> None:
        """These are bytes of frames."""
        server, session = self._host, self._session
        if session is None:
            return
        self.active_at = now = monotonic()
        if self._iteration != server.iteration:
            self._iteration = server.iteration
            self._until = now + CONNECTION_S
        was_last, server.last_read = server.last_read is self, self
        take = server.take
        if take is None or not self._may_take(session, now) or (whole := self._parser.joined(data)) is None:
            self._receive(session, data, now)
            return
        before, size = 0, len(whole)
        if was_last and not server.scheduled and size < AT_ONCE_BYTES and self._gate is None:
            if self._lone_reads is not None:
                self._lone_reads.note(size, now)
            at = self._take_at_once(take, session, whole)
        else:
            at = self._take(take, session, whole, 0)
        while at < size:
            end = self._parser.left(whole, at)
            self._receive(session, whole[at:end], now, some_taken=at > before)
            if end == size or self._closed_here:
                return
            before, now = end, monotonic()
            if not self._may_take(session, now):
                self._receive(session, whole[end:], now)
                return
            at = self._take(take, session, whole, before)

    def _receive(self, session: Session, data: bytes, now: float, *, some_taken: bool = False) -> None:
        """The long way: handle these bytes as commands. ``some_taken``: of the same read, the core took what was
        before them."""
        server = self._host
        try:
            commands = self._parser.receive_data(data)
        except ProtocolError as error:
            self.fail(str(error))
            return
        buffered = self._parser.buffered_bytes
        if buffered or self._is_noted:
            self._is_noted = buffered > 0
            server.partial.note(self, buffered + self._waiting_bytes, afresh=some_taken or bool(commands))
        if not commands:
            return
        if self.is_unidentified:
            self.is_unidentified = False
            server.know(self)
        if (
            self._waiting
            or self._write_paused
            or session.long_answers
            or now >= self._until
            or (session.room <= self._unread.floor and not self._has_room(session, now))
        ):
            self._waiting.extend(commands)
            self._waiting_bytes += len(data) + COMMAND_BYTES * len(commands)
            server.partial.note(self, buffered + self._waiting_bytes, afresh=False)
            self._wait()
            return
        if not server.scheduled:
            server.schedule()
        elif now > server.lateness.late_at:
            commands = server.lateness.sift(session, commands)
        if len(commands) == 1:
            self._deliver(session, commands)
        else:
            self._waiting.extend(commands)
            self._deliver(session, self._take_waiting(session))
            if self._waiting:
                self._deliver_waiting()
            if self._waiting:
                self._waiting_bytes = len(data) + COMMAND_BYTES * len(self._waiting)
                server.partial.note(self, buffered + self._waiting_bytes, afresh=False)
        server.arrived(len(data))

    def _may_take(self, session: Session, now: float) -> bool:
        """Whether the core may be handed requests at once, and all of one read."""
        server = self._host
        return not (
            self._waiting
            or self._write_paused
            or self.is_unidentified
            or session.long_answers
            or now >= self._until
            or session.room <= self._unread.floor
            or (server.scheduled and now > server.lateness.late_at)
        )

    def _take_at_once(self, take: Take, session: Session, data: bytes) -> int:
        """``_take`` where no other connection was read since this one: if the core takes all, the turn follows here
        instead of behind the reads of others, and need not be asked for. Returns where the rest begins."""
        server = self._host
        server.scheduled = True
        try:
            end = self._taken(take, session, data, 0)
        finally:
            server.scheduled = False  # else no turn would follow any more
        if end == len(data):
            server.turn_at_once()
        else:
            server.schedule()
            server.arrived(end)
        return end

    def _take(self, take: Take, session: Session, data: bytes, at: int) -> int:
        """Let the core take requests of ``data`` from ``at`` on. Returns where the rest begins."""
        server = self._host
        if not server.scheduled:
            server.schedule()
        end = self._taken(take, session, data, at)
        if end > at:
            server.arrived(end - at)
        return end

    def _taken(self, take: Take, session: Session, data: bytes, at: int) -> int:
        """The same without the turn."""
        server = self._host
        try:
            end = self._parser.taken(take, session, data, at)
        except Exception:
            # A bug must affect only this connection, and must be logged.
            log.exception("%s: requests of %s could not be handled", server.name, session.peer)
            self.close("internal error")
            return len(data)
        if self._is_noted and end > at and end == len(data):
            self._is_noted = False
            server.partial.note(self, 0, afresh=True)
        return end

    def connection_lost(self, error: Exception | None) -> None:
        session, transport = self._session, self._transport
        self._transport = None
        if session is None:
            return  # it was refused
        self._unread.note(self, 0)
        log.debug("%s: connection of %s ended (%s)", self._host.name, session.peer, error or "closed")
        session.open = False
        if self._closed_here:
            self._waiting.clear()
        elif error is not None and transport is not None:
            self._read_rest(transport)
        self._host.partial.note(self, self._waiting_bytes, afresh=False)
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

    def eof_received(self) -> None:
        """The peer sends nothing more, so the transport closes."""
        self._write_rest()

    # -- TLS ---------------------------------------------------------------------------------------

    def _decoded(self, gate: TlsGate[RemotingConnection], data: bytes) -> bytes:
        """The bytes of frames among these."""
        data = gate.decoded(data)
        if gate.is_plain:
            self._gate = None
        return data

    def shake_hands(self) -> None:
        gate, transport = self._gate, self._transport
        if gate is None or transport is None or transport.is_closing():
            return
        first = gate.shake_hands()
        if first is None:
            return
        if self._session is not None and (name := gate.peer_name) is not None:
            self._session.attributes[CERTIFICATE_NAME] = name
        if first:
            self._received(first)

    # -- what the peer has not read ----------------------------------------------------------------

    def measure(self, now: float) -> None:
        """Measure the unread answers, and with them the room for more."""
        transport, session = self._transport, self._session
        if transport is None or session is None or self.dropped:
            return
        unread = self._unread
        held = transport.get_write_buffer_size() + session.out_bytes
        session.room = unread.high_water_bytes - held
        unread.budget.keep(self, held if session.room < unread.noted_below else 0, now)

    def _has_room(self, session: Session, now: float) -> bool:
        self.measure(now)
        return session.room > self._unread.floor

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
            self._host.core.received(session, commands)
        except Exception:
            # A bug must affect only this connection, and must be logged.
            log.exception("%s: a request of %s could not be handled", self._host.name, session.peer)
            self.close("internal error")
        server, unread = self._host, self._unread
        if session.room < unread.noted_below:
            unread.note(self, unread.high_water_bytes - session.room)
        if not server.scheduled:
            server.schedule()

    def _take_waiting(self, session: Session) -> Iterator[Command]:
        """Waiting commands: at least one, and more until the time is used up, an answer needs long work or the peer has
        to read."""
        waiting, until, floor = self._waiting, self._until, self._unread.floor
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
            self.fail(str(error))

    def _wait(self) -> None:
        """Let other connections go first."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        if not self._in_ring and not self._write_paused:
            self._in_ring = True
            self._host.enter_ring(self)

    def serve_waiting(self, until: float) -> None:
        """The connection's turn in the ring."""
        self._in_ring = False
        session = self._session
        if session is None:
            return
        self._until = until
        self._iteration = self._host.iteration  # bytes already in its socket get no additional time
        if self._transport is None:
            self._deliver_rest(session)
        elif not self._write_paused:
            self._deliver_waiting()

    def _deliver_waiting(self) -> None:
        """Hand over slices until the time is used up or the answers reach the high-water mark; then wait for the others
        or for the peer to read."""
        transport, session, waiting = self._transport, self._session, self._waiting
        if transport is None or session is None or transport.is_closing():
            return
        server, unread = self._host, self._unread
        if session.room < unread.noted_below:
            self.measure(monotonic())
        is_time = True
        while (
            waiting
            and session.room > unread.floor
            and is_time
            and not session.long_answers
            and not transport.is_closing()
        ):
            self._deliver(session, self._take_waiting(session))
            is_time = monotonic() < self._until
        if transport.is_closing():
            return
        if not waiting:
            if self._waiting_bytes:  # else they have not waited, and reading was not paused
                self._waiting_bytes = 0
                server.partial.note(self, self._parser.buffered_bytes, afresh=True)
                if not self._write_paused:
                    transport.resume_reading()
        elif session.room > unread.floor:
            self._wait()
        else:
            transport.pause_reading()
            unread.block(self)

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
                if self._gate is not None:
                    data = self._decoded(self._gate, data)
                commands = self._parser.receive_data(data)
                self._waiting.extend(commands)
                self._waiting_bytes += len(data) + COMMAND_BYTES * len(commands)

    def _deliver_rest(self, session: Session) -> None:
        """Hand over what the peer sent before it disconnected. Answers are dropped. Then the session ends."""
        waiting = self._waiting
        while waiting and not self._closed_here and monotonic() < self._until and not session.long_answers:
            self._deliver(session, self._take_waiting(session))
        if waiting and not self._closed_here:
            self._write_paused = False
            self._wait()
            return
        self._end(session)

    def _end(self, session: Session) -> None:
        self._host.partial.budget.keep(self, 0, 0.0)
        if self._session is None:
            return  # it was dropped while it ended
        self._session = None
        if self._gate is not None:
            self._gate.forget()
        self._waiting.clear()
        if self._host.last_read is self:
            self._host.last_read = None
        self._host.close_session(session)
        self._host.forget(self, self.address[0])

    # -- frames out --------------------------------------------------------------------------------

    def write_out(self, out: list[bytes | memoryview], size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        server, session, unread = self._host, self._session, self._unread
        self.active_at = server.loop.time()
        if self._gate is not None:
            try:
                out = [self._gate.encoded(_coalesced(out))]
            except ProtocolError as error:  # it ends this connection, not the turn of the others
                self.fail(str(error))
                return
        if len(out) == 1:
            self._written += len(out[0])
            transport.write(out[0])
        else:
            self._written += size
            if not server.gathers or size <= JOIN_BYTES or max(map(len, out)) < SMALL_BYTES:
                transport.write(b"".join(out))
            else:
                transport.writelines(_coalesced(out))
        if session is not None and session.room < unread.noted_below:
            held = transport.get_write_buffer_size() + session.out_bytes
            session.room = unread.high_water_bytes - held
            if session.room < unread.noted_below:
                unread.note(self, held)
        if self._waiting:
            self._wait()

    @property
    def piece_bytes(self) -> int:
        return PIECE_BYTES if self._gate is None else LEAST_PIECE_BYTES

    def _write_rest(self) -> None:
        """Write at once what is left, because the connection ends."""
        session = self._session
        if session is not None and session.out:
            size = session.out_bytes
            self.write_out(session.take(), size)

    # -- the end -----------------------------------------------------------------------------------

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Close once everything already written has been sent."""
        session = self._session
        if session is not None and self._transport is not None and not self._transport.is_closing():
            log.log(level, "%s: connection of %s closed: %s", self._host.name, session.peer, reason)
            self._closed_here = True
            self._write_rest()
            if self._transport.is_closing():
                return  # what was to be written could not be encrypted
            if self._gate is not None:
                self._transport.write(self._gate.end())
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._host.loop.call_later(LINGER_S, self.abort)

    def abort(self, reason: str | None = None) -> None:
        """Close at once; unwritten data is dropped."""
        if reason is not None and self._session is not None:
            log.warning("%s: connection of %s dropped: " + reason, self._host.name, self._session.peer)
        self._closed_here = True
        if self._transport is not None:
            self._transport.abort()
        elif self._session is not None:
            self._end(self._session)


def _coalesced(out: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Neighbouring small frames joined, large bodies left alone: few iovecs and no copy of a body."""
    merged: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for buffer in out:
        if len(buffer) < SMALL_BYTES:
            small.append(buffer)
            continue
        if small:
            merged.append(small[0] if len(small) == 1 else b"".join(small))
            small = []
        merged.append(buffer)
    if small:
        merged.append(b"".join(small))
    return merged
