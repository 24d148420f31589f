"""Reads many queues as one sequence, without a group: a bounded range in the order of store times, or new messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from mqspark.errors import ConnectionLost, RequestTimeout
from mqspark.message import MessageExt, MessageQueue
from mqspark_server.commands.refusals import describe
from mqspark_server.commands.shell import ClusterShell
from mqspark_server.commands.times import parse_time_ms

if TYPE_CHECKING:
    from mqspark.client.admin import QueueRead

_MESSAGES_AT_ONCE = 32
"""Messages per read: RocketMQ's brokers return no more."""
_WAIT_MS = 10_000
_PAUSE_S = 1.0


class Filter(NamedTuple):
    expression: str = "*"
    kind: str = "TAG"


EVERYTHING = Filter()


class Span(NamedTuple):
    """The offsets [first, end) of a queue."""

    first: int
    end: int


async def spans(
    shell: ClusterShell, queues: Sequence[MessageQueue], begin: str, until: str | None = None
) -> dict[MessageQueue, Span]:
    """The range to read of each queue. ``begin``: earliest, latest, an offset, ``-N`` for the last N messages, or a
    time. ``until``: an offset or a time, by default the current end. Raises click.UsageError, NoRoute."""
    found = await asyncio.gather(*(_span(shell, queue, begin, until) for queue in queues))
    return dict(zip(queues, found, strict=True))


async def _span(shell: ClusterShell, queue: MessageQueue, begin: str, until: str | None) -> Span:
    low, high = await shell.admin.queue_bounds(queue)
    if begin == "earliest":
        first = low
    elif begin in ("latest", "end"):
        first = high
    elif re.fullmatch(r"-\d{1,9}", begin):
        first = max(low, high + int(begin))
    else:
        first = await _offset(shell, queue, begin)
    end = high if until is None else min(high, await _offset(shell, queue, until))
    return Span(max(low, first), end)


async def _offset(shell: ClusterShell, queue: MessageQueue, text: str) -> int:
    if re.fullmatch(r"\d{1,9}", text):
        return int(text)
    if text.startswith("offset:") and text[7:].isdecimal() and len(text) < 26:
        return int(text[7:])
    try:
        at_ms = parse_time_ms(text)
    except click.UsageError:
        raise click.UsageError(
            f"{text[:80]!r}: give earliest, latest, an offset, -N, 2026-01-31T12:00, -1h or ms since the epoch"
        ) from None
    return await shell.admin.offset_at(queue, at_ms)


async def read_spans(
    shell: ClusterShell, wanted: Mapping[MessageQueue, Span], chosen: Filter = EVERYTHING
) -> AsyncIterator[MessageExt]:
    """The messages of all spans: in offset order within a queue, by store time between queues."""
    places = {queue: span.first for queue, span in wanted.items() if span.first < span.end}
    waiting: dict[MessageQueue, list[MessageExt]] = {queue: [] for queue in places}

    async def refill(queue: MessageQueue) -> None:
        """Read until there is a message or the span has ended."""
        end = wanted[queue].end
        while queue in places and not waiting[queue]:
            found = await _read(shell, queue, places[queue], chosen)
            waiting[queue] = [each for each in found.messages if each.queue_offset < end]
            waiting[queue].reverse()
            if found.next_offset <= places[queue] or found.next_offset >= end:
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


async def _read(
    shell: ClusterShell, queue: MessageQueue, offset: int, chosen: Filter, wait_ms: int = 0
) -> QueueRead:
    return await shell.admin.read(
        queue,
        offset,
        max_messages=_MESSAGES_AT_ONCE,
        expression=chosen.expression,
        expression_type=chosen.kind,
        wait_ms=wait_ms,
    )


async def follow(
    shell: ClusterShell, places: dict[MessageQueue, int], chosen: Filter = EVERYTHING
) -> AsyncIterator[MessageExt]:
    """Messages as they arrive in the queues, from these offsets on, endlessly. An unreachable broker is retried."""

    async def read(queue: MessageQueue) -> tuple[MessageQueue, list[MessageExt]]:
        try:
            found = await _read(shell, queue, places[queue], chosen, _WAIT_MS)
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
