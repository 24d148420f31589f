"""Telemetry, Heartbeat and NotifyClientTermination: what clients say about themselves, what settings they get, and what
brokers ask them (ClientActivity, GrpcClientSettingsManager of RocketMQ's proxy)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from google.protobuf.duration_pb2 import Duration

from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import (
    ConsumerData,
    HeartbeatData,
    MessageModel,
    ProducerData,
)
from mqspark.protocol.bodies.topic_bodies import ExponentialRetryPolicy, SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import GrpcCall, Shared, of_each
from mqspark_server.proxy.clients.grpcclients import GrpcClient, TelemetryStream, check_size
from mqspark_server.proxy.content.resources import group_of, topic_of
from mqspark_server.proxy.content.subscribed import consume_type_of, subscription_of
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal
from mqspark_server.proxy.methods.grpclite import (
    LITE_CONSUMERS,
    MAX_LITE_TOPIC_LENGTH,
    forget_lite_subscriptions,
    tell_unsubscribed,
)
from mqspark_server.proxy.methods.grpcrelays import relay
from mqspark_server.proxy.methods.grpctransactions import check_transaction

Write = Callable[[pb.TelemetryCommand], Awaitable[None]]

MAX_STREAMS = 16
"""Telemetry streams of one client; RocketMQ's clients have one to each address."""
RECEIVE_BATCH = 32
LONG_POLLING_MS = 20_000
LITE_SUBSCRIPTION_QUOTA = 2_000
PRODUCER_ATTEMPTS = 3
PRODUCER_BACKOFF = pb.ExponentialBackoff(
    initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2
)
"""What the proxy tells all clients (ProxyConfig)."""
RETRY_DELAYS_S = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""The default delays between the attempts of a group (CustomizedRetryPolicy)."""

CONSUMERS = (
    pb.PUSH_CONSUMER,
    pb.SIMPLE_CONSUMER,
    pb.PULL_CONSUMER,
    pb.LITE_PUSH_CONSUMER,
    pb.LITE_SIMPLE_CONSUMER,
)


async def telemetry(call: GrpcCall, commands: AsyncIterator[pb.TelemetryCommand], write: Write) -> None:
    """Serve one stream until its client ends it. Raises GrpcRefusal."""
    client, stream = call.client, TelemetryStream(call.shared.clients.pushes)
    if len(client.streams) >= MAX_STREAMS:
        raise GrpcRefusal(pb.TOO_MANY_REQUESTS, f"{MAX_STREAMS} telemetry streams of this client are open")
    writer = asyncio.create_task(_write_out(stream, write))
    client.streams.append(stream)
    try:
        # A client that has said all still waits for the answers, and grpc ends no stream amid a write.
        await _listen(call, stream, commands)
    except asyncio.CancelledError:
        writer.cancel()
        raise
    finally:
        client.streams.remove(stream)
        stream.end()
        try:
            await asyncio.gather(writer, return_exceptions=True)
        finally:
            stream.clear()


async def _listen(
    call: GrpcCall, stream: TelemetryStream, commands: AsyncIterator[pb.TelemetryCommand]
) -> None:
    """Until the client ends its side. Raises GrpcRefusal."""
    client = call.client
    async for command in commands:
        kind = command.WhichOneof("command")
        if kind == "settings":
            agreed = await _agreed(call, command.settings)
            await stream.emptied()  # who does not read is not read from
            if not stream.push(pb.TelemetryCommand(status=OK, settings=agreed)):
                raise GrpcRefusal(pb.TOO_MANY_REQUESTS, "too many clients do not read what they are told")
        elif kind == "thread_stack_trace":
            client.answered(command.thread_stack_trace.nonce, command)
        elif kind == "verify_message_result":
            client.answered(command.verify_message_result.nonce, command)


async def _write_out(stream: TelemetryStream, write: Write) -> None:
    while (command := await stream.next()) is not None:
        await write(command)


async def _agreed(call: GrpcCall, given: pb.Settings) -> pb.Settings:
    """The settings that the client is to use, from its own."""
    check_size(given)
    kind = given.WhichOneof("pub_sub")
    if kind is None:
        raise GrpcRefusal(pb.BAD_REQUEST, "settings with neither publishing nor subscription")
    if kind == "publishing":
        await of_each(given.publishing.topics, topic_of)
    else:
        group_of(given.subscription.group)
        await of_each(given.subscription.subscriptions, lambda entry: topic_of(entry.topic))
        await of_each(given.subscription.subscriptions, subscription_of)
    call.shared.clients.told(call.client, given)
    agreed = pb.Settings()
    agreed.CopyFrom(given)
    if kind == "publishing":
        agreed.backoff_policy.max_attempts = PRODUCER_ATTEMPTS
        agreed.backoff_policy.exponential_backoff.CopyFrom(PRODUCER_BACKOFF)
        agreed.publishing.validate_message_type = True
        agreed.publishing.max_body_size = call.backend.max_message_bytes
    else:
        group = await call.backend.group(given.subscription.group.name)
        _agree_on_consuming(agreed, group or SubscriptionGroupConfig())
        call.client.is_fifo = agreed.subscription.fifo
    agreed.metric.on = False
    await _announce(call)
    return agreed


def _agree_on_consuming(settings: pb.Settings, group: SubscriptionGroupConfig) -> None:
    subscription, backoff = settings.subscription, settings.backoff_policy
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = RECEIVE_BATCH
    subscription.long_polling_timeout.CopyFrom(duration_of(LONG_POLLING_MS))
    subscription.lite_subscription_quota = LITE_SUBSCRIPTION_QUOTA
    subscription.max_lite_topic_size = MAX_LITE_TOPIC_LENGTH
    backoff.max_attempts = group.retry_max_times + 1
    policy = group.group_retry_policy
    if policy.type == "EXPONENTIAL":
        given = policy.exponential_retry_policy or ExponentialRetryPolicy()
        backoff.exponential_backoff.initial.CopyFrom(duration_of(given.initial))
        backoff.exponential_backoff.max.CopyFrom(duration_of(given.max))
        backoff.exponential_backoff.multiplier = given.multiplier
    else:
        chosen = policy.customized_retry_policy
        delays_ms = chosen.next if chosen is not None else [each * 1000 for each in RETRY_DELAYS_S]
        backoff.customized_backoff.ClearField("next")
        backoff.customized_backoff.next.extend(map(duration_of, delays_ms))


def duration_of(milliseconds: int) -> Duration:
    return Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


async def heartbeat(call: GrpcCall, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    settings = _settings_of(call)
    if settings.client_type in CONSUMERS:
        group_of(request.group)
    await _announce(call)
    return pb.HeartbeatResponse(status=OK)


async def notify_client_termination(
    call: GrpcCall, request: pb.NotifyClientTerminationRequest
) -> pb.NotifyClientTerminationResponse:
    """Others get the messages that it had. Brokers see its connection end, which is how it leaves its groups."""
    settings = _settings_of(call)
    if settings.client_type in CONSUMERS:
        group_of(request.group)
    await call.shared.renewals.leave(call.client.key)
    await forget_lite_subscriptions(call)
    call.shared.clients.remove(call.client)
    return pb.NotifyClientTerminationResponse(status=OK)


def _settings_of(call: GrpcCall) -> pb.Settings:
    """Raises GrpcRefusal for a client that has not told its settings, or of a type without a meaning here."""
    settings = call.client.settings
    if settings is None:
        raise GrpcRefusal(pb.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
    if settings.client_type != pb.PRODUCER and settings.client_type not in CONSUMERS:
        known = settings.client_type in pb.ClientType.values()
        name = pb.ClientType.Name(settings.client_type) if known else str(settings.client_type)
        raise GrpcRefusal(pb.UNRECOGNIZED_CLIENT_TYPE, name)
    return settings


async def _announce(call: GrpcCall) -> None:
    """Tell brokers what the client is: producer of topics, or member of a group. Raises GrpcRefusal."""
    settings = call.client.settings
    if settings is None:
        return
    data = HeartbeatData(client_id=call.client.caller.client_id)
    if settings.WhichOneof("pub_sub") == "publishing":
        # A producer of gRPC has no group. Checks of transactions look for one of its topic.
        topics = [each.name for each in settings.publishing.topics]
        await of_each(topics, call.client.link.rights.write)
        data.producer_data_set = [ProducerData(group_name=topic) for topic in topics]
        if not topics:
            return
    else:
        topics = [each.topic.name for each in settings.subscription.subscriptions]
        is_lite = settings.client_type in LITE_CONSUMERS
        data.consumer_data_set = [
            ConsumerData(
                group_name=settings.subscription.group.name,
                consume_type=consume_type_of(settings),
                message_model=MessageModel.LITE_SELECTIVE if is_lite else MessageModel.CLUSTERING,
                subscription_data_set=await of_each(settings.subscription.subscriptions, subscription_of),
            )
        ]
    await call.client.link.announce(topics, encode_body(data))


def asked_by_broker(shared: Shared, client: GrpcClient, broker: str, command: Command) -> None:
    """A broker's own request to a client."""
    if command.code == RequestCode.CHECK_TRANSACTION_STATE:
        check_transaction(shared, client, broker, command)
    elif command.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
        tell_unsubscribed(client, command)
    elif not command.is_oneway:
        shared.spawn(relay(client, broker, command))
