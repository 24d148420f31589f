"""The slaves of a master: what each has of the log, what it is sent next, and when enough of them have a message
(DefaultHAService, DefaultHAConnection, GroupTransferService).

A slave receives only what consumers may see, so under SYNC_FLUSH no power cut leaves it ahead of its master. A
slave reports its position. One that asks for a position outside this log, or claims more than it was sent, has a
different log and is disconnected. (RocketMQ waits until its own log has grown that far, and sends what follows.)

Must not know sockets.

Facts: docs/rocketmq/replication.md#acknowledgement.
"""

from __future__ import annotations

from mqspark.base.clock import Clock
from mqspark.base.config import INT64_MAX
from mqspark.broker.config import BrokerConfig, BrokerRole
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.halink import HaLink
from mqspark.errors import ProtocolError, TooFewReplicas
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.replica_bodies import HAConnectionRuntimeInfo, HARuntimeInfo
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, ok
from mqspark.protocol.servers.haframes import Reports, data_head
from mqspark.protocol.session import Session
from mqspark.store.store import MessageStore

_SYNC_MASTER = BrokerRole.SYNC_MASTER
"""To look up a member of an enumeration takes longer than all else that a turn asks here."""


class Replica(HaLink):
    """One connection of a slave; created by ``Replicas.connect``."""

    def __init__(self, address: str, config: BrokerConfig, store: MessageStore, clock: Clock) -> None:
        super().__init__(config, clock)
        self.heard_ms = self._said_ms = clock.monotonic_ms()
        self.address = address
        self._store = store
        self._reports = Reports()
        self._next: int | None = None
        self.acked = -1
        """What it has of the log; -1 before its first report."""

    def received(self, data: bytes) -> None:
        """Raises ProtocolError if it cannot be a slave of this log."""
        self.heard_ms = self._clock.monotonic_ms()
        for position in self._reports.receive_data(data):
            self._reported(position)

    def _reported(self, position: int) -> None:
        if self._next is None:
            self._next = self._first(position)
        elif position > self._next:
            raise ProtocolError(f"it reports {position} bytes of the log but was sent {self._next}")
        self.acked = position

    def _first(self, position: int) -> int:
        """The start position for a slave at ``position``; an empty slave gets only the newest segment."""
        store = self._store
        if position == 0:
            return max(store.log.min_offset, store.log.newest_segment_start)
        if not store.log.min_offset <= position <= store.pipeline.stored_end:
            raise ProtocolError(
                f"it asks for the log from {position} on, but the log here spans {store.log.min_offset} to"
                f" {store.pipeline.stored_end}"
            )
        return position

    def data(self, limit_bytes: int) -> list[bytes | memoryview]:
        """The next bytes to send: about ``limit_bytes`` of new log in frames of at most haTransferBatchSize, or a
        heartbeat with the log's position when nothing was sent for haSendHeartbeatInterval.

        Raises ProtocolError if that part of the log was deleted, OSError if it cannot be mapped.
        """
        out: list[bytes | memoryview] = []
        if self._next is None:
            return out
        store, position, end = self._store, self._next, self._next + limit_bytes
        if position < store.log.min_offset:
            raise ProtocolError(f"it is at {position} of the log, which now starts at {store.log.min_offset}")
        while position < end:
            part = store.reads.log_from(position, self._most_bytes(position))
            if not part:
                break
            out += (self._head(position, len(part)), part)
            position += len(part)
        now_ms = self._clock.monotonic_ms()
        if not out and now_ms - self._said_ms >= self._beat_ms:
            out.append(self._head(position, 0))
        if out:
            self._said_ms = now_ms
            self._copied_bytes += position - self._next
            self._next = position
        return out

    def _most_bytes(self, position: int) -> int:
        """The length of the frame that begins at ``position``."""
        return self._config.ha_transfer_batch_size

    def _head(self, position: int, size: int) -> bytes:
        return data_head(position, size)

    @property
    def is_in_sync(self) -> bool:
        """It lacks less than haMaxGapNotInSync."""
        lacking = self._store.log.position - self.acked
        return self.acked >= 0 and lacking < self._config.ha_max_gap_not_in_sync

    def info(self) -> HAConnectionRuntimeInfo:
        return HAConnectionRuntimeInfo(
            addr=self.address,
            slave_ack_offset=max(0, self.acked),
            diff=self._store.log.position - max(0, self.acked),
            in_sync=self.is_in_sync,
            transferred_byte_in_second=self.bytes_per_s,
            transfer_from_where=self._next or 0,
        )


