"""Protobuf bodies to typed columns. protobuf's own parser (upb, in C) makes a message of each body, and each column
is made of a field of all messages.

| Protobuf | column |
|---|---|
| int32, sint32, sfixed32; uint32, fixed32 | int; bigint |
| int64, sint64, sfixed64; uint64, fixed64 | bigint; decimal(20,0) |
| float, double, bool, string, bytes | the same |
| enum | string, the name |
| message, group | struct |
| repeated, map | array, map |
| google.protobuf.Timestamp, Duration | timestamp, interval day to second; digits below microseconds are cut |
| google.protobuf.StringValue and the other wrappers | their value, nullable |
| google.protobuf.Any | struct of type_url and value, as any other message: it is not decoded |

A field that knows whether it is there (``optional``, messages, members of a oneof) is null when it is not. Other fields
have their default. A message that contains itself has no columns, and so has google.protobuf.Struct. Fields that the
schema lacks are ignored. Must not know messages of topics or Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from mqspark.arrow.payload.bodyrows import MAX_COLUMNS, NO_BODY, BodyRows, built
from mqspark.errors import InvalidSchema
from mqspark.schemas.parsedschema import PROTOBUF, needs_extra
from mqspark.schemas.protobuf.prototext import descriptors
from mqspark.schemas.schemaprefix import decode_indexes

WRAPPERS = frozenset(
    f"google.protobuf.{each}Value"
    for each in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
TIMES = {
    "google.protobuf.Timestamp": pa.timestamp("us", tz="UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}
_MAX_SECONDS = (1 << 63) // 1_000_000 - 1
_MAX_NANOS = 1_000_000_000


def message_class(descriptor: Any) -> Any:
    """The class of a message. Raises ConfigError without the extra."""
    try:
        from google.protobuf.message_factory import GetMessageClass
    except ImportError as error:
        raise needs_extra(PROTOBUF, error) from None
    return GetMessageClass(descriptor)


Column = Callable[[Sequence[Any]], pa.Array]
"""Makes a column of values; None is null."""


class ProtobufBodies:
    """A decoder to the columns of a message's descriptor. Raises InvalidSchema, ConfigError without the extra."""

    def __init__(self, descriptor: Any, message_name: Callable[[tuple[int, ...]], str] | None = None) -> None:
        """``message_name``: bodies begin with the indexes of their message in the schema that they were written with
        (``mqspark.schemas.schemaprefix``), and this is its name; raises InvalidSchema if there is none."""
        message = message_class(descriptor)
        from google.protobuf.message import DecodeError

        self._parse = message.FromString
        self._message_name = message_name
        self._error = DecodeError
        self._nothing = message()
        self._row = _Message(descriptor, _Limit())
        self.schema = pa.schema(list(self._row.type))

    def decode(self, bodies: pa.BinaryArray) -> BodyRows:
        parse = self._parse if self._message_name is None else self._parsed_behind_indexes
        rows: list[Any] = []
        reasons: list[str | None] = []
        for body in bodies.to_pylist():
            try:
                rows.append(parse(body))
                reasons.append(None)
            except (self._error, InvalidSchema, ValueError, TypeError) as error:
                rows.append(self._nothing)
                reasons.append(NO_BODY if body is None else f"the body is no {self._row.name} ({error})")
        return built(rows, reasons, self._row.columns, self._nothing)

    def _parsed_behind_indexes(self, body: bytes) -> Any:
        indexes, at = decode_indexes(body, 0)
        if self._message_name is not None and (name := self._message_name(indexes)) != self._row.name:
            raise ValueError(f"it is a {name}")
        return self._parse(body[at:])


