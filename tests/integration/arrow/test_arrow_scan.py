"""``mqspark.arrow.scan``: queries of DuckDB, Polars, pandas and pyarrow read what they need of a topic, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mqspark.arrow
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.reading import topicread
from mqspark.errors import ConfigError, NoSuchTopic
from mqspark.testing import Broker

ROWS = 8_000
EACH = ROWS // 4


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        rows = pa.table(
            {
                "key": [f"order-{number}" for number in range(ROWS)],
                "value": [f"{number}" for number in range(ROWS)],
                "tags": ["paid" if number % 2 else "open" for number in range(ROWS)],
                "partition": [number % 4 for number in range(ROWS)],
            }
        )
        assert mqspark.arrow.write(running.namesrv, "Orders", rows) == ROWS
        yield running


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], list[QueueRange]]]:
    """The columns and the ranges of each read."""
    seen: list[tuple[tuple[str, ...], list[QueueRange]]] = []
    real = topicread.read_tasks

    def noted(cluster: Any, parts: Any, choice: Any, columns: tuple[str, ...], **more: Any) -> Any:
        seen.append((columns, [each for part in parts for each in part]))
        return real(cluster, parts, choice, columns, **more)

    monkeypatch.setattr(topicread, "read_tasks", noted)
    return seen


def rows_of(asked: list[tuple[tuple[str, ...], list[QueueRange]]]) -> int:
    ((_, ranges),) = asked
    return sum(each.rows for each in ranges)


def answered(query: str, orders: Any) -> list[Any]:
    """DuckDB finds ``orders`` by its name."""
    return duckdb.sql(query).fetchall()


def test_duckdb_reads_the_columns_and_the_ranges_that_a_query_needs(broker: Broker, asked: list[Any]) -> None:
    query = 'SELECT count(*), min("key") FROM orders WHERE "partition" = 2 AND "offset" BETWEEN 100 AND 199'
    assert answered(query, orders=mqspark.arrow.scan(broker.namesrv, "Orders")) == [(100, "order-402")]
    assert set(asked[0][0]) == {"key", "partition", "offset"}
    assert 100 <= rows_of(asked) <= 200


def test_duckdb_reads_a_reader(broker: Broker) -> None:
    query = (
        "SELECT tags, count(*), sum(CAST(CAST(value AS VARCHAR) AS INT)) FROM orders GROUP BY ALL ORDER BY 1"
    )
    assert answered(query, orders=mqspark.arrow.read(broker.namesrv, "Orders")) == [
        ("open", ROWS // 2, sum(range(0, ROWS, 2))),
        ("paid", ROWS // 2, sum(range(1, ROWS, 2))),
    ]


def test_polars_reads_the_columns_and_the_ranges_that_a_query_needs(broker: Broker, asked: list[Any]) -> None:
    frame = mqspark.arrow.scan(broker.namesrv, "Orders").polars()
    is_wanted = (pl.col("partition") == 1) & (pl.col("offset") >= EACH - 10) & (pl.col("tags") == "paid")
    found = frame.filter(is_wanted).select("key").collect()
    assert found["key"].to_list() == [f"order-{number}" for number in range(1, ROWS, 4)][-10:]
    assert set(asked[0][0]) == {"key", "partition", "offset", "tags"}
    assert 10 <= rows_of(asked) <= 60


def test_polars_reads_no_more_rows_than_it_shows(broker: Broker, asked: list[Any]) -> None:
    frame = mqspark.arrow.scan(broker.namesrv, "Orders", batch_rows=50).polars()
    assert frame.head(60).collect().height == 60
    assert frame.select(pl.len()).collect().item() == ROWS


@pytest.mark.parametrize(
    ("predicate", "count", "at_most"),
    [
        (pl.col("offset").is_between(5, 9), 20, 1_000),
        (pl.col("offset") < 5, 20, 1_000),
        ((pl.col("offset") < 5) | (pl.col("offset") > EACH - 3), 28, ROWS),
        (pl.col("offset") * 2 < 10, 20, ROWS),
        (pl.col("topic") == "Other", 0, 0),
        (pl.col("offset") > 1 << 70, 0, ROWS),
        (pl.col("key").str.ends_with("-7"), 1, ROWS),
    ],
)
def test_a_predicate_of_polars_gets_its_rows(
    broker: Broker, asked: list[Any], predicate: pl.Expr, count: int, at_most: int
) -> None:
    frame = mqspark.arrow.scan(broker.namesrv, "Orders").polars()
    assert frame.filter(predicate).collect().height == count
    assert rows_of(asked) <= at_most


@pytest.mark.parametrize(
    ("expression", "count", "at_most"),
    [
        (pc.field("offset").isin([3, 1_500]), 8, ROWS),
        ((pc.field("offset") < 10) | (pc.field("partition") == 3), EACH + 30, EACH + 200),
        (pc.field("offset") < 0, 0, 0),
        (pc.field("key") == ") and (offset < 3", 0, ROWS),
        (pc.field("tags") == "paid", ROWS // 2, ROWS),
    ],
)
def test_an_expression_of_pyarrow_gets_its_rows(
    broker: Broker, asked: list[Any], expression: pc.Expression, count: int, at_most: int
) -> None:
    orders = mqspark.arrow.scan(broker.namesrv, "Orders")
    assert orders.scanner(columns=["value"], filter=expression).to_table().num_rows == count
    assert rows_of(asked) <= at_most


def test_a_scan_is_a_dataset_a_stream_and_a_frame(broker: Broker) -> None:
    orders = mqspark.arrow.scan(broker.namesrv, "Orders", columns=["key", "offset"])
    assert orders.to_table().num_rows == orders.count_rows() == ROWS
    assert pa.table(orders).num_rows == ROWS
    assert orders.reader(["key"]).read_pandas().shape == (ROWS, 1)
    assert orders.head(5).num_rows == 5
    doubled = orders.scanner(columns={"twice": pc.multiply(pc.field("offset"), 2)}).to_table()
    assert pc.max(doubled["twice"]).as_py() == 2 * (EACH - 1)


def test_each_query_sees_what_is_there_by_then(broker: Broker) -> None:
    mqspark.arrow.write(broker.namesrv, "Growing", pa.table({"value": ["a"]}))
    growing = mqspark.arrow.scan(broker.namesrv, "Growing")
    assert growing.count_rows() == 1
    mqspark.arrow.write(broker.namesrv, "Growing", pa.table({"value": ["b"]}))
    assert growing.count_rows() == 2


def test_a_scan_refuses_at_once_what_it_cannot_mean(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="columns"):
        mqspark.arrow.scan(broker.namesrv, "Orders", columns=["valeu"])
    nowhere = mqspark.arrow.scan(broker.namesrv, "Nowhere")
    with pytest.raises(NoSuchTopic):
        nowhere.to_table()
