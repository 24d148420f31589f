"""Messages that a consumer failed to process: code 36, retry topics and dead letters
(AbstractSendMessageProcessor.consumerSendMsgBack, SendMessageProcessor.handleRetryAndDLQ).

A message that is sent back is stored again in ``%RETRY%group`` after a delay that grows with every attempt, and
in ``%DLQ%group`` after the last attempt. It keeps its body, properties and origin.

Facts: docs/rocketmq/broker.md#retry.
"""

from __future__ import annotations

from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft
from mqspark.broker.tables.topics import UNIT_SUB, Topic
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly
from mqspark.message import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    FIRST_RETRY_LEVEL,
    HOST_FLAGS,
    MULTI_DISPATCH,
    ORIGIN_MESSAGE_ID,
    PERM_WRITE,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SCHEDULE_TOPIC,
    WAIT,
    PhysicalOffset,
    decode_properties,
    dlq_topic,
    encode_offset_id,
    retry_topic,
)
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.client_headers import ConsumerSendMsgBackRequestHeader
from mqspark.protocol.session import Session
from mqspark.record.record import MAX_RECONSUME_TIMES, Parts, find_member, is_inner_batch, take_apart

DEAD_LETTER_QUEUES = 1
"""DLQ_NUMS_PER_GROUP."""
LIMIT_SINCE_VERSION = 121
"""Clients before V3_4_9 may send any value in maxReconsumeTimes."""


def retry_limit(config: SubscriptionGroupConfig, version: int, wanted: int | None) -> int:
    """How often a message may be retried: the consumer's limit takes precedence over its group's."""
    return wanted if wanted is not None and version >= LIMIT_SINCE_VERSION else config.retry_max_times


def dead_letter_topic(state: BrokerState, group: str) -> Topic:
    """Created with the first dead letter."""
    return state.topics.ensure(dlq_topic(group), DEAD_LETTER_QUEUES, needed=True)


class _Failing:
    """Wraps a session for ``done``: a store failure is reported as SYSTEM_ERROR, as RocketMQ does for messages
    sent back."""

    __slots__ = ("_done", "_session")

    def __init__(self, session: Session, done: bytes) -> None:
        self._session = session
        self._done = done

    def send(self, *buffers: bytes | memoryview) -> None:
        if buffers != (self._done,):
            (failed,) = Connection().receive_data(b"".join(buffers))
            remark = f"{ResponseCode(failed.code).name}: {failed.remark}"
            buffers = (encode_response(failed.opaque, ResponseCode.SYSTEM_ERROR, remark=remark),)
        self._session.send(*buffers)


class SendBackProcessor:
    def __init__(self, state: BrokerState, acks: Acks) -> None:
        self._state = state
        self._acks = acks
        self.handlers: dict[int, Handler] = {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, session: Session, command: Command) -> bytes | None:
        header = command.header(ConsumerSendMsgBackRequestHeader)
        state = self._state
        group = state.subscriptions.find(header.group, session)
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not state.config.broker_permission & PERM_WRITE:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{state.config.broker_ip1}] sending message is forbidden",
            )
        if not command.is_oneway:
            self._acks.check_busy(state.config.send_thread_pool_queue_capacity)
        if group.retry_queue_nums <= 0:  # the group does not retry
            return ok(command)
        topic = state.topics.ensure(
            retry_topic(header.group),
            group.retry_queue_nums,
            sys_flag=UNIT_SUB if header.unit_mode else 0,
            needed=True,  # one per group, and groups are limited
        )
        if not topic.config.perm & PERM_WRITE:
            raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
        # A topic created before the group's setting may have fewer queues; consumers read only those.
        queues = max(1, min(group.retry_queue_nums, topic.read_queue_nums))
        draft = self._draft(header, group, command.version, queues)
        draft.session = session
        try:
            stored = state.writer.put(draft)
        except (InvalidMessage, MessageTooLarge):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL") from None
        except (StoreReadOnly, NotNow) as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE: {error}") from None
        state.stats.was_sent_back(draft.properties[RETRY_TOPIC], header.group)
        if draft.topic != SCHEDULE_TOPIC:  # where the writer counts it
            state.stats.put_into_queue(draft.topic, draft.queue_id, stored.size_bytes)
        if draft.topic.startswith(DLQ_PREFIX):
            state.stats.became_dead(draft.properties[RETRY_TOPIC], header.group)
        if not command.is_oneway:
            done = ok(command)
            self._acks.other(command.code)
            self._acks.waiting.append((stored.end_offset, _Failing(session, done), done))
        return None

    @staticmethod
    def _member(record: Parts, header: ConsumerSendMsgBackRequestHeader) -> Parts:
        """The message of an inner batch that the consumer means; all of them have the batch's position. Raises
        Refusal if its id names none (RocketMQ: always), and its consumer may send a copy of it instead."""
        if not is_inner_batch(record):
            return record
        wanted = (header.origin_msg_id or "").encode()
        try:
            found = find_member(record, wanted) if wanted else None
        except InvalidMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL: {error}") from None
        if found is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL: originMsgId names no message of this inner batch"
            )
        return found

    def _draft(
        self,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        version: int,
        queues: int,
    ) -> Draft:
        """The message at the offset, as it is stored again. Raises Refusal if there is none."""
        state = self._state
        found = state.store.reads.record_at(PhysicalOffset(header.offset))
        if found is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        record = self._member(take_apart(found), header)
        properties = decode_properties(record.properties)
        if RETRY_TOPIC not in properties or not record.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            # A producer may set any property; only the copies for a group come from elsewhere than they are.
            properties[RETRY_TOPIC] = record.topic
            properties.pop(DLQ_ORIGIN_TOPIC, None)
            properties.pop(DLQ_ORIGIN_MESSAGE_ID, None)
        properties[WAIT] = "false"
        if not properties.get(ORIGIN_MESSAGE_ID, "").strip():
            properties[ORIGIN_MESSAGE_ID] = encode_offset_id(record.store_host, record.physical_offset)
        limit = retry_limit(group, version, header.max_reconsume_times)
        # A producer's number. Below 0 it would be retried without a pause.
        times = max(0, record.reconsume_times)
        if times >= limit or header.delay_level < 0:
            topic, queue_id, level = dead_letter_topic(state, header.group).name, 0, 0
            # Its consumers may only read the light queues that it has been in.
            properties.pop(MULTI_DISPATCH, None)
        else:
            topic = retry_topic(header.group)
            queue_id = state.random.randrange(queues)
            level = header.delay_level or FIRST_RETRY_LEVEL + times
        properties[DELAY] = str(level)
        return Draft(
            topic,
            queue_id,
            record.body,
            properties,
            record.born_timestamp_ms,
            record.born_host,
            record.sys_flag & ~HOST_FLAGS,
            record.flag,
            min(times + 1, MAX_RECONSUME_TIMES),
        )
