"""Layouts of request headers, learned from those that come.

A client writes its headers alike: of the next send only the opaque, a few numbers and the unique id differ. A layout
has the constant bytes of such a header and the places of its values. Two calls of ``struct`` compare another header
with it and take the values out, in place of a parser.

    {"code":310,"extFields":{…,"e":"7","f":"0","g":"1700000000000",…},"flag":0,…,"opaque":42,…}
    ~~~~~~~~~ constant ~~~~~~~~~ 7 ~ constant ~ 1700000000000 ~~~ constant ~~~~~~~~ 42 ~ constant

A layout gives what the general decoders of ``mqspark.protocol.command`` give, or does not match: a value has only
bytes that cannot end it, and everything else is as it was when the general decoder read it. Names are constant, so a
layout has no doubled one.

A JSON header costs little more to parse than to compare. So of these, only sends are learned, whose properties differ
in nothing but the unique id: what handlers keep with a layout (``plan``) spares them more. A proxy repeats the born
time among the properties (BORN_TIMESTAMP): there it may differ as well, but must be that of the header.

A peer chooses its headers, so learning is rationed by what it costs (LEARNING_COST), all layouts together have
MAX_LAYOUT_BYTES, and a header is compared with at most MAX_ALIKE of them. Layouts in use outlive the others.

Must not know what requests mean, nor commands.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from mqspark.base.propertystring import UNIQ_KEY, mark
from mqspark.protocol.headers.header import I32, I64, Header, QueuePlace, value_types

NUMBERS = frozenset(
    {
        "e",
        "g",
        "queueId",
        "bornTimestamp",
        "queueOffset",
        "commitOffset",
        "offset",
        "bornTime",
        "invisibleTime",
    }
)
PROPERTIES = frozenset({"i", "properties"})
BORN_TIMES = frozenset({"g", "bornTimestamp"})
TEXTS = frozenset({"extraInfo", "Signature"})
"""The fields that differ from one request of a client to the next; all others are constant. ``e``, ``g`` and ``i`` are
queue id, born time and properties of a send (SendMessageRequestHeaderV2)."""

MAX_LAYOUT_BYTES = 4 << 20
"""Limit of all layouts together."""
MAX_ALIKE = 2
"""Layouts of headers of one length."""
MAX_HEADER_BYTES = 2048
"""Longer headers are not learned."""
LEARNING_COST = 1024
"""One of so many unknown headers is learned, when there are many: to learn one costs as much as to decode fifty."""
LEARNED_AT_ONCE = 64
_LOOKS = 64
"""So many headers are looked at for the cost of one that is learned."""
PATIENCE = 64
"""After so many comparisons in vain, one after another, the layouts of that length are forgotten."""
_MAX_HEADER_TYPES = 4
_MAX_DIGITS = 17
"""A number of so many digits is a legal I64 and QueuePlace."""
_MAX_I32_DIGITS = 9
_LAYOUT_BYTES, _BYTES_OF_BYTE = 4000, 6
MAX_OPAQUE = 0x7FFFFFFF

H = TypeVar("H", bound=Header)
Values = tuple[bytes, ...]

_decode_text: Callable[[bytes], str] = msgspec.json.Decoder(str).decode
_STRING = rb'"(?:[^"\\\x00-\x1f\x80-\xff]|\\u000[12])*+"'
_NAME = rb'"(?:\w++)"'
_FIELDS = rb"\{(?:%b:%b,?)*+\}" % (_NAME, _STRING)
_MEMBERS = rb"(?:%b:(?:%b|-?\d++|%b),?)*+" % (_NAME, _STRING, _FIELDS)
_JSON_HEADER = re.compile(rb"\{%b\}\s*" % _MEMBERS)
"""A header as clients write it. The general decoder has read it, so commas are where they belong."""
_MEMBER = re.compile(rb'"(\w+)":(%b|-?\d+|%b)' % (_STRING, _FIELDS))
_KEY = mark(UNIQ_KEY).encode()
_KEY_NAME = UNIQ_KEY.encode()
_ZERO = ord("0")
_STAMP_NAME = "BORN_TIMESTAMP"
STAMP = mark(_STAMP_NAME).encode()
"""Before the born time among the properties."""
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_BINARY_HEAD = struct.Struct(">5xi4xi")
"""Opaque and length of the remark."""
_OPAQUE_PLACE = (5, 9)
binary_opaque = struct.Struct(">5xi").unpack_from
"""``binary_opaque(data, start)`` is a tuple of the opaque of the binary header there."""


class Head(NamedTuple):
    """What a command has besides its opaque, its fields and its body."""

    code: int
    flag: int
    language: int
    version: int
    remark: str | None
    serialize_type: int


class Value(NamedTuple):
    """One that differs: where it is in a header, and how its bytes become the text of its field."""

    name: str
    start: int
    end: int
    text: Callable[[bytes], str]
    is_word: bool
    """Whether it has letters and digits of ASCII only. In JSON, another one has its quotation marks."""
    is_number: bool = False


Convert = Callable[[bytes], Any]
_Typed = tuple[Callable[[], Header], tuple[tuple[str, int, Convert], ...]]
"""What makes a header with these constants; and of the values: attribute, index, and what makes it of the bytes."""


class HeaderLayout:
    __slots__ = (
        "_constant", "_ext", "_fields", "_least_opaque", "_opaque_at", "_stamp", "_texts", "_typed", "_words",
        "are_words", "around_key", "bytes", "constants", "constants_of", "in_vain", "is_used", "new_command",
        "plan", "values_of", "word_opaque",
    )  # fmt: skip

    def __init__(
        self,
        header: bytes,
        head: Head,
        ext: Mapping[str, str] | None,
        values: Sequence[Value],
        opaque: tuple[int, int],
        around_key: tuple[str, str] | None,
    ) -> None:
        """``opaque``: its place. ``around_key``: what the properties have before and after the unique id, when
        they are constant otherwise, but for the born time. One of the values may be that (_STAMP_NAME)."""
        is_json = head.serialize_type == 0
        places = sorted([(each.start, each.end) for each in values] + [opaque] * is_json)
        self.constants_of = _all_but(sorted({*places, opaque}), len(header))
        self.constants = self.constants_of(header, 0)
        self.values_of = _only(places)
        index = {place: at for at, place in enumerate(places)}
        self._fields = tuple(
            [(each, index[each.start, each.end]) for each in values if each.name != _STAMP_NAME]
        )
        self._stamp = _places_of_stamp(values, index)
        self._ext = None if ext is None else dict(ext)
        self._constant = head, {**(ext or {}), **dict.fromkeys([each.name for each, _ in self._fields], "")}
        self.around_key = around_key
        self._opaque_at, self._least_opaque = None, -MAX_OPAQUE - 1
        if is_json:
            self._opaque_at, digits = index[opaque], opaque[1] - opaque[0]
            self._least_opaque = 10 ** (digits - 1) if digits > 1 else 0
        self._texts = tuple([(each.text, at) for each, at in self._fields if not each.is_word])
        self.are_words = not self._texts and self._stamp is None
        """Whether the values are nothing but words: ``opaque`` then asks no more than ``b"".join(values).isalnum()``
        and whether the number is in its range."""
        self.word_opaque = self._opaque_at, self._least_opaque
        """Index and least value of the opaque; of a binary header (``binary_opaque``) the index is None."""
        words = [*{*range(len(places))} - {at for _, at in self._texts}]
        # An itemgetter of one index returns no tuple.
        self._words = itemgetter(*words, words[-1]) if self._texts and words else None
        self._typed: dict[type[Header], _Typed | None] = {}
        self.new_command: Callable[[], Any] = object
        """A command with what these headers have in common. It does not refer to this layout yet."""
        self.plan: object = None
        """What the handler of such requests keeps with them."""
        self.is_used = False
        self.in_vain = 0
        """Kept at the first of those alike: headers in a row that none of them fits."""
        self.bytes = _LAYOUT_BYTES + _BYTES_OF_BYTE * len(header)

    @property
    def has_ext(self) -> bool:
        return self._ext is not None

    @property
    def is_stamped(self) -> bool:
        """Whether the properties repeat the born time behind the unique id."""
        return self._stamp is not None

    def place(self, name: str) -> int | None:
        """The index of the value of a field that is a word; None when it is constant or a text."""
        return next((at for each, at in self._fields if each.name == name and each.is_word), None)

    def opaque(self, data: bytes | bytearray, start: int, values: Values) -> int | None:
        """The opaque of a header with these constants. None when the header is none of this layout, because a value has
        bytes that may end it, or that no decoder takes."""
        if self._texts:
            if not self._are_sound(values):
                return None
        elif not b"".join(values).isalnum():
            return None
        if self._stamp is not None:
            _, stamp_at, born_at = self._stamp
            stamp = values[stamp_at]
            if stamp != values[born_at] or stamp[0] == _ZERO:
                return None
        at = self._opaque_at
        opaque: int
        if at is None:
            (opaque,) = binary_opaque(data, start)
            return opaque
        try:
            opaque = int(values[at])
        except ValueError:
            return None  # letters
        return opaque if self._least_opaque <= opaque <= MAX_OPAQUE else None

    def _are_sound(self, values: Values) -> bool:
        if self._words is not None and not b"".join(self._words(values)).isalnum():
            return False
        try:
            for text, at in self._texts:
                text(values[at])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        return True

    def ext(self, values: Values) -> dict[str, str]:
        if self._ext is None:
            return {}
        ext = self._ext.copy()
        if self._stamp is not None:
            values = self._with_stamp(values)
        for each, at in self._fields:
            ext[each.name] = each.text(values[at])
        return ext

    def _with_stamp(self, values: Values) -> Values:
        """With the born time behind the unique id, as the text of the properties is made of both."""
        if self._stamp is None:
            return values
        key_at, stamp_at, _ = self._stamp
        return *values[:key_at], values[key_at] + values[stamp_at], *values[key_at + 1 :]

    def header(self, header_type: type[H], values: Values) -> H | None:
        """None: the general decoder has to decode it, or to refuse it."""
        typed = self._typed.get(header_type)
        if typed is None:
            return None
        new_header, fields = typed
        if self._stamp is not None:
            values = self._with_stamp(values)
        header: Any = new_header()
        try:
            for attribute, at, convert in fields:
                setattr(header, attribute, convert(values[at]))
        except ValueError:
            return None  # a number with letters
        decoded: H = header
        return decoded

    def learn_header(self, header: Header, names: Sequence[str]) -> None:
        """``header``: what the general decoder makes of a request of this layout. ``names``: those of its attributes
        that are checked as names."""
        header_type = type(header)
        if header_type in self._typed or len(self._typed) >= _MAX_HEADER_TYPES:
            return
        self._typed[header_type] = None
        fields: list[tuple[str, int, Convert]] = []
        types = value_types(header_type)
        for each, at in self._fields:
            if each.name not in types:
                continue
            attribute, value_type = types[each.name]
            if value_type is str and attribute not in names:
                fields.append((attribute, at, each.text))
            elif each.is_number and (
                value_type in (I64, QueuePlace)
                or (value_type is I32 and each.end - each.start <= _MAX_I32_DIGITS)
            ):
                fields.append((attribute, at, int))
            else:
                return
        self._typed[header_type] = copier(header), tuple(fields)

    def is_like(self, other: HeaderLayout) -> bool:
        """Whether headers of both differ only in fields that may differ, and in more of the properties than the unique
        id."""
        return self.around_key != other.around_key and self._constant == other._constant


def _places_of_stamp(
    values: Sequence[Value], index: Mapping[tuple[int, int], int]
) -> tuple[int, int, int] | None:
    """The indexes of the unique id, of the born time behind it, and of that of the header."""
    by_name = {each.name: index[each.start, each.end] for each in values if each.is_word}
    stamp_at = by_name.get(_STAMP_NAME)
    if stamp_at is None:
        return None
    key_at, born_at = (
        next(at for name, at in by_name.items() if name in names) for names in (PROPERTIES, BORN_TIMES)
    )
    return key_at, stamp_at, born_at


def copier(model: Any) -> Callable[[], Any]:
    """What makes copies of a struct as it is now: ``copy.copy`` takes four times as long."""
    copies: Callable[[], Any] = copy(model).__copy__
    return copies


def _all_but(places: Sequence[tuple[int, int]], size: int) -> Callable[..., tuple[bytes, ...]]:
    """What takes the bytes around these places."""
    form, last = [">"], 0
    for start, end in places:
        form.append(f"{start - last}s{end - start}x")
        last = end
    return struct.Struct("".join([*form, f"{size - last}s"])).unpack_from


def _only(places: Sequence[tuple[int, int]]) -> Callable[..., Values]:
    """What takes the bytes at these places."""
    form, last = [">"], 0
    for start, end in places:
        form.append(f"{start - last}x{end - start}s")
        last = end
    return struct.Struct("".join(form)).unpack_from


class HeaderLayouts:
    """All layouts of a process. Threads may share it: what it publishes is complete, and nothing of it is relied on."""

    def __init__(self, max_bytes: int = MAX_LAYOUT_BYTES, learning_cost: int = LEARNING_COST) -> None:
        self._max_bytes = max_bytes
        self.learning_cost = learning_cost
        self.known: dict[int, tuple[HeaderLayout, ...]] = {}
        """By kind and length of the header, in the form in which a frame has them; the last one in use first."""
        self.bytes = 0
        self.credit = LEARNED_AT_ONCE * learning_cost
        """Grows with each header of no known layout that is neither learned nor looked at, up to
        ``learning_cost``."""

    def passed(self, count: int) -> None:
        """So many headers were decoded without a look at the layouts."""
        if self.credit < self.learning_cost:
            self.credit = min(self.credit + count, self.learning_cost)

    def prefer(self, meta: int, layout: HeaderLayout) -> None:
        """Compare with this layout before the others."""
        alike = self.known.get(meta, ())
        if layout in alike:
            self.known[meta] = (layout, *[each for each in alike if each is not layout])

    def is_worth_it(self, header: bytes) -> bool:
        """Whether to learn this header promises to spare anything. Takes what it costs, or what to look cost."""
        is_worth_it = len(header) <= MAX_HEADER_BYTES and (header[:1] != b"{" or _KEY_NAME in header)
        self.credit -= self.learning_cost if is_worth_it else self.learning_cost // _LOOKS
        return is_worth_it

    def missed(self, meta: int, first: HeaderLayout) -> None:
        """A header fits none of those alike, of which this is the first."""
        first.in_vain += 1
        if first.in_vain >= PATIENCE:
            self.bytes -= sum(each.bytes for each in self.known.pop(meta, ()))

    def learn(
        self,
        meta: int,
        header: bytes,
        head: Head,
        ext: Callable[[], Mapping[str, str] | None],
        new_command: Callable[[], object],
    ) -> None:
        """Learn a header that the general decoder has decoded to this. ``new_command`` makes one for others of the
        layout, without opaque, fields and body."""
        alike = self.known.get(meta, ())
        if head.serialize_type == 0:
            layout = _learned_json(header, head, ext)
        else:
            layout = _learned_binary(header, head, ext, whole=False)
            if layout is not None and any(each.is_like(layout) for each in alike):
                # Other properties again: they are one text from now on.
                alike = tuple([each for each in alike if not each.is_like(layout)])
                layout = _learned_binary(header, head, ext, whole=True)
        if layout is None:
            return
        layout.new_command = new_command
        before = self.known.get(meta, ())
        self.known[meta] = after = (layout, *alike[: MAX_ALIKE - 1])
        self.bytes += sum(each.bytes for each in after) - sum(each.bytes for each in before)
        if self.bytes > self._max_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Drop what was not used since the last time; after that the oldest, until a quarter is free."""
        for meta, alike in [*self.known.items()]:
            used = tuple([each for each in alike if each.is_used])
            if used:
                self.known[meta] = used
            else:
                self.known.pop(meta, None)
            for each in used:
                each.is_used = False
        self.bytes = sum(each.bytes for alike in [*self.known.values()] for each in alike)
        for meta in [*self.known]:
            if self.bytes <= self._max_bytes * 3 // 4:
                break
            self.bytes -= sum(each.bytes for each in self.known.pop(meta, ()))


