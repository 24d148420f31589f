"""``mqspark namesrv``: name servers."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from mqspark.errors import MQError
from mqspark_server.actions.settingactions import ChangeNameServer
from mqspark_server.commands.administration.config_cli import assignments, shown_settings
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.output import columns
from mqspark_server.commands.parameters import Argument, Yes

namesrv = noun(
    "namesrv",
    "Name servers: run one here, or query and change those of a cluster.",
    {"run": ("local.servers_cli:namesrv_run", "Run a name server until SIGTERM or SIGINT.")},
)
_COLUMNS = columns("address", "answers", "settings*", "error")


@namesrv.command("list")
async def namesrv_list(shell: ClusterShell) -> None:
    """List the name servers, and whether each answers."""

    async def row(address: str) -> dict[str, Any]:
        try:
            settings = await shell.admin.namesrv_config(address)
        except MQError as error:
            return {"address": address, "answers": False, "error": str(error)}
        return {"address": address, "answers": True, "settings": len(settings)}

    shell.output.rows(_COLUMNS, await asyncio.gather(*map(row, shell.admin.namesrv)))


@namesrv.command("config")
async def namesrv_config(
    shell: ClusterShell, keys: Annotated[tuple[str, ...], Argument(required=False)]
) -> None:
    """Show all settings of each name server, or only KEYS."""
    servers = {address: await shell.admin.namesrv_config(address) for address in shell.admin.namesrv}
    shown_settings(shell.output, servers, keys)


@namesrv.command("set")
async def namesrv_set(
    shell: ClusterShell,
    settings: Annotated[tuple[str, ...], Argument(required=True, metavar="KEY=VALUE...")],
    yes: Yes,
) -> None:
    """Change settings of all running name servers."""
    changes = assignments(settings)
    await shell.carry_out_all(
        [ChangeNameServer(address, address, changes) for address in shell.admin.namesrv], yes
    )
