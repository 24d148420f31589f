"""Heads that are the last one of their connection again, but for a value that nobody reads, such as the id of a
request, and perhaps for the last field, which gRPC makes the timeout.

The block of such a head is indices and that value. The value goes to the table, so that the indices of all else grow by
one from head to head. They are compared instead of decoded, and the table is left as decoding leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqspark_server.net.http2.headerblocks import HeaderDecoder, ReadField, behind_string, read_integer
from mqspark_server.net.http2.http2streams import Malformed, RequestHead

_NEWEST = 0xBE
"""The octet of the newest field of the table. Older ones have higher octets, up to 0xFE; other fields lower ones."""
_NEWEST_NAME = 0x7E
"""The octet of a literal that goes to the table, and has its name from the newest field there."""
_MOST_DEPTH = 0xFC - _NEWEST
_OLDER = bytes(octet + 1 if _NEWEST <= octet < 0xFE else octet for octet in range(256))
_LITERAL, _LONG_INDEX = 0x40, 0x7F
"""A field that goes to the table: its octet has the index of its name, or says that it goes on in the next octet."""
_FIRST_DYNAMIC = 62
_MOST_LAST = 16
"""Heads of one kind that are kept."""
_MOST_LAST_BYTES = 256
"""The last field of one that is kept has no more. It may be as long as the decoder's table."""
_MOST_LITERAL_BYTES = 64

_NO_FIELD: ReadField = ("", "", 0, False)
"""A field that is too long."""


class HeadKind:
    """Heads that differ in the last field, and in one that is left out."""

    __slots__ = ("_heads", "fields")

    def __init__(self, fields: list[ReadField]) -> None:
        self.fields = fields
        self._heads: dict[ReadField, RequestHead] = {}

    def head(self, last: ReadField) -> RequestHead:
        """Raises Malformed."""
        head = self._heads.get(last)
        if head is None:
            if last[0][:1] == ":":
                raise Malformed(f"{last[0]} behind other fields")
            head = RequestHead([*self.fields, last])
            if last[2] > _MOST_LAST_BYTES:
                return head
            if len(self._heads) == _MOST_LAST:
                self._heads.clear()
            self._heads[last] = head
        return head


class RepeatedHead:
    """What the next block is like, unless the table is changed by others."""

    __slots__ = (
        "_before", "_begin", "_behind", "_decoder", "_deepest", "_end", "_first", "_further", "_kind", "_name",
    )  # fmt: skip

    def __init__(
        self, decoder: HeaderDecoder, kind: HeadKind, unread: ReadField, before: bytes, behind: bytes
    ) -> None:
        """``unread``: the field that differs. The octets of what is in front of it, and behind it without the last
        field."""
        self._decoder = decoder
        self._kind = kind
        self._name = unread[0]
        self._before = len(before)
        self._begin = before + bytes((_NEWEST_NAME, len(unread[1])))
        """The usual one: the newest field has the name."""
        self._behind = behind
        self._first = len(self._begin)
        self._end = self._first + len(unread[1])
        self._deepest = max(before, default=0) - _NEWEST
        """The oldest field of the table that is named in front."""
        self._further = max(max(behind, default=0) - _NEWEST - self._deepest, 0)
        """How much older one behind is."""

    def again(self, block: bytes) -> RequestHead | None:
        """The head, of which this is the next block; None if it is not, or may be not. Then nothing has changed. Raises
        ProtocolError, and Malformed."""
        first, end, behind = self._first, self._end, self._behind
        index, is_literal = _FIRST_DYNAMIC, False
        if not block.startswith(self._begin):
            at = self._before
            if len(block) <= end or block[:at] != self._begin[:at]:
                return None
            index, first = _index(block, at)
            if not index or block[first - 1] != end - self._first:
                return None
            end += first - self._first
        last = end + len(behind)
        if not block.startswith(behind, end) or len(block) <= last:
            return None
        if not 0x80 < block[last] < 0xFF or len(block) > last + 1:
            is_literal = True
            if not _is_literal(block, last):
                return None
        value = block[first:end].decode("latin-1")
        if not value.isprintable() or value[0] == " " or value[-1] == " ":
            return None
        deepest = self._deepest
        if not self._decoder.repeat(
            index - _FIRST_DYNAMIC, self._name, value, deepest, deepest + self._further
        ):
            return None
        self._begin, self._behind = self._begin.translate(_OLDER), behind.translate(_OLDER)
        self._deepest = deepest + 1
        if not is_literal:
            return self._kind.head(self._decoder.field(block[last] - 0x80))
        (field,) = self._decoder.decode(block[last:]) or [_NO_FIELD]
        self._begin, self._behind = self._begin.translate(_OLDER), self._behind.translate(_OLDER)
        self._deepest += 1
        return self._kind.head(field)

    @property
    def is_spent(self) -> bool:
        """Whether the indices may be too large for one octet the next time."""
        return self._deepest + self._further > _MOST_DEPTH


def _index(block: bytes, at: int) -> tuple[int, int]:
    """The index of the name of a literal that goes to the table, and where its value begins if that has a length of
    one octet. 0: there is none."""
    octet = block[at]
    if _LITERAL < octet < _LONG_INDEX:
        return octet - _LITERAL, at + 2
    if octet == _LONG_INDEX and block[at + 1] < 0x80:
        return _LONG_INDEX - _LITERAL + block[at + 1], at + 3
    return 0, at


def _is_literal(block: bytes, at: int) -> bool:
    """Whether the rest is one field with an index for its name, which goes to the table."""
    rest = len(block) - at
    if not 3 <= rest <= _MOST_LITERAL_BYTES:
        return False
    index, begin = _index(block, at)
    return index > 0 and begin + (block[begin - 1] & 0x7F) == len(block)


def repeated(
    decoder: HeaderDecoder, block: bytes, fields: Sequence[ReadField], kind: HeadKind, unread: int
) -> RepeatedHead | None:
    """For heads like this one, which ``decoder`` has decoded just now. ``unread``: the place of the field that differs.
    None: the block has another form."""
    octets: list[tuple[int, int]] = []
    """Each with the number of fields that had gone to the table before."""
    kept = at = 0
    for number in range(len(fields)):
        octet = block[at]
        at += 1
        if 0x80 < octet < 0xFF:
            octets.append((octet, kept))
            continue
        if not _LITERAL <= octet <= _LONG_INDEX:
            return None
        if octet == _LONG_INDEX:
            _, at = read_integer(block, at, octet - _LITERAL)
        elif octet == _LITERAL:
            at = behind_string(block, at)
        kept += 1
        octets.append((_NEWEST, kept))
        if number == unread and not 0 < block[at] < 0x7F:
            return None
        at = behind_string(block, at)
    if at != len(block):
        return None
    now = [octet + kept - then if octet >= _NEWEST else octet for octet, then in octets]
    before, behind = (
        now[:unread],
        [octet + 1 if octet >= _NEWEST else octet for octet in now[unread + 1 : -1]],
    )
    if max([*before, *behind], default=0) > _NEWEST + _MOST_DEPTH:
        return None
    return RepeatedHead(decoder, kind, fields[unread], bytes(before), bytes(behind))
