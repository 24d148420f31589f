"""One connection of gRPC: its bytes to calls, their answers to bytes, one write a turn of the loop.

Must not know the other connections: it reports to its listener what it holds, and the listener decides when it is
served and when it is dropped.

Time bounds: in one turn of the loop as many calls begin as the listener allows, of a connection with calls that wait
its share. What a read brings is taken in slices, while the turn has time. The rest waits, and so does the peer: its
connection is not read from meanwhile. Memory bounds: windows
(``http2connection``); what is held of requests, over all connections (``heldbytes``); no call begins while the peer
does not take the answers to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Protocol

from mqspark.base.logs import sparing
from mqspark.errors import ProtocolError
from mqspark_server.net.deadlines import NO_SLOT, Deadlines
from mqspark_server.net.grpc.connectionturns import ConnectionTurns
from mqspark_server.net.grpc.grpcwords import (
    CONTENT_TYPE,
    GrpcAbort,
    GrpcCode,
    failure_block,
    no_grpc_block,
    timeout_s,
)
from mqspark_server.net.grpc.servedcalls import GrpcMethod, ServedCall
from mqspark_server.net.guards import LINGER_S, GuardHost
from mqspark_server.net.http2.http2connection import Http2Connection
from mqspark_server.net.http2.http2frames import Http2Error
from mqspark_server.net.http2.http2streams import (
    DataCame,
    Http2Stream,
    PingAnswered,
    RequestBegun,
    RequestEnded,
    RequestHead,
    WindowOpened,
)
from mqspark_server.net.servedconnection import ServedConnection
from mqspark_server.net.tlsgate import TlsGate

log = sparing("mqspark.grpc")

GRPC_SLICE_BYTES = 8 * 1024
STREAM_MARK_BYTES = 256 * 1024
"""A method that has written so much which its caller does not take waits before it writes more."""
PING = b"are you?"
LAST_PING = b"go away!"
"""Behind it comes no call that a peer began before it knew that it shall begin no more."""
RETIRE_S = 30.0
"""For the calls of a connection that is too old: longer than clients wait for messages."""
_TOO_OLD = GrpcAbort(GrpcCode.UNAVAILABLE, "the connection is too old")


class GrpcHost(GuardHost["GrpcConnection"], Protocol):
    """What a connection asks of the listener that it belongs to (``grpclistener.GrpcListener``)."""

    methods: Mapping[str, GrpcMethod]
    max_streams: int
    unread_fields: Collection[str]
    max_message_bytes: int
    deadlines: Deadlines[ServedCall]
    turns: ConnectionTurns
    request_s: float
    """How long a request may take to arrive that arrives slowly."""

    def may_begin(self) -> bool: ...
    def call_ended(self, call: ServedCall) -> None: ...


class CallHead:
    """What the head of a request says of its call; the same for all calls with this head."""

    __slots__ = ("method", "refusal", "timeout_s")

    def __init__(self, head: RequestHead, methods: Mapping[str, GrpcMethod]) -> None:
        self.method = methods.get(head.path)
        self.refusal: bytes | None = None
        """The answer to a call that cannot be served."""
        self.timeout_s: float | None = None
        kind = head.fields.get("content-type", "")
        if head.method != "POST":
            self.refusal = no_grpc_block(405)
        elif not kind.startswith(CONTENT_TYPE):
            self.refusal = no_grpc_block(415)
        elif self.method is None:
            self.refusal = failure_block(GrpcCode.UNIMPLEMENTED, f"there is no method {head.path}")
        elif given := head.fields.get("grpc-timeout"):
            try:
                self.timeout_s = timeout_s(given)
            except ValueError as error:
                self.refusal = failure_block(GrpcCode.INTERNAL, str(error))


_FIELDS_TOO_LONG = failure_block(GrpcCode.RESOURCE_EXHAUSTED, "the metadata of the call is too long")
_TOO_MANY = failure_block(GrpcCode.RESOURCE_EXHAUSTED, "too many calls are being served")


class GrpcConnection(ServedConnection[GrpcHost]):
    __slots__ = (
        "_began_at", "_gate", "_held", "_http2", "_later", "_pinged", "_queued", "_retires_at", "_some_began",
        "_unlimited", "_waiting", "_write_scheduled",
    )  # fmt: skip

    logger = log

    def __init__(self, host: GrpcHost) -> None:
        super().__init__(host)
        self._http2 = Http2Connection(host.max_streams, host.unread_fields)
        self._gate: TlsGate[GrpcConnection] = TlsGate(host.tls, host.handshakes, self)
        self._waiting: deque[ServedCall] = deque()
        """Calls that have not begun."""
        self._unlimited: list[ServedCall] = []
        """Calls of this turn whose deadlines are not noted yet: most are answered before its end."""
        self._later = b""
        """Bytes that are read in later turns."""
        self._some_began = False
        """Whether calls have begun since the last write."""
        self._write_scheduled = False
        self._held = self._queued = 0
        """Bytes of requests that are kept, and number of complete ones among them."""
        self._pinged = False
        """Whether it has not answered a ping."""
        self._began_at = 0.0
        self._retires_at = 0.0
        """When its last calls are cancelled; 0: it is not too old."""

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def admitted(self, transport: asyncio.Transport) -> None:
        self._began_at = self.active_at

    def data_received(self, data: bytes) -> None:
        if self._transport is not None and not self._closed_here and (plain := self._gate.decoded(data)):
            self._received(plain)

    def _received(self, plain: bytes) -> None:
        self.active_at = monotonic()
        self._pinged = False
        if self._later:
            self._later += plain
        else:
            self._take(plain)

    def take_later(self) -> None:
        """Go on with what was left for a later turn."""
        data, self._later = self._later, b""
        if not self._closed_here:
            self._take(data)
            self._read_on()

    def _take(self, data: bytes) -> None:
        """As much as the turn has time for, in slices: a few thousand bytes may begin many calls."""
        host, at = self._host, 0
        while at < len(data) and not self._closed_here:
            if not host.turns.may_read():
                self._later = data[at:]
                self._stop_reading()
                host.turns.read_later(self)
                break
            self._take_slice(data[at : at + GRPC_SLICE_BYTES])
            at += GRPC_SLICE_BYTES
        self._schedule_write()

    def _take_slice(self, data: bytes) -> None:
        host = self._host
        try:
            events = self._http2.received(data, self.active_at)
        except Http2Error as error:
            self.fail(str(error))
            return
        if self.is_unidentified and self._http2.has_begun:
            self.is_unidentified = False
            host.know(self)
        arriving = []
        for event in events:
            if isinstance(event, RequestBegun):
                self._begin_call(event)
                if not event.ended:
                    arriving.append(event.stream)
            else:
                self._happened(event)
        for stream in arriving:  # few: all of most has come in the same read
            call: ServedCall | None = stream.call
            if call is not None and not call.is_ready:
                self._limit_arriving(call)

    def _limit_arriving(self, call: ServedCall) -> None:
        """Its request has to be complete in time."""
        host = self._host
        latest = host.loop.time() + host.request_s
        host.deadlines.add(call, latest if call.deadline is None else min(call.deadline, latest))

    def _happened(self, event: DataCame | RequestEnded | WindowOpened | PingAnswered) -> None:
        if isinstance(event, PingAnswered):
            if event.payload == LAST_PING and self._retires_at:
                self._http2.refuse_streams()
            return
        call: ServedCall | None = event.stream.call
        if call is None:
            return
        if isinstance(event, DataCame):
            call.received(event.data, event.ended)
        elif isinstance(event, RequestEnded):
            call.gone()
        else:
            call.may_write()

    def connection_lost(self, error: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return  # it was refused
        host = self._host
        log.debug("%s: connection of %s ended (%s)", host.name, self.address, error or "closed")
        self._closed_here = True
        for call in self.calls:
            call.gone()
        self._waiting.clear()
        self._later = b""
        host.unread.note(self, 0)
        host.partial.budget.keep(self, 0, 0.0)
        self._gate.forget()
        host.forget(self, self.address[0])

    def pause_writing(self) -> None:
        self._write_paused = True
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Unless calls or bytes wait, or answers that the peer does not read."""
        if self._waiting or self._later or self._write_paused:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._resume()

    def _resume(self) -> None:
        """The peer has read, or opened windows."""
        for call in self.calls:
            call.may_write()
        if self._waiting:
            self._wait()
        else:
            self._read_on()

    # --- calls ----------------------------------------------------------------------------------------------------

    @property
    def max_message_bytes(self) -> int:
        return self._host.max_message_bytes

    @property
    def calls(self) -> list[ServedCall]:
        """Those that have not ended."""
        return [stream.call for stream in self._http2 if stream.call is not None]

    def _begin_call(self, event: RequestBegun) -> None:
        stream, head, host = event.stream, event.head, self._host
        if head is None:
            self._http2.end_answer(stream, _FIELDS_TOO_LONG)
            return
        meaning: CallHead | None = head.meaning
        if meaning is None:
            meaning = head.meaning = CallHead(head, host.methods)
        if meaning.refusal is not None or meaning.method is None:
            self._http2.end_answer(stream, meaning.refusal or b"")
            return
        if not host.may_begin():
            self._http2.end_answer(stream, _TOO_MANY)
            return
        deadline = None if meaning.timeout_s is None else host.loop.time() + meaning.timeout_s
        call = stream.call = ServedCall(self, stream, meaning.method, head.fields, deadline)
        if meaning.method.takes_stream:
            self.ready(call)
        if event.ended:
            call.received(event.data, True)

    def ready(self, call: ServedCall) -> None:
        """All is there that the call needs to begin."""
        call.is_ready = True
        if call.slot != NO_SLOT:
            self._host.deadlines.move(call, call.deadline)
        elif call.deadline is not None:
            self._unlimited.append(call)
        if not self._waiting and self._may_serve() and self._host.turns.may_start():
            self._some_began = True
            call.start()
        else:
            call.keep()
            self._waiting.append(call)
            self._wait()

    def _may_serve(self) -> bool:
        if self._write_paused:
            return False
        unread = self._host.unread
        return unread.high_water_bytes - self.unread_bytes > unread.floor

    def _wait(self) -> None:
        """Let other connections go first."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._may_serve():
            self._host.unread.block(self)
            if not self._write_paused and not self._later:
                self._transport.resume_reading()  # answers wait for windows, and only reading tells of these
            return
        self._transport.pause_reading()
        if not self._in_ring:
            self._in_ring = True
            self._host.turns.start_later(self)

    def serve_waiting(self, most: int, until: float) -> int:
        """The connection's turn in the ring: at most so many calls begin, and none after that time but for the first.
        Returns how many."""
        self._in_ring = False
        waiting, begun = self._waiting, 0
        while waiting and begun < most and self._may_serve():
            begun += 1
            self._some_began = True
            waiting.popleft().start()
            if monotonic() >= until:
                break
        if waiting:
            self._wait()
        else:
            self._read_on()
        return begun

    def ended(self, call: ServedCall) -> None:
        self._host.call_ended(call)

    def begin_answer(self, stream: Http2Stream, block: bytes) -> None:
        self._http2.begin_answer(stream, block)

    def answer(self, stream: Http2Stream, block: bytes, data: bytes, last_block: bytes) -> None:
        self._http2.answer(stream, block, data, last_block)
        self._schedule_write()

    def send(self, stream: Http2Stream, data: bytes, last_block: bytes | None = None) -> None:
        self._http2.send(stream, data, last_block)
        self._schedule_write()

    def end_answer(self, stream: Http2Stream, block: bytes) -> None:
        self._http2.end_answer(stream, block)
        self._schedule_write()

    def used(self, stream: Http2Stream, count: int) -> None:
        self._http2.used(stream, count)
        self._schedule_write()

    def holds(self, more_bytes: int, more_messages: int) -> None:
        self._held += more_bytes
        self._queued += more_messages
        self._schedule_write()  # which tells the listener

    def has_room(self, stream: Http2Stream) -> bool:
        """Whether a method may write more, or its caller has to read first."""
        return not self._write_paused and stream.unsent_bytes < STREAM_MARK_BYTES

    # --- bytes out ------------------------------------------------------------------------------------------------

    def _schedule_write(self) -> None:
        if not self._write_scheduled:
            self._write_scheduled = True
            self._host.turns.schedule_write(self)

    def write_out(self) -> None:
        """At the end of a turn: all that the turn has brought."""
        self._write_scheduled = False
        has_begun_calls, self._some_began = self._some_began, False
        if self._unlimited:
            self._limit_calls()
        transport = self._transport
        if transport is None or transport.is_closing() or self._gate.is_undecided:
            return
        held = self._held + len(self._later) + self._http2.buffered_bytes
        if held or self._is_noted:
            self._is_noted = held > 0
            self._host.partial.note(self, held, afresh=has_begun_calls)
        out = self._http2.to_send()
        if out:
            self._write(transport, out)
        unread, held = self._host.unread, self.unread_bytes
        is_much = unread.high_water_bytes - held < unread.noted_below
        if is_much or self in unread.budget:
            unread.note(self, held if is_much else 0)

    def _limit_calls(self) -> None:
        calls, self._unlimited = self._unlimited, []
        for call in calls:
            if not call.is_over and call.deadline is not None:
                self._host.deadlines.add(call, call.deadline)

    def _write(self, transport: asyncio.Transport, out: list[bytes]) -> None:
        self.active_at = monotonic()
        try:
            data = self._gate.encoded(out)
        except ProtocolError as error:
            self.fail(str(error))
            return
        self._written += len(data)
        transport.write(data)

    @property
    def unread_bytes(self) -> int:
        """Memory of answers, here or in the transport."""
        transport = self._transport
        return self._http2.waiting_bytes + (0 if transport is None else transport.get_write_buffer_size())

    # --- what the peer has not read -------------------------------------------------------------------------------

    def measure(self, now: float) -> None:
        if self._transport is None or self.dropped:
            return
        unread, held = self._host.unread, self.unread_bytes
        unread.budget.keep(self, held if unread.high_water_bytes - held < unread.noted_below else 0, now)

    @property
    def waits(self) -> bool:
        """Whether this server, not the peer, has stopped the connection."""
        return bool(self._waiting or self._later or self._queued or self._write_paused)

    def unblock(self) -> None:
        if self._waiting:
            self._wait()

    # --- TLS ------------------------------------------------------------------------------------------------------

    def shake_hands(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            plain = self._gate.shake_hands()
            if plain is not None:
                self._schedule_write()
            if plain:
                self._received(plain)

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """No call is being served."""
        return not len(self._http2)

    def check_alive(self) -> bool:
        """Ask the peer of a silent connection for a sign of life. False: it was asked before, and has given none."""
        if self._pinged:
            return False
        self._pinged = True
        self._http2.ping(PING)
        self._schedule_write()
        return True

    def is_older(self, now: float, age_s: float) -> bool:
        """Within a tenth: connections that began together do not end together."""
        return now - self._began_at > age_s * (0.9 + self.address[1] % 21 / 100)

    def retire(self, now: float) -> None:
        """Ask the peer to call elsewhere; close once its calls have ended, or have had their time. To be called again
        and again."""
        if not self._retires_at:
            self._retires_at = now + RETIRE_S
            self.announce_end()
            self._http2.ping(LAST_PING)
        elif now >= self._retires_at:
            self.cancel_calls(_TOO_OLD)
            self.close("it is too old")
        elif self.is_idle and self._http2.refuses_streams:
            self.close("it is too old")

    def announce_end(self) -> None:
        """Ask the peer to begin no more calls here."""
        self._http2.announce_end()
        self._schedule_write()

    def cancel_calls(self, abort: GrpcAbort) -> None:
        for call in self.calls:
            call.fail(abort)

    def close(self, reason: str, *, level: int = logging.INFO) -> None:
        """Close once everything already written has been sent."""
        transport = self._transport
        if transport is None or self._closed_here:
            return
        log.log(level, "%s: connection of %s closed: %s", self._host.name, self.address, reason)
        if not self._gate.is_undecided:
            self._http2.refuse_streams()
            with contextlib.suppress(ProtocolError):
                transport.write(self._gate.encoded(self._http2.to_send()) + self._gate.end())
        self._closed_here = True
        transport.close()
        if transport.get_write_buffer_size():
            self._host.loop.call_later(LINGER_S, self.abort)

    def abort(self, reason: str | None = None) -> None:
        """Close at once; unwritten data is dropped."""
        if reason is not None:
            log.warning("%s: connection of %s dropped: " + reason, self._host.name, self.address)
        self._closed_here = True
        if self._transport is not None:
            self._transport.abort()
