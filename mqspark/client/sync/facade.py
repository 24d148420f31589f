"""The base of all blocking clients: an object of ``mqspark.aio`` and the thread whose loop it runs on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from mqspark.client.life import ending
from mqspark.client.life.lifecycle import Lifecycle
from mqspark.client.sync.loop import LoopCall, LoopThread
from mqspark.errors import ClientError

T = TypeVar("T")


class Facade:
    """Start, stop and ``with``."""

    _aio: Lifecycle
    _thread: LoopThread | None = None
    _leaving: tuple[LoopThread, LoopCall[None]] | None = None
    """The last end, with which the thread is released."""

    def _adopt(self, aio: Lifecycle) -> None:
        """The last of a constructor."""
        self._aio = aio

    def start(self) -> None:
        """Join the cluster, as ``with`` does; a second call does nothing. Raises ConfigError when something is
        missing (a name server, a consumer's topic), ConnectionLost or RequestTimeout when a consumer finds no name
        server."""
        if self._thread is not None:
            return
        self._wait_for_end()
        self._aio.is_kept = True
        starting = LoopCall(self._aio.start())
        try:
            thread = LoopThread.acquire(self)
            thread.check_caller()
            thread.post(starting.begin)
            starting.wait()
            ending.begun(self)
            self._thread = thread
        except BaseException:
            acquired = LoopThread.acquired(self)
            if acquired is None:
                starting.close()
            else:
                self._leave(acquired, LoopCall(self._take_back(starting), after=self._released(acquired)))
            raise

    async def _take_back(self, starting: LoopCall[None]) -> None:
        """The start failed, or the program was interrupted while it waited."""
        starting.give_up()
        await starting.over()
        await self._aio.stop()

    def stop(self) -> None:
        """Finish pending work, then leave the cluster, as the end of ``with`` does. A second call does nothing. Returns
        at once when a callback calls it for which the end waits, such as a listener."""
        self._end(self._aio.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._aio.__aexit__, kind, error, trace)

    def _end(self, stop: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        thread = self._thread
        if thread is None:
            self._wait_for_end()
            return
        thread.check_process()
        stopping = self._begin_end(thread, stop, *arguments)
        if not thread.is_here:
            stopping.wait()
            if not self._aio.is_stopping:
                self._wait_for_end()

    def _begin_end(
        self, thread: LoopThread, stop: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> LoopCall[None]:
        """An interruption of the program changes nothing of what has begun."""
        stopping = LoopCall(stop(*arguments))
        leaving = LoopCall(self._aio.stopped(), after=self._released(thread))
        self._thread = None
        thread.post(stopping.begin)
        self._leave(thread, leaving)
        return stopping

    def _leave(self, thread: LoopThread, leaving: LoopCall[None]) -> None:
        self._leaving = (thread, leaving)
        thread.post(leaving.begin)

    def _released(self, thread: LoopThread) -> Callable[[], None]:
        def release() -> None:
            ending.over(self)
            thread.release(self)

        return release

    def _wait_for_end(self) -> None:
        if self._leaving is not None:
            thread, leaving = self._leaving
            if not thread.is_here and not self._aio.is_called_back:
                leaving.wait()
                thread.join()

    @property
    def exit_timeout_ms(self) -> int:
        """How long the end of a program waits for it."""
        return self._aio.exit_timeout_ms

    def end_with_program(self) -> LoopCall[None] | None:
        """For the end of a program that has not stopped it."""
        thread = self._thread
        if thread is not None:
            self._begin_end(thread, self._aio.stop_at_exit, self.exit_timeout_ms)
        return None if self._leaving is None else self._leaving[1]

    def left_behind(self) -> str | None:
        """For the end of a program: what is lost."""
        return self._aio.left_behind()

    @property
    def _running(self) -> LoopThread:
        if self._thread is None:
            raise ClientError(
                f"the {type(self).__name__} is not started, or already stopped: use `with` or start() first"
            )
        return self._thread

    def _call(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any) -> T:
        """Run a coroutine function of the object on its loop."""
        return self._running.call(work(*arguments, **options))

    def _do(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a plain method of the object on its loop, or directly while it has no loop."""
        if self._thread is None:
            return function(*arguments, **options)

        async def work() -> T:
            return function(*arguments, **options)

        return self._thread.call(work())
