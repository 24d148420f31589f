"""Fields of Protobuf messages as bytes, for messages of which there are so many that objects of them cost too much.

The numbers of fields come from the tables of the service. Fields of a message may stand in any order, and what is not
there is the default.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

LENGTH, VARINT = 2, 0
"""Wire types: a length and so many bytes; a number."""

_ONE = [bytes((number,)) for number in range(0x80)]
_U64 = (1 << 64) - 1


def varint(number: int) -> bytes:
    """A number of 64 bits, also a negative one."""
    if 0 <= number < 0x80:
        return _ONE[number]
    if 0 <= number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if 0 <= number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    number &= _U64
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def tag(descriptor: Descriptor, name: str, kind: int = LENGTH) -> bytes:
    """What is before a value of the field."""
    return varint(descriptor.fields_by_name[name].number << 3 | kind)


def sized(value: bytes) -> bytes:
    """A value of the type LENGTH."""
    return varint(len(value)) + value
