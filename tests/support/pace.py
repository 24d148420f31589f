"""Processor time in seconds of a usual machine: what a test may bound.

A machine that is three times slower, or whose other half of a core is busy, takes three times as long for the same
work; a gate in its own seconds would say so of every piece of work. So a known piece of work is timed beside it.
"""

from __future__ import annotations

import json
import time
from typing import Self

USUAL_S = 0.0025
"""What the known piece of work takes on the machine for which bounds are written."""
FRESH_S = 1.0
"""A measurement serves as long; the load beside it changes."""
TRIES = 5

_DOCUMENT = json.dumps({"table": [{"name": f"n{number}", "value": number} for number in range(1_500)]})
_last: tuple[float, float] = (float("-inf"), 1.0)
"""When it was measured, and what was found."""


def _known_work() -> None:
    """Objects made and numbers added: what the work of a broker is made of."""
    json.dumps(json.loads(_DOCUMENT))
    total = 0
    for number in range(40_000):
        total += number


def slowness() -> float:
    """How many times longer work takes here and now than on a usual machine; at least 1."""
    global _last
    measured_s, found = _last
    if time.monotonic() - measured_s < FRESH_S:
        return found
    took = []
    for _ in range(TRIES):
        begin = time.thread_time()
        _known_work()
        took.append(time.thread_time() - begin)
    found = max(1.0, sorted(took)[TRIES // 2] / USUAL_S)
    _last = time.monotonic(), found
    return found


class ProcessorTime:
    """``with ProcessorTime() as cost: ...``: seconds of a usual processor that this thread took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._begin = time.thread_time()
        return self

    def __exit__(self, *exc_info: object) -> None:
        took_s = time.thread_time() - self._begin
        self.seconds = took_s / slowness()
