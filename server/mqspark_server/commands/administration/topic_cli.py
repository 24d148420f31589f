"""``mqspark topic``: topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import click

from mqspark.errors import BrokerError, MQError
from mqspark.message import MESSAGE_TYPES, NEW_TOPIC_QUEUES
from mqspark_server.actions.topicactions import ConfigureTopic, CreateTopic, DeleteTopic
from mqspark_server.commands.clustercommand import (
    ClusterShell,
    given_settings,
    matching,
    noun,
    setting_options,
)
from mqspark_server.commands.completing import TopicName, complete_topics
from mqspark_server.commands.output import columns
from mqspark_server.commands.parameters import Argument, MaybeName, Name, OnlyBrokers, Option, Yes
from mqspark_server.commands.refusals import CommandFailed, Missing, describe
from mqspark_server.shown.nouns import PERMS, QUEUES, TOPIC_SETTINGS, perm_text
from mqspark_server.survey.groupsurvey import client_rows
from mqspark_server.survey.surveying import each_of, without_no_error
from mqspark_server.survey.topicsurvey import (
    PLAIN_TYPE,
    counter_of,
    extent_of,
    groups_of,
    queue_rows,
    settings_row,
)

if TYPE_CHECKING:
    from mqspark.client.statictopics import StaticTopics

topic = noun("topic", "Topics.")
_LIST = columns("topic", "kind", "brokers*", "queues*", "messages*", "last_ms*")
_QUEUES = columns("broker", "queue", "min_offset", "max_offset NEXT", "messages", "last_ms")
_STATS = columns(
    "topic", "group", "broker", "in_tps", "in_minute", "in_day*", "out_tps", "out_minute", "out_day*"
)
_PRODUCERS = columns("client_id", "address", "language", "version")
_LEADERS = columns("topic", "queue", "broker LED BY")
_Plan = Annotated[
    str | None,
    Option("Complete a failed command from the file that it named (RocketMQ's mapFile).", metavar="FILE"),
]
_Attributes = Annotated[
    tuple[str, ...], Option("A topic attribute. Repeatable.", "-a", "--attribute", metavar="KEY=VALUE")
]


def _attribute_table(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse KEY=VALUE texts, or +KEY=VALUE as in RocketMQ. Raises click.UsageError."""
    from mqspark_server.commands.administration.config_cli import assignments

    return assignments(text.removeprefix("+") for text in texts)


@topic.command("list")
async def topic_list(
    shell: ClusterShell,
    pattern: MaybeName,
    every: Annotated[bool, Option("Include retry, dead-letter and system topics.", "--all")],
) -> None:
    """List topics, or those that match PATTERN ('order*'). -o wide shows queues and messages, too."""
    known = [row for row in await shell.topic_rows() if every or row["kind"] == "normal"]
    rows, empty = matching(known, "topic", pattern)

    async def fill(row: dict[str, Any]) -> None:
        row |= without_no_error(await extent_of(shell.admin, row["topic"]))

    if shell.output.format != "table":
        await each_of(rows, fill)
    shell.output.rows(_LIST, rows, empty=empty)


@topic.command("describe")
async def topic_describe(shell: ClusterShell, topic: TopicName) -> None:
    """Show settings, queues, offsets and groups of TOPIC."""
    route = await shell.admin.topic_route(topic)
    masters = {name: address for name in sorted(route.brokers) if (address := route.master(name)) is not None}
    queues, configs, groups = await asyncio.gather(
        queue_rows(shell.admin, topic), _configs(shell, topic, masters), groups_of(shell.admin, topic)
    )
    settings = {name: settings_row(each) | {"perm": perm_text(each.perm)} for name, each in configs.items()}
    if not shell.output.is_table:
        shell.output.record({"topic": topic, "brokers": settings, "groups": groups, "queues": queues})
        return
    shown: dict[str, Any] = {
        "topic": topic,
        "messages": sum(row["messages"] for row in queues),
        "groups": groups,
    }
    for name, each in settings.items():
        attributes = " ".join(f"{key}={value}" for key, value in each["attributes"].items())
        shown[name] = (
            f"{each['read_queues']} queues to read, {each['write_queues']} to write, perm {each['perm']}"
            + (", ordered" if each["order"] else "")
            + (f", {attributes}" if attributes else "")
        )
    shell.output.record(shown)
    shell.output.heading("queues")
    shell.output.rows(_QUEUES, queues)


