"""Queue entries and counters for tools (AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable

from mqspark.broker.admin.runtime import store_proof
from mqspark.broker.admin.topicadmin import existing_topic
from mqspark.broker.state.state import BrokerState
from mqspark.broker.stats.meters import Totals
from mqspark.broker.stats.stats import MOMENT_TABLES
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.admin_bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
    TopicOffset,
    TopicStatsTable,
)
from mqspark.protocol.bodies.body import encode_body, queue_key
from mqspark.protocol.bodies.topic_bodies import KVTable
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, ok_in_slices
from mqspark.protocol.headers.admin_headers import (
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices

MAX_CONSUME_QUEUE_ENTRIES = 1_000

QUEUES_AT_ONCE = 16
"""Queues examined in one slice: less than half a millisecond, more if their files are opened for it."""


class InspectionProcessor:
    def __init__(self, state: BrokerState, runtime_info: Callable[[], dict[str, str]]) -> None:
        self._state = state
        self._runtime_info = runtime_info
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
        }

    def runtime_info(self, session: Session, command: Command) -> bytes:
        table = self._runtime_info()
        table |= store_proof(
            table, self._state.store.directory.nonce, command.ext.get("mqsparkChallenge", "")
        )
        return ok(command, None, encode_body(KVTable(table=table)))

    def topic_stats(self, session: Session, command: Command) -> Slices:
        topic = existing_topic(self._state, command.header(GetTopicStatsInfoRequestHeader).topic)
        store = self._state.store
        table = TopicStatsTable(topic_put_tps=self._state.stats.per_second("TOPIC_PUT_NUMS", topic.name))
        for queue_id in range(topic.queue_limit):
            high = store.offsets.max_offset(topic.name, queue_id)
            table.offset_table[
                queue_key(MessageQueue(topic.name, self._state.config.broker_name, queue_id))
            ] = TopicOffset(
                min_offset=max(0, store.offsets.min_offset(topic.name, queue_id)),
                max_offset=max(0, high),
                last_update_timestamp=max(0, store.offsets.store_timestamp_at(topic.name, queue_id, high - 1))
                if high > 0
                else 0,
            )
            if queue_id % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                yield
        return (yield from ok_in_slices(command, table))

    def consume_queue(self, session: Session, command: Command) -> Slices:
        """The entries of a queue's file. With a group, each entry says whether the group's filter takes it."""
        header = command.header(QueryConsumeQueueRequestHeader)
        store = self._state.store
        topic = header.topic or ""
        if not store.offsets.has_queue(topic, header.queue_id):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(
            min_queue_index=store.offsets.min_offset(topic, header.queue_id),
            max_queue_index=store.offsets.max_offset(topic, header.queue_id),
        )
        if header.consumer_group is not None:
            group = self._state.clients.consumer(header.consumer_group)
            subscription = None if group is None else group.subscriptions.get(topic)
            if subscription is None:
                body.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                body.subscription_data = subscription.data
                body.filter_data = "null"  # RocketMQ puts its compiled expression here
        first, end = header.index, header.index + max(0, min(header.count, MAX_CONSUME_QUEUE_ENTRIES))
        offset, entries = store.offsets.entries(topic, header.queue_id, first, max(0, end - first))
        body.queue_data = [
            ConsumeQueueData(physic_offset=position, physic_size=size, tags_code=tags_code)
            for position, size, tags_code in entries[: max(0, end - offset)]
        ]
        return (yield from ok_in_slices(command, body))

    def stats_data(self, session: Session, command: Command) -> bytes:
        header = command.header(ViewBrokerStatsDataRequestHeader)
        stats = self._state.stats
        if header.stats_name in MOMENT_TABLES and (moment := self._moment(header)) is not None:
            item = BrokerStatsItem(sum=moment)
            return ok(
                command,
                None,
                encode_body(BrokerStatsData(stats_minute=item, stats_hour=item, stats_day=item)),
            )
        meter = stats.meter(header.stats_name, header.stats_key)
        if meter is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        times = stats.times(header.stats_name, header.stats_key)
        minute, hour, day = (
            BrokerStatsItem(sum=totals.growth(), tps=totals.per_second(), avgpt=_mean(totals, often))
            for totals, often in (
                (meter.minute, None if times is None else times.minute),
                (meter.hour, None if times is None else times.hour),
                (meter.day, None if times is None else times.day),
            )
        )
        return ok(
            command, None, encode_body(BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day))
        )

    def _moment(self, header: ViewBrokerStatsDataRequestHeader) -> int | None:
        """How far a group (queue@topic@group) is behind the end of the log: in bytes, or in ms of the message it read
        last. None when it reads no such queue."""
        state, store = self._state, self._state.store
        queue_text, _, rest = header.stats_key.partition("@")
        topic, _, group = rest.partition("@")
        if not (queue_text.isascii() and queue_text.isdigit() and len(queue_text) < 10):
            return None
        queue_id = int(queue_text)
        read_to = state.offsets.pull_offset(group, topic, queue_id)
        if read_to < 0:
            read_to = state.offsets.query(group, topic, queue_id)
        if read_to < 0 or not store.offsets.has_queue(topic, queue_id):
            return None
        if read_to >= store.offsets.max_offset(topic, queue_id):
            return 0
        if header.stats_name == MOMENT_TABLES[1]:
            stored_ms = store.offsets.store_timestamp_at(topic, queue_id, read_to)
            return max(0, state.clock.now_ms() - stored_ms) if stored_ms > 0 else 0
        _, entries = store.offsets.entries(topic, queue_id, read_to, 1)
        return max(0, store.log.position - entries[0][0]) if entries else 0


def _mean(totals: Totals, times: Totals | None) -> float:
    """The mean of one addition; 1 when each addition added 1."""
    count = totals.growth() if times is None else times.growth()
    return totals.growth() / count if count else 0.0
