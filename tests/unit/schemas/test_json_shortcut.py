"""Many JSON payloads at once: what is taken in one go would be taken one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqspark.schemas.schemaprefix import encode_prefix
from tests.unit.schemas.test_json_schema import OBJECTS, VALUES, schema_of

ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "price": {"type": "number", "exclusiveMaximum": 10},
        "name": {"type": "string", "maxLength": 3, "description": "of the customer"},
        "note": {"type": ["string", "null"]},
        "state": {"enum": ["NEW", "PAID"]},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}, "maxItems": 2},
        "more": {"anyOf": [{"$ref": "#/definitions/line"}, {"type": "null"}]},
        "paid": {"type": "boolean"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": True,
    },
    "required": ["id"],
    "definitions": {"line": {"type": "object", "properties": {"sku": {"const": "A"}}, "required": ["sku"]}},
}
GOOD: dict[str, Any] = {
    "id": 1, "price": 1, "name": "äöü", "note": None, "state": "NEW", "lines": [{"sku": "A"}], "more": None,
    "paid": True, "labels": {"a": "b"}, "any": [1, {}],
}  # fmt: skip
SCHEMA = schema_of(ORDER)


def encoded(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


@pytest.mark.parametrize("head", [b"", encode_prefix(7), encode_prefix(10), encode_prefix(0x0A0A0A0A)])
def test_plain_payloads_are_taken_at_once(head: bytes) -> None:
    good = [head + each for each in encoded(GOOD, {"id": 0}, GOOD)]
    assert SCHEMA.fits_all(good, head)
    if head:
        assert not SCHEMA.fits_all([*good, encoded(GOOD)[0]], head)
        assert not SCHEMA.fits_all([good[0] + b"\n" + good[1], encoded(GOOD)[0]], head)
        assert not SCHEMA.fits_all([good[0], encode_prefix(8) + encoded(GOOD)[0]], head)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": -1}, {"id": 1 << 70, "price": 10}, {"id": True}, {"id": "1"}, {}, [], {"id": 1, "name": "abcd"},
        {"id": 1, "state": "OLD"}, {"id": 1, "lines": [{}]}, {"id": 1, "lines": [{"sku": "A"}] * 3},
        {"id": 1, "more": {"sku": "B"}}, {"id": 1, "paid": 0}, {"id": 1, "labels": {"a": 1}}, {"id": 1, "note": 1},
        {"id": None}, None,
    ],
)  # fmt: skip
def test_what_does_not_fit_is_not_taken(wrong: Any) -> None:
    assert SCHEMA.check()(encoded(wrong)[0]) is not None
    assert not SCHEMA.fits_all(encoded(GOOD, wrong, GOOD), b"")


@pytest.mark.parametrize(
    "bodies",
    [
        [b'{"id":1},{"id":2}', b'{"id":1', b"}"],
        [b'{"id":1}\n{"id":2}', b" "],
        [b'{"id":1}', b""],
        [b'{"id":1}', b'{"id":1}\n'],
        [b'{"id":1}', b'{"id":1,"name":"\xff"}'],
        [b'{"id":1}', b'{"id":1,"unknown":"\xff"}'],
        [b'{"id":1}', b'{"id":1,"any":"\\ud800"}'],
        [b"", b'{"id":1}{"id":2}'],
        [b'{"id":', b"1}", b'{"id":1}{"id":2}'],
        [b'{"id":1,"any":{}', b',"paid":true}', b'{"id":1}{"id":2}'],
        [b'{"id":1,"any":[{}', b"{}]}", b'{"id":1}{"id":2}'],
        [b'{"id":1,"any":"}', b'{"}', b'{"id":1}{"id":2}'],
    ],
)
def test_payloads_do_not_hide_in_each_other(bodies: list[bytes]) -> None:
    assert not SCHEMA.fits_all(bodies, b"")


PIECES = [
    b'{"id":1',
    b"}",
    b"{",
    b'{"id":1}',
    b"",
    b" ",
    b"\n",
    b',"any":',
    b'"',
    b"[",
    b"]",
    b",",
    b"\\",
    b"{}",
]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join), min_size=2, max_size=4))
def test_pieces_of_objects_are_not_taken_for_objects(bodies: list[bytes]) -> None:
    if SCHEMA.fits_all(bodies, b""):
        assert [SCHEMA.check()(each) for each in bodies] == [None] * len(bodies)


@pytest.mark.parametrize(
    "found",
    [
        {"pattern": "a"}, {"type": "string", "format": "date"}, {"$ref": "#"}, {"items": {}}, {"not": {}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}}, {"type": "object", "required": ["a"]},
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}, {"enum": [1, "a"]},
        {"type": "number", "minimum": 1 << 60}, {"type": "object", "minProperties": 1}, False,
    ],
)  # fmt: skip
def test_other_schemas_are_checked_one_by_one(found: Any) -> None:
    if found != {"$ref": "#"}:
        assert not schema_of(found).fits_all([b"1", b" 1"], b"")


@settings(max_examples=300, deadline=None)
@given(OBJECTS, st.lists(VALUES, min_size=2, max_size=4))
@example({"type": "object", "properties": {"a": {"type": "integer"}}}, [{"a": 1.0}, {"a": 1}])
@example(
    {"type": "object", "properties": {"a": {"type": "number", "maximum": 1}}}, [{"a": 1 << 80}, {"a": 1}]
)
def test_what_is_taken_fits(found: Any, values: list[Any]) -> None:
    schema = schema_of(found)
    if schema.fits_all(encoded(*values), b""):
        assert [schema.check()(each) for each in encoded(*values)] == [None] * len(values)
