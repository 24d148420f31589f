"""The pages about the jobs of a job server: when each ran and runs next, what runs now, locks and errors.

They show the answers of that server's HTTP API (``mqspark job serve``). Its address is given when this process starts;
a request chooses only among the names of its jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request, Response

from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.clusterdata import masters_of
from mqspark_server.console.data import MAX_ROWS, Row
from mqspark_server.console.rendering import ROOT
from mqspark_server.console.site import Asking, Site
from mqspark_server.net.httpget import NotAnswered, WebServer
from mqspark_server.scheduler.jobrecords import MAX_ERROR, JobOverview, JobRow, RunPage, RunRecord

RUNS_SHOWN = 50
RUNS_OF_JOB = 20
"""Each has up to 64 KiB of figures."""
MAX_FIGURES = 64
_SECTION = "Jobs"
_NO_SERVER = "This console was started without a job server."

T = TypeVar("T")


def add_job_pages(router: APIRouter, site: Site, now_ms: Callable[[], int]) -> None:
    @router.get(f"{ROOT}/jobs")
    async def jobs(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            await _check_may_look(asked)
            server = asked.job_server
            if server is None:
                return {"job_server": ""}
            found = await answer_of(server, f"/api/v1/overview?runs={RUNS_SHOWN}", JobOverview)
            rows = [job_row(each, now_ms()) for each in found.jobs]
            return {
                "job_server": str(server),
                "is_ready": found.ready,
                "problem": found.problem,
                "jobs": rows[:MAX_ROWS],
                "count": len(rows),
                "running": sum(row["running"] for row in rows),
                "failing": sum(row["failures"] > 0 for row in rows),
                "next_ms": min((row["next_ms"] for row in rows if row["next_ms"]), default=None),
                "runs": [run_row(each) for each in found.runs[:RUNS_SHOWN]],
            }

        return await site.show(request, "jobs.html", _SECTION, work)

    @router.get(f"{ROOT}/jobs/{{name}}")
    async def job(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            await _check_may_look(asked)
            server = asked.job_server
            if server is None:
                raise Trouble(404, "There is no such job", _NO_SERVER)
            rows = await answer_of(server, "/api/v1/jobs", list[JobRow])
            found = next((each for each in rows if each.name == name), None)
            if found is None:
                raise Trouble(
                    404, "There is no such job", f"The job server at {server} has no job of this name."
                )
            path = f"/api/v1/jobs/{quote(found.name, safe='')}/runs?limit={RUNS_OF_JOB}"
            runs = await answer_of(server, path, RunPage)
            return {
                "job": job_row(found, now_ms()),
                "runs": [run_row(each) for each in runs.items[:RUNS_OF_JOB]],
                "figures": list(found.last.summary.items())[:MAX_FIGURES] if found.last is not None else [],
            }

        return await site.show(request, "job.html", _SECTION, work)


async def _check_may_look(asked: Asking) -> None:
    """In a cluster with users, check that the visitor may see the cluster: the job server has no users. Raises
    MQError."""
    if not asked.visitor.has_users:
        return
    for address in list((await masters_of(asked.admin)).values())[:1]:
        await asked.admin.broker_runtime_info(address)


async def answer_of(server: WebServer, target: str, kind: type[T]) -> T:
    """What a job server answers to a GET. Raises Trouble."""
    try:
        return msgspec.json.decode(await server.get(target), type=kind)
    except NotAnswered as error:
        raise Trouble(502, "The job server cannot be asked", str(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        detail = f"The answer of {server} is not that of a job server of this version."
        raise Trouble(502, "The job server cannot be asked", detail) from None


def job_row(job: JobRow, now_ms: int) -> Row:
    """A job as a row of the table; ``state`` in words."""
    since_ms = job.running_since_ms
    if job.running:
        state = "running" if job.running_here else "locked by another process"
    elif since_ms:
        state = "ended without its server"
    elif not job.enabled:
        state = "not enabled"
    elif job.retry_ms > now_ms:
        state = "waits for a retry"
    else:
        state = "waits"
    return {
        "name": job.name,
        "run": job.run,
        "schedule": job.schedule,
        "timezone": job.timezone,
        "state": state,
        "kind": "good" if job.running else "bad" if since_ms else "off",
        "running": job.running,
        "since_ms": since_ms or None,
        "pid": job.pid or None,
        "next_ms": job.next_ms,
        "attempt": job.attempt,
        "failures": job.failures,
        "last_good_ms": job.last_good_ms or None,
        "outcomes": sorted(job.outcomes.items())[:MAX_FIGURES],
        "last": None if job.last is None else run_row(job.last),
    }


def run_row(record: RunRecord) -> Row:
    return {
        "job": record.job,
        "outcome": record.outcome,
        "is_good": record.is_good,
        "due_ms": record.due_ms,
        "started_ms": record.started_ms,
        "finished_ms": record.finished_ms,
        "took_s": max(0, record.finished_ms - record.started_ms) / 1000,
        "attempt": record.attempt,
        "by_hand": record.by_hand,
        "exit_code": record.exit_code,
        "error": record.error[:MAX_ERROR],
    }
