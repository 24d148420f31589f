"""Rows become Protobuf bodies that the decoder reads back, or are an error."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mqspark.arrow.payload.protobodies import ProtobufBodies
from mqspark.arrow.payload.protowriting import (
    ProtobufWriting,
    check_protobuf_columns,
    indexes_of,
    proto_text_of,
)
from mqspark.errors import InvalidMessage, InvalidSchema
from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from tests.unit.arrow.bodies_kit import read

PROTO = """syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum Kind { NONE = 0; GOOD = 3; }
message First { }
message Row {
  int32 plain = 1; optional uint64 large = 2; Kind kind = 3; repeated Line lines = 4;
  map<string, Line> by_name = 5; map<int32, double> numbers = 6; repeated bytes raw = 7;
  google.protobuf.Timestamp at = 8; google.protobuf.Duration took = 9; google.protobuf.Int64Value boxed = 10;
  oneof which { string a = 11; float b = 12; } Line line = 13; First nothing = 14;
  message Line { optional string name = 1; repeated Kind kinds = 2; }
}"""
SCHEMA = ProtobufSchema(PROTO)
ROW = SCHEMA.pool.FindMessageTypeByName("p.Row")
COLUMNS = ProtobufBodies(ROW).schema
LINE = {"name": None, "kinds": ["NONE", "GOOD"]}
AT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
FULL: dict[str, Any] = {
    "plain": -1,
    "large": Decimal((1 << 64) - 1),
    "kind": "GOOD",
    "lines": [LINE, {"name": "x", "kinds": []}],
    "by_name": [("k", LINE)],
    "numbers": [(-7, 0.5)],
    "raw": [b"", b"\xff"],
    "at": AT,
    "took": datetime.timedelta(days=-1, microseconds=1),
    "boxed": 0,
    "a": None,
    "b": 1.5,
    "line": LINE,
    "nothing": {},
}
EMPTY: dict[str, Any] = {
    **dict.fromkeys(COLUMNS.names),
    "plain": 0,
    "kind": "NONE",
    "lines": [],
    "by_name": [],
    "numbers": [],
    "raw": [],
}


def written(rows: list[dict[str, Any]], columns: pa.Schema = COLUMNS, descriptor: Any = ROW) -> list[bytes]:
    batch = pa.RecordBatch.from_pylist(rows, schema=columns)
    return ProtobufWriting(descriptor, columns.names, b"").bodies(batch)


def test_rows_come_back_as_they_were() -> None:
    check_protobuf_columns(ROW, COLUMNS)
    assert read(ProtobufBodies(ROW), [*written([FULL, EMPTY])]) == [FULL, EMPTY]
    few = pa.schema([COLUMNS.field("a"), COLUMNS.field("plain")])
    assert read(ProtobufBodies(ROW), [*written([{"a": "", "plain": 2}], few)]) == [
        {**EMPTY, "a": "", "plain": 2}
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"plain": None}, "the field plain is never null"),
        ({"lines": None}, "the field lines is never null"),
        ({"lines": [None]}, r"a p\.Row\.Line in a list or a map is never null"),
        ({"raw": [None]}, "NoneType"),
        ({"kind": "BAD"}, "KeyError: 'BAD'"),
        ({"large": Decimal(-1)}, "ValueError"),
        ({"a": "x"}, "a and b are one field, of which one is written"),
        ({"line": {"name": "x", "kinds": None}}, "the field kinds is never null"),
    ],
    ids=str,
)
def test_a_row_that_the_message_cannot_hold_is_an_error(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidMessage, match=f"a row does not fit the schema .*{says}"):
        written([FULL | change])


def test_columns_are_those_of_the_message() -> None:
    proto2 = ProtobufSchema('syntax = "proto2"; message M { required int32 id = 1; optional int32 x = 2; }')
    message = proto2.pool.FindMessageTypeByName("M")
    for columns, says in (
        ([("id", pa.int64())], "field 'id' is int32, and the column int64: cast it"),
        ([("no", pa.int32())], "it has no field 'no'"),
        ([("x", pa.int32())], "there is no column for field 'id', which is required"),
    ):
        with pytest.raises(InvalidSchema, match=says):
            check_protobuf_columns(message, pa.schema(columns))
    with pytest.raises(InvalidMessage, match="the field id is never null"):
        written([{"id": None}], pa.schema([("id", pa.int32())]), message)


def test_where_a_message_is_in_its_file() -> None:
    names = ("p.First", "p.Row", "p.Row.Line")
    # Entries of maps are messages, too, in the order of the file.
    assert [indexes_of(SCHEMA, name) for name in names] == [(0,), (1,), (1, 2)]
    assert [SCHEMA.message_name(indexes_of(SCHEMA, name)) for name in names] == [*names]
    with pytest.raises(InvalidSchema, match=r"has no message 'p\.None'"):
        indexes_of(SCHEMA, "p.None")


def test_a_schema_is_made_of_columns() -> None:
    inner = pa.struct([("x", pa.float32()), ("list", pa.list_(pa.field("element", pa.string())))])
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("n", pa.int32()),
            ("ok", pa.bool_()),
            ("price", pa.float64()),
            ("count", pa.decimal128(20, 0)),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("inner", inner),
            ("lines", pa.list_(pa.field("element", inner))),
            ("by", pa.map_(pa.string(), inner)),
            ("times", pa.map_(pa.int32(), pa.duration("us"))),
        ]
    )
    schema = ProtobufSchema(proto_text_of(columns, "row_Orders"))
    descriptor = schema.pool.FindMessageTypeByName(schema.message_name(()))
    assert ProtobufBodies(descriptor).schema == columns
    nothing = {**dict.fromkeys(columns.names), "lines": [], "by": [], "times": []}
    assert read(ProtobufBodies(descriptor), [*written([nothing], columns, descriptor)]) == [nothing]


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("a", pa.date32(), "column 'a': date32.* has no type in Protobuf"),
        ("a", pa.timestamp("us"), "column 'a': timestamp.us. has no type"),
        ("a", pa.decimal128(10, 2), "column 'a': decimal128"),
        ("a", pa.list_(pa.list_(pa.int32())), "column 'a': list"),
        ("a", pa.map_(pa.float64(), pa.int32()), "column 'a': keys are not double"),
        ("a-b", pa.int32(), "'a-b' is no name of a field"),
    ],
    ids=str,
)
def test_columns_without_a_type_in_protobuf(name: str, kind: pa.DataType, says: str) -> None:
    with pytest.raises(InvalidSchema, match=says):
        proto_text_of(pa.schema([(name, kind)]), "Row")
