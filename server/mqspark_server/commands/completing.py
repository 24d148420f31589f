"""Completion of topics and groups: queries the cluster of the command line, with a short timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import click

from mqspark.errors import MQError
from mqspark_server.commands.clustercommand import connection_of
from mqspark_server.commands.parameters import Argument

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PATIENCE_MS = 800
_HIDDEN = ("%", "rmq_", "CID_", "RMQ_")
"""How names begin that people rarely want."""


def _completing(question: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """``question``: the method of AdminClient that knows the names."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from mqspark.client.admin import AdminClient

        async def work() -> list[str]:
            namesrv, options, _, _ = connection_of({**ctx.params, "timeout_s": _PATIENCE_MS / 1000})
            async with (
                asyncio.timeout(_PATIENCE_MS / 1000),
                AdminClient(namesrv, timeout_ms=_PATIENCE_MS, options=options) as admin,
            ):
                return list(await getattr(admin, question)())

        try:
            names = asyncio.run(work())
        except (MQError, OSError, TimeoutError):
            return []  # a completion cannot show an error
        shown = [name for name in names if incomplete.startswith(_HIDDEN) or not name.startswith(_HIDDEN)]
        return [CompletionItem(name) for name in shown if name.startswith(incomplete)]

    return complete


complete_topics, complete_groups = _completing("topic_list"), _completing("groups")
TopicName = Annotated[str, Argument(shell_complete=complete_topics)]
MaybeTopic = Annotated[str | None, Argument(shell_complete=complete_topics)]
TopicNames = Annotated[tuple[str, ...], Argument(required=True, shell_complete=complete_topics)]
GroupName = Annotated[str, Argument(shell_complete=complete_groups)]
GroupNames = Annotated[tuple[str, ...], Argument(required=True, shell_complete=complete_groups)]
MaybeGroups = Annotated[tuple[str, ...], Argument(required=False, shell_complete=complete_groups)]
