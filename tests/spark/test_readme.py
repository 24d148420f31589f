"""Every code block of the pages that needs Spark runs alone, as written, and prints something."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqspark.message import Message
from pyspark_pymq.reading.stream import ADMISSION_CONTROL
from tests.spark.delta_jars import needed_delta_jars
from tests.support.dev import DevCluster
from tests.support.pages import ADDRESS, Block, blocks
from tests.support.processes import run_to_end
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark

PROGRAMS = [each for each in blocks("python") if "SparkSession" in each.text]
SCRIPTS = [each for each in blocks("sh") if each.needs_spark]
SQL = blocks("sql")


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.name)
def test_a_program(block: Block, spark: SparkSession, cluster: DevCluster) -> None:
    # The console belongs to the JVM; a table can be looked at.
    shown = 'format("console")' in block.text
    code = block.text.replace(ADDRESS, cluster.nameserver)
    code = code.replace('format("console")', 'format("memory").queryName("readme")')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(block.page), "exec"), {})  # noqa: S102 - our own pages
        if shown:
            spark.table("readme").show()
    assert re.search(r"^\|.*(book|9\.5)", printed.getvalue(), re.MULTILINE), printed.getvalue()


@pytest.mark.parametrize("block", SQL, ids=lambda block: block.name)
def test_statements(block: Block, spark: SparkSession, cluster: DevCluster) -> None:
    cluster.create_topic("Orders")
    session = spark.newSession()
    session.conf.unset("spark.sql.catalog.spark_catalog")  # Delta's catalog refuses tables of Python sources
    text = re.sub(r"--.*", "", block.text.replace(ADDRESS, cluster.nameserver))
    results = [session.sql(statement).collect() for statement in text.split(";") if statement.strip()]
    session.sql("DROP TABLE orders")
    assert any("order-3" in map(str, row) for rows in results for row in rows)


@pytest.mark.slow("starts a Spark of its own for the job")
@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: block.name)
def test_a_script(block: Block, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = run_to_end(["bash", "-eu", "-c", block.text], cwd=tmp_path, env={**os.environ, "PATH": path})
    assert run.returncode == 0, run.stdout + run.stderr
    assert '"records": 1' in run.stdout


@pytest.mark.delta
@pytest.mark.slow("starts a Spark of its own; a live table has tests of its own")
@pytest.mark.timeout(1800)
def test_a_topic_as_a_table(cluster: DevCluster, tmp_path: Path) -> None:
    """As written; only Delta's jars are named, which Spark would fetch."""
    (block,) = [each for each in blocks("text") if "polars.read_delta" in each.text]
    jars = needed_delta_jars()
    text = block.text.replace(ADDRESS, cluster.nameserver).replace("/data/prices", str(tmp_path / "prices"))
    run = "mqspark table run --once"
    assert run in text
    given = f"--delta-jars {jars} --conf spark.driver.host=127.0.0.1"
    text = text.replace(run, f"{run} {given} --conf spark.ui.enabled=false")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run_to_end(
        ["bash", "-eu", "-c", text],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
        timeout_s=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"│ 1 +┆ 9\.5 +│", done.stdout), done.stdout


@pytest.mark.slow("many batches; test_failed_messages_come_again_and_die_at_last is the fast twin")
@pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs Spark 4.2")
def test_the_work_queue(spark: SparkSession, cluster: DevCluster, tmp_path: Path) -> None:
    (block,) = [each for each in blocks("python") if "WorkQueue(" in each.text]
    cluster.create_topic("Orders", 1)
    cluster.create_topic("Invoices", 1)
    orders = ('{"id": 1, "price": 10}', '{"id": 2, "price": 2000}', '{"id": 3, "price": null}')
    cluster.send("Orders", 0, [Message.of("Orders", order) for order in orders])
    code = block.text.replace(ADDRESS, cluster.nameserver).replace("/tmp/billing", str(tmp_path))
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
