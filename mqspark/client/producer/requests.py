"""Requests that wait for a reply. Facts: RocketMQ's DefaultMQProducerImpl.request, RequestFutureHolder,
MessageUtil and ClientRemotingProcessor.receiveReplyMessage.

A request is an ordinary message. Its consumer sends a reply, which a broker pushes to the client named in both. A
correlation id links the two. Must not know how messages are sent.
"""

from __future__ import annotations

import asyncio
import uuid

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.client.remoting.channel import Channel
from mqspark.errors import ConnectionLost, InvalidMessage, MQError
from mqspark.message import (
    ARRIVE_TIME,
    CLUSTER,
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    CORRELATION_ID,
    MESSAGE_TYPE,
    REPLY,
    REPLY_TO_CLIENT,
    TTL,
    Message,
    MessageExt,
    PhysicalOffset,
    QueueOffset,
    crc32,
    decode_properties,
)
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import ReplyMessageRequestHeader
from mqspark.record import compression

log = escaping(__name__)

REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"


def is_reply(message: Message) -> bool:
    return message.properties.get(MESSAGE_TYPE) == REPLY


def reply_message(request: MessageExt, body: bytes | str) -> Message:
    """The reply to a consumed request. Raises InvalidMessage if the message is not a request or the broker did
    not add its cluster's name."""
    found = request.properties
    for name in (CORRELATION_ID, REPLY_TO_CLIENT):
        if not found.get(name):
            raise InvalidMessage(f"not a request: the message has no property {name}", field=name)
    cluster = found.get(CLUSTER)
    if not cluster:
        raise InvalidMessage(
            f"the request has no property {CLUSTER}, by which the topic of replies is named", field=CLUSTER
        )
    properties = {
        MESSAGE_TYPE: REPLY,
        CORRELATION_ID: found[CORRELATION_ID],
        REPLY_TO_CLIENT: found[REPLY_TO_CLIENT],
    }
    if TTL in found:
        properties[TTL] = found[TTL]
    return Message.of(cluster + REPLY_TOPIC_SUFFIX, body, properties=properties)


class Requests:
    """The open requests of one producer."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, message: Message, timeout_ms: int) -> tuple[str, Message, asyncio.Future[MessageExt]]:
        """Returns the correlation id, the message to send, and the future of the reply; ``close`` must follow."""
        correlation_id = str(uuid.uuid4())
        request = Message(
            topic=message.topic,
            body=message.body,
            properties={
                **message.properties,
                CORRELATION_ID: correlation_id,
                REPLY_TO_CLIENT: self._client_id,
                TTL: str(timeout_ms),
            },
            flag=message.flag,
        )
        reply: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        return correlation_id, request, reply

    def close(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def abandon(self) -> None:
        """The producer stops: fail all open requests."""
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(ConnectionLost(self._client_id, "the producer is stopped"))

    def replied(self, channel: Channel, request: Command) -> bool:
        """PUSH_REPLY_MESSAGE_TO_CLIENT. Returns whether it belongs to one of these requests."""
        try:
            message = _pushed(request)
        except MQError as error:
            log.warning("a reply from %s cannot be read: %s", channel.address, error)
            channel.respond(request, ResponseCode.SYSTEM_ERROR, remark=f"process reply message fail: {error}")
            return True
        reply = self._waiting.pop(message.properties.get(CORRELATION_ID, ""), None)
        if reply is None:
            return False
        if not reply.done():
            reply.set_result(message)
        channel.respond(request, ResponseCode.SUCCESS)
        return True


def _pushed(request: Command) -> MessageExt:
    """Raises ProtocolError, InvalidMessage."""
    header = request.header(ReplyMessageRequestHeader)
    body = bytes(request.body)
    if header.sys_flag & COMPRESSED:
        kind = (header.sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
        body = compression.decompress(body, kind, compression.LIMITS.of(len(body)))
    properties = decode_properties(header.properties or "")
    properties[ARRIVE_TIME] = str(wall_ms())
    return MessageExt(
        topic=header.topic,
        body=body,
        properties=properties,
        flag=header.flag,
        queue_id=header.queue_id,
        queue_offset=QueueOffset(0),
        physical_offset=PhysicalOffset(0),
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp,
        born_host=header.born_host,
        store_timestamp_ms=header.store_timestamp,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=PhysicalOffset(0),
        body_crc=crc32(body),
        store_size_bytes=0,
        offset_message_id="",
    )
