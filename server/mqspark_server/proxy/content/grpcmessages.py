"""Stored messages as gRPC clients get them (GrpcConverter.buildMessage).

A body that is compressed is inflated: RocketMQ's proxy passes it as it is stored, and not all clients read every
compression that a producer may choose. Its digest is of what is passed.

Facts: docs/rocketmq/messages.md#properties.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from mqspark.base.bounded import Memo
from mqspark.base.logs import escaping
from mqspark.errors import InvalidMessage
from mqspark.message import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    LITE_TOPIC,
    MULTI_DISPATCH,
    PRIORITY,
    SET_BY_BROKERS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    MessageExt,
    parse_number,
    parse_priority,
)
from mqspark.record.record import PackedMessage
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.instants import set_instant
from mqspark_server.proxy.content.systemkeys import BORN_HOST, SYSTEM_KEYS, TRACE_CONTEXT
from mqspark_server.proxy.content.wirefields import VARINT, sized, tag, varint

_HIDDEN = SYSTEM_KEYS | SET_BY_BROKERS | {SHARDING_KEY, MULTI_DISPATCH, TRACE_CONTEXT}
"""Properties that a client gets as fields, if at all."""

_OPTIONAL = frozenset(
    {
        DELAY,
        DLQ_ORIGIN_TOPIC,
        KEYS,
        LITE_TOPIC,
        PRIORITY,
        SHARDING_KEY,
        TIMER_DELAY_MS,
        TIMER_DELAY_SEC,
        TIMER_DELIVER_MS,
        TRACE_CONTEXT,
        TRANSACTION_PREPARED,
    }
)
"""Properties that say the type of a message, or are fields that most messages do not have."""

_NOTHING_ELSE = _HIDDEN - _OPTIONAL - {TAGS}
"""Properties without which the message would look the same, or that are fields of all messages."""

_MESSAGE, _PROPERTIES = pb.Message.DESCRIPTOR, pb.SystemProperties.DESCRIPTOR
_SYSTEM, _BODY = tag(_MESSAGE, "system_properties"), tag(_MESSAGE, "body")
_TAG, _MESSAGE_ID = tag(_PROPERTIES, "tag"), tag(_PROPERTIES, "message_id")
_KINDS = {
    (encoding, kind): pb.SystemProperties(body_encoding=encoding, message_type=kind).SerializeToString()
    for encoding in (pb.IDENTITY, pb.GZIP)
    for kind in pb.MessageType.values()
}
"""Both fields."""
_BORN, _BORN_HOST = tag(_PROPERTIES, "born_timestamp"), tag(_PROPERTIES, "born_host")
_STORED, _STORE_HOST = tag(_PROPERTIES, "store_timestamp"), tag(_PROPERTIES, "store_host")
_QUEUE_ID, _OFFSET = tag(_PROPERTIES, "queue_id", VARINT), tag(_PROPERTIES, "queue_offset", VARINT)
_HANDLE, _ATTEMPT = tag(_PROPERTIES, "receipt_handle"), tag(_PROPERTIES, "delivery_attempt", VARINT)
_DIGEST_BYTES = 32
_NO_DIGEST = pb.SystemProperties(body_digest=pb.Digest(type=pb.MD5, checksum="0" * _DIGEST_BYTES))
_DIGEST = _NO_DIGEST.SerializeToString()[:-_DIGEST_BYTES]
"""Before the digits, which are its last field."""

_PACKED_BYTES = 16 << 10
_MAX_ATTEMPTS = (1 << 31) - 1
"""A producer may say any number."""

log = escaping(__name__)

T = TypeVar("T")


def type_of(properties: Mapping[str, str]) -> pb.MessageType:
    """TopicMessageType.parseFromMessageProperty."""
    if properties.get(TRANSACTION_PREPARED, "").lower() == "true":
        return pb.TRANSACTION
    if not properties.keys().isdisjoint((DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)):
        return pb.DELAY
    if SHARDING_KEY in properties:
        return pb.FIFO
    if PRIORITY in properties:
        return pb.PRIORITY
    if LITE_TOPIC in properties:
        return pb.LITE
    return pb.NORMAL


def stored_message(message: MessageExt, now_ms: int) -> pb.Message:
    """``now_ms``: the wall time, from which a delay counts that the message had."""
    made: pb.Message = pb.Message.FromString(encoded_message(message, now_ms))
    return made


def encoded_message(message: MessageExt, now_ms: int, offset: int | None = None, handle: str = "") -> bytes:
    """``stored_message`` as bytes, with the offset and the handle that a receiver gets. An object that is filled and
    encoded takes half as much time again; so only what few messages have is made by one."""
    properties = message.properties
    body, encoding = _body(message)
    if _NOTHING_ELSE.issuperset(properties) and encoding == pb.IDENTITY:
        extras = _NONE
    else:
        extras = _extras(properties, encoding, now_ms)
    return assembled(
        _topics[message.topic],
        extras,
        message.message_id.encode(),
        message.born_timestamp_ms,
        properties.get(BORN_HOST) or host_of(message.born_host),
        message.store_timestamp_ms,
        message.store_host,
        message.queue_id,
        message.queue_offset if offset is None else offset,
        message.reconsume_times,
        handle.encode(),
        body,
    )


class Extras(NamedTuple):
    """Fields that depend on properties."""

    kind: bytes
    """The encoding of the body and the type."""
    system: bytes
    own: bytes
    """The program's own properties."""


