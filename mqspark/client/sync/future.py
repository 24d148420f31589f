"""The future of a send, for programs without an event loop."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures._base import FINISHED, PENDING

from mqspark.client.delivery.results import SendResult
from mqspark.client.producer.send_window import ThreadWindow

_making = threading.Lock()


class SendFuture(concurrent.futures.Future[SendResult]):
    """A future of concurrent.futures at a fraction of the cost. ``wait``, ``as_completed`` and ``asyncio.wrap_future``
    accept it. The condition that threads wait on is created by the first waiter; in a stream of sends there is rarely
    one.

    Settled once, by one thread. The settling thread writes the state and then looks for a condition; a waiter creates
    the condition and then looks at the state, so one of them sees the other. A message on its way cannot be taken back,
    so ``cancel`` does nothing.
    """

    _state = PENDING
    _result: SendResult | None = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None
    has_room = False
    has_begun = False

    def __init__(self, window: ThreadWindow, size_bytes: int) -> None:
        """``size_bytes`` are returned to ``window`` when the future is settled."""
        self._window = window
        self._size_bytes = size_bytes

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override] # where the base keeps one
        made = self._made
        if made is None:
            with _making:
                made = self._made
                if made is None:
                    self._waiters = []
                    self._done_callbacks: list[Callable[[SendFuture], object]] = []
                    made = self._made = threading.Condition()
        return made

    def leave(self) -> None:
        """Its thread was interrupted: give the room back if the send never begins. On the loop."""
        if self.has_room and not self.has_begun:
            self.has_room = False
            self._window.give(self._size_bytes)

    def done(self) -> bool:
        return self._state == FINISHED

    def cancel(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> SendResult:
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value] # the state says that there is one
        return super().result(timeout)

    def set_result(self, result: SendResult) -> None:
        if self._state == FINISHED:
            raise _settled()
        self._result = result
        self._state = FINISHED
        self._window.give(self._size_bytes)
        if self._made is not None:
            self._tell(self._made)

    def set_exception(self, exception: BaseException | None) -> None:
        if self._state == FINISHED:
            raise _settled()
        self._exception = exception
        self._state = FINISHED
        self._window.give(self._size_bytes)
        if self._made is not None:
            self._tell(self._made)

    def _tell(self, made: threading.Condition) -> None:
        with made:
            for waiter in self._waiters:
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
            made.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined] # the base's


def _settled() -> concurrent.futures.InvalidStateError:
    return concurrent.futures.InvalidStateError("the send is settled already")
