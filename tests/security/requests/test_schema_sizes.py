"""Schemas that take more memory than their bytes: a megabyte of text shall not become gigabytes."""

from __future__ import annotations

import json

import pytest

from mqspark.errors import SchemaTooLarge
from mqspark.schemas.parsedschema import AVRO, JSON, MAX_NAME_LENGTH, PROTOBUF
from mqspark.schemas.parsing import parse


def many_types(language: str, letters: int, count: int) -> str:
    """``count`` types or schemas in a package, or at a URI, of so many letters."""
    parts = ["a" * (letters // 20 - 1)] * 20
    if language == AVRO:
        types = [{"type": "record", "name": f"R{number}", "fields": []} for number in range(count)]
        fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
        return json.dumps({"type": "record", "name": "R", "namespace": ".".join(parts), "fields": fields})
    if language == PROTOBUF:
        messages = " ".join(f"message M{number} {{}}" for number in range(count))
        return f'syntax = "proto3"; package {".".join(parts)}; {messages}'
    properties = {f"p{number}": {"$id": f"d{number}", "type": "string"} for number in range(count)}
    return json.dumps({"$id": f"http://{'/'.join(parts)}/", "properties": properties})


@pytest.mark.parametrize("language", [AVRO, JSON, PROTOBUF])
def test_a_long_name_is_not_repeated_by_thousands_of_types(language: str) -> None:
    """A megabyte of schema with half of it a package took gigabytes."""
    parse(language, many_types(language, MAX_NAME_LENGTH - 100, 50))
    with pytest.raises(SchemaTooLarge, match="letters of a"):
        parse(language, many_types(language, MAX_NAME_LENGTH + 100, 50))


def test_a_name_is_not_looked_for_in_thousands_of_parts() -> None:
    for parts, is_fine in ((90, True), (400, False)):
        text = f'syntax = "proto3"; package {".".join(["a"] * parts)}; message M {{ M inner = 1; }}'
        if is_fine:
            assert parse(PROTOBUF, text).check()(b"\x0a\0") is None
        else:
            with pytest.raises(SchemaTooLarge, match="parts of a full name"):
                parse(PROTOBUF, text)


def test_patterns_are_small_together() -> None:
    """Each may have a quarter of a megabyte, and thousands are compiled in one go."""

    def schema(pattern: str, count: int) -> str:
        return json.dumps({"properties": {f"p{n}": {"pattern": f"{pattern}{n}"} for n in range(count)}})

    with pytest.raises(SchemaTooLarge, match="bytes of compiled patterns"):
        parse(JSON, schema(r"(?=a)\w{5}", 200))
    assert parse(JSON, schema(r"^[A-Z]{2}\d+-", 1_000)).check()(b'{"p7": "AB1-7"}') is None
