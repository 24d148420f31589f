"""What one option of the source does, through a real Spark: filters, look-ups, headers, a store without a broker."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from mqspark.message import Message
from tests.support.dev import DevCluster

pytestmark = pytest.mark.spark


def load(spark: SparkSession, cluster: DevCluster, topic: str, **options: str) -> DataFrame:
    return spark.read.format("pymq").option("nameserver", cluster.nameserver).options(**options).load(topic)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.selectExpr("string(value) value").collect())


def test_sql_filter_on_the_broker(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(400))
    assert numbers(load(spark, cluster, topic, sqlFilter="n BETWEEN 10 AND 19 AND TAGS = 'odd'")) == [
        11,
        13,
        15,
        17,
        19,
    ]
    two = load(spark, cluster, topic, sqlFilter="TAGS IN ('odd')").union(
        load(spark, cluster, topic, sqlFilter="TAGS IN ('even')")
    )
    assert numbers(two) == list(range(400))
    with pytest.raises(Exception, match="sqlFilter: contradicts tags"):
        load(spark, cluster, topic, sqlFilter="n > 1", tags="odd").collect()


def test_messages_by_key(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(50))
    cluster.send(topic, 1, [Message.of(topic, "100", keys="k7 other"), Message.of(topic, "101", keys="k77")])
    # The index follows the log by a moment.
    deadline = time.monotonic() + 60
    while numbers(load(spark, cluster, topic, key="k7")) != [7, 100]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found = load(spark, cluster, topic, key="other k8")
    assert sorted((int(row.value), row.partition) for row in found.collect()) == [(8, 0), (100, 1)]
    assert load(spark, cluster, topic, key="no-such-key").count() == 0


def test_headers_as_kafka_has_them(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(3))
    rows = load(spark, cluster, topic, includeHeaders="true").collect()
    for row in rows:
        headers = {header.key: bytes(header.value) for header in row.headers}
        assert headers["n"] == bytes(row.value)
        assert headers["KEYS"] == row.key.encode()


def test_rows_of_a_task_are_bounded(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    cluster.send_numbers(topic, range(1000))
    frame = load(spark, cluster, topic, maxRecordsPerPartition="60")
    sizes = frame.groupBy(spark_partition_id()).count()
    assert max(row["count"] for row in sizes.collect()) <= 60
    assert numbers(frame) == list(range(1000))


def test_a_store_without_a_broker(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(500))
    shutil.copytree(cluster.store / "commitlog", tmp_path / "commitlog")
    reader = spark.read.format("pymq").option("store", str(tmp_path))
    rows = reader.option("topic", topic).load().collect()
    assert sorted(int(row.value) for row in rows) == list(range(500))
    by_topic = {row.topic: row for row in rows}
    assert list(by_topic) == [topic]
    by_offset: dict[Any, list[int]] = {}
    for row in rows:
        by_offset.setdefault(row.partition, []).append(row.offset)
    assert {partition: sorted(offsets) for partition, offsets in by_offset.items()} == {
        partition: list(range(125)) for partition in range(4)
    }
    positions = sorted(row.physicalOffset for row in rows)
    some = reader.option("startingPosition", positions[100]).option("endingPosition", positions[200])
    assert some.option("topic", topic).load().count() == 100
    reader = spark.read.format("pymq").option("store", str(tmp_path))
    everything = reader.schema("topic string, physicalOffset bigint").load()
    assert everything.count() >= 500
    stream = spark.readStream.format("pymq").option("store", str(tmp_path)).load()
    with pytest.raises(StreamingQueryException, match="store: a directory is read in batches"):
        stream.writeStream.format("noop").start().awaitTermination(60)
    with pytest.raises(AnalysisException, match="does not exist"):
        spark.read.format("pymq").option("store", "/no/such/store").load().collect()


def test_topics_of_batch_queues(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    """A record of theirs holds several messages: rows are messages, written and read, in place and over TCP."""
    batches = f"{topic}-bcq"
    cluster.create_topic(batches, 2, attributes="+queue.type=BatchCQ")
    cluster.send_numbers(batches, range(300), 2)
    frame = spark.range(300, 400).selectExpr("string(id) value", "concat('k', id) key")
    for guarantee, low in (("at-least-once", 300), ("exactly-once", 350)):
        writer = frame.where(f"int(value) BETWEEN {low} AND {low + 49}").coalesce(1).write.format("pymq")
        writer = writer.option("nameserver", cluster.nameserver).option("topic", batches)
        writer = writer.option("deliveryGuarantee", guarantee)
        if guarantee == "exactly-once":
            writer = writer.option("transactionId", batches)
        writer.mode("append").save()
    wanted = [(str(number), f"k{number}") for number in range(400)]
    for local in ("true", "false"):
        rows = load(spark, cluster, batches, localRead=local).collect()
        assert (
            sorted(((bytes(row.value).decode(), row.key) for row in rows), key=lambda r: int(r[0])) == wanted
        )
        for queue in (0, 1):
            offsets = sorted(row.offset for row in rows if row.partition == queue)
            assert offsets == list(range(len(offsets)))
    some = load(spark, cluster, batches, startingOffsets=json.dumps({batches: {"0": 5, "1": 7}}))
    assert some.count() == 400 - 12


@pytest.mark.parametrize(
    ("options", "text", "trigger"),
    [
        (
            {"startingOfsets": "earliest"},
            "startingofsets: not an option of the pymq source",
            {"availableNow": True},
        ),
        (
            {"endingOffsets": "latest"},
            "endingOffsets: a stream has no end",
            {"processingTime": "1 second"},
        ),
    ],
)
def test_an_error_in_a_streams_options_is_the_last_one_shown(
    spark: SparkSession,
    cluster: DevCluster,
    topic: str,
    tmp_path: Path,
    options: dict[str, str],
    text: str,
    trigger: dict[str, Any],
) -> None:
    source = spark.readStream.format("pymq").option("nameserver", cluster.nameserver).options(**options)
    writer = source.load(topic).writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException) as caught:
        writer.trigger(**trigger).start().awaitTermination(60)
    errors = [line for line in str(caught.value).splitlines() if "Error: " in line]
    assert f"ConfigError: {text}" in errors[-1]
    assert "UnboundLocalError" not in str(caught.value)
