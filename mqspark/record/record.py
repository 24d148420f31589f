"""The stored message record: one format in the CommitLog and in pull bodies.

Source: RocketMQ's MessageExtEncoder and MessageDecoder. Where the fields are: ``mqspark.record.recordlayout``.

Every decoder takes bytes, bytearray, memoryview or mmap and checks lengths before it uses them. Malformed
bytes raise InvalidMessage (or give a DAMAGED verdict), never an IndexError.

Must not know where the bytes came from: no files, no sockets.

Facts: docs/rocketmq/messages.md#record.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from mqspark.base.bounded import Memo
from mqspark.base.crc import crc32 as full_crc32
from mqspark.base.propertystring import NAME_END, find_marked, find_property, item, joined, mark
from mqspark.errors import InvalidMessage
from mqspark.message import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    CRC32,
    HOST_FLAGS,
    INNER_BATCH,
    MAX_LONG_TOPIC_LENGTH,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_LENGTH,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TAGS,
    UNIQ_KEY,
    MessageExt,
    QueueOffset,
    crc32,
    decode_properties,
    encode_properties,
    format_host,
    java_hash,
)
from mqspark.record import compression
from mqspark.record.batchitems import split_batch, take_items
from mqspark.record.compression import LIMITS, Budget, InflateLimits
from mqspark.record.recordlayout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    I16,
    I32,
    MAGIC_V1,
    MAGIC_V2,
    MAGICS,
    MIN_RECORD_BYTES,
    SIZE_MAGIC,
    Buffer,
    fields,
    pack_i16,
)

_PACK_HEAD = {flags: head.pack for flags, head in HEADS.items()}
BODY_CRC_MASK = 0x7FFFFFFF
"""The bits of a body's CRC-32 that a record has."""
_HEAD_V4 = HEADS[0]
_MAGIC_PREFIX = MAGICS[0][:3]
"""The first bytes of both magics."""

CRC_PROPERTY_BYTES = len(item(CRC32, "0123456789"))
_CRC_PREFIX = f"{CRC32}{NAME_END}".encode()
_UNIQ_KEY = UNIQ_KEY.encode()
_TAGS = mark(TAGS).encode()
TAGS_START = _TAGS[1:]
"""Before the tags in a property string: ``TAGS`` 0x01. A text without it has no tags."""

MAX_RECONSUME_TIMES = (1 << 31) - 1
"""Limit of reconsume times. A producer may send this value; a retried copy is not counted beyond it."""


# --- what is read without decoding --------------------------------------------------------------------------


_PEEK = fields("size", "magic", "sys_flag", "body_bytes")
"""Total size, magic, system flag and body length of a record with IPv4 hosts."""


def peek_properties(buffer: Buffer, position: int) -> tuple[int, bytes]:
    """Size and encoded properties of the record at ``position``. The caller guarantees that its total size is
    correct. Nothing else is checked. Raises InvalidMessage when its inner lengths contradict the size."""
    size, magic, sys_flag, body_length = _PEEK.unpack_from(buffer, position)
    end = position + size
    topic_start = position + _PEEK.size + body_length + 1
    if sys_flag & HOST_FLAGS:
        head = HEADS[sys_flag & HOST_FLAGS]
        if size < head.size + 3:
            raise InvalidMessage(f"record at {position} is too short for its hosts", field="totalSize")
        (body_length,) = I32.unpack_from(buffer, position + head.size - 4)
        topic_start = position + head.size + body_length + 1
    if magic == MAGIC_V2:
        topic_start += 1
    if body_length < 0 or topic_start + 2 > end:
        raise InvalidMessage(f"record at {position} has impossible lengths", field="bodyLength")
    topic_length = buffer[topic_start - 1]
    if magic == MAGIC_V2:
        topic_length |= buffer[topic_start - 2] << 8
    start = topic_start + topic_length + 2
    if start > end or buffer[start - 2] << 8 | buffer[start - 1] != end - start:
        raise InvalidMessage(f"record at {position} has impossible lengths", field="propertiesLength")
    return size, bytes(buffer[start:end])


