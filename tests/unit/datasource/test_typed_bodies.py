"""Typed columns of a write become bodies that the source reads back."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from mqspark.arrow.payload.avrobodies import AvroBodies
from mqspark.arrow.payload.bodywriting import AvroWriting, JsonWriting, avro_text_of
from mqspark.arrow.payload.jsonbodies import JsonBodies
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.schemas.avro.avroschema import AvroSchema
from pyspark_pymq.optiontexts import OptionTexts
from pyspark_pymq.payloadoptions import PayloadOptions
from pyspark_pymq.typed.typedbodies import TypedBodies
from tests.unit.arrow.bodies_kit import FULL_COLUMNS, FULL_ROW, read, record

NOTHING: dict[str, Any] = dict.fromkeys(FULL_COLUMNS.names)
SINK = {"key": (), "tags": (), "value": ()}


def test_json_and_avro_come_back_as_they_were() -> None:
    rows = pa.RecordBatch.from_pylist([FULL_ROW, NOTHING], schema=FULL_COLUMNS)
    assert read(JsonBodies(FULL_COLUMNS), list(JsonWriting().bodies(rows))) == [FULL_ROW, NOTHING]
    text = avro_text_of(FULL_COLUMNS, "Row")
    decoder = AvroBodies(AvroSchema(text).root)
    assert decoder.schema == FULL_COLUMNS
    assert read(decoder, list(AvroWriting([text], b"").bodies(rows))) == [FULL_ROW, NOTHING]


def planned(schema: StructType, **texts: str) -> TypedBodies:
    options = PayloadOptions.parse_write(OptionTexts(texts))
    assert options is not None
    found, _ = TypedBodies.planned(options, schema, SINK, "T")
    made: TypedBodies = pickle.loads(pickle.dumps(found))  # noqa: S301 - as Spark hands it to a worker
    return made


def test_columns_of_the_message_are_not_in_the_body() -> None:
    both = StructType().add("key", StringType()).add("m_key", StringType()).add("id", LongType())
    batch = pa.RecordBatch.from_pydict({"key": ["a"], "m_key": ["b"], "id": [1]})
    [plain] = planned(both, payloadFormat="json").rows([batch])
    assert plain.to_pylist() == [{"key": "a", "value": b'{"m_key":"b","id":1}'}]
    [prefixed] = planned(both, payloadFormat="json", messagePrefix="m_").rows([batch])
    assert prefixed.to_pylist() == [{"key": "b", "value": b'{"key":"a","id":1}'}]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (record(id="int"), "field 'id' is int32, and the column int64: cast it"),
        (record(a="long"), "it has no field 'id'"),
        (record(id="long", more="int"), "there is no column for field 'more', which has no default"),
        (record(id="long", u=(["null", "int", "string"], None)), "a union of several types is not written"),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_refused_before_anything_runs(schema: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^payloadSchema: {says}"):
        planned(StructType().add("id", LongType()), payloadFormat="avro", payloadSchema=json.dumps(schema))


def test_a_row_that_does_not_fit_the_schema_is_an_error() -> None:
    schema = json.dumps(record(id="long", k=({"type": "enum", "name": "K", "symbols": ["A"]}, "A")))
    columns = StructType().add("id", LongType()).add("k", StringType())
    made = planned(columns, payloadFormat="avro", payloadSchema=schema)
    for row in ({"id": None, "k": "A"}, {"id": 1, "k": "B"}):
        batch = pa.RecordBatch.from_pylist([row], schema=pa.schema([("id", pa.int64()), ("k", pa.string())]))
        with pytest.raises(InvalidMessage, match="payloadFormat: a row does not fit the schema"):
            list(made.rows([batch]))


JSON_ROW = {
    "type": "object",
    "properties": {"id": {"$ref": "Id"}, "k": {"enum": ["A", "B"]}, "n": {"type": ["string", "null"]}},
    "required": ["id", "n"],
    "$defs": {"Id": {"$id": "Id", "type": "integer", "maximum": 9}},
}


def test_json_bodies_are_checked_by_a_given_schema() -> None:
    """A null is left out, unless the field is required."""
    columns = StructType().add("id", LongType()).add("k", StringType()).add("n", StringType())
    made = planned(columns, payloadFormat="json", payloadSchema=json.dumps(JSON_ROW))
    kinds = pa.schema([("id", pa.int64()), ("k", pa.string()), ("n", pa.string())])

    def bodies(*row: Any) -> list[bytes]:
        batch = pa.RecordBatch.from_pylist([dict(zip(kinds.names, row, strict=True))], schema=kinds)
        return [each["value"] for part in made.rows([batch]) for each in part.to_pylist()]

    assert bodies(1, None, None) == [b'{"id":1,"n":null}']
    assert bodies(1, "B", "x") == [b'{"id":1,"k":"B","n":"x"}']
    for row, says in (
        ((10, None, None), "field id: 10 is greater than"),
        ((1, "C", None), "field k: "),
        ((None, "A", None), "field id: null"),
    ):
        with pytest.raises(InvalidMessage, match=f"a row does not fit the schema .*{says}"):
            bodies(*row)
    with pytest.raises(ConfigError, match="there is no column for field 'n', which is required"):
        planned(StructType().add("id", LongType()), payloadFormat="json", payloadSchema=json.dumps(JSON_ROW))


def test_protobuf_bodies_by_a_text() -> None:
    text = 'syntax = "proto3"; message A { } message B { int64 id = 1; }'
    made = planned(
        StructType().add("id", LongType()),
        payloadFormat="protobuf",
        payloadSchema=text,
        payloadMessage="B",
    )
    [found] = made.rows([pa.RecordBatch.from_pydict({"id": [7]})])
    assert found.to_pylist() == [{"value": b"\x08\x07"}]


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        ({"payloadFormat": "protobuf"}, "payloadSchema"),
        ({"payloadFormat": "json", "registerSchema": "true"}, "registerSchema"),
        ({"payloadFormat": "json", "payloadMessage": "M"}, "payloadMessage"),
        ({"payloadFormat": "avro", "payloadSchema": "{}", "registerSchema": "true"}, "registerSchema"),
        ({"payloadFormat": "raw", "messagePrefix": "a"}, "messagePrefix"),
        ({"payloadFormat": "avro"}, "payloadSchema"),
    ],
)
def test_options_that_contradict(texts: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PayloadOptions.parse_write(OptionTexts(texts))
    assert caught.value.key == key
