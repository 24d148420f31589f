"""``mqspark dlq``: dead letters, the messages that a group could not process."""

from __future__ import annotations

from typing import Any, Literal

import click

from mqspark.base.logs import printable
from mqspark.errors import InvalidMessage, NoRoute
from mqspark.message import DLQ_PREFIX, Message, MessageExt, dlq_topic
from mqspark_server.commands.completing import complete_groups
from mqspark_server.commands.loading import noun
from mqspark_server.commands.messages.consume_cli import filter_of, filter_options
from mqspark_server.commands.messages.reading import END, WHERE, Filter, Where, read_spans, spans
from mqspark_server.commands.messages.rows import MESSAGE_COLUMNS
from mqspark_server.commands.output import Column, columns, counted, cut
from mqspark_server.commands.refusals import CommandFailed, Missing
from mqspark_server.commands.shell import ClusterShell, assume_yes, clustered, confirm, matching
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
_group = click.argument("group", shell_complete=complete_groups)
_key = click.option("--key", help="Only messages with this key.")
_origin = click.option("--topic", "origin", help="Only messages that came from this topic.")
_since = click.option(
    "--from", "begin", type=WHERE, default="earliest", show_default=True, help="As for mqspark consume."
)
_until = click.option("--until", type=END, help="An offset or a time.  [default: the current end]")


@dlq.command("list")
@click.argument("pattern", required=False)
@clustered
async def dlq_list(shell: ClusterShell, pattern: str | None) -> None:
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
@_group
@filter_options
@_key
@_origin
@_since
@_until
@click.option("-c", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="At most.")
@clustered
async def dlq_show(
    shell: ClusterShell,
    group: str,
    tag: str | None,
    sql: str | None,
    key: str | None,
    origin: str | None,
    begin: Where,
    until: Where | None,
    count: int,
) -> None:
    """Show the dead letters of GROUP."""
    found = await _dead(shell, group, filter_of(tag, sql), LetterChoice(origin, key=key), begin, until, count)
    rows = [{**message_row(each), "origin_topic": origin_of(each)} for each in found]
    shell.output.rows(columns("origin_topic", *MESSAGE_COLUMNS), rows, empty="no dead letter")


@dlq.command("resend")
@_group
@filter_options
@_key
@_origin
@_since
@_until
@click.option(
    "-c", "--count", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="At most."
)
@click.option(
    "--to",
    type=click.Choice(["group", "topic"]),
    default="group",
    show_default=True,
    help="group: to the retry topic, so that no other group gets them; topic: to the original topics.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
@assume_yes
@clustered
async def dlq_resend(
    shell: ClusterShell,
    group: str,
    tag: str | None,
    sql: str | None,
    key: str | None,
    origin: str | None,
    begin: Where,
    until: Where | None,
    count: int,
    to: Literal["group", "topic"],
    dry_run: bool,
    yes: bool,
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
