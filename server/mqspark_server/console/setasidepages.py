"""The pages about parts of the log that this broker has set aside because its master's log differed: read, send again.

The files have messages of every topic and are read here, not asked of a broker. So with users they are for super users:
who may not see the users may not see them. The cluster judges who sends.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from mqspark.client.producer.producer import Producer
from mqspark.errors import InvalidMessage
from mqspark.message import Message, MessageExt, check_topic
from mqspark.store.tools.diverged import SavedPart
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.clusterdata import accounts_of
from mqspark_server.console.rendering import ROOT, message_row
from mqspark_server.console.site import Asking, Confirmation, Done, Site
from mqspark_server.console.visitors import Form
from mqspark_server.shown.setaside import Again, again, messages_in, parts_of

SHOWN = 100
"""Messages of one page."""
MAX_SENT = 5_000
MAX_SENT_BYTES = 64 << 20
SENDS_AT_ONCE = 256
"""Messages that are on their way to the brokers at the same time."""
MAX_WANTED = 255
_GROUP = "mqspark_console"
_SECTION = "Brokers"


@dataclass(frozen=True, slots=True)
class _ChosenPart:
    part: SavedPart
    topic: str | None

    def read(self, begin: int) -> list[MessageExt]:
        """From this position of the log on, one more than a page shows. Blocking."""
        found = messages_in([self.part], self.topic)
        return list(itertools.islice((each for each in found if each.physical_offset >= begin), SHOWN + 1))

    def again(self) -> Again:
        """Blocking."""
        return again(messages_in([self.part], self.topic), MAX_SENT, MAX_SENT_BYTES)


def _topic(text: str) -> str | None:
    topic = text.strip()[:MAX_WANTED]
    if topic:
        check_topic(topic)
    return topic or None


async def _chosen(asked: Asking, broker: str, file: str, topic: str) -> _ChosenPart:
    """Raises Trouble, MQError, OSError."""
    if asked.visitor.has_users:
        await (await accounts_of(asked.admin)).rows()  # refused to all but super users
    report = asked.report()
    if report is None or report["broker"] != broker:
        raise Trouble(
            404,
            "Nothing to read here",
            f"What a broker has set aside is on its own console, and in mqspark store diverged: this is not {broker}.",
        )
    parts = await asyncio.to_thread(parts_of, Path(report["store"]["path"]))
    for part in parts:
        if part.path.name == file:
            return _ChosenPart(part, _topic(topic))
    raise Trouble(404, "There is no such part", "It was removed, or never set aside by this broker.")


def _row(message: MessageExt) -> dict[str, Any]:
    place = f"{message.topic} {message.queue_id} @ {message.queue_offset}"
    return {**message_row(message, "text"), "place": place}


def _begin(request: Request) -> int:
    text = request.query_params.get("from", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidMessage("from is a position of the log", field="from")
    return int(text)


def add_set_aside_pages(router: APIRouter, site: Site) -> None:
    path = f"{ROOT}/brokers/{{name}}/set-aside/{{file}}"

    @router.get(path)
    async def read(name: str, file: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            begin = _begin(request)
            chosen = await _chosen(asked, name, file, request.query_params.get("topic", ""))
            found = await asyncio.to_thread(chosen.read, begin)
            return {
                "broker": name,
                "part": chosen.part,
                "topic": chosen.topic or "",
                "rows": [_row(each) for each in found[:SHOWN]],
                "following": found[SHOWN].physical_offset if len(found) > SHOWN else None,
            }

        return await site.show(request, "setaside.html", _SECTION, work)

    @router.post(f"{path}/send")
    async def send(name: str, file: str, request: Request) -> Response:
        async def made(asked: Asking, form: Form) -> Again:
            chosen = await _chosen(asked, name, file, form.one("topic"))
            found = await asyncio.to_thread(chosen.again)
            if found.is_more:
                raise Trouble(
                    400,
                    "Too many messages",
                    f"At most {MAX_SENT:,} messages of {MAX_SENT_BYTES >> 20} MiB are sent at once: choose a topic, or"
                    " use mqspark store diverged send.",
                )
            if not found.messages:
                raise Trouble(404, "Nothing to send", "The part has no message that can be sent again.")
            return found

        async def ask(asked: Asking, form: Form) -> Confirmation:
            found = await made(asked, form)
            count = len(found.messages)
            facts = [("From", file), ("Whether the cluster has them already", "is not known here")]
            if found.left_out:
                facts.append(
                    ("Left out", f"{found.left_out:,} of system and retry topics, or that cannot be read")
                )
            rows: list[Any] = [(topic, f"{number:,}") for topic, number in found.counts.items()]
            return Confirmation(
                f"Send {count:,} message{'' if count == 1 else 's'} again?",
                "Send again",
                facts,
                ("Topic", "#Messages"),
                rows[:SHOWN],
                more=max(0, len(rows) - SHOWN),
            )

        async def do(asked: Asking, form: Form) -> Done:
            found = await made(asked, form)
            sent = await _send(asked, found.messages)
            where = f"{ROOT}/brokers/{quote(name, safe='')}/set-aside/{quote(file, safe='')}"
            return Done(f"Sent again as new: {sent:,} message{'' if sent == 1 else 's'}.", where)

        return await site.change(request, _SECTION, ask, do)


async def _send(asked: Asking, messages: list[Message]) -> int:
    """How many were sent: all. Raises Trouble, which says how many were."""
    sent = 0
    async with Producer(asked.namesrv, group=_GROUP, options=asked.options) as producer:
        for begin in range(0, len(messages), SENDS_AT_ONCE):
            futures = [await producer.send_async(each) for each in messages[begin : begin + SENDS_AT_ONCE]]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            failures = [each for each in outcomes if isinstance(each, BaseException)]
            sent += len(outcomes) - len(failures)
            if failures:
                detail = f"{sent} were sent, then {len(failures)} failed: {failures[0]}"
                raise Trouble(502, "Not all were sent", detail)
    return sent
