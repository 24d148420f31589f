"""Streams through a real Spark: offsets, triggers, restarts, the group's offset."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqspark.arrow.cluster import cluster_queues
from mqspark.arrow.cluster.cluster_queues import DataLoss
from mqspark.errors import ConfigError
from mqspark.message import Message, MessageQueue
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.reading.stream import ADMISSION_CONTROL, stream_reader
from pyspark_pymq.reading.stream_offsets import Positions
from tests.support.dev import DevCluster
from tests.support.waiting import eventually

if ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

pytestmark = pytest.mark.spark
since_4_2 = pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs limits, which Spark 4.1 asks for nowhere")

WAIT_S = 60


def stream(spark: SparkSession, cluster: DevCluster, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("pymq").option("nameserver", cluster.nameserver)
    if "topicPattern" not in options:
        reader = reader.option("topic", topic)
    return reader.options(**options).load()


def to_files(frame: DataFrame, root: Path, *, available_now: bool = True) -> StreamingQuery:
    """Values as text files under ``root/out``; the file sink's own log makes it exactly once."""
    writer = frame.selectExpr("cast(value as string) value").writeStream.format("text")
    writer = writer.option("checkpointLocation", str(root / "checkpoint")).option("path", str(root / "out"))
    return writer.trigger(availableNow=True).start() if available_now else writer.start()


def drain(frame: DataFrame, root: Path) -> list[dict[str, Any]]:
    """Run with AvailableNow to the end; the progress of each batch."""
    query = to_files(frame, root)
    assert query.awaitTermination(WAIT_S)
    return [json.loads(progress.json) for progress in query.recentProgress]


def values(spark: SparkSession, root: Path) -> list[int]:
    return sorted(int(row.value) for row in spark.read.text(str(root / "out")).collect())


def checkpoint_file(root: Path, kind: str, batch: int) -> Path:
    return root / "checkpoint" / kind / str(batch)


@pytest.mark.slow("several batches; test_available_now_ends_at_what_was_there is the fast twin")
@since_4_2
def test_available_now_with_a_limit(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(1000))
    frame = stream(
        spark, cluster, topic, startingOffsets="earliest", maxOffsetsPerTrigger="300", group="g-available-now"
    )
    progress = drain(frame, tmp_path)
    assert values(spark, tmp_path) == list(range(1000))
    assert [batch["numInputRows"] for batch in progress if batch["numInputRows"]] == [300, 300, 300, 100]
    # Finished work is published from ``start`` of the last latestOffset, so a run ends with no lag.
    assert cluster.group_offsets("g-available-now", topic) == cluster.max_offsets(topic)
    # The same checkpoint goes on where it stopped, with nothing twice.
    cluster.send_numbers(topic, range(1000, 1010))
    drain(frame, tmp_path)
    assert values(spark, tmp_path) == list(range(1010))


def test_available_now_ends_at_what_was_there(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, cluster, topic, startingOffsets="latest")
    cluster.send_numbers(topic, range(10))
    drain(frame, tmp_path)
    assert values(spark, tmp_path) == []
    cluster.send_numbers(topic, range(10, 20))
    drain(frame, tmp_path)
    assert values(spark, tmp_path) == list(range(10, 20))


def test_a_fresh_latest_query_keeps_its_start_over_a_crash_in_batch_0(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(10))
    frame = stream(spark, cluster, topic, startingOffsets="latest")
    query = to_files(frame, tmp_path, available_now=False)
    commit = checkpoint_file(tmp_path, "commits", 0)
    eventually(commit.exists, "batch 0 is not recorded though nothing came")
    query.stop()
    # As if the driver had died inside batch 0: its offsets are recorded, its end is not.
    for path in commit.parent.iterdir():
        path.unlink()
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            path.unlink()
    cluster.send_numbers(topic, range(10, 20))
    # Spark 4.1 runs one batch and ends: the one that was interrupted.
    for _ in range(1 if ADMISSION_CONTROL else 2):
        drain(frame, tmp_path)
    assert values(spark, tmp_path) == list(range(10, 20))


