"""What all bodies share, and their conversion from and to JSON.

``decode_body`` reads what real peers write, including fastjson's dialect. ``encode_body`` writes JSON with
quoted integer keys, which every peer reads.

Tables keyed by a message queue have the queue's JSON text as key here: ``queue_key`` and ``queue_of``
convert. On the wire the key is the bare object, ``{{"queueId":0,…}:42}``. RocketMQ writes this form, and it
is the only one that its versions with fastjson and those with fastjson2 both read (5.5.0 refuses the text as
a key).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from mqspark.errors import FrameTooLarge, ProtocolError
from mqspark.message import MessageQueue
from mqspark.protocol import fastjson
from mqspark.protocol.connection import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from mqspark.protocol.fastjson import encode_sorted
from mqspark.protocol.headers.header import I32
from mqspark.protocol.named import check_names
from mqspark.protocol.slices import Work

T = TypeVar("T")


class Body(msgspec.Struct, rename="camel", gc=False):
    """Base of all bodies. Attributes that are None are not written, all others are. Values of JSON have no circles, so
    the garbage collector needs to look at none of them."""

    @staticmethod
    def adapt(document: Any) -> None:
        """Change what a peer wrote, before it is converted, to what RocketMQ's clients for Java write."""


def decode_body(body_type: type[T], body: bytes | bytearray | memoryview) -> T:
    """Decode a body. Raises ProtocolError when it is malformed, IllegalName when it contains an illegal
    name."""
    decoded = _decoded(body_type, body, fastjson.PEER)
    check_names(decoded)
    return decoded


def decode_nameless(body_type: type[T], body: bytes | bytearray | memoryview) -> T:
    """The same as ``decode_body``, for a body of thousands of values. The caller checks its few names. Raises
    ProtocolError."""
    return _decoded(body_type, body, fastjson.PEER)


def decode_table(body_type: type[T], body: bytes | bytearray | memoryview) -> T:
    """The same as ``decode_body``, without limits of size and names. For files, whose readers drop invalid rows.
    Raises ProtocolError."""
    return _decoded(body_type, body, fastjson.FILE)


def _decoded(body_type: type[T], body: bytes | bytearray | memoryview, limits: fastjson.Limits) -> T:
    text = bytes(body)
    fastjson.check_containers(text, limits)
    if b"$ref" not in text:
        try:
            decode: Callable[[bytes], T] = _decoder(body_type)
            return decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    document = _without_nulls(fastjson.loads(text, limits))
    if isinstance(body_type, type) and issubclass(body_type, Body):
        body_type.adapt(document)
    try:
        return msgspec.convert(document, body_type, strict=False, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(f"not a {body_type.__name__}: {error}") from None


def encode_body(body: object) -> bytes:
    """Compact JSON with sorted keys. Keys that are objects are written bare."""
    document = msgspec.to_builtins(body, str_keys=True)
    text = encode_sorted(document)
    if b":null" in text:
        text = encode_sorted(_without_nulls(document))
    return _OBJECT_AS_KEY.sub(_bare, text) if b'"{' in text else text


@cache
def _names(body_type: type[Body]) -> list[tuple[str, str]]:
    """(attribute, JSON name) of each field."""
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(body_type)]


ENTRIES_AT_ONCE = 256
"""Table entries encoded in one slice at the most, including nested ones."""

FIRST_AT_ONCE = 64
"""The same of the first slice, before it is known how long an entry is."""

BODY_SLICE_BYTES = 24 * 1024
"""So much text is a slice meant to give, so that long entries are fewer."""

ADDED_AT_ONCE = 1_024
"""Texts of a member that is already encoded that are joined in one slice."""

MAX_BODY_BYTES = MAX_FRAME_BYTES - MAX_HEADER_BYTES
"""Limit of a body: clients accept no longer frames."""


def encode_in_slices(body: Body, members: Mapping[str, Sequence[bytes]] | None = None) -> Work[list[bytes]]:
    """``encode_body`` in slices and in pieces, for a body whose tables may be large: a copy of ten megabytes takes
    milliseconds. Entries are sorted only within their slice. ``members``: members that are already encoded. Raises
    FrameTooLarge as soon as the limit is exceeded."""
    pieces: list[bytes] = []
    texts: list[bytes] = []
    """They become the next piece."""
    size_bytes = piece_bytes = 0

    def add(text: bytes) -> None:
        nonlocal size_bytes, piece_bytes
        size_bytes += len(text)
        if size_bytes > MAX_BODY_BYTES:
            raise FrameTooLarge("answer", size_bytes, MAX_BODY_BYTES)
        texts.append(text)
        piece_bytes += len(text)
        if piece_bytes >= BODY_SLICE_BYTES:
            pieces.append(b"".join(texts))
            texts.clear()
            piece_bytes = 0

    small: dict[str, Any] = {}
    large: dict[str, dict[Any, Any] | list[Any]] = {}
    for name, encoded_name in _names(type(body)):
        value = getattr(body, name)
        if isinstance(value, (dict, list)) and _is_large(value):
            large[encoded_name] = value
        else:
            small[encoded_name] = value
    head = encode_body({name: value for name, value in small.items() if name not in (members or ())})
    add(head[:-1])
    comma = b"," if len(head) > 2 else b""
    for name, encoded in (members or {}).items():
        add(comma + b'"' + name.encode() + b'":')
        for number, text in enumerate(encoded, 1):
            add(text)
            if number % ADDED_AT_ONCE == 0:
                yield
        comma = b","
    for name, table in large.items():
        is_list = isinstance(table, list)
        add(comma + b'"' + name.encode() + (b'":[' if is_list else b'":{'))
        comma = b","
        for text in _texts(table, _Portion()):
            add(text)
            yield
        add(b"]" if is_list else b"}")
    add(b"}")
    pieces.append(b"".join(texts))
    return pieces