def readdressed(buffer: Buffer, position: int, topic: str, more_properties: bytes) -> bytes:
    """The record at ``position`` with another topic and additional encoded properties, which are dropped when
    they do not fit. The caller guarantees that its total size is correct. Raises InvalidMessage."""
    size, properties = peek_properties(buffer, position)
    fields = _HEAD_V4.unpack_from(buffer, position)
    head = HEADS[fields[7] & HOST_FLAGS]
    (body_length,) = I32.unpack_from(buffer, position + head.size - 4)
    body_end = position + head.size + body_length
    properties = joined(properties, b"")
    if len(properties) + len(more_properties) <= MAX_PROPERTIES_BYTES:
        properties += more_properties
    magic, field = topic_field(topic)
    tail = b"".join((field, pack_i16(len(properties)), properties))
    size = body_end - position + len(tail)
    return b"".join((SIZE_MAGIC.pack(size, magic), buffer[position + 8 : body_end], tail))


def _hash_tags(tags: bytes) -> int:
    return java_hash(tags.decode("utf-8", "replace"))


_tag_hashes = Memo("record.tags", _hash_tags)


def tags_code(properties: bytes) -> int:
    """The tags code of a ConsumeQueue entry: Java's hash of TAGS, 0 without tags."""
    tags = find_marked(properties, _TAGS)
    return _tag_hashes[tags] if tags else 0


# --- encode -------------------------------------------------------------------------------------------------


class PendingRecord(Struct, kw_only=True, frozen=True, gc=False):
    """What the sender says of a record that is about to be stored."""

    topic: str
    queue_id: int
    born_timestamp_ms: int
    born_host: bytes
    body: bytes | memoryview = b""
    properties: bytes = b""
    tags_code: int = 0
    """For the queue entry; not a part of the record."""
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0


