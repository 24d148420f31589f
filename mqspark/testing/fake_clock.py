"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from typing import Protocol

__all__ = ["Driver", "FakeClock"]

MAX_STEPS = 1_000
"""Of one ``advance``, unless these would be longer than LONGEST_STEP_MS."""
LONGEST_STEP_MS = 30_000
"""Shorter than anything a broker forgets for want of a word: clients after 120 s, queue locks after 60 s."""


class Driver(Protocol):
    """Something that works by the clock in a thread of its own, and has to follow when it is moved."""

    def follow(self) -> int:
        """Do all that is due, and wait for it; milliseconds until more may be due."""


class FakeClock:
    """A ``mqspark.clock.Clock``. May be read from any thread; move it from one.

    A ``Broker`` or ``Cluster`` that was given the clock follows ``advance``: when it returns, delayed messages, timers,
    retries, transaction checks and invisible messages that became due meanwhile are where they belong, each at its
    time and in order. (Timer messages become due with the whole second after their time.) Connected clients count as
    alive all the while. Only the brokers' time moves: what a client does by itself, a push consumer's
    ``suspend_queue_ms`` say, goes by the real time.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self.moved_ms = 0
        """By how much the wall clock was moved in all."""
        self._drivers: list[Driver] = []
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """The wall clock, ms since the epoch."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """The time that never goes back, ms."""
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Let time pass, on both faces. Raises ValueError for a negative step, RuntimeError when a broker's own
        thread would wait for itself.
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
        """Set the wall clock forward or back, as an administrator or NTP would; monotonic time does not
        notice. Brokers do what became due by it, as after ``advance``.
        """
        self._now_ms += milliseconds
        self.moved_ms += milliseconds
        self._follow()

    def attach(self, driver: Driver) -> None:
        """From now on ``driver`` follows."""
        with self._lock:
            self._drivers.append(driver)

    def detach(self, driver: Driver) -> None:
        """``driver`` follows no longer."""
        with self._lock:
            self._drivers.remove(driver)

    def _follow(self) -> int:
        with self._lock:
            drivers = list(self._drivers)
        return min((driver.follow() for driver in drivers), default=LONGEST_STEP_MS)
