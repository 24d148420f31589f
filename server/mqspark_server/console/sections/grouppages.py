"""The pages about consumer groups: list, create, members and what they do, lag, reset, mode, settings, delete."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from mqspark.errors import BrokerError, RequestTimeout
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import queue_of
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import ResponseCode
from mqspark_server.actions.fields import GroupName, Id, Line, ListField, TopicName
from mqspark_server.actions.groupactions import CreateGroup, DeleteGroup, PutGroup, SetMode
from mqspark_server.actions.offsetmoves import ClusterOffsets, Goal, OffsetMove
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.history.sampler import group_series
from mqspark_server.console.rendering import chart
from mqspark_server.console.sections.sparkpages import SparkReaders
from mqspark_server.console.site import ActionForm, Asking, ListView, Section, Span, View
from mqspark_server.shown.nouns import GROUP_SETTINGS, MODES, OFFSETS, place_of, settings_row
from mqspark_server.survey import groupsurvey
from mqspark_server.survey.surveying import MAX_ROWS, Row, each_of
from mqspark_server.survey.topicsurvey import letters_of

MAX_STACKS_LENGTH = 256 * 1024
_NOT_THERE = (ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE)


class GroupTable(ListView, frozen=True):
    async def show(self, asked: Asking) -> Row:
        async def figures(row: Row) -> Row:
            members = await groupsurvey.member_rows(asked.admin, row["group"])
            return {
                "members": len(members),
                "lag": await groupsurvey.lag_of(asked.admin, row["group"]),
                "dead": await letters_of(asked.admin, row["group"], asked.now_ms),
            }

        rows = await groupsurvey.group_rows(asked.admin, every=self.every)
        return await self.listed("group", rows, figures)


class GroupMembers(View, frozen=True):
    group: GroupName
    span: Span = "hour"

    async def show(self, asked: Asking) -> Row:
        offsets = await groupsurvey.offset_rows(asked.admin, self.group)
        members = await groupsurvey.member_rows(asked.admin, self.group)
        letters = await letters_of(asked.admin, self.group, asked.now_ms)
        for each in members:
            each |= {"mode": MODES.get(each["mode"], each["mode"]), "model": (each["model"] or "").lower()}
        lag = sum(each["lag"] for each in offsets)
        series = group_series(self.group)
        asked.history.note(series, asked.now_ms, lag)
        return {
            "chart": chart("Lag, messages", ["lag"], asked.history.columns(series, self.span)),
            "members": members,
            "queues": offsets,
            "lag": lag,
            "waits_ms": await groupsurvey.add_waits(asked.admin, offsets[:MAX_ROWS], asked.now_ms),
            "letters": letters,
        }


class OneMember(View, frozen=True):
    """What a consumer reports about itself, with the stacks of its threads if it has them to show."""

    group: GroupName
    client: Id

    async def show(self, asked: Asking) -> Row:
        try:
            info = await asked.admin.running_info(self.group, self.client)
        except BrokerError as error:
            if error.code not in _NOT_THERE:
                raise
            raise Trouble(404, "This consumer does not answer", str(error)) from None
        stacks, no_stacks = None, "Java clients send them; clients in other languages do not support this."
        try:
            told = await asked.admin.running_info(self.group, self.client, with_stacks=True)
            stacks = None if told.jstack is None else told.jstack[:MAX_STACKS_LENGTH]
        except (BrokerError, RequestTimeout) as error:
            no_stacks = f"{no_stacks} It was asked: {error}"
        return {
            "properties": list(islice(sorted(info.properties.items()), MAX_ROWS)),
            "queues": _by_queue(info.mq_table),
            "popped": _by_queue(info.mq_pop_table),
            "rates": list(islice(sorted(info.status_table.items()), MAX_ROWS)),
            "stacks": stacks,
            "no_stacks": no_stacks,
        }


def _by_queue(table: dict[str, Any]) -> list[tuple[MessageQueue, Any]]:
    return sorted(
        ((queue_of(key), each) for key, each in islice(table.items(), MAX_ROWS)), key=lambda row: row[0]
    )


class Resetting(View, frozen=True):
    group: GroupName
    topic: TopicName = ""

    async def show(self, asked: Asking) -> Row:
        topics = await groupsurvey.topics_of(asked.admin, self.group)
        bounds = await ClusterOffsets(asked.admin).bounds(self.topic) if self.topic else {}
        queues: list[Row] = [
            {"queue": queue, "place": place_of(queue), "first": low, "end": high}
            for queue, (low, high) in islice(bounds.items(), MAX_ROWS)
        ]

        async def add_committed(row: Row) -> None:
            row["committed"] = await asked.admin.query_offset(self.group, row["queue"])

        await each_of(queues, add_committed)
        return {"topics": topics, "queues": queues, "queue_count": len(bounds)}


class GroupConfiguration(View, frozen=True):
    group: GroupName

    async def show(self, asked: Asking) -> Row:
        found = (await asked.admin.groups([self.group])).get(self.group)
        return {
            "config": settings_row(GROUP_SETTINGS, found or SubscriptionGroupConfig()),
            "is_configured": found is not None,
            "topics": await groupsurvey.topics_of(asked.admin, self.group),
            "modes": await groupsurvey.mode_rows(asked.admin, self.group),
        }


class ResetOffsets(ActionForm, frozen=True):
    group: GroupName
    topic: TopicName
    to: Goal
    time: Line = ""
    queue: Annotated[tuple[str, ...], ListField()] = ()
    """BROKER:NUMBER; none: all of the topic."""
    offset: Annotated[int, OFFSETS] = -1

    def settled(self, asked: Asking) -> dict[str, str]:
        zone = asked.visitor.zone
        return {"time": zone.text(zone.ms(self.time, "time"))} if self.to == "time" else {}

    async def action(self, asked: Asking) -> OffsetMove:
        time_ms = asked.visitor.zone.ms(self.time, "time") if self.to == "time" else None
        offset = self.offset if self.to == "offset" else None
        return OffsetMove.towards(self.to, self.group, self.topic, self.queue, time_ms=time_ms, offset=offset)


GROUP_PAGES = Section(
    "Groups",
    views={
        "/groups": (GroupTable, "groups.html"),
        "/groups/{group}": (GroupMembers, "group.html"),
        "/groups/{group}/members/{client}": (OneMember, "member.html"),
        "/groups/{group}/spark": (SparkReaders, "sparkreaders.html"),
        "/groups/{group}/reset": (Resetting, "reset.html"),
        "/groups/{group}/config": (GroupConfiguration, "groupconfig.html"),
    },
    changes={
        "/groups": (CreateGroup, "/groups/{name}"),
        "/groups/{group}/reset": (ResetOffsets, "/groups/{group}"),
        "/groups/{group}/config": (PutGroup, "/groups/{group}/config"),
        "/groups/{group}/mode": (SetMode, "/groups/{group}/config"),
        "/groups/{group}/delete": (DeleteGroup, "/groups"),
    },
)
