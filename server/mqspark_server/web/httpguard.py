"""Access control and time limits for a broker's HTTP, between uvicorn and the application.

Web pages in a browser are not trusted, and only the browser identifies them. A request must therefore name a host
of this broker (``httpAllowedHosts``); otherwise a name that someone else's DNS resolves to this address could
read and post. Requests that a browser marks as coming from another origin are refused. Tools send neither Origin
nor Sec-Fetch-Site.

Time and connections are limited before a caller is identified, TLS handshakes included: HEAD_S for the head of a
request, BODY_S for its body and ANSWER_S for its answer, or STREAM_S for a stream, which says so and limits itself. At
``httpMaxConnections`` a new connection replaces the one that has been idle for longest, or else one of the address that
has the most, so that neither idle connections nor a single peer can lock others out.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mqspark.base.names import bracketed
from mqspark.errors import ProtocolError
from mqspark_server.net.guards import CONNECTION_S
from mqspark_server.net.handshakes import Handshakes
from mqspark_server.net.servertls import HANDSHAKE_BYTE, Certificates, TlsStream
from mqspark_server.web.pacedhttp import Backlog, PacedFlow, PacedParser

HEAD_S = 10.0
HEAD_BYTES = 64 << 10
"""The head of a request that comes in several reads: a place in 1,000 queues makes an address of 32 KiB."""
MAX_QUERY_FIELDS = 2_048
"""The most of an address: each that a route does not know is looked at several times. A form has as many."""
IDLE_S = 30.0
"""Longer than uvicorn's keep-alive: a connection still open then does not read its answer."""
BODY_S = 30.0
ANSWER_S = 60.0
STREAM_S = 660.0
"""Longer than ``events.STREAM_S``."""
STREAMS = "mqspark.streams"
"""The extension of ASGI by which an answer says that it is a stream: it calls it."""
_NEEDS_TLS = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 30\r\nconnection: close\r\n\r\n"
    b"this port speaks https alone.\n"
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def host_of(authority: str) -> str | None:
    """The host of ``host:port`` in lower case, an address without brackets; None if it is malformed."""
    try:
        parts = urlsplit("//" + authority)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        return None
    if host is None or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    host = host.removesuffix(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


class Guarded:
    """``hosts``: names and addresses of the broker in addition to loopback's; ``*`` allows every name."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        named = {host for name in hosts if name.strip() and (host := host_of(bracketed(name.strip())))}
        self._hosts = _LOOPBACK | named
        self._any_host = "*" in named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self.problem(scope)
        if problem is not None:
            await _refuse(send, 403, b"Forbidden", problem)
        elif scope.get("query_string", b"").count(b"&") >= MAX_QUERY_FIELDS:
            await _refuse(send, 414, b"URI Too Long", f"an address has at most {MAX_QUERY_FIELDS} fields")
        else:
            await self._app(scope, receive, send)

    def problem(self, scope: Scope) -> str | None:
        """Why the request is refused, or None. The texts are fixed and contain nothing from the peer."""
        if scope["type"] != "http":
            return "this is not an HTTP request"
        headers: dict[bytes, list[str]] = {}
        for name, value in scope.get("headers", ()):
            headers.setdefault(name, []).append(value.decode("latin-1"))
        authorities = headers.get(b"host", [])
        host = host_of(authorities[0]) if len(authorities) == 1 else None
        if host is None or not self._is_allowed_host(host, scope.get("server")):
            return "the host of the request is not one of this broker: set httpAllowedHosts"
        if any(site not in ("same-origin", "none") for site in headers.get(b"sec-fetch-site", ())):
            return "a page of another site may not send requests to this broker"
        own = authorities[0].lower()
        for origin in headers.get(b"origin", ()):
            if origin.lower() not in (f"http://{own}", f"https://{own}"):
                return "a page of another origin may not send requests to this broker"
        return None

    def _is_allowed_host(self, host: str, server: tuple[str, int] | None) -> bool:
        """The address of the connection itself is always allowed: DNS cannot redirect an address."""
        return (
            self._any_host
            or host in self._hosts
            or (server is not None and host == host_of(bracketed(server[0])))
        )


async def _refuse(send: Send, status: int, title: bytes, problem: str) -> None:
    body = b'{"type":"about:blank","title":"%b","status":%d,"detail":"%b"}' % (
        title,
        status,
        problem.encode(),
    )
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with the limits of one server."""

    max_connections: ClassVar[int]
    backlog: ClassVar[Backlog]
    conn: PacedParser
    flow: PacedFlow
    _phase: str | None = None
    _since = 0.0
    _limit: asyncio.TimerHandle | None = None
    _host = ""
    _streaming: RequestResponseCycle | None = None
    """The request whose answer is a stream."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = PacedParser(HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = PacedFlow(transport)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        if len(self.connections) > self.max_connections and not self._make_room():
            transport.write(_FULL)
            transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        if self.conn.has_stopped:
            return  # the rest has its turn
        self._handle_some()

    def go_on(self) -> None:
        """With what was left for this turn."""
        if not self.transport.is_closing():
            self._handle_some()

    def _handle_some(self) -> None:
        self.conn.begin_turn()
        super().handle_events()
        if self.conn.has_stopped:
            self.flow.hold()
            self.backlog.add(self, self.loop)
        else:
            self.flow.release()
        cycle = self.cycle
        if cycle is not None:  # its task has not begun yet
            extensions: dict[str, object] = cast(Any, cycle.scope).setdefault("extensions", {})
            extensions.setdefault(STREAMS, partial(self._streams, cycle))
        self._watch()

    def _streams(self, cycle: RequestResponseCycle) -> None:
        self._streaming = cycle
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """A request that is not HTTP gets a problem, as all others do."""
        body = b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"this is not HTTP/1.1"}'
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        event = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for part in (event, h11.Data(data=body)):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest. If there is none, close one of the address that has
        the most: the oldest that still sends its request, or else the oldest; of this address only the former."""
        others = [
            other for other in self.connections if isinstance(other, GuardedProtocol) and other is not self
        ]
        leaving = [other for other in others if other._phase in ("idle", "head")]
        if not leaving:
            held = Counter(other._host for other in others)
            largest = max(held, key=held.__getitem__, default="")
            is_others = held[largest] > held[self._host] + 1
            crowd = [other for other in others if other._host == (largest if is_others else self._host)]
            sending = [other for other in crowd if other._phase == "body"]
            leaving = sending or (crowd if is_others else [])
        if not leaving:
            return False
        oldest = min(leaving, key=lambda other: other._since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _watch(self) -> None:
        theirs, ours = self.conn.their_state, self.conn.our_state
        if self.transport.is_closing():
            phase = None
        elif theirs is h11.SEND_BODY:
            phase = "body"
        elif ours is not h11.IDLE or theirs is not h11.IDLE:
            phase = "answer" if self.cycle is None or self.cycle is not self._streaming else "stream"
        elif self.cycle is None or self.conn.trailing_data[0]:
            phase = "head"
        else:
            phase = "idle"  # uvicorn's own keep-alive timeout applies
        if phase != self._phase:
            self._enter(phase)

    def _enter(self, phase: str | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        self._phase = phase
        self._since = self.loop.time()
        limits = {
            "head": HEAD_S,
            "idle": IDLE_S,
            "body": BODY_S,
            "answer": ANSWER_S,
            "stream": STREAM_S,
        }
        seconds = limits.get(phase or "")
        if seconds is not None:
            self._limit = self.loop.call_later(seconds, self.transport.abort)


class TlsProtocol(GuardedProtocol):
    """Inside of TLS, whose handshake counts as a part of the first head, and waits for its turn."""

    certificates: ClassVar[Certificates]
    handshakes: ClassVar[Handshakes[TlsProtocol] | None] = None
    """Those of the server, which the first connection makes."""
    _stream: TlsStream
    _begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._stream = TlsStream(self.certificates.context())
        if self.handshakes is None:
            type(self).handshakes = Handshakes(self.loop, lambda *_: None, turn_s=CONNECTION_S)
        super().connection_made(TlsTransport(transport, self._stream))

    def data_received(self, data: bytes) -> None:
        transport, stream = self.transport, self._stream
        if not isinstance(transport, TlsTransport) or transport.is_closing():
            return
        if not self._begun and data[0] != HANDSHAKE_BYTE:
            transport.plain.write(_NEEDS_TLS)
            transport.plain.close()
            return
        self._begun = True
        try:
            stream.receive(data)
        except ProtocolError:
            self._fail(transport)
            return
        if stream.established:
            self._read(transport)
        elif self.handshakes is not None:
            self.handshakes.schedule(self)

    def shake_hands(self) -> None:
        transport, stream = self.transport, self._stream
        if not isinstance(transport, TlsTransport) or transport.is_closing() or stream.established:
            return
        try:
            is_complete = stream.shake_hands()
        except ProtocolError:
            self._fail(transport)
            return
        if is_complete:
            self._read(transport)
        elif reply := stream.to_send():
            transport.plain.write(reply)

    def _read(self, transport: TlsTransport) -> None:
        try:
            plain = self._stream.read()
        except EOFError:
            transport.close()
            return
        except ProtocolError:
            self._fail(transport)
            return
        if reply := self._stream.to_send():
            transport.plain.write(reply)
        if plain:
            super().data_received(plain)

    def _fail(self, transport: TlsTransport) -> None:
        transport.plain.write(self._stream.to_send())  # the TLS alert that says why
        transport.plain.close()


def bounded_protocol(limit: int, tls: Certificates | None = None) -> type[H11Protocol]:
    """The protocol of a server with at most ``limit`` connections, inside of TLS if ``tls`` says so."""
    if tls is None:
        return type("BoundedProtocol", (GuardedProtocol,), {"max_connections": limit, "backlog": Backlog()})
    own = {"max_connections": limit, "backlog": Backlog(), "certificates": tls}
    return type("BoundedTlsProtocol", (TlsProtocol,), own)


class TlsTransport(asyncio.Transport):
    """What is written goes into TLS. ``plain`` is the socket's own transport."""

    def __init__(self, plain: asyncio.Transport, stream: TlsStream) -> None:
        super().__init__()
        self.plain = plain
        self._stream = stream

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # uvicorn knows by it that the scheme is https.
        return self._stream if name == "sslcontext" else self.plain.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._stream.established:
            return
        try:
            self.plain.write(self._stream.encrypt([bytes(data)]))
        except ProtocolError:
            self.plain.abort()

    def close(self) -> None:
        if not self.plain.is_closing():
            self.plain.write(self._stream.end())
        self.plain.close()

    def abort(self) -> None:
        self.plain.abort()

    def is_closing(self) -> bool:
        return self.plain.is_closing()

    def pause_reading(self) -> None:
        self.plain.pause_reading()

    def resume_reading(self) -> None:
        self.plain.resume_reading()

    def is_reading(self) -> bool:
        return self.plain.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.plain.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.plain.get_write_buffer_size()
