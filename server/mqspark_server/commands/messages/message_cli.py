"""``mqspark message``: finds single messages, and traces them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import click

from mqspark.errors import BrokerError, InvalidMessage, NoRoute
from mqspark.message import TRACE_TOPIC, MessageExt, is_system_topic
from mqspark_server.commands.administration.group_cli import chosen_queues
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.completing import TopicName, complete_topics
from mqspark_server.commands.messages.reading import Where, read_spans, spans
from mqspark_server.commands.messages.rows import MESSAGE_COLUMNS
from mqspark_server.commands.output import as_time, columns, cut
from mqspark_server.commands.parameters import Argument, Name, Option
from mqspark_server.commands.refusals import Missing
from mqspark_server.commands.times import FORMS, TIME
from mqspark_server.shown.messagerow import message_row
from mqspark_server.survey.tracesurvey import MAX_RECORDS, traced

message = noun("message", "Find messages: by key, id, offset or time, and trace them.")
_TRACE = columns(
    "time_ms", "what", "group", "host", "success OK", "cost_ms MS", "retries", "topic*", "result"
)
_Limit = Annotated[int, click.IntRange(1, 10_000), Option("At most.", "-c", default=32)]
_Since = Annotated[int, TIME, Option(f"Stored since: {FORMS}", "--from", show_default=False, default=0)]
_Until = Annotated[int | None, TIME, Option("Stored until.  [default: now]", "--until")]
_OLDER = "--count shows more, --until TIME older ones"


def _print(shell: ClusterShell, found: Sequence[MessageExt]) -> None:
    """Print a single message in full, several as a table."""
    rows = [message_row(each) for each in found]
    if len(rows) == 1 and shell.output.is_table:
        shell.output.record(rows[0])
    else:
        shell.output.rows(MESSAGE_COLUMNS, rows)


@message.command("key")
async def message_key(
    shell: ClusterShell, topic: TopicName, key: Name, begin_ms: _Since, end_ms: _Until, count: _Limit
) -> None:
    """Show the newest messages of TOPIC with KEY, by the brokers' index."""
    await _by_index(shell, "key", topic, key, begin_ms, end_ms, count)


@message.command("tag")
async def message_tag(
    shell: ClusterShell, topic: TopicName, tag: Name, begin_ms: _Since, end_ms: _Until, count: _Limit
) -> None:
    """Show the newest messages of TOPIC with TAG, by the brokers' index."""
    await _by_index(shell, "tag", topic, tag, begin_ms, end_ms, count)


async def _by_index(
    shell: ClusterShell, what: str, topic: str, value: str, begin_ms: int, end_ms: int | None, count: int
) -> None:
    ask = shell.admin.messages_by_tag if what == "tag" else shell.admin.messages_by_key
    found = await ask(topic, value, max_messages=count + 1, begin_ms=begin_ms, end_ms=_end(begin_ms, end_ms))
    if not found:
        raise Missing(f"message in topic {topic} with {what}", value)
    _print(shell, cut(found, count, _OLDER, newest=True))


def _end(begin_ms: int, end_ms: int | None) -> int:
    """Raises click.UsageError."""
    from mqspark.client.remoting.indexwalk import EVER_MS

    if end_ms is not None and begin_ms > end_ms:
        raise click.UsageError(f"--from {as_time(begin_ms)} is after --until {as_time(end_ms)}")
    return EVER_MS if end_ms is None else end_ms


@message.command("id")
async def message_id(
    shell: ClusterShell,
    message_id: Name,
    topic: Annotated[
        str | None, Option("The topic, required for a unique id.", shell_complete=complete_topics)
    ],
) -> None:
    """Show the message with an id: a producer's unique id (needs --topic) or a broker's offset id."""
    found = []
    if topic is not None:
        found = await shell.admin.messages_by_key(topic, message_id, unique=True)
    if not found:
        found = await _by_offset_id(shell, message_id)
    if topic is not None:
        found = [each for each in found if each.topic == topic]
    if not found:
        if topic:
            raise Missing(f"message in topic {topic} with id", message_id)
        raise Missing("message with id", message_id, advice="a unique id needs --topic")
    _print(shell, found)


async def _by_offset_id(shell: ClusterShell, text: str) -> list[MessageExt]:
    """The message, if the id names a broker of this cluster. An id must not make the command connect elsewhere."""
    from mqspark.message import decode_offset_id

    try:
        host, port, _ = decode_offset_id(text)
    except InvalidMessage:
        return []
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    names = {each: name for name, addresses in (await shell.brokers()).items() for each in addresses.values()}
    if address not in names:
        return []
    try:
        found = await shell.admin.message_by_offset_id(text)
        found.broker_name = found.broker_name or names[address]
        return [found]
    except (BrokerError, InvalidMessage):
        return []  # no record begins at that position


@message.command("offset")
async def message_offset(
    shell: ClusterShell,
    topic: TopicName,
    queue: Annotated[str, Argument(metavar="BROKER:ID")],
    offset: Annotated[int, click.IntRange(min=0), Argument()],
    count: Annotated[int, click.IntRange(1, 10_000), Option("At most.", "-c")] = 1,
) -> None:
    """Show the message of a queue at OFFSET, and with --count the following ones, too."""
    (chosen,) = await chosen_queues(shell, topic, (queue,))
    place = await spans(shell, [chosen], Where("offset", offset), Where("offset", offset + count))
    found = [each async for each in read_spans(shell, place)]
    if not found or found[0].queue_offset < offset:
        low, high = await shell.admin.queue_bounds(chosen)
        there = f"has offsets {low} to {high - 1}" if low < high else "is empty"
        raise Missing("message at offset", str(offset), advice=f"{queue} {there}")
    _print(shell, found)


@message.command("time")
async def message_time(
    shell: ClusterShell,
    topic: TopicName,
    begin_ms: Annotated[int, TIME, Option(FORMS, "--from")],
    end_ms: _Until,
    tag: Annotated[str | None, Option("Only these tags.", metavar="EXPR")],
    count: _Limit,
) -> None:
    """Show the messages of TOPIC that were stored between two times."""
    span = Where("time", begin_ms), None if end_ms is None else Where("time", _end(begin_ms, end_ms))
    queues = await chosen_queues(shell, topic, ())
    found: list[MessageExt] = []
    async for each in read_spans(shell, await spans(shell, queues, *span), expression=tag or "*"):
        found.append(each)
        if len(found) > count:
            break
    shown = cut(found, count, "--count shows more, --from TIME later ones")
    shell.output.rows(MESSAGE_COLUMNS, [message_row(each) for each in shown], empty="no message")


@message.command("trace")
async def message_trace(
    shell: ClusterShell,
    message_id: Name,
    trace_topic: Annotated[str, Option("The topic of trace data.")] = TRACE_TOPIC,
) -> None:
    """Show who sent and who consumed a message, if its clients trace (trace=True, enableMsgTrace)."""
    if not is_system_topic(trace_topic) and trace_topic not in await shell.known_topics():
        raise Missing("topic", trace_topic, await shell.known_topics())
    try:
        rows, is_cut = await traced(shell.admin, trace_topic, message_id)
    except NoRoute:
        rows, is_cut = [], False
    if not rows:
        raise Missing(
            "trace of message", message_id, advice="do its clients trace (trace=True, enableMsgTrace)?"
        )
    if is_cut:
        click.echo(
            f"mqspark: there are more, only the newest {MAX_RECORDS} records are shown: mqspark message key "
            f"{trace_topic} {message_id} finds all",
            err=True,
        )
    shell.output.rows(_TRACE, rows)
