"""The typed headers of the remoting protocol: the content of ``extFields``, one class for each RocketMQ
header class.

Attributes are in snake case, wire names in camel case (``org.apache.rocketmq.remoting.protocol.header``).
Every value is sent as text; absent and None are the same. A field without a default is mandatory.
``SendMessageRequestHeaderV2`` has one-letter wire names but the attribute names of
``SendMessageRequestHeader``, so that a handler takes either.

Offsets, timestamps (ms) and broker ids are I64, the other integers I32. A value out of its range is
malformed.

Must not know frames or commands (``mqspark.protocol.command``).

Facts: docs/rocketmq/protocol.md#values.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, field
from msgspec.structs import astuple

from mqspark.errors import ProtocolError
from mqspark.protocol.codes import RequestCode

I32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
I64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

H = TypeVar("H", bound="Header")


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of all headers."""


class RpcHeader(Header, kw_only=True):
    """Base of headers with the routing fields of RpcRequestHeader."""

    ns: str | None = None
    """Namespace."""
    nsd: bool | None = None
    """Whether the names already include the namespace."""
    bname: str | None = None
    """Broker name."""
    oway: bool | None = None


class TopicHeader(RpcHeader, kw_only=True):
    """Base of headers that address a topic (TopicRequestHeader)."""

    lo: bool | None = None
    """Whether the queue id is one of a static topic."""


def to_ext(header: Header) -> dict[str, str]:
    """The header as ``extFields``: text only, without fields that are None."""
    ext = {}
    for wire, value in zip(header.__struct_encode_fields__, astuple(header), strict=True):
        if value is None:
            continue
        if value is True:
            ext[wire] = "true"
        elif value is False:
            ext[wire] = "false"
        else:
            ext[wire] = str(value)
    return ext


def from_texts(header_type: type[H], ext: Mapping[str, str]) -> H | None:
    """Decode the fields of a binary header. None when only ``from_ext`` may be able to read them."""
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError:
        return None


def from_ext(header_type: type[H], ext: Mapping[str, str]) -> H:
    """Decode as RocketMQ parses text. Raises ProtocolError, which names the missing or malformed field."""
    values: dict[str, Any] = {}
    for item in _fields(header_type):
        text = ext.get(item.wire)
        if text is None:
            if item.required:
                raise ProtocolError(f"{header_type.__name__}: the mandatory field {item.label} is missing")
            continue
        try:
            values[item.attribute] = item.parse(text)
        except ValueError:
            raise ProtocolError(
                f"{header_type.__name__}: field {item.label} is malformed: {text[:80]!r}"
            ) from None
    return header_type(**values)


class _Field(NamedTuple):
    attribute: str
    wire: str
    required: bool
    parse: Callable[[str], Any]

    @property
    def label(self) -> str:
        return f"{self.wire!r}" if len(self.wire) > 1 else f"{self.wire!r} ({self.attribute})"


def _parse_bool(text: str) -> bool:
    # The same as in the fast decoders. The C++ client writes 1 for true. RocketMQ reads that as false and
    # stores each of its batches as one unreadable message.
    return text == "1" or text.lower() == "true"


def _parse_i32(text: str) -> int:
    return _parse_int(text, 1 << 31)


def _parse_i64(text: str) -> int:
    return _parse_int(text, 1 << 63)


def _parse_int(text: str, bound: int) -> int:
    # int() alone would accept blanks and underscores, and its cost is quadratic in the length.
    digits = text[1:] if text[:1] in ("-", "+") else text
    if len(digits) > 20 or not (digits.isascii() and digits.isdigit()):
        raise ValueError(text)
    value = int(text)
    if not -bound <= value < bound:
        raise ValueError(text)
    return value


_PARSERS: dict[Any, Callable[[str], Any]] = {str: str, bool: _parse_bool, I32: _parse_i32, I64: _parse_i64}


@functools.cache
def json_decoder(header_type: type[H]) -> Callable[[msgspec.Raw], H]:
    """A decoder for the JSON of ``extFields``. When it raises MsgspecError, ``from_ext`` may still succeed."""
    return msgspec.json.Decoder(header_type, strict=False).decode


