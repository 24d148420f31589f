"""The pages about consumer groups: list, create, members and what they do, lag, reset, mode, settings, delete."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Literal

import msgspec

from mqspark.client.admin import AdminClient
from mqspark.errors import BrokerError, InvalidMessage, RequestTimeout
from mqspark.message import MessageQueue, check_topic, dlq_topic
from mqspark.protocol.bodies.body import queue_of
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import ResponseCode
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.fields import GroupName, Line, LineField, ListField, Text, TopicName, fields_of
from mqspark_server.console.history.sampler import group_series
from mqspark_server.console.rendering import chart, path_of
from mqspark_server.console.sections.sparkpages import SparkReaders
from mqspark_server.console.site import Asking, Change, Confirmation, Done, ListView, Section, Span, View
from mqspark_server.shown.nouns import GROUP_SETTINGS, MODES, OFFSETS, SHARED_QUEUES, Setting, place_of
from mqspark_server.survey.groupsurvey import (
    add_waits,
    group_rows,
    lag_of,
    member_rows,
    mode_rows,
    offset_rows,
    topics_of,
)
from mqspark_server.survey.offsetmoves import BEGINNING_MS, END_MS, ClusterOffsets, OffsetMove
from mqspark_server.survey.surveying import MAX_ROWS, Row, each_of
from mqspark_server.survey.topicsurvey import letters_of

MAX_PREVIEW = 256
MAX_STACKS_LENGTH = 256 * 1024
_NOT_THERE = (ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE)


def _declared(field: str) -> Setting:
    return next(each for each in GROUP_SETTINGS if each.field == field)


_RETRIES = _declared("retry_max_times")


class GroupTable(ListView, frozen=True):
    async def show(self, asked: Asking) -> Row:
        async def fill(row: Row) -> None:
            row["members"] = len(await member_rows(asked.admin, row["group"]))
            row["lag"] = await lag_of(asked.admin, row["group"])
            row["dead"] = {"messages": 0, "last_hour": 0, "first_ms": None, "error": ""}
            if dlq_topic(row["group"]) in topics:
                row["dead"] = await letters_of(asked.admin, row["group"], asked.now_ms)

        topics = frozenset(await asked.admin.topic_list())
        rows = await group_rows(asked.admin, every=self.every)
        return {**await self.listed("group", rows, fill), "retries": _RETRIES}


class GroupMembers(View, frozen=True):
    group: GroupName
    span: Span = "hour"

    async def show(self, asked: Asking) -> Row:
        offsets = await offset_rows(asked.admin, self.group)
        members = await member_rows(asked.admin, self.group)
        letters = await letters_of(asked.admin, self.group, asked.now_ms)
        await add_waits(asked.admin, offsets[:MAX_ROWS], asked.now_ms)
        waits = [each["waits_ms"] for each in offsets[:MAX_ROWS] if each["waits_ms"]]
        for each in members:
            each |= {"mode": MODES.get(each["mode"], each["mode"]), "model": (each["model"] or "").lower()}
        lag = sum(each["lag"] for each in offsets)
        asked.history.note(group_series(self.group), asked.now_ms, lag)
        return {
            "tab": "Members and lag",
            "group": self.group,
            "chart": chart(
                "Lag, messages", ["lag"], asked.history.columns(group_series(self.group), self.span)
            ),
            "span": self.span,
            "members": members[:MAX_ROWS],
            "member_count": len(members),
            "queues": offsets[:MAX_ROWS],
            "queue_count": len(offsets),
            "lag": lag,
            "waits_ms": min(waits, default=None),
            "letters": letters,
        }


class OneMember(View, frozen=True):
    """What a consumer reports about itself, with the stacks of its threads if it has them to show."""

    group: GroupName
    client: Text

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
            "group": self.group,
            "client_id": self.client,
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
    topic: Annotated[str, LineField(check=check_topic)] = ""

    async def show(self, asked: Asking) -> Row:
        topics = await topics_of(asked.admin, self.group)
        bounds = await ClusterOffsets(asked.admin).bounds(self.topic) if self.topic else {}
        queues: list[Row] = [
            {"queue": queue, "place": place_of(queue), "first": low, "end": high}
            for queue, (low, high) in islice(bounds.items(), MAX_ROWS)
        ]

        async def add_committed(row: Row) -> None:
            row["committed"] = await asked.admin.query_offset(self.group, row["queue"])

        await each_of(queues, add_committed)
        return {
            "tab": "Reset offsets",
            "group": self.group,
            "topics": topics,
            "topic": self.topic,
            "queues": queues,
            "queue_count": len(bounds),
        }


class GroupConfiguration(View, frozen=True):
    group: GroupName

    async def show(self, asked: Asking) -> Row:
        found = (await asked.admin.groups()).get(self.group)
        return {
            "tab": "Settings",
            "group": self.group,
            "config": found or SubscriptionGroupConfig(group_name=self.group),
            "is_configured": found is not None,
            "ticks": [each for each in _SETTINGS.items() if each[1].span is None],
            "numbers": [each for each in _SETTINGS.items() if each[1].span is not None],
            "topics": await topics_of(asked.admin, self.group),
            "modes": await mode_rows(asked.admin, self.group),
            "most_shared": SHARED_QUEUES.most,
        }


class CreateGroup(Change, frozen=True):
    name: GroupName
    retries: Annotated[int, _RETRIES] = SubscriptionGroupConfig().retry_max_times
    ordered: bool = False

    async def preview(self, asked: Asking) -> Confirmation:
        if self.name in await asked.admin.groups():
            raise Trouble(409, "This group already exists", f"Change {self.name} on its own page.")
        facts = [("Name", self.name), (_RETRIES.label, str(self.retries))]
        return Confirmation(f"Create the group {self.name}?", "Create", facts)

    async def apply(self, asked: Asking) -> Done:
        config = SubscriptionGroupConfig(
            group_name=self.name, retry_max_times=self.retries, consume_message_orderly=self.ordered
        )
        await asked.admin.create_group(self.name, config=config)
        return Done(f"Group {self.name} was created.", path_of("groups", self.name))


class DeleteGroup(Change, frozen=True):
    group: GroupName

    async def preview(self, asked: Asking) -> Confirmation:
        offsets = await offset_rows(asked.admin, self.group)
        members = await member_rows(asked.admin, self.group)
        facts = [
            ("Members that are connected", str(len(members))),
            ("Messages that it has not consumed", f"{sum(each['lag'] for each in offsets):,}"),
            ("Its offsets", "are deleted, too"),
        ]
        return Confirmation(f"Delete the group {self.group}?", "Delete", facts, is_dangerous=True)

    async def apply(self, asked: Asking) -> Done:
        await asked.admin.delete_group(self.group)
        return Done(f"Group {self.group} was deleted.", path_of("groups"))


class ResetOffsets(Change, frozen=True):
    group: GroupName
    topic: TopicName
    to: Literal["earliest", "latest", "time", "offset"]
    time: Line = ""
    queue: Annotated[tuple[str, ...], ListField()] = ()
    """BROKER:NUMBER; none: all of the topic."""
    offset: Annotated[int, OFFSETS] = -1

    async def preview(self, asked: Asking) -> Confirmation:
        """The offset that every queue would have."""
        move = self._move(asked)
        moves = await move.moves(ClusterOffsets(asked.admin))
        rows: list[Any] = []
        for each in moves[:MAX_PREVIEW]:
            before, after = each.before, each.after
            now, change = ("none", "") if before is None else (f"{before:,}", f"{after - before:+,}")
            rows.append((place_of(each.queue), now, f"{after:,}", change, f"{each.lag_after:,}"))
        members = len(await member_rows(asked.admin, self.group))
        online = f"{members}, which continue from there at once" if members else "none"
        settled: dict[str, str] = {}
        facts = [("Topic", self.topic)]
        if self.to == "time":
            settled["time"] = asked.visitor.zone.text(move.at_ms)
            facts.append(("To the first messages stored since", settled["time"]))
        return Confirmation(
            f"Move {self.group} to other offsets?",
            "Move",
            [
                *facts,
                ("Messages to be consumed afterwards", f"{sum(each.lag_after for each in moves):,}"),
                ("Members that are connected", online),
            ],
            ("Queue", "#Now", "#Then", "#Moves by", "#Lag afterwards"),
            rows,
            is_dangerous=True,
            more=len(moves) - len(rows),
            settled=settled,
        )

    async def apply(self, asked: Asking) -> Done:
        move = self._move(asked)
        moves = await move.moves(ClusterOffsets(asked.admin))
        await move.apply(asked.admin, moves)
        return Done(
            f"{self.group} was moved in {len(moves)} queues of {self.topic}.", path_of("groups", self.group)
        )

    def _move(self, asked: Asking) -> OffsetMove:
        """Raises InvalidMessage."""
        if self.to == "offset":
            if len(self.queue) != 1:
                raise InvalidMessage("queue: choose the one queue that has this offset", field="queue")
            if self.offset < 0:
                raise InvalidMessage("offset: give the offset of the queue", field="offset")
            return OffsetMove(self.group, self.topic, offset=self.offset, queues=self.queue)
        at_ms = BEGINNING_MS if self.to == "earliest" else END_MS
        if self.to == "time":
            at_ms = asked.visitor.zone.ms(self.time, "time")
        return OffsetMove(self.group, self.topic, at_ms, queues=self.queue)


class ConfigureGroup(Change, frozen=True):
    """Its fields are those of SubscriptionGroupConfig."""

    group: GroupName
    retry_max_times: Annotated[int, _RETRIES]
    retry_queue_nums: Annotated[int, _declared("retry_queue_nums")]
    consume_timeout_minute: Annotated[int, _declared("consume_timeout_minute")]
    consume_enable: Annotated[bool, _declared("consume_enable")] = False
    consume_message_orderly: Annotated[bool, _declared("consume_message_orderly")] = False
    consume_broadcast_enable: Annotated[bool, _declared("consume_broadcast_enable")] = False

    async def preview(self, asked: Asking) -> Confirmation:
        old = await self._old(asked.admin)
        rows: list[Any] = [
            (field.label, _shown(before), _shown(then))
            for name, field in _SETTINGS.items()
            if (before := getattr(old, name)) != (then := getattr(self, name))
        ]
        if not rows:
            raise Trouble(409, "Nothing would change", "The settings already have these values.")
        columns = ("Setting", "Now", "Then")
        return Confirmation(f"Change {self.group}?", "Change", columns=columns, rows=rows)

    async def apply(self, asked: Asking) -> Done:
        new = {name: getattr(self, name) for name in _SETTINGS}
        # The attributes of a request are changes to the present ones.
        config = msgspec.structs.replace(await self._old(asked.admin), attributes={}, **new)
        await asked.admin.create_group(self.group, config=config)
        return Done(f"Group {self.group} was changed.", path_of("groups", self.group, "config"))

    async def _old(self, admin: AdminClient) -> SubscriptionGroupConfig:
        return (await admin.groups()).get(self.group) or SubscriptionGroupConfig(group_name=self.group)


_SETTINGS: dict[str, Any] = {
    name: field for name, field in fields_of(ConfigureGroup).items() if name != "group"
}


def _shown(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


class SetMode(Change, frozen=True):
    group: GroupName
    topic: TopicName
    mode: Literal["PULL", "POP"]
    share: Annotated[int, SHARED_QUEUES] = 0

    async def preview(self, asked: Asking) -> Confirmation:
        facts = [("Topic", self.topic), ("Mode", self.mode)]
        if self.mode == "POP":
            neighbours = f"{self.share} neighbours" if self.share else "all"
            facts.append(("Each consumer shares the queues of", neighbours))
        return Confirmation(f"Let {self.group} consume by {self.mode}?", "Change", facts)

    async def apply(self, asked: Asking) -> Done:
        await asked.admin.set_consume_mode(self.topic, self.group, self.mode, share_queues=self.share)
        return Done(
            f"{self.group} consumes {self.topic} by {self.mode}.", path_of("groups", self.group, "config")
        )


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
        "/groups": CreateGroup,
        "/groups/{group}/reset": ResetOffsets,
        "/groups/{group}/config": ConfigureGroup,
        "/groups/{group}/mode": SetMode,
        "/groups/{group}/delete": DeleteGroup,
    },
)
