"""The names of RocketMQ's versions, which peers report as numbers (MQVersion)."""

from __future__ import annotations

from collections.abc import Iterator

_FIRST = ["SNAPSHOT", "ALPHA1", *(f"BETA{number}" for number in range(1, 6))]
_FIRST += [f"BETA{number}{kind}" for number in range(6, 10) for kind in ("_SNAPSHOT", "")]
_FIRST += ["FINAL"]
"""Before V3_0_1."""


def _names() -> Iterator[str]:
    yield from (f"V3_0_0_{kind}" for kind in _FIRST)
    for major in (3, 4, 5):
        for minor in range(10):
            patches = range(10)
            if (major, minor) == (3, 0):
                patches = range(1, 16)
            elif major == 3 and minor > 2:
                patches = range(1, 10)
            for patch in patches:
                yield f"V{major}_{minor}_{patch}_SNAPSHOT"
                yield f"V{major}_{minor}_{patch}"


_NAMES = tuple(_names())
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}


def version_number(name: str) -> int | None:
    """The number of a version by its name. None: there is no such version."""
    return _NUMBERS.get(name)


def version_name(number: int) -> str:
    """The name of a version number. Beyond the last one it is HIGHER_VERSION, as in RocketMQ; for a negative number it
    is the first name."""
    return _NAMES[max(0, number)] if number < len(_NAMES) else "HIGHER_VERSION"