class _Portion:
    """How many entries of a table a slice takes."""

    def __init__(self) -> None:
        self.entries = FIRST_AT_ONCE

    def adapt(self, text_bytes: int) -> None:
        """The last slice gave so much text."""
        fitting = self.entries * BODY_SLICE_BYTES // max(text_bytes, 1)
        self.entries = min(max(fitting, 1), ENTRIES_AT_ONCE)


class _LongList(NamedTuple):
    """An entry of a table that is one for itself."""

    key: Any
    items: list[Any]


def _texts(table: dict[Any, Any] | list[Any], portion: _Portion) -> Iterator[bytes]:
    """What stands between the brackets of a table, slice by slice."""
    comma = b""
    for chunk in _chunks(table, portion):
        if isinstance(chunk, _LongList):
            head = encode_body({chunk.key: []})
            yield comma + head[1:-2]
            yield from _texts(chunk.items, portion)
            yield b"]"
        else:
            text = encode_body(chunk)
            portion.adapt(len(text))
            yield comma + text[1:-1]
        comma = b","


def _weight(value: object) -> int:
    return 1 + len(value) if isinstance(value, (dict, list)) else 1


def _is_large(table: dict[Any, Any] | list[Any]) -> bool:
    if len(table) > FIRST_AT_ONCE:
        return True
    return sum(map(_weight, table.values() if isinstance(table, dict) else table)) > FIRST_AT_ONCE


def _chunks(
    table: dict[Any, Any] | list[Any], portion: _Portion
) -> Iterator[dict[Any, Any] | list[Any] | _LongList]:
    """Chunks that are not empty, each of about as many entries as ``portion`` says then. A long list below a key is one
    for itself."""
    weight = 0
    if isinstance(table, list):
        some: list[Any] = []
        for item in table:
            some.append(item)
            weight += _weight(item)
            if weight >= portion.entries:
                yield some
                some, weight = [], 0
        if some:
            yield some
        return
    entries: dict[Any, Any] = {}
    for key in list(table):
        # A list of pairs would create one object per row at once, which the garbage collector has to track.
        if key not in table:
            continue
        item = table[key]
        if isinstance(item, list) and len(item) > ENTRIES_AT_ONCE:
            if entries:
                yield entries
                entries, weight = {}, 0
            yield _LongList(key, item)
            continue
        entries[key] = item
        weight += _weight(item)
        if weight >= portion.entries:
            yield entries
            entries, weight = {}, 0
    if entries:
        yield entries


def to_document(body: object) -> Any:
    """The body as dicts and lists with integer keys, for ``fastjson.dumps_pretty``."""
    return _without_nulls(msgspec.to_builtins(body))


_OBJECT_AS_KEY = re.compile(
    # Skips whole strings up to one that is a key and begins as ``queue_key`` does. A search for such a
    # beginning alone would match inside strings of peers, and search for the end again for each match.
    rb'((?:[^"]++|"(?!\{\\"brokerName\\":)(?:[^"\\]|\\.)*+"|"(?:[^"\\]|\\.)*+"(?!:))*+)'
    rb'(?:\Z|("(?:[^"\\]|\\.)*+"):)',
    re.DOTALL,
)


def _bare(match: re.Match[bytes]) -> bytes:
    passed, quoted = match.groups()
    if quoted is None:
        return bytes(passed)
    key: str = msgspec.json.decode(quoted)
    try:
        _decode_queue(key)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return match.group()  # a peer's text, which would not be valid JSON
    return b"%b%b:" % (passed, key.encode())


_decoders: dict[Any, Callable[[bytes], Any]] = {}


def _decoder(body_type: Any) -> Callable[[bytes], Any]:
    decode = _decoders.get(body_type)
    if decode is None:
        decode = _decoders[body_type] = msgspec.json.Decoder(body_type, strict=False).decode
    return decode


def _without_nulls(value: Any) -> Any:
    """The same document, in place: copies of thousands of tables would start collections of garbage, which visit them.
    A call for each number would dominate the cost."""
    if isinstance(value, dict):
        nulls = []
        for key, item in value.items():
            if item is None:
                nulls.append(key)
            elif isinstance(item, (dict, list)):
                _without_nulls(item)
        for key in nulls:
            del value[key]
    elif isinstance(value, list):
        is_any_null = False
        for item in value:
            if item is None:
                is_any_null = True
            elif isinstance(item, (dict, list)):
                _without_nulls(item)
        if is_any_null:
            value[:] = [item for item in value if item is not None]
    return value


# --- queues -----------------------------------------------------------------------------------------------


class Queue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """A message queue inside a body. ``of`` and ``queue`` convert from and to ``MessageQueue``."""

    topic: str = ""
    broker_name: str = ""
    queue_id: I32 = 0

    @classmethod
    def of(cls, queue: MessageQueue) -> Queue:
        return cls(*queue)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


_decode_queue = msgspec.json.Decoder(Queue).decode


def queue_key(queue: MessageQueue) -> str:
    """The text form of a queue as a key."""
    return encode_sorted(Queue.of(queue)).decode()


def queue_of(key: str) -> MessageQueue:
    """The reverse of ``queue_key``. Raises ProtocolError."""
    return decode_body(Queue, key.encode()).queue
