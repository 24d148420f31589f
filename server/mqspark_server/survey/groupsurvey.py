"""Consumer groups: their members, modes, offsets and lag."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from mqspark.errors import BrokerError, MQError
from mqspark.message import MessageQueue, is_system_group
from mqspark.protocol.bodies.admin_bodies import QueryConsumeTimeSpanBody, QueueTimeSpan
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import ConnectionInfo, MessageRequestModeSerializeWrapper
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.admin_headers import QueryConsumeTimeSpanRequestHeader
from mqspark.protocol.versions import version_name
from mqspark_server.shown.nouns import GROUP_SETTINGS, settings_row
from mqspark_server.survey.brokersurvey import masters_of
from mqspark_server.survey.surveying import MAX_ROWS, Row, each_of, in_slices

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient
    from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig


async def group_rows(admin: AdminClient, *, every: bool) -> list[Row]:
    """``every``: the brokers' own groups, too."""
    rows: list[Row] = []
    groups = await admin.groups()
    async for some in in_slices(list(groups)):
        for name in some:
            config = groups.pop(name)  # all are not freed together
            if every or not is_system_group(name):
                rows.append(group_row(name, config))
    return rows


async def group_names(admin: AdminClient) -> list[str]:
    """Without the brokers' own groups."""
    names: list[str] = []
    async for some in in_slices(await admin.group_names()):
        names += [name for name in some if not is_system_group(name)]
    return names


def group_row(name: str, config: SubscriptionGroupConfig) -> Row:
    return {"group": name, **settings_row(GROUP_SETTINGS, config)}


async def lag_of(admin: AdminClient, group: str, topic: str | None = None) -> int | None:
    try:
        return await admin.group_lag(group, topic)
    except MQError:
        return None  # it has committed nothing anywhere


async def offset_rows(admin: AdminClient, group: str, topic: str | None = None) -> list[Row]:
    """By queue. Raises BrokerError for an unknown group."""
    return [
        {
            "group": group,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "committed": each.committed if each.committed >= 0 else None,
            "max_offset": each.max_offset,
            "lag": each.lag,
        }
        for queue, each in (await admin.group_offsets(group, topic)).items()
    ]


async def add_waits(admin: AdminClient, rows: Sequence[Row], now_ms: int) -> int | None:
    """``waits_ms`` of rows of queues: when the first message was stored that the group has not committed; None where
    it is behind in none, or its broker does not say. Brokers are asked for times alone: a message that is read to see
    its time would count as one that was handed out. Returns the earliest."""
    behind = [row for row in rows if row["lag"] > 0]
    spans: dict[MessageQueue, QueueTimeSpan] = {}

    async def ask(topic: str) -> None:
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=behind[0]["group"])
        with contextlib.suppress(MQError):  # the lag in messages is shown without its time
            route = await admin.topic_route(topic)
            for address in route.masters.values():
                answer = await admin.ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
                for each in decode_body(QueryConsumeTimeSpanBody, answer.body).consume_time_span_set:
                    if (queue := each.message_queue) is not None:
                        spans[MessageQueue(queue.topic, queue.broker_name, queue.queue_id)] = each

    await each_of(sorted({row["topic"] for row in behind}), ask)
    for row in rows:
        span = spans.get(MessageQueue(row["topic"], row["broker"], row["queue"]))
        if span is None or row["lag"] <= 0:
            row["waits_ms"] = None
        elif span.delay_time > 0 or (row["committed"] and span.consume_time_stamp > 0):
            row["waits_ms"] = now_ms - span.delay_time
        else:  # nothing is committed, or the next message was removed
            row["waits_ms"] = span.min_time_stamp if span.min_time_stamp > 0 else None
    return min((row["waits_ms"] for row in rows if row["waits_ms"]), default=None)


async def member_rows(admin: AdminClient, group: str) -> list[Row]:
    """The consumers that are connected; none for a group that nobody knows."""
    try:
        found = await admin.group_members(group)
    except BrokerError as error:
        if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
            return []
        raise
    more = {"mode": found.consume_type, "model": found.message_model}
    clients = sorted(found.connection_set, key=attrgetter("client_id"))
    return [client_row(each) | more async for some in in_slices(clients) for each in some]


def client_rows(connections: Iterable[ConnectionInfo]) -> list[Row]:
    """By the ids of the clients."""
    return [client_row(each) for each in sorted(connections, key=attrgetter("client_id"))]


def client_row(client: ConnectionInfo) -> Row:
    return {
        "client_id": client.client_id,
        "address": client.client_addr,
        "language": client.language,
        "version": version_name(client.version),
    }


async def mode_rows(admin: AdminClient, group: str) -> list[Row]:
    """Topics for which the mode of the group (pull or pop) is set, as one broker has them: all have the same."""
    for address in (await masters_of(admin)).values():
        try:
            answer = await admin.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        except BrokerError:
            return []  # RocketMQ 4
        return modes_of(group, answer.body)[:MAX_ROWS]
    return []


def modes_of(group: str, body: bytes | memoryview) -> list[Row]:
    """``body``: of the answer of one broker."""
    modes = decode_body(MessageRequestModeSerializeWrapper, body).message_request_mode_map
    return [
        {"topic": topic, "mode": groups[group].mode, "share": groups[group].pop_share_queue_num}
        for topic, groups in sorted(modes.items())
        if group in groups
    ]


async def topics_of(admin: AdminClient, group: str) -> list[str]:
    """Topics in which the group has offsets."""
    try:
        return sorted({queue.topic for queue in await admin.group_offsets(group)})
    except MQError:
        return []
