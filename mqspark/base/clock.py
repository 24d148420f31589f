"""Time as a dependency, so that a test or a simulator can control it.

``now_ms`` is wall time in milliseconds since the Unix epoch; it goes into messages. ``monotonic_ms`` never
goes back; it is for timeouts, leases and intervals.
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
NEVER_MS = 1 << 62
"""Later than every time, with room for sums."""


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class ClockDriver(Protocol):
    """Something that works by the clock in a thread of its own, and has to follow when it is moved."""

    def follow(self) -> int:
        """Do all that is due, and wait for it; milliseconds until more may be due."""


@runtime_checkable
class MovableClock(Clock, Protocol):
    """A clock that somebody moves, and that tells those who work by it."""

    def attach(self, driver: ClockDriver) -> None: ...

    def detach(self, driver: ClockDriver) -> None: ...


def wall_ms() -> int:
    """``now_ms`` of this host."""
    return time.time_ns() // 1_000_000


class SystemClock:
    now_ms = staticmethod(wall_ms)

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def local_utc_offset_ms(now_ms: int) -> int:
    """How far this host's local time is ahead of UTC at a time."""
    return time.localtime(now_ms / 1000).tm_gmtoff * 1000
