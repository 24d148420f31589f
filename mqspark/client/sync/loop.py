"""The background thread of blocking clients."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.util
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from mqspark.base.logs import escaping
from mqspark.errors import ClientError

log = escaping(__name__)

T = TypeVar("T")

LOOP_LOOK_S = 1.0
END_S = 2.0
"""For the tasks that are left when the loop ends."""


def _orphan() -> ClientError:
    return ClientError(
        "this client was started before the process was forked, and works in the parent only: create one here"
    )


def _ended() -> ClientError:
    return ClientError("the client was stopped meanwhile: start it again first")


class _NoMorePosts(deque[tuple[Callable[..., None], tuple[Any, ...]]]):
    """Replaces the list of posts in a forked child, where no thread would read it."""

    def append(self, _: object) -> None:
        raise _orphan()


class LoopCall(Generic[T]):
    """A coroutine that a thread has run on the loop, with the thread's context. It ends there, whatever happens to the
    thread that waits."""

    _outcome: T

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        *,
        at_once: Callable[[], T | None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """What ``at_once`` returns on the loop is the result, unless it is None: then the coroutine runs. ``after`` is
        called on the loop at the end."""
        self._work = work
        self._context = contextvars.copy_context()
        self._at_once = at_once
        self._after = after
        self._task: asyncio.Task[T] | None = None
        self._is_given_up = False
        self._error: BaseException | None = None
        self.is_over = False
        # A bare lock: threads that wait for a future of concurrent.futures cost several times as much.
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def begin(self) -> None:
        """On the loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._work.close()
            self._end(error=_ended())
            return
        if self._is_given_up:
            self._work.close()
            self._end(error=asyncio.CancelledError())
            return
        if self._at_once is not None:
            try:
                outcome = self._context.run(self._at_once)
            except Exception as error:
                self._work.close()
                self._end(error=error)
                return
            if outcome is not None:
                self._work.close()
                self._outcome = outcome
                self._end()
                return
        self._task = loop.create_task(self._work, context=self._context)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._end(error=asyncio.CancelledError() if self._is_given_up else _ended())
        elif (error := task.exception()) is not None:
            self._end(error=error)
        else:
            self._outcome = task.result()
            self._end()

    def _end(self, *, error: BaseException | None = None) -> None:
        self._error = error
        if self._after is not None:
            self._after()
        self.is_over = True
        self._waiting.release()

    def give_up(self) -> None:
        """On the loop: nobody waits any more."""
        self._is_given_up = True
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """It never begins."""
        self._work.close()

    def wait(self, timeout_s: float | None = None) -> T:
        """In any other thread. Raises what the coroutine raises, and TimeoutError."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.is_over:
            # One who is interrupted here does not pass the lock on to others who wait: they look again.
            left_s = LOOP_LOOK_S if until_s is None else min(LOOP_LOOK_S, until_s - time.monotonic())
            if left_s < 0:
                raise TimeoutError
            if self._waiting.acquire(timeout=left_s):
                self._waiting.release()
        if self._error is not None:
            raise self._error
        return self._outcome

    async def over(self) -> None:
        """On the loop: wait until it is over. Never raises."""
        if self._task is not None:
            await asyncio.wait([self._task])


class LoopThread:
    """A thread with an event loop and its users: ``acquire`` starts it, the last ``release`` ends it."""

    _lock = threading.RLock()
    """Reentrant: whoever interrupts a thread may start or stop clients as well."""
    _current: LoopThread | None = None

    def __init__(self) -> None:
        self._users: set[object] = set()
        self._orphaned = False
        self._ending = False
        self._loop = _new_loop()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake_scheduled = False
        self._thread = threading.Thread(target=self._run, name="mqspark-client", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # interrupted: nobody would end it
            self._ending = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    @classmethod
    def acquire(cls, user: object) -> LoopThread:
        """A repetition does nothing. Raises ClientError in a program whose threads are not threads."""
        _check_threads()
        with cls._lock:
            thread = cls._current
            if thread is None:
                thread = cls._current = cls()
            thread._users.add(user)
            return thread

    @classmethod
    def acquired(cls, user: object) -> LoopThread | None:
        """What an interrupted ``acquire`` would have returned."""
        thread = cls._current
        return thread if thread is not None and user in thread._users else None

    def release(self, user: object) -> None:
        """On the loop. ``join`` waits for the end, if this was the last one."""
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            if LoopThread._current is self:
                LoopThread._current = None
        self._ending = True
        self._loop.stop()

    def join(self) -> None:
        """Wait for the end of the thread, if it ends."""
        if self._ending and not self._orphaned and not self.is_here:
            self._thread.join()

    def call(self, work: Coroutine[Any, Any, T], at_once: Callable[[], T | None] | None = None) -> T:
        """Run a coroutine on the loop, unless ``at_once`` has a result, and wait for it. An interrupt cancels it."""
        try:
            self.check_caller()
        except ClientError:
            work.close()
            raise
        call = LoopCall(work, at_once=at_once)
        try:
            self.post(call.begin)
            return call.wait()
        except BaseException:
            if not call.is_over:
                self.post(call.give_up)
            raise

    @property
    def is_here(self) -> bool:
        """Whether the caller is in this thread, where waiting for the loop would be a deadlock."""
        return threading.get_ident() == self._thread.ident

    def check_process(self) -> None:
        """Raises ClientError in a process that has no such thread."""
        if self._orphaned:
            raise _orphan()

    def check_caller(self) -> None:
        """Raises ClientError for a call from the loop's own thread, which would deadlock, or in a process that has no
        such thread."""
        self.check_process()
        if self.is_here:
            raise ClientError("a coroutine cannot call the blocking client; use mqspark.aio there")

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run a function on the loop soon, in the order of the posts; many share one wake-up. It must not raise. When
        the loop has ended, the function finds none, and this raises ClientError."""
        self._posted.append((function, arguments))
        # The order of these lines and of the first two in _run_posted ensures that one wake-up is enough.
        if not self._wake_scheduled:
            self._wake_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run_posted)
            except BaseException as error:
                self._wake_scheduled = False  # interrupted: the next post wakes the loop
                if isinstance(error, RuntimeError) and self._loop.is_closed():
                    self._run_rest()
                    raise _ended() from None
                raise

    def take_back(self, function: Callable[[], None]) -> None:
        """Run a function on the loop soon, or without one if it has ended."""
        try:
            self.post(function)
        except ClientError:
            if self._orphaned:
                function()

    def _run_posted(self) -> None:
        self._wake_scheduled = False
        if self._ending and not self._loop.is_closed():
            return  # what comes while the loop ends finds none
        posted = self._posted
        while posted:
            try:
                function, arguments = posted.popleft()
            except IndexError:  # another thread has found that the loop has ended, too
                return
            function(*arguments)

    def _run_rest(self) -> None:
        """The loop has ended: run what was posted since, also by others, who saw that a wake-up was scheduled."""
        if self.is_here:
            return  # the end of this thread is running them
        self._thread.join()
        # In a thread of its own: the loop of the caller would be taken for this one.
        rest = threading.Thread(target=self._run_posted, name="mqspark-client-rest", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread begins at the end of a program
            rest.start()
            rest.join()

    @classmethod
    def forget(cls) -> None:
        """In a forked child, which has the object and the state of the lock, but not the thread."""
        cls._lock = threading.RLock()
        thread, cls._current = cls._current, None
        if thread is not None:
            thread._orphaned = True
            thread._posted = _NoMorePosts()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._ending:
                try:
                    self._loop.run_forever()
                except SystemExit:
                    log.exception("sys.exit() in a callback ends no program from this thread")
        finally:
            self._end_tasks()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._end_tasks()
            self._loop.close()
            # What was posted meanwhile says so to who waits for it.
            self._run_posted()

    def _end_tasks(self) -> None:
        """Threads may wait for them. A task that does not end is left."""
        until_s = time.monotonic() + END_S
        while (tasks := asyncio.all_tasks(self._loop)) and time.monotonic() < until_s:
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=END_S))
        self._loop.run_until_complete(asyncio.sleep(0))  # those that have just ended say so


def _check_threads() -> None:
    """Raises ClientError if a library has replaced threads by its own tasks, which would wait for the loop for ever."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        what = "gevent.monkey.patch_all() has"
    elif (eventlet := sys.modules.get("eventlet.patcher")) is not None and eventlet.is_monkey_patched(
        "thread"
    ):
        what = "eventlet.monkey_patch() has"
    else:
        return
    raise ClientError(
        f"{what} replaced this process's threads by tasks that share one; mqspark needs a real one: use it in a process"
        " that is not patched"
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop if it is installed: a fifth less CPU per message."""
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LoopThread.forget)
