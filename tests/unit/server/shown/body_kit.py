"""Bodies in the formats that pages decode, written by hand or by who knows the format."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "before", "type": ["null", "Order"]},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 3}},
    ],
}


def varint(number: int) -> bytes:
    found = bytearray()
    while True:
        low, number = number & 0x7F, number >> 7
        found.append(low | 0x80 if number else low)
        if not number:
            return bytes(found)


def long(number: int) -> bytes:
    """Avro's, whose sign is the lowest bit."""
    return varint((number << 1) ^ (number >> 63) if number >= 0 else (-number << 1) - 1)


def sized(content: bytes) -> bytes:
    return long(len(content)) + content


def order(number: int, before: bytes | None = None) -> bytes:
    """A record of ORDER."""
    inner = long(0) if before is None else long(1) + before
    prices = long(1) + sized(b"eur") + struct.pack("<d", 1.5) + long(0)
    return long(number) + long(1) + sized(b"a") + long(0) + inner + prices + long(1) + b"abc"


def avro(block: bytes, count: int = 1, schema: Any = ORDER, codec: str = "null") -> bytes:
    """A container file of one block."""
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    header = long(2) + sized(b"avro.schema") + sized(text) + sized(b"avro.codec") + sized(codec.encode())
    packed = zlib.compress(block)[2:-4] if codec == "deflate" else block
    return b"Obj\x01" + header + long(0) + b"S" * 16 + long(count) + sized(packed) + b"S" * 16


def field(number: int, kind: int, content: bytes) -> bytes:
    """A field of a Protobuf message; of kind 2 with its size."""
    size = varint(len(content)) if kind == 2 else b""
    return varint(number << 3 | kind) + size + content
