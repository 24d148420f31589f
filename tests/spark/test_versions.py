"""The oldest Spark that is supported, and the one that Delta takes, beside that of the environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.versions_client import used
from tests.support.dev import DevCluster
from tests.support.maven import or_skip
from tests.support.processes import run_to_end
from tests.support.pyspark_versions import OLDEST, WITH_DELTA, environment_of, pyspark_of

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(cluster: DevCluster, topic: str, tmp_path: Path) -> dict[str, str]:
    return {
        "nameserver": cluster.nameserver,
        "topic": topic,
        "target": cluster.create_topic(f"{topic}-out", 2),
        "checkpoint": str(tmp_path / "checkpoint"),
        "left": str(tmp_path / "left"),
        "warehouse": str(tmp_path / "warehouse"),
        "result": str(tmp_path / "result.json"),
    }


def check(result: dict[str, Any], version: str) -> None:
    assert result["version"] == version
    assert result["batch"] == list(range(100))
    assert result["finished"] is True
    assert result["table"] == list(range(100))


def check_limits(result: dict[str, Any], cluster: DevCluster, topic: str) -> None:
    assert max(result["rows of batches"]) <= 30
    # Spark 4.1 says of the last batch of a run only in the next one that it is finished.
    assert sum(offset or 0 for offset in cluster.group_offsets("versions", topic).values()) == 100


def test_with_the_spark_of_delta(
    delta: SparkSession, settings: dict[str, str], cluster: DevCluster, topic: str
) -> None:
    session = delta.newSession()
    session.conf.unset("spark.sql.catalog.spark_catalog")  # Delta's catalog refuses tables of Python sources
    result = used(session, settings)
    check(result, WITH_DELTA)
    check_limits(result, cluster, topic)


@pytest.mark.timeout(1200)  # with an empty cache, pip fetches 450 MB
@pytest.mark.slow("other Sparks; the newest one and that of Delta have all tests")
@pytest.mark.parametrize("version", [OLDEST, WITH_DELTA])
def test_batch_stream_and_sink(
    settings: dict[str, str], cluster: DevCluster, topic: str, tmp_path: Path, version: str
) -> None:
    folder = or_skip(lambda: pyspark_of(version))
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    script = Path(__file__).with_name("versions_client.py")
    done = run_to_end(
        [sys.executable, str(script), str(tmp_path / "settings.json")],
        env={**os.environ, **environment_of(folder)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    check(result, version)
    assert "Traceback" not in done.stderr, done.stderr[-3000:]  # of a Python process at the program's end
    if version.startswith("4.1."):
        # No admission control: one batch, and a line that says so.
        assert result["rows of batches"] == [100]
        assert "maxOffsetsPerTrigger" in done.stderr
    else:
        check_limits(result, cluster, topic)