@functools.cache
def _fields(header_type: type[Header]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(header_type, include_extras=True)
    fields = []
    for info in msgspec.structs.fields(header_type):
        hint = hints[info.name]
        if typing.get_origin(hint) is types.UnionType or typing.get_origin(hint) is typing.Union:
            hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        fields.append(_Field(info.name, info.encode_name, info.required, _PARSERS[hint]))
    return tuple(fields)


# --- sending ---------------------------------------------------------------------------------------------


class SendMessageRequestHeader(TopicHeader):
    """Requests 10 and 324."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: I32 | None = None


class SendMessageRequestHeaderV2(Header):
    """Requests 310, 320 and 325."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: I32 = field(name="d")
    queue_id: I32 = field(name="e")
    sys_flag: I32 = field(name="f")
    born_timestamp: I64 = field(name="g")
    flag: I32 = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: I32 | None = field(default=None, name="j")
    unit_mode: bool | None = field(default=None, name="k")
    max_reconsume_times: I32 | None = field(default=None, name="l")
    batch: bool | None = field(default=None, name="m")
    bname: str | None = field(default=None, name="n")
    lo: bool | None = None
    ns: str | None = None
    nsd: bool | None = None
    oway: bool | None = None


class SendMessageResponseHeader(Header):
    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class ReplyMessageRequestHeader(TopicHeader):
    """Request 326."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str
    store_host: str
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False
    store_timestamp: I64 = 0


class RecallMessageRequestHeader(TopicHeader):
    """Request 370."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(Header):
    msg_id: str


class ConsumerSendMsgBackRequestHeader(RpcHeader):
    """Request 36."""

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class EndTransactionRequestHeader(RpcHeader):
    """Request 37."""

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(RpcHeader):
    """Request 39."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header):
    """Request 323."""

    topic: str | None = None
    msg_id: str | None = None


# --- pulling and looking up ------------------------------------------------------------------------------


class PullMessageRequestHeader(TopicHeader):
    """Requests 11 and 361."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    sub_version: I64
    lite_topic: str | None = None
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_froward_client_id: str | None = None
    mqspark_bulk: bool | None = None
    """Extension of this project, ignored by RocketMQ's brokers: read up to maxTransferBytesOnBulkRead."""


class PullMessageResponseHeader(Header):
    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


class QueryMessageRequestHeader(TopicHeader):
    """Request 12."""

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    index_type: str | None = None
    last_key: str | None = None


class QueryMessageResponseHeader(Header):
    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


class ViewMessageRequestHeader(Header):
    """Request 33."""

    offset: I64
    topic: str | None = None


# --- offsets ---------------------------------------------------------------------------------------------


class QueryConsumerOffsetRequestHeader(TopicHeader):
    """Request 14."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(Header):
    offset: I64


class UpdateConsumerOffsetRequestHeader(TopicHeader):
    """Request 15."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class SearchOffsetRequestHeader(TopicHeader):
    """Request 29."""

    topic: str
    queue_id: I32
    timestamp: I64
    lite_topic: str | None = None
    boundary_type: str | None = None


class SearchOffsetResponseHeader(Header):
    offset: I64


class GetMaxOffsetRequestHeader(TopicHeader):
    """Request 30."""

    topic: str
    queue_id: I32
    committed: bool = True
    mqspark_queues: bool | None = None
    """Extension of this project, ignored by RocketMQ's brokers: the body names queues (``QueuesOfTopics``), and the
    answer's body has the offset of each (``OffsetsOfQueues``)."""


class GetMaxOffsetResponseHeader(Header):
    offset: I64


class GetMinOffsetRequestHeader(TopicHeader):
    """Request 31."""

    topic: str
    queue_id: I32
    mqspark_queues: bool | None = None
    """As in ``GetMaxOffsetRequestHeader``."""


class GetMinOffsetResponseHeader(Header):
    offset: I64


class GetEarliestMsgStoretimeRequestHeader(TopicHeader):
    """Request 32."""

    topic: str
    queue_id: I32


class ResetOffsetRequestHeader(TopicHeader):
    """Requests 220 and 222."""

    group: str
    topic: str
    queue_id: I32 = -1
    offset: I64 | None = None
    timestamp: I64 = 0
    is_force: bool = False


class CloneGroupOffsetRequestHeader(RpcHeader):
    """Request 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffsetHeader(TopicHeader):
    """Request 308."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


# --- clients and groups ----------------------------------------------------------------------------------


class HeartbeatRequestHeader(RpcHeader):
    """Request 34."""


class UnregisterClientRequestHeader(RpcHeader):
    """Request 35."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(RpcHeader):
    """Request 38."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(RpcHeader):
    """Request 40."""

    consumer_group: str


class LockBatchMqRequestHeader(RpcHeader):
    """Request 41."""


class UnlockBatchMqRequestHeader(RpcHeader):
    """Request 42."""


class GetConsumerStatusRequestHeader(TopicHeader):
    """Requests 221 and 223."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(RpcHeader):
    """Request 307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(TopicHeader):
    """Request 309."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class GetConsumerConnectionListRequestHeader(RpcHeader):
    """Request 203."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(RpcHeader):
    """Request 204."""

    producer_group: str


class GetAllProducerInfoRequestHeader(Header):
    """Request 328."""


# --- POP -------------------------------------------------------------------------------------------------


class PopMessageRequestHeader(TopicHeader):
    """Request 200050."""

    consumer_group: str
    topic: str
    queue_id: I32 = 0
    max_msg_nums: I32 = 0
    invisible_time: I64 = 0
    poll_time: I64 = 0
    born_time: I64 = 0
    init_mode: I32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResponseHeader(Header):
    pop_time: I64 = 0
    invisible_time: I64 = 0
    revive_qid: I32 = 0
    rest_num: I64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(TopicHeader):
    """Request 200051."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(TopicHeader):
    """Request 200053."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponseHeader(Header):
    pop_time: I64 = 0
    invisible_time: I64 = 0
    revive_qid: I32 = 0


class PeekMessageRequestHeader(TopicHeader):
    """Request 200052."""

    topic: str
    consumer_group: str
    queue_id: I32 = 0
    max_msg_nums: I32 = 0


class NotificationRequestHeader(TopicHeader):
    """Request 200054."""

    consumer_group: str
    topic: str
    queue_id: I32 = 0
    poll_time: I64 = 0
    born_time: I64 = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header):
    has_msg: bool = False
    polling_full: bool = False


