"""Payloads that cost more than their bytes when they are checked by a schema: a few kilobytes, or bytes, would hold the
broker for seconds, or for ever, or fill its memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import SchemaTooLarge
from mqspark.schemas.avro.avrocheck import MAX_VISITS
from mqspark.schemas.jsonschema.jsonschemas import MAX_WORK, JsonSchema
from mqspark.schemas.jsonschema.jsonwork import MAX_AT_ONE_VALUE, payload_work
from mqspark.schemas.parsedschema import AVRO, JSON, PROTOBUF, TOO_MUCH_TOGETHER, Check, Effort, Schema
from mqspark.schemas.parsing import parse
from mqspark.schemas.protobuf.protocheck import MAX_MESSAGES

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_check(schema: dict[str, Any]) -> Check:
    return parse(JSON, json.dumps({"$schema": DRAFT, **schema})).check()


def many(item: str, count: int) -> bytes:
    return f"[{','.join([item] * count)}]".encode()


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "if"])
@pytest.mark.parametrize("rest", ["unevaluatedProperties", "unevaluatedItems"])
def test_what_is_unevaluated_is_not_asked_twice_at_each_level(keyword: str, rest: str) -> None:
    """Forty levels: ``{"a": 1}`` would be compared for years."""
    few: dict[str, Any] = {}
    deep: dict[str, Any] = {}
    for level in range(40):
        deep = {keyword: deep if keyword == "if" else [deep], rest: {"type": "integer"}}
        few = deep if level == 2 else few
    assert json_check(few)(b'{"a": 1}') is None
    with pytest.raises(SchemaTooLarge, match="one value is compared with"):
        json_check(deep)


@pytest.mark.parametrize("item", ["{}", '{"a": "%d"}', "[%d]"])
def test_large_numbers_that_look_the_same_are_not_compared_each_with_each(item: str) -> None:
    numbers = [(1 << 200) + number for number in range(2_000)]
    items = [item.replace("%d", str(each)) if "%d" in item else str(each) for each in numbers]
    payload = f"[{','.join(items)}]".encode()
    unique = json_check({"uniqueItems": True})
    if item == '{"a": "%d"}':  # a text looks like itself alone
        assert unique(payload) is None
    else:
        assert "too many numbers for uniqueItems" in str(unique(payload))
    assert json_check({"items": {"type": ["integer", "array", "object"]}})(payload) is None
    different = ",".join(str((1 << 60) + (number << 20)) for number in range(2_000))
    assert unique(f"[{different}]".encode()) is None


@pytest.mark.parametrize(
    "rule",
    [
        {"dependentRequired": {f"p{number}": ["a"] for number in range(4 * MAX_AT_ONE_VALUE)}},
        {"dependencies": {"a": [f"p{number}" for number in range(MAX_AT_ONE_VALUE)]}},
        {"enum": [{"a": 1, "z": number} for number in range(MAX_AT_ONE_VALUE)]},
    ],
    ids=["names", "a list", "values"],
)
def test_names_and_values_that_each_value_is_compared_with_are_counted(rule: dict[str, Any]) -> None:
    with pytest.raises(SchemaTooLarge, match="one value is compared with"):
        json_check(rule)
    half = (
        {name: dict(list(of.items())[::2]) if len(of) > 1 else of for name, of in rule.items()}
        if ("enum" not in rule)
        else {"enum": rule["enum"][::2]}
    )
    if "dependencies" in rule:
        half = {"dependencies": {"a": rule["dependencies"]["a"][::2]}}
    check = json_check({"items": half})
    assert "are too many for a schema that compares one value" in str(check(many("{}", 200_000)))


@pytest.mark.parametrize(
    ("rule", "number"),
    [
        ({"enum": [0.5 + number for number in range(900)]}, "7"),
        ({"enum": [1 << 100 | number for number in range(900)]}, "7"),
        ({"enum": list(range(900))}, "7.5"),
        ({"enum": [{"a": number + 0.5} for number in range(450)]}, '{"a":7}'),
        ({"allOf": [{"const": 0.5}] * 300}, "7"),
        ({"allOf": [{"maximum": 1.5}] * 300}, "7"),
        ({"allOf": [{"maximum": 10}] * 300}, "7.5"),
        ({"uniqueItems": True}, json.dumps([number + 0.5 for number in range(15)])),
        ({"uniqueItems": True}, json.dumps([{"a": 0.5, "b": number} for number in range(15)])),
    ],
)
def test_numbers_that_are_compared_slowly_are_counted(rule: dict[str, Any], number: str) -> None:
    check = json_check({"items": {"anyOf": [rule, {}]}})
    assert "too m" in str(check(many(number, 2_000_000 // len(number))))
    assert check(many(number, 20)) is None
    assert json_check({"items": {"minimum": 0, "maximum": 100}})(many("7.5", 500_000)) is None
    assert json_check({"items": {"enum": list(range(500))}})(many("7", 500_000)) is None


def peak_mb(check: Check, payload: bytes) -> tuple[str, int]:
    """The flaw, and by how much the memory of this process grew meanwhile at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_mb("VmRSS")
    flaw = str(check(payload))
    return flaw, memory_mb("VmHWM") - before


