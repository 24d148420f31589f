"""Times in zones: what is shown means the same when it is given back, and no time is guessed."""

from __future__ import annotations

from datetime import datetime

import click
import pytest

from mqspark.errors import InvalidMessage
from mqspark_server.commands.times import parse_time_ms
from mqspark_server.shown.timezones import UTC_ZONE, moment_ms, zone_named, zone_names

NOON_MS = 1_769_860_800_123
"""2026-01-31 12:00 in UTC."""
SHANGHAI, NEW_YORK = zone_named("Asia/Shanghai"), zone_named("America/New_York")
BERLIN, KATHMANDU = zone_named("Europe/Berlin"), zone_named("Asia/Kathmandu")


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        (UTC_ZONE, "2026-01-31 12:00:00.123Z"),
        (SHANGHAI, "2026-01-31 20:00:00.123+08:00"),
        (NEW_YORK, "2026-01-31 07:00:00.123-05:00"),
        (KATHMANDU, "2026-01-31 17:45:00.123+05:45"),
        (zone_named("Europe/London"), "2026-01-31 12:00:00.123Z"),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_time_that_is_shown_can_be_given_back(zone: object, shown: str) -> None:
    for reader in (UTC_ZONE, SHANGHAI, NEW_YORK, BERLIN):
        assert reader.ms(shown, "time") == NOON_MS  # it says where it is from
    assert zone_named(getattr(zone, "name", "")).text(NOON_MS) == shown


def test_a_time_without_a_zone_is_one_of_the_readers() -> None:
    read = [zone.ms(" 2026-01-31T12:00 ", "time") for zone in (SHANGHAI, UTC_ZONE, NEW_YORK)]
    assert [each - NOON_MS // 1000 * 1000 for each in read] == [-8 * 3_600_000, 0, 5 * 3_600_000]
    assert SHANGHAI.ms("20260131", "time") == SHANGHAI.ms("2026-01-31", "time")
    assert SHANGHAI.ms("1769860800", "time") == SHANGHAI.ms("1769860800000", "time") == NOON_MS - 123


@pytest.mark.parametrize("text", ["", "soon", "-1", "9" * 30, "0001-01-01", "1969-12-31T23:59:59.999Z"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        SHANGHAI.ms(text, "time")
    assert refused.value.field == "time"


@pytest.mark.parametrize(
    ("text", "problem", "offsets"),
    [
        ("2026-03-29T02:30", "put forward", ("+01:00", "+02:00")),
        ("2026-10-25T02:30", "twice", ("+02:00", "+01:00")),
    ],
)
def test_hours_that_clocks_leave_out_or_repeat_are_asked_for(
    text: str, problem: str, offsets: tuple[str, str]
) -> None:
    with pytest.raises(InvalidMessage, match=problem) as refused:
        BERLIN.ms(text, "time")
    for offset in offsets:
        assert offset in str(refused.value)
        BERLIN.ms(text + offset, "time")
    assert BERLIN.ms(text + "+01:00", "time") - BERLIN.ms(text + "+02:00", "time") == 3_600_000
    for hour in ("T01:59", "T03:00"):
        BERLIN.ms(text[:10] + hour, "time")


def test_a_command_asks_for_these_hours_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidMessage, match="twice"):
        moment_ms(datetime.fromisoformat("2026-10-25T02:30"), BERLIN.info, "time")
    monkeypatch.setattr(
        "mqspark_server.commands.times.moment_ms", lambda found, zone, name: BERLIN.ms(str(found), name)
    )
    with pytest.raises(click.UsageError, match="put forward"):
        parse_time_ms("2026-03-29 02:30")


def test_a_time_of_any_size_is_shown() -> None:
    assert UTC_ZONE.text(1 << 62) == str(1 << 62)
    assert NEW_YORK.text(1) == "1969-12-31 19:00:00.001-05:00"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Berlin",
        "Europe/Nowhere",
        "../../etc/passwd",
        "/etc/passwd",
        "America",
        "Europe/" + "x" * 99,
        "a\0b",
    ],
)
def test_a_zone_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        zone_named(name)
    assert refused.value.field == "zone"


def test_every_zone_that_is_offered_can_be_chosen() -> None:
    names = zone_names()
    assert {"UTC", "Asia/Shanghai", "America/New_York"} <= set(names)
    for name in names:
        zone = zone_named(name)
        assert zone.ms(zone.text(NOON_MS), "time") == NOON_MS
