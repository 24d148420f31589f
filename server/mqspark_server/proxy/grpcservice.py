"""The service: which function answers which method, and what a caller gets when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from mqspark.base.config import Bound
from mqspark.base.logs import sparing
from mqspark.errors import IllegalName, InvalidMessage, ProtocolError
from mqspark.protocol.command import Command
from mqspark_server.net.grpc.grpcwords import GrpcAbort, GrpcCode
from mqspark_server.net.grpc.servedcalls import GrpcMethod
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import ProxyBackend
from mqspark_server.proxy.clients.grpccalls import GrpcCall, Shared
from mqspark_server.proxy.clients.grpcclients import GrpcClient, GrpcClients
from mqspark_server.proxy.clients.grpchalves import GrpcHalves
from mqspark_server.proxy.clients.grpcmetadata import GrpcMetadata
from mqspark_server.proxy.content.fieldcounts import counter
from mqspark_server.proxy.content.grpcacks import parse_ack
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from mqspark_server.proxy.methods.grpcadmin import change_log_level
from mqspark_server.proxy.methods.grpclite import sync_lite_subscription
from mqspark_server.proxy.methods.grpcoffsets import get_offset, pull_message, query_offset, update_offset
from mqspark_server.proxy.methods.grpcreceipts import (
    ack_at_once,
    ack_message,
    change_invisible_duration,
    forward_to_dead_letters,
    renewals_for,
)
from mqspark_server.proxy.methods.grpcreceiving import receive_message
from mqspark_server.proxy.methods.grpcrouting import query_assignment, query_route
from mqspark_server.proxy.methods.grpcsending import recall_message, send_at_once, send_message
from mqspark_server.proxy.methods.grpctransactions import end_transaction
from mqspark_server.proxy.methods.telemetry import (
    asked_by_broker,
    heartbeat,
    notify_client_termination,
    telemetry,
)

log = sparing("mqspark.grpc")

SERVICE = "apache.rocketmq.v2.MessagingService"
CHANGE_LOG_LEVEL = "/apache.rocketmq.v2.Admin/ChangeLogLevel"

UNARY: dict[str, Callable[[GrpcCall, Any], Any]] = {
    "QueryRoute": query_route,
    "QueryAssignment": query_assignment,
    "Heartbeat": heartbeat,
    "NotifyClientTermination": notify_client_termination,
    "SendMessage": send_message,
    "RecallMessage": recall_message,
    "EndTransaction": end_transaction,
    "UpdateOffset": update_offset,
    "GetOffset": get_offset,
    "QueryOffset": query_offset,
    "AckMessage": ack_message,
    "ChangeInvisibleDuration": change_invisible_duration,
    "ForwardMessageToDeadLetterQueue": forward_to_dead_letters,
    "SyncLiteSubscription": sync_lite_subscription,
}
"""``async def method(call, request)`` returns the response."""
AT_ONCE: dict[str, Callable[[GrpcCall, Any], bool]] = {
    "SendMessage": send_at_once,
    "AckMessage": ack_at_once,
}
"""``method(call, request)`` needs no task: it answers by ``call.answer``, now or later, or returns False, and ``UNARY``
serves it."""
PARSED_BY: dict[str, Callable[[bytes], Any]] = {"AckMessage": parse_ack}
"""Requests that are not made objects always. ``AT_ONCE`` has to know both."""
STREAMING: dict[str, Callable[[GrpcCall, Any, Any], Awaitable[None]]] = {
    "PullMessage": pull_message,
    "ReceiveMessage": receive_message,
}
"""``async def method(call, request, write)`` awaits ``write(response)``, which fails when the caller is gone."""


class MessagingService:
    """The methods for a listener of gRPC."""

    def __init__(self, backend: ProxyBackend, port: int, max_client_bytes: Bound) -> None:
        self.clients = GrpcClients(backend, self._asked_by_broker, max_client_bytes)
        self.renewals = renewals_for(backend, self.clients)
        self._shared = Shared(backend, self.clients, GrpcHalves(max_client_bytes), self.renewals, port)
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.clients.start()
        self._renewing = asyncio.ensure_future(self.renewals.run())

    def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        self.clients.close()

    @property
    def methods(self) -> Mapping[str, GrpcMethod]:
        """By their paths."""
        methods = {}
        for method in pb.DESCRIPTOR.services_by_name["MessagingService"].methods:
            response_type = getattr(pb, method.output_type.name)
            serve: Callable[[Any, Any], Awaitable[Any]]
            if method.client_streaming:
                serve = self._telemetry
            elif method.server_streaming:
                serve = self._streaming(method.name, response_type)
            else:
                serve = self._unary(method.name, response_type)
            parse = PARSED_BY.get(method.name) or getattr(pb, method.input_type.name).FromString
            methods[f"/{SERVICE}/{method.name}"] = GrpcMethod(
                method.name,
                parse,
                serve,
                takes_stream=method.client_streaming,
                at_once=self._at_once(method.name, response_type),
                check=counter(method.input_type),
            )
        parse = pb.ChangeLogLevelRequest.FromString
        methods[CHANGE_LOG_LEVEL] = GrpcMethod("ChangeLogLevel", parse, self._change_log_level)
        return methods

    async def _change_log_level(self, request: pb.ChangeLogLevelRequest, context: Any) -> Any:
        """Its response has no status, so a refusal ends the call."""
        try:
            return await change_log_level(self._call(context), request)
        except GrpcRefusal as refusal:
            may_not = refusal.code in (pb.FORBIDDEN, pb.UNAUTHORIZED)
            code = GrpcCode.PERMISSION_DENIED if may_not else GrpcCode.INVALID_ARGUMENT
            raise GrpcAbort(code, refusal.text) from None

    def _asked_by_broker(self, client: GrpcClient, broker: str, command: Command) -> None:
        asked_by_broker(self._shared, client, broker, command)

    def _call(self, context: Any) -> GrpcCall:
        """Raises GrpcRefusal."""
        return GrpcCall(self._shared, self.clients.of(_metadata(context)), context)

    def _unary(self, name: str, response_type: Any) -> Callable[[Any, Any], Any]:
        function = UNARY[name]

        async def serve(request: Any, context: Any) -> Any:
            try:
                with self._call(context) as call:
                    return await function(call, request)
            except Exception as error:
                return response_type(status=_refusal(name, error).status)

        return serve

    def _at_once(self, name: str, response_type: Any) -> Callable[[Any, Any], bool] | None:
        function = AT_ONCE.get(name)
        if function is None:
            return None

        def serve(request: Any, context: Any) -> bool:
            try:
                return function(self._call(context), request)
            except Exception as error:
                context.answer(response_type(status=_refusal(name, error).status).SerializeToString())
                return True

        return serve

    def _streaming(self, name: str, response_type: Any) -> Callable[[Any, Any], Any]:
        function = STREAMING[name]

        async def serve(request: Any, context: Any) -> None:
            try:
                with self._call(context) as call:
                    await function(call, request, context.write)
            except Exception as error:
                await context.write(response_type(status=_refusal(name, error).status))

        return serve

    async def _telemetry(self, requests: AsyncIterator[pb.TelemetryCommand], context: Any) -> None:
        try:
            await telemetry(self._call(context), requests, context.write)
        except GrpcAbort:  # a message that cannot be read
            raise
        except Exception as error:
            refused = _refusal("Telemetry", error)
            await context.write(pb.TelemetryCommand(status=refused.status))
            is_ours = refused.code >= pb.INTERNAL_ERROR
            code = GrpcCode.INTERNAL if is_ours else GrpcCode.INVALID_ARGUMENT
            raise GrpcAbort(code, refused.text) from None


def _metadata(context: Any) -> GrpcMetadata:
    """Made once for calls that share it. Raises GrpcRefusal."""
    fields = context.metadata
    known: GrpcMetadata | None = fields.meaning
    if known is None:
        known = fields.meaning = GrpcMetadata(context)
    return known


def _refusal(name: str, error: Exception) -> GrpcRefusal:
    """What the caller is told."""
    if isinstance(error, GrpcRefusal):
        return error
    if isinstance(error, (InvalidMessage, IllegalName, ProtocolError)):
        return GrpcRefusal(pb.BAD_REQUEST, str(error))
    log.exception("%s failed", name)
    return GrpcRefusal(pb.INTERNAL_SERVER_ERROR, f"{type(error).__name__} in the server")
