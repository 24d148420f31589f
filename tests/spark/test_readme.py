"""The README's Spark code works as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqspark.message import Message
from pyspark_pymq.reading.stream import ADMISSION_CONTROL
from tests.support.dev import DevCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


def test_the_block(spark: SparkSession, cluster: DevCluster) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "SparkSession" in block]
    # The console belongs to the JVM; a table can be looked at.
    code = block.replace("127.0.0.1:9876", cluster.nameserver)
    code = code.replace('format("console")', 'format("memory").queryName("readme")')
    exec(compile(code, str(README), "exec"), {})  # noqa: S102 - our own README
    assert [tuple(row) for row in spark.table("readme").collect()] == [("order-1", "book", "created")]


@pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs Spark 4.2")
def test_the_work_queue(spark: SparkSession, cluster: DevCluster, tmp_path: Path) -> None:
    text = README.with_name("datasource").joinpath("README.md").read_text()
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "WorkQueue(" in each]
    cluster.create_topic("Orders", 1)
    cluster.create_topic("Invoices", 1)
    orders = ('{"id": 1, "price": 10}', '{"id": 2, "price": 2000}', '{"id": 3, "price": null}')
    cluster.send("Orders", 0, [Message.of("Orders", order) for order in orders])
    code = block.replace("127.0.0.1:9876", cluster.nameserver).replace("/tmp/billing", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}
    exec(compile(code, "datasource/README.md", "exec"), names)  # noqa: S102 - our own README
    query = names["query"]
    eventually(lambda: cluster.max_offsets("Invoices") == {0: 2} or not query.isActive, query.exception)
    query.stop()
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    assert [bytes(row.value) for row in reader.load("Invoices").orderBy("offset").collect()] == [
        b"12.0",
        b"2400.0",
    ]
