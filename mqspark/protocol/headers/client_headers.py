"""The headers of what clients ask brokers, and brokers clients."""

from __future__ import annotations

from typing import ClassVar, Self

from msgspec import field

from mqspark.message import CLIENT_TOPIC_QUEUES, DEFAULT_TOPIC, MessageQueue
from mqspark.protocol.codes import PullFlag
from mqspark.protocol.headers.header import I32, I64, Header, QueuePlace, RpcHeader, TopicHeader

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

    alike: ClassVar[bool] = True
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

    @classmethod
    def of(
        cls,
        group: str,
        topic: str,
        queue_id: int,
        born_ms: int,
        properties: str = "",
        *,
        default_queues: int = CLIENT_TOPIC_QUEUES,
        reconsume_times: int = 0,
        sys_flag: int = 0,
        flag: int = 0,
        batch: bool = False,
        max_reconsume_times: int | None = None,
        bname: str | None = None,
    ) -> Self:
        """As clients send it. ``default_queues``: of a topic that the broker creates for it."""
        return cls(
            producer_group=group,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=default_queues,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=born_ms,
            flag=flag,
            properties=properties,
            reconsume_times=reconsume_times,
            unit_mode=False,
            batch=batch,
            max_reconsume_times=max_reconsume_times,
            bname=bname,
        )


class SendMessageResponseHeader(Header):
    msg_id: str
    queue_id: I32
    queue_offset: QueuePlace
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


def pull_header(
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    max_messages: int,
    max_bytes: int | None = None,
    expression: str = "*",
    expression_type: str = "TAG",
    suspend_ms: int = 0,
    bulk: bool = False,
    lo: bool | None = None,
) -> PullMessageRequestHeader:
    """A pull that carries its own filter, so the group needs no heartbeat. ``bulk``: an mqspark broker may answer
    with megabytes; other brokers ignore it. ``lo``: False for a physical queue of a static topic."""
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if suspend_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0,
        subscription=expression,
        expression_type=expression_type,
        max_msg_bytes=max_bytes,
        bname=queue.broker_name or None,
        lo=lo,
        mqspark_bulk=bulk or None,
    )


class PullMessageResponseHeader(Header):
    suggest_which_broker_id: I64
    next_begin_offset: QueuePlace
    min_offset: QueuePlace
    max_offset: QueuePlace
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""A further field of request 12: "true" if the key is a unique id."""


class QueryMessageRequestHeader(TopicHeader):
    """Request 12."""

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    index_type: str | None = None
    last_key: str | None = None
    mqspark_before: I64 | None = None
    """Only messages before this position of the log: where the look-up before this one has ended."""


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
    offset: QueuePlace


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
    offset: QueuePlace


class GetMaxOffsetRequestHeader(TopicHeader):
    """Request 30."""

    topic: str
    queue_id: I32
    committed: bool = True
    mqspark_queues: bool | None = None
    """Extension of this project, ignored by RocketMQ's brokers: the body names queues (``QueuesOfTopics``), and the
    answer's body has the offset of each (``OffsetsOfQueues``)."""


class GetMaxOffsetResponseHeader(Header):
    offset: QueuePlace


class GetMinOffsetRequestHeader(TopicHeader):
    """Request 31."""

    topic: str
    queue_id: I32
    mqspark_queues: bool | None = None
    """As in ``GetMaxOffsetRequestHeader``."""


class GetMinOffsetResponseHeader(Header):
    offset: QueuePlace


class GetEarliestMsgStoretimeRequestHeader(TopicHeader):
    """Request 32."""

    topic: str
    queue_id: I32


class GetEarliestMsgStoretimeResponseHeader(Header):
    timestamp: I64


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


INIT_MIN, INIT_MAX = 0, 1
"""Where a group without an offset begins to pop a queue: at its first message, or at its last (ConsumeInitMode)."""


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

    alike: ClassVar[bool] = True
    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(TopicHeader):
    """Request 200053."""

    alike: ClassVar[bool] = True
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
    is_lite_consumer: bool = False
    """Whether it waits for lite topics of the client ``client_id``, since 5.5.1."""
    client_id: str | None = None
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


class PopLiteMessageRequestHeader(TopicHeader):
    """Request 200070."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64
    attempt_id: str | None = None


class NotifyUnsubscribeLiteRequestHeader(RpcHeader):
    """Request 200073, from the broker to a client."""

    lite_topic: str
    consumer_group: str
    client_id: str
