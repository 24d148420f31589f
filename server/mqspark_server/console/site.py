"""The common part of all pages: the visitor, the keys with which the cluster is asked, errors, and the confirmation of
every change. Pages and actions are classes in the tables of sections, and made of the fields of a request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from mqspark.base.clock import Clock
from mqspark.client.admin import AdminClient
from mqspark.client.producer.producer import Producer
from mqspark.errors import BrokerError, ConfigError, InvalidMessage, MQError, NoRoute, SchemaRefused
from mqspark.protocol.codes import ResponseCode
from mqspark_server.actions.fields import ChoiceField, FormReader, Line
from mqspark_server.actions.operating import Act, Done, NotDone, Preview, Why
from mqspark_server.actions.resending import NotAllSent
from mqspark_server.console.clusteraccess import ClusterAt, ShownCluster, Trouble, admin_of
from mqspark_server.console.history.sampler import Sampler
from mqspark_server.console.history.samples import SPANS, History
from mqspark_server.console.rendering import HEADERS, HTML, ROOT, inside, render
from mqspark_server.console.visitors import Form, NoForm, Visitor, Visitors, read_form, sent_fields
from mqspark_server.shown.nouns import WholeNumbers
from mqspark_server.survey.schemasurvey import schemas_of
from mqspark_server.survey.surveying import Row, add_to_each, in_slices, let_go, sorted_in_slices
from mqspark_server.web.events import EventStream
from mqspark_server.web.places import Places
from mqspark_server.web.problems import Problem

PAGES_AT_ONCE = 4
"""The number of pages that are made concurrently; others wait."""
PAGE_ROWS = 50
"""Rows of a page of a list; each is asked for."""
MAX_SORTED = 500
"""Rows that are asked for to sort a list."""
PREVIEWED = 200
"""Rows that a confirmation shows."""
PAGE_S = 20.0
CHANGE_S = 60.0
SITE_TIMEOUT_MS = 5_000
PRODUCER_GROUP = "mqspark_console"


@dataclass(frozen=True, slots=True)
class Asking:
    """A cluster, asked with a visitor's keys."""

    admin: AdminClient
    at: ClusterAt
    visitor: Visitor
    history: History
    now_ms: int

    @property
    def cluster(self) -> None:
        """All that the name servers know."""

    def report_of(self, broker: str) -> Row | None:
        """The state of the store of this process, if it is this broker."""
        report = self.at.report()
        return report if report is not None and report["broker"] == broker else None

    def producer(self) -> Producer:
        return Producer(self.at.namesrv, group=PRODUCER_GROUP, options=self.admin.options)


Span = Annotated[str, ChoiceField(tuple(SPANS))]
"""How much of the past the charts of a page show."""


class View(msgspec.Struct, frozen=True):
    """A page. Its fields are those of its address; its template has them, too, and all of them as ``look``."""

    async def show(self, asked: Asking) -> Row:
        """What else its template shows. Raises InvalidMessage, MQError, Trouble."""
        raise NotImplementedError


async def tried(search: Awaitable[Row], **nothing: Any) -> Row:
    """What a page shows of a search: ``nothing`` where it says no more, and the ``trouble`` that it has."""
    try:
        return nothing | await search
    except MQError as error:
        return {**nothing, "trouble": str(error)}


class Change(Protocol):
    """An action, or something that is changed at this process alone."""

    async def preview(self, asked: Asking, /) -> Preview: ...

    async def apply(self, asked: Asking, /) -> Done: ...


class ActionForm(msgspec.Struct, frozen=True):
    """A form whose action has other fields."""

    async def action(self, asked: Asking) -> Act:
        """Raises InvalidMessage, MQError."""
        raise NotImplementedError

    def settled(self, asked: Asking) -> dict[str, str]:
        """Fields of the form as this page understands them, such as a time with its zone: the action has these,
        whatever the visitor has changed since."""
        return {}


