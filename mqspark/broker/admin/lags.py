"""The progress of consumer groups: offsets, lag, and which client reads which queue (AdminBrokerProcessor)."""

from __future__ import annotations

from mqspark.broker.admin.inspection import QUEUES_AT_ONCE
from mqspark.broker.admin.topicadmin import existing_topic
from mqspark.broker.state.state import BrokerState
from mqspark.errors import FrameTooLarge
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.admin_bodies import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from mqspark.protocol.bodies.body import (
    MAX_BODY_BYTES,
    Queue,
    encode_body,
    encode_in_slices,
    queue_key,
)
from mqspark.protocol.bodies.topic_bodies import GroupList, TopicList
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, ok, ok_in_slices
from mqspark.protocol.headers.admin_headers import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from mqspark.protocol.headers.client_headers import CloneGroupOffsetRequestHeader
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, Slices, Work

CLONED_AT_ONCE = 4_096
PAIRS_AT_ONCE = 4_096
"""Pairs of topic and group that are sorted by group in one slice."""


class LagProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumers_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_consumer,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.consume_time_span,
        }

    def all_offsets(self, session: Session, command: Command) -> Slices:
        return (yield from ok_in_slices(command, (yield from self._state.offsets.wrapper_in_slices())))

    def clone_offsets(self, session: Session, command: Command) -> Slices:
        header = command.header(CloneGroupOffsetRequestHeader)
        state = self._state
        topics = [header.topic] if header.topic else (yield from state.offsets.topics_of(header.src_group))
        live = state.clients.consumer(header.src_group)
        done = 0
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
            done += 1 + state.offsets.clone(session, header.src_group, header.dest_group, topic)
            if done >= CLONED_AT_ONCE:
                done = 0
                yield ESSENTIAL
        return ok(command)

    def consume_stats(self, session: Session, command: Command) -> Slices:
        header = command.header(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        if header.topic_list:
            topics, only_live = list(dict.fromkeys(filter(None, header.topic_list.split(";")))), False
        else:
            found = [header.topic] if header.topic else (yield from self._state.offsets.topics_of(group))
            topics, only_live = found, True
        whole, done = ConsumeStats(), 0
        for topic in topics:
            stats = yield from self._consume_stats(group, topic, only_live=only_live)
            if stats is not None:
                whole.offset_table.update(stats.offset_table)
                whole.consume_tps += stats.consume_tps
            done += _examined(stats)
            if done >= QUEUES_AT_ONCE:
                done = 0
                yield
        return (yield from ok_in_slices(command, whole))

    def _consume_stats(self, group: str, topic_name: str, *, only_live: bool) -> Work[ConsumeStats | None]:
        """The offsets of a group in one topic. None if the topic no longer exists or, with ``only_live``, if the
        online group does not subscribe to it."""
        state = self._state
        topic = state.topics.get(topic_name)
        live = state.clients.consumer(group)
        if topic is None or (
            only_live and live is not None and live.subscriptions and topic_name not in live.subscriptions
        ):
            return None
        stats = ConsumeStats(consume_tps=state.stats.per_second("GROUP_GET_NUMS", f"{topic_name}@{group}"))
        stored = state.store.offsets
        for queue_id in range(topic.read_queue_nums):
            consumed = state.offsets.query(group, topic_name, queue_id)
            if topic_name not in state.mappings.table:  # a part without a progress does not count as 0
                consumed = max(0, consumed)
            timestamp = stored.store_timestamp_at(topic_name, queue_id, consumed - 1) if consumed > 0 else 0
            stats.offset_table[queue_key(MessageQueue(topic_name, state.config.broker_name, queue_id))] = (
                OffsetWrapper(
                    broker_offset=max(0, stored.max_offset(topic_name, queue_id)),
                    consumer_offset=consumed,
                    pull_offset=max(consumed, state.offsets.pull_offset(group, topic_name, queue_id)),
                    last_timestamp=max(0, timestamp),
                )
            )
            if queue_id % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                yield
        return stats

    def all_consume_stats(self, session: Session, command: Command) -> Slices:
        header = command.header(GetConsumeStatsInBrokerHeader)
        state = self._state
        body = ConsumeStatsList(broker_addr=state.config.address)
        topics_of: dict[str, list[str]] = {}
        for number, (topic, group) in enumerate(state.offsets.pairs(), 1):
            topics_of.setdefault(group, []).append(topic)
            if number % PAIRS_AT_ONCE == 0:
                yield
        texts = [b"["]
        size_bytes = done = 0
        for config in state.subscriptions:
            done += 1
            if done >= QUEUES_AT_ONCE:
                done = 0
                yield
            if config.consume_message_orderly != header.is_order and header.is_order:
                continue
            texts.append(b"%b{%b:[" % (b"," if len(texts) > 1 else b"", encode_body(config.group_name)))
            comma = b""
            for topic in topics_of.get(config.group_name, ()):
                if done >= QUEUES_AT_ONCE:
                    done = 0
                    yield
                stats = yield from self._consume_stats(config.group_name, topic, only_live=True)
                done += _examined(stats)
                if stats is None:
                    continue
                for queue in stats.offset_table.values():
                    body.total_diff += queue.broker_offset - queue.consumer_offset
                    body.total_inflight_diff += queue.pull_offset - queue.consumer_offset
                pieces = yield from encode_in_slices(stats)
                texts += (comma, *pieces)
                comma = b","
                size_bytes += sum(map(len, pieces))
                if size_bytes > MAX_BODY_BYTES:
                    raise FrameTooLarge("answer", size_bytes, MAX_BODY_BYTES)
            texts.append(b"]}")
        texts.append(b"]")
        return (yield from ok_in_slices(command, body, members={"consumeStatsList": texts}))

    def consumers_of_topic(self, session: Session, command: Command) -> Slices:
        topic = command.header(QueryTopicConsumeByWhoRequestHeader).topic
        groups = {
            **dict.fromkeys(self._state.clients.subscribers_of(topic)),
            **dict.fromkeys((yield from self._state.offsets.groups_of(topic))),
        }
        return (yield from ok_in_slices(command, GroupList(group_list=list(groups))))

    def topics_of_consumer(self, session: Session, command: Command) -> Slices:
        group = command.header(QueryTopicsByConsumerRequestHeader).group
        topics = yield from self._state.offsets.topics_of(group)
        body = TopicList(topic_list=topics, broker_addr=self._state.config.address)
        return (yield from ok_in_slices(command, body))

    def consume_time_span(self, session: Session, command: Command) -> Slices:
        header = command.header(QueryConsumeTimeSpanRequestHeader)
        topic = existing_topic(self._state, header.topic)
        state, stored = self._state, self._state.store.offsets
        spans = []
        for queue_id in range(topic.write_queue_nums):
            low, high = stored.bounds(topic.name, queue_id)
            consumed = state.offsets.query(header.group, topic.name, queue_id)
            first_ms = stored.store_timestamp_at(topic.name, queue_id, low)
            consumed_ms = (
                stored.store_timestamp_at(topic.name, queue_id, consumed - 1) if consumed > 0 else first_ms
            )
            waiting_ms = (
                stored.store_timestamp_at(topic.name, queue_id, consumed) if 0 <= consumed < high else -1
            )
            spans.append(
                QueueTimeSpan(
                    message_queue=Queue(topic.name, state.config.broker_name, queue_id),
                    min_time_stamp=first_ms,
                    max_time_stamp=stored.store_timestamp_at(topic.name, queue_id, high - 1)
                    if high > 0
                    else -1,
                    consume_time_stamp=consumed_ms,
                    delay_time=0 if waiting_ms < 0 else max(0, state.clock.now_ms() - waiting_ms),
                )
            )
            if queue_id % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                yield
        body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return (yield from ok_in_slices(command, body))


def _examined(stats: ConsumeStats | None) -> int:
    """What was looked at for the progress in a topic: its queues, and the topic itself."""
    return 1 if stats is None else 1 + len(stats.offset_table)
