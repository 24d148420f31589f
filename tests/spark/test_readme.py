"""The README's Spark code works as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.dev import DevCluster

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
