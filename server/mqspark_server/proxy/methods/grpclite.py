"""SyncLiteSubscription: the lite topics that a client reads, told to all brokers of the parent topic
(ClientActivity.syncLiteSubscription, LiteSubscriptionService)."""

from __future__ import annotations

import asyncio
import re

from mqspark.base.logs import sparing
from mqspark.message import PERM_READ
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.lite_bodies import (
    LiteSubscription,
    LiteSubscriptionCtlRequestBody,
    OffsetOption,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import NotifyUnsubscribeLiteRequestHeader
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.clients.grpcclients import GrpcClient
from mqspark_server.proxy.content.resources import group_of, topic_of
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal, checked

LITE_CONSUMERS = (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER)
MAX_LITE_TOPIC_LENGTH = 64
"""maxLiteTopicSize, in bytes"""
MAX_NAMES = 4_096
"""Names in one request. A client with more subscriptions repeats them in several."""

log = sparing("mqspark.grpc")

_NAME = re.compile(r"[A-Za-z0-9_-]+")


async def sync_lite_subscription(
    call: GrpcCall, request: pb.SyncLiteSubscriptionRequest
) -> pb.SyncLiteSubscriptionResponse:
    topic, group = topic_of(request.topic), group_of(request.group)
    if len(request.lite_topic_set) > MAX_NAMES:
        raise GrpcRefusal(pb.BAD_REQUEST, f"more than {MAX_NAMES} lite topics in one request")
    option = None
    if request.action == pb.PARTIAL_ADD:
        for name in request.lite_topic_set:
            check_lite_topic(name)
        if request.HasField("offset_option"):
            option = _offset_option(request.offset_option)
    elif request.action not in pb.LiteSubscriptionAction.values():
        raise GrpcRefusal(pb.BAD_REQUEST, f"unknown LiteSubscriptionAction: {request.action}")
    await _tell(
        call,
        LiteSubscription(
            action=pb.LiteSubscriptionAction.Name(request.action),
            client_id=call.client.caller.client_id,
            group=group,
            topic=topic,
            lite_topic_set=list(request.lite_topic_set),
            offset_option=option,
            version=request.version,
        ),
    )
    return pb.SyncLiteSubscriptionResponse(status=OK)


async def forget_lite_subscriptions(call: GrpcCall) -> None:
    """A client of lite topics ends: others get its messages now, not only when brokers miss it."""
    settings = call.client.settings
    if settings is None or settings.client_type not in LITE_CONSUMERS:
        return
    for entry in settings.subscription.subscriptions[:1]:  # it is bound to one topic
        gone = LiteSubscription(
            action="COMPLETE_REMOVE",
            client_id=call.client.caller.client_id,
            group=settings.subscription.group.name,
            topic=entry.topic.name,
            lite_topic_set=[],
        )
        try:
            await _tell(call, gone)
        except GrpcRefusal as refusal:
            log.warning("brokers will have to miss %s: %s", call.client.caller.client_id, refusal)


def tell_unsubscribed(client: GrpcClient, command: Command) -> None:
    """A broker has given a lite topic to another client of an exclusive group."""
    lite_topic = command.header(NotifyUnsubscribeLiteRequestHeader).lite_topic
    told = pb.NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
    if not client.push(pb.TelemetryCommand(notify_unsubscribe_lite_command=told)):
        log.warning("%s cannot be told that it has lost %s", client.caller.client_id, lite_topic)


def check_lite_topic(name: str) -> None:
    """Raises GrpcRefusal for what is no name of a lite topic (GrpcValidator.validateLiteTopic)."""
    if not name.strip():
        raise GrpcRefusal(pb.ILLEGAL_LITE_TOPIC, "lite topic cannot be the char sequence of whitespace")
    if len(name.encode()) > MAX_LITE_TOPIC_LENGTH:
        raise GrpcRefusal(pb.ILLEGAL_LITE_TOPIC, f"lite topic exceed the max size {MAX_LITE_TOPIC_LENGTH}")
    if _NAME.fullmatch(name) is None:
        text = "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"
        raise GrpcRefusal(pb.ILLEGAL_LITE_TOPIC, text)


def _offset_option(given: pb.OffsetOption) -> OffsetOption:
    """Raises GrpcRefusal."""
    kind = given.WhichOneof("offset_type")
    if kind is None or (kind == "policy" and given.policy not in pb.OffsetOption.Policy.values()):
        raise GrpcRefusal(pb.BAD_REQUEST, "Unknown OffsetOption type")
    return OffsetOption(type=kind.upper(), value=getattr(given, kind))


async def _tell(call: GrpcCall, subscription: LiteSubscription) -> None:
    body = encode_body(LiteSubscriptionCtlRequestBody(lite_subscription_set=[subscription]))
    route = await call.route(subscription.topic or "")
    brokers = [queues.broker_name for queues in route.queue_datas if queues.perm & PERM_READ]
    code = RequestCode.LITE_SUBSCRIPTION_CTL
    for answer in await asyncio.gather(*(call.request(broker, code, None, body) for broker in brokers)):
        checked(answer)
