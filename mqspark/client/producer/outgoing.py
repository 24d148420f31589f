"""Messages before they are sent: validation, property strings, queue selection. Facts: RocketMQ's Validators,
MessageBatch, SelectMessageQueueByHash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mqspark.base.propertystring import ITEM_END, NAME_END, item
from mqspark.base.valuetypes import NonNegativeInt, check_value
from mqspark.errors import ConfigError, InvalidMessage, MessageTooLarge
from mqspark.message import (
    DELAYS,
    MAX_PROPERTIES_BYTES,
    PRIORITY,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    WAIT,
    Message,
    MessageQueue,
    ValueBody,
    check_flag,
    check_text,
    check_topic,
    encode_stored_properties,
    java_hash,
    new_unique_id,
)
from mqspark.record.batchitems import encode_items

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Selects the queue of a message among all writable queues of its topic."""

_KEY_BITS = 1_024
"""The most bits of a number as the key of a hash: UUIDs and digests are such, too."""
_TIMEOUT = NonNegativeInt | None


def check_sendable(topic: str) -> None:
    """Raises InvalidMessage for a topic that does not accept sends."""
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS:
        raise InvalidMessage(f"topic {topic} is a system topic; clients cannot send to it", field="topic")


def check_head(message: Message) -> None:
    """Raises InvalidMessage for a topic, a flag or properties of another type; ``check_body`` checks the body, and what
    encodes the properties checks each of them."""
    body_bytes(message)
    check_text("topic", message.topic)
    if message.flag:
        check_flag(message.flag)
    if not isinstance(message.properties, dict):
        raise InvalidMessage(
            f"properties are a dict, not {type(message.properties).__name__}", field="properties"
        )


def check_way(
    queue: MessageQueue | None, hash_key: str | int | None, selector: object, timeout_ms: int | None
) -> None:
    """Raises InvalidMessage for an argument of a send that has another type, or is out of range."""
    if isinstance(hash_key, int) and not isinstance(hash_key, bool) and hash_key.bit_length() <= _KEY_BITS:
        hash_key = 0
    try:
        check_value("queue", queue, MessageQueue | None)
        check_value("hash_key", hash_key, str | int | None)
        check_value("selector", selector, Callable[..., Any] | None)
        check_value("timeout_ms", timeout_ms, _TIMEOUT)
    except ConfigError as error:
        raise InvalidMessage(str(error), field=error.key) from None


def body_bytes(message: Message) -> int:
    """The length of the body. Raises InvalidMessage if the argument is not a message."""
    try:
        if isinstance(message, Message):
            return len(message.body)
    except TypeError:
        raise InvalidMessage("the body of a message is bytes", field="body") from None
    else:
        raise InvalidMessage(
            f"send takes a Message, not {type(message).__name__}: create one with Message.of(topic, body)"
            " (send_batch takes several)",
            field="message",
        )


def as_it_is(message: Message) -> Message:
    """The message, whatever becomes of the given one."""
    return Message(
        topic=message.topic, body=message.body, properties=dict(message.properties), flag=message.flag
    )


def check_body(body: bytes, max_bytes: int) -> None:
    """Raises InvalidMessage, MessageTooLarge."""
    if body.__class__ is not bytes:
        if isinstance(body, ValueBody):
            raise InvalidMessage(
                "a message with a value needs a producer that writes it: Producer(..., serializer=Serializer(...))",
                field="value",
            )
        raise InvalidMessage(
            f"a body is bytes, not {type(body).__name__}: Message.of takes text; encode everything else",
            field="body",
        )
    if not body:
        raise InvalidMessage("a message needs a body of at least one byte", field="body")
    if len(body) > max_bytes:
        raise MessageTooLarge("body", len(body), max_bytes)


def properties_text(message: Message, *, prepared: bool = False) -> tuple[str, str]:
    """The encoded properties including a unique id, and that id. Raises InvalidMessage, MessageTooLarge."""
    properties = message.properties
    if not prepared and TRANSACTION_PREPARED in properties:
        raise InvalidMessage(
            f"only a TransactionProducer sends messages with the property {TRANSACTION_PREPARED}; to forward a"
            " consumed message, leave it out",
            field=TRANSACTION_PREPARED,
        )
    text = encode_stored_properties(properties).decode()
    if text[0] == NAME_END or NAME_END + ITEM_END in text or ITEM_END + NAME_END in text:
        raise InvalidMessage("a property needs a name and a value", field="properties")
    unique_id = properties.get(UNIQ_KEY)
    if unique_id is None:
        unique_id = new_unique_id()
        text = text + item(UNIQ_KEY, unique_id)
    if len(text) > MAX_PROPERTIES_BYTES // 4 and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge("properties", len(text.encode()), MAX_PROPERTIES_BYTES)
    return text, unique_id


