"""UpdateOffset, GetOffset, QueryOffset and PullMessage: queues read by their offsets.

RocketMQ's proxy answers none of them; the meaning is that of the requests of remoting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from mqspark.base.clock import wall_ms
from mqspark.message import MessageQueue
from mqspark.protocol.codes import PullFlag, RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqspark.protocol.headers.header import Header
from mqspark.record.record import decode_pull
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.content.grpcmessages import apart, stored_message
from mqspark_server.proxy.content.instants import millis_of
from mqspark_server.proxy.content.resources import group_of, topic_of
from mqspark_server.proxy.content.subscribed import filter_of
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal, checked, refusal_of, status

MAX_PULLED = 32
MAX_POLLING_S = 20.0
_NOTHING = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


def _queue_of(given: pb.MessageQueue) -> MessageQueue:
    """Raises GrpcRefusal."""
    topic = topic_of(given.topic)
    if not given.broker.name:
        raise GrpcRefusal(pb.BAD_REQUEST, "the queue names no broker")
    if given.id < 0:
        raise GrpcRefusal(pb.BAD_REQUEST, f"there is no queue {given.id}")
    return MessageQueue(topic, given.broker.name, given.id)


def _offset_of(offset: int) -> int:
    """Raises GrpcRefusal for a negative one."""
    if offset < 0:
        raise GrpcRefusal(pb.ILLEGAL_OFFSET, f"an offset cannot be negative: {offset}")
    return offset


async def update_offset(call: GrpcCall, request: pb.UpdateOffsetRequest) -> pb.UpdateOffsetResponse:
    group, queue = group_of(request.group), _queue_of(request.message_queue)
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=_offset_of(request.offset),
    )
    checked(await call.request(queue.broker_name, RequestCode.UPDATE_CONSUMER_OFFSET, header))
    return pb.UpdateOffsetResponse(status=OK)


async def get_offset(call: GrpcCall, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
    group, queue = group_of(request.group), _queue_of(request.message_queue)
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
    )
    answer = await call.request(queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, header)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        raise GrpcRefusal(pb.OFFSET_NOT_FOUND, answer.remark or "the group has no offset there")
    offset = checked(answer).header(QueryConsumerOffsetResponseHeader).offset
    return pb.GetOffsetResponse(status=OK, offset=offset)


async def query_offset(call: GrpcCall, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
    queue = _queue_of(request.message_queue)
    topic, queue_id, policy = queue.topic, queue.queue_id, request.query_offset_policy
    header: Header
    if policy == pb.BEGINNING:
        code, header = RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id)
    elif policy == pb.END:
        code, header = RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
    elif policy == pb.TIMESTAMP and request.HasField("timestamp"):
        time_ms = millis_of(request.timestamp)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        header = SearchOffsetRequestHeader(topic=topic, queue_id=queue_id, timestamp=time_ms)
    else:
        raise GrpcRefusal(pb.BAD_REQUEST, "a policy is BEGINNING, END, or TIMESTAMP with a time")
    answer = checked(await call.request(queue.broker_name, code, header))
    # All three have one field.
    return pb.QueryOffsetResponse(status=OK, offset=answer.header(SearchOffsetResponseHeader).offset)


async def pull_message(
    call: GrpcCall,
    request: pb.PullMessageRequest,
    write: Callable[[pb.PullMessageResponse], Awaitable[None]],
) -> None:
    """The status, the messages, and where to go on."""
    group, queue = group_of(request.group), _queue_of(request.message_queue)
    kind, expression = filter_of(request.filter_expression)
    asked_s = request.long_polling_timeout.ToMilliseconds() / 1000
    poll_ms = int(max(0.0, min(asked_s, MAX_POLLING_S, call.left_s)) * 1000)
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=_offset_of(request.offset),
        max_msg_nums=max(1, min(request.batch_size, MAX_PULLED)),
        sys_flag=PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if poll_ms > 0 else 0),
        commit_offset=0,
        suspend_timeout_millis=poll_ms,
        sub_version=wall_ms(),
        subscription=expression,
        expression_type=kind,
    )
    answer = await call.client.link.request(
        queue.broker_name, RequestCode.PULL_MESSAGE, header, timeout_s=poll_ms / 1000 + ANSWER_TIMEOUT_S
    )
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        there = answer.header(PullMessageResponseHeader).next_begin_offset
        raise GrpcRefusal(pb.ILLEGAL_OFFSET, f"the next offset of the queue is {there}")
    if answer.code not in _NOTHING and answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer)
    next_offset: int = answer.header(PullMessageResponseHeader).next_begin_offset
    if answer.code in _NOTHING:
        await write(pb.PullMessageResponse(status=status(pb.MESSAGE_NOT_FOUND, "no new message")))
    else:
        messages, unread = decode_pull(answer.body, broker_name=queue.broker_name)
        await write(pb.PullMessageResponse(status=OK))
        for each in messages:
            made = await apart(each, partial(stored_message, each, wall_ms()))
            await write(pb.PullMessageResponse(message=made))
        if unread is not None:
            next_offset = unread
    await write(pb.PullMessageResponse(next_offset=next_offset))