# --- learning -----------------------------------------------------------------------------------------------


def _learned_json(
    header: bytes, head: Head, ext: Callable[[], Mapping[str, str] | None]
) -> HeaderLayout | None:
    if _JSON_HEADER.fullmatch(header) is None:
        return None
    members = [*_MEMBER.finditer(header)]
    names = {each[1]: each for each in members}
    opaque, fields = names.get(b"opaque"), names.get(b"extFields")
    if len(names) != len(members) or opaque is None or not opaque[2].isdigit():
        return None
    values: list[Value] = []
    around_key = None
    if fields is not None:
        found = [*_MEMBER.finditer(header, fields.start(2) + 1, fields.end(2))]
        if len({each[1] for each in found}) != len(found) or fields[2][:1] != b"{":
            return None
        for each in found:
            name, (start, end) = each[1].decode(), each.span(2)
            of_field, key = _values(name, header, start + 1, end - 1, _decode_quoted, _ESCAPED, whole=False)
            around_key = around_key or key
            values += [
                value if value.is_word else value._replace(start=start, end=end, text=_decode_text)
                for value in of_field
            ]
    if around_key is None or not _is_stamp_true(header, values):
        return None
    return HeaderLayout(header, head, ext(), values, opaque.span(2), around_key)


def _learned_binary(
    header: bytes, head: Head, ext: Callable[[], Mapping[str, str] | None], *, whole: bool
) -> HeaderLayout | None:
    """The general decoder has checked all lengths."""
    _, remark_bytes = _BINARY_HEAD.unpack_from(header)
    position = _BINARY_HEAD.size + remark_bytes + _I32.size
    values: list[Value] = []
    around_key = None
    names: list[bytes] = []
    while position < len(header):
        (length,) = _I16.unpack_from(header, position)
        position += _I16.size + length
        names.append(header[position - length : position])
        (length,) = _I32.unpack_from(header, position)
        start, position = position + _I32.size, position + _I32.size + length
        of_field, key = _values(names[-1].decode(), header, start, position, _decode, _PLAIN, whole=whole)
        around_key = around_key or key
        values += of_field
    if not values or len({*names}) != len(names) or not _is_stamp_true(header, values):
        return None
    return HeaderLayout(header, head, ext(), values, _OPAQUE_PLACE, around_key)