def pack_head_of(
    record: PendingRecord,
    flag: int,
    body: bytes | memoryview,
    size_bytes: int,
    magic: int,
    sys_flag: int,
    queue_offset: int,
    position: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> bytes:
    """``pack_head`` of a record. Flag and body are those of ``record`` or, in a batch, those of a member."""
    return pack_head(
        record.queue_id,
        record.born_timestamp_ms,
        record.born_host,
        record.reconsume_times,
        record.prepared_offset,
        flag,
        body,
        size_bytes,
        magic,
        sys_flag,
        queue_offset,
        position,
        store_timestamp_ms,
        store_host,
    )


def pack_head(
    queue_id: int,
    born_timestamp_ms: int,
    born_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    flag: int,
    body: bytes | memoryview,
    size_bytes: int,
    magic: int,
    sys_flag: int,
    queue_offset: int,
    position: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> bytes:
    """The head of a record: what its sender says, and what the store adds. ``sys_flag`` has the bits of the hosts."""
    return _PACK_HEAD[sys_flag & HOST_FLAGS](
        size_bytes,
        magic,
        full_crc32(body) & BODY_CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        position,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        len(body),
    )


def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic of the records of a topic, and the topic as they have it. Raises InvalidMessage when it is too
    long."""
    name = topic.encode()
    if len(name) > MAX_LONG_TOPIC_LENGTH:
        raise InvalidMessage(f"topic of {len(name)} bytes is longer than 255", field="topic")
    if len(name) > MAX_TOPIC_LENGTH:
        return MAGIC_V2, pack_i16(len(name)) + name
    return MAGIC_V1, bytes((len(name),)) + name


def encode_record(
    *,
    topic: str,
    body: bytes,
    properties: bytes | Mapping[str, str] = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    born_host: bytes = bytes(8),
    store_timestamp_ms: int = 0,
    store_host: bytes = bytes(8),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    property_crc: bool = False,
) -> bytes:
    """Encode one record. The version follows from the length of the topic, the host bits of ``sys_flag`` from
    the hosts.

    ``property_crc`` appends the CRC property of enabledAppendPropCRC. Raises InvalidMessage for a topic or
    properties over the limits of the format.
    """
    magic, field = topic_field(topic)
    property_bytes = properties if isinstance(properties, bytes) else encode_properties(properties)
    if property_crc:
        property_bytes = room_for_crc(property_bytes)
    if len(property_bytes) > MAX_PROPERTIES_BYTES:
        raise InvalidMessage(f"properties of {len(property_bytes)} bytes exceed 32767", field="properties")
    sys_flag &= ~HOST_FLAGS
    if len(born_host) == 20:
        sys_flag |= BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= STORE_HOST_V6
    pending = PendingRecord(
        topic=topic,
        queue_id=queue_id,
        born_timestamp_ms=born_timestamp_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_transaction_offset,
    )
    size = HEADS[sys_flag & HOST_FLAGS].size + len(body) + len(field) + 2 + len(property_bytes)
    head = pack_head_of(
        pending,
        flag,
        body,
        size,
        magic,
        sys_flag,
        queue_offset,
        physical_offset,
        store_timestamp_ms,
        store_host,
    )
    record = b"".join((head, body, field, pack_i16(len(property_bytes)), property_bytes))
    return sealed(record) if property_crc else record


def room_for_crc(properties: bytes) -> bytes:
    """An encoded property string with space at its end for the CRC property (enabledAppendPropCRC). An
    existing CRC property, of another record, is removed."""
    if properties[-CRC_PROPERTY_BYTES:-11] == _CRC_PREFIX:
        properties = properties[:-CRC_PROPERTY_BYTES]
    return joined(properties, bytes(CRC_PROPERTY_BYTES))


def sealed(record: bytes) -> bytes:
    """A complete record with its CRC written into the reserved space at its end."""
    covered = record[:-CRC_PROPERTY_BYTES]
    # Least significant digit first: RocketMQ fills the ten places while dividing by ten.
    digits = f"{crc32(covered):010d}"[::-1]
    return covered + item(CRC32, digits).encode()


def is_seal_broken(record: bytes | memoryview) -> bool:
    """Whether a complete record ends with a CRC property that does not match the rest."""
    seal = bytes(record[-CRC_PROPERTY_BYTES:])
    return seal[:9] == _CRC_PREFIX and seal[9:19][::-1] != b"%010d" % crc32(record[:-CRC_PROPERTY_BYTES])


# --- decode -------------------------------------------------------------------------------------------------


_host_texts = Memo("record.hosts", format_host, max_bytes=1 << 20)
_topic_texts: Memo[bytes, str] = Memo("record.topics", lambda topic: topic.decode("utf-8", "replace"))


_KEPT_BYTES = 8 << 20
"""Limit of the inflated bodies that one answer keeps, so that a second access need not inflate again."""
_BATCH_BUDGET_BYTES = 32 << 20
"""Limit of the bytes to which the inner batches of one answer are unpacked."""
_BATCH_BUDGET_MESSAGES = 1 << 16
MAX_BATCH_MESSAGES = 0x7FFF
"""Most messages of one record: the maximum that an entry of a BatchCQ can count."""


class _Inflate(NamedTuple):
    limits: InflateLimits
    keep: Budget


class _Packed:
    """A body as stored, with its inflated form if that is kept, or the reason why it cannot be inflated."""

    __slots__ = ("error", "inflate", "kept", "kind", "stored", "stored_bytes")

    def __init__(self, stored: bytes, kind: int, inflate: _Inflate) -> None:
        self.stored = stored
        self.stored_bytes = len(stored)
        self.kind = kind
        self.inflate = inflate
        self.kept: bytes | None = None
        self.error: InvalidMessage | None = None

    def body(self) -> bytes:
        if self.kept is not None:
            return self.kept
        if self.error is not None:
            raise InvalidMessage(str(self.error), field=self.error.field)
        limits, keep = self.inflate
        plain = compression.decompress(self.stored, self.kind, limits.of(self.stored_bytes))
        if keep.take(len(plain)):
            self.kept, self.stored = plain, b""
        return plain


class PackedMessage(MessageExt):
    """A message whose body is inflated on access. The inflated body is kept while the pull's budget allows
    it, so a message that waits for a listener takes no more memory than in the broker's log. ``body`` raises
    InvalidMessage when it is damaged or inflates past the limits."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers see an ordinary field

        @property
        def body(self) -> bytes:
            return self.packed.body()

        @body.setter
        def body(self, value: bytes) -> None:
            self.packed = packed = _Packed(b"", 0, _Inflate(LIMITS, Budget(0)))
            packed.kept, packed.stored_bytes = value, len(value)

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except InvalidMessage as error:
            return f"<message {self.queue_offset} of queue {self.queue_id} of {self.topic}: {error}>"

    @property
    def stored_body_bytes(self) -> int:
        packed: _Packed = self.packed
        return packed.stored_bytes


def decode_record(
    buffer: Buffer, position: int = 0, *, decompress: bool = True, limits: InflateLimits = LIMITS
) -> MessageExt:
    """Decode the record at ``position``. Raises InvalidMessage when there is none.

    With ``decompress`` the body is inflated on access according to its system flag. The flag itself stays as
    stored.
    """
    view = memoryview(buffer)
    size = I32.unpack_from(view, position)[0] if len(view) - position >= I32.size else 0
    inflate = _Inflate(limits, Budget(limits.max_bytes)) if decompress else None
    # Copy as many bytes as the record claims, or all there are. A wrong size is detected in either case.
    return _decode(bytes(view[position : position + max(size, MIN_RECORD_BYTES)]), 0, inflate, "", position)


def decode_records(
    buffer: Buffer, *, decompress: bool = True, broker_name: str = "", limits: InflateLimits = LIMITS
) -> list[MessageExt]:
    """Decode a pull body: contiguous records. Inner batches are unpacked into their items, each with its
    queue offset, without a limit (``decode_pull`` has one).

    Raises InvalidMessage at the first malformed record. The Java client silently drops the rest.
    """
    inflate = _Inflate(limits, Budget(_KEPT_BYTES)) if decompress else None
    data = buffer if isinstance(buffer, bytes) else bytes(memoryview(buffer))
    messages: list[MessageExt] = []
    position, end = 0, len(data)
    while position < end:
        message = _decode(data, position, inflate, broker_name)
        position += message.store_size_bytes
        if message.sys_flag & _IN_BATCH == _IN_BATCH:
            messages += _unwrap(message)
        else:
            messages.append(message)
    return messages


def decode_pull(
    buffer: Buffer,
    *,
    broker_name: str = "",
    limits: InflateLimits = LIMITS,
    damaged: list[InvalidMessage] | None = None,
) -> tuple[list[MessageExt], int | None]:
    """As ``decode_records``, within the budget for unpacked inner batches, and with the bodies checked against their
    CRCs. The second value is the queue offset of the first record that was not decoded and has to be pulled again, or
    None.

    A damaged record ends what is decoded, and is to be pulled again: a broker that has noticed the damage leaves the
    record out, or has healed it. Raises InvalidMessage if it is the first. With ``damaged``, which receives their
    errors, damaged records are left out instead."""
    inflate = _Inflate(limits, Budget(_KEPT_BYTES))
    room_bytes, room_messages = _BATCH_BUDGET_BYTES, _BATCH_BUDGET_MESSAGES
    data = buffer if isinstance(buffer, bytes) else bytes(memoryview(buffer))
    messages: list[MessageExt] = []
    position, end = 0, len(data)
    while position < end:
        try:
            message = _decode(data, position, inflate, broker_name, verify_crc=True)
        except InvalidMessage as error:
            if damaged is not None:
                damaged.append(error)
                position = _behind_damage(data, position)
                continue
            if not messages:
                raise
            return messages, messages[-1].queue_offset + 1
        position += message.store_size_bytes
        if message.sys_flag & _IN_BATCH == _IN_BATCH:
            if room_bytes <= 0 or room_messages <= 0:
                return messages, message.queue_offset
            items = _unwrap(message)
            room_messages -= len(items)
            room_bytes -= sum([len(item.body) for item in items]) if items[0] is not message else 0
            messages += items
        else:
            messages.append(message)
    return messages, None


_unpack_head_v4 = _HEAD_V4.unpack_from
_new_message = MessageExt.__new__
_LOW_FLAGS = 39
"""The place of the last byte of the system flag in a record."""
_IN_BATCH = INNER_BATCH | NEED_UNWRAP


def _behind_damage(data: bytes, position: int) -> int:
    """Where the next record of a pull body begins, after a damaged one: behind its own size, if one begins there or the
    body ends, otherwise at the next magic."""
    end = len(data)
    if end - position >= SIZE_MAGIC.size:
        size: int = SIZE_MAGIC.unpack_from(data, position)[0]
        behind = position + size
        if behind > position and (behind == end or data[behind + 4 : behind + 7] == _MAGIC_PREFIX):
            return behind
    found = data.find(_MAGIC_PREFIX, position + SIZE_MAGIC.size)
    return found - I32.size if found >= 0 else end


def _decode(
    data: bytes,
    position: int,
    inflate: _Inflate | None,
    broker_name: str,
    base: int = 0,
    *,
    verify_crc: bool = False,
) -> MessageExt:
    """Decode one record. ``base`` is the position of ``data``, for error messages. This is a consumer's hot
    path: setting fields one by one saves a third over keyword arguments, and rarely used fields are decoded
    on access."""
    available = len(data) - position
    if available < MIN_RECORD_BYTES:
        raise _too_short(available, base + position)
    flags = data[position + _LOW_FLAGS]
    is_batch = flags & _IN_BATCH == _IN_BATCH
    is_packed = is_batch or (inflate is not None and flags & COMPRESSED)
    message = _new_message(PackedMessage if is_packed else MessageExt)
    (
        size,
        magic,
        message.body_crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        sys_flag,
        message.born_timestamp_ms,
        born_host,
        message.store_timestamp_ms,
        store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        body_length,
    ) = _unpack_head_v4(data, position)
    body_start = position + _HEAD_V4.size
    if sys_flag & HOST_FLAGS:
        head = HEADS[sys_flag & HOST_FLAGS]
        body_start = position + head.size
        if available < head.size + 3:
            raise _too_short(available, base + position)
        fields = head.unpack_from(data, position)
        message.born_timestamp_ms, born_host, message.store_timestamp_ms, store_host = fields[8:12]
        message.reconsume_times, message.prepared_transaction_offset, body_length = fields[12:]
    body_end = body_start + body_length
    end = position + size
    if magic == MAGIC_V1:
        topic_start = body_end + 1
    elif magic == MAGIC_V2:
        topic_start = body_end + 2
    else:
        raise _no_message(magic, base + position)
    if body_length < 0 or size > available or topic_start + 2 > position + available:
        raise InvalidMessage(f"record at {base + position} has impossible lengths", field="totalSize")
    topic_length = data[topic_start - 1]
    if magic == MAGIC_V2:
        topic_length |= data[body_end] << 8
    topic_end = topic_start + topic_length
    properties_start = topic_end + 2
    if properties_start > end:
        raise InvalidMessage(f"record at {base + position} has impossible lengths", field="topicLength")
    if data[topic_end] << 8 | data[topic_end + 1] != end - properties_start:
        raise InvalidMessage(f"record at {base + position} has impossible lengths", field="propertiesLength")
    body = data[body_start:body_end]
    if verify_crc and body and full_crc32(body) & BODY_CRC_MASK != message.body_crc:
        raise _changed_body(message, _topic_texts[data[topic_start:topic_end]])
    if is_packed:
        message.packed = _packed(body, sys_flag, inflate)
    else:
        message.body = body
    message.topic = _topic_texts[data[topic_start:topic_end]]
    # mypy knows only the slots of dataclasses, not those of their base classes.
    message.encoded_properties = data[properties_start:end]  # type: ignore[misc]
    message.sys_flag = sys_flag
    message.born_host = _host_texts[born_host]
    message.store_host = _host_texts[store_host]
    message.store_size_bytes = size
    message.broker_name = broker_name
    return message


def _packed(stored: bytes, sys_flag: int, inflate: _Inflate | None) -> _Packed:
    """The body of an inner batch is packed even if it is not compressed: it may turn out to be unreadable."""
    kind = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    packed = _Packed(stored, kind, inflate or _Inflate(LIMITS, Budget(0)))
    if inflate is None or not sys_flag & COMPRESSED:
        packed.kept = stored
    return packed


def _too_short(available: int, position: int) -> InvalidMessage:
    return InvalidMessage(f"{available} bytes at {position} are too few for a record", field="totalSize")


def _no_message(magic: int, position: int) -> InvalidMessage:
    return InvalidMessage(f"magic {magic & 0xFFFFFFFF:#x} at {position} is not a message", field="magic")


def _changed_body(message: MessageExt, topic: str) -> InvalidMessage:
    return InvalidMessage(
        f"the body of message {message.queue_offset} of queue {message.queue_id} of topic {topic} does not match"
        " its CRC",
        field="bodyCRC",
    )


def _unwrap(batch: MessageExt) -> list[MessageExt]:
    """Unpack an inner batch. Item i keeps the batch's hosts, times and physical offset and gets queue offset
    base + i. A batch that cannot be unpacked becomes one message whose body raises on access, so the messages
    after it still arrive."""
    try:
        items = split_batch(batch.body, MAX_BATCH_MESSAGES)
        if not items:
            raise InvalidMessage("an inner batch without messages", field="body")
    except InvalidMessage as error:
        batch.packed.error, batch.packed.kept = error, None
        return [batch]
    return [
        MessageExt(
            topic=batch.topic,
            body=body,
            properties=decode_properties(properties),
            flag=flag,
            queue_id=batch.queue_id,
            queue_offset=QueueOffset(batch.queue_offset + index),
            physical_offset=batch.physical_offset,
            sys_flag=batch.sys_flag,
            born_timestamp_ms=batch.born_timestamp_ms,
            born_host=batch.born_host,
            store_timestamp_ms=batch.store_timestamp_ms,
            store_host=batch.store_host,
            reconsume_times=batch.reconsume_times,
            prepared_transaction_offset=batch.prepared_transaction_offset,
            body_crc=crc32(body),
            store_size_bytes=batch.store_size_bytes,
            offset_message_id=batch.offset_message_id,
            broker_name=batch.broker_name,
        )
        for index, (flag, body, properties) in enumerate(items)
    ]


class Parts(NamedTuple):
    """A record as it is stored: nothing decompressed, properties encoded."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: memoryview
    """View into the buffer of the record."""
    properties: bytes


def is_inner_batch(record: Parts) -> bool:
    return bool(record.sys_flag & (INNER_BATCH | NEED_UNWRAP))


def take_members(record: Parts, index: int, position: int, most: int) -> list[Parts]:
    """Messages of an inner batch, at most ``most``, each for storing it alone: from number ``index`` on, which begins
    at ``position`` of the body. Raises InvalidMessage for a batch that is damaged there."""
    items, _ = take_items(record.body[position:], most)
    return [_member(record, number, *item) for number, item in enumerate(items, index)]


def find_member(record: Parts, unique_id: bytes) -> Parts | None:
    """The message of an inner batch that has this id, for storing it alone. Raises InvalidMessage for a batch that is
    compressed or damaged."""
    for index, (flag, body, properties) in enumerate(_members(record)):
        if unique_id in properties and find_property(properties, _UNIQ_KEY) == unique_id:
            return _member(record, index, flag, body, properties)
    return None


def check_members(record: Parts) -> None:
    """Raises InvalidMessage for an inner batch that is compressed or damaged."""
    _members(record)


def _members(record: Parts) -> list[tuple[int, bytes, bytes]]:
    if record.sys_flag & COMPRESSED:
        raise InvalidMessage("an inner batch that is compressed as a whole", field="body")
    return split_batch(record.body, MAX_BATCH_MESSAGES)


def _member(record: Parts, index: int, flag: int, body: bytes, properties: bytes) -> Parts:
    return record._replace(
        queue_offset=record.queue_offset + index,
        flag=flag,
        sys_flag=record.sys_flag & ~(INNER_BATCH | NEED_UNWRAP),
        body=memoryview(body),
        properties=properties,
    )


def parts_at(buffer: memoryview, position: int, limit: int) -> Parts | None:
    """``check_record`` without the body's CRC, and ``take_apart``, in one call. None when the record is not
    VALID."""
    available = limit - position
    if available < MIN_RECORD_BYTES:
        return None
    fields = _HEAD_V4.unpack_from(buffer, position)
    head_bytes = _HEAD_V4.size
    if fields[7] & HOST_FLAGS:
        head = HEADS[fields[7] & HOST_FLAGS]
        head_bytes = head.size
        if available < head_bytes + 3:
            return None
        fields = head.unpack_from(buffer, position)
    size, magic, body_length = fields[0], fields[1], fields[14]
    body_start = position + head_bytes
    body_end = body_start + body_length
    end = position + size
    if size > available or body_length < 0 or body_end + 4 > end:
        return None
    if magic == MAGIC_V1:
        topic_start = body_end + 1
        topic_length = buffer[body_end]
    elif magic == MAGIC_V2:
        topic_start = body_end + 2
        topic_length = buffer[body_end] << 8 | buffer[body_end + 1]
    else:
        return None
    topic_end = topic_start + topic_length
    properties_start = topic_end + 2
    if not topic_length or properties_start > end:
        return None
    if buffer[topic_end] << 8 | buffer[topic_end + 1] != end - properties_start:
        return None
    return Parts(
        _topic_texts[bytes(buffer[topic_start:topic_end])],
        fields[3],
        fields[5],
        fields[6],
        fields[4],
        fields[7],
        fields[8],
        fields[9],
        fields[10],
        fields[11],
        fields[12],
        fields[13],
        buffer[body_start:body_end],
        bytes(buffer[properties_start:end]),
    )


def take_apart(record: memoryview) -> Parts:
    """The fields of one record, for storing it again. Raises InvalidMessage."""
    parts = parts_at(record, 0, len(record))
    if parts is None:
        raise InvalidMessage("these bytes are not a record", field="record")
    return parts


# --- check (recovery) ---------------------------------------------------------------------------------------


class Verdict(enum.Enum):
    """Kind of the bytes at a position of the log (CommitLog.checkMessageAndReturnSize)."""

    VALID = "valid"
    BLANK = "blank"
    """The record that ends a segment: continue in the next segment."""
    DAMAGED = "damaged"
    """Not a record: garbage, zeros, a torn tail, a wrong CRC."""


class CheckedRecord(NamedTuple):
    """A verdict and, when it is VALID, the fields that a dispatcher needs."""

    verdict: Verdict
    size_bytes: int = 0
    physical_offset: int = -1
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    sys_flag: int = 0
    store_timestamp_ms: int = 0
    properties: bytes = b""


_BLANK = CheckedRecord(Verdict.BLANK)
_DAMAGED = CheckedRecord(Verdict.DAMAGED)


def check_record(
    buffer: Buffer, position: int, limit: int, *, verify_crc: bool, verify_property_crc: bool = False
) -> CheckedRecord:
    """Check the bytes at ``position``. Nothing at or beyond ``limit`` is read.

    VALID means: a message magic, all lengths consistent with the total size, a topic, and (with
    ``verify_crc``) the body's CRC, and (with ``verify_property_crc``) the record's own CRC, if it has one.
    The caller compares ``physical_offset`` with the position at which the record was found. Never raises.
    """
    available = limit - position
    if available < BLANK_BYTES:
        return _DAMAGED
    size, magic = SIZE_MAGIC.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        return _BLANK
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or not MIN_RECORD_BYTES <= size <= available:
        return _DAMAGED
    fields = _HEAD_V4.unpack_from(buffer, position)
    head = _HEAD_V4
    if fields[7] & HOST_FLAGS:
        head = HEADS[fields[7] & HOST_FLAGS]
        if size < head.size + 3:
            return _DAMAGED
        fields = head.unpack_from(buffer, position)
    wide = 0 if magic == MAGIC_V1 else 1
    body_start = position + head.size
    body_length = fields[14]
    if not 0 <= body_length <= size - head.size - 3 - wide:
        return _DAMAGED
    end = position + size
    topic_start = body_start + body_length + 1 + wide
    if wide:
        (topic_length,) = I16.unpack_from(buffer, topic_start - 2)
    else:
        topic_length = buffer[topic_start - 1]
    properties_start = topic_start + topic_length + 2
    if topic_length <= 0 or properties_start > end:
        return _DAMAGED
    (properties_length,) = I16.unpack_from(buffer, properties_start - 2)
    if properties_length < 0 or properties_start + properties_length != end:
        return _DAMAGED
    if (
        verify_crc
        and body_length
        and crc32(memoryview(buffer)[body_start : body_start + body_length]) != fields[2]
    ):
        return _DAMAGED
    if verify_property_crc and is_seal_broken(memoryview(buffer)[position:end]):
        return _DAMAGED
    return CheckedRecord(
        Verdict.VALID,
        size,
        fields[6],
        _topic_texts[bytes(buffer[topic_start : topic_start + topic_length])],
        fields[3],
        fields[5],
        fields[7],
        fields[10],
        bytes(buffer[properties_start:end]),
    )
