"""Dead letters and traces, asked of a cluster over the wire in bounded numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Literal

from mqspark.client.admin import AdminClient
from mqspark.client.producer.producer import Producer
from mqspark.errors import MQError, NoRoute
from mqspark.message import DLQ_PREFIX, MessageExt, dlq_topic
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.data import MESSAGES, Page, Row, paged
from mqspark_server.console.site import Asking
from mqspark_server.shown.deadletters import foreign_origins, origin_of, resent_copy
from mqspark_server.shown.traces import trace_rows

MAX_EXAMINED = 10_000
"""Dead letters that one page or one resend looks at."""
MAX_RESENT = 5_000
MAX_RESENT_BYTES = 64 << 20
"""As they are stored; a resend of more goes on with the next one."""
IN_FLIGHT_BYTES = 16 << 20
TRACE_RECORDS = 64
_READ_AT_ONCE = 32
_PRODUCER_GROUP = "mqspark_console"


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters to find; an empty field matches all. ``ids``: by message id."""

    origin: str = ""
    tag: str = ""
    key: str = ""
    ids: frozenset[str] | None = None

    def takes(self, message: MessageExt) -> bool:
        return (
            (not self.origin or origin_of(message) == self.origin)
            and (not self.tag or message.tags == self.tag)
            and (not self.key or self.key in (message.keys or "").split())
            and (self.ids is None or message.message_id in self.ids)
        )

    @property
    def words(self) -> str:
        """For people."""
        parts = [
            f"{name} {value}"
            for name, value in (("from topic", self.origin), ("tag", self.tag), ("key", self.key))
            if value
        ]
        if self.ids is not None:
            parts.append(f"the {len(self.ids)} chosen")
        return ", ".join(parts) or "all"


async def dead_groups(admin: AdminClient, wanted: str, number: int) -> Page:
    names = [name for name in await admin.topic_list() if name.startswith(DLQ_PREFIX)]
    rows: list[Row] = [
        {"group": name.removeprefix(DLQ_PREFIX), "topic": name}
        for name in names
        if wanted.lower() in name.removeprefix(DLQ_PREFIX).lower()
    ]

    async def fill(row: Row) -> None:
        row |= {"messages": None, "last_ms": None, "error": ""}
        try:
            stats = (await admin.topic_stats(row["topic"])).values()
        except MQError as error:
            row["error"] = str(error)
            return
        row["messages"] = sum(each.max_offset - each.min_offset for each in stats)
        row["last_ms"] = max((each.last_update_timestamp for each in stats), default=None)

    return await paged(rows, wanted, number, fill)


async def find_letters(
    admin: AdminClient, group: str, chosen: LetterFilter, most: int = MESSAGES
) -> tuple[list[MessageExt], bool]:
    """The newest that the filter takes, newest first, and whether there may be more. Raises Trouble."""
    try:
        stats = await admin.topic_stats(dlq_topic(group))
    except NoRoute:
        raise Trouble(404, "No dead letters", f"No message of group {group} has failed for good.") from None
    found: list[MessageExt] = []
    examined = size = 0
    is_more = False
    for queue, bounds in stats.items():
        place = bounds.max_offset
        while place > bounds.min_offset:
            if examined >= MAX_EXAMINED or len(found) >= most * len(stats) or size >= MAX_RESENT_BYTES:
                is_more = True
                break
            begin = max(bounds.min_offset, place - _READ_AT_ONCE)
            examined += place - begin
            offset = begin
            while offset < place:
                answer = await admin.read(queue, offset, max_messages=place - offset)
                taken = [each for each in answer.messages if each.queue_offset < place and chosen.takes(each)]
                size += sum(each.store_size_bytes for each in taken)
                found += taken
                if answer.next_offset <= offset:
                    break
                offset = answer.next_offset
            place = begin
    found.sort(key=lambda each: (each.store_timestamp_ms, each.queue_offset), reverse=True)
    return found[:most], is_more or len(found) > most


async def resend(
    asked: Asking, group: str, messages: Collection[MessageExt], to: Literal["group", "topic"], *, origin: str
) -> tuple[int, int]:
    """How many were sent, and how many were not because their origin is unknown, or a topic that the group does not
    consume and ``origin`` does not name. Raises Trouble if some failed."""
    sent = unknown = 0
    foreign = foreign_origins(messages, {origin, *await asked.admin.consumed_topics(group)})
    failures: list[BaseException] = []
    async with Producer(asked.namesrv, group=_PRODUCER_GROUP, options=asked.options) as producer:
        waiting: list[Awaitable[object]] = []
        size = 0
        for number, message in enumerate(messages, 1):
            again = await asyncio.to_thread(resent_copy, message, group, to)  # which may inflate its body
            if again is None or origin_of(message) in foreign:
                unknown += 1
            else:
                waiting.append(await producer.send_async(again))
                size += len(again.body)
            if size >= IN_FLIGHT_BYTES or number == len(messages):
                outcomes = await asyncio.gather(*waiting, return_exceptions=True)
                failures += [each for each in outcomes if isinstance(each, BaseException)]
                sent += len(outcomes) - len(failures)
                waiting, size = [], 0
                if failures:
                    break
    if failures:
        detail = f"{sent} were sent, then {len(failures)} failed: {failures[0]}"
        raise Trouble(502, "Not all were sent", detail)
    return sent, unknown


async def traced(admin: AdminClient, message_id: str, topic: str) -> list[Row]:
    """What producers and consumers recorded of a message. Raises NoRoute for an unknown trace topic."""
    records = await admin.messages_by_key(topic, message_id, max_messages=TRACE_RECORDS)
    return trace_rows(records, message_id)
