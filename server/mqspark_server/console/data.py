"""What the pages of the console show, asked of a cluster over the wire, in bounded numbers."""

from __future__ import annotations

import asyncio
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
    SYSTEM_GROUP_PREFIX,
    MessageExt,
    MessageQueue,
    is_system_topic,
)
from mqspark.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient

__all__ = ["LOOKS", "VIEWS", "ConsoleData", "Look", "Page"]

PAGE_ROWS = 50
"""Topics or groups of a page; each is asked for."""
MAX_ROWS = 256
"""Of every other table."""
MESSAGES = 20
AT_ONCE = 8
LOOKS = ("latest", "offset", "time", "key")
VIEWS = ("text", "json", "hex")
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


class ConsoleData:
    """Raises MQError as the admin client does."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    # --- brokers ---

    async def overview(self) -> Row:
        info = await self._admin.cluster_info()
        known: list[Row] = [
            {"cluster": each.cluster, "broker": name, "id": number, "address": address}
            for name, each in sorted(info.broker_addr_table.items())
            for number, address in sorted(each.broker_addrs.items())
        ]
        brokers = known[:MAX_ROWS]
        await _each(brokers, self._add_figures)
        disks = [each["disk"] for each in brokers if each.get("disk") is not None]
        return {
            "brokers": brokers,
            "left_out": len(known) - len(brokers),
            "answering": sum(not each["error"] for each in brokers),
            "in_tps": _total(each.get("in_tps") for each in brokers if each["id"] == 0),
            "out_tps": _total(each.get("out_tps") for each in brokers),
            "disk": max(disks, default=None),
        }

    async def _add_figures(self, row: Row) -> None:
        figures: dict[str, str] = {}
        row["error"] = ""
        try:
            figures = await self._admin.broker_runtime_info(row["address"])
        except MQError as error:
            row["error"] = str(error)
        row |= {
            "version": figures.get("brokerVersionDesc"),
            "in_tps": _rate(figures.get("putTps")),
            "out_tps": _rate(figures.get("getTransferredTps") or figures.get("getTransferedTps")),
            "disk": _number(figures.get("commitLogDiskRatio")),
            "active": figures.get("brokerActive", "true") == "true",
            "stored_today": _difference(figures, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
            "read_today": _difference(figures, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        }

    # --- topics ---

    async def topics(self, wanted: str, number: int, every: bool) -> Page:
        names, info = await asyncio.gather(self._admin.topic_list(), self._admin.cluster_info())
        own = {*info.cluster_addr_table, *info.broker_addr_table}
        rows: list[Row] = [
            {"topic": name, "kind": "system" if name in own else _kind(name)}
            for name in names
            if wanted.lower() in name.lower()
        ]
        return await _paged(
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

    async def topic(self, topic: str) -> Row:
        route, stats = await asyncio.gather(self._admin.topic_route(topic), self._admin.topic_stats(topic))
        try:
            groups = await self._admin.topic_groups(topic)
        except BrokerError:
            groups = []  # RocketMQ 4 refuses it for some system topics
        configs: list[Row] = [
            {"broker": name, "address": route.master(name)} for name in sorted(route.brokers)[:MAX_ROWS]
        ]

        async def add_config(row: Row) -> None:
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
            letters = ("r" if config.perm & PERM_READ else "") + ("w" if config.perm & PERM_WRITE else "")
            row["perm"] = letters or "none"
            row["attributes"] = ", ".join(f"{key}={value}" for key, value in config.attributes.items())

        await _each(configs, add_config)
        queues = [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "first": each.min_offset,
                "next": each.max_offset,
                "last_ms": each.last_update_timestamp,
            }
            for queue, each in islice(stats.items(), MAX_ROWS)
        ]
        return {
            "topic": topic,
            "queues": queues,
            "queues_left_out": len(stats) - len(queues),
            "configs": configs,
            "groups": groups[:MAX_ROWS],
            "groups_left_out": max(0, len(groups) - MAX_ROWS),
            "bounds": {queue: (each.min_offset, each.max_offset) for queue, each in stats.items()},
        }

    async def messages(
        self, topic: str, look: Look, bounds: dict[MessageQueue, tuple[int, int]]
    ) -> list[MessageExt]:
        """At most MESSAGES, the newest first unless an offset or time is where they begin. Raises InvalidMessage."""
        value = look.value.strip()
        if look.by == "key":
            if not value:
                raise InvalidMessage("give the key to find", field="value")
            found = await self._admin.messages_by_key(topic, value, max_messages=MESSAGES)
            if not found:
                found = await self._admin.messages_by_key(topic, value, unique=True, max_messages=MESSAGES)
            if look.tag:
                found = [each for each in found if each.tags == look.tag]
            return found[-MESSAGES:][::-1]
        at_ms = _time_ms(value) if look.by == "time" else 0
        if look.by == "offset" and not (
            value.isascii() and value.isdecimal() and len(value) <= _OFFSET_DIGITS
        ):
            raise InvalidMessage("give an offset, a whole number", field="value")
        read: list[MessageExt] = []

        async def one(queue: MessageQueue) -> None:
            low, high = bounds[queue]
            if look.by == "time":
                begin = await self._admin.offset_at(queue, at_ms)
            else:
                begin = int(value) if look.by == "offset" else high - MESSAGES
            if low < high and begin < high:
                answer = await self._admin.read(
                    queue, max(low, begin), max_messages=MESSAGES, expression=look.tag or "*"
                )
                read.extend(answer.messages)

        readable = [queue for queue, (low, high) in islice(bounds.items(), MAX_ROWS) if low < high]
        await _each(readable, one)
        read.sort(key=lambda each: (each.store_timestamp_ms, each.queue_id, each.queue_offset))
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
            if wanted.lower() in name.lower() and (every or not _is_built_in(name))
        ]
        return await _paged(rows, wanted, number, self._add_progress)

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
                "mode": found.consume_type,
                "model": found.message_model,
            }
            for each in sorted(found.connection_set, key=lambda each: each.client_id)
        ]
        return rows[:MAX_ROWS], len(rows)

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


async def _paged(rows: list[Row], wanted: str, number: int, fill: Callable[[Row], Awaitable[None]]) -> Page:
    last = max(1, -(-len(rows) // PAGE_ROWS))
    number = min(number, last)
    shown = rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]
    await _each(shown, fill)
    return Page(shown, wanted, number, len(rows))


async def _each(items: Sequence[Any], work: Callable[[Any], Awaitable[None]]) -> None:
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


_BUILT_IN = frozenset(
    {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "SELF_TEST_CONSUMER_GROUP"}
)


def _is_built_in(name: str) -> bool:
    return name in _BUILT_IN or name.startswith((SYSTEM_GROUP_PREFIX, "CID_ONS"))


def _time_ms(text: str) -> int:
    """Raises InvalidMessage."""
    try:
        if text.isascii() and text.isdecimal() and len(text) <= _OFFSET_DIGITS:
            return int(text)
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        problem = "give a time as 2026-01-31T12:00 or in ms since the epoch"
        raise InvalidMessage(problem, field="value") from None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None  # a broker that is not ready says so in words


def _rate(text: str | None) -> float | None:
    """The rate over the last ten seconds, of ``10s 60s 600s``."""
    return _number((text or "").split(" ")[0])


def _difference(figures: dict[str, str], now: str, morning: str) -> int | None:
    high, low = _number(figures.get(now)), _number(figures.get(morning))
    return None if high is None or low is None else int(high - low)


def _total(figures: Any) -> float | None:
    known = [each for each in figures if each is not None]
    return sum(known) if known else None
