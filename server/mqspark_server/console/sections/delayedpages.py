"""The page about what is stored and not visible yet: delayed messages, and transactions under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqspark.client.admin import AdminClient
from mqspark.errors import BrokerError, MQError, NoRoute
from mqspark.message import SCHEDULE_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, MessageQueue
from mqspark.protocol.bodies.admin_bodies import (
    DelayOffsetSerializeWrapper,
    TimerMetricsSerializeWrapper,
    TopicOffset,
)
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.codes import RequestCode
from mqspark_server.console.site import Asking, Section, View
from mqspark_server.survey.brokersurvey import of_each_master
from mqspark_server.survey.surveying import Row


class Delayed(View, frozen=True):
    async def show(self, asked: Asking) -> Row:
        levels: list[Row] = []
        waiting: list[Row] = []

        async def ask(name: str, address: str) -> None:
            levels.extend(await _levels(asked.admin, name, address))
            waiting.extend(await _timers(asked.admin, name, address))

        problems = await of_each_master(asked.admin, ask)
        return {
            "levels": levels,
            "timers": waiting,
            "transactions": await _transactions(asked.admin),
            "problems": problems,
            "half_topic": TRANS_HALF_TOPIC,
        }


async def _stats_of(admin: AdminClient, topic: str) -> Mapping[MessageQueue, TopicOffset]:
    """Empty for a topic that no broker has."""
    try:
        return await admin.topic_stats(topic)
    except NoRoute:
        return {}


async def _levels(admin: AdminClient, broker: str, address: str) -> list[Row]:
    """By level: how many messages wait, as far as the broker's table says."""
    answer = await admin.ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
    table = decode_body(DelayOffsetSerializeWrapper, answer.body).offset_table
    names = (await admin.broker_config(address)).get("messageDelayLevel", "").split()
    rows = []
    for queue, bounds in (await _stats_of(admin, SCHEDULE_TOPIC)).items():
        level = queue.queue_id + 1
        if queue.broker_name != broker or bounds.max_offset == bounds.min_offset == 0:
            continue
        delay = names[level - 1] if level <= len(names) else ""
        rows.append(_row(queue, bounds, table.get(level, 0), level=level, delay=delay))
    return rows


def _row(at: MessageQueue, bounds: TopicOffset, done: int, **more: Any) -> Row:
    """A queue of what waits from ``done`` on."""
    return {
        "broker": at.broker_name,
        "waiting": max(0, bounds.max_offset - max(done, bounds.min_offset)),
        "ever": bounds.max_offset,
        "last_ms": bounds.last_update_timestamp,
        **more,
    }


async def _timers(admin: AdminClient, broker: str, address: str) -> list[Row]:
    """Messages for any time, by topic; none of a broker without a timer."""
    try:
        answer = await admin.ask(address, RequestCode.GET_TIMER_METRICS)
    except BrokerError:
        return []
    counts = decode_body(TimerMetricsSerializeWrapper, answer.body).timing_count.items()
    return [
        {"broker": broker, "topic": each, "waiting": timed.count} for each, timed in counts if timed.count > 0
    ]


async def _transactions(admin: AdminClient) -> list[Row]:
    """By broker: half messages that are not settled, at most."""
    halves = await _stats_of(admin, TRANS_HALF_TOPIC)
    settled = await _stats_of(admin, TRANS_OP_HALF_TOPIC) if halves else {}
    try:
        offsets = await admin.group_offsets(TRANS_GROUP) if halves else {}
    except MQError:
        offsets = {}
    rows = []
    for queue, bounds in halves.items():
        done = offsets[queue].committed if queue in offsets else 0
        ends = [each.max_offset for at, each in settled.items() if at.broker_name == queue.broker_name]
        rows.append(_row(queue, bounds, done, queue=queue.queue_id, decisions=sum(ends)))
    return rows


DELAYED_PAGES = Section("Delayed", views={"/delayed": (Delayed, "delayed.html")})
