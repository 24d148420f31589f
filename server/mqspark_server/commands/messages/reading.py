"""Reads many queues as one sequence, without a group: a bounded range in the order of store times, or new messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal, NamedTuple, Unpack

import click

from mqspark.errors import ConnectionLost, RequestTimeout
from mqspark.message import MessageExt, MessageQueue
from mqspark_server.commands.clustercommand import ClusterShell
from mqspark_server.commands.refusals import describe
from mqspark_server.commands.times import parse_time_ms, parsed_by
from mqspark_server.survey.topicsurvey import ReadFilter

_MESSAGES_AT_ONCE = 32
"""Messages per read: RocketMQ's brokers return no more."""
_WAIT_MS = 10_000
_PAUSE_S = 1.0


class Span(NamedTuple):
    """The offsets [first, end) of a queue."""

    first: int
    end: int


class Where(NamedTuple):
    """A place in every queue."""

    kind: Literal["earliest", "latest", "last", "offset", "time"]
    number: int = 0
    """How many of the last messages, the offset, or ms since the epoch."""


EARLIEST, LATEST = Where("earliest"), Where("latest")
_NAMED = {"earliest": EARLIEST, "latest": LATEST, "end": LATEST}


def parse_where(text: str) -> Where:
    """``earliest``, ``latest``, ``-N`` for the last N messages, an offset or a time; ``offset:N`` is surely an offset,
    ``N ms`` without the space surely a time. Raises click.UsageError."""
    plain = text.strip()
    if plain in _NAMED:
        return _NAMED[plain]
    if re.fullmatch(r"-\d{1,9}", plain, re.ASCII):
        return Where("last", int(plain[1:]))
    if match := re.fullmatch(r"offset:(\d{1,18})|(\d{1,9})", plain, re.ASCII):
        return Where("offset", int(match[1] or match[2]))
    try:
        return Where("time", parse_time_ms(plain))
    except click.UsageError:
        raise click.UsageError(
            f"{text[:80]!r} is no place: earliest, latest, an offset, -N, 2026-01-31T12:00, -1h, now, or ms since the"
            " epoch"
        ) from None


def parse_end(text: str) -> Where:
    """``parse_where`` of an end. Raises click.UsageError."""
    found = parse_where(text)
    if found.kind == "last":
        raise click.UsageError(
            f"{text[:80]!r} is no end: an offset, 2026-01-31T12:00, -1h, now, or ms since the epoch"
        )
    return found


WHERE, END = parsed_by("where", parse_where), parsed_by("where", parse_end)


async def spans(
    shell: ClusterShell, queues: Sequence[MessageQueue], begin: Where, until: Where | None = None
) -> dict[MessageQueue, Span]:
    """The range to read of each queue. ``until``: by default the current end. Raises NoRoute."""
    found = await asyncio.gather(*(_span(shell, queue, begin, until or LATEST) for queue in queues))
    return dict(zip(queues, found, strict=True))


async def _span(shell: ClusterShell, queue: MessageQueue, begin: Where, until: Where) -> Span:
    low, high = await shell.admin.queue_bounds(queue)

    async def place(where: Where) -> int:
        if where.kind == "time":
            return await shell.admin.offset_at(queue, where.number)
        return {"earliest": low, "latest": high, "last": high - where.number}.get(where.kind, where.number)

    return Span(max(low, await place(begin)), min(high, await place(until)))


async def read_spans(
    shell: ClusterShell, wanted: Mapping[MessageQueue, Span], **chosen: Unpack[ReadFilter]
) -> AsyncIterator[MessageExt]:
    """The messages of all spans: in offset order within a queue, by store time between queues."""
    places = {queue: span.first for queue, span in wanted.items() if span.first < span.end}
    waiting: dict[MessageQueue, list[MessageExt]] = {queue: [] for queue in places}

    async def refill(queue: MessageQueue) -> None:
        """Read until there is a message or the span has ended."""
        end = wanted[queue].end
        while queue in places and not waiting[queue]:
            place = places[queue]
            found = await shell.admin.read(queue, place, max_messages=_MESSAGES_AT_ONCE, **chosen)
            waiting[queue] = [each for each in found.messages if each.queue_offset < end]
            waiting[queue].reverse()
            if found.next_offset <= place or found.next_offset >= end:
                del places[queue]
            else:
                places[queue] = found.next_offset

    while True:
        await asyncio.gather(*(refill(queue) for queue in list(places) if not waiting[queue]))
        ready = [queue for queue, messages in waiting.items() if messages]
        if not ready:
            return
        while True:
            queue = min(ready, key=lambda each: waiting[each][-1].store_timestamp_ms)
            yield waiting[queue].pop()
            if not waiting[queue]:
                break


async def follow(
    shell: ClusterShell, places: dict[MessageQueue, int], **chosen: Unpack[ReadFilter]
) -> AsyncIterator[MessageExt]:
    """Messages as they arrive in the queues, from these offsets on, endlessly. An unreachable broker is retried."""

    async def read(queue: MessageQueue) -> tuple[MessageQueue, list[MessageExt]]:
        try:
            found = await shell.admin.read(
                queue, places[queue], max_messages=_MESSAGES_AT_ONCE, wait_ms=_WAIT_MS, **chosen
            )
        except (ConnectionLost, RequestTimeout) as error:
            click.echo(f"mqspark: {describe(error)}; trying again", err=True)
            await asyncio.sleep(_PAUSE_S)
            return queue, []
        places[queue] = found.next_offset
        if not found.messages and found.next_offset >= found.max_offset:
            await asyncio.sleep(0.05)  # the broker may not support long polling
        return queue, found.messages

    pending = {asyncio.ensure_future(read(queue)) for queue in places}
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                queue, messages = task.result()
                for message in messages:
                    yield message
                pending.add(asyncio.ensure_future(read(queue)))
    finally:
        for task in pending:
            task.cancel()
