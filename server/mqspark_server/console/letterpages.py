"""The pages about dead letters and traces, and the live tail of a topic."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response

from mqspark.errors import InvalidMessage, MQError, NoRoute
from mqspark.message import TRACE_TOPIC, MessageExt, check_group, check_topic
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.data import MAX_ROWS, VIEWS, ConsoleData, Look, Page
from mqspark_server.console.letterdata import (
    MAX_RESENT,
    LetterFilter,
    dead_groups,
    find_letters,
    resend,
    traced,
)
from mqspark_server.console.rendering import HEADERS, ROOT, message_row
from mqspark_server.console.site import Asking, Confirmation, Done, Site
from mqspark_server.console.topicpages import wanted_page
from mqspark_server.console.visitors import Form, Visitor
from mqspark_server.shown.deadletters import foreign_origins
from mqspark_server.web.events import EventStream, event
from mqspark_server.web.places import Places
from mqspark_server.web.problems import Problem

MAX_WANTED = 255
SHOWN = 200
"""Rows of the confirmation page."""
MAX_TAILS = 8
PAUSE_S = 0.5
ROUND = 256
"""Messages that are shown in the order of their times, before the queues are asked again."""
MAX_BEHIND = 200
"""Messages of a queue that a tail catches up with; what is further behind is skipped."""
_READ_AT_ONCE = 32
_SECTION = "Dead letters"
_PATH = f"{ROOT}/dead-letters"


def add_letter_pages(router: APIRouter, site: Site) -> None:
    _add_letters(router, site)
    _add_resending(router, site)
    _add_traces(router, site)
    _add_tails(router, site)


def _add_letters(router: APIRouter, site: Site) -> None:
    @router.get(_PATH)
    async def groups(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            wanted, number, every = wanted_page(request)
            found: Page = await dead_groups(asked.admin, wanted, number)
            return {"page": found, "every": every}

        return await site.show(request, "deadgroups.html", _SECTION, work)

    @router.get(f"{_PATH}/{{name}}")
    async def letters(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_group(name)
            given = request.query_params
            origin, tag, key = (
                given.get(field, "").strip()[:MAX_WANTED] for field in ("origin", "tag", "key")
            )
            chosen = LetterFilter(origin, tag, key)
            view = given.get("view") or "text"
            if view not in VIEWS:
                raise InvalidMessage(f"view is one of {VIEWS}", field="view")
            found, is_more = await find_letters(asked.admin, name, chosen)
            return {
                "group": name,
                "chosen": chosen,
                "found": found,
                "is_more": is_more,
                "look": Look(view=view),
            }

        return await site.show(request, "deadletters.html", _SECTION, work)


def _add_resending(router: APIRouter, site: Site) -> None:
    @router.post(f"{_PATH}/{{name}}/resend")
    async def again(name: str, request: Request) -> Response:
        def given(form: Form) -> tuple[LetterFilter, Literal["group", "topic"]]:
            ids = None
            if form.one("which") == "chosen":
                ids = frozenset(form.all("id"))
                if not ids:
                    raise InvalidMessage("no dead letter is chosen", field="id")
            origin, tag, key = (form.one(field).strip()[:MAX_WANTED] for field in ("origin", "tag", "key"))
            return LetterFilter(origin, tag, key, ids), "topic" if form.one("to") == "topic" else "group"

        async def ask(asked: Asking, form: Form) -> Confirmation:
            check_group(name)
            chosen, to = given(form)
            found, is_more = await find_letters(asked.admin, name, chosen, MAX_RESENT)
            if not found:
                raise Trouble(404, "Nothing to send", "No dead letter matches this filter.")
            rows: list[Any] = [
                (each["origin"] or "unknown: not sent", each["place"], each["tags"] or "", each["preview"])
                for each in (message_row(message, "text") for message in found[:SHOWN])
            ]
            facts = [("Dead letters", f"{len(found):,} ({chosen.words})")]
            facts.append(
                ("They go to", f"group {name} alone" if to == "group" else "the topics that they came from")
            )
            foreign = foreign_origins(found, {chosen.origin, *await asked.admin.consumed_topics(name)})
            if foreign:
                names = ", ".join(each[:MAX_WANTED] for each in foreign[:SHOWN])
                facts.append(
                    ("Not sent, for the group does not consume", f"{names}: filter by the topic to send them")
                )
            if is_more:
                facts.append(("There are more", f"at most {MAX_RESENT:,} are sent at once"))
            return Confirmation(
                f"Send {len(found):,} dead letters again?",
                "Send again",
                facts,
                ("From topic", "Where", "Tag", "Body"),
                rows,
                more=len(found) - len(rows),
            )

        async def do(asked: Asking, form: Form) -> Done:
            check_group(name)
            chosen, to = given(form)
            found, _ = await find_letters(asked.admin, name, chosen, MAX_RESENT)
            sent, unknown = await resend(asked, name, found, to, origin=chosen.origin)
            text = f"{sent:,} dead letters were sent again."
            if unknown:
                text += (
                    f" {unknown:,} were not sent: their origin is unknown, or the group does not consume it."
                )
            fields = {"origin": chosen.origin, "tag": chosen.tag, "key": chosen.key}
            return Done(text, f"{_PATH}/{quote(name, safe='')}?{urlencode(fields)}")

        return await site.change(request, _SECTION, ask, do)


def _add_traces(router: APIRouter, site: Site) -> None:
    @router.get(f"{ROOT}/trace")
    async def trace(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            wanted = request.query_params.get("id", "").strip()[:MAX_WANTED]
            topic = request.query_params.get("topic", "").strip()[:MAX_WANTED] or TRACE_TOPIC
            check_topic(topic)
            values: dict[str, Any] = {"wanted": wanted, "topic": topic, "steps": [], "trouble": ""}
            if wanted:
                try:
                    values["steps"] = await traced(asked.admin, wanted, topic)
                except MQError as error:
                    # The default trace topic is created by the first client that records a trace.
                    if not (isinstance(error, NoRoute) and topic == TRACE_TOPIC):
                        values["trouble"] = str(error)
            return values

        return await site.show(request, "trace.html", "Trace", work)


def _add_tails(router: APIRouter, site: Site) -> None:
    tails = Places("tails are open")

    @router.get(f"{ROOT}/topics/{{name}}/tail")
    async def tail(name: str, request: Request) -> Response:
        """Events with rows of messages, for the page of the live tail."""
        try:
            check_topic(name)
            visitor = await site.visitors.of(request)
        except (InvalidMessage, Problem) as error:
            return Response(str(error), 400, HEADERS, "text/plain")
        if visitor.has_users and not visitor.is_in:
            return Response("log in", 503, HEADERS, "text/plain")
        try:
            holder = tails.take(
                visitor.user, "" if request.client is None else request.client.host, MAX_TAILS, retry_s=10
            )
        except Problem as problem:
            return Response(str(problem), problem.status, HEADERS, "text/plain")
        tag = request.query_params.get("tag", "")[:MAX_WANTED]
        return EventStream(_arrivals(site, request, visitor, name, tag), lambda: tails.leave(holder))


async def _arrivals(
    site: Site, request: Request, visitor: Visitor, topic: str, tag: str
) -> AsyncGenerator[bytes, None]:
    """Ends when the visitor logs out or the session ends."""
    yield b": from now on\n\n"
    try:
        async with site.connected(visitor) as asked:
            data = ConsoleData(asked.admin)
            places = {queue: high for queue, (_, high) in list((await data.bounds(topic)).items())[:MAX_ROWS]}
            while (await site.visitors.of(request)).user == visitor.user:
                bounds = await data.bounds(topic)
                arrived: list[MessageExt] = []
                for queue, (low, high) in bounds.items():
                    place = max(low, min(places.get(queue, high), high))
                    if high - place > MAX_BEHIND:
                        yield event("skipped", str(high - _READ_AT_ONCE - place))
                        place = high - _READ_AT_ONCE
                    places[queue] = place
                    if place < high and len(arrived) < ROUND:
                        answer = await asked.admin.read(
                            queue, place, max_messages=_READ_AT_ONCE, expression=tag or "*"
                        )
                        # Messages stored after the bounds were read wait for the next round, as in other queues.
                        arrived += [each for each in answer.messages if each.queue_offset < high]
                        places[queue] = min(high, max(answer.next_offset, place + 1))
                for message in sorted(
                    arrived, key=lambda each: (each.store_timestamp_ms, each.physical_offset)
                ):
                    row = await asyncio.to_thread(message_row, message, "text")
                    yield event("message", json.dumps(row))
                yield b": still here\n\n"
                if all(places[queue] >= high for queue, (_, high) in bounds.items()):
                    await asyncio.sleep(PAUSE_S)
        yield event("problem", "the session has ended")
    except (MQError, Trouble, Problem) as error:
        with contextlib.suppress(GeneratorExit):
            yield event("problem", str(error))
