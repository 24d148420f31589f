"""The columns of a JSON Schema: each has the type that all values may have, or the schema is refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest

from mqspark.arrow.payload.bodywriting import JsonWriting
from mqspark.arrow.payload.jsonbodies import JsonBodies
from mqspark.arrow.payload.jsonschemacolumns import columns_of_json, json_schema_text_of
from mqspark.errors import InvalidSchema
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import Reference
from tests.unit.arrow.bodies_kit import FULL_COLUMNS, FULL_ROW, read

UTC = pa.timestamp("us", tz="UTC")
TEXT, WHOLE, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
DECIMAL = {"type": "number", "title": "org.apache.kafka.connect.data.Decimal"}


def columns(document: Any, **needed: str) -> pa.Schema:
    others = [(Reference(name, name, 1), JsonSchema(text)) for name, text in needed.items()]
    return columns_of_json(JsonSchema(json.dumps(document), others))


def of(node: Any, **more: Any) -> pa.DataType:
    return columns({"type": "object", "properties": {"a": node}, **more}).field("a").type


def element(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def said(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (TEXT, pa.string()),
        ({"type": "boolean"}, pa.bool_()),
        (WHOLE, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "integer", "format": "int32"}, pa.int32()),
        ({"type": "integer", "connect.type": "int8"}, pa.int8()),
        ({"type": "number", "format": "float"}, pa.float32()),
        (DECIMAL | {"connect.parameters": {"scale": "2"}}, pa.decimal128(38, 2)),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "date-time"}, UTC),
        ({"type": "string", "format": "date-time-local"}, pa.timestamp("us")),
        ({"type": "string", "format": "email"}, pa.string()),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
        ({"type": "array", "items": WHOLE}, element(pa.int64())),
        (said(x=WHOLE), pa.struct([("x", pa.int64())])),
        ({"properties": {"x": WHOLE}}, pa.struct([("x", pa.int64())])),
        ({"type": "object", "additionalProperties": WHOLE}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object", "patternProperties": {"^x": WHOLE}}, pa.map_(pa.string(), pa.int64())),
        ({"type": ["null", "string"]}, pa.string()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"enum": ["a", None]}, pa.string()),
        ({"const": 1}, pa.int64()),
        ({"enum": [1, 1.5]}, pa.float64()),
        ({"type": "string", "format": "date", "enum": ["2024-01-01"]}, pa.date32()),
        ({"anyOf": [NULL, WHOLE]}, pa.int64()),
        ({"oneOf": [TEXT, {"type": "string", "format": "date"}]}, pa.string()),
        (
            {"oneOf": [said(x=WHOLE), said(x={"type": "number"}, y=TEXT)]},
            pa.struct([("x", pa.float64()), ("y", pa.string())]),
        ),
        ({"allOf": [{"type": "number"}, WHOLE]}, pa.int64()),
        ({"allOf": [TEXT, {"format": "date"}]}, pa.date32()),
        (
            {"allOf": [said(x=WHOLE), {"required": ["x"]}, said(y=TEXT)], "type": "object"},
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
        ),
        ({"type": "string", "not": {"const": "x"}, "minLength": 1}, pa.string()),
    ],
    ids=str,
)
def test_types(node: Any, kind: pa.DataType) -> None:
    assert of(node) == kind


def test_references_in_a_schema_and_to_others() -> None:
    here = {"$defs": {"Money": said(amount={"type": "number"})}}
    money = pa.struct([("amount", pa.float64())])
    assert of({"$ref": "#/$defs/Money", "description": "x"}, **here) == money
    assert of({"oneOf": [NULL, {"$ref": "#/$defs/Money"}]}, **here) == money
    document = said(a={"$ref": "Money"}, b={"$ref": "Money"})
    assert (
        columns(document, Money=json.dumps(said(amount=WHOLE))).types
        == [pa.struct([("amount", pa.int64())])] * 2
    )
    whole = {"$ref": "#/$defs/Row", "$defs": {"Row": said(id=WHOLE)}}
    assert columns(whole) == pa.schema([("id", pa.int64())])


CIRCLE = {"$defs": {"Node": said(next={"$ref": "#/$defs/Node"})}}


def chain(length: int, *names: str) -> dict[str, Any]:
    """Definitions each of which has the next one under all of the names."""
    made = {f"d{at}": said(**{key: {"$ref": f"#/$defs/d{at + 1}"} for key in names}) for at in range(length)}
    return {"$defs": made | {f"d{length}": WHOLE}}


@pytest.mark.parametrize(
    ("node", "more", "says"),
    [
        ({}, {}, "at a: it has no type but null"),
        (True, {}, "at a: it has no type but null"),
        (NULL, {}, "at a: it has no type but null"),
        ({"type": "object"}, {}, "at a: an object without properties has no columns"),
        ({"type": "object", "additionalProperties": True}, {}, "at a: an object without properties"),
        ({"type": ["string", "integer"]}, {}, "at a: it is string and int64, which no column can hold"),
        ({"enum": ["a", 1]}, {}, "at a: it is string and int64"),
        ({"anyOf": [TEXT, said(x=WHOLE)]}, {}, "at a: it is string and struct<x: int64>"),
        ({"oneOf": [said(x=WHOLE), said(x=TEXT)]}, {}, r"at a.x: it is int64 and string"),
        ({"allOf": [said(x=WHOLE), said(x=TEXT)]}, {}, r"at a.x: it is int64 and string"),
        ({"enum": [{"x": 1}]}, {}, "at a: the type of values that are listed is needed"),
        ({"type": "array"}, {}, "at a: an array has columns if one schema"),
        ({"type": "array", "items": [WHOLE, TEXT]}, {}, "at a: an array has columns if one schema"),
        ({"type": "array", "items": {}}, {}, r"at a\[\]: it has no type"),
        (said(x={}), {}, r"at a\.x: it has no type"),
        ({"type": "object", "additionalProperties": {"type": ["string", "boolean"]}}, {}, r"at a{}: it is"),
        (DECIMAL | {"connect.parameters": {"scale": "99"}}, {}, "at a: a decimal has up to 38 digits"),
        ({"$ref": "#/$defs/Node"}, CIRCLE, "at a.next: the type contains itself"),
        ({"$ref": "#"}, {}, "at a: the type contains itself"),
        ({"$ref": "#/$defs/d0"}, chain(20, "x", "y"), "more than 10000 columns"),
        ({"$ref": "#/$defs/d0"}, chain(60, "x"), "more than 60 types inside each other"),
    ],
    ids=itertools.count(),
)
def test_what_has_no_columns_is_refused_where_it_is(node: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSchema, match=says):
        of(node, **more)


@pytest.mark.parametrize("document", [True, {}, TEXT, {"type": "array", "items": said(x=WHOLE)}], ids=str)
def test_columns_come_from_an_object(document: Any) -> None:
    with pytest.raises(InvalidSchema, match=r"columns come from an object|it has no type"):
        columns(document)


def test_columns_and_rows_go_there_and_back() -> None:
    text = json_schema_text_of(FULL_COLUMNS, "Row")
    schema = JsonSchema(text)
    assert columns_of_json(schema) == FULL_COLUMNS
    nothing = dict.fromkeys(FULL_COLUMNS.names)
    rows = pa.RecordBatch.from_pylist([FULL_ROW, nothing], schema=FULL_COLUMNS)
    bodies = JsonWriting().bodies(rows)
    assert [schema.check()(body) for body in bodies] == [None, None]
    assert read(JsonBodies(columns_of_json(schema)), [*bodies]) == [FULL_ROW, nothing]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (pa.map_(pa.int64(), pa.string()), "at a: map"),
        (element(pa.duration("us")), r"at a\[\]: duration"),
        (pa.struct([]), "at a: struct<>"),
    ],
    ids=str,
)
def test_columns_without_a_json_schema(kind: pa.DataType, says: str) -> None:
    with pytest.raises(InvalidSchema, match=f"{says}.* has no type in JSON Schema"):
        json_schema_text_of(pa.schema([("a", kind)]), "Row")
