"""The replicas of every broker: their ids, the master and its epoch, and the SyncStateSet (ReplicasInfoManager,
BrokerReplicaInfo, SyncStateInfo).

Liveness is decided elsewhere and passed in. Every change increments ``generation``; others may learn of a change only
when the state of its generation is durable. Unlike RocketMQ, the table refuses a broker id beyond the next one, a new
address for a replica that is alive at another one, and the removal of all members of a SyncStateSet while other
replicas stay. A removed master is deposed.

A set that has fewer members than its master wants before it acknowledges anything remembers who had everything until
then: they may still become master (KIP-966, Eligible Leader Replicas).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mqspark.base.bounded import ENTRY_BYTES, Ledger, text_bytes
from mqspark.base.config import INT64_MAX
from mqspark.base.names import is_address, is_sound
from mqspark.protocol.bodies.replica_bodies import MAX_REPLICAS
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.header import I32, I64

FIRST_ID = 1
NOBODY = 0
"""The id of no replica: in ``ReplicaSet.to_hear`` it stands for replicas that are not known."""
IMPOSSIBLE_EPOCH = 1 << 30
"""No group has had so many masters, or SyncStateSets: such an epoch is damage."""
MAX_CODE_LENGTH = MAX_STATE_ID_LENGTH = 512
MAX_DAMAGE_LENGTH, MAX_INCARNATION_LENGTH = 300, 64
_REPLICA_BYTES = 1_500
"""Memory of a replica in this table and in the table of live replicas."""


class KnownReplica(msgspec.Struct, rename="camel", omit_defaults=True):
    address: str
    check_code: str
    """The code that the broker sent when it applied for its id. It proves that the id belongs to the broker."""
    incarnation: str = ""
    """The incarnation of its process, as it said last; empty for brokers that do not say it."""
    proved: str = ""
    """The incarnation that was counted in last."""
    damage: str = ""
    """Why its log cannot be trusted, as it says; '' when it can."""


class ReplicaSet(msgspec.Struct, rename="camel"):
    """All replicas of one broker name."""

    cluster: str
    next_id: I64
    master: I64 | None
    master_epoch: I32
    in_sync: frozenset[I64]
    in_sync_epoch: I32
    replicas: dict[I64, KnownReplica]
    name: str = ""
    least: I32 = 0
    """With fewer members the master acknowledges nothing (its minInSyncReplicas); 0 if it does not say it."""
    eligible: frozenset[I64] = frozenset()
    """Who had everything when the set shrank below ``least``; empty once it has as many members again."""
    confirmed: I64 = 0
    """All members have the log up to here, as a master has said: everything that was acknowledged."""
    confirmed_epoch: I32 = -1
    """The epoch of the byte before ``confirmed``."""
    unclean_epoch: I32 = 0
    """The last epoch whose master an operator has chosen although it lacked messages; 0 without one."""
    to_hear: frozenset[I64] = frozenset()
    """Replicas that may know newer decisions than this state; empty if it is not in doubt."""

    @classmethod
    def new(cls, cluster: str, name: str) -> ReplicaSet:
        return cls(cluster, FIRST_ID, None, 0, frozenset(), 0, {}, name)

    def has_restarted(self, broker_id: int) -> bool:
        """Whether its process is not the one that was counted in."""
        replica = self.replicas[broker_id]
        return replica.incarnation != replica.proved

    @property
    def heirs(self) -> frozenset[int]:
        """Who has everything that was acknowledged, as long as their logs are whole."""
        return self.in_sync | self.eligible

    def address(self, broker_id: int | None) -> str | None:
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address

    def validate(self) -> None:
        """Raises ValueError for an impossible state."""
        if self.master is not None and self.master not in self.in_sync:
            raise ValueError(f"{self.name}: the master {self.master} is not in the SyncStateSet")
        if not self.heirs <= self.replicas.keys() or self.in_sync & self.eligible:
            raise ValueError(f"{self.name}: the SyncStateSet has unknown replicas")
        if any(not FIRST_ID <= broker_id < self.next_id for broker_id in self.replicas):
            raise ValueError(f"{self.name}: an id was never assigned")


class _SavedTable(msgspec.Struct, rename="camel"):
    state_id: str
    sets: dict[str, ReplicaSet]


IsAlive = Callable[[str, int], bool]


class ReplicaTable:
    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self.ledger = Ledger("replicas", max_bytes, "ReplicaTable._sets", setting="maxReplicaTableBytes")
        self._sets: dict[str, ReplicaSet] = {}
        self.generation = 0
        self.state_id = ""
        """What tells this state from that of other controllers; '' before it has one."""
        self.has_unsaved_ends = False
        """Whether confirmed ends have moved that no change has saved. They move all the time, and a controller that
        knows older ones hears the members before it relies on them."""

    # --- the file ---

    def load(self, data: bytes) -> None:
        """Raises ValueError."""
        try:
            saved = msgspec.json.decode(data, type=_SavedTable)
        except msgspec.ValidationError:  # an earlier version has saved only the sets
            saved = _SavedTable("", msgspec.json.decode(data, type=dict[str, ReplicaSet]))
        self.state_id = saved.state_id[:MAX_STATE_ID_LENGTH]
        for name, found in saved.sets.items():
            found.name = name
            if not (name and is_sound(name) and found.cluster and is_sound(found.cluster)):
                raise ValueError(f"an illegal name: {name[:80]!r}")
            if not all(is_address(each.address) for each in found.replicas.values()):
                raise ValueError(f"{name}: an illegal address")
            found.validate()
            self._sets[name] = found
            for each in found.replicas.values():
                self.ledger.note(_size(found, each))

    def snapshot(self) -> bytes:
        sets = msgspec.to_builtins(self._sets, order="deterministic")
        for each in sets.values():
            del each["name"]  # it is the key
        return msgspec.json.encode({"stateId": self.state_id, "sets": sets})

    def name(self, state_id: str) -> None:
        """Give the state an identity, which it keeps."""
        self.state_id = state_id
        self.generation += 1

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
            found = ReplicaSet.new(cluster, name)
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
        moved = msgspec.structs.replace(replica, address=address)
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
        least: int = 0,
    ) -> None:
        """Replace the SyncStateSet, as reported by the master of this epoch. ``confirms``: an unchanged set is accepted
        and gets a new epoch. ``least``: with fewer members the master acknowledges nothing from now on. Raises Refusal;
        RocketMQ checks in the same order."""
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
            if member != master and (damage := found.replicas[member].damage):
                raise Refusal(
                    ResponseCode.CONTROLLER_INVALID_REPLICAS,
                    f"{rejecting} the replicas {{{member}}} have reported damage: {damage}",
                )
        if found.master not in wanted:
            raise Refusal(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"{rejecting} the newSyncStateSet don't contains origin leader {{{found.master}}}",
            )
        for member in wanted - found.in_sync:
            self._prove(found.replicas[member])
        found.least = least
        self._put_members(found, wanted)

    @staticmethod
    def _prove(replica: KnownReplica) -> None:
        """It is counted in as it runs now."""
        replica.proved = replica.incarnation

    def _put_members(self, found: ReplicaSet, members: frozenset[int]) -> None:
        before = found.heirs
        found.in_sync = members
        found.eligible = before - members if len(members) < found.least else frozenset()
        found.in_sync_epoch += 1
        self.generation += 1

    def leave(self, found: ReplicaSet, broker_id: int) -> None:
        """A member has to be counted in anew. The last one stays: nobody else has more."""
        if broker_id in found.in_sync and len(found.in_sync) > 1:
            self._put_members(found, found.in_sync - {broker_id})

    def confirm(self, found: ReplicaSet, end: int, epoch: int) -> None:
        """All members have the log up to ``end``. It is saved with the next change; see ``has_unsaved_ends``."""
        if end > found.confirmed and epoch >= found.confirmed_epoch:
            found.confirmed, found.confirmed_epoch = end, epoch
            self.has_unsaved_ends = True

    def give_up(self, found: ReplicaSet, end: int, epoch: int) -> None:
        """An operator has chosen the master, whose log ends there, although it may lack what is confirmed."""
        found.unclean_epoch = found.master_epoch
        found.confirmed, found.confirmed_epoch = min(found.confirmed, end), min(found.confirmed_epoch, epoch)
        self.generation += 1

    def save_ends(self) -> None:
        """Let the confirmed ends be saved now."""
        self.has_unsaved_ends = False
        self.generation += 1

    def report(self, found: ReplicaSet, broker_id: int, incarnation: str, damage: str) -> None:
        """What a replica says of itself. ``damage``: why its log cannot be trusted, or ''."""
        replica = found.replicas[broker_id]
        said = incarnation[:MAX_INCARNATION_LENGTH], damage[:MAX_DAMAGE_LENGTH]
        if said != (replica.incarnation, replica.damage):
            replica.incarnation, replica.damage = said
            self.generation += 1

    def doubt(self, found: ReplicaSet, epoch: int, set_epoch: int, members: frozenset[int]) -> None:
        """A broker knows a newer epoch, or a newer SyncStateSet. Nobody leads, and who may lead is one of its
        ``members``; of all replicas if it does not know them. All have to be heard, and are judged by their logs."""
        known = frozenset(found.replicas)
        strangers = frozenset() if members or found.master_epoch else frozenset({NOBODY})
        before = found.to_hear - {NOBODY} if members else found.to_hear
        found.to_hear = before | known | members | strangers
        found.master = None
        found.master_epoch = max(found.master_epoch, epoch)
        if members:
            found.in_sync_epoch = max(found.in_sync_epoch, set_epoch)
        found.in_sync, found.eligible = (members & known) or known, frozenset()
        for replica in found.replicas.values():
            replica.proved = ""
        self.generation += 1

    def set_master(self, found: ReplicaSet, master: int | None, *, above: int = 0) -> None:
        """Set the master, which starts alone in the SyncStateSet. Without a master the set stays: only its members may
        become master again. The epoch is a new one, also when it comes after ``above``."""
        if master is None and found.master is None:
            return
        found.master = master
        found.master_epoch = max(found.master_epoch, above) + 1
        self.generation += 1
        if master is not None:
            found.to_hear = frozenset()
            self._prove(found.replicas[master])
            if master not in found.heirs:  # the others have messages that it lacks
                found.in_sync = found.eligible = frozenset()
            self._put_members(found, frozenset({master}))

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
            found.eligible -= removed
            found.to_hear -= removed
            if found.in_sync & removed:
                found.in_sync -= removed
                found.in_sync_epoch += 1
            if found.master in removed:
                self.set_master(found, None)
        self.generation += 1


def _size(owner: ReplicaSet, replica: KnownReplica) -> int:
    texts = text_bytes(owner.name, owner.cluster, replica.address, replica.check_code)
    return _REPLICA_BYTES + ENTRY_BYTES + texts
