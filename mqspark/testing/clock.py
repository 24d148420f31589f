"""A clock that stands still until a test moves it."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A ``mqspark.clock.Clock``. May be read from any thread; move it from one."""

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Let time pass, on both faces. Raises ValueError for a negative step."""
        if milliseconds < 0:
            raise ValueError("time does not go back; step_wall_clock() moves only the wall clock")
        self._monotonic_ms += milliseconds
        self._now_ms += milliseconds

    def step_wall_clock(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as an administrator or NTP would; monotonic time does not
        notice.
        """
        self._now_ms += milliseconds
