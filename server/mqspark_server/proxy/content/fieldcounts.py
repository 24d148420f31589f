"""How many fields a large request has, counted before it is parsed: Protobuf makes millions of values of a few
megabytes, in one go and in many times their memory.

Only messages inside of messages are looked into, and a value of many bytes is one step, so that the large requests of
honest clients, with their bodies, cost a few steps. A packed list counts as its bytes: each value has one or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from mqspark_server.net.grpc.grpcwords import GrpcAbort, GrpcCode

MAX_FIELDS = 32_768
"""A batch of 1,024 messages may have 32 fields in each."""

_Inner = dict[int, Any]
"""The number of each field that is a message → the same of that message; of one that may be packed → None."""
_UNPACKED = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_MESSAGE)


def counter(descriptor: Descriptor) -> Callable[[bytes], None]:
    """Raises GrpcAbort for a message of more than MAX_FIELDS fields."""
    inner = _inner(descriptor, {})
    return lambda data: _count(data, inner)


def _inner(descriptor: Descriptor, known: dict[str, _Inner]) -> _Inner:
    found = known.get(descriptor.full_name)
    if found is None:
        found = known[descriptor.full_name] = {}
        for field in descriptor.fields:
            if field.message_type is not None:
                found[field.number] = _inner(field.message_type, known)
            elif field.is_repeated and field.cpp_type not in _UNPACKED:
                found[field.number] = None
    return found


def _count(data: bytes, inner: _Inner) -> None:
    """What is malformed ends the count: the parser refuses it."""
    left, waiting = MAX_FIELDS, [(0, len(data), inner)]
    try:
        while waiting and left >= 0:
            at, end, inner = waiting.pop()
            while at < end and left >= 0:
                left -= 1
                tag = data[at]
                at += 1
                if tag >= 0x80:
                    tag, at = _varint(data, at - 1)
                kind = tag & 7
                if kind == 2:
                    size = data[at]
                    at += 1
                    if size >= 0x80:
                        size, at = _varint(data, at - 1)
                    if tag >> 3 in inner:
                        fields = inner[tag >> 3]
                        if fields is None:
                            left -= size
                        elif size:
                            waiting.append((at, min(at + size, end), fields))
                    at += size
                elif kind == 0:
                    at = _varint(data, at)[1]
                elif kind in (1, 5):
                    at += 8 if kind == 1 else 4
    except IndexError:
        return
    if left < 0:
        raise GrpcAbort(
            GrpcCode.RESOURCE_EXHAUSTED, f"a request of more than {MAX_FIELDS} fields is not read"
        )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and what is after it. Raises IndexError for one that does not end."""
    number = shift = 0
    while data[at] >= 0x80 and shift < 64:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1
