"""One scheduler for many simulated processes: virtual time, one asyncio loop a process, no threads and no sockets.

Everything happens in one order, which depends on nothing but the seed: callbacks that are ready in the order in which
they became ready, timers by their time. Only a frozen world ages: while callbacks run, no time passes.

A paused process keeps what is ready, and runs it when it goes on; its timers are late then. A killed one never runs
again, not even the ``finally`` of its coroutines.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MOST_AT_ONCE = 20_000
"""Callbacks at one moment; more than that is a process that turns in a circle."""


class Stuck(AssertionError):
    """Callbacks call each other for ever, and no time passes."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.chance = random.Random(f"world {seed}")
        self.errors: list[str] = []
        """Exceptions that nobody caught, in any process."""
        self.steps = 0
        self._ready: deque[tuple[Process | None, Any]] = deque()
        self._timers: list[tuple[float, int, Process | None, Any]] = []
        self._sequence = 0
        self._trace = hashlib.blake2b(digest_size=8)
        self._loop: ProcessLoop | None = None

    def note(self, *what: object) -> None:
        """Make this part of what two runs of the same seed have to have in common."""
        self._trace.update(f"{self.now_s:.6f} {what}\n".encode())

    @property
    def digest(self) -> str:
        return self._trace.hexdigest()

    def soon(self, process: Process | None, handle: Any) -> None:
        self._ready.append((process, handle))

    def later(self, at_s: float, process: Process | None, handle: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (at_s, self._sequence, process, handle))

    def at(self, at_s: float, act: Callable[[], None]) -> None:
        """An act of the world itself, which no pause of a process holds up."""
        self.later(at_s, None, act)

    def run_until(self, end_s: float) -> None:
        ready, timers, run = self._ready, self._timers, self.run
        try:
            while True:
                at_once = 0
                while ready:
                    process, handle = ready.popleft()
                    run(process, handle)
                    at_once += 1
                    if at_once > MOST_AT_ONCE:
                        raise Stuck(
                            f"{process and process.name} turns in a circle at {self.now_s:.3f} s: {handle}"
                        )
                if not timers or timers[0][0] > end_s:
                    self.now_s = end_s
                    return
                at_s, _, process, handle = heapq.heappop(timers)
                if at_s > self.now_s:
                    self.now_s = at_s
                run(process, handle)
        finally:
            self._enter(None)

    def run(self, process: Process | None, handle: Any) -> None:
        """One step, now."""
        self.steps += 1
        if process is None:
            self._enter(None)
            handle()
        elif process.alive:
            if process.paused:
                process.held.append(handle)
            elif not handle._cancelled:
                if self._loop is not process.loop:
                    self._enter(process.loop)
                handle._run()

    def _enter(self, loop: ProcessLoop | None) -> None:
        """From now on this loop is the running one. To set it costs more than to see that it is."""
        if self._loop is not loop:
            self._loop = loop
            asyncio._set_running_loop(loop)


class Process:
    """``host`` is its address in the network. Its monotonic clock begins somewhere, its wall clock can be stepped."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.chance = random.Random(f"{name} {world.seed} {world.now_s}")
        self.alive = True
        self.paused = False
        self.held: list[Any] = []
        self.born_s = self.chance.uniform(0, 1e6)
        self.wall_step_ms = 0
        self.clock = ProcessClock(self)
        self.loop = ProcessLoop(self)
        self.files: Any = None

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        held, self.held = self.held, []
        for handle in held:
            self.world.soon(self, handle)

    def die(self) -> None:
        self.alive = False
        self.held.clear()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work)


EPOCH_MS = 1_700_000_000_000


class ProcessClock:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._world, self._born_s = process.world, process.born_s

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._world.now_s * 1000) + self._process.wall_step_ms

    def monotonic_ms(self) -> int:
        return int((self._born_s + self._world.now_s) * 1000)


class _Handle(asyncio.TimerHandle):
    """asyncio's, without what only its debug mode and its own loops need: most of a run is made of them."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: contextvars.Context | None,
        when: float,
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled, self._when = False, when
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def _run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler({"message": f"in {self._callback}", "exception": error})


class ProcessLoop(asyncio.AbstractEventLoop):
    """What servers and clients of this project use of a loop; whatever else they would call is missing."""

    network: Any = None

    def __init__(self, process: Process) -> None:
        self.process = process
        self._world = process.world

    # --- time ---

    def time(self) -> float:
        return self.process.born_s + self._world.now_s

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context, 0.0)
        self._world._ready.append((self.process, handle))
        return handle

    call_soon_threadsafe = call_soon

    def run_now(self, callback: Callable[..., object], *args: Any) -> None:
        """From the world, where nothing else is ready: as ``call_soon``, and less."""
        self._world.run(self.process, _Handle(callback, args, self, None, 0.0))

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.process.born_s + self._world.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Handle(callback, args, self, context, when)
        self._world.later(when - self.process.born_s, self.process, handle)
        return handle

    # --- tasks ---

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.process.alive:
            return  # found by the garbage collector
        error = context.get("exception")
        self._world.errors.append(f"{self.process.name}: {context.get('message')}: {error!r}")

    # --- network ---

    async def create_server(self, factory: Any, *, sock: Any, **_: Any) -> Any:
        return self.network.listen(self.process, factory, sock)

    async def create_connection(self, factory: Any, host: str, port: int, **_: Any) -> Any:
        return await self.network.connect(self.process, factory, host, port)


def here() -> Process:
    """The process whose code is running."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    return loop.process
