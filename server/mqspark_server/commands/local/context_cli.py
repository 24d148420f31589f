"""``mqspark context``: named clusters."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

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
from mqspark_server.commands.shell import assume_yes, confirm, output_option

context = noun("context", "Named clusters in a configuration file; one of them is current.")
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
@click.option("--tls-ca", metavar="FILE")
@click.option("--tls-cert", metavar="FILE")
@click.option("--tls-key", metavar="FILE")
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
    """Add a context, or replace the one of the same name."""
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
    known.contexts[name] = added
    if use or known.current is None:
        known.current = name
    save_contexts(path, known)
    click.echo(f"saved context {name} in {path}" + (", now current" if known.current == name else ""))


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
