"""The bytes in front of a payload, beside Confluent's own."""

from __future__ import annotations

import io

import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from hypothesis import given
from hypothesis import strategies as st

from mqspark.schemas.schemaprefix import MAX_INDEXES, Prefix, decode_prefix, encode_prefix

IDS = st.integers(1, (1 << 31) - 1)
INDEXES = st.lists(st.integers(0, 300), min_size=1, max_size=5)


@given(IDS, INDEXES)
def test_confluents_serializers_write_the_same(schema_id: int, indexes: list[int]) -> None:
    assert encode_prefix(schema_id) == SchemaId("AVRO", schema_id).id_to_bytes()
    theirs = SchemaId("PROTOBUF", schema_id, None, indexes).id_to_bytes()
    assert encode_prefix(schema_id, indexes) == theirs
    read = SchemaId("PROTOBUF")
    rest = read.from_bytes(io.BytesIO(encode_prefix(schema_id, indexes) + b"payload"))
    assert (read.id, read.message_indexes, rest.read()) == (schema_id, indexes, b"payload")


@given(IDS, INDEXES, st.binary(max_size=4))
def test_what_is_written_is_read(schema_id: int, indexes: list[int], payload: bytes) -> None:
    head = encode_prefix(schema_id, indexes)
    assert decode_prefix(memoryview(head + payload), indexed=True) == Prefix(
        schema_id, len(head), tuple(indexes)
    )
    assert decode_prefix(head + payload) == Prefix(schema_id, 5)


@given(st.binary(max_size=12))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        found = decode_prefix(body, indexed=True)
    except ValueError:
        return
    assert found is None or found.payload_at <= len(body)


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0\0", b"{}", b"\1\0\0\0\1x", b"\0\0\0\0\0x", b"\0\xff\xff\xff\xffx"]
)
def test_a_body_without_a_prefix(body: bytes) -> None:
    assert decode_prefix(body) is None


@pytest.mark.parametrize(
    "rest", [b"", b"\2", b"\1", b"\x80\x80\x80\x80\x80\x01", (2 * MAX_INDEXES + 2).to_bytes(1, "big") + b"\1"]
)
def test_damaged_indexes(rest: bytes) -> None:
    with pytest.raises(ValueError, match="path to the message"):
        decode_prefix(b"\0\0\0\0\1" + rest, indexed=True)


@pytest.mark.parametrize(
    ("schema_id", "indexes"), [(0, []), (1 << 31, []), (-1, []), (1, [-1]), (1, [0] * 101)]
)
def test_what_is_no_prefix(schema_id: int, indexes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"are no indexes|is no id"):
        encode_prefix(schema_id, indexes)
