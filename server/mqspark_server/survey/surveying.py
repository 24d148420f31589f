"""Rows, and many questions at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from mqspark.errors import MQError

ASKED_AT_ONCE = 8
ROWS_AT_ONCE = 256
"""Rows that are made or looked at in one turn of the loop."""
MAX_ROWS = 256
"""The most rows of a table for people that has no pages."""

Row = dict[str, Any]
T = TypeVar("T")
V = TypeVar("V")


def without_no_error(row: Row) -> Row:
    """For programs: ``error`` is there only where something failed."""
    return {key: value for key, value in row.items() if key != "error" or value}


async def in_slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Parts of a long list, between which others are served."""
    for first in range(0, len(items), ROWS_AT_ONCE):
        if first:
            await asyncio.sleep(0)
        yield items[first : first + ROWS_AT_ONCE]


async def sorted_in_slices(items: Sequence[T], key: Callable[[T], Any], *, down: bool) -> list[T]:
    """A long list in order, made of parts that are sorted each by itself. The sort is stable."""
    runs = [sorted(some, key=key, reverse=down) async for some in in_slices(items)]
    merged, found = merge(*runs, key=key, reverse=down), list[T]()
    while some := list(islice(merged, ROWS_AT_ONCE)):
        found += some
        if len(found) < len(items):
            await asyncio.sleep(0)
    return found


async def let_go(*long: list[Any]) -> None:
    """Empties lists of rows part by part: to free very many takes longer than a turn of the loop may."""
    for items in long:
        while len(items) > ROWS_AT_ONCE:
            del items[-ROWS_AT_ONCE:]
            await asyncio.sleep(0)
        items.clear()


async def each_of(items: Iterable[T], ask: Callable[[T], Awaitable[V]]) -> list[V]:
    """The answers, in the order of the items."""
    gate = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(item: T) -> V:
        async with gate:
            return await ask(item)

    return await asyncio.gather(*map(one, items))


async def add_to_each(rows: Iterable[Row], ask: Callable[[Row], Awaitable[Row]]) -> None:
    """Adds to each row what is said about it, or why nothing is, as ``error``."""

    async def add(row: Row) -> None:
        try:
            row |= await ask(row)
        except MQError as error:
            row["error"] = str(error)

    await each_of(rows, add)


def number_of(text: str | None) -> float | None:
    """A number that a broker says; None for a text, which one that is not ready sends, and for what is no number of
    anything: JSON has no infinity."""
    try:
        number = float(text) if text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
