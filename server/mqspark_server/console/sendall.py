"""Sends messages that a page has found, all or with a word of how many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable

from mqspark.client.producer.producer import Producer
from mqspark.message import Message
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.site import Asking

MAX_SENT = 5_000
"""Messages of one change."""
MAX_SENT_BYTES = 64 << 20
IN_FLIGHT = 256
"""Messages that are on their way to the brokers at the same time."""
IN_FLIGHT_BYTES = 16 << 20
PRODUCER_GROUP = "mqspark_console"


async def send_all(asked: Asking, messages: AsyncIterable[Message]) -> int:
    """How many were sent: all. Raises Trouble, which says how many were."""
    sent = size = 0
    waiting: list[Awaitable[object]] = []
    async with Producer(asked.at.namesrv, group=PRODUCER_GROUP, options=asked.admin.options) as producer:
        async for message in messages:
            waiting.append(await producer.send_async(message))
            size += len(message.body)
            if len(waiting) >= IN_FLIGHT or size >= IN_FLIGHT_BYTES:
                sent += await _outcome(waiting, sent)
                waiting, size = [], 0
        return sent + await _outcome(waiting, sent)


async def _outcome(waiting: list[Awaitable[object]], before: int) -> int:
    """How many of these were sent: all. Raises Trouble."""
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    if failures:
        sent = before + len(outcomes) - len(failures)
        detail = f"{sent} were sent, then {len(failures)} failed: {failures[0]}"
        raise Trouble(502, "Not all were sent", detail)
    return len(outcomes)
