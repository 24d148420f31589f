"""Offsets and statistics: what tools ask of brokers and clients."""

from __future__ import annotations

from msgspec import field

from mqspark.protocol.bodies.body import Body, Queue
from mqspark.protocol.bodies.client_bodies import SubscriptionData
from mqspark.protocol.bodies.topic_bodies import DataVersion
from mqspark.protocol.headers.header import I32, I64, QueuePlace


class ConsumerOffsetSerializeWrapper(Body):
    offset_table: dict[str, dict[int, I64]] = {}
    """``topic@group`` → queue id → offset."""
    data_version: DataVersion | None = None


class LmqConsumerOffsetSerializeWrapper(Body):
    """``lmqConsumerOffset.json``: offsets as above, and those of groups that read light message queues. Damage may have
    made any number of an offset."""

    offset_table: dict[str, dict[int, int]] = {}
    lmq_offset_table: dict[str, int] = {}
    """``topic@group`` → offset."""
    data_version: DataVersion | None = None


class DelayOffsetSerializeWrapper(Body):
    offset_table: dict[int, int] = {}
    """Delay level → offset."""
    data_version: DataVersion | None = None


class TimerMetric(Body):
    count: int = 0
    time_stamp: int = 0


class TimerMetricsSerializeWrapper(Body):
    timing_count: dict[str, TimerMetric] = {}
    """Topic → its timer messages that wait."""
    data_version: DataVersion | None = None


class ResetOffsetBody(Body):
    offset_table: dict[str, QueuePlace] = {}
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

    offsets: list[QueuePlace] = []


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


class ColdRead(Body):
    """What a group has read of cold data in this period, in bytes (AccAndTimeStamp)."""

    cold_acc: I64 = 0
    create_time_mills: I64 = 0
    last_cold_read_time_mills: I64 = 0


class ColdDataFlowInfo(Body):
    """Thresholds in bytes per period."""

    runtime_table: dict[str, ColdRead] = {}
    config_table: dict[str, I64] = {}
    cg_cold_read_threshold: I64 = 0
    global_cold_read_threshold: I64 = 0
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
