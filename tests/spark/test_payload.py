"""Typed topics: DataFrames with columns of their own through a topic and back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from mqspark.message import Message
from tests.support.dev import DevCluster

pytestmark = pytest.mark.spark


def write(frame: DataFrame, cluster: DevCluster, topic: str, **options: str) -> None:
    writer = frame.write.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
    writer.option("payloadFormat", "arrow").options(**options).mode("append").save()


def load(spark: SparkSession, cluster: DevCluster, topic: str, schema: str | None = None) -> DataFrame:
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    reader = reader.option("payloadFormat", "arrow")
    return (reader.schema(schema) if schema else reader).load(topic)


@pytest.mark.slow("several queries; test_columns_come_and_go is the fast twin")
def test_rows_with_their_own_columns(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    frame = spark.range(5000).selectExpr(
        "id",
        "concat('name ', id) name",
        "IF(id % 7 = 0, NULL, id / 3.0D) price",
        "timestamp_seconds(id) at",
        "array(id, id + 1) pair",
        "named_struct('a', id, 'b', string(id)) nested",
        "CAST(id AS DECIMAL(20, 2)) exact",
        "date_add(DATE'2024-01-01', int(id % 300)) day",
    )
    write(frame, cluster, topic, batchBytes="65536")
    messages = sum(cluster.max_offsets(topic).values())
    assert 5 < messages < 50
    back = load(spark, cluster, topic)
    assert back.schema == frame.schema or back.schema.simpleString() == frame.schema.simpleString()
    assert sorted(map(tuple, back.collect())) == sorted(map(tuple, frame.collect()))
    stream = spark.readStream.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
    stream = stream.option("payloadFormat", "arrow").option("startingOffsets", "earliest").load()
    writer = stream.select("id", "price").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 5000


def test_columns_come_and_go(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    write(spark.sql("SELECT 1 a, 'x' b").coalesce(1), cluster, topic, batchBytes="1024")
    write(spark.sql("SELECT 2L a, 3.5D c").coalesce(1), cluster, topic)
    rows = load(spark, cluster, topic, "a bigint, b string, c double").collect()
    assert sorted(map(tuple, rows), key=str) == [(1, "x", None), (2, None, 3.5)]
    cluster.send(topic, 0, [Message.of(topic, "no arrow")])
    with pytest.raises(
        Exception, match=r"payloadFormat: the message at offset \d+ does not hold these columns"
    ):
        load(spark, cluster, topic, "a bigint").collect()
    with pytest.raises(Exception, match="includeProperties: rows of payloadFormat=arrow have their own"):
        spark.read.format("pymq").option("nameserver", cluster.nameserver).option(
            "payloadFormat", "arrow"
        ).option("includeProperties", "true").schema("a int").load(topic).collect()


def test_columns_that_are_never_null_in_the_newest_message(
    spark: SparkSession, cluster: DevCluster, topic: str
) -> None:
    write(spark.sql("SELECT 1 A, named_struct('p', 1) s").coalesce(1), cluster, topic)
    newest = "SELECT 2L a, named_struct('p', 2L, 'q', 'z') s, 3.5D c, map('k', 1L) m, array(array(1)) l"
    write(spark.sql(newest).coalesce(1), cluster, topic)
    frame = load(spark, cluster, topic)
    assert frame.columns == ["a", "s", "c", "m", "l"]
    old, new = frame.orderBy("a").collect()
    assert tuple(old) == (1, (1, None), None, None, None)
    assert tuple(new) == (2, (2, "z"), 3.5, {"k": 1}, [[1]])
    assert frame.filter("c IS NULL").count() == 1
    with pytest.raises(Exception, match=r"payloadFormat: the message .*column 'c' is NOT NULL in the schema"):
        load(spark, cluster, topic, "c double NOT NULL").collect()
    assert [row.a for row in load(spark, cluster, topic, "a bigint NOT NULL").orderBy("a").collect()] == [
        1,
        2,
    ]


def test_an_empty_topic_tells_no_columns(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    with pytest.raises(Exception, match="has no message yet that tells its columns"):
        load(spark, cluster, topic)
    assert load(spark, cluster, topic, "at timestamp").count() == 0


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("INTERVAL '1-2' YEAR TO MONTH", "interval year to month"),
        ("array(INTERVAL '1' YEAR)", "array<interval year>"),
        ("map()", "map<void,void>"),
    ],
)
def test_a_column_that_spark_and_arrow_do_not_exchange_is_named(
    spark: SparkSession, cluster: DevCluster, topic: str, column: str, kind: str
) -> None:
    says = rf"payloadFormat: column 'odd' cannot be {kind}, .* cast it, or leave it out"
    with pytest.raises(Exception, match=says):
        write(spark.sql(f"SELECT 1 a, {column} odd").coalesce(1), cluster, topic)
    assert sum(cluster.max_offsets(topic).values()) == 0
    with pytest.raises(Exception, match=says):
        load(spark, cluster, topic, f"a int, odd {kind}").collect()


def test_an_element_type_that_nobody_knows_yet(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    write(spark.sql("SELECT 1 a, array(5) l").coalesce(1), cluster, topic)
    write(spark.sql("SELECT 2 a, array() l").coalesce(1), cluster, topic)
    says = r"column 'l' is list<.*int32.*>, not list<.*null.*>: .*; give the columns by .schema"
    with pytest.raises(Exception, match=says):
        load(spark, cluster, topic).collect()
    rows = load(spark, cluster, topic, "a int, l array<int>").collect()
    assert sorted(map(tuple, rows)) == [(1, [5]), (2, [])]


def test_a_message_of_another_program_with_a_type_that_spark_has_not(
    spark: SparkSession, cluster: DevCluster, topic: str
) -> None:
    rows = pa.record_batch({"a": pa.array([1], pa.int32()), "u": pa.array([4_000_000_000], pa.uint32())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    cluster.send(topic, 0, [Message.of(topic, sink.getvalue().to_pybytes())])
    with pytest.raises(
        Exception, match=r"no type for column 'u' of the newest message, uint32 .*\.schema\(\.\.\.\)"
    ):
        load(spark, cluster, topic)
    assert [tuple(row) for row in load(spark, cluster, topic, "a int, u bigint").collect()] == [
        (1, 4_000_000_000)
    ]
