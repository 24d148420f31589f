"""How long messages took from append to ack, as a histogram (StoreStatsService)."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain

BOUNDS_MS = tuple(
    chain(
        range(20),
        range(21, 50, 2),
        range(54, 100, 5),
        range(109, 200, 10),
        range(249, 500, 50),
        range(599, 1000, 100),
        range(1999, 10_000, 1000),
    )
)
"""A time counts in the first bucket whose bound, in whole ms, is not below it; one more bucket is above the last
bound."""

CLASSES_MS = (
    ("<=0ms", 0), ("0~10ms", 9), ("10~50ms", 49), ("50~100ms", 99), ("100~200ms", 199), ("200~500ms", 499),
    ("500ms~1s", 999), ("1~2s", 1999), ("2~3s", 2999), ("3~4s", 3999), ("4~5s", 4999), ("5~10s", 9999),
)  # fmt: skip
"""The classes that tools show, by name and last bound."""
LONGEST_CLASS = "10s~"


class PutTimes:
    """Counts of the current period and of the previous one, which is shown. The owner ends a period."""

    def __init__(self) -> None:
        self._current = _no_counts()
        self._shown = _no_counts()
        self.quick = 0
        """Those below a millisecond in the current period. Callers of ``record`` may add them here themselves."""
        self.longest_ms = 0
        """The longest since the start."""

    def record(self, time_ms: int, count: int) -> None:
        if time_ms <= 0:
            self.quick += count
            return
        self._current[bisect_left(BOUNDS_MS, time_ms)] += count
        if time_ms > self.longest_ms:
            self.longest_ms = time_ms

    def end_period(self) -> None:
        self._current[0] += self.quick
        self._shown, self._current, self.quick = self._current, _no_counts(), 0

    def classes(self) -> str:
        """``[<=0ms]:2 [0~10ms]:0 …``; 0 in every class until the first period has ended."""
        texts, first = [], 0
        shown = self._shown
        for name, last_ms in CLASSES_MS:
            end = bisect_left(BOUNDS_MS, last_ms) + 1
            texts.append(f"[{name}]:{sum(shown[first:end])}")
            first = end
        texts.append(f"[{LONGEST_CLASS}]:{sum(shown[first:])}")
        return " ".join(texts)

    def below(self, share: float) -> float:
        """The bound in ms that this share of the messages did not exceed; 0.0 when there were none."""
        wanted, passed = sum(self._shown) * share, 0
        for bound_ms, count in zip(BOUNDS_MS, self._shown, strict=False):
            passed += count
            if passed >= wanted:
                return float(bound_ms)
        return float(self.longest_ms)


def _no_counts() -> list[int]:
    return [0] * (len(BOUNDS_MS) + 1)
