"""Whether bytes are a message of Protobuf: they are walked over, nothing is built.

Fields that the schema does not have are skipped, as by every reader; so are numbers that an enum does not have. What a
``google.protobuf.Any`` contains is not looked at: its type need not be known. Each byte is visited once. Messages are
at most ``MAX_NESTING`` deep, and ``MAX_MESSAGES`` in all: one of two bytes costs as much as a hundred bytes of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from mqspark.schemas.parsedschema import ENDS_EARLY, TOO_MUCH_TOGETHER, Check, Effort, Flaw
from mqspark.schemas.protobuf.prototext import ENUM, GROUP, MAX_FIELD, MESSAGE, SCALARS

MAX_NESTING = 100
"""The limit of Protobuf's own readers."""
MAX_MESSAGES = 600_000
"""In one payload, with groups that the schema does not have: half a second."""
_MAX_64 = (1 << 64) - 1
_VARINTS = re.compile(rb"(?:[\x80-\xff]{0,9}+[\0-\x7f])*+")
"""Each has ten bytes at most."""
_VARINT, _FIXED64, _BYTES, _START, _END, _FIXED32 = range(6)
_WIRE = {
    **{SCALARS[name]: _FIXED64 for name in ("double", "fixed64", "sfixed64")},
    **{SCALARS[name]: _FIXED32 for name in ("float", "fixed32", "sfixed32")},
    **{SCALARS[name]: _VARINT for name in ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool")},
    **{SCALARS[name]: _BYTES for name in ("string", "bytes")},
    ENUM: _VARINT,
    MESSAGE: _BYTES,
    GROUP: _START,
}
_WIRE_NAMES = (
    "a varint",
    "eight bytes",
    "bytes with a length",
    "a group",
    "the end of a group",
    "four bytes",
)
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_ALONE = frozenset({_VARINT, _BYTES, *_WIDTHS})
"""Values, not the begin or end of a group."""
_PLAIN, _TEXT, _INNER, _PACKED = range(4)
"""What is done with the value of a field."""


class _WireMisfit(Exception):
    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = list[str]()


class _Messages:
    """How many there may still be."""

    __slots__ = ("left",)

    def __init__(self, most: int = MAX_MESSAGES) -> None:
        self.left = most

    def more(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _WireMisfit(f"there are more than {MAX_MESSAGES} messages and groups")


class _WireField(NamedTuple):
    name: str
    action: int
    inner: _WireFields | None
    packed_wire: int
    """The wire type of the values of a packed field."""


class _WireFields:
    """What is known of a message."""

    __slots__ = ("by_tag", "names", "required")

    def __init__(self) -> None:
        self.by_tag = dict[int, _WireField]()
        self.names = dict[int, tuple[str, int]]()
        """By number, with the wire type."""
        self.required = dict[int, str]()
        """Names by tag."""


class PayloadChecks:
    """Those of the messages of one schema."""

    def __init__(self, unchecked: frozenset[str]) -> None:
        """``unchecked``: files whose texts may be any bytes (proto2)."""
        self._unchecked = unchecked
        self._known = dict[str, _WireFields]()

    def of(self, message: Any) -> WireChecks:
        """``message``: its Descriptor."""
        return _checks_of(_fields_of(message, self._unchecked, self._known))


class WireChecks(NamedTuple):
    """Those of payloads of one message."""

    alone: Check
    of_batch: Callable[[Effort], Check]


def _checks_of(fields: _WireFields) -> WireChecks:
    def check(payload: bytes | memoryview) -> Flaw | None:
        return checked(payload, _Messages())

    def checked(payload: bytes | memoryview, messages: _Messages) -> Flaw | None:
        data = bytes(payload)
        try:
            _walk(data, 0, len(data), fields, 1, 0, messages)
        except _WireMisfit as error:
            return Flaw("".join(reversed(error.path)).removeprefix("."), error.problem)
        return None

    def of_batch(effort: Effort) -> Check:
        def check_next(payload: bytes | memoryview) -> Flaw | None:
            if effort.left < 0:
                return Flaw("", TOO_MUCH_TOGETHER)
            most = int(effort.left * MAX_MESSAGES)
            messages = _Messages(most)
            flaw = checked(payload, messages)
            effort.left -= (most - messages.left) / MAX_MESSAGES
            return Flaw("", TOO_MUCH_TOGETHER) if effort.left < 0 and most < MAX_MESSAGES else flaw

        return check_next

    return WireChecks(check, of_batch)


def _fields_of(message: Any, unchecked: frozenset[str], made: dict[str, _WireFields]) -> _WireFields:
    if message.full_name in made:
        return made[message.full_name]
    made[message.full_name] = _WireFields()
    waiting = [message]
    while waiting:
        each = waiting.pop()
        fields = made[each.full_name]
        for field in each.fields:
            wire, action, inner = _WIRE[field.type], _PLAIN, None
            if field.message_type is not None:
                action, name = _INNER, field.message_type.full_name
                if name not in made:
                    made[name] = _WireFields()
                    waiting.append(field.message_type)
                inner = made[name]
            elif field.type == SCALARS["string"] and field.file.name not in unchecked:
                action = _TEXT
            tag = field.number << 3 | wire
            fields.by_tag[tag] = _WireField(field.name, action, inner, wire)
            fields.names[field.number] = (field.name, wire)
            if field.is_repeated and wire in (_VARINT, _FIXED32, _FIXED64):
                fields.by_tag[field.number << 3 | _BYTES] = _WireField(field.name, _PACKED, None, wire)
            if field.is_required:
                fields.required[tag] = field.name
    return made[message.full_name]


def _walk(
    data: bytes, at: int, end: int, fields: _WireFields, depth: int, group: int, messages: _Messages
) -> int:
    """``group``: number of the group that the message is, or 0. Returns the position behind the message."""
    messages.more()
    if depth > MAX_NESTING:
        raise _WireMisfit(f"more than {MAX_NESTING} messages are inside each other")
    missing = fields.required and dict(fields.required)
    by_tag = fields.by_tag
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1, end)
        field = by_tag.get(tag)
        if field is None:
            if tag & 7 == _END and tag >> 3 == group != 0:
                group = -1
                break
            at = _skip_unknown(data, at, end, tag, fields, depth, messages)
            continue
        if missing:
            missing.pop(tag, None)
        try:
            at = _value(data, at, end, tag, field, depth, messages)
        except _WireMisfit as error:
            error.path.append(f".{field.name}")
            raise
    if group > 0:
        raise _WireMisfit(ENDS_EARLY)
    if missing:
        raise _WireMisfit(f"the required field {next(iter(missing.values()))} is missing")
    return at


def _value(
    data: bytes, at: int, end: int, tag: int, field: _WireField, depth: int, messages: _Messages
) -> int:
    wire = tag & 7
    if wire != _BYTES:
        if wire == _START and field.inner is not None:
            return _walk(data, at, end, field.inner, depth + 1, tag >> 3, messages)
        return _skip(data, at, end, wire)
    size, at = _varint(data, at, end)
    stop = at + size
    if stop > end:
        raise _WireMisfit(ENDS_EARLY)
    action = field.action
    if action == _TEXT:
        try:
            data[at:stop].decode()
        except UnicodeDecodeError as error:
            raise _WireMisfit(f"the text is not UTF-8 at its byte {error.start}") from None
    elif field.inner is not None:
        _walk(data, at, stop, field.inner, depth + 1, 0, messages)
    elif action == _PACKED:
        width = _WIDTHS.get(field.packed_wire)
        if width is not None and size % width:
            raise _WireMisfit(f"{size} bytes are no list of values of {width} bytes")
        if width is None and _VARINTS.fullmatch(data, at, stop) is None:
            while at < stop:  # to say why
                _, at = _varint(data, at, stop)
    return stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MAX_64, at
        shift += 7
        if shift > 63:
            raise _WireMisfit("a number has more than ten bytes")
    raise _WireMisfit(ENDS_EARLY)


def _skip(data: bytes, at: int, end: int, wire: int) -> int:
    if wire == _VARINT:
        return _varint(data, at, end)[1]
    if wire == _BYTES:
        size, at = _varint(data, at, end)
        at += size
    else:
        at += _WIDTHS[wire]
    if at > end:
        raise _WireMisfit(ENDS_EARLY)
    return at


def _skip_unknown(
    data: bytes, at: int, end: int, tag: int, fields: _WireFields, depth: int, messages: _Messages
) -> int:
    """A field that the schema does not have, or not with this wire type. Groups inside it are counted, not visited."""
    number, wire = tag >> 3, tag & 7
    if number in fields.names:
        name, right = fields.names[number]
        error = _WireMisfit(
            f"it is {_WIRE_NAMES[wire]}, not {_WIRE_NAMES[right]}" if wire < 6 else f"wire type {wire}"
        )
        error.path.append(f".{name}")
        raise error
    if wire in _ALONE and 0 < number <= MAX_FIELD:
        return _skip(data, at, end, wire)
    groups = list[int]()
    while True:
        if not 0 < number <= MAX_FIELD or wire > _FIXED32:
            raise _WireMisfit(f"the tag {tag} is that of no field")
        if wire == _START:
            groups.append(number)
            messages.more()
            if depth + len(groups) > MAX_NESTING:
                raise _WireMisfit(f"more than {MAX_NESTING} messages are inside each other")
        elif wire == _END:
            if not groups or groups.pop() != number:
                raise _WireMisfit(f"group {number} ends where none begins")
        else:
            at = _skip(data, at, end, wire)
        if not groups:
            return at
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
