"""A push consumer's answers to requests that its broker relays from tools (ClientRemotingProcessor)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from mqspark.base.logs import escaping
from mqspark.client.consumer.running_info import stacks
from mqspark.client.delivery.delivery import ConsumeStatus, Outcome, failure_of
from mqspark.errors import ProtocolError
from mqspark.message import MessageExt, MessageQueue
from mqspark.protocol.bodies.admin_bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_key, queue_of
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from mqspark.record.record import decode_record

log = escaping(__name__)


class Asked(Protocol):
    """The consumer, as seen by these requests."""

    @property
    def is_ordered(self) -> bool: ...

    @property
    def auto_commit(self) -> bool: ...

    def running_info(self) -> ConsumerRunningInfo: ...

    def consumed_offsets(self) -> Mapping[MessageQueue, int]: ...

    def consumes(self, topic: str) -> bool:
        """Whether messages of the topic are for its listener."""

    async def consume_now(self, message: MessageExt) -> Outcome:
        """Consume outside the order, without changing offsets. Raises what the listener raises."""

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Continue at the offset if the queue is still assigned."""


async def answer(consumer: Asked, request: Command) -> tuple[int, bytes, str | None]:
    """Returns response code, body and remark. Raises ProtocolError for a malformed request."""
    body = b""
    if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
        info = consumer.running_info()
        if request.header(GetConsumerRunningInfoRequestHeader).jstack_enable:
            info.jstack = stacks()
        body = encode_body(info)
    elif request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        body = encode_body(await _consume_directly(consumer, request))
    elif request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        topic = request.header(GetConsumerStatusRequestHeader).topic
        offsets = {
            queue_key(queue): offset
            for queue, offset in consumer.consumed_offsets().items()
            if queue.topic == topic
        }
        body = encode_body(GetConsumerStatusBody(message_queue_table=offsets))
    elif request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        topic = request.header(ResetOffsetRequestHeader).topic
        table = decode_body(ResetOffsetBody, request.body).offset_table
        if min(table.values(), default=0) < 0:
            raise ProtocolError(f"a reset of {topic} to a negative offset")
        for queue, offset in ((queue_of(key), offset) for key, offset in table.items()):
            if queue.topic == topic:
                await consumer.reset(queue, offset)
    else:
        return (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            b"",
            f"a consumer does not support request {request.code}",
        )
    return ResponseCode.SUCCESS, body, None


async def _consume_directly(consumer: Asked, request: Command) -> ConsumeMessageDirectlyResult:
    header = request.header(ConsumeMessageDirectlyResultRequestHeader)
    message = decode_record(request.body)
    if not consumer.consumes(message.topic):
        raise ProtocolError(
            f"a message of topic {message.topic}, which group {header.consumer_group} does not consume"
        )
    message.broker_name = header.broker_name or ""
    result = ConsumeMessageDirectlyResult(
        order=consumer.is_ordered, auto_commit=consumer.auto_commit, consume_result="CR_SUCCESS"
    )
    began = time.monotonic_ns()
    try:
        outcome = await consumer.consume_now(message)
        if not consumer.auto_commit and outcome in (ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK):
            result.consume_result = f"CR_{outcome.value}"
        elif failure_of(outcome) is not None:
            result.consume_result = "CR_LATER"
    except Exception as error:
        log.warning("the listener failed on a directly consumed message", exc_info=error)
        result.consume_result = "CR_THROW_EXCEPTION"
        result.remark = f"{type(error).__name__}: {error}"
    result.spent_time_mills = (time.monotonic_ns() - began) // 1_000_000
    return result
