"""A topic that changes under a running query: queues added, topics made, deleted and made anew, offsets expired."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqspark.message import Message
from tests.support.dev import DevCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark


class Live:
    """A query that runs until it is stopped, into files."""

    def __init__(self, spark: SparkSession, cluster: DevCluster, root: Path, **options: str) -> None:
        self._spark = spark
        self._root = root
        reader = spark.readStream.format("pymq").option("nameserver", cluster.nameserver).options(**options)
        frame = reader.option("startingOffsets", "earliest").load().selectExpr("string(value) value")
        writer = frame.writeStream.format("text").option("path", str(root / "out"))
        self.query: StreamingQuery = writer.option("checkpointLocation", str(root / "c")).start()

    def values(self) -> list[int]:
        if not list((self._root / "out").glob("*.txt")):
            return []
        return sorted(int(row.value) for row in self._spark.read.text(str(self._root / "out")).collect())

    def reads(self, expected: list[int]) -> None:
        eventually(lambda: self.values() == expected or not self.query.isActive, lambda: f"{self.values()}")
        assert self.values() == expected, self.query.exception()

    def fails(self, words: str) -> None:
        eventually(lambda: not self.query.isActive, lambda: f"still running, {self.values()}")
        assert words in str(self.query.exception())


def one(cluster: DevCluster, topic: str, queue: int, *numbers: int) -> None:
    cluster.send(topic, queue, [Message.of(topic, str(number)) for number in numbers])


@pytest.mark.slow("several streams; test_stream.py has new queues and topics, and one made anew")
@pytest.mark.parametrize(
    "strict", [True, pytest.param(False, marks=pytest.mark.slow("failOnDataLoss is the fast twin"))]
)
def test_queues_topics_and_a_topic_made_anew(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, strict: bool
) -> None:
    one(cluster, topic, 0, 1, 2)
    pattern = {"topicPattern": f"{topic}.*", "failOnDataLoss": str(strict).lower()}
    live = Live(spark, cluster, tmp_path, **pattern)
    try:
        live.reads([1, 2])
        cluster.create_topic(topic, 6)
        one(cluster, topic, 5, 3)
        live.reads([1, 2, 3])
        cluster.create_topic(f"{topic}-more", 1)
        one(cluster, f"{topic}-more", 0, 4)
        live.reads([1, 2, 3, 4])
        # Deleted: the rest goes on. Made anew: its offsets begin again, which is a loss if somebody counts on them.
        cluster.delete_topic(f"{topic}-more")
        one(cluster, topic, 1, 5)
        live.reads([1, 2, 3, 4, 5])
        cluster.delete_topic(topic)
        time.sleep(1.2)  # routes are believed for a second
        cluster.create_topic(topic, 6)
        one(cluster, topic, 0, 6)
        if strict:
            live.fails("the topic was deleted and created again")
        else:
            live.reads([1, 2, 3, 4, 5, 6])
    finally:
        live.query.stop()


@pytest.mark.parametrize(
    "strict", [True, pytest.param(False, marks=pytest.mark.slow("failOnDataLoss is the fast twin"))]
)
def test_offsets_that_expire_before_they_are_read(spark: SparkSession, tmp_path: Path, strict: bool) -> None:
    settings = (
        "flushDiskType=ASYNC_FLUSH",
        "mappedFileSizeCommitLog=65536",
        "mappedFileSizeConsumeQueue=2000",
    )
    with DevCluster(tmp_path / "store", *settings) as own:
        own.create_topic("E", 1)
        own.send_numbers("E", range(100), 1)
        options = {"topic": "E", "failOnDataLoss": str(strict).lower()}
        live = Live(spark, own, tmp_path, **options)
        live.reads(list(range(100)))
        live.query.stop()
        for first in range(100, 2000, 100):
            own.send_numbers("E", range(first, first + 100), 1)
        own.stop()
        for segment in sorted((tmp_path / "store/commitlog").iterdir())[:2]:
            segment.unlink()
        own.start()
        (first,) = own.client.min_offsets(own.address, list(own.client.route("E").subscribe_queues))
        assert 100 < first < 2000
        again = Live(spark, own, tmp_path, **options)
        try:
            if strict:
                again.fails("have expired. Set failOnDataLoss=false to go on without them")
            else:
                again.reads([*range(100), *range(first, 2000)])
        finally:
            again.query.stop()
