"""``mqspark.arrow.write``: frames of all libraries to a broker over real sockets, and what is refused."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import mqspark.arrow
from mqspark.errors import ConfigError, InvalidMessage, MQError
from mqspark.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


KEYS, VALUES = ["a", "b", None], [b"1", b"22", b"333"]
FRAMES = {
    "table": pa.table({"key": KEYS, "value": VALUES}),
    "batch": pa.record_batch({"key": KEYS, "value": VALUES}),
    "reader": pa.table({"key": KEYS, "value": VALUES}).to_reader(),
    "large": pa.table(
        {"key": pa.array(KEYS, pa.large_string()), "value": pa.array(VALUES, pa.large_binary())}
    ),
    "dictionary": pa.table({"key": pa.array(KEYS).dictionary_encode(), "value": VALUES}),
    "polars": pl.DataFrame({"key": KEYS, "value": VALUES}),
    "pandas": pd.DataFrame({"key": KEYS, "value": VALUES}),
    "duckdb": duckdb.sql("SELECT * FROM (VALUES ('a', '1'), ('b', '22'), (NULL, '333')) AS t(key, value)"),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_becomes_messages(broker: Broker, kind: str) -> None:
    topic = f"From-{kind}"
    assert mqspark.arrow.write(broker.namesrv, topic, FRAMES[kind]) == 3
    table = mqspark.arrow.read(broker.namesrv, topic, columns=["key", "value"]).read_all()
    assert sorted(table["value"].to_pylist()) == VALUES
    assert {row["value"]: row["key"] for row in table.to_pylist()} == dict(zip(VALUES, KEYS, strict=True))


@pytest.mark.parametrize("compression", [None, "zlib", "zstd"])
def test_many_rows_keep_their_count_and_crcs(broker: Broker, compression: str | None) -> None:
    topic = f"Many-{compression}"
    values = [f"{number:06d}".encode() * 20 for number in range(20_000)]
    frame = pl.DataFrame({"value": values})
    assert mqspark.arrow.write(broker.namesrv, topic, frame, compression=compression) == len(values)
    table = mqspark.arrow.read(broker.namesrv, topic, columns=["value"]).read_all()
    assert table.num_rows == len(values)
    assert sum(map(zlib.crc32, table["value"].to_pylist())) == sum(map(zlib.crc32, values))


def test_columns_of_a_message(broker: Broker) -> None:
    frame = pl.DataFrame(
        {
            "value": ["x"],
            "tags": ["paid"],
            "partition": [2],
            "headers": [[{"key": "colour", "value": b"red"}]],
            "offset": [99],  # what a read has, and a message does not take
            "timestamp": [datetime(2026, 1, 1, tzinfo=UTC)],
        }
    )
    assert mqspark.arrow.write(broker.namesrv, "Columns", frame) == 1
    (row,) = (
        mqspark.arrow.read(broker.namesrv, "Columns", columns=["partition", "tags", "offset", "properties"])
        .read_all()
        .to_pylist()
    )
    assert (row["partition"], row["tags"], row["offset"]) == (2, "paid", 0)
    assert dict(row["properties"])["colour"] == "red"


def test_a_topic_is_copied_as_it_is_read(broker: Broker) -> None:
    mqspark.arrow.write(broker.namesrv, "First", pa.table({"key": ["k"], "value": ["v"], "tags": ["t"]}))
    reader = mqspark.arrow.read(broker.namesrv, "First", columns=["key", "value", "tags", "offset"])
    assert mqspark.arrow.write(broker.namesrv, "Second", reader) == 1
    (row,) = (
        mqspark.arrow.read(broker.namesrv, "Second", columns=["key", "value", "tags"]).read_all().to_pylist()
    )
    assert row == {"key": "k", "value": b"v", "tags": "t"}


@pytest.mark.parametrize(
    ("rows", "choices", "key"),
    [
        ([{"value": "x"}], {}, "rows"),
        (pa.table({"valeu": ["x"]}), {}, "valeu"),
        (pa.table({"key": ["x"]}), {}, "value"),
        (pa.table({"value": [1.5]}), {}, "value"),
        (pa.table({"value": ["x"], "deliverAt": [datetime(2026, 1, 1)]}), {}, "deliverAt"),  # noqa: DTZ001
        (pa.table({"value": ["x"], "partition": [1], "queueId": [1]}), {}, "queueId"),
        (pa.table([["x"], ["y"]], names=["value", "value"]), {}, "rows"),
        (pa.table({"value": ["x"]}), {"group": "no group"}, "group"),
        (pa.table({"value": ["x"]}), {"batch_bytes": 1}, "batch_bytes"),
        (pa.table({"value": ["x"]}), {"compression": "snappy"}, "compression"),
        (pa.table({"value": ["x"]}), {"topic": "no/topic"}, "topic"),
        (pa.table({"value": ["x"]}), {"topic": None}, "topic"),
    ],
)
def test_what_is_no_message_is_refused(broker: Broker, rows: Any, choices: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        mqspark.arrow.write(broker.namesrv, choices.pop("topic", "Refused"), rows, **choices)
    assert refused.value.key == key


def test_a_value_that_a_column_cannot_have_is_refused(broker: Broker) -> None:
    rows = pa.table({"value": ["x"], "priority": [1 << 40]})
    with pytest.raises(InvalidMessage, match="priority"):
        mqspark.arrow.write(broker.namesrv, "Refused", rows)


def test_a_cluster_that_is_away_is_an_error(broker: Broker) -> None:
    with pytest.raises(MQError):
        mqspark.arrow.write("127.0.0.1:1", "Refused", pa.table({"value": ["x"]}))
