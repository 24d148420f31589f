"""Stored messages for /api/v1: chosen by a filter, read in bounded steps, shown as JSON.

A step reads the store on the loop, within the limits of a pull; bodies are inflated and made text in another thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple, TypeVar

from pydantic import Field

from mqspark.broker.pull.pull import check_expression_type
from mqspark.broker.state.heldrequests import Wanted, get_wanted
from mqspark.broker.tables.topics import Topic
from mqspark.errors import InvalidFilter, InvalidMessage, StoreUnreadable
from mqspark.filter.sql import SQL92, compile_sql
from mqspark.filter.tags import tag_codes
from mqspark.message import MessageExt, split_tags
from mqspark.protocol.dispatch import Refusal
from mqspark.record.record import decode_pull, decode_records
from mqspark.store.messages.fetch import GetStatus
from mqspark.store.store import MessageStore
from mqspark_server.shown.messagerow import MessageView
from mqspark_server.shown.nouns import WholeNumbers
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.v1.asking import IN_QUERY, Asker, Given, ItemPage, QueueId, cursor, decoded

PAGE_BYTES = 4 << 20
"""The most of the bodies of one page, but at least one message."""
STEP_MESSAGES = 256
STEP_BYTES = 1 << 20
_KEY_MARK = "key:"
"""Begins the cursor of a page of a look-up by key."""
SMALL_BYTES = 64 << 10
"""The largest records that are decoded on the loop. An inner batch of some hundred KB becomes 32,767 messages."""
SPANS_AT_ONCE = 64
"""Spans that are found without a turn of others: each may take a search by time."""
MAX_FOUND = 1_000
"""Messages that the records of one key give, and those of the last record."""
MAX_STEPS = 64
"""Reads of the store for one page; a page with a filter may end before it is full."""


EVER_MS = (1 << 62) - 1
_Time = Annotated[int, WholeNumbers(0, EVER_MS)]
_Expression = Annotated[str, Field(max_length=4_096)]

V = TypeVar("V", bound=MessageView)


class Filtered(Given):
    """Messages that match every given filter."""

    tags: _Expression | None = Field(default=None, description="as `a || b`")
    sql: _Expression | None = Field(default=None, description="an expression of SQL92")


class OfQueues(Filtered):
    model_config = IN_QUERY

    queueId: QueueId | None = Field(default=None, description="absent: all queues, in turn")

    def queue_ids(self, topic: Topic) -> range:
        return range(topic.queue_limit) if self.queueId is None else range(self.queueId, self.queueId + 1)


class Spanned(Filtered):
    since: _Time | None = Field(default=None, description="stored at or after this time, ms since 1970")
    until: _Time | None = Field(default=None, description="stored before this time, ms since 1970")
    after: str | None = Field(default=None, max_length=200, description="`next` of the previous answer")


class Place(NamedTuple):
    """Where a read goes on."""

    queue_id: int
    offset: int

    @property
    def cursor(self) -> str:
        return cursor(f"{self.queue_id}:{self.offset}")

    @classmethod
    def after(cls, text: str | None) -> Place | None:
        """Raises Problem for an invalid cursor."""
        return None if text is None else cls(*_numbers(text, ""))


class KeyPlace(NamedTuple):
    """The message of a look-up that comes before the ones that a read goes on with: its position in the log and its
    offset, since one record may have several messages."""

    position: int
    offset: int

    @classmethod
    def of(cls, message: MessageExt) -> KeyPlace:
        return cls(message.physical_offset, message.queue_offset)

    @property
    def cursor(self) -> str:
        return cursor(f"{_KEY_MARK}{self.position}:{self.offset}")

    @classmethod
    def after(cls, text: str | None) -> KeyPlace | None:
        """Raises Problem for an invalid cursor."""
        return None if text is None else cls(*_numbers(text, _KEY_MARK))


def _numbers(text: str, mark: str) -> map[int]:
    found = re.fullmatch(rf"{mark}([0-9]{{1,19}}):([0-9]{{1,19}})", decoded(text))
    if found is None:
        raise Problem(400, "the cursor is not of such a page: leave `after` out for the first page")
    return map(int, found.groups())


class Chosen(NamedTuple):
    """A filter. ``tags``: their texts, since the store compares only hashes; ``accepts``: conditions that no index
    covers."""

    wanted: Wanted = None
    tags: frozenset[str] = frozenset()
    accepts: Callable[[MessageExt], bool] = lambda message: True

    def takes(self, message: MessageExt) -> bool:
        return (not self.tags or message.tags in self.tags) and self.accepts(message)


class MessagesFound(NamedTuple):
    messages: list[MessageExt]
    next: Place | None
    """None: there is no more."""


def choose(
    asker: Asker, asked: Filtered, accepts: Callable[[MessageExt], bool] = lambda message: True
) -> Chosen:
    """Raises Problem for an invalid expression."""
    tags, sql = asked.tags, asked.sql
    if tags and sql:
        raise Problem(422, "tags and sql exclude each other")
    if not sql:
        with as_problem(400, InvalidMessage, text="tags: {}"):
            return Chosen(tag_codes[tags or "*"], frozenset(split_tags(tags)), accepts)
    with as_problem(400, InvalidFilter, text="sql: {}"), as_problem(501, Refusal):
        check_expression_type(asker.app.config, SQL92)
        return Chosen(compile_sql(sql), accepts=accepts)


async def read_some(
    asker: Asker,
    topic: str,
    spans: Iterable[tuple[int, int, int]],
    limit: int,
    chosen: Chosen,
    max_steps: int = MAX_STEPS,
) -> MessagesFound:
    """At most ``limit`` messages of spans (queue id, first offset, end), one span after another. Raises Problem."""
    store, found, steps, stored_bytes = asker.state.store, list[MessageExt](), 0, 0
    for number, (queue_id, first, end) in enumerate(spans, 1):
        if number % SPANS_AT_ONCE == 0:
            await asyncio.sleep(0)
        offset = max(first, store.offsets.min_offset(topic, queue_id))
        while offset < end:
            if len(found) >= limit or steps >= max_steps or stored_bytes >= PAGE_BYTES:
                return MessagesFound(found, Place(queue_id, offset))
            steps += 1
            wanted = min(STEP_MESSAGES, limit - len(found), end - offset)
            messages, following = await _read_step(
                asker, store, topic, Place(queue_id, offset), wanted, chosen
            )
            for message in messages:
                if message.queue_offset >= end:
                    following = end
                    break
                if chosen.takes(message):
                    found.append(message)
                    stored_bytes += message.store_size_bytes
                    if len(found) >= limit:
                        following = message.queue_offset + 1
                        break
            offset = following
            await asyncio.sleep(0)
    return MessagesFound(found, None)


async def _read_step(
    asker: Asker, store: MessageStore, topic: str, place: Place, count: int, chosen: Chosen
) -> tuple[list[MessageExt], int]:
    """Messages, and the offset after the last one that was read."""
    queue_id, offset = place
    unreadable = f"queue {queue_id} cannot be read at {offset}: {{}}"
    with as_problem(503, StoreUnreadable), as_problem(500, InvalidMessage, text=unreadable):
        result = get_wanted(store, topic, queue_id, offset, count, STEP_BYTES, chosen.wanted)
        if result.status is not GetStatus.FOUND:
            return [], result.next_offset if result.next_offset > offset else result.max_offset
        data, name = b"".join(result.buffers), asker.app.config.broker_name
        if len(data) <= SMALL_BYTES:
            messages, rest = decode_pull(data, broker_name=name)
        else:
            messages, rest = await asyncio.to_thread(decode_pull, data, broker_name=name)
    following = result.next_offset if rest is None else rest
    return [message for message in messages if message.queue_offset >= offset], max(following, offset + 1)


async def read_records(
    asker: Asker, records: Sequence[memoryview], accepts: Callable[[MessageExt], bool]
) -> list[MessageExt]:
    """The accepted messages of single records of the log, until they are more than a page. One record is decoded at a
    time: each may have megabytes, or thousands of messages. Raises Problem."""
    name, found, size_bytes = asker.app.config.broker_name, list[MessageExt](), 0

    def accepted(record: bytes) -> list[MessageExt]:
        return [message for message in decode_records(record, broker_name=name) if accepts(message)]

    with as_problem(500, InvalidMessage, text="the message cannot be read: {}"):
        for record in records:
            data = bytes(record)
            some = accepted(data) if len(data) <= SMALL_BYTES else await asyncio.to_thread(accepted, data)
            found += some
            size_bytes += sum(message.stored_body_bytes for message in some)
            if size_bytes > PAGE_BYTES or len(found) > MAX_FOUND:
                break
    return found


async def page_of(found: MessagesFound, view_of: Callable[[MessageExt], V]) -> ItemPage[V]:
    items, following = await views_of_stored(found, view_of)
    return ItemPage(items=items, next=following and following.cursor)


async def views_of_stored(
    found: MessagesFound, view_of: Callable[[MessageExt], V]
) -> tuple[list[V], Place | None]:
    """As many of them as fit into a page, and where the next one begins."""
    page = await views_of(found.messages, view_of)
    if len(page) == len(found.messages):
        return page, found.next
    left = found.messages[len(page)]
    return page, Place(left.queue_id, left.queue_offset)


async def views_of(messages: Sequence[MessageExt], view_of: Callable[[MessageExt], V]) -> list[V]:
    """As many of them as fit into a page; the first always fits."""

    def shown() -> list[V]:
        made: list[V] = []
        size = 0
        for message in messages:
            view = view_of(message)
            size += view.size
            if made and size > PAGE_BYTES:
                break
            made.append(view)
        return made

    return await asyncio.to_thread(shown)
