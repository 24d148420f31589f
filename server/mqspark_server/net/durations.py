"""Durations of an operation, counted by the buckets of a histogram."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Durations:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def record(self, duration_s: float) -> None:
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound of each bucket in seconds, and the number of durations up to it."""
        bounds = (*(str(bound) for bound in BOUNDS_S), "+Inf")
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
