"""Consumer groups: their members, modes, offsets and lag."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqspark.errors import BrokerError, MQError
from mqspark.message import MessageQueue, is_system_group
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import MessageRequestModeSerializeWrapper
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark_server.survey.brokersurvey import masters_of
from mqspark_server.survey.surveying import MAX_ROWS, Row, each_of

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient

_LOOKS = 3
"""Reads for one message: the committed offset may be that of a message which the retention has removed."""


async def group_rows(admin: AdminClient, *, every: bool) -> list[Row]:
    """``every``: the brokers' own groups, too."""
    return [
        {
            "group": name,
            "retries": config.retry_max_times,
            "ordered": config.consume_message_orderly,
            "enabled": config.consume_enable,
            "broadcast": config.consume_broadcast_enable,
        }
        for name, config in (await admin.groups()).items()
        if every or not is_system_group(name)
    ]


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


async def add_waits(admin: AdminClient, rows: Sequence[Row]) -> None:
    """``waits_ms`` of rows of queues: when the first message was stored that the group has not committed; None where
    it is behind in none, or its broker does not say."""

    async def fill(row: Row) -> None:
        queue = MessageQueue(row["topic"], row["broker"], row["queue"])
        with contextlib.suppress(MQError):  # the lag in messages is shown without its time
            row["waits_ms"] = await _first_ms(admin, queue, row["committed"] or 0)

    for row in rows:
        row["waits_ms"] = None
    await each_of([row for row in rows if row["lag"] > 0], fill)


async def _first_ms(admin: AdminClient, queue: MessageQueue, offset: int) -> int | None:
    """When the first message from this offset on was stored that is still there."""
    for _ in range(_LOOKS):
        answer = await admin.read(queue, offset, max_messages=1)
        if answer.messages:
            return answer.messages[0].store_timestamp_ms
        if answer.next_offset <= offset:
            break
        offset = answer.next_offset
    return None


async def member_rows(admin: AdminClient, group: str) -> list[Row]:
    """The consumers that are connected; none for a group that nobody knows."""
    try:
        found = await admin.group_members(group)
    except BrokerError as error:
        if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
            return []
        raise
    return [
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


async def mode_rows(admin: AdminClient, group: str) -> list[Row]:
    """Topics for which the mode of the group (pull or pop) is set, as one broker has them: all have the same."""
    for address in (await masters_of(admin)).values():
        try:
            answer = await admin.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        except BrokerError:
            return []  # RocketMQ 4
        modes = decode_body(MessageRequestModeSerializeWrapper, answer.body).message_request_mode_map
        return [
            {"topic": topic, "mode": groups[group].mode, "share": groups[group].pop_share_queue_num}
            for topic, groups in sorted(modes.items())
            if group in groups
        ][:MAX_ROWS]
    return []


async def topics_of(admin: AdminClient, group: str) -> list[str]:
    """Topics in which the group has offsets."""
    try:
        return sorted({queue.topic for queue in await admin.group_offsets(group)})
    except MQError:
        return []
