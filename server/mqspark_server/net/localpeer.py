"""A client in the server's own process: its requests reach the core without a socket.

Must not know who sends a request, or why.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from mqspark.errors import FrameTooLarge, ProtocolError
from mqspark.protocol.codes import CURRENT_VERSION, Language
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, MAX_HEADER_BYTES, Connection
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Core, Session
from mqspark_server.net.deadlines import NO_SLOT, Deadlines


class Expires(Protocol):
    """What waits until a time."""

    slot: int

    def expire(self) -> None: ...


class LocalServer(Protocol):
    """What such a client needs from its server (``remotingserver.RemotingServer``)."""

    core: Core
    loop: asyncio.AbstractEventLoop
    deadlines: Deadlines[Expires]

    def schedule(self) -> None: ...
    def close_session(self, session: Session) -> None: ...


class _Pending:
    """A request without an answer."""

    __slots__ = ("answer", "slot")

    def __init__(self, answer: asyncio.Future[Command]) -> None:
        self.answer = answer
        self.slot = NO_SLOT

    def expire(self) -> None:
        self.fail(TimeoutError())

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class LocalPeer:
    """A client in the same process: requests go to the core as from a socket, answers resolve futures."""

    session: Session
    on_request: Callable[[Command], None] = staticmethod(lambda _: None)
    """Called with requests of the core."""
    language: int = Language.PYTHON
    version: int = CURRENT_VERSION
    """What its requests say about it."""
    piece_bytes = sys.maxsize
    """Nothing is copied into a kernel."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._requests = Connection()
        self._answers = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES)
        self._pending: dict[int, _Pending] = {}
        self._opaque = 0

    async def request(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 5.0,
    ) -> Command:
        """Raises TimeoutError, ConnectionError when the server ends first, and FrameTooLarge."""
        self._opaque += 1
        opaque = self._opaque
        server = self._server
        pending = self._pending[opaque] = _Pending(server.loop.create_future())
        server.deadlines.add(pending, server.loop.time() + timeout_s)
        try:
            server.core.received(self.session, self._commands(code, opaque, header, body))
            server.schedule()
            return await pending.answer
        finally:
            server.deadlines.discard(pending)
            self._pending.pop(opaque, None)

    def _commands(
        self, code: int, opaque: int, header: Header | Mapping[str, str] | None, body: bytes
    ) -> Sequence[Command]:
        """The request as it comes out of a socket, and no larger. That of a typed header needs no frame: it is read
        from JSON as any other, so its values are checked."""
        if isinstance(header, Header):
            fields = msgspec.Raw(msgspec.json.encode(header))
            if len(fields) > MAX_HEADER_BYTES:
                raise FrameTooLarge("header", len(fields), MAX_HEADER_BYTES)
            return (Command(code, opaque, 0, self.language, self.version, raw_ext=fields, body=body),)
        frame = encode_request(code, opaque, header, body, language=self.language, version=self.version)
        return self._requests.receive_data(frame)

    def answer(self, frame: bytes) -> None:
        """The response frame to a request of the core. Nobody hears it once the connection is closed."""
        if self.session.open:
            self._server.core.received(self.session, self._requests.receive_data(frame))
            self._server.schedule()

    def write_out(self, out: list[bytes | memoryview], size: int) -> None:
        try:
            commands = self._answers.receive_data(b"".join(out))
        except ProtocolError as error:  # an answer exceeds the frame limit: only these requests fail
            self._answers = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES)
            for pending in self._pending.values():
                pending.fail(ConnectionError(str(error)))
            return
        for command in commands:
            if not command.is_response:
                self.on_request(command)
                continue
            waiting = self._pending.get(command.opaque)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(command)

    def close(self, reason: str = "closed") -> None:
        """Unanswered requests fail with ConnectionError."""
        self._server.close_session(self.session)
        for pending in self._pending.values():
            pending.fail(ConnectionError(reason))