def memory_mb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) >> 10


def test_one_error_is_made_of_a_payload_with_many() -> None:
    """Each has its path, its message and its value: of two bytes, more than a kilobyte."""
    strings: dict[str, Any] = {"items": {"type": "string"}}
    flaw, grown_mb = peak_mb(json_check(strings), many("0", 300_000))
    assert flaw == 'field [0]: 0 is not of type "string"'
    assert grown_mb < 100
    flaw, grown_mb = peak_mb(json_check({"anyOf": [strings, strings]}), many("0", 300_000))
    assert "where, of 600001 bytes, is not looked for" in flaw
    assert grown_mb < 100
    assert "is not valid under any" in str(json_check({"anyOf": [strings, strings]})(many("0", 300)))


def record(level: int, inner: Any) -> dict[str, Any]:
    return {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": inner}]}


def whole(number: int) -> bytes:
    """As Avro has it."""
    number, out = number << 1, bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_records_around_a_byte_are_counted() -> None:
    deep: Any = "boolean"
    for level in range(50):
        deep = record(level, deep)
    too_many = f"there are more than {MAX_VISITS} values"
    for schema, item, visits in (
        ({"type": "array", "items": deep}, b"\0", 51),
        ({"type": "array", "items": ["null", deep]}, b"\2\0", 51),
        ({"type": "map", "values": deep}, b"\0\0", 52),
        ({"type": "array", "items": ["boolean", record(99, deep)]}, b"\2\0", 52),
    ):
        check = parse(AVRO, json.dumps(schema)).check()
        most = MAX_VISITS // visits
        assert too_many in str(check(whole(most + 1) + item * (most + 1) + b"\0"))
        assert check(whole(1_000) + item * 1_000 + b"\0") is None
    tree: Any = deep
    for level in range(100, 122):
        fields = [{"name": "a", "type": tree}, {"name": "b", "type": tree["name"]}]
        tree = {"type": "record", "name": f"R{level}", "fields": fields}
    assert too_many in str(parse(AVRO, json.dumps(tree)).check()(bytes(1 << 22)))


def test_what_a_large_payload_does_not_have_does_not_count() -> None:
    """As little as the number of a union's branch says that deep records are not there."""
    deep: Any = "boolean"
    for level in range(50):
        deep = record(level, deep)
    check = parse(AVRO, json.dumps({"type": "array", "items": ["null", deep]})).check()
    assert check(whole(500_000) + bytes(500_000) + b"\0") is None
    node = {"type": "record", "name": "N", "fields": [{"name": "a", "type": ["null", "N"]}]}
    nodes = parse(AVRO, json.dumps({"type": "array", "items": node})).check()
    assert nodes(whole(1_000) + (b"\2" * 90 + b"\0") * 1_000 + b"\0") is None
    claimed = parse(AVRO, json.dumps({"type": "array", "items": deep})).check()
    assert "ends early" in str(claimed(whole(1 << 60) + b"\0"))


def test_messages_and_groups_are_counted() -> None:
    check = parse(
        PROTOBUF, 'syntax = "proto3"; message M { repeated M a = 1; repeated int32 n = 3; }'
    ).check()
    too_many = f"more than {MAX_MESSAGES} messages and groups"
    assert too_many in str(check(b"\x0a\0" * MAX_MESSAGES))
    assert too_many in str(check(b"\x13\x14" * MAX_MESSAGES))
    assert check(b"\x0a\0" * 1_000 + b"\x13\x14" * 1_000 + b"\x10\x01" * 1_000) is None


def test_numbers_that_are_packed_are_whole() -> None:
    check = parse(PROTOBUF, 'syntax = "proto3"; message M { repeated int64 n = 1; }').check()
    for packed, flaw in (
        (b"\0\xff\1" + b"\xff" * 9 + b"\1", None),
        (b"\xff" * 10 + b"\1", "field n: a number has more than ten bytes"),
        (b"\1\xff", "field n: the payload ends early"),
        (b"", None),
    ):
        found = check(b"\x0a" + bytes([len(packed)]) + packed)
        assert (None if found is None else str(found)) == flaw


def costly_schemas() -> list[tuple[Schema, bytes]]:
    """Each with a payload that takes a twentieth of the time that one may take."""
    choices = {"items": {"oneOf": [{"properties": {"k": {"const": n}}} for n in range(900)]}}
    deep: Any = "boolean"
    for level in range(50):
        deep = record(level, deep)
    rows = {"type": "array", "items": deep}
    few = MAX_VISITS // 51 // 20
    return [
        (parse(JSON, json.dumps(choices)), many('{"k":5}', 500)),
        (parse(AVRO, json.dumps(rows)), whole(few) + bytes(few) + b"\0"),
        (parse(PROTOBUF, 'syntax="proto3"; message M { M m = 1; }'), b"\x0a\0" * (MAX_MESSAGES // 20 - 1)),
    ]


def test_bodies_of_a_batch_take_as_long_together_as_one_may() -> None:
    """Each of a thousand could take as long as one."""
    for schema, payload in costly_schemas():
        alone = schema.check()
        assert [alone(payload) for _ in range(50)] == [None] * 50
        together = schema.batch_check(Effort())
        flaws = [str(together(payload)) for _ in range(50)]
        assert flaws[:15] == ["None"] * 15
        assert TOO_MUCH_TOGETHER in flaws[-1]


def test_other_schemas_in_the_batch_have_no_effort_of_their_own() -> None:
    effort = Effort()
    (of_json, document), *others = costly_schemas()
    for schema, payload in others:
        check = schema.batch_check(effort)
        assert [check(payload) for _ in range(9)] == [None] * 9
    flaws = [str(of_json.batch_check(effort)(document)) for _ in range(30)]
    assert TOO_MUCH_TOGETHER in flaws[-1]
    for schema, payload in others:
        assert TOO_MUCH_TOGETHER in str(schema.batch_check(effort)(payload))


def test_many_small_bodies_are_no_effort() -> None:
    pattern = {"properties": {"a": {"pattern": r"^(?=a)\w+$"}, "b": {"uniqueItems": True}}}
    together = parse(JSON, json.dumps(pattern)).batch_check(Effort())
    body = json.dumps({"a": "ab", "b": [1, 2.5, 3], "more": "x" * 1_000}).encode()
    assert [together(body) for _ in range(4_000)] == [None] * 4_000


def test_numbers_of_a_long_list_cost_together_what_they_cost_alone() -> None:
    """They are not looked at one by one: to add them up would take longer than to compare them."""
    schema = {
        "items": {"minimum": 0.5, "multipleOf": 0.25, "pattern": "^a+$"},
        "properties": {"n": {"enum": [0.5]}},
    }
    document = JsonSchema(json.dumps(schema))
    prices = payload_work(document.document, document.documents).prices
    values: list[Any] = [0, 1, -5, 1.5, -0.25, 1 << 62, 1 << 63, -(1 << 70), 1e300, 1e-300, 0.0, True, None]
    values += ["aaa", "é", {"n": 1.5, "m": [2.5]}, [], [1, 2.5], [1.5] * 20]
    alone = sum(prices.of([each], MAX_WORK) for each in values)
    assert alone > 0
    assert prices.of(values, MAX_WORK) == pytest.approx(alone)
    assert prices.of([*values, *values], MAX_WORK) == pytest.approx(2 * alone)
    assert prices.of(values * 1_000, 1_000) > 1_000
