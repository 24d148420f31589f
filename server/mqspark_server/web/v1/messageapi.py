"""/api/v1/topics/{topic}/messages: read messages by offset, time, key, id and filter, or the newest."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

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
from mqspark_server.web.v1.asking import ERRORS, After, Asker, AskerNow, QueueId, TopicName
from mqspark_server.web.v1.storedmessages import (
    PAGE_BYTES,
    Chosen,
    KeyPlace,
    MessagesFound,
    Place,
    choose,
    read_records,
    read_some,
    views,
    views_of,
)

MAX_MESSAGES = 1_000
"""The most of one page."""
MAX_LOOKUPS = 64
"""Searches of the index for one page."""
EVER_MS = (1 << 62) - 1

router = APIRouter(prefix="/api/v1/topics", tags=["messages"], responses=ERRORS)

Since = Annotated[
    int | None, Query(ge=0, le=EVER_MS, description="stored at or after this time, ms since 1970")
]
Until = Annotated[int | None, Query(ge=0, le=EVER_MS, description="stored before this time, ms since 1970")]
Filtering = Annotated[
    str | None, Query(max_length=4_096, description="tags as `a || b`, or an expression of SQL92")
]
_Limit = Annotated[int, Query(ge=1, le=MAX_MESSAGES, description="the most messages to return")]


class MessagePage(BaseModel):
    items: list[MessageView]
    next: str | None = Field(
        description="the `after` of the next page; null on the last page. With a filter a page may have few items"
        " or none, and not be the last."
    )


@router.get("/{topic}/messages")
async def list_messages(
    topic: TopicName,
    asker: AskerNow,
    queueId: Annotated[QueueId | None, Query(description="absent: all queues, in turn")] = None,
    offset: Annotated[int | None, Query(ge=0, le=EVER_MS, description="the first; needs queueId")] = None,
    since: Since = None,
    until: Until = None,
    key: Annotated[str | None, Query(min_length=1, max_length=1_024)] = None,
    tags: Filtering = None,
    sql: Filtering = None,
    last: Annotated[
        int | None, Query(ge=1, le=MAX_MESSAGES, description="the newest of all queues, newest first")
    ] = None,
    limit: _Limit = 32,
    after: After = None,
) -> MessagePage:
    """Messages of a topic, queue by queue and in the order of each; with `key` by the index: the first page has the
    newest ones, the next page older ones, and each is in the order of storing; with `last` the newest."""
    asker.authorize_topic(topic, Action.GET, Action.SUB)
    found = asker.topic(topic)
    if offset is not None and (queueId is None or since is not None):
        raise Problem(422, "offset needs queueId, and excludes since")
    ways = [name for name, given in (("key", key), ("last", last)) if given is not None]
    if len(ways) == 2 or (ways and any(each is not None for each in (offset, sql))):
        raise Problem(422, f"{ways[0]} excludes offset and sql, and key excludes last")
    if last is not None and after is not None:
        raise Problem(422, "last excludes after")
    if last is not None and (tags or since is not None or until is not None):
        raise Problem(422, "last excludes filters and times")
    chosen = choose(asker, tags, sql)
    if key is not None:
        between_ms = since or 0, EVER_MS if until is None else max(0, until - 1)
        messages, place_of_last = await _by_key(
            asker, topic, key, between_ms, limit, chosen.takes, KeyPlace.after(after)
        )
        items = await views_of(messages, MessageView.of)
        if len(items) < len(messages):
            place_of_last = KeyPlace.of(messages[len(items) - 1])
        return MessagePage(items=items[::-1], next=place_of_last and place_of_last.cursor)
    queue_ids = range(found.queue_limit) if queueId is None else range(queueId, queueId + 1)
    if last is not None:
        return await page_of(MessagesFound(await _newest(asker, topic, queue_ids, last), None))
    place = Place.after(after)
    spans = spans_of(asker, topic, queue_ids, place, offset, since, until)
    return await page_of(await read_some(asker, topic, spans, limit, chosen))


@router.get("/{topic}/messages/{messageId}")
async def one_message(topic: TopicName, messageId: str, asker: AskerNow) -> MessageView:
    """The message with this id: the broker's, or a producer's unique id."""
    asker.authorize_topic(topic, Action.GET, Action.SUB)
    asker.topic(topic)

    def is_meant(message: MessageExt) -> bool:
        return message.topic == topic and messageId in (message.message_id, message.offset_message_id)

    for messages in (
        await _by_offset_id(asker, messageId, is_meant),
        (await _by_key(asker, topic, messageId, (0, EVER_MS), 1, is_meant, unique_first=True))[0],
    ):
        if messages:
            return (await views_of(messages[:1], MessageView.of))[0]
    raise Problem(404, f"topic {topic} has no message {messageId[:100]!r}")


def spans_of(
    asker: Asker,
    topic: str,
    queue_ids: range,
    place: Place | None,
    offset: int | None = None,
    since: int | None = None,
    until: int | None = None,
) -> Iterator[tuple[int, int, int]]:
    """What is to be read, from ``place`` on: queue id, first offset, end."""
    store = asker.state.store
    for queue_id in queue_ids:
        if place is not None and queue_id < place.queue_id:
            continue
        if not store.offsets.has_queue(topic, queue_id):
            continue
        end = store.offsets.max_offset(topic, queue_id)
        if until is not None:
            end = min(end, store.offsets.offset_by_timestamp(topic, queue_id, until))
        first = offset or 0
        if since is not None:
            first = store.offsets.offset_by_timestamp(topic, queue_id, since)
        if place is not None and queue_id == place.queue_id:
            first = max(first, place.offset)
        yield queue_id, first, end


async def page_of(found: MessagesFound) -> MessagePage:
    shown, following = await views(found, MessageView.of)
    return MessagePage(items=shown, next=following and following.cursor)


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
