"""What blocking producers do by themselves: sends that do not wait for the loop, and local transactions."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mqspark.base.logs import escaping
from mqspark.base.valuetypes import NonNegativeInt, checked
from mqspark.client.delivery.awaiting import awaited, is_coroutine_function
from mqspark.client.delivery.results import SendResult, SendStatus, TransactionState
from mqspark.client.life.lifecycle import Lifecycle
from mqspark.client.producer import producer, transaction
from mqspark.client.producer.outgoing import QueueSelector, body_bytes, check_list
from mqspark.client.producer.send_window import ThreadWindow
from mqspark.client.producer.transaction import Execute, TransactionResult, state_of
from mqspark.client.remoting.keywords import NAMES
from mqspark.client.sync.facade import Facade
from mqspark.client.sync.future import SendFuture
from mqspark.message import Message, MessageQueue

log = escaping(__name__)


@checked(but=("send", "send_async", "send_batch", "send_oneway"), own=NAMES)
class SendingFacade(Facade):
    """The sends of a blocking producer."""

    _aio: producer.Producer

    def _adopt(self, aio: Lifecycle) -> None:
        super()._adopt(aio)
        self._typed = self._aio.typed
        self._begin_oneway = functools.partial(self._aio.begin, oneway=True)
        settings = self._aio.settings
        self._window = ThreadWindow(settings.max_in_flight, settings.max_in_flight_bytes)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> SendResult:
        """Send and wait for the broker's answer; see ``mqspark.aio.Producer.send``."""
        message = self._written(message)
        size_bytes = body_bytes(message)
        return self._wait(size_bytes, self._aio.begin, message, queue, hash_key, selector, timeout_ms)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Returns the future of a send. Blocks only while too much is in flight. The future raises the errors."""
        thread = self._running
        window = self._window
        message = self._written(message)
        size_bytes = body_bytes(message)
        future = SendFuture(window, size_bytes)
        try:
            window.take(size_bytes, future)
            thread.post(_begin, self._aio.begin, message, future, queue, hash_key, selector, timeout_ms)
        except BaseException:
            thread.take_back(future.leave)
            raise
        return future

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send without an acknowledgement. Blocks only while the connections are full, and with the first message to
        a topic. Raises errors of the message itself."""
        message = self._written(message)
        if queue is None and hash_key is None and selector is None and self._aio.can_begin(message):
            thread = self._running
            unheard = _Unheard(message, self._window)
            try:
                self._window.take(len(message.body), unheard)
                thread.post(_begin, self._begin_oneway, message, unheard)
            except BaseException:
                thread.take_back(unheard.leave)
                raise
        else:
            self._call(self._aio.send_oneway, message, queue=queue, hash_key=hash_key, selector=selector)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue, stored together under one acknowledgement."""
        if self._typed is not None:
            check_list(messages)
            messages = [self._typed.written_here(message) for message in messages]
        batch = self._aio.packed(messages)
        size_bytes = sum(map(body_bytes, messages))
        return self._wait(size_bytes, self._aio.begin_batch, batch, queue, timeout_ms)

    def _written(self, message: Message) -> Message:
        """With its value as its body. Asks the schema registry in the thread that calls."""
        return message if self._typed is None else self._typed.written_here(message)

    def _wait(self, size_bytes: int, begin: Callable[..., None], what: Any, *arguments: Any) -> SendResult:
        thread = self._running
        thread.check_caller()
        waiter = _Waiter(self._window, size_bytes)
        try:
            self._window.take(size_bytes, waiter)
            thread.post(_begin, begin, what, waiter, *arguments)
            return waiter.wait()
        except BaseException:
            if not waiter.done():  # interrupted: what has begun goes on
                thread.take_back(waiter.leave)
            raise


class _Waiter:
    """A future for one thread that waits for it at once: a fifth of the cost of a concurrent.futures.Future. Its room
    is given back on the loop, where no interruption comes in between."""

    __slots__ = (
        "_done",
        "_error",
        "_lock",
        "_result",
        "_size_bytes",
        "_window",
        "has_begun",
        "has_room",
    )

    _result: SendResult

    def __init__(self, window: ThreadWindow, size_bytes: int) -> None:
        self.has_room = self.has_begun = False
        self._window = window
        self._size_bytes = size_bytes
        self._done = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def done(self) -> bool:
        return self._done

    def set_result(self, result: SendResult, /) -> None:
        self._result = result
        self._settle()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self._settle()

    def _settle(self) -> None:
        self._done = True
        self._window.give(self._size_bytes)
        self._lock.release()

    def leave(self) -> None:
        """Its thread was interrupted: give the room back if the send never begins."""
        if self.has_room and not self.has_begun:
            self._window.give(self._size_bytes)

    def wait(self) -> SendResult:
        self._lock.acquire()
        if self._error is not None:
            raise self._error
        return self._result


class _Unheard:
    """The future of a oneway message: errors are logged, because no caller waits for it."""

    __slots__ = ("_done", "_message", "_window", "has_begun", "has_room")

    def __init__(self, message: Message, window: ThreadWindow) -> None:
        self.has_room = self.has_begun = False
        self._message = message
        self._window = window
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: None, /) -> None:
        self._done = True
        self._window.give(len(self._message.body))

    def set_exception(self, exception: BaseException, /) -> None:
        log.warning("a oneway message to topic %s was not sent: %s", self._message.topic, exception)
        self.set_result(None)

    def leave(self) -> None:
        """Its thread was interrupted: give the room back if the send never begins."""
        if self.has_room and not self.has_begun:
            self.set_result(None)


def _begin(
    begin: Callable[..., None], what: Any, future: SendFuture | _Waiter | _Unheard, *arguments: Any
) -> None:
    future.has_begun = True
    try:
        begin(what, future, *arguments)
    except Exception as error:
        future.set_exception(error)


@checked()
class TransactionFacade(Facade):
    """Runs local transactions in the thread that calls."""

    _aio: transaction.TransactionProducer

    def send_in_transaction(
        self,
        message: Message,
        *,
        execute: Execute | None = None,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> TransactionResult:
        """Prepare the message, run the local transaction, report its outcome to the broker; see
        ``mqspark.aio.TransactionProducer.send_in_transaction``."""
        function = self._aio.local_transaction(execute)
        how: dict[str, Any] = {
            "queue": queue,
            "hash_key": hash_key,
            "selector": selector,
            "timeout_ms": timeout_ms,
        }
        if is_coroutine_function(function):
            return self._call(self._aio.send_in_transaction, message, execute=function, **how)
        prepared = self._call(self._aio.prepare, message, **how)
        if prepared.result.status is not SendStatus.SEND_OK:
            return self._call(self._aio.end, prepared, TransactionState.ROLLBACK)
        try:
            decided = function(prepared.message)
            state = state_of(self._call(awaited, decided) if inspect.isawaitable(decided) else decided)
        except Exception as error:
            self._call(self._aio.end, prepared, TransactionState.UNKNOWN, error)
            raise
        return self._call(self._aio.end, prepared, state)
