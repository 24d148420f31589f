"""Figures over time, as pages saw them: samples in memory, bounded in number.

A sample is taken when a page is made, so a chart shows the time during which somebody looked.
"""

from __future__ import annotations

from collections import OrderedDict, deque

__all__ = ["History"]

MAX_SERIES = 256
MAX_SAMPLES = 720
"""Of one series: an hour of a page that asks every five seconds."""
MIN_DISTANCE_MS = 2_000


class History:
    """Each series has samples of the same number of figures."""

    def __init__(self) -> None:
        self._series: OrderedDict[str, deque[tuple[int, tuple[float | None, ...]]]] = OrderedDict()

    def note(self, name: str, now_ms: int, *figures: float | None) -> None:
        """The series that nobody looked at for longest makes room."""
        samples = self._series.get(name)
        if samples is None:
            while len(self._series) >= MAX_SERIES:
                self._series.popitem(last=False)
            samples = self._series[name] = deque(maxlen=MAX_SAMPLES)
        self._series.move_to_end(name)
        if samples and now_ms - samples[-1][0] < MIN_DISTANCE_MS:
            return
        if samples and len(samples[-1][1]) != len(figures):
            samples.clear()
        samples.append((now_ms, figures))

    def columns(self, name: str) -> list[list[float | None]]:
        """The times in seconds since the epoch, and each figure's values."""
        samples = self._series.get(name)
        if not samples:
            return []
        times: list[float | None] = [at_ms / 1000 for at_ms, _ in samples]
        return [times, *([figures[place] for _, figures in samples] for place in range(len(samples[-1][1])))]