PLAIN_ITEM_BYTES = len(encode_items([(0, b"", item(UNIQ_KEY, new_unique_id()).encode())]))
"""What a message without properties takes in a batch besides its body."""

Member = tuple[int, bytes, bytes, str | None]
"""A checked message of a batch: flag, body, encoded properties, and the unique id in them, or None if it has none."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch as it is sent."""

    topic: str
    body: bytes
    ids: str
    """The unique ids, joined by commas."""


def check_batch_topic(topic: str) -> None:
    """Raises InvalidMessage for a topic that no batch can be sent to."""
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS or topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"batches cannot be sent to topic {topic}", field="topic")


def member_of(message: Message, max_bytes: int) -> Member:
    """Raises InvalidMessage, MessageTooLarge."""
    check_head(message)
    body, properties = message.body, message.properties
    check_body(body, max_bytes)
    if not properties:
        return message.flag or 0, body, b"", None
    if not properties.keys().isdisjoint(DELAYS):
        raise InvalidMessage("a message with a delay cannot be sent in a batch", field="messages")
    if PRIORITY in properties:
        raise InvalidMessage(
            "a message with a priority cannot be sent in a batch, which is stored in one queue",
            field="messages",
        )
    text, unique_id = properties_text(message)
    return message.flag or 0, body, text.encode(), unique_id


def check_list(messages: object) -> None:
    """Raises InvalidMessage."""
    if not isinstance(messages, (list, tuple)):
        raise InvalidMessage(
            f"a batch is a list of messages, not {type(messages).__name__}", field="messages"
        )


def members_of(messages: Sequence[Message], max_bytes: int) -> list[Member]:
    """The messages of a batch. Raises InvalidMessage, MessageTooLarge."""
    check_list(messages)
    members = [member_of(message, max_bytes) for message in messages]
    if not messages:
        raise InvalidMessage("a batch needs at least one message", field="messages")
    topic, wait = messages[0].topic, messages[0].properties.get(WAIT, "true")
    check_batch_topic(topic)
    for message in messages:
        if message.topic != topic:
            raise InvalidMessage(f"a batch has one topic, not {topic} and {message.topic}", field="topic")
        if message.properties.get(WAIT, "true") != wait:
            raise InvalidMessage("the messages of a batch must agree on WAIT", field="WAIT")
    return members


def batch_of(messages: Sequence[Message], max_bytes: int) -> PackedBatch:
    """Raises InvalidMessage, MessageTooLarge."""
    members = members_of(messages, max_bytes)
    return packed(messages[0].topic, members, max_bytes)


def packed(topic: str, members: Sequence[Member], max_bytes: int) -> PackedBatch:
    """Raises MessageTooLarge."""
    ids: list[str] = []
    items: list[tuple[int, bytes, bytes]] = []
    for (flag, body, properties, unique_id), new in zip(
        members, new_unique_id.several(len(members)), strict=True
    ):
        if unique_id is None:
            ids.append(new)
            items.append((flag, body, b"%bUNIQ_KEY\x01%b\x02" % (properties, new.encode())))
        else:
            ids.append(unique_id)
            items.append((flag, body, properties))
    body = encode_items(items)
    if len(body) > max_bytes:
        raise MessageTooLarge("batch", len(body), max_bytes)
    return PackedBatch(topic, body, ",".join(ids))


def selecting(
    message: Message, hash_key: str | int | None, selector: QueueSelector | None
) -> Callable[[Sequence[MessageQueue]], MessageQueue]:
    if selector is not None:
        chosen = selector
        return lambda queues: chosen(queues, message)
    number = abs(_java_hash_code(hash_key)) if hash_key is not None else 0
    return lambda queues: queues[number % len(queues)]


def _java_hash_code(key: str | int) -> int:
    """Java's ``hashCode`` of a String, or of a Long where the key does not fit into an Integer
    (SelectMessageQueueByHash)."""
    if isinstance(key, str):
        return java_hash(key)
    if -0x80000000 <= key <= 0x7FFFFFFF:
        return key
    folded = (key ^ (key >> 32)) & 0xFFFFFFFF
    return folded - (1 << 32) if folded & 0x80000000 else folded
