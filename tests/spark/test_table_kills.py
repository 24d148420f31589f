"""A live table whose driver, worker or broker is killed within a batch: no row is lost, doubled or invented."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqspark_jobs.tables.tablekeeper import TableKeeper, TablesOptions
from mqspark_jobs.tables.tablerecord import newest_version
from mqspark_jobs.tables.tablerows import TableWriter
from tests.spark.conftest import SETTINGS
from tests.spark.test_live_table import Table, numbers
from tests.support.dev import DevCluster
from tests.support.jobs_tools import quiet
from tests.support.processes import start, stop
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.delta, pytest.mark.timeout(1800)]
ROWS = 60
AT_ONCE = {"maxOffsetsPerTrigger": "20"}
WAIT_S = 900.0


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """For tests that kill it."""
    with DevCluster(tmp_path / "store", "mappedFileSizeCommitLog=16777216") as running:
        yield running


def rows_of(table: Table) -> int:
    """Messages that the table has, as its log says."""
    record = newest_version(table.definition.url).record
    return 0 if record is None else sum(record.ends.values())


def check(table: Table) -> None:
    assert table.bodies() == numbers(range(ROWS))
    summary = table.verify()
    assert (summary["rows"], summary["older_rows"]) == (ROWS, 0)


@pytest.mark.slow("retries with pauses; fast: the bad table of one query in test_live_table.py")
def test_a_worker_and_the_broker_are_killed_in_a_batch(
    delta: SparkSession, own_cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = own_cluster.create_topic("Orders")
    own_cluster.send_numbers(topic, range(ROWS))
    table = Table(delta, own_cluster, topic, tmp_path, options=AT_ONCE)
    killed = tmp_path / "killed"

    def dies_once(batches: Any) -> Any:
        """In a worker, which has handed over rows."""
        for batch in batches:
            yield batch
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    append, calls = TableWriter.append, 0

    def killing(writer: TableWriter, rows: Any, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            rows = rows.mapInArrow(dies_once, rows.schema)
        if calls != 4:
            append(writer, rows, *arguments)
            return
        own_cluster.stop(signal.SIGKILL)
        try:
            append(writer, rows, *arguments)
        finally:
            own_cluster.start()

    monkeypatch.setattr(TableWriter, "append", killing)
    keeper = TableKeeper(TablesOptions(table.directory, interval_ms=0), delta, quiet("tables"))

    def has_all() -> bool:
        keeper.step(time.monotonic())
        return rows_of(table) == ROWS and calls >= 4

    try:
        eventually(has_all, lambda: (calls, rows_of(table), keeper.errors), WAIT_S)
    finally:
        keeper.stop()
    assert killed.exists()
    assert keeper.failures >= 1, "the batch of the worker failed, and came again"
    check(table)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.slow("starts a driver; fast: the bad table of one query in test_live_table.py")
def test_a_driver_is_killed_in_a_batch(
    when: str, delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    """Python, JVM and workers at once, as when the machine goes: before or behind the commit of the second batch."""
    cluster.send_numbers(topic, range(ROWS))
    table = Table(delta, cluster, topic, tmp_path, options=AT_ONCE)
    arguments = ["tables", "--tables", str(table.directory.path), "--interval-ms", "0"]
    arguments += ["--delta-jars", delta.conf.get("spark.jars") or ""]
    for name, value in {**SETTINGS, "spark.databricks.delta.snapshotPartitions": "1"}.items():
        arguments += ["--conf", f"{name}={value}"]
    settings = tmp_path / "driver.json"
    settings.write_text(json.dumps({"dies": ("append", when, 2), "runs": [arguments]}))
    command = [sys.executable, str(Path(__file__).with_name("table_driver.py")), str(settings)]
    driver = start(command, tmp_path / "driver.log", new_session=True)
    try:
        assert driver.wait(WAIT_S) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        stop(driver)
    assert rows_of(table) == (20 if when == "before" else 40)
    assert not table.directory.is_running("orders"), "its lock has gone with it"
    table.follow()
    check(table)
