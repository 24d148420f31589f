"""Queue locks: which client of a group may consume a queue in order (RebalanceLockManager).

A lock expires 60 s after its last renewal; clients renew every 20 s. Locks cover only this broker's queues:
RocketMQ's strict mode, in which a majority of replicas must agree, is not available.

Facts: docs/rocketmq/broker.md#queue-locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.broker.config import BrokerConfig
from mqspark.message import MessageQueue
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work

EXPIRED_AT_ONCE = 256
"""Locks that are looked at in one slice."""

_LOCK_BYTES = 384
_GROUP_BYTES = 568


class QueueLocks:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.ledger = Ledger("queueLocks", Limit(config, "max_lock_table_bytes"))
        self._holders: BoundedMap[str, BoundedMap[MessageQueue, tuple[str, int]]] = self.ledger.map(
            _GROUP_BYTES
        )
        """group → queue → (client id, monotonic ms of the last renewal)."""

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], session: Session | None = None
    ) -> list[MessageQueue]:
        """Returns the queues that ``client_id`` now holds: its own locks are renewed, free and expired ones are
        taken. ``session``: whose user new locks belong to.

        Raises TableFull; locks taken before that stay.
        """
        now_ms = self._clock.monotonic_ms()
        oldest_ms = now_ms - self._config.rebalance_lock_max_live_time
        holders = self._holders.get(group)
        if holders is None:
            holders = self._holders[group] = self._holders.inner_map(_LOCK_BYTES, _client_bytes)
            # A lock takes as much of its user's share as if it was the only one of its group.
            holders.share_bytes = self._holders.size_of(group, holders)
        locked = []
        try:
            for queue in queues:
                holder = holders.get(queue)
                if holder is None:
                    holders.put(queue, (client_id, now_ms), session)
                elif holder[0] == client_id:
                    holders.replace(queue, (holder[0], now_ms))  # share the stored string
                elif holder[1] < oldest_ms:
                    holders[queue] = client_id, now_ms
                else:
                    continue
                locked.append(queue)
        finally:
            self._end_if_empty(group)
        return locked

    def _end_if_empty(self, group: str) -> None:
        if not self._holders[group]:
            del self._holders[group]

    def renew_all(self, is_alive: Callable[[str, str], bool]) -> None:
        """Renew the locks of every holder for which ``is_alive(group, client_id)``. For code that moves the clock
        faster than clients can follow."""
        now_ms = self._clock.monotonic_ms()
        for group, holders in self._holders.items():
            for queue, (client_id, _) in holders.items():
                if is_alive(group, client_id):
                    holders.replace(queue, (client_id, now_ms))

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock the client's queues; other clients' locks stay."""
        holders = self._holders.get(group)
        if holders is None:
            return
        for queue in queues:
            if (holder := holders.get(queue)) is not None and holder[0] == client_id:
                del holders[queue]
        self._end_if_empty(group)

    def is_held(self, group: str) -> bool:
        """Whether a client of the group holds any lock that has not expired."""
        oldest_ms = self._clock.monotonic_ms() - self._config.rebalance_lock_max_live_time
        holders = self._holders.get(group)
        return holders is not None and any(renewed_ms >= oldest_ms for _, renewed_ms in holders.values())

    def expire(self) -> Work[None]:
        """Remove expired locks, so that short-lived groups do not accumulate."""
        oldest_ms = self._clock.monotonic_ms() - self._config.rebalance_lock_max_live_time
        done = 0
        for group in list(self._holders):
            for queue in list(self._holders.get(group, ())):
                holders = self._holders.get(group)
                if holders is not None and queue in holders and holders[queue][1] < oldest_ms:
                    del holders[queue]
                    self._end_if_empty(group)
                done += 1
                if done % EXPIRED_AT_ONCE == 0:
                    yield


def _client_bytes(lock: tuple[str, int]) -> int:
    return weigh(lock[0])