def test_a_batch_replayed_after_a_crash_reads_the_same_messages(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    seen: dict[int, list[list[int]]] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        seen.setdefault(batch, []).append(sorted(int(row.value) for row in frame.select("value").collect()))

    def start() -> StreamingQuery:
        frame = stream(spark, cluster, topic, startingOffsets="latest", maxOffsetsPerTrigger="8")
        writer = frame.writeStream.foreachBatch(keep).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        return writer.start()

    cluster.send_numbers(topic, range(100, 110))
    query = start()
    eventually(checkpoint_file(tmp_path, "commits", 0).exists, "batch 0 is not recorded though nothing came")
    cluster.send_numbers(topic, range(20))
    eventually(lambda: sum(map(len, [n for runs in seen.values() for n in runs])) == 20, "all batches")
    query.stop()
    first = {batch: runs[0] for batch, runs in seen.items()}
    assert first.pop(0) == []
    assert sorted(n for run in first.values() for n in run) == list(range(20))
    # As if the driver had died inside the first batch with rows: that one and all after it run again.
    for kind, kept in (("offsets", 1), ("commits", 0)):
        for path in checkpoint_file(tmp_path, kind, 0).parent.iterdir():
            if int(path.name.strip(".").split(".")[0]) > kept:
                path.unlink()
    seen.clear()
    query = start()
    eventually(lambda: sum(map(len, [n for runs in seen.values() for n in runs])) == 20, "all batches again")
    query.stop()
    assert seen[1] == [first[1]]
    assert sorted(n for runs in seen.values() for run in runs for n in run) == list(range(20))


def test_an_idle_stream_runs_no_batches_and_wakes_at_once(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, cluster, topic, startingOffsets="earliest", pollTimeoutMs="60000")
    cluster.send_numbers(topic, range(4))
    query = to_files(frame, tmp_path, available_now=False)
    eventually(checkpoint_file(tmp_path, "commits", 0).exists, "batch 0")
    time.sleep(1.0)
    batches = len(list(checkpoint_file(tmp_path, "offsets", 0).parent.glob("[0-9]*")))
    assert batches == 1  # offsets are compared as text: the same place must be the same text
    sent = time.monotonic()
    cluster.send_numbers(topic, range(4, 8))
    eventually(checkpoint_file(tmp_path, "commits", 1).exists, "the new messages")
    assert time.monotonic() - sent < 45  # not the poll timeout: the parked pulls woke it
    eventually(lambda: values(spark, tmp_path) == list(range(8)), "all messages")
    query.stop()


def test_new_queues_and_new_topics_are_read_from_their_first_message(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(8))
    frame = stream(spark, cluster, topic, topicPattern=f"{topic}.*", startingOffsets="earliest")
    drain(frame, tmp_path)
    cluster.create_topic(topic, 6)
    for queue_id in (4, 5):
        cluster.send(topic, queue_id, [Message.of(topic, str(100 + queue_id))])
    cluster.create_topic(f"{topic}-2", 1)
    cluster.send(f"{topic}-2", 0, [Message.of(f"{topic}-2", "200")])
    time.sleep(1.1)  # routes are believed for a second
    query = to_files(frame, tmp_path)
    assert query.awaitTermination(WAIT_S)
    assert values(spark, tmp_path) == [*range(8), 104, 105, 200]


@since_4_2
def test_starting_offsets_of_the_group(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(12))
    drain(stream(spark, cluster, topic, startingOffsets="earliest", group="g-start"), tmp_path / "one")
    cluster.send_numbers(topic, range(12, 20))
    # Another checkpoint, the same group: it goes on where the group stands.
    drain(stream(spark, cluster, topic, startingOffsets="group", group="g-start"), tmp_path / "two")
    assert values(spark, tmp_path / "two") == list(range(12, 20))
    frame = spark.read.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
    assert frame.options(startingOffsets="group", group="g-start").load().count() == 0
    assert frame.options(startingOffsets="group", group="g-never-seen").load().count() == 20
    # A query that starts over does not pull the group back.
    before = cluster.group_offsets("g-start", topic)
    limited = stream(
        spark, cluster, topic, startingOffsets="earliest", group="g-start", maxOffsetsPerTrigger="4"
    )
    query = to_files(limited, tmp_path / "three", available_now=False)
    eventually(checkpoint_file(tmp_path / "three", "commits", 1).exists, "two batches")
    query.stop()
    assert cluster.group_offsets("g-start", topic) == before


def test_explicit_offsets_and_timestamps(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    def read(**options: str) -> list[int]:
        frame = spark.read.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
        return sorted(int(row.value) for row in frame.options(**options).load().select("value").collect())

    cluster.send_numbers(topic, range(8))
    time.sleep(0.05)
    middle_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    cluster.send_numbers(topic, range(8, 16))
    offsets = {topic: {"0": 1, "dev:1": -2, "2": 4, "3": 3}}
    assert read(startingOffsets=json.dumps(offsets)) == [1, 4, 5, 8, 9, 12, 13, 15]
    assert read(endingOffsets=json.dumps({topic: {"0": 1, "1": 0, "2": -1, "3": 0}})) == [0, 2, 6, 10, 14]
    assert read(startingTimestamp=str(middle_ms)) == list(range(8, 16))
    assert read(endingTimestamp=str(middle_ms)) == list(range(8))
    by_queue = {topic: dict.fromkeys("0123", 0) | {"1": middle_ms}}
    assert read(startingOffsetsByTimestamp=json.dumps(by_queue)) == [
        n for n in range(16) if n % 4 != 1 or n >= 8
    ]
    late_ms = str(middle_ms + 1_000_000)
    assert read(startingTimestamp=late_ms, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(Exception, match="startingTimestamp: queue 0 of topic"):
        read(startingTimestamp=late_ms)
    with pytest.raises(Exception, match=r"startingOffsets: .* has offsets 0 to 4, not 99"):
        read(startingOffsets=json.dumps({topic: {"0": 99, "1": 0, "2": 0, "3": 0}}))


def test_tags_and_assigned_queues(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(20))
    reader = spark.readStream.format("pymq").option("nameserver", cluster.nameserver)
    reader = reader.option("assign", json.dumps({topic: [1, 2]})).option("tags", "odd")
    drain(reader.option("startingOffsets", "earliest").load(), tmp_path)
    assert values(spark, tmp_path) == [n for n in range(20) if n % 4 == 1]


@since_4_2
def test_an_assigned_queue_that_vanishes(
    spark: SparkSession,
    cluster: DevCluster,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assigned = {"assign": json.dumps({topic: [1, 2]}), "startingOffsets": "earliest"}

    def frame(**options: str) -> DataFrame:
        reader = spark.readStream.format("pymq").option("nameserver", cluster.nameserver)
        return reader.options(**assigned, **options).load()

    cluster.send_numbers(topic, range(20))
    drain(frame(), tmp_path)
    cluster.create_topic(topic, queues=2)
    cluster.send_numbers(topic, range(20, 24), queues=2)
    with pytest.raises(StreamingQueryException, match=f"queue 2 of topic {topic} is gone"):
        drain(frame(), tmp_path)
    drain(frame(failOnDataLoss="false"), tmp_path)
    assert values(spark, tmp_path) == sorted([n for n in range(20) if n % 4 in (1, 2)] + [21, 23])

    options = {"nameserver": cluster.nameserver, "pollTimeoutMs": "0", **assigned}
    known = {MessageQueue(topic, "dev", queue_id): 5 for queue_id in (1, 2)}
    start = Positions(known, begun=known).to_json()
    strict = stream_reader(ReadOptions.parse(options, streaming=True), ("value",))
    with pytest.raises(DataLoss, match=rf"queue 2 of topic {topic} is gone. Set failOnDataLoss=false"):
        strict.latestOffset(start, ReadAllAvailable())
    strict.stop()
    tolerant = stream_reader(
        ReadOptions.parse(options | {"failOnDataLoss": "false"}, streaming=True), ("value",)
    )
    with pytest.raises(ConfigError, match=f"assign: topic {topic} has no queue '2'"):
        tolerant.initialOffset()  # nobody has ever read it
    for _ in range(2):
        end = Positions.from_json(tolerant.latestOffset(start, ReadAllAvailable())).offsets
        assert {queue.queue_id: offset for queue, offset in end.items()} == {1: 7, 2: 5}
        monkeypatch.setattr(cluster_queues, "ROUTE_LIFE_S", 0.0)  # ask for routes again
    told = [record.getMessage() for record in caplog.records if "is gone" in record.getMessage()]
    assert told == [f"data loss accepted (failOnDataLoss=false): queue 2 of topic {topic} is gone"]
    tolerant.stop()


def test_the_broker_restarts_between_batches(spark: SparkSession, tmp_path: Path) -> None:
    with DevCluster(tmp_path / "store", "flushDiskType=ASYNC_FLUSH") as own:
        own.create_topic("R")
        own.send_numbers("R", range(100))
        query = to_files(
            stream(spark, own, "R", startingOffsets="earliest", group="g-restart"),
            tmp_path,
            available_now=False,
        )
        eventually(checkpoint_file(tmp_path, "commits", 0).exists, "batch 0")
        own.stop(signal.SIGKILL)
        time.sleep(0.5)
        own.start()
        eventually(lambda: "R" in own.client.topics(), "the topic")
        own.send_numbers("R", range(100, 200))
        eventually(
            lambda: not query.isActive or own.group_offsets("g-restart", "R") == own.max_offsets("R"),
            "the rest is read",
            180,
        )
        assert query.isActive, query.exception()
        query.stop()
    assert values(spark, tmp_path) == list(range(200))


@since_4_2
def test_a_topic_made_anew_is_data_loss(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(40))
    drain(stream(spark, cluster, topic, startingOffsets="earliest"), tmp_path)
    cluster.delete_topic(topic)
    cluster.create_topic(topic)
    cluster.send_numbers(topic, range(40, 52))
    with pytest.raises(StreamingQueryException, match=r"created again.*failOnDataLoss=false"):
        drain(stream(spark, cluster, topic), tmp_path)
    drain(stream(spark, cluster, topic, failOnDataLoss="false"), tmp_path)
    assert values(spark, tmp_path) == list(range(52))


@since_4_2
def test_progress_shows_the_backlog(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(40))
    frame = stream(spark, cluster, topic, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    first = drain(frame, tmp_path)[0]["sources"][0]
    assert first["latestOffset"]["q"][topic] == {f"dev:{n}": 10 for n in range(4)}
    assert first["endOffset"]["q"][topic] == {f"dev:{n}": 2 for n in range(4)}


def test_tools_find_the_group(cluster: DevCluster, topic: str) -> None:
    """mqadmin consumerProgress asks the brokers of the group's retry topic, and lists groups by these topics."""
    cluster.send_numbers(topic, range(8))
    options = {"nameserver": cluster.nameserver, "topic": topic, "group": f"G-{topic}"}
    reader = stream_reader(
        ReadOptions.parse(options | {"startingOffsets": "earliest"}, streaming=True), ("value",)
    )
    start = Positions.from_json(reader.initialOffset())
    reader.commit(Positions(dict.fromkeys(start.offsets, 2), start.begun).to_json())
    assert cluster.group_offsets(f"G-{topic}", topic) == dict.fromkeys(range(4), 2)
    deadline = time.monotonic() + 60
    while f"%RETRY%G-{topic}" not in cluster.client.topics():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cluster.client.route(f"%RETRY%G-{topic}").subscribe_queues
    reader.stop()
