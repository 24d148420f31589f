"""What runs inside a broker by time or by arrivals and not by requests: delay levels, timers, transaction checks,
POP's revival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqspark.store.disk.saved import SavedTable

__all__ = ["Service"]


class Service(Protocol):
    """Owned by the broker's thread. Must do a bounded amount of work in a call and ask for the next call soon
    when more is left."""

    def load(self) -> None:
        """Once, when the store is open and the tables are loaded. Raises StoreCorrupt."""

    def tick(self) -> int:
        """Do what is due; what it puts is written at the end of the tick. Gives back the milliseconds until it
        wants to be called again."""

    def arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        """Queues that have grown: topic, queue id, new max offset. What they hold is acked."""

    def saved_tables(self) -> Sequence[SavedTable]:
        """Its files in ``config/``, saved by the broker's jobs when behind and at shutdown."""
