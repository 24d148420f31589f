"""The jobs' command line through a real Spark: the summary, metrics, errors, and a driver that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqspark.message import Message
from mqspark_jobs.commandline import main
from mqspark_jobs.redeliver import TARGET
from tests.support.dev import DevCluster
from tests.support.jobs_tools import filled_store, tree
from tests.support.processes import start, stop, wait_for_start

pytestmark = pytest.mark.spark


def test_rebuild_index_in_worker_processes(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filled_store(tmp_path / "store", 200, mapped_file_size_commit_log=16384).close()
    own = {name: tree(tmp_path / "store" / name) for name in ("consumequeue", "index")}
    metrics = tmp_path / "job.prom"
    arguments = ["rebuild-index", "--store", str(tmp_path / "store"), "--metrics", str(metrics)]
    assert main(arguments, spark=spark) == 0
    printed = capfd.readouterr()
    summary = json.loads(printed.out)
    assert (summary["ok"], summary["records"]) == (True, 230)
    segments = summary["segments"]
    assert f"rebuild-index: scanned {segments}/{segments} segments" in printed.err
    assert 'mqspark_job_records{job="rebuild-index"} 230' in metrics.read_text()
    assert {name: tree(tmp_path / "store" / name) for name in own} == own
    assert main(["rebuild-index", "--store", "/no/such/store"], spark=spark) == 2
    assert "is not a directory" in json.loads(capfd.readouterr().out)["error"]


@pytest.mark.slow("two drivers start")
def test_a_driver_killed_in_the_middle(tmp_path: Path) -> None:
    filled_store(tmp_path / "store", 4000, mapped_file_size_commit_log=16384).close()
    own = {name: tree(tmp_path / "store" / name) for name in ("consumequeue", "index")}
    command = [str(Path(sys.executable).with_name("mqspark")), "job", "run", "rebuild-index"]
    command += [
        "--store",
        str(tmp_path / "store"),
        "--master",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
    ]
    scans = tmp_path / "store/mqspark.rebuild/scan"
    log = tmp_path / "log"
    first = start(command, log, new_session=True)
    wait_for_start(lambda: len(list(scans.glob("*/manifest.json"))) >= 3, "three segments", first, log)
    os.killpg(first.pid, signal.SIGKILL)
    stop(first)
    assert tree(tmp_path / "store/consumequeue") == own["consumequeue"]
    done = subprocess.run(command, capture_output=True, timeout=240, check=True)
    assert json.loads(done.stdout)["ok"] is True
    assert {name: tree(tmp_path / "store" / name) for name in own} == own


@pytest.mark.slow("each error is a job of Delta")
def test_what_goes_wrong_is_one_line(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def failed(arguments: str) -> str:
        for _ in range(3):
            assert main(arguments.format(ns=cluster.nameserver, root=tmp_path).split(), spark=delta) == 1
            printed = capfd.readouterr()
            summary = json.loads(printed.out)
            assert summary["ok"] is False
            assert "/mqspark_jobs/" not in printed.err, "a traceback of the job"
            # Spark gives a Python process ten seconds to start, which on a busy machine may not be enough; one that is
            # late has a traceback of its own.
            if "waiting for the Python worker to connect back" not in summary["error"]:
                break
        return str(summary["error"])

    assert "127.0.0.1:1" in failed("redeliver --nameserver 127.0.0.1:1 --dlq g --state {root}/s")
    assert "%DLQ%nobody" in failed("redeliver --nameserver {ns} --dlq nobody --state {root}/s")
    assert "nowhere" in failed("redeliver --nameserver {ns} --table {root}/t --topic nowhere")
    delta.range(3).write.format("delta").save(str(tmp_path / "other"))
    assert "not a table of parked messages" in failed("redeliver --nameserver {ns} --table {root}/other")
    cluster.send(topic, 0, [Message.of(topic, "no properties")])
    said = failed(f"redeliver --nameserver {{ns}} --table {{root}}/t --topic {topic}")
    assert f"offset 0 of queue 0 has no {TARGET}" in said
