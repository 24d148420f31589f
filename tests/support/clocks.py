"""The clock of tests that move time by hand. (``mqspark.testing.FakeClock`` is for programs with a running broker.)"""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until a test moves it; ``wall_ms`` and ``mono_ms`` may also be moved alone."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.wall_ms = now_ms
        self.mono_ms = 1_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.mono_ms += ms
