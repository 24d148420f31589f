"""JSON Schema: what is a schema, which payloads fit it, and which versions go together."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.compatibility import incompatibilities
from mqspark.schemas.jsonschema.jsonwork import MAX_AT_ONE_VALUE, MAX_CHAIN
from mqspark.schemas.parsedschema import JSON, MAX_NODES, Reference, Schema
from mqspark.schemas.parsing import parse

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "maxLength": 5},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
    "required": ["id"],
}
CLOSED = {**ORDER, "additionalProperties": False}
LATEST = "https://json-schema.org/draft/2020-12/schema"
STRING, INTEGER, NUMBER, NULL = ({"type": name} for name in ("string", "integer", "number", "null"))
MAYBE = {"type": ["string", "null"]}


def schema_of(found: Any, *needed: tuple[Reference, Schema]) -> Schema:
    return parse(JSON, json.dumps(found), needed)


def with_property(found: dict[str, Any], name: str, of: Any, *, required: bool = False) -> dict[str, Any]:
    made = {**found, "properties": {**found["properties"], name: of}}
    return {**made, "required": [*found["required"], name]} if required else made


def chain(length: int, step: Any, end: Any) -> dict[str, Any]:
    """``step``: makes a schema of a reference."""
    links = {f"s{n}": step({"$ref": f"#/definitions/s{n + 1}"}) for n in range(length)}
    return {"definitions": {**links, f"s{length}": end}, "$ref": "#/definitions/s0"}


def test_what_makes_a_schema_another_one() -> None:
    schema = schema_of(ORDER)
    assert schema.canonical == json.dumps(ORDER, separators=(",", ":"))
    assert parse(JSON, json.dumps(ORDER, indent=4)) == schema
    turned = dict(reversed(ORDER.items()))
    assert schema_of(turned) != schema
    assert schema_of(turned).normalized == schema.normalized


@pytest.mark.parametrize(
    ("payload", "flaw"),
    [
        (b'{"id": 1}', ""),
        (b'{"id": 1.5}', 'field id: 1.5 is not of type "integer"'),
        (b"{}", '"id" is a required property'),
        (b'{"id": 1, "name": "too long"}', 'field name: "too long" is longer than 5 characters'),
        (b'{"id": 1, "lines": [{}, {"sku": null}]}', 'field lines[1].sku: null is not of type "string"'),
        (b'{"id": 1', "the payload is no JSON: Input data was truncated"),
        (b'{"id": NaN}', "the payload is no JSON: JSON is malformed: invalid character (byte 7)"),
        (b'"\xff"', "the payload is no JSON: "),
        (b"", "the payload is no JSON: Input data was truncated"),
        (b"[" * 100_000, "more than 1000 values are inside each other"),
    ],
)
def test_the_field_that_does_not_fit(payload: bytes, flaw: str) -> None:
    found = schema_of(ORDER).check()(memoryview(payload))
    assert str(found or "").startswith(flaw)
    assert bool(found) == bool(flaw)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([], "an object, true or false"),
        ({"type": "text"}, "/type"),
        ({"pattern": "("}, "/pattern"),
        ({"pattern": "(a{1000}){1000}"}, "/pattern"),
        ({"$schema": "http://localhost:1/x"}, "http://localhost:1/x"),
        ({"$ref": "http://localhost:1/x"}, "'http://localhost:1/x' is none of the references"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "'file:///etc/passwd' is none of the references"),
        ({"$ref": "#/definitions/x"}, "'#/definitions/x' leads nowhere"),
        ({"$ref": "#x"}, "'#x' leads nowhere"),
        ({"$ref": "#"}, "applies itself to the same value"),
        ({"not": {"anyOf": [{"$ref": "#"}, True]}}, "applies itself to the same value"),
        (
            {"$id": "urn:x", "allOf": [{"$ref": "#/definitions/a"}], "definitions": {"a": {"$ref": "urn:x"}}},
            "itself",
        ),
        ({"$schema": LATEST, "$dynamicAnchor": "a", "allOf": [{"$dynamicRef": "#a"}]}, "itself"),
    ],
)
def test_what_is_no_schema(found: Any, problem: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema_of(found)
    assert problem in str(caught.value)


def test_references_by_name_pointer_and_id() -> None:
    number = schema_of({"$id": "number.json", "type": "number"})
    document = {"properties": {"zip": STRING}, "definitions": {"n": {"$ref": "number.json"}}}
    address = schema_of(document, (Reference("number.json", "number", 1), number))
    needed = (Reference("address.json", "address", 1), address)
    for base in ({}, {"$id": "http://example.com/schemas/order.json"}):
        order = schema_of(
            {
                **base,
                "properties": {
                    "home": {"$ref": "address.json"},
                    "zip": {"$ref": "address.json#/properties/zip"},
                    "number": {"$ref": "address.json#/definitions/n"},
                },
            },
            needed,
        )
        check = order.check()
        assert check(b'{"home":{"zip":"1"},"zip":"2","number":3}') is None
        assert str(check(b'{"home":{"zip":1}}')) == 'field home.zip: 1 is not of type "string"'
        assert str(check(b'{"zip":1}')) == 'field zip: 1 is not of type "string"'
        assert str(check(b'{"number":"1"}')) == 'field number: "1" is not of type "number"'
    assert order != schema_of(order.document, (Reference("address.json", "address", 2), address))  # type: ignore[attr-defined]


def test_comparisons_that_multiply_are_refused() -> None:
    for found in (
        chain(30, lambda inner: {"allOf": [inner, inner]}, INTEGER),
        {"oneOf": [{"const": n} for n in range(MAX_AT_ONE_VALUE + 1)]},
        {"patternProperties": {f"(?=a){n}": True for n in range(MAX_AT_ONE_VALUE // 100 + 1)}},
        chain(MAX_CHAIN + 1, lambda inner: inner, True),
        {"enum": [str(n) for n in range(MAX_AT_ONE_VALUE * 17)]},
        {"properties": {f"p{n}": STRING for n in range(MAX_NODES // 2)}},
    ):
        with pytest.raises(SchemaTooLarge):
            schema_of(found)


def test_a_schema_twice_inside_itself_bounds_the_depth() -> None:
    inner = {"properties": {"a": {"$ref": "#/definitions/n"}}}
    for found in (
        {"definitions": {"n": {"allOf": [inner, inner]}}, "$ref": "#/definitions/n"},
        chain(30, lambda inner: {"properties": {"a": {"anyOf": [inner, inner]}}}, INTEGER),
    ):
        check = schema_of(found).check()
        assert check(b'{"a":' * 4 + b"1" + b"}" * 4) is None
        assert "the most that this schema allows" in str(check(b'{"a":' * 40 + b"1" + b"}" * 40))


def test_a_list_of_itself_may_nest() -> None:
    node = {"properties": {"next": {"$ref": "#"}, "value": INTEGER}}
    check = schema_of(node).check()
    assert check(b'{"next":' * 300 + b"{}" + b"}" * 300) is None
    assert "is not of type" in str(check(b'{"next":' * 300 + b'{"value":""}' + b"}" * 300))


def test_work_is_bounded_by_values_times_schemas() -> None:
    check = schema_of({"items": {"oneOf": [{"properties": {"k": {"const": n}}} for n in range(900)]}}).check()
    assert check(b"[" + b'{"k":5},' * 99 + b'{"k":5}]') is None
    assert "are too many for a schema that compares one value" in str(check(b"[" + b"1," * 99_999 + b"1]"))


def test_a_pattern_does_not_hold_the_loop() -> None:
    check = schema_of({"pattern": r"^(?=(a+)+b)(a+)+$"}).check()
    assert "does not match" in str(check(b'"' + b"a" * 10_000 + b'"'))
    assert schema_of({"pattern": "^(a+)+$"}).check()(b'"' + b"a" * 100_000 + b'!"') is not None


@pytest.mark.parametrize(
    ("new", "old", "types"),
    [
        (with_property(CLOSED, "z", STRING), CLOSED, []),
        (CLOSED, with_property(CLOSED, "z", STRING), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        (with_property(ORDER, "z", STRING), ORDER, ["OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
        (with_property(ORDER, "z", {}), ORDER, []),
        (ORDER, with_property(ORDER, "z", STRING), []),
        (
            with_property(CLOSED, "z", STRING, required=True),
            CLOSED,
            ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"],
        ),
        (with_property(CLOSED, "z", {"type": "string", "default": ""}, required=True), CLOSED, []),
        ({**ORDER, "required": []}, ORDER, []),
        ({**ORDER, "required": ["id", "name"]}, ORDER, ["REQUIRED_ATTRIBUTE_ADDED"]),
        (ORDER, CLOSED, []),
        (CLOSED, ORDER, ["ADDITIONAL_PROPERTIES_REMOVED"]),
        ({**ORDER, "additionalProperties": STRING}, ORDER, ["ADDITIONAL_PROPERTIES_NARROWED"]),
        (
            with_property(CLOSED, "xa", STRING),
            {**CLOSED, "patternProperties": {"^x": INTEGER}},
            ["TYPE_CHANGED", "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ),
        (NUMBER, INTEGER, []),
        (INTEGER, NUMBER, ["TYPE_NARROWED"]),
        (STRING, INTEGER, ["TYPE_CHANGED"]),
        (MAYBE, STRING, []),
        (STRING, MAYBE, ["TYPE_CHANGED"]),
        ({}, STRING, []),
        (STRING, {}, ["TYPE_CHANGED"]),
        (STRING, False, []),
        ({"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 4}, ["MAX_LENGTH_DECREASED"]),
        ({"type": "string", "maxLength": 4}, {"type": "string", "maxLength": 3}, []),
        ({"type": "integer", "minimum": 0}, INTEGER, ["MINIMUM_ADDED"]),
        ({"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 4}, []),
        ({"type": "number", "multipleOf": 4}, {"type": "number", "multipleOf": 2}, ["MULTIPLE_OF_EXPANDED"]),
        ({"type": "string", "pattern": "a"}, STRING, ["PATTERN_ADDED"]),
        ({"enum": ["A", "B"]}, {"enum": ["A"]}, []),
        ({"enum": ["A"]}, {"enum": ["A", "B"]}, ["ENUM_ARRAY_NARROWED"]),
        ({"enum": [1.0]}, {"enum": [1]}, []),
        ({"const": "A"}, {"const": "B"}, ["ENUM_ARRAY_CHANGED"]),
        ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}, []),
        (
            {"type": "array", "items": INTEGER, "uniqueItems": True},
            {"type": "array", "items": STRING},
            ["TYPE_CHANGED", "UNIQUE_ITEMS_ADDED"],
        ),
        (
            {"type": "array", "items": [STRING], "additionalItems": False},
            {"type": "array", "items": [STRING, STRING], "additionalItems": False},
            ["ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
        ),
        ({"oneOf": [STRING, NULL]}, {"oneOf": [STRING]}, []),
        ({"oneOf": [STRING]}, {"oneOf": [NULL, STRING]}, ["SUM_TYPE_NARROWED"]),
        (
            {"anyOf": [STRING, INTEGER]},
            {"anyOf": [NULL, {"type": "boolean"}]},
            ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"],
        ),
        (
            {"allOf": [{"minLength": 1}, {"maxLength": 9}]},
            {"allOf": [{"minLength": 1}]},
            ["PRODUCT_TYPE_EXTENDED"],
        ),
        ({"allOf": [STRING]}, {"anyOf": [STRING, NULL]}, ["COMBINED_TYPE_CHANGED"]),
        ({"not": STRING}, {"not": MAYBE}, []),
        ({"not": MAYBE}, {"not": STRING}, ["NOT_TYPE_EXTENDED"]),
        ({"dependencies": {"a": ["b"]}}, {"dependencies": {"a": ["b", "c"]}}, []),
        ({"dependencies": {"a": ["b", "c"]}}, {"dependencies": {"a": ["b"]}}, ["DEPENDENCY_ARRAY_EXTENDED"]),
    ],
)
def test_reading_what_was_valid_before(new: Any, old: Any, types: list[str]) -> None:
    found = incompatibilities("BACKWARD", schema_of(new), [schema_of(old)])
    assert [each.type for each in found] == types
    assert [each.type for each in incompatibilities("FORWARD", schema_of(old), [schema_of(new)])] == types


def test_recursive_schemas_are_compared_to_their_end() -> None:
    def tree(of: str) -> Schema:
        return schema_of(
            {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": of}}}
        )

    assert incompatibilities("FULL", tree("integer"), [tree("integer")]) == []
    (found,) = incompatibilities("BACKWARD", tree("integer"), [tree("string")])
    assert (found.type, found.where) == ("TYPE_CHANGED", "#/properties/value")
    assert "the new schema is about integers, the old schema about string values" in found.message


SMALL = st.sampled_from([
    STRING, INTEGER, NUMBER, NULL, MAYBE,
    {"type": "string", "maxLength": 1}, {"type": "integer", "minimum": 1}, {"enum": ["a", 1]}, {"enum": ["a"]},
    {"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER},
    {"anyOf": [STRING, INTEGER]}, {"oneOf": [STRING, NULL]},
])  # fmt: skip
OBJECTS = st.builds(
    lambda properties, required, rest: {
        "type": "object",
        "properties": properties,
        "required": sorted(required & set(properties)),
        **({} if rest is None else {"additionalProperties": rest}),
    },
    st.dictionaries(st.sampled_from("abc"), SMALL, max_size=3),
    st.sets(st.sampled_from("abc")),
    st.one_of(st.none(), st.just(False), SMALL),
)
VALUES = st.dictionaries(
    st.sampled_from("abcd"),
    st.sampled_from(["", "a", "bc", 0, 1, 1.5, None, [], [1], [1.5], ["a"], True]),
    max_size=3,
)


@pytest.mark.slow("many schemas; the compatibility of each kind is the fast twin")
@settings(max_examples=300, deadline=None)
@given(OBJECTS, OBJECTS, st.lists(VALUES, max_size=6))
def test_what_may_be_registered_reads_what_was_valid(new: Any, old: Any, values: list[Any]) -> None:
    if incompatibilities("BACKWARD", schema_of(new), [schema_of(old)]):
        return
    reads, wrote = schema_of(new).check(), schema_of(old).check()
    for value in values:
        payload = json.dumps(value).encode()
        if wrote(payload) is None:
            assert reads(payload) is None


@settings(max_examples=200, deadline=None)
@given(OBJECTS, VALUES)
def test_another_validator_says_the_same(found: Any, value: Any) -> None:
    theirs = jsonschema.Draft7Validator(found).is_valid(value)
    assert (schema_of(found).check()(json.dumps(value).encode()) is None) == theirs
