"""What tools ask of a broker: topics, groups, settings, statistics (AdminBrokerProcessor; reference
remoting-protocol §5.9, store-and-broker appendix C)."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterable
from typing import Protocol

from mqspark.broker.config import UPDATABLE_KEYS, BrokerConfig
from mqspark.broker.groups import ConsumerGroup, Member
from mqspark.broker.state import BrokerState
from mqspark.broker.topics import MULTI_TAG, SINGLE_TAG, Topic, copy_config
from mqspark.broker.views import language_name
from mqspark.config import known_keys, set_setting, to_properties
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.message import MessageQueue, check_group, check_topic, java_hash
from mqspark.protocol.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConnectionInfo,
    ConsumeQueueData,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    CreateTopicListRequestBody,
    DataVersion,
    GroupForbidden,
    GroupList,
    KVTable,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    Queue,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    decode_body,
    encode_body,
    queue_key,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, parse_properties
from mqspark.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from mqspark.protocol.receipts import retry_topic_v1, retry_topic_v2
from mqspark.protocol.session import Session
from mqspark.record import decode_record

__all__ = ["Admin"]

MAX_QUEUES = 65_536
"""Of one topic; RocketMQ has no bound, but several requests cost as much as a topic has queues."""

MAX_CONSUME_QUEUE_ENTRIES = 1_000

_MESSAGE_TYPES = frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"})
_IMMUTABLE = {"queue.type": ("SimpleCQ", "BatchCQ"), "cleanup.policy": ("DELETE", "COMPACTION")}
"""Topic attributes that only a new topic may be given, with their values, the one that holds without it first."""


class Change(Protocol):
    """Answers a change, when it is safe, in the handler's stead."""

    def __call__(self, session: Session, command: Command, *, topics: bool) -> None: ...


