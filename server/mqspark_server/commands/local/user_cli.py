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
from mqspark_server.accounts import ACTIONS
from mqspark_server.actions.useractions import DeleteRule, DeleteUser, PutRule, PutUser, everywhere
from mqspark_server.commands.clustercommand import (
    ClusterShell,
    Connecting,
    Printing,
    clustered,
    interruptible,
    noun,
)
from mqspark_server.commands.output import Column, Output, columns
from mqspark_server.commands.parameters import Argument, Name, Option, Yes, declaring
from mqspark_server.shown.nouns import rule_text

if TYPE_CHECKING:
    from mqspark.auth.authority import Authority

user = noun("user", "Users and their rules, of a running cluster or in the files of a stopped server.")
_OFFLINE_LIST = columns("user", "type", "status")
_LIST = columns(
    *_OFFLINE_LIST,
    "servers*",
    Column("rules", "RULES", text=lambda rules: "; ".join(map(rule_text, rules)) or "-"),
)
_Sources = Annotated[
    tuple[str, ...], Option("Only from this address or network. Repeatable.", "--source", metavar="IP")
]
_Actions = Annotated[
    tuple[str, ...], click.Choice(ACTIONS, case_sensitive=False), Argument(required=True, metavar="ACTION...")
]


def _online_or_offline(
    offline: Callable[..., None], *, makes: bool = False
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a command that works on the cluster, or, with --store or --directory, calls ``offline`` with an Authority.
    ``makes``: it may be the first user, for whom the directory is made."""

    def decorated(online: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        asked = declaring(Printing, Connecting)(clustered(online))

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


def _add_offline(authority: Authority, output: Output, name: str, is_super: bool | None) -> None:
    from mqspark.auth.users import UserType

    kind = UserType.NORMAL if is_super is False else UserType.SUPER
    authority.users.add(name, _password(), kind)
    output.done(f"user {name} was created", {"user": name, "type": str(kind)})


@user.command("add")
@_online_or_offline(_add_offline, makes=True)
async def add(
    shell: ClusterShell,
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
    kind = "Super" if is_super else "Normal"
    await shell.carry_out(PutUser(name, _password(), kind, is_new=True))


def _set_password_offline(authority: Authority, output: Output, name: str) -> None:
    authority.users.change(name, _password(), None, None)
    output.done(f"user {name} was changed", {"user": name})


@user.command("password")
@_online_or_offline(_set_password_offline)
async def password(shell: ClusterShell, name: Name) -> None:
    """Set a user's password. It is prompted for, or is the first line of standard input."""
    await shell.carry_out(PutUser(name, _password(), is_new=False))


def _remove_offline(authority: Authority, output: Output, name: str, yes: bool) -> None:
    authority.users.remove(name)
    output.done(f"user {name} was deleted", {"user": name, "removed": True})


@user.command("remove")
@_online_or_offline(_remove_offline)
async def remove(shell: ClusterShell, name: Name, yes: Yes) -> None:
    """Remove a user and its rules."""
    await shell.carry_out(DeleteUser(name), yes)


def _list_offline(authority: Authority, output: Output) -> None:
    rows = [
        {"user": each.name, "type": str(each.type), "status": str(each.status)} for each in authority.users
    ]
    output.rows(_OFFLINE_LIST, rows, empty="no user")


@user.command("list")
@_online_or_offline(_list_offline)
async def show(shell: ClusterShell) -> None:
    """List users and their rules, without passwords."""
    shell.output.rows(_LIST, await (await everywhere(shell)).rows(), empty="no user")


def _status_command(verb: str, text: str) -> None:
    @user.command(verb, help=text)
    async def put_status(shell: ClusterShell, name: Name) -> None:
        await shell.carry_out(PutUser(name, status=verb, is_new=False))


_status_command("enable", "Enable a user.")
_status_command("disable", "Disable a user; its rules stay.")


def _rule_command(verb: str, text: str) -> None:
    @user.command(verb, help=f"{verb.capitalize()} a user ACTIONs on RESOURCE{text}")
    async def put_rule(
        shell: ClusterShell, name: Name, resource: Name, actions: _Actions, sources: _Sources
    ) -> None:
        await shell.carry_out(PutRule(name, resource, verb.capitalize(), actions, sources))


_rule_command("allow", ": Topic:Orders, Group:bill*, Cluster:*. Replaces its rule for RESOURCE.")
_rule_command("deny", ". Replaces its rule for RESOURCE. The most specific rule decides.")


@user.command("forget")
async def forget(shell: ClusterShell, name: Name, resource: Name) -> None:
    """Remove a user's rule for RESOURCE."""
    await shell.carry_out(DeleteRule(name, resource))


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
