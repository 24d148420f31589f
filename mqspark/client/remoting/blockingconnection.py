"""One TCP connection without an event loop: requests out, answers in, any number of them under way.

Must not know routes, retries or what a request means. Must not be shared between threads or used after a fork.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mqspark.base.config import parse_addresses
from mqspark.client.remoting.credentials import Credentials, bound, signer_of
from mqspark.client.remoting.dialing import connected
from mqspark.client.remoting.tls import Tls, refusal_of, tls_context
from mqspark.errors import ConnectionLost, ProtocolError, RequestTimeout
from mqspark.protocol.command import Command, Fields, encode_request, encode_request_head
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.header import Header, to_ext

DEFAULT_TIMEOUT_MS = 3000
SILENT_S = 1.0
"""After so much silence, and again after as much, it is asked whether another broker has the place of a silent one."""
_LARGE_BODY_BYTES = 64 << 10
_RECEIVE_BYTES = 128 << 10
"""Bytes of one read; the rest of a larger answer is read directly into its buffer."""
_LATE_READS = 1024
"""Reads after the time for an answer is over: of what has arrived by then. A peer may send faster than it is read."""
_MAX_HEADER_BYTES = 1 << 20
"""The answer to a batch lists every message's id: at most 57 bytes each."""
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BlockingConnection:
    """One TCP connection. ``send`` any number of times, then ``wait`` for each answer in any order.

    Signs with ``credentials`` and speaks TLS by ``tls``, or as the environment says. Raises ConfigError,
    ConnectionLost, RequestTimeout, ProtocolError; after ConnectionLost and ProtocolError it is unusable.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        context = tls_context(tls)
        signer = signer_of(credentials)
        (endpoint,) = parse_addresses(address, key="nameserver", required=True)
        host, _, port = endpoint.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            self._socket = _connected(host, int(port), connect_timeout_ms / 1000, context)
        except OSError as error:
            raise ConnectionLost(address, refusal_of(error, tls=context is not None), made=False) from error
        self._binder = None if signer is None else bound(signer, address, self._socket.getpeername())
        self._tls = context is not None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._receiver = Connection(max_header_bytes=_MAX_HEADER_BYTES)
        self._opaque = 0
        self._answers: dict[int, Command] = {}
        self._wanted: set[int] = set()
        """Opaques without an answer yet. Other answers are dropped."""

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> int:
        """Write a request and return its opaque. A large body is sent without a copy."""
        self._opaque += 1
        self._wanted.add(self._opaque)
        header = self._signed(code, header, body)
        if len(body) < _LARGE_BODY_BYTES:
            self._write([memoryview(encode_request(code, self._opaque, header, body))], timeout_ms)
        else:
            head = encode_request_head(code, self._opaque, header, len(body))
            self._write([memoryview(head), memoryview(body)], timeout_ms)
        return self._opaque

    def send_all(self, requests: Iterable[tuple[int, Header | Mapping[str, str] | None]]) -> list[int]:
        """Write several requests without a body at once and return their opaques."""
        frames, opaques = [], []
        for code, header in requests:
            self._opaque += 1
            opaques.append(self._opaque)
            self._wanted.add(self._opaque)
            frames.append(encode_request(code, self._opaque, self._signed(code, header)))
        self._write([memoryview(b"".join(frames))], DEFAULT_TIMEOUT_MS)
        return opaques

    def _signed(self, code: int, header: Fields, body: bytes | memoryview = b"") -> Fields:
        if self._binder is None:
            return header
        return self._binder.signed(code, to_ext(header) if isinstance(header, Header) else header or {}, body)

    def _wait(self, timeout_s: float) -> int:
        """Wait until the socket is readable or writable. Returns the events of ``select.poll``, which, unlike
        ``select``, has no limit on file descriptor numbers."""
        poll = select.poll()
        poll.register(self, select.POLLIN | select.POLLOUT)
        return sum(events for _, events in poll.poll(timeout_s * 1000))

    def _write(self, parts: list[memoryview], timeout_ms: int) -> None:
        """Write all parts (of bytes) and read what arrives in the meantime. A broker stops reading from a peer
        that does not read its answers, which would deadlock both."""
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            while parts:
                self._socket.settimeout(0)
                try:
                    # TLS sockets take one part at a time.
                    sent = self._socket.send(parts[0]) if self._tls else self._socket.sendmsg(parts)
                except _NOT_NOW:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError("timed out") from None
                    if self._wait(left) & select.POLLIN:
                        self._receive(0.0)
                    continue
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if sent:
                    parts[0] = parts[0][sent:]
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, str(error)) from error

    def wait(
        self,
        opaque: int,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        *,
        if_silent: Callable[[str], None] | None = None,
    ) -> Command:
        """The answer to ``opaque``. After a RequestTimeout the connection stays usable; the late answer is dropped.

        ``if_silent`` is called with the address whenever nothing has come for ``SILENT_S``; what it raises ends the
        wait. What arrives meanwhile is read, however long it takes.
        """
        heard_at = time.monotonic()
        deadline = heard_at + timeout_ms / 1000
        late = 0
        while opaque not in self._answers:
            left = max(0.0, deadline - time.monotonic())
            late += not left
            if late <= _LATE_READS and self._receive(left if if_silent is None else min(left, SILENT_S)):
                heard_at = time.monotonic()
            elif not left:
                self._wanted.discard(opaque)
                raise RequestTimeout(self.address, timeout_ms)
            elif if_silent is not None and left > SILENT_S and time.monotonic() - heard_at >= SILENT_S:
                if_silent(self.address)
        return self._answers.pop(opaque)

    def poll(self, opaques: Iterable[int], timeout_s: float) -> dict[int, Command]:
        """The answers to ``opaques`` that have arrived; waits for at least one until the timeout, which may be 0."""
        wanted = set(opaques)
        deadline = time.monotonic() + timeout_s
        late = 0
        while wanted.isdisjoint(self._answers):
            left = max(0.0, deadline - time.monotonic())
            late += not left
            if late > _LATE_READS or not self._receive(left):
                return {}
        return {opaque: self._answers.pop(opaque) for opaque in wanted & self._answers.keys()}

    def receive_ready(self) -> bool:
        """Read what has already arrived, and say whether there was anything; never waits."""
        reads = 0
        while reads < _LATE_READS and self._receive(0.0):
            reads += 1
        return reads > 0

    def _receive(self, timeout_s: float) -> bool:
        """One read; False if nothing arrived in time."""
        try:
            self._socket.settimeout(timeout_s)
            rest = self._receiver.rest()
            data = self._socket.recv(_RECEIVE_BYTES) if rest is None else b""
            count = len(data) if rest is None else self._socket.recv_into(rest)
        except (TimeoutError, *_NOT_NOW):
            return False
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, str(error)) from error
        if not count:
            self.close()
            raise ConnectionLost(self.address)
        try:
            commands = (
                self._receiver.receive_data(data) if rest is None else self._receiver.received_rest(count)
            )
        except ProtocolError:
            self.close()
            raise
        for command in commands:
            if command.is_response and command.opaque in self._wanted:
                self._wanted.discard(command.opaque)
                self._answers[command.opaque] = command
        return True


def _connected(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    """Connect within the time, including the name look-up, all addresses of the host and TLS."""
    deadline = time.monotonic() + timeout_s
    sock = connected(_resolved(host, port, timeout_s), deadline)
    try:
        if tls is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock = tls.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise
    return sock


def _resolved(host: str, port: int, timeout_s: float) -> list[Any]:
    """``getaddrinfo``, which has no timeout, abandoned after ``timeout_s``. Raises OSError."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        outcome: list[Any] = []

        def look_up() -> None:
            try:
                outcome.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:  # UnicodeError: an empty label or one that is too long
                outcome.append(error)

        resolver = threading.Thread(target=look_up, name="mqspark-resolve", daemon=True)
        resolver.start()
        resolver.join(timeout_s)
        if not outcome:
            raise TimeoutError(f"the host name {host!r} was not resolved within {timeout_s:.1f} s") from None
        if isinstance(outcome[0], Exception):
            reason = getattr(outcome[0], "strerror", None) or outcome[0]
            raise OSError(f"the host name {host!r} cannot be resolved ({reason})") from outcome[0]
        addresses: list[Any] = outcome[0]
        return addresses
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
