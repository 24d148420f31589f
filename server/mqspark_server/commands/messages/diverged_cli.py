"""``mqspark store diverged``: what a replica has set aside because its master's log differed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.output import Output, OutputFormat, columns, cut
from mqspark_server.commands.parameters import MaybeName, Name, Option, StoreDirectory, Yes
from mqspark_server.commands.refusals import CommandFailed, Missing

if TYPE_CHECKING:
    from mqspark.store.tools.diverged import SavedPart

diverged = noun("diverged", "Parts of the log that were set aside because a master's log differed.")

MAX_SENT = 100_000
"""Messages of one command, which are in memory meanwhile."""
MAX_SENT_BYTES = 1 << 30

_PARTS = columns(
    "file", "position FROM", "bytes SIZE", "saved_ms SET ASIDE", "messages", "damaged_bytes DAMAGED"
)
_Topic = Annotated[str | None, Option("Only messages of this topic.")]


def _parts(directory: str, name: str | None = None) -> list[SavedPart]:
    from mqspark_server.shown.setaside import parts_of

    parts = parts_of(Path(directory))
    if name is None:
        return parts
    found = [each for each in parts if each.path.name == name]
    if not found:
        raise Missing("part that was set aside", name, [each.path.name for each in parts])
    return found


@diverged.command("list")
def list_parts(directory: StoreDirectory, output: OutputFormat) -> None:
    """List what was set aside in the store directory DIR."""
    from mqspark.message import MessageExt
    from mqspark.store.tools.diverged import messages_of

    rows = []
    for part in _parts(directory):
        messages = damaged = 0
        for each in messages_of(part):
            if isinstance(each, MessageExt):
                messages += 1
            else:
                damaged += each.size_bytes
        rows.append(
            {
                "file": part.path.name,
                "position": part.position,
                "bytes": part.size_bytes,
                "saved_ms": part.saved_ms,
                "messages": messages,
                "damaged_bytes": damaged,
            }
        )
    Output(output).rows(_PARTS, rows, empty="nothing was set aside")


@diverged.command("show")
def show(
    *,
    directory: StoreDirectory,
    file: MaybeName,
    topic: _Topic,
    count: Annotated[int, click.IntRange(min=1), Option("At most.", "-c")] = 100,
    output: OutputFormat,
) -> None:
    """Show the messages that were set aside in the store directory DIR, or those of one FILE."""
    import itertools

    from mqspark_server.commands.messages.rows import MESSAGE_COLUMNS
    from mqspark_server.shown.messagerow import message_row
    from mqspark_server.shown.setaside import messages_in

    found = list(itertools.islice(messages_in(_parts(directory, file), topic), count + 1))
    Output(output).rows(
        columns("topic", *MESSAGE_COLUMNS),
        [{**message_row(each), "topic": each.topic} for each in cut(found, count, "--count shows more")],
        empty="no message was set aside",
    )


@diverged.command("send")
async def send(
    shell: ClusterShell,
    directory: StoreDirectory,
    file: Name,
    topic: _Topic,
    dry_run: Annotated[bool, Option("Only show what would be sent.")],
    yes: Yes,
) -> None:
    """Send the messages of FILE again, as new messages of their topics. Whether the cluster has them already is not
    known here. Messages of system topics, as half and delayed ones, are left out."""
    from mqspark_server.actions.letteractions import SendAgain
    from mqspark_server.shown.setaside import again, messages_in

    found = again(messages_in(_parts(directory, file), topic), MAX_SENT, MAX_SENT_BYTES)
    if found.is_more:
        raise CommandFailed(
            f"{file} has more than {MAX_SENT} messages, or {MAX_SENT_BYTES >> 20} MiB: --topic takes them in parts"
        )
    sent = columns("topic", "messages")
    await shell.carry_out_shown(SendAgain(found, file), sent, yes, dry_run=dry_run, empty="no message")
