"""Waiting for a condition in tests: long enough for a loaded machine, over as soon as it holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)
