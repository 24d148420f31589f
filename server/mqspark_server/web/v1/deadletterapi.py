"""/api/v1/dead-letters: what groups could not process: list, show, and send again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from mqspark.auth.policies import Action
from mqspark.base.document import Document
from mqspark.broker.admin.views import extent_of
from mqspark.message import (
    DLQ_PREFIX,
    Message,
    MessageExt,
    dlq_topic,
    encode_stored_properties,
    new_unique_id,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark_server.actions.letteractions import copies_of
from mqspark_server.actions.resending import NotAllSent, send_each
from mqspark_server.shown.deadletters import LetterChoice, origin_of
from mqspark_server.shown.messagerow import MessageView
from mqspark_server.shown.nouns import MAX_NAME
from mqspark_server.web.callers import CLUSTER
from mqspark_server.web.problems import Problem
from mqspark_server.web.turns import between_turns
from mqspark_server.web.v1.asking import (
    ERRORS,
    IN_QUERY,
    MAX_PAGE,
    Asker,
    AskerNow,
    GroupName,
    ItemPage,
    PagingNow,
)
from mqspark_server.web.v1.messageapi import spans_of
from mqspark_server.web.v1.storedmessages import MessagesFound, Place, Spanned, choose, page_of, read_some

MAX_RESENT = 10_000
"""The most of one request."""
MAX_IDS = 1_000
SHOWN = 1_000
STEP = 128
RESEND_S = 20.0
"""A request that takes longer stops, and its answer says where to continue."""

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], responses=ERRORS)


class DeadLetterGroup(BaseModel):
    group: str
    messages: int
    lastStored: int | None = Field(description="when the newest one came, ms since 1970")


@dataclass(slots=True, kw_only=True)
class DeadLetter(MessageView):
    origin_topic: str | None = field(metadata={"description": "the topic that it came from; null: unknown"})


class Letters(Spanned):
    topic: str | None = Field(default=None, max_length=MAX_NAME, description="only those that came from it")
    key: str | None = Field(default=None, max_length=1_024)

    @property
    def choice(self) -> LetterChoice:
        return LetterChoice(self.topic, key=self.key)


class LettersAsked(Letters):
    model_config = IN_QUERY

    limit: int = Field(default=32, ge=1, le=MAX_PAGE, description="the most items to return")


class Resend(Letters):
    """Which dead letters to send again: those that match every given filter."""

    ids: list[str] | None = Field(
        default=None, max_length=MAX_IDS, description="only these, by msgId or offsetMsgId"
    )
    to: Literal["group", "topic"] = Field(
        default="group",
        description="group: through its retry topic, so that no other group gets them; topic: to the topic that they"
        " came from, which groups in POP mode need",
    )
    limit: int = Field(default=MAX_RESENT, ge=1, le=MAX_RESENT)
    dryRun: bool = Field(default=False, description="only report what would be sent")

    @property
    def choice(self) -> LetterChoice:
        return super().choice._replace(ids=None if self.ids is None else frozenset(self.ids))


@dataclass(slots=True)
class Resent(Document):
    msg_id: str = field(metadata={"description": "of the dead letter"})
    to: str | None = field(
        metadata={"description": "null: it is not sent, for its origin is unknown or its body cannot be read"}
    )
    tags: str | None
    keys: str | None
    store_time: int


class ResendOutcome(BaseModel):
    group: str
    dryRun: bool
    matched: int = 0
    resent: int = 0
    withoutOrigin: int = 0
    foreign: int = Field(
        default=0,
        description="not sent: from topics that the group does not consume and `topic` does not name",
    )
    unreadable: int = Field(default=0, description="not sent: their bodies cannot be read")
    items: list[Resent] = Field(default_factory=list, description="the first thousand")
    next: str | None = Field(default=None, description="for `after`, if there may be more")


@router.get("")
async def list_dead_letters(asker: AskerNow, paging: PagingNow) -> ItemPage[DeadLetterGroup]:
    """Groups that have dead letters."""
    asker.authorize(CLUSTER, Action.GET, Action.LIST)
    state = asker.state
    letters = takewhile(lambda name: name.startswith(DLQ_PREFIX), state.topics.names().since(DLQ_PREFIX))
    page, following = paging.of(name.removeprefix(DLQ_PREFIX) for name in letters)
    items = []
    for group in page:
        found = state.topics.get(dlq_topic(group))
        count, newest = (0, None) if found is None else await between_turns(extent_of(state, found))
        items.append(DeadLetterGroup(group=group, messages=count, lastStored=newest))
    return ItemPage(items=items, next=following)


@router.get("/{group}")
async def show_dead_letters(
    group: GroupName, asker: AskerNow, asked: Annotated[LettersAsked, Query()]
) -> ItemPage[DeadLetter]:
    """The dead letters of a group, oldest first."""
    asker.authorize_group(group, Action.GET, Action.SUB)
    found = await _found(asker, group, asked, Place.after(asked.after), asked.limit)
    return await page_of(found, lambda each: DeadLetter.of(each, origin_topic=origin_of(each)))


@router.post("/{group}/resend")
async def resend(group: GroupName, wanted: Resend, asker: AskerNow) -> ResendOutcome:
    """Send dead letters again, as new messages. They stay where they are until they expire. A problem's member
    `resent` says how many were sent before it."""
    asker.authorize_group(group, Action.UPDATE)
    outcome = ResendOutcome(group=group, dryRun=wanted.dryRun)
    place, clock = Place.after(wanted.after), asyncio.get_running_loop()
    consumed = {wanted.topic, *await between_turns(asker.state.offsets.topics_of(group))}
    if (live := asker.state.clients.consumer(group)) is not None:
        consumed |= live.subscriptions.keys()
    end = clock.time() + RESEND_S

    async def copies(letters: list[MessageExt]) -> AsyncIterator[Message]:
        async for letter, copy, problem in copies_of(letters, group, wanted.to, consumed):
            if len(outcome.items) < SHOWN:
                to, stored_ms = None if copy is None else copy.topic, letter.store_timestamp_ms
                outcome.items.append(Resent(letter.message_id, to, letter.tags, letter.keys, stored_ms))
            if problem:
                setattr(outcome, problem, getattr(outcome, problem) + 1)
            elif copy is not None and not wanted.dryRun:
                yield copy

    while outcome.matched < wanted.limit:
        found = await _found(asker, group, wanted, place, min(STEP, wanted.limit - outcome.matched))
        outcome.matched += len(found.messages)
        try:
            outcome.resent += await send_each(partial(_send, asker), copies(found.messages))
        except NotAllSent as error:
            if isinstance(error.first, Problem):
                error.first.more["resent"] = outcome.resent + error.sent
            raise error.first from None
        place = found.next
        if place is None or clock.time() >= end:
            break
    outcome.next = place and place.cursor
    return outcome


async def _send(asker: Asker, message: Message) -> asyncio.Task[Command]:
    properties = {**message.properties, "UNIQ_KEY": new_unique_id(), "WAIT": "true"}
    encoded = encode_stored_properties(properties).decode()
    header = asker.sending(message.topic, encoded, flag=message.flag)
    return asyncio.create_task(asker.ask(RequestCode.SEND_MESSAGE_V2, header, message.body))


async def _found(asker: Asker, group: str, wanted: Letters, place: Place | None, limit: int) -> MessagesFound:
    """Raises Problem."""
    topic = asker.state.topics.get(dlq_topic(group))
    if topic is None:
        raise Problem(404, f"group {group!r} has no dead letters")
    chosen = choose(asker, wanted, wanted.choice.takes)
    spans = spans_of(asker, topic.name, range(topic.queue_limit), place, wanted)
    return await read_some(asker, topic.name, spans, limit, chosen)
