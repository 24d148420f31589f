"""JSON, indented. Numbers stay as they are written."""

from __future__ import annotations

import json

from mqspark_server.shown.bodies.charsets import charset_of, decoded
from mqspark_server.shown.bodies.outline import Outline, Unreadable

MAX_PARSED_BYTES = 256 * 1024
"""What is parsed at once: it takes some twenty times that in memory."""


class Number(str):
    """As it is written: 1.10 and 1e400 have no other form without a loss."""

    __slots__ = ()


def write_json(body: bytes, out: Outline) -> str:
    """Returns what it is. Raises Unreadable, Full."""
    if len(body) > MAX_PARSED_BYTES:
        raise Unreadable(f"only bodies of up to {MAX_PARSED_BYTES:,} bytes are parsed")
    codec = charset_of(body)
    if codec is None:
        raise Unreadable("it is no text")
    try:
        found = json.loads(decoded(body, codec), parse_int=Number, parse_float=Number, parse_constant=Number)
    except ValueError as error:
        raise Unreadable(str(error)) from None
    except RecursionError:
        raise Unreadable("it nests too deep") from None
    _write(found, out)
    return "JSON"


def _write(value: object, out: Outline) -> None:
    match value:
        case Number():
            out.literal(value)
        case dict():
            out.begin("{}")
            for name, each in value.items():
                out.name(name)
                _write(each, out)
            out.end()
        case list():
            out.begin("[]")
            for each in value:
                _write(each, out)
            out.end()
        case _:
            out.value(value)
