"""The columns of a JSON Schema, and a JSON Schema of columns.

| JSON Schema | column |
|---|---|
| string, boolean | the same |
| string of format date, date-time, date-time-local | date, timestamp, timestamp_ntz |
| string with contentEncoding base64, or connect.type bytes | binary |
| integer; with connect.type or format int8, int16, int32 | bigint; tinyint, smallint, int |
| number; with connect.type float32 or format float | double; float |
| number with the title and the parameters of Connect's Decimal | decimal |
| array with one schema for all items | array |
| object with properties | struct |
| object with additionalProperties, or patternProperties, of one type | map with text keys |
| enum, const without a type | the type of the values |
| several types, anyOf, oneOf | the type that they have in common; null is nullable; integer with number is double |
| allOf, $ref with keywords beside it | what all of them say; the properties of objects are joined |

Objects in anyOf and oneOf become one struct with the properties of all. Not a column: what says no type, has several
of them, or contains itself; an array with a schema for each place; an object without properties. Other keywords say
which values there are, not of which type they are: readers ignore them, and brokers may check them. Connect's words
(``connect.type``) are those of Confluent's converters. Must not know bodies.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from mqspark.arrow.payload.bodyrows import MAX_COLUMNS, MAX_DIGITS
from mqspark.errors import InvalidSchema
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import JSON

_MAX_DEPTH = 60
_CONNECT = "connect.type"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_PARAMETERS, _PRECISION = "connect.parameters", "connect.decimal.precision"
_UTC = pa.timestamp("us", tz="UTC")
_LOCAL = pa.timestamp("us")
_FORMATS = {"date": pa.date32(), "date-time": _UTC, "date-time-local": _LOCAL}
_INTEGERS = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32()}
_NO_TYPE, _NO_PROPERTIES = pa.null(), pa.struct([])
_KEYWORDS = {
    "object": {"properties", "additionalProperties", "patternProperties"},
    "array": {"items", "prefixItems"},
    "string": {"pattern", "minLength", "maxLength", "contentEncoding", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""What says the type where no ``type`` does."""


def columns_of_json(schema: JsonSchema) -> pa.Schema:
    """Raises InvalidSchema."""
    found = _JsonColumns(schema).type_of(schema.document, "", 0)
    if not pa.types.is_struct(found):
        raise InvalidSchema("columns come from an object with properties", kind=JSON)
    return pa.schema(list(found))


class _JsonColumns:
    def __init__(self, schema: JsonSchema) -> None:
        self._documents = schema.documents
        self._inside: list[int] = []
        """Schemas that the one looked at is in, by identity."""
        self._found = 0

    def type_of(self, node: Any, path: str, depth: int) -> pa.DataType:
        """The type of a column. Raises InvalidSchema for a schema that is none."""
        found = self._said(node, path, depth)
        if found == _NO_TYPE:
            raise InvalidSchema("it has no type but null", kind=JSON, where=path)
        if found == _NO_PROPERTIES:
            raise InvalidSchema("an object without properties has no columns", kind=JSON, where=path)
        return found

    def _said(self, node: Any, path: str, depth: int) -> pa.DataType:
        """What a schema says of the type; ``_NO_TYPE`` if it says nothing, or null."""
        self._found += 1
        if self._found > MAX_COLUMNS:
            raise InvalidSchema(f"more than {MAX_COLUMNS} columns, nested ones included", kind=JSON)
        if depth > _MAX_DEPTH:
            raise InvalidSchema(f"more than {_MAX_DEPTH} types inside each other", kind=JSON, where=path)
        if not isinstance(node, dict):
            return _NO_TYPE
        if id(node) in self._inside:
            raise InvalidSchema("the type contains itself, which no columns can hold", kind=JSON, where=path)
        self._inside.append(id(node))
        parts = [self._said(each, path, depth + 1) for each in self._documents.targets(node)]
        parts += [self._said(each, path, depth + 1) for each in _listed(node, "allOf")]
        for keyword in ("anyOf", "oneOf"):
            choices = [self._said(each, path, depth + 1) for each in _listed(node, keyword)]
            parts.append(_joined(choices, path, _either))
        parts.append(self._own(node, path, depth))
        self._inside.pop()
        return _joined(parts, path, _both)

    def _own(self, node: dict[str, Any], path: str, depth: int) -> pa.DataType:
        """What its own keywords say."""
        named = node.get("type")
        if named is None:
            values = [node["const"]] if "const" in node else node.get("enum")
            if isinstance(values, list):
                return _joined([_type_of_value(each, path) for each in values], path, _either)
            named = [kind for kind, keywords in _KEYWORDS.items() if not keywords.isdisjoint(node)][:1]
        kinds = named if isinstance(named, list) else [named]
        return _joined([self._named(kind, node, path, depth) for kind in kinds], path, _either)

    def _named(self, kind: object, node: dict[str, Any], path: str, depth: int) -> pa.DataType:
        if kind == "object":
            return self._object(node, path, depth)
        if kind == "array":
            if not isinstance(items := node.get("items"), dict) or "prefixItems" in node:
                problem = "an array has columns if one schema, items, says the type of all items"
                raise InvalidSchema(problem, kind=JSON, where=path)
            return pa.list_(pa.field("element", self.type_of(items, f"{path}[]", depth + 1)))
        if kind == "string":
            return _string(node)
        if kind == "integer":
            return _INTEGERS.get(_words(node), pa.int64())
        if kind == "number":
            return _number(node, path)
        return pa.bool_() if kind == "boolean" else _NO_TYPE

    def _object(self, node: dict[str, Any], path: str, depth: int) -> pa.DataType:
        properties = node.get("properties")
        if isinstance(properties, dict) and properties:
            fields = [
                pa.field(name, self.type_of(each, f"{path}.{name}" if path else name, depth + 1))
                for name, each in properties.items()
            ]
            return pa.struct(fields)
        patterns = node.get("patternProperties")
        values = [*patterns.values()] if isinstance(patterns, dict) else []
        if isinstance(more := node.get("additionalProperties"), dict):
            values.append(more)
        inside = f"{path}{{}}"
        found = _joined([self._said(each, inside, depth + 1) for each in values], inside, _either)
        if found == _NO_TYPE:
            return _NO_PROPERTIES
        return pa.map_(pa.string(), found)


