"""What the pages about topics and groups show, asked of a cluster over the wire, in bounded numbers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from mqspark.errors import BrokerError, InvalidMessage, MQError
from mqspark.message import (
    DLQ_PREFIX,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    MessageExt,
    MessageQueue,
    is_system_group,
    is_system_topic,
    parse_number,
)
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo
from mqspark.protocol.bodies.body import decode_body, queue_of
from mqspark.protocol.bodies.client_bodies import MessageRequestModeSerializeWrapper
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import (
    GetConsumerRunningInfoRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
)

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient

PAGE_ROWS = 50
"""Topics or groups of a page; each is asked for."""
MAX_ROWS = 256
"""The most rows of every other table."""
MESSAGES = 20
FILTERED = 2_000
"""The number of newest messages of a queue that a filter searches."""
READS = 64
"""The most reads of one queue for one page, with a filter."""
GROUPS_SHOWN = 50
LAGS_ASKED = 100
LAGS_SHOWN = 5
MODES = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
PERMS = {PERM_READ | PERM_WRITE: "read and write", PERM_READ: "read only", PERM_WRITE: "write only"}
AT_ONCE = 8
LOOKS = ("latest", "offset", "time", "key")
VIEWS = ("text", "json", "hex")
MAX_STACKS_LENGTH = 256 * 1024
_OFFSET_DIGITS = 18

Row = dict[str, Any]


@dataclass(slots=True)
class Page:
    """Some of the names that contain ``wanted``."""

    rows: list[Row]
    wanted: str
    number: int
    count: int
    size: int = PAGE_ROWS

    @property
    def first(self) -> int:
        return (self.number - 1) * self.size + 1

    @property
    def last(self) -> int:
        return min(self.number * self.size, self.count)


@dataclass(frozen=True, slots=True)
class Look:
    """Which messages of a topic to show, and how."""

    by: str = "latest"
    value: str = ""
    tag: str = ""
    view: str = "text"
    sql: str = ""


class ConsoleData:
    """Raises MQError as the admin client does."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    # --- topics ---

    async def topics(self, wanted: str, number: int, every: bool) -> Page:
        names, info = await asyncio.gather(self._admin.topic_list(), self._admin.cluster_info())
        own = {*info.cluster_addr_table, *info.broker_addr_table}
        rows: list[Row] = [
            {"topic": name, "kind": "system" if name in own else _kind(name)}
            for name in names
            if wanted.lower() in name.lower()
        ]
        return await paged(
            [row for row in rows if every or row["kind"] == "normal"], wanted, number, self._add_extent
        )

    async def _add_extent(self, row: Row) -> None:
        row |= {"queues": None, "messages": None, "last_ms": None, "error": ""}
        try:
            stats = (await self._admin.topic_stats(row["topic"])).values()
        except MQError as error:
            row["error"] = str(error)
            return
        row["queues"] = len(stats)
        row["messages"] = sum(each.max_offset - each.min_offset for each in stats)
        row["last_ms"] = max((each.last_update_timestamp for each in stats), default=None)

    async def bounds(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """For each queue the first offset, and the one after its last message. Raises NoRoute."""
        stats = await self._admin.topic_stats(topic)
        return {queue: (each.min_offset, each.max_offset) for queue, each in stats.items()}

    async def groups_of(self, topic: str) -> list[str]:
        try:
            return await self._admin.topic_groups(topic)
        except BrokerError:
            return []  # RocketMQ 4 refuses it for some system topics

    async def topic_configs(self, topic: str) -> list[Row]:
        """Its settings at each broker. Raises NoRoute."""
        route = await self._admin.topic_route(topic)
        rows: list[Row] = [
            {"broker": name, "address": route.master(name)} for name in sorted(route.brokers)[:MAX_ROWS]
        ]

        async def add(row: Row) -> None:
            row["error"] = ""
            if row["address"] is None:
                row["error"] = "no master is known"
                return
            try:
                config = await self._admin.topic_config(topic, row["address"])
            except MQError as error:
                row["error"] = str(error)
                return
            row["read_queues"], row["write_queues"] = config.read_queue_nums, config.write_queue_nums
            row["perm"] = PERMS.get(config.perm & (PERM_READ | PERM_WRITE), "neither")
            row["order"] = config.order
            row["attributes"] = ", ".join(f"{key}={value}" for key, value in config.attributes.items())

        await each_of(rows, add)
        return rows

    async def topic(self, topic: str) -> Row:
        stats, groups = await asyncio.gather(self._admin.topic_stats(topic), self.groups_of(topic))
        queues: list[Row] = [
            {
                "at": queue,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "first": each.min_offset,
                "next": each.max_offset,
                "count": each.max_offset - each.min_offset,
                "last_ms": each.last_update_timestamp if each.max_offset > each.min_offset else None,
                "first_ms": None,
            }
            for queue, each in islice(stats.items(), MAX_ROWS)
        ]

        async def add_begin(row: Row) -> None:
            with contextlib.suppress(MQError):  # the span is shown without its begin
                row["first_ms"] = await self._earliest(row["at"])

        await each_of([row for row in queues if row["count"]], add_begin)
        shown: list[Row] = [{"group": name} for name in groups[:GROUPS_SHOWN]]

        async def add_lag(row: Row) -> None:
            try:
                row["lag"] = await self._admin.group_lag(row["group"], topic)
            except MQError:
                row["lag"] = None

        await each_of(shown, add_lag)
        return {
            "topic": topic,
            "queues": queues,
            "queues_left_out": len(stats) - len(queues),
            "count": sum(each.max_offset - each.min_offset for each in stats.values()),
            "queue_count": len(stats),
            "first_ms": min((row["first_ms"] for row in queues if row["first_ms"]), default=None),
            "last_ms": max((row["last_ms"] for row in queues if row["last_ms"]), default=None),
            "largest": max((row["count"] for row in queues), default=0),
            "groups": shown,
            "groups_left_out": max(0, len(groups) - GROUPS_SHOWN),
            "group_count": len(groups),
        }

    async def _earliest(self, queue: MessageQueue) -> int | None:
        """When the first message of a queue was stored."""
        header = GetEarliestMsgStoretimeRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        address = (await self._admin.topic_route(queue.topic)).master(queue.broker_name)
        if address is None:
            return None
        answer = await self._admin.ask(address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        found = parse_number(answer.ext.get("timestamp"))
        return found if found is not None and found > 0 else None

    async def messages(
        self, topic: str, look: Look, bounds: dict[MessageQueue, tuple[int, int]]
    ) -> list[MessageExt]:
        """At most MESSAGES: from an offset or time on, or else the newest first. Raises InvalidMessage."""
        value = look.value.strip()
        if look.sql and (look.tag or look.by == "key"):
            raise InvalidMessage("an expression excludes a tag and a key", field="sql")
        if look.by == "key":
            if not value:
                raise InvalidMessage("give the key to find", field="value")
            found = await self._admin.messages_by_key(topic, value, max_messages=MESSAGES)
            if not found:
                found = await self._admin.messages_by_key(topic, value, unique=True, max_messages=MESSAGES)
            if look.tag:
                found = [each for each in found if each.tags == look.tag]
            return found[-MESSAGES:][::-1]
        at_ms = time_ms(value) if look.by == "time" else 0
        if look.by == "offset" and not (
            value.isascii() and value.isdecimal() and len(value) <= _OFFSET_DIGITS
        ):
            raise InvalidMessage("give an offset, a whole number", field="value")
        is_filtered = bool(look.sql or look.tag)
        read: list[MessageExt] = []

        async def one(queue: MessageQueue) -> None:
            low, high = bounds[queue]
            if look.by == "time":
                begin = await self._admin.offset_at(queue, at_ms)
            else:
                begin = int(value) if look.by == "offset" else high - (FILTERED if is_filtered else MESSAGES)
            offset = max(low, begin)
            found: deque[MessageExt] = deque(maxlen=MESSAGES)
            for _ in range(READS if is_filtered else 1):
                if offset >= high:
                    break
                answer = await self._admin.read(
                    queue,
                    offset,
                    max_messages=MESSAGES,
                    expression=look.sql or look.tag or "*",
                    expression_type="SQL92" if look.sql else "TAG",
                )
                found.extend(answer.messages)
                if answer.next_offset <= offset or (look.by != "latest" and len(found) == MESSAGES):
                    break
                offset = answer.next_offset
            read.extend(found)

        readable = [queue for queue, (low, high) in islice(bounds.items(), MAX_ROWS) if low < high]
        await each_of(readable, one)
        read.sort(key=lambda each: (each.store_timestamp_ms, each.physical_offset, each.queue_offset))
        return read[-MESSAGES:][::-1] if look.by == "latest" else read[:MESSAGES]

    # --- groups ---

    async def groups(self, wanted: str, number: int, every: bool) -> Page:
        rows: list[Row] = [
            {
                "group": name,
                "retries": config.retry_max_times,
                "ordered": config.consume_message_orderly,
                "enabled": config.consume_enable,
            }
            for name, config in (await self._admin.groups()).items()
            if wanted.lower() in name.lower() and (every or not is_system_group(name))
        ]
        return await paged(rows, wanted, number, self._add_progress)

    async def largest_lags(self) -> Row:
        """The groups with the largest lag among the first LAGS_ASKED."""
        names = [name for name in await self._admin.groups() if not is_system_group(name)]
        rows: list[Row] = [{"group": name} for name in names[:LAGS_ASKED]]

        async def fill(row: Row) -> None:
            try:
                row["lag"] = await self._admin.group_lag(row["group"])
            except MQError:
                row["lag"] = None  # it has committed nothing anywhere

        await each_of(rows, fill)
        behind = sorted((row for row in rows if row["lag"]), key=lambda row: -row["lag"])
        return {"behind": behind[:LAGS_SHOWN], "asked": len(rows), "count": len(names)}

    async def _add_progress(self, row: Row) -> None:
        row["members"] = len((await self._members(row["group"]))[0])
        try:
            row["lag"] = await self._admin.group_lag(row["group"])
        except MQError:
            row["lag"] = None  # it has committed nothing anywhere

    async def _members(self, group: str) -> tuple[list[Row], int]:
        try:
            found = await self._admin.group_members(group)
        except BrokerError as error:
            if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                return [], 0
            raise
        rows = [
            {
                "client_id": each.client_id,
                "address": each.client_addr,
                "language": each.language,
                "version": each.version,
                "mode": MODES.get(found.consume_type or "", found.consume_type),
                "model": (found.message_model or "").lower(),
            }
            for each in sorted(found.connection_set, key=lambda each: each.client_id)
        ]
        return rows[:MAX_ROWS], len(rows)

    async def member_count(self, group: str) -> int:
        return (await self._members(group))[1]

    async def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has offsets."""
        try:
            return sorted({queue.topic for queue in await self._admin.group_offsets(group)})
        except MQError:
            return []

    async def modes_of(self, group: str) -> list[Row]:
        """Topics for which the mode of the group (pull or pop) is set, as one broker has them: all brokers have the
        same."""
        for address in (
            each.broker_addrs.get(0) for each in (await self._admin.cluster_info()).broker_addr_table.values()
        ):
            if address is None:
                continue
            try:
                answer = await self._admin.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
            except BrokerError:
                return []  # RocketMQ 4
            modes = decode_body(MessageRequestModeSerializeWrapper, answer.body).message_request_mode_map
            return [
                {"topic": topic, "mode": groups[group].mode, "share": groups[group].pop_share_queue_num}
                for topic, groups in sorted(modes.items())
                if group in groups
            ][:MAX_ROWS]
        return []

    async def member(self, group: str, client_id: str) -> Row:
        """What a consumer reports about itself, with the stacks of its threads. Raises BrokerError if it is not
        there."""
        info = await self._running_info(group, client_id)
        queues = [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "cached": each.cached_msg_count,
                "committed": each.commit_offset,
                "pulled_ms": each.last_pull_timestamp,
                "consumed_ms": each.last_consume_timestamp,
            }
            for queue, each in (
                (queue_of(key), each) for key, each in islice(info.mq_table.items(), MAX_ROWS)
            )
        ]
        popped = [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "waiting": each.wait_ack_count,
                "popped_ms": each.last_pop_timestamp,
            }
            for queue, each in (
                (queue_of(key), each) for key, each in islice(info.mq_pop_table.items(), MAX_ROWS)
            )
        ]
        rates = [
            {
                "topic": topic,
                "pull_tps": each.pull_tps,
                "ok_tps": each.consume_ok_tps,
                "failed_tps": each.consume_failed_tps,
                "consume_ms": each.consume_rt,
                "failed": each.consume_failed_msgs,
            }
            for topic, each in islice(sorted(info.status_table.items()), MAX_ROWS)
        ]
        return {
            "group": group,
            "client_id": client_id,
            "properties": list(islice(sorted(info.properties.items()), MAX_ROWS)),
            "queues": sorted(queues, key=lambda row: (row["topic"], row["broker"], row["queue"])),
            "popped": popped,
            "rates": rates,
            "stacks": None if info.jstack is None else info.jstack[:MAX_STACKS_LENGTH],
        }

    async def _running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=True
        )
        refused: MQError | None = None
        for each in (await self._admin.cluster_info()).broker_addr_table.values():
            address = each.broker_addrs.get(0)
            if address is None:
                continue
            try:
                answer = await self._admin.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            except BrokerError as error:
                refused = error
                continue
            return decode_body(ConsumerRunningInfo, answer.body)
        raise refused or InvalidMessage("there is no broker", field="group")

    async def group(self, group: str) -> Row:
        offsets = await self._admin.group_offsets(group)
        members, count = await self._members(group)
        queues = [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "committed": each.committed if each.committed >= 0 else None,
                "end": each.max_offset,
                "lag": each.lag,
            }
            for queue, each in islice(offsets.items(), MAX_ROWS)
        ]
        return {
            "group": group,
            "members": members,
            "member_count": count,
            "queues": queues,
            "queues_left_out": len(offsets) - len(queues),
            "lag": sum(each.lag for each in offsets.values()),
        }


async def paged(rows: list[Row], wanted: str, number: int, fill: Callable[[Row], Awaitable[None]]) -> Page:
    last = max(1, -(-len(rows) // PAGE_ROWS))
    number = min(number, last)
    shown = rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]
    await each_of(shown, fill)
    return Page(shown, wanted, number, len(rows))


async def each_of(items: Sequence[Any], work: Callable[[Any], Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: Any) -> None:
        async with gate:
            await work(item)

    await asyncio.gather(*map(one, items))


def _kind(name: str) -> str:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    return "system" if is_system_topic(name) or name.endswith("_REPLY_TOPIC") else "normal"


def time_ms(text: str) -> int:
    """Raises InvalidMessage."""
    try:
        if text.isascii() and text.isdecimal() and len(text) <= _OFFSET_DIGITS:
            return int(text)
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        problem = "give a time as 2026-01-31T12:00 or in ms since the epoch"
        raise InvalidMessage(problem, field="value") from None


def number_of(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None  # a broker that is not ready sends a text instead
