"""How a slave's table of topics or groups becomes a copy of its master's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from mqspark.protocol.slices import Work

FOLLOWED_AT_ONCE = 64
"""Entries that are stored, or removed, in one slice."""
FOLLOWED_PAGES = 8
"""Pages of names that are looked for in the master's table in one slice."""

V = TypeVar("V")


def followed(
    pages: Iterable[Iterable[str]],
    table: dict[str, V],
    remove: Callable[[str], None],
    put_all: Callable[[dict[str, V]], None],
) -> Work[None]:
    """Remove the names of ``pages`` that the master's ``table`` lacks, and put what it has. The table is consumed: to
    free a long one at once takes milliseconds. Raises what ``put_all`` raises."""
    removed = 0
    for number, page in enumerate(pages, 1):
        for name in page:
            if name not in table:
                remove(name)
                removed += 1
                if removed % FOLLOWED_AT_ONCE == 0:
                    yield
        if number % FOLLOWED_PAGES == 0:
            yield
    while table:
        put_all(dict(table.popitem() for _ in range(min(FOLLOWED_AT_ONCE, len(table)))))
        if table:
            yield
