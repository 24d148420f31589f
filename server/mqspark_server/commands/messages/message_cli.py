"""``mqspark message``: finds single messages, and traces them."""

from __future__ import annotations

from typing import Any

import click

from mqspark.errors import BrokerError, InvalidMessage, NoRoute
from mqspark.message import TRACE_TOPIC, MessageExt, is_system_topic
from mqspark_server.commands.administration.group_cli import chosen_queues
from mqspark_server.commands.completing import complete_topics
from mqspark_server.commands.loading import noun
from mqspark_server.commands.messages.reading import Filter, read_spans, spans
from mqspark_server.commands.messages.rows import MESSAGE_COLUMNS, message_row
from mqspark_server.commands.output import columns
from mqspark_server.commands.refusals import Missing
from mqspark_server.commands.shell import ClusterShell, clustered
from mqspark_server.commands.times import parse_time_ms
from mqspark_server.shown.traces import trace_rows

message = noun("message", "Find messages: by key, id, offset or time, and trace them.")
_TRACE = columns(
    "time_ms", "what", "group", "host", "success OK", "cost_ms MS", "retries", "topic*", "result"
)
_topic = click.argument("topic", shell_complete=complete_topics)
_limit = click.option(
    "-c", "--count", type=click.IntRange(1, 10_000), default=32, show_default=True, help="At most."
)


def _print(shell: ClusterShell, found: list[MessageExt]) -> None:
    """Print a single message in full, several as a table."""
    rows = [message_row(each) for each in found]
    if len(rows) == 1 and shell.output.is_table:
        shell.output.record(rows[0])
    else:
        shell.output.rows(MESSAGE_COLUMNS, rows)


@message.command("key")
@_topic
@click.argument("key")
@_limit
@clustered
async def message_key(shell: ClusterShell, topic: str, key: str, count: int) -> None:
    """Show the messages of TOPIC with KEY, by the brokers' index."""
    found = await shell.admin.messages_by_key(topic, key, max_messages=count)
    if not found:
        raise Missing(f"message in topic {topic} with key", key)
    _print(shell, found[-count:])


@message.command("tag")
@_topic
@click.argument("tag")
@_limit
@clustered
async def message_tag(shell: ClusterShell, topic: str, tag: str, count: int) -> None:
    """Show the newest messages of TOPIC with TAG, by the brokers' index."""
    found = await shell.admin.messages_by_tag(topic, tag, max_messages=count)
    if not found:
        raise Missing(f"message in topic {topic} with tag", tag)
    _print(shell, found[-count:])


@message.command("id")
@click.argument("message_id")
@click.option("--topic", shell_complete=complete_topics, help="The topic, required for a unique id.")
@clustered
async def message_id(shell: ClusterShell, message_id: str, topic: str | None) -> None:
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
@_topic
@click.argument("queue", metavar="BROKER:ID")
@click.argument("offset", type=click.IntRange(min=0))
@_limit
@clustered
async def message_offset(shell: ClusterShell, topic: str, queue: str, offset: int, count: int) -> None:
    """Show the message of a queue at OFFSET, and with --count the following ones, too."""
    given = click.get_current_context().get_parameter_source("count")
    wanted = count if given is not click.core.ParameterSource.DEFAULT else 1
    (chosen,) = await chosen_queues(shell, topic, (queue,))
    place = await spans(shell, [chosen], f"offset:{offset}", f"offset:{offset + wanted}")
    found = [each async for each in read_spans(shell, place)]
    if not found or found[0].queue_offset < offset:
        low, high = await shell.admin.queue_bounds(chosen)
        there = f"has offsets {low} to {high - 1}" if low < high else "is empty"
        raise Missing("message at offset", str(offset), advice=f"{queue} {there}")
    _print(shell, found)


@message.command("time")
@_topic
@click.option(
    "--from", "begin", required=True, metavar="TIME", help="2026-01-31T12:00, -1h, ms since the epoch."
)
@click.option("--until", metavar="TIME", help="In the same forms.  [default: now]")
@click.option("--tag", metavar="EXPR", help="Only these tags.")
@_limit
@clustered
async def message_time(
    shell: ClusterShell, topic: str, begin: str, until: str | None, tag: str | None, count: int
) -> None:
    """Show the messages of TOPIC that were stored between two times."""
    if until is not None and parse_time_ms(begin) > parse_time_ms(until):
        raise click.UsageError(f"--from {begin[:40]} is after --until {until[:40]}")
    queues = await chosen_queues(shell, topic, ())
    found: list[MessageExt] = []
    async for each in read_spans(shell, await spans(shell, queues, begin, until), Filter(tag or "*")):
        found.append(each)
        if len(found) == count:
            break
    shell.output.rows(MESSAGE_COLUMNS, [message_row(each) for each in found], empty="no message")


@message.command("trace")
@click.argument("message_id")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="The topic of trace data.")
@clustered
async def message_trace(shell: ClusterShell, message_id: str, trace_topic: str) -> None:
    """Show who sent and who consumed a message, if its clients trace (trace=True, enableMsgTrace)."""
    if not is_system_topic(trace_topic) and trace_topic not in await shell.known_topics():
        raise Missing("topic", trace_topic, await shell.known_topics())
    try:
        records = await shell.admin.messages_by_key(trace_topic, message_id, max_messages=64)
    except NoRoute:
        records = []
    rows: list[dict[str, Any]] = trace_rows(records, message_id)
    if not rows:
        raise Missing(
            "trace of message", message_id, advice="do its clients trace (trace=True, enableMsgTrace)?"
        )
    shell.output.rows(_TRACE, rows)
