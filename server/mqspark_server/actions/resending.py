"""Sends messages that a page or a command has found, all or with a word of how many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable

from mqspark.client.producer.producer import Producer
from mqspark.errors import MQError
from mqspark.message import Message

MAX_SENT = 5_000
"""Messages that one page sends again; commands have limits of their own."""
MAX_SENT_BYTES = 64 << 20
IN_FLIGHT = 256
"""Messages that are on their way at the same time."""
IN_FLIGHT_BYTES = 16 << 20


Sending = Callable[[Message], Awaitable[Awaitable[object]]]
"""Begins to send a message. Returns what to wait for until the message is stored."""


class NotAllSent(MQError):
    """``first``: the first failure."""

    def __init__(self, sent: int, failed: int, first: Exception) -> None:
        super().__init__(f"{sent} were sent, then {failed} failed: {first}")
        self.sent, self.first = sent, first


async def each_of_them(messages: Iterable[Message]) -> AsyncIterator[Message]:
    for message in messages:
        yield message


async def send_all(producer: Producer, messages: AsyncIterable[Message]) -> int:
    """How many were sent: all. Starts and stops the producer. Raises NotAllSent."""
    async with producer:
        return await send_each(producer.send_async, messages)


async def send_each(send: Sending, messages: AsyncIterable[Message]) -> int:
    """How many were sent: all. Raises NotAllSent. What ``messages`` or ``send`` raise is a failure, too, and is raised
    as it is if nothing was sent before."""
    sent = size = 0
    waiting: list[Awaitable[object]] = []
    end: Exception | None = None
    try:
        async for message in messages:
            waiting.append(await send(message))
            size += len(message.body)
            if len(waiting) >= IN_FLIGHT or size >= IN_FLIGHT_BYTES:
                begun, waiting, size = waiting, [], 0
                sent += await _outcome(begun, sent)
    except NotAllSent:
        raise
    except Exception as error:
        if not sent and not waiting:
            raise
        end = error
    return sent + await _outcome(waiting, sent, end)


async def _outcome(waiting: list[Awaitable[object]], before: int, end: Exception | None = None) -> int:
    """How many of these were sent: all. ``end``: why no more follow. Raises NotAllSent."""
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    stored = len(outcomes) - len(failures)
    if end is not None:
        failures.append(end)
    if failures:
        first = failures[0]
        if not isinstance(first, Exception):  # a send was cancelled
            raise first
        raise NotAllSent(before + stored, len(failures), first)
    return stored
