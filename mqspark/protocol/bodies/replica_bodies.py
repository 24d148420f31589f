"""Replication and the controller."""

from __future__ import annotations

from msgspec import field

from mqspark.base.config import INT64_MAX
from mqspark.protocol.bodies.body import Body
from mqspark.protocol.bodies.topic_bodies import BrokerMemberGroup
from mqspark.protocol.headers.header import I32, I64

MAX_REPLICAS = 64
"""Limit of replicas per broker name."""


class SyncStateSet(Body):
    """Controller ids of the replicas that are in sync, and the epoch of that set."""

    sync_state_set: list[I64] = []
    sync_state_set_epoch: I32 = 0


class ElectMasterResponseBody(Body):
    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[I64] = []


class ReplicaIdentity(Body):
    broker_name: str = ""
    broker_id: I64 = 0
    broker_address: str = ""
    alive: bool = False


class ReplicasInfo(Body):
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 = 0
    sync_state_set_epoch: I32 = 0
    in_sync_replicas: list[ReplicaIdentity] = []
    not_in_sync_replicas: list[ReplicaIdentity] = []


class BrokerReplicasInfo(Body):
    """Answer to request 1006."""

    replicas_info_table: dict[str, ReplicasInfo] = {}


class EpochEntry(Body):
    epoch: I32 = 0
    start_offset: I64 = 0
    end_offset: I64 = INT64_MAX


class EpochEntryCache(Body):
    """Answer to request 1007."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: I64 = 0
    epoch_list: list[EpochEntry] = []
    max_offset: I64 = 0


class HAConnectionRuntimeInfo(Body):
    addr: str = ""
    slave_ack_offset: I64 = 0
    diff: I64 = 0
    in_sync: bool = False
    transferred_byte_in_second: I64 = 0
    transfer_from_where: I64 = 0


class HAClientRuntimeInfo(Body):
    master_addr: str | None = None
    transferred_byte_in_second: I64 = 0
    max_offset: I64 = 0
    last_read_timestamp: I64 = 0
    last_write_timestamp: I64 = 0
    master_flush_offset: I64 = 0


class HARuntimeInfo(Body):
    master: bool = False
    master_commit_log_max_offset: I64 = 0
    in_sync_slave_nums: I32 = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = []
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)
