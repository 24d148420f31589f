"""HTTP of the job server: health, metrics, and its jobs with their last and next runs, which it only shows, without
their options, as these may contain secrets; and live tables, which may be paused, resumed and dropped.

Functions that read files are not coroutines: FastAPI runs them in a thread, one at a time. So the loop keeps starting
jobs however slow the disk is, and many requests need only the memory of one.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.core import GaugeMetricFamily, Metric

from mqspark_jobs.tables.tabledefs import TableDirectory
from mqspark_server.actions.tableactions import DROP, PAUSE, RESUME, TableChange
from mqspark_server.scheduler.jobrecords import JobOverview, JobRow, JobState, RunPage, RunRecord
from mqspark_server.scheduler.servedtables import metrics_of_tables, readable_tables, table_row
from mqspark_server.scheduler.tablechanges import change, check_may_change, defined
from mqspark_server.web.families import CONTENT_TYPE, Families, exposition
from mqspark_server.web.httpguard import ASGIApp, Guarded
from mqspark_server.web.problems import new_api

if TYPE_CHECKING:
    from mqspark_server.process.phases import ProcessLifecycle
    from mqspark_server.scheduler.jobrecords import JobDirectory
    from mqspark_server.scheduler.jobsfile import JobsFile, ScheduledJob
    from mqspark_server.scheduler.schedule import Start

R = TypeVar("R", RunRecord, RunRecord | None)
_FIGURE = re.compile(r"[a-z][a-z0-9_]{0,60}")
_MAX_FIGURES = 64
MAX_PLACE = 200
"""Limit of characters of ``after``, the place in the history after which a page begins."""


class ServedJobs(Protocol):
    """The interface of the job server for its pages."""

    file: JobsFile
    directory: JobDirectory
    lifecycle: ProcessLifecycle
    problem: str | None

    @property
    def jobs(self) -> list[ScheduledJob]: ...

    def is_running_here(self, name: str) -> bool: ...

    def next_run(self, job: ScheduledJob, state: JobState) -> Start: ...


_Limit = Annotated[int, Query(ge=1, le=1000)]
_After = Annotated[str | None, Query(max_length=MAX_PLACE)]


def create_job_api(app: ServedJobs) -> ASGIApp:
    """/health/live, /health/ready, /metrics, and below /api/v1 overview, jobs, runs, jobs/{name}/runs and tables."""
    api = new_api("mqspark job server")
    reading = threading.Lock()
    tables = TableDirectory(app.file.server.tables_directory)

    @api.get("/health/ready", tags=["health"])
    def ready() -> JSONResponse:
        """Whether jobs are started when they are due. A job that fails does not change that: it is listed."""
        good = app.lifecycle.ready and app.problem is None
        failing = {}
        with reading:
            for job, state in _states(app):
                if state.failures and state.last is not None:
                    failing[job.name] = state.last.error
        body = {"status": "ready" if good else "not ready", "problem": app.problem, "failing": failing}
        return JSONResponse(body, 200 if good else 503)

    @api.get("/metrics", tags=["metrics"], response_class=Response)
    def metrics() -> Response:
        """Prometheus text."""
        with reading:
            return Response(exposition(_metrics(app, tables)), media_type=CONTENT_TYPE)

    @api.get("/api/v1/jobs", tags=["jobs"])
    def jobs() -> list[dict[str, Any]]:
        """Every job: its schedule, whether it runs, its last and its next run."""
        with reading:
            return [msgspec.to_builtins(_row(app, job, state)) for job, state in _states(app)]

    @api.get("/api/v1/overview", tags=["jobs"])
    def overview(runs: Annotated[int, Query(ge=1, le=200)] = 50) -> Any:
        """Whether jobs are started, every job, and the newest finished runs of all; without the figures of runs."""
        with reading:
            rows = [_row(app, job, state) for job, state in _states(app)]
            newest = app.directory.history(limit=runs)
        for row in rows:
            row.last = _without_figures(row.last)
        good = app.lifecycle.ready and app.problem is None
        found = JobOverview(good, app.problem, rows, [_without_figures(each) for each in newest])
        return msgspec.to_builtins(found)

    @api.get("/api/v1/runs", tags=["jobs"])
    def runs_of_all(limit: _Limit = 100, after: _After = None) -> Any:
        """A page of the finished runs of all jobs, the newest first; ``next`` is the next page's ``after``."""
        return page(None, limit, after)

    @api.get("/api/v1/jobs/{name}/runs", tags=["jobs"])
    def runs_of_job(name: str, limit: _Limit = 100, after: _After = None) -> Any:
        """A page of the finished runs of one job, the newest first; ``next`` is the next page's ``after``."""
        if name not in app.file.jobs:
            raise HTTPException(404, "there is no such job")
        return page(name, limit, after)

    def page(name: str | None, limit: int, after: str | None) -> Any:
        with reading:
            found: RunPage = app.directory.runs(name, limit, after)
        return msgspec.to_builtins(found)

    _add_tables(api, tables, reading)
    return Guarded(api, app.file.server.http_allowed_hosts.split(";"))


