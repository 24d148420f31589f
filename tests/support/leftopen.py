"""What tests have opened and not closed: it is closed when the test, or whatever else began it, is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol


class Left(Protocol):
    def leave(self) -> None:
        """Close it, or only let its files go, where a test has broken it."""


_open: list[Left] = []
"""The oldest first. What is closed leaves it."""


def opened(one: Left) -> None:
    _open.append(one)


def closed(one: Left) -> None:
    _open[:] = [each for each in _open if each is not one]


@contextmanager
def closing() -> Iterator[None]:
    """Close what is opened within and left open, the newest first."""
    before = len(_open)
    yield
    with ExitStack() as stack:
        for each in _open[before:]:
            stack.callback(each.leave)
