"""``mqspark namesrv``: name servers."""

from __future__ import annotations

from mqspark_server.actions.settingactions import ChangeNameServer
from mqspark_server.commands.administration.config_cli import Changes, Keys, assignments, shown_settings
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.output import columns
from mqspark_server.commands.parameters import Yes
from mqspark_server.survey.surveying import Row, add_to_each

namesrv = noun(
    "namesrv",
    "Name servers: run one here, or query and change those of a cluster.",
    {"run": ("local.servers_cli:namesrv_run", "Run a name server until SIGTERM or SIGINT.")},
)
_COLUMNS = columns("address, answers, settings*, error")


@namesrv.command("list")
async def namesrv_list(shell: ClusterShell) -> None:
    """List the name servers, and whether each answers."""

    async def ask(row: Row) -> Row:
        return {"answers": True, "settings": len(await shell.admin.namesrv_config(row["address"]))}

    rows = [{"address": each, "answers": False} for each in shell.admin.namesrv]
    await add_to_each(rows, ask)
    shell.output.rows(_COLUMNS, rows)


@namesrv.command("config")
async def namesrv_config(shell: ClusterShell, keys: Keys) -> None:
    """Show all settings of each name server, or only KEYS."""
    servers = {address: await shell.admin.namesrv_config(address) for address in shell.admin.namesrv}
    shown_settings(shell.output, servers, keys)


@namesrv.command("set")
async def namesrv_set(shell: ClusterShell, settings: Changes, yes: Yes) -> None:
    """Change settings of all running name servers."""
    changes = assignments(settings)
    await shell.carry_out_all([ChangeNameServer(each, each, changes) for each in shell.admin.namesrv], yes)
