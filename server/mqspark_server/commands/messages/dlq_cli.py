"""``mqspark dlq``: dead letters, the messages that a group could not process."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import click

from mqspark.base.logs import printable
from mqspark.errors import InvalidMessage, NoRoute
from mqspark.message import DLQ_PREFIX, Message, MessageExt, dlq_topic
from mqspark_server.commands.completing import GroupName
from mqspark_server.commands.loading import noun
from mqspark_server.commands.messages.consume_cli import Sql, Tag, filter_of
from mqspark_server.commands.messages.reading import END, WHERE, Filter, Where, read_spans, spans
from mqspark_server.commands.messages.rows import MESSAGE_COLUMNS
from mqspark_server.commands.output import Column, columns, counted, cut
from mqspark_server.commands.parameters import MaybeName, Option, Yes
from mqspark_server.commands.refusals import CommandFailed, Missing
from mqspark_server.commands.shell import ClusterShell, clustered, confirm, matching
from mqspark_server.shown.deadletters import LetterChoice, foreign_origins, origin_of, resent_copy
from mqspark_server.shown.messagerow import message_row

dlq = noun("dlq", "Dead letters: messages that groups could not process.")
_LIST = columns("group", "messages", "last_ms LAST")
_RESENT = columns(
    "message_id",
    "origin_topic",
    Column("is_foreign", "FOREIGN", text=lambda is_foreign: "yes" if is_foreign else ""),
    "to",
    "tags",
    "keys",
    "stored_ms DEAD SINCE",
)
_NAMED = 5
"""Topics of a refusal."""
_Key = Annotated[str | None, Option("Only messages with this key.")]
_Origin = Annotated[str | None, Option("Only messages that came from this topic.", "--topic")]
_Since = Annotated[Where, WHERE, Option("As for mqspark consume.", "--from", default="earliest")]
_Until = Annotated[Where | None, END, Option("An offset or a time.  [default: the current end]")]


@dlq.command("list")
@clustered
async def dlq_list(shell: ClusterShell, pattern: MaybeName) -> None:
    """List groups with dead letters, or those that match PATTERN."""
    rows, _ = matching(({"group": name} for name in await _groups(shell)), "group", pattern)
    for row in rows:
        stats = (await shell.admin.topic_stats(dlq_topic(row["group"]))).values()
        row["messages"] = sum(each.max_offset - each.min_offset for each in stats)
        row["last_ms"] = max((each.last_update_timestamp for each in stats), default=0) or None
    shell.output.rows(_LIST, rows, empty="no group has dead letters")


async def _dead(
    shell: ClusterShell,
    group: str,
    chosen: Filter,
    letters: LetterChoice,
    begin: Where,
    until: Where | None,
    count: int,
) -> list[MessageExt]:
    try:
        # The topic may be write-only, because consumers do not read it; then its route has no queue to read.
        queues = sorted(await shell.admin.topic_stats(dlq_topic(group)))
    except NoRoute:
        raise Missing(
            "dead letter of group",
            group,
            await _groups(shell),
            "mqspark dlq list shows the groups that have some",
        ) from None
    found: list[MessageExt] = []
    async for message in read_spans(shell, await spans(shell, queues, begin, until), chosen):
        if letters.takes(message):
            found.append(message)
        if len(found) > count:
            break
    return list(cut(found, count, "--count takes more, --from later ones"))


async def _groups(shell: ClusterShell) -> list[str]:
    return [
        name.removeprefix(DLQ_PREFIX) for name in await shell.known_topics() if name.startswith(DLQ_PREFIX)
    ]


@dlq.command("show")
@clustered
async def dlq_show(
    shell: ClusterShell,
    group: GroupName,
    tag: Tag,
    sql: Sql,
    key: _Key,
    origin: _Origin,
    begin: _Since,
    until: _Until,
    count: Annotated[int, click.IntRange(min=1), Option("At most.", "-c")] = 100,
) -> None:
    """Show the dead letters of GROUP."""
    found = await _dead(shell, group, filter_of(tag, sql), LetterChoice(origin, key=key), begin, until, count)
    rows = [{**message_row(each), "origin_topic": origin_of(each)} for each in found]
    shell.output.rows(columns("origin_topic", *MESSAGE_COLUMNS), rows, empty="no dead letter")


@dlq.command("resend")
@clustered
async def dlq_resend(
    shell: ClusterShell,
    *,
    group: GroupName,
    tag: Tag,
    sql: Sql,
    key: _Key,
    origin: _Origin,
    begin: _Since,
    until: _Until,
    count: Annotated[int, click.IntRange(1, 100_000), Option("At most.", "-c")] = 10_000,
    to: Annotated[
        Literal["group", "topic"],
        Option("group: to the retry topic, so that no other group gets them; topic: to the original topics."),
    ] = "group",
    dry_run: Annotated[bool, Option("Only show what would be sent.")],
    yes: Yes,
) -> None:
    """Send dead letters of GROUP again. The originals stay in the dead-letter topic until they expire.

    A group in POP mode reads a different retry topic: use --to topic.
    """
    found = await _dead(shell, group, filter_of(tag, sql), LetterChoice(origin, key=key), begin, until, count)
    foreign = set(foreign_origins(found, await shell.admin.consumed_topics(group))) if found else set()
    plan: list[tuple[MessageExt, Message | None]] = []
    unreadable = 0
    for each in found:
        try:
            plan.append((each, resent_copy(each, group, to)))
        except InvalidMessage as error:
            unreadable += 1
            click.echo(f"mqspark: dead letter {each.message_id}: {error}", err=True)
    rows: list[dict[str, Any]] = [
        {
            "message_id": each.message_id,
            "origin_topic": origin_of(each),
            "is_foreign": origin_of(each) in foreign,
            "to": None if again is None else again.topic,
            "tags": each.tags,
            "keys": each.keys,
            "stored_ms": each.store_timestamp_ms,
        }
        for each, again in plan
    ]
    shell.output.rows(_RESENT, rows, empty="no dead letter")
    left_out = CommandFailed(f"{counted(unreadable, 'message')} left out: the body cannot be read")
    if unreadable and not plan:
        raise left_out
    if dry_run or not plan:
        return
    if any(again is None for _, again in plan):
        raise CommandFailed("some dead letters do not name their original topic; --topic excludes them")
    if foreign and origin is None:
        names = ", ".join(printable(each, 80) for each in sorted(foreign)[:_NAMED])
        raise CommandFailed(
            f"some dead letters say that they come from topics that {group} does not consume: {names}; --topic sends "
            "those of one topic again"
        )
    confirm(f"Send {counted(len(plan), 'message')} again?", yes)
    sent = await shell.send_all(again for _, again in plan if again is not None)
    if shell.output.is_table:
        click.echo(f"sent {counted(sent, 'message')} again")
    if unreadable:
        raise left_out
