"""The headers of what tools ask brokers: topics, subscription groups, statistics, users."""

from __future__ import annotations

from mqspark.protocol.headers.header import I32, I64, Header, RpcHeader, TopicHeader

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


class GetParentTopicInfoRequestHeader(Header):
    """Request 200075."""

    topic: str


class GetLiteTopicInfoRequestHeader(Header):
    """Request 200076."""

    parent_topic: str
    lite_topic: str = ""


class GetLiteClientInfoRequestHeader(Header):
    """Request 200077."""

    parent_topic: str
    group: str
    client_id: str = ""
    max_count: I32 = 1_000


class GetLiteGroupInfoRequestHeader(Header):
    """Request 200078."""

    group: str
    lite_topic: str | None = None
    top_k: I32 = 0


class TriggerLiteDispatchRequestHeader(Header):
    """Request 200079."""

    group: str
    client_id: str | None = None


# --- schemas (this project's) ----------------------------------------------------------------------------


class SchemaRequestHeader(Header):
    """Requests 20101 and 20102: what path and query of HTTP say."""

    operation: str
    """A name of ``OPERATIONS``."""
    schema_subject: str | None = None
    version: str | None = None
    id: str | None = None
    options: str | None = None
    """The query."""
