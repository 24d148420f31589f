"""Which replicas are alive, by their heartbeats, and which of them is the best master (DefaultBrokerHeartbeatManager,
DefaultElectPolicy).

A replica that has not been heard since the start of this process counts as a candidate for nothing, but a master is
not deposed before it had the time of one timeout to be heard. Several controllers hear all the time, also those that
do not lead. Time in which this process itself stood still is nobody's
silence. What a replica says last is true of it: a smaller offset after a truncation replaces a larger one, which
RocketMQ would keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mqspark.clock import Clock
from mqspark.config import INT32_MAX
from mqspark.controller.replicasets import ReplicaSet, ReplicaTable
from mqspark.protocol.headers.cluster_headers import BrokerHeartbeatRequestHeader
from mqspark.protocol.session import Session

__all__ = ["LiveReplica", "Liveness"]

DEFAULT_TIMEOUT_MS = 10_000
MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 100, 600_000
"""A heartbeat's own timeout is kept within these."""
STOOD_STILL_MS = 1_000
"""A gap between two looks at the clock that is longer by this was a pause of this process."""


@dataclass(slots=True)
class LiveReplica:
    session: Session | None
    """None: not heard since the start."""
    last_seen_ms: int
    timeout_ms: int
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    priority: int = INT32_MAX
    address: str = ""
    """Where it says that it is."""

    @property
    def expires_ms(self) -> int:
        """From then on it is silent for too long."""
        return self.last_seen_ms + self.timeout_ms + 1

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The smallest is the best master."""
        return -self.epoch, -self.max_offset, -self.confirm_offset, self.priority


Key = tuple[str, int]


class Liveness:
    """``look_ms``: how often the owner looks at the clock at least."""

    def __init__(self, clock: Clock, look_ms: int) -> None:
        self._clock = clock
        self._look_ms = look_ms
        self._looked_ms = self._since_ms = clock.monotonic_ms()
        self._live: dict[Key, LiveReplica] = {}

    def __len__(self) -> int:
        return len(self._live)

    def know(self, table: ReplicaTable) -> None:
        """From now on this controller decides for the replicas of ``table``, and for no others. Their masters count
        as if they had been heard when this process started."""
        self.now_ms()
        self.keep_only(table)
        for name, found in table.sets.items():
            if found.master is not None:
                self._live.setdefault(
                    (name, found.master), LiveReplica(None, self._since_ms, DEFAULT_TIMEOUT_MS)
                )

    def now_ms(self) -> int:
        """The time, after the time in which this process stood still was added to everybody's last sign of life."""
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._looked_ms - self._look_ms
        self._looked_ms = now_ms
        if late_ms > STOOD_STILL_MS:
            self._since_ms = min(now_ms, self._since_ms + late_ms)
            for live in self._live.values():
                live.last_seen_ms = min(now_ms, live.last_seen_ms + late_ms)
        return now_ms

    def heard(self, session: Session, broker_id: int, header: BrokerHeartbeatRequestHeader) -> int:
        """The time at which it will have been silent for too long, if it is not heard again."""
        timeout_ms = header.heartbeat_timeout_mills
        live = self._live[header.broker_name, broker_id] = LiveReplica(
            session=session,
            last_seen_ms=self.now_ms(),
            timeout_ms=DEFAULT_TIMEOUT_MS
            if timeout_ms is None
            else min(max(timeout_ms, MIN_TIMEOUT_MS), MAX_TIMEOUT_MS),
            epoch=-1 if header.epoch is None else header.epoch,
            max_offset=-1 if header.max_offset is None else header.max_offset,
            confirm_offset=-1 if header.confirm_offset is None else header.confirm_offset,
            priority=INT32_MAX if header.election_priority is None else header.election_priority,
            address=header.broker_addr,
        )
        return live.expires_ms

    def knows(self, name: str, broker_id: int) -> bool:
        """Whether it has an entry, which a heartbeat would replace."""
        return (name, broker_id) in self._live

    def is_alive(self, name: str, broker_id: int) -> bool:
        """Whether it was heard within its timeout."""
        live = self._live.get((name, broker_id))
        return live is not None and live.session is not None and self._is_fresh(live)

    def may_be_alive(self, name: str, broker_id: int | None) -> bool:
        """As ``is_alive``, or it had no time to be heard since the start."""
        live = None if broker_id is None else self._live.get((name, broker_id))
        return live is not None and self._is_fresh(live)

    def _is_fresh(self, live: LiveReplica) -> bool:
        return self.now_ms() < live.expires_ms

    def lost(self, session: Session) -> list[Key]:
        """Forget those that were heard over this connection last, and return them."""
        return self._forget(key for key, live in self._live.items() if live.session is session)

    def expired(self) -> list[Key]:
        """Forget those that are silent for too long, and return them."""
        return self._forget(key for key, live in self._live.items() if not self._is_fresh(live))

    def next_expiry_ms(self, interval_ms: int) -> int:
        """When to look for silent replicas next: after the interval, or when the first one may be silent for too
        long."""
        now_ms = self.now_ms()
        ends = (live.expires_ms for live in self._live.values())
        return min(max(now_ms + 1, min(ends, default=now_ms + interval_ms)), now_ms + interval_ms)

    def keep_only(self, table: ReplicaTable) -> None:
        """Forget replicas that were removed, or were heard from elsewhere than where the table has them."""
        self._forget(
            (name, broker_id)
            for (name, broker_id), live in self._live.items()
            if (found := table.get(name)) is None
            or broker_id not in found.replicas
            or (live.session is not None and live.address != found.address(broker_id))
        )

    def _forget(self, keys: Iterable[Key]) -> list[Key]:
        gone = list(keys)
        for key in gone:
            del self._live[key]
        return gone

    def choose(self, found: ReplicaSet, preferred: int | None, *, unclean: bool) -> int | None:
        """The master that this set should have: the old one while it lives and nobody else is asked for, the one that
        is asked for, or the best; None when there is no candidate. ``unclean``: also outside the SyncStateSet, when
        nobody of it will do."""
        old = found.master
        if preferred in (None, old) and old in found.in_sync and self.may_be_alive(found.name, old):
            return old
        for pool in (found.in_sync, found.replicas.keys() if unclean else ()):
            alive = {each: self._live[found.name, each] for each in pool if self.is_alive(found.name, each)}
            if preferred is None and alive:
                return min(alive, key=lambda each: (alive[each].rank, each))
            if preferred in alive:
                return preferred
        return None
