"""The rules between versions, and Avro's part in them beside Avro's own library."""

from __future__ import annotations

import json
from typing import Any

import avro.compatibility
import avro.schema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.schemas.compatibility import RULES, incompatibilities
from mqspark.schemas.parsedschema import AVRO, PROTOBUF, Schema
from mqspark.schemas.parsing import parse


def record(**fields: Any) -> dict[str, Any]:
    made = []
    for name, of in fields.items():
        optional = name.endswith("_")
        made.append({"name": name.rstrip("_"), "type": of} | ({"default": 0} if optional else {}))
    return {"type": "record", "name": "R", "fields": made}


def avro_of(found: Any) -> Schema:
    return parse(AVRO, json.dumps(found))


V1, V2, V3 = (
    avro_of(each) for each in (record(a="int"), record(a="int", b_="int"), record(a="int", b="int"))
)
"""V2 is V1 with a field that has a default; V3 is V2 without the default."""


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("NONE", True),
        ("BACKWARD", True),
        ("BACKWARD_TRANSITIVE", False),
        ("FORWARD", True),
        ("FORWARD_TRANSITIVE", True),
        ("FULL", True),
        ("FULL_TRANSITIVE", False),
    ],
)
def test_transitive_rules_look_at_all_versions(rule: str, allowed: bool) -> None:
    found = incompatibilities(rule, V3, [V1, V2])
    assert (found == []) is allowed
    if found:
        assert [(each.type, each.where, each.version, each.new_reads) for each in found] == [
            ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1", 0, True)
        ]
        assert str(found[0]).endswith(
            "the field b of the new schema has no default and is not in the old schema"
        )


def test_who_reads_is_said() -> None:
    (forward,) = incompatibilities("FORWARD", V1, [V3])
    assert not forward.new_reads
    assert "the field b of the old schema has no default and is not in the new schema" in forward.message
    assert incompatibilities("BACKWARD", V1, [V3]) == []
    assert [each.new_reads for each in incompatibilities("FULL", avro_of("int"), [avro_of("string")])] == [
        True,
        False,
    ]


def test_no_version_before_no_rule() -> None:
    assert all(incompatibilities(rule, V1, []) == [] for rule in RULES)
    with pytest.raises(ValueError, match="none of the compatibility levels"):
        incompatibilities("backward", V1, [])


@pytest.mark.parametrize(
    ("reader", "writer", "types"),
    [
        ("long", "int", []),
        ("int", "long", ["TYPE_MISMATCH"]),
        ("double", "float", []),
        ("string", "bytes", []),
        (["null", "int"], "int", []),
        ("int", ["null", "int"], ["TYPE_MISMATCH"]),
        (["null", "int"], ["null", "string"], ["MISSING_UNION_BRANCH"]),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            ["FIXED_SIZE_MISMATCH"],
        ),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "G", "size": 2},
            ["NAME_MISMATCH"],
        ),
        (
            {"type": "fixed", "name": "F", "size": 2, "aliases": ["G"]},
            {"type": "fixed", "name": "G", "size": 2},
            [],
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            ["MISSING_ENUM_SYMBOLS"],
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            [],
        ),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, ["TYPE_MISMATCH"]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, ["TYPE_MISMATCH"]),
    ],
)
def test_reading_another_type(reader: Any, writer: Any, types: list[str]) -> None:
    found = incompatibilities("BACKWARD", avro_of(reader), [avro_of(writer)])
    assert [each.type for each in found] == types


def test_a_guess_about_a_recursive_type_does_not_last() -> None:
    """N reads M only if what is inside fits; the guess that it does must not hide that the second field does not."""

    def of(inner: str) -> Schema:
        node = {
            "type": "record",
            "name": "N",
            "fields": [
                {
                    "name": "w",
                    "type": {"type": "record", "name": "W", "fields": [{"name": "n", "type": ["null", "N"]}]},
                },
                {"name": "x", "type": inner},
            ],
        }
        return avro_of({"type": "record", "name": "Top", "fields": [
            {"name": "u", "type": ["null", node]}, {"name": "v", "type": ["null", "W"]},
        ]})  # fmt: skip

    found = incompatibilities("BACKWARD", of("int"), [of("string")])
    assert {each.where.split("/")[2] for each in found} == {"0", "1"}


PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
NAMED = st.one_of(
    st.builds(lambda size: {"type": "fixed", "name": "F", "size": size}, st.integers(1, 3)),
    st.builds(
        lambda symbols: {"type": "enum", "name": "E", "symbols": symbols},
        st.lists(st.sampled_from("ABC"), min_size=1, unique=True),
    ),
)


def _field(name: str, of: Any, default: bool) -> dict[str, Any]:
    return {"name": name, "type": ["null", of] if default and of != "null" else of} | (
        {"default": None} if default else {}
    )


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda of: {"type": "array", "items": of}),
        inner.map(lambda of: {"type": "map", "values": of}),
    )


