"""When a consumer rebalances, and what changes then. No sockets; the clock is injected.

Facts: docs/rocketmq/client.md#rhythm (RebalanceService and RebalanceImpl).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from mqspark.base.clock import Clock
from mqspark.client.consumer.allocate import Allocation, sort_clients, sort_queues
from mqspark.message import MessageQueue


class QueueChange(NamedTuple):
    drop: list[MessageQueue]
    add: list[MessageQueue]


def plan(
    owned: Collection[MessageQueue],
    queues: Iterable[MessageQueue],
    *,
    client_id: str,
    members: Collection[str] | None,
    allocation: Allocation,
) -> QueueChange:
    """The queues to drop and to add for one topic.

    ``members`` None means broadcasting: all queues belong to every member. An unknown (empty) group or topic
    changes nothing: two readers for a moment are better than none.
    """
    everything = sort_queues(queues)
    if not everything or (members is not None and not members):
        return QueueChange([], [])
    mine = everything if members is None else allocation(client_id, everything, sort_clients(set(members)))
    wanted = set(mine)
    held = set(owned)
    return QueueChange(
        drop=[queue for queue in sort_queues(held) if queue not in wanted],
        add=[queue for queue in mine if queue not in held],
    )


REBALANCE_RETRY_MS = 1_000
"""The pause after a round that failed."""
MIN_INTERVAL_MS = 100


class RebalanceTimer:
    """Every ``interval_ms``; earlier when woken or after a failed round, but never below MIN_INTERVAL_MS."""

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._last_ms: int | None = None
        self._woken = False
        self._due_ms = clock.monotonic_ms()

    def wake(self) -> None:
        """The group or the routes changed; during a round, another round follows."""
        self._woken = True
        now_ms = self._clock.monotonic_ms()
        self._due_ms = now_ms if self._last_ms is None else max(now_ms, self._last_ms + MIN_INTERVAL_MS)

    def begin(self) -> None:
        """A round starts: it sees every change so far."""
        self._woken = False

    def ran(self, *, balanced: bool) -> None:
        """A round is over; not ``balanced`` if a queue could not be taken or a broker did not answer."""
        self._last_ms = self._clock.monotonic_ms()
        pause_ms = self._interval_ms if balanced else REBALANCE_RETRY_MS
        self._due_ms = self._last_ms + (MIN_INTERVAL_MS if self._woken else pause_ms)

    def wait_ms(self) -> int:
        """The ms until the next round."""
        return max(0, self._due_ms - self._clock.monotonic_ms())
