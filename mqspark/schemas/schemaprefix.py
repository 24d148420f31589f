"""The bytes in front of a payload that name its schema (Confluent's wire format).

    ┌0 i8┬schema id i32┬ for Protobuf: number of indexes, indexes (varints in zigzag) ┬ payload ┐

The indexes lead from the file to the message: its place in the file, then its place inside that one. The path
``[0]``, the first message of the file, is the single byte 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAGIC = 0
PREFIX_BYTES = 5
MAX_INDEXES = 100
FIRST_MESSAGE = (0,)


class Prefix(NamedTuple):
    schema_id: int
    payload_at: int
    """Length of the prefix in bytes."""
    indexes: tuple[int, ...] = ()


def encode_prefix(schema_id: int, indexes: Sequence[int] = ()) -> bytes:
    """``indexes``: of a Protobuf message; none for the other languages. Raises ValueError."""
    if not 0 < schema_id < 1 << 31:
        raise ValueError(f"{schema_id} is no id of a schema: ids are 1 to {(1 << 31) - 1}")
    head = schema_id.to_bytes(PREFIX_BYTES, "big")
    if not indexes:
        return head
    if len(indexes) > MAX_INDEXES or any(not 0 <= index < 1 << 31 for index in indexes):
        raise ValueError(f"{list(indexes)[:5]} are no indexes of a message")
    if tuple(indexes) == FIRST_MESSAGE:
        return head + b"\0"
    return head + b"".join(_varint(2 * each) for each in (len(indexes), *indexes))


def decode_prefix(body: bytes | memoryview, *, indexed: bool = False) -> Prefix | None:
    """None: the body has no prefix. ``indexed``: of a Protobuf schema; raises ValueError if its indexes are damaged."""
    if len(body) < PREFIX_BYTES or body[0] != MAGIC:
        return None
    schema_id = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if not 0 < schema_id < 1 << 31:
        return None
    if not indexed:
        return Prefix(schema_id, PREFIX_BYTES)
    indexes, at = decode_indexes(body, PREFIX_BYTES)
    return Prefix(schema_id, at, indexes)


def decode_indexes(body: bytes | memoryview, at: int) -> tuple[tuple[int, ...], int]:
    """The indexes of a Protobuf message, and where they end. Raises ValueError."""
    count, at = _read_varint(body, at)
    if count == 0:
        return FIRST_MESSAGE, at
    if count > MAX_INDEXES:
        raise ValueError(f"the path to the message has {count} indexes, more than {MAX_INDEXES}")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(body, at)
        indexes.append(index)
    return tuple(indexes), at


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(body: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number in zigzag that is not negative. Raises ValueError."""
    number = shift = 0
    while True:
        if at >= len(body) or shift > 28:
            raise ValueError("the path to the message is cut short or too long")
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if number & 1:
        raise ValueError("the path to the message has a negative index")
    return number >> 1, at