SIMPLE = st.recursive(PRIMITIVES, _containers, max_leaves=3)
RECORDS = st.lists(
    st.builds(_field, st.sampled_from("abc"), SIMPLE, st.booleans()),
    max_size=3,
    unique_by=lambda field: field["name"],
).map(lambda fields: {"type": "record", "name": "R", "fields": fields})
UNIONS = st.lists(st.one_of(PRIMITIVES, NAMED, RECORDS), min_size=1, max_size=4, unique_by=lambda of: str(
    of if isinstance(of, str) else of["name"]
))  # fmt: skip
SCHEMAS = st.one_of(SIMPLE, NAMED, RECORDS, UNIONS)


@settings(max_examples=300, deadline=None)
@given(SCHEMAS, SCHEMAS)
def test_avros_own_library_says_the_same(reader: Any, writer: Any) -> None:
    theirs = avro.compatibility.ReaderWriterCompatibilityChecker().get_compatibility(
        avro.schema.parse(json.dumps(reader)), avro.schema.parse(json.dumps(writer))
    )
    ours = incompatibilities("BACKWARD", avro_of(reader), [avro_of(writer)])
    assert bool(ours) == (
        theirs.compatibility is not avro.compatibility.SchemaCompatibilityType.compatible
    ), theirs


def message(body: str, *, head: str = 'syntax = "proto3"; package p;', more: str = "") -> Schema:
    return parse(PROTOBUF, f"{head} message M {{ {body} }} {more}")


@pytest.mark.parametrize(
    ("new", "old", "types"),
    [
        ("int32 a = 1; string b = 2;", "int32 a = 1;", []),
        ("int32 a = 1;", "int32 a = 1; string b = 2;", []),
        ("int32 b = 1;", "int32 a = 1;", []),
        ("int64 a = 1;", "bool a = 1;", []),
        ("bytes a = 1;", "string a = 1;", []),
        ("sint32 a = 1;", "int32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("float a = 1;", "double a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("N a = 1; message N {}", "int32 a = 1; message N {}", ["FIELD_KIND_CHANGED"]),
        ("map<string, int32> a = 1;", "map<string, int32> a = 1;", []),
        ("map<string, string> a = 1;", "map<string, int32> a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("repeated int32 a = 1;", "int32 a = 1;", ["FIELD_NUMERIC_LABEL_CHANGED"]),
        ("repeated string a = 1;", "string a = 1;", []),
        ("N a = 1; message N {} message O {}", "O a = 1; message N {} message O {}", ["FIELD_NAMED_TYPE_CHANGED"]),
        ("", "message N {}", ["MESSAGE_REMOVED"]),
        ("message N { sint32 a = 1; }", "message N { int32 a = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("E a = 1; enum E { X = 0; Y = 1; }", "E a = 1; enum E { X = 0; Z = 2; }", []),
        ("int32 a = 1;", "E a = 1; enum E { X = 0; }", []),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; }", []),
        ("oneof o { int32 a = 1; }", "oneof o { int32 a = 1; int32 b = 2; }", ["ONEOF_FIELD_REMOVED"]),
        ("int32 c = 3;", "oneof o { int32 a = 1; int32 b = 2; }", []),
        ("int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }", []),
        ("oneof o { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
        ("oneof o { int32 a = 1; }", "int32 a = 1;", []),
        ("oneof o { int32 a=1; int32 b=2; }", "oneof o { int32 a=1; } int32 b=2;", ["FIELD_MOVED_TO_EXISTING_ONEOF"]),
        ("optional int32 a = 1;", "int32 a = 1;", []),
        ("M next = 1; int32 v = 2;", "M next = 1; string v = 2;", ["FIELD_SCALAR_KIND_CHANGED"]),
    ],
)  # fmt: skip
def test_protobuf_fields_and_their_numbers(new: str, old: str, types: list[str]) -> None:
    found = incompatibilities("BACKWARD", message(new), [message(old)])
    assert [each.type for each in found] == types


def test_protobuf_files_and_required_fields() -> None:
    other = message("", head='syntax = "proto3"; package q;')
    (found,) = incompatibilities("BACKWARD", message(""), [other])
    assert (found.type, found.message) == (
        "PACKAGE_CHANGED",
        "the package is 'p' in the new schema, 'q' in the old schema",
    )
    with_id, without = (
        message(body, head="package p;") for body in ("required int32 a = 1;", "optional int32 b = 2;")
    )
    types = [each.type for each in incompatibilities("FULL", with_id, [without])]
    assert types == ["REQUIRED_FIELD_ADDED", "REQUIRED_FIELD_REMOVED"]
    (changed,) = incompatibilities("FULL", with_id, [avro_of("int")])
    assert changed.type == "SCHEMA_TYPE_CHANGED"