_WIDER = {
    "int32": {"bool", "enum"},
    "int64": {"int32", "uint32", "bool", "enum"},
    "uint32": {"bool"},
    "uint64": {"uint32", "bool"},
    "sint64": {"sint32"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""What else may have been written where a type is read: no value becomes another one."""


def check_written(reader: Any, writer: Any) -> None:
    """Whether fields of the same number, which are the same field whatever it is called, keep their values from one
    descriptor of a message to the other. Raises InvalidSchema."""
    waiting, seen = [(reader, writer)], set()
    while waiting:
        ours, theirs = waiting.pop()
        if (ours.full_name, theirs.full_name) in seen:
            continue
        seen.add((ours.full_name, theirs.full_name))
        for field in ours.fields:
            written = theirs.fields_by_number.get(field.number)
            if written is None:
                continue
            kind, was = _word(field), _word(written)
            if field.is_repeated != written.is_repeated or (kind != was and was not in _WIDER.get(kind, ())):
                lists = ["repeated " if each.is_repeated else "" for each in (written, field)]
                _refuse(
                    f"field {field.number} of {ours.full_name} is {lists[0]}{was} where it was written, not "
                    f"{lists[1]}{kind}"
                )
            if field.message_type is not None:
                waiting.append((field.message_type, written.message_type))


def _word(field: Any) -> str:
    """The type in a .proto."""
    return str(descriptors().FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


class _Limit:
    def __init__(self) -> None:
        self.inside: list[str] = []
        self._columns = 0

    def count(self) -> None:
        self._columns += 1
        if self._columns > MAX_COLUMNS:
            _refuse(f"the message has more than {MAX_COLUMNS} columns, nested ones included")


def _refuse(text: str) -> NoReturn:
    raise InvalidSchema(text, kind=PROTOBUF)


class _Message:
    """The fields of a message as columns."""

    def __init__(self, descriptor: Any, limit: _Limit) -> None:
        self.name = descriptor.full_name
        if self.name in limit.inside:
            _refuse(f"{self.name} contains itself, which no columns can hold")
        limit.inside.append(self.name)
        made = [_field(each, limit) for each in descriptor.fields]
        limit.inside.pop()
        self._fields = [column for _, column in made]
        self.type = pa.struct(
            [pa.field(each.name, kind) for each, (kind, _) in zip(descriptor.fields, made, strict=True)]
        )

    def columns(self, messages: Sequence[Any]) -> list[pa.Array]:
        return [make(messages) for make in self._fields]

    def array(self, messages: Sequence[Any]) -> pa.Array:
        there = [each for each in messages if each is not None]
        if not self._fields:
            return pa.array([None if each is None else {} for each in messages], self.type)
        found = pa.StructArray.from_arrays(self.columns(there), fields=list(self.type))
        if len(there) == len(messages):
            return found
        places = itertools.count()
        return found.take(pa.array([None if each is None else next(places) for each in messages], pa.int64()))


def _field(field: Any, limit: _Limit) -> tuple[pa.DataType, Column]:
    """The type of a field's column, and how it is made of messages."""
    limit.count()
    name = field.name
    get = attrgetter(name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        keys, key_column = _value(entry.fields_by_name["key"], limit)
        items, item_column = _value(entry.fields_by_name["value"], limit)
        kind = pa.map_(keys, items)

        def of_map(messages: Sequence[Any]) -> pa.Array:
            maps = [get(each) for each in messages]
            pairs = [pair for each in maps for pair in each.items()]
            return pa.MapArray.from_arrays(
                _offsets(maps),
                key_column([key for key, _ in pairs]),
                item_column([value for _, value in pairs]),
                type=kind,
            )

        return kind, of_map
    inner, column = _value(field, limit)
    if field.is_repeated:
        kind = pa.list_(pa.field("element", inner))

        def of_list(messages: Sequence[Any]) -> pa.Array:
            lists = list(map(get, messages))
            items = column(list(itertools.chain.from_iterable(lists)))
            return pa.ListArray.from_arrays(_offsets(lists), items, type=kind)

        return kind, of_list
    if field.has_presence:
        has = message_class(field.containing_type).HasField  # a field may have the name of a method
        return inner, lambda messages: column([get(each) if has(each, name) else None for each in messages])
    return inner, lambda messages: column(list(map(get, messages)))


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array(list(itertools.accumulate(map(len, values), initial=0)), pa.int32())


def _value(field: Any, limit: _Limit) -> tuple[pa.DataType, Column]:
    """The type of one value of a field, and how a column of such values is made."""
    inner = field.message_type
    if inner is not None:
        if inner.full_name in TIMES:
            kind = TIMES[inner.full_name]
            return kind, lambda values: _times(values, kind, field.full_name)
        if inner.full_name in WRAPPERS:
            kind, column = _value(inner.fields_by_name["value"], limit)
            return kind, lambda values: column([None if each is None else each.value for each in values])
        message = _Message(inner, limit)
        return message.type, message.array
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()} | {
            None: None
        }
        return pa.string(), lambda values: _enum(values, names, field.full_name)
    kind = _scalar(field)
    return kind, lambda values: pa.array(values, kind)


def _scalar(field: Any) -> pa.DataType:
    kinds = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }
    return kinds[field.cpp_type]


def _enum(values: Sequence[Any], names: dict[int | None, str | None], path: str) -> pa.Array:
    try:
        return pa.array([names[each] for each in values], pa.string())
    except KeyError as error:
        raise pa.ArrowInvalid(f"{path}: the enum has no value {error}") from None


def _times(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    absent = np.array([each is None for each in values], np.bool_)
    seconds = np.array([0 if each is None else each.seconds for each in values], np.int64)
    nanos = np.array([0 if each is None else each.nanos for each in values], np.int64)
    is_far = (seconds > _MAX_SECONDS) | (seconds < -_MAX_SECONDS)  # the least number has no absolute value
    if is_far.any() or (np.abs(nanos) >= _MAX_NANOS).any():
        raise pa.ArrowInvalid(f"{path}: out of the range of {kind}")
    cut = np.trunc(nanos / 1000).astype(np.int64) if pa.types.is_duration(kind) else nanos // 1000
    return pa.array(seconds * 1_000_000 + cut, pa.int64(), mask=absent).cast(kind)
