"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

from mqspark.base.clock import ClockDriver, SystemClock

MAX_STEPS = 1_000
"""The most steps of one ``advance``, unless these would be longer than LONGEST_STEP_MS."""
LONGEST_STEP_MS = 30_000
"""Shorter than any period after which a broker drops a silent peer: clients after 120 s, queue locks after 60 s."""


class FakeClock:
    """A ``mqspark.base.clock.Clock``. May be read from any thread; move it from one.

    A ``Broker`` or ``Cluster`` that was given the clock follows ``advance``: when it returns, delayed messages, timers,
    retries, transaction checks and invisible messages that became due meanwhile are where they belong, each at its
    time and in order. (Timer messages become due with the whole second after their time.) Connected clients count as
    alive throughout. Clients work on real connections, so their clock is ``running``, the real time plus all that this
    clock is moved by: pauses, listeners' time limits and invisible times that pass by ``advance`` end at once, network
    time-outs are not affected. ``advance`` returns when clients have begun what became due.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self.moved_ms = 0
        """By how much the wall clock was moved in all."""
        self.running = RunningClock(self)
        """For clients: ``Producer(..., clock=fake.running)``; ``Clients`` and ``mq_client`` see to it."""
        self._began_ms = monotonic_ms
        self._drivers: list[ClockDriver] = []
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """The wall clock, ms since the epoch."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """The time that never goes back, ms."""
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Advance the wall clock and the monotonic time. Raises ValueError for a negative step, RuntimeError when a
        broker's own thread would wait for itself.
        """
        if milliseconds < 0:
            raise ValueError("time does not go back; step_wall_clock() moves only the wall clock")
        least_ms = min(-(-milliseconds // MAX_STEPS), LONGEST_STEP_MS)
        left_ms = milliseconds
        while True:
            wait_ms = self._follow()
            if not left_ms:
                return
            step_ms = min(max(wait_ms, least_ms), LONGEST_STEP_MS, left_ms)
            left_ms -= step_ms
            self._monotonic_ms += step_ms
            self._now_ms += step_ms
            self.moved_ms += step_ms

    def step_wall_clock(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as an administrator or NTP would; monotonic time is not affected. Brokers
        do what became due by it, as after ``advance``.
        """
        self._now_ms += milliseconds
        self.moved_ms += milliseconds
        self._follow()

    @property
    def advanced_ms(self) -> int:
        """By how much the monotonic time was moved in all."""
        return self._monotonic_ms - self._began_ms

    def attach(self, driver: ClockDriver) -> None:
        """Let ``driver`` follow this clock from now on."""
        with self._lock:
            self._drivers.append(driver)

    def detach(self, driver: ClockDriver) -> None:
        """Stop ``driver`` from following."""
        with self._lock:
            self._drivers.remove(driver)

    def _follow(self) -> int:
        with self._lock:
            drivers = list(self._drivers)
        return min((driver.follow() for driver in drivers), default=LONGEST_STEP_MS)


class RunningClock:
    """The real time, ahead by all that a ``FakeClock`` was moved: a ``mqspark.base.clock.MovableClock`` for clients."""

    def __init__(self, moved: FakeClock) -> None:
        self._moved = moved
        self._real = SystemClock()

    def now_ms(self) -> int:
        """The wall clock, ms since the epoch."""
        return self._real.now_ms() + self._moved.moved_ms

    def monotonic_ms(self) -> int:
        """The time that never goes back, ms."""
        return self._real.monotonic_ms() + self._moved.advanced_ms

    def attach(self, driver: ClockDriver) -> None:
        """Let ``driver`` follow the ``FakeClock`` from now on."""
        self._moved.attach(driver)

    def detach(self, driver: ClockDriver) -> None:
        """Stop ``driver`` from following."""
        self._moved.detach(driver)
