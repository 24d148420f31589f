"""Completion of topics and groups: queries the cluster of the command line, with a short timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import click

from mqspark.errors import MQError
from mqspark_server.commands.clustercommand import connection_of
from mqspark_server.commands.parameters import Argument

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PATIENCE_MS = 800


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from mqspark.client.admin import AdminClient

    return _matching(ctx, incomplete, AdminClient.topic_list)


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from mqspark.client.admin import AdminClient

    async def names(admin: AdminClient) -> list[str]:
        return list(await admin.groups())

    return _matching(ctx, incomplete, names)


def _matching(
    ctx: click.Context, incomplete: str, ask: Callable[..., Awaitable[list[str]]]
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from mqspark.client.admin import AdminClient

    async def work() -> list[str]:
        namesrv, options, _, _ = connection_of({**ctx.params, "timeout_s": _PATIENCE_MS / 1000})
        async with (
            asyncio.timeout(_PATIENCE_MS / 1000),
            AdminClient(namesrv, timeout_ms=_PATIENCE_MS, options=options) as admin,
        ):
            return await ask(admin)

    try:
        names = asyncio.run(work())
    except (MQError, OSError, TimeoutError):
        return []  # a completion cannot show an error
    hidden = not incomplete.startswith(("%", "rmq_", "CID_", "RMQ_"))
    return [
        CompletionItem(name)
        for name in names
        if name.startswith(incomplete) and not (hidden and name.startswith(("%", "rmq_", "CID_", "RMQ_")))
    ]


TopicName = Annotated[str, Argument(shell_complete=complete_topics)]
GroupName = Annotated[str, Argument(shell_complete=complete_groups)]
