"""ReceiveMessage: a pop as a stream of responses (ReceiveMessageActivity).

The responses are a status, the messages, and the time of delivery. What was popped and cannot be written is given
back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from typing import Protocol

from mqspark.base.logs import sparing
from mqspark.broker.pop.popprocessor import MAX_POP_MESSAGES
from mqspark.broker.state.litenames import bound_topic
from mqspark.errors import InvalidMessage, ProtocolError, TableFull
from mqspark.message import PERM_READ, MessageQueue
from mqspark.protocol.bodies.client_bodies import SubscriptionData, build_subscription
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    INIT_MAX,
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
)
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.clients.renewals import GIVEN_BACK_MS, INVISIBLE_MS, ReceiptPlace, place_of
from mqspark_server.proxy.content.handedout import Given, delivered, handed_out, lite_handed_out
from mqspark_server.proxy.content.resources import group_of, topic_of
from mqspark_server.proxy.content.subscribed import filter_of
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal, refusal_of, status
from mqspark_server.proxy.methods.grpclite import LITE_CONSUMERS
from mqspark_server.proxy.methods.grpcreceipts import acknowledge, change_receipt, forward, invisible_ms_of

MIN_POLL_MS, MAX_POLL_MS = 5_000, 20_000
"""grpcClientConsumerMinLongPollingTimeoutMillis, grpcClientConsumerMaxLongPollingTimeoutMillis"""
MIN_INVISIBLE_MS = 10_000
"""minInvisibleTimeMillsForRecv"""
MAX_LITE_HELD = 100
"""Messages that one consumer of lite topics has at most (maxLiteRenewNumPerChannel)."""
DEFAULT_ATTEMPTS = SubscriptionGroupConfig().retry_max_times + 1

_turns = itertools.count()
"""Brokers take turns."""
_RECEIVED = pb.ReceiveMessageResponse(status=OK).SerializeToString()
_NO_MESSAGE = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND})

log = sparing("mqspark.grpc")

WRITTEN_AT_ONCE_BYTES = 64 << 10
"""Messages of so many bytes go out together, as far as the client takes them."""


class Write(Protocol):
    """One write of several responses, encoded or not, is cheaper than one for each."""

    def __call__(self, *responses: pb.ReceiveMessageResponse | bytes) -> Awaitable[None]: ...


class _Reception:
    """One call, checked."""

    def __init__(self, call: GrpcCall, request: pb.ReceiveMessageRequest) -> None:
        """Raises GrpcRefusal."""
        self.poll_ms = _poll_ms(call, request)
        self.topic, self.group = topic_of(request.message_queue.topic), group_of(request.group)
        self.auto_renew: bool = request.auto_renew
        self.invisible_ms = INVISIBLE_MS
        if not self.auto_renew:
            self.invisible_ms = invisible_ms_of(request.invisible_duration, MIN_INVISIBLE_MS)
        self.batch = min(request.batch_size, MAX_POP_MESSAGES)
        self.attempt_id = request.attempt_id or None
        self.filter = _filter(self.topic, request.filter_expression)
        self.tags = frozenset(self.filter.tags_set)
        self.broker = ""
        self.config: SubscriptionGroupConfig | None = None
        self.is_lite = False


async def receive_message(call: GrpcCall, request: pb.ReceiveMessageRequest, write: Write) -> None:
    try:
        reception = _Reception(call, request)
        given = await _popped(call, reception, request)
    except GrpcRefusal as refused:
        await write(pb.ReceiveMessageResponse(status=refused.status))
        given = []
    else:
        await _deliver(call, reception, given, write)
    last = pb.ReceiveMessageResponse()
    last.delivery_timestamp.FromMilliseconds(call.backend.clock.now_ms())
    await write(last)


def _poll_ms(call: GrpcCall, request: pb.ReceiveMessageRequest) -> int:
    """How long the broker may wait for a message. Raises GrpcRefusal."""
    left_ms = int(call.left_s * 1000)
    if request.HasField("long_polling_timeout"):
        poll_ms: int = request.long_polling_timeout.ToMilliseconds()
    else:
        settings = call.client.settings
        poll_ms = left_ms - (settings.request_timeout.ToMilliseconds() if settings else 0) // 2
    poll_ms = min(max(poll_ms, MIN_POLL_MS), MAX_POLL_MS, left_ms)
    if poll_ms < MIN_POLL_MS:
        code = pb.BAD_REQUEST if call.client.client_version < "5.0.3" else pb.ILLEGAL_POLLING_TIME
        text = "The deadline time remaining is not enough for polling, please check network condition"
        raise GrpcRefusal(code, text)
    return poll_ms


def _filter(topic: str, given: pb.FilterExpression) -> SubscriptionData:
    """SQL is compiled by the broker. Raises GrpcRefusal."""
    kind, expression = filter_of(given)
    if not expression:
        raise GrpcRefusal(pb.ILLEGAL_FILTER_EXPRESSION, f"Expression can't be null! {kind}")
    try:
        return build_subscription(topic, expression, kind)
    except InvalidMessage as error:
        raise GrpcRefusal(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


# --- popping --------------------------------------------------------------------------------------------------


async def _popped(call: GrpcCall, reception: _Reception, request: pb.ReceiveMessageRequest) -> list[Given]:
    """Raises GrpcRefusal."""
    reception.config = await call.backend.group(reception.group)
    reception.is_lite = _is_lite(call, reception)
    reception.broker = await _broker(call, reception.topic, request.message_queue.broker.name)
    renewals = call.shared.renewals
    if reception.is_lite and renewals.held_by(call.client.key) > MAX_LITE_HELD:
        raise GrpcRefusal(
            pb.FORBIDDEN, f"The client [{call.client.caller.client_id}] has too many unacked messages."
        )
    if reception.auto_renew and not renewals.has_room(reception.batch):
        raise GrpcRefusal(pb.TOO_MANY_REQUESTS, "too many messages are with clients and not acknowledged")
    # The broker answers a pop also when nobody waits for the answer any more.
    popping = asyncio.ensure_future(_pop(call, reception))
    try:
        given = await asyncio.shield(popping)
    except asyncio.CancelledError:
        popping.add_done_callback(lambda _: _came_too_late(call, reception, popping))
        raise
    return await _wanted(call, reception, given)


def _is_lite(call: GrpcCall, reception: _Reception) -> bool:
    settings = call.client.settings
    if settings is not None:
        return settings.client_type in LITE_CONSUMERS
    return reception.config is not None and bound_topic(reception.config) == reception.topic


async def _broker(call: GrpcCall, topic: str, named: str) -> str:
    """The broker to ask: the one that the client names, or any. Raises GrpcRefusal."""
    route = await call.route(topic)
    readable = [
        queues.broker_name
        for queues in route.queue_datas
        if queues.perm & PERM_READ and queues.read_queue_nums > 0
    ]
    if named in readable:
        return named
    if not readable:
        raise GrpcRefusal(pb.FORBIDDEN, "no readable queue")
    return readable[next(_turns) % len(readable)]


async def _pop(call: GrpcCall, reception: _Reception) -> list[Given]:
    """Raises GrpcRefusal."""
    now_ms = call.backend.clock.now_ms()
    header: PopLiteMessageRequestHeader | PopMessageRequestHeader
    if reception.is_lite:
        code = RequestCode.POP_LITE_MESSAGE
        header = PopLiteMessageRequestHeader(
            client_id=call.client.caller.client_id,
            consumer_group=reception.group,
            topic=reception.topic,
            max_msg_num=reception.batch,
            invisible_time=reception.invisible_ms,
            poll_time=reception.poll_ms,
            born_time=now_ms,
            attempt_id=reception.attempt_id,
            bname=reception.broker,
        )
    else:
        code = RequestCode.POP_MESSAGE
        config = reception.config
        header = PopMessageRequestHeader(
            consumer_group=reception.group,
            topic=reception.topic,
            queue_id=-1,
            max_msg_nums=reception.batch,
            invisible_time=reception.invisible_ms,
            poll_time=reception.poll_ms,
            born_time=now_ms,
            init_mode=INIT_MAX,
            exp_type=reception.filter.expression_type,
            exp=reception.filter.sub_string,
            order=config is not None and config.consume_message_orderly,
            attempt_id=reception.attempt_id,
            bname=reception.broker,
        )
    timeout_s = reception.poll_ms / 1000 + ANSWER_TIMEOUT_S
    answer = await call.client.link.request(reception.broker, code, header, timeout_s=timeout_s)
    return _messages(reception, answer)


def _messages(reception: _Reception, answer: Command) -> list[Given]:
    """Raises GrpcRefusal."""
    if answer.code == ResponseCode.POLLING_FULL:
        raise GrpcRefusal(pb.TOO_MANY_REQUESTS, "polling full")
    if answer.code in _NO_MESSAGE:
        raise GrpcRefusal(pb.MESSAGE_NOT_FOUND, "no new message")
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer)
    try:
        if reception.is_lite:
            return lite_handed_out(answer, reception.topic, reception.broker)
        queue = MessageQueue(reception.topic, reception.broker, -1)
        return handed_out(answer, queue, reception.group)
    except (InvalidMessage, ProtocolError) as error:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error)) from None


async def _wanted(call: GrpcCall, reception: _Reception, given: Sequence[Given]) -> list[Given]:
    """Without messages whose tag has but the hash of a wanted one, and those that were tried often enough."""
    config = reception.config
    most = DEFAULT_ATTEMPTS if config is None else config.retry_max_times + 1
    wanted, others = [], []
    for each in given:
        if reception.tags and each.tags not in reception.tags:
            others.append(acknowledge(call.client.link, _place(reception, each), each.handle))
        elif each.reconsume_times >= most:
            others.append(forward(call.client.link, _place(reception, each), each.handle, each.message_id))
        else:
            wanted.append(each)
    for outcome in await asyncio.gather(*others, return_exceptions=True):
        if isinstance(outcome, GrpcRefusal):
            log.warning("a message of %s that %s does not get: %s", reception.topic, reception.group, outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
    return wanted


def _place(reception: _Reception, given: Given) -> ReceiptPlace:
    lite_topic = given.lite_topic if reception.is_lite else ""
    return place_of(reception.group, reception.topic, lite_topic, given.handle)


# --- delivery -------------------------------------------------------------------------------------------------


async def _deliver(call: GrpcCall, reception: _Reception, given: Sequence[Given], write: Write) -> None:
    if not given:
        await write(pb.ReceiveMessageResponse(status=status(pb.MESSAGE_NOT_FOUND, "no match message")))
        return
    written = 0
    try:
        _hold(call, reception, given)
        responses, size = [_RECEIVED], 0
        for number, each in enumerate(given, 1):
            now_ms = call.backend.clock.now_ms()
            if each.may_inflate:
                made = await asyncio.to_thread(delivered, each, now_ms)
            else:
                made = delivered(each, now_ms)
            responses.append(made)
            size += len(made)
            if size >= WRITTEN_AT_ONCE_BYTES or number == len(given):
                await write(*responses)
                responses, size, written = [], 0, number
    except BaseException:
        call.shared.spawn(_give_back(call, reception, given[written:]))
        raise


def _hold(call: GrpcCall, reception: _Reception, given: Sequence[Given]) -> None:
    if not reception.auto_renew:
        return
    try:
        for each in given:
            call.shared.renewals.hold(call.client.key, _place(reception, each), each.handle)
    except TableFull as error:  # others came first: these are not renewed
        log.warning("%s gets messages that are not renewed: %s", call.client.caller.client_id, error)


def _came_too_late(call: GrpcCall, reception: _Reception, popping: asyncio.Task[list[Given]]) -> None:
    if not popping.cancelled() and popping.exception() is None and popping.result():
        call.shared.spawn(_give_back(call, reception, popping.result()))


async def _give_back(call: GrpcCall, reception: _Reception, given: Sequence[Given]) -> None:
    """Make visible soon what the client did not get."""
    for each in given:
        place = _place(reception, each)
        handle = await call.shared.renewals.take(call.client.key, place, each.handle)
        try:
            await change_receipt(call.client.link, place, handle, GIVEN_BACK_MS)
        except GrpcRefusal as refused:
            log.warning(
                "message %s is delivered again only after its invisible time: %s", each.message_id, refused
            )