class StreamedAnswer(msgspec.Struct, frozen=True):
    """An answer that is made while it is sent. Its fields are those of its address."""

    most_open: ClassVar[int]
    """At once, of all visitors."""
    are_open: ClassVar[str]
    """What a refusal says of these."""

    def kind(self) -> tuple[str, str]:
        """Its media type, and its name if it is a file to keep."""
        raise NotImplementedError

    def content(self, asked: Asking) -> AsyncGenerator[bytes, None]:
        """Its parts; an error before the first one is an answer of its own. Raises InvalidMessage, MQError, Trouble."""
        raise NotImplementedError

    def broken(self, problem: str) -> bytes:
        """The last part of a stream that ends too early."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Listed:
    """The rows of one page of a list. ``query``: what its address says beside the number of the page."""

    rows: list[Row]
    number: int
    first: int
    last: int
    count: int
    is_by_name: bool
    """Whether there are too many to be sorted by what each has to be asked for."""
    query: Mapping[str, str]

    def sorted_by(self, key: str, *, down: bool) -> dict[str, str]:
        """The query of the same list by a column; ``down``: how it is sorted first. Again, it is turned around."""
        turned = self.query.get("sort") == key and ("down" in self.query) == down
        return {**self.query, "sort": key, "down": "1" if down != turned else ""}


class ListView(View, frozen=True):
    """Pages of names that contain ``q``. ``every``: system names, too. ``sort``: one of ``columns``, or by name."""

    columns: ClassVar[Sequence[tuple[str, str]]] = ()
    """What the list can be sorted by, and the title, which begins with # above numbers; '' is nothing to sort by."""
    q: Line = ""
    page: Annotated[int, WholeNumbers(1, 1_000_000)] = 1
    every: bool = False
    sort: Line = ""
    down: bool = False

    async def listed(
        self, key: str, rows: list[Row], ask: Callable[[Row], Awaitable[Row]] | None = None
    ) -> Row:
        """The rows of this page, by their names below ``key``; ``rows`` is empty afterwards. ``ask`` says more about
        these only, or about up to MAX_SORTED to sort them. Raises InvalidMessage."""
        if self.sort and self.sort not in dict(self.columns):
            keys = ", ".join(filter(None, dict(self.columns)))
            raise InvalidMessage(f"sort: choose one of {keys}", field="sort")
        wanted, found = self.q.lower(), list[Row]()
        async for some in in_slices(rows):
            found += [row for row in some if wanted in row[key].lower()]
        is_by_figure = self.sort not in ("", key)
        is_by_name = is_by_figure and len(found) > MAX_SORTED
        if ask is not None and is_by_figure and not is_by_name:
            await add_to_each(found, ask)
        if self.sort and not is_by_name:
            found = await _sorted(found, self.sort, down=self.down)
        number = min(self.page, max(1, -(-len(found) // PAGE_ROWS)))
        begin = (number - 1) * PAGE_ROWS
        shown = found[begin : begin + PAGE_ROWS]
        if ask is not None and (is_by_name or not is_by_figure):
            await add_to_each(shown, ask)
        given = {"q": self.q, "sort": self.sort, "down": self.down, "every": self.every}
        query = {name: "1" if value is True else str(value) for name, value in given.items() if value}
        page = Listed(shown, number, begin + 1, begin + len(shown), len(found), is_by_name, query)
        await let_go(rows, found)
        return {"page": page}


async def _sorted(rows: list[Row], key: str, *, down: bool) -> list[Row]:
    """Rows without a value are the last, whichever way."""
    known, others = list[Row](), list[Row]()
    async for some in in_slices(rows):
        for row in some:
            (others if row.get(key) in (None, "") else known).append(row)

    def value(row: Row) -> Any:
        return row[key].lower() if isinstance(row[key], str) else row[key]

    return await sorted_in_slices(known, value, down=down) + others


@dataclass(frozen=True, slots=True)
class Section:
    """Pages and changes below one entry of the menu, by their paths."""

    name: str
    views: Mapping[str, tuple[type[View], str]]
    """With their templates."""
    changes: Mapping[str, tuple[type[Any], str]] = field(default_factory=dict)
    """Each a Change or an ActionForm, with the page to go to, whose path has fields of the form."""
    streams: Mapping[str, type[StreamedAnswer]] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class NotIn(Exception):
    """A visitor has to log in first."""


class Site:
    """``cluster`` is asked for each page."""

    def __init__(self, cluster: ShownCluster, visitors: Visitors, sampler: Sampler, clock: Clock) -> None:
        self._cluster = cluster
        self._sampler = sampler
        self._clock = clock
        self.visitors = visitors
        self._gate = asyncio.Semaphore(PAGES_AT_ONCE)

    def add(self, router: APIRouter, section: Section) -> None:
        for path, (view, template) in section.views.items():
            router.get(f"{ROOT}{path}")(self._shown(section.name, view, template))
        for path, (change, then) in section.changes.items():
            router.post(f"{ROOT}{path}")(self._changed(section, path, change, then))
        for path, stream in section.streams.items():
            router.get(f"{ROOT}{path}")(self._sent(section.name, stream))

    # --- pages ---

    def _shown(self, section: str, kind: type[View], template: str) -> Handler:
        """Makes the page, or the page about its error."""
        reader = FormReader(kind)

        async def show(request: Request) -> Response:
            try:
                visitor = await self._looking(request)
                self._sampler.watched()
                values = await self._values(reader.read(sent_fields(request)), visitor)
            except Exception as error:
                return await self.error_page(request, error, section)
            return await self.page(request, template, section, visitor, values)

        return show

    async def _looking(self, request: Request) -> Visitor:
        """Who may look. Raises NotIn, Problem."""
        visitor = await self.visitors.of(request)
        if visitor.has_users and not visitor.is_in:
            raise NotIn
        return visitor

    async def _values(self, view: View, visitor: Visitor) -> Row:
        async with asyncio.timeout(PAGE_S), self._gate, self.connected(visitor) as asked:
            values = {**msgspec.structs.asdict(view), "look": view, **await view.show(asked)}
            if found := values.get("found"):
                values["schemas"] = await schemas_of(asked.admin, found)
        return values

    async def page(
        self, request: Request, template: str, section: str, visitor: Visitor, values: Row, status: int = 200
    ) -> Response:
        is_part = request.headers.get("hx-request") == "true"
        values = {
            "section": section,
            "visitor": visitor,
            "here": _path_and_query(request),
            "now_ms": self._clock.now_ms(),
            "place": self._cluster.cluster_to_show().namesrv or "none",
            "links": self._cluster.cluster_to_show().links,
            "note": "" if is_part else visitor.kept.take_note(),
            **values,
        }
        content = await asyncio.to_thread(render, template, values)
        return Response(content, status, {**HEADERS, "cache-control": "no-store"}, HTML)

    @asynccontextmanager
    async def connected(self, visitor: Visitor) -> AsyncIterator[Asking]:
        """Raises Trouble."""
        at = self._cluster.cluster_to_show()
        async with admin_of(at, visitor.kept.credentials, SITE_TIMEOUT_MS) as admin:
            yield Asking(admin, at, visitor, self._sampler.history, self._clock.now_ms())

    async def error_page(self, request: Request, error: Exception, section: str) -> Response:
        """The page about an error, or the login. Raises errors of the console itself."""
        if isinstance(error, NotIn):
            where = _path_and_query(request) if request.method == "GET" else ROOT
            return RedirectResponse(f"{ROOT}/login?to={quote(where, safe='')}", 303, HEADERS)
        status, title, detail = _describe_error(error)
        try:
            visitor = await self.visitors.of(request)
        except Problem:
            visitor = Visitor(None, has_users=False)
        values = {"title": title, "detail": detail}
        return await self.page(request, "problem.html", section, visitor, values, status)

    async def absent(self, request: Request) -> Response:
        trouble = Trouble(404, "There is no such page", "The console has no page at this address.")
        return await self.error_page(request, trouble, "")

    # --- streams ---

    def _sent(self, section: str, kind: type[StreamedAnswer]) -> Handler:
        """Sends the stream, or the page about an error before it begins."""
        reader = FormReader(kind)
        places = Places(kind.are_open)

        async def send(request: Request) -> Response:
            place = None
            try:
                visitor = await self._looking(request)
                stream = reader.read(sent_fields(request))
                address = "" if request.client is None else request.client.host
                place = places.take(visitor.user, address, kind.most_open, retry_s=10)
                content = self._content(request, visitor, stream)
                first = await anext(content)
            except Exception as error:
                if place is not None:
                    place.leave()
                return await self.error_page(request, error, section)
            media_type, file = stream.kind()
            kept = f"attachment; filename*=UTF-8''{quote(file, safe='')}"
            headers = {**HEADERS, "content-disposition": kept if file else "inline"}
            return EventStream(_after(first, content), place, media_type, headers)

        return send

    async def _content(
        self, request: Request, visitor: Visitor, stream: StreamedAnswer
    ) -> AsyncGenerator[bytes, None]:
        """Ends with the session of the visitor. Raises errors before the first part."""
        is_begun = False
        try:
            async with self.connected(visitor) as asked, aclosing(stream.content(asked)) as parts:
                async for part in parts:
                    if is_begun and (await self.visitors.of(request)).user != visitor.user:
                        raise Trouble(403, "The session has ended", "the session has ended")
                    is_begun = True
                    yield part
        except (MQError, Trouble, Problem, TimeoutError) as error:
            if not is_begun:
                raise
            yield stream.broken(str(error))

    # --- changes ---

    def _changed(self, those: Section, path: str, kind: type[Any], then: str) -> Handler:
        """Handles a form that changes something. The first submission shows what would happen, with the same form; the
        second one applies it. A form with a mistake comes back filled, on the page at its path or the one that would
        come then."""
        reader = FormReader(kind)
        section = those.name
        behind = those.views.get(path) or those.views.get(then.partition("?")[0])

        async def change(request: Request) -> Response:
            sent = None
            try:
                visitor = await self.visitors.of(request)
                if not visitor.is_in:
                    raise NotIn
                form = await read_form(request, visitor)
                sent = sent_fields(request, form)
                given = reader.read(sent)
                async with asyncio.timeout(CHANGE_S), self._gate, self.connected(visitor) as asked:
                    is_form = isinstance(given, ActionForm)
                    action: Change = await given.action(asked) if is_form else given
                    if not form.get("sure"):
                        settled = given.settled(asked) if is_form else {}
                        question = await action.preview(asked)
                        question.facts += [(name.capitalize(), each) for name, each in settled.items()]
                        fields = [each for each in form.multi_items() if each[0] not in ("csrf", "sure")]
                        values = {
                            "question": question,
                            "rows": question.rows[:PREVIEWED],
                            "fields": [(name, settled.get(name, each)) for name, each in fields],
                            "action": request.url.path,
                            "back": inside(form.get("back", "")),
                        }
                        return await self.page(request, "confirm.html", section, visitor, values)
                    done = await action.apply(asked)
            except Exception as error:
                if isinstance(error, InvalidMessage | NotDone) and behind is not None and sent is not None:
                    return await self._again(request, visitor, section, behind, sent, error)
                return await self.error_page(request, error, section)
            left = f" {done.left}." if done.left else ""
            visitor.kept.note = f"{done.text[:1].upper()}{done.text[1:]}.{left}"
            names = {name: quote(value.strip(), safe="") for name, value in sent.items()}
            return RedirectResponse(f"{ROOT}{then.format_map(defaultdict(str, names))}", 303, HEADERS)

        return change

    async def _again(
        self,
        request: Request,
        visitor: Visitor,
        section: str,
        behind: tuple[type[View], str],
        sent: Form,
        mistake: InvalidMessage | NotDone,
    ) -> Response:
        """The page of a form, with what was sent and the ``mistake`` in it; the mistake alone if a visitor may not see
        that page, or it is not there."""
        kind, template = behind
        reader = FormReader(kind)
        try:
            try:
                view = reader.read(sent)
            except InvalidMessage:
                view = reader.read(sent_fields(request))
            values = await self._values(view, visitor)
            values |= {"kept": sent, "mistake": str(mistake), "here": inside(sent.get("back", ""))}
        except (MQError, Trouble, Problem, TimeoutError):
            return await self.error_page(request, mistake, section)
        status, _, _ = _describe_error(mistake)
        return await self.page(request, template, section, visitor, values, status)


async def _after(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for each in rest:
            yield each


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
            return 504, "The cluster did not answer in time", "Try again; the change may have been made."
        case InvalidMessage() | ConfigError():
            return 400, "The request is invalid", str(error)
        case BrokerError(code=ResponseCode.NO_PERMISSION) | SchemaRefused(status=403):
            return 403, "You may not do that", str(error)
        case NotDone():
            return 404 if error.why == Why.ABSENT else 409, error.why.value, str(error)
        case NoRoute() | SchemaRefused(status=404):
            return 404, "There is no such name", str(error)
        case BrokerError(code=ResponseCode.TOPIC_NOT_EXIST | ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return 404, "There is no such name", str(error)
        case NotAllSent():
            return 502, "Not all were sent", str(error)
        case MQError():
            return 502, "The cluster cannot be asked", str(error)
    raise error