def _values(
    name: str,
    header: bytes,
    start: int,
    end: int,
    decode: Callable[[bytes], str],
    separators: tuple[bytes, bytes],
    *,
    whole: bool,
) -> tuple[list[Value], tuple[str, str] | None]:
    """The values of a field as far as it differs; and what its properties have around them, with a unique id."""
    content = header[start:end]
    if name in NUMBERS and content.isdigit() and len(content) <= _MAX_DIGITS:
        return [Value(name, start, end, decode, is_word=True, is_number=True)], None
    if not content or (name not in PROPERTIES and name not in TEXTS):
        return [], None
    if name in PROPERTIES and not whole:
        key_mark, stamp_mark = (_in_form(each, separators) for each in (_KEY, STAMP))
        item_end = separators[1]
        _, found, after = (item_end + content).rpartition(key_mark)
        key, separator, after = after.partition(item_end)
        if found and key.isalnum():
            high = end - len(after) - len(separator)
            key_value = Value(name, high - len(key), high, decode, is_word=True)
            before = decode(header[start : key_value.start])
            between, is_stamped, rest = header[high:end].rpartition(stamp_mark)
            stamp = rest.partition(item_end)[0]
            if is_stamped and stamp.isdigit() and len(stamp) <= _MAX_DIGITS:
                stamp_value = _stamp_value(end - len(rest), len(stamp), decode)
                parts = before, decode(between + stamp_mark), decode(header[stamp_value.end : end])
                text = partial(_within_stamped, parts, len(key))
                return [key_value._replace(text=text), stamp_value], (before, "".join(parts[1:]))
            around = before, decode(header[high:end])
            return [key_value._replace(text=partial(_within, *around))], around
    return [Value(name, start, end, decode, is_word=False)], None


