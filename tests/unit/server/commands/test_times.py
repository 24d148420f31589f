"""Times, durations and places as people write them, and the options that take them."""

from __future__ import annotations

import time

import click
import pytest

from mqspark_server.cli import cli
from mqspark_server.commands.messages.reading import END, LATEST, WHERE, Where, parse_end, parse_where
from mqspark_server.commands.output import as_time
from mqspark_server.commands.times import DURATION, TIME, parse_duration_ms, parse_time_ms
from tests.support.commands import mqspark


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("0ms", 0),
        ("99ms", 99),
        ("1700000000", 1_700_000_000_000),
        ("1700000000000", 1_700_000_000_000),
        ("1700000000ms", 1_700_000_000),
        (" 2026-01-31T12:00Z ", 1_769_860_800_000),
        ("2026-01-31T12:00+01:00", 1_769_857_200_000),
    ],
)
def test_a_time_has_one_reading(text: str, ms: int) -> None:
    assert parse_time_ms(text) == ms


def test_times_are_shown_and_read_in_the_same_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    moment_ms = 1_769_860_800_123
    for zone, shown in (
        ("Asia/Shanghai", "2026-01-31 20:00:00.123+08:00"),
        ("UTC", "2026-01-31 12:00:00.123+00:00"),
    ):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert as_time(moment_ms) == shown
        assert parse_time_ms(shown) == parse_time_ms(shown[:-6]) == moment_ms
        assert parse_time_ms(f"{shown[:10]}#{shown[11:19]}:123") == moment_ms
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "text",
    ["", "1", "12345", "123456789012", "yesterday", "-", "-1x", "1h", "2026-02-30", "\u0661", "1" * 19],
)
def test_what_is_no_time_says_what_is_one(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"is not a (time|duration): "):
        parse_time_ms(text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("earliest", Where("earliest")),
        ("latest", LATEST),
        ("end", LATEST),
        ("-5", Where("last", 5)),
        ("0", Where("offset", 0)),
        ("123456789", Where("offset", 123_456_789)),
        ("offset:1700000000000", Where("offset", 1_700_000_000_000)),
        ("1700000000000", Where("time", 1_700_000_000_000)),
        ("5ms", Where("time", 5)),
    ],
)
def test_a_place_has_one_reading(text: str, where: Where) -> None:
    assert parse_where(text) == where


@pytest.mark.parametrize("text", ["", "offset:", "offset:-1", "first", "12345678901", "+5"])
def test_what_is_no_place_says_what_is_one(text: str) -> None:
    with pytest.raises(click.UsageError, match="is no place: earliest, latest, an offset"):
        parse_where(text)


def test_an_end_is_not_counted_back() -> None:
    with pytest.raises(click.UsageError, match="is no end: an offset"):
        parse_end("-5")


def options() -> list[tuple[str, click.Option]]:
    """Every option of every command."""
    found: list[tuple[str, click.Option]] = []

    def walk(command: click.Command, path: str) -> None:
        found.extend((path, each) for each in command.params if isinstance(each, click.Option))
        if isinstance(command, click.Group) and command.name != "mqadmin":
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                walk(child, f"{path} {name}")

    walk(cli, "mqspark")
    return found


def test_every_option_of_a_time_has_the_same_parser() -> None:
    of_times = (TIME, DURATION, WHERE, END)
    for path, option in options():
        names = set(option.opts)
        if names & {"--from", "--until", "--to-time", "--deliver-at", "--delay", "--duration"}:
            assert option.type in of_times, f"{path} {option.opts}"


@pytest.mark.parametrize(
    "words",
    [
        ("group", "reset", "g", "T", "--to-time", "x"),
        ("consume", "T", "--from", "x"),
        ("consume", "T", "--until", "-3"),
        ("message", "time", "T", "--from", "x"),
        ("message", "key", "T", "k", "--until", "x"),
        ("dlq", "show", "g", "--from", "x"),
        ("produce", "T", "--deliver-at", "x"),
        ("produce", "T", "--delay", "x"),
        ("bench", "send", "T", "--duration", "x"),
        ("mqadmin", "resetOffsetByTime", "-g", "g", "-t", "T", "-s", "x"),
    ],
)
def test_a_wrong_time_is_an_error_before_any_server_is_asked(words: tuple[str, ...]) -> None:
    outcome = mqspark(*words)
    assert outcome.code == 2
    assert "is not a" in outcome.err or "is no " in outcome.err
    assert words[-2] in outcome.err, "the option is named"


def test_a_duration_of_a_bare_number_is_in_seconds() -> None:
    assert [parse_duration_ms(each) for each in ("5", "1.5h", "1d12h")] == [5_000, 5_400_000, 129_600_000]
