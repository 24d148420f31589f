"""Queue locks: which client of a group may consume a queue in order (RebalanceLockManager).

A lock expires 60 s after its last renewal; clients renew every 20 s. Locks cover only this broker's queues:
RocketMQ's strict mode, in which a majority of replicas must agree, is not available.

Facts: docs/rocketmq/broker.md#queue-locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqspark.bounded import ENTRY_BYTES, Ledger, require, text_bytes
from mqspark.broker.config import BrokerConfig
from mqspark.clock import Clock
from mqspark.message import MessageQueue
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work
from mqspark.shares import NOBODY

__all__ = ["QueueLocks"]

EXPIRED_AT_ONCE = 1_000
"""Locks that are looked at in one slice."""

_LOCK_BYTES = 2 * ENTRY_BYTES + 280
_GROUP_BYTES = 2 * ENTRY_BYTES + 464


class QueueLocks:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.ledger = Ledger(
            "queueLocks",
            lambda: config.max_lock_table_bytes,
            "QueueLocks._holders",
            "QueueLocks._owners",
            setting="maxLockTableBytes",
        )
        self._holders: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        """group → queue → (client id, monotonic ms of the last renewal)."""
        self._owners: dict[str, dict[MessageQueue, str]] = {}
        """group → queue → the user who was the first to lock it."""

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], session: Session | None = None
    ) -> list[MessageQueue]:
        """Returns the queues that ``client_id`` now holds: its own locks are renewed, free and expired ones are
        taken. ``session``: whose user new locks belong to.

        Raises TableFull; locks taken before that stay.
        """
        now_ms = self._clock.monotonic_ms()
        oldest_ms = now_ms - self._config.rebalance_lock_max_live_time
        ledger = self.ledger
        holders = self._holders.get(group)
        if holders is None:
            ledger.charge(_GROUP_BYTES + text_bytes(group))
            holders = self._holders[group] = {}
        locked = []
        try:
            for queue in queues:
                holder = holders.get(queue)
                if holder is None:
                    size_bytes = _owned_bytes(group, queue)
                    owner = NOBODY if session is None else ledger.shares.admit(session, size_bytes)
                    ledger.charge(_lock_bytes(queue, client_id))
                    if owner:
                        ledger.shares.hold(owner, size_bytes)
                        self._owners.setdefault(group, {})[queue] = owner
                elif holder[0] == client_id:
                    client_id = holder[0]  # share the stored string
                elif holder[1] < oldest_ms:
                    ledger.resize(_lock_bytes(queue, holder[0]), _lock_bytes(queue, client_id))
                else:
                    continue
                holders[queue] = (client_id, now_ms)
                locked.append(queue)
        finally:
            self._end_if_empty(group)
        return locked

    def _end_if_empty(self, group: str) -> None:
        if not self._holders[group]:
            del self._holders[group]
            self.ledger.free(_GROUP_BYTES + text_bytes(group))

    def validate(self) -> None:
        """Check that no group is without a lock, and that the ledger agrees."""
        require(all(self._holders.values()), "a group holds nothing")
        groups = [_GROUP_BYTES + text_bytes(group) for group in self._holders]
        locks = [
            _lock_bytes(queue, client_id)
            for holders in self._holders.values()
            for queue, (client_id, _) in holders.items()
        ]
        self.ledger.validate(groups + locks)

    def renew_all(self, is_alive: Callable[[str, str], bool]) -> None:
        """Renew the locks of every holder for which ``is_alive(group, client_id)``. For code that moves the clock
        faster than clients can follow."""
        now_ms = self._clock.monotonic_ms()
        for group, holders in self._holders.items():
            for queue, (client_id, _) in holders.items():
                if is_alive(group, client_id):
                    holders[queue] = (client_id, now_ms)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock the client's queues; other clients' locks stay."""
        holders = self._holders.get(group)
        if holders is None:
            return
        for queue in queues:
            if (holder := holders.get(queue)) is not None and holder[0] == client_id:
                del holders[queue]
                self._free(group, queue, client_id)
        self._end_if_empty(group)

    def _free(self, group: str, queue: MessageQueue, client_id: str) -> None:
        self.ledger.free(_lock_bytes(queue, client_id))
        owners = self._owners.get(group)
        if owners is not None:
            self.ledger.shares.release(owners.pop(queue, NOBODY), _owned_bytes(group, queue))
            if not owners:
                del self._owners[group]

    def holders(self) -> dict[str, dict[MessageQueue, str]]:
        """group → queue → client id of every lock in the table."""
        return {
            group: {queue: client_id for queue, (client_id, _) in holders.items()}
            for group, holders in self._holders.items()
        }

    def is_held(self, group: str) -> bool:
        """Whether a client of the group holds any lock that has not expired."""
        oldest_ms = self._clock.monotonic_ms() - self._config.rebalance_lock_max_live_time
        holders = self._holders.get(group, {})
        return any(renewed_ms >= oldest_ms for _, renewed_ms in holders.values())

    def expire(self) -> Work[None]:
        """Remove expired locks, so that short-lived groups do not accumulate."""
        oldest_ms = self._clock.monotonic_ms() - self._config.rebalance_lock_max_live_time
        done = 0
        for group in list(self._holders):
            for queue in list(self._holders.get(group, ())):
                holders = self._holders.get(group, {})
                if queue in holders and holders[queue][1] < oldest_ms:
                    self._free(group, queue, holders.pop(queue)[0])
                    self._end_if_empty(group)
                done += 1
                if done % EXPIRED_AT_ONCE == 0:
                    yield


def _owned_bytes(group: str, queue: MessageQueue) -> int:
    """What a lock takes of its user's share, whichever client of the group holds it."""
    return _GROUP_BYTES + _LOCK_BYTES + text_bytes(group, queue.topic, queue.broker_name)


def _lock_bytes(queue: MessageQueue, client_id: str) -> int:
    return _LOCK_BYTES + text_bytes(queue.topic, queue.broker_name, client_id)
