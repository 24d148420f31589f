"""Figures over time: rings of samples in memory, bounded in bytes.

Each series has two rings: one of an hour in steps of ten seconds, and one of a day in steps of a minute. A step has one
sample: in the hour the newest, in the day the largest, so that a peak stays visible.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

MAX_SAMPLES_BYTES = 8 << 20
"""Bytes of all series, if each had all its samples."""
MAX_NAME = 300
NUMBER_BYTES = 8
SERIES_BYTES = 2_000
"""Bytes of a series without its samples."""
GAP_STEPS = 6
"""A line has a gap where no sample was taken for longer."""


@dataclass(frozen=True, slots=True)
class SampleSpan:
    step_ms: int
    steps: int
    keeps_largest: bool


SPANS = {
    "hour": SampleSpan(10_000, 360, keeps_largest=False),
    "day": SampleSpan(60_000, 1_440, keeps_largest=True),
}


class _SampleRing:
    """Rows of a time and ``width - 1`` figures; NaN: not known. A new row drops the oldest when there is no room."""

    def __init__(self, span: SampleSpan, width: int) -> None:
        self._span = span
        self._width = width
        self._numbers = array("d")

    def add(self, now_ms: int, figures: Sequence[float]) -> None:
        numbers, width, step_ms = self._numbers, self._width, self._span.step_ms
        step = now_ms // step_ms
        while numbers and numbers[-width] // step_ms > step:
            del numbers[-width:]  # the clock was set back
        if numbers and numbers[-width] // step_ms == step:
            if self._span.keeps_largest:
                last = numbers[1 - width :]
                figures = [_larger(*pair) for pair in zip(last, figures, strict=True)]
            del numbers[-width:]
        numbers.extend((now_ms, *figures))
        del numbers[: -width * self._span.steps]

    def columns(self) -> list[list[float | None]]:
        """Times in seconds since the epoch, and the values of each figure. A row without values makes a gap."""
        longest_ms = GAP_STEPS * self._span.step_ms
        rows: list[Sequence[float]] = []
        for begin in range(0, len(self._numbers), self._width):
            row = self._numbers[begin : begin + self._width]
            if rows and row[0] - rows[-1][0] > longest_ms:
                rows.append((rows[-1][0] + self._span.step_ms, *[math.nan] * (self._width - 1)))
            rows.append(row)
        times: list[float | None] = [row[0] / 1000 for row in rows]
        return [times, *([_known(row[place]) for row in rows] for place in range(1, self._width))]


class _Series:
    def __init__(self, width: int) -> None:
        self.width = width
        self.rings = {name: _SampleRing(span, width) for name, span in SPANS.items()}
        self.bytes = SERIES_BYTES + sum(span.steps for span in SPANS.values()) * width * NUMBER_BYTES


class History:
    """Each series has samples of the same number of figures. The least recently used one makes room for a new one."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self._series.values())

    def note(self, name: str, now_ms: int, *figures: float | None) -> None:
        if len(name) > MAX_NAME:
            return  # no name of a broker or a group is as long
        series = self._series.pop(name, None)
        if series is None or series.width != 1 + len(figures):
            series = _Series(1 + len(figures))
            while self._series and self.bytes + series.bytes > MAX_SAMPLES_BYTES:
                del self._series[next(iter(self._series))]
        self._series[name] = series
        known = [math.nan if each is None else each for each in figures]
        for ring in series.rings.values():
            ring.add(now_ms, known)

    def columns(self, name: str, span: str) -> list[list[float | None]]:
        """The times in seconds since the epoch, and each figure's values; empty without samples. ``span``: of SPANS."""
        series = self._series.pop(name, None)
        if series is None:
            return []
        self._series[name] = series
        return series.rings[span].columns()


def _larger(one: float, other: float) -> float:
    return other if math.isnan(one) or other > one else one


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
