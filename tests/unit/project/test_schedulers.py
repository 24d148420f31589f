"""The files in conf/ for schedulers of others: a CronJob of Kubernetes by its schema, a DAG of Airflow by its text."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from mqspark_jobs.commandline import check_arguments

CRON_JOB = Path("conf/kubernetes/archive-cronjob.yaml")
DAG = Path("conf/airflow/mqspark_jobs_dag.py")
KUBERNETES = "1.30"


def cron_job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CRON_JOB.read_text())
    return loaded


def test_kubernetes_takes_the_cron_job() -> None:
    kubernetes_validate.validate(cron_job(), KUBERNETES, strict=True)


def test_the_schema_sees_a_mistake() -> None:
    wrong = cron_job()
    wrong["spec"]["concurencyPolicy"] = wrong["spec"].pop("concurrencyPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_the_container_runs_a_job_that_exists() -> None:
    (container,) = cron_job()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["job", "run"]
    check_arguments(container["args"][2:])


def test_the_dag_runs_a_command_that_exists() -> None:
    """That Airflow imports it: tests/integration/project/test_airflow.py."""
    text = DAG.read_text()
    lists = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.List)]
    (words,) = [node.elts for node in lists if len(node.elts) > 3]
    assert [word.value for word in words if isinstance(word, ast.Constant)] == ["job", "run", "-c"]
