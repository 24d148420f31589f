"""One TCP connection to a server: many requests in flight, one write per turn of the loop.

Must not know what a request means: callers choose codes and headers, and ``mqspark.protocol`` encodes them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import cast

from mqspark.base.logs import escaping
from mqspark.client.remoting.credentials import bound
from mqspark.errors import ClientError, ConnectionLost, ProtocolError, RequestTimeout
from mqspark.protocol.binding import Binder
from mqspark.protocol.codes import Language
from mqspark.protocol.command import RESPONSE_FLAG, Command, Fields, encode_request, encode_response
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, Connection
from mqspark.protocol.headers.header import Header, to_ext
from mqspark.protocol.layouts import MAX_OPAQUE
from mqspark.protocol.signature import Signer

log = escaping(__name__)

Outcome = Command | ClientError
"""The outcome of a request: the response, or the error instead of it."""

_WRITE_HIGH_BYTES = 4 * 1024 * 1024
"""Limit of buffered bytes for a peer that does not read (plus those of one turn)."""
_MAX_REMARK = 1_000
"""Characters of an answer's remark: it may quote the request."""
_FAREWELL_S = 1.0
"""Time limit for closing a TLS connection."""

MIN_SILENCE_MS = 1_000
"""A peer that sends nothing for this time, and for the whole timeout of a request, is disconnected
(clientCloseSocketIfTimeout; RocketMQ also disconnects one that answers other requests)."""


