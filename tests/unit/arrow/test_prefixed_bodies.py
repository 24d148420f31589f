"""Bodies with the id of their schema in front."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mqspark.arrow.payload.avrobodies import AvroBodies
from mqspark.arrow.payload.jsonbodies import JsonBodies
from mqspark.arrow.payload.prefixedbodies import PrefixedBodies, without_prefix
from mqspark.errors import InvalidSchema
from mqspark.schemas.parsedschema import AVRO
from mqspark.schemas.schemaprefix import encode_prefix
from tests.unit.arrow.bodies_kit import avro, avro_body, read, record

FIRST, SECOND = record(a="int"), record(b=("string", "-"), a="long")


def decoders(made: list[int]) -> PrefixedBodies:
    reader = avro(SECOND)

    def decoder_of(number: int) -> AvroBodies:
        made.append(number)
        if number > 2:
            raise InvalidSchema("the registry has no such id", kind=AVRO)
        return AvroBodies(avro([FIRST, SECOND][number - 1]), reader)

    return PrefixedBodies(AvroBodies(reader).schema, decoder_of)


def test_each_body_is_read_by_the_schema_that_it_names() -> None:
    old = encode_prefix(1) + avro_body(FIRST, {"a": 7})
    new = encode_prefix(2) + avro_body(SECOND, {"b": "x", "a": 8})
    other = encode_prefix(77) + b"\0"
    found = read(decoders([]), [new, old, None, other, b"", old[:5], b"\0\0\0\0\0\x02", old])
    no_prefix = "the body does not begin with the id of a schema"
    assert found == [
        {"b": "x", "a": 8},
        {"b": "-", "a": 7},
        "the message has no body",
        "schema 77: the registry has no such id",
        no_prefix,
        "a: a number that is cut short or too long",
        no_prefix,
        {"b": "-", "a": 7},
    ]
    assert read(decoders([]), []) == []
    assert read(decoders([]), [old, old]) == [{"b": "-", "a": 7}] * 2


def test_a_slice_of_bodies_keeps_its_places() -> None:
    bodies: list[Any] = [b"", encode_prefix(5) + b"x", None, b"plain", encode_prefix(6) + b"y"]
    behind, ids = without_prefix(pa.array(bodies, pa.binary()).slice(1))
    assert behind.to_pylist() == [b"x", None, b"plain", b"y"]
    assert ids.tolist() == [5, 0, 0, 6]


def test_json_is_read_with_and_without_a_prefix() -> None:
    found = read(JsonBodies(pa.schema([("a", pa.int64())])), [encode_prefix(9) + b'{"a":1}', b'{"a":2}'])
    assert found == [{"a": 1}, {"a": 2}]
