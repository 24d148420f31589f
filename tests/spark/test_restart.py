"""Kill -9 the whole driver, between batches and inside one; after restarts nothing is missing and nothing is twice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.dev import DevCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS_A_KILL = 3_000
WAIT_S = 90

DELTA_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>t</groupId><artifactId>delta-jars</artifactId><version>1</version><packaging>pom</packaging><dependencies>
{}</dependencies></project>"""
DEPENDENCY = """<dependency><groupId>io.delta</groupId><artifactId>{}</artifactId><version>4.4.0</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
"""


@pytest.fixture(scope="session")
def delta_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Delta's two jars by mvn into a cache; never spark.jars.packages, which trips over what mvn leaves behind."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "mqspark-tests/delta-4.4.0"
    if not (cache / ".complete").exists():
        if shutil.which("mvn") is None:
            pytest.skip("Delta's jars need mvn, or a filled cache")
        pom = tmp_path_factory.mktemp("delta") / "pom.xml"
        jars = "".join(DEPENDENCY.format(name) for name in ("delta-spark_4.2_2.13", "delta-storage"))
        pom.write_text(DELTA_POM.format(jars))
        command = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={cache}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            pytest.skip(f"mvn cannot fetch Delta's jars: {done.stdout[-300:]}")
        (cache / ".complete").touch()
    return {
        "spark.jars": ",".join(str(jar) for jar in sorted(cache.glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
    }


class Driver:
    """The query's process and everything that it started."""

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.root = root
        self._settings = root / "settings.json"
        self._settings.write_text(json.dumps(settings))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("driver.py")), str(self._settings)]
        with (self.root / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Python, JVM and workers at once, as when the machine goes."""
        assert self._process is not None
        assert self._process.poll() is None, (self.root / "driver.log").read_text()[-2000:]
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT_S)

    def finish(self) -> None:
        assert self._process is not None
        code = self._process.wait(WAIT_S)
        assert code == 0, (self.root / "driver.log").read_text()[-3000:]

    def until_new(self, kind: str, seen: set[str]) -> None:
        """Wait for an entry of the offset or commit log that was not there."""
        deadline = time.monotonic() + WAIT_S
        while not self.entries(kind) - seen:
            assert time.monotonic() < deadline, (self.root / "driver.log").read_text()[-3000:]
            assert self._process is not None
            assert self._process.poll() is None, (self.root / "driver.log").read_text()[-3000:]
            time.sleep(0.002)

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


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_file_sink(spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, kills: int) -> None:
    killed_and_restarted(cluster, topic, tmp_path, "parquet", {}, kills)
    rows = (
        spark.read.parquet(str(tmp_path / "out")).selectExpr("int(value) n", "partition", "offset").collect()
    )
    assert sorted(row.n for row in rows) == list(range(kills * ROWS_A_KILL))
    assert len({(row.partition, row.offset) for row in rows}) == kills * ROWS_A_KILL


@pytest.mark.slow
def test_delta_sink(cluster: DevCluster, topic: str, tmp_path: Path, delta_settings: dict[str, str]) -> None:
    killed_and_restarted(cluster, topic, tmp_path, "delta", delta_settings, 5)
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
    assert sorted(map(int, values)) == list(range(5 * ROWS_A_KILL))