class Admin:
    def __init__(
        self,
        state: BrokerState,
        runtime_info: Callable[[], dict[str, str]],
        settings_changed: Callable[[], None],
        change: Change,
    ) -> None:
        self._state = state
        self._runtime_info = runtime_info
        self._settings_changed = settings_changed
        self._change = change
        self._settings_version = DataVersion(timestamp=state.clock.now_ms())
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused_topics,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_log,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.group_forbidden,
            RequestCode.UPDATE_BROKER_CONFIG: self.update_settings,
            RequestCode.GET_BROKER_CONFIG: self.settings,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumers_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_consumer,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of_consumer,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.consume_time_span,
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
        }

    # --- topics ---

    def update_topic(self, session: Session, command: Command) -> None:
        header = command.header(CreateTopicRequestHeader)
        if header.topic_filter_type not in (SINGLE_TAG, MULTI_TAG):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topic_filter_type}] value invalid"
            )
        self._put_topic(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
                order=header.order,
            ),
            _attribute_changes(header.attributes),
        )
        self._change(session, command, topics=True)

    def update_topics(self, session: Session, command: Command) -> None:
        body = decode_body(CreateTopicListRequestBody, command.body)
        for config in body.topic_config_list:
            changes: dict[str, str | None] = {
                f"+{name.lstrip('+-')}": value for name, value in config.attributes.items()
            }
            plain = copy_config(config)
            plain.attributes = {}
            self._put_topic(plain, changes)
        self._change(session, command, topics=True)

    def _put_topic(self, config: TopicConfig, changes: dict[str, str | None]) -> None:
        """``changes``: ``+name`` → value or ``-name`` → None, applied to the attributes that the topic
        has."""
        topics = self._state.topics
        name = config.topic_name
        try:
            check_topic(name)
        except InvalidMessage as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topics.is_system(name):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        for what, number in (
            ("readQueueNums", config.read_queue_nums),
            ("writeQueueNums", config.write_queue_nums),
        ):
            if not 0 <= number <= MAX_QUEUES:
                raise Refusal(
                    ResponseCode.INVALID_PARAMETER, f"{what}={number} is not between 0 and {MAX_QUEUES}"
                )
        if not 0 <= config.perm < 8:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"perm={config.perm} is not a permission")
        old = topics.get(name)
        config.attributes = _changed_attributes(dict(old.config.attributes) if old else None, changes)
        topics.put(config)

    def delete_topic(self, session: Session, command: Command) -> None:
        name = command.header(DeleteTopicRequestHeader).topic
        state = self._state
        if not name.strip():
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if state.topics.is_system(name):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        doomed = [name]
        for group in state.offsets.groups_of(name):  # what groups popped in vain goes with it
            doomed += filter(state.topics.get, (retry_topic_v1(name, group), retry_topic_v2(name, group)))
        for topic in doomed:
            state.topics.remove(topic)
            state.offsets.remove_topic(topic)
            state.store.delete_topic(topic)
        self._change(session, command, topics=True)

    def clean_unused_topics(self, session: Session, command: Command) -> bytes:
        """Queues of topics that are not configured any more."""
        state = self._state
        for name in list(state.store.queues()):
            if state.topics.find(name) is None and not state.topics.is_system(name):
                state.store.delete_topic(name)
        return ok(command)

    def clean_expired_queues(self, session: Session, command: Command) -> bytes:
        """What queues say of records that the log no longer has."""
        self._state.store.clean_expired_queues()
        return ok(command)

    def delete_expired_log(self, session: Session, command: Command) -> bytes:
        """What is older than fileReservedTime, without waiting for deleteWhen."""
        self._state.store.clean_expired()
        return ok(command)

    def topic_config(self, session: Session, command: Command) -> bytes:
        topic = self._topic(command.header(GetTopicConfigRequestHeader).topic)
        return ok(command, None, encode_body(topic.config))

    def _topic(self, name: str) -> Topic:
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic

    def all_topics(self, session: Session, command: Command) -> bytes:
        topics = self._state.topics
        table = {topic.name: topic.config for topic in topics}
        page = self._page(command, sorted(table), topics.data_version, "topicSeq", "maxTopicNum")
        body = TopicConfigAndMappingSerializeWrapper(
            topic_config_table=table if page is None else {name: table[name] for name in page},
            data_version=topics.data_version,
        )
        return ok(command, {"totalTopicNum": str(len(table))}, encode_body(body))

    def _page(
        self, command: Command, names: list[str], version: DataVersion, first_key: str, limit_key: str
    ) -> list[str] | None:
        """The asked-for part of a table; None for all of it. A changed table is read from its start again."""
        ext = command.ext
        asked_version = ext.get("dataVersion")
        if first_key not in ext and limit_key not in ext and asked_version is None:
            return None
        first = _number(ext, first_key, 0)
        limit = _number(ext, limit_key, self._state.config.split_metadata_size)
        if not asked_version or decode_body(DataVersion, asked_version.encode()) != version:
            first = 0
        first = max(0, first)
        return names[first : first + max(0, min(limit, self._state.config.split_metadata_size))]

    def system_topics(self, session: Session, command: Command) -> bytes:
        return ok(command, None, encode_body(TopicList(topic_list=self._state.topics.system_names())))

    # --- groups ---

    def update_group(self, session: Session, command: Command) -> None:
        self._put_group(decode_body(SubscriptionGroupConfig, command.body))
        self._change(session, command, topics=False)

    def update_groups(self, session: Session, command: Command) -> None:
        configs = decode_body(SubscriptionGroupList, command.body).group_config_list
        for config in configs:
            _check_group(config.group_name)
        for config in configs:
            self._put_group(config)
        self._change(session, command, topics=False)

    def _put_group(self, config: SubscriptionGroupConfig) -> None:
        _check_group(config.group_name)
        old = self._state.subscriptions.configured(config.group_name)
        attributes = dict(old.attributes) if old else {}
        for name, value in config.attributes.items():
            if name.startswith("-"):
                attributes.pop(name[1:], None)
            else:
                attributes[name.removeprefix("+")] = value
        config.attributes = attributes
        self._state.subscriptions.put(config)

    def delete_group(self, session: Session, command: Command) -> None:
        header = command.header(DeleteSubscriptionGroupRequestHeader)
        self._state.subscriptions.remove(header.group_name)
        if header.clean_offset:
            self._state.offsets.remove_group(header.group_name)
        self._state.stats.forget_group(header.group_name)
        self._change(session, command, topics=False)

    def all_groups(self, session: Session, command: Command) -> bytes:
        subscriptions = self._state.subscriptions
        whole = subscriptions.wrapper()
        table = whole.subscription_group_table
        page = self._page(command, sorted(table), subscriptions.data_version, "groupSeq", "maxGroupNum")
        body = SubscriptionGroupWrapper(
            data_version=whole.data_version,
            forbidden_table=whole.forbidden_table,
            subscription_group_table=table if page is None else {name: table[name] for name in page},
        )
        return ok(command, {"totalGroupNum": str(len(table))}, encode_body(body))

    def group_config(self, session: Session, command: Command) -> bytes:
        name = command.header(GetSubscriptionGroupConfigRequestHeader).group
        config = self._state.subscriptions.find(name)
        if config is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group:[{name}] not exist")
        return ok(command, None, encode_body(config))

    def group_forbidden(self, session: Session, command: Command) -> bytes:
        header = command.header(UpdateGroupForbiddenRequestHeader)
        subscriptions = self._state.subscriptions
        if header.readable is not None:
            subscriptions.forbid_read(header.group, header.topic, not header.readable)
        readable = not subscriptions.is_read_forbidden(header.group, header.topic)
        return ok(
            command,
            {},
            encode_body(GroupForbidden(group=header.group, topic=header.topic, readable=readable)),
        )

    # --- settings ---

    def update_settings(self, session: Session, command: Command) -> bytes:
        """All keys or none. Changes last until the broker ends: the configuration file is the operator's."""
        state = self._state
        changes = parse_properties(command.body)
        black_list = {
            "brokerConfigPath",
            "rocketmqHome",
            "configBlackList",
            *state.config.config_black_list.split(";"),
        }
        broker_keys, store_keys = known_keys(BrokerConfig), known_keys(type(state.store_config))
        broker_copy, store_copy = copy.copy(state.config), copy.copy(state.store_config)
        for key, value in changes.items():
            known = key in broker_keys or key in store_keys
            if key in black_list or (known and key not in UPDATABLE_KEYS):
                raise Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"Can not update config {key}: it is fixed while the broker runs",
                )
            if not known:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"unknown setting {key!r}")
            try:
                set_setting(broker_copy if key in broker_keys else store_copy, key, value)
                broker_copy.__post_init__()
                store_copy.__post_init__()
            except ConfigError as error:
                raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        permission = state.config.broker_permission
        for key, value in changes.items():
            set_setting(state.config if key in broker_keys else state.store_config, key, value)
        version = self._settings_version
        self._settings_version = DataVersion(
            state_version=version.state_version, timestamp=state.clock.now_ms(), counter=version.counter + 1
        )
        if state.config.broker_permission != permission:
            state.topics.touch()
        self._settings_changed()
        return ok(command)

    def settings(self, session: Session, command: Command) -> bytes:
        properties = {**to_properties(self._state.store_config), **to_properties(self._state.config)}
        text = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
        return ok(command, {"version": encode_body(self._settings_version).decode()}, text.encode())

    def runtime_info(self, session: Session, command: Command) -> bytes:
        return ok(command, None, encode_body(KVTable(table=self._runtime_info())))

    # --- offsets ---

    def all_offsets(self, session: Session, command: Command) -> bytes:
        return ok(command, None, encode_body(self._state.offsets.wrapper()))

    def clone_offsets(self, session: Session, command: Command) -> bytes:
        header = command.header(CloneGroupOffsetRequestHeader)
        state = self._state
        topics = [header.topic] if header.topic else state.offsets.topics_of(header.src_group)
        live = state.clients.consumer(header.src_group)
        for topic in topics:
            if topic not in state.topics:
                continue
            if (
                not header.offline
                and live is not None
                and live.subscriptions
                and topic not in live.subscriptions
            ):
                continue
            state.offsets.clone(header.src_group, header.dest_group, topic)
        return ok(command)

    # --- statistics and connections ---

    def _queue_key(self, topic: str, queue_id: int) -> str:
        return queue_key(MessageQueue(topic, self._state.config.broker_name, queue_id))

    def topic_stats(self, session: Session, command: Command) -> bytes:
        topic = self._topic(command.header(GetTopicStatsInfoRequestHeader).topic)
        store = self._state.store
        table = TopicStatsTable(topic_put_tps=self._state.stats.per_second("TOPIC_PUT_NUMS", topic.name))
        for queue_id in range(topic.queue_limit):
            high = store.max_offset(topic.name, queue_id)
            table.offset_table[self._queue_key(topic.name, queue_id)] = TopicOffset(
                min_offset=max(0, store.min_offset(topic.name, queue_id)),
                max_offset=max(0, high),
                last_update_timestamp=max(0, store.store_timestamp_at(topic.name, queue_id, high - 1))
                if high > 0
                else 0,
            )
        return ok(command, None, encode_body(table))

    def consumer_connections(self, session: Session, command: Command) -> bytes:
        name = command.header(GetConsumerConnectionListRequestHeader).consumer_group
        group = self._state.clients.consumer(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=_connections(group.members.values()),
            subscription_table={topic: item.data for topic, item in group.subscriptions.items()},
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return ok(command, None, encode_body(body))

    def producer_connections(self, session: Session, command: Command) -> bytes:
        name = command.header(GetProducerConnectionListRequestHeader).producer_group
        members = self._state.clients.producer_members(name)
        if not members:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return ok(command, None, encode_body(ProducerConnection(connection_set=_connections(members))))

    def all_producers(self, session: Session, command: Command) -> bytes:
        data = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=member.session.peer,
                    language=language_name(member.language),
                    version=member.version,
                    last_update_timestamp=member.seen_wall_ms,
                )
                for member in members
            ]
            for group, members in self._state.clients.producers().items()
        }
        return ok(command, None, encode_body(ProducerTableInfo(data=data)))

    def consume_stats(self, session: Session, command: Command) -> bytes:
        header = command.header(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        if header.topic_list:
            topics, only_live = [name for name in header.topic_list.split(";") if name], False
        else:
            topics, only_live = [header.topic] if header.topic else self._state.offsets.topics_of(group), True
        whole = ConsumeStats()
        for topic in topics:
            stats = self._consume_stats(group, topic, only_live=only_live)
            if stats is not None:
                whole.offset_table.update(stats.offset_table)
                whole.consume_tps += stats.consume_tps
        return ok(command, None, encode_body(whole))

    def _consume_stats(self, group: str, topic_name: str, *, only_live: bool) -> ConsumeStats | None:
        """Offsets of a group in one topic; None for a topic that is gone, or that the group, being online,
        does not subscribe to (``only_live``)."""
        state = self._state
        topic = state.topics.get(topic_name)
        live = state.clients.consumer(group)
        if topic is None or (
            only_live and live is not None and live.subscriptions and topic_name not in live.subscriptions
        ):
            return None
        stats = ConsumeStats(consume_tps=state.stats.per_second("GROUP_GET_NUMS", f"{topic_name}@{group}"))
        store = state.store
        for queue_id in range(topic.read_queue_nums):
            consumed = max(0, state.offsets.query(group, topic_name, queue_id))
            timestamp = store.store_timestamp_at(topic_name, queue_id, consumed - 1) if consumed > 0 else 0
            stats.offset_table[self._queue_key(topic_name, queue_id)] = OffsetWrapper(
                broker_offset=max(0, store.max_offset(topic_name, queue_id)),
                consumer_offset=consumed,
                pull_offset=max(consumed, state.offsets.pull_offset(group, topic_name, queue_id)),
                last_timestamp=max(0, timestamp),
            )
        return stats

    def all_consume_stats(self, session: Session, command: Command) -> bytes:
        header = command.header(GetConsumeStatsInBrokerHeader)
        state = self._state
        body = ConsumeStatsList(broker_addr=state.config.address)
        for config in state.subscriptions:
            if config.consume_message_orderly != header.is_order and header.is_order:
                continue
            topics = [
                stats
                for topic in state.offsets.topics_of(config.group_name)
                if (stats := self._consume_stats(config.group_name, topic, only_live=True)) is not None
            ]
            body.consume_stats_list.append({config.group_name: topics})
            for stats in topics:
                for queue in stats.offset_table.values():
                    body.total_diff += queue.broker_offset - queue.consumer_offset
                    body.total_inflight_diff += queue.pull_offset - queue.consumer_offset
        return ok(command, None, encode_body(body))

    def consumers_of_topic(self, session: Session, command: Command) -> bytes:
        topic = command.header(QueryTopicConsumeByWhoRequestHeader).topic
        groups = {
            **dict.fromkeys(self._state.clients.subscribers_of(topic)),
            **dict.fromkeys(self._state.offsets.groups_of(topic)),
        }
        return ok(command, None, encode_body(GroupList(group_list=list(groups))))

    def topics_of_consumer(self, session: Session, command: Command) -> bytes:
        group = command.header(QueryTopicsByConsumerRequestHeader).group
        topics = self._state.offsets.topics_of(group)
        return ok(
            command, None, encode_body(TopicList(topic_list=topics, broker_addr=self._state.config.address))
        )

    def subscription_of_consumer(self, session: Session, command: Command) -> bytes:
        header = command.header(QuerySubscriptionByConsumerRequestHeader)
        group: ConsumerGroup | None = self._state.clients.consumer(header.group)
        subscription = (
            None if group is None or header.topic is None else group.subscriptions.get(header.topic)
        )
        body = QuerySubscriptionResponseBody(
            group=header.group,
            topic=header.topic,
            subscription_data=None if subscription is None else subscription.data,
        )
        return ok(command, None, encode_body(body))

    def consume_time_span(self, session: Session, command: Command) -> bytes:
        header = command.header(QueryConsumeTimeSpanRequestHeader)
        topic = self._topic(header.topic)
        state, store = self._state, self._state.store
        spans = []
        for queue_id in range(topic.write_queue_nums):
            low, high = store.min_offset(topic.name, queue_id), store.max_offset(topic.name, queue_id)
            consumed = state.offsets.query(header.group, topic.name, queue_id)
            consumed_ms = store.store_timestamp_at(topic.name, queue_id, consumed - 1) if consumed > 0 else -1
            waiting_ms = (
                store.store_timestamp_at(topic.name, queue_id, consumed) if 0 <= consumed < high else -1
            )
            spans.append(
                QueueTimeSpan(
                    message_queue=Queue(topic.name, state.config.broker_name, queue_id),
                    min_time_stamp=store.store_timestamp_at(topic.name, queue_id, low),
                    max_time_stamp=store.store_timestamp_at(topic.name, queue_id, high - 1)
                    if high > 0
                    else -1,
                    consume_time_stamp=consumed_ms,
                    delay_time=0 if waiting_ms < 0 else max(0, state.clock.now_ms() - waiting_ms),
                )
            )
        return ok(command, None, encode_body(QueryConsumeTimeSpanBody(consume_time_span_set=spans)))

    def consume_queue(self, session: Session, command: Command) -> bytes:
        header = command.header(QueryConsumeQueueRequestHeader)
        store = self._state.store
        topic = header.topic or ""
        if header.queue_id not in store.queues().get(topic, ()):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{topic} is not exist!")
        count = max(0, min(header.count, MAX_CONSUME_QUEUE_ENTRIES))
        result = store.get(topic, header.queue_id, header.index, count, 1 << 24, None)
        entries = []
        for run in result.buffers:
            position = 0
            while position < len(run):
                (size_bytes,) = struct.unpack_from(">i", run, position)
                record = decode_record(run, position, decompress=False)
                entries.append(
                    ConsumeQueueData(
                        physic_offset=record.physical_offset,
                        physic_size=size_bytes,
                        tags_code=java_hash(record.tags) if record.tags else 0,
                    )
                )
                position += size_bytes
        body = QueryConsumeQueueResponseBody(
            queue_data=entries,
            min_queue_index=store.min_offset(topic, header.queue_id),
            max_queue_index=store.max_offset(topic, header.queue_id),
        )
        return ok(command, None, encode_body(body))

    def stats_data(self, session: Session, command: Command) -> bytes:
        header = command.header(ViewBrokerStatsDataRequestHeader)
        meter = self._state.stats.meter(header.stats_name, header.stats_key)
        if meter is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        minute, hour, day = (
            BrokerStatsItem(sum=totals.growth(), tps=totals.per_second())
            for totals in (meter.minute, meter.hour, meter.day)
        )
        return ok(
            command, None, encode_body(BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day))
        )


