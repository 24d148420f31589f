"""Topics: their kinds, extents, queues, and settings at each broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from mqspark.base.clock import HOUR_MS
from mqspark.errors import BrokerError, MQError, NoRoute
from mqspark.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    MessageExt,
    MessageQueue,
    dlq_topic,
    is_system_topic,
    parse_number,
)
from mqspark.protocol.bodies.admin_bodies import BrokerStatsData, BrokerStatsItem
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import GetEarliestMsgStoretimeRequestHeader
from mqspark_server.shown import nouns
from mqspark_server.survey.surveying import MAX_ROWS, Row, add_to_each, in_slices

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient
    from mqspark.protocol.bodies.topic_bodies import TopicConfig

PLAIN_TYPE = "NORMAL"
"""The type of a topic that says none (TopicConfig.getTopicMessageType)."""


def topic_kind(name: str) -> str:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    return "system" if is_system_topic(name) or name.endswith("_REPLY_TOPIC") else "normal"


async def topic_rows(admin: AdminClient, cluster: str | None = None, *, every: bool) -> list[Row]:
    """Topics by name and kind, of all clusters or one; those that are named after clusters and brokers are the
    system's. ``every``: not only normal ones."""
    names, info = await admin.topic_list(cluster=cluster), await admin.cluster_info()
    own = {*info.cluster_addr_table, *info.broker_addr_table}
    rows: list[Row] = []
    async for some in in_slices(names):
        found = ({"topic": name, "kind": "system" if name in own else topic_kind(name)} for name in some)
        rows += [row for row in found if every or row["kind"] == "normal"]
    return rows


async def is_there(admin: AdminClient, topic: str) -> bool:
    """Whether a topic has a route. To look for it in the list of all topics keeps the loop for as long as there are
    topics."""
    try:
        await admin.topic_route(topic)
    except NoRoute:
        return False
    return True


async def extent_of(admin: AdminClient, topic: str) -> Row:
    """How much is in a topic; ``error`` if its brokers do not say."""
    try:
        stats = await admin.topic_stats(topic)
    except MQError as error:
        return {"error": str(error)}
    return {
        "brokers": len({queue.broker_name for queue in stats}),
        "queues": len(stats),
        "messages": sum(each.max_offset - each.min_offset for each in stats.values()),
        "last_ms": max((each.last_update_timestamp for each in stats.values()), default=0) or None,
        "error": "",
    }


async def topic_figures(admin: AdminClient, topic: str) -> Row:
    """How much is in a topic, its type, the messages that were sent to it in a second of the last minute, and the
    groups that consume it; ``error`` if its brokers do not say."""
    found = await extent_of(admin, topic)
    if found["error"]:
        return found
    try:
        masters = list((await admin.topic_route(topic)).masters.values())
        config = await admin.topic_config(topic, masters[0]) if masters else None
        groups = await groups_of(admin, topic)
        rates = [await _put_tps(admin, topic, address) for address in masters]
    except MQError as error:
        return {"error": str(error)}
    return {
        **found,
        "type": "" if config is None else config.attributes.get("message.type", PLAIN_TYPE),
        "groups": groups,
        "group_count": len(groups),
        "in_tps": sum(rates),
    }


async def _put_tps(admin: AdminClient, topic: str, address: str) -> float:
    minute, _ = await counted(admin, address, "TOPIC_PUT_NUMS", topic)
    return minute.tps


async def counted(
    admin: AdminClient, address: str, name: str, key: str
) -> tuple[BrokerStatsItem, BrokerStatsItem]:
    """What was counted in the last minute, and today."""
    try:
        data = await admin.broker_stats(address, name, key)
    except BrokerError:
        data = BrokerStatsData()  # nothing has been counted
    return data.stats_minute or BrokerStatsItem(), data.stats_day or BrokerStatsItem()


