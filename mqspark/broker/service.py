"""Background services of a broker, driven by time or by arrivals instead of requests: delay levels, timers,
transaction checks, POP's revival."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from mqspark.store.disk.savedtables import SavedTable

TICK_MS = 200
"""The longest time between two ticks, and so the resolution of parked pulls' timeouts."""
READ_MESSAGES = 64
READ_BYTES = 1 << 20
"""Limits of one read of a topic that a service follows."""


class Service(Protocol):
    """Runs in the broker's thread. Each call does a bounded amount of work; if more is left, the service asks for
    another call soon."""

    def load(self) -> None:
        """Called once, when the store is open and the tables are loaded. Raises StoreCorrupt."""

    def tick(self) -> int:
        """Do what is due; messages put here are written at the end of the tick. Returns the ms until the next
        call."""

    def saved_tables(self) -> Sequence[SavedTable]:
        """The service's files in ``config/``. The broker's jobs save them when they changed, and at shutdown."""


Told = tuple[Collection[Any], Callable[[Sequence[tuple[str, int, int]]], None]]
"""What waits for messages, and who is told which queues have grown as long as something does: topic, queue id, new max
offset. Their messages are acked."""
