"""Start and stop: ``async with``, background tasks that end with their owner, and callbacks that stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from mqspark.base.logs import escaping
from mqspark.client.life.ending import EXIT_TIMEOUT_MS

log = escaping(__name__)

RESTART_PAUSE_S = 1.0


_callers: ContextVar[tuple[object, ...]] = ContextVar("mqspark.callers", default=())
"""The clients one of whose callbacks runs now. Tasks and threads that a callback waits for have it, too."""


class Within:
    """Says while a callback of ``client`` runs that it does: the end of the client waits for it, so that it cannot wait
    for the end. Goes around a listener (``delivery.Around``)."""

    def __init__(self, client: Lifecycle) -> None:
        self._client = client

    def begin(self, argument: object = None) -> Token[tuple[object, ...]]:
        """The callback is about to be called."""
        return _callers.set((*_callers.get(), self._client))

    def end(self, note: Token[tuple[object, ...]], outcome: object = None) -> None:
        """The callback has ended."""
        _callers.reset(note)


class Lifecycle:
    """Started by ``start`` or ``async with``, stopped by ``stop`` or its end. Both may be called again without harm.

    The end runs in a task of its own, which no interruption of who waits for it stops halfway. ``stop`` returns at once
    when a callback calls it for which the end waits, such as a listener."""

    _end: asyncio.Task[None] | None = None
    exit_timeout_ms = EXIT_TIMEOUT_MS
    """How long the end of a program waits for it."""
    is_kept = False
    """Whether another client has it, and sees to its end."""

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        await self._ended_by(self._stop)

    async def _stop(self) -> None:
        """The end itself."""
        raise NotImplementedError

    def _begin_end(self) -> None:
        """What the end does at once, before anything else can happen."""

    async def _ended_by(self, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin the end, unless it has begun, and wait for it."""
        if self._end is None or self._end.done():
            self._begin_end()
            self._end = asyncio.get_running_loop().create_task(stop())
        if not self.is_called_back:
            await asyncio.shield(self._end)

    @property
    def is_called_back(self) -> bool:
        """Whether the caller is a callback for which the end waits, or runs for one."""
        return self in _callers.get()

    @property
    def is_stopping(self) -> bool:
        """Whether the end has begun and is not over."""
        return self._end is not None and not self._end.done()

    async def stopped(self) -> None:
        """Wait for the end that has begun. Never raises."""
        if self._end is not None:
            await asyncio.wait([self._end])

    async def stop_at_exit(self, timeout_ms: int) -> None:
        """The program or its loop ends without a ``stop``: the same, within about this time."""
        await self.stop()

    def left_behind(self) -> str | None:
        """What is lost if the program ends now; None: nothing."""
        return None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        """The end of ``async with``, by ``error`` if not None."""
        await self.stop()


class Tasks:
    """Tasks of one owner. They are cancelled together, and their exceptions are logged."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[Any]:
        """A task that survives unexpected exceptions: each is logged, and the task restarts after a pause."""
        return self.spawn(self._kept(work))

    async def _kept(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                return await work()
            except Exception:
                log.exception("a background task of %s failed and is restarted", self._owner)
            await asyncio.sleep(RESTART_PAUSE_S)

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended. Never raises."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of %s failed", self._owner, exc_info=error)