def _in_form(marked: bytes, separators: tuple[bytes, bytes]) -> bytes:
    name_end, item_end = separators
    return marked.replace(b"\x01", name_end).replace(b"\x02", item_end)


def _stamp_value(start: int, size: int, decode: Callable[[bytes], str]) -> Value:
    return Value(_STAMP_NAME, start, start + size, decode, is_word=True, is_number=True)


def _is_stamp_true(header: bytes, values: Sequence[Value]) -> bool:
    """Whether the born time among the properties, if it is there, is that of the header."""
    stamps = [header[each.start : each.end] for each in values if each.name == _STAMP_NAME]
    return not stamps or stamps == [
        header[each.start : each.end] for each in values if each.name in BORN_TIMES
    ]


def _decode(content: bytes) -> str:
    return str(content, "utf-8")


def _decode_quoted(content: bytes) -> str:
    return _decode_text(b'"%b"' % content)


def _within(before: str, after: str, key: bytes) -> str:
    return f"{before}{key.decode()}{after}"


def _within_stamped(parts: tuple[str, str, str], key_length: int, values: bytes) -> str:
    """``values``: unique id and born time."""
    before, between, after = parts
    return f"{before}{values[:key_length].decode()}{between}{values[key_length:].decode()}{after}"


_ESCAPED, _PLAIN = (rb"\u0001", rb"\u0002"), (b"\x01", b"\x02")
"""0x01 and 0x02 in a JSON and in a binary header."""
