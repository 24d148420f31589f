"""The end of a program, or of its event loop, before its clients were stopped. What waits is sent, for a bounded time,
and the log says what is lost.

Python calls ``stop_all`` when the main thread and all threads that are no daemons have ended: after the last line, an
exception or ``sys.exit``. ``asyncio.run`` ends its loop before. A process that a signal kills runs nothing more.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol

from mqspark.base.logs import escaping

log = escaping(__name__)

EXIT_TIMEOUT_MS = 10_000
"""How long the end of a program waits for a client that has no setting for it."""


class Pending(Protocol):
    """An end that has begun."""

    def wait(self, timeout_s: float, /) -> object:
        """Raises TimeoutError."""


class Ending(Protocol):
    """A client, as the end of the program sees it."""

    @property
    def exit_timeout_ms(self) -> int:
        """How long the end of the program waits for it."""

    def end_with_program(self) -> Pending | None:
        """Begin the end; None if there is nothing to wait for."""

    def left_behind(self) -> str | None:
        """What is lost if the program ends now; None: nothing."""


_open: dict[int, Ending] = {}
"""The clients that are started, and those whose end is not over, by ``id``."""


def begun(client: Ending) -> None:
    """It is started."""
    if not _open:
        _register()
    _open[id(client)] = client


def over(client: Ending) -> None:
    """Its end is over."""
    _open.pop(id(client), None)


def stop_all() -> None:
    """Stop all clients that are open, each for at most about its time."""
    clients = list(_open.values())
    _open.clear()
    began_s = time.monotonic()
    ends = [(client, client.end_with_program()) for client in clients]
    for client, end in ends:
        try:
            if end is not None:
                end.wait(max(0.0, began_s + client.exit_timeout_ms / 1000 - time.monotonic()))
        except TimeoutError:
            log.debug("the time of %s is over", client)
        except Exception:
            log.exception("a client could not be stopped at the end of the program")
        if (lost := client.left_behind()) is not None:
            waited_ms = (time.monotonic() - began_s) * 1000
            log.error("the program ends, and %s after %.0f ms", lost, waited_ms)


def begin_on(loop: asyncio.AbstractEventLoop, end: Callable[[], Coroutine[Any, Any, None]]) -> Pending | None:
    """Begin an end on the loop of its client; None if that is closed."""
    if loop.is_closed():
        return None
    if loop.is_running():
        return _Elsewhere(asyncio.run_coroutine_threadsafe(end(), loop))
    return _Here(loop, loop.create_task(end()))


class _Elsewhere:
    """An end on a loop that runs in a thread that is a daemon."""

    def __init__(self, future: concurrent.futures.Future[None]) -> None:
        self._future = future

    def wait(self, timeout_s: float, /) -> None:
        self._future.result(timeout_s)


class _Here:
    """An end on a loop that stands still: it goes on for that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        self._loop = loop
        self._task = task

    def wait(self, timeout_s: float, /) -> None:
        self._loop.run_until_complete(asyncio.wait([self._task], timeout=timeout_s))
        if not self._task.done():
            raise TimeoutError
        self._task.result()


class LoopEnd:
    """Calls a coroutine function when the running loop ends, as ``asyncio.run`` ends it. Tasks are cancelled by then,
    but the loop still runs: it closes its asynchronous generators, of which this is one."""

    def __init__(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._end: Callable[[], Coroutine[Any, Any, None]] | None = end
        self._generator = self._waiting()

    async def watch(self) -> None:
        """From now on."""
        await anext(self._generator)

    async def _waiting(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            end, self._end = self._end, None
            if end is not None:
                await end()

    async def forget(self) -> None:
        """Watch no longer. Does nothing once it is called."""
        if self._end is not None:
            self._end = None
            await self._generator.aclose()


_registered_in = 0
"""The process whose end is waited for."""


def _register() -> None:
    global _registered_in
    if _registered_in == os.getpid():
        return
    _registered_in = os.getpid()
    atexit.register(stop_all)
    children = sys.modules.get("multiprocessing.util")
    if children is not None:
        # A child of multiprocessing ends without atexit.
        children.Finalize(None, stop_all, exitpriority=100)


def _forget_parent() -> None:
    _open.clear()


os.register_at_fork(after_in_child=_forget_parent)