async def _configs(shell: ClusterShell, name: str, masters: Mapping[str, str]) -> dict[str, Any]:
    found = await asyncio.gather(*(shell.admin.topic_config(name, address) for address in masters.values()))
    return dict(zip(masters, found, strict=True))


@topic.command("create")
async def topic_create(
    shell: ClusterShell,
    *,
    topic: Name,
    queues: Annotated[int, QUEUES, Option("Per broker.", "-q")] = NEW_TOPIC_QUEUES,
    perm: Annotated[str, click.Choice(PERMS), Option("Permissions.")] = "rw",
    message_type: Annotated[
        str | None, click.Choice(MESSAGE_TYPES), Option("The attribute message.type.", "--type")
    ],
    order: Annotated[bool, Option("Keep the topic's queues in routes while a broker is down.")],
    exist_ok: Annotated[bool, Option("Leave an existing topic unchanged.")],
    attributes: _Attributes,
    brokers: OnlyBrokers,
) -> None:
    """Create TOPIC on every master, or only on --broker."""
    action = CreateTopic(
        topic=topic,
        settings={"read_queue_nums": queues, "perm": PERMS[perm], "order": order},
        type=message_type or PLAIN_TYPE,
        attributes=_attribute_table(attributes),
        brokers=await shell.masters(brokers),
        is_kept=exist_ok,
    )
    await shell.carry_out(action)


@topic.command("update")
@setting_options(TOPIC_SETTINGS)
async def topic_update(
    shell: ClusterShell,
    topic: TopicName,
    queues: Annotated[int | None, QUEUES, Option("Queues to read and to write, per broker.", "-q")],
    attributes: _Attributes,
    brokers: OnlyBrokers,
    yes: Yes,
    **values: Any,
) -> None:
    """Change the given settings of TOPIC. To remove queues, first reduce the write queues."""
    changes = given_settings(TOPIC_SETTINGS, values)
    if queues is not None:
        changes = {"read_queue_nums": queues, "write_queue_nums": queues} | changes
    if not changes and not attributes:
        raise click.UsageError("nothing to change: give --queues, --perm, --attribute ...")
    there = (await shell.admin.topic_route(topic)).brokers
    names = [name for name in await shell.brokers(brokers) if brokers or name in there]
    table = _attribute_table(attributes)
    actions = [
        ConfigureTopic(topic=topic, settings=changes, attributes=table, brokers=[name]) for name in names
    ]
    await shell.carry_out_all(actions, yes)


@topic.command("create-static")
async def topic_create_static(
    shell: ClusterShell,
    topic: Name,
    queues: Annotated[int, click.IntRange(1, 65_536), Option("In all.", "-q")],
    plan: _Plan,
    brokers: OnlyBrokers,
) -> None:
    """Create the static TOPIC with --queues logic queues, or add queues. Offsets stay the same when queues move."""

    async def planned(statics: StaticTopics) -> Any:
        await _finish(statics, topic)
        return await statics.plan_growth(topic, queues, await shell.masters(brokers))

    await _carry_out(shell, topic, plan, planned)


@topic.command("remap")
async def topic_remap(shell: ClusterShell, topic: TopicName, plan: _Plan, brokers: OnlyBrokers) -> None:
    """Move the queues of the static TOPIC to --broker, or evenly to all brokers, without interrupting its use."""

    async def planned(statics: StaticTopics) -> Any:
        await shell.must_be_topics(topic)
        await _finish(statics, topic)
        return await statics.plan_move(topic, await shell.masters(brokers))

    await _carry_out(shell, topic, plan, planned)


@topic.command("repair-static")
async def topic_repair_static(shell: ClusterShell, topic: TopicName) -> None:
    """Repair the static TOPIC after two commands have moved its queues concurrently. No message is lost."""
    from mqspark.client.statictopics import StaticTopics

    configs, steps = await StaticTopics(shell.admin).repair(topic)
    text = f"repaired in {steps} steps" if steps else "nothing to repair: the brokers agree"
    shell.output.heading(f"topic {topic}: {text}")
    _show_leaders(shell, topic, configs)