class Channel(asyncio.Protocol):
    """One connection. ``on_request`` receives requests by the server; ``on_lost`` is called at its end."""

    def __init__(
        self,
        address: str,
        loop: asyncio.AbstractEventLoop,
        on_request: Callable[[Channel, Command], None],
        on_lost: Callable[[Channel], None],
        fields: Mapping[str, str] | None = None,
        signer: Signer | None = None,
    ) -> None:
        """``fields`` go with every request besides its header, and a signature if there is a ``signer``."""
        self.address = address
        self.open = False
        self.writable = False
        """False while the peer does not read fast enough; see ``drain``."""
        self._loop = loop
        self._on_request = on_request
        self._on_lost = on_lost
        self._fields = dict(fields or {})
        self._signer = signer
        self.binder: Binder | None = None
        """Signs its requests, from the moment when it is open; None: nobody does."""
        self._transport: asyncio.Transport | None = None
        self._connection = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES)
        self._pending: dict[int, tuple[Callable[[Outcome], None], float, int, int]] = {}
        """Opaque → what is called in the end, deadline, timeout in ms, the ms that the server may wait."""
        self._opaque = 0
        self._out: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._drained: asyncio.Future[None] | None = None
        self._reason = "the peer closed it"
        self._heard_at = self._wrote_at = loop.time()
        self._end = asyncio.Event()

    # --- requests ---------------------------------------------------------------------------------------

    def next_opaque(self) -> int:
        self._opaque = opaque = self._opaque + 1 if self._opaque < MAX_OPAQUE else 1
        return opaque

    def submit(
        self, opaque: int, timeout_ms: int, done: Callable[[Outcome], None], *frame: bytes, poll_ms: int = 0
    ) -> None:
        """Send the parts of a frame; ``done`` is called once: with the response, a timeout or the loss. ``poll_ms``:
        for so long the server may wait before it answers.

        The channel must be ``open``. For callers that make frames themselves; others use ``request``.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        self._pending[opaque] = (done, deadline, timeout_ms, poll_ms)
        if deadline < self._timer_at:
            self._arm(deadline)
        self.write(*frame)

    def write(self, *frame: bytes) -> None:
        """Write the frame together with all others of this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += frame

    async def request(
        self, code: int, header: Fields, body: bytes, timeout_ms: int, *, poll_ms: int = 0
    ) -> Command:
        """The response, whatever its code. ``poll_ms``: as of ``submit``. Raises RequestTimeout, ConnectionLost."""
        if not self.open:
            raise ConnectionLost(self.address, self._reason)
        opaque = self.next_opaque()
        future: asyncio.Future[Command] = self._loop.create_future()
        frame = encode_request(code, opaque, self._completed(code, header, body), body)
        self.submit(opaque, timeout_ms, _Settle(future), frame, poll_ms=poll_ms)
        try:
            return await future
        finally:
            # Cancelled: a late response is dropped.
            if self._pending.pop(opaque, None) is not None:
                self._close_if_retired()

    def oneway(self, code: int, header: Fields, *, remark: str | None = None) -> None:
        if not self.open:
            raise ConnectionLost(self.address, self._reason)
        header = self._completed(code, header, b"")
        self.write(encode_request(code, self.next_opaque(), header, oneway=True, remark=remark))

    def _completed(self, code: int, header: Fields, body: bytes) -> Fields:
        if not self._fields and self.binder is None:
            return header
        ext = {**(to_ext(header) if isinstance(header, Header) else header or {}), **self._fields}
        return ext if self.binder is None else self.binder.signed(code, ext, body)

    def respond(self, request: Command, code: int, body: bytes = b"", remark: str | None = None) -> None:
        """Nothing while the server does not read: otherwise its requests would fill this client's memory."""
        if self.open and self.writable and not request.is_oneway:
            remark = None if remark is None else remark[:_MAX_REMARK]
            self.write(encode_response(request.opaque, code, None, body, remark, language=Language.PYTHON))

    async def drain(self) -> None:
        """Wait until the peer reads again. Raises ConnectionLost."""
        if self.open and not self.writable:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if not self.open:
            raise ConnectionLost(self.address, self._reason)

    def close(self, reason: str = "closed by this client") -> None:
        self._reason = reason
        if self._transport is not None:
            self._flush()
            self._transport.close()

    async def ended(self) -> None:
        """After ``close``: wait until the transport has ended, or abort it."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._end.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
                await self._end.wait()

    def abort(self, reason: str) -> None:
        """Close without writing what is left: the peer may not read."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    @property
    def has_ended(self) -> bool:
        """Whether there is no connection any more."""
        return self._end.is_set()

    def silent_s(self) -> float:
        """For how long nothing has come although an answer is due; 0 if none is."""
        due = (
            deadline - (limit_ms - poll_ms) / 1000
            for _, deadline, limit_ms, poll_ms in self._pending.values()
        )
        return max(0.0, self._loop.time() - max(self._heard_at, min(due, default=math.inf)))

    def quiet_s(self) -> float:
        """For how long nothing has come although an answer is awaited, which the server may still hold back; 0 if none
        is."""
        oldest = next(iter(self._pending.values()), None)
        if oldest is None:
            return 0.0
        _, deadline, timeout_ms, _ = oldest
        return self._loop.time() - max(self._heard_at, deadline - timeout_ms / 1000)

    def idle_s(self) -> float:
        """Idle time of the connection; 0 while a response is pending."""
        return 0.0 if self._pending else self._loop.time() - max(self._heard_at, self._wrote_at)

    def retire(self) -> None:
        """Accept no more requests; close when the pending ones are answered."""
        if self.open:
            self.open = False
            self._reason = "the server sent GO_AWAY"
            self._on_lost(self)
            self._close_if_retired()

    # --- asyncio.Protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        if self._signer is not None:
            self.binder = bound(self._signer, self.address, transport.get_extra_info("peername"))
        self.open = self.writable = True

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            commands = self._connection.receive_data(data)
        except ProtocolError as error:
            self._reason = str(error)
            log.warning("closing the connection to %s: %s", self.address, error)
            if self._transport is not None:
                self._transport.abort()
            return
        pending = self._pending
        for command in commands:
            if command.flag & RESPONSE_FLAG:
                entry = pending.pop(command.opaque, None)
                if entry is not None:
                    entry[0](command)
            else:
                self._on_request(self, command)
        self._close_if_retired()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._release_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = self.writable = False
        self._end.set()
        if exc is not None:
            self._reason = str(exc) or type(exc).__name__
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release_drained()
        pending, self._pending = self._pending, {}
        self._on_lost(self)
        for done, *_ in pending.values():
            done(ConnectionLost(self.address, self._reason))

    # --- within -----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out and not self._transport.is_closing():
            self._wrote_at = self._loop.time()
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _close_if_retired(self) -> None:
        if not self.open and not self._pending and self._transport is not None:
            self._flush()
            self._transport.close()

    def _release_drained(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """One timer for all deadlines. It runs when the oldest known deadline is due, which is rare under load."""
        now = self._loop.time()
        self._timer, self._timer_at = None, math.inf
        late = [opaque for opaque, (_, deadline, *_) in self._pending.items() if deadline <= now]
        silent_ms = (now - self._heard_at) * 1000
        cut = False
        for opaque in late:
            done, _, timeout_ms, _ = self._pending.pop(opaque)
            done(RequestTimeout(self.address, timeout_ms))
            cut = cut or silent_ms >= max(timeout_ms, MIN_SILENCE_MS)
        if cut and self._transport is not None:
            # Nothing arrived since the request: the path may be broken without either end noticing.
            self._reason = f"no data for {silent_ms:.0f} ms although answers were due"
            log.warning("closing the connection to %s: %s", self.address, self._reason)
            self._transport.abort()
        self._close_if_retired()
        earliest = min((deadline for _, deadline, *_ in self._pending.values()), default=math.inf)
        if earliest < self._timer_at:
            self._arm(earliest)


class _Settle:
    """Puts an outcome into a future that may have been cancelled meanwhile."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Command]) -> None:
        self._future = future

    def __call__(self, outcome: Outcome) -> None:
        if not self._future.done():
            if isinstance(outcome, Command):
                self._future.set_result(outcome)
            else:
                self._future.set_exception(outcome)
