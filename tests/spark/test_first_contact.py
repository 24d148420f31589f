"""An address that is not a name server's: batch reads, streams and sinks say what is wrong.

``tests/integration/client/test_first_contact.py`` says how soon: these texts come from the one bounded first contact.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from mqspark.client.blocking import FIRST_CONTACT_MS
from tests.support.dev import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def batch_read(spark: SparkSession, nameserver: str, _: Path) -> None:
    spark.read.format("pymq").option("nameserver", nameserver).load("T").count()


def batch_write(spark: SparkSession, nameserver: str, _: Path) -> None:
    rows = spark.range(2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("pymq").mode("append").option("nameserver", nameserver).option("topic", "T").save()


def stream_read(spark: SparkSession, nameserver: str, folder: Path) -> None:
    source = spark.readStream.format("pymq").option("nameserver", nameserver).load("T")
    query = source.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    query.awaitTermination(60)


def stream_write(spark: SparkSession, nameserver: str, folder: Path) -> None:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    sink = rows.selectExpr("CAST(value AS STRING) AS value").writeStream.format("pymq")
    sink = sink.option("nameserver", nameserver).option("topic", "T")
    query = sink.option("checkpointLocation", str(folder)).trigger(once=True).start()
    query.awaitTermination(60)


ways = pytest.mark.parametrize("act", [batch_read, batch_write, stream_read, stream_write])
Way = Callable[["SparkSession", str, Path], None]


def refusal(act: Way, spark: SparkSession, nameserver: str, folder: Path) -> str:
    with pytest.raises(PySparkException) as caught:
        act(spark, nameserver, folder)
    return str(caught.value)


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_name_server(spark: SparkSession, silent: str, tmp_path: Path) -> None:
    text = refusal(batch_read, spark, silent, tmp_path / "c")
    assert f"{silent}: no name server answers" in text
    assert "the option nameserver says where" in text


@ways
def test_a_wrong_port(act: Way, spark: SparkSession, tmp_path: Path) -> None:
    text = refusal(act, spark, "127.0.0.1:9", tmp_path / "c")
    assert "127.0.0.1:9: no name server answers" in text
    assert "Connection refused" in text
    assert "Could not serialize object" not in text, "Spark's word for an error while it pickles the sink"
    assert "direct cause" not in text
    assert "the option nameserver says where" in text


same = pytest.mark.slow("the refusal is the same as of a wrong port, which each way has a fast test for")


@pytest.mark.parametrize(
    "act",
    [
        batch_read,
        stream_write,
        pytest.param(batch_write, marks=same),
        pytest.param(stream_read, marks=same),
    ],
)
def test_the_port_of_a_broker(act: Way, spark: SparkSession, cluster: DevCluster, tmp_path: Path) -> None:
    text = refusal(act, spark, cluster.address, tmp_path / "c")
    assert f"nameserver {cluster.address}: that is a broker, not a name server" in text


def test_a_host_that_does_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    text = refusal(batch_read, spark, "nobody.invalid:9876", tmp_path / "c")
    assert "nobody.invalid:9876: no name server answers" in text
    assert "the host name 'nobody.invalid'" in text


def copied(spark: SparkSession, nameserver: str, topic: str, folder: Path) -> StreamingQuery:
    """A stream from ``topic`` to its copy."""
    source = spark.readStream.format("pymq").option("nameserver", nameserver)
    source = source.option("topic", topic).option("startingOffsets", "earliest").option("group", "bridge")
    sink = source.load().select("key", "value").writeStream.format("pymq").option("nameserver", nameserver)
    sink = sink.option("topic", f"{topic}-copy").option("checkpointLocation", str(folder))
    return sink.start()


def test_a_sink_restarted_with_a_wrong_name_server(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    """The first contact of the restart is short, too, though its batch is not the query's first."""
    source = cluster.create_topic("Restarted", 1)
    cluster.send_numbers(source, range(5), 1)
    rows = spark.readStream.format("pymq").option("nameserver", cluster.nameserver)
    rows = rows.option("startingOffsets", "earliest").load(source)
    sink = rows.select("value").writeStream.format("pymq")
    sink = sink.option("checkpointLocation", str(tmp_path)).option("topic", topic).trigger(availableNow=True)
    assert sink.option("nameserver", cluster.nameserver).start().awaitTermination(60)
    cluster.send_numbers(source, range(5), 1)  # without new rows there is no batch
    with pytest.raises(PySparkException, match="no name server answers"):
        sink.option("nameserver", "127.0.0.1:9").start().awaitTermination(60)


def test_a_lost_cluster_is_bridged(spark: SparkSession, tmp_path: Path) -> None:
    with DevCluster(tmp_path / "store", "flushDiskType=ASYNC_FLUSH") as own:
        topic = own.create_topic("Bridge", 2)
        copy = own.create_topic("Bridge-copy", 2)

        def arrive(count: int) -> None:
            deadline = time.monotonic() + 90
            while sum(own.max_offsets(copy).values()) < count:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline
                time.sleep(0.05)

        own.send_numbers(topic, range(50), 2)
        query = copied(spark, own.nameserver, topic, tmp_path / "checkpoint")
        arrive(50)
        own.stop(signal.SIGKILL)
        time.sleep(FIRST_CONTACT_MS / 1000 + 1)  # longer than the first contact may take
        assert query.isActive, query.exception()
        own.start()
        for name in (topic, copy):
            own.create_topic(name, 2)  # returns when the name server knows it again
        own.send_numbers(topic, range(50, 100), 2)
        arrive(100)
        query.stop()
