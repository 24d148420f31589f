"""``mqspark user``: users and their rules, at the servers of a running cluster or in the files of a stopped one.

The first user of a server is added while the server is stopped (``--store``, ``--directory``). A password is read from
the terminal or from standard input, never from an argument, which other users of the host could see.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from mqspark.errors import ConfigError
from mqspark_server.accounts import ACTIONS, Accounts
from mqspark_server.commands.loading import noun
from mqspark_server.commands.output import Column, Output, columns
from mqspark_server.commands.parameters import Argument, Name, Option, Yes
from mqspark_server.commands.refusals import CommandFailed, Missing
from mqspark_server.commands.shell import ClusterShell, Connecting, clustered, confirm, interruptible

if TYPE_CHECKING:
    from mqspark.auth.authority import Authority

user = noun("user", "Users and their rules, of a running cluster or in the files of a stopped server.")
_OFFLINE_LIST = columns("user", "type", "status")
_LIST = columns(
    *_OFFLINE_LIST,
    "servers*",
    Column("rules", "RULES", text=lambda rules: "; ".join(map(_rule_text, rules)) or "-"),
)
_Sources = Annotated[
    tuple[str, ...], Option("Only from this address or network. Repeatable.", "--source", metavar="IP")
]
_Actions = Annotated[
    tuple[str, ...], click.Choice(ACTIONS, case_sensitive=False), Argument(required=True, metavar="ACTION...")
]


def _rule_text(rule: dict[str, Any]) -> str:
    sources = f" from {' '.join(rule['sources'])}" if rule["sources"] else ""
    return f"{rule['decision']} {','.join(rule['actions'])} {rule['resource']}{sources}"


def _online_or_offline(
    offline: Callable[..., None], *, makes: bool = False
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a command that works on the cluster with Accounts, or, with --store or --directory, calls ``offline`` with
    an Authority. ``makes``: it may be the first user, for whom the directory is made."""

    def decorated(online: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        asked = _online(online)

        @functools.wraps(asked)  # keeps the options declared so far
        def run(store: str | None, directory: str | None, **given: Any) -> None:
            if store is None and directory is None:
                asked(**given)
                return
            output = Output(given.pop("output"))
            for name in Connecting.__annotations__:
                del given[name]
            with _offline(store, directory, makes=makes) as authority:
                offline(authority, output, **given)

        run = click.option("--directory", metavar="DIR", help="The authConfigPath of a stopped server.")(run)
        return click.option("--store", metavar="DIR", help="The store directory of a stopped broker.")(run)

    return decorated


def _online(online: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a command that gets Accounts, Output and its own options."""

    @functools.wraps(online)
    async def work(shell: ClusterShell, **given: Any) -> None:
        accounts = await Accounts.of(shell.admin, await shell.brokers())
        accounts.check_open()
        if not accounts.servers:
            raise CommandFailed("no server of this cluster has users: authenticationEnabled is false")
        await online(accounts, shell.output, **given)

    return clustered(work)


async def _must_have(accounts: Accounts, name: str) -> None:
    """Raises Missing."""
    known = [row["user"] for row in await accounts.rows()]
    if name not in known:
        raise Missing("user", name, known, "mqspark user list shows all")


def _add_offline(authority: Authority, output: Output, name: str, is_super: bool | None) -> None:
    from mqspark.auth.users import UserType

    kind = UserType.NORMAL if is_super is False else UserType.SUPER
    authority.users.add(name, _password(), kind)
    output.done(f"added {kind} user {name}", {"user": name, "type": str(kind)})


@user.command("add")
@_online_or_offline(_add_offline, makes=True)
async def add(
    accounts: Accounts,
    output: Output,
    name: Name,
    is_super: Annotated[
        bool | None,
        Option(
            "A super user has all rights, a normal one only those of its rules.  [default: normal; in the files of a"
            " stopped server super]",
            "--super/--normal",
        ),
    ],
) -> None:
    """Add a user. The password is prompted for, or is the first line of standard input."""
    if name in [row["user"] for row in await accounts.rows()]:
        raise click.UsageError(
            f"user {name} exists already; mqspark user password {name} changes its password"
        )
    kind = "Super" if is_super else "Normal"
    await accounts.put(name, password=_password(), kind=kind)
    output.done(f"added {kind} user {name}", {"user": name, "type": kind, "servers": accounts.servers})


def _set_password_offline(authority: Authority, output: Output, name: str) -> None:
    authority.users.change(name, _password(), None, None)
    output.done(f"user {name} has the new password", {"user": name})


@user.command("password")
@_online_or_offline(_set_password_offline)
async def password(accounts: Accounts, output: Output, name: Name) -> None:
    """Set a user's password. It is prompted for, or is the first line of standard input."""
    await _must_have(accounts, name)
    await accounts.put(name, password=_password())
    output.done(f"user {name} has the new password", {"user": name, "servers": accounts.servers})


def _remove_offline(authority: Authority, output: Output, name: str, yes: bool) -> None:
    authority.users.remove(name)
    output.done(f"user {name} is removed", {"user": name, "removed": True})


@user.command("remove")
@_online_or_offline(_remove_offline)
async def remove(accounts: Accounts, output: Output, name: Name, yes: Yes) -> None:
    """Remove a user and its rules."""
    await _must_have(accounts, name)
    confirm(f"Remove the user {name} with all rules from {', '.join(accounts.servers)}?", yes)
    await accounts.remove(name)
    output.done(f"user {name} is removed", {"user": name, "removed": True, "servers": accounts.servers})


def _list_offline(authority: Authority, output: Output) -> None:
    rows = [
        {"user": each.name, "type": str(each.type), "status": str(each.status)} for each in authority.users
    ]
    output.rows(_OFFLINE_LIST, rows, empty="no user")


@user.command("list")
@_online_or_offline(_list_offline)
async def show(accounts: Accounts, output: Output) -> None:
    """List users and their rules, without passwords."""
    output.rows(_LIST, await accounts.rows(), empty="no user")


def _status_command(verb: str, text: str) -> click.Command:
    @user.command(verb, help=text)
    @_online
    async def put_status(accounts: Accounts, output: Output, name: Name) -> None:
        await _must_have(accounts, name)
        await accounts.put(name, status=verb)
        output.done(f"user {name} is {verb}d", {"user": name, "status": verb, "servers": accounts.servers})

    return put_status


enable = _status_command("enable", "Enable a user.")
disable = _status_command("disable", "Disable a user; its rules stay.")


def _rule_command(verb: str, text: str, *, allows: bool) -> click.Command:
    @user.command(verb, help=text)
    @_online
    async def put_rule(
        accounts: Accounts, output: Output, name: Name, resource: Name, actions: _Actions, sources: _Sources
    ) -> None:
        kind, separator, rest = resource.partition(":")
        if not separator or not rest or kind not in ("Cluster", "Namespace", "Topic", "Group"):
            raise click.UsageError(
                f"{resource[:80]!r} is not a resource: Topic:NAME, Group:NAME or Cluster:NAME; NAME may end with *"
            )
        await _must_have(accounts, name)
        await accounts.put_rule(name, resource, actions, sources, allows=allows)
        row = {
            "user": name,
            "decision": "Allow" if allows else "Deny",
            "resource": resource,
            "actions": list(actions),
            "sources": list(sources),
        }
        output.done(f"{name}: {_rule_text(row)}", row)

    return put_rule


allow = _rule_command(
    "allow",
    "Allow a user ACTIONs on RESOURCE: Topic:Orders, Group:bill*, Cluster:*. Replaces its rule for RESOURCE.",
    allows=True,
)
deny = _rule_command(
    "deny",
    "Deny a user ACTIONs on RESOURCE. Replaces its rule for RESOURCE. The most specific rule decides.",
    allows=False,
)


@user.command("forget")
@_online
async def forget(accounts: Accounts, output: Output, name: Name, resource: Name) -> None:
    """Remove a user's rule for RESOURCE."""
    rows = {row["user"]: row["rules"] for row in await accounts.rows()}
    await _must_have(accounts, name)
    known = [rule["resource"] for rule in rows[name]]
    if resource not in known:
        raise Missing(f"rule of {name} about", resource, known, "mqspark user list shows all")
    await accounts.forget(name, resource)
    output.done(f"{name} has no rule about {resource}", {"user": name, "resource": resource, "removed": True})


def _password() -> str:
    if sys.stdin.isatty():
        with interruptible():
            return str(click.prompt("password", hide_input=True, confirmation_prompt=True))
    given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise click.UsageError("no password: give it as the first line of standard input")
    return given


@contextmanager
def _offline(store: str | None, directory: str | None, *, makes: bool) -> Iterator[Authority]:
    """The authority of a stopped server. Saves changes at the end. Raises ConfigError."""
    from mqspark.auth.config import AuthConfig
    from mqspark.base.clock import SystemClock
    from mqspark_server.authfiles import auth_directory, open_authority

    if store is not None and directory is not None:
        raise ConfigError("give one of --store and --directory", key="directory")
    config = AuthConfig(auth_config_path=directory or "")
    place = auth_directory(config, None if store is None else Path(store).expanduser().absolute())
    if not makes and not place.is_dir():
        raise ConfigError(
            f"{place} is no directory of users; mqspark user add makes the first one", key="directory"
        )
    authority, close = open_authority(config, place, SystemClock(), needs_a_user=False)
    try:
        yield authority
        for job in authority.jobs():
            job.run()
            job.done()
    finally:
        close()
