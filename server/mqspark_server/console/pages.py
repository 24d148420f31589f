"""The routes of the console and of its static files, and the pages about its visitors."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from mqspark.base.clock import Clock
from mqspark.errors import InvalidMessage
from mqspark_server.console.clusteraccess import ShownCluster
from mqspark_server.console.history.sampler import Sampler
from mqspark_server.console.rendering import HEADERS, ROOT, inside, static_file
from mqspark_server.console.sections.clusterpages import CLUSTER_PAGES
from mqspark_server.console.sections.delayedpages import DELAYED_PAGES
from mqspark_server.console.sections.grouppages import GROUP_PAGES
from mqspark_server.console.sections.jobpages import JOB_PAGES
from mqspark_server.console.sections.letterpages import LETTER_PAGES
from mqspark_server.console.sections.messagepages import MESSAGE_PAGES
from mqspark_server.console.sections.schemapages import SCHEMA_PAGES
from mqspark_server.console.sections.setasidepages import SET_ASIDE_PAGES
from mqspark_server.console.sections.sparkpages import SPARK_PAGES
from mqspark_server.console.sections.tablepages import TABLE_PAGES
from mqspark_server.console.sections.topicpages import TOPIC_PAGES
from mqspark_server.console.sections.userpages import USER_PAGES
from mqspark_server.console.site import Site
from mqspark_server.console.visitors import Door, NoForm, Visitor, Visitors, read_form, zone_cookie
from mqspark_server.shown.timezones import zone_named, zone_names
from mqspark_server.web.problems import Problem

SECTIONS = (
    *CLUSTER_PAGES,
    SET_ASIDE_PAGES,
    USER_PAGES,
    *LETTER_PAGES,
    DELAYED_PAGES,
    TOPIC_PAGES,
    MESSAGE_PAGES,
    SCHEMA_PAGES,
    GROUP_PAGES,
    SPARK_PAGES,
    TABLE_PAGES,
    JOB_PAGES,
)


def console_router(cluster: ShownCluster, door: Door, clock: Clock, sampler: Sampler) -> APIRouter:
    """``cluster`` is asked for each page; ``door`` decides who may log in; ``sampler`` has the data of the charts."""
    site = Site(cluster, Visitors(door, clock), sampler, clock)
    router = APIRouter(include_in_schema=False)
    VisitorPages(site).add(router)
    for section in SECTIONS:
        site.add(router, section)

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


class VisitorPages:
    """What visitors say of themselves, whatever the cluster: who they are, and their time zone, which a cookie has."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._visitors = site.visitors

    def add(self, router: APIRouter) -> None:
        router.get(f"{ROOT}/login")(self.ask)
        router.post(f"{ROOT}/login")(self.enter)
        router.post(f"{ROOT}/logout")(self.leave)
        router.get(f"{ROOT}/zone")(self.ask_zone)
        router.post(f"{ROOT}/zone")(self.choose_zone)

    async def ask(self, request: Request) -> Response:
        return await self._page(request, request.query_params.get("to", ""), "", 200)

    async def enter(self, request: Request) -> Response:
        where = ""
        try:
            form = await read_form(request, Visitor(None, has_users=False))
            where = form.get("to", "")
            name, secret = form.get("user", "").strip(), form.get("secret", "")
            if not secret:
                raise NoForm("Give the secret." if name else "Give the token.")
            cookie = await self._visitors.enter(request, name, secret)
        except NoForm as error:
            return await self._page(request, where, str(error), 400)
        except Problem as problem:
            return await self._page(request, where, problem.detail, problem.status)
        return RedirectResponse(inside(where), 303, {**HEADERS, "set-cookie": cookie})

    async def leave(self, request: Request) -> Response:
        try:
            visitor = await self._visitors.of(request)
            await read_form(request, visitor)
        except (NoForm, Problem):
            return RedirectResponse(ROOT, 303, HEADERS)
        return RedirectResponse(ROOT, 303, {**HEADERS, "set-cookie": self._visitors.leave(request)})

    async def _page(self, request: Request, where: str, problem: str, status: int) -> Response:
        try:
            visitor = await self._visitors.of(request)
        except Problem as failed:
            visitor, problem, status = Visitor(None, has_users=True), problem or failed.detail, failed.status
        values = {
            "to": inside(where),
            "problem": problem,
            "token_has_keys": visitor.has_users and self._visitors.door.has_keys,
        }
        return await self._site.page(request, "login.html", "Log in", visitor, values, status)

    async def ask_zone(self, request: Request) -> Response:
        try:
            visitor = await self._visitors.of(request)
        except Problem as problem:
            return await self._site.error_page(request, problem, "")
        names = await asyncio.to_thread(zone_names)
        if visitor.zone.name not in names:
            names.append(visitor.zone.name)
        values = {"names": names, "to": inside(request.query_params.get("to", ""))}
        return await self._site.page(request, "zone.html", "", visitor, values)

    async def choose_zone(self, request: Request) -> Response:
        try:
            form = await read_form(request, await self._visitors.of(request))
            zone = zone_named(form.get("zone", ""))
        except (NoForm, Problem, InvalidMessage) as error:
            return await self._site.error_page(request, error, "")
        headers = {**HEADERS, "set-cookie": zone_cookie(request, zone)}
        return RedirectResponse(inside(form.get("back", "")), 303, headers)
