"""Stored messages as gRPC clients get them (GrpcConverter.buildMessage).

A body that is compressed is inflated: RocketMQ's proxy passes it as it is stored, and not all clients read every
compression that a producer may choose. Its digest is of what is passed.

Facts: docs/rocketmq/messages.md#properties.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

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

_HIDDEN = SYSTEM_KEYS | SET_BY_BROKERS | {SHARDING_KEY, MULTI_DISPATCH, TRACE_CONTEXT}
"""Properties that a client gets as fields, if at all."""

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
    made = pb.Message()
    put_message(made, message, now_ms)
    return made


def put_message(made: pb.Message, message: MessageExt, now_ms: int) -> None:
    """Complete an empty message of a response as ``stored_message``: half as expensive as a message that is made of its
    fields and copied into the response."""
    properties = message.properties
    body, encoding = _body(message)
    made.topic.name, made.body = message.topic, body
    system = made.system_properties
    system.message_id = message.message_id
    digest = system.body_digest
    digest.type, digest.checksum = pb.MD5, hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding, system.message_type = encoding, type_of(properties)
    system.born_host = properties.get(BORN_HOST) or message.born_host.rpartition(":")[0].strip("[]")
    system.store_host = message.store_host
    system.queue_id, system.queue_offset = message.queue_id, message.queue_offset
    system.delivery_attempt = min(message.reconsume_times + 1, _MAX_ATTEMPTS)
    set_instant(system.born_timestamp, message.born_timestamp_ms)
    set_instant(system.store_timestamp, message.store_timestamp_ms)
    _put_optional(system, properties, now_ms)
    users = {key: value for key, value in properties.items() if key not in _HIDDEN}
    if users:
        made.user_properties.update(users)


def _put_optional(system: pb.SystemProperties, properties: Mapping[str, str], now_ms: int) -> None:
    if (tag := properties.get(TAGS)) is not None:
        system.tag = tag
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


async def apart(message: MessageExt, make: Callable[[], T]) -> T:
    """What ``make`` makes of a message. A body that may inflate to much more is inflated in a thread, so that no other
    call waits for it."""
    if isinstance(message, PackedMessage) and message.stored_body_bytes > _PACKED_BYTES:
        return await asyncio.to_thread(make)
    return make()


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
