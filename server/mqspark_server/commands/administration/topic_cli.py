"""``mqspark topic``: topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import click

from mqspark.errors import BrokerError, MQError
from mqspark.message import MESSAGE_TYPES, NEW_TOPIC_QUEUES
from mqspark_server.actions.topicactions import ConfigureTopic, CreateTopic, DeleteTopic
from mqspark_server.commands.administration.config_cli import assignments
from mqspark_server.commands.clustercommand import (
    DELETED_AT_ONCE,
    ClusterShell,
    given_settings,
    noun,
    setting_options,
)
from mqspark_server.commands.completing import MaybeTopic, TopicName, TopicNames
from mqspark_server.commands.output import columns, row_of
from mqspark_server.commands.parameters import MaybeName, Name, OnlyBrokers, Option, Yes
from mqspark_server.commands.refusals import Missing
from mqspark_server.shown.nouns import QUEUES, TOPIC_SETTINGS, perm_text
from mqspark_server.survey import topicsurvey
from mqspark_server.survey.groupsurvey import client_rows
from mqspark_server.survey.surveying import Row, each_of, without_no_error

topic = noun("topic", "Topics.")
_LIST = columns("topic, kind, brokers*, queues*, messages*, last_ms*")
_QUEUES = columns("broker, queue, min_offset, max_offset NEXT, messages, last_ms")
_STATS = columns("topic, group, broker, in_tps, in_minute, in_day*, out_tps, out_minute, out_day*")
_PRODUCERS = columns("client_id, address, language, version")
_LEADERS = columns("topic, queue, broker LED BY")
_PLAN = Option("Complete a failed command from the file that it named (RocketMQ's mapFile).", metavar="FILE")
_Plan = Annotated[str | None, _PLAN]
_QUEUES_TEXT = "Queues to read and to write, per broker."
_Attributes = Annotated[
    tuple[str, ...], Option("A topic attribute. Repeatable.", "-a", "--attribute", metavar="KEY=VALUE")
]


@topic.command("list")
async def topic_list(
    shell: ClusterShell,
    pattern: MaybeName,
    every: Annotated[bool, Option("Include retry, dead-letter and system topics.", "--all")],
) -> None:
    """List topics, or those that match PATTERN ('order*'). -o wide shows queues and messages, too."""

    async def fill(row: Row) -> None:
        row |= without_no_error(await topicsurvey.extent_of(shell.admin, row["topic"]))

    await shell.show_matching(_LIST, await shell.topic_rows(every=every), pattern, fill)


@topic.command("describe")
async def topic_describe(shell: ClusterShell, topic: TopicName) -> None:
    """Show settings, queues, offsets and groups of TOPIC."""
    queues, groups = await asyncio.gather(
        topicsurvey.queue_rows(shell.admin, topic), topicsurvey.groups_of(shell.admin, topic)
    )
    settings = {}
    for name, address in (await shell.admin.topic_route(topic)).masters.items():
        config = await shell.admin.topic_config(topic, address)
        settings[name] = topicsurvey.settings_row(config) | {"perm": perm_text(config.perm)}
    if not shell.output.is_table:
        shell.output.record({"topic": topic, "brokers": settings, "groups": groups, "queues": queues})
        return
    messages = sum(row["messages"] for row in queues)
    shown: Row = {"topic": topic, "messages": messages, "groups": groups}
    for name, each in settings.items():
        text = f"{each['read_queues']} queues to read, {each['write_queues']} to write, perm {each['perm']}"
        attributes = " ".join(f"{key}={value}" for key, value in each["attributes"].items())
        shown[name] = ", ".join(filter(None, (text, "ordered" if each["order"] else "", attributes)))
    shell.output.record(shown)
    shell.output.heading("queues")
    shell.output.rows(_QUEUES, queues)


@topic.command("create")
@setting_options(TOPIC_SETTINGS)
async def topic_create(
    shell: ClusterShell,
    *,
    topic: Name,
    queues: Annotated[int, QUEUES, Option(_QUEUES_TEXT, "-q")] = NEW_TOPIC_QUEUES,
    message_type: Annotated[
        str | None, click.Choice(MESSAGE_TYPES), Option("The attribute message.type.", "--type")
    ],
    exist_ok: Annotated[bool, Option("Leave an existing topic unchanged.")],
    attributes: _Attributes,
    brokers: OnlyBrokers,
    **values: Any,
) -> None:
    """Create TOPIC on every master, or only on --broker."""
    action = CreateTopic(
        topic=topic,
        settings=_given(queues, values),
        type=message_type or topicsurvey.PLAIN_TYPE,
        attributes=_assigned(attributes),
        brokers=await shell.masters(brokers),
        is_kept=exist_ok,
    )
    await shell.carry_out(action)


@topic.command("update")
@setting_options(TOPIC_SETTINGS)
async def topic_update(
    shell: ClusterShell,
    topic: TopicName,
    queues: Annotated[int | None, QUEUES, Option(_QUEUES_TEXT, "-q")],
    attributes: _Attributes,
    brokers: OnlyBrokers,
    yes: Yes,
    **values: Any,
) -> None:
    """Change the given settings of TOPIC. To remove queues, first reduce the write queues."""
    changes = _given(queues, values)
    if not changes and not attributes:
        raise click.UsageError("nothing to change: give --queues, --perm, --attribute ...")
    there = (await shell.admin.topic_route(topic)).brokers
    names = [name for name in await shell.brokers(brokers) if brokers or name in there]
    given: Row = {"topic": topic, "settings": changes, "attributes": _assigned(attributes)}
    await shell.carry_out_all([ConfigureTopic(**given, brokers=[name]) for name in names], yes)


def _given(queues: int | None, values: Mapping[str, Any]) -> Row:
    both = {} if queues is None else {"read_queue_nums": queues, "write_queue_nums": queues}
    return both | given_settings(TOPIC_SETTINGS, values)


def _assigned(attributes: Iterable[str]) -> dict[str, str]:
    return assignments(each.removeprefix("+") for each in attributes)


@topic.command("create-static")
async def topic_create_static(
    shell: ClusterShell,
    topic: Name,
    queues: Annotated[int, click.IntRange(1, 65_536), Option("In all.", "-q")],
    plan: _Plan,
    brokers: OnlyBrokers,
) -> None:
    """Create the static TOPIC with --queues logic queues, or add queues. Offsets stay the same when queues move."""
    from mqspark_server.commands.administration.staticplans import carry_out

    _show_leaders(shell, topic, await carry_out(shell, topic, plan, brokers, queues))


@topic.command("remap")
async def topic_remap(shell: ClusterShell, topic: TopicName, plan: _Plan, brokers: OnlyBrokers) -> None:
    """Move the queues of the static TOPIC to --broker, or evenly to all brokers, without interrupting its use."""
    from mqspark_server.commands.administration.staticplans import carry_out

    if plan is None:
        await shell.must_be_topics(topic)
    _show_leaders(shell, topic, await carry_out(shell, topic, plan, brokers))


@topic.command("repair-static")
async def topic_repair_static(shell: ClusterShell, topic: TopicName) -> None:
    """Repair the static TOPIC after two commands have moved its queues concurrently. No message is lost."""
    from mqspark.client.statictopics import StaticTopics

    configs, steps = await StaticTopics(shell.admin).repair(topic)
    text = f"repaired in {steps} steps" if steps else "nothing to repair: the brokers agree"
    shell.output.heading(f"topic {topic}: {text}")
    _show_leaders(shell, topic, configs)


def _show_leaders(shell: ClusterShell, topic: str, configs: Any) -> None:
    from mqspark.client.staticplan import leaders

    found = leaders(configs)
    shell.output.rows(_LEADERS, [row_of(_LEADERS, topic, number, name) for number, name in found.items()])


@topic.command("delete")
async def topic_delete(shell: ClusterShell, topics: TopicNames, yes: Yes) -> None:
    """Delete TOPICS and their messages from all brokers and name servers."""
    await shell.carry_out_all([DeleteTopic(name) for name in topics], yes, DELETED_AT_ONCE)


@topic.command("stats")
async def topic_stats(shell: ClusterShell, topic: MaybeTopic) -> None:
    """Show rates of TOPIC (default: all) over the last minute, in and out, by broker and group."""
    if topic is not None:
        shell.output.rows(_STATS, await _stats_rows(shell, topic))
        return
    rows: list[Row] = []

    async def add(row: Row) -> None:
        with contextlib.suppress(MQError):  # deleted meanwhile, or its broker is down
            rows.extend(await _stats_rows(shell, row["topic"]))

    await each_of(await shell.topic_rows(), add)
    rows.sort(key=lambda row: row["topic"])
    shell.output.rows(_STATS, rows, empty="no topic")


async def _stats_rows(shell: ClusterShell, topic: str) -> list[Row]:
    masters = (await shell.admin.topic_route(topic)).masters
    groups = await shell.admin.topic_groups(topic)
    counters: list[tuple[str | None, str, str, str]] = [(None, "in", "TOPIC_PUT_NUMS", topic)]
    counters += [(group, "out", "GROUP_GET_NUMS", f"{topic}@{group}") for group in groups]
    rows: list[Row] = []
    for broker, address in masters.items():
        for group, way, counter, key in counters:
            minute, day = await topicsurvey.counted(shell.admin, address, counter, key)
            figures = {"tps": round(minute.tps, 2), "minute": minute.sum, "day": day.sum}
            row = {f"{way}_{name}": figure for name, figure in figures.items()}
            rows.append({"topic": topic, "group": group, "broker": broker, **row})
    return rows


@topic.command("producers")
async def topic_producers(shell: ClusterShell, topic: TopicName, group: Name) -> None:
    """List the online producers of GROUP at the brokers of TOPIC."""
    try:
        found = await shell.admin.topic_producers(topic, group)
    except BrokerError:
        raise Missing(
            "producer group online", group, advice="mqspark broker producers BROKER shows all"
        ) from None
    shell.output.rows(_PRODUCERS, client_rows(found.connection_set), empty="no producer is online")
