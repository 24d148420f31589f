"""The pages about dead letters and traces, and the live tail of a topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

import msgspec

from mqspark.client.admin import AdminClient
from mqspark.errors import InvalidMessage, NoRoute
from mqspark.message import TRACE_TOPIC, MessageExt, MessageQueue, dlq_topic
from mqspark_server.actions.fields import ChoiceField, GroupName, Line, ListField, TopicName
from mqspark_server.actions.letteractions import ResendLetters
from mqspark_server.actions.resending import MAX_SENT
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.rendering import MESSAGES, message_row
from mqspark_server.console.site import ActionForm, Asking, ListView, Section, StreamedAnswer, View, tried
from mqspark_server.shown.bodies.bodyviews import VIEWS
from mqspark_server.shown.deadletters import LetterChoice
from mqspark_server.shown.nouns import WholeNumbers
from mqspark_server.survey.groupsurvey import offset_rows
from mqspark_server.survey.messagesurvey import MAX_LOOKED_AT, Wanted, walk
from mqspark_server.survey.surveying import Row
from mqspark_server.survey.topicsurvey import bounds_of, dead_letter_rows, is_there, letters_of
from mqspark_server.survey.tracesurvey import MAX_RECORDS, traced
from mqspark_server.web.events import EVENTS, event

PAUSE_S = 0.5
ROUND = 256
"""Messages before the queues are asked again."""
MAX_BEHIND = 200
"""Messages of a queue that a tail catches up with; what is further behind is skipped."""
_NOT_SKIPPED = 32


class DeadGroups(ListView, frozen=True):
    async def show(self, asked: Asking) -> Row:
        rows = await dead_letter_rows(asked.admin)
        return await self.listed(
            "group", rows, lambda row: letters_of(asked.admin, row["group"], asked.now_ms)
        )


class LetterFilter(msgspec.Struct, frozen=True):
    """Which dead letters of a group; an empty field matches all."""

    group: GroupName
    origin: Line = ""
    tag: Line = ""
    key: Line = ""
    which: Literal["all", "chosen"] = "all"
    id: Annotated[tuple[str, ...], ListField()] = ()
    """The ids of the chosen ones."""

    @property
    def words(self) -> str:
        """For people."""
        given = {"from topic": self.origin, "tag": self.tag, "key": self.key}
        parts = [f"{name} {value}" for name, value in given.items() if value]
        if self.which == "chosen":
            parts.append(f"the {len(set(self.id))} chosen")
        return ", ".join(parts) or "all"

    async def find(self, admin: AdminClient, most: int) -> tuple[list[MessageExt], bool]:
        """The newest of all queues, newest first, and whether there may be more. Raises InvalidMessage, MQError,
        Trouble."""
        if self.which == "chosen" and not self.id:
            raise InvalidMessage("no dead letter is chosen", field="id")
        try:
            bounds = await bounds_of(admin, dlq_topic(self.group))
        except NoRoute:
            detail = f"No message of group {self.group} has failed for good."
            raise Trouble(404, "No dead letters", detail) from None
        ids = frozenset(self.id) if self.which == "chosen" else None
        choice = LetterChoice(self.origin or None, self.tag or None, self.key or None, ids)
        found = await walk(admin, bounds, None, most, Wanted(accepts=choice.takes), is_back=True)
        return found.messages, found.is_more


class DeadLetters(LetterFilter, View, frozen=True):
    view: Annotated[str, ChoiceField(VIEWS)] = "text"
    page: Annotated[int, WholeNumbers(1, MAX_LOOKED_AT // MESSAGES)] = 1
    ticked: bool = False
    """Whether all of the page are chosen."""

    async def show(self, asked: Asking) -> Row:
        found: list[MessageExt] = []
        is_more = False
        if await is_there(asked.admin, dlq_topic(self.group)):
            found, is_more = await self.find(asked.admin, MESSAGES * self.page)
        else:
            await offset_rows(asked.admin, self.group)  # refused for a group that nobody knows
        first = MESSAGES * (self.page - 1)
        return {
            "letters": await letters_of(asked.admin, self.group, asked.now_ms),
            "found": found[first:],
            "first": first + 1,
            "is_more": is_more,
        }


class Resending(LetterFilter, ActionForm, frozen=True):
    to: Literal["group", "topic"] = "group"

    async def action(self, asked: Asking) -> ResendLetters:
        found, is_more = await self.find(asked.admin, MAX_SENT)
        if not found:
            raise Trouble(404, "Nothing to send", "No dead letter matches this filter.")
        return ResendLetters(self.group, found, self.to, self.origin or None, self.words, is_more)


class Trace(View, frozen=True):
    """What producers and consumers recorded of a message."""

    id: Line = ""
    topic: TopicName = TRACE_TOPIC

    async def show(self, asked: Asking) -> Row:
        return await tried(self._steps(asked), steps=[], is_cut=False)

    async def _steps(self, asked: Asking) -> Row:
        if not self.id:
            return {}
        try:
            steps, is_cut = await traced(asked.admin, self.topic, self.id)
        except NoRoute:
            if self.topic != TRACE_TOPIC:
                raise
            return {}  # the first client that records a trace creates the topic
        return {"steps": steps, "is_cut": is_cut, "most": MAX_RECORDS}


class TopicTail(StreamedAnswer, frozen=True):
    """Events with rows of messages, for the page of the live tail."""

    most_open, are_open = 8, "tails are open"
    topic: TopicName
    tag: Line = ""

    def kind(self) -> tuple[str, str]:
        return EVENTS, ""

    async def content(self, asked: Asking) -> AsyncGenerator[bytes, None]:
        yield b": from now on\n\n"
        places: dict[MessageQueue, int] = {}
        while True:
            bounds = await bounds_of(asked.admin, self.topic)
            for queue, (low, high) in bounds.items():
                behind = high - max(low, places.setdefault(queue, high))
                if behind > MAX_BEHIND:
                    yield event("skipped", str(behind - _NOT_SKIPPED))
                    places[queue] = high - _NOT_SKIPPED
            walked = await walk(asked.admin, bounds, places, ROUND, Wanted(self.tag or "*"), is_back=False)
            places = walked.places
            for message in walked.messages:
                row = await asyncio.to_thread(message_row, message, "auto")
                row["stored"] = asked.visitor.zone.text(message.store_timestamp_ms)
                yield event("message", json.dumps(row))
            yield b": still here\n\n"
            if not walked.is_more:
                await asyncio.sleep(PAUSE_S)

    def broken(self, problem: str) -> bytes:
        return event("problem", problem)


LETTER_PAGES = (
    Section(
        "Dead letters",
        views={
            "/dead-letters": (DeadGroups, "deadgroups.html"),
            "/dead-letters/{group}": (DeadLetters, "deadletters.html"),
        },
        changes={
            "/dead-letters/{group}/resend": (
                Resending,
                "/dead-letters/{group}?origin={origin}&tag={tag}&key={key}",
            )
        },
    ),
    Section("Trace", views={"/trace": (Trace, "trace.html")}),
    Section("Topics", views={}, streams={"/topics/{topic}/tail": TopicTail}),
)
