"""Pauses and time limits that a program has set, measured by the client's clock.

What keeps connections, memberships and locks alive uses real time instead. When a movable clock
(``mqspark.base.clock.MovableClock``) is moved, everything that became due happens at once. Otherwise, and with any
other clock, the event loop's timers run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mqspark.base.clock import Clock, MovableClock, SystemClock

NOTHING_DUE_MS = 30_000
"""The result of ``follow`` when nothing is due soon."""
_TURNS = 3
"""Turns of the loop in which tasks that became due may set their next timers."""


class Timer:
    """A scheduled call; ``cancel`` revokes it."""

    __slots__ = ("_arguments", "_callback", "_handle", "_pending", "due_ms", "is_exact")

    def __init__(
        self,
        pending: set[Timer],
        due_ms: int,
        callback: Callable[..., object],
        arguments: tuple[object, ...],
        *,
        is_exact: bool,
    ) -> None:
        self._pending = pending
        self._callback = callback
        self._arguments = arguments
        self._handle: asyncio.TimerHandle | None = None
        self.due_ms = due_ms
        self.is_exact = is_exact
        """Whether a clock that is moved stops at ``due_ms``, or may pass it."""
        pending.add(self)

    def arm(self, pause_s: float) -> None:
        """Schedule the call after this time of the loop's clock."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(max(0.0, pause_s), self.fire)

    def fire(self) -> None:
        """Call now, and not again."""
        self.cancel()
        self._callback(*self._arguments)

    def cancel(self) -> None:
        """Never call."""
        self._pending.discard(self)
        if self._handle is not None:
            self._handle.cancel()


class Timers:
    """The pauses of one client on one event loop. ``start`` before the clock is moved, ``stop`` at the end."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._pending: set[Timer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """On the running loop, from now on follow the clock if it is moved."""
        self._loop = asyncio.get_running_loop()
        if isinstance(self.clock, MovableClock):
            self.clock.attach(self)

    def stop(self) -> None:
        """Follow the clock no longer."""
        if self._loop is not None and isinstance(self.clock, MovableClock):
            self.clock.detach(self)
        self._loop = None

    @property
    def now_s(self) -> Callable[[], float]:
        """Reads the monotonic time in seconds; callable from any thread."""
        if isinstance(self.clock, SystemClock):
            return time.monotonic
        clock = self.clock
        return lambda: clock.monotonic_ms() / 1000

    def call_later(self, pause_s: float, callback: Callable[..., object], *arguments: object) -> Timer:
        """Call after ``pause_s``."""
        return self._timer(pause_s, callback, arguments, is_exact=True)

    def _timer(
        self,
        pause_s: float,
        callback: Callable[..., object],
        arguments: tuple[object, ...] = (),
        *,
        is_exact: bool,
    ) -> Timer:
        due_ms = self.clock.monotonic_ms() + round(pause_s * 1000)
        timer = Timer(self._pending, due_ms, callback, arguments, is_exact=is_exact)
        timer.arm(pause_s)
        return timer

    async def sleep(self, pause_s: float) -> None:
        """Return after ``pause_s``. For periodic work: rounds are skipped when the clock is moved far."""
        over = asyncio.Event()
        timer = self._timer(pause_s, over.set, is_exact=False)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def follow(self) -> int:
        """The clock was moved: start everything that is due. Returns the milliseconds until more is due. Called in the
        thread that moved it."""
        loop = self._loop
        if loop is None:
            return NOTHING_DUE_MS
        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = False
        if is_here:
            return self._begin_due()
        return asyncio.run_coroutine_threadsafe(self._followed(), loop).result()

    async def _followed(self) -> int:
        self._begin_due()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return self._begin_due()

    def _begin_due(self) -> int:
        now_ms = self.clock.monotonic_ms()
        for timer in sorted(self._pending, key=lambda timer: timer.due_ms):
            if timer.due_ms <= now_ms:
                timer.fire()
            else:
                timer.arm((timer.due_ms - now_ms) / 1000)
        return min(
            (timer.due_ms - now_ms for timer in self._pending if timer.is_exact), default=NOTHING_DUE_MS
        )
