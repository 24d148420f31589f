"""Requests by HTTP to a server named in the settings: bounded in time and bytes, without proxy and without redirects.

Data of a request may become a part of the path, but never of the address.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from mqspark.errors import ConfigError

WEB_TIMEOUT_S = 5.0
"""Time limit from the name look-up to the last byte."""
MAX_ANSWER_BYTES = 4 << 20
"""Limit of the body of an answer."""
MAX_HEAD_BYTES = 16 << 10
_READ_BYTES = 64 << 10
_MAX_SHOWN = 120
_OK = 200


class NotAnswered(Exception):
    """The request failed; the text says why."""


class WebAnswer(NamedTuple):
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class WebServer:
    """``http://host:port`` or ``https://host:port``."""

    host: str
    port: int
    is_tls: bool = False

    @classmethod
    def parse(cls, url: str, key: str) -> WebServer:
        """``key``: the setting that an error names. Raises ConfigError unless ``url`` is a scheme, a host and a
        port."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            if host is not None:
                host.encode("idna")  # the check of the name look-up: no label is empty or too long
        except ValueError:
            host = port = None
        plain = url.isascii() and url.isprintable() and " " not in url
        if host is None or not plain or parts.scheme not in ("http", "https"):
            raise ConfigError(f"{key}={url[:_MAX_SHOWN]!r} is not an address like http://host:port", key=key)
        if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ConfigError.of(key, "give only the scheme, the host and the port")
        is_tls = parts.scheme == "https"
        return cls(host, port if port is not None else 443 if is_tls else 80, is_tls)

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self._authority}"

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def get(
        self, target: str, *, timeout_s: float = WEB_TIMEOUT_S, max_bytes: int = MAX_ANSWER_BYTES
    ) -> bytes:
        """The body of an answer with the status 200. ``target``: the path and query, encoded. Raises NotAnswered."""
        answer = await self.ask(target, timeout_s=timeout_s, max_bytes=max_bytes)
        if answer.status != _OK:
            raise NotAnswered(f"{self} answers with the status {answer.status}")
        return answer.body

    async def ask(
        self,
        target: str,
        headers: Sequence[tuple[str, str]] = (),
        *,
        method: str = "GET",
        timeout_s: float = WEB_TIMEOUT_S,
        max_bytes: int = MAX_ANSWER_BYTES,
        trust: ssl.SSLContext | None = None,
    ) -> WebAnswer:
        """An answer of any status. ``headers`` are sent along. ``trust``: whom to trust instead of the authorities of
        the system. Raises NotAnswered."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(method, target, headers, max_bytes, trust)
        except TimeoutError:
            raise NotAnswered(f"{self} does not answer within {timeout_s:g} s") from None
        except OSError as error:
            raise NotAnswered(f"{self}: {error.strerror or error}") from None

    async def _ask(
        self,
        method: str,
        target: str,
        more: Sequence[tuple[str, str]],
        max_bytes: int,
        trust: ssl.SSLContext | None,
    ) -> WebAnswer:
        import h11

        context = (trust or ssl.create_default_context()) if self.is_tls else None
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
        try:
            exchange = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
            headers = [
                ("Host", self._authority),
                ("Accept", "application/json"),
                ("Connection", "close"),
                *([] if method == "GET" else [("Content-Length", "0")]),
                *more,
            ]
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
            request = h11.Request(method=method, target=target, headers=encoded)
            writer.write((exchange.send(request) or b"") + (exchange.send(h11.EndOfMessage()) or b""))
            status, body = 0, bytearray()
            while True:
                event = exchange.next_event()
                if event is h11.NEED_DATA:
                    exchange.receive_data(await reader.read(_READ_BYTES))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > max_bytes:
                        raise NotAnswered(f"{self} answers with more than {max_bytes} bytes")
                elif isinstance(event, h11.EndOfMessage):
                    return WebAnswer(status, bytes(body))
                elif not isinstance(event, h11.InformationalResponse):
                    raise NotAnswered(f"{self} closed the connection")
        except h11.RemoteProtocolError as error:
            raise NotAnswered(f"{self} does not speak HTTP: {error}") from None
        finally:
            writer.transport.abort()
