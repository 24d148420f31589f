"""Protobuf by its schema; and without it: the numbers of fields, and values as far as the wire says what they are.

Facts: https://protobuf.dev/programming-guides/encoding/. The wire does not tell texts, bytes and inner messages apart:
what is a printable text is shown as one, what reads as a message as that, and anything else as bytes.
"""

from __future__ import annotations

import codecs
import struct

from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from mqspark.schemas.schemaprefix import decode_prefix
from mqspark_server.shown.bodies.jsonbody import MAX_PARSED_BYTES, write_json
from mqspark_server.shown.bodies.outline import MAX_OUTLINE_DEPTH, Full, Outline, Reading, Unreadable

MAX_PROTOBUF_STEPS = 50_000
"""Fields that are looked at for one body."""
_LAYOUT = dict.fromkeys(map(ord, "\t\r\n"))
"""Removes what a printable text may have besides."""
_utf8 = codecs.getincrementaldecoder("utf-8")
_VARINT, _FIXED64, _BYTES, _BEGIN, _END, _FIXED32 = range(6)
_LOOKED_AT = 64 * 1024
"""Bytes of a text: more than a page shows of it."""
_LARGEST_NUMBER = (1 << 29) - 1


def write_protobuf(body: bytes, out: Outline) -> str:
    """Returns what it is. Raises Unreadable, Full."""
    if not body:
        raise Unreadable("it is empty")
    _ProtobufWire(out).message(Reading(body), None, 0)
    return "Protobuf without its schema"


def write_protobuf_value(body: bytes, schema: ProtobufSchema, out: Outline) -> str:
    """A body with the prefix that says where in the schema its message is. Returns what it is. Raises Unreadable, Full,
    InvalidSchema."""
    from google.protobuf import json_format, message_factory
    from google.protobuf.message import DecodeError

    if len(body) > MAX_PARSED_BYTES:
        raise Unreadable(f"only bodies of up to {MAX_PARSED_BYTES:,} bytes are parsed")
    try:
        prefix = decode_prefix(body, indexed=True)
        if prefix is None:
            raise Unreadable("it has no prefix")
        name = schema.message_name(prefix.indexes)
        made = message_factory.GetMessageClass(schema.pool.FindMessageTypeByName(name))
        message = made.FromString(body[prefix.payload_at :])
        text = json_format.MessageToJson(
            message, preserving_proto_field_name=True, descriptor_pool=schema.pool
        )
    except (DecodeError, ValueError, TypeError, json_format.Error) as error:
        raise Unreadable(f"{error}".strip() or "it is no such message") from None
    write_json(text.encode(), out)
    return f"Protobuf, {name}"


class _ProtobufWire:
    def __init__(self, out: Outline) -> None:
        self._out = out
        self._steps = MAX_PROTOBUF_STEPS

    def message(self, reading: Reading, group: int | None, depth: int) -> None:
        """Up to the end of the bytes, or of the ``group``."""
        self._out.begin("{}")
        while not reading.is_at_end:
            number, kind = self._tag(reading)
            if kind == _END:
                if number != group:
                    raise Unreadable(f"a group ends before {reading.at} that has not begun")
                self._out.end()
                return
            self._out.name(str(number))
            self._field(reading, number, kind, depth)
        if group is not None:
            raise Unreadable(f"the group {group} does not end")
        self._out.end()

    def _tag(self, reading: Reading) -> tuple[int, int]:
        if self._steps == 0:
            raise Full
        self._steps -= 1
        tag = reading.varint()
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= _LARGEST_NUMBER or kind > _FIXED32:
            raise Unreadable(f"the tag before {reading.at} is none")
        return number, kind

    def _field(self, reading: Reading, number: int, kind: int, depth: int) -> None:
        match kind:
            case 0:
                found = reading.varint()
                self._out.literal(f'"{found}, or {found - (1 << 64)}"' if found >> 63 else str(found))
            case 1:
                self._fixed(reading.take(8), "<d")
            case 5:
                self._fixed(reading.take(4), "<f")
            case 3:
                self.message(reading, number, depth + 1)
            case _:
                self._bytes(reading.take(reading.varint()), depth)

    def _fixed(self, data: memoryview, form: str) -> None:
        """Whether it is a whole number or a fraction, only the schema tells."""
        whole = int.from_bytes(data, "little")
        self._out.literal(f'"{whole}, or {struct.unpack(form, data)[0]!r}"')

    def _bytes(self, data: memoryview, depth: int) -> None:
        text = _printable(data)
        if text is not None:
            self._out.value(text)
        elif depth < MAX_OUTLINE_DEPTH - 1 and self._is_message(data):
            self.message(Reading(data), None, depth + 1)
        else:
            self._out.value(data)

    def _is_message(self, data: memoryview) -> bool:
        """Looks at its own fields, not into them."""
        reading = Reading(data)
        groups: list[int] = []
        try:
            while not reading.is_at_end:
                number, kind = self._tag(reading)
                match kind:
                    case 0:
                        reading.varint()
                    case 2:
                        reading.take(reading.varint())
                    case 3:
                        groups.append(number)
                    case 4:
                        if not groups or groups.pop() != number:
                            return False
                    case _:
                        reading.take(8 if kind == _FIXED64 else 4)
        except Unreadable:
            return False
        return not groups


def _printable(data: memoryview) -> str | None:
    try:
        text = _utf8().decode(data[:_LOOKED_AT], final=len(data) <= _LOOKED_AT)
    except UnicodeDecodeError:
        return None
    # Character by character it would take milliseconds, for each of many values.
    return text if text.translate(_LAYOUT).isprintable() else None
