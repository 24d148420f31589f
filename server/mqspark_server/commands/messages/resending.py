"""Sends messages that a command has found, all or with a word of how many."""

from __future__ import annotations

import asyncio

from mqspark.message import Message
from mqspark_server.commands.refusals import CommandFailed
from mqspark_server.commands.shell import ClusterShell

GROUP = "mqspark_resend"


async def send_all(shell: ClusterShell, messages: list[Message]) -> int:
    """How many were sent: all. Raises CommandFailed, which says how many were."""
    from mqspark.client.producer.producer import Producer

    async with Producer(
        shell.namesrv, group=GROUP, send_timeout_ms=shell.timeout_ms, options=shell.options
    ) as producer:
        futures = [await producer.send_async(message) for message in messages]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    if failures:
        raise CommandFailed(
            f"{len(outcomes) - len(failures)} were sent, {len(failures)} failed: {failures[0]}"
        )
    return len(outcomes)