async def letters_of(admin: AdminClient, group: str, now_ms: int) -> Row:
    """The dead letters of a group: how many there are, how many came in the last hour, when the oldest and the newest
    was stored; none of a group without a topic for them. ``error`` if its brokers do not say."""
    row: Row = {"messages": 0, "last_hour": 0, "first_ms": None, "last_ms": None, "error": ""}
    topic = dlq_topic(group)
    try:
        stats = await admin.topic_stats(topic)
        for queue, each in stats.items():
            if each.max_offset > each.min_offset:
                begin = max(each.min_offset, await admin.offset_at(queue, now_ms - HOUR_MS))
                row["messages"] += each.max_offset - each.min_offset
                row["last_hour"] += max(0, each.max_offset - begin)
                first_ms = await first_ms_of(admin, topic, queue.broker_name, queue.queue_id)
                row["first_ms"] = min(filter(None, (row["first_ms"], first_ms)), default=None)
                row["last_ms"] = max(row["last_ms"] or 0, each.last_update_timestamp) or None
    except NoRoute:
        return row
    except MQError as error:
        row["error"] = str(error)
    return row


async def dead_letter_rows(admin: AdminClient) -> list[Row]:
    """Groups that have, or had, dead letters."""
    return [
        {"group": name.removeprefix(DLQ_PREFIX), "topic": name}
        for name in await admin.topic_list()
        if name.startswith(DLQ_PREFIX)
    ]


async def bounds_of(admin: AdminClient, topic: str) -> dict[MessageQueue, tuple[int, int]]:
    """For each queue the first offset, and the one after its last message. Raises NoRoute."""
    stats = await admin.topic_stats(topic)
    return {queue: (each.min_offset, each.max_offset) for queue, each in stats.items()}


class ReadFilter(TypedDict, total=False):
    """As ``AdminClient.read`` takes it."""

    expression: str
    expression_type: str


async def read_between(
    admin: AdminClient, queue: MessageQueue, begin: int, end: int, **chosen: Unpack[ReadFilter]
) -> list[MessageExt]:
    """The messages of the offsets [begin, end) that are chosen."""
    found: list[MessageExt] = []
    while begin < end:
        answer = await admin.read(queue, begin, max_messages=end - begin, **chosen)
        found += [each for each in answer.messages if each.queue_offset < end]
        if answer.next_offset <= begin:
            break
        begin = answer.next_offset
    return found


async def queue_rows(admin: AdminClient, topic: str) -> list[Row]:
    """Raises NoRoute."""
    return [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "min_offset": each.min_offset,
            "max_offset": each.max_offset,
            "messages": each.max_offset - each.min_offset,
            "last_ms": each.last_update_timestamp or None,
        }
        for queue, each in (await admin.topic_stats(topic)).items()
    ]


async def groups_of(admin: AdminClient, topic: str) -> list[str]:
    """Groups that consume it."""
    try:
        return await admin.topic_groups(topic)
    except BrokerError:
        return []  # RocketMQ 4 refuses it for some system topics


async def first_ms_of(admin: AdminClient, topic: str, broker: str, queue_id: int) -> int | None:
    """When the first message of a queue was stored."""
    header = GetEarliestMsgStoretimeRequestHeader(topic=topic, queue_id=queue_id, bname=broker)
    address = (await admin.topic_route(topic)).master(broker)
    if address is None:
        return None
    answer = await admin.ask(address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
    found = parse_number(answer.ext.get("timestamp"))
    return found if found is not None and found > 0 else None


def settings_row(config: TopicConfig) -> Row:
    return {
        **nouns.settings_row(nouns.TOPIC_SETTINGS, config),
        "attributes": dict(sorted(config.attributes.items())),
    }


async def topic_settings(admin: AdminClient, topic: str) -> list[Row]:
    """By broker; ``error`` says why those of one are not known. Raises NoRoute."""
    route = await admin.topic_route(topic)
    rows: list[Row] = [{"broker": broker, "error": ""} for broker in sorted(route.brokers)[:MAX_ROWS]]

    async def ask(row: Row) -> Row:
        address = route.master(row["broker"])
        if address is None:
            return {"error": "no master is known"}
        return settings_row(await admin.topic_config(topic, address))

    await add_to_each(rows, ask)
    return rows
