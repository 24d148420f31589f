"""The routes of the console: each page asks the cluster and shows the answer. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from mqspark.client.admin import AdminClient
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.identity import ClientOptions
from mqspark.errors import BrokerError, ConfigError, InvalidMessage, MQError, NoRoute
from mqspark.message import check_group, check_topic
from mqspark.protocol.codes import ResponseCode
from mqspark_server.console.data import LOOKS, VIEWS, ConsoleData, Look
from mqspark_server.console.rendering import HEADERS, HTML, ROOT, render, static_file

__all__ = ["ClusterAt", "console_router", "refuse_credentials"]

MAX_WANTED = 255
MAX_PAGE = 1_000_000
AT_ONCE = 4
"""Pages that are made at the same time; others wait."""
PAGE_S = 20.0
TIMEOUT_MS = 5_000
_ABSENT = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@dataclass(frozen=True, slots=True)
class ClusterAt:
    """Where to ask. ``problem``: why nothing can be shown, and what to do about it."""

    namesrv: str
    options: ClientOptions
    problem: str | None = None


class Trouble(Exception):
    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail


def refuse_credentials(given: Credentials | None) -> str | None:
    """Why pages that anybody may read must not be asked for with a user's rights."""
    try:
        found = given or Credentials.from_environment()
    except ConfigError as error:
        return str(error)
    if found is None:
        return None
    return (
        "the console has no login yet, so it shows no cluster with users: its pages would have their rights"
    )


def console_router(cluster: Callable[[], ClusterAt]) -> APIRouter:
    """``cluster`` is asked for each page."""
    router = APIRouter(include_in_schema=False)
    gate = asyncio.Semaphore(AT_ONCE)

    async def page(
        template: str, section: str, work: Callable[[ConsoleData], Awaitable[dict[str, Any]]]
    ) -> Response:
        at = cluster()
        values: dict[str, Any]
        status = 200
        try:
            if at.problem is not None:
                raise Trouble(503, "The console cannot show this cluster", at.problem)
            async with asyncio.timeout(PAGE_S), gate:
                admin = AdminClient(at.namesrv, timeout_ms=TIMEOUT_MS, options=at.options)
                async with admin:
                    values = await work(ConsoleData(admin))
        except Trouble as trouble:
            status, template = trouble.status, "problem.html"
            values = {"title": trouble.title, "detail": trouble.detail}
        except TimeoutError:
            status, template = 504, "problem.html"
            values = {
                "title": "The cluster did not answer in time",
                "detail": f"This page took longer than {PAGE_S:.0f} s.",
            }
        except InvalidMessage as error:
            status, template = 400, "problem.html"
            values = {"title": "This cannot be asked", "detail": str(error)}
        except MQError as error:
            absent = isinstance(error, NoRoute) or (isinstance(error, BrokerError) and error.code in _ABSENT)
            status, template = 404 if absent else 502, "problem.html"
            title = "There is no such name" if absent else "The cluster cannot be asked"
            values = {"title": title, "detail": str(error)}
        values |= {"section": section, "place": f"name servers: {at.namesrv or 'none'}"}
        content = await asyncio.to_thread(render, template, values)
        return Response(content, status, {**HEADERS, "cache-control": "no-store"}, HTML)

    @router.get(f"{ROOT}/static/{{name}}")
    async def static(name: str) -> Response:
        found = static_file(name)
        if found is None:
            return Response("no such file\n", 404, HEADERS, "text/plain")
        content, kind = found
        cached = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return Response(content, 200, cached, kind)

    @router.get(ROOT)
    @router.get(f"{ROOT}/")
    async def overview() -> Response:
        return await page("overview.html", "Overview", lambda data: data.overview())

    @router.get(f"{ROOT}/topics")
    async def topics(request: Request) -> Response:
        return await listing(request, "topics.html", "Topics", lambda data: data.topics)

    @router.get(f"{ROOT}/groups")
    async def groups(request: Request) -> Response:
        return await listing(request, "groups.html", "Groups", lambda data: data.groups)

    async def listing(
        request: Request, template: str, section: str, chosen: Callable[[ConsoleData], Any]
    ) -> Response:
        wanted, every = request.query_params.get("q", "").strip(), "every" in request.query_params
        number = request.query_params.get("page", "1")

        async def work(data: ConsoleData) -> dict[str, Any]:
            if len(wanted) > MAX_WANTED:
                raise InvalidMessage(f"a name has at most {MAX_WANTED} letters", field="q")
            if not (number.isascii() and number.isdecimal() and 1 <= len(number) <= 7 and int(number) > 0):
                raise InvalidMessage("a page has a number from 1 on", field="page")
            return {"page": await chosen(data)(wanted, min(int(number), MAX_PAGE), every), "every": every}

        return await page(template, section, work)

    @router.get(f"{ROOT}/topics/{{name}}")
    async def topic(name: str, request: Request) -> Response:
        given = request.query_params
        look = Look(*(given.get(key, "") for key in ("by", "value", "tag", "view")))
        look = Look(look.by or "latest", look.value[:MAX_WANTED], look.tag[:MAX_WANTED], look.view or "text")

        async def work(data: ConsoleData) -> dict[str, Any]:
            check_topic(name)
            if look.by not in LOOKS or look.view not in VIEWS:
                raise InvalidMessage(f"by is one of {LOOKS}, view one of {VIEWS}", field="by")
            values = await data.topic(name)
            values |= {"look": look, "trouble": "", "found": []}
            try:
                values["found"] = await data.messages(name, look, values["bounds"])
            except MQError as error:
                values["trouble"] = str(error)
            return values

        return await page("topic.html", "Topics", work)

    @router.get(f"{ROOT}/groups/{{name}}")
    async def group(name: str) -> Response:
        async def work(data: ConsoleData) -> dict[str, Any]:
            check_group(name)
            return await data.group(name)

        return await page("group.html", "Groups", work)

    return router
