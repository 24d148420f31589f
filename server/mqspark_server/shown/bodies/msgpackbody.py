"""MessagePack. Facts: its specification, https://github.com/msgpack/msgpack/blob/master/spec.md."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from mqspark_server.shown.bodies.outline import Outline, Reading, Unreadable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = -1
_LONGEST_KEY = 1_024
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_WORDS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZES = {  # first byte: what it begins, and the form of its size
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xC7: ("extension", ">B"), 0xC8: ("extension", ">H"), 0xC9: ("extension", ">I"),
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
_FIXED_EXTENSIONS = range(0xD4, 0xD9)


def write_msgpack(body: bytes, out: Outline) -> str:
    """One value, or several in a row. Returns what it is. Raises Unreadable, Full."""
    reading = Reading(body)
    while True:
        _value(reading, out)
        if reading.is_at_end:
            return "MessagePack"


def begins_msgpack(body: bytes | memoryview) -> bool:
    """Whether the first byte begins a map or a list, as bodies of programs do."""
    return len(body) > 0 and (0x80 <= body[0] <= 0x9F or 0xDC <= body[0] <= 0xDF)


def _value(reading: Reading, out: Outline) -> None:
    first = reading.byte()
    if first in _NUMBERS:
        out.value(reading.unpack(_NUMBERS[first]))
    elif first < 0x80 or first >= 0xE0:
        out.value(first if first < 0x80 else first - 0x100)
    elif first in _WORDS:
        out.value(_WORDS[first])
    else:
        _sized(*_kind(first, reading), reading, out)


def _kind(first: int, reading: Reading) -> tuple[str, int]:
    """What begins with this byte, and its size."""
    if first in _SIZES:
        kind, form = _SIZES[first]
        return kind, reading.whole(form)
    if first in _FIXED_EXTENSIONS:
        return "extension", 1 << (first - _FIXED_EXTENSIONS.start)
    if 0xA0 <= first <= 0xBF:
        return "text", first & 0x1F
    if 0x80 <= first <= 0x9F:
        return ("map" if first < 0x90 else "list"), first & 0x0F
    raise Unreadable(f"no value begins with the byte 0x{first:02x} before {reading.at}")


def _sized(kind: str, size: int, reading: Reading, out: Outline) -> None:
    match kind:
        case "text":
            out.value(reading.text(size))
        case "bytes":
            out.value(reading.take(size))
        case "extension":
            number = reading.whole(">b")
            _extension(number, bytes(reading.take(size)), out)
        case "list":
            out.begin("[]")
            for _ in range(size):
                _value(reading, out)
            out.end()
        case _:
            _map(size, reading, out)


def _map(size: int, reading: Reading, out: Outline) -> None:
    out.begin("{}")
    for _ in range(size):
        if begins_msgpack(reading.data[reading.at : reading.at + 1]):
            raise Unreadable(f"the key at {reading.at} is a list or a map")
        key = Outline(_LONGEST_KEY)
        _value(reading, key)
        out.name(json.loads(key.text) if key.text.startswith('"') else key.text)
        _value(reading, out)
    out.end()


def _extension(number: int, data: bytes, out: Outline) -> None:
    if number == _TIMESTAMP and len(data) in (4, 8, 12):
        nanos, seconds = 0, int.from_bytes(data, "big")
        if len(data) == 8:
            nanos, seconds = seconds >> 34, seconds & ((1 << 34) - 1)
        elif len(data) == 12:
            nanos, seconds = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:], "big", signed=True)
        try:
            out.value((_EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1_000)).isoformat())
        except OverflowError:
            out.value(f"{seconds} s since 1970")
        return
    out.begin("{}")
    out.name("extension")
    out.value(number)
    out.name("data")
    out.value(data)
    out.end()
