"""Ids, versions, look-ups and deletions of the schema registry, with the numbers of errors that clients know."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.broker.schemaregistry import schemaanswers
from tests.support.invariants import validate
from tests.unit.registry_kit import BREAKING, FIRST, SECOND, VALUE, RegistryBench, field, record


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RegistryBench]:
    made = RegistryBench(tmp_path / "store")
    yield made
    validate(made.broker)


def test_a_schema_has_one_id_in_all_subjects(bench: RegistryBench) -> None:
    assert bench.registered(FIRST) == (1, 1)
    assert bench.registered(FIRST, "Other-value") == (1, 1)
    assert bench.registered(SECOND) == (2, 2)
    assert bench.registered(json.dumps(json.loads(FIRST), indent=4)) == (1, 1), "spaces make no new version"
    assert bench.told("list_id_subjects", schema_id=1).document == ["Orders-value", "Other-value"]
    assert bench.told("list_id_versions", schema_id=1).document == [
        {"subject": "Orders-value", "version": 1},
        {"subject": "Other-value", "version": 1},
    ]
    assert (
        bench.told("get_schema", schema_id=2).document["schema"]
        == bench.told("get_version", VALUE, version="latest").document["schema"]
    )


def test_what_is_registered_survives_a_restart(bench: RegistryBench) -> None:
    bench.registered(FIRST)
    bench.registered(SECOND)
    bench.told("set_subject_rule", VALUE, {"compatibility": "FULL_TRANSITIVE"})
    bench.told("set_mode", body={"mode": "READONLY"})
    before = bench.told("list_schemas")
    bench.reopen()
    assert bench.told("list_schemas") == before
    assert bench.told("get_subject_rule", VALUE).document == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert bench.told("get_mode").document == {"mode": "READONLY"}


def test_the_id_of_a_schema_that_is_gone_is_not_given_again(bench: RegistryBench) -> None:
    bench.registered(FIRST)
    bench.registered(SECOND)
    assert bench.told("delete_version", VALUE, version=2).document == 2
    assert bench.told("get_schema", schema_id=2).status == 200, "messages may still have it"
    assert bench.told("delete_version", VALUE, version=2, options="permanent=true").document == 2
    assert bench.told("get_schema", schema_id=2).code == 40403
    bench.reopen()
    assert bench.registered(record(field("id"), field("x", default="")))[0] == 3


def test_a_deleted_version_comes_back_with_its_id(bench: RegistryBench) -> None:
    bench.registered(FIRST)
    bench.told("delete_subject", VALUE)
    assert bench.told("list_subjects").document == []
    assert bench.told("list_subjects", options="deleted=true").document == [VALUE]
    assert bench.told("list_versions", VALUE).code == 40401
    assert bench.told("list_versions", VALUE, options="deleted=true").document == [1]
    assert bench.registered(FIRST) == (1, 2)


def test_deletions_have_an_order(bench: RegistryBench) -> None:
    assert bench.told("delete_subject", VALUE).code == 40401
    bench.registered(FIRST)
    assert bench.told("delete_subject", VALUE, options="permanent=true").code == 40405
    assert bench.told("delete_version", VALUE, version=1, options="permanent=true").code == 40407
    assert bench.told("delete_version", VALUE, version=9).code == 40402
    assert bench.told("delete_subject", VALUE).document == [1]
    assert bench.told("delete_subject", VALUE).code == 40404
    assert bench.told("delete_version", VALUE, version=1).code == 40406
    assert bench.told("delete_subject", VALUE, options="permanent=true").document == [1]
    assert bench.told("delete_subject", VALUE).code == 40401


@pytest.mark.parametrize(
    ("operation", "place", "code"),
    [
        ("get_version", {"version": "newest"}, 42202),
        ("get_version", {"version": 0}, 42202),
        ("get_version", {"version": 1 << 31}, 42202),
        ("get_version", {"version": 7}, 40402),
        ("get_schema", {"schema_id": 7}, 40403),
        ("get_schema", {"schema_id": "x"}, 40403),
        ("get_subject_rule", {}, 40408),
        ("get_subject_mode", {}, 40409),
    ],
)
def test_what_is_not_there_has_its_number(
    bench: RegistryBench, operation: str, place: dict[str, object], code: int
) -> None:
    bench.registered(FIRST)
    subject = None if "schema_id" in place else VALUE
    assert bench.told(operation, subject, **place).code == code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"schema": "{"}, 42201),
        ({"schema": ""}, 42201),
        ({}, 42201),
        ({"schema": 5}, 42201),
        ({"schema": FIRST, "schemaType": "XML"}, 42201),
        ({"schema": FIRST, "references": [{"name": "a"}]}, 42201),
        ({"schema": FIRST, "references": [{"name": "a", "subject": "none", "version": 1}]}, 42201),
        ({"schema": FIRST, "references": [{"name": "a", "subject": "a/b", "version": 1}]}, 42208),
        ({"schema": FIRST, "metadata": {"properties": {"a": "b"}}}, 42201),
        ({"schema": FIRST, "version": 5}, 42201),
        ({"schema": FIRST, "id": 5}, 42205),
        ([1], 422),
        ({"schema": " " * (2 << 20)}, 42201),
    ],
)
def test_a_body_that_is_no_schema_is_refused(bench: RegistryBench, body: object, code: int) -> None:
    told = bench.told("register", VALUE, body)
    assert (told.status, told.code) == (422, code)
    assert bench.told("list_subjects").document == []


@pytest.mark.parametrize("subject", ["", " a", ":.ctx:a", "a/b", "a\nb", "a" * 256, "a@b"])
def test_a_subject_has_a_name_like_others(bench: RegistryBench, subject: str) -> None:
    answer = bench.answer("register", subject, {"schema": FIRST})
    assert answer.code != 0 or json.loads(bytes(answer.body))["error_code"] == 42208


def test_a_level_decides_what_may_follow(bench: RegistryBench) -> None:
    bench.registered(FIRST)
    refused = bench.register(BREAKING)
    assert (refused.status, refused.code) == (409, 409)
    assert "count" in refused.document["message"]
    checked = bench.told(
        "check_version", VALUE, {"schema": BREAKING}, version="latest", options="verbose=true"
    )
    assert checked.document["is_compatible"] is False
    assert "count" in checked.document["messages"][0]
    assert bench.told("check_all", VALUE, {"schema": SECOND}).document == {"is_compatible": True}
    assert bench.told("set_subject_rule", VALUE, {"compatibility": "SIDEWARDS"}).code == 42203
    assert bench.told("set_subject_rule", VALUE, {"compatibility": "NONE"}).document == {
        "compatibility": "NONE"
    }
    assert bench.registered(BREAKING) == (2, 2)
    assert bench.told("remove_subject_rule", VALUE).document == {"compatibilityLevel": "NONE"}
    assert bench.told("get_subject_rule", VALUE, options="defaultToGlobal=true").document == {
        "compatibilityLevel": "BACKWARD"
    }


def test_a_transitive_level_looks_at_all_versions(bench: RegistryBench) -> None:
    bench.told("set_subject_rule", VALUE, {"compatibility": "NONE"})
    bench.registered(record(field("id"), field("count", "string", default="")))
    bench.registered(FIRST)
    changed = record(field("id"), field("count", "int", default=0))
    bench.told("set_subject_rule", VALUE, {"compatibility": "BACKWARD_TRANSITIVE"})
    assert "version 1" in bench.register(changed).document["message"]
    bench.told("set_subject_rule", VALUE, {"compatibility": "BACKWARD"})
    assert bench.registered(changed) == (3, 3)


def test_read_only_means_it(bench: RegistryBench) -> None:
    bench.registered(FIRST)
    bench.told("set_subject_mode", VALUE, {"mode": "READONLY"})
    for refused in (
        bench.register(SECOND),
        bench.told("delete_subject", VALUE),
        bench.told("delete_version", VALUE, version=1),
    ):
        assert refused.code == 42205
    assert bench.registered(SECOND, "Other-value")[1] == 1
    assert bench.told("set_mode", body={"mode": "IMPORT"}).code == 42204
    assert bench.told("remove_subject_mode", VALUE).document == {"mode": "READONLY"}
    assert bench.registered(SECOND) == (2, 2)


def test_a_schema_that_others_need_stays(bench: RegistryBench) -> None:
    bench.registered(record(field("city"), name="Address"), "Address")
    needs = [{"name": "Address", "subject": "Address", "version": 1}]
    order = record(field("to", "Address"))
    schema_id, _ = bench.registered(order, references=needs)
    assert bench.told("get_schema", schema_id=schema_id).document["references"] == needs
    assert bench.told("list_referrers", "Address", version=1).document == [schema_id]
    assert bench.told("delete_subject", "Address").code == 42206
    assert bench.told("delete_version", "Address", version=1).code == 42206
    assert bench.told("find_schema", VALUE, {"schema": order, "references": needs}).document["version"] == 1
    bench.told("delete_subject", VALUE)
    assert bench.told("list_referrers", "Address", version=1).document == []
    bench.told("delete_subject", VALUE, options="permanent=true")
    assert bench.told("delete_subject", "Address").document == [1]


def test_a_look_up_finds_what_is_in_its_subject(bench: RegistryBench) -> None:
    assert bench.told("find_schema", VALUE, {"schema": FIRST}).code == 40401
    bench.registered(FIRST)
    assert bench.told("find_schema", VALUE, {"schema": SECOND}).code == 40403
    found = bench.told("find_schema", VALUE, {"schema": FIRST}).document
    assert (found["subject"], found["version"], found["id"]) == (VALUE, 1, 1)
    bench.told("delete_version", VALUE, version=1)
    assert bench.told("find_schema", VALUE, {"schema": FIRST}).code == 40401
    assert bench.told("find_schema", VALUE, {"schema": FIRST}, options="deleted=True").document["id"] == 1


def test_lists_have_pages_and_prefixes(bench: RegistryBench) -> None:
    for number in range(5):
        bench.registered(FIRST, f"T{number}-value")
    assert bench.told("list_subjects", options="offset=1&limit=2").document == ["T1-value", "T2-value"]
    assert bench.told("list_subjects", options="subjectPrefix=T4").document == ["T4-value"]
    listed = bench.told("list_schemas", options="offset=4&limit=9").document
    assert [each["subject"] for each in listed] == ["T4-value"]
    assert bench.told("list_subjects", options="deleted=perhaps").code == 422


def test_a_subject_has_so_many_versions_and_no_more(
    bench: RegistryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemaanswers, "MAX_VERSIONS", 2)
    bench.registered(FIRST)
    bench.registered(SECOND)
    third = record(field("id"), field("more", default=""))
    assert "limit" in bench.register(third).document["message"]
    bench.told("delete_version", VALUE, version=1)
    bench.told("delete_version", VALUE, version=1, options="permanent=true")
    assert bench.registered(third) == (3, 3)


def test_a_protobuf_schema_is_also_given_as_a_descriptor(bench: RegistryBench) -> None:
    """Some clients read nothing else."""
    text = 'syntax = "proto3";\npackage post;\nmessage Address {\n  string city = 1;\n}\n'
    assert bench.registered(text, schemaType="PROTOBUF") == (1, 1)
    assert bench.told("get_schema", schema_id=1).document["schema"] == text
    place = {"version": 1, "options": "format=serialized"}
    serialized = bench.told("get_version", VALUE, **place).document["schema"]
    assert b"Address" in base64.b64decode(serialized)
    assert bench.told("get_schema", schema_id=1, options="format=serialized").document["schema"] == serialized
    assert bench.registered(serialized, schemaType="PROTOBUF") == (1, 1), "it is the same schema"
    assert bench.told("get_schema", schema_id=1, options="format=pretty").code == 422


def test_levels_and_modes_may_be_written_small(bench: RegistryBench) -> None:
    assert bench.told("set_rule", body={"compatibility": "full_transitive"}).document == {
        "compatibility": "FULL_TRANSITIVE"
    }
    assert bench.told("get_rule").document == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert bench.told("set_subject_mode", VALUE, {"mode": "readonly"}).document == {"mode": "READONLY"}
    assert bench.register(FIRST).code == 42205
    for wrong in ("worst", "", None, 5, ["FULL"]):
        assert bench.told("set_rule", body={"compatibility": wrong}).code == 42203
        assert bench.told("set_mode", body={"mode": wrong}).code == 42204


@pytest.mark.parametrize("context", ["", ":*:", ":.:"])
def test_lists_of_all_contexts_are_those_of_the_one(bench: RegistryBench, context: str) -> None:
    bench.registered(FIRST)
    bench.registered(FIRST, "Other-value")
    assert bench.told("list_subjects", options=f"subjectPrefix={context}").document == [
        VALUE,
        "Other-value",
    ]
    assert bench.told("list_subjects", options=f"subjectPrefix={context}Oth").document == ["Other-value"]
    assert len(bench.told("list_schemas", options=f"subjectPrefix={context}").document) == 2
    if context:
        assert bench.register(FIRST, f"{context}{VALUE}").code == 42208
