"""All jobs from one file, as `mqspark job serve` runs them: real processes, a real Spark each, a store with an hour of
log and a cluster with parked messages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mqspark.message import Message
from mqspark_jobs.redeliver import DELIVER_AT, TARGET
from mqspark_server.scheduler.jobrecords import JobDirectory, JobState
from tests.spark.delta_jars import needed_delta_jars
from tests.support import processes
from tests.support.archive_tools import archived_mark
from tests.support.dev import DevCluster
from tests.support.jobs_tools import filled_store
from tests.support.waiting import eventually
from tests.support.web import get

pytestmark = pytest.mark.spark

JOBS = """
stateDirectory = "{root}/state"
httpPort = 0
[jobs.archive]
run = "archive"
schedule = "0 * * * *"
options = {{ store = "{root}/store", to = "{root}/table", broker = "dev", {spark}, {delta} }}
[jobs.compact]
run = "compact"
schedule = "10 * * * *"
options = {{ store = "{root}/store", topic = ["Topic0"], {spark} }}
[jobs.rebuild]
run = "rebuild-index"
schedule = "20 * * * *"
options = {{ store = "{root}/store", {spark} }}
[jobs.redeliver]
run = "redeliver"
schedule = "30 * * * *"
options = {{ nameserver = "{nameserver}", table = "{root}/parked", topic = "{parking}", {spark}, {delta} }}
"""


@pytest.mark.delta
@pytest.mark.slow("four Sparks; tests/integration/web/test_job_server.py has the server with quick processes")
@pytest.mark.timeout(600)
def test_every_job_of_one_schedule(cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    filled_store(tmp_path / "store", 300).close()
    parking = cluster.create_topic(f"{topic}-parking", 1)
    parked = Message.of(parking, "late", properties={TARGET: topic, DELIVER_AT: "1700000000000"})
    cluster.send(parking, 0, [parked])
    spark = 'master = "local[1]", conf = ["spark.driver.host=127.0.0.1", "spark.ui.enabled=false"]'
    delta = f'delta-jars = "{needed_delta_jars()}"'
    path = tmp_path / "jobs.toml"
    path.write_text(
        JOBS.format(root=tmp_path, nameserver=cluster.nameserver, parking=parking, spark=spark, delta=delta)
    )
    directory = JobDirectory(tmp_path / "state", 1 << 20)
    directory.make()
    names = ("archive", "compact", "rebuild", "redeliver")
    for name in names:
        directory.save(name, JobState(taken_ms=1_700_000_000_000))  # long ago: each is due now, in its order
    log = tmp_path / "log"
    command = [*processes.mqspark_command(), "job", "serve", "-c", str(path)]
    with processes.process(command, log, stdout=subprocess.PIPE) as child:
        url = processes.ready_line(child, log)["http"]
        eventually(lambda: len(directory.history()) >= 4, lambda: processes.tail(log), 400)
        found = {record.job: record for record in directory.history()}
        assert {name: (record.outcome, record.error) for name, record in found.items()} == dict.fromkeys(
            names, ("ok", "")
        )
        assert found["archive"].summary["rows"] == 300
        assert found["redeliver"].summary["delivered"] == 1
        assert archived_mark(str(tmp_path / "store")) > 0
        metrics = get(f"{url}/metrics").text
        assert 'mqspark_job_rows{job="archive"} 300.0' in metrics
        assert processes.stop(child) == 0
