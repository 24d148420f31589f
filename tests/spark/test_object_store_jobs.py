"""The jobs on an object store, end to end: Spark's s3a and Delta, fsspec's s3fs, and a real S3-compatible server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pytest

from mqspark.arrow.cluster.archives import load_manifests
from mqspark.message import Message
from mqspark_jobs.redeliver import DELIVER_AT, TARGET
from mqspark_jobs.tables.tabledefs import TableDirectory, new_definition
from mqspark_jobs.tables.tablerecord import newest_version
from tests.spark.delta_jars import NO_DELTA, delta_jars, maven_jars
from tests.support import processes
from tests.support.archive_tools import archived_mark
from tests.support.dev import DevCluster
from tests.support.jobs_tools import filled_store, tree
from tests.support.maven import ToolMissing
from tests.support.object_store import BUCKET, ObjectStore, object_store
from tests.support.processes import run_to_end
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.delta,
    pytest.mark.slow("a Spark for each run; without Spark: tests/integration/archive/test_object_store.py"),
    pytest.mark.timeout(900),
]
WAIT_S = 1500
HADOOP = [("org.apache.hadoop", "hadoop-aws", "3.5.0", "")]


@pytest.fixture(scope="module")
def jars() -> str:
    delta = delta_jars()
    try:
        aws = maven_jars("hadoop-aws-3.5.0", HADOOP)
    except (ToolMissing, RuntimeError, subprocess.SubprocessError) as error:
        pytest.skip(f"hadoop-aws cannot be fetched: {error}")
    if delta is None:
        pytest.skip(NO_DELTA)
    return ",".join(map(str, [*delta, *aws]))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as running:
        yield running


def command(jars: str, *arguments: str) -> list[str]:
    more = [
        "--master",
        "local[1]",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.driver.host=127.0.0.1",
    ]
    # Delta's option replaces its package; hadoop-aws is named the same way.
    more += ["--conf", f"spark.jars={jars}", "--delta-jars", jars] if _needs_delta(arguments) else []
    return [*processes.mqspark_command(), "job", "run", *arguments, *more]


def _needs_delta(arguments: tuple[str, ...]) -> bool:
    return arguments[0] in ("archive", "redeliver", "tables", "table-upkeep", "table-verify")


def run(jars: str, *arguments: str) -> dict[str, Any]:
    done = run_to_end(command(jars, *arguments))
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_archive_to_s3_killed_and_run_again(s3: ObjectStore, jars: str, tmp_path: Path) -> None:
    filled_store(tmp_path / "store", 300, mapped_file_size_commit_log=16_384).close()
    url = f"s3a://{BUCKET}/archive"
    arguments = [
        "archive",
        "--store",
        str(tmp_path / "store"),
        "--to",
        url,
        "--broker",
        "dev",
        "--commit-bytes",
        "20000",
    ]
    log = tmp_path / "killed.log"
    child = processes.start(command(jars, *arguments), log, new_session=True)
    try:
        eventually(lambda: load_manifests(url, "dev"), lambda: processes.tail(log), 240)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        processes.stop(child)
    before = sum(manifest.rows for manifest in load_manifests(url, "dev"))
    summary = run(jars, *arguments)
    assert summary["ok"], summary
    manifests = load_manifests(url, "dev")
    assert sum(manifest.rows for manifest in manifests) == 300 == before + summary["rows"]
    assert archived_mark(str(tmp_path / "store")) == manifests[-1].high
    # What Delta itself counts.
    assert run(jars, *arguments)["rows"] == 0

    # From a copy of the store in the object store, to the same table: nothing is there to do.
    for path in sorted((tmp_path / "store/commitlog").iterdir()):
        s3.put(f"copy/commitlog/{path.name}", path.read_bytes())
    again = run(jars, "archive", "--store", f"s3a://{BUCKET}/copy", "--to", url, "--broker", "dev")
    assert (again["ok"], again["rows"]) == (True, 0), again


def test_failing_storage_loses_nothing(s3: ObjectStore, jars: str, tmp_path: Path) -> None:
    filled_store(tmp_path / "store", 60).close()
    arguments = ["archive", "--store", str(tmp_path / "store"), "--broker", "dev", "--to"]
    summary = run(jars, *arguments, "s3a://no-such-bucket-here/archive")
    assert not summary["ok"]
    assert summary["error"]
    assert archived_mark(str(tmp_path / "store")) == 0


def test_rebuild_and_compact_from_a_log_in_s3(s3: ObjectStore, jars: str, tmp_path: Path) -> None:
    filled_store(tmp_path / "store", 200, mapped_file_size_commit_log=16_384).close()
    for path in sorted((tmp_path / "store/commitlog").iterdir()):
        s3.put(f"log/{path.name}", path.read_bytes())
    queues = tree(tmp_path / "store/consumequeue")
    log = ["--commit-log", f"s3://{BUCKET}/log"]
    rebuilt = run(jars, "rebuild-index", "--store", str(tmp_path / "store"), *log)
    assert rebuilt["ok"], rebuilt
    assert tree(tmp_path / "store/consumequeue") == queues
    compacted = run(jars, "compact", "--store", str(tmp_path / "store"), "--topic", "Topic0", *log)
    assert compacted["ok"], compacted
    assert compacted["records_kept"] > 0


def test_parked_messages_in_s3(s3: ObjectStore, jars: str, cluster: DevCluster, topic: str) -> None:
    parking = cluster.create_topic(f"{topic}-parking", 1)
    parked = [
        Message.of(parking, f"m{n}", properties={TARGET: topic, DELIVER_AT: "1700000000000"})
        for n in range(5)
    ]
    cluster.send(parking, 0, parked)
    arguments = [
        "redeliver",
        "--nameserver",
        cluster.nameserver,
        "--table",
        f"s3a://{BUCKET}/parked",
        "--topic",
        parking,
    ]
    summary = run(jars, *arguments)
    assert (summary["ok"], summary["parked"], summary["delivered"]) == (True, 5, 5), summary
    assert run(jars, *arguments)["delivered"] == 0
    bodies = [body for queue in cluster.queue_bodies(topic).values() for body in queue]
    assert sorted(bodies) == [b"m0", b"m1", b"m2", b"m3", b"m4"]


def drive(root: Path, *runs: list[str], dies: tuple[str, str, int] | None = None) -> subprocess.Popen[str]:
    """A process of jobs of live tables, one after the other; their summaries are in its log."""
    settings = root / "driver.json"
    settings.write_text(json.dumps({"runs": runs, **({} if dies is None else {"dies": dies})}))
    driver = [sys.executable, str(Path(__file__).with_name("table_driver.py")), str(settings)]
    child = processes.start(driver, root / "driver.log", new_session=True)
    try:
        child.wait(WAIT_S)
    finally:
        processes.stop(child)
    return child


@pytest.mark.timeout(2 * WAIT_S)
def test_a_live_table_in_s3(
    s3: ObjectStore, jars: str, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    """Its driver is killed behind the commit of the second of three batches; rows come once all the same."""
    cluster.send_numbers(topic, range(60))
    directory = TableDirectory(tmp_path / "tables")
    url = f"s3a://{BUCKET}/live/{topic}"
    options = {"maxOffsetsPerTrigger": "20"}
    directory.add(
        new_definition("orders", topic, cluster.nameserver, url, starts={}, is_upsert=False, options=options)
    )

    def job(*arguments: str) -> list[str]:
        whole = command(jars, *arguments, "--tables", str(directory.path))
        whole += ["--conf", "spark.sql.shuffle.partitions=2"]
        return whole[whole.index(arguments[0]) :]

    killed = drive(tmp_path, job("tables", "--once"), dies=("append", "after", 2))
    log = tmp_path / "driver.log"
    assert killed.returncode == -signal.SIGKILL, processes.tail(log)
    record = newest_version(url).record
    assert record is not None
    assert sum(record.ends.values()) == 40

    done = drive(tmp_path, job("tables", "--once"), job("table-upkeep"), job("table-verify", "orders"))
    assert done.returncode == 0, processes.tail(log)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    taken, kept, verified = lines[-3:]
    assert taken["rows"] == 20, taken
    assert directory.state("orders").delay_ms is not None, "the commit that was made is seen"
    assert kept["files_after"] < kept["files_before"], kept
    assert (verified["rows"], verified["older_rows"]) == (60, 0), verified
    access = {**s3.environment, "AWS_ALLOW_HTTP": "true"}
    rows = polars.scan_delta(url, storage_options=access).select("value").collect()["value"].to_list()
    assert sorted(int(each) for each in rows) == list(range(60))
