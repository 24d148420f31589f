"""Batch and streaming writes through a real Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from mqspark import Producer, TransactionProducer, TransactionState
from mqspark.message import Message, java_hash
from tests.support.dev import DevCluster, read_queue
from tests.support.draws import some
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark


def write(frame: DataFrame, cluster: DevCluster, mode: str = "append", **options: str) -> None:
    frame.write.format("pymq").option("nameserver", cluster.nameserver).options(**options).mode(mode).save()


def read(spark: SparkSession, cluster: DevCluster, topic: str) -> dict[str, Any]:
    reader = (
        spark.read.format("pymq").option("nameserver", cluster.nameserver).option("includeProperties", "true")
    )
    return {bytes(row.value).decode(): row for row in reader.load(topic).collect()}


def test_what_is_written_is_read(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    frame = spark.createDataFrame(
        [
            (b"one", "k1", "red", {"a": "1", "KEYS": "overridden"}),
            (b"two", None, None, {}),
            (b"three", "", "", None),
            ("vier €".encode(), "schlüssel 2", "größe", {"ü": "ö", "absent": None}),
        ],
        "value binary, key string, tags string, properties map<string,string>",
    )
    write(frame, cluster, topic=topic)
    rows = read(spark, cluster, topic)
    assert sorted(rows) == ["one", "three", "two", "vier €"]
    assert (rows["one"].key, rows["one"].tags, rows["one"].properties["a"]) == ("k1", "red", "1")
    assert (rows["two"].key, rows["two"].tags) == (None, None)
    assert (rows["three"].key, rows["three"].tags) == (None, None)
    assert (rows["vier €"].key, rows["vier €"].tags) == ("schlüssel 2", "größe")
    assert rows["vier €"].properties["ü"] == "ö"
    assert "absent" not in rows["vier €"].properties


def test_keys_choose_queues_as_java_does_and_keep_their_order(
    spark: SparkSession, cluster: DevCluster, topic: str
) -> None:
    frame = spark.range(0, 20_000, numPartitions=1).selectExpr("string(id) value", "concat('k', id % 7) key")
    write(frame, cluster, topic=topic)
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver).load(topic)
    rows = reader.selectExpr("key", "partition", "offset", "int(string(value)) n").collect()
    assert sorted(row.n for row in rows) == list(range(20_000))
    for key in {row.key for row in rows}:
        mine = sorted((row.offset, row.partition, row.n) for row in rows if row.key == key)
        assert {partition for _, partition, _ in mine} == {abs(java_hash(key)) % 4}
        assert [n for *_, n in mine] == sorted(n for *_, n in mine)


def test_rows_without_a_key_take_turns(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    write(spark.range(8192).selectExpr("string(id) value"), cluster, topic=topic)
    counts = cluster.max_offsets(topic)
    assert sum(counts.values()) == 8192
    assert min(counts.values()) > 0


def test_topic_and_queue_by_column(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    other = cluster.create_topic(f"{topic}-other", 2)
    frame = spark.createDataFrame(
        [("a", topic, 3), ("b", other, 1), ("d", topic, None)], "value string, topic string, partition int"
    )
    write(frame, cluster)
    assert read(spark, cluster, other)["b"].partition == 1
    rows = read(spark, cluster, topic)
    assert (sorted(rows), rows["a"].partition) == (["a", "d"], 3)
    overridden = spark.createDataFrame([("c", other, 0), ("e", None, 2)], frame.schema)
    with pytest.raises(PythonException, match="topic: null in a row"):
        write(overridden, cluster)
    write(overridden, cluster, topic=topic)
    rows = read(spark, cluster, topic)
    assert (rows["c"].partition, rows["e"].partition) == (0, 2)
    for number in (9, -1):
        bad = spark.createDataFrame([("x", number)], "value string, queueId int")
        with pytest.raises(PythonException, match=rf"queueId: .* has no writable queue {number}"):
            write(bad, cluster, topic=topic)


def test_a_priority_chooses_the_queue(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    """A batch is stored where it is sent to, so the sink does what a broker does for single messages."""
    frame = spark.range(1000).selectExpr(
        "string(id) value", "concat('k', id % 7) key", "if(id % 6 = 5, null, int(id % 6 * 2)) priority"
    )
    write(frame, cluster, topic=topic)
    rows = read(spark, cluster, topic)
    last = max(row.partition for row in rows.values())
    assert len(rows) == 1000
    for value, row in rows.items():
        if int(value) % 6 != 5:
            priority = int(value) % 6 * 2
            assert (row.partition, row.properties["_SYS_MSG_PRIORITY_"]) == (
                min(priority, last),
                str(priority),
            )
        else:
            assert "_SYS_MSG_PRIORITY_" not in row.properties
    for columns, what in (
        ("'a' value, -1 priority", "row 0 of the batch has one below 0"),
        ("'a' value, 1 priority, 'k' shardingKey", "drop one of the columns"),
        ("'a' value, 1 priority, 1 delayLevel", "drop one of the columns"),
    ):
        with pytest.raises((PythonException, AnalysisException), match=what):
            write(spark.range(1).selectExpr(*columns.split(", ")), cluster, topic=topic)
    exactly_once = {"deliveryGuarantee": "exactly-once", "transactionId": "t", "transactionBatch": "1"}
    with pytest.raises((PythonException, AnalysisException), match="at-least-once"):
        write(frame, cluster, topic=topic, **exactly_once)


def test_a_topic_is_created_by_its_first_message(spark: SparkSession, cluster: DevCluster) -> None:
    write(spark.range(10).selectExpr("string(id) value"), cluster, topic="MadeByTheSink")
    deadline = time.monotonic() + 20
    while "MadeByTheSink" not in cluster.client.topics():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert sorted(read(spark, cluster, "MadeByTheSink")) == [str(n) for n in range(10)]


def test_a_java_client_can_read_the_records(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    from mqspark.message import MessageQueue

    frame = spark.createDataFrame(
        [("v" * 10, "k", "t")], "value string, key string, tags string"
    ).repartition(1)
    write(frame.selectExpr("*", "0 queueId"), cluster, topic=topic)
    (message,) = read_queue(cluster.client, cluster.address, MessageQueue(topic, "dev", 0))
    assert (message.body, message.keys, message.tags) == (b"v" * 10, "k", "t")


@pytest.mark.parametrize(
    ("columns", "options", "mode", "words"),
    [
        (["'x' body"], {}, "append", "body: not a column"),
        (["'x' key"], {}, "append", "value: the column is required"),
        (["id value"], {}, "append", "value: must be binary or string, not bigint"),
        (["'x' value"], {"topic": ""}, "append", "topic: "),
        (["'x' value", "1 partition", "1 queueId"], {}, "append", "queueId: means the same"),
        (["'x' value"], {}, "overwrite", "mode: a topic is only appended to"),
        (["'x' value"], {"acks": "all"}, "append", "acks: not an option"),
    ],
)
def test_what_does_not_fit_is_named(
    spark: SparkSession,
    cluster: DevCluster,
    topic: str,
    columns: list[str],
    options: dict[str, str],
    mode: str,
    words: str,
) -> None:
    with pytest.raises(AnalysisException, match=words):
        write(spark.range(1).selectExpr(*columns), cluster, mode, **({"topic": topic} | options))
    assert sum(cluster.max_offsets(topic).values()) == 0


def test_rows_that_are_no_messages(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    for columns, words in (
        (["cast(null as string) value"], "value: row 0 of the batch has none"),
        (["'x' value", "concat('a', char(1)) key"], "key: row 0 of the batch holds the separator 0x01"),
        (["'x' value", "map('p', '', 'q', '1') properties"], "row 0 of the batch: the value of 'p' is empty"),
    ):
        with pytest.raises(PythonException, match=words):
            write(spark.range(1).selectExpr(*columns), cluster, topic=topic)


def test_topic_to_topic_stream(spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    target = cluster.create_topic(f"{topic}-copy", 3)
    cluster.send_numbers(topic, range(1000))
    source = spark.readStream.format("pymq").option("nameserver", cluster.nameserver)
    frame = source.option("topic", topic).option("startingOffsets", "earliest").load().drop("partition")
    writer = frame.writeStream.format("pymq").option("nameserver", cluster.nameserver).option("topic", target)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    rows = read(spark, cluster, target)
    assert sorted(map(int, rows)) == list(range(1000))
    assert rows["17"].key == "k17"
    assert rows["17"].tags == "odd"


def test_a_large_message_goes_alone(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    write(spark.range(3).selectExpr("repeat(string(id), 1000000) value"), cluster, topic=topic)
    assert sorted(len(value) for value in read(spark, cluster, topic)) == [1_000_000] * 3
    with pytest.raises(PythonException, match=r"response code \d+"):
        write(spark.range(1).selectExpr("repeat('x', 5000000) value"), cluster, topic=topic)


AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
paired = pytest.mark.slow("each codec and each guarantee is in a fast pair")


@pytest.mark.parametrize(
    ("kind", "guarantee"),
    [
        ("zlib", AT_LEAST_ONCE),
        ("lz4", EXACTLY_ONCE),
        ("zstd", AT_LEAST_ONCE),
        pytest.param("zlib", EXACTLY_ONCE, marks=paired),
        pytest.param("lz4", AT_LEAST_ONCE, marks=paired),
        pytest.param("zstd", EXACTLY_ONCE, marks=paired),
    ],
)
def test_compressed(spark: SparkSession, cluster: DevCluster, topic: str, kind: str, guarantee: str) -> None:
    frame = spark.range(40).selectExpr("concat(id, repeat('ab', int(id) * 50)) value", "string(id) key")
    options = {"compression": kind, "compressionThreshold": "1k", "deliveryGuarantee": guarantee}
    if guarantee == EXACTLY_ONCE:
        options["transactionId"] = topic
    write(frame.repartition(1), cluster, topic=topic, batchBytes="1k", **options)
    found = read(spark, cluster, topic)
    assert {row.value.decode() for row in frame.selectExpr("binary(value) value").collect()} == found.keys()
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    rows = reader.schema("sysFlag int, key string").load(topic).collect()
    flags = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}[kind]
    assert {row.sysFlag & 0x701 for row in rows} <= {0, flags}
    assert flags in {row.sysFlag & 0x701 for row in rows if int(row.key) > 10}
    # As any consumer sees them.
    for queue in cluster.client.route(topic).subscribe_queues:
        for message in read_queue(cluster.client, cluster.address, queue):
            assert message.body.decode() in found


def test_small_values_are_left_as_they_are(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    write(spark.range(10).selectExpr("repeat('x', 100) value"), cluster, topic=topic, compression="zlib")
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    assert {row.sysFlag for row in reader.schema("sysFlag int").load(topic).collect()} == {0}


def test_what_waits_is_compressed_too(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    frame = spark.range(2).selectExpr("repeat('x', 9000) value", "1 delayLevel")
    write(frame, cluster, topic=topic, compression="zlib")
    deadline = time.monotonic() + 60
    while sum(cluster.max_offsets(topic).values()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    rows = reader.schema("sysFlag int, value binary").load(topic).collect()
    assert [(row.sysFlag & 1, len(row.value)) for row in rows] == [(1, 9000)] * 2


@pytest.mark.parametrize("guarantee", some(["at-least-once", "exactly-once"], 1))
def test_transactional_delayed_and_dead_messages_can_be_copied(
    spark: SparkSession, cluster: DevCluster, topic: str, guarantee: str
) -> None:
    def commit(message: Message) -> TransactionState:
        return TransactionState.COMMIT

    with TransactionProducer(cluster.nameserver, group="copies", execute=commit, check=commit) as producer:
        producer.send_in_transaction(Message.of(topic, b"paid", properties={"a": "1"}))
    with Producer(cluster.nameserver, group="copies-plain") as plain:
        plain.send(Message.of(topic, b"late", delay_level=1, properties={"a": "2"}))
        dead = {"RETRY_TOPIC": "Elsewhere", "DLQ_ORIGIN_TOPIC": "Elsewhere", "a": "3"}
        plain.send(Message.of(topic, b"dead", properties=dead))
    eventually(lambda: set(read(spark, cluster, topic)) == {"paid", "late", "dead"}, "all are delivered")
    target = cluster.create_topic(f"{topic}-copy", 1)
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    frame = (
        reader.options(includeProperties="true", includeHeaders="true").load(topic).drop("topic", "partition")
    )
    options = {"deliveryGuarantee": guarantee}
    if guarantee == "exactly-once":
        options["transactionId"] = f"copy-{topic}"
    write(frame, cluster, topic=target, **options)
    copies = read(spark, cluster, target)
    assert {body: row.properties["a"] for body, row in copies.items()} == {
        "paid": "1",
        "late": "2",
        "dead": "3",
    }
    assert not {"DELAY", "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"} & set().union(
        *(row.properties for row in copies.values())
    )


@pytest.mark.slow("failed jobs; test_encode.py is the fast twin")
def test_keys_that_are_no_text_are_refused_by_row(
    spark: SparkSession, cluster: DevCluster, topic: str
) -> None:
    frame = spark.createDataFrame(
        [(b"k", b"1"), (b"\xff", b"2"), (b"\xfe", b"3")], "key binary, value binary"
    )
    with pytest.raises(PythonException, match="key: row 1 of the batch holds bytes that are not UTF-8"):
        write(frame.coalesce(1), cluster, topic=topic)
    write(frame.selectExpr("hex(key) key", "value"), cluster, topic=topic)
    assert {row.key for row in read(spark, cluster, topic).values()} == {"6B", "FF", "FE"}
