"""Time as a dependency, so that a test or a simulator can control it.

``now_ms`` is wall time in milliseconds since the Unix epoch; it goes into messages. ``monotonic_ms`` never
goes back; it is for timeouts, leases and intervals.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
