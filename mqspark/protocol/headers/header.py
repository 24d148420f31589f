"""What all headers share, and their conversion from and to ``extFields``."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from mqspark.errors import ProtocolError

I32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
I64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

MAX_PLACE = ((1 << 63) - 1) // 20
QueuePlace = Annotated[int, Meta(ge=-1, le=MAX_PLACE)]
"""An offset of a queue in an answer: -1 for none. Entries of 20 bytes (ConsumeQueue) leave no room for a larger one."""

H = TypeVar("H", bound="Header")


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of all headers."""

    alike: ClassVar[bool] = False
    """Whether requests of one sender differ in little, as many of them as there are messages."""


class RpcHeader(Header, kw_only=True):
    """Base of headers with the routing fields of RpcRequestHeader."""

    ns: str | None = None
    """Namespace."""
    nsd: bool | None = None
    """Whether the names already include the namespace."""
    bname: str | None = None
    """Broker name."""
    oway: bool | None = None


class TopicHeader(RpcHeader, kw_only=True):
    """Base of headers that address a topic (TopicRequestHeader)."""

    lo: bool | None = None
    """Whether the queue id is one of a static topic."""


def to_ext(header: Header) -> dict[str, str]:
    """The header as ``extFields``: text only, without fields that are None."""
    ext = {}
    for wire, value in zip(header.__struct_encode_fields__, astuple(header), strict=True):
        if value is None:
            continue
        if value is True:
            ext[wire] = "true"
        elif value is False:
            ext[wire] = "false"
        else:
            ext[wire] = str(value)
    return ext


def from_texts(header_type: type[H], ext: Mapping[str, str]) -> H | None:
    """Decode the fields of a binary header. None when only ``from_ext`` may be able to read them."""
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError:
        return None


def from_ext(header_type: type[H], ext: Mapping[str, str]) -> H:
    """Decode as RocketMQ parses text. Raises ProtocolError, which names the missing or malformed field."""
    values: dict[str, Any] = {}
    for item in _fields(header_type):
        text = ext.get(item.wire)
        if text is None:
            if item.required:
                raise ProtocolError(f"{header_type.__name__}: the mandatory field {item.label} is missing")
            continue
        try:
            values[item.attribute] = item.parse(text)
        except ValueError:
            raise ProtocolError(
                f"{header_type.__name__}: field {item.label} is malformed: {text[:80]!r}"
            ) from None
    return header_type(**values)


class _Field(NamedTuple):
    attribute: str
    wire: str
    required: bool
    value_type: Any
    parse: Callable[[str], Any]

    @property
    def label(self) -> str:
        return f"{self.wire!r}" if len(self.wire) > 1 else f"{self.wire!r} ({self.attribute})"


def _parse_bool(text: str) -> bool:
    # The same rule as in the fast decoders. The C++ client writes 1 for true. RocketMQ reads it as false and
    # therefore stores each batch of that client as one unreadable message.
    return text == "1" or text.lower() == "true"


def _parse_i32(text: str) -> int:
    return _parse_int(text, 1 << 31)


def _parse_i64(text: str) -> int:
    return _parse_int(text, 1 << 63)


def _parse_int(text: str, bound: int) -> int:
    # int() alone would accept blanks and underscores, and its cost is quadratic in the length.
    digits = text[1:] if text[:1] in ("-", "+") else text
    if len(digits) > 20 or not (digits.isascii() and digits.isdigit()):
        raise ValueError(text)
    value = int(text)
    if not -bound <= value < bound:
        raise ValueError(text)
    return value


def _parse_place(text: str) -> int:
    value = _parse_i64(text)
    if not -1 <= value <= MAX_PLACE:
        raise ValueError(text)
    return value


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    bool: _parse_bool,
    I32: _parse_i32,
    I64: _parse_i64,
    QueuePlace: _parse_place,
}


@functools.cache
def json_decoder(header_type: type[H]) -> Callable[[msgspec.Raw], H]:
    """A decoder for the JSON of ``extFields``. When it raises MsgspecError, ``from_ext`` may still succeed."""
    return msgspec.json.Decoder(header_type, strict=False).decode


@functools.cache
def value_types(header_type: type[Header]) -> dict[str, tuple[str, Any]]:
    """By the names on the wire: the attribute, and the type of its values."""
    return {each.wire: (each.attribute, each.value_type) for each in _fields(header_type)}


@functools.cache
def _fields(header_type: type[Header]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(header_type, include_extras=True)
    fields = []
    for info in msgspec.structs.fields(header_type):
        hint = hints[info.name]
        if typing.get_origin(hint) is types.UnionType or typing.get_origin(hint) is typing.Union:
            hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        fields.append(_Field(info.name, info.encode_name, info.required, hint, _PARSERS[hint]))
    return tuple(fields)
