"""What a broker asks a consumer for a tool: to consume one message, to show its threads, to tell about itself
(GrpcClientChannel, ClientActivity of RocketMQ's proxy).

The first two go to the client over its telemetry stream. What it has told about itself is known here, so nobody has to
be asked for that; RocketMQ's proxy does not answer it.
"""

from __future__ import annotations

import itertools

from mqspark.base.clock import wall_ms
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.protocol.bodies.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.client_headers import GetConsumerRunningInfoRequestHeader
from mqspark.record.record import decode_record
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpcclients import GrpcClient
from mqspark_server.proxy.content.grpcmessages import stored_message
from mqspark_server.proxy.content.subscribed import consume_type_of, subscription_of
from mqspark_server.proxy.grpcstatus import OK

RELAY_S = 5.0
"""How long a client may take (grpcProxyRelayRequestTimeoutInSeconds)."""
MAX_STACKS_LENGTH = 1 << 20
_RESULTS: dict[int, str] = {
    pb.OK: "CR_SUCCESS",
    pb.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    pb.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
_nonces = itertools.count(1)


async def relay(client: GrpcClient, broker: str, command: Command) -> None:
    """Ask the client, and give the broker its answer."""
    code, body, remark = ResponseCode.SUCCESS, b"", None
    try:
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            body = encode_body(await _running_info(client, command))
        elif command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            body = encode_body(await _consume(client, command))
        else:
            text = f"a gRPC client cannot be asked for {command.code}"
            raise Refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
    except Refusal as refusal:
        code, remark = ResponseCode(refusal.code), refusal.remark
    except (ProtocolError, InvalidMessage) as error:
        code, remark = ResponseCode.SYSTEM_ERROR, str(error)
    client.link.answer(broker, encode_response(command.opaque, code, None, body, remark))


async def _asked(client: GrpcClient, nonce: str, command: pb.TelemetryCommand) -> pb.TelemetryCommand:
    """Raises Refusal."""
    answer = await client.ask(command, nonce, RELAY_S)
    if answer is None:
        raise Refusal(ResponseCode.SYSTEM_BUSY, "call remote timeout")
    return answer


async def _consume(client: GrpcClient, command: Command) -> ConsumeMessageDirectlyResult:
    """The listener's decision about a message. Raises Refusal."""
    message = stored_message(decode_record(command.body), wall_ms())
    nonce = str(next(_nonces))
    told = pb.VerifyMessageCommand(nonce=nonce, message=message)
    answer = await _asked(client, nonce, pb.TelemetryCommand(status=OK, verify_message_command=told))
    code = answer.status.code
    if code == pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
        raise Refusal(ResponseCode.NO_PERMISSION, "forbidden to verify message")
    if code not in _RESULTS:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"verify message failed: {answer.status.message}"[:512])
    return ConsumeMessageDirectlyResult(consume_result=_RESULTS[code], remark="from gRPC client")


async def _running_info(client: GrpcClient, command: Command) -> ConsumerRunningInfo:
    """Raises Refusal."""
    found = _told(client)
    if command.header(GetConsumerRunningInfoRequestHeader).jstack_enable:
        nonce = str(next(_nonces))
        told = pb.PrintThreadStackTraceCommand(nonce=nonce)
        answer = await _asked(
            client, nonce, pb.TelemetryCommand(status=OK, print_thread_stack_trace_command=told)
        )
        if answer.status.code != pb.OK:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no stacks: {answer.status.message}"[:512])
        found.jstack = answer.thread_stack_trace.thread_stack_trace[:MAX_STACKS_LENGTH]
    return found


def _told(client: GrpcClient) -> ConsumerRunningInfo:
    """What the client has said about itself. Tools rely on the properties that begin with PROP."""
    settings = client.settings or pb.Settings()
    subscription, agent = settings.subscription, settings.user_agent
    kind = settings.client_type
    properties = {
        "PROP_CONSUME_TYPE": consume_type_of(settings),
        "PROP_CONSUMEORDERLY": "true" if client.is_fifo else "false",
        "PROP_CLIENT_VERSION": client.client_version,
        "PROP_CONSUMER_START_TIMESTAMP": str(client.came_at_ms),
        "clientType": pb.ClientType.Name(kind) if kind in pb.ClientType.values() else str(kind),
        "consumerGroup": subscription.group.name,
        "language": pb.Language.Name(agent.language) if agent.language in pb.Language.values() else "",
        "platform": agent.platform,
        "hostname": agent.hostname,
        "requestTimeout": _seconds(settings.request_timeout.ToMilliseconds()),
        "longPollingTimeout": _seconds(subscription.long_polling_timeout.ToMilliseconds()),
    }
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=[subscription_of(each) for each in subscription.subscriptions],
    )


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