class Replicas:
    def __init__(
        self, config: BrokerConfig, store: MessageStore, clock: Clock, follower: Follower | None = None
    ) -> None:
        """``follower``: set when this broker is a slave itself."""
        self._config = config
        self._store = store
        self._clock = clock
        self._follower = follower
        self._all: list[Replica] = []
        self.may_lack = config.broker_role is _SYNC_MASTER
        """Whether less may be confirmed than this broker has. Else there is no ``shortage``, either."""
        self.handlers: dict[int, Handler] = {RequestCode.GET_BROKER_HA_STATUS: self.status}

    def connect(self, address: str) -> Replica:
        replica = self._new(address)
        self._all.append(replica)
        return replica

    def _new(self, address: str) -> Replica:
        return Replica(address, self._config, self._store, self._clock)

    def disconnect(self, replica: Replica) -> None:
        self._all.remove(replica)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def following(self) -> int:
        """The number of slaves that have reported what they have."""
        return sum(replica.acked >= 0 for replica in self._all)

    @property
    def behind_bytes(self) -> int:
        """What the slave lacks of the log that lacks most of it; 0 without slaves."""
        end = self._store.log.position
        return max((end - max(0, replica.acked) for replica in self._all), default=0)

    @property
    def in_sync(self) -> int:
        """The number of brokers that are in sync, this one included."""
        return 1 + sum(replica.is_in_sync for replica in self._all)

    @property
    def confirmed(self) -> int:
        """The log position that as many brokers have as a SYNC_MASTER waits for, this broker included: never fewer
        than minInSyncReplicas. (RocketMQ may acknowledge with fewer, once a slave has left.)"""
        config = self._config
        if config.broker_role is not _SYNC_MASTER:
            return INT64_MAX
        needed = config.in_sync_replicas
        if config.all_ack_in_sync_state_set:
            needed = max(needed, self.in_sync)
        elif config.enable_auto_in_sync_replicas:
            needed = min(needed, self.in_sync)
        slaves = max(needed, config.min_in_sync_replicas) - 1
        if slaves <= 0:
            return INT64_MAX
        if len(self._all) < slaves:
            return -1
        confirmed = sorted((replica.acked for replica in self._all), reverse=True)[slaves - 1]
        if config.all_ack_in_sync_state_set:
            return min([confirmed, *(replica.acked for replica in self._all if replica.is_in_sync)])
        return confirmed

    @property
    def gates_readers(self) -> bool:
        """Whether consumers see only what is confirmed (DefaultMessageStore.getConfirmOffset)."""
        config = self._config
        return config.broker_role is _SYNC_MASTER and config.all_ack_in_sync_state_set

    @property
    def is_sure(self) -> bool:
        """Whether messages may be read now."""
        return True

    @property
    def shortage(self) -> TooFewReplicas | None:
        """Why a SYNC_MASTER accepts no message now: fewer than minInSyncReplicas are in sync."""
        config = self._config
        if config.broker_role is not _SYNC_MASTER:
            return None
        in_sync = self.in_sync
        if self._store.pipeline.unconfirmed_bytes > config.ha_max_gap_not_in_sync:
            return TooFewReplicas(in_sync, max(config.in_sync_replicas, config.min_in_sync_replicas))
        return (
            None
            if in_sync >= config.min_in_sync_replicas
            else TooFewReplicas(in_sync, config.min_in_sync_replicas)
        )

    def status(self, session: Session, command: Command) -> bytes:
        if self._follower is not None:
            info = HARuntimeInfo(master=False, ha_client_runtime_info=self._follower.info())
            return ok(command, None, encode_body(info))
        info = HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=self._store.log.position,
            in_sync_slave_nums=self.in_sync - 1,
            ha_connection_info=[replica.info() for replica in self._all],
        )
        return ok(command, None, encode_body(info))
