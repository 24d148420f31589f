"""Payloads that are alike: what is taken together fits one by one, whatever byte is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqspark.record.batchitems import EqualBodies
from mqspark.schemas.jsonschema.jsonalike import MAX_PATTERN_BYTES, MAX_PAUSE, Alike, Pattern
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.schemaprefix import encode_prefix

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "maxLength": 9},
        "price": {"type": "number"},
        "kind": {"enum": ["ab", "cd"]},
        "few": {"type": "integer", "maximum": 59},
        "code": {"type": "string", "pattern": "^x"},
        "tags": {"type": "array", "items": {"type": ["string", "null"]}},
        "at": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "real": {"type": "number"},
        "whole": {"type": "integer"},
    },
    "required": ["id"],
}  # fmt: skip
BODY = (
    b'{ "id":10,"name":"k\xc3\xa4se","price":-2.50, "kind":"ab","few":58,"code":"xy","tags":["a",null,"b\\n"],'
    b'"at":{"n":7,"m":[true,0]},"real":1e5,"whole":30.0,"more":"any","\\u006eame":"z","id":11}'
)


def alike(schema: Any) -> tuple[Alike, JsonSchema]:
    made = JsonSchema(json.dumps(schema))
    return Alike(made.document, made.check()), made


@pytest.mark.parametrize(
    ("schema", "head", "free"),
    [
        (ORDER, b"", 100),
        (ORDER, encode_prefix(7), 100),
        (True, b"", 100),
        ({**ORDER, "minProperties": 2}, b"", 0),
    ],
)
def test_what_matches_fits_whatever_byte_is_changed(schema: Any, head: bytes, free: int) -> None:
    made = JsonSchema(json.dumps(schema))
    check, matched, body = made.check(), 0, head + BODY
    assert check(BODY) is None
    pattern = Pattern(made.document, body, len(head))
    assert pattern.matches(body * 3)
    for at in range(len(body)):
        for byte in {*b'"\\{}[],:019aA -.\n\0\x1f\x20\x7e\x7f\x80\xff', body[at] ^ 1} - {body[at]}:
            other = body[:at] + bytes([byte]) + body[at + 1 :]
            if pattern.matches(body + other):
                matched += 1
                assert other.startswith(head)
                assert check(other[len(head) :]) is None, other
    assert matched >= free
    assert free or not matched


@pytest.mark.parametrize("before", [b"zyx,:{}[]", b"with ! it"])
@pytest.mark.parametrize(
    "text", [b'a","x":"a', b"aaaaaaaa\\", b'aaaaaaa\\"', b'"aaaaaaaa', b"aaaa\naaaa", b' "aaaaaaa']
)
def test_a_text_does_not_end_what_is_around_it(text: bytes, before: bytes) -> None:
    _, made = alike(ORDER)
    body = b'{"name":"aaaaaaaaa"}'
    other = body.replace(b"a" * 9, text)
    assert len(other) == len(body)
    pattern = Pattern(made.document, body, 0)
    assert pattern.matches(body + body.replace(b"a" * 9, before))
    assert not pattern.matches(body + other)
    assert pattern.matches(body + body.replace(b"a" * 9, b"~ }!#[]^9"))
    assert not pattern.matches(body + other)


def test_the_sizes_of_numbers_are_as_those_of_the_first() -> None:
    found, _ = alike(ORDER)
    assert found.take([b'{"id":10}', b'{"id":99}'], b"")
    assert not found.take([b'{"id":10}', b'{"id":09}'], b"")
    long = b'{"real":%s}' % (b"1" * 400)
    assert not alike(ORDER)[0].take([long, long.replace(b"11", b"19", 1)], b"")


def test_bodies_that_are_not_alike_are_looked_at_more_and_more_rarely() -> None:
    found, made = alike({"type": "object", "properties": {"id": {"type": "integer"}}})
    good, other = [b'{"id":10}', b'{"id":99}'], [b'{"id":1}', b'{"id":100}']
    tries = 0
    for _ in range(200):
        assert not found.take(other, b"")
        assert made.fits_all(other, b"")
    while not found.take(good, b""):
        tries += 1
    assert tries <= MAX_PAUSE
    assert not found.take([b"x" * (MAX_PATTERN_BYTES + 1)] * 2, b"")
    assert not alike(ORDER)[0].take([b"", b""], b"")


def test_equal_bodies_are_a_sequence() -> None:
    bodies = EqualBodies(b"abcdef", 2)
    assert list(bodies) == [b"ab", b"cd", b"ef"] == bodies[:]
    assert (len(bodies), bodies[-1], b"\n".join(bodies)) == (3, b"ef", b"ab\ncd\nef")
    with pytest.raises(IndexError):
        bodies[3]
    found, _ = alike(ORDER)
    assert found.take(EqualBodies(b'{"id":10}{"id":99}', 9), b"")
    assert not found.take(EqualBodies(b'{"id":10}{"id":"9}', 9), b"")
