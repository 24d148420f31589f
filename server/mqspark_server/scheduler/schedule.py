"""When a job runs next: by its cron expression, after a failure, or because a time was missed.

A pure function of the job, its state and the clock. The expressions are croniter's, with the standard five fields.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import NamedTuple, Protocol

from croniter import CroniterError, croniter

from mqspark.errors import ConfigError

LONGEST_PAUSE_S = 6 * 3600
"""The longest pause between two retries."""
SET_BACK_MS = 3 * 3_600_000
"""A run that was for a time so far ahead was taken by a clock that was wrong and has been set back since. Clocks of two
servers differ by less."""


class Timed(Protocol):
    """The part of a job that decides when it runs."""

    @property
    def schedule(self) -> str: ...

    @property
    def zone(self) -> tzinfo: ...

    @property
    def catch_up(self) -> bool: ...

    @property
    def retries(self) -> int: ...

    @property
    def retry_delay_seconds(self) -> int: ...


class Start(NamedTuple):
    """The next run. All times are ms since the epoch."""

    at_ms: int
    due_ms: int
    """The scheduled time of this run. Only retries share it with another run."""
    attempt: int


def check_expression(expression: str, zone: tzinfo) -> None:
    """Raises ConfigError for an invalid expression, or one that never matches."""
    try:
        croniter(expression, datetime.now(zone)).get_next(datetime)
    except (CroniterError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError.of("schedule", f"{expression[:80]!r}: {error}") from None


def tick_after(job: Timed, ms: int) -> int:
    """The first time of the schedule after ``ms``."""
    found = _Times(job, ms)
    tick = found.step("get_next")
    return int(tick.timestamp() * 1000)


class _Times:
    """The times of a schedule around a point in time. When clocks are set back, an hour comes twice: as with cron, a
    schedule with fixed hours does not run in the second one."""

    def __init__(self, job: Timed, ms: int) -> None:
        self._times = croniter(job.schedule, datetime.fromtimestamp(ms / 1000, job.zone))
        self._every_hour = self._times.expanded[1] == ["*"]

    def step(self, way: str) -> datetime:
        while True:
            found: datetime = getattr(self._times, way)(datetime)
            if self._every_hour or not found.fold:
                return found


def next_start(
    job: Timed, now_ms: int, *, since_ms: int, taken_ms: int, attempt: int, retry_ms: int
) -> Start:
    """The next run; it is due when its ``at_ms`` is not after ``now_ms``.

    ``since_ms``: when this server began to look at the job. ``taken_ms``: the newest time of the schedule that a run
    was for, 0 if there was none. ``attempt``: how often that one has been tried. ``retry_ms``: when it is tried again,
    0 if it is not. A newer time of the schedule takes the place of a retry, and of all older times.
    """
    if taken_ms > now_ms + SET_BACK_MS:
        taken_ms = now_ms
    since_ms = min(since_ms, now_ms)
    base = taken_ms if taken_ms and job.catch_up else max(taken_ms, since_ms)
    tick = tick_after(job, base)
    if tick <= now_ms:
        newest = _Times(job, now_ms + 1).step("get_prev")
        tick = max(tick, int(newest.timestamp() * 1000))
    if retry_ms and retry_ms < tick and tick > now_ms:
        return Start(retry_ms, taken_ms, attempt + 1)
    return Start(tick, tick, 1)


def retry_at_ms(job: Timed, attempt: int, now_ms: int) -> int:
    """When a run is tried again whose attempt number ``attempt`` has failed; 0: never."""
    if attempt > job.retries:
        return 0
    return now_ms + 1000 * min(job.retry_delay_seconds << (attempt - 1), LONGEST_PAUSE_S)
