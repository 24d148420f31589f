"""JSON in the dialect of fastjson 1.2, which writes RocketMQ's bodies and config files.

It accepts what fastjson accepts beyond JSON: bare keys (``{0:"a"}``), objects as keys
(``{{"queueId":0}:42}``), ``{"$ref":"$.a.b"}`` for an object that occurred before, single quotes, superfluous
commas. There are three steps, each for what the previous one cannot read: msgspec on the text as it is;
msgspec after one pass that quotes bare keys, which suffices for all of RocketMQ's own texts; a parser for the
rest.

The bytes may be hostile, so everything is bounded: nesting by MAX_JSON_DEPTH, the cost of references by
REFERENCE_BUDGET, and by ``Limits`` the number of values (one of three bytes takes a hundred in memory) and
the input of the second and third step. Each step is linear in its input. Reading raises ProtocolError and
nothing else.

Facts: docs/rocketmq/protocol.md#json.
"""

from __future__ import annotations

import codecs
import heapq
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from mqspark.base.jsonvalues import decode_json
from mqspark.errors import ProtocolError

MAX_JSON_DEPTH = 64
"""RocketMQ's deepest body has 8 levels."""

REFERENCE_BUDGET = 100_000
"""Limit of the cost of all ``$ref`` of one text: characters of paths, values visited, and values they stand
for. RocketMQ has a few in a body and none in a request of a client. Without a limit a small text could
exhaust time and memory."""


class Limits(NamedTuple):
    """Limits of a text, by its source."""

    odd_bytes: int
    """Limit for text that is neither JSON nor JSON with bare keys. It is read at 1 MB/s only, and no large
    body is like that."""
    bare_keys: int
    containers: int
    """Limit of objects and lists, besides one for every 64 bytes. No RocketMQ body has more."""


PEER = Limits(odd_bytes=24 * 1024, bare_keys=400_000, containers=64 * 1024)
HEADER = Limits(odd_bytes=8 * 1024, bare_keys=1_000, containers=1_000)
FILE = Limits(odd_bytes=256 * 1024, bare_keys=1 << 40, containers=1 << 40)
"""Limits of a file in the broker's own directory, which is read once."""

encode_sorted = msgspec.json.Encoder(order="sorted").encode
_encode_in_order = msgspec.json.Encoder().encode


def check_containers(text: bytes, limits: Limits = PEER) -> int:
    """Upper bound of the number of objects and lists in the text. Raises ProtocolError over the limit."""
    count = text.count(b"{") + text.count(b"[")
    most = limits.containers + len(text) // 64
    if count > most:
        raise ProtocolError(
            f"not JSON that is accepted: {count} objects and lists in {len(text)} bytes; the limit is {most}"
        )
    return count


def loads(text: bytes | bytearray | memoryview, limits: Limits = PEER) -> Any:
    """Returns a dict with text keys, list, str, int, float, bool or None.

    An object used as a key becomes its canonical text. A byte order mark at the beginning, which editors write, is
    skipped.
    """
    data = bytes(text).removeprefix(codecs.BOM_UTF8)
    containers = check_containers(data, limits)
    value = _fast(data)
    if value is NOT_JSON:
        value = parse_with_bare_keys(data, limits.bare_keys)
        if value is NOT_JSON:
            return JsonParser(_to_text(data, limits.odd_bytes)).parse()
    if containers <= MAX_JSON_DEPTH and b"$ref" not in data:
        return value
    return _resolved(value)


NOT_JSON = object()

_FLAT = rb'\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\}'

_KEY = re.compile(
    # Skips strings (or an unterminated rest) and everything else that is not a key, up to an integer or a
    # flat object at the place of a key, or to the end. The search for the end of such an object stops where
    # the next one could begin, and nothing is scanned again from a later place, so the cost is linear.
    rb'((?:"(?:[^"\\]|\\.?)*+(?:"|\Z)|[^"{,]|[{,](?!\s*+(?:-?[0-9]{1,20}|%b)\s*+:))*+)' % _FLAT
    + rb"(?:\Z|([{,]\s*+)(?:(-?[0-9]{1,20})|(%b))\s*+(?=:))" % _FLAT,
    re.DOTALL,
)


def parse_with_bare_keys(data: bytes, limit: int = 0) -> Any:
    """The value of strict JSON in which the first ``limit`` keys (0: all) may be bare integers or flat objects.
    NOT_JSON for any other text."""
    return _fast(_KEY.sub(_quoted, data, limit))


