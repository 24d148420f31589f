"""Protobuf descriptors that no compiler has made: each is a schema or an InvalidSchema, and nothing else."""

from __future__ import annotations

import base64
import importlib
from contextlib import suppress
from typing import Any

from google.protobuf import descriptor_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqspark.arrow.payload.protobodies import ProtobufBodies
from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.compatibility import incompatibilities
from mqspark.schemas.parsing import parse
from mqspark.schemas.payloadvalues import values_of
from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from tests.unit.schemas.test_proto_schema import EDITION, NODE, OLDER, ORDER

REFUSED = (InvalidSchema, SchemaTooLarge)


def descriptor_of(text: str) -> bytes:
    schema = parse("PROTOBUF", text)
    assert isinstance(schema, ProtobufSchema)
    return schema.file.SerializeToString()


def known(name: str) -> bytes:
    found: bytes = importlib.import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.serialized_pb
    return found


SEEDS = [descriptor_of(each) for each in (ORDER, OLDER, EDITION, NODE)]
SEEDS += [known(each) for each in ("any", "struct", "timestamp", "wrappers", "descriptor")]


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A descriptor with some bytes changed, left out, repeated, or of another one."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.integers(0, 4))
        if kind == 0 and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == 1:
            del data[at : at + draw(st.integers(1, 20))]
        elif kind == 2:
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif kind == 3:
            data[at:at] = data[at : at + draw(st.integers(1, 200))]
        else:
            data[at:at] = draw(st.sampled_from(SEEDS))
    return bytes(data)


NAMES = st.sampled_from(
    ["A", "B", "A.B", "", ".", "a", "key", "value", "AEntry", "é", "x" * 600, "1", "google.protobuf.Any"]
)
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 19_000, 536_870_911, 536_870_912, (1 << 31) - 1, -(1 << 31)])
SMALL = st.integers(0, 3)


@st.composite
def message_type(draw: st.DrawFn, depth: int = 0) -> Any:
    made = descriptor_pb2.DescriptorProto(name=draw(NAMES))
    for _ in range(draw(SMALL)):
        field = made.field.add(
            name=draw(NAMES),
            number=draw(NUMBERS),
            type=draw(st.integers(1, 18)),
            label=draw(st.integers(1, 3)),
        )
        for name, value in (
            ("type_name", NAMES),
            ("default_value", NAMES),
            ("json_name", NAMES),
            ("extendee", NAMES),
        ):
            if draw(st.integers(0, 3)) == 0:
                setattr(field, name, draw(value))
        if draw(st.booleans()):
            field.oneof_index = draw(NUMBERS)
        if draw(st.booleans()):
            field.proto3_optional = draw(st.booleans())
    if draw(st.booleans()):
        made.options.map_entry = draw(st.booleans())
    for _ in range(draw(SMALL)):
        made.oneof_decl.add(name=draw(NAMES))
    for _ in range(draw(SMALL)):
        made.reserved_range.add(start=draw(NUMBERS), end=draw(NUMBERS))
        made.extension_range.add(start=draw(NUMBERS), end=draw(NUMBERS))
    for _ in range(draw(SMALL)):
        made.enum_type.add(name=draw(NAMES)).value.add(name=draw(NAMES), number=draw(NUMBERS))
    if depth < 2:
        for _ in range(draw(SMALL)):
            made.nested_type.add().CopyFrom(draw(message_type(depth + 1)))
    return made


@st.composite
def made_up(draw: st.DrawFn) -> bytes:
    """A descriptor of parts that are well-formed alone."""
    file = descriptor_pb2.FileDescriptorProto(name=draw(NAMES), package=draw(NAMES))
    file.syntax = draw(st.sampled_from(["", "proto2", "proto3", "editions", "proto9"]))
    if draw(st.booleans()):
        file.edition = draw(st.sampled_from([0, 998, 999, 1000, 1001, 99_999]))
    for _ in range(draw(st.integers(0, 3))):
        file.message_type.add().CopyFrom(draw(message_type()))
    for _ in range(draw(SMALL)):
        file.enum_type.add(name=draw(NAMES)).value.add(name=draw(NAMES), number=draw(NUMBERS))
    file.dependency.extend(
        draw(st.lists(st.sampled_from(["google/protobuf/any.proto", "schema.proto", "x"]), max_size=2))
    )
    file.public_dependency.extend(draw(st.lists(NUMBERS, max_size=1)))
    return file.SerializeToString()


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.one_of(changed(), made_up()), payload=st.binary(max_size=40))
def test_any_descriptor_is_a_schema_or_refused(data: bytes, payload: bytes) -> None:
    text = base64.b64encode(data).decode()
    try:
        schema = parse("PROTOBUF", text)
    except REFUSED:
        return
    assert isinstance(schema, ProtobufSchema)
    # What is kept is the text: it has to be the same schema.
    again = parse("PROTOBUF", schema.canonical)
    assert again.canonical == schema.canonical
    assert incompatibilities("FULL", again, [schema]) == []
    parse("PROTOBUF", schema.serialized)
    try:
        schema.message_name(())
    except InvalidSchema:
        return  # a file of enums
    schema.check()(payload)
    values_of(schema)
    with suppress(InvalidSchema):  # a message that contains itself, for example
        ProtobufBodies(schema.pool.FindMessageTypeByName(schema.message_name(())))
