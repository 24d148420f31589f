"""Where a stored record has its fields. All integers are big-endian and signed.

    total size i32, magic i32, body CRC i32, queue id i32, flag i32, queue offset i64, physical offset i64,
    system flag i32, born timestamp i64, born host 8|20, store timestamp i64, store host 8|20,
    reconsume times i32, prepared transaction offset i64, body length i32, body,
    topic length i8 (V1) | i16 (V2), topic, properties length i16, properties

Source: RocketMQ's MessageExtEncoder. ``HEAD`` declares it; structs, offsets and dtypes follow from it. Offsets are
those with IPv4 hosts: behind an IPv6 host, everything is V6_EXTRA_BYTES further.

Must not know what the fields mean (``mqspark.record.record``).

Facts: docs/rocketmq/messages.md#record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from typing import Any

from mqspark.errors import InvalidMessage
from mqspark.message import BORN_HOST_V6, HOST_FLAGS, STORE_HOST_V6

Buffer = bytes | bytearray | memoryview | mmap
Pack = Callable[..., bytes]

I16, I32 = struct.Struct(">h"), struct.Struct(">i")
"""Lengths and sizes."""
pack_i16 = I16.pack

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
"""Topic length in one byte (MessageVersion.MESSAGE_VERSION_V1)."""
MAGIC_V2 = 0xDAA320AB - (1 << 32)
"""Topic length in two bytes; written when the topic is longer than 127 bytes."""
MAGIC_BYTE = 0xDA
"""The first byte of both magics."""
MAGIC_PREFIX = b"\xda\xa3\x20"
"""The bytes that both begin with."""
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
"""Magic of the record that ends a CommitLog segment: i32 remaining bytes, then this as i32."""
BLANK_BYTES = 8
"""Space at the end of every segment that is reserved for the blank record."""
V6_EXTRA_BYTES = 12
"""What an IPv6 host is longer than an IPv4 host."""

HEAD = {
    "size": "i",
    "magic": "i",
    "crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "position": "q",
    "sys_flag": "i",
    "born_ms": "q",
    "born_host": "8s",
    "store_ms": "q",
    "store_host": "8s",
    "reconsume_times": "i",
    "prepared_offset": "q",
    "body_bytes": "i",
}
"""Everything before the body, with IPv4 hosts."""
_BYTES = {name: struct.calcsize(f">{form}") for name, form in HEAD.items()}
AT = {name: sum(list(_BYTES.values())[:number]) for number, name in enumerate(HEAD)}
"""The offset of each field."""
QUEUE_OFFSET_AT = AT["queue_offset"]
BODY_AT = sum(_BYTES.values())
HOST_BYTES = {0: (8, 8), BORN_HOST_V6: (20, 8), STORE_HOST_V6: (8, 20), HOST_FLAGS: (20, 20)}
"""The lengths of the born host and of the store host by ``system flag & HOST_FLAGS``."""


def _head(born_bytes: int, store_bytes: int) -> struct.Struct:
    forms = HEAD | {"born_host": f"{born_bytes}s", "store_host": f"{store_bytes}s"}
    return struct.Struct(">" + "".join(forms.values()))


HEADS = {flags: _head(*lengths) for flags, lengths in HOST_BYTES.items()}
"""The head by ``system flag & HOST_FLAGS``."""
_ALIKE = ("born_host", "store_ms", "store_host", "reconsume_times", "prepared_offset")
"""Fields, one behind another, that messages of one sender and one time mostly share."""


def _head_of_run(born_bytes: int, store_bytes: int) -> tuple[Pack, Pack]:
    forms = HEAD | {"born_host": f"{born_bytes}s", "store_host": f"{store_bytes}s"}
    alike = struct.Struct(">" + "".join(forms[name] for name in _ALIKE))
    forms |= dict.fromkeys(_ALIKE, "") | {_ALIKE[0]: f"{alike.size}s"}
    return struct.Struct(">" + "".join(forms.values())).pack, alike.pack


HEADS_OF_RUNS = {flags: _head_of_run(*lengths) for flags, lengths in HOST_BYTES.items()}
"""By the same flags: what packs a head whose fields ``_ALIKE`` are packed already, and what packs these."""
MIN_RECORD_BYTES = BODY_AT + 1 + 2
"""91: a record without body, topic and properties, with IPv4 hosts."""
MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))


def fields(*names: str) -> struct.Struct:
    """Reads these fields of a head, in its order, as far as the last of them."""
    form, end = ">", 0
    for name in names:
        form += f"{AT[name] - end}x{HEAD[name]}"
        end = AT[name] + _BYTES[name]
    return struct.Struct(form)


def columns(*names: str, born_bytes: int = 8, store_bytes: int = 8) -> Any:
    """What ``numpy.dtype`` takes for these fields of heads, as long as a head."""
    extra = {"born_host": born_bytes - 8, "store_host": store_bytes - 8}
    offsets, end = {}, 0
    for name, size in _BYTES.items():
        offsets[name] = end
        end += size + extra.get(name, 0)
    forms = {
        name: f"V{_BYTES[name] + extra[name]}" if name in extra else f">i{_BYTES[name]}" for name in names
    }
    return {
        "names": list(names),
        "formats": list(forms.values()),
        "offsets": [offsets[name] for name in names],
        "itemsize": end,
    }


SIZE = fields("size")
SIZE_MAGIC = fields("size", "magic")
_POSITION = fields("position")
_QUEUE_OFFSET = fields("queue_offset")
_STORE_TIME = fields("sys_flag", "store_ms")
STORE_TIME_HEAD_BYTES = _STORE_TIME.size + V6_EXTRA_BYTES
"""What ``store_time_ms`` needs."""
_unpack_size = SIZE.unpack_from
_unpack_size_offset = fields("size", "queue_offset").unpack_from


def record_size(buffer: Buffer, at: int = 0) -> int:
    """The total size that the record at ``at`` says it has."""
    size: int = _unpack_size(buffer, at)[0]
    return size


def record_position(buffer: Buffer, at: int = 0) -> int:
    """The position in the log that the record at ``at`` says it has."""
    position: int = _POSITION.unpack_from(buffer, at)[0]
    return position


def queue_offset_of(buffer: Buffer, at: int = 0) -> int:
    """The queue offset of the record at ``at``."""
    offset: int = _QUEUE_OFFSET.unpack_from(buffer, at)[0]
    return offset


def store_time_ms(buffer: Buffer, at: int = 0) -> int:
    """The store time of the record at ``at``."""
    sys_flag, time_ms = _STORE_TIME.unpack_from(buffer, at)
    if sys_flag & BORN_HOST_V6:
        _, time_ms = _STORE_TIME.unpack_from(buffer, at + V6_EXTRA_BYTES)
    return int(time_ms)


def spans(buffer: Buffer) -> Iterator[tuple[int, int]]:
    """Begin and end of each record in a buffer of whole records, as the store and a pull give them. Raises
    InvalidMessage for a size that no record there can have."""
    begin, limit = 0, len(buffer)
    while begin <= limit - MIN_RECORD_BYTES:
        (size,) = _unpack_size(buffer, begin)
        end = begin + size
        if size < MIN_RECORD_BYTES or end > limit:
            raise InvalidMessage(f"record of {size} bytes in {limit - begin}", field="totalSize")
        yield begin, end
        begin = end
    if begin < limit:
        raise InvalidMessage(f"{limit - begin} bytes after the last record", field="totalSize")


def queue_offsets(buffers: Iterable[Buffer]) -> list[int]:
    """The queue offsets of the records in buffers of whole records. The walk of ``spans``, which would take twice the
    time here; the caller guarantees the sizes."""
    offsets = []
    for buffer in buffers:
        begin, limit = 0, len(buffer)
        while begin < limit:
            size, offset = _unpack_size_offset(buffer, begin)
            offsets.append(offset)
            begin += size
    return offsets
