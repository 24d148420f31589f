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
from pyspark_pymq.cluster.typedbodies import TypedBodies
from pyspark_pymq.optiontexts import OptionTexts
from pyspark_pymq.payloadoptions import PayloadOptions
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


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        ({"payloadFormat": "protobuf"}, "payloadFormat"),
        ({"payloadFormat": "json", "schemaRegistry": "http://h"}, "schemaRegistry"),
        ({"payloadFormat": "avro", "payloadSchema": "{}", "registerSchema": "true"}, "registerSchema"),
        ({"payloadFormat": "raw", "messagePrefix": "a"}, "messagePrefix"),
        ({"payloadFormat": "avro"}, "payloadSchema"),
    ],
)
def test_options_that_contradict(texts: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PayloadOptions.parse_write(OptionTexts(texts))
    assert caught.value.key == key
