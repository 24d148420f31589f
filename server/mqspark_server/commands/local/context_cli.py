"""``mqspark context``: named clusters."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import click
import msgspec

from mqspark.base.config import did_you_mean
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.tls import tls_context
from mqspark.errors import MQError
from mqspark_server.commands.clustercommand import cluster_options, confirm, noun
from mqspark_server.commands.contexts import (
    ClusterContext,
    changed_contexts,
    check_context,
    contexts_path,
    load_contexts,
)
from mqspark_server.commands.output import Column, Output, OutputFormat, columns
from mqspark_server.commands.parameters import MaybeName, Name, Option, Yes

context = noun("context", "Named clusters in a configuration file; one of them is current.")
_PATIENCE_MS = 2_000
_COLUMNS = columns(
    Column("current", "", text=lambda value: "*" if value else " "),
    "name, nameserver NAME SERVERS, cluster, tls, credentials_file CREDENTIALS",
)


@context.command("list")
def context_list(output: OutputFormat) -> None:
    """All contexts."""
    known = load_contexts()
    rows = [
        {"current": name == known.current, "name": name, **msgspec.structs.asdict(each)}
        for name, each in sorted(known.contexts.items())
    ]
    Output(output).rows(_COLUMNS, rows, empty="no context: mqspark context add NAME --nameserver HOST:PORT")


@context.command("add")
def context_add(
    name: Name,
    nameserver: Annotated[str, Option("Several are separated by semicolons.", "-n", metavar="HOST:PORT")],
    cluster: Annotated[str | None, Option("The cluster to use if the name servers know several.")],
    credentials: Annotated[
        str | None, Option("A file with the access key and the secret key.", metavar="FILE")
    ],
    tls: Annotated[bool | None, Option("Speak TLS.", "--tls/--no-tls")],
    tls_ca: Annotated[str | None, Option("Trusted authorities, PEM.", metavar="FILE")],
    tls_cert: Annotated[str | None, Option("Client certificate, PEM.", metavar="FILE")],
    tls_key: Annotated[str | None, Option("Its key, PEM.", metavar="FILE")],
    tls_any_name: Annotated[bool, Option("Accept certificates for any host name.")],
    use: Annotated[bool, Option("Make it current. The first context always is.")],
) -> None:
    """Add a context, or replace the one of the same name. Its files must be there, its servers need not answer."""
    added = ClusterContext(
        nameserver=nameserver,
        cluster=cluster,
        credentials_file=_absolute(credentials),
        tls=tls,
        tls_ca_file=_absolute(tls_ca),
        tls_cert_file=_absolute(tls_cert),
        tls_key_file=_absolute(tls_key),
        tls_verify_host_name=not tls_any_name,
    )
    check_context(name, added)
    options = cluster_options({}, added, _PATIENCE_MS)
    tls_context(options.tls)
    with changed_contexts() as known:
        known.contexts[name] = added
        if use or known.current is None:
            known.current = name
    click.echo(
        f"saved context {name} in {contexts_path()}" + (", now current" if known.current == name else "")
    )
    if problem := asyncio.run(_problem(added, options)):
        click.echo(f"mqspark: {problem}; mqspark doctor --context {name} looks into it", err=True)


async def _problem(context: ClusterContext, options: ClientOptions) -> str | None:
    """Why commands cannot use the context now."""
    from mqspark.client.admin import AdminClient

    try:
        async with AdminClient(context.nameserver, timeout_ms=_PATIENCE_MS, options=options) as admin:
            known = (await admin.cluster_info()).cluster_addr_table
    except MQError as error:
        return str(error)
    if context.cluster is not None and context.cluster not in known:
        advice = did_you_mean(context.cluster, known) or f"; there are {', '.join(sorted(known)) or 'none'}"
        return f"there is no cluster {context.cluster!r}{advice}"
    return None


@context.command("use")
def context_use(name: Name) -> None:
    """Make a context current."""
    with changed_contexts() as known:
        known.get(name)
        known.current = name
    click.echo(f"current context: {name}")


@context.command("show")
def context_show(name: MaybeName, output: OutputFormat) -> None:
    """Show a context, by default the current one."""
    known = load_contexts()
    wanted = name or known.current
    if wanted is None:
        raise click.UsageError("there is no current context: mqspark context add NAME --nameserver HOST:PORT")
    Output(output).record({"name": wanted, **msgspec.structs.asdict(known.get(wanted))})


@context.command("remove")
def context_remove(name: Name, yes: Yes) -> None:
    """Remove a context from the file."""
    load_contexts().get(name)
    confirm(f"Remove the context {name}?", yes)
    with changed_contexts() as known:
        known.get(name)
        del known.contexts[name]
        known.current = None if known.current == name else known.current
    click.echo(f"context {name} was removed")


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
