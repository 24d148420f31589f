"""The headers between brokers, name servers and controllers, and of what is asked of those two."""

from __future__ import annotations

from mqspark.protocol.headers.header import I32, I64, Header, TopicHeader

# --- name server -----------------------------------------------------------------------------------------


class RegisterBrokerRequestHeader(Header):
    """Request 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0


class RegisterBrokerResponseHeader(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header):
    """Request 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class BrokerHeartbeatRequestHeader(Header):
    """Request 904."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    heartbeat_timeout_mills: I64 | None = None
    election_priority: I32 | None = None
    incarnation: str | None = None
    """Extension of this project, as the following ones: different after each start of the broker's process."""
    damage: str | None = None
    """Why the log of this broker cannot be trusted; absent when it can."""
    confirm_epoch: I32 | None = None
    """The epoch of the byte before ``confirm_offset``."""
    known_epoch: I32 | None = None
    """The newest master's epoch that this broker knows of, from a controller or from its log."""
    known_set_epoch: I32 | None = None
    """The epoch of the SyncStateSet that it knows, and its members: ``1;2;3``."""
    known_set: str | None = None
    silences: str | None = None
    """``1=200;3=4100``: for how many milliseconds this broker has not heard its master, or a master its slaves."""
    reaches: str | None = None
    """Who has answered it, of those that the controller asked it to try."""
    damaged_bytes: I64 | None = None
    """Bytes of its log, below its end, that hold no valid record and are to be healed from another replica."""


class BrokerHeartbeatResponseHeader(Header):
    """Answer of a controller to request 904: an extension of this project. RocketMQ's answers have no header."""

    master_epoch: I32 | None = None
    """The newest epoch that the controller knows."""
    state_id: str | None = None
    """As in the answer to request 1005."""
    tries: str | None = None
    """``2=10.0.0.2:10911;3=...``: replicas that the broker should try to reach."""


class QueryDataVersionRequestHeader(Header):
    """Request 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class GetRouteInfoRequestHeader(TopicHeader):
    """Request 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class GetTopicsByClusterRequestHeader(Header):
    """Request 224."""

    cluster: str


class DeleteTopicFromNamesrvRequestHeader(TopicHeader):
    """Request 216."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequestHeader(TopicHeader):
    """Request 217."""

    topic: str


class WipeWritePermOfBrokerRequestHeader(Header):
    """Request 205."""

    broker_name: str


class AddWritePermOfBrokerRequestHeader(Header):
    """Request 327."""

    broker_name: str


class PutKVConfigRequestHeader(Header):
    """Request 100."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header):
    """Request 101."""

    namespace: str
    key: str


class DeleteKVConfigRequestHeader(Header):
    """Request 102."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(Header):
    """Request 219."""

    namespace: str


class GetBrokerMemberGroupRequestHeader(Header):
    """Request 901."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChangeRequestHeader(Header):
    """Request 905."""

    min_broker_id: I64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


# --- brokers among themselves, container -----------------------------------------------------------------


class ExchangeHAInfoRequestHeader(Header):
    """Request 906. The fields of this project are questions of a slave about the log
    (``broker.replication.loghealing``)."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None
    mqspark_want: str | None = None
    """``checksum`` or ``bytes`` of a range of the log, or ``give``: the body has them."""
    mqspark_low: I64 | None = None
    mqspark_size: I32 | None = None
    mqspark_replica: I64 | None = None
    """The broker id of the slave."""
    mqspark_doubt: I64 | None = None
    """A place at which the slave got no valid record."""


class ExchangeHAInfoResponseHeader(Header):
    """Answer to request 906. All absent: the broker is not a master."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffsetHeader(Header):
    """Request 908."""

    master_flush_offset: I64


class AddBrokerRequestHeader(Header):
    """Request 902."""

    config_path: str | None = None


class RemoveBrokerRequestHeader(Header):
    """Request 903."""

    broker_name: str
    broker_cluster_name: str
    broker_id: I64


# --- controller ------------------------------------------------------------------------------------------


class AlterSyncStateSetRequestHeader(Header):
    """Request 1001."""

    broker_name: str | None = None
    master_broker_id: I64 | None = None
    master_epoch: I32 | None = None
    invoke_time: I64 = 0
    confirms: bool | None = None
    """Extension of this project, ignored by RocketMQ's controllers: an unchanged set gets a new epoch, too, so that
    earlier requests can no longer be granted."""
    min_in_sync_replicas: I32 | None = None
    """Extension of this project: with fewer members this master acknowledges nothing."""
    confirm_offset: I64 | None = None
    """Extension of this project: as in the heartbeat, with ``confirm_epoch`` and ``known_epoch``."""
    confirm_epoch: I32 | None = None
    known_epoch: I32 | None = None


class ElectMasterRequestHeader(Header):
    """Request 1002."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: I64 = -1
    designate_elect: bool = False
    invoke_time: I64 = 0


class RegisterBrokerToControllerRequestHeader(Header):
    """Request 1003."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: I64 | None = None
    broker_address: str | None = None
    invoke_time: I64 = 0
    incarnation: str | None = None
    """Extension of this project, as ``damage`` and ``known_epoch``: as in the heartbeat."""
    damage: str | None = None
    known_epoch: I32 | None = None


class GetReplicaInfoRequestHeader(Header):
    """Request 1004."""

    broker_name: str | None = None
    known_epoch: I32 | None = None
    """Extension of this project: as in the heartbeat."""


class NotifyBrokerRoleChangedRequestHeader(Header):
    """Request 1008."""

    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None
    master_broker_id: I64 | None = None


class CleanControllerBrokerDataRequestHeader(Header):
    """Request 1011."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: I64 = 0


class GetNextBrokerIdRequestHeader(Header):
    """Request 1012."""

    cluster_name: str | None = None
    broker_name: str | None = None


class ApplyBrokerIdRequestHeader(Header):
    """Request 1013."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: I64 | None = None
    register_check_code: str | None = None


class AlterSyncStateSetResponseHeader(Header):
    new_sync_state_set_epoch: I32 = 0


class ElectMasterResponseHeader(Header):
    """Also sent with code 2011, then with the master that stays. All fields absent: no master was elected."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None
    min_in_sync_replicas: I32 | None = None
    """Extension of this project: the controller counts on it that a master with fewer members acknowledges nothing."""
    unclean_epoch: I32 | None = None
    """Extension of this project: the last epoch whose master an operator has chosen although it lacked messages."""


class RegisterBrokerToControllerResponseHeader(Header):
    """No master fields: there is no master, or it is not alive."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None
    min_in_sync_replicas: I32 | None = None
    """As in the answer to an election, and ``unclean_epoch``."""
    unclean_epoch: I32 | None = None


class GetReplicaInfoResponseHeader(Header):
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    min_in_sync_replicas: I32 | None = None
    """As in the answer to an election, and ``unclean_epoch``."""
    unclean_epoch: I32 | None = None


class GetMetaDataResponseHeader(Header):
    """Answer to request 1005."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    """``id:host:port;…``, also with a semicolon at the end."""
    state_id: str | None = None
    """Extension of this project: which state this controller decides by. Controllers that share one say the same."""


class GetNextBrokerIdResponseHeader(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: I64 | None = None


class ApplyBrokerIdResponseHeader(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
