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


STOOD_STILL_MS = 1_000
"""If the time between two readings of the clock is longer than expected by this, the process was paused."""


class Standstill:
    """Notices that this process, or its machine, was paused: nobody could be heard meanwhile. ``look_ms``: its owner
    looks at least this often."""

    def __init__(self, clock: Clock, look_ms: int) -> None:
        self._look_ms = look_ms
        self._looked_ms = clock.monotonic_ms()

    def missed_ms(self, now_ms: int) -> int:
        """For how long the process was paused since the last look; 0 if it was not."""
        late_ms = now_ms - self._looked_ms - self._look_ms
        self._looked_ms = now_ms
        return late_ms if late_ms > STOOD_STILL_MS else 0


def local_utc_offset_ms(now_ms: int) -> int:
    """How far this host's local time is ahead of UTC at a time."""
    return time.localtime(now_ms / 1000).tm_gmtoff * 1000
