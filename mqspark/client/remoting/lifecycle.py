"""Start and stop: ``async with``, and background tasks that end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from mqspark.logs import escaping

__all__ = ["Lifecycle", "Tasks"]

log = escaping(__name__)

RESTART_PAUSE_S = 1.0


class Lifecycle:
    """Started by ``start`` or ``async with``, stopped by ``stop`` or its end. Both may be called again without harm."""

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

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
