"""Payloads as the Python values that they stand for, and back.

| language | value |
|---|---|
| Avro | as fastavro has it: dict, ``Decimal``, ``datetime`` (aware for timestamps, naive for local ones) |
| JSON | as msgspec has it; written are also dataclasses and msgspec's structs |
| Protobuf | a message; written is also a dict, as protobuf's ``json_format`` takes it |

What is written fits the schema, and what is read is checked before it is decoded. Must not know prefixes or registries.
"""

from __future__ import annotations

import base64
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mqspark.base.jsonvalues import decode_json
from mqspark.errors import InvalidMessage, InvalidSchema
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import AVRO, PROTOBUF, Check, Schema, needs_extra
from mqspark.schemas.protobuf.protoschema import ProtobufSchema

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

_WRONG = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, EOFError, RecursionError)
"""What the libraries raise for a value or a payload that does not fit."""


class PayloadValues(ABC):
    """The values of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @abstractmethod
    def write(self, value: Any) -> tuple[tuple[int, ...], bytes]:
        """The indexes of a Protobuf message, and the payload. Raises InvalidMessage."""

    @abstractmethod
    def read(self, payload: bytes, indexes: Sequence[int] = ()) -> Any:
        """Raises InvalidMessage."""


def values_of(schema: Schema, reader: Schema | type[ProtobufMessage] | None = None) -> PayloadValues:
    """``reader``: what a program expects to read: an Avro schema, to which values are resolved, or a class of messages.
    Raises InvalidSchema if it is of another language than ``schema``, or does not go together with it; ConfigError
    without the extra."""
    if isinstance(schema, ProtobufSchema) and not isinstance(reader, Schema):
        return _ProtobufValues(schema, reader)
    if isinstance(schema, JsonSchema) and (reader is None or isinstance(reader, JsonSchema)):
        return _JsonValues(schema)
    if isinstance(schema, AvroSchema) and (reader is None or isinstance(reader, AvroSchema)):
        return _AvroValues(schema, reader)
    expected = reader.kind if isinstance(reader, Schema) else PROTOBUF
    raise InvalidSchema(f"it is a schema of type {schema.kind}, not {expected}", kind=schema.kind)


def _checked(check: Check, payload: bytes, what: str) -> bytes:
    flaw = check(payload)
    if flaw is not None:
        raise InvalidMessage(f"the {what} does not fit its schema: {flaw}", field="value")
    return payload


def _unfit(what: str, error: Exception) -> InvalidMessage:
    detail = str(error) or type(error).__name__
    return InvalidMessage(f"the {what} does not fit its schema: {detail}", field="value")


class _JsonValues(PayloadValues):
    def __init__(self, schema: JsonSchema) -> None:
        super().__init__(schema)
        self._check = schema.check()

    def write(self, value: Any) -> tuple[tuple[int, ...], bytes]:
        """As ``PayloadValues.write``."""
        try:
            payload = msgspec.json.encode(value)
        except _WRONG as error:
            raise _unfit("value", error) from None
        return (), _checked(self._check, payload, "value")

    def read(self, payload: bytes, indexes: Sequence[int] = ()) -> Any:
        """As ``PayloadValues.read``."""
        return decode_json(_checked(self._check, payload, "body"))


class _AvroValues(PayloadValues):
    def __init__(self, schema: AvroSchema, reader: AvroSchema | None) -> None:
        super().__init__(schema)
        try:
            import fastavro
            from fastavro.read import SchemaResolutionError
        except ImportError as error:
            raise needs_extra(AVRO, error) from None
        self._write, self._read = fastavro.schemaless_writer, fastavro.schemaless_reader
        self._wrong = (*_WRONG, SchemaResolutionError)
        self._check = schema.check()
        if reader is not None and (problems := reader.incompatibilities_of(schema, "new", "old")):
            raise InvalidSchema(f"it is not compatible with the reader's: {problems[0][2]}", kind=AVRO)
        self._written = _of_fastavro(schema)
        self._expected = None if reader is None else _of_fastavro(reader)

    def write(self, value: Any) -> tuple[tuple[int, ...], bytes]:
        """As ``PayloadValues.write``. A record has no fields that its schema lacks; one without a value has a
        default."""
        out = io.BytesIO()
        try:
            self._write(out, self._written, value, strict_allow_default=True)
        except _WRONG as error:
            raise _unfit("value", error) from None
        return (), _checked(self._check, out.getvalue(), "value")

    def read(self, payload: bytes, indexes: Sequence[int] = ()) -> Any:
        """As ``PayloadValues.read``."""
        _checked(self._check, payload, "body")
        try:
            return self._read(io.BytesIO(payload), self._written, self._expected)
        except self._wrong as error:
            raise _unfit("body", error) from None


def _of_fastavro(schema: AvroSchema) -> Any:
    import fastavro

    names: dict[str, Any] = {}
    for each in (*schema.all_needed.values(), schema):
        if isinstance(each, AvroSchema):
            parsed = fastavro.parse_schema(json.loads(each.sound_text), named_schemas=names)
    return parsed


class _ProtobufValues(PayloadValues):
    def __init__(self, schema: ProtobufSchema, reader: type[ProtobufMessage] | None) -> None:
        super().__init__(schema)
        from google.protobuf import json_format
        from google.protobuf.message import Message as ProtobufMessage
        from google.protobuf.message_factory import GetMessageClass

        self._base = ProtobufMessage
        self._json = json_format
        self._class_of = GetMessageClass
        self._reader = reader
        self._schema = schema
        self._wrong = (*_WRONG, json_format.Error, *_protobuf_errors())

    def write(self, value: Any) -> tuple[tuple[int, ...], bytes]:
        """As ``PayloadValues.write``. A dict is the message of the class that is read, or the first of the file."""
        schema = self._schema
        try:
            if not isinstance(value, self._base):
                if not isinstance(value, Mapping):
                    raise TypeError(f"a message or a dict is written, not {type(value).__name__}")
                name = schema.message_name(()) if self._reader is None else self._reader.DESCRIPTOR.full_name
                made = self._class_of(schema.pool.FindMessageTypeByName(name))()
                value = self._json.ParseDict(value, made)
            kind = type(value)  # a field may have the name of a method
            indexes = _indexes_of(schema, kind.DESCRIPTOR.full_name)
            payload = kind.SerializeToString(value)
        except self._wrong as error:
            raise _unfit("value", error) from None
        return indexes, _checked(schema.check(indexes), payload, "value")

    def read(self, payload: bytes, indexes: Sequence[int] = ()) -> Any:
        """As ``PayloadValues.read``."""
        try:
            name = self._schema.message_name(indexes)
            _checked(self._schema.check(indexes), payload, "body")
            if self._reader is None:
                return self._class_of(self._schema.pool.FindMessageTypeByName(name)).FromString(payload)
            if name != self._reader.DESCRIPTOR.full_name:
                raise InvalidMessage(
                    f"the body is a {name}, not a {self._reader.DESCRIPTOR.full_name}", field="value"
                )
            return self._reader.FromString(payload)
        except InvalidMessage:
            raise
        except self._wrong as error:
            raise _unfit("body", error) from None


def _protobuf_errors() -> tuple[type[Exception], ...]:
    from google.protobuf.message import DecodeError, EncodeError

    return DecodeError, EncodeError


def _indexes_of(schema: ProtobufSchema, name: str) -> tuple[int, ...]:
    """Raises ValueError if the file has no message of this full name."""
    package = schema.file.package
    start = f"{package}." if package else ""
    messages: Any = schema.file.message_type
    indexes: list[int] = []
    for part in name.removeprefix(start).split("."):
        place = next((at for at, each in enumerate(messages) if each.name == part), None)
        if place is None or not name.startswith(start):
            raise ValueError(f"its schema has no message {name}")
        indexes.append(place)
        messages = messages[place].nested_type
    return tuple(indexes)


def schema_of_file(file: Any) -> tuple[str, list[Any]]:
    """The text of a FileDescriptor, and the files that it imports, without protobuf's own."""
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(found)
    text = base64.b64encode(found.SerializeToString(deterministic=True)).decode()
    return text, [each for each in file.dependencies if not each.name.startswith("google/protobuf/")]
