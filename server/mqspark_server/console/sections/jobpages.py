"""The pages about the jobs of a job server: when each ran and runs next, what runs now, locks and errors.

They show the answers of that server's HTTP API (``mqspark job serve``). Its address is given when this process starts;
a request chooses only among the names of its jobs.
"""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote

import msgspec

from mqspark_server.actions.fields import Name
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.site import Asking, Section, View
from mqspark_server.net.webserver import NotAnswered, WebServer
from mqspark_server.scheduler.jobrecords import JobOverview, JobRow, RunPage
from mqspark_server.survey.brokersurvey import masters_of
from mqspark_server.survey.surveying import Row

RUNS_SHOWN = 50
RUNS_OF_JOB = 20
"""Each has up to 64 KiB of figures."""

T = TypeVar("T")


class JobTable(View, frozen=True):
    async def show(self, asked: Asking) -> Row:
        server = await job_server_of(asked)
        if server is None:
            return {"job_server": ""}
        found = await answer_of(server, f"/api/v1/overview?runs={RUNS_SHOWN}", JobOverview)
        return {
            "job_server": str(server),
            "told": found,
            "jobs": [(each, *_state(each, asked.now_ms)) for each in found.jobs],
            "next_ms": min((each.next_ms for each in found.jobs if each.next_ms), default=None),
        }


class OneJob(View, frozen=True):
    name: Name

    async def show(self, asked: Asking) -> Row:
        server = await job_server_of(asked)
        rows = [] if server is None else await answer_of(server, "/api/v1/jobs", list[JobRow])
        found = next((each for each in rows if each.name == self.name), None)
        if server is None or found is None:
            here = "This console was started without a job server."
            known = f"The job server at {server} has no job of this name."
            raise Trouble(404, "There is no such job", here if server is None else known)
        path = f"/api/v1/jobs/{quote(found.name, safe='')}/runs?limit={RUNS_OF_JOB}"
        runs = await answer_of(server, path, RunPage)
        state, kind = _state(found, asked.now_ms)
        return {"job": found, "state": state, "kind": kind, "runs": runs.items}


async def job_server_of(asked: Asking) -> WebServer | None:
    """In a cluster with users, for a visitor who may see the cluster: the job server has no users. Raises MQError."""
    if asked.visitor.has_users:
        for address in list((await masters_of(asked.admin)).values())[:1]:
            await asked.admin.broker_runtime_info(address)
    return asked.at.job_server


async def answer_of(server: WebServer, target: str, kind: type[T]) -> T:
    """What a job server answers to a GET. Raises Trouble."""
    try:
        return msgspec.json.decode(await server.get(target), type=kind)
    except NotAnswered as error:
        raise Trouble(502, "The job server cannot be asked", str(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        detail = f"The answer of {server} is not that of a job server of this version."
        raise Trouble(502, "The job server cannot be asked", detail) from None


def _state(job: JobRow, now_ms: int) -> tuple[str, str]:
    """In words, and its kind."""
    if job.running:
        return "running" if job.running_here else "locked by another process", "good"
    if job.running_since_ms:
        return "ended without its server", "bad"
    if not job.enabled:
        return "not enabled", "off"
    return "waits for a retry" if job.retry_ms > now_ms else "waits", "off"


JOB_PAGES = Section("Jobs", views={"/jobs": (JobTable, "jobs.html"), "/jobs/{name}": (OneJob, "job.html")})
