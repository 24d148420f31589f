"""The page that chooses the time zone of a browser. Everyone may: a cookie has it, and the cluster stays as it is."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from mqspark.errors import InvalidMessage
from mqspark_server.console.rendering import HEADERS, ROOT, inside
from mqspark_server.console.site import Site
from mqspark_server.console.visitors import NoForm, read_form, zone_cookie
from mqspark_server.shown.timezones import zone_named, zone_names
from mqspark_server.web.problems import Problem

PATH = f"{ROOT}/zone"


class ZonePages:
    def __init__(self, site: Site) -> None:
        self._site = site

    def add(self, router: APIRouter) -> None:
        router.get(PATH)(self.ask)
        router.post(PATH)(self.choose)

    async def ask(self, request: Request) -> Response:
        try:
            visitor = await self._site.visitors.of(request)
        except Problem as problem:
            return await self._site.error_page(request, problem, "")
        names = await asyncio.to_thread(zone_names)
        if visitor.zone.name not in names:
            names.append(visitor.zone.name)
        values = {"names": names, "to": inside(request.query_params.get("to", ""))}
        return await self._site.page(request, "zone.html", "", visitor, values)

    async def choose(self, request: Request) -> Response:
        try:
            form = await read_form(request, await self._site.visitors.of(request))
            zone = zone_named(form.get("zone", ""))
        except (NoForm, Problem, InvalidMessage) as error:
            return await self._site.error_page(request, error, "")
        headers = {**HEADERS, "set-cookie": zone_cookie(request, zone)}
        return RedirectResponse(inside(form.get("back", "")), 303, headers)
