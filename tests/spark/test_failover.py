"""A stream whose master dies: it goes on with the next one, with nothing missing and nothing twice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqspark import Message, Producer, SendStatus
from mqspark.errors import MQError
from mqspark.testing import Cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark

QUEUES = 4


class Sending:
    """A producer that sends numbers until it is told to stop, and knows which ones were acknowledged."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self._ended = threading.Event()
        self._producer = Producer(namesrv, group="p", send_timeout_ms=10_000)
        self._producer.start()
        self._thread = threading.Thread(target=self._run, args=(topic,))
        self._thread.start()

    def _run(self, topic: str) -> None:
        number = 0
        while not self._ended.wait(0.005):
            number += 1
            try:
                result = self._producer.send(Message(topic, b"%d" % number))
            except MQError:
                continue
            if result.status is SendStatus.SEND_OK:
                self.acknowledged.add(number)

    def sends(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= wanted)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.stop()


@pytest.mark.slow("a broker that restarts under a stream, and failovers without Spark, have quick tests")
@pytest.mark.parametrize("mapped", ["true", "false"])
def test_a_stream_outlives_two_masters(spark: SparkSession, tmp_path: Path, mapped: str) -> None:
    with Cluster(brokers=3, replication="controller", store=tmp_path / "cluster") as cluster:
        sending = Sending(cluster.namesrv, "T")
        try:
            sending.sends(10)
            frame = spark.readStream.format("pymq").option("nameserver", cluster.namesrv).option("topic", "T")
            frame = (
                frame.option("startingOffsets", "earliest").option("group", "g").option("localRead", mapped)
            )
            rows = frame.load().selectExpr("concat_ws(':', partition, offset, cast(value as string)) value")
            out = str(tmp_path / "out")
            writer = rows.writeStream.format("text").option("path", out)
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

            def read() -> list[str]:
                return [row.value for row in spark.read.text(out).collect()]

            try:
                for _ in range(2):
                    sending.sends(50)
                    eventually(lambda: len(read()) > 10)
                    dead = cluster.master
                    assert dead is not None
                    cluster.kill(dead)
                    eventually(lambda dead=dead: cluster.master not in (None, dead))  # type: ignore[misc]
                    sending.sends(50)
                    cluster.restart(dead)
                    eventually(lambda: len(cluster.sync_state_set) == 3)
                sending.stop()
                wanted = sending.acknowledged

                def has_all() -> bool:
                    assert query.exception() is None
                    return wanted <= {int(line.rpartition(":")[2]) for line in read()}

                eventually(has_all, timeout_s=120)
            finally:
                query.stop()
            lines = read()
            places = [line.rpartition(":")[0] for line in lines]
            assert len(places) == len(set(places)), "a queue offset came twice"
            for queue in range(QUEUES):
                offsets = sorted(
                    int(place.partition(":")[2]) for place in places if place.startswith(f"{queue}:")
                )
                assert offsets == list(range(len(offsets))), "a queue offset is missing"
        finally:
            sending.stop()
