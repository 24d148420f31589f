"""Connections to servers: many requests in flight on each, one write per turn of the loop.

A ``Channel`` is one TCP connection. ``Remoting`` keeps one per address and opens it again when it is needed. Must not
know what a request means: callers choose codes and headers, and ``mqspark.protocol`` encodes them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from mqspark.base.config import MAX_PORT
from mqspark.base.logs import Outages, escaping
from mqspark.client.remoting.credentials import bound
from mqspark.client.remoting.dialing import opened
from mqspark.client.remoting.tls import refusal_of
from mqspark.errors import BrokerError, ClientError, ConnectionLost, NoRoute, ProtocolError, RequestTimeout
from mqspark.protocol.binding import Binder
from mqspark.protocol.codes import Language, ResponseCode
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


def level_of(error: BaseException) -> int:
    """The level of a line about a failed request. ``Remoting`` reports a server that does not answer, once; what that
    means for each queue and each round, and that name servers forget its topics, is for who looks closer."""
    return logging.DEBUG if isinstance(error, (ConnectionLost, RequestTimeout, NoRoute)) else logging.WARNING


def split_address(address: str) -> tuple[str, int]:
    """``host:port``, IPv6 hosts in brackets. Raises ConnectionLost: an address that cannot be reached."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MAX_PORT):
        raise ConnectionLost(address, "not an address of the form host:port", made=False)
    return host.strip("[]"), int(port)


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
            self._pending.pop(opaque, None)

    def oneway(self, code: int, header: Fields, body: bytes = b"", *, remark: str | None = None) -> None:
        if not self.open:
            raise ConnectionLost(self.address, self._reason)
        header = self._completed(code, header, body)
        self.write(encode_request(code, self.next_opaque(), header, body, oneway=True, remark=remark))

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
        if not self.open:
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
        if not self._pending and self._transport is not None:
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


