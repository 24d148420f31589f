"""The bodies of HTTP requests: what is too large, or costs too much to read, is refused before it is in memory, or
before it is parsed. No other layer does that.

A JSON document is parsed at once, on the event loop, before its route knows who has sent it. Where there are users,
strangers may therefore send no more than a login takes; and whoever sends more may send long texts, but not many
values.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from mqspark.base.logs import sparing
from mqspark_server.web import problems
from mqspark_server.web.callers import Callers
from mqspark_server.web.httpguard import ASGIApp, Receive, Scope, Send
from mqspark_server.web.problems import Problem
from mqspark_server.web.schemaapi import is_registry_path, problem_response
from mqspark_server.web.v1 import ingest

if TYPE_CHECKING:
    from fastapi import Response

    from mqspark_server.node import BrokerNode

ENVELOPE_BYTES = 256 * 1024
"""How much larger than maxMessageSize in base64 a request may be, for names and properties."""
STRANGERS_BYTES = 16 << 10
"""The most that anybody may send to a broker with users."""
VALUES_BYTES = 64 << 10
"""The most of a JSON document besides its texts."""
MAX_TEXTS = 16_384
"""Limit of the texts in a JSON document, names of fields among them. As many rules as a user may have are 13,316."""
HELD_BYTES = 256 << 20
"""Limit of all bodies that are arriving or handled. Those of STRANGERS_BYTES are not counted: there is room for one of
each connection."""
log = sparing("mqspark.http")


def _check_document(document: bytes) -> None:
    """Raises Problem."""
    if b"\0" in document:  # UTF-16 and UTF-32 would be read, too, with values that look like texts here
        raise Problem(400, "a JSON document is UTF-8 without zero bytes")
    if not _has_few_values(document):
        raise Problem(
            413, f"the document has more than {MAX_TEXTS} texts, or {VALUES_BYTES} bytes besides them"
        )


def _has_few_values(document: bytes) -> bool:
    without_escapes = document.replace(rb"\\", b"").replace(rb"\"", b"")
    parts = without_escapes.split(b'"', 2 * MAX_TEXTS + 1)  # every other one is a text
    return len(parts) <= 2 * MAX_TEXTS + 1 and sum(map(len, parts[::2])) <= VALUES_BYTES


class BoundedBodies:
    """An application whose bodies are bounded. ``callers``: who may send more than a stranger."""

    def __init__(self, api: ASGIApp, app: BrokerNode, callers: Callers) -> None:
        self._api = api
        self._app = app
        self.callers = callers
        self.held_bytes = 0

    def limit(self, path: str) -> int:
        if ingest.is_ingest(path):
            return ingest.INGEST_BYTES
        return self._app.store_config.max_message_size * 4 // 3 + ENVELOPE_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _ArrivingBody(self, scope, receive)
        if body.problem is None:
            try:
                with contextlib.suppress(ClientDisconnect):  # routes that read the body in parts raise it
                    await self._api(scope, body.receive, body.unless_refused(send))
            finally:
                self.held_bytes -= body.held_bytes
        if body.problem is not None:
            await _refusal(scope, body.problem)(scope, receive, send)


class _ArrivingBody:
    """The body of one request."""

    def __init__(self, bodies: BoundedBodies, scope: Scope, receive: Receive) -> None:
        self._bodies = bodies
        self._scope = scope
        self._receive = receive
        path = scope.get("path", "")
        self._limit = bodies.limit(path)
        self._is_stream = ingest.is_ingest(path)
        """Its route reads it in parts, and keeps none."""
        self._is_parsed = not (self._is_stream or path.startswith("/console") or is_registry_path(path))
        """It is a JSON document that is parsed at once."""
        self._parts: list[bytes] = []
        self._size = 0
        self._is_known = False
        self.held_bytes = 0
        self.problem = self._problem_of_head()
        """Why it is refused."""

    def _problem_of_head(self) -> Problem | None:
        headers = dict(self._scope.get("headers", ()))
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            text = "the body may not be compressed: leave Content-Encoding out"
            return Problem(415, text, {"Accept-Encoding": "identity"})
        declared = headers.get(b"content-length", b"0")
        return self._too_large() if declared.isdigit() and int(declared) > self._limit else None

    async def receive(self) -> MutableMapping[str, Any]:
        event = await self._receive()
        if self.problem is None and event["type"] == "http.request":
            try:
                self._take(event.get("body", b""), is_last=not event.get("more_body", False))
            except Problem as problem:
                if self._is_stream:
                    raise  # its route says what it has stored before
                self.problem = problem
        # The application would report a client that disconnected as sending an incomplete body.
        return event if self.problem is None else {"type": "http.disconnect"}

    def _take(self, part: bytes, *, is_last: bool) -> None:
        """Raises Problem."""
        self._size += len(part)
        if self._size > self._limit:
            raise self._too_large()
        if self._is_parsed:
            self._parts.append(part)
        if self._size <= STRANGERS_BYTES:
            return
        self._check_known()
        if not self._is_stream:
            self._hold()
        if self._is_parsed and is_last:
            _check_document(b"".join(self._parts))

    def _check_known(self) -> None:
        """Raises Problem. Pages look at their visitors themselves."""
        if not self._is_known and not self._scope["path"].startswith("/console"):
            self._bodies.callers.check_known(self._scope)
            self._is_known = True

    def _hold(self) -> None:
        """Raises Problem."""
        more = self._size - self.held_bytes
        if self._bodies.held_bytes + more > HELD_BYTES:
            log.warning("a request is refused: the bodies of all requests have %d bytes", HELD_BYTES)
            raise Problem(503, "too many large requests are being sent: retry later", {"Retry-After": "1"})
        self._bodies.held_bytes += more
        self.held_bytes = self._size

    def _too_large(self) -> Problem:
        return Problem(413, f"the request is larger than {self._limit} bytes")

    def unless_refused(self, send: Send) -> Send:
        async def sent(event: MutableMapping[str, Any]) -> None:
            if self.problem is None:
                await send(event)

        return sent


def _refusal(scope: Scope, problem: Problem) -> Response:
    if is_registry_path(scope["path"]):
        return problem_response(problem)
    return problems.response(problem.status, problem.detail, problem.headers)
