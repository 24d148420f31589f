"""How a body can be shown, and what it probably is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from mqspark.errors import ConfigError, InvalidSchema
from mqspark.schemas.parsedschema import AVRO, PROTOBUF, Reference, Schema
from mqspark.schemas.parsing import parse
from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from mqspark_server.shown.bodies.arrowbody import begins_arrow, write_arrow
from mqspark_server.shown.bodies.avrobody import MAGIC, SINGLE_OBJECT, write_avro, write_avro_value
from mqspark_server.shown.bodies.charsets import NAMES, charset_of, decoded, unicode_of
from mqspark_server.shown.bodies.jsonbody import write_json
from mqspark_server.shown.bodies.msgpackbody import begins_msgpack, write_msgpack
from mqspark_server.shown.bodies.outline import Full, Outline, Unreadable
from mqspark_server.shown.bodies.protobufbody import write_protobuf, write_protobuf_value

SHOWN_BYTES = 16 * 1024
"""The most shown of a body as it is."""
OUTLINE_LENGTH = 4 * SHOWN_BYTES
"""Characters of one that is decoded."""
GUESSED_BYTES = 256 * 1024
"""A larger one is not tried as a format without a mark at its beginning."""
_FRAMED = b"\x00"
_FRAME_BYTES = 5
"""Serializers of a schema registry begin with a zero and the id of the schema."""

Write = Callable[[bytes, Outline], str]
_WRITERS: Mapping[str, tuple[str, Write]] = {
    "json": ("JSON", write_json),
    "avro": ("Avro", write_avro),
    "protobuf": ("Protobuf", write_protobuf),
    "messagepack": ("MessagePack", write_msgpack),
    "arrow": ("Arrow", write_arrow),
}
VIEWS = ("auto", "text", *_WRITERS, "hex")


class KnownSchema(NamedTuple):
    """A schema that was looked up in a registry. ``needed``: those that it refers to."""

    kind: str
    text: str
    needed: tuple[tuple[Reference, KnownSchema], ...] = ()

    @property
    def needed_texts(self) -> tuple[str, ...]:
        return tuple(text for _, each in self.needed for text in (*each.needed_texts, each.text))

    def parsed(self) -> Schema:
        """Raises InvalidSchema, ConfigError."""
        return parse(self.kind, self.text, [(reference, each.parsed()) for reference, each in self.needed])


NO_SCHEMAS: Mapping[int, KnownSchema] = {}


class BodyView(NamedTuple):
    text: str
    kind: str
    """What it is shown as."""
    problem: str = ""
    """Why it is not shown as what was asked for."""
    shown: int | None = None
    """How many bytes are shown, where it is shown as it is."""
    is_cut: bool = False


def body_view(body: bytes, view: str, schemas: Mapping[int, KnownSchema] = NO_SCHEMAS) -> BodyView:
    """``view``: one of VIEWS. ``schemas``: by the ids that bodies name. Never fails: what is not of that format is
    shown as text, with the reason."""
    if view == "auto":
        return _by_schema(body, (AVRO, PROTOBUF), schemas) or _guessed(body)
    if view == "hex":
        return _hex(body)
    if view == "text":
        return _text(body, charset_of(body[:SHOWN_BYTES], is_whole=len(body) <= SHOWN_BYTES) or "utf-8")
    if (shown := _by_schema(body, (view.upper(),), schemas)) is not None:
        return shown
    name, write = _WRITERS[view]
    content, schema_id = _unframed(body, view)
    try:
        return _outlined(content, write, schema_id)
    except Unreadable as error:
        shown = _text(body, charset_of(body[:SHOWN_BYTES], is_whole=len(body) <= SHOWN_BYTES) or "utf-8")
        where = "" if schema_id is None else f" It names the schema {schema_id} of a registry."
        return shown._replace(problem=f"The body is not {name}: {error}.{where}")


def _by_schema(body: bytes, kinds: Collection[str], schemas: Mapping[int, KnownSchema]) -> BodyView | None:
    """An Avro or Protobuf value whose schema is known. One that does not fit it is shown as bytes, with the reason."""
    content, schema_id = _unframed(body, "avro")
    schema = None if schema_id is None else schemas.get(schema_id)
    if schema is None or schema.kind not in kinds:
        return None

    def write(data: bytes, out: Outline) -> str:
        if schema.kind == AVRO:
            return write_avro_value(data, schema.text, schema.needed_texts, out)
        parsed = schema.parsed()
        if not isinstance(parsed, ProtobufSchema):
            raise Unreadable("its schema is of another type")
        return write_protobuf_value(body, parsed, out)

    try:
        return _outlined(content, write, schema_id, schema.kind.capitalize())
    except ConfigError:
        return None
    except (Unreadable, InvalidSchema) as error:
        return _hex(body)._replace(
            problem=f"The body does not fit the schema {schema_id} that it names: {error}."
        )


def _guessed(body: bytes) -> BodyView:
    for write in _marked(body):
        try:
            return _outlined(body, write, None)
        except Unreadable as error:
            return _hex(body)._replace(problem=f"{error}"[:1].upper() + f"{error}."[1:])
    is_whole = len(body) <= SHOWN_BYTES
    head = body[:SHOWN_BYTES]
    codec = unicode_of(head, is_whole=is_whole)
    # Texts of one byte a character are found everywhere: what says more goes first.
    if codec is None and begins_msgpack(body) and (found := _tried(body, write_msgpack, None)):
        return found
    codec = codec or charset_of(head, is_whole=is_whole)
    if codec is not None:
        shown = _text(body, codec)
        is_like_json = shown.text.lstrip()[:1] in ("{", "[")
        return (_tried(body, write_json, None) if is_like_json else None) or shown
    content, schema_id = _unframed(body, "auto")
    if schema_id is not None:
        json = _tried(content, write_json, schema_id)
        return json or _hex(body)._replace(kind=f"bytes that the schema {schema_id} of a registry describes")
    return _tried(body, write_protobuf, None) or _hex(body)


def _marked(body: bytes) -> list[Write]:
    """The format that a mark at the beginning names."""
    if body.startswith((MAGIC, SINGLE_OBJECT)):
        return [write_avro]
    return [write_arrow] if begins_arrow(body) else []


def _unframed(body: bytes, view: str) -> tuple[bytes, int | None]:
    """Without the frame of a registry's serializer, and the id of the schema in it. Protobuf's has also the place of
    the message in its schema, which is mostly the first: one more zero."""
    if not body.startswith(_FRAMED) or len(body) <= _FRAME_BYTES:
        return body, None
    schema_id = int.from_bytes(body[1:_FRAME_BYTES], "big")
    is_first = view == "protobuf" and body[_FRAME_BYTES] == 0
    return body[_FRAME_BYTES + is_first :], schema_id


def _tried(body: bytes, write: Write, schema_id: int | None) -> BodyView | None:
    if len(body) > GUESSED_BYTES:
        return None
    try:
        return _outlined(body, write, schema_id)
    except Unreadable:
        return None


def _outlined(body: bytes, write: Write, schema_id: int | None, name: str = "") -> BodyView:
    """``name``: of the format; that of the writer without. Raises Unreadable."""
    out = Outline(OUTLINE_LENGTH)
    try:
        kind, is_cut = write(body, out), False
    except Full:
        kind, is_cut = name or _name(write), True
    return BodyView(out.text, kind if schema_id is None else f"{kind}, schema {schema_id}", is_cut=is_cut)


def _name(write: Write) -> str:
    return next(name for name, each in _WRITERS.values() if each is write)


def _text(body: bytes, codec: str) -> BodyView:
    shown = min(len(body), SHOWN_BYTES)
    text = decoded(body[:SHOWN_BYTES], codec, is_whole=shown == len(body))
    name = NAMES.get(codec, codec.upper())
    return BodyView(text, f"text in {name}", shown=shown, is_cut=shown < len(body))


def _hex(body: bytes) -> BodyView:
    shown = min(len(body), SHOWN_BYTES)
    lines = []
    for begin in range(0, shown, 16):
        part = body[begin : min(begin + 16, shown)]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{begin:06x}  {part.hex(' '):<47}  {letters}")
    return BodyView("\n".join(lines), "bytes", shown=shown, is_cut=shown < len(body))
