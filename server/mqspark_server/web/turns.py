"""Work on the broker's loop in slices, so that HTTP does not delay messages."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TypeVar

from mqspark.broker.admin.views import View
from mqspark.protocol.slices import Work

T = TypeVar("T")

SLICE_S = 0.001
"""The time spent on a view before other work runs."""


async def between_turns(work: Work[T]) -> T:
    """Work for SLICE_S or one step that takes longer, then let other tasks run, until finished."""
    while True:
        now = monotonic()
        end, longest = now + SLICE_S, 0.0
        while now + longest <= end:
            try:
                next(work)
            except StopIteration as finished:
                result: T = finished.value
                return result
            began, now = now, monotonic()
            longest = max(longest, now - began)
        await asyncio.sleep(0)


async def entries_of(view: View[T]) -> list[T]:
    """What a view shows, collected without delaying others."""

    def collected() -> Work[list[T]]:
        entries = []
        for entry in view:
            if entry is not None:
                entries.append(entry)
            yield
        return entries

    return await between_turns(collected())
