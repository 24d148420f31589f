"""The background thread of blocking clients."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mqspark.errors import ClientError

__all__ = ["LoopThread"]

T = TypeVar("T")


def _orphan() -> ClientError:
    return ClientError(
        "this client was started before the process was forked, and works in the parent only: create one here"
    )


class _NoMorePosts(deque[tuple[Callable[..., None], tuple[Any, ...]]]):
    """Replaces the list of posts in a forked child, where no thread would read it."""

    def append(self, _: object) -> None:
        raise _orphan()


class LoopThread:
    """A thread with an event loop and a reference count: ``acquire`` starts it, the last ``release`` ends it."""

    _lock = threading.Lock()
    _current: LoopThread | None = None

    def __init__(self) -> None:
        self._users = 0
        self._orphaned = False
        self._loop = _new_loop()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake_scheduled = False
        self._thread = threading.Thread(target=self._run, name="mqspark-client", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        with cls._lock:
            thread = cls._current
            if thread is None:
                thread = cls._current = cls()
            thread._users += 1
            return thread

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if LoopThread._current is self:
                LoopThread._current = None
        if self._orphaned:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. An interrupt cancels it."""
        try:
            self.check_caller()
        except ClientError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_caller(self) -> None:
        """Raises ClientError for a call from the loop's own thread, which would deadlock, or in a process that has no
        such thread."""
        if self._orphaned:
            raise _orphan()
        if threading.get_ident() == self._thread.ident:
            raise ClientError("a coroutine cannot call the blocking client; use mqspark.aio there")

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run a function on the loop soon; many posts share one wake-up. It must not raise."""
        self._posted.append((function, arguments))
        # The order of these lines and of the first two in _run_posted ensures that one wake-up is enough.
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        self._wake_scheduled = False
        posted = self._posted
        while posted:
            function, arguments = posted.popleft()
            function(*arguments)

    @classmethod
    def forget(cls) -> None:
        """In a forked child, which has the object and the state of the lock, but not the thread."""
        cls._lock = threading.Lock()
        thread, cls._current = cls._current, None
        if thread is not None:
            thread._orphaned = True
            thread._posted = _NoMorePosts()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop if it is installed: a fifth less CPU per message."""
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LoopThread.forget)
