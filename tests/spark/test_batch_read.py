"""Batch reads through a real Spark."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import MapType, StringType, StructType

from mqspark.arrow.messagecolumns import COLUMNS
from mqspark.message import Message
from tests.support.dev import DevCluster

pytestmark = pytest.mark.spark


def load(spark: SparkSession, cluster: DevCluster, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
    return reader.options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_every_column_of_every_row(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(100))
    assert load(spark, cluster, topic).columns == list(COLUMNS)[:7]
    frame = load(spark, cluster, topic, columns="*, broker, bornTimestamp, msgId, reconsumeTimes")
    assert frame.columns == [*list(COLUMNS)[:10], "reconsumeTimes"]
    rows = {int(row.value): row for row in frame.collect()}
    assert sorted(rows) == list(range(100))
    for n, row in rows.items():
        assert (row.key, row.tags, row.topic, row.broker) == (
            f"k{n}",
            "odd" if n % 2 else "even",
            topic,
            "dev",
        )
        assert (row.partition, row.offset) == (n % 4, n // 4)
        assert row.timestamp >= row.bornTimestamp
        assert len(row.msgId) == 32


def test_format_and_options_without_case(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(10))
    reader = spark.read.format("PyMQ").option("NameServer", cluster.nameserver).option("SUBSCRIBE", topic)
    assert numbers(reader.load()) == list(range(10))
    assert numbers(spark.read.format("pymq").option("nameserver", cluster.nameserver).load(topic)) == list(
        range(10)
    )


@pytest.mark.parametrize(
    "local_read",
    [
        "false",
        pytest.param("true", marks=pytest.mark.slow("most tests read in place; over TCP is the fast twin")),
    ],
)
def test_in_place_and_over_tcp_give_the_same_rows(
    spark: SparkSession, cluster: DevCluster, topic: str, local_read: str
) -> None:
    cluster.send_numbers(topic, range(30_000))
    frame = load(spark, cluster, topic, localRead=local_read, columns="*, msgId, properties")
    got = frame.selectExpr(
        "count(*) n", "count(distinct partition, offset) pairs", "sum(cast(string(value) as int)) total",
        "sum(cast(properties['n'] as int)) copies", "count(distinct msgId) ids", "count_if(tags = 'odd') odd",
    ).first()  # fmt: skip
    total = 30_000 * 29_999 // 2
    assert got is not None
    assert tuple(got) == (30_000, 30_000, total, total, 30_000, 15_000)


def test_selected_columns(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(10))
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
    frame = reader.schema("offset bigint, value binary").load()
    assert frame.columns == ["offset", "value"]
    assert sorted((row.offset, int(row.value)) for row in frame.collect()) == sorted(
        (n // 4, n) for n in range(10)
    )
    with pytest.raises(AnalysisException, match="columns: selects key, but"):
        reader.option("columns", "key").schema("offset bigint, value binary").load().count()
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
    frame = reader.schema("properties map<string,string>, timestamp timestamp, msgId string").load()
    assert sorted(int(row.properties["n"]) for row in frame.collect()) == list(range(10))
    with pytest.raises(AnalysisException, match="no column 'body'"):
        reader.schema("body binary").load().count()
    with pytest.raises(AnalysisException, match="'value' is binary, not string"):
        reader.schema("value string").load().count()
    with pytest.raises(AnalysisException, match="schema: column 'value' may be null"):
        reader.schema("value binary NOT NULL").load().count()
    inside = StructType().add("properties", MapType(StringType(), StringType(), valueContainsNull=False))
    with pytest.raises(
        AnalysisException, match="schema: column 'properties' may be null, outside and inside"
    ):
        reader.schema(inside).load().count()


def test_tags_are_chosen_by_option(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(20))
    odd, even = load(spark, cluster, topic, tags="odd"), load(spark, cluster, topic, tags="even || none")
    # Two loads with different filters in one query: what Spark's own push-down gets wrong.
    assert numbers(odd.union(even)) == list(range(20))
    assert numbers(odd) == list(range(1, 20, 2))
    assert numbers(load(spark, cluster, topic, tags="odd", localRead="false")) == list(range(1, 20, 2))
    assert numbers(load(spark, cluster, topic, tags="none")) == []


def test_filters_on_one_load_stay_apart(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(10))
    frame = load(spark, cluster, topic)
    odd, even = frame.filter("tags = 'odd'"), frame.filter("tags = 'even'")
    assert (odd.count(), frame.count(), odd.union(even).count(), odd.union(frame).count()) == (5, 10, 10, 15)


def test_a_load_is_frozen_at_its_first_action(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(10))
    frame = load(spark, cluster, topic)
    assert frame.count() == 10
    cluster.send_numbers(topic, range(10, 20))
    assert frame.count() == 10
    assert load(spark, cluster, topic).count() == 20


def test_an_empty_topic(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    frame = load(spark, cluster, topic)
    assert (frame.count(), frame.collect()) == (0, [])


def test_limit_and_a_worker_that_is_thrown_away(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(4000))
    assert len(load(spark, cluster, topic).limit(5).collect()) == 5
    assert load(spark, cluster, topic).count() == 4000


def test_sql_view_and_options(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(10))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING pymq OPTIONS (nameserver '{cluster.nameserver}', topic '{topic}')"
    )
    row = spark.sql("SELECT count(*) n, max(offset) m FROM v WHERE tags = 'even'").first()
    assert row is not None
    assert (row.n, row.m) == (5, 2)


def test_more_rows_than_a_batch_across_segments(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    # 24 MiB of bodies in segments of 16 MiB.
    for first in range(0, 24, 3):
        for queue_id in range(2):
            body = [Message.of(topic, bytes([first]) * 500_000) for _ in range(3)]
            cluster.send(topic, queue_id, body)
    for local_read in ("true", "false"):
        row = (
            load(spark, cluster, topic, localRead=local_read)
            .selectExpr("count(*) n", "sum(length(value)) b")
            .first()
        )
        assert row is not None
        assert (row.n, row.b) == (48, 24_000_000)


def test_errors_name_the_option(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    for options, words in (
        ({"colour": "red"}, "colour: not an option"),
        ({"maxOffsetsPerTrigger": "10"}, "maxOffsetsPerTrigger: only a stream"),
        ({"assign": '{"x":[0]}'}, "assign: contradicts topic"),
        ({"startingOffsets": "group"}, "startingOffsets: group needs the option group"),
        ({"startingOffsets": f'{{"{topic}":{{"0":0}}}}'}, "startingOffsets: queue 1 of topic"),
        (
            {"startingOffsets": f'{{"{topic}":{{"0":0,"dev:0":0}}}}'},
            "startingOffsets: queue 0 .* is named twice",
        ),
        ({"archive": "/no/such/archive"}, "archive: nothing is archived at"),
    ):
        with pytest.raises(AnalysisException, match=words):
            load(spark, cluster, topic, **options).count()
    with pytest.raises(AnalysisException, match="there is no topic 'Nowhere'"):
        load(spark, cluster, "Nowhere").count()
