"""Protobuf: texts beside protoc, and which payloads fit beside Protobuf's own reader."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.parsedschema import MAX_NODES, PROTOBUF, Reference
from mqspark.schemas.parsing import parse
from mqspark.schemas.protobuf.protocheck import MAX_NESTING
from mqspark.schemas.protobuf.protofiles import all_files
from mqspark.schemas.protobuf.protoschema import ProtobufSchema

ORDER = """
// what a customer wants
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/any.proto";
option java_package = "com.example" ".shop\\x21";
option optimize_for = SPEED;
option (custom.option) = { a: 1 b { c: "}" } };

message Order {
  /* the number
     of the order */
  int64 id = 1 [json_name = "orderNumber", deprecated = true, (custom.rule).least = 1];
  optional string note = 2;
  repeated sint32 sizes = 3 [packed = false];
  map<string, Line> lines = 4;
  oneof payment { option (custom.x) = true; Card card = 5; bytes cash = 6; }
  State state = 7;
  google.protobuf.Timestamp at = 8;
  google.protobuf.Any more = 0x9;
  map<int32, double> weights = 10;
  .shop.v1.Order parent = 11;
  Card.Kind kind = 12;
  reserved 20, 30 to 40, 536870911;
  reserved "old", "older";
  message Line { string sku = 1; fixed32 count = 2; double price = 3; }
  enum Inner { NONE = 0; }
  Inner inner = 13;
  string optional = 14;
  ;
}
message Card { enum Kind { option allow_alias = true; A = 0; B = 1; C = 1 [deprecated = true]; reserved 5 to max; }
  string number = 1; }
enum State { NEW = 0; PAID = 1; LOST = -1; }
service Shop { option deprecated = true; rpc Buy(Order) returns (stream Card); rpc Sell(stream Order) returns (Card) {
  option deprecated = true; } }
