"""Work in slices, run to its end."""

from __future__ import annotations

from typing import TypeVar

from mqspark.protocol.slices import Work

T = TypeVar("T")


def sliced(work: Work[T]) -> tuple[T, int]:
    """The result, and how often others had their turn."""
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, slices
        slices += 1
