"""Times as people in one zone read and write them. What is shown can be given back, and means the same.

Must not know who shows them, nor who chose the zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mqspark.errors import InvalidMessage
from mqspark.message import parse_number

_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}")
_DATE, _EPOCH_S = 8, 10
"""Digits of a date and of a time in seconds since the epoch; other numbers are ms."""
_NO_PLACES = ("Etc/", "posix/", "right/", "SystemV/")
"""Beginnings of names that people do not look for: Etc/GMT+5 is five hours behind."""


@dataclass(frozen=True, slots=True)
class Zone:
    """``name``: as in the tz database."""

    name: str
    info: tzinfo

    def text(self, ms: int) -> str:
        """A time in ms since the epoch, with the zone's distance from UTC then; the number itself beyond the years that
        Python has."""
        try:
            at = datetime.fromtimestamp(ms // 1000, self.info).replace(microsecond=ms % 1000 * 1000)
        except (OverflowError, ValueError, OSError):
            return str(ms)
        return at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + (
            "" if at.utcoffset() else "Z"
        )

    def ms(self, text: str, field: str) -> int:
        """A time in ms since the epoch: a date and time of this zone, or with a distance from UTC; or a number of
        seconds or ms since the epoch. Raises InvalidMessage for a time that the zone's clocks do not show, or show
        twice, and for one before 1970."""
        plain = text.strip()
        since_epoch = parse_number(plain)
        if since_epoch is not None and len(plain) != _DATE:
            return since_epoch * 1000 if len(plain) == _EPOCH_S else since_epoch
        try:
            found = datetime.fromisoformat(plain)
        except ValueError:
            problem = "give a time as 2026-01-31T12:00 or in ms since the epoch"
            raise InvalidMessage(f"{problem}, in {self.name}", field=field) from None
        ms = moment_ms(found, self.info, field)
        if ms < 0:
            raise InvalidMessage("give a time since 1970", field=field)
        return ms


UTC_ZONE = Zone("UTC", UTC)


def moment_ms(moment: datetime, zone: tzinfo | None, field: str) -> int:
    """In ms since the epoch. ``zone``: of a moment without one; None: this machine's. Raises InvalidMessage for a time
    that the clocks of the zone do not show, or show twice."""
    try:
        if moment.tzinfo is not None:
            return _ms(moment)
        earlier, later = (_ms(moment.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    except (ValueError, OverflowError, OSError):
        raise InvalidMessage("no time of this year can be given", field=field) from None
    if earlier == later:
        return earlier
    offsets = [
        datetime.fromtimestamp(each / 1000, UTC).astimezone(zone).isoformat()[-6:]
        for each in (earlier, later)
    ]
    if earlier > later:
        # Each reading of a time that is left out has the distance of the other side.
        problem = (
            f"the clocks are put forward past it: add {offsets[1]} or {offsets[0]}, or give another time"
        )
    else:
        problem = f"the clocks show it twice: add {offsets[0]} or {offsets[1]}"
    shown = moment.isoformat(sep=" ")
    raise InvalidMessage(f"{shown} is not one time, for {problem}", field=field)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() // 1) * 1000 + moment.microsecond // 1000


def zone_named(name: str) -> Zone:
    """Raises InvalidMessage for a name that the tz database of this machine does not have."""
    if name == UTC_ZONE.name:
        return UTC_ZONE
    try:
        if _NAME.fullmatch(name) is None:
            raise ZoneInfoNotFoundError
        return Zone(name, ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidMessage(
            f"this machine knows no time zone {name[:80]!r}, as Europe/Berlin is one", field="zone"
        ) from None


def zone_names() -> list[str]:
    """The zones that people choose from. Blocking: it reads the tz database."""
    places = (each for each in available_timezones() if "/" in each and not each.startswith(_NO_PLACES))
    return [UTC_ZONE.name, *sorted(places)]