async def _carry_out(
    shell: ClusterShell, topic: str, file: str | None, planned: Callable[[StaticTopics], Awaitable[Any]]
) -> None:
    from mqspark.client.statictopics import StaticTopics
    from mqspark_server.commands.administration.staticplans import read_plan

    statics = StaticTopics(shell.admin)
    plan = await planned(statics) if file is None else read_plan(file, topic)
    await _execute_plan(statics, plan, file)
    _show_leaders(shell, topic, plan.broker_config_map)


async def _finish(statics: Any, topic: str) -> None:
    """Complete an earlier command, as far as the brokers agree about it."""
    from mqspark.client.staticplan import StaticTopicProblem

    try:
        rest = await statics.plan_rest(topic)
    except StaticTopicProblem as error:
        raise CommandFailed(
            f"{describe(error)}: the brokers disagree about {topic}, as after two concurrent commands;"
            f" `mqspark topic repair-static {topic}` repairs it"
        ) from error
    if rest is not None:
        await _execute_plan(statics, rest, None)


async def _execute_plan(statics: Any, plan: Any, file: str | None) -> None:
    from mqspark_server.commands.administration.staticplans import KeptPlan

    kept = KeptPlan(plan, file)
    try:
        await statics.carry_out(plan, kept.write)
    except (MQError, OSError) as error:
        raise CommandFailed(
            f"{describe(error)}; the brokers may disagree about {plan.topic} now: complete it with --plan {kept.path}"
        ) from error
    kept.remove()


def _show_leaders(shell: ClusterShell, topic: str, configs: Any) -> None:
    from mqspark.client.staticplan import leaders

    found = leaders(configs)
    rows = [{"topic": topic, "queue": number, "broker": name} for number, name in found.items()]
    shell.output.rows(_LEADERS, rows)


@topic.command("delete")
async def topic_delete(
    shell: ClusterShell,
    topics: Annotated[tuple[str, ...], Argument(required=True, shell_complete=complete_topics)],
    yes: Yes,
) -> None:
    """Delete TOPICS and their messages from all brokers and name servers."""
    await shell.carry_out_all([DeleteTopic(name) for name in topics], yes)


@topic.command("stats")
async def topic_stats(
    shell: ClusterShell, topic: Annotated[str | None, Argument(shell_complete=complete_topics)]
) -> None:
    """Show rates of TOPIC (default: all) over the last minute, in and out, by broker and group."""
    if topic is not None:
        shell.output.rows(_STATS, await _stats_rows(shell, topic))
        return
    rows: list[dict[str, Any]] = []

    async def add(row: dict[str, Any]) -> None:
        with contextlib.suppress(MQError):  # deleted meanwhile, or its broker is down
            rows.extend(await _stats_rows(shell, row["topic"]))

    await each_of([row for row in await shell.topic_rows() if row["kind"] == "normal"], add)
    rows.sort(key=lambda row: row["topic"])
    shell.output.rows(_STATS, rows, empty="no topic")


async def _stats_rows(shell: ClusterShell, topic: str) -> list[dict[str, Any]]:
    route = await shell.admin.topic_route(topic)
    groups = await shell.admin.topic_groups(topic)
    rows: list[dict[str, Any]] = []
    for name in sorted(route.brokers):
        address = route.master(name)
        if address is None:
            continue
        put = await counter_of(shell.admin, address, "TOPIC_PUT_NUMS", topic)
        rows.append({"topic": topic, "group": None, "broker": name, **_rates("in", put)})
        for group in groups:
            got = await counter_of(shell.admin, address, "GROUP_GET_NUMS", f"{topic}@{group}")
            rows.append({"topic": topic, "group": group, "broker": name, **_rates("out", got)})
    return rows


def _rates(direction: str, data: Any) -> dict[str, Any]:
    minute = getattr(data, "stats_minute", None)
    day = getattr(data, "stats_day", None)
    return {
        f"{direction}_tps": round(minute.tps, 2) if minute else 0.0,
        f"{direction}_minute": minute.sum if minute else 0,
        f"{direction}_day": day.sum if day else 0,
    }


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
