"""A schema registry over HTTP (Confluent's API): one question at a time, in the thread that asks."""

from __future__ import annotations

import base64
import json
import math
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Literal

from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.tls import Tls, TlsSettings, tls_context
from mqspark.errors import ConfigError, NoSchemaRegistry, SchemaRefused
from mqspark.protocol.schemaoperations import MAX_SCHEMA_BODY_BYTES, MEDIA_TYPE, OPERATIONS

MAX_ANSWER_BYTES = 2 * MAX_SCHEMA_BODY_BYTES
REGISTRY_TIMEOUT_MS = 30_000
"""A schema may have to be compared with many versions, and a change to be synced."""
_AWAY = (502, 503, 504)
"""Another door may answer, or the same one later."""
_MAX_REASON_BYTES = 1 << 16
_READ_BYTES = 1 << 16


class RegistryClient:
    """``urls``: of the HTTP ports of brokers or consoles, in a list or separated by commas: the next one is asked
    when one does not answer. ``credentials`` are sent as Basic credentials. Raises ConfigError."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        credentials: Credentials | Literal[False] | None = None,
        tls: Tls | None = None,
        timeout_ms: int = REGISTRY_TIMEOUT_MS,
    ) -> None:
        """``credentials``: None: those of the environment; False: none. ``tls``, of URLs with https: None: that of the
        environment."""
        self.urls = checked_urls(urls)
        self._first = 0
        """Which of them is asked first: the one that answered last, so that one which is frozen costs its time once."""
        if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or timeout_ms < 1:
            raise ConfigError.of("timeout_ms", f"milliseconds, not {timeout_ms!r:.40}")
        self._timeout_s = math.ceil(timeout_ms) / 1000
        self._headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
        found = Credentials.from_environment() if credentials is None else credentials
        if found:
            pair = f"{found.access_key}:{found.secret_key}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        is_safe = any(each.startswith("https:") for each in self.urls)
        if tls is None:
            tls = TlsSettings.from_environment() or True
        self._opener = _opener(tls_context(tls) if is_safe else None)

    def ask(
        self,
        operation: str,
        *,
        subject: str | None = None,
        version: int | str | None = None,
        schema_id: int | None = None,
        options: Mapping[str, str] | None = None,
        document: object = None,
    ) -> Any:
        """The answer to an operation (``protocol.schemaoperations.OPERATIONS``). Raises SchemaRefused when it is an
        error, NoSchemaRegistry when no URL answers."""
        asked = OPERATIONS[operation]
        place = {"subject": subject, "version": version, "id": schema_id}
        path = asked.path.format_map(
            {
                name: urllib.parse.quote(str(value), safe="")
                for name, value in place.items()
                if value is not None
            }
        )
        query = f"?{urllib.parse.urlencode(options)}" if options else ""
        data = None if document is None else json.dumps(document).encode()
        problems = []
        first = self._first
        for step in range(len(self.urls)):
            self._first = number = (first + step) % len(self.urls)
            try:
                return self._ask(asked.method, f"{self.urls[number]}{path}{query}", data)
            except NoSchemaRegistry as error:
                problems.append(str(error))
        raise NoSchemaRegistry("; ".join(problems))

    def _ask(self, method: str, url: str, data: bytes | None) -> Any:
        request = urllib.request.Request(url, data, self._headers, method=method)  # noqa: S310 - checked to be http
        status = 0
        end_s = time.monotonic() + self._timeout_s
        try:
            try:
                answer = self._opener.open(request, timeout=self._timeout_s)
            except urllib.error.HTTPError as error:
                answer, status = error, error.code
            with answer:
                body = _read(answer, _MAX_REASON_BYTES if status else MAX_ANSWER_BYTES + 1, end_s)
        except urllib.error.URLError as error:
            raise NoSchemaRegistry(f"{url}: {error.reason}") from None
        except (OSError, HTTPException) as error:
            raise NoSchemaRegistry(f"{url}: {error or type(error).__name__}") from None
        if status:
            raise _refusal(url, status, body)
        if len(body) > MAX_ANSWER_BYTES:
            raise NoSchemaRegistry(f"{url}: the answer has more than {MAX_ANSWER_BYTES} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise NoSchemaRegistry(f"{url}: the answer is no JSON: this is no schema registry") from None


def _read(answer: Any, at_most: int, end_s: float) -> bytes:
    """The body, until a time of the monotonic clock: each byte of one that trickles would be in time by itself. Raises
    TimeoutError."""
    body = bytearray()
    while len(body) < at_most and (part := answer.read1(min(_READ_BYTES, at_most - len(body)))):
        body += part
        if time.monotonic() > end_s:
            raise TimeoutError("the answer took too long")
    return bytes(body)


def _opener(context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Without proxies, as brokers are asked, and without redirects, which would take the credentials elsewhere."""
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler(context=context))
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    return opener


def checked_urls(urls: str | Sequence[str]) -> list[str]:
    """Raises ConfigError, which has none of the text: there may be keys in it."""
    given = urls.split(",") if isinstance(urls, str) else list(urls)
    checked = [_checked_url(each) for each in given if each.strip()]
    if not checked:
        raise ConfigError.of("registry", "the URL of a broker's HTTP port or of a console")
    return checked


def _checked_url(text: str) -> str:
    url = text.strip().rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one, parts = False, urllib.parse.urlsplit("")
    if (
        not is_one
        or parts.query
        or parts.fragment
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        raise ConfigError.of("registry", "a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ConfigError.of("registry", "give the keys as credentials=, not in the URL")
    return url


def _refusal(url: str, status: int, body: bytes) -> SchemaRefused | NoSchemaRegistry:
    try:
        document = json.loads(body)
        message, code = str(document["message"]), int(document["error_code"])
    except (ValueError, LookupError, TypeError, RecursionError):
        message, code = f"HTTP {status}", status
    if status in _AWAY:
        return NoSchemaRegistry(f"{url}: {message}")
    return SchemaRefused(message, status, code)
