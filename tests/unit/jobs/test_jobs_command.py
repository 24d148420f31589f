"""The jobs' command line when it is misused: one clear line and an exit code, before Spark is started."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import ConfigError
from mqspark_jobs import commandline as command
from mqspark_jobs.commandline import delta_settings, main
from mqspark_jobs.job import relevant_text
from tests.support.jobs_tools import filled_store


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(options: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(command, "_session", session)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("rebuild-index --store {root}/none", "none is not a directory"),
        ("rebuild-index --store {root}", "there is no CommitLog at {root}/commitlog"),
        ("rebuild-index --store {root}/empty", "there is no segment at {root}/empty/commitlog"),
        (
            "rebuild-index --store {root}/store --commit-log {root}/none",
            "there is no CommitLog at {root}/none",
        ),
        ("archive --store {root}/none --to {root}/t --broker b", "there is no CommitLog at"),
        ("archive --store {root}/store --to {root}/t --broker b --topics (", "is not a regular expression"),
        ("archive --store {root}/store --to {root}/t --broker b --commit-bytes 0", "must be positive"),
        ("compact --store {root}", "{root} is not a store"),
        ("compact --store {root}/store --topic Nobody", "no queues of Nobody"),
        ("compact --store {root}/store --min-dirty-ratio 2", "between 0 and 1"),
        ("redeliver --nameserver 127.0.0.1:9876", "give --table for parked messages, or --dlq"),
        (
            "redeliver --nameserver 127.0.0.1:9876 --table t --dlq g",
            "give --table for parked messages, or --dlq",
        ),
        ("redeliver --nameserver 127.0.0.1:9876 --dlq g", "--dlq needs --state"),
        ("redeliver --nameserver 127.0.0.1:9876 --dlq g --state s --topic T", "--topic needs --table"),
        ("redeliver --nameserver 127.0.0.1:9876 --table t --key k", "--key needs --dlq"),
        ("redeliver --nameserver nowhere --dlq g --state s", "nowhere"),
        (
            "rebuild-index --store {root}/store --metrics {root}/none/m.prom",
            "--metrics: {root}/none is not a directory",
        ),
    ],
)
def test_what_cannot_work_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    filled_store(tmp_path / "store", 20).close()
    (tmp_path / "empty/commitlog").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments.format(root=tmp_path).split()) == 2
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert said.format(root=tmp_path) in summary["error"]
    assert summary["ok"] is False
    assert "Traceback" not in printed.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments", ["", "nothing", "archive --store x", "redeliver --nameserver a --from-ms noon"]
)
def test_usage_goes_to_standard_error(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("usage: mqspark job run")


@pytest.mark.parametrize("job", command.JOBS)
def test_help_names_every_option(capsys: pytest.CaptureFixture[str], job: str) -> None:
    assert main([job, "--help"]) == 0
    printed = capsys.readouterr()
    assert "--metrics FILE" in printed.out
    assert printed.err == ""


def test_jars_have_to_be_there() -> None:
    with pytest.raises(ConfigError, match=r"--delta-jars: there is no file /none\.jar"):
        delta_settings("/none.jar")


def test_a_job_on_delta_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "delta" else found(name, *more)
    )
    with pytest.raises(ConfigError, match=r"pip install 'mqspark\[archive\]'"):
        command.check_delta_package()


def test_an_error_of_a_worker_is_found_in_its_trace() -> None:
    trace = (
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n  File ...\n"
        "mqspark.errors.StoreCorrupt: the log is damaged from 1 to 2\n\n\tat org.apache.spark...\n"
    )
    assert relevant_text(RuntimeError(trace)) == "the log is damaged from 1 to 2"
    assert (
        relevant_text(RuntimeError("\n[TABLE_NOT_FOUND] there is none\nmore"))
        == "[TABLE_NOT_FOUND] there is none"
    )


class Wrapping(RuntimeError):
    """An error of Spark, which keeps its cause so."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self._cause = cause


def test_the_innermost_cause_counts() -> None:
    inner = RuntimeError("\nthe message has no target\nmore")
    assert relevant_text(Wrapping("[STREAM_FAILED] terminated", inner)) == "the message has no target"
