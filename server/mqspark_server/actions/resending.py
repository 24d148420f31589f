"""Sends messages that a page or a command has found, all or with a word of how many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable

from mqspark.client.producer.producer import Producer
from mqspark.errors import MQError
from mqspark.message import Message

MAX_SENT = 5_000
"""Messages that one page sends again; commands have limits of their own."""
MAX_SENT_BYTES = 64 << 20
IN_FLIGHT = 256
"""Messages that are on their way to the brokers at the same time."""
IN_FLIGHT_BYTES = 16 << 20


class NotAllSent(MQError):
    def __init__(self, sent: int, failed: int, reason: str) -> None:
        super().__init__(f"{sent} were sent, then {failed} failed: {reason}")


async def each_of_them(messages: Iterable[Message]) -> AsyncIterator[Message]:
    for message in messages:
        yield message


async def send_all(producer: Producer, messages: AsyncIterable[Message]) -> int:
    """How many were sent: all. Starts and stops the producer. Raises NotAllSent."""
    sent = size = 0
    waiting: list[Awaitable[object]] = []
    async with producer:
        async for message in messages:
            waiting.append(await producer.send_async(message))
            size += len(message.body)
            if len(waiting) >= IN_FLIGHT or size >= IN_FLIGHT_BYTES:
                sent += await _outcome(waiting, sent)
                waiting, size = [], 0
        return sent + await _outcome(waiting, sent)


async def _outcome(waiting: list[Awaitable[object]], before: int) -> int:
    """How many of these were sent: all. Raises NotAllSent."""
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    if failures:
        raise NotAllSent(before + len(outcomes) - len(failures), len(failures), str(failures[0]))
    return len(outcomes)