class PollingInfoRequestHeader(TopicHeader):
    """Request 200055."""

    consumer_group: str
    topic: str
    queue_id: I32 = 0


class PollingInfoResponseHeader(Header):
    polling_num: I32 = 0


# --- topics and subscription groups ----------------------------------------------------------------------


class CreateTopicRequestHeader(TopicHeader):
    """Request 17."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


class CreateTopicListRequestHeader(RpcHeader):
    """Request 18."""


class DeleteTopicRequestHeader(TopicHeader):
    """Request 215."""

    topic: str


class GetTopicConfigRequestHeader(TopicHeader):
    """Request 351."""

    topic: str


class GetAllTopicConfigRequestHeader(Header):
    """Request 21."""

    topic_seq: I32 | None = None
    data_version: str | None = None
    max_topic_num: I32 | None = None


class DeleteSubscriptionGroupRequestHeader(RpcHeader):
    """Request 207."""

    group_name: str
    clean_offset: bool = False


class GetSubscriptionGroupConfigRequestHeader(RpcHeader):
    """Request 352."""

    group: str


class GetAllSubscriptionGroupRequestHeader(Header):
    """Request 201."""

    group_seq: I32 | None = None
    data_version: str | None = None
    max_group_num: I32 | None = None


class UpdateGroupForbiddenRequestHeader(TopicHeader):
    """Request 353."""

    group: str
    topic: str
    readable: bool | None = None


# --- administration --------------------------------------------------------------------------------------


class GetTopicStatsInfoRequestHeader(TopicHeader):
    """Request 202."""

    topic: str


class GetConsumeStatsRequestHeader(TopicHeader):
    """Request 208."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(Header):
    """Request 317."""

    is_order: bool = False


class QueryTopicConsumeByWhoRequestHeader(TopicHeader):
    """Request 300."""

    topic: str


class QueryConsumeTimeSpanRequestHeader(TopicHeader):
    """Request 303."""

    topic: str
    group: str


class QueryConsumeQueueRequestHeader(TopicHeader):
    """Request 321."""

    topic: str | None = None
    queue_id: I32 = 0
    index: I64 = 0
    count: I32 = 0
    consumer_group: str | None = None