_NONE = Extras(_KINDS[pb.IDENTITY, pb.NORMAL], b"", b"")


def _extras(properties: Mapping[str, str], encoding: pb.Encoding, now_ms: int) -> Extras:
    kind, system, own = pb.NORMAL, b"", b""
    if not _OPTIONAL.isdisjoint(properties):
        kind, system = type_of(properties), _optional(properties, now_ms)
    if (label := properties.get(TAGS)) is not None:
        system += _TAG + sized(label.encode())
    users = {key: value for key, value in properties.items() if key not in _HIDDEN}
    if users:
        own = pb.Message(user_properties=users).SerializeToString()
    return Extras(_KINDS[encoding, kind], system, own)


def usual_extras(properties: Mapping[str, str]) -> Extras | None:
    """Those of a message with a body that is as it was sent. None: they depend on the time, or are more than most
    messages have."""
    return _extras(properties, pb.IDENTITY, 0) if _OPTIONAL.isdisjoint(properties) else None


def assembled(
    topic: bytes,
    extras: Extras,
    message_id: bytes,
    born_ms: int,
    born_host: str,
    stored_ms: int,
    store_host: str,
    queue_id: int,
    offset: int,
    reconsume_times: int,
    handle: bytes,
    body: bytes,
) -> bytes:
    """An encoded message; ``topic``: as ``topic_field``; ``handle``: empty for a message that has none."""
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system = b"%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b" % (
        _MESSAGE_ID,
        varint(len(message_id)),
        message_id,
        _DIGEST,
        digest.encode(),
        extras.kind,
        _BORN,
        _instants[born_ms],
        _BORN_HOST,
        _hosts[born_host],
        _STORED,
        _instants[stored_ms],
        _STORE_HOST,
        _hosts[store_host],
        _QUEUE_ID,
        varint(queue_id),
        _OFFSET,
        varint(offset),
        _ATTEMPT,
        varint(min(reconsume_times + 1, _MAX_ATTEMPTS)),
        extras.system,
        _HANDLE if handle else b"",
        varint(len(handle)) if handle else b"",
        handle,
    )
    return b"%b%b%b%b%b%b%b%b" % (
        topic,
        extras.own,
        _SYSTEM,
        varint(len(system)),
        system,
        _BODY,
        varint(len(body)),
        body,
    )


def host_of(address: str) -> str:
    """Without the port."""
    return address.rpartition(":")[0].strip("[]")


def topic_field(name: str) -> bytes:
    return _topics[name]


def _instant(millis: int) -> bytes:
    made = Timestamp()
    set_instant(made, millis)
    return sized(made.SerializeToString())


def _topic(name: str) -> bytes:
    return bytes(pb.Message(topic=pb.Resource(name=name)).SerializeToString())


def _text(text: str) -> bytes:
    return sized(text.encode())


_instants: Memo[int, bytes] = Memo("proxy.instants", _instant)
"""Messages that are received together were often born and stored together."""
_topics: Memo[str, bytes] = Memo("proxy.topics", _topic)
_hosts: Memo[str, bytes] = Memo("proxy.hosts", _text)


def _optional(properties: Mapping[str, str], now_ms: int) -> bytes:
    made = pb.SystemProperties()
    _put_optional(made, properties, now_ms)
    return bytes(made.SerializeToString())


def _put_optional(system: pb.SystemProperties, properties: Mapping[str, str], now_ms: int) -> None:
    if keys := properties.get(KEYS):
        system.keys.extend(keys.split())
    if (group := properties.get(SHARDING_KEY)) is not None:
        system.message_group = group
    if (trace_context := properties.get(TRACE_CONTEXT)) is not None:
        system.trace_context = trace_context
    if (lite_topic := properties.get(LITE_TOPIC)) is not None:
        system.lite_topic = lite_topic
    if (priority := parse_priority(properties.get(PRIORITY))) is not None:
        system.priority = priority
    if (deliver_ms := _deliver_ms(properties, now_ms)) is not None:
        set_instant(system.delivery_timestamp, deliver_ms)
    if DLQ_ORIGIN_TOPIC in properties and DLQ_ORIGIN_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties[DLQ_ORIGIN_MESSAGE_ID]


def may_inflate(message: MessageExt) -> bool:
    """Whether its body may inflate to much more: that is done in a thread, so that no other call waits for it."""
    return isinstance(message, PackedMessage) and message.stored_body_bytes > _PACKED_BYTES


async def apart(message: MessageExt, make: Callable[[], T]) -> T:
    """What ``make`` makes of a message, in a thread if it ``may_inflate``."""
    return await asyncio.to_thread(make) if may_inflate(message) else make()


def _deliver_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    delay_s = parse_number(properties.get(TIMER_DELAY_SEC))
    if delay_s is not None:
        return now_ms + delay_s * 1000
    return parse_number(properties.get(TIMER_DELIVER_MS))


def _body(message: MessageExt) -> tuple[bytes, pb.Encoding]:
    try:
        return message.body, pb.IDENTITY
    except InvalidMessage as error:
        if not isinstance(message, PackedMessage):
            raise
        log.warning("%s of %s is handed out as it is stored: %s", message.message_id, message.topic, error)
        return message.packed.stored, pb.GZIP
