"""Offsets and single messages: codes 12, 14, 15, 29 to 33 (ConsumerManageProcessor, AdminBrokerProcessor,
QueryMessageProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mqspark.auth.policies import Action, Kind
from mqspark.broker.pull.logiclookups import LogicLookups
from mqspark.broker.state.litenames import lite_queue
from mqspark.broker.state.state import BrokerState
from mqspark.broker.statictopic.logicqueues import physical_offset
from mqspark.broker.tables.consumer_offsets import NOT_FOUND, is_brokers_own
from mqspark.message import (
    PhysicalOffset,
    awaited_topic,
    decode_properties,
    is_broker_topic,
    is_dispatched,
)
from mqspark.protocol.bodies.admin_bodies import MAX_QUEUES_ASKED, OffsetsOfQueues, QueuesOfTopics
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response, encode_response_head
from mqspark.protocol.connection import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.client_headers import (
    UNIQUE_KEY_QUERY,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices
from mqspark.record.record import Parts, parts_at, take_apart
from mqspark.store.index.keys import Sought
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, allows_dispatch

_NO_OFFSET = "Not found, do not set to zero, maybe this group boot first"
_NO_YOUNG_QUEUE = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
"""The texts that RocketMQ's clients log for a group without an offset."""
_TAG_INDEX = "T"
"""The index type of tags."""
_UNIQUE_INDEX = "U"
"""The index type of unique keys. In files they and other keys, K, are one type."""
_MAX_QUERY_BODY_BYTES = MAX_FRAME_BYTES - MAX_HEADER_BYTES
"""No client accepts a longer frame (RocketMQ would send it)."""


def store_time_of(buffers: Sequence[memoryview]) -> int:
    """The store time of the first record, ms; -1 without one."""
    parts = parts_at(buffers[0], 0, len(buffers[0])) if buffers else None
    return -1 if parts is None else parts.store_timestamp_ms


def readable(may_read: Callable[[str], bool]) -> Callable[[Parts], bool]:
    """Judges records by the topics that they are for, which of those in topics of the broker is another one."""

    def is_readable(record: Parts) -> bool:
        if not is_broker_topic(record.topic):
            return True
        topic = awaited_topic(record.topic, decode_properties(record.properties))
        return topic == record.topic or may_read(topic)

    return is_readable


def _is_for(topic: str, record: Parts) -> bool:
    """Whether the record is for this topic, or enters this light queue."""
    properties = decode_properties(record.properties)
    awaited = awaited_topic(record.topic, properties)
    return topic == awaited or (is_dispatched(topic, properties) and allows_dispatch(awaited))


class LookupProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._logic = LogicLookups(state)
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
        }

    def query_offset(self, session: Session, command: Command) -> bytes | None:
        header = command.header(QueryConsumerOffsetRequestHeader)
        if (static := self._state.mappings.find(header.topic, header.lo)) is not None:
            queue = static.leading(header.queue_id)
            if not queue.is_one:
                return self._state.peers.talk(
                    session, command, self._logic.query(command, header, static, queue)
                )
            header.queue_id = queue.leader.queue_id
        offset = self._state.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset == NOT_FOUND:
            if header.set_zero_if_not_found is False:
                raise Refusal(ResponseCode.QUERY_NOT_FOUND, _NO_OFFSET, {})
            if not self._state.memory.has_all_of(header.topic, header.queue_id):
                raise Refusal(ResponseCode.QUERY_NOT_FOUND, _NO_YOUNG_QUEUE, {})
            offset = 0
        return ok(command, {"offset": str(offset)})

    def update_offset(self, session: Session, command: Command) -> bytes | None:
        header = command.header(UpdateConsumerOffsetRequestHeader)
        state = self._state
        if (static := state.mappings.find(header.topic, header.lo)) is not None and header.commit_offset >= 0:
            part = static.leading(header.queue_id).part_at(header.commit_offset)
            header.queue_id = part.queue_id
            header.commit_offset = physical_offset(part, header.commit_offset)
            if not static.is_local(part):
                return state.peers.talk(session, command, self._logic.update(command, header, part))
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if group not in state.subscriptions:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!", {})
        if topic not in state.topics:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", {})
        if queue_id < 0 or header.commit_offset < 0:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "queueId and commitOffset must not be negative", {})
        if is_brokers_own(topic, group):
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"only the broker sets the offsets of {group} in {topic}", {}
            )
        known = state.topics.get(topic)
        if (
            known is not None
            and queue_id >= known.queue_limit
            and not state.store.offsets.max_offset(topic, queue_id)
        ):
            remark = f"Queue {queue_id} of topic {topic} not exist!"
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark, {})
        state.offsets.admit(session, group, topic, queue_id)
        if state.offsets.pending_reset(group, topic, queue_id) is not None:
            return encode_response(
                command.opaque, ResponseCode.SUCCESS, {}, remark="Offset has been previously reset"
            )
        state.offsets.commit(group, topic, queue_id, header.commit_offset, session)
        return ok(command, {})

    def search_offset(self, session: Session, command: Command) -> bytes | None:
        header = command.header(SearchOffsetRequestHeader)
        upper = (header.boundary_type or "").upper() == "UPPER"
        if header.lite_topic:
            light = lite_queue(header.topic, header.lite_topic)
            offset = 0
            if (
                header.queue_id == LMQ_QUEUE_ID
                and self._state.store.offsets.max_offset(light, LMQ_QUEUE_ID) > 0
            ):
                offset = self._state.store.offsets.offset_by_timestamp(
                    light, LMQ_QUEUE_ID, header.timestamp, upper
                )
            return ok(command, {"offset": str(offset)})
        if (static := self._state.mappings.find(header.topic, header.lo)) is not None:
            queue = static.leading(header.queue_id)
            talk = self._logic.search(command, header, static, queue, upper=upper)
            return self._state.peers.talk(session, command, talk)
        offset = self._state.store.offsets.offset_by_timestamp(
            header.topic, header.queue_id, header.timestamp, upper
        )
        return ok(command, {"offset": str(offset)})

    def max_offset(self, session: Session, command: Command) -> bytes | None:
        header = command.header(GetMaxOffsetRequestHeader)
        if header.mqspark_queues:
            return self._offset_of_each(command, self._state.store.offsets.max_offset)
        if (static := self._state.mappings.find(header.topic, header.lo)) is not None:
            talk = self._logic.max_offset(command, header, static, static.leading(header.queue_id))
            return self._state.peers.talk(session, command, talk)
        return ok(
            command, {"offset": str(self._state.store.offsets.max_offset(header.topic, header.queue_id))}
        )

    def min_offset(self, session: Session, command: Command) -> bytes | None:
        """-1 for a BatchCQ queue that never had a message (BatchConsumeQueue), 0 for any other."""
        header = command.header(GetMinOffsetRequestHeader)
        if header.mqspark_queues:
            return self._offset_of_each(command, self._min_offset)
        if (static := self._state.mappings.find(header.topic, header.lo)) is not None:
            queue = static.leading(
                header.queue_id, f"is not leader for request code {command.code} in broker"
            )
            return self._state.peers.talk(
                session, command, self._logic.min_offset(command, header, static, queue)
            )
        return ok(command, {"offset": str(self._min_offset(header.topic, header.queue_id))})

    def _min_offset(self, topic: str, queue_id: int) -> int:
        store, config = self._state.store, self._state.topics.get(topic)
        if config is not None and config.inner_batch and not store.offsets.max_offset(topic, queue_id):
            return -1
        return max(0, store.offsets.sure_min_offset(topic, queue_id))

    def _offset_of_each(self, command: Command, offset_of: Callable[[str, int], int]) -> bytes:
        """The answer for the queues in the body; its header has the offset of the first."""
        asked = decode_body(QueuesOfTopics, command.body).topics
        if not self._state.mappings.table.keys().isdisjoint(each.topic for each in asked):
            remark = "a request about a static topic may name one queue only"
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark, {})
        count = sum(len(each.queue_ids) for each in asked)
        if not 0 < count <= MAX_QUEUES_ASKED:
            remark = f"{count} queues are asked for, between 1 and {MAX_QUEUES_ASKED} are allowed"
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark, {})
        offsets = [offset_of(each.topic, queue_id) for each in asked for queue_id in each.queue_ids]
        return ok(command, {"offset": str(offsets[0])}, encode_body(OffsetsOfQueues(offsets)))

    def earliest_store_time(self, session: Session, command: Command) -> bytes | None:
        """Store time of the queue's first message; -1 if there is none."""
        header = command.header(GetEarliestMsgStoretimeRequestHeader)
        if (static := self._state.mappings.find(header.topic, header.lo)) is not None:
            part = static.leading(header.queue_id).earliest
            header.queue_id = part.queue_id
            if not static.is_local(part):
                return self._state.peers.talk(session, command, self._logic.store_time(command, header, part))
        store = self._state.store
        first = store.offsets.sure_min_offset(header.topic, header.queue_id)
        if first < store.offsets.log_bounds(header.topic, header.queue_id)[0]:
            timestamp = store_time_of(store.reads.get(header.topic, header.queue_id, first, 1, 1).buffers)
        else:
            timestamp = store.offsets.store_timestamp_at(header.topic, header.queue_id, first)
        return ok(command, {"timestamp": str(timestamp)})

    def query_message(self, session: Session, command: Command) -> Slices:
        """Records with a key or, if the request says so, a unique key or a tag, in log order. Of messages that wait in
        topics of the broker, those for topics that the user may read. If they exceed a frame, the newest are
        returned. The answer consists of views of the log's files, so it needs no memory of its own."""
        header = command.header(QueryMessageRequestHeader)
        store = self._state.store
        max_num = header.max_num
        is_unique = command.ext.get(UNIQUE_KEY_QUERY) == "true"
        if is_unique:
            max_num = store.config.default_query_max_num
        permits = self._state.permits
        records = yield from store.reads.search(
            Sought(header.topic, header.key, is_tag=header.index_type == _TAG_INDEX),
            max_num,
            header.begin_timestamp,
            header.end_timestamp,
            unique_first=is_unique or header.index_type == _UNIQUE_INDEX,
            before=header.mqspark_before,
            accepts=readable(lambda topic: permits(session, Kind.TOPIC, topic, Action.GET, Action.SUB)),
        )
        if not records:
            raise Refusal(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                QueryMessageResponseHeader(index_last_update_timestamp=0, index_last_update_phyoffset=0),
            )
        size_bytes = 0
        first = len(records)
        while first and (
            first == len(records) or size_bytes + len(records[first - 1]) <= _MAX_QUERY_BODY_BYTES
        ):
            first -= 1
            size_bytes += len(records[first])
        if command.is_oneway:
            return None
        timestamp_ms, physical_offset = store.status.index_last_update
        head = encode_response_head(
            command.opaque,
            ResponseCode.SUCCESS,
            QueryMessageResponseHeader(
                index_last_update_timestamp=timestamp_ms, index_last_update_phyoffset=physical_offset
            ),
            size_bytes,
        )
        session.send(head, *records[first:])
        return None

    def view_message(self, session: Session, command: Command) -> bytes:
        """The record at a position of the log; if the request names a topic, only if it is for that topic."""
        header = command.header(ViewMessageRequestHeader)
        record = self._state.store.reads.record_at(PhysicalOffset(header.offset))
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        if header.topic and not header.topic.isspace() and not _is_for(header.topic, take_apart(record)):
            raise Refusal(ResponseCode.NO_PERMISSION, "The topic does not match the message")
        return encode_response(command.opaque, ResponseCode.SUCCESS, None, record)
