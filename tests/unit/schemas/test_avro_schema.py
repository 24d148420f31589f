"""Avro: what is a schema, how it is printed, and which payloads fit it."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.avro.avrocheck import MAX_EMPTY_ITEMS, MAX_EMPTY_VALUES, MAX_NESTING
from mqspark.schemas.parsedschema import AVRO, MAX_SCHEMA_DEPTH, MAX_TEXT_BYTES, Reference, Schema
from mqspark.schemas.parsing import parse

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "doc": "what a customer wants",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string", "default": "none"},
        {"name": "parent", "type": ["null", "Order"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "prices",
            "type": {
                "type": "array",
                "items": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        },
        {"name": "sum", "type": ["null", "double", {"type": "fixed", "name": "Sum", "size": 4}]},
    ],
}
VALUE = {
    "id": 300,
    "name": "Käse",
    "parent": {"id": 1, "name": "", "parent": None, "state": "NEW", "tags": {}, "prices": [], "sum": 1.5},
    "state": "PAID",
    "tags": {"a": 1, "b": -70_000},
    "prices": [Decimal("1.50"), Decimal("-3.00")],
    "sum": None,
}


def avro(found: Any, *needed: tuple[Reference, Schema]) -> Schema:
    return parse(AVRO, json.dumps(found), needed)


def written(found: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(found))), value)
    return out.getvalue()


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{index}", "type": each} for index, each in enumerate(fields)],
    }


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"type": "string"}', '"string"'),
        ("string", '"string"'),
        (' { "type" : {"type":"int", "x": [1, {"b": 1}]} }', '{"type":"int","x":[1,{"b":1}]}'),
        (
            '{"namespace": "a.b", "fields": [], "aliases": ["Old", "c.Older"], "name": "N", "z": 1, "type": "record"}',
            '{"type":"record","name":"N","namespace":"a.b","fields":[],"z":1,"aliases":["Old","c.Older"]}',
        ),
        (
            '{"name": "a.N", "type": "record", "fields": [{"type": {"name": "M", "type": "fixed", "size": 2}, "name":'
            ' "f", "order": "ascending"}, {"name": "g", "type": "a.M", "default": "\\u00ff\\u0000",'
            ' "order": "ignore"}]}',
            '{"type":"record","name":"N","namespace":"a","fields":[{"name":"f","type":{"type":"fixed","name":"M",'
            '"size":2}},{"name":"g","type":"M","default":"ÿ\\u0000","order":"ignore"}]}',
        ),
        (
            '{"type":"error","name":"a.E","fields":[{"name":"f","type":{"type":"enum","namespace":"","name":"S",'
            '"symbols":["A"],"default":"A","doc":"d"}}]}',
            '{"type":"record","name":"E","namespace":"a","fields":[{"name":"f","type":{"type":"enum","name":"S",'
            '"namespace":"","doc":"d","symbols":["A"],"default":"A"}}]}',
        ),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    schema = parse(AVRO, text)
    assert schema.canonical == canonical
    assert parse(AVRO, canonical) == schema


def test_what_makes_a_schema_another_one() -> None:
    schema = avro(ORDER)
    assert parse(AVRO, json.dumps(ORDER, indent=3)) == schema
    assert avro(dict(reversed(ORDER.items()))) == schema
    assert avro({**ORDER, "doc": "other"}) != schema
    assert avro({**ORDER, "fields": ORDER["fields"][::-1]}) != schema  # type: ignore[index]
    one, other = ({"type": "int", **dict.fromkeys(names, 1)} for names in ("ab", "ba"))
    assert avro(one) != avro(other)
    assert avro(one).normalized == avro(other).normalized


def test_references_are_part_of_what_a_schema_is() -> None:
    address = avro(record("string", name="shop.Address"))
    text = {**record("shop.Address"), "namespace": "shop"}
    first = avro(text, (Reference("shop.Address", "address", 1), address))
    assert "Address" in first.canonical
    assert '"fields":[{"name":"f0","type":"Address"}]' in first.canonical
    assert first != avro(text, (Reference("shop.Address", "address", 2), address))
    assert first.check()(b"\2x") is None
    assert str(first.check()(b"\2\xff")) == "field f0.f0: the text is not UTF-8 at its byte 0"
    with pytest.raises(InvalidSchema, match="twice"):
        avro(record(name="shop.Address"), (Reference("shop.Address", "address", 1), address))
    with pytest.raises(
        InvalidSchema, match=r"type 'shop\.Address' is neither defined before nor in a reference"
    ):
        avro(text)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("nothing", "type 'nothing' is neither defined before nor in a reference"),
        (7, "a type is a name, an object or a list, not 7"),
        (["int", "int"], "a union has int twice"),
        (["int", ["string"]], "a union is directly inside a union"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "a union has array twice"),
        ({"type": "array"}, "'array' needs 'items'"),
        ({"type": "map"}, "'map' needs 'values'"),
        ({"type": "fixed", "name": "f", "size": -1}, "size of fixed f is -1"),
        ({"type": "fixed", "name": "f", "size": True}, "size of fixed f is True"),
        ({"type": "enum", "name": "e", "symbols": ["A", "A"]}, "symbol twice"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B C"]}, "'B C'"),
        ({"type": "enum", "name": "e", "symbols": ["A"], "default": "B"}, "none of its symbols"),
        ({"type": "record", "name": "9", "fields": []}, "'9'"),
        ({"type": "record", "name": "a..b", "fields": []}, "''"),
        ({"type": "record", "name": "int", "fields": []}, "primitive"),
        ({"type": "record", "name": "r", "fields": {}}, "are a list"),
        ({"type": "record", "name": "r", "fields": [{"type": "int"}]}, "needs 'name'"),
        ({"type": "what", "name": "r"}, "not 'what'"),
        (record("int", record("int", name="R")), "R is defined twice"),
        ({**record(), "aliases": "x"}, "no list of names"),
        ({**record(), "doc": 1}, "no text"),
        (
            {**record(), "fields": [{"name": "f", "type": "int"}, {"name": "f", "type": "int"}]},
            "field f twice",
        ),
        (
            {**record(), "fields": [{"name": "f", "type": "int", "default": "1"}]},
            "default '1' does not fit the type int",
        ),
        ({**record(), "fields": [{"name": "f", "type": "int", "default": 1 << 31}]}, "does not fit"),
        ({**record(), "fields": [{"name": "f", "type": "bytes", "default": "€"}]}, "does not fit"),
        ({**record(), "fields": [{"name": "f", "type": "int", "order": "up"}]}, "order of a field is 'up'"),
    ],
)
def test_what_is_no_schema(found: Any, problem: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        avro(found)
    assert problem in str(caught.value)
    assert caught.value.kind == AVRO


@pytest.mark.parametrize(
    "text", ["", "{", '{"type":"int","type":"long"}', '{"type":"int","a":NaN}', '"\\ud800"', "\ud800"]
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(AVRO, text)


def test_bounds_come_first() -> None:
    deep = '{"type":"array","items":' * MAX_SCHEMA_DEPTH
    assert parse(AVRO, deep[24:] + '"int"' + "}" * (MAX_SCHEMA_DEPTH - 1)).check()(b"\0") is None
    fields = ",".join(f'{{"name":"f{n}","type":"int"}}' for n in range(30_000))
    for text in (
        " " * MAX_TEXT_BYTES + '"int"',
        "é" * (MAX_TEXT_BYTES // 2 + 1),
        deep + deep + '"int"' + "}" * (2 * MAX_SCHEMA_DEPTH),
        "[" * 100_000,
        f'{{"type":"record","name":"R","fields":[{fields}]}}',
    ):
        with pytest.raises(SchemaTooLarge):
            parse(AVRO, text)


def test_types_that_nest_by_their_names() -> None:
    chain = [record(name="R0"), *(record(f"R{n}", name=f"R{n + 1}") for n in range(2_000))]
    with pytest.raises(SchemaTooLarge, match="by their names"):
        avro(chain)


def test_a_payload_that_fits() -> None:
    payload = written(ORDER, VALUE)
    check = avro(ORDER).check()
    assert check(payload) is None
    assert check(memoryview(payload)) is None
    for end in range(len(payload)):
        assert "ends early" in str(check(payload[:end]))
    assert str(check(payload + b"\0")) == "the value ends 1 bytes before the payload"


@pytest.mark.parametrize(
    ("of", "payload", "flaw"),
    [
        (record("boolean"), b"\2", "field f0: byte 2 is no boolean"),
        (record("int"), b"\x80\x80\x80\x80\x10", "field f0: 2147483648 is no int"),
        (record("long"), b"\xff" * 11, "field f0: a number has more than ten bytes"),
        (record("long"), b"\xff" * 9 + b"\2", "field f0: a number has more than 64 bits"),
        (record("string"), b"\1", "field f0: a length is negative"),
        (record("bytes"), b"\x83\1", "field f0: a length is -66"),
        (record("float"), b"\0\0\0", "field f0: the payload ends early"),
        (record(["null", "int"]), b"\4", "field f0: 2 is none of the 2 types null, int"),
        (record(["null", "int"]), b"\1", "field f0: -1 is none of the 2 types null, int"),
        (
            record({"type": "enum", "name": "E", "symbols": ["A"]}),
            b"\2",
            "field f0: 1 is none of the 1 symbols of E",
        ),
        (
            record({"type": "enum", "name": "E", "symbols": ["A"]}),
            b"\1",
            "field f0: -1 is none of the 1 symbols of E",
        ),
        (
            record({"type": "array", "items": record("int", "string", name="I")}),
            b"\4\0\2a\0\2\xff\0",
            "field f0[1].f1: the text is not UTF-8 at its byte 0",
        ),
        (record({"type": "map", "values": "boolean"}), b"\2\2k\7\0", "field f0['k']: byte 7 is no boolean"),
    ],
)
def test_the_field_that_does_not_fit(of: Any, payload: bytes, flaw: str) -> None:
    assert str(avro(of).check()(payload)) == flaw


def test_blocks_with_their_size() -> None:
    check = avro(record({"type": "array", "items": "int"}, {"type": "map", "values": "int"})).check()
    assert check(b"\3\4\2\4" + b"\0" + b"\1\6\2k\2" + b"\0") is None


def test_items_of_no_bytes_are_counted_not_visited() -> None:
    check = avro(record({"type": "array", "items": record("null", name="Empty")})).check()
    few = avro("long")
    assert few.check()(b"\x02") is None
    assert check(b"\x80\x80\x04\0") is None
    huge = b"\xfe" + b"\xff" * 8 + b"\1" + b"\0"
    assert f"items of no bytes, more than {MAX_EMPTY_ITEMS}" in str(check(huge))


def test_values_of_no_bytes_are_counted_in_all() -> None:
    """A reader makes an object of each, and few bytes, or none, may have as many as they like."""
    many = f"more than {MAX_EMPTY_VALUES} values of no bytes"
    inner = b"\x80\x80\x04\0"  # 32,768 of them
    rows = avro({"type": "array", "items": {"type": "array", "items": "null"}}).check()
    assert rows(b"\x3c" + inner * 30 + b"\0") is None
    assert many in str(rows(b"\x3e" + inner * 31 + b"\0"))
    wide = avro({"type": "array", "items": record(*["null"] * 500, "boolean", name="W")}).check()
    assert wide(b"\xa0\x1f" + b"\1" * 2_000 + b"\0") is None
    assert many in str(wide(b"\xa2\x1f" + b"\1" * 2_001 + b"\0"))
    twice: Any = "null"
    for level in range(30):
        twice = record(twice, "null" if level == 0 else f"R{level - 1}", name=f"R{level}")
    assert many in str(avro(twice).check()(b""))


def test_a_value_inside_itself() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    check = avro(node).check()
    assert check(b"\2" * (MAX_NESTING - 1) + b"\0") is None
    assert f"more than {MAX_NESTING} values of Node" in str(check(b"\2" * 4_000_000))
    assert check(b"\2\0") is None  # and what failed before leaves nothing behind
    endless = avro(
        {"type": "record", "name": "E", "fields": [{"name": "a", "type": "E"}, {"name": "b", "type": "E"}]}
    )
    assert f"more than {MAX_NESTING} values of E" in str(endless.check()(b"\2"))
