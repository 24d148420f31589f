"""EndTransaction, and the checks of brokers, which go to producers over their telemetry streams
(EndTransactionActivity, GrpcClientChannel of RocketMQ's proxy)."""

from __future__ import annotations

from mqspark.base.clock import wall_ms
from mqspark.base.logs import sparing
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.message import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from mqspark.record.record import decode_record
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import GrpcCall, Shared
from mqspark_server.proxy.clients.grpcclients import GrpcClient
from mqspark_server.proxy.clients.grpchalves import GrpcHalf
from mqspark_server.proxy.content.grpcmessages import stored_message
from mqspark_server.proxy.content.resources import topic_of
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal, checked

log = sparing("mqspark.grpc")

_DECISIONS: dict[int, int] = {
    pb.COMMIT: TRANSACTION_COMMIT_TYPE,
    pb.ROLLBACK: TRANSACTION_ROLLBACK_TYPE,
}


async def end_transaction(call: GrpcCall, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
    """A resolution that is neither changes nothing: the broker asks again."""
    topic, transaction_id = topic_of(request.topic), request.transaction_id
    if not transaction_id.strip():
        raise GrpcRefusal(pb.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    halves = call.shared.halves
    half = halves.find(topic, transaction_id)
    if half is None:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, "cannot found transaction data")
    decision = _DECISIONS.get(request.resolution)
    if decision is not None:
        header = EndTransactionRequestHeader(
            producer_group=topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            commit_or_rollback=decision,
            msg_id=request.message_id,
            topic=topic,
            from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
            transaction_id=transaction_id,
        )
        checked(await call.request(half.broker_name, RequestCode.END_TRANSACTION, header))
        halves.forget(topic, transaction_id)
    return pb.EndTransactionResponse(status=OK)


def check_transaction(shared: Shared, client: GrpcClient, broker_name: str, command: Command) -> None:
    """A broker asks how a transaction ended. A producer that cannot be asked is asked again with the next check."""
    try:
        header = command.header(CheckTransactionStateRequestHeader)
        message = decode_record(command.body)
        given = stored_message(message, wall_ms())
    except (ProtocolError, InvalidMessage) as error:
        log.warning("%s checks a transaction that cannot be read: %s", broker_name, error)
        return
    try:
        client.link.rights.write(message.topic)  # the broker knows only who asks for all clients
    except GrpcRefusal as refusal:
        log.info("%s is asked for no transaction of %s: %s", client.caller.client_id, message.topic, refusal)
        return
    transaction_id = header.transaction_id or message.message_id
    half = GrpcHalf(broker_name, header.tran_state_table_offset, header.commit_log_offset)
    shared.halves.note(message.topic, transaction_id, half)
    asked = pb.RecoverOrphanedTransactionCommand(message=given, transaction_id=transaction_id)
    if not client.push(pb.TelemetryCommand(status=OK, recover_orphaned_transaction_command=asked)):
        log.info("%s cannot be asked for a transaction of %s", client.caller.client_id, message.topic)
