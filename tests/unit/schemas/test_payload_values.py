"""Values of Python as payloads and back: what each type becomes, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import any_pb2, duration_pb2, struct_pb2, timestamp_pb2

from mqspark.errors import InvalidMessage, InvalidSchema
from mqspark.schemas.parsing import parse
from mqspark.schemas.payloadvalues import PayloadValues, schema_of_file, values_of
from tests.unit.registry_kit import field, record

UTC = dt.UTC
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
message Order {
  message Line { string name = 1; }
  string id = 1;
  map<int32, Line> lines = 2;
  google.protobuf.Any extra = 3;
  Kind kind = 4;
  Order parent = 5;
  oneof how { string card = 6; int64 cash = 7; }
}
message Refund { int64 cents = 1; }
enum Kind { PLAIN = 0; GIFT = 1; }
"""


def avro(kind: Any) -> PayloadValues:
    return values_of(parse("AVRO", json.dumps(kind)))


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


NODE = {"type": "record", "name": "Node", "fields": [field("next", ["null", "Node"], default=None)]}
SUIT = {"type": "enum", "name": "Suit", "symbols": ["A", "B"], "default": "A"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("-1234.50")),
        (logical("long", "timestamp-millis"), dt.datetime(2026, 2, 3, 4, 5, 6, 7000, UTC)),
        (logical("long", "timestamp-micros"), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        (logical("long", "local-timestamp-micros"), dt.datetime(2026, 2, 3, 4, 5, 6, 7)),  # noqa: DTZ001 - a local one
        (logical("int", "date"), dt.date(2026, 2, 3)),
        (logical("long", "time-micros"), dt.time(4, 5, 6, 7)),
        (logical("string", "uuid"), uuid.UUID(int=7)),
        (["null", "string", "long"], "x"),
        (["null", "string", "long"], 7),
        (["null", "string", "long"], None),
        ({"type": "map", "values": ["null", "long"]}, {"a": 1, "": None}),
        ({"type": "array", "items": "double"}, [0.5, -1.0]),
        (NODE, {"next": {"next": {"next": None}}}),
        (SUIT, "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    ],
)
def test_an_avro_value_comes_back(kind: Any, value: Any) -> None:
    values = avro(kind)
    indexes, payload = values.write(value)
    assert (indexes, values.read(payload)) == ((), value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 1 << 31),
        ("int", "1"),
        ("long", 1 << 63),
        ("string", b"\xff"),
        (logical("bytes", "decimal", precision=3, scale=1), Decimal("1000.1")),
        (logical("bytes", "decimal", precision=3, scale=1), Decimal("0.01")),
        (SUIT, "C"),
        ({"type": "map", "values": "long"}, {1: 1}),
        (["null", "long"], "x"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc"),
        (json.loads(record(field("id"))), {"id": "x", "typo": 1}),
        (json.loads(record(field("id"))), {}),
    ],
)
def test_an_avro_value_that_does_not_fit_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidMessage, match="the value does not fit its schema") as raised:
        avro(kind).write(value)
    assert raised.value.field == "value"


def test_a_value_that_is_too_deep_is_refused() -> None:
    deep: Any = None
    for _ in range(150):
        deep = {"next": deep}
    with pytest.raises(InvalidMessage, match="does not fit"):
        avro(NODE).write(deep)
    with pytest.raises(InvalidMessage, match="does not fit"):
        avro(NODE).read(b"\x02" * 5_000 + b"\x00")


