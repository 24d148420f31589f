"""Requests from a server to other servers: one connection, answers matched by opaque; one write a turn of the loop, and
one timer for all deadlines.

The client package has the full implementation (retries, routes, heartbeats).
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast

from mqspark.base.logs import sparing
from mqspark.client.remoting.credentials import bound
from mqspark.client.remoting.dialing import opened
from mqspark.errors import ConnectionLost, MQError, ProtocolError, RequestTimeout
from mqspark.protocol.binding import Binder
from mqspark.protocol.codes import CURRENT_VERSION, Language
from mqspark.protocol.command import RESPONSE_FLAG, Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.header import Header, to_ext
from mqspark.protocol.layouts import MAX_OPAQUE
from mqspark.protocol.signature import Signer
from mqspark_server.net.memory_budget import MemoryBudget

log = sparing(__name__)

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 3.0
"""How long another server of the cluster may take to answer."""
REQUEST_ERRORS = (OSError, ValueError, MQError)
"""What comes of a server that cannot be reached, refuses, or answers something else."""

STEP_S = 0.02
"""What is late is looked for so rarely."""
FEW_PENDING = 1024
"""With twice as many requests as after the last look, those that nobody waits for are looked for as well."""
SILENT_S = 10.0
"""A connection on which nothing at all has come for so long, although requests wait, ends with the next of them that is
too late: its peer, or something between, may have forgotten it, and nobody else would end it for a quarter of an hour.
Not sooner: a controller takes the end of a connection for that of the broker."""
NOTED_BYTES = 64 << 10
"""What a peer has not read is counted when it is at least this large."""


class Waiting(Protocol):
    """What waits for an answer: a future, or what a caller that needs no task has in place of one."""

    def done(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def set_result(self, answer: Command, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


AsError = Callable[[ConnectionLost | RequestTimeout], Exception]


class Dialing(NamedTuple):
    """How a process connects to other servers. ``signer`` signs every request. ``unread``: of the bytes that the peers
    of all connections do not read; when they are too many, some end."""

    tls: ssl.SSLContext | None = None
    signer: Signer | None = None
    unread: MemoryBudget[Outbound] | None = None

    async def connect(
        self,
        address: str,
        lost: Callable[[], None] = lambda: None,
        timeout_s: float = CONNECT_TIMEOUT_S,
        *,
        on_request: Callable[[Command], None] = lambda _: None,
        language: int = Language.JAVA,
        version: int = CURRENT_VERSION,
        as_error: AsError = lambda error: error,
    ) -> Outbound:
        """``lost`` is called when the connection ends, ``on_request`` with requests of the peer; ``language`` and
        ``version`` are what requests say of their sender: a broker speaks to a name server as RocketMQ's broker does;
        ``as_error`` makes what ``submit`` fails with. Raises OSError, ValueError (no host) or RequestTimeout."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                return await opened(
                    lambda: Outbound(
                        address, lost, self.signer, on_request, language, version, as_error, self.unread
                    ),
                    host.strip("[]"),
                    int(port),
                    self.tls,
                )
        except TimeoutError:
            raise RequestTimeout(address, int(timeout_s * 1000)) from None


PLAIN = Dialing()


