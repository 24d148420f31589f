"""Protobuf bodies to typed columns."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from mqspark.arrow.payload.protobodies import ProtobufBodies
from mqspark.errors import InvalidSchema
from tests.unit.arrow.bodies_kit import read

F = descriptor_pb2.FieldDescriptorProto
IMPORTS = (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
GOOGLES = {
    "at": "Timestamp",
    "lasts": "Duration",
    "maybe": "StringValue",
    "any": "Any",
}


def descriptor(**fields: Any) -> Any:
    """A message ``Row``: a field is a type, or a name of a message, or (type, how)."""
    pool = DescriptorPool()
    for each in IMPORTS:
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb))
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    file.dependency.extend(each.DESCRIPTOR.name for each in IMPORTS)
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=2)
    point = file.message_type.add(name="Point")
    point.field.add(name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    row = file.message_type.add(name="Row")
    for number, (name, kind) in enumerate(fields.items(), 1):
        label = F.LABEL_OPTIONAL
        optional = False
        if isinstance(kind, tuple):
            kind, how = kind
            optional, label = how == "optional", F.LABEL_REPEATED if how == "repeated" else label
        made = row.field.add(name=name, number=number, label=label)
        if isinstance(kind, str):
            made.type_name = kind
            made.type = F.TYPE_ENUM if kind == ".t.Color" else F.TYPE_MESSAGE
        else:
            made.type = kind
        if optional:
            made.proto3_optional = True
            made.oneof_index = len(row.oneof_decl)
            row.oneof_decl.add(name=f"_{name}")
    entry = row.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_MESSAGE, type_name=".t.Point", label=F.LABEL_OPTIONAL)
    pool.Add(file)
    return pool.FindMessageTypeByName("t.Row")


WIDE = descriptor(
    i=F.TYPE_SINT32,
    u=F.TYPE_UINT32,
    l=F.TYPE_INT64,
    ul=F.TYPE_FIXED64,
    d=F.TYPE_DOUBLE,
    f=F.TYPE_FLOAT,
    b=F.TYPE_BOOL,
    s=F.TYPE_STRING,
    raw=F.TYPE_BYTES,
    opt=(F.TYPE_INT32, "optional"),
    color=".t.Color",
    point=".t.Point",
    points=(".t.Point", "repeated"),
    colors=(".t.Color", "repeated"),
    m=(".t.Row.MEntry", "repeated"),
    **{name: f".google.protobuf.{kind}" for name, kind in GOOGLES.items()},
)
EMPTY = {
    "i": 0,
    "u": 0,
    "l": 0,
    "ul": Decimal(0),
    "d": 0.0,
    "f": 0.0,
    "b": False,
    "s": "",
    "raw": b"",
    "opt": None,
    "color": "RED",
    "point": None,
    "points": [],
    "colors": [],
    "m": [],
    "at": None,
    "lasts": None,
    "maybe": None,
    "any": None,
}


def full() -> Any:
    row = GetMessageClass(WIDE)(
        i=-1,
        u=4_000_000_000,
        l=1 << 40,
        ul=(1 << 64) - 1,
        d=1.5,
        f=0.5,
        b=True,
        s="é",
        raw=b"\xff",
        opt=0,
        color=2,
    )
    row.point.x = 3
    row.points.add(x=1)
    row.points.add()
    row.colors.append(2)
    row.m[-7].x = 9
    row.at.FromDatetime(datetime.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=datetime.UTC))
    row.lasts.FromTimedelta(datetime.timedelta(seconds=-1, microseconds=-5))
    row.maybe.value = ""
    row.any.Pack(wrappers_pb2.Int32Value(value=5))
    return row


def test_columns_of_every_type() -> None:
    found = read(ProtobufBodies(WIDE), [b"", full().SerializeToString(), b""])
    assert found == [
        EMPTY,
        {
            "i": -1,
            "u": 4_000_000_000,
            "l": 1 << 40,
            "ul": Decimal((1 << 64) - 1),
            "d": 1.5,
            "f": 0.5,
            "b": True,
            "s": "é",
            "raw": b"\xff",
            "opt": 0,
            "color": "BLUE",
            "point": {"x": 3},
            "points": [{"x": 1}, {"x": 0}],
            "colors": ["BLUE"],
            "m": [(-7, {"x": 9})],
            "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=datetime.UTC),
            "lasts": datetime.timedelta(seconds=-1, microseconds=-5),
            "maybe": "",
            "any": {"type_url": "type.googleapis.com/google.protobuf.Int32Value", "value": b"\x08\x05"},
        },
        EMPTY,
    ]


def test_a_body_that_is_wrong_affects_no_other_row() -> None:
    late = GetMessageClass(WIDE)()
    late.at.seconds = 1 << 62
    unknown = GetMessageClass(WIDE)(colors=[0, 7])
    bodies = [
        b"",
        b"\xff",
        None,
        late.SerializeToString(),
        unknown.SerializeToString(),
        full().SerializeToString(),
    ]
    found = read(ProtobufBodies(WIDE), [*bodies, *[b""] * 50])
    assert found[0] == EMPTY
    assert str(found[1]).startswith("the body is no t.Row (")
    assert found[2:5] == [
        "the message has no body",
        "t.Row.at: out of the range of timestamp[us, tz=UTC]",
        "t.Row.colors: the enum has no value 7",
    ]
    assert isinstance(found[5], dict)
    assert found[6:] == [EMPTY] * 50


def test_a_text_that_is_no_utf_8() -> None:
    found = read(ProtobufBodies(descriptor(s=F.TYPE_STRING)), [b"\x0a\x01\xff", b"\x0a\x01x"])
    assert isinstance(found[0], str)
    assert found[1] == {"s": "x"}


def test_fields_that_the_schema_lacks_are_ignored() -> None:
    assert read(ProtobufBodies(descriptor(i=F.TYPE_SINT32)), [full().SerializeToString()]) == [{"i": -1}]


@pytest.mark.parametrize("kind", [".t.Row", ".google.protobuf.Struct"])
def test_a_message_that_contains_itself_is_refused(kind: str) -> None:
    with pytest.raises(InvalidSchema, match="contains itself"):
        ProtobufBodies(descriptor(a=(kind, "repeated")))


def test_unsigned_numbers_have_columns_that_hold_them() -> None:
    types = ProtobufBodies(WIDE).schema
    assert types.field("u").type == pa.int64()
    assert types.field("ul").type == pa.decimal128(20, 0)
