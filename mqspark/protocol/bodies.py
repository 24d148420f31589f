"""The JSON bodies of requests and responses, one class for each RocketMQ body class in use.

``decode_body`` reads what real peers write, including fastjson's dialect. ``encode_body`` writes JSON with
quoted integer keys, which every peer reads. Attributes are in snake case, wire names in camel case. Absent
and null both mean the default. Unknown members are ignored.

Tables keyed by a message queue have the queue's JSON text as key here: ``queue_key`` and ``queue_of``
convert. On the wire the key is the bare object, ``{{"queueId":0,…}:42}``. RocketMQ writes this form, and it
is the only one that its versions with fastjson and those with fastjson2 both read (5.5.0 refuses the text as
a key). Enumerations are plain text; the names are in ConsumeType, MessageModel and ConsumeFromWhere.

Must not know how requests and responses are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import field

from mqspark.config import INT64_MAX
from mqspark.errors import FrameTooLarge, ProtocolError
from mqspark.message import MessageQueue, java_hash, split_tags
from mqspark.protocol import fastjson
from mqspark.protocol.codes import Language
from mqspark.protocol.connection import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from mqspark.protocol.headers import I32, I64
from mqspark.protocol.named import check_names
from mqspark.protocol.slices import Work

T = TypeVar("T")


class Body(msgspec.Struct, rename="camel"):
    """Base of all bodies. Attributes that are None are not written, all others are."""


def decode_body(body_type: type[T], body: bytes | bytearray | memoryview) -> T:
    """Decode a body. Raises ProtocolError when it is malformed, IllegalName when it contains an illegal
    name."""
    decoded = _decoded(body_type, body, fastjson.PEER)
    check_names(decoded)
    return decoded


def decode_table(body_type: type[T], body: bytes | bytearray | memoryview) -> T:
    """As ``decode_body``, without limits of size and names. For files, whose readers drop invalid rows.
    Raises ProtocolError."""
    return _decoded(body_type, body, fastjson.FILE)


def _decoded(body_type: type[T], body: bytes | bytearray | memoryview, limits: fastjson.Limits) -> T:
    text = bytes(body)
    fastjson.check_containers(text, limits)
    if b"$ref" not in text:
        try:
            decode: Callable[[bytes], T] = _decoder(body_type)
            return decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    document = _without_nulls(fastjson.loads(text, limits))
    if body_type is HeartbeatData:
        _name_ordinals(document)
    try:
        return msgspec.convert(document, body_type, strict=False, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(f"not a {body_type.__name__}: {error}") from None


def encode_body(body: object) -> bytes:
    """Compact JSON with sorted keys. Keys that are objects are written bare."""
    document = msgspec.to_builtins(body, str_keys=True)
    text = _encode(document)
    if b":null" in text:
        text = _encode(_without_nulls(document))
    return _OBJECT_AS_KEY.sub(_bare, text) if b'"{' in text else text


AT_ONCE = 256
"""Table entries encoded in one slice, including nested ones."""

JOINED_AT_ONCE = 1 << 20
"""Bytes of a body that is joined and made a frame in one slice."""

MAX_BODY_BYTES = MAX_FRAME_BYTES - MAX_HEADER_BYTES
"""Limit of a body: clients accept no longer frame."""


def encode_in_slices(body: Body, members: Mapping[str, bytes] | None = None) -> Work[bytes]:
    """``encode_body`` in slices, for a body whose tables may be large. Entries are sorted only within their
    slice. ``members``: members that are already encoded. Raises FrameTooLarge as soon as the limit is
    exceeded."""
    parts: list[bytes] = []
    size_bytes = 0

    def add(text: bytes) -> None:
        nonlocal size_bytes
        size_bytes += len(text)
        if size_bytes > MAX_BODY_BYTES:
            raise FrameTooLarge("answer", size_bytes, MAX_BODY_BYTES)
        parts.append(text)

    small: dict[str, Any] = {}
    large: dict[str, dict[Any, Any] | list[Any]] = {}
    for member in msgspec.structs.fields(body):
        value = getattr(body, member.name)
        if isinstance(value, (dict, list)) and _is_large(value):
            large[member.encode_name] = value
        else:
            small[member.encode_name] = value
    head = encode_body({name: value for name, value in small.items() if name not in (members or ())})
    add(head[:-1])
    comma = b"," if len(head) > 2 else b""
    for name, text in (members or {}).items():
        add(comma + b'"' + name.encode() + b'":')
        add(text)
        comma = b","
    for name, table in large.items():
        is_list = isinstance(table, list)
        add(comma + b'"' + name.encode() + (b'":[' if is_list else b'":{'))
        comma = b""
        for chunk in _chunks(table):
            add(comma + encode_body(chunk)[1:-1])
            comma = b","
            yield
        add(b"]" if is_list else b"}")
    add(b"}")
    if size_bytes > JOINED_AT_ONCE:
        yield  # the caller makes the frame, another copy
        text = b"".join(parts)
        parts.clear()
        yield
        return text
    return b"".join(parts)


def _weight(value: object) -> int:
    return 1 + len(value) if isinstance(value, (dict, list)) else 1


def _is_large(table: dict[Any, Any] | list[Any]) -> bool:
    if len(table) > AT_ONCE:
        return True
    return sum(map(_weight, table.values() if isinstance(table, dict) else table)) > AT_ONCE


def _chunks(table: dict[Any, Any] | list[Any]) -> Iterator[dict[Any, Any] | list[Any]]:
    """Chunks that are not empty and, unless they have a single entry, not heavier than AT_ONCE."""
    weight = 0
    if isinstance(table, list):
        some: list[Any] = []
        for item in table:
            some.append(item)
            weight += _weight(item)
            if weight >= AT_ONCE:
                yield some
                some, weight = [], 0
        if some:
            yield some
        return
    entries: dict[Any, Any] = {}
    for key in list(
        table
    ):  # a list of pairs would be one object a row, all at once: work for the garbage collector
        if key not in table:
            continue
        entries[key] = item = table[key]
        weight += _weight(item)
        if weight >= AT_ONCE:
            yield entries
            entries, weight = {}, 0
    if entries:
        yield entries


def to_document(body: object) -> Any:
    """The body as dicts and lists with integer keys, for ``fastjson.dumps_pretty``."""
    return _without_nulls(msgspec.to_builtins(body))


_encode = msgspec.json.Encoder(order="sorted").encode

_OBJECT_AS_KEY = re.compile(
    # Skips whole strings up to one that is a key and begins as ``queue_key`` does. A search for such a
    # beginning alone would match inside strings of peers, and search for the end again for each match.
    rb'((?:[^"]++|"(?!\{\\"brokerName\\":)(?:[^"\\]|\\.)*+"|"(?:[^"\\]|\\.)*+"(?!:))*+)'
    rb'(?:\Z|("(?:[^"\\]|\\.)*+"):)',
    re.DOTALL,
)


def _bare(match: re.Match[bytes]) -> bytes:
    passed, quoted = match.groups()
    if quoted is None:
        return bytes(passed)
    key: str = msgspec.json.decode(quoted)
    try:
        _decode_queue(key)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return match.group()  # text of a peer, which would not be JSON
    return b"%b%b:" % (passed, key.encode())


_decoders: dict[Any, Callable[[bytes], Any]] = {}


def _decoder(body_type: Any) -> Callable[[bytes], Any]:
    decode = _decoders.get(body_type)
    if decode is None:
        decode = _decoders[body_type] = msgspec.json.Decoder(body_type, strict=False).decode
    return decode


def _without_nulls(value: Any) -> Any:
    # A call for each number would dominate the cost.
    if isinstance(value, dict):
        return {
            key: _without_nulls(item) if isinstance(item, (dict, list)) else item
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [
            _without_nulls(item) if isinstance(item, (dict, list)) else item
            for item in value
            if item is not None
        ]
    return value


# --- queues -----------------------------------------------------------------------------------------------


class Queue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """A message queue inside a body. ``of`` and ``queue`` convert from and to ``MessageQueue``."""

    topic: str = ""
    broker_name: str = ""
    queue_id: I32 = 0

    @classmethod
    def of(cls, queue: MessageQueue) -> Queue:
        return cls(*queue)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


_decode_queue = msgspec.json.Decoder(Queue).decode


def queue_key(queue: MessageQueue) -> str:
    """The text form of a queue as a key."""
    return _encode(Queue.of(queue)).decode()


def queue_of(key: str) -> MessageQueue:
    """The reverse of ``queue_key``. Raises ProtocolError."""
    return decode_body(Queue, key.encode()).queue


# --- topics and routes ------------------------------------------------------------------------------------


class DataVersion(msgspec.Struct, rename="camel", frozen=True):
    state_version: I64 = 0
    timestamp: I64 = 0
    counter: I64 = 0


class TopicConfig(Body):
    topic_name: str = ""
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: dict[str, str] = {}


class TopicQueueMappingInfo(Body):
    """The part of a static topic on one broker."""

    topic: str | None = None
    scope: str = "__global__"
    total_queues: I32 = 0
    bname: str | None = None
    epoch: I64 = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = {}


class LogicQueueMappingItem(Body):
    gen: I32 = 0
    queue_id: I32 = 0
    bname: str | None = None
    logic_offset: I64 = 0
    start_offset: I64 = 0
    end_offset: I64 = -1
    time_of_start: I64 = -1
    time_of_end: I64 = -1


class TopicQueueMappingDetail(TopicQueueMappingInfo):
    hosted_queues: dict[int, list[LogicQueueMappingItem]] = {}


class TopicConfigSerializeWrapper(Body):
    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()


class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper):
    mapping_data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = {}
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = {}


class CreateTopicListRequestBody(Body):
    topic_config_list: list[TopicConfig] = []


class QueueData(Body):
    broker_name: str = ""
    read_queue_nums: I32 = 0
    write_queue_nums: I32 = 0
    perm: I32 = 0
    topic_sys_flag: I32 = 0


class BrokerData(Body):
    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = {}
    """Broker id (0 is the master) → ``address:port``."""
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicRouteData(Body):
    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMemberGroup(Body):
    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = {}


class GetBrokerMemberGroupResponseBody(Body):
    broker_member_group: BrokerMemberGroup | None = None


class KVTable(Body):
    table: dict[str, str] = {}


class TopicList(Body):
    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(Body):
    group_list: list[str] = []


class RegisterBrokerBody(Body):
    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = []


# --- clients ----------------------------------------------------------------------------------------------


class ConsumeType(StrEnum):
    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Who gets a message: every member of the group (BROADCASTING), or one of them (CLUSTERING)."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group begins in a queue of which it has committed nothing. RocketMQ treats the three middle names, which
    it no longer recommends, as CONSUME_FROM_LAST_OFFSET."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body):
    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[I32] = []
    sub_version: I64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


def build_subscription(
    topic: str, expression: str | None, expression_type: str | None = "TAG", version: int = 0
) -> SubscriptionData:
    """The subscription of a client. ``version``: time of subscribing in ms (FilterAPI)."""
    if expression_type and expression_type != "TAG":
        return SubscriptionData(
            topic=topic, sub_string=expression or "", sub_version=version, expression_type=expression_type
        )
    tags = split_tags(expression)
    return SubscriptionData(
        topic=topic,
        sub_string=expression or "*",
        tags_set=tags,
        code_set=sorted({java_hash(tag) for tag in tags}),
        sub_version=version,
    )


class ProducerData(Body):
    group_name: str = ""


class ConsumerData(Body):
    group_name: str = ""
    consume_type: str = ConsumeType.CONSUME_PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Body):
    client_id: str = field(default="", name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: I32 = 0
    without_sub: bool = False


_ORDINALS: dict[str, type[StrEnum]] = {
    "consumeType": ConsumeType,
    "messageModel": MessageModel,
    "consumeFromWhere": ConsumeFromWhere,
}


def _name_ordinals(heartbeat: Any) -> None:
    """Convert the enumerations of the C++ client, which sends ordinals. fastjson accepts these."""
    consumers = heartbeat.get("consumerDataSet") if isinstance(heartbeat, dict) else None
    for consumer in consumers if isinstance(consumers, list) else ():
        for name, enumeration in _ORDINALS.items() if isinstance(consumer, dict) else ():
            ordinal = consumer.get(name)
            if isinstance(ordinal, int) and 0 <= ordinal < len(enumeration):
                consumer[name] = str(list(enumeration)[ordinal])


class CheckClientRequestBody(Body):
    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class GetConsumerListByGroupResponseBody(Body):
    consumer_id_list: list[str] = []


class LockBatchRequestBody(Body):
    consumer_group: str | None = None
    client_id: str | None = None
    mq_set: list[Queue] = []
    only_this_broker: bool = False


class UnlockBatchRequestBody(LockBatchRequestBody):
    pass


class LockBatchResponseBody(Body):
    lock_ok_mq_set: list[Queue] = field(default_factory=list, name="lockOKMQSet")


class ConnectionInfo(Body):
    """One client of a group (Connection)."""

    client_id: str = ""
    client_addr: str = ""
    language: str = Language.JAVA.name
    version: I32 = 0


class ConsumerConnection(Body):
    connection_set: list[ConnectionInfo] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(Body):
    connection_set: list[ConnectionInfo] = []


class ProducerInfo(Body):
    client_id: str = ""
    remote_ip: str = field(default="", name="remoteIP")
    language: str = Language.JAVA.name
    version: I32 = 0
    last_update_timestamp: I64 = 0


class ProducerTableInfo(Body):
    data: dict[str, list[ProducerInfo]] = {}


# --- subscription groups ----------------------------------------------------------------------------------


class ExponentialRetryPolicy(Body):
    """Delays in ms."""

    initial: I64 = 5000
    max: I64 = 7_200_000
    multiplier: I64 = 2


class CustomizedRetryPolicy(Body):
    """``next`` holds the delays in ms."""

    next: list[I64] = []


class GroupRetryPolicy(Body):
    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(Body):
    topic: str = ""
    expression_type: str = "TAG"
    expression: str = "*"
    version: I64 = 0


class SubscriptionGroupConfig(Body):
    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: I32 = 1
    retry_max_times: I32 = 16
    group_retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: I32 = 0
    consume_timeout_minute: I32 = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = {}


class SubscriptionGroupWrapper(Body):
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] | None = None
    """Group → topic → bits."""
    data_version: DataVersion = DataVersion()


class SubscriptionGroupList(Body):
    group_config_list: list[SubscriptionGroupConfig] = []


class GroupForbidden(Body):
    topic: str | None = None
    group: str | None = None
    readable: bool | None = None


# --- offsets and statistics -------------------------------------------------------------------------------


class ConsumerOffsetSerializeWrapper(Body):
    offset_table: dict[str, dict[int, int]] = {}
    """``topic@group`` → queue id → offset."""
    data_version: DataVersion | None = None


class LmqConsumerOffsetSerializeWrapper(Body):
    """``lmqConsumerOffset.json``: offsets as above, and those of groups that read light message queues."""

    offset_table: dict[str, dict[int, int]] = {}
    lmq_offset_table: dict[str, int] = {}
    """``topic@group`` → offset."""
    data_version: DataVersion | None = None


class DelayOffsetSerializeWrapper(Body):
    offset_table: dict[int, int] = {}
    """Delay level → offset."""
    data_version: DataVersion | None = None


class ResetOffsetBody(Body):
    offset_table: dict[str, int] = {}
    """``queue_key`` → offset."""


class QueueOffsetForC(Body):
    topic: str = ""
    broker_name: str = ""
    queue_id: I32 = 0
    offset: I64 = 0


class ResetOffsetBodyForC(Body):
    """The form for clients of language CPP."""

    offset_table: list[QueueOffsetForC] = []


class GetConsumerStatusBody(Body):
    message_queue_table: dict[str, int] = {}
    """``queue_key`` → offset."""
    consumer_table: dict[str, dict[str, int]] = {}
    """Client id → ``queue_key`` → offset."""


class QueryCorrectionOffsetBody(Body):
    correction_offsets: dict[int, int] = {}


MAX_QUEUES_ASKED = 1024
"""Queues of one request for the offsets of many."""


class QueuesOfTopic(Body):
    topic: str = ""
    queue_ids: list[I32] = []


class QueuesOfTopics(Body):
    """Requests 30 and 31 with ``mqsparkQueues``: at most MAX_QUEUES_ASKED queues."""

    topics: list[QueuesOfTopic] = []


class OffsetsOfQueues(Body):
    """In the order of the request."""

    offsets: list[I64] = []


class TopicOffset(Body):
    min_offset: I64 = 0
    max_offset: I64 = 0
    last_update_timestamp: I64 = 0


class TopicStatsTable(Body):
    offset_table: dict[str, TopicOffset] = {}
    """By ``queue_key``."""
    topic_put_tps: float = 0.0


class OffsetWrapper(Body):
    broker_offset: I64 = 0
    consumer_offset: I64 = 0
    pull_offset: I64 = 0
    last_timestamp: I64 = 0


class ConsumeStats(Body):
    offset_table: dict[str, OffsetWrapper] = {}
    """By ``queue_key``."""
    consume_tps: float = 0.0


class ConsumeStatsList(Body):
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: I64 = 0
    total_inflight_diff: I64 = 0


class ColdDataFlowInfo(Body):
    """There is no flow control of cold reads here. The values are RocketMQ's default thresholds in bytes per
    second (BrokerConfig)."""

    runtime_table: dict[str, str] = {}
    config_table: dict[str, I64] = {}
    cg_cold_read_threshold: I64 = 3 << 20
    global_cold_read_threshold: I64 = 100 << 20
    global_acc: I64 = 0


class QueueTimeSpan(Body):
    message_queue: Queue | None = None
    min_time_stamp: I64 = 0
    max_time_stamp: I64 = 0
    consume_time_stamp: I64 = 0
    delay_time: I64 = 0


class QueryConsumeTimeSpanBody(Body):
    consume_time_span_set: list[QueueTimeSpan] = []


class BrokerStatsItem(Body):
    sum: I64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class QuerySubscriptionResponseBody(Body):
    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class ConsumeQueueData(Body):
    physic_offset: I64 = 0
    physic_size: I32 = 0
    tags_code: I64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: I64 = 0
    min_queue_index: I64 = 0


class ProcessQueueInfo(Body):
    commit_offset: I64 = 0
    cached_msg_min_offset: I64 = 0
    cached_msg_max_offset: I64 = 0
    cached_msg_count: I32 = 0
    cached_msg_size_in_mib: I32 = field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: I64 = 0
    transaction_msg_max_offset: I64 = 0
    transaction_msg_count: I32 = 0
    locked: bool = False
    try_unlock_times: I64 = 0
    last_lock_timestamp: I64 = 0
    droped: bool = False
    last_pull_timestamp: I64 = 0
    last_consume_timestamp: I64 = 0


class PopProcessQueueInfo(Body):
    wait_ack_count: I32 = 0
    droped: bool = False
    last_pop_timestamp: I64 = 0


class ConsumeRates(Body):
    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: I64 = 0


class ConsumerRunningInfo(Body):
    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[str, ProcessQueueInfo] = {}
    """By ``queue_key``, like ``mq_pop_table``."""
    mq_pop_table: dict[str, PopProcessQueueInfo] = {}
    status_table: dict[str, ConsumeRates] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None


class ConsumeMessageDirectlyResult(Body):
    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    """CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL."""
    remark: str | None = None
    spent_time_mills: I64 = 0


# --- POP and assignment -----------------------------------------------------------------------------------


class QueryAssignmentRequestBody(Body):
    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: str | None = None


class MessageQueueAssignment(Body):
    message_queue: Queue | None = None
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body):
    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(Body):
    topic: str | None = None
    consumer_group: str | None = None
    mode: str = "PULL"
    pop_share_queue_num: I32 = 0


class MessageRequestModeSerializeWrapper(Body):
    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
    """Topic → group → mode."""


class BatchAck(Body):
    consumer_group: str = field(default="", name="c")
    topic: str = field(default="", name="t")
    retry: str = field(default="", name="r")
    start_offset: I64 = field(default=0, name="so")
    queue_id: I32 = field(default=0, name="q")
    revive_queue_id: I32 = field(default=0, name="rq")
    pop_time: I64 = field(default=0, name="pt")
    invisible_time: I64 = field(default=0, name="it")
    bit_set: bytes = field(default=b"", name="b")
    """Bit i, counted from the lowest of the first byte, acknowledges ``start_offset + i``."""


class BatchAckMessageRequestBody(Body):
    broker_name: str | None = None
    acks: list[BatchAck] | None = None


# --- replication and controller ---------------------------------------------------------------------------


class SyncStateSet(Body):
    """Controller ids of the replicas that have everything, and the number of changes of that set."""

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


# --- users and access control -----------------------------------------------------------------------------
