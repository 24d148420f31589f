"""Schemas and values that decoders of typed columns refuse, and never take for another value."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass

from mqspark.arrow.payload.avrobodies import AvroBodies
from mqspark.arrow.payload.bodywriting import AvroWriting
from mqspark.arrow.payload.protobodies import ProtobufBodies
from mqspark.errors import InvalidSchema
from mqspark.schemas.parsing import parse
from mqspark.schemas.payloadvalues import values_of
from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from tests.unit.arrow.bodies_kit import avro, read, record

DECIMAL = {"logicalType": "decimal", "precision": 6, "scale": 2}
FIXED_DECIMAL = {"type": "fixed", "name": "F", "size": 3, **DECIMAL}
NOTHING = avro({"type": "record", "name": "Row", "fields": []})


def with_default(kind: Any, default: Any) -> Any:
    return avro(
        {"type": "record", "name": "Row", "fields": [{"name": "a", "type": kind, "default": default}]}
    )


def test_a_fixed_decimal_is_no_decimal_of_bytes() -> None:
    """The first byte of the one would be the length of the other."""
    fixed, bytes_ = avro(record(d=FIXED_DECIMAL)), avro(record(d={"type": "bytes", **DECIMAL}))
    for writer, reader in ((fixed, bytes_), (bytes_, fixed)):
        with pytest.raises(InvalidSchema, match="where it was written"):
            AvroBodies(writer, reader)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 1 << 60),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, -(1 << 62)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "\u00ff" * 9 + "\0" * 9),
    ],
)
def test_a_default_that_no_column_holds_is_refused_with_the_schema(kind: Any, default: Any) -> None:
    with pytest.raises(InvalidSchema, match="the default of a"):
        AvroBodies(NOTHING, with_default(kind, default))


@pytest.mark.parametrize(
    ("kind", "default", "number"),
    [
        ({"type": "long", "logicalType": "timestamp-micros"}, 1 << 62, 1 << 62),
        ({"type": "int", "logicalType": "date"}, (1 << 31) - 1, (1 << 31) - 1),
        ("long", 1.0, 1),
    ],
)
def test_a_default_beyond_the_calendar_is_its_number(kind: Any, default: Any, number: int) -> None:
    (column,) = AvroBodies(NOTHING, with_default(kind, default)).decode(pa.array([b"", b""])).columns
    plain = pa.int32() if column.type == pa.date32() else pa.int64()
    assert column.view(plain).to_pylist() == [number, number]


def test_unions_of_records_in_unions_are_compared_in_bounds() -> None:
    """Each level has two records that the writer's could be: by its name, and by an alias."""

    def nested(leaf: str, *, reader: bool) -> Any:
        inner: list[Any] = [leaf]
        for level in range(30):
            names = [each if isinstance(each, str) else each["name"] for each in inner]
            made = [{"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": inner}]}]
            if reader:
                aliases = [f"R{level}"]
                fields = [{"name": "a", "type": names}]
                made.append({"type": "record", "name": f"B{level}", "aliases": aliases, "fields": fields})
            inner = made
        return avro({"type": "record", "name": "Row", "fields": [{"name": "u", "type": inner}]})

    with pytest.raises(InvalidSchema):
        AvroBodies(nested("int", reader=False), nested("string", reader=True))


@pytest.mark.parametrize(
    "logical",
    [
        {"precision": 0},
        {"precision": -1, "scale": 9},
        {"precision": 1.5},
        {"precision": True},
        {"precision": 40, "scale": 50},
        {"precision": 4, "scale": None},
        {},
    ],
)
@pytest.mark.parametrize("base", ["bytes", "double", "int", "fixed"])
def test_a_decimal_that_is_none_is_its_base_type(base: str, logical: dict[str, Any]) -> None:
    """Avro: a logical type that is not sound is ignored."""
    kind = {"type": base, "logicalType": "decimal", **logical}
    value: Any = {"bytes": b"ab", "fixed": b"ab", "double": 1.5, "int": 7}[base]
    if base == "fixed":
        kind |= {"name": "F", "size": 2}
    values = values_of(parse("AVRO", record_text(kind)))
    _, payload = values.write({"a": value})
    assert values.read(payload) == {"a": value}
    if base == "double" and logical.get("precision") in (-1, 1.5):
        with pytest.raises(InvalidSchema, match="precision"):
            AvroWriting([record_text(kind)], b"")


def record_text(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "Row", "fields": [{"name": "a", "type": kind}]})


@pytest.mark.parametrize("base", ["bytes", "fixed"])
def test_a_decimal_of_too_many_digits_is_refused_and_not_rounded(base: str) -> None:
    kind = {"type": base, "logicalType": "decimal", "precision": 2, "scale": 0}
    kind |= {"name": "F", "size": 2} if base == "fixed" else {}
    schema = parse("AVRO", record_text(kind))
    length = b"" if base == "fixed" else b"\x04"
    assert schema.check()(length + b"\x00\x63") is None
    assert schema.check()(length + b"\xff\x9d") is None
    for number in (b"\x00\x64", b"\x01\x02", b"\xff\x9c", b"\x80\x00"):
        flaw = schema.check()(length + number)
        assert flaw is not None
        assert str(flaw) == "field a: the decimal has more than 2 digits"


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message M {
  google.protobuf.Timestamp at = 1;
  optional string HasField = 2;
  int32 SerializeToString = 3;
  optional int32 DESCRIPTOR = 4;
}
"""


def test_fields_may_have_the_names_of_methods_and_times_the_least_second() -> None:
    schema = parse("PROTOBUF", PROTO)
    assert isinstance(schema, ProtobufSchema)
    kind = GetMessageClass(schema.pool.FindMessageTypeByName("M"))
    far, near = kind(), kind(HasField="x", SerializeToString=5)
    far.at.seconds = -(1 << 63)
    near.at.seconds = 1
    bodies = [kind.SerializeToString(each) for each in (far, near)]
    reason, row = read(ProtobufBodies(schema.pool.FindMessageTypeByName("M")), bodies)
    assert "out of the range" in reason
    assert (row["HasField"], row["SerializeToString"], row["DESCRIPTOR"]) == ("x", 5, None)
    values = values_of(schema)
    assert values.write(near) == ((0,), bodies[1])
    assert values.read(bodies[1]) == near
