"""The replicas of every broker: their ids, the master and its epoch, and the SyncStateSet (ReplicasInfoManager,
BrokerReplicaInfo, SyncStateInfo).

Liveness is decided elsewhere and passed in. Every change increments ``generation``; others may learn of a change only
when the state of its generation is durable. Unlike RocketMQ, the table refuses a broker id beyond the next one, a new
address for a replica that is alive at another one, and the removal of all members of a SyncStateSet while other
replicas stay. A removed master is deposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from mqspark.bounded import ENTRY_BYTES, Ledger, text_bytes
from mqspark.config import INT64_MAX
from mqspark.names import is_address, is_sound
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.header import I32, I64

__all__ = ["FIRST_ID", "KnownReplica", "ReplicaSet", "ReplicaTable"]

FIRST_ID = 1
MAX_REPLICAS = 64
"""Limit of replicas per broker name."""
MAX_CODE_LENGTH = 512
_REPLICA_BYTES = 1_000
"""Memory of a replica in this table and in the table of live replicas."""


@dataclass(slots=True)
class KnownReplica:
    address: str
    check_code: str
    """The code that the broker sent when it applied for its id. It proves that the id belongs to the broker."""


@dataclass(slots=True)
class ReplicaSet:
    """All replicas of one broker name."""

    cluster: str
    name: str
    next_id: int = FIRST_ID
    master: int | None = None
    master_epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = 0
    replicas: dict[int, KnownReplica] = field(default_factory=dict)

    def address(self, broker_id: int | None) -> str | None:
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address

    def validate(self) -> None:
        """Raises ValueError for an impossible state."""
        if self.master is not None and self.master not in self.in_sync:
            raise ValueError(f"{self.name}: the master {self.master} is not in the SyncStateSet")
        if not self.in_sync <= self.replicas.keys():
            raise ValueError(f"{self.name}: the SyncStateSet has unknown replicas")
        if any(not FIRST_ID <= broker_id < self.next_id for broker_id in self.replicas):
            raise ValueError(f"{self.name}: an id was never assigned")


class _SavedReplica(msgspec.Struct, rename="camel"):
    address: str
    check_code: str


class _SavedSet(msgspec.Struct, rename="camel"):
    cluster: str
    next_id: I64
    master: I64 | None
    master_epoch: I32
    in_sync: list[I64]
    in_sync_epoch: I32
    replicas: dict[I64, _SavedReplica]


IsAlive = Callable[[str, int], bool]


class ReplicaTable:
    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self.ledger = Ledger("replicas", max_bytes, "ReplicaTable._sets", setting="maxReplicaTableBytes")
        self._sets: dict[str, ReplicaSet] = {}
        self.generation = 0

    # --- the file ---

    def load(self, data: bytes) -> None:
        """Raises ValueError."""
        saved = msgspec.json.decode(data, type=dict[str, _SavedSet])
        for name, one in saved.items():
            replicas = {
                key: KnownReplica(each.address, each.check_code) for key, each in one.replicas.items()
            }
            if not (name and is_sound(name) and one.cluster and is_sound(one.cluster)):
                raise ValueError(f"an illegal name: {name[:80]!r}")
            if not all(is_address(each.address) for each in replicas.values()):
                raise ValueError(f"{name}: an illegal address")
            found = ReplicaSet(
                one.cluster,
                name,
                one.next_id,
                one.master,
                one.master_epoch,
                frozenset(one.in_sync),
                one.in_sync_epoch,
                replicas,
            )
            found.validate()
            self._sets[name] = found
            for each in replicas.values():
                self.ledger.note(_size(found, each))

    def snapshot(self) -> bytes:
        return msgspec.json.encode(
            {
                name: _SavedSet(
                    cluster=one.cluster,
                    next_id=one.next_id,
                    master=one.master,
                    master_epoch=one.master_epoch,
                    in_sync=sorted(one.in_sync),
                    in_sync_epoch=one.in_sync_epoch,
                    replicas={
                        key: _SavedReplica(each.address, each.check_code)
                        for key, each in one.replicas.items()
                    },
                )
                for name, one in self._sets.items()
            }
        )

    # --- queries ---

    @property
    def sets(self) -> Mapping[str, ReplicaSet]:
        return self._sets

    def get(self, name: str | None) -> ReplicaSet | None:
        return self._sets.get(name or "")

    # --- ids and addresses ---

    def apply_id(self, cluster: str, name: str, broker_id: int, check_code: str) -> None:
        """Assign an id to a broker. Repeating an application changes nothing. Raises Refusal and TableFull."""
        address = check_code.partition(";")[0]
        if len(check_code) > MAX_CODE_LENGTH or not check_code.isprintable() or not is_address(address):
            raise Refusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"The check code of an id is address;time, not {check_code[:80]!r}",
            )
        found = self._sets.get(name)
        if found is None:
            if broker_id != FIRST_ID:
                raise Refusal(
                    ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                    f"Broker-set: {name} hasn't been registered in controller, but broker try to apply brokerId:"
                    f" {broker_id}",
                )
            found = ReplicaSet(cluster, name)
        elif cluster != found.cluster:
            raise Refusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Broker-set: {name} belongs to the cluster {found.cluster}",
            )
        known = found.replicas.get(broker_id)
        if known is not None and known.check_code == check_code:
            return
        if known is not None or not FIRST_ID <= broker_id <= found.next_id or broker_id == INT64_MAX:
            raise Refusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Fail to apply brokerId: {broker_id} in broker-set: {name}",
            )
        if len(found.replicas) >= MAX_REPLICAS:
            raise self.ledger.refuse(len(found.replicas), MAX_REPLICAS, "a constant", of=f" of {name}")
        replica = KnownReplica(address, check_code)
        self.ledger.charge(_size(found, replica))
        found.replicas[broker_id] = replica
        found.next_id = max(found.next_id, broker_id + 1)
        self._sets[name] = found
        self.generation += 1

    def move(self, found: ReplicaSet, broker_id: int, address: str, is_alive: bool) -> None:
        """A replica has a new address. Raises Refusal while it is alive at the old one, because then its files were
        copied."""
        replica = found.replicas[broker_id]
        if replica.address == address:
            return
        if is_alive:
            raise Refusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"BrokerId: {broker_id} of broker-set: {found.name} is alive at {replica.address}",
            )
        moved = KnownReplica(address, replica.check_code)
        self.ledger.resize(_size(found, replica), _size(found, moved))
        found.replicas[broker_id] = moved
        self.generation += 1

    # --- the SyncStateSet ---

    def alter(
        self,
        found: ReplicaSet,
        master: int | None,
        master_epoch: int | None,
        members: Iterable[int],
        in_sync_epoch: int,
        is_alive: IsAlive,
        *,
        confirms: bool = False,
    ) -> None:
        """Replace the SyncStateSet, as reported by the master of this epoch. ``confirms``: an unchanged set is accepted
        and gets a new epoch. Raises Refusal; RocketMQ checks in the same order."""
        wanted = frozenset(members)
        rejecting = "Rejecting alter syncStateSet request because"
        is_same = wanted == found.in_sync
        if is_same and not confirms:
            raise Refusal(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
            )
        if found.master is None or found.master != master:
            raise Refusal(
                ResponseCode.CONTROLLER_INVALID_MASTER,
                f"{rejecting} the current leader is:{{{found.master}}}, not {{{master}}}",
            )
        if found.master_epoch != master_epoch:
            raise Refusal(
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"{rejecting} the current master epoch is:{{{found.master_epoch}}}, not {{{master_epoch}}}",
            )
        if found.in_sync_epoch != in_sync_epoch:
            raise Refusal(
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
                f"{rejecting} the current syncStateSet epoch is:{{{found.in_sync_epoch}}}, not {{{in_sync_epoch}}}",
            )
        for member in () if is_same else sorted(wanted):
            if member not in found.replicas:
                raise Refusal(
                    ResponseCode.CONTROLLER_INVALID_REPLICAS,
                    f"{rejecting} the replicas {{{member}}} don't exist",
                )
            if not is_alive(found.name, member):
                raise Refusal(
                    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                    f"{rejecting} the replicas {{{member}}} don't alive",
                )
        if found.master not in wanted:
            raise Refusal(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"{rejecting} the newSyncStateSet don't contains origin leader {{{found.master}}}",
            )
        found.in_sync = wanted
        found.in_sync_epoch += 1
        self.generation += 1

    def set_master(self, found: ReplicaSet, master: int | None, *, above: int = 0) -> None:
        """Set the master, which starts alone in the SyncStateSet. Without a master the set stays: only its members may
        become master again. The epoch is a new one, also when it comes after ``above``."""
        if master is None and found.master is None:
            return
        found.master = master
        found.master_epoch = max(found.master_epoch, above) + 1
        if master is not None:
            found.in_sync = frozenset({master})
            found.in_sync_epoch += 1
        self.generation += 1

    # --- removal ---

    def clean(self, name: str, broker_ids: frozenset[int], *, living: bool, is_alive: IsAlive) -> None:
        """Remove these replicas, or all if none are given. Raises Refusal."""
        found = self._sets.get(name)
        refused = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        if found is None:
            raise Refusal(refused, f"Broker {name} is not existed,clean broker data failure.")
        if not living:
            if not broker_ids and found.master is not None:
                raise Refusal(refused, f"Broker {name} is still alive, clean up failure")
            for broker_id in sorted(broker_ids or found.replicas):
                if is_alive(name, broker_id):
                    raise Refusal(refused, f"Broker [{name},  {broker_id}] is still alive, clean up failure")
        removed = found.replicas.keys() & broker_ids if broker_ids else set(found.replicas)
        left = found.replicas.keys() - removed
        if left and found.in_sync and not found.in_sync - removed:
            raise Refusal(
                refused,
                f"Broker {name}: only {sorted(found.in_sync)} have all messages; clean up failure. Elect another"
                " master first, or remove all replicas",
            )
        for broker_id in removed:
            self.ledger.free(_size(found, found.replicas.pop(broker_id)))
        if not left:
            del self._sets[name]
        elif removed:
            if found.in_sync & removed:
                found.in_sync -= removed
                found.in_sync_epoch += 1
            if found.master in removed:
                self.set_master(found, None)
        self.generation += 1


def _size(owner: ReplicaSet, replica: KnownReplica) -> int:
    texts = text_bytes(owner.name, owner.cluster, replica.address, replica.check_code)
    return _REPLICA_BYTES + ENTRY_BYTES + texts
