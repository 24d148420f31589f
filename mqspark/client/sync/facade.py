"""The base of all blocking clients: an object of ``mqspark.aio`` and the thread whose loop it runs on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from mqspark.client.remoting.lifecycle import Lifecycle
from mqspark.client.sync.loop import LoopThread
from mqspark.errors import ClientError

__all__ = ["Facade", "documented_by"]

T = TypeVar("T")
K = TypeVar("K", bound=type)


def documented_by(aio: type) -> Callable[[K], K]:
    """Decorate a blocking class: methods without a docstring have that of the method of ``aio`` with their name."""

    def decorate(kind: K) -> K:
        for name, value in vars(kind).items():
            function = value.fget if isinstance(value, property) else value
            described = getattr(aio, name, None)
            if inspect.isfunction(function) and described is not None and not function.__doc__:
                function.__doc__ = inspect.getdoc(described)
                if isinstance(value, property):
                    setattr(kind, name, property(function))
        return kind

    return decorate


class Facade:
    """Start, stop and ``with``."""

    _aio: Lifecycle
    _thread: LoopThread | None = None

    def start(self) -> None:
        """Join the cluster, as ``with`` does; a second call does nothing. Raises ConfigError when something is
        missing (a name server, a consumer's topic), ConnectionLost or RequestTimeout when a consumer finds no name
        server."""
        if self._thread is not None:
            return
        thread = LoopThread.acquire()
        try:
            thread.call(self._aio.start())
        except BaseException:
            thread.release()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Finish pending work, then leave the cluster, as the end of ``with`` does. A second call does nothing."""
        self._end(self._aio.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._aio.__aexit__, kind, error, trace)

    def _end(self, stop: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(stop(*arguments))
            finally:
                thread.release()

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
