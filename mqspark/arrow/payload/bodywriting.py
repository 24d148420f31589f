"""Typed columns to bodies: each row to JSON by msgspec, or to Avro by fastavro (the other way of ``jsonbodies`` and
``avrobodies``). Must not know messages or Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from mqspark.arrow.payload.avrocolumns import AvroColumns, members
from mqspark.arrow.payload.jsonschemacolumns import columns_of_json
from mqspark.errors import InvalidMessage, InvalidSchema
from mqspark.schemas.avro.avrotypes import AvroType, all_types
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import AVRO, JSON, needs_extra

_WRONG = (ValueError, TypeError, OverflowError, LookupError, AttributeError, pa.ArrowException)
"""What fastavro and Arrow raise for a value that has no bytes."""


class JsonWriting:
    """JSON has no NaN: it becomes null."""

    def __init__(self, schema: JsonSchema | None = None, prefix: bytes = b"") -> None:
        """``schema``: what bodies are checked by. A null that it does not require is left out."""
        encode = msgspec.json.Encoder(decimal_format="number").encode
        self._encode: Callable[[Any], bytes] = (lambda row: prefix + encode(row)) if prefix else encode
        self._prefix = prefix
        self._schema = schema
        if schema is not None:
            self._check = schema.check()
            self._required = frozenset(required_of(schema))

    def _checked(self, row: dict[str, Any]) -> bytes:
        kept = {name: each for name, each in row.items() if each is not None or name in self._required}
        body = self._encode(kept)
        if (flaw := self._check(body[len(self._prefix) :])) is not None:
            raise ValueError(str(flaw))
        return body

    def bodies(self, rows: pa.RecordBatch) -> list[bytes]:
        """Raises InvalidMessage."""
        return write_rows(rows, self._encode if self._schema is None else self._checked)


class AvroWriting:
    def __init__(self, texts: Sequence[str], prefix: bytes) -> None:
        """``texts``: of the schema, the last one, and of those that it needs. Raises InvalidSchema, and ConfigError
        without the extra."""
        try:
            import fastavro
            from fastavro.schema import SchemaParseException
        except ImportError as error:
            raise needs_extra(AVRO, error) from None
        named: dict[str, Any] = {}
        try:
            for text in texts:
                self._schema = fastavro.parse_schema(json.loads(text), named_schemas=named)
        except SchemaParseException as error:
            raise InvalidSchema(str(error), kind=AVRO) from None
        self._write = fastavro.schemaless_writer
        self._prefix = prefix

    def bodies(self, rows: pa.RecordBatch) -> list[bytes]:
        """Raises InvalidMessage."""
        return write_rows(rows, self._body)

    def _body(self, row: dict[str, Any]) -> bytes:
        from io import BytesIO

        out = BytesIO()
        out.write(self._prefix)
        self._write(out, self._schema, row)
        return out.getvalue()


def write_rows(rows: pa.RecordBatch, encode: Callable[[Any], bytes]) -> list[bytes]:
    """``encode``: of the values of a row by name. Raises InvalidMessage."""
    try:
        columns = [
            (name, _values(column)) for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        names = [name for name, _ in columns]
        return [
            encode(dict(zip(names, values, strict=True)))
            for values in zip(*(values for _, values in columns), strict=True)
        ]
    except _WRONG as error:
        raise InvalidMessage(
            f"payloadFormat: a row does not fit the schema ({type(error).__name__}: {error})", field="value"
        ) from None


def _values(column: pa.Array) -> list[Any]:
    """With dicts for maps, inside of others, too."""
    plain = _plain(column.type)
    found = column.to_pylist()
    return found if plain is None else [None if each is None else plain(each) for each in found]


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes dicts of maps in a value; None if the type has none."""
    if pa.types.is_map(kind):
        item = _plain(kind.item_type) or _same
        return lambda value: {key: None if each is None else item(each) for key, each in value}
    if pa.types.is_list(kind):
        inner = _plain(kind.value_type)
        if inner is None:
            return None
        return lambda value: [None if each is None else inner(each) for each in value]
    if pa.types.is_struct(kind):
        makes = {each.name: made for each in kind if (made := _plain(each.type)) is not None}
        if not makes:
            return None
        return lambda value: {
            name: makes[name](each) if name in makes and each is not None else each
            for name, each in value.items()
        }
    return None


def _same(value: Any) -> Any:
    return value


def check_types(columns: pa.Schema, fields: pa.Schema, kind: str) -> None:
    """Whether each column is one of a schema's ``fields``. Raises InvalidSchema."""
    for column in columns:
        at = fields.get_field_index(column.name)
        if at < 0:
            raise InvalidSchema(f"it has no field {column.name!r}", kind=kind)
        if fields.field(at).type != column.type:
            raise InvalidSchema(
                f"field {column.name!r} is {fields.field(at).type}, and the column {column.type}: cast it",
                kind=kind,
            )


def check_json_columns(schema: JsonSchema, columns: pa.Schema) -> None:
    """Whether rows with these columns can be written. Raises InvalidSchema."""
    check_types(columns, columns_of_json(schema), JSON)
    for name in required_of(schema):
        if name not in columns.names:
            raise InvalidSchema(f"there is no column for field {name!r}, which is required", kind=JSON)


def required_of(schema: JsonSchema) -> list[str]:
    """The fields of an object that the schema itself requires."""
    found = schema.document.get("required") if isinstance(schema.document, dict) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def check_columns(root: AvroType, columns: pa.Schema) -> None:
    """Whether rows with these columns can be written. Raises InvalidSchema."""
    if root.type != "record":
        raise InvalidSchema(f"columns become a record, not {root.fullname}", kind=AVRO)
    check_types(columns, pa.schema(list(AvroColumns().type_of(root))), AVRO)
    for field in root.fields:
        if field.name not in columns.names and not field.has_default:
            raise InvalidSchema(
                f"there is no column for field {field.name!r}, which has no default", kind=AVRO
            )
    for each in all_types(root):
        if each.type == "union" and _is_wide(each):
            raise InvalidSchema("a union of several types is not written", kind=AVRO)


def _is_wide(of: AvroType) -> bool:
    return len(members(of)) > 1 and bool(pa.types.is_struct(AvroColumns().type_of(of)))


_SIMPLE: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", tz="UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_text_of(columns: pa.Schema, name: str) -> str:
    """A schema for rows with these columns: each field may be null, and is by default. Raises InvalidSchema."""
    return json.dumps(_record(list(columns), name))


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": each.name, "type": ["null", _avro(each.type, f"{name}_{each.name}")], "default": None}
            for each in fields
        ],
    }


def _avro(kind: pa.DataType, name: str) -> Any:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _record(list(kind), name)
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro(kind.value_type, name)]}
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "map", "values": ["null", _avro(kind.item_type, name)]}
    raise InvalidSchema(f"{kind} has no type in Avro; cast it, or leave it out", kind=AVRO)
