"""Requests from a server to other servers: one connection, answers matched by opaque.

The client package has the full implementation (retries, routes, heartbeats).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import cast

from mqspark.client.remoting.credentials import bound
from mqspark.errors import ConnectionLost, MQError, ProtocolError, RequestTimeout
from mqspark.protocol.binding import Binder
from mqspark.protocol.codes import CURRENT_VERSION, Language
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.header import Header, to_ext
from mqspark.protocol.signature import Signer

CONNECT_TIMEOUT_S = 3.0
REQUEST_ERRORS = (OSError, ValueError, MQError)
"""What comes of a server that cannot be reached, refuses, or answers something else."""


class Outbound(asyncio.Protocol):
    """Use ``await Outbound.connect(address)``."""

    def __init__(
        self,
        address: str,
        lost: Callable[[], None],
        signer: Signer | None = None,
        on_request: Callable[[Command], None] = lambda _: None,
        language: int = Language.JAVA,
        version: int = CURRENT_VERSION,
    ) -> None:
        self.address = address
        self._language, self._version = language, version
        self._signer = signer
        self._binder: Binder | None = None
        self._on_lost = lost
        self._on_request = on_request
        self._parser = Connection()
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(
        cls,
        address: str,
        lost: Callable[[], None],
        timeout_s: float = CONNECT_TIMEOUT_S,
        *,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
        on_request: Callable[[Command], None] = lambda _: None,
        language: int = Language.JAVA,
        version: int = CURRENT_VERSION,
    ) -> Outbound:
        """``lost`` is called when the connection ends, ``on_request`` with requests of the peer; ``signer`` signs every
        request; ``language`` and ``version`` are what requests say of their sender: a broker speaks to a name server as
        RocketMQ's broker does. Raises OSError, ValueError (no host) or RequestTimeout."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, protocol = await loop.create_connection(
                    lambda: cls(address, lost, signer, on_request, language, version),
                    host.strip("[]"),
                    int(port),
                    ssl=tls,
                )
        except TimeoutError:
            raise RequestTimeout(address, int(timeout_s * 1000)) from None
        return protocol

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def request(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> Command:
        """Raises ConnectionLost or RequestTimeout; the caller checks the response code."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionLost(self.address)
        self._opaque += 1
        opaque = self._opaque
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Command] = loop.create_future()
        self._pending[opaque] = answer
        timer = loop.call_later(timeout_s, self._expire, answer, timeout_s)
        try:
            fields = self._signed(code, header, body)
            transport.write(
                encode_request(code, opaque, fields, body, language=self._language, version=self._version)
            )
            return await answer
        finally:
            timer.cancel()
            self._pending.pop(opaque, None)

    def _expire(self, answer: asyncio.Future[Command], timeout_s: float) -> None:
        """Cheaper than ``asyncio.timeout``, which ends the wait by cancelling the task."""
        if not answer.done():
            answer.set_exception(RequestTimeout(self.address, int(timeout_s * 1000)))

    def answer(self, frame: bytes) -> None:
        """The response frame to a request of the peer. Nobody hears it once the connection has ended."""
        if self._transport is not None:
            self._transport.write(frame)

    def tell(self, code: int, header: Header | None, body: bytes) -> None:
        """Send a one-way request. Raises ConnectionLost."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionLost(self.address)
        self._opaque += 1
        fields = self._signed(code, header, body)
        transport.write(
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
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._signer is not None:
            self._binder = bound(self._signer, self.address, transport.get_extra_info("peername"))

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._parser.receive_data(data)
        except ProtocolError as error:
            self._fail(str(error))
            self.close()
            return
        for command in commands:
            if not command.is_response:
                self._on_request(command)
                continue
            answer = self._pending.get(command.opaque)
            if answer is not None and not answer.done():
                answer.set_result(command)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail(str(error) if error else "the peer closed it")
        self._on_lost()

    def _fail(self, reason: str) -> None:
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(self.address, reason))