def _listed(node: dict[str, Any], keyword: str) -> list[Any]:
    found = node.get(keyword)
    return found if isinstance(found, list) else []


def _words(node: dict[str, Any]) -> str:
    """Which number it is."""
    return str(node.get(_CONNECT) or node.get("format"))


def _string(node: dict[str, Any]) -> pa.DataType:
    if node.get("contentEncoding") == "base64" or node.get(_CONNECT) == "bytes":
        return pa.binary()
    return _FORMATS.get(str(node.get("format")), pa.string())


def _number(node: dict[str, Any], path: str) -> pa.DataType:
    if node.get("title") == _DECIMAL:
        parameters = node.get(_PARAMETERS)
        texts = parameters if isinstance(parameters, dict) else {}
        try:
            scale, precision = int(texts.get("scale", 0)), int(texts.get(_PRECISION, MAX_DIGITS))
        except (TypeError, ValueError):
            scale, precision = 0, 0
        if not 0 <= scale <= precision <= MAX_DIGITS or not precision:
            problem = f"a decimal has up to {MAX_DIGITS} digits, and no more of them behind the point"
            raise InvalidSchema(problem, kind=JSON, where=path)
        return pa.decimal128(precision, scale)
    return pa.float32() if _words(node) in ("float32", "float") else pa.float64()


def _type_of_value(value: object, path: str) -> pa.DataType:
    if value is None:
        return _NO_TYPE
    for kind, found in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64()), (str, pa.string())):
        if isinstance(value, kind):
            return found
    raise InvalidSchema("the type of values that are listed is needed, too", kind=JSON, where=path)


_Choice = Callable[[pa.DataType, pa.DataType], pa.DataType | None]


def _joined(kinds: list[pa.DataType], path: str, choose: _Choice) -> pa.DataType:
    """One type for what several schemas say. ``choose``: of two types; None if they contradict each other."""
    told = [each for each in kinds if each != _NO_TYPE]
    if len(told) > 1:
        told = list(dict.fromkeys(told))
        told = [each for each in told if each != _NO_PROPERTIES] or told[:1]
    if not told:
        return _NO_TYPE
    if len(told) > 1 and all(map(pa.types.is_struct, told)):
        fields: dict[str, list[pa.DataType]] = {}
        for each in told:
            for field in each:
                fields.setdefault(field.name, []).append(field.type)
        return pa.struct(
            [
                (name, _joined(each, f"{path}.{name}" if path else name, choose))
                for name, each in fields.items()
            ]
        )
    found = told[0]
    for each in told[1:]:
        chosen = choose(found, each)
        if chosen is None:
            raise InvalidSchema(f"it is {found} and {each}, which no column can hold", kind=JSON, where=path)
        found = chosen
    return found


def _either(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Holds the values of both."""
    if _is_number(one) and _is_number(other):
        return _wider(one, other) if pa.types.is_integer(one) == pa.types.is_integer(other) else pa.float64()
    return pa.string() if _is_text(one) and _is_text(other) else None


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Says the most of values that both allow."""
    if _is_number(one) and _is_number(other):
        whole = [each for each in (one, other) if pa.types.is_integer(each)]
        return whole[0] if len(whole) == 1 else one if _wider(one, other) == other else other
    if _is_text(one) and _is_text(other) and pa.string() in (one, other):
        return other if one == pa.string() else one
    return None


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return one if one.bit_width >= other.bit_width else other


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    """A text in JSON."""
    return kind in (pa.string(), pa.binary(), *_FORMATS.values())


_SIMPLE: dict[pa.DataType, dict[str, Any]] = {
    pa.bool_(): {"type": "boolean"},
    **{kind: {"type": "integer", _CONNECT: name} for name, kind in _INTEGERS.items()},
    pa.int64(): {"type": "integer"},
    pa.float32(): {"type": "number", _CONNECT: "float32"},
    pa.float64(): {"type": "number"},
    pa.string(): {"type": "string"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
    **{kind: {"type": "string", "format": name} for name, kind in _FORMATS.items()},
}


def json_schema_text_of(columns: pa.Schema, title: str) -> str:
    """A schema for rows with these columns, each of which may be null. Raises InvalidSchema."""
    return json.dumps({"title": title, **_object_of(list(columns))})


def _object_of(fields: list[pa.Field]) -> dict[str, Any]:
    return {"type": "object", "properties": {each.name: _nullable(each.type, each.name) for each in fields}}


def _nullable(kind: pa.DataType, path: str) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _json_of(kind, path)]}


def _json_of(kind: pa.DataType, path: str) -> dict[str, Any]:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_decimal(kind):
        parameters = {"scale": str(kind.scale), _PRECISION: str(kind.precision)}
        return {"type": "number", "title": _DECIMAL, _CONNECT: "bytes", _PARAMETERS: parameters}
    if pa.types.is_struct(kind) and kind.num_fields:
        return _object_of(list(kind))
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type, f"{path}[]")}
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "object", "additionalProperties": _nullable(kind.item_type, f"{path}{{}}")}
    problem = f"{kind} has no type in JSON Schema; cast it, or leave it out"
    raise InvalidSchema(problem, kind=JSON, where=path)
