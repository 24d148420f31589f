"""Rates of counters: samples of a total, from which sums and means over a minute, an hour and a day are taken
(StatsItem)."""

from __future__ import annotations

from array import array

SAMPLE_INTERVAL_MS = 10_000
MINUTE_SAMPLES = 7
TEN_MINUTE_SAMPLES = 61
TICKS_PER_HOUR_NOTE = 60
"""A row is sampled for its hour every ten minutes."""
TICKS_PER_DAY_NOTE = 360
"""A row is sampled for its day every hour."""


class Totals:
    """Samples of a total: (ms, total), oldest first."""

    __slots__ = ("_length", "_notes")

    def __init__(self, length: int = MINUTE_SAMPLES) -> None:
        self._length = 2 * length
        self._notes = array("q")
        """ms and total alternately, compact because a broker has one for every topic and group."""

    def note(self, now_ms: int, total: int) -> None:
        notes = self._notes
        notes.append(now_ms)
        notes.append(total)
        if len(notes) > self._length:
            del notes[:2]

    def per_second(self, samples: int = MINUTE_SAMPLES) -> float:
        """The mean rate between the last sample and the one ``samples`` - 1 before it."""
        notes = self._notes
        if len(notes) < 4:
            return 0.0
        last_ms, last = notes[-2:]
        at = max(0, len(notes) - 2 * samples)
        first_ms, first = notes[at : at + 2]
        return (last - first) * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0

    def growth(self) -> int:
        return self._notes[-1] - self._notes[1] if self._notes else 0


class Meter:
    """One row of a table over the last minute, hour and day (StatsItem). A new row counts from 0 one interval
    before its first sample, so that the event that created it is included."""

    __slots__ = ("day", "hour", "minute")

    def __init__(self, now_ms: int) -> None:
        self.minute = Totals(MINUTE_SAMPLES)
        self.hour = Totals(7)
        self.day = Totals(25)
        self.minute.note(now_ms - SAMPLE_INTERVAL_MS, 0)
        self.hour.note(now_ms - TICKS_PER_HOUR_NOTE * SAMPLE_INTERVAL_MS, 0)
        self.day.note(now_ms - TICKS_PER_DAY_NOTE * SAMPLE_INTERVAL_MS, 0)

    def note(self, now_ms: int, total: int, tick: int) -> None:
        self.minute.note(now_ms, total)
        if tick % TICKS_PER_HOUR_NOTE == 0:
            self.hour.note(now_ms, total)
        if tick % TICKS_PER_DAY_NOTE == 0:
            self.day.note(now_ms, total)