_NUMBERS = re.compile(
    # Skips strings, up to an object of integers only.
    rb'((?:"(?:[^"\\]|\\.?)*+(?:"|\Z)|[^"{]|\{(?!-?[0-9]))*+)'
    rb"(?:\Z|\{(-?[0-9]{1,20}:-?[0-9]{1,20}(?:,-?[0-9]{1,20}:-?[0-9]{1,20})*+)(?=\s*+\})|(\{))",
    re.DOTALL,
)


def with_quoted_numbers(data: bytes) -> bytes:
    """The text, with the bare keys of its objects of integers quoted: as of the offsets of a thousand queues, all of
    an object at once. Other bare keys stay."""
    return _NUMBERS.sub(_with_quoted_row, data)


def _with_quoted_row(match: re.Match[bytes]) -> bytes:
    passed, row, _ = match.groups()
    if row is None:
        return match.group()
    return b'%b{"%b' % (passed, row.replace(b",", b',"').replace(b":", b'":'))


def _quoted(match: re.Match[bytes]) -> bytes:
    passed, before, number, document = match.groups()
    if number is not None:
        return b'%b%b"%b"' % (passed, before, number)
    if document is not None:
        key = _fast(document)
        if key is not NOT_JSON:
            return b"%b%b%b" % (passed, before, encode_sorted(canonical(key)))
    return match.group()


