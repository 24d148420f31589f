"""What `make test` makes of failures: a second try, and the first failure of a test that passes then. Its workers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support import run as runs
from tests.support.maven import ToolMissing
from tests.support.processes import run_to_end
from tests.support.schedule import Scheduling, group_of, is_late, seconds_of

ROOT = Path(__file__).parents[3]
TESTS = """
import os
from pathlib import Path

with open("collected", "a") as file:
    print(os.getpid(), file=file)

def test_a_worker(tmp_path_factory, worker_id):
    assert worker_id == os.environ.get("PYTEST_XDIST_WORKER", "master")
    folder = tmp_path_factory.getbasetemp()
    assert worker_id == "master" or folder.name == f"popen-{worker_id}"
    print("said by", worker_id)

def test_flaky():
    seen = Path("seen")
    seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
    assert len(seen.read_text()) > 1, "no luck at first"

def test_broken():
    print("said before")
    assert Path("mended").exists(), "broken"

def test_sound():
    pass
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    plugins = ["-p", "tests.support.again", "-p", "tests.support.preforked"]
    command = [sys.executable, "-m", "pytest", *plugins, *options]
    done = run_to_end([*command, "-q", "test_it.py"], cwd=folder, env={"PYTHONPATH": str(ROOT)})
    return done.returncode, done.stdout


@pytest.mark.slow("a pytest of its own, twice; the parts of a run have fast tests")
def test_a_test_that_passes_on_the_second_try_is_shown_with_its_first_failure(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error")
    (tmp_path / "test_it.py").write_text(TESTS)
    code, out = run(tmp_path, "--first-try", "-n2")
    assert code == 1
    assert "said before" in out
    assert "said by" not in out
    assert "2 passed" in out
    assert len((tmp_path / "collected").read_text().split()) == 1, "a process collects for all workers"
    code, out = run(tmp_path, "--second-try", "--last-failed")
    assert code == 1, "one test failed twice"
    assert "2 failed" not in out
    flaky = out[out.index("= FLAKY") :]
    assert "first failure of test_it.py::test_flaky" in flaky
    assert "no luck at first" in flaky
    assert "FLAKY test_it.py::test_flaky" in flaky
    assert "FLAKY test_it.py::test_broken" not in flaky

    (tmp_path / "mended").touch()
    code, out = run(tmp_path, "--second-try", "--last-failed")
    assert code == 0
    assert "FLAKY test_it.py::test_broken" in out


def test_tests_of_delta_run_apart_with_their_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["-n", "6", "-m", "not slow"]

    def missing() -> Path:
        raise ToolMissing("pip cannot get it")

    monkeypatch.setattr(runs, "spark_of_delta", missing)
    for has_it in (True, False):
        monkeypatch.setattr(runs, "has_spark_of_delta", lambda has_it=has_it: has_it)
        assert [part.arguments for part in runs.parts(chosen)] == [chosen]
    monkeypatch.setattr(runs, "spark_of_delta", lambda: Path("/x"))
    others, own = runs.parts(chosen)
    assert others.arguments == ["-n", "6", "-m", "(not slow) and not delta"]
    assert own.arguments[:4] == ["-n", "6", "-m", "(not slow) and delta"]
    assert own.environment["PYTHONPATH"] == "/x"
    assert own.environment["SPARK_HOME"] == "/x/pyspark"
    assert others.environment.get("PYTHONPATH") != "/x"


def test_where_tests_of_delta_are() -> None:
    needing = re.compile(r"mark\.delta\b|\bdelta: SparkSession|\bdelta_settings: dict")
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path != Path(__file__) and needing.search(path.read_text())
    ]
    assert "tests/spark/test_archive.py" in found
    assert [path for path in found if not path.startswith(tuple(runs.OF_DELTA))] == []


def test_spark_and_interop_are_a_group_each_and_come_first() -> None:
    assert group_of("tests/spark/test_a.py::test_x[1]") == group_of("tests/spark/test_b.py::test_y")
    assert group_of("tests/spark/test_a.py::test_x") != group_of("tests/spark/test_work_kills.py::test_y")
    assert not is_late("tests/interop/test_a.py::test_rocketmq[mqspark]")
    assert is_late("tests/interop/test_a.py::test_x[rocketmq-json]")
    assert group_of("tests/unit/test_a.py::test_x") == group_of("tests/unit/test_a.py::test_y[::]")
    assert group_of("tests/unit/test_a.py::test_x") != group_of("tests/unit/test_b.py::test_x")
    assert group_of("tests/crash/test_a.py::test_x") != group_of("tests/crash/test_a.py::test_y")
    assert seconds_of(group_of("tests/spark/test_a.py::test_x")) > seconds_of("tests/unit/test_a.py")


class Ended:
    """A process that ended with this code."""

    def __init__(self, code: int) -> None:
        self._code = code

    def wait(self) -> int:
        return self._code


class EndedPart:
    """Ends with these codes, one a try."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def start(self, attempt: str, *more: str, output: object = None) -> Ended:
        return Ended(self._codes.pop(0))


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [((0,), 0), ((1, 0), 0), ((1, 1), 1), ((1, runs.NO_TESTS), 1), ((2,), 2), ((runs.NO_TESTS,), 0)],
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_run_fails_unless_its_second_try_passes(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], verdict: int, beside: bool
) -> None:
    """pytest may fail without a failed test, which leaves nothing to try again."""
    these, good = EndedPart(*codes), EndedPart(0)
    monkeypatch.setattr(runs, "parts", lambda arguments: [good, these] if beside else [these, good])
    monkeypatch.setattr("tests.support.run.subprocess.Popen", lambda *args, **more: Ended(0))
    assert runs.main([]) == verdict


class Worker:
    """A worker as the schedule sees it."""

    def __init__(self) -> None:
        self.gateway = self
        self.id = "gw"
        self.asked: list[list[int]] = []
        self.shutting_down = False

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.asked.append(numbers)

    def shutdown(self) -> None:
        self.shutting_down = True


class Option:
    loadscopereorder = True


class Config:
    option = Option()

    def getvalue(self, _: str) -> list[str]:
        return ["2*popen"]


def test_others_get_only_what_a_worker_that_crashed_has_not_completed() -> None:
    names = [f"{file}.py::test_{n}" for file in "abcd" for n in range(3)]
    workers: list[Any] = [Worker(), Worker()]
    schedule = Scheduling(cast(pytest.Config, Config()))
    for worker in workers:
        schedule.add_node(worker)
        schedule.add_node_collection(worker, names)
    schedule.schedule()
    crashed, other = workers
    assert (crashed.asked, other.asked) == ([[0, 1, 2]], [[3, 4, 5]])
    for number in range(3):
        schedule.mark_test_complete(crashed, number)
    assert crashed.asked == [[0, 1, 2], [6, 7, 8]]
    assert schedule.remove_node(crashed) == names[6]
    for number in (3, 4, 5, 9, 10, 11):
        schedule.mark_test_complete(other, number)
    assert other.asked == [[3, 4, 5], [9, 10, 11], [6, 7, 8]], "an empty group tells nothing"