"""
OLDER = """
syntax = "proto2";
package old;
message A {
  required int32 id = 1 [default = -3];
  optional string name = 2 [default = "a\\"b\\n"];
  optional double d = 3 [default = inf];
  optional E e = 4 [default = Y];
  repeated group Part = 5 { optional A a = 1; }
  extensions 100 to 199, 500 to max;
  extend A { optional int32 x = 100; }
  optional bool flag = 6 [default = true];
  optional .old.A.Part part2 = 7;
  oneof o { int32 f = 8; string g = 9; }
}
extend A { repeated string y = 101; }
enum E { X = 1; Y = 2; }
"""
EDITION = """
edition = "2023";
package new;
option features.field_presence = IMPLICIT;
message A {
  int32 id = 1;
  string name = 2 [features.field_presence = EXPLICIT];
  B b = 3 [features.message_encoding = DELIMITED];
  reserved gone;
}
message B { repeated int32 n = 1; }
enum E { ZERO = 0; reserved 4; reserved other; }
"""
NODE = 'syntax = "proto3"; message Node { Node next = 1; repeated Node all = 2; }'


def schema_of(text: str, *needed: tuple[Reference, Any]) -> ProtobufSchema:
    made = parse(PROTOBUF, text, needed)
    assert isinstance(made, ProtobufSchema)
    return made


def compiled(text: str, folder: Path) -> descriptor_pb2.FileDescriptorProto:
    (folder / "schema.proto").write_text(text)
    include = Path(protoc.__file__).parent / "_proto"
    out = folder / "out.bin"
    code = protoc.main(
        ["protoc", f"-I{folder}", f"-I{include}", f"--descriptor_set_out={out}", str(folder / "schema.proto")]
    )
    assert code == 0
    made = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    return made


def without_json_names(found: Any) -> Any:
    """protoc writes all of them, also those that follow from the names."""
    is_file = isinstance(found, descriptor_pb2.FileDescriptorProto)
    for each in found.message_type if is_file else found.nested_type:
        without_json_names(each)
    for field in (*(() if is_file else found.field), *found.extension):
        if field.json_name != "orderNumber":
            field.ClearField("json_name")
    return found


@pytest.mark.parametrize(
    "text", [ORDER, OLDER, EDITION, NODE], ids=["proto3", "proto2", "edition", "recursive"]
)
def test_protoc_makes_the_same_of_a_text(text: str, tmp_path: Path) -> None:
    plain = text.replace('option (custom.option) = { a: 1 b { c: "}" } };', "")
    plain = plain.replace(", (custom.rule).least = 1", "").replace("option (custom.x) = true; ", "")
    theirs = compiled(plain, tmp_path)
    schema = schema_of(text)
    assert without_json_names(schema_of(text).file) == without_json_names(compiled(plain, tmp_path))
    again = schema_of(base64.b64encode(theirs.SerializeToString()).decode())
    assert again == schema
    assert schema_of(schema.canonical) == schema
    assert schema_of(schema.canonical).canonical == schema.canonical
    assert schema_of(schema.serialized) == schema


def test_what_makes_a_schema_another_one() -> None:
    schema = schema_of(NODE)
    assert schema_of("/* why */" + NODE.replace(" ", "\n ")) == schema
    assert schema_of(NODE.replace("Node", "Knot")) != schema
    assert schema_of(NODE.replace("= 2", "= 3")) != schema
    assert schema_of(NODE.replace("2;", "2 [deprecated = true];")) != schema


def test_references_are_imports() -> None:
    base = schema_of('syntax = "proto3"; package a; message Base { string name = 1; }')
    middle = schema_of(
        'syntax = "proto3"; package a.b; import "base.proto"; message Middle { Base base = 1; }',
        (Reference("base.proto", "base", 1), base),
    )
    text = 'syntax = "proto3"; import "x/middle.proto"; import "base.proto"; message Top { a.b.Middle m = 1; a.Base b'
    text += " = 2; }"
    needed = ((Reference("x/middle.proto", "middle", 1), middle), (Reference("base.proto", "base", 1), base))
    top = schema_of(text, *needed)
    assert str(top.check()(b"\x0a\x03\x0a\x01\x0a")) == "field m.base.name: the payload ends early"
    assert top.check()(b"\x0a\x05\x0a\x03\x0a\x01x") is None
    with pytest.raises(InvalidSchema, match=r"'(x/middle|base)\.proto' is none of the references"):
        schema_of(text)


def test_imports_in_a_circle() -> None:
    files = {name: schema_of(NODE).file for name in "ab"}
    files["a"].dependency.append("b")
    files["b"].dependency.append("a")
    with pytest.raises(InvalidSchema, match="leads back to itself"):
        all_files(files["a"], files)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no such message"),
        ("message", "ends early"),
        ('syntax = "proto4";', "neither proto2 nor proto3"),
        ('edition = "9999999";', "no edition"),
        ('syntax = "proto3"; message A { int32 a = 0; }', "0 is not in 1 to"),
        ('syntax = "proto3"; message A { int32 a = 19000; }', "keeps for itself"),
        ('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', "1"),
        ('syntax = "proto3"; message A { int32 a = 1; string a = 2; }', "a"),
        ('syntax = "proto3"; message A { required int32 a = 1; }', "no required"),
        (
            'syntax = "proto3";\n\nmessage A { B b = 1; }',
            "type 'B' is neither in the file nor in its imports",
        ),
        ('syntax = "proto3"; message A { map<float, int32> m = 1; }', "no type of a map's keys"),
        ('syntax = "proto3"; message A { int32 a = 1 [nothing = 1]; }', "no option nothing"),
        ('syntax = "proto3"; message A { int32 a = 1 [deprecated = 1]; }', "no value of option deprecated"),
        ('syntax = "proto3"; message A { int32 a = 1 [map_entry = true]; }', "no option map_entry"),
        ("message A { int32 a = 1; }", "optional, required or repeated"),
        ("message A { reserved 5 to 4; }", "ends before it begins"),
        ("message A { } \n $", "line 2"),
        ("message A { } /* ", "comment does not end"),
        ('option java_package = "a\n";', "no part of the language"),
        ('option java_package = "\\ud800";', "no character"),
        ('syntax = "proto3"; enum E { A = 1; } message M { E e = 1; }', "E"),
        ('import option "x.proto";', "not supported"),
        ('import "nowhere.proto"; message A {}', "'nowhere.proto' is none of the references"),
        ("AAAA", "no FileDescriptorProto"),
        ("package a; package b;", "second package"),
    ],
)
def test_what_is_no_schema(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema_of(text).check()
    assert problem in str(caught.value)


def test_bounds_come_first() -> None:
    fields = "".join(f"int32 f{n} = {n};" for n in range(1, MAX_NODES + 2) if not 19_000 <= n < 20_000)
    for text in (
        "message A {" * 5_000,
        f'syntax = "proto3"; message A {{ {fields} int32 z = {MAX_NODES + 1_000}; int32 y = {MAX_NODES + 2_000}; }}'
        + "message B {}" * 1_000,
        "message A {}" + " " * (1 << 20),
    ):
        with pytest.raises(SchemaTooLarge):
            schema_of(text)
    for text in (
        "/*" * 500_000,
        "(" * 1_000_000,
        "a." * 500_000,
        '"' + "\\" * 1_000_000,
        "message A { option a =" + "{" * 900_000,
    ):
        with pytest.raises(InvalidSchema):
            schema_of(text)


def own(schema: ProtobufSchema, name: str) -> Any:
    return message_factory.GetMessageClass(schema.pool.FindMessageTypeByName(name))


def filled(schema: ProtobufSchema) -> Any:
    made = own(schema, "shop.v1.Order")(id=-5, note="n", sizes=[1, -70_000], cash=b"\xff", state=77, kind=1)
    made.lines["a"].sku, made.lines["a"].count = "Käse", 3
    made.weights[7] = 1.5
    made.at.seconds = 12
    made.more.type_url, made.more.value = "type.googleapis.com/unknown.Thing", b"\xff\xff"
    made.parent.id = 1
    return made


def test_a_payload_that_fits() -> None:
    schema = schema_of(ORDER)
    payload = filled(schema).SerializeToString()
    check = schema.check()
    assert check(payload) is None
    assert check(memoryview(payload)) is None
    assert (
        check(payload + b"\xf8\x07\x01\xfb\x07\x08\x01\xfc\x07") is None
    )  # a field and a group of a later version
    assert schema.check([0]) is check
    assert schema.check([0, 2])(b"\x0a\x01x") is None  # Order.Line, behind two entries of maps
    assert schema.message_name([0, 2]) == "shop.v1.Order.Line"
    with pytest.raises(InvalidSchema, match="indexes 7/1: the file has no such message"):
        schema.check([7, 1])


@pytest.mark.parametrize(
    ("payload", "flaw"),
    [
        (b"\x12\x01\xff", "field note: the text is not UTF-8 at its byte 0"),
        (b"\x22\x05\x12\x03\x0a\x01\xff", "field lines.value.sku: the text is not UTF-8 at its byte 0"),
        (b"\x0a\x01x", "field id: it is bytes with a length, not a varint"),
        (b"\x3d\0\0\0\0", "field state: it is four bytes, not a varint"),
        (b"\x1a\x01\x80", "field sizes: the payload ends early"),
        (b"\x08" + b"\xff" * 11, "field id: a number has more than ten bytes"),
        (b"\x08", "field id: the payload ends early"),
        (b"\x42\x7f", "field at: the payload ends early"),
        (b"\0", "the tag 0 is that of no field"),
        (b"\xfb\x07", "the payload ends early"),
        (b"\xfc\x07", "group 127 ends where none begins"),
        (b"\x07", "the tag 7 is that of no field"),
    ],
)
def test_the_field_that_does_not_fit(payload: bytes, flaw: str) -> None:
    assert str(schema_of(ORDER).check()(payload)) == flaw


def test_required_fields_and_groups() -> None:
    check = schema_of(OLDER).check()
    assert check(b"\x08\x01\x12\x01\xff") is None  # proto2 takes any bytes for a text
    assert str(check(b"")) == "the required field id is missing"
    assert str(check(b"\x08\x01\x2b\x0a\0\x2c")) == "field part.a: the required field id is missing"
    assert check(b"\x08\x01\x2b\x0a\x02\x08\x01\x2c") is None
    assert str(check(b"\x08\x01\x2b\x0a\x02\x08\x01")) == "field part: the payload ends early"


def test_messages_inside_each_other_are_counted() -> None:
    check = schema_of(NODE).check()

    def nested(depth: int) -> bytes:
        made = b""
        for _ in range(depth):
            size = len(made)
            made = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + made
        return made

    assert check(nested(MAX_NESTING - 1)) is None
    assert f"more than {MAX_NESTING} messages are inside each other" in str(check(nested(MAX_NESTING)))
    assert "messages are inside each other" in str(check(b"\xfb\x07" * 500_000))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_protobufs_own_reader_takes_what_fits(data: st.DataObject) -> None:
    payload = bytearray(SAMPLE.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(0, len(payload))) :]
    flaw = SCHEMA.check()(bytes(payload))
    try:
        made = type(SAMPLE).FromString(bytes(payload))
    except DecodeError:
        assert flaw is not None
        return
    if flaw is not None:  # a field of another wire type is one that their reader does not know
        assert "not " in flaw.problem
        assert made is not None


SCHEMA = schema_of(ORDER)
SAMPLE = filled(SCHEMA)
