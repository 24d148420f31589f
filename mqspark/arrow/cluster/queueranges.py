"""Offsets of queues, and ranges of them. Must not know a cluster or a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mqspark.message import MessageQueue

Offsets = dict[MessageQueue, int]
"""Queue to the next offset to read."""


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Offsets ``start`` to ``end`` (exclusive) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def rows(self) -> int:
        """An upper bound: tags may filter some out."""
        return self.end - self.start


class LogicPlace(NamedTuple):
    """What a physical queue of a static topic is a part of."""

    queue: MessageQueue
    """The logic queue."""
    delta: int
    """Logic offset minus physical offset."""