def _connections(members: Iterable[Member]) -> list[ConnectionInfo]:
    return [
        ConnectionInfo(
            client_id=member.client_id,
            client_addr=member.session.peer,
            language=language_name(member.language),
            version=member.version,
        )
        for member in members
    ]


def _check_group(name: str) -> None:
    try:
        check_group(name)
    except InvalidMessage as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None


def _number(ext: dict[str, str], key: str, default: int) -> int:
    text = ext.get(key)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 11):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"{key}={text[:40]!r} is not a number")
    return int(text)


def _attribute_changes(text: str | None) -> dict[str, str | None]:
    """``+a=1,-b`` (AttributeParser)."""
    changes: dict[str, str | None] = {}
    for item in (text or "").split(","):
        if not item.strip():
            continue
        name, equals, value = item.strip().partition("=")
        if len(name) < 2 or name[0] not in "+-" or (name[0] == "+") != bool(equals):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"attribute {item!r} is neither +key=value nor -key")
        changes[name] = value if equals else None
    return changes


def _changed_attributes(old: dict[str, str] | None, changes: dict[str, str | None]) -> dict[str, str]:
    """``old`` is None for a new topic."""
    attributes = dict(old or {})
    for signed_name, value in changes.items():
        name = signed_name[1:]
        if name in _IMMUTABLE:
            values = _IMMUTABLE[name]
            if value == "COMPACTION":
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"{name}={value} is not available yet")
            if value not in values or (old is not None and attributes.get(name, values[0]) != value):
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"attribute {name} of a topic cannot be changed")
        elif name == "message.type":
            if value is not None and value not in _MESSAGE_TYPES:
                raise Refusal(ResponseCode.INVALID_PARAMETER, f"message.type={value} is not allowed")
        elif name == "reserve.time":
            if value is not None and not value.removeprefix("-").isdigit():
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"reserve.time={value} is not a number")
        else:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"unsupported key: {name}")
        if value is None:
            attributes.pop(name, None)
        else:
            attributes[name] = value
    return attributes