def test_a_payload_that_claims_much_is_refused_at_once() -> None:
    many = avro({"type": "array", "items": "null"})
    with pytest.raises(InvalidMessage, match="does not fit"):
        many.read(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00")


def test_a_date_that_python_lacks_is_a_clear_error() -> None:
    moments = avro(logical("long", "timestamp-micros"))
    payload = avro("long").write(1 << 62)[1]
    with pytest.raises(InvalidMessage, match="the body does not fit its schema"):
        moments.read(payload)


def test_a_reader_sees_its_own_schema() -> None:
    old = parse("AVRO", json.dumps({"type": "enum", "name": "Suit", "symbols": ["A", "B", "C"]}))
    payload = values_of(old).write("C")[1]
    assert values_of(old, parse("AVRO", json.dumps(SUIT))).read(payload) == "A"
    lost = parse("AVRO", json.dumps({"type": "enum", "name": "Suit", "symbols": ["A", "B"]}))
    with pytest.raises(InvalidSchema, match="not compatible with the reader"):
        values_of(old, lost)
    with pytest.raises(InvalidSchema, match="of type AVRO, not JSON"):
        values_of(old, parse("JSON", "{}"))
    with pytest.raises(InvalidSchema, match="of type AVRO, not PROTOBUF"):
        values_of(old, timestamp_pb2.Timestamp)


@dataclass
class Point:
    x: int
    y: float


def test_json_values_are_checked_both_ways() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    values = values_of(parse("JSON", json.dumps(schema)))
    assert values.read(values.write(Point(1, 0.5))[1]) == {"x": 1, "y": 0.5}
    for bad in ({}, {"x": "1"}, [], {"x": object()}, {(1, 2): 3}, {"x": "\ud800"}):
        with pytest.raises(InvalidMessage, match="the value does not fit its schema"):
            values.write(bad)
    for body in (b"", b"{", b'{"x":"1"}', b"\xff", b"[" * 100_000):
        with pytest.raises(InvalidMessage, match="the body does not fit its schema"):
            values.read(body)


def test_protobuf_values_are_messages_or_dicts() -> None:
    values = values_of(parse("PROTOBUF", PROTO))
    order = {"id": "1", "lines": {"7": {"name": "tea"}}, "kind": "GIFT", "cash": "3", "parent": {"id": "0"}}
    indexes, payload = values.write(order)
    found = values.read(payload, indexes)
    assert indexes == (0,)
    assert (found.id, found.lines[7].name, found.kind, found.WhichOneof("how")) == ("1", "tea", 1, "cash")
    assert values.write(found) == (indexes, payload)
    assert values.write(found.lines[7])[0] == (0, 0)
    assert values.read(b"\x08\x05", (1,)).cents == 5
    for bad in ({"id": 1}, {"typo": 1}, {"kind": "NONE"}, [], None, timestamp_pb2.Timestamp()):
        with pytest.raises(InvalidMessage, match="the value does not fit its schema"):
            values.write(bad)
    for body, where in ((b"\x0a\xff", (0,)), (b"\x0a\x01\xff", (0,)), (b"", (9,)), (b"", (0, 4))):
        with pytest.raises(InvalidMessage, match="the body does not fit its schema"):
            values.read(body, where)


def test_an_any_stays_what_it_is() -> None:
    """Nobody fetches what it names."""
    values = values_of(parse("PROTOBUF", PROTO))
    extra = any_pb2.Any(type_url="type.example/unknown.Type", value=b"\xff\xff")
    made = values.read(*reversed(values.write({"id": "1"})))
    made.extra.type_url, made.extra.value = extra.type_url, extra.value
    found = values.read(*reversed(values.write(made)))
    assert (found.extra.type_url, found.extra.value) == (extra.type_url, extra.value)


@pytest.mark.parametrize(
    "value",
    [
        timestamp_pb2.Timestamp(seconds=7, nanos=5),
        duration_pb2.Duration(seconds=-1),
        struct_pb2.Struct(fields={"a": struct_pb2.Value(number_value=1)}),
    ],
)
def test_a_class_of_messages_is_a_schema(value: Any) -> None:
    text, imports = schema_of_file(value.DESCRIPTOR.file)
    assert imports == []
    values = values_of(parse("PROTOBUF", text), type(value))
    indexes, payload = values.write(value)
    assert values.read(payload, indexes) == value
    with pytest.raises(InvalidMessage):
        values.read(payload, (9,))