class Remoting:
    """One channel per address. ``greet`` runs first on each new channel; ``on_request`` and ``on_lost`` as above."""

    def __init__(
        self,
        *,
        connect_timeout_ms: int,
        on_request: Callable[[Channel, Command], None],
        on_lost: Callable[[str], None] = lambda address: None,
        greet: Callable[[Channel], Awaitable[None]] | None = None,
        fields: Mapping[str, str] | None = None,
        signer: Signer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._on_request = on_request
        self._on_lost = on_lost
        self._greet = greet
        self._fields = fields
        self._signer = signer
        self._tls = tls
        self._channels: dict[str, Channel] = {}
        self._retired: set[Channel] = set()
        """Channels that take no more requests, but still wait for answers."""
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._connecting_since: dict[str, float] = {}
        self._given_up: weakref.WeakSet[asyncio.Task[Channel]] = weakref.WeakSet()
        """Attempts to connect that were ended here; the end of an event loop cancels them as well."""
        self._closed = False
        self._silent = Outages(log)
        """Addresses that did not answer the last request."""

    def _away(self, address: str, error: ConnectionLost | RequestTimeout) -> ConnectionLost | RequestTimeout:
        """Log the error, if the last request was answered: one line for a server that goes, however many requests it
        leaves without an answer."""
        if not self._closed:
            self._silent.failed(address, None, "%s; trying again, the log says when it answers", error)
        return error

    def answered(self, address: str) -> None:
        """A request was answered."""
        self._silent.over(address, "%s answers again", address)

    def channel(self, address: str) -> Channel | None:
        """The open channel to ``address``, if there is one."""
        return self._channels.get(address)

    def addresses(self) -> list[str]:
        """The addresses with an open channel."""
        return list(self._channels)

    def connecting(self) -> list[str]:
        """The addresses to which a channel is being opened."""
        return list(self._connecting)

    def silent_s(self, address: str) -> float:
        """For how long nothing has come from there although something is due, an answer or a connection; else 0."""
        since = self._connecting_since.get(address)
        if since is not None:
            return asyncio.get_running_loop().time() - since
        channel = self._channels.get(address)
        return 0.0 if channel is None else channel.silent_s()

    def quiet_s(self, address: str) -> float:
        """As ``silent_s``, also while the server may still hold its answer back; 0 if nothing is awaited."""
        channel = self._channels.get(address)
        return self.silent_s(address) if channel is None else channel.quiet_s()

    def give_up(self, address: str, reason: str) -> None:
        """End the channel to ``address``, or its opening: all requests to it fail with ConnectionLost."""
        channel = self._channels.get(address)
        if channel is not None:
            channel.abort(reason)
        task = self._connecting.get(address)
        if task is not None:
            self._given_up.add(task)
            task.cancel()

    async def connect(self, address: str) -> Channel:
        """The channel to ``address``, opened if need be. Raises ConnectionLost."""
        channel = self._channels.get(address)
        if channel is not None:
            return channel
        if self._closed:
            raise ConnectionLost(address, "this client is stopped")
        task = self._connecting.get(address)
        if task is None or (task.cancelled() and task not in self._given_up):
            task = asyncio.get_running_loop().create_task(self._open(address))
            self._connecting[address] = task
            self._connecting_since[address] = asyncio.get_running_loop().time()
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            # Shielded: the timeout of one caller must not cancel the connection of the others.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and (self._closed or task in self._given_up):
                why = "this client is stopped" if self._closed else "it is given up: the server says nothing"
                raise ConnectionLost(address, why, made=False) from None
            raise

    async def invoke(
        self,
        address: str,
        code: int,
        header: Fields = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
        accept: tuple[int, ...] = (ResponseCode.SUCCESS,),
        poll_ms: int = 0,
    ) -> Command:
        """A request and its response; connecting counts against the time. ``poll_ms``: for so long the server may wait
        before it answers.

        Raises BrokerError for a response code that is not in ``accept``, RequestTimeout, ConnectionLost. A
        server that answers GO_AWAY (it is about to stop) gets the request once more on a new connection.
        """
        try:
            response = await self._ask(address, code, header, body, timeout_ms, poll_ms)
            if response.code == ResponseCode.GO_AWAY:
                channel = self._channels.get(address)
                if channel is not None:
                    channel.retire()
                response = await self._ask(address, code, header, body, timeout_ms, poll_ms)
        except (ConnectionLost, RequestTimeout) as error:
            self._away(address, error)
            raise
        self.answered(address)
        if response.code not in accept:
            raise BrokerError(response.code, response.remark, address=address, reason=response.reason)
        return response

    async def _ask(
        self, address: str, code: int, header: Fields, body: bytes, timeout_ms: int, poll_ms: int
    ) -> Command:
        channel = self._channels.get(address)
        if channel is not None:
            return await channel.request(code, header, body, timeout_ms, poll_ms=poll_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                channel = await self.connect(address)
                return await channel.request(code, header, body, timeout_ms, poll_ms=poll_ms)
        except TimeoutError as error:
            if isinstance(error, RequestTimeout):
                raise
            raise RequestTimeout(address, timeout_ms) from None

    def close_idle(self, idle_timeout_ms: int) -> None:
        """Close connections that were idle for this time."""
        for address, channel in list(self._channels.items()):
            if channel.idle_s() * 1000 >= idle_timeout_ms:
                del self._channels[address]
                channel.close("nobody needed it")

    async def close(self) -> None:
        self._closed = True
        opening = list(self._connecting.values())
        for task in opening:
            task.cancel()
        # A connection that is made in this turn is closed too: the loop may end next.
        await asyncio.gather(*opening, return_exceptions=True)
        channels = [*self._channels.values(), *self._retired]
        self._channels.clear()
        for channel in channels:
            channel.close()
        # One turn for the transports to report their end. With TLS the peer has to answer the farewell first.
        await asyncio.sleep(0)
        if self._tls is not None:
            await asyncio.gather(*(channel.ended() for channel in channels))

    async def _open(self, address: str) -> Channel:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                channel = await opened(lambda: self._channel(address, loop), host, port, self._tls)
        except TimeoutError:
            reason = f"no connection within {self._connect_timeout_ms} ms"
            raise self._away(address, ConnectionLost(address, reason, made=False)) from None
        except OSError as error:
            reason = refusal_of(error, tls=self._tls is not None)
            raise self._away(address, ConnectionLost(address, reason, made=False)) from None
        except ValueError as error:  # not a host name: a label that is empty or too long, or a null character
            raise self._away(address, ConnectionLost(address, str(error), made=False)) from None
        if self._greet is not None:
            try:
                await self._greet(channel)
            except asyncio.CancelledError:
                channel.abort("nobody waits for it any more")
                raise
        if not channel.open:
            raise ConnectionLost(address)
        self._channels[address] = channel
        return channel

    def _channel(self, address: str, loop: asyncio.AbstractEventLoop) -> Channel:
        return Channel(address, loop, self._on_request, self._connection_lost, self._fields, self._signer)

    def _opened(self, address: str, task: asyncio.Task[Channel]) -> None:
        if self._connecting.get(address) is task:
            del self._connecting[address], self._connecting_since[address]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it

    def _forget(self, channel: Channel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]

    def _connection_lost(self, channel: Channel) -> None:
        known = self._channels.get(channel.address) is channel
        self._forget(channel)
        if channel.has_ended:
            self._retired.discard(channel)
        else:
            self._retired.add(channel)
        if known:
            self._on_lost(channel.address)
