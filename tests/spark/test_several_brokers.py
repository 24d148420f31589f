"""Spark reads and writes all brokers of a host through one name server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqspark import AdminClient
from tests.support.clusters import BrokerHost, mqspark_host, mqspark_namesrv

pytestmark = pytest.mark.spark

ROWS = 1_000


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BrokerHost]:
    with mqspark_namesrv(tmp_path) as namesrv, mqspark_host(tmp_path, namesrv, 2) as running:
        with AdminClient(namesrv) as admin:
            admin.create_topic("Spread", queues=2)
        yield running


def test_a_topic_is_spread_over_all_brokers(spark: SparkSession, host: BrokerHost, tmp_path: Path) -> None:
    """Each broker has a part of it; a batch and a stream read the whole."""
    at = {"nameserver": host.ready["namesrv"], "topic": "Spread"}
    rows = spark.range(ROWS, numPartitions=4).selectExpr("cast(cast(id as string) as binary) as value")
    rows.write.format("pymq").options(**at).mode("append").save()

    found = spark.read.format("pymq").options(**at, columns="value, broker").load().collect()
    assert sorted(int(bytes(row.value)) for row in found) == list(range(ROWS))
    by_broker = Counter(row.broker for row in found)
    assert sorted(by_broker) == ["h-0", "h-1"], by_broker

    stream = spark.readStream.format("pymq").options(**at, startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("spread")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.table("spread").count() == ROWS
