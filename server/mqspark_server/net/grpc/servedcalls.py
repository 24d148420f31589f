"""One call that is served: what its method is told, and how its answers go out.

A method gets the request, or an iterator of requests, and the call itself: ``metadata``, ``address``,
``time_remaining``, ``write``. A unary one returns its answer, others write answers. When the caller is gone, or its
time is over, the method is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from mqspark.base.logs import sparing
from mqspark_server.net.deadlines import NO_SLOT
from mqspark_server.net.grpc.grpcwords import GOOD_END, HEAD, GrpcAbort, GrpcCode, end_block, failure_block
from mqspark_server.net.grpc.messagereader import MessageReader, message_bytes, only_message
from mqspark_server.net.http2.http2streams import Http2Stream

log = sparing("mqspark.grpc")

MESSAGE_COST_BYTES = 64
"""What a message that waits counts besides its bytes: many may be empty."""
CHECKED_BYTES = 8 * 1024
"""What the parser makes of a message up to this size costs little, whatever is in it."""
TAKEN_AT_ONCE = 32
"""After so many messages of a stream its method lets others go first."""


class GrpcMethod(NamedTuple):
    """``serve(request, call)``; with ``takes_stream`` the first is an iterator. What it returns, if anything, is the
    answer of a unary call.

    ``at_once(request, call)``, if there is one, comes first, and does without a task: it answers with ``call.answer``,
    or sees to it that somebody does. It returns False for what ``serve`` has to do."""

    name: str
    parse: Callable[[bytes], Any]
    serve: Callable[[Any, ServedCall], Awaitable[Any]]
    takes_stream: bool = False
    at_once: Callable[[Any, ServedCall], bool] | None = None
    check: Callable[[bytes], None] | None = None
    """Looks at a message of more than CHECKED_BYTES before it is parsed. Raises GrpcAbort."""


class CallHost(Protocol):
    """What a call asks of its connection."""

    address: tuple[str, int]

    @property
    def max_message_bytes(self) -> int: ...
    def begin_answer(self, stream: Http2Stream, block: bytes) -> None: ...
    def answer(self, stream: Http2Stream, block: bytes, data: bytes, last_block: bytes) -> None: ...
    def send(self, stream: Http2Stream, data: bytes, last_block: bytes | None = None) -> None: ...
    def end_answer(self, stream: Http2Stream, block: bytes) -> None: ...
    def used(self, stream: Http2Stream, count: int) -> None: ...
    def holds(self, more_bytes: int, more_messages: int) -> None:
        """It keeps so much more of requests, and so many more of them that are complete."""
        ...

    def has_room(self, stream: Http2Stream) -> bool: ...
    def ready(self, call: ServedCall) -> None: ...
    def ended(self, call: ServedCall) -> None: ...


class ServedCall(Struct, eq=False):
    _connection: CallHost
    _stream: Http2Stream
    _method: GrpcMethod
    metadata: Mapping[str, str]
    deadline: float | None
    """In the loop's time."""
    slot: int = NO_SLOT
    """That of its deadline (``deadlines``)."""
    _reader: MessageReader | None = None
    """None: no message has begun."""
    _requests: deque[bytes] = field(default_factory=deque)
    """Messages that the method has not taken."""
    _waiting_bytes: int = 0
    """The bytes of these."""
    _taken: int = 0
    """Messages of a stream that its method has taken without a pause."""
    _closed_bytes: int = 0
    """By which the window of a stream of messages is closed: what has come, but for what was given back."""
    _arrived_bytes: int = 0
    """Bytes of a request that is not complete, at the last look."""
    _held: int = 0
    """Bytes of its messages, complete or not, as reported."""
    _kept: int = 0
    """The number of complete ones among them."""
    _said_all: bool = False
    """Whether the caller has sent all."""
    _task: asyncio.Task[None] | None = None
    _reading: asyncio.Future[None] | None = None
    """Waits for a request."""
    _writing: asyncio.Future[None] | None = None
    """Waits for room for an answer."""
    _head_is_sent: bool = False
    is_ready: bool = False
    """Whether all is there that it needs to begin."""
    is_over: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """The peer's."""
        return self._connection.address

    def time_remaining(self) -> float | None:
        """In seconds; None: the caller waits for ever."""
        if self.deadline is None:
            return None
        return self.deadline - asyncio.get_running_loop().time()

    # --- requests -------------------------------------------------------------------------------------------------

    def received(self, data: bytes, ended: bool) -> None:
        """The caller sends this."""
        if self.is_over:
            return
        self._said_all = ended
        if ended and self._reader is None and not self._method.takes_stream:
            message = only_message(data, self._connection.max_message_bytes)
            if message is not None:  # as nearly all requests come
                self._requests.append(message)
                self._waiting_bytes = len(message)
                self._connection.ready(self)
                return
        try:
            self._read(data)
            if ended and self._reader is not None and self._reader.held_bytes:
                raise GrpcAbort(GrpcCode.INTERNAL, "a request that is cut")
            if not self._method.takes_stream:
                self._check_single(ended)
        except GrpcAbort as abort:
            self.fail(abort)
            return
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def _read(self, data: bytes) -> None:
        """Raises GrpcAbort."""
        if self._reader is None:
            self._reader = MessageReader(self._connection.max_message_bytes)
        messages = self._reader.read(data)
        self._requests.extend(messages)
        self._waiting_bytes += sum(map(len, messages))
        if self._method.takes_stream:
            self.keep()
            self._closed_bytes += len(data)
            self._open_window()
        elif not self._said_all:
            self.keep()
            self._connection.used(self._stream, len(data))

    def _open_window(self) -> None:
        """By all but the messages that wait."""
        more = self._closed_bytes - self._waiting_bytes
        if more > 0:
            self._closed_bytes -= more
            self._connection.used(self._stream, more)

    def keep(self) -> None:
        """Report what it keeps of requests that no method has taken."""
        reader, requests = self._reader, self._requests
        held = self._waiting_bytes + MESSAGE_COST_BYTES * len(requests)
        if reader is not None:
            held += reader.held_bytes
        if held != self._held or len(requests) != self._kept:
            self._connection.holds(held - self._held, len(requests) - self._kept)
            self._held, self._kept = held, len(requests)

    def _check_single(self, ended: bool) -> None:
        """Raises GrpcAbort."""
        if len(self._requests) > 1:
            raise GrpcAbort(GrpcCode.UNIMPLEMENTED, "more than one request")
        if ended:
            if not self._requests:
                raise GrpcAbort(GrpcCode.INTERNAL, "no request")
            self._connection.ready(self)

    def is_arriving(self, least_bytes: int) -> bool:
        """Whether so many more bytes of the request have come since the last look, and some are still missing."""
        if self._said_all or self._method.takes_stream:
            return False
        seen, self._arrived_bytes = self._arrived_bytes, self._held
        return self._held - seen >= least_bytes

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        """The next request, to the end of the caller's side. Raises GrpcAbort."""
        self._taken += 1
        if self._taken > TAKEN_AT_ONCE:
            self._taken = 0
            await asyncio.sleep(0)
        while not self._requests:
            if self._said_all:
                raise StopAsyncIteration
            self._taken = 0
            self._reading = asyncio.get_running_loop().create_future()
            try:
                await self._reading
            finally:
                self._reading = None
        message = self._requests.popleft()
        self._waiting_bytes -= len(message)
        self.keep()
        self._open_window()
        return self._parsed(message)

    def _parsed(self, message: bytes) -> Any:
        """Raises GrpcAbort."""
        method = self._method
        if len(message) > CHECKED_BYTES and method.check is not None:
            method.check(message)
        try:
            return method.parse(message)
        except Exception as error:
            raise GrpcAbort(GrpcCode.INTERNAL, f"a request that cannot be read: {error}") from None

    # --- the method -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_over:
            return
        method = self._method
        if method.takes_stream:
            self.serve(self)
            return
        if self._held:
            self._connection.holds(-self._held, -self._kept)
            self._held = self._kept = 0
        self._waiting_bytes = 0
        try:
            request = self._parsed(self._requests.popleft())
            if method.at_once is not None and method.at_once(request, self):
                return
        except Exception as error:
            self._failed(error)
            return
        self.serve(request)

    def serve(self, request: Any) -> None:
        """Let the method do it in a task."""
        if not self.is_over:
            self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: Any) -> None:
        try:
            answer = await self._method.serve(request, self)
        except asyncio.CancelledError:
            self.fail(GrpcAbort(GrpcCode.UNAVAILABLE, "the server has cancelled the call"))
        except Exception as error:
            self._failed(error)
        else:
            self._finish(answer)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, GrpcAbort):
            self.fail(error)
        elif not self.is_over:
            log.error("%s failed", self._method.name, exc_info=error)
            self.fail(GrpcAbort(GrpcCode.UNKNOWN, f"{type(error).__name__} in the server"))

    def answer(self, data: bytes) -> None:
        """End a call that has written nothing with this message, if it has not ended before."""
        if not self.is_over:
            self._connection.answer(self._stream, HEAD, message_bytes(data), GOOD_END)
            self._over()

    def _finish(self, answer: Any) -> None:
        if self.is_over:
            return
        if answer is not None and not self._head_is_sent:
            self.answer(answer.SerializeToString())
            return
        if answer is not None:
            self._connection.send(self._stream, message_bytes(answer.SerializeToString()), GOOD_END)
        else:
            self._begin_answer()
            self._connection.end_answer(self._stream, GOOD_END)
        self._over()

    async def write(self, *answers: Any) -> None:
        """``answers``: messages, encoded or not. Raises ConnectionError when the caller is gone."""
        if self.is_over:
            raise ConnectionResetError("the call is over")
        self._begin_answer()
        data = b"".join(
            [
                message_bytes(answer if isinstance(answer, bytes) else answer.SerializeToString())
                for answer in answers
            ]
        )
        self._connection.send(self._stream, data)
        while not self._connection.has_room(self._stream):
            self._writing = asyncio.get_running_loop().create_future()
            try:
                await self._writing
            finally:
                self._writing = None
            if self.is_over:
                raise ConnectionResetError("the call is over")

    def _begin_answer(self) -> None:
        if not self._head_is_sent:
            self._head_is_sent = True
            self._connection.begin_answer(self._stream, HEAD)

    def may_write(self) -> None:
        """There may be room again."""
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    # --- the end --------------------------------------------------------------------------------------------------

    def fail(self, abort: GrpcAbort) -> None:
        """Tell the caller, and end."""
        if self.is_over:
            return
        block = (end_block if self._head_is_sent else failure_block)(abort.code, abort.text)
        self._connection.end_answer(self._stream, block)
        self._over()
        self._cancel()

    def gone(self) -> None:
        """The caller is gone."""
        if not self.is_over:
            self._over()
            self._cancel()

    def _cancel(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _over(self) -> None:
        self.is_over = True
        self._stream.call = None
        if self._writing is not None:
            self.may_write()
        self._reader = None
        if self._requests:
            self._requests.clear()
        self._waiting_bytes = 0
        if self._held:
            self.keep()
        self._connection.ended(self)