def _add_tables(api: FastAPI, tables: TableDirectory, reading: threading.Lock) -> None:
    @api.get("/api/v1/tables", tags=["tables"])
    def live_tables() -> list[dict[str, Any]]:
        """Every live table of this host: what it does, its newest batch, and how long that took."""
        with reading:
            return [msgspec.to_builtins(table_row(tables, each)) for each in readable_tables(tables)]

    def add(wanted: TableChange) -> None:
        needs = (
            "Needs Update on the cluster that the table follows: Basic credentials of a user, unless the cluster has no"
            " users."
        )

        @api.api_route(
            f"/api/v1/tables/{{name}}{wanted.step}",
            methods=[wanted.method],
            tags=["tables"],
            name=f"{wanted.verb}_table",
            description=f"{wanted.text} {needs}",
        )
        async def changed(name: str, request: Request) -> Any:
            """The table after the change."""
            definition = await asyncio.to_thread(defined, tables, name)
            await check_may_change(request, definition.nameserver)
            definition = await asyncio.to_thread(change, tables, name, wanted)
            return msgspec.to_builtins(await asyncio.to_thread(table_row, tables, definition))

    for each in (PAUSE, RESUME, DROP):
        add(each)


def _states(app: ServedJobs) -> Iterator[tuple[ScheduledJob, JobState]]:
    for job in app.jobs:
        yield job, app.directory.load(job.name)


def _row(app: ServedJobs, job: ScheduledJob, state: JobState) -> JobRow:
    is_here = app.is_running_here(job.name)
    return JobRow(
        name=job.name,
        run=job.run,
        schedule=job.schedule,
        timezone=job.timezone,
        enabled=job.enabled,
        running=is_here or app.directory.is_locked(job.name),
        running_here=is_here,
        running_since_ms=state.running_since_ms,
        pid=state.pid,
        next_ms=app.next_run(job, state).at_ms if job.enabled else None,
        attempt=state.attempt,
        retry_ms=state.retry_ms,
        failures=state.failures,
        last_good_ms=state.last_good_ms,
        outcomes=state.runs,
        last=state.last,
    )


def _without_figures(record: R) -> R:
    return record if record is None else msgspec.structs.replace(record, summary={})


def _metrics(app: ServedJobs, tables: TableDirectory) -> Iterator[Metric]:
    families = Families((), (), "mqspark_jobs_")
    good = app.lifecycle.ready and app.problem is None
    yield families.level("ready", "1 if jobs are started when they are due", good)
    runs = families.counter("runs", "finished runs by outcome", "job", "outcome")
    gauges = {
        name: families.gauge(name, text, "job")
        for name, text in (
            ("running", "1 while the job runs, here or elsewhere on this host"),
            ("failures", "finished runs since the last successful one"),
            ("next_run_timestamp_seconds", "start of the next run"),
            ("last_success_timestamp_seconds", "end of the last successful run; 0: never"),
            ("last_duration_seconds", "duration of the last run"),
        )
    }
    figures: dict[str, GaugeMetricFamily] = {}
    for job, state in _states(app):
        for outcome, count in sorted(state.runs.items()):
            runs.add_metric([job.name, outcome], count)
        last = state.last
        values = {
            "running": float(app.is_running_here(job.name) or app.directory.is_locked(job.name)),
            "failures": float(state.failures),
            "next_run_timestamp_seconds": app.next_run(job, state).at_ms / 1000 if job.enabled else None,
            "last_success_timestamp_seconds": state.last_good_ms / 1000,
            "last_duration_seconds": None if last is None else (last.finished_ms - last.started_ms) / 1000,
        }
        for name, value in values.items():
            if value is not None:
                gauges[name].add_metric([job.name], value)
        for name, value in {} if last is None else last.summary.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and _FIGURE.fullmatch(name) and (name in figures or len(figures) < _MAX_FIGURES):
                text = f"{name} of the last run"
                family = figures.setdefault(
                    name, GaugeMetricFamily(f"mqspark_job_{name}", text, labels=["job"])
                )
                family.add_metric([job.name], float(value))
    yield runs
    yield from gauges.values()
    yield from figures.values()
    yield from metrics_of_tables(tables)
