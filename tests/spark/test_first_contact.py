"""An address that is not a name server's: batch reads, streams and sinks say what is wrong.

How soon is said in ``tests/integration/test_first_contact.py``: these texts come from the one bounded first contact.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.support.dev import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    assert "the option nameserver says where" in text


@ways
def test_the_port_of_a_broker(act: Way, spark: SparkSession, cluster: DevCluster, tmp_path: Path) -> None:
    text = refusal(act, spark, cluster.address, tmp_path / "c")
    assert f"nameserver {cluster.address}: that is a broker, not a name server" in text


def test_a_host_that_does_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    text = refusal(batch_read, spark, "nobody.invalid:9876", tmp_path / "c")
    assert "nobody.invalid:9876: no name server answers" in text
    assert "the host name 'nobody.invalid'" in text
