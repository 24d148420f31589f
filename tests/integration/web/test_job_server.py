"""The job server with real processes, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mqspark.testing import FakeClock
from mqspark_jobs.tables.tabledefs import TableDirectory, TableState, new_definition
from mqspark_server.scheduler.jobrecords import JobDirectory, JobState, RunPage
from mqspark_server.scheduler.jobserver import JobServerApp, run_now
from mqspark_server.scheduler.jobsfile import JobsFile, ScheduledJob, parse_jobs
from tests.support import processes
from tests.support.commands import mqspark
from tests.support.waiting import eventually, eventually_async
from tests.support.web import get

HOUR_MS = 3_600_000


def jobs_file(root: Path, *names: str, **settings: Any) -> JobsFile:
    options = {"store": "/none", "to": "/none", "broker": "b"}
    job = {"run": "archive", "schedule": "0 * * * *", "options": options} | settings
    server = {"stateDirectory": str(root / "state"), "httpPort": 0, "maxRunning": 4, "stopTimeoutSeconds": 1}
    server["tablesDirectory"] = str(root / "tables")
    return parse_jobs(server | {"jobs": dict.fromkeys(names, job)})


def says(script: str) -> Callable[[ScheduledJob], Sequence[str]]:
    """A job that is this Python, with the name of the job as its argument."""
    return lambda job: (sys.executable, "-S", "-c", script, job.name)


@asynccontextmanager
async def serving(file: JobsFile, script: str, clock: FakeClock) -> AsyncIterator[JobServerApp]:
    app = JobServerApp(file, clock=clock, poll_s=0.01, command=says(script))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


def outcomes(app: JobServerApp) -> list[tuple[str, int]]:
    return [(record.outcome, record.attempt) for record in reversed(app.directory.history())]


async def test_jobs_run_when_they_are_due_and_once(tmp_path: Path) -> None:
    clock = FakeClock()
    noted = f"import sys; open({str(tmp_path)!r} + '/' + sys.argv[1], 'a').write('x')"
    script = noted + '; print(\'{"ok": true, "rows": 7}\')'
    file = jobs_file(tmp_path, "a", "b")
    async with serving(file, script, clock) as one, serving(file, script, clock) as two:
        for runs in (2, 4, 6):
            clock.advance(HOUR_MS)
            await eventually_async(lambda runs=runs: len(one.directory.history()) == runs)
            await asyncio.sleep(0.1)  # for a second run that must not come
        assert {name: (tmp_path / name).read_text() for name in ("a", "b")} == {"a": "xxx", "b": "xxx"}
        assert outcomes(two) == [("ok", 1)] * 6
        assert one.url is not None
        text = (await asyncio.to_thread(get, f"{one.url}/metrics")).text
        assert 'mqspark_jobs_runs_total{job="a",outcome="ok"} 3.0' in text
        assert 'mqspark_job_rows{job="b"} 7.0' in text
        (row, _) = (await asyncio.to_thread(get, f"{one.url}/api/v1/jobs")).json()
        assert (row["name"], row["last"]["outcome"], row["failures"]) == ("a", "ok", 0)
        assert row["next_ms"] % HOUR_MS == 0
        assert "options" not in row
        runs_of_a = (await asyncio.to_thread(get, f"{one.url}/api/v1/jobs/a/runs?limit=2")).json()
        assert [each["summary"]["rows"] for each in runs_of_a["items"]] == [7, 7]
        seen = await _all_pages(f"{one.url}/api/v1/runs?limit=4")
        assert [(each["job"], each["finished_ms"]) for each in seen] == [
            (each.job, each.finished_ms) for each in one.directory.history()
        ]
        assert {each["job"] for each in await _all_pages(f"{one.url}/api/v1/jobs/a/runs?limit=1")} == {"a"}
        assert (await asyncio.to_thread(get, f"{one.url}/api/v1/jobs/c/runs")).status_code == 404
        ready = await asyncio.to_thread(get, f"{one.url}/health/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "problem": None, "failing": {}})


async def test_live_tables_of_this_host(tmp_path: Path) -> None:
    tables = TableDirectory(tmp_path / "tables")
    for name in ("orders", "bills"):
        place = str(tmp_path / name)
        tables.add(
            new_definition(name, "Orders", "127.0.0.1:1", place, starts={}, is_upsert=False, options={})
        )
    tables.save_state("orders", TableState(3, 40, 1_700_000_000_500, 1_250, rejected=2))
    tables.save_state("bills", TableState(error="the place is full"))
    (tables.path / "broken.json").write_text("{")
    async with serving(jobs_file(tmp_path, "a"), "", FakeClock()) as app:
        lock = tables.lock("orders")
        assert lock is not None
        try:
            bills, orders = (await asyncio.to_thread(get, f"{app.url}/api/v1/tables")).json()
            text = (await asyncio.to_thread(get, f"{app.url}/metrics")).text
        finally:
            os.close(lock)
    assert (bills["state"], bills["error"], bills["at_ms"]) == ("failed", "the place is full", None)
    assert (orders["state"], orders["rows"], orders["delay_ms"], orders["rejected"]) == (
        "running",
        40,
        1_250,
        2,
    )
    assert orders["group"] == "mqspark-table-orders"
    for figure in ("kept", "rejected_rows", "delay_seconds", "failed"):
        assert f'mqspark_table_{figure}{{table="orders",topic="Orders"}}' in text
    assert 'mqspark_table_failed{table="bills",topic="Orders"} 1.0' in text


async def test_a_bug_ends_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported, and the next look starts what is due."""
    clock, load = FakeClock(), JobDirectory.load
    async with serving(jobs_file(tmp_path, "a"), "print('{\"ok\": true}')", clock) as app:
        monkeypatch.setattr(JobDirectory, "load", lambda directory, name: {}["nothing"])
        clock.advance(HOUR_MS)
        await eventually_async(lambda: app.problem == "KeyError: 'nothing'")
        monkeypatch.setattr(JobDirectory, "load", load)
        await eventually_async(lambda: outcomes(app) == [("ok", 1)])
        await eventually_async(lambda: app.problem is None)


