"""The console's pages of jobs, with a real job server behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mqspark.client.remoting.client_options import ClientOptions
from mqspark.testing import Broker, FakeClock
from mqspark_server.console.consoleapp import ConsoleApp
from mqspark_server.net.webserver import WebServer
from mqspark_server.scheduler.jobserver import JobServerApp
from tests.integration.web.test_job_server import HOUR_MS, jobs_file, serving
from tests.support.waiting import eventually_async
from tests.support.web import get

HOSTILE = "<img src=x onerror=alert(2)>"
FAILS = (
    "import json, sys, time\n"
    "if sys.argv[1] == 'long': time.sleep(600)\n"
    f"print(json.dumps({{'ok': False, 'error': {HOSTILE!r}, 'rows': 7, {HOSTILE!r}: {HOSTILE!r}}})); sys.exit(1)"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@asynccontextmanager
async def console(broker: Broker, job_server: str | None) -> AsyncIterator[ConsoleApp]:
    at = None if job_server is None else WebServer.parse(job_server, "jobs")
    app = ConsoleApp(broker.namesrv, ClientOptions(), 0, at)
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


async def page(app: ConsoleApp, path: str, status: int = 200) -> str:
    answer = await asyncio.to_thread(get, f"{app.url}{path}")
    assert answer.status_code == status, answer.text
    assert "<img src=x" not in answer.text
    return answer.text


async def test_jobs_with_their_runs_locks_and_errors(broker: Broker, tmp_path: Path) -> None:
    clock = FakeClock()
    file = jobs_file(tmp_path, "short", "long", "off", retries=0)
    file.jobs["off"].enabled = False
    async with serving(file, FAILS, clock) as jobs, console(broker, jobs.url) as app:
        text = await page(app, "/jobs")
        assert text.count("never") == 3
        assert "not enabled" in text
        assert "No run has ended yet" in text
        clock.advance(HOUR_MS)
        await eventually_async(lambda: len(jobs.directory.history()) == 1)
        await eventually_async(lambda: not jobs.is_running_here("short"))
        await eventually_async(lambda: jobs.directory.load("long").pid)
        text = await page(app, "/jobs")
        assert "<dt>Running now</dt><dd>1</dd>" in text
        assert '<dt>Failing</dt><dd class="bad">1</dd>' in text
        assert '<span class="state bad">failed</span>' in text
        assert "&lt;img src=x onerror" in text
        text = await page(app, "/jobs/long")
        assert f"<dd>held, process {jobs.directory.load('long').pid}" in text
        text = await page(app, "/jobs/short")
        assert "<dt>Runs: failed</dt><dd>1</dd>" in text
        assert '<th scope="row">rows</th><td class="num">7</td>' in text
        for path in (
            "/jobs/nowhere",
            "/jobs/..%2f..%2fmetrics",
            "/jobs/%3Cimg%20src=x%3E",
            "/jobs/short%3Fa=b",
        ):
            assert "There is no such" in await page(app, path, 404)
        await _locked_elsewhere(jobs, app)


async def _locked_elsewhere(jobs: JobServerApp, app: ConsoleApp) -> None:
    """By another server, or by hand."""
    import os

    lock = jobs.directory.lock("off")
    assert lock is not None
    try:
        assert "locked by another process" in await page(app, "/jobs")
    finally:
        os.close(lock)


async def test_a_job_server_that_is_not_there(broker: Broker, tmp_path: Path) -> None:
    async with serving(jobs_file(tmp_path, "a"), "", FakeClock()) as jobs:
        url = jobs.url
    async with console(broker, url) as app:
        for path in ("/jobs", "/jobs/a", "/tables"):
            assert "The job server cannot be asked" in await page(app, path, 502)
    # A console answers, too, but is no job server.
    async with console(broker, None) as other, console(broker, other.url.removesuffix("/console")) as app:
        assert "the status 404" in await page(app, "/jobs", 502)
        assert "started without a job server" in await page(other, "/jobs")
        assert "started without a job server" in await page(other, "/tables")
        assert "started without a job server" in await page(other, "/jobs/a", 404)
