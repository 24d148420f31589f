"""mqspark doctor spark: what it finds, and that a broken neighbour is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

import pyspark_pymq
from mqspark_jobs.commandline import _error_stream, main
from mqspark_jobs.job import ProgressLine, relevant_text
from mqspark_server.cli import cli
from pyspark_pymq.doctor import examine
from tests.support.processes import run_python, run_to_end


def by_name(nameserver: str | None = None) -> dict[str, tuple[bool, str]]:
    return {finding.name: (finding.ok, finding.text) for finding in examine(nameserver)}


def test_this_environment_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    found = by_name()
    for name in ("python", "pyspark", "pyarrow", "numpy", "discovery", "workers", "delta"):
        assert found[name][0], found[name]
    assert "pymq in pyspark_pymq" in found["discovery"][1]


def test_a_broken_neighbour_is_named_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyspark_zzz.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ok, text = by_name()["discovery"]
    assert not ok
    assert "pyspark_zzz" in text
    assert "a_module_that_is_not_there" in text


def test_workers_of_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named pyarrow' >&2\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    ok, text = by_name()["workers"]
    assert not ok
    assert "No module named pyarrow" in text
    assert f"set PYSPARK_PYTHON={sys.executable}" in text


def test_a_name_server_that_is_not_there() -> None:
    ok, text = by_name("127.0.0.1:1")["cluster"]
    assert not ok
    assert "127.0.0.1:1" in text


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    done = CliRunner().invoke(cli, ["doctor", "spark", "--nameserver", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert "ok   discovery" in done.output
    assert "FAIL cluster" in done.output


def test_jobs_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in ("rebuild-index", "archive", "compact", "redeliver"):
        assert name in listed
        assert main([name, "--help"]) == 0
    assert main(["rebuild-index"]) == 2
    assert main(["no-such-job"]) == 2
    run = run_to_end(
        [sys.executable, str(Path(__file__).parents[3] / "jobs/run.py"), "compact", "--help"], check=True
    )
    assert "--min-dirty-ratio" in run.stdout


WITHOUT_SERVER = """
import sys
for name in ("click", "fastapi", "uvicorn", "h11", "pydantic", "prometheus_client", "uvloop"):
    sys.modules[name] = None
sys.argv = ["mqspark", *sys.argv[1:]]
from mqspark.__main__ import main
main()
"""


def without_server(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The console script where the extra ``server`` is not installed."""
    return run_python(WITHOUT_SERVER, *arguments, env={**os.environ, "PYSPARK_PYTHON": sys.executable})


def test_the_doctor_needs_the_extra_spark_alone() -> None:
    done = without_server("doctor", "spark", "--nameserver", "127.0.0.1:1")
    assert done.returncode == 1, done.stderr  # for the name server
    assert done.stderr == ""
    found = {
        name: verdict for verdict, name in re.findall(r"^(ok  |FAIL) (\w+): ", done.stdout, re.MULTILINE)
    }
    assert found.pop("cluster") == "FAIL"
    assert found.pop("java") in ("ok  ", "FAIL")
    assert set(found.values()) == {"ok  "}, done.stdout


def test_jobs_need_the_extra_spark_alone() -> None:
    done = without_server("job", "run", "--help")
    assert done.returncode == 0, done.stderr
    assert "rebuild-index" in done.stdout


def test_the_servers_say_what_they_need() -> None:
    done = without_server("dev")
    assert done.returncode == 1
    assert done.stderr == "mqspark: error: the command line needs click: pip install 'mqspark[server]'\n"
    assert without_server("doctor", "--nameserver", "127.0.0.1:1").returncode == 3, "no name server answers"


@pytest.fixture
def other_python(tmp_path: Path) -> str:
    """Something that says it is Python 3.9."""
    other = tmp_path / "python3.9"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    return str(other)


def test_workers_of_another_version_are_one_sentence_before_spark_starts(
    other_python: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = "{}.{}".format(*sys.version_info[:2])
    monkeypatch.setenv("PYSPARK_PYTHON", other_python)
    pyspark_pymq.tuned_settings()
    (record,) = caplog.records
    assert record.getMessage() == (
        f"Spark's workers run Python 3.9 ({other_python}) but the driver runs {ours}, and Spark needs the same:"
        f" set PYSPARK_PYTHON={sys.executable} before Spark starts"
    )
    caplog.clear()
    for chosen in (sys.executable, f"{other_python}-that-is-not-there"):
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
        pyspark_pymq.tuned_settings()
    assert caplog.records == []


def test_a_job_tells_the_mismatch_and_no_trace(other_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", other_python)
    trace = (
        "Job aborted\npyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker\n  at x"
    )
    assert relevant_text(RuntimeError(trace)).startswith("Spark's workers run Python 3.9 (")


def test_progress_goes_to_standard_error_of_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which joins the Python program's own with its output."""
    stream = Mock()
    jvm = Mock(**{"_jvm.java.lang.System.err": stream})
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert _error_stream(jvm) is sys.stderr
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    ProgressLine("archive", _error_stream(jvm)).show("written", 1, 2, "units")
    assert stream.print.call_args.args[0].startswith("archive: written 1/2 units (")
    stream.flush.assert_called_once()
