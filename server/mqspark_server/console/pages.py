"""The routes of the console and of its static files."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from mqspark.base.clock import Clock
from mqspark_server.console.clusteraccess import ClusterAt
from mqspark_server.console.clusterpages import add_cluster_pages
from mqspark_server.console.grouppages import add_group_pages
from mqspark_server.console.history.sampler import Sampler
from mqspark_server.console.history.samples import History
from mqspark_server.console.jobpages import add_job_pages
from mqspark_server.console.letterpages import add_letter_pages
from mqspark_server.console.rendering import HEADERS, ROOT, static_file
from mqspark_server.console.setasidepages import add_set_aside_pages
from mqspark_server.console.site import Site
from mqspark_server.console.sparkpages import add_spark_pages
from mqspark_server.console.topicpages import add_topic_pages
from mqspark_server.console.visitors import Door, NoForm, Visitor, Visitors, read_form
from mqspark_server.web.problems import Problem


class Console:
    """The pages of one process.

    ``cluster`` is asked for each page; ``door`` decides who may log in; ``sampler`` has the data of the charts.
    """

    def __init__(self, cluster: Callable[[], ClusterAt], door: Door, clock: Clock, sampler: Sampler) -> None:
        site = Site(cluster, Visitors(door, clock.monotonic_ms), sampler.watched)
        self.router = _router(site, sampler.history, clock)


def _router(site: Site, history: History, clock: Clock) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    _add_login(router, site)
    add_cluster_pages(router, site, history, clock.now_ms)
    add_set_aside_pages(router, site)
    add_letter_pages(router, site)
    add_topic_pages(router, site)
    add_group_pages(router, site, history, clock.now_ms)
    add_spark_pages(router, site)
    add_job_pages(router, site, clock.now_ms)

    @router.get(f"{ROOT}/static/{{name}}")
    async def static(name: str) -> Response:
        found = static_file(name)
        if found is None:
            return Response("no such file\n", 404, HEADERS, "text/plain")
        content, kind = found
        cached = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return Response(content, 200, cached, kind)

    @router.get(f"{ROOT}/{{path:path}}")
    async def nowhere(path: str, request: Request) -> Response:
        return await site.absent(request)

    return router


def _add_login(router: APIRouter, site: Site) -> None:
    visitors = site.visitors

    @router.get(f"{ROOT}/login")
    async def ask(request: Request) -> Response:
        return await page(request, request.query_params.get("to", ""), "", 200)

    @router.post(f"{ROOT}/login")
    async def enter(request: Request) -> Response:
        where = ""
        try:
            form = await read_form(request, Visitor(None, has_users=False))
            where = form.one("to")
            name, secret = form.one("user").strip(), form.one("secret")
            if not secret:
                raise NoForm("Give the secret." if name else "Give the token.")
            cookie = await visitors.enter(request, name, secret)
        except NoForm as error:
            return await page(request, where, str(error), 400)
        except Problem as problem:
            return await page(request, where, problem.detail, problem.status)
        return RedirectResponse(_inside(where), 303, {**HEADERS, "set-cookie": cookie})

    @router.post(f"{ROOT}/logout")
    async def leave(request: Request) -> Response:
        try:
            visitor = await visitors.of(request)
            await read_form(request, visitor)
        except (NoForm, Problem):
            return RedirectResponse(ROOT, 303, HEADERS)
        return RedirectResponse(ROOT, 303, {**HEADERS, "set-cookie": visitors.leave(request)})

    async def page(request: Request, where: str, problem: str, status: int) -> Response:
        try:
            visitor = await visitors.of(request)
        except Problem as failed:
            visitor, problem, status = Visitor(None, has_users=True), problem or failed.detail, failed.status
        values = {
            "to": _inside(where),
            "problem": problem,
            "token_has_keys": visitor.has_users and visitors.token_has_keys,
        }
        return await site.page(request, "login.html", "Log in", visitor, values, status)


def _inside(where: str) -> str:
    """A path of the console."""
    if where != ROOT and not where.startswith((f"{ROOT}/", f"{ROOT}?")):
        return ROOT
    return quote(where, safe="/?&=%+:@!$'()*,;~-._")
