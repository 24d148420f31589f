"""Topics as tables on a real RocketMQ, and on ours: ``mqspark.arrow`` and Spark read what Java sends, and Java gets
what they write.

(slow) RocketMQ's part: a real one starts first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.driver import JavaDriver, body_of, message
from tests.interop.topics import create_group, create_topic, dispatched, message_count
from tests.support.clusters import Cluster
from tests.support.remoting import QUERY_CONSUMER_OFFSET, ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Name = Callable[[str], str]

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)
COUNT = 20
QUEUES = 2
Row = tuple[bytes, str, str]
SENT: list[Row] = [(b"java-%d" % number, f"key-{number}", "ab"[number % 2]) for number in range(COUNT)]
WRITTEN: list[Row] = [(b"ours-%d" % number, f"new-{number}", "c") for number in range(COUNT)]


def send(java: JavaDriver, cluster: Cluster, topic: str) -> None:
    handle = java.call("producer.start", namesrv=cluster.namesrv, group="table-producer")["handle"]
    for number, (body, key, tag) in enumerate(SENT):
        java.call(
            "producer.send",
            handle=handle,
            mode="sync",
            queue=[topic, cluster.broker_name, number % QUEUES],
            message=message(topic, body, tags=tag, keys=key),
        )
    java.call("producer.stop", handle=handle)
    dispatched(cluster)


def received(java: JavaDriver, cluster: Cluster, topic: str, group: str, count: int) -> list[Row]:
    create_group(cluster, group)
    handle = java.push(cluster.namesrv, topic, group)
    got = java.take(handle, count, timeout_ms=50_000)
    java.call("push.stop", handle=handle)
    return sorted((body_of(one), one["keys"], one["tags"]) for one in got)


def test_arrow_and_java(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    import pyarrow as pa

    import mqspark.arrow

    topic = create_topic(cluster, name("Arrowed"), QUEUES)
    send(java, cluster, topic)
    values, keys, tags = zip(*WRITTEN, strict=True)
    mqspark.arrow.write(
        cluster.namesrv, topic, pa.table({"value": list(values), "key": list(keys), "tags": list(tags)})
    )
    assert message_count(cluster, topic, QUEUES) == 2 * COUNT

    def read(**options: Any) -> list[Row]:
        table = mqspark.arrow.read(
            cluster.namesrv, topic, columns=["value", "key", "tags"], **options
        ).read_all()
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))

    assert read() == read(local=False) == sorted(SENT + WRITTEN)
    assert read(tags="a || c") == sorted([row for row in SENT if row[2] == "a"] + WRITTEN)
    assert received(java, cluster, topic, name("arrow-readers"), 2 * COUNT) == sorted(SENT + WRITTEN)


@pytest.mark.spark
@pytest.mark.slow("Spark and a JVM for Java; tests/spark is the fast twin")
def test_spark_and_java(
    java: JavaDriver, cluster: Cluster, spark: SparkSession, name: Name, tmp_path: Path
) -> None:
    topic, group = create_topic(cluster, name("Sparked"), QUEUES), create_group(cluster, name("sparked"))
    send(java, cluster, topic)
    frame = spark.createDataFrame(WRITTEN, "value binary, key string, tags string")
    frame.write.format("pymq").option("nameserver", cluster.namesrv).option("topic", topic).mode(
        "append"
    ).save()
    assert message_count(cluster, topic, QUEUES) == 2 * COUNT

    def rows(found: Any) -> list[Row]:
        return sorted((bytes(row.value), row.key, row.tags) for row in found.collect())

    reader = spark.read.format("pymq").option("nameserver", cluster.namesrv)
    assert rows(reader.load(topic)) == sorted(SENT + WRITTEN)
    assert rows(reader.option("tags", "a || c").load(topic)) == sorted(
        [row for row in SENT if row[2] == "a"] + WRITTEN
    )
    offline = spark.read.format("pymq").option("store", str(cluster.store)).option("topic", topic).load()
    assert rows(offline) == sorted(SENT + WRITTEN), "the files of the broker"

    stream = (
        spark.readStream.format("pymq")
        .option("nameserver", cluster.namesrv)
        .option("topic", topic)
        .option("group", group)
        .option("startingOffsets", "earliest")
        .load()
    )
    for _ in range(2):  # the begin of a batch is what the group has finished
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "rows"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        frame.limit(1).write.format("pymq").option("nameserver", cluster.namesrv).option("topic", topic).mode(
            "append"
        ).save()
    assert rows(spark.read.parquet(str(tmp_path / "rows"))) == sorted([*SENT, *WRITTEN, WRITTEN[0]])
    committed = [
        int(
            ask(
                cluster.broker, QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue_id
            ).ext["offset"]
        )
        for queue_id in range(QUEUES)
    ]
    assert sum(committed) >= 2 * COUNT
    assert received(java, cluster, topic, name("spark-readers"), 2 * COUNT + 2) == sorted(
        [*SENT, *WRITTEN, WRITTEN[0], WRITTEN[0]]
    )
