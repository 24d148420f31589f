"""``mqspark context``: named clusters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec

from mqspark.base.config import did_you_mean
from mqspark.client.remoting.identity import ClientOptions
from mqspark.client.remoting.tls import tls_context
from mqspark.errors import MQError
from mqspark_server.commands.contexts import (
    ClusterContext,
    Contexts,
    check_context,
    contexts_path,
    load_contexts,
    save_contexts,
)
from mqspark_server.commands.loading import noun
from mqspark_server.commands.output import Column, Output, columns
from mqspark_server.commands.shell import assume_yes, client_options, confirm, output_option

context = noun("context", "Named clusters in a configuration file; one of them is current.")
_PATIENCE_MS = 2_000
_COLUMNS = columns(
    Column("current", "", text=lambda value: "*" if value else " "),
    "name",
    "nameserver NAME SERVERS",
    "cluster",
    "tls",
    "credentials_file CREDENTIALS",
)


@context.command("list")
@output_option
def context_list(output: str | None) -> None:
    """All contexts."""
    known = load_contexts(contexts_path())
    rows = [
        {"current": name == known.current, "name": name, **msgspec.structs.asdict(each)}
        for name, each in sorted(known.contexts.items())
    ]
    Output(output).rows(_COLUMNS, rows, empty="no context: mqspark context add NAME --nameserver HOST:PORT")


@context.command("add")
@click.argument("name")
@click.option(
    "-n", "--nameserver", required=True, metavar="HOST:PORT", help="Several are separated by semicolons."
)
@click.option("--cluster", help="The cluster to use if the name servers know several.")
@click.option("--credentials", metavar="FILE", help="A file with the access key and the secret key.")
@click.option("--tls/--no-tls", default=None, help="Speak TLS.")
@click.option("--tls-ca", metavar="FILE", help="Trusted authorities, PEM.")
@click.option("--tls-cert", metavar="FILE", help="Client certificate, PEM.")
@click.option("--tls-key", metavar="FILE", help="Its key, PEM.")
@click.option("--tls-any-name", is_flag=True, help="Accept certificates for any host name.")
@click.option("--use", is_flag=True, help="Make it current. The first context always is.")
def context_add(
    name: str,
    nameserver: str,
    cluster: str | None,
    credentials: str | None,
    tls: bool | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_any_name: bool,
    use: bool,
) -> None:
    """Add a context, or replace the one of the same name. Its files must be there, its servers need not answer."""
    path = contexts_path()
    known = load_contexts(path)
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
    options = client_options({}, added, _PATIENCE_MS)
    tls_context(options.tls)
    known.contexts[name] = added
    if use or known.current is None:
        known.current = name
    save_contexts(path, known)
    click.echo(f"saved context {name} in {path}" + (", now current" if known.current == name else ""))
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
@click.argument("name")
def context_use(name: str) -> None:
    """Make a context current."""
    path = contexts_path()
    known = load_contexts(path)
    known.get(name)
    known.current = name
    save_contexts(path, known)
    click.echo(f"current context: {name}")


@context.command("show")
@click.argument("name", required=False)
@output_option
def context_show(name: str | None, output: str | None) -> None:
    """Show a context, by default the current one."""
    known = load_contexts(contexts_path())
    wanted = name or known.current
    if wanted is None:
        raise click.UsageError("there is no current context: mqspark context add NAME --nameserver HOST:PORT")
    Output(output).record({"name": wanted, **msgspec.structs.asdict(known.get(wanted))})


@context.command("remove")
@click.argument("name")
@assume_yes
def context_remove(name: str, yes: bool) -> None:
    """Remove a context from the file."""
    path = contexts_path()
    known = load_contexts(path)
    known.get(name)
    confirm(f"Remove the context {name}?", yes)
    del known.contexts[name]
    current = None if known.current == name else known.current
    save_contexts(path, Contexts(current=current, contexts=known.contexts))
    click.echo(f"context {name} was removed")


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
