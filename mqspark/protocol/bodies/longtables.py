"""Tables and lists of a body that may have very many entries, read part by part, so that nobody decodes them all in one
turn of the loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from mqspark.errors import ProtocolError
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import Body, decode_body
from mqspark.protocol.slices import Work

B = TypeVar("B", bound=Body)

PART_BYTES = 16 * 1024
"""So much text of a table is decoded in one slice: a hundred topics or queues."""
MAX_ENTRY_BYTES = 1 << 20
"""Limit of one entry: the mapping of a static topic with 65,536 logic queues takes less."""
COPIED_BYTES = 256 * 1024
"""So much of a body is copied in one slice: its memory is new, and the kernel's work for each page takes longer than
the copy."""
_LOOKED_AT_BYTES = 16 * 1024
"""Text in which an end is looked for in one slice."""

_TO_BRACE = re.compile(
    rb'[^"{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}]*+)*+([{}])',  # strings may have braces
    re.DOTALL,
)
_NEXT = re.compile(rb"\s*+,")
_TRIED = 4
"""Braces that may be the end of a part: an entry of RocketMQ has two objects at most behind one another."""
_LIST_ENDS = re.compile(rb"\s*+\]")
_NULLS = re.compile(rb"\s*+null(?:\s*+,\s*+null)*+(?=\s*+\])")
"""Entries that are none, to the end of their list."""


class _Brackets(NamedTuple):
    opening: bytes
    closing: bytes
    check: Callable[[bytes], object]
    """Raises for what is no strict JSON."""


_TABLE = _Brackets(b"{", b"}", msgspec.json.Decoder(dict[str, msgspec.Raw]).decode)
_LIST = _Brackets(b"[", b"]", msgspec.json.Decoder(list[msgspec.Raw]).decode)

Parts = Generator[bytes, None, bytes]
"""Bodies of one member alone, with some of its entries; b"" is a pause. Returns the text without the entries."""


def copied(body: bytes | memoryview) -> Work[bytes]:
    """A body as text. A long one is a view of its frame, and is copied in slices."""
    if isinstance(body, bytes) or len(body) <= COPIED_BYTES:
        return bytes(body)
    text = bytearray()  # of the whole length it would be cleared at once
    for at in range(0, len(body), COPIED_BYTES):
        text += body[at : at + COPIED_BYTES]
        yield
    return cast(bytes, text)  # who reads text reads both


def count_in(body: bytes | memoryview, mark: bytes) -> int:
    """How often a byte is in a body, without a copy of all of it."""
    steps = range(0, len(body), _LOOKED_AT_BYTES)
    return sum(bytes(body[at : at + _LOOKED_AT_BYTES]).count(mark) for at in steps)


def parts_of_table(text: bytes, member: str, part_bytes: int = PART_BYTES, depth: int = 1) -> Parts:
    """Takes a member apart whose entries are objects by name or by object. ``part_bytes``: a part ends with the entry
    that reaches it; ``depth``: in so many objects. Raises ProtocolError for more objects than a text of this length may
    have (``fastjson.Limits``), for an entry that is too long and for a table without an end."""
    return (yield from _parts(text, member, _TABLE, part_bytes, depth, MAX_ENTRY_BYTES))


def parts_of_list(
    text: bytes, member: str, part_bytes: int = PART_BYTES, *, max_entry_bytes: int = MAX_ENTRY_BYTES
) -> Parts:
    """The same of a member that is a list of objects."""
    return (yield from _parts(text, member, _LIST, part_bytes, 1, max_entry_bytes))


def _parts(
    text: bytes, member: str, kind: _Brackets, part_bytes: int, depth: int, max_entry_bytes: int
) -> Parts:
    name = member.encode()
    found = _beginning(text, name, kind, depth)
    if found is None or (kind is _LIST and _LIST_ENDS.match(text, found.end())):
        return text
    longest = part_bytes + max_entry_bytes
    most = fastjson.PEER.containers + len(text) // 64
    begin = low = found.end()
    is_last = False
    while not is_last:
        nulls = _NULLS.match(text, low, low + longest) if kind is _LIST else None
        end = _quick_end(text, low, kind, part_bytes, longest) if nulls is None else nulls.end()
        if nulls is not None:
            is_last = True
        elif end < 0:
            end, is_last = yield from _end_of_part(text, low, kind, part_bytes, longest, member)
        if end - low > longest:
            raise ProtocolError(f"{member}: an entry is longer than {max_entry_bytes} bytes")
        most -= text.count(b"{", low, end)
        if most < 0:
            raise ProtocolError(f"{member}: too many objects in {len(text)} bytes")
        yield b'{"%b":%b%b%b}' % (name, kind.opening, text[low:end], kind.closing)
        if not is_last:
            low = text.index(b",", end) + 1
    return text[:begin] + text[end:]


def _beginning(text: bytes, name: bytes, kind: _Brackets, depth: int) -> re.Match[bytes] | None:
    """Where the member begins. An entry of another one, such as a group in a table of groups, may have the same
    name."""
    at = within = 0
    begins = re.compile(rb'"%b"\s*+:\s*+\%b' % (name, kind.opening))
    while found := begins.search(text, at):
        start, end = found.span()
        within += text.count(b"{", at, start) - text.count(b"}", at, start)
        if within == depth:
            return found
        at, within = end, within + (kind is _TABLE)
    return None


def _quick_end(text: bytes, low: int, kind: _Brackets, part_bytes: int, longest: int) -> int:
    """An end of a part that begins at ``low``, if it is one of the first braces behind ``part_bytes`` and the part is
    strict JSON; else -1."""
    end = low + part_bytes
    for _ in range(_TRIED):
        end = text.find(b"}", end) + 1
        if not end or end - low > longest:
            return -1
        if text.count(b"{", low, end) == text.count(b"}", low, end) and _NEXT.match(text, end):
            try:
                kind.check(b"%b%b%b" % (kind.opening, text[low:end], kind.closing))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return -1
            return end
    return -1


def _end_of_part(
    text: bytes, low: int, kind: _Brackets, part_bytes: int, longest: int, member: str
) -> Generator[bytes, None, tuple[int, bool]]:
    """The end of the part that begins at ``low``, and whether it is the last one: by counting braces."""
    at, depth, end = low, 0, low + _LOOKED_AT_BYTES
    while True:
        brace = _TO_BRACE.match(text, at, end)
        if brace is None:
            if end >= len(text):
                raise ProtocolError(f"{member} has no end")
            if end - low > longest:
                return end, True  # too long, wherever it ends
            end += max(_LOOKED_AT_BYTES, end - at)
            yield b""
            continue
        at = brace.end()
        if brace[1] == b"{":
            depth += 1
        elif not depth:
            return at - 1, True
        else:
            depth -= 1
            if depth:
                continue
            following = _NEXT.match(text, at)
            if following is not None and at - low >= part_bytes:
                return at, False
            if kind is _LIST:
                if following is None:
                    return at, True
                nulls = _NULLS.match(text, following.end(), low + longest)
                if nulls is not None:
                    return nulls.end(), True


def parts_of_names(text: bytes, member: str, part_bytes: int = PART_BYTES) -> Parts:
    """Takes a member apart that is a list of names."""
    name = member.encode()
    found = re.search(rb'"%b"\s*+:\s*+\[' % name, text)
    end = -1 if found is None else text.find(b"]", found.end())
    if found is None or end < 0:
        return text
    low = found.end()
    # Within a string the second of these quotes would stand behind a backslash.
    while (high := text.find(b'","', low + part_bytes, end)) >= 0:
        yield b'{"%b":[%b]}' % (name, text[low : high + 1])
        low = high + 2
    yield b'{"%b":[%b]}' % (name, text[low:end])
    return text[: found.end()] + text[end:]


def read_parts(parts: Parts, read: Callable[[bytes], None]) -> Work[bytes]:
    """Reads them, one in a slice. Returns the text without their entries."""
    while True:
        try:
            part = next(parts)
        except StopIteration as end:
            rest: bytes = end.value
            return rest
        if part:
            read(part)
        yield


def _attribute(body_type: type[Body], member: str) -> str:
    return next(each.name for each in msgspec.structs.fields(body_type) if each.encode_name == member)


def decode_long(
    body_type: type[B],
    body: bytes | memoryview,
    member: str,
    take_apart: Callable[[bytes, str], Parts] = parts_of_list,
) -> Work[B]:
    """``decode_body`` of a request whose list ``member`` may be long, part by part. Raises ProtocolError,
    IllegalName."""
    text = yield from copied(body)
    if len(text) <= PART_BYTES or b"$ref" in text:  # which may lead anywhere
        return decode_body(body_type, text)
    items: list[Any] = []
    name = _attribute(body_type, member)
    parts = take_apart(text, member)
    rest = yield from read_parts(
        parts, lambda part: items.extend(getattr(decode_body(body_type, part), name))
    )
    whole = decode_body(body_type, rest)
    if items:
        setattr(whole, name, items)
    return whole
