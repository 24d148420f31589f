"""/api/v1/dead-letters: what groups could not process: list, show, and send again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from mqspark.auth.policies import Action
from mqspark.base.document import Document
from mqspark.broker.admin.views import extent_of
from mqspark.errors import InvalidMessage
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
from mqspark_server.actions.resending import NotAllSent, send_each
from mqspark_server.shown.deadletters import LetterChoice, origin_of, resent_copy
from mqspark_server.shown.messagerow import MessageView
from mqspark_server.web.callers import CLUSTER
from mqspark_server.web.problems import Problem
from mqspark_server.web.turns import between_turns
from mqspark_server.web.v1.asking import (
    ERRORS,
    After,
    Asker,
    AskerNow,
    Given,
    GroupName,
    ItemPage,
    Limit,
    PagingNow,
)
from mqspark_server.web.v1.messageapi import EVER_MS, Filtering, Since, Until, spans_of
from mqspark_server.web.v1.storedmessages import MessagesFound, Place, choose, read_some, views

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


class DeadLetterPage(BaseModel):
    items: list[DeadLetter]
    next: str | None = Field(description="as in a page of messages")


class Resend(Given):
    """Which dead letters to send again: those that match every given filter."""

    ids: list[str] | None = Field(
        default=None, max_length=MAX_IDS, description="only these, by msgId or offsetMsgId"
    )
    topic: str | None = Field(default=None, max_length=255, description="only those that came from it")
    key: str | None = Field(default=None, max_length=1_024)
    tags: str | None = Field(default=None, max_length=4_096)
    sql: str | None = Field(default=None, max_length=4_096)
    since: int | None = Field(default=None, ge=0, le=EVER_MS)
    until: int | None = Field(default=None, ge=0, le=EVER_MS)
    to: Literal["group", "topic"] = Field(
        default="group",
        description="group: through its retry topic, so that no other group gets them; topic: to the topic that they"
        " came from, which groups in POP mode need",
    )
    limit: int = Field(default=MAX_RESENT, ge=1, le=MAX_RESENT)
    after: str | None = Field(default=None, max_length=200, description="`next` of the previous answer")
    dryRun: bool = Field(default=False, description="only report what would be sent")


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
    matched: int
    resent: int
    withoutOrigin: int
    foreign: int = Field(
        default=0,
        description="not sent: from topics that the group does not consume and `topic` does not name",
    )
    unreadable: int = Field(default=0, description="not sent: their bodies cannot be read")
    items: list[Resent] = Field(description="the first thousand")
    next: str | None = Field(description="for `after`, if there may be more")


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
    group: GroupName,
    asker: AskerNow,
    topic: str | None = Query(default=None, max_length=255, description="only those that came from it"),
    key: str | None = Query(default=None, max_length=1_024),
    tags: Filtering = None,
    sql: Filtering = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 32,
    after: After = None,
) -> DeadLetterPage:
    """The dead letters of a group, oldest first."""
    asker.authorize_group(group, Action.GET, Action.SUB)
    wanted = Resend(topic=topic, key=key, tags=tags, sql=sql, since=since, until=until)
    found = await _found(asker, group, wanted, Place.after(after), limit)
    items, following = await views(found, lambda each: DeadLetter.of(each, origin_topic=origin_of(each)))
    return DeadLetterPage(items=items, next=following and following.cursor)


@router.post("/{group}/resend")
async def resend(group: GroupName, wanted: Resend, asker: AskerNow) -> ResendOutcome:
    """Send dead letters again, as new messages. They stay where they are until they expire. A problem's member
    `resent` says how many were sent before it."""
    asker.authorize_group(group, Action.UPDATE)
    outcome = ResendOutcome(
        group=group, dryRun=wanted.dryRun, matched=0, resent=0, withoutOrigin=0, items=[], next=None
    )
    place, clock = Place.after(wanted.after), asyncio.get_running_loop()
    consumed = {wanted.topic, *await between_turns(asker.state.offsets.topics_of(group))}
    if (live := asker.state.clients.consumer(group)) is not None:
        consumed |= live.subscriptions.keys()
    end = clock.time() + RESEND_S
    while outcome.matched < wanted.limit:
        found = await _found(asker, group, wanted, place, min(STEP, wanted.limit - outcome.matched))
        await _send_again(asker, group, found.messages, wanted, outcome, consumed)
        place = found.next
        if place is None or clock.time() >= end:
            break
    outcome.next = place and place.cursor
    return outcome


async def _found(asker: Asker, group: str, wanted: Resend, place: Place | None, limit: int) -> MessagesFound:
    """Raises Problem."""
    topic = asker.state.topics.get(dlq_topic(group))
    if topic is None:
        raise Problem(404, f"group {group!r} has no dead letters")
    ids = None if wanted.ids is None else frozenset(wanted.ids)
    letters = LetterChoice(wanted.topic, key=wanted.key, ids=ids)
    chosen = choose(asker, wanted.tags, wanted.sql, letters.takes)
    spans = spans_of(asker, topic.name, range(topic.queue_limit), place, None, wanted.since, wanted.until)
    return await read_some(asker, topic.name, spans, limit, chosen)


async def _send_again(
    asker: Asker,
    group: str,
    messages: list[MessageExt],
    wanted: Resend,
    outcome: ResendOutcome,
    consumed: Collection[str | None],
) -> None:
    """Raises Problem."""

    async def copies() -> AsyncIterator[Message]:
        for message in messages:
            again, is_readable = None, True
            try:
                # May inflate the body.
                again = await asyncio.to_thread(resent_copy, message, group, wanted.to)
            except InvalidMessage:
                is_readable = False
            if len(outcome.items) < SHOWN:
                to = None if again is None else again.topic
                stored_ms = message.store_timestamp_ms
                outcome.items.append(Resent(message.message_id, to, message.tags, message.keys, stored_ms))
            if not is_readable:
                outcome.unreadable += 1
            elif again is None:
                outcome.withoutOrigin += 1
            elif origin_of(message) not in consumed:
                outcome.foreign += 1
            elif not wanted.dryRun:
                yield again

    async def send(message: Message) -> asyncio.Task[Command]:
        properties = {**message.properties, "UNIQ_KEY": new_unique_id(), "WAIT": "true"}
        encoded = encode_stored_properties(properties).decode()
        header = asker.sending(message.topic, encoded, flag=message.flag)
        return asyncio.create_task(asker.ask(RequestCode.SEND_MESSAGE_V2, header, message.body))

    outcome.matched += len(messages)
    try:
        outcome.resent += await send_each(send, copies())
    except NotAllSent as error:
        if isinstance(error.first, Problem):
            error.first.more["resent"] = outcome.resent + error.sent
        raise error.first from None
