"""Through Spark Connect: discovery, batch read and write, a stream into the exactly-once sink, readable errors."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.support.dev import DevCluster
from tests.support.processes import run_to_end

NEEDED = ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard")

pytestmark = [pytest.mark.spark, pytest.mark.slow("starts a Spark Connect server")]


def missing() -> list[str]:
    found = []
    for name in NEEDED:
        try:
            if importlib.util.find_spec(name) is None:
                found.append(name)
        except ModuleNotFoundError:
            found.append(name)
    return found


@pytest.mark.skipif(
    bool(missing()), reason="needs mqspark[connect] (grpcio and what pyspark's client asks for)"
)
def test_all_of_it_through_a_local_connect_server(cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    target = cluster.create_topic(f"{topic}-out", 2)
    settings = {
        "nameserver": cluster.nameserver,
        "topic": topic,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
        "result": str(tmp_path / "result.json"),
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    script = Path(__file__).with_name("connect_client.py")
    done = run_to_end([sys.executable, str(script), str(tmp_path / "settings.json")])
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["connect"].startswith("pyspark.sql.connect")
    assert result["batch"] == list(range(100))
    assert result["finished"] is True
    assert "colour: not an option of the pymq source" in result["error"]
    assert sum(cluster.max_offsets(target).values()) == 100
    assert sum(offset or 0 for offset in cluster.group_offsets("connect", topic).values()) == 100
