"""Counts of numbers by class, as Prometheus's histograms are."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

TIME_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""For syncs of the disk and turns of a loop."""


class Histogram:
    """``quick`` counts values of the first class whose share of the total is 0."""

    __slots__ = ("_bounds", "_counts", "quick", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.quick = 0
        self.total: float = 0

    def record(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        return self.quick + sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound, and how many values are at most as large."""
        counts = [self._counts[0] + self.quick, *self._counts[1:]]
        bounds = (*(str(float(bound)) for bound in self._bounds), "+Inf")
        return list(zip(bounds, map(float, accumulate(counts)), strict=True))

    def add(self, value: int, count: int) -> None:
        """Count values without their sum."""
        self._counts[bisect_left(self._bounds, value)] += count

    def copy(self) -> Histogram:
        other = Histogram(self._bounds)
        other._counts, other.quick, other.total = list(self._counts), self.quick, self.total
        return other