class QueryTopicsByConsumerRequestHeader(RpcHeader):
    """Request 343."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(TopicHeader):
    """Request 345."""

    group: str
    topic: str | None = None


class ViewBrokerStatsDataRequestHeader(Header):
    """Request 315."""

    stats_name: str
    stats_key: str


class CheckRocksdbCqWriteProgressRequestHeader(Header):
    """Request 354."""

    topic: str
    check_store_time: I64 = 0


class ExportRocksDBConfigToJsonRequestHeader(Header):
    """Request 355."""

    config_type: str


class CreateUserRequestHeader(Header):
    """Request 3001."""

    username: str | None = None


class UpdateUserRequestHeader(Header):
    """Request 3002."""

    username: str | None = None


class DeleteUserRequestHeader(Header):
    """Request 3003."""

    username: str | None = None


class GetUserRequestHeader(Header):
    """Request 3004."""

    username: str | None = None


class ListUsersRequestHeader(Header):
    """Request 3005."""

    filter: str | None = None


class CreateAclRequestHeader(Header):
    """Request 3006."""

    subject: str | None = None


class UpdateAclRequestHeader(Header):
    """Request 3007."""

    subject: str | None = None


class DeleteAclRequestHeader(Header):
    """Request 3008."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class GetAclRequestHeader(Header):
    """Request 3009."""

    subject: str | None = None


class ListAclsRequestHeader(Header):
    """Request 3010."""

    subject_filter: str | None = None
    resource_filter: str | None = None


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
    """Request 906."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


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


class GetReplicaInfoRequestHeader(Header):
    """Request 1004."""

    broker_name: str | None = None


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
    """Also with code 2011, which names the master that stays. All absent: nobody was elected."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


