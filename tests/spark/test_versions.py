"""The oldest and the newest Spark that is supported, beside the one of the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dev import DevCluster
from tests.support.maven import ToolMissing
from tests.support.pyspark_versions import NEWEST, OLDEST, pyspark_of

pytestmark = pytest.mark.spark


@pytest.mark.timeout(1200)  # with an empty cache, pip fetches 450 MB
@pytest.mark.parametrize(
    "version",
    [
        NEWEST,
        pytest.param(OLDEST, marks=pytest.mark.slow("a third Spark; the newest one is the fast twin")),
    ],
)
def test_batch_stream_and_sink(cluster: DevCluster, topic: str, tmp_path: Path, version: str) -> None:
    try:
        folder = pyspark_of(version)
    except ToolMissing as missing:
        pytest.skip(str(missing))
    target = cluster.create_topic(f"{topic}-out", 2)
    settings = {
        "nameserver": cluster.nameserver,
        "topic": topic,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
        "left": str(tmp_path / "left"),
        "warehouse": str(tmp_path / "warehouse"),
        "result": str(tmp_path / "result.json"),
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    script = Path(__file__).with_name("versions_client.py")
    environment = {**os.environ, "PYTHONPATH": str(folder), "SPARK_HOME": str(folder / "pyspark")}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "settings.json")],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["version"] == version
    assert result["batch"] == list(range(100))
    assert result["finished"] is True
    assert "Traceback" not in done.stderr, done.stderr[-3000:]  # of a Python process at the program's end
    assert result["table"] == list(range(100))
    if version.startswith("4.1."):
        # No admission control: one batch, and a line that says so.
        assert result["rows of batches"] == [100]
        assert "maxOffsetsPerTrigger" in done.stderr
    else:
        assert max(result["rows of batches"]) <= 30
        # Spark 4.1 says of the last batch of a run only in the next one that it is finished.
        assert sum(offset or 0 for offset in cluster.group_offsets("versions", topic).values()) == 100
