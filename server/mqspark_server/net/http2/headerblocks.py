"""Header blocks (HPACK, RFC 7541): read with a dynamic table of at most TABLE_BYTES, written without one.

A client of gRPC repeats its fields, so the block of its second call has hardly more than their indices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mqspark.errors import ProtocolError
from mqspark_server.net.http2.huffman import huffman_decoded

Field = tuple[str, str]
"""Name and value."""
ReadField = tuple[str, str, int, bool]
"""Name, value, what it counts in tables and lists, and whether a message may have it (``is_sound``)."""

TABLE_BYTES = 4096
"""SETTINGS_HEADER_TABLE_SIZE: the default, which needs not be said."""
FIELD_BYTES = 32
"""What a field counts besides its name and value, in tables and lists (RFC 7541, 4.1; RFC 9113, 6.5.2)."""
_MAX_INTEGER_BITS = 28
_NAME = re.compile(r":?[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(r"(?![ \t])[^\0\r\n]*(?<![ \t])")
_OF_ONE_CONNECTION = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
"""Fields that only HTTP/1.1 has."""


def is_sound(name: str, value: str) -> bool:
    """Whether a message of HTTP/2 may have such a field (RFC 9113, 8.2)."""
    if not _NAME.fullmatch(name) or name in _OF_ONE_CONNECTION:
        return False
    return _is_sound_value(name, value)


def _is_sound_value(name: str, value: str) -> bool:
    if not (value.isprintable() and value[:1] != " " != value[-1:]) and not _VALUE.fullmatch(value):
        return False  # the search is dear, and what it would find is rare
    return name != "te" or value == "trailers"


def _read(name: str, value: str) -> ReadField:
    return name, value, len(name) + len(value) + FIELD_BYTES, is_sound(name, value)


_STATIC_FIELDS: tuple[Field, ...] = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    *((":status", code) for code in ("200", "204", "206", "304", "400", "404", "500")),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    *(
        (name, "")
        for name in [
            "accept-language",
            "accept-ranges",
            "accept",
            "access-control-allow-origin",
            "age",
            "allow",
            "authorization",
            "cache-control",
            "content-disposition",
            "content-encoding",
            "content-language",
            "content-length",
            "content-location",
            "content-range",
            "content-type",
            "cookie",
            "date",
            "etag",
            "expect",
            "expires",
            "from",
            "host",
            "if-match",
            "if-modified-since",
            "if-none-match",
            "if-range",
            "if-unmodified-since",
            "last-modified",
            "link",
            "location",
            "max-forwards",
            "proxy-authenticate",
            "proxy-authorization",
            "range",
            "referer",
            "refresh",
            "retry-after",
            "server",
            "set-cookie",
            "strict-transport-security",
            "transfer-encoding",
            "user-agent",
            "vary",
            "via",
            "www-authenticate",
        ]
    ),
)
"""Appendix A of RFC 7541."""
_STATIC = [_read(*field) for field in _STATIC_FIELDS]
_DYNAMIC = len(_STATIC) + 1
"""The index of the newest field of the dynamic table."""
_DYNAMIC_OCTET = 0x80 | _DYNAMIC
_STATUS_200 = b"\x88"


class HeaderDecoder:
    """The blocks of one direction of a connection, in their order."""

    __slots__ = ("_bytes", "_limit", "_max_list_bytes", "_table", "changes")

    def __init__(self, max_list_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._table: list[ReadField] = []
        """The newest last."""
        self._bytes = 0
        self._limit = TABLE_BYTES
        """The size that the peer has chosen, TABLE_BYTES at most."""
        self.changes = 0
        """How often the table or its size has changed: the same block means the same only while they have not."""

    def decode(self, block: bytes) -> list[ReadField] | None:
        """The fields in their order; None when their list is too long, whose block is read nevertheless, since later
        ones build on it. Raises ProtocolError: no later block can be understood."""
        fields: list[ReadField] = []
        room = self._max_list_bytes
        table = self._table
        at, end = 0, len(block)
        while at < end:
            octet = block[at]
            at += 1
            if octet >= 0x80:
                # What nearly all fields are: an index of one octet, of the static table or of the other one.
                if _DYNAMIC_OCTET <= octet < 0xFF and octet - _DYNAMIC_OCTET < len(table):
                    field = table[_DYNAMIC_OCTET - 1 - octet]
                elif 0x80 < octet < _DYNAMIC_OCTET:
                    field = _STATIC[octet - 0x81]
                else:
                    index = octet & 0x7F
                    if index == 0x7F:
                        index, at = read_integer(block, at, 0x7F)
                    field = self.field(index)
            elif octet >= 0x40:
                field, at = self._literal(block, at, octet, 0x3F)
                self.changes += 1
                table.append(field)
                self._bytes += field[2]
                if self._bytes > self._limit:
                    self._evict()
            elif octet >= 0x20:
                if fields or room < self._max_list_bytes:
                    raise ProtocolError("a change of the table's size that is not the first of its block")
                at = self._resize(block, at, octet)
                continue
            else:
                field, at = self._literal(block, at, octet, 0x0F)
            room -= field[2]
            if room >= 0:
                fields.append(field)
        return fields if room >= 0 else None

    def repeat(self, name_depth: int, name: str, value: str, deepest_before: int, deepest: int) -> bool:
        """Put a field into the table as a literal with an index does, whose name is ``name_depth`` fields behind the
        newest. The deepest fields that its block names, in front of it and at all, must be there, the latter when the
        field is in the table. False: they are not, or the name is another one. Then nothing has changed."""
        table = self._table
        count = len(table)
        if not 0 <= name_depth < count or deepest_before >= count or table[-1 - name_depth][0] != name:
            return False
        size = len(name) + len(value) + FIELD_BYTES
        more, gone = self._bytes + size - self._limit, 0
        while more > 0:
            if gone == count:
                return False
            more -= table[gone][2]
            gone += 1
        if deepest > count - gone:
            return False
        table.append((name, value, size, True))
        if gone:
            self._bytes = self._limit + more
            del table[:gone]
        else:
            self._bytes += size
        self.changes += 1
        return True

    def field(self, index: int) -> ReadField:
        """Raises ProtocolError."""
        if index < _DYNAMIC:
            if index:
                return _STATIC[index - 1]
        elif index - _DYNAMIC < len(self._table):
            return self._table[_DYNAMIC - 1 - index]
        raise ProtocolError(f"a header field of the index {index}, which there is not")

    def _literal(self, block: bytes, at: int, octet: int, mask: int) -> tuple[ReadField, int]:
        index = octet & mask
        if index == mask:
            index, at = read_integer(block, at, mask)
        if not index:
            name, at = _string(block, at)
            value, at = _string(block, at)
            return _read(name, value), at
        known = self.field(index)
        name = known[0]
        value, at = _string(block, at)
        # The name is as sound as it was; whether that is so, a field that is not sound does not say.
        is_good = _is_sound_value(name, value) if known[3] else is_sound(name, value)
        return (name, value, len(name) + len(value) + FIELD_BYTES, is_good), at

    def _resize(self, block: bytes, at: int, octet: int) -> int:
        limit = octet & 0x1F
        if limit == 0x1F:
            limit, at = read_integer(block, at, limit)
        if limit > TABLE_BYTES:
            raise ProtocolError(f"a table of {limit} bytes, which must not have more than {TABLE_BYTES}")
        if limit != self._limit:
            self._limit = limit
            self.changes += 1
            self._evict()
        return at

    def _evict(self) -> None:
        gone = 0
        while self._bytes > self._limit:
            self._bytes -= self._table[gone][2]
            gone += 1
        if gone:
            self.changes += 1
            del self._table[:gone]


def read_integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """The rest of an integer that does not fit into its prefix (5.1), and where it ends."""
    shift = 0
    while at < len(block) and shift < _MAX_INTEGER_BITS:
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            return value, at
    raise ProtocolError("an integer in a header block that is too large, or has no end")


def behind_string(block: bytes, at: int) -> int:
    """Where a string ends."""
    length = block[at] & 0x7F
    at += 1
    if length == 0x7F:
        length, at = read_integer(block, at, length)
    return at + length


def _string(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise ProtocolError("a header block that ends amid a field")
    octet = block[at]
    at += 1
    is_coded, length = octet >= 0x80, octet & 0x7F
    if length == 0x7F:
        length, at = read_integer(block, at, length)
    end = at + length
    if end > len(block):
        raise ProtocolError("a header block that ends amid a string")
    text = block[at:end]
    return huffman_decoded(text) if is_coded else text.decode("latin-1"), end


def literal_block(fields: Iterable[Field]) -> bytes:
    """A block that changes no table. The status 200 is an index."""
    out = bytearray()
    for name, value in fields:
        if (name, value) == (":status", "200"):
            out += _STATUS_200
        else:
            out.append(0)
            _put_string(out, name)
            _put_string(out, value)
    return bytes(out)


def _put_string(out: bytearray, text: str) -> None:
    data = text.encode("latin-1")
    length = len(data)
    if length < 0x7F:
        out.append(length)
    else:
        out.append(0x7F)
        length -= 0x7F
        while length >= 0x80:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        out.append(length)
    out += data
