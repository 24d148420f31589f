"""Times and durations as people write them on a command line. A time without a zone is one of this machine's zone, in
which tables show times, too; ``TZ`` changes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mqspark.base.clock import wall_ms
from mqspark.errors import InvalidMessage
from mqspark_server.shown.timezones import moment_ms

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d|w)")
_EPOCH = re.compile(r"(0|\d{1,18}(?=ms))(?:ms)?", re.ASCII)
_DATE, _EPOCH_S, _EPOCH_MS = 8, 10, 13
"""Digits of a date, and of a time in seconds and in ms since the epoch."""


def parse_duration_ms(text: str) -> int:
    """``90s``, ``1.5h``, ``1d12h``; a bare number is seconds. Raises click.UsageError."""
    plain = text.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", plain):
        return int(float(plain) * 1000)
    parts = _DURATION.findall(plain)
    if not parts or "".join(number + unit for number, unit in parts) != plain:
        raise click.UsageError(f"{text[:80]!r} is not a duration: 500ms, 90s, 15m, 1.5h, 1d12h")
    return int(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))


def parse_time_ms(text: str) -> int:
    """A point in time in ms since the epoch: ``2026-01-31``, ``2026-01-31T12:00:00+01:00`` (without a zone: this
    machine's), ``now``, ``-1h`` or ``1h ago``, seconds or ms since the epoch; with the unit ``ms`` and of 0, a number
    has any length. Raises click.UsageError."""
    plain = text.strip()
    now_ms = wall_ms()
    if plain == "now":
        return now_ms
    if plain.endswith(" ago") or (plain.startswith("-") and plain[1:2].isdigit()):
        return max(0, now_ms - parse_duration_ms(plain.removesuffix(" ago").removeprefix("-")))
    if plain.isascii() and plain.isdigit() and len(plain) in (_EPOCH_S, _EPOCH_MS):
        return int(plain) * (1000 if len(plain) == _EPOCH_S else 1)
    if match := _EPOCH.fullmatch(plain):
        return int(match[1])
    # RocketMQ's tools write 2026-01-31#12:00:00:000.
    iso = re.sub(r"^(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d)(?::(\d{3}))?$", r"\1T\2.\3", plain).rstrip(".")
    try:
        if iso.isdecimal() and len(iso) != _DATE:
            raise ValueError  # Python would read 19 digits as a time of the year 1111
        found = datetime.fromisoformat(iso)
        return max(0, moment_ms(found, None, "time"))
    except InvalidMessage as error:
        raise click.UsageError(str(error)) from None
    except ValueError:
        raise click.UsageError(
            f"{text[:80]!r} is not a time: 2026-01-31T12:00 (in this machine's zone, or with one: +01:00), now, -1h, or"
            " ms since the epoch"
        ) from None


if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # not generic before click 8.2


class _Parsed(_Type):
    """A value that ``parse`` makes of a text; its errors name the option."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except click.UsageError as error:
            self.fail(error.message, param, ctx)


def parsed_by(name: str, parse: Callable[[str], Any]) -> click.ParamType[Any]:
    """The type of options whose texts ``parse`` reads. It raises click.UsageError."""
    return _Parsed(name, parse)


TIME = parsed_by("time", parse_time_ms)
"""An option's point in time: ms since the epoch."""
DURATION = parsed_by("duration", parse_duration_ms)
"""An option's ms."""
FORMS = "2026-01-31T12:00 in this machine's zone (TZ), -1h, now, ms since the epoch."
