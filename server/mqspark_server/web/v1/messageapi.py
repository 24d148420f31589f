"""/api/v1/topics/{topic}/messages: read messages by offset, time, key, id and filter, or the newest."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from mqspark.auth.policies import Action
from mqspark.broker.pull.lookups import readable
from mqspark.errors import InvalidMessage, StoreUnreadable
from mqspark.message import MessageExt, decode_offset_id, has_key
from mqspark.protocol.slices import Work
from mqspark.record.record import Parts, take_apart
from mqspark.record.recordlayout import record_position
from mqspark.store.index.keys import Sought
from mqspark_server.shown.messagerow import MessageView
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.turns import between_turns
from mqspark_server.web.v1.asking import ERRORS, IN_QUERY, Asker, AskerNow, ItemPage, TopicName
from mqspark_server.web.v1.storedmessages import (
    EVER_MS,
    PAGE_BYTES,
    Chosen,
    KeyPlace,
    MessagesFound,
    OfQueues,
    Place,
    Spanned,
    choose,
    page_of,
    read_records,
    read_some,
    views_of,
)

MAX_MESSAGES = 1_000
"""The most of one page."""
MAX_LOOKUPS = 64
"""Searches of the index for one page."""
_EXCLUDED = {
    "last": {"key", "offset", "tags", "sql", "since", "until", "after"},
    "key": {"offset", "sql"},
    "offset": {"since"},
}
"""What each way to find messages does not go with."""

router = APIRouter(prefix="/api/v1/topics", tags=["messages"], responses=ERRORS)


class MessagesAsked(OfQueues, Spanned):
    model_config = IN_QUERY

    offset: int | None = Field(default=None, ge=0, le=EVER_MS, description="the first; needs queueId")
    key: str | None = Field(default=None, min_length=1, max_length=1_024)
    last: int | None = Field(
        default=None, ge=1, le=MAX_MESSAGES, description="the newest of all queues, newest first"
    )
    limit: int = Field(default=32, ge=1, le=MAX_MESSAGES, description="the most messages to return")

    def check(self) -> None:
        """Raises Problem for fields that exclude each other."""
        given = {name for name, value in self if value not in (None, "")}
        for way, others in _EXCLUDED.items():
            if way in given and (wrong := given & others):
                raise Problem(422, f"{way} excludes {', '.join(sorted(wrong))}")
        if self.offset is not None and self.queueId is None:
            raise Problem(422, "offset needs queueId")


@router.get("/{topic}/messages")
async def list_messages(
    topic: TopicName, asker: AskerNow, asked: Annotated[MessagesAsked, Query()]
) -> ItemPage[MessageView]:
    """Messages of a topic, queue by queue and in the order of each; with `key` by the index: the first page has the
    newest ones, the next page older ones, and each is in the order of storing; with `last` the newest."""
    asker.authorize_topic(topic, Action.GET, Action.SUB)
    queue_ids = asked.queue_ids(asker.topic(topic))
    asked.check()
    chosen = choose(asker, asked)
    if asked.key is not None:
        between_ms = asked.since or 0, EVER_MS if asked.until is None else max(0, asked.until - 1)
        messages, place_of_last = await _by_key(
            asker, topic, asked.key, between_ms, asked.limit, chosen.takes, KeyPlace.after(asked.after)
        )
        items = await views_of(messages, MessageView.of)
        if len(items) < len(messages):
            place_of_last = KeyPlace.of(messages[len(items) - 1])
        return ItemPage(items=items[::-1], next=place_of_last and place_of_last.cursor)
    if asked.last is not None:
        newest = await _newest(asker, topic, queue_ids, asked.last)
        return await page_of(MessagesFound(newest, None), MessageView.of)
    spans = spans_of(asker, topic, queue_ids, Place.after(asked.after), asked, asked.offset or 0)
    return await page_of(await read_some(asker, topic, spans, asked.limit, chosen), MessageView.of)


@router.get("/{topic}/messages/{messageId}")
async def one_message(topic: TopicName, messageId: str, asker: AskerNow) -> MessageView:
    """The message with this id: the broker's, or a producer's unique id."""
    asker.authorize_topic(topic, Action.GET, Action.SUB)
    asker.topic(topic)

    def is_meant(message: MessageExt) -> bool:
        return message.topic == topic and messageId in (message.message_id, message.offset_message_id)

    found = await _by_offset_id(asker, messageId, is_meant)
    if not found:
        found, _ = await _by_key(asker, topic, messageId, (0, EVER_MS), 1, is_meant, unique_first=True)
    if not found:
        raise Problem(404, f"topic {topic} has no message {messageId[:100]!r}")
    return (await views_of(found[:1], MessageView.of))[0]


def spans_of(
    asker: Asker, topic: str, queue_ids: range, place: Place | None, asked: Spanned, first: int = 0
) -> Iterator[tuple[int, int, int]]:
    """What is to be read, from ``place`` on: queue id, first offset, end."""
    store = asker.state.store
    for queue_id in queue_ids:
        if place is not None and queue_id < place.queue_id:
            continue
        if not store.offsets.has_queue(topic, queue_id):
            continue
        end = store.offsets.max_offset(topic, queue_id)
        if asked.until is not None:
            end = min(end, store.offsets.offset_by_timestamp(topic, queue_id, asked.until))
        begin = first
        if asked.since is not None:
            begin = store.offsets.offset_by_timestamp(topic, queue_id, asked.since)
        if place is not None and queue_id == place.queue_id:
            begin = max(begin, place.offset)
        yield queue_id, begin, end


async def _newest(asker: Asker, topic: str, queue_ids: range, count: int) -> list[MessageExt]:
    """By the time of storing, the newest first."""
    store = asker.state.store

    def chosen() -> Work[dict[int, tuple[int, int]]]:
        """Queue id to the offsets from the first to the last, by going back through all queues at once."""
        waiting = []
        for number, queue_id in enumerate(queue_ids):
            end = store.offsets.max_offset(topic, queue_id)
            if end > store.offsets.min_offset(topic, queue_id):
                waiting.append(
                    (-store.offsets.store_timestamp_at(topic, queue_id, end - 1), queue_id, end - 1)
                )
            if number % 64 == 0:
                yield
        heapq.heapify(waiting)
        taken: dict[int, tuple[int, int]] = {}
        for _ in range(count):
            if not waiting:
                break
            _, queue_id, offset = heapq.heappop(waiting)
            taken[queue_id] = offset, taken.get(queue_id, (0, offset + 1))[1]
            if offset > store.offsets.min_offset(topic, queue_id):
                earlier = store.offsets.store_timestamp_at(topic, queue_id, offset - 1)
                heapq.heappush(waiting, (-earlier, queue_id, offset - 1))
            yield
        return taken

    spans = [(queue_id, first, end) for queue_id, (first, end) in (await between_turns(chosen())).items()]
    found = await read_some(asker, topic, spans, count, Chosen(), max_steps=2 * MAX_MESSAGES)
    return sorted(
        found.messages, key=lambda each: (each.store_timestamp_ms, each.physical_offset), reverse=True
    )


async def _by_key(
    asker: Asker,
    topic: str,
    key: str,
    between_ms: tuple[int, int],
    limit: int,
    accepts: Callable[[MessageExt], bool],
    place: KeyPlace | None = None,
    *,
    unique_first: bool = False,
) -> tuple[list[MessageExt], KeyPlace | None]:
    """The newest first, and the last one if there may be more; with ``place`` those before it. Raises Problem."""

    def is_meant(message: MessageExt) -> bool:  # not every message of a batch has its keys
        return (
            has_key(message.properties, key)
            and (place is None or KeyPlace.of(message) < place)
            and accepts(message)
        )

    found: list[MessageExt] = []
    before = None if place is None else place.position + 1
    for _ in range(MAX_LOOKUPS):
        search = asker.state.store.reads.search(
            Sought(topic, key),
            limit,
            *between_ms,
            unique_first=unique_first,
            before=before,
            accepts=_readable(asker),
        )
        with as_problem(503, StoreUnreadable), as_problem(400, InvalidMessage):
            records = await between_turns(search)
        if not records:
            return found, None
        found += sorted(await read_records(asker, records[::-1], is_meant), key=KeyPlace.of, reverse=True)
        if len(found) >= limit or sum(each.stored_body_bytes for each in found) > PAGE_BYTES:
            return found[:limit], KeyPlace.of(found[:limit][-1])
        before = record_position(records[0])
    return found, KeyPlace(before or 0, 0)


def _readable(asker: Asker) -> Callable[[Parts], bool]:
    """Whether the caller may read what a record is for."""

    def may_read(topic: str) -> bool:
        try:
            asker.authorize_topic(topic, Action.GET, Action.SUB)
        except Problem:
            return False
        return True

    return readable(may_read)


async def _by_offset_id(
    asker: Asker, message_id: str, accepts: Callable[[MessageExt], bool]
) -> list[MessageExt]:
    try:
        _, _, position = decode_offset_id(message_id)
    except InvalidMessage:
        return []
    with as_problem(503, StoreUnreadable):
        record = asker.state.store.reads.record_at(position)
    if record is None or not _readable(asker)(take_apart(record)):
        return []
    return await read_records(asker, [record], accepts)
