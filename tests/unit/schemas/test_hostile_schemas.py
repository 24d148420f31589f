"""Schemas that cost more than their length: each is refused, or takes no longer than others of its length.

Without the bounds these tests do not end.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqspark.broker.schemaregistry.schemaanswers import Source
from mqspark.errors import InvalidMessage, InvalidSchema, SchemaTooLarge
from mqspark.schemas.compatibility import incompatibilities
from mqspark.schemas.parsedschema import AVRO, JSON, MAX_PROBLEMS, PROTOBUF, Reference, Schema
from mqspark.schemas.parsing import parse
from mqspark.schemas.payloadvalues import values_of

LEVELS = 60


def avro_pairs(leaf: str) -> Schema:
    """Each record has the next one twice."""
    made: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "x", "type": leaf}]}
    for level in range(LEVELS):
        inner = made["name"]
        fields = [{"name": "a", "type": made}, {"name": "b", "type": inner}]
        made = {"type": "record", "name": f"R{level}", "fields": fields}
    return parse(AVRO, json.dumps(made))


def json_pairs(leaf: str) -> Schema:
    defined: dict[str, Any] = {f"d{LEVELS}": {"type": leaf}}
    for level in range(LEVELS):
        inner = {"$ref": f"#/definitions/d{level + 1}"}
        defined[f"d{level}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    return parse(JSON, json.dumps({"definitions": defined, "$ref": "#/definitions/d0"}))


def protobuf_pairs(leaf: str) -> Schema:
    inner = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(LEVELS))
    return parse(PROTOBUF, f'syntax = "proto3"; {inner} message M{LEVELS} {{ {leaf} x = 1; }}')


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (avro_pairs("int"), avro_pairs("string")),
        (json_pairs("integer"), json_pairs("string")),
        (protobuf_pairs("int32"), protobuf_pairs("string")),
    ],
    ids=[AVRO, JSON, PROTOBUF],
)
def test_what_is_wrong_with_a_type_is_told_once_however_often_it_is_met(new: Schema, old: Schema) -> None:
    found = new.incompatibilities_of(old, "new", "old")
    assert 1 <= len(found) <= MAX_PROBLEMS
    assert incompatibilities("FULL", new, [old])


@pytest.mark.parametrize("kind", [AVRO, JSON, PROTOBUF])
def test_what_is_needed_twice_at_each_level_counts_once(kind: str) -> None:
    texts = {
        AVRO: lambda level: json.dumps({"type": "record", "name": f"R{level}", "fields": []}),
        JSON: lambda level: json.dumps({"title": str(level)}),
        PROTOBUF: lambda level: f'syntax = "proto3"; message M{level} {{}}',
    }
    made = Source(kind, texts[kind](0))
    for level in range(1, LEVELS):
        both = tuple((Reference(f"{side}{level}", "s", level), made) for side in "ab")
        made = Source(kind, texts[kind](level), both)
    assert sorted(map(len, made.texts())) == sorted(len(texts[kind](level)) for level in range(LEVELS))
    assert len(made.parsed().all_needed) == 2 * (LEVELS - 1)


@pytest.mark.parametrize("text", [" " * 400_000 + "!", "a " * 50_000 + "!", "A" * 400_000 + "==="])
def test_a_long_text_that_is_nearly_base64_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(PROTOBUF, text)


def test_a_default_is_compared_once_with_each_type_of_nested_unions() -> None:
    branches: list[Any] = ["int", "long"]
    value: Any = "none of them"
    for level in range(40):
        inner = branches
        names = [each if isinstance(each, str) else each["name"] for each in inner]
        branches = [
            {"type": "record", "name": f"{side}{level}", "fields": [{"name": "a", "type": of}]}
            for side, of in (("A", inner), ("B", names))
        ]
        value = {"a": value}
    record = {"type": "record", "name": "T", "fields": [{"name": "u", "type": branches, "default": value}]}
    with pytest.raises(InvalidSchema, match="the default"):
        parse(AVRO, json.dumps(record))


def test_many_defaults_of_many_types_are_refused() -> None:
    records = [
        {"type": "record", "name": f"R{n}", "fields": [{"name": "a", "type": "int"}]} for n in range(500)
    ]
    of = {"type": "array", "items": records}
    field = {"name": "u", "type": of, "default": [{"a": ""} for _ in range(1_000)] + [{"b": 1}]}
    with pytest.raises(InvalidSchema):
        parse(AVRO, json.dumps({"type": "record", "name": "T", "fields": [{**field, "default": [{}] * 900}]}))
    records.append({"type": "record", "name": "Last", "fields": [{"name": "b", "type": "int"}]})
    field["default"] = [{"b": 1} for _ in range(1_000)]
    with pytest.raises(SchemaTooLarge):
        parse(AVRO, json.dumps({"type": "record", "name": "T", "fields": [field]}))


@pytest.mark.parametrize("opening", ['{"a":', "["])
@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"record","name":"R","fields":[{"name":"a","type":["int","R"],"default":%s}]}',
        '{"type":"record","name":"R","fields":[],"x":%s}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","x":%s}]}',
    ],
)
@pytest.mark.parametrize("depth", [200, 290, 320, 900, 100_000])
def test_a_deep_value_in_an_avro_schema_is_kept_or_refused(depth: int, frame: str, opening: str) -> None:
    closing = "}" if opening == '{"a":' else "]"
    text = frame % (opening * depth + "1" + closing * depth)
    try:
        made = parse(AVRO, text)
        assert parse(AVRO, made.normalized).normalized == made.normalized
    except InvalidSchema:
        assert depth > 290 or '"default"' in frame


def test_a_deep_payload_is_a_payload_that_does_not_fit() -> None:
    value = values_of(parse(JSON, '{"const": {"a": 1}}'))
    with pytest.raises(InvalidMessage, match="Recursion limit"):
        value.read(b'{"a":' * 900 + b"1" + b"}" * 900)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "[1e400]", '{"a": 1e400}'])
@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        (AVRO, '{"type":"record","name":"R","fields":[],"x":%s}'),
        (JSON, '{"x":%s}'),
        (JSON, '{"enum":[%s]}'),
    ],
)
def test_a_number_that_no_json_can_show_again_is_refused(kind: str, frame: str, number: str) -> None:
    with pytest.raises(InvalidSchema, match="too large"):
        parse(kind, frame % number)


@pytest.mark.parametrize(
    ("keyword", "values"),
    [
        ("minContains", ["é", 1, [], True]),
        ("maxContains", [{}, 2, "3", None]),
        ("multipleOf", [0, 3, "x", -1, 1e-300, 10**300]),
        ("maximum", ["1", 5, [1]]),
    ],
)
def test_what_a_draft_does_not_know_may_be_anything(keyword: str, values: list[Any]) -> None:
    """``examples`` are not checked by the meta-schema, and a reference may lead there."""

    def schema(value: Any) -> Schema:
        inner = {"type": ["array", "number"], keyword: value}
        return parse(JSON, json.dumps({"examples": [inner], "properties": {"a": {"$ref": "#/examples/0"}}}))

    made = []
    for value in values:
        try:
            made.append(schema(value))
        except InvalidSchema:
            continue
    assert made
    for new in made:
        for old in made:
            incompatibilities("FULL", new, [old])


def test_multiples_are_those_of_decimal_numbers() -> None:
    new, old = (parse(JSON, json.dumps({"type": "number", "multipleOf": each})) for each in (0.1, 0.3))
    assert incompatibilities("BACKWARD", new, [old]) == []
    assert [each.type for each in incompatibilities("FORWARD", new, [old])] == ["MULTIPLE_OF_EXPANDED"]


def test_the_own_schemas_of_json_schema_are_more_than_anything() -> None:
    made = parse(JSON, '{"$ref": "http://json-schema.org/draft-07/schema#"}')
    bodies = [b"1", b"2"]
    assert made.check()(b"1") is not None
    assert not made.fits_all(bodies, b"")
    assert made.check()(b'{"type": "string"}') is None
    large = json.dumps({"properties": {f"p{n}": {} for n in range(150_000)}}).encode()
    flaw = made.check()(large)
    assert flaw is not None
    assert "too many" in flaw.problem


COUNTING = "[ab]*a[ab]{3000}c"
SEARCHING = r"((?=[ab]*a[ab]{40}c)|[ab])*d"
TEXT = "ab" * 200_000


@pytest.mark.parametrize("pattern", [COUNTING, SEARCHING])
@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"pattern": "P"}, TEXT),
        (
            {"properties": {"a": {"$ref": "#/definitions/p"}}, "definitions": {"p": {"pattern": "P"}}},
            {"a": TEXT},
        ),
        ({"properties": {"a": {"items": {"anyOf": [{}, {"pattern": "P"}]}}}}, {"a": [TEXT[:50_000]] * 40}),
        (
            {"properties": {"": {"prefixItems": [{"pattern": "P"}], "items": [{"pattern": "P"}]}}},
            {"": [TEXT]},
        ),
        ({"properties": {"\0": {"not": {"pattern": "P"}}}}, {"\0": TEXT}),
        ({"additionalProperties": {"pattern": "P"}, "properties": {"b": {}}}, {"a": TEXT}),
        ({"patternProperties": {"^x": {"pattern": "P"}}}, {"x": TEXT}),
        ({"patternProperties": {"P": {}}}, {TEXT: 1}),
        ({"properties": {"a": {"propertyNames": {"pattern": "P"}}}}, {"a": {TEXT: 1}}),
    ],
)
def test_a_long_text_is_compared_with_no_pattern_that_takes_minutes(
    schema: dict[str, Any], payload: Any, pattern: str
) -> None:
    text = json.dumps(schema).replace('"P"', json.dumps(pattern))
    flaw = parse(JSON, text).check()(json.dumps(payload).encode())
    assert flaw is not None
    assert "too much for the patterns" in flaw.problem


def test_a_long_text_beside_such_a_pattern_and_short_ones_below_it_are_checked() -> None:
    mail = {"allOf": [{"pattern": "@"}, {"pattern": r"^(?!.*\.\.)[a-z@.]+$"}]}
    person = {"properties": {"code": {"pattern": COUNTING}, "mail": mail, "more": {"type": "string"}}}
    schema = {"properties": {"text": {"pattern": "^[ab]*$"}, "people": {"items": person}}}
    check = parse(JSON, json.dumps(schema)).check()
    people = [{"code": "a" * 3_002 + "c", "mail": "somebody@example.org", "more": TEXT[:1_000]}] * 5
    people += [{"mail": "somebody@example.org"}] * 300
    long = TEXT[:400_000]
    assert check(json.dumps({"text": long, "people": people, "other": long}).encode()) is None
    flaw = check(json.dumps({"text": long, "people": [*people, {"mail": "a..c@"}]}).encode())
    assert flaw is not None
    assert flaw.field == "people[305].mail"


@pytest.mark.parametrize(
    ("rule", "number"),
    [
        ({"multipleOf": 5e-324}, "1e308"),
        ({"multipleOf": 0.01}, "1e308"),
        ({"multipleOf": 0.1}, "1" * 4_000),
        ({"allOf": [{"maximum": 10**3_000}, {"minimum": -(10**3_000)}]}, "1e308"),
    ],
)
def test_many_numbers_far_from_those_of_the_schema_are_refused(rule: dict[str, Any], number: str) -> None:
    check = parse(JSON, json.dumps({"items": rule})).check()
    count = (1 << 19) // len(number)
    flaw = check(f"[{','.join([number] * count)}]".encode())
    assert flaw is not None
    assert "too much for" in flaw.problem


def test_many_numbers_near_those_of_the_schema_are_checked() -> None:
    check = parse(JSON, json.dumps({"items": {"multipleOf": 0.5, "maximum": 1_000}})).check()
    assert check(f"[{','.join(['1.5', '0', '7'] * 10_000)}]".encode()) is None
    assert check(f"[{','.join(['1.5', '0', '7.2'] * 10_000)}]".encode()) is not None


def test_a_pattern_that_takes_minutes_is_compared_with_no_long_name() -> None:
    new = parse(JSON, json.dumps({"properties": {TEXT[:400_000]: {}}}))
    old = parse(JSON, json.dumps({"patternProperties": {SEARCHING: {"type": "string"}}}))
    assert [each.type for each in incompatibilities("BACKWARD", new, [old])] == ["TOO_MANY_PAIRS"]
