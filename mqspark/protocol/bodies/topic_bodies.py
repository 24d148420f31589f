"""Topics, routes and subscription groups."""

from __future__ import annotations

import msgspec
from msgspec import field

from mqspark.base.config import INT64_MAX
from mqspark.message import DEFAULT_TOPIC
from mqspark.protocol.bodies.body import Body
from mqspark.protocol.headers.admin_headers import CreateTopicRequestHeader
from mqspark.protocol.headers.header import I32, I64

# --- topics and routes ------------------------------------------------------------------------------------


MAX_QUEUES = 65_536
"""The limit for a topic on one broker. RocketMQ has none, but several requests have a cost proportional to the number
of queues."""
MAX_ROUTE_QUEUES = 4 * MAX_QUEUES
"""Queues of a topic on all brokers."""


class DataVersion(msgspec.Struct, rename="camel", frozen=True):
    state_version: I64 = 0
    timestamp: I64 = 0
    counter: I64 = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(self.state_version, now_ms, next_counter(self.counter))


def next_counter(counter: int) -> int:
    """A long, as in Java: what comes after the largest one is the smallest, which a file can hold."""
    return counter + 1 if counter < INT64_MAX else -1 - INT64_MAX


class TopicConfig(Body):
    topic_name: str = ""
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: dict[str, str] = {}

    def creation(self, *, attributes: str | None = None, force: bool = False) -> CreateTopicRequestHeader:
        """The header that creates such a topic. ``attributes``: the changes, in RocketMQ's form
        (``+name=value,-name``)."""
        return CreateTopicRequestHeader(
            topic=self.topic_name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=self.read_queue_nums,
            write_queue_nums=self.write_queue_nums,
            perm=self.perm,
            topic_filter_type=self.topic_filter_type,
            topic_sys_flag=self.topic_sys_flag,
            order=self.order,
            attributes=attributes,
            force=force,
        )


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


class TopicQueueMappingSerializeWrapper(Body):
    """The file ``topicQueueMapping.json``."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = {}
    data_version: DataVersion | None = None


class TopicConfigAndQueueMapping(TopicConfig):
    """A topic and, when the request says ``lo``, its mapping."""

    mapping_detail: TopicQueueMappingDetail | None = None


class TopicRemappingDetailWrapper(Body):
    """A tool's plan for a static topic: the mapping to send to each broker. Tools keep it in files."""

    topic: str = ""
    type: str = ""
    epoch: I64 = 0
    broker_config_map: dict[str, TopicConfigAndQueueMapping] = {}
    broker_to_map_in: list[str] = []
    broker_to_map_out: list[str] = []


class TopicConfigSerializeWrapper(Body):
    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()


class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper):
    mapping_data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = {}
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = {}


class CreateTopicListRequestBody(Body):
    topic_config_list: list[TopicConfig] = []


class DeleteTopicListRequestBody(Body):
    topic_list: list[str] = []


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


class DeleteSubscriptionGroupListRequestBody(Body):
    group_name_list: list[str] = []
    clean_offset: bool = False


class GroupForbidden(Body):
    topic: str | None = None
    group: str | None = None
    readable: bool | None = None
