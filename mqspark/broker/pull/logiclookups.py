"""Offsets of logic queues: what ``lookups`` answers for physical queues, asked of the brokers of all parts
(AdminBrokerProcessor, ConsumerManageProcessor: rewriteRequestForStaticTopic).

Each method is a talk (``peers``). A group's progress is kept as an offset of the physical queue of the part that holds
it.

Facts: docs/rocketmq/statictopics.md#offsets.
"""

from __future__ import annotations

from typing import TypeVar

from mqspark.broker.state.state import BrokerState
from mqspark.broker.statictopic.logicqueues import LogicQueue, Part, logic_offset, sent_offset
from mqspark.broker.statictopic.mappings import StaticTopic
from mqspark.broker.statictopic.peers import Question, Talk
from mqspark.broker.tables.consumer_offsets import NOT_FOUND
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.dispatch import Refusal, ok
from mqspark.protocol.headers.client_headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqspark.protocol.headers.header import Header, TopicHeader, to_ext

H = TypeVar("H", bound=Header)

_NO_OFFSET = "Not found, maybe this group consumer boot first"


def _question(part: Part, code: RequestCode, header: TopicHeader) -> Question:
    header.lo, header.bname = False, part.bname
    return Question(part.bname or "", code, to_ext(header))


def _success(answer: Command, header_type: type[H], part: Part) -> H:
    if answer.code != ResponseCode.SUCCESS:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"broker {part.bname} answers {answer.code}: {(answer.remark or '')[:200]}",
        )
    return answer.header(header_type)


class LogicLookups:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def query(
        self,
        command: Command,
        header: QueryConsumerOffsetRequestHeader,
        static: StaticTopic,
        queue: LogicQueue,
    ) -> Talk:
        """A group's progress: that of the latest part that has one."""
        offset, part = NOT_FOUND, queue.leader
        header.set_zero_if_not_found = False
        for part in reversed(queue.readable):
            if static.is_local(part):
                offset = self._state.offsets.query(header.consumer_group, header.topic, part.queue_id)
            else:
                header.queue_id = part.queue_id
                answer = yield _question(part, RequestCode.QUERY_CONSUMER_OFFSET, header)
                if answer.code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                offset = _success(answer, QueryConsumerOffsetResponseHeader, part).offset
            if offset >= 0:
                break
        if offset < 0:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, _NO_OFFSET, {})
        return ok(command, {"offset": str(logic_offset(part, offset))})

    def update(self, command: Command, header: UpdateConsumerOffsetRequestHeader, part: Part) -> Talk:
        """A progress in a part of another broker; ``header`` has the physical queue and offset."""
        answer = yield _question(part, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        return encode_response(command.opaque, answer.code, {}, remark=answer.remark)

    def search(
        self,
        command: Command,
        header: SearchOffsetRequestHeader,
        static: StaticTopic,
        queue: LogicQueue,
        *,
        upper: bool,
    ) -> Talk:
        """The logic offset of a time: in the first part whose messages reach it, or the end. (RocketMQ's broker takes
        the last part of another broker that has an answer, and so may skip messages.)"""
        store, offset = self._state.store, NOT_FOUND
        for part in queue.readable:
            if static.is_local(part):
                found = store.offsets.offset_by_timestamp(
                    header.topic, part.queue_id, header.timestamp, upper
                )
                end = store.offsets.max_offset(header.topic, part.queue_id)
            else:
                header.queue_id = part.queue_id
                answer = yield _question(part, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
                found = _success(answer, SearchOffsetResponseHeader, part).offset
                of_end = GetMaxOffsetRequestHeader(topic=header.topic, queue_id=part.queue_id)
                answer = yield _question(part, RequestCode.GET_MAX_OFFSET, of_end)
                end = _success(answer, GetMaxOffsetResponseHeader, part).offset
            if part.end_offset > part.start_offset:
                end = min(end, part.end_offset)
            if found >= 0 and (offset < 0 or not upper or found > part.start_offset):
                offset = logic_offset(part, min(found, end))
            if 0 <= found < end - upper:
                break
        return ok(command, {"offset": str(offset)})

    def max_offset(
        self,
        command: Command,
        header: GetMaxOffsetRequestHeader,
        static: StaticTopic,
        queue: LogicQueue,
    ) -> Talk:
        part = queue.latest
        header.queue_id = part.queue_id
        if static.is_local(part):
            offset = self._state.store.offsets.max_offset(header.topic, part.queue_id)
        else:
            answer = yield _question(part, RequestCode.GET_MAX_OFFSET, header)
            offset = _success(answer, GetMaxOffsetResponseHeader, part).offset
        return ok(command, {"offset": str(logic_offset(part, offset))})

    def min_offset(
        self,
        command: Command,
        header: GetMinOffsetRequestHeader,
        static: StaticTopic,
        queue: LogicQueue,
    ) -> Talk:
        part = queue.earliest
        header.queue_id = part.queue_id
        if static.is_local(part):
            offset = self._state.store.offsets.min_offset(header.topic, part.queue_id)
        else:
            answer = yield _question(part, RequestCode.GET_MIN_OFFSET, header)
            offset = _success(answer, GetMinOffsetResponseHeader, part).offset
        return ok(command, {"offset": str(sent_offset(part, offset))})

    def store_time(self, command: Command, header: GetEarliestMsgStoretimeRequestHeader, part: Part) -> Talk:
        """The store time of the first message, which another broker has."""
        answer = yield _question(part, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        found = _success(answer, GetEarliestMsgStoretimeResponseHeader, part)
        return ok(command, {"timestamp": str(found.timestamp)})
