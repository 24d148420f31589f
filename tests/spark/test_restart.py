"""Kill -9 the whole driver, between batches and inside one; after restarts nothing is missing and nothing is twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqspark_jobs import commandline as command
from tests.spark.delta_jars import needed_delta_jars
from tests.support.dev import DevCluster
from tests.support.jvm import spark_options
from tests.support.processes import start, stop, tail

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

KILLS = 5
ROWS_A_KILL = 3_000
WAIT_S = 240
"""For a batch of a driver that starts: the start alone has taken a minute on a busy machine."""


@pytest.fixture(scope="session")
def delta_settings() -> dict[str, str]:
    """For a driver in a process of its own; never spark.jars.packages, which trips over what mvn leaves behind."""
    return {
        **command.delta_settings(needed_delta_jars()),
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
    }


class Driver:
    """The query's process and everything that it started."""

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.root = root
        self._settings = root / "settings.json"
        self._settings.write_text(json.dumps(settings))
        self._log = root / "driver.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        program = [sys.executable, str(Path(__file__).with_name("driver.py")), str(self._settings)]
        self._process = start(program, self._log, new_session=True)

    def kill(self) -> None:
        """Python, JVM and workers at once, as when the machine goes."""
        assert self._process is not None
        assert self._process.poll() is None, tail(self._log)
        os.killpg(self._process.pid, signal.SIGKILL)
        stop(self._process)

    def finish(self) -> None:
        assert self._process is not None
        self._process.wait(WAIT_S)
        assert stop(self._process) == 0, tail(self._log)

    def until_new(self, kind: str, seen: set[str]) -> None:
        """Wait for an entry of the offset or commit log that was not there."""
        deadline = time.monotonic() + WAIT_S
        while not self.entries(kind) - seen:
            assert time.monotonic() < deadline, tail(self._log)
            assert self._process is not None
            assert self._process.poll() is None, tail(self._log)
            time.sleep(0.002)  # the kill has to meet the batch, so that the pauses may not grow

    def entries(self, kind: str) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {path.name for path in (self.root / "checkpoint" / kind).iterdir() if path.name.isdigit()}
        return set()


def killed_and_restarted(
    cluster: DevCluster, topic: str, root: Path, sink: str, spark: dict[str, str], kills: int
) -> None:
    """Kills in turn just after a batch's offsets are recorded (inside it) and just after its commit."""
    settings = {
        "source": {
            "nameserver": cluster.nameserver,
            "topic": topic,
            "startingOffsets": "latest",
            "maxOffsetsPerTrigger": "1000",
            "group": f"g-{topic}",
        },
        "sink": sink,
        "out": str(root / "out"),
        "checkpoint": str(root / "checkpoint"),
        "stop": str(root / "stop"),
        "spark": spark,
        "java_options": spark_options(),
    }
    driver = Driver(root, settings)
    sent = 0
    for kill in range(kills):
        kind = "offsets" if kill % 2 == 0 else "commits"
        seen = driver.entries(kind)
        driver.start()
        if kill == 0:
            # The first kill is inside batch 0 of a "latest" query, before anything is sent.
            driver.until_new("offsets", seen)
        else:
            for _ in range(2):
                driver.until_new(kind, seen)
                seen = driver.entries(kind)
        driver.kill()
        cluster.send_numbers(topic, range(sent, sent + ROWS_A_KILL))
        sent += ROWS_A_KILL
    (root / "stop").touch()
    driver.start()
    driver.finish()
    assert cluster.group_offsets(f"g-{topic}", topic) == cluster.max_offsets(topic)


@pytest.mark.slow(
    "six drivers start; the replayed batches of test_stream and the killed driver of test_work_kills are"
    " the fast twins"
)
def test_file_sink(spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    killed_and_restarted(cluster, topic, tmp_path, "parquet", {}, KILLS)
    rows = (
        spark.read.parquet(str(tmp_path / "out")).selectExpr("int(value) n", "partition", "offset").collect()
    )
    assert sorted(row.n for row in rows) == list(range(KILLS * ROWS_A_KILL))
    assert len({(row.partition, row.offset) for row in rows}) == KILLS * ROWS_A_KILL


@pytest.mark.slow("five drivers start; the file sink is the fast twin")
def test_delta_sink(cluster: DevCluster, topic: str, tmp_path: Path, delta_settings: dict[str, str]) -> None:
    killed_and_restarted(cluster, topic, tmp_path, "delta", delta_settings, KILLS)
    # Read without Spark's Delta: the files that the log says are live.
    live: set[str] = set()
    for entry in sorted((tmp_path / "out/_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live.add(action["add"]["path"])
            if "remove" in action:
                live.discard(action["remove"]["path"])
    import pyarrow.parquet as pq

    values = [n for path in live for n in pq.read_table(tmp_path / "out" / path)["value"].to_pylist()]
    assert sorted(map(int, values)) == list(range(KILLS * ROWS_A_KILL))