def _fast(text: bytes) -> Any:
    try:
        return decode_json(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NOT_JSON


def canonical(value: Any) -> str:
    """Compact JSON with sorted keys: the form of an object used as a key."""
    return encode_sorted(value).decode()


def dumps_pretty(value: Any) -> str:
    """The format of fastjson's PrettyFormat in config/*.json: tabs, sorted keys, integer keys bare and on one
    line."""
    parts: list[str] = []
    _write_pretty(value, "\n", parts.append)
    return "".join(parts)


PIECE_ENTRIES = 64
"""Most entries of a table in one piece: a fraction of a millisecond."""
PIECE_CHARACTERS = 32 << 10
"""A piece ends behind the entry with which it is so long."""
SORTED_AT_ONCE = 2_048
"""Names that are sorted in one piece."""


def members_in_order(
    names: Collection[str], value_of: Callable[[str], Any]
) -> Iterator[tuple[str, Any] | None]:
    """(name, value) in the order of names, for ``pretty_pieces``; None where a thread may pause. To sort a hundred
    thousand names at once takes a twentieth of a second, in which no other thread runs."""
    runs: list[list[str]] = []
    remaining = iter(names)
    while run := list(itertools.islice(remaining, SORTED_AT_ONCE)):
        run.sort()
        runs.append(run)
        yield None
    yield from (
        (name, value_of(name)) for name in (heapq.merge(*runs) if len(runs) > 1 else itertools.chain(*runs))
    )


def members_there(
    pages: Iterable[Iterable[str]], value_of: Callable[[str], Any]
) -> Iterator[tuple[str, Any] | None]:
    """The same of names that are in order, in pages. Those that have gone meanwhile, and so have no value, are left
    out."""
    for page in pages:
        for name in page:
            value = value_of(name)
            if value is not None:
                yield name, value
        yield None


def pretty_pieces(document: Mapping[str, Any]) -> Iterator[bytes]:
    """``dumps_pretty`` of an object in pieces, so that a thread which encodes a long table can pause between them. A
    value may be an iterator of an object's members, (name, value) in the order in which they are written, and None for
    an empty piece."""
    parts: list[str] = []
    separator = "{"
    for key in sorted(document):
        parts.append(f"{separator}\n\t{encode_sorted(key).decode()}:")
        separator = ","
        members = document[key]
        if not isinstance(members, Iterator):
            _write_pretty(members, "\n\t", parts.append)
            continue
        opening, number, characters = "{", 0, 0
        for member in members:
            if member is not None:
                first = len(parts)
                parts.append(f"{opening}\n\t\t{encode_sorted(member[0]).decode()}:")
                _write_pretty(member[1], "\n\t\t", parts.append)
                opening = ","
                number += 1
                characters += sum(map(len, parts[first:]))
            if member is None or number % PIECE_ENTRIES == 0 or characters >= PIECE_CHARACTERS:
                yield "".join(parts).encode()
                parts.clear()
                characters = 0
        parts.append("{}" if opening == "{" else "\n\t}")
    parts.append("{}" if separator == "{" else "\n}")
    yield "".join(parts).encode()


class OrderedNumbers(dict[int, int]):
    """Integers by integers, in the order of the keys: written without a look at each."""


def _only_integers(values: Iterable[Any]) -> bool:
    return set(map(type, values)) == {int}


def _by_number(value: dict[int, Any]) -> dict[int, Any]:
    keys = sorted(value)
    return value if keys == list(value) else {key: value[key] for key in keys}


def _in_order(value: dict[Any, Any]) -> list[Any]:
    """The keys: integers by their size, then texts."""
    try:
        return sorted(value)
    except TypeError:  # a mix of both
        return sorted(value, key=lambda key: (0, key, "") if isinstance(key, int) else (1, 0, str(key)))


def _write_pretty(value: Any, newline: str, write: Any) -> None:
    if isinstance(value, dict) and value:
        is_ready = type(value) is OrderedNumbers
        if is_ready or (_only_integers(value) and _only_integers(value.values())):
            # As of the offsets of a thousand queues: at once, without a step for each.
            write(_encode_in_order(value if is_ready else _by_number(value)).decode()[:-1].replace('"', ""))
            write(newline + "}")
            return
        inner = newline + "\t"
        separator = "{"
        for key in _in_order(value):
            if isinstance(key, int):
                write(f"{separator}{key}:")
            else:
                write(f"{separator}{inner}{encode_sorted(str(key)).decode()}:")
            _write_pretty(value[key], inner, write)
            separator = ","
        write(newline + "}")
    elif isinstance(value, (list, tuple, set, frozenset)) and value:
        inner = newline + "\t"
        separator = "["
        for item in value:
            write(separator + inner)
            _write_pretty(item, inner, write)
            separator = ","
        write(newline + "]")
    else:
        write(encode_sorted(value).decode())


def _to_text(text: bytes, most: int) -> str:
    if len(text) > most:
        raise ProtocolError(f"not JSON: {len(text)} bytes are too many for the tolerant parser")
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not JSON: byte {error.start} is not UTF-8") from None


_BLANK = re.compile(r"[\s,]*")
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"-?\d{1,20}(?![\d.eE])|-?\d{1,400}(?:\.\d{0,400})?(?:[eE][+-]?\d{1,3})?")
_WORD = re.compile(r"[A-Za-z_$][\w$.]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS = {"true": True, "false": False, "null": None, "undefined": None}


class JsonParser:
    """Recursive descent over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._is_key = False

    def parse(self) -> Any:
        value = self._value(0)
        self._skip(_SPACE)
        if self._position != len(self._text):
            raise self._error("text after the value")
        return _resolved(value)

    def _error(self, what: str) -> ProtocolError:
        return ProtocolError(f"not JSON: {what} at character {self._position}")

    def _skip(self, blank: re.Pattern[str]) -> str:
        """The next significant character, "" at the end."""
        match = blank.match(self._text, self._position)
        self._position = match.end() if match else self._position
        return self._text[self._position : self._position + 1]

    def _value(self, depth: int) -> Any:
        if depth > MAX_JSON_DEPTH:
            raise self._error(f"more than {MAX_JSON_DEPTH} levels")
        character = self._skip(_SPACE)
        if character == "{":
            return self._object(depth)
        if character == "[":
            return self._array(depth)
        if character and character in "\"'":
            return self._string(character)
        return self._scalar()

    def _scalar(self) -> Any:
        match = _NUMBER.match(self._text, self._position)
        if match:
            self._position = match.end()
            number = match.group()
            return int(number) if number.lstrip("-").isdigit() else float(number)
        match = _WORD.match(self._text, self._position)
        if match and match.group() in _WORDS:
            self._position = match.end()
            return _WORDS[match.group()]
        raise self._error("no value")

    def _array(self, depth: int) -> list[Any]:
        self._position += 1
        items: list[Any] = []
        while self._skip(_BLANK) != "]":
            items.append(self._value(depth + 1))
            if self._skip(_SPACE) not in (",", "]"):
                raise self._error("no ',' or ']'")
        self._position += 1
        return items

    def _object(self, depth: int) -> dict[str, Any]:
        self._position += 1
        members: dict[str, Any] = {}
        while self._skip(_BLANK) != "}":
            key = self._key(depth)
            if self._skip(_SPACE) != ":":
                raise self._error("no ':'")
            self._position += 1
            members[key] = self._value(depth + 1)
            if self._skip(_SPACE) not in (",", "}"):
                raise self._error("no ',' or '}'")
        self._position += 1
        return members

    def _key(self, depth: int) -> str:
        character = self._text[self._position : self._position + 1]
        if character and character in "\"'":
            return self._string(character)
        if character == "{":
            if self._is_key:
                # Each level doubles the backslashes of the inner ones; RocketMQ's keys are flat.
                raise self._error("an object as a key within a key")
            self._is_key = True
            key = canonical(self._value(depth + 1))
            self._is_key = False
            return key
        match = _NUMBER.match(self._text, self._position) or _WORD.match(self._text, self._position)
        if match is None:
            raise self._error("no key")
        self._position = match.end()
        return match.group()

    def _string(self, quote: str) -> str:
        plain = _PLAIN[quote]
        text = self._text
        self._position += 1
        parts: list[str] = []
        while True:
            match = plain.match(text, self._position)
            if match:
                parts.append(match.group())
                self._position = match.end()
            character = text[self._position : self._position + 1]
            if character == quote:
                self._position += 1
                return _without_surrogates("".join(parts))
            if not character:
                raise self._error("an unterminated string")
            parts.append(self._escape())

    def _escape(self) -> str:
        code = self._text[self._position + 1 : self._position + 2]
        digits = {"u": 4, "x": 2}.get(code, 0)
        if digits:
            hexadecimal = self._text[self._position + 2 : self._position + 2 + digits]
            if not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", hexadecimal):
                raise self._error(f"a bad \\{code}")
            self._position += 2 + digits
            return chr(int(hexadecimal, 16))
        if not code:
            raise self._error("an unterminated string")
        self._position += 2
        return _ESCAPES.get(code, code)


def _without_surrogates(text: str) -> str:
    """Convert pairs of \\u escapes to the character they encode, and unpaired ones to U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_STEP = re.compile(r"\.((?:\\.|[^.\[\\])+)|\[(\d{1,9})\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")


def _resolved(root: Any) -> Any:
    if _is_reference(root):
        return None
    references = _references(root)
    return _FastJsonResolver(root).resolve(references) if references else root


def _references(root: Any) -> list[tuple[Any, Any, Any]]:
    """The places of references, as (object or list, key or index, path). Raises ProtocolError when the tree
    is too deep."""
    found: list[tuple[Any, Any, Any]] = []
    level = [root] if isinstance(root, (dict, list)) else []
    for _ in range(MAX_JSON_DEPTH + 1):
        if not level:
            return found
        below: list[Any] = []
        for node in level:
            if type(node) is dict:
                inner = [child for child in node.values() if type(child) is dict or type(child) is list]
            else:
                inner = [child for child in node if type(child) is dict or type(child) is list]
            if not inner:
                continue
            if any(map(_is_reference, inner)):
                items: Any = node.items() if type(node) is dict else enumerate(node)
                found += [(node, place, child["$ref"]) for place, child in items if _is_reference(child)]
                inner = [child for child in inner if not _is_reference(child)]
            below += inner
        level = below
    raise ProtocolError(f"not JSON: more than {MAX_JSON_DEPTH} levels")


class _FastJsonResolver:
    """Replaces every ``{"$ref": path}`` by the object it refers to, or by None if there is none.

    A reference to an object that contains references resolves to None: fastjson does not write those within
    one tree, and they would allow cycles and exponential growth.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._budget = REFERENCE_BUDGET

    def resolve(self, references: list[tuple[Any, Any, Any]]) -> Any:
        targets = [self._target(path) for _, _, path in references]
        for (node, place, _), target in zip(references, targets, strict=True):
            node[place] = target
        return self._root

    def _charge(self, cost: int) -> None:
        self._budget -= cost
        if self._budget < 0:
            raise ProtocolError(f"not JSON: its references cost more than {REFERENCE_BUDGET} steps")

    def _target(self, path: Any) -> Any:
        self._charge(1)
        if not isinstance(path, str) or not path.startswith("$"):
            return None
        self._charge(len(path))
        node = self._root
        position = 1
        while position < len(path):
            step = _STEP.match(path, position)
            if step is None:
                return None
            position = step.end()
            name, index, single, double = step.groups()
            if index is not None:
                if not isinstance(node, list) or int(index) >= len(node):
                    return None
                node = node[int(index)]
            else:
                key = (
                    re.sub(r"\\(.)", r"\1", name)
                    if name is not None
                    else single
                    if single is not None
                    else double
                )
                if not isinstance(node, dict) or key not in node:
                    return None
                node = node[key]
        return node if self._is_plain(node) else None

    def _is_plain(self, target: Any) -> bool:
        """Whether the tree has no reference. Every visit of a value is charged, even a repeated one, because
        each adds a value to the result."""
        stack = [target]
        while stack:
            self._charge(1)
            node = stack.pop()
            if _is_reference(node):
                return False
            if isinstance(node, dict):
                self._charge(len(node))
                stack.extend(node.values())
            elif isinstance(node, list):
                self._charge(len(node))
                stack.extend(node)
        return True


def _is_reference(node: Any) -> bool:
    return isinstance(node, dict) and len(node) == 1 and "$ref" in node
