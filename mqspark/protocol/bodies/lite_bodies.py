"""Lite topics: subscriptions of clients, and what tools ask about them."""

from __future__ import annotations

from msgspec import field

from mqspark.protocol.bodies.admin_bodies import OffsetWrapper, TopicOffset
from mqspark.protocol.bodies.body import Body
from mqspark.protocol.headers.header import I32, I64


class OffsetOption(Body):
    """Where a group begins to read a lite topic. ``type``: POLICY (value 0 last, 1 first, 2 end), OFFSET, TAIL_N or
    TIMESTAMP."""

    type: str | None = None
    value: I64 = 0


class LiteSubscription(Body):
    """LiteSubscriptionDTO. ``action``: PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD or COMPLETE_REMOVE."""

    action: str | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    version: I64 = 0


class LiteSubscriptionCtlRequestBody(Body):
    lite_subscription_set: list[LiteSubscription] | None = field(default=None, name="subscriptionSet")


class ClientGroup(Body):
    client_id: str = ""
    group: str = ""


class GetBrokerLiteInfoResponseBody(Body):
    store_type: str = "default"
    max_lmq_num: I32 = 0
    current_lmq_num: I32 = 0
    lite_subscription_count: I32 = 0
    order_info_count: I32 = 0
    cq_table_size: I32 = 0
    offset_table_size: I32 = 0
    event_map_size: I32 = 0
    topic_meta: dict[str, int] = {}
    """Parent topic → minutes after which its lite topics expire."""
    group_meta: dict[str, list[str]] = {}
    """Parent topic → the groups that are bound to it."""


class GetParentTopicInfoResponseBody(Body):
    topic: str = ""
    ttl: I32 = -1
    groups: list[str] | None = None
    lmq_num: I32 = 0
    lite_topic_count: I32 = 0


class GetLiteTopicInfoResponseBody(Body):
    parent_topic: str = ""
    lite_topic: str = ""
    subscriber: list[ClientGroup] = []
    topic_offset: TopicOffset | None = None
    sharding_to_broker: bool = True


class GetLiteClientInfoResponseBody(Body):
    parent_topic: str = ""
    group: str = ""
    client_id: str = ""
    last_access_time: I64 = -1
    last_consume_time: I64 = 0
    lite_topic_count: I32 = -1
    lite_topic_set: list[str] | None = None


class LiteLagInfo(Body):
    lite_topic: str = ""
    lag_count: I64 = 0
    earliest_unconsumed_timestamp: I64 = -1


class GetLiteGroupInfoResponseBody(Body):
    group: str = ""
    parent_topic: str = ""
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: I64 = -1
    total_lag_count: I64 = 0
    lite_topic_offset_wrapper: OffsetWrapper | None = None
    """The offsets of ``lite_topic``, if there is one."""
    lag_count_top_k: list[LiteLagInfo] | None = field(default=None, name="lagCountTopK")
    lag_timestamp_top_k: list[LiteLagInfo] | None = field(default=None, name="lagTimestampTopK")
