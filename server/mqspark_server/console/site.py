"""The common part of all pages: the visitor, the keys with which the cluster is asked, errors, and the confirmation of
every change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from mqspark.client.admin import AdminClient
from mqspark.client.remoting.identity import ClientOptions
from mqspark.errors import BrokerError, ConfigError, InvalidMessage, MQError, NoRoute
from mqspark.protocol.codes import ResponseCode
from mqspark_server.console.clusteraccess import ClusterAt, Trouble, admin_of
from mqspark_server.console.rendering import HEADERS, HTML, ROOT, render
from mqspark_server.console.visitors import Form, NoForm, Visitor, Visitors, read_form
from mqspark_server.net.httpget import WebServer
from mqspark_server.web.problems import Problem

PAGES_AT_ONCE = 4
"""The number of pages that are made concurrently; others wait."""
PAGE_S = 20.0
CHANGE_S = 60.0
TIMEOUT_MS = 5_000
_ABSENT = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@dataclass(frozen=True, slots=True)
class Asking:
    """A cluster, asked with a visitor's keys."""

    admin: AdminClient
    namesrv: str
    options: ClientOptions
    visitor: Visitor
    report: Callable[[], dict[str, Any] | None]
    job_server: WebServer | None


@dataclass(slots=True)
class Confirmation:
    """What a change would do. ``button``: the verb."""

    title: str
    button: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    columns: Sequence[str] = ()
    rows: list[Sequence[object]] = field(default_factory=list)
    is_dangerous: bool = False
    more: int = 0
    """Rows that are not shown."""


@dataclass(frozen=True, slots=True)
class Done:
    message: str
    path: str
    """The path of the page to go to."""


Work = Callable[[Asking], Awaitable[dict[str, Any]]]
Ask = Callable[[Asking, Form], Awaitable[Confirmation]]
Do = Callable[[Asking, Form], Awaitable[Done]]


class Site:
    """``cluster`` is asked for each page. ``is_used``: called when a page is asked for."""

    def __init__(
        self, cluster: Callable[[], ClusterAt], visitors: Visitors, is_used: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._is_used = is_used
        self.visitors = visitors
        self._gate = asyncio.Semaphore(PAGES_AT_ONCE)

    # --- pages ---

    async def show(self, request: Request, template: str, section: str, work: Work) -> Response:
        """The page with the result of ``work``, or the page about its error."""
        try:
            visitor = await self.visitors.of(request)
            if visitor.has_users and not visitor.is_in:
                return self._to_login(request)
            self._is_used()
            async with asyncio.timeout(PAGE_S), self._gate:
                async with self.connected(visitor) as asked:
                    values = await work(asked)
        except Exception as error:
            return await self._error_page(request, error, section)
        return await self.page(request, template, section, visitor, values)

    async def page(
        self,
        request: Request,
        template: str,
        section: str,
        visitor: Visitor,
        values: dict[str, Any],
        status: int = 200,
    ) -> Response:
        is_part = request.headers.get("hx-request") == "true"
        values = {
            "section": section,
            "visitor": visitor,
            "here": _path_and_query(request),
            "place": self._cluster().namesrv or "none",
            "links": self._cluster().links,
            "note": "" if is_part else visitor.take_note(),
            **values,
        }
        content = await asyncio.to_thread(render, template, values)
        return Response(content, status, {**HEADERS, "cache-control": "no-store"}, HTML)

    def connected(self, visitor: Visitor) -> _Connected:
        """Raises Trouble."""
        return _Connected(self._cluster(), visitor)

    async def _error_page(self, request: Request, error: Exception, section: str) -> Response:
        """Raises errors of the console itself."""
        status, title, detail = _describe_error(error)
        nobody = Visitor(None, has_users=False)
        try:
            visitor = await self.visitors.of(request)
        except Problem:
            visitor = nobody
        values = {"title": title, "detail": detail}
        return await self.page(request, "problem.html", section, visitor, values, status)

    async def absent(self, request: Request) -> Response:
        trouble = Trouble(404, "There is no such page", "The console has no page at this address.")
        return await self._error_page(request, trouble, "")

    def _to_login(self, request: Request) -> Response:
        where = _path_and_query(request) if request.method == "GET" else ROOT
        return RedirectResponse(f"{ROOT}/login?to={quote(where, safe='')}", 303, HEADERS)

    # --- changes ---

    async def change(self, request: Request, section: str, ask: Ask, do: Do) -> Response:
        """Handle a form that changes something. The first submission shows what ``ask`` says would happen, with the
        same form; the second one runs ``do``."""
        try:
            visitor = await self.visitors.of(request)
            if not visitor.is_in:
                return self._to_login(request)
            form = await read_form(request, visitor)
            async with asyncio.timeout(CHANGE_S), self._gate:
                async with self.connected(visitor) as asked:
                    if not form.is_on("sure"):
                        question = await ask(asked, form)
                        values = {
                            "question": question,
                            "fields": form.pairs(),
                            "action": request.url.path,
                            "back": _inside(form.one("back")),
                        }
                        return await self.page(request, "confirm.html", section, visitor, values)
                    done = await do(asked, form)
        except Exception as error:
            return await self._error_page(request, error, section)
        visitor.note(done.message)
        return RedirectResponse(done.path, 303, HEADERS)


class _Connected:
    def __init__(self, at: ClusterAt, visitor: Visitor) -> None:
        admin = admin_of(at, visitor.credentials, TIMEOUT_MS)
        self._asked = Asking(admin, at.namesrv, admin.options, visitor, at.report, at.job_server)

    async def __aenter__(self) -> Asking:
        await self._asked.admin.start()
        return self._asked

    async def __aexit__(self, *error: object) -> None:
        await self._asked.admin.stop()


def _inside(where: str) -> str:
    """A path of the console."""
    return where if where.startswith(f"{ROOT}/") else ROOT


def _path_and_query(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def _describe_error(error: Exception) -> tuple[int, str, str]:
    """Status, title and detail of a page. Raises the error again if it is a fault of the console itself."""
    match error:
        case Trouble():
            return error.status, error.title, error.detail
        case Problem():
            return error.status, "The request is refused", error.detail
        case NoForm():
            return 400, "This form cannot be accepted", str(error)
        case TimeoutError():
            return (
                504,
                "The cluster did not answer in time",
                "Try again; the change may have been made.",
            )
        case InvalidMessage() | ConfigError():
            return 400, "The request is invalid", str(error)
        case BrokerError(code=ResponseCode.NO_PERMISSION):
            return 403, "You may not do that", str(error)
        case NoRoute():
            return 404, "There is no such name", str(error)
        case BrokerError() if error.code in _ABSENT:
            return 404, "There is no such name", str(error)
        case MQError():
            return 502, "The cluster cannot be asked", str(error)
    raise error