class RegisterBrokerToControllerResponseHeader(Header):
    """No master: there is none, or it is not alive."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


class GetReplicaInfoResponseHeader(Header):
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None


class GetMetaDataResponseHeader(Header):
    """Answer to request 1005."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    """``id:host:port;…``, with a semicolon at the end, too."""


class GetNextBrokerIdResponseHeader(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: I64 | None = None


class ApplyBrokerIdResponseHeader(Header):
    cluster_name: str | None = None
    broker_name: str | None = None


REQUEST_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessageRequestHeader,
    RequestCode.PULL_MESSAGE: PullMessageRequestHeader,
    RequestCode.QUERY_MESSAGE: QueryMessageRequestHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetRequestHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffsetRequestHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopicRequestHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: CreateTopicListRequestHeader,
    RequestCode.GET_ALL_TOPIC_CONFIG: GetAllTopicConfigRequestHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetRequestHeader,
    RequestCode.GET_MAX_OFFSET: GetMaxOffsetRequestHeader,
    RequestCode.GET_MIN_OFFSET: GetMinOffsetRequestHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: GetEarliestMsgStoretimeRequestHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageRequestHeader,
    RequestCode.HEART_BEAT: HeartbeatRequestHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClientRequestHeader,
    RequestCode.CONSUMER_SEND_MSG_BACK: ConsumerSendMsgBackRequestHeader,
    RequestCode.END_TRANSACTION: EndTransactionRequestHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupRequestHeader,
    RequestCode.CHECK_TRANSACTION_STATE: CheckTransactionStateRequestHeader,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: NotifyConsumerIdsChangedRequestHeader,
    RequestCode.LOCK_BATCH_MQ: LockBatchMqRequestHeader,
    RequestCode.UNLOCK_BATCH_MQ: UnlockBatchMqRequestHeader,
    RequestCode.PUT_KV_CONFIG: PutKVConfigRequestHeader,
    RequestCode.GET_KV_CONFIG: GetKVConfigRequestHeader,
    RequestCode.DELETE_KV_CONFIG: DeleteKVConfigRequestHeader,
    RequestCode.REGISTER_BROKER: RegisterBrokerRequestHeader,
    RequestCode.UNREGISTER_BROKER: UnRegisterBrokerRequestHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRouteInfoRequestHeader,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GetAllSubscriptionGroupRequestHeader,
    RequestCode.GET_TOPIC_STATS_INFO: GetTopicStatsInfoRequestHeader,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: GetConsumerConnectionListRequestHeader,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: GetProducerConnectionListRequestHeader,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermOfBrokerRequestHeader,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteSubscriptionGroupRequestHeader,
    RequestCode.GET_CONSUME_STATS: GetConsumeStatsRequestHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: DeleteTopicRequestHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: DeleteTopicFromNamesrvRequestHeader,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: RegisterTopicRequestHeader,
    RequestCode.GET_KVLIST_BY_NAMESPACE: GetKVListByNamespaceRequestHeader,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetRequestHeader,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: GetConsumerStatusRequestHeader,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetRequestHeader,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatusRequestHeader,
    RequestCode.GET_TOPICS_BY_CLUSTER: GetTopicsByClusterRequestHeader,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: QueryTopicConsumeByWhoRequestHeader,
    RequestCode.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpanRequestHeader,
    RequestCode.GET_CONSUMER_RUNNING_INFO: GetConsumerRunningInfoRequestHeader,
    RequestCode.QUERY_CORRECTION_OFFSET: QueryCorrectionOffsetHeader,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectlyResultRequestHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.CLONE_GROUP_OFFSET: CloneGroupOffsetRequestHeader,
    RequestCode.VIEW_BROKER_STATS_DATA: ViewBrokerStatsDataRequestHeader,
    RequestCode.GET_BROKER_CONSUME_STATS: GetConsumeStatsInBrokerHeader,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestHeaderV2,
    RequestCode.QUERY_CONSUME_QUEUE: QueryConsumeQueueRequestHeader,
    RequestCode.QUERY_DATA_VERSION: QueryDataVersionRequestHeader,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResumeCheckHalfMessageRequestHeader,
    RequestCode.SEND_REPLY_MESSAGE: SendMessageRequestHeader,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: ReplyMessageRequestHeader,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: AddWritePermOfBrokerRequestHeader,
    RequestCode.GET_ALL_PRODUCER_INFO: GetAllProducerInfoRequestHeader,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: QueryTopicsByConsumerRequestHeader,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: QuerySubscriptionByConsumerRequestHeader,
    RequestCode.GET_TOPIC_CONFIG: GetTopicConfigRequestHeader,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GetSubscriptionGroupConfigRequestHeader,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: UpdateGroupForbiddenRequestHeader,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: CheckRocksdbCqWriteProgressRequestHeader,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: ExportRocksDBConfigToJsonRequestHeader,
    RequestCode.LITE_PULL_MESSAGE: PullMessageRequestHeader,
    RequestCode.RECALL_MESSAGE: RecallMessageRequestHeader,
    RequestCode.GET_BROKER_MEMBER_GROUP: GetBrokerMemberGroupRequestHeader,
    RequestCode.ADD_BROKER: AddBrokerRequestHeader,
    RequestCode.REMOVE_BROKER: RemoveBrokerRequestHeader,
    RequestCode.BROKER_HEARTBEAT: BrokerHeartbeatRequestHeader,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: NotifyMinBrokerIdChangeRequestHeader,
    RequestCode.EXCHANGE_BROKER_HA_INFO: ExchangeHAInfoRequestHeader,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: ResetMasterFlushOffsetHeader,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: AlterSyncStateSetRequestHeader,
    RequestCode.CONTROLLER_ELECT_MASTER: ElectMasterRequestHeader,
    RequestCode.CONTROLLER_REGISTER_BROKER: RegisterBrokerToControllerRequestHeader,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: GetReplicaInfoRequestHeader,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: NotifyBrokerRoleChangedRequestHeader,
    RequestCode.CLEAN_BROKER_DATA: CleanControllerBrokerDataRequestHeader,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: GetNextBrokerIdRequestHeader,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: ApplyBrokerIdRequestHeader,
    RequestCode.AUTH_CREATE_USER: CreateUserRequestHeader,
    RequestCode.AUTH_UPDATE_USER: UpdateUserRequestHeader,
    RequestCode.AUTH_DELETE_USER: DeleteUserRequestHeader,
    RequestCode.AUTH_GET_USER: GetUserRequestHeader,
    RequestCode.AUTH_LIST_USER: ListUsersRequestHeader,
    RequestCode.AUTH_CREATE_ACL: CreateAclRequestHeader,
    RequestCode.AUTH_UPDATE_ACL: UpdateAclRequestHeader,
    RequestCode.AUTH_DELETE_ACL: DeleteAclRequestHeader,
    RequestCode.AUTH_GET_ACL: GetAclRequestHeader,
    RequestCode.AUTH_LIST_ACL: ListAclsRequestHeader,
    RequestCode.POP_MESSAGE: PopMessageRequestHeader,
    RequestCode.ACK_MESSAGE: AckMessageRequestHeader,
    RequestCode.PEEK_MESSAGE: PeekMessageRequestHeader,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeRequestHeader,
    RequestCode.NOTIFICATION: NotificationRequestHeader,
    RequestCode.POLLING_INFO: PollingInfoRequestHeader,
}
"""The header class of every request code that has one."""