class Outbound(asyncio.Protocol):
    """Made by ``Dialing.connect``."""

    def __init__(
        self,
        address: str,
        lost: Callable[[], None],
        signer: Signer | None = None,
        on_request: Callable[[Command], None] = lambda _: None,
        language: int = Language.JAVA,
        version: int = CURRENT_VERSION,
        as_error: AsError = lambda error: error,
        unread: MemoryBudget[Outbound] | None = None,
    ) -> None:
        self.address = address
        self._unread = unread
        self._as_error = as_error
        self._language, self._version = language, version
        self._signer = signer
        self._binder: Binder | None = None
        self._on_lost = lost
        self._on_request = on_request
        self._parser = Connection()
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, tuple[Waiting, float, float]] = {}
        """Opaque → who waits for the answer, until when, and for how many seconds in all."""
        self._owes_since = math.inf
        """When the first request was sent since the peer has sent anything."""
        self._most_pending = FEW_PENDING
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._out: list[bytes] = []
        """Frames of this turn."""
        self._opaque = 0
        self._transport: asyncio.Transport | None = None

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def pending(self) -> int:
        """Requests whose answers it looks out for."""
        return len(self._pending)

    async def request(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> Command:
        """Raises ConnectionLost or RequestTimeout; the caller checks the response code."""
        return await self.submit(code, header, body, timeout_s=timeout_s)

    def submit(
        self, code: int, header: Header | Mapping[str, str] | None, body: bytes, *, timeout_s: float
    ) -> asyncio.Future[Command]:
        """Send a request. What is returned is cancelled to give it up, and fails as ``request``."""
        answer: asyncio.Future[Command] = self._loop.create_future()
        self.ask(answer, code, header, body, timeout_s=timeout_s)
        return answer

    def ask(
        self,
        waiting: Waiting,
        code: int,
        header: Header | Mapping[str, str] | None,
        body: bytes,
        *,
        timeout_s: float,
    ) -> None:
        """Send a request, and tell ``waiting`` once: the answer, or what ``request`` raises."""
        transport = self._transport
        if transport is None or transport.is_closing():
            waiting.set_exception(self._as_error(ConnectionLost(self.address)))
            return
        self._opaque = opaque = self._opaque + 1 if self._opaque < MAX_OPAQUE else 1
        if self._binder is not None:
            header = self._signed(code, header, body)
        self._write(
            encode_request(code, opaque, header, body, language=self._language, version=self._version)
        )
        now = self._loop.time()
        due = now + timeout_s
        self._owes_since = min(self._owes_since, now)
        self._pending[opaque] = waiting, due, timeout_s
        if len(self._pending) > self._most_pending:
            self._expire()
        if due < self._timer_at:
            self._wait_until(due)

    def _write(self, frame: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            if self._unread is not None:
                self._note_unread(self._unread)

    def _note_unread(self, unread: MemoryBudget[Outbound]) -> None:
        """Bound what waits for peers that do not read. A request that was given up still waits there, and nothing else
        bounds it."""
        now = self._loop.time()
        if self._keep_unread(unread, now) and unread.total > unread.most:
            for each in unread:
                each._keep_unread(unread, now)
            for each in unread.surplus(now):
                each._drop(f"its peer, with others, has not read {unread.most} bytes")

    def _keep_unread(self, unread: MemoryBudget[Outbound], now: float) -> bool:
        """Whether it counts."""
        count = 0 if self._transport is None else self._transport.get_write_buffer_size()
        is_much = count >= NOTED_BYTES
        if is_much or self in unread:
            unread.keep(self, count if is_much else 0, now)
        return is_much

    def _drop(self, reason: str, *, level: int = logging.WARNING) -> None:
        log.log(level, "the connection to %s is dropped: %s", self.address, reason)
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    def _wait_until(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        """End what has waited for too long, and what nobody waits for any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, math.inf
        now, least, is_late = self._loop.time(), math.inf, False
        for opaque, (waiting, due, timeout_s) in [*self._pending.items()]:
            if due > now and not waiting.done():
                least = min(least, due)
                continue
            if self._pending.pop(opaque, None) is not None:
                is_late = is_late or not waiting.done()
                self._give_up(waiting, RequestTimeout(self.address, int(timeout_s * 1000)))
        if is_late and now - self._owes_since >= SILENT_S:
            self._drop(f"it has been silent for {now - self._owes_since:.1f} s", level=logging.INFO)
            return
        self._most_pending = max(FEW_PENDING, 2 * len(self._pending))
        if least < math.inf:
            self._wait_until(max(least, now + STEP_S))

    def answer(self, frame: bytes) -> None:
        """The response frame to a request of the peer. Nobody hears it once the connection has ended."""
        if self._transport is not None:
            self._write(frame)

    def tell(self, code: int, header: Header | None, body: bytes) -> None:
        """Send a one-way request. Raises ConnectionLost."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionLost(self.address)
        self._opaque = self._opaque + 1 if self._opaque < MAX_OPAQUE else 1
        fields = self._signed(code, header, body)
        self._write(
            encode_request(
                code, self._opaque, fields, body, oneway=True, language=self._language, version=self._version
            )
        )

    def _signed(
        self, code: int, header: Header | Mapping[str, str] | None, body: bytes
    ) -> Header | Mapping[str, str] | None:
        if self._binder is None:
            return header
        return self._binder.signed(code, to_ext(header) if isinstance(header, Header) else header or {}, body)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._signer is not None:
            self._binder = bound(self._signer, self.address, transport.get_extra_info("peername"))

    def data_received(self, data: bytes) -> None:
        self._owes_since = math.inf
        try:
            commands = self._parser.receive_data(data)
        except ProtocolError as error:
            self._fail(str(error))
            self.close()
            return
        pending = self._pending
        for command in commands:
            try:
                if not command.flag & RESPONSE_FLAG:
                    self._on_request(command)
                    continue
                found = pending.pop(command.opaque, None)
                if found is not None and not found[0].done():
                    found[0].set_result(command)
            except Exception:  # the others wait for theirs
                log.exception("a message from %s could not be used", self.address)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
        if self._unread is not None:
            self._unread.keep(self, 0, 0.0)
        self._fail(str(error) if error else "the peer closed it")
        self._on_lost()

    def _fail(self, reason: str) -> None:
        pending, self._pending = self._pending, {}
        for waiting, *_ in pending.values():
            self._give_up(waiting, ConnectionLost(self.address, reason))

    def _give_up(self, waiting: Waiting, error: ConnectionLost | RequestTimeout) -> None:
        if waiting.done():
            return
        try:
            waiting.set_exception(self._as_error(error))
        except Exception:  # the others are told all the same
            log.exception("the end of a request to %s could not be told", self.address)
