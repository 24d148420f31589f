"""When a job of the job server runs next."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from mqspark.errors import ConfigError
from mqspark_server.scheduler.jobsfile import ScheduledJob, parse_jobs
from mqspark_server.scheduler.schedule import Start, next_start, retry_at_ms, tick_after

HOUR_MS = 3_600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def hourly(**settings: object) -> ScheduledJob:
    return ScheduledJob(run="archive", schedule="17 * * * *", **settings)  # type: ignore[arg-type]


def start(job: ScheduledJob, now: str, **state: int) -> Start:
    wanted = {"since_ms": ms("2026-03-01T10:00"), "taken_ms": 0, "attempt": 0, "retry_ms": 0}
    return next_start(job, ms(now), **(wanted | state))


def test_a_new_job_waits_for_its_next_time() -> None:
    assert start(hourly(), "2026-03-01T10:00").at_ms == ms("2026-03-01T10:17")
    due = ms("2026-03-01T10:17")
    assert start(hourly(), "2026-03-01T10:17") == Start(due, due, 1)


def test_a_time_is_taken_once() -> None:
    taken = {"taken_ms": ms("2026-03-01T10:17"), "attempt": 1}
    assert start(hourly(), "2026-03-01T10:17", **taken).at_ms == ms("2026-03-01T11:17")
    # Also by a server whose clock is behind that of the one that took it.
    assert start(hourly(), "2026-03-01T10:16", **taken).at_ms == ms("2026-03-01T11:17")


@pytest.mark.parametrize("catch_up", [True, False])
def test_a_clock_that_was_set_back_stops_no_job(catch_up: bool) -> None:
    """A machine that begins in 2038, before it has asked for the time, would run nothing for years."""
    wrong = ms("2038-01-19T03:17")
    for state in ({"since_ms": wrong}, {"taken_ms": wrong, "attempt": 3, "retry_ms": wrong + 60_000}):
        found = start(hourly(catch_up=catch_up), "2026-03-01T10:20", **state)
        assert found.at_ms == ms("2026-03-01T11:17")
    assert found == Start(found.at_ms, found.at_ms, 1)


def test_missed_times_are_made_up_for_once() -> None:
    taken = {"taken_ms": ms("2026-03-01T03:17"), "attempt": 1}
    due = ms("2026-03-01T09:17")
    assert start(hourly(), "2026-03-01T10:00", **taken) == Start(due, due, 1)
    assert start(hourly(catch_up=False), "2026-03-01T10:00", **taken).at_ms == ms("2026-03-01T10:17")


def test_a_failure_is_tried_again_until_the_next_time() -> None:
    failed = {"taken_ms": ms("2026-03-01T10:17"), "attempt": 2, "retry_ms": ms("2026-03-01T10:19")}
    assert start(hourly(), "2026-03-01T10:18", **failed) == Start(failed["retry_ms"], failed["taken_ms"], 3)
    late = failed | {"retry_ms": ms("2026-03-01T11:40")}
    assert start(hourly(), "2026-03-01T10:18", **late) == Start(
        ms("2026-03-01T11:17"), ms("2026-03-01T11:17"), 1
    )
    newest = ms("2026-03-01T12:17")
    assert start(hourly(), "2026-03-01T12:20", **failed) == Start(newest, newest, 1)


def test_retries_wait_longer_and_end() -> None:
    job = hourly(retries=3, retry_delay_seconds=60)
    assert [retry_at_ms(job, attempt, 0) for attempt in (1, 2, 3, 4)] == [60_000, 120_000, 240_000, 0]
    assert retry_at_ms(hourly(retries=100, retry_delay_seconds=86_400), 90, 0) == 6 * HOUR_MS
    assert retry_at_ms(hourly(retries=0), 1, 0) == 0


def test_times_of_a_zone_with_changing_clocks() -> None:
    job = ScheduledJob(run="archive", schedule="30 2 * * *", timezone="Europe/Berlin")
    times = [ms("2026-03-27T12:00")]
    for _ in range(4):
        times.append(tick_after(job, times[-1]))
    shown = [datetime.fromtimestamp(each / 1000, UTC).strftime("%d %H:%M") for each in times[1:]]
    assert shown[0] == "28 01:30"
    assert shown[-1].endswith("00:30")
    assert len({text[:2] for text in shown}) == len(shown), shown
    autumn = [ms("2026-10-24T12:00")]
    for _ in range(3):
        autumn.append(tick_after(job, autumn[-1]))
    # The clock shows 02:30 twice; a job with a fixed hour runs once, as with cron.
    assert [later - earlier for earlier, later in itertools.pairwise(autumn[1:])] == [
        25 * HOUR_MS,
        24 * HOUR_MS,
    ]
    every_hour = ScheduledJob(run="archive", schedule="30 * * * *", timezone="Europe/Berlin")
    assert tick_after(every_hour, ms("2026-10-25T00:40")) == ms("2026-10-25T01:30")
    assert tick_after(every_hour, ms("2026-10-25T01:40")) == ms("2026-10-25T02:30")


@pytest.mark.parametrize("expression", ["61 * * * *", "a b c d e", "0 0 31 2 *", "H * * * *", "* * * * * *"])
def test_an_expression_that_never_comes_true_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError, match=r"jobs\.a: schedule"):
        parse_jobs({"jobs": {"a": {"run": "compact", "schedule": expression, "options": {"store": "/s"}}}})
