"""``mqspark doctor``: finds problems between this machine and a cluster, or Spark."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from mqspark_server.commands.clustercommand import Connecting, Printing, connection_of
from mqspark_server.commands.lazycommands import HELP, LazyCommands
from mqspark_server.commands.output import Output
from mqspark_server.commands.parameters import declaring
from mqspark_server.commands.refusals import MISSING

_LAZY = {"spark": ("local.job_cli:doctor_spark", 'Check whether format("pymq") works here.')}


@click.group(cls=LazyCommands, lazy=_LAZY, invoke_without_command=True, context_settings=HELP)
@declaring(Connecting, Printing)
def doctor(output: str | None, **given: Any) -> None:
    """Check this machine, the name servers and every broker, and give advice. Exit code 3 when something is wrong.

    Checks registered addresses, clocks, disks, versions and ports. mqspark doctor spark checks Spark.
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        return
    from mqspark_server.commands.local.examination import FAULT, diagnose, lines_of

    namesrv, options, _, timeout_ms = connection_of(given)
    found = asyncio.run(diagnose(namesrv, options, timeout_ms))
    printed = Output(output)
    if printed.is_table:
        for line in lines_of(found):
            click.echo(line)
    else:
        printed.rows((), [each._asdict() for each in found])
    if any(each.level == FAULT for each in found):
        ctx.exit(MISSING)
