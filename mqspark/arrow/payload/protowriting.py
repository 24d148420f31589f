"""Typed columns to Protobuf bodies (the other way of ``protobodies``), and a Protobuf schema of columns.

A null is a field that is not there. Fields that cannot tell whether they are there, lists, maps and what is in them
are never null: such a row is an error, as are two members of one oneof. Must not know messages of topics or Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from mqspark.arrow.payload.bodywriting import check_types, write_rows
from mqspark.arrow.payload.protobodies import TIMES, WRAPPERS, ProtobufBodies, message_class
from mqspark.errors import InvalidSchema
from mqspark.schemas.parsedschema import PROTOBUF
from mqspark.schemas.protobuf.protoschema import ProtobufSchema

_Setter = Callable[[Any, Any], None]
"""Sets a field of a message to a value."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ProtobufWriting:
    def __init__(self, descriptor: Any, columns: Sequence[str], prefix: bytes) -> None:
        """Raises ConfigError without the extra."""
        self._make = message_class(descriptor)
        self._fill = _filler(descriptor, columns)
        self._prefix = prefix

    def bodies(self, rows: pa.RecordBatch) -> list[bytes]:
        """Raises InvalidMessage."""
        return write_rows(rows, self._body)

    def _body(self, row: dict[str, Any]) -> bytes:
        message = self._make()
        self._fill(message, row)
        return self._prefix + bytes(self._make.SerializeToString(message))


def _filler(descriptor: Any, names: Sequence[str]) -> _Setter:
    """Sets the fields with these names to the values of a dict."""
    fields = [descriptor.fields_by_name[name] for name in names]
    setters = [(field.name, _setter(field)) for field in fields]
    groups = [[each.name for each in oneof.fields if each.name in names] for oneof in descriptor.oneofs]
    choices = [group for group in groups if len(group) > 1]

    def fill(message: Any, row: dict[str, Any]) -> None:
        for group in choices:
            if len(given := [name for name in group if row[name] is not None]) > 1:
                raise ValueError(f"{' and '.join(given)} are one field, of which one is written")
        for name, put in setters:
            put(message, row[name])

    return fill


def _setter(field: Any) -> _Setter:
    name, put = field.name, _of_values(field)
    may_be_null = field.has_presence and not field.is_required

    def set_field(message: Any, value: Any) -> None:
        if value is not None:
            put(message, value)
        elif not may_be_null:
            raise ValueError(f"the field {name} is never null")

    return set_field


def _of_values(field: Any) -> _Setter:
    """Sets a field to a value that is not null."""
    name, inner = field.name, field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        entry = inner.fields_by_name["value"]
        if entry.message_type is None:
            to_scalar = _scalar(entry)
            return lambda message, value: getattr(message, name).update(
                {key: to_scalar(each) for key, each in value.items()}
            )
        put_inner = _message(entry.message_type)

        def set_map(message: Any, value: Any) -> None:
            entries = getattr(message, name)
            for key, each in value.items():
                put_inner(entries[key], each)

        return set_map
    if field.is_repeated:
        if inner is None:
            to_scalar = _scalar(field)
            return lambda message, value: getattr(message, name).extend([to_scalar(each) for each in value])
        put_inner = _message(inner)

        def set_list(message: Any, value: Any) -> None:
            items = getattr(message, name)
            for each in value:
                put_inner(items.add(), each)

        return set_list
    if inner is None:
        to_scalar = _scalar(field)
        return lambda message, value: setattr(message, name, to_scalar(value))
    put_inner = _message(inner)
    return lambda message, value: put_inner(getattr(message, name), value)


