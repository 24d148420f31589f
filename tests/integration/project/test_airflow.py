"""conf/airflow/mqspark_jobs_dag.py, imported by Airflow itself, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.maven import cached
from tests.support.processes import run_to_end

AIRFLOW = "apache-airflow==3.*"
DAG = Path("conf/airflow/mqspark_jobs_dag.py").resolve()
LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import mqspark_jobs_dag as made
dags = {name: dag for name, dag in vars(made).items() if name.startswith("mqspark_")}
rows = {name: [[task.task_id, task.bash_command, task.retries] for task in dag.tasks] for name, dag in dags.items()}
print(json.dumps({"dags": rows, "paused": {name: dag.is_paused_upon_creation for name, dag in dags.items()}}))
"""


def environment() -> Path:
    """An interpreter with Airflow; made once, and kept where Maven's jars are."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "-q", AIRFLOW]
        done = run_to_end(pip, timeout_s=900)
        if done.returncode:
            raise RuntimeError(done.stderr[-2_000:])

    return cached(f"airflow-3-py{sys.version_info.major}{sys.version_info.minor}", make) / "venv/bin/python"


@pytest.mark.timeout(1_200)
@pytest.mark.slow(
    "installs Airflow; the text of the DAG is looked at in tests/unit/project/test_schedulers.py"
)
def test_airflow_makes_a_dag_of_each_job(tmp_path: Path) -> None:
    try:
        python = environment()
    except RuntimeError as error:
        pytest.skip(f"Airflow cannot be installed here: {error}")
    variables = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "MQSPARK_JOBS_FILE": str(Path("conf/jobs.toml").resolve()),
        "PATH": "/usr/bin:/bin",
    }
    command = [str(python), "-W", "ignore", "-c", LOOK, str(DAG.parent)]
    done = run_to_end(command, env=variables)
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["dags"]) == {"mqspark_archive", "mqspark_compact", "mqspark_redeliver"}
    assert found["paused"] == dict.fromkeys(found["dags"], True)
    ((task, command_line, retries),) = found["dags"]["mqspark_archive"]
    assert (task, retries) == ("archive", 3)
    assert command_line.split() == [
        "/opt/mqspark/bin/mqspark",
        "job",
        "run",
        "-c",
        variables["MQSPARK_JOBS_FILE"],
        "archive",
    ]