async def _all_pages(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = (await asyncio.to_thread(get, f"{url}{after}")).json()
        found += page["items"]
        if page["next"] is None:
            return found
        after = f"&after={quote(page['next'], safe='')}"


async def test_a_slow_disk_does_not_hold_up_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the history that the disk does not give: jobs are started meanwhile."""
    clock, is_read = FakeClock(), threading.Event()
    async with serving(jobs_file(tmp_path, "a"), "print('{\"ok\": true}')", clock) as app:
        runs, asked = app.directory.runs, threading.Event()

        def slow(*arguments: Any) -> RunPage:
            asked.set()
            assert is_read.wait(30)
            return runs(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(app.directory, "runs", slow)
            page = asyncio.create_task(asyncio.to_thread(get, f"{app.url}/api/v1/runs"))
            await asyncio.to_thread(asked.wait, 30)
            clock.advance(HOUR_MS)
            await eventually_async(lambda: app.directory.load("a").runs)
            assert (await asyncio.to_thread(get, f"{app.url}/health/live")).status_code == 200
            is_read.set()
            assert len((await page).json()["items"]) == 1


async def test_a_failure_is_tried_again_and_reported(tmp_path: Path) -> None:
    clock = FakeClock()
    script = 'import sys; print(\'{"ok": false, "error": "no storage"}\'); sys.exit(1)'
    async with serving(jobs_file(tmp_path, "a", retries=2, retryDelaySeconds=10), script, clock) as app:
        clock.advance(HOUR_MS)
        for runs, pause_ms in ((1, 10_000), (2, 20_000), (3, 0)):
            await eventually_async(lambda runs=runs: len(app.directory.history()) == runs)
            await eventually_async(lambda: not app.is_running_here("a"))
            clock.advance(pause_ms)
        await asyncio.sleep(0.1)
        assert outcomes(app) == [("failed", 1), ("failed", 2), ("failed", 3)]
        ready = await asyncio.to_thread(get, f"{app.url}/health/ready")
        assert (ready.status_code, ready.json()["failing"]) == (200, {"a": "no storage"})
        clock.advance(HOUR_MS)
        await eventually_async(lambda: len(app.directory.history()) == 4)
        assert outcomes(app)[-1] == ("failed", 1)


@pytest.mark.parametrize(
    ("script", "outcome", "error"),
    [
        ("import sys; sys.stderr.write('usage: wrong'); sys.exit(2)", "refused", "usage: wrong"),
        ("import os; os.kill(os.getpid(), 9)", "interrupted", ""),
        ("import time; time.sleep(600)", "timeout", "it ran for longer than timeoutSeconds=1"),
        (
            "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)",
            "timeout",
            "it ran for longer",
        ),
    ],
)
async def test_other_ends(tmp_path: Path, script: str, outcome: str, error: str) -> None:
    clock = FakeClock()
    async with serving(jobs_file(tmp_path, "a", timeoutSeconds=1), script, clock) as app:
        clock.advance(HOUR_MS)
        # It may have ended before anybody looks.
        await eventually_async(lambda: app.is_running_here("a") or app.directory.history())
        pace_ms = 500 if outcome == "timeout" else 0
        await eventually_async(lambda: clock.advance(pace_ms) or app.directory.history())
        record = app.directory.history()[-1]
        assert record.outcome == outcome
        assert record.error.startswith(error)
        assert (app.directory.load("a").retry_ms == 0) == (outcome == "refused")


async def test_output_is_bounded(tmp_path: Path) -> None:
    clock = FakeClock()
    script = (
        "import sys, time\n"
        "for _ in range(40): sys.stderr.write('x' * 99_999 + chr(10)); sys.stderr.flush(); time.sleep(0.05)\n"
        "print('{\"ok\": true}')"
    )
    file = jobs_file(tmp_path, "a")
    file.server.log_max_bytes = 500_000
    async with serving(file, script, clock) as app:
        clock.advance(HOUR_MS)
        await eventually_async(lambda: app.directory.history())
        assert app.directory.errors("a").stat().st_size < 4_000_000
        assert outcomes(app) == [("ok", 1)]


async def test_a_job_outlives_its_server_and_keeps_its_lock(tmp_path: Path) -> None:
    """The lock is the process's own: another server does not start the job a second time."""
    go = tmp_path / "go"
    script = (
        f"import os, time, sys\nopen({str(tmp_path / 'runs')!r}, 'a').write('x')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('{{\"ok\": true}}')"
    )
    server = f"""
import asyncio, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from mqspark.testing import FakeClock
from tests.integration.web.test_job_server import JobServerApp, jobs_file, says
async def main():
    clock = FakeClock()
    app = JobServerApp(jobs_file(Path({str(tmp_path)!r}), "a"), clock=clock, poll_s=0.01, command=says({script!r}))
    await app.start()
    clock.advance({HOUR_MS})
    await asyncio.sleep(600)
asyncio.run(main())
"""
    runs = tmp_path / "runs"
    with processes.process([sys.executable, "-c", server], tmp_path / "server.log") as child:
        await eventually_async(runs.exists, lambda: processes.tail(tmp_path / "server.log"))
        child.send_signal(signal.SIGKILL)
        await asyncio.to_thread(child.wait)
    clock = FakeClock()
    clock.advance(HOUR_MS + 1)
    async with serving(jobs_file(tmp_path, "a"), script, clock) as app:
        await asyncio.sleep(0.2)
        assert runs.read_text() == "x"
        assert app.directory.is_locked("a")
        go.touch()
        await eventually_async(lambda: app.directory.history())
        assert outcomes(app) == [("ok", 1)]
        assert runs.read_text() == "x"


async def test_stopping_the_server_stops_its_jobs(tmp_path: Path) -> None:
    clock = FakeClock()
    async with serving(jobs_file(tmp_path, "a"), "import time; time.sleep(600)", clock) as app:
        clock.advance(HOUR_MS)
        await eventually_async(lambda: app.directory.load("a").pid)
        pid = app.directory.load("a").pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert outcomes(app) == [("interrupted", 1)]
    assert app.directory.load("a").retry_ms > 0


async def test_a_state_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    clock = FakeClock()
    async with serving(jobs_file(tmp_path, "a"), "print('{\"ok\": true}')", clock) as app:
        os.rename(app.directory.path / "locks", tmp_path / "gone")
        clock.advance(HOUR_MS)
        await eventually_async(lambda: app.problem)
        ready = await asyncio.to_thread(get, f"{app.url}/health/ready")
        assert ready.status_code == 503
        assert "locks" in ready.json()["problem"]
        os.rename(tmp_path / "gone", app.directory.path / "locks")
        await eventually_async(lambda: app.directory.history())
        await eventually_async(lambda: app.problem is None)


async def test_by_hand(tmp_path: Path) -> None:
    """Beside a server, under the same lock; the schedule does not notice."""
    file = jobs_file(tmp_path, "a")
    directory = JobDirectory(file.server.state_path, 1 << 20)
    directory.make()
    lock = directory.lock("a")
    assert lock is not None
    assert await run_now(file, file.jobs["a"]) is None
    os.close(lock)
    record = await run_now(file, file.jobs["a"])
    assert record is not None
    assert (record.outcome, record.by_hand) == ("refused", True)
    assert "there is no CommitLog at" in record.error
    assert directory.load("a").taken_ms == 0


def test_commands(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        f'stateDirectory = "{tmp_path}/state"\n[jobs.a]\nrun = "archive"\nschedule = "@daily"\n'
        '[jobs.a.options]\nstore = "/none"\nto = "/none"\nbroker = "b"\n'
    )
    (row,) = mqspark("job", "list", "-c", str(path), "-o", "json").json
    assert (row["name"], row["running"], row["last_outcome"]) == ("a", False, None)
    ran = mqspark("job", "run", "-c", str(path), "a")
    assert ran.code == 1
    assert "there is no CommitLog at /none" in ran.err
    (run,) = mqspark("job", "history", "-c", str(path), "-o", "json").json
    assert (run["job"], run["outcome"], run["by_hand"]) == ("a", "refused", True)
    assert "refused" in mqspark("job", "list", "-c", str(path)).out
    assert mqspark("job", "history", "-c", str(path), "--job", "b").code == 3
    assert mqspark("job", "list", "-c", str(tmp_path / "none")).code == 2


@pytest.mark.slow("starts a server and a job; test_by_hand is the fast twin")
def test_the_process(tmp_path: Path) -> None:
    """`mqspark job serve` as a service runs it: it catches up with what was missed, and stops at SIGTERM."""
    path = tmp_path / "jobs.toml"
    path.write_text(
        f'stateDirectory = "{tmp_path}/state"\nhttpPort = 0\n[jobs.a]\nrun = "archive"\nschedule = "* * * * *"\n'
        '[jobs.a.options]\nstore = "/none"\nto = "/none"\nbroker = "b"\n'
    )
    directory = JobDirectory(tmp_path / "state", 1 << 20)
    directory.make()
    directory.save("a", JobState(taken_ms=1_700_000_000_000))
    log = tmp_path / "log"
    command = [*processes.mqspark_command(), "job", "serve", "-c", str(path)]
    with processes.process(command, log, stdout=subprocess.PIPE) as child:
        fields = processes.ready_line(child, log)
        assert get(f"{fields['http']}/health/live").json() == {"status": "live"}
        record = eventually(lambda: directory.history(), lambda: processes.tail(log))[-1]
        assert record.outcome == "refused"
        assert json.loads(directory.output("a").read_text())["ok"] is False
        assert processes.stop(child) == 0
