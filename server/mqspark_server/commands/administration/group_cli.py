"""``mqspark group``: consumer groups."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import click

from mqspark.errors import BrokerError, MQError
from mqspark.message import MessageQueue
from mqspark_server.actions.groupactions import CloneOffsets, DeleteGroup, PutGroup, SetMode
from mqspark_server.actions.offsetmoves import Goal, OffsetMove
from mqspark_server.commands.clustercommand import (
    DELETED_AT_ONCE,
    ClusterShell,
    given_settings,
    noun,
    setting_options,
)
from mqspark_server.commands.completing import GroupName, GroupNames, MaybeGroups, TopicName, complete_topics
from mqspark_server.commands.output import columns, row_of
from mqspark_server.commands.parameters import Argument, MaybeName, Name, OnlyBrokers, OnlyQueues, Option, Yes
from mqspark_server.commands.refusals import Missing
from mqspark_server.commands.times import FORMS, TIME
from mqspark_server.shown.nouns import GROUP_SETTINGS, OFFSETS, SHARED_QUEUES, ModeName, place_of
from mqspark_server.survey.groupsurvey import (
    group_names,
    group_row,
    group_rows,
    lag_of,
    member_rows,
    offset_rows,
)
from mqspark_server.survey.surveying import Row, add_to_each

group = noun("group", "Consumer groups.")
_LIST = columns("group, members*, lag*, retries, ordered, enabled, broadcast*")
_LAG = columns("group, topic, broker, queue, committed, max_offset END, lag, client_id*")
_TOTALS = columns("group, topic, queues, lag")
_MEMBERS = columns("client_id, address, language, version, mode, queues*, cached*")
_RESET = columns("topic, broker, queue, from_offset, to_offset, change")


@group.command("list")
async def group_list(
    shell: ClusterShell,
    pattern: MaybeName,
    every: Annotated[bool, Option("Include the brokers' own groups.", "--all")],
) -> None:
    """List groups, or those that match PATTERN ('order*'). -o wide shows members and lag, too."""

    async def fill(row: Row) -> None:
        row["members"] = len(await member_rows(shell.admin, row["group"]))
        row["lag"] = await lag_of(shell.admin, row["group"])

    await shell.show_matching(_LIST, await group_rows(shell.admin, every=every), pattern, fill)


@group.command("describe")
async def group_describe(shell: ClusterShell, group: GroupName) -> None:
    """Show settings, members, subscriptions and lag of GROUP."""
    config = await shell.must_be_group(group)
    members = await member_rows(shell.admin, group)
    subscriptions: dict[str, str] = {}
    if members:
        found = await shell.admin.group_members(group)
        subscriptions = {topic: each.sub_string for topic, each in sorted(found.subscription_table.items())}
    try:
        offsets = await offset_rows(shell.admin, group)
    except MQError:
        offsets = []  # it has committed nothing anywhere
    row = {
        **group_row(group, config),
        "attributes": dict(config.attributes),
        "subscriptions": subscriptions,
        "lag": sum(each["lag"] for each in offsets),
    }
    if not shell.output.is_table:
        shell.output.record({**row, "members": members, "offsets": offsets})
        return
    shell.output.record(row)
    shell.output.heading("members")
    shell.output.rows(_MEMBERS, members, empty="no member is online")
    shell.output.heading("offsets")
    shell.output.rows(_LAG, offsets, empty="nothing is committed")


@group.command("create")
@setting_options(GROUP_SETTINGS)
async def group_create(shell: ClusterShell, group: Name, **values: Any) -> None:
    """Create GROUP on every master, or change the given settings of an existing one."""
    await shell.carry_out(PutGroup(group=group, settings=given_settings(GROUP_SETTINGS, values)))


@group.command("lag")
async def group_lag(
    shell: ClusterShell,
    groups: MaybeGroups,
    topic: Annotated[str | None, Option("Only this topic.", shell_complete=complete_topics)],
    brokers: OnlyBrokers,
    total: Annotated[bool, Option("One line per topic instead of one per queue.")],
) -> None:
    """Show the messages that GROUPS (default: all) have not committed, by queue."""
    there = await shell.brokers(brokers) if brokers else ()
    names = groups or await group_names(shell.admin)
    rows: list[Row] = []
    for name in names:
        try:
            rows += await offset_rows(shell.admin, name, topic)
        except BrokerError:
            if groups:
                await shell.must_be_group(name)
                raise
    rows = [row for row in rows if not brokers or row["broker"] in there]
    if not total:
        shell.output.rows(_LAG, rows, empty="nothing is committed")
        return
    lags: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        lags.setdefault((row["group"], row["topic"]), []).append(row["lag"])
    totals = [row_of(_TOTALS, *place, len(each), sum(each)) for place, each in lags.items()]
    shell.output.rows(_TOTALS, totals, empty="nothing is committed")


@group.command("members")
async def group_members(shell: ClusterShell, group: GroupName) -> None:
    """List the online clients of GROUP. -o wide shows their queues and cached messages, too, -o json their settings."""
    rows = await member_rows(shell.admin, group)
    if not rows:
        await shell.must_be_group(group)

    async def ask(row: Row) -> Row:
        info = await shell.admin.running_info(group, row["client_id"])
        cached = sum(each.cached_msg_count for each in info.mq_table.values())
        queues = len(info.mq_table) + len(info.mq_pop_table)
        return {"queues": queues, "cached": cached, "settings": info.properties}

    if shell.output.format != "table":
        await add_to_each(rows, ask)
    shell.output.rows(_MEMBERS, rows, empty="no member is online")


@group.command("mode")
async def group_mode(
    shell: ClusterShell,
    group: GroupName,
    topic: TopicName,
    mode: Annotated[ModeName, Argument()],
    share: Annotated[
        int, SHARED_QUEUES, Option("POP: how many members share a queue; 0: all.", show_default=False)
    ] = 0,
) -> None:
    """Set whether members of GROUP with server-side assignment consume TOPIC by PULL or by POP."""
    await shell.carry_out(SetMode(group, topic, mode, share))


@group.command("delete")
async def group_delete(
    shell: ClusterShell,
    groups: GroupNames,
    keep_offsets: Annotated[bool, Option("Keep the offsets for a later group of this name.")],
    yes: Yes,
) -> None:
    """Delete GROUPS and their committed offsets."""
    await shell.carry_out_all([DeleteGroup(name, keep_offsets) for name in groups], yes, DELETED_AT_ONCE)


@group.command("clone")
async def group_clone(
    shell: ClusterShell, source: GroupName, target: Name, topic: TopicName, yes: Yes
) -> None:
    """Copy the committed offsets of SOURCE in TOPIC to TARGET."""
    await shell.must_be_group(source)
    await shell.carry_out(CloneOffsets(source, target, topic), yes)


@group.command("reset")
async def group_reset(
    shell: ClusterShell,
    group: GroupName,
    topic: TopicName,
    to_time: Annotated[int | None, TIME, Option(FORMS)],
    to_offset: Annotated[int | None, OFFSETS, Option("To this offset; needs --queue if there are several.")],
    earliest: Annotated[bool, Option("To the first message.")],
    latest: Annotated[bool, Option("To the end: skip all stored messages.")],
    queues: OnlyQueues,
    dry_run: Annotated[bool, Option("Only show what would change.")],
    yes: Yes,
) -> None:
    """Move the offsets of GROUP in TOPIC forward or back, including online members."""
    given = zip(get_args(Goal), (earliest, latest, to_time is not None, to_offset is not None), strict=True)
    goals = [goal for goal, is_given in given if is_given]
    if len(goals) != 1:
        raise click.UsageError("give one of --to-time, --to-offset, --earliest and --latest")
    chosen = [place_of(queue) for queue in await chosen_queues(shell, topic, queues)] if queues else ()
    await shell.must_be_group(group)
    move = OffsetMove.towards(goals[0], group, topic, chosen, time_ms=to_time, offset=to_offset)
    await shell.carry_out_shown(move, _RESET, yes, dry_run=dry_run)


async def chosen_queues(shell: ClusterShell, topic: str, texts: tuple[str, ...]) -> list[MessageQueue]:
    """The queues of a topic, or those named ``broker:id``. Raises Missing, NoRoute."""
    known = list((await shell.admin.topic_route(topic)).subscribe_queues)
    by_text = {place_of(queue): queue for queue in known}
    for text in texts:
        if text not in by_text:
            raise Missing("queue", text, by_text, f"{topic} has {', '.join(list(by_text)[:8])}")
    return [by_text[text] for text in texts] or known
