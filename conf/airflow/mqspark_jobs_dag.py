"""The jobs of a jobs.toml as DAGs of Airflow 3, one each, with its schedule and retries.

Copy this file into the DAGs folder of an Airflow whose workers run on the host of the store, or reach it, and have
`mqspark[jobs]` installed. MQSPARK_JOBS_FILE and MQSPARK_COMMAND say where the file and the command are. The locks and
the history are those of `mqspark job serve`, so both may run side by side.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

FILE = os.environ.get("MQSPARK_JOBS_FILE", "/etc/mqspark/jobs.toml")
COMMAND = os.environ.get("MQSPARK_COMMAND", "/opt/mqspark/bin/mqspark")

for name, job in tomllib.loads(Path(FILE).read_text()).get("jobs", {}).items():
    with DAG(
        dag_id=f"mqspark_{name}",
        description=f"mqspark job run {job['run']}",
        schedule=CronTriggerTimetable(job["schedule"], timezone=job.get("timezone", "UTC")),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=not job.get("enabled", True),
        tags=["mqspark"],
    ) as dag:
        BashOperator(
            task_id=job["run"],
            # The space at the end keeps Airflow from taking the text for the name of a template.
            bash_command=shlex.join([COMMAND, "job", "run", "-c", FILE, name]) + " ",
            retries=job.get("retries", 3),
            retry_delay=timedelta(seconds=job.get("retryDelaySeconds", 60)),
            retry_exponential_backoff=True,
            execution_timeout=timedelta(seconds=job.get("timeoutSeconds", 21_600)),
        )
    globals()[dag.dag_id] = dag
