"""Which replicas are alive, by their heartbeats, and whether a set needs another master
(DefaultBrokerHeartbeatManager).

A replica that has sent no heartbeat since the start of this process is not a candidate for master. A master is not
deposed before it had one timeout to send a heartbeat. With several controllers, all receive heartbeats, not only the
leader. Time in which this process itself was paused does not count as silence. The last heartbeat of a replica counts:
a smaller offset after a truncation replaces a larger one, which RocketMQ would keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mqspark.base.clock import Clock, Standstill
from mqspark.base.config import INT32_MAX
from mqspark.controller.replicasets import IMPOSSIBLE_EPOCH, ReplicaSet, ReplicaTable
from mqspark.controller.succession import Choice, choose
from mqspark.message import MAX_DIGITS
from mqspark.protocol.headers.cluster_headers import BrokerHeartbeatRequestHeader
from mqspark.protocol.servers.byid import decode_by_id, decode_ids
from mqspark.protocol.session import Session

DEFAULT_TIMEOUT_MS = 10_000
MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 100, 600_000
"""The timeout that a heartbeat asks for is kept within these limits."""


@dataclass(slots=True)
class LiveReplica:
    session: Session | None
    """None: no heartbeat since the start."""
    last_seen_ms: int
    timeout_ms: int
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    priority: int = INT32_MAX
    address: str = ""
    """The address in its last heartbeat."""
    silences_ms: Mapping[int, int] = field(default_factory=dict)
    """For how long it had not heard other replicas then."""
    reaches: frozenset[int] = frozenset()
    """Who had answered it then."""
    damaged_bytes: int = 0
    """Bytes of its log, which others have to heal."""

    @property
    def expires_ms(self) -> int:
        """The time at which its timeout passes."""
        return self.last_seen_ms + self.timeout_ms + 1

    @property
    def log_end(self) -> tuple[int, int]:
        """Position and epoch."""
        return max(0, self.max_offset), self.epoch

    @property
    def rank(self) -> tuple[int, int, int, int, int]:
        """Sort key: the replica with the smallest rank is the best master."""
        return -self.epoch, -self.max_offset, self.damaged_bytes, -self.confirm_offset, self.priority


Key = tuple[str, int]


class Liveness:
    """``look_ms``: the owner reads the clock at least this often."""

    def __init__(self, clock: Clock, look_ms: int) -> None:
        self._clock = clock
        self._standstill = Standstill(clock, look_ms)
        self._since_ms = clock.monotonic_ms()
        self._live: dict[Key, LiveReplica] = {}

    def __len__(self) -> int:
        return len(self._live)

    def know(self, table: ReplicaTable) -> None:
        """From now on this controller decides for the replicas of ``table``, and for no others. Their masters count as
        heard at the start of this process."""
        self.now_ms()
        self.keep_only(table)
        for name, found in table.sets.items():
            if found.master is not None:
                self._live.setdefault(
                    (name, found.master), LiveReplica(None, self._since_ms, DEFAULT_TIMEOUT_MS)
                )

    def now_ms(self) -> int:
        """The current time. If this process was paused, the length of the pause is first added to the last heartbeat of
        every replica."""
        now_ms = self._clock.monotonic_ms()
        late_ms = self._standstill.missed_ms(now_ms)
        if late_ms:
            self._since_ms = min(now_ms, self._since_ms + late_ms)
            for live in self._live.values():
                live.last_seen_ms = min(now_ms, live.last_seen_ms + late_ms)
        return now_ms

    def heard(self, session: Session, broker_id: int, header: BrokerHeartbeatRequestHeader) -> int:
        """Record a heartbeat. Returns the time at which the replica's timeout passes."""
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
            silences_ms={
                each: int(text)
                for each, text in decode_by_id(header.silences).items()
                if text.isdecimal() and len(text) < MAX_DIGITS
            },
            reaches=decode_ids(header.reaches),
            damaged_bytes=max(0, header.damaged_bytes or 0),
        )
        return live.expires_ms

    def knows(self, name: str, broker_id: int) -> bool:
        """Whether the replica has an entry."""
        return (name, broker_id) in self._live

    def is_alive(self, name: str, broker_id: int) -> bool:
        """Whether its last heartbeat is within its timeout."""
        live = self._live.get((name, broker_id))
        return live is not None and live.session is not None and self._is_fresh(live)

    def may_be_alive(self, name: str, broker_id: int | None) -> bool:
        """Whether it is alive, or had no time to send a heartbeat since the start."""
        live = None if broker_id is None else self._live.get((name, broker_id))
        return live is not None and self._is_fresh(live)

    def _is_fresh(self, live: LiveReplica) -> bool:
        return self.now_ms() < live.expires_ms

    def lost(self, session: Session) -> list[Key]:
        """Remove and return the replicas whose last heartbeat came over this connection."""
        return self._forget(key for key, live in self._live.items() if live.session is session)

    def expired(self) -> list[Key]:
        """Remove and return the replicas whose timeout has passed."""
        return self._forget(key for key, live in self._live.items() if not self._is_fresh(live))

    def next_expiry_ms(self, interval_ms: int) -> int:
        """When to check for expired replicas next: after the interval, or when the first timeout passes."""
        now_ms = self.now_ms()
        ends = (live.expires_ms for live in self._live.values())
        return min(max(now_ms + 1, min(ends, default=now_ms + interval_ms)), now_ms + interval_ms)

    def keep_only(self, table: ReplicaTable) -> None:
        """Remove replicas that are not in the table, or whose address differs from the table's."""
        self._forget(
            (name, broker_id)
            for (name, broker_id), live in self._live.items()
            if (found := table.get(name)) is None
            or broker_id not in found.replicas
            or (live.session is not None and live.address != found.address(broker_id))
        )

    def forget(self, name: str, broker_id: int) -> None:
        """Its process has ended: what it said last counts no longer."""
        self._live.pop((name, broker_id), None)

    def _forget(self, keys: Iterable[Key]) -> list[Key]:
        gone = list(keys)
        for key in gone:
            del self._live[key]
        return gone

    def newest_epoch(self, name: str) -> int:
        """The newest epoch that a replica says its log has; 0 without one."""
        heard = (live.epoch for (each, _), live in self._live.items() if each == name)
        return max((epoch for epoch in heard if epoch < IMPOSSIBLE_EPOCH), default=0)

    def standing(self, name: str, broker_id: int) -> LiveReplica | None:
        """What a replica that is alive has said in its last heartbeat; else None."""
        return self._live[name, broker_id] if self.is_alive(name, broker_id) else None

    def choose(self, found: ReplicaSet, preferred: int | None, *, unclean: bool) -> Choice:
        """The master that this set should have. ``preferred``, ``unclean``: as of ``succession.choose``. Without
        ``preferred`` the old master stays while it is alive, unless its process is another one. One that has reported
        damage stays only if nobody can replace it."""
        old = found.master
        alive = {
            each: standing
            for each in found.replicas
            if (standing := self.standing(found.name, each)) is not None
        }
        stays = False
        if old is not None and preferred in (None, old) and old in found.in_sync:
            stays = self.may_be_alive(found.name, old) and not found.has_restarted(old)
            if stays and not found.replicas[old].damage:
                return Choice(old)
        choice = choose(found, alive, preferred, unclean=unclean and not stays)
        return Choice(old) if stays and choice.master is None else choice