def _message(descriptor: Any) -> _Setter:
    """Makes a message of a value."""
    kind = descriptor.full_name
    fill: _Setter
    if kind in TIMES:
        set_time = attrgetter("FromTimedelta" if pa.types.is_duration(TIMES[kind]) else "FromDatetime")
        fill = lambda message, value: set_time(message)(value)  # noqa: E731 - one of three
    elif kind in WRAPPERS:
        to_scalar = _scalar(descriptor.fields_by_name["value"])
        fill = lambda message, value: setattr(message, "value", to_scalar(value))  # noqa: E731
    else:
        fill = _filler(descriptor, [each.name for each in descriptor.fields])

    def put(message: Any, value: Any) -> None:
        if value is None:
            raise ValueError(f"a {kind} in a list or a map is never null")
        message.SetInParent()  # also one without fields is there
        fill(message, value)

    return put


def _scalar(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        numbers = {name: each.number for name, each in field.enum_type.values_by_name.items()}
        return lambda value: numbers[value]
    if field.cpp_type == field.CPPTYPE_UINT64:
        return int  # of a decimal
    return lambda value: value


def check_protobuf_columns(descriptor: Any, columns: pa.Schema) -> None:
    """Whether rows with these columns can be written. Raises InvalidSchema."""
    check_types(columns, ProtobufBodies(descriptor).schema, PROTOBUF)
    for field in descriptor.fields:
        if field.is_required and field.name not in columns.names:
            raise InvalidSchema(
                f"there is no column for field {field.name!r}, which is required", kind=PROTOBUF
            )


def indexes_of(schema: ProtobufSchema, name: str) -> tuple[int, ...]:
    """The path to a message in the file, which bodies begin with. Raises InvalidSchema."""
    waiting: list[tuple[tuple[int, ...], str, Any]] = [((), schema.file.package, schema.file.message_type)]
    while waiting:
        path, outer, messages = waiting.pop()
        for at, each in enumerate(messages):
            found = f"{outer}.{each.name}" if outer else each.name
            if found == name:
                return (*path, at)
            waiting.append(((*path, at), found, each.nested_type))
    raise InvalidSchema(f"the file has no message {name!r}", kind=PROTOBUF)


_SIMPLE = {
    pa.bool_(): "bool",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.decimal128(20, 0): "uint64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    **{kind: name for name, kind in TIMES.items()},
}
_KEYS = ("bool", "int32", "int64", "string")


def proto_text_of(columns: pa.Schema, name: str) -> str:
    """A .proto for rows with these columns. All but lists and maps may be null. Raises InvalidSchema."""
    message = _message_text(name, list(columns))
    used = [each for each in TIMES if each in message]
    imports = "".join(f'import "{each.replace(".", "/").lower()}.proto";\n' for each in used)
    return f'syntax = "proto3";\n{imports}{message}'


def _message_text(name: str, fields: list[pa.Field]) -> str:
    inner, lines = [], []
    for number, field in enumerate(fields, 1):
        if not _IDENTIFIER.fullmatch(field.name):
            raise InvalidSchema(
                f"{field.name[:80]!r} is no name of a field; rename the column", kind=PROTOBUF
            )
        kind, label, within = field.type, "optional ", f"Row_{field.name}"
        if pa.types.is_list(kind):
            kind, label = kind.value_type, "repeated "
        keys = _simple(kind.key_type, field.name) if pa.types.is_map(kind) and label != "repeated " else ""
        kind = kind.item_type if keys else kind
        if pa.types.is_struct(kind):
            inner.append(_message_text(within, list(kind)))
            word = within
        else:
            word = _simple(kind, field.name)
        if keys:
            if keys not in _KEYS:
                raise InvalidSchema(f"column {field.name!r}: keys are not {keys}", kind=PROTOBUF)
            label, word = "", f"map<{keys}, {word}>"
        lines.append(f"{label}{word} {field.name} = {number};\n")
    return f"message {name} {{\n{''.join(inner)}{''.join(lines)}}}\n"


def _simple(kind: pa.DataType, column: str) -> str:
    found = _SIMPLE.get(kind)
    if found is None:
        problem = f"column {column!r}: {kind} has no type in Protobuf; cast it, or leave it out"
        raise InvalidSchema(problem, kind=PROTOBUF)
    return found
