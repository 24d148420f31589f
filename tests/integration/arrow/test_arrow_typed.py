"""``schema=``: fields of bodies as columns of a read and of a scan."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import duckdb
import fastavro
import polars as pl
import pyarrow as pa
import pytest

import mqspark.arrow
from mqspark.errors import InvalidMessage
from mqspark.schemas.parsing import parse
from mqspark.testing import Broker

FIELDS = pa.schema([("id", pa.int64()), ("price", pa.float64())])
ROWS = 500
RECORD = {
    "type": "record",
    "name": "Price",
    "fields": [{"name": "id", "type": "long"}, {"name": "offset", "type": ["null", "string"]}],
}


def sent(namesrv: str, topic: str, bodies: list[bytes]) -> None:
    keys = [f"k{number}" for number in range(len(bodies))]
    table = pa.table({"key": keys, "value": bodies, "partition": [0] * len(bodies)})
    assert mqspark.arrow.write(namesrv, topic, table) == len(bodies)


def avro(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, RECORD, {"id": number, "offset": None if number % 2 else f"o{number}"})
    return out.getvalue()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        bodies = [b'{"id":%d,"price":%d.5}' % (number, number) for number in range(ROWS)]
        sent(running.namesrv, "Prices", bodies)
        sent(running.namesrv, "Mixed", [b'{"id":1}', b'{"id":"two"}', b'{"id":3,"price":1}'])
        sent(running.namesrv, "Avro", [avro(number) for number in range(ROWS)])
        yield running


@pytest.mark.parametrize("local", [True, False], ids=["in place", "over TCP"])
def test_fields_stand_beside_the_columns_of_the_message(broker: Broker, local: bool) -> None:
    reader = mqspark.arrow.read(broker.namesrv, "Prices", schema=FIELDS, local=local, batch_rows=64)
    names = ["key", "topic", "partition", "offset", "timestamp", "tags", "id", "price"]
    assert reader.schema.names == names
    table = reader.read_all()
    assert table["id"].to_pylist() == table["offset"].to_pylist() == list(range(ROWS))
    assert table["price"].to_pylist() == [number + 0.5 for number in range(ROWS)]
    with_value = mqspark.arrow.read(
        broker.namesrv, "Prices", schema=FIELDS, columns=["value"], end={0: 1, 1: 0, 2: 0, 3: 0}
    )
    assert with_value.read_all().to_pylist() == [{"value": b'{"id":0,"price":0.5}', "id": 0, "price": 0.5}]


def test_a_body_that_does_not_fit_is_an_error_or_has_a_reason(broker: Broker) -> None:
    with pytest.raises(InvalidMessage, match=r"offset 1 of queue 0 of Mixed: .*id.*with reason_column"):
        mqspark.arrow.read(broker.namesrv, "Mixed", schema=FIELDS).read_all()
    reader = mqspark.arrow.read(
        broker.namesrv, "Mixed", schema=FIELDS, columns=["offset"], reason_column="why"
    )
    rows = reader.read_all().to_pylist()
    assert [(row["offset"], row["id"], row["price"], row["why"] is None) for row in rows] == [
        (0, 1, None, True),
        (1, None, None, False),
        (2, 3, 1.0, True),
    ]


def test_avro_and_names_that_both_have(broker: Broker) -> None:
    schema = parse("AVRO", json.dumps(RECORD))
    table = mqspark.arrow.read(broker.namesrv, "Avro", schema=schema, columns=["key"]).read_all()
    assert table.schema.names == ["key", "id", "offset"]
    assert table.to_pylist()[:2] == [
        {"key": "k0", "id": 0, "offset": "o0"},
        {"key": "k1", "id": 1, "offset": None},
    ]


def test_queries_read_what_they_ask_for(broker: Broker) -> None:
    prices = mqspark.arrow.scan(broker.namesrv, "Prices", schema=FIELDS)
    assert duckdb.sql("SELECT sum(id), max(price) FROM prices WHERE id < 10").fetchall() == [(45, 9.5)]
    found = prices.polars().filter(pl.col("price") > 400).select("id", "offset").collect()
    assert found["id"].to_list() == found["offset"].to_list() == list(range(400, ROWS))
    mixed = mqspark.arrow.scan(broker.namesrv, "Mixed", schema=FIELDS)
    assert mixed.reader(["offset"]).read_all()["offset"].to_pylist() == [0, 1, 2], "no body is decoded"
    assert mixed.reader(["msgId"]).read_all().num_rows == 3
