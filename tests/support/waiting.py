"""Waits for conditions without an event: long enough for a loaded machine, and no longer than necessary.

``what`` describes the condition in a failure: a text, a function that returns one, or nothing for the condition's
source code.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
What = str | Callable[[], object]

TIMEOUT_S = 90.0
POLL_S = 0.01
MOST_POLL_S = 0.1
"""Limit of the growing pauses: evaluating a condition may cost more than the pause."""


def eventually(condition: Callable[[], T], what: What = "", timeout_s: float = TIMEOUT_S) -> T:
    """The first true value of ``condition``. Raises AssertionError after the timeout."""
    deadline = time.monotonic() + timeout_s
    pause_s = POLL_S
    while not (value := condition()):
        assert time.monotonic() < deadline, _failure(condition, what, timeout_s, value)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, MOST_POLL_S)
    return value


async def eventually_async(condition: Callable[[], T], what: What = "", timeout_s: float = TIMEOUT_S) -> T:
    """The same as ``eventually``, for tests with an event loop, which runs meanwhile."""
    deadline = time.monotonic() + timeout_s
    pause_s = POLL_S
    while not (value := condition()):
        assert time.monotonic() < deadline, _failure(condition, what, timeout_s, value)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, MOST_POLL_S)
    return value


def _failure(condition: Callable[[], object], what: What, timeout_s: float, value: object) -> str:
    said = what() if callable(what) else what or _source(condition)
    return f"not within {timeout_s} s: {said} (last: {value!r})"


def _source(condition: Callable[[], object]) -> str:
    name = getattr(condition, "__qualname__", repr(condition))
    return inspect.getsource(condition).strip() if "<lambda>" in name else name
