"""The items of a batch: what the body of a batch send, and of a record with an inner batch, consists of.

Source: RocketMQ's MessageDecoder.encodeMessages. All integers are big-endian and signed. An item is

    total size i32, magic i32 (0), body CRC i32 (0), flag i32, body length i32, body,
    properties length i16, properties

Must not know records, files or sockets.

Facts: docs/rocketmq/messages.md#batches.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from mqspark.errors import InvalidMessage
from mqspark.message import MAX_PROPERTIES_BYTES, Message, encode_properties
from mqspark.record.recordlayout import I16, pack_i16

_HEAD = struct.Struct(">iiiii")
_MIN_BYTES = _HEAD.size + 2


def encode_batch(messages: Iterable[Message]) -> bytes:
    """The body of a batch send: one item per message, each with its own flag, body and properties."""
    return encode_items(
        (message.flag, message.body, encode_properties(message.properties)) for message in messages
    )


def encode_items(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The reverse of ``split_batch``. Raises InvalidMessage for properties that are too long."""
    parts: list[bytes] = []
    known: tuple[int, int, int] | None = None
    head = between = b""
    for flag, body, properties in items:
        shape = (flag, len(body), len(properties))
        if shape != known:  # most messages of a batch are alike
            _, body_length, properties_length = known = shape
            if properties_length > MAX_PROPERTIES_BYTES:
                raise InvalidMessage(
                    f"properties of {properties_length} bytes exceed 32767", field="properties"
                )
            head = _HEAD.pack(_MIN_BYTES + body_length + properties_length, 0, 0, flag, body_length)
            between = pack_i16(properties_length)
        parts += (head, body, between, properties)
    return b"".join(parts)


def encode_bodies(bodies: Iterable[bytes], properties: bytes) -> bytes:
    """Items that all have no flag and the same properties, in half the time."""
    rest = pack_i16(len(properties)) + properties
    parts: list[bytes] = []
    for body in bodies:
        length = len(body)
        parts += _HEAD.pack(_HEAD.size + length + len(rest), 0, 0, 0, length), body, rest
    return b"".join(parts)


class EqualBodies(Sequence[bytes]):
    """Bodies of one size above 0, one after the other in ``joined``."""

    __slots__ = ("joined", "size")

    def __init__(self, joined: bytes, size: int) -> None:
        self.joined = joined
        self.size = size

    def __len__(self) -> int:
        return len(self.joined) // self.size

    def __iter__(self) -> Iterator[bytes]:
        joined, size = self.joined, self.size
        return (joined[at : at + size] for at in range(0, len(joined), size))

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return list(self)[at]
        begin = at * self.size if at >= 0 else len(self.joined) + at * self.size
        if not 0 <= begin < len(self.joined):
            raise IndexError(at)
        return self.joined[begin : begin + self.size]


def split_batch(body: bytes | memoryview, most: int = sys.maxsize) -> list[tuple[int, bytes, bytes]]:
    """The items of a batch body: (flag, body, properties). Raises InvalidMessage when a length is wrong, or
    for more than ``most`` items."""
    items, end = take_items(body, most)
    if end < len(body):
        raise InvalidMessage(f"a batch of more than {most} messages", field="body")
    return items


def take_items(body: bytes | memoryview, most: int) -> tuple[list[tuple[int, bytes, bytes]], int]:
    """The first items, at most ``most``, and the bytes that they take. Raises InvalidMessage when one of their lengths
    is wrong."""
    items: list[tuple[int, bytes, bytes]] = []
    raw = bytes(body)
    position, end = 0, len(raw)
    for _ in range(most):
        if end - position < _MIN_BYTES:
            if position < end:
                raise InvalidMessage(f"batch item at {position} is cut short", field="body")
            break
        size, _, _, flag, body_length = _HEAD.unpack_from(raw, position)
        body_start = position + _HEAD.size
        properties_start = body_start + body_length + 2
        if (
            size < _MIN_BYTES
            or position + size > end
            or body_length < 0
            or properties_start > position + size
        ):
            raise InvalidMessage(f"batch item at {position} has impossible lengths", field="body")
        (properties_length,) = I16.unpack_from(raw, properties_start - 2)
        if properties_length < 0 or properties_start + properties_length != position + size:
            raise InvalidMessage(f"batch item at {position} has impossible lengths", field="body")
        items.append(
            (
                flag,
                raw[body_start : body_start + body_length],
                raw[properties_start : properties_start + properties_length],
            )
        )
        position += size
    return items, position


def item_bytes(body: bytes | memoryview, properties: bytes) -> int:
    """Bytes of an item."""
    return _MIN_BYTES + len(body) + len(properties)
