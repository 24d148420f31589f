"""``mqspark consume``: prints the messages of a topic, as text, JSON or by a format string."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Annotated

import click

from mqspark.errors import InvalidMessage
from mqspark.message import MessageExt
from mqspark_server.commands.administration.group_cli import chosen_queues
from mqspark_server.commands.clustercommand import ClusterCommand, ClusterShell
from mqspark_server.commands.completing import TopicName
from mqspark_server.commands.messages.reading import (
    EARLIEST,
    END,
    LATEST,
    WHERE,
    Where,
    follow,
    read_spans,
    spans,
)
from mqspark_server.commands.messages.rows import MESSAGE_COLUMNS, parse_format, write_bytes
from mqspark_server.commands.output import counted, cut, remark
from mqspark_server.commands.parameters import OnlyQueues, Option
from mqspark_server.commands.refusals import CommandFailed
from mqspark_server.shown.messagerow import message_row
from mqspark_server.survey.topicsurvey import ReadFilter

MAX_ROWS = 10_000
"""Limit of messages in a table, which is held in memory."""


Tag = Annotated[str | None, Option("Only messages with these tags: 'a || b'.", metavar="EXPR")]
Sql = Annotated[
    str | None,
    Option("Only messages with such properties: \"amount > 5 AND region = 'eu'\".", metavar="EXPR"),
]
_Begin = Annotated[
    Where | None,
    WHERE,
    Option(
        "earliest, latest, an offset, -N (last N of each queue), a time, or -1h.  [default: earliest; with --follow"
        " latest]",
        "--from",
    ),
]
_Format = Annotated[
    str | None,
    Option(
        "Of each message: %s body, %k keys, %g tag, %t topic, %b broker, %p queue, %o offset, %T store time in ms,"
        r" %i id, %h properties, %J as JSON; \n \t \xFF.",
        "-F",
        "--format",
        metavar="TEXT",
    ),
]


def filter_of(tag: str | None, sql: str | None) -> ReadFilter:
    if tag and sql:
        raise click.UsageError("give --tag or --sql")
    return {"expression": sql, "expression_type": "SQL92"} if sql else {"expression": tag or "*"}


def _written(write: Callable[[MessageExt], bytes], message: MessageExt) -> bool:
    """Print one message. False, with a line on standard error, if its body cannot be inflated: the others are shown."""
    try:
        write_bytes(write(message))
    except InvalidMessage as error:
        place = f"{message.broker_name}:{message.queue_id}"
        remark(f"mqspark: offset {message.queue_offset} of queue {place}: {error}")
        return False
    return True


@click.command(short_help="Print the messages of a topic.", cls=ClusterCommand)
async def consume(
    shell: ClusterShell,
    topic: TopicName,
    begin: _Begin,
    until: Annotated[Where | None, END, Option("An offset or a time.  [default: the current end]")],
    following: Annotated[bool, Option("Continue with new messages until interrupted.", "-f", "--follow")],
    count: Annotated[int | None, click.IntRange(min=1), Option("Maximum number of messages.", "-c")],
    tag: Tag,
    sql: Sql,
    queues: OnlyQueues,
    format_text: _Format,
) -> None:
    """Print the messages of TOPIC, each body on a line, in the order of their store times.

    Joins no group and commits nothing. Without --follow it stops at the current end of the topic.

    \b
    mqspark consume Orders -f --tag paid
    mqspark consume Orders --from -1h --sql "amount > 100" -o jsonl
    mqspark consume Orders --from -10 --format '%T %k %s\\n'
    """
    if following and until is not None:
        raise click.UsageError("--until and --follow exclude each other")
    if format_text is not None and shell.output.asked is not None:
        raise click.UsageError("give --format or -o")
    chosen = filter_of(tag, sql)
    write = parse_format(format_text or "%s\\n")
    wanted = await spans(
        shell, await chosen_queues(shell, topic, queues), begin or (LATEST if following else EARLIEST), until
    )

    async def both() -> AsyncGenerator[MessageExt, None]:
        async for message in read_spans(shell, wanted, **chosen):
            yield message
        if following:
            places = {queue: max(span.first, span.end) for queue, span in wanted.items()}
            async for message in follow(shell, places, **chosen):
                yield message

    is_whole = shell.output.asked is not None and shell.output.is_table and not following
    most = count or (MAX_ROWS + 1 if is_whole else None)
    rows = []
    number = unread = 0
    # Ctrl-C ends --follow normally.
    with contextlib.suppress(asyncio.CancelledError) if following else contextlib.nullcontext():
        async with contextlib.aclosing(both()) as stream:
            with shell.output.listing() as listing:
                async for message in stream:
                    if is_whole:
                        rows.append(message_row(message))
                    elif shell.output.is_table:
                        unread += not _written(write, message)
                    else:
                        listing.add(message_row(message))
                    number += 1
                    if number == most:
                        break
                    if following:
                        sys.stdout.flush()
        if unread:
            raise CommandFailed(f"{counted(unread, 'message')} could not be shown")
    if is_whole:
        shown = cut(rows, count or MAX_ROWS, "--count limits them, -o jsonl prints all")
        shell.output.rows(MESSAGE_COLUMNS, shown, empty="no message")
