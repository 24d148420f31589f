"""``mqspark dlq``: dead letters, the messages that a group could not process."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import click

from mqspark.errors import NoRoute
from mqspark.message import DLQ_PREFIX, MessageExt, dlq_topic
from mqspark_server.actions.letteractions import ResendLetters
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.completing import GroupName
from mqspark_server.commands.messages.consume_cli import Sql, Tag, filter_of
from mqspark_server.commands.messages.reading import END, WHERE, Where, read_spans, spans
from mqspark_server.commands.messages.rows import MESSAGE_COLUMNS
from mqspark_server.commands.output import Column, columns, cut
from mqspark_server.commands.parameters import MaybeName, Option, Yes, declaring
from mqspark_server.commands.refusals import Missing
from mqspark_server.shown.deadletters import LetterChoice, origin_of
from mqspark_server.shown.messagerow import message_row

dlq = noun("dlq", "Dead letters: messages that groups could not process.")
_LIST = columns("group", "messages", "last_ms LAST")
_RESENT = columns(
    "message_id, origin_topic",
    Column("is_foreign", "FOREIGN", text=lambda is_foreign: "yes" if is_foreign else ""),
    "to, tags, keys, stored_ms DEAD SINCE",
)


@dataclass
class WhichLetters:
    """Which dead letters."""

    tag: Tag
    sql: Sql
    key: Annotated[str | None, Option("Only messages with this key.")]
    origin: Annotated[str | None, Option("Only messages that came from this topic.", "--topic")]
    begin: Annotated[Where, WHERE, Option("As for mqspark consume.", "--from", default="earliest")]
    until: Annotated[Where | None, END, Option("An offset or a time.  [default: the current end]")]


@dlq.command("list")
async def dlq_list(shell: ClusterShell, pattern: MaybeName) -> None:
    """List groups with dead letters, or those that match PATTERN."""
    rows = []
    for name in fnmatch.filter(await _groups(shell), "*" if pattern is None else pattern):
        stats = (await shell.admin.topic_stats(dlq_topic(name))).values()
        messages = sum(each.max_offset - each.min_offset for each in stats)
        last_ms = max((each.last_update_timestamp for each in stats), default=0) or None
        rows.append({"group": name, "messages": messages, "last_ms": last_ms})
    shell.output.rows(_LIST, rows, empty="no group has dead letters")


async def _dead(shell: ClusterShell, group: str, count: int, which: WhichLetters) -> list[MessageExt]:
    letters, chosen = LetterChoice(which.origin, key=which.key), filter_of(which.tag, which.sql)
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
    places = await spans(shell, queues, which.begin, which.until)
    async for message in read_spans(shell, places, **chosen):
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
@declaring(WhichLetters)
async def dlq_show(
    shell: ClusterShell,
    group: GroupName,
    count: Annotated[int, click.IntRange(min=1), Option("At most.", "-c")] = 100,
    **chosen: Any,
) -> None:
    """Show the dead letters of GROUP."""
    found = await _dead(shell, group, count, WhichLetters(**chosen))
    rows = [{**message_row(each), "origin_topic": origin_of(each)} for each in found]
    shell.output.rows(columns("origin_topic", *MESSAGE_COLUMNS), rows, empty="no dead letter")


@dlq.command("resend")
@declaring(WhichLetters)
async def dlq_resend(
    shell: ClusterShell,
    *,
    group: GroupName,
    count: Annotated[int, click.IntRange(1, 100_000), Option("At most.", "-c")] = 10_000,
    to: Annotated[
        Literal["group", "topic"],
        Option("group: to the retry topic, so that no other group gets them; topic: to the original topics."),
    ] = "group",
    dry_run: Annotated[bool, Option("Only show what would be sent.")],
    yes: Yes,
    **chosen: Any,
) -> None:
    """Send dead letters of GROUP again. The originals stay in the dead-letter topic until they expire.

    A group in POP mode reads a different retry topic: use --to topic.
    """
    found = await _dead(shell, group, count, WhichLetters(**chosen))
    action = ResendLetters(group, found, to, chosen["origin"])
    await shell.carry_out_shown(action, _RESENT, yes, dry_run=dry_run, empty="no dead letter")
