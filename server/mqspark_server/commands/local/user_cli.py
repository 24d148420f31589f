"""``mqspark user``: the users of a server that is not running, above all the first one.

A running server's users are managed by requests (mqadmin's createUser, createAcl and so on). A password is read from
the terminal or from standard input, never from an argument, which other users of the host could see.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from mqspark.auth.authority import Authority
from mqspark.auth.config import AuthConfig
from mqspark.auth.users import UserType
from mqspark.clock import SystemClock
from mqspark.errors import ConfigError
from mqspark_server.authfiles import auth_directory, open_authority

__all__ = ["user"]


@click.group()
def user() -> None:
    """Users of a broker or name server that is not running."""


_store = click.option("--store", metavar="DIR", help="Store directory of the broker.")
_directory = click.option("--directory", metavar="DIR", help="authConfigPath of the broker or name server.")


@user.command("add")
@click.argument("name")
@click.option(
    "--normal", is_flag=True, help="Without rights until a policy gives some; by default a super user."
)
@_store
@_directory
def add(name: str, normal: bool, store: str | None, directory: str | None) -> None:
    """Add a user; the password is asked for, or is the first line of standard input."""
    password = _password()
    with _offline(store, directory) as authority:
        authority.users.add(name, password, UserType.NORMAL if normal else UserType.SUPER)
        click.echo(f"added {UserType.NORMAL if normal else UserType.SUPER} user {name}")


@user.command("password")
@click.argument("name")
@_store
@_directory
def password(name: str, store: str | None, directory: str | None) -> None:
    """Set a user's password."""
    new = _password()
    with _offline(store, directory) as authority:
        authority.users.change(name, new, None, None)


@user.command("remove")
@click.argument("name")
@_store
@_directory
def remove(name: str, store: str | None, directory: str | None) -> None:
    """Remove a user and its policies."""
    with _offline(store, directory) as authority:
        authority.users.remove(name)


@user.command("list")
@_store
@_directory
def show(store: str | None, directory: str | None) -> None:
    """List users, without passwords."""
    with _offline(store, directory) as authority:
        for each in authority.users:
            click.echo(f"{each.name}\t{each.type}\t{each.status}")


def _password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("password", hide_input=True, confirmation_prompt=True))
    return sys.stdin.readline().rstrip("\r\n")


@contextmanager
def _offline(store: str | None, directory: str | None) -> Iterator[Authority]:
    """Saves what was changed."""
    if (store is None) == (directory is None):
        raise ConfigError("give one of --store and --directory", key="directory")
    config = AuthConfig(auth_config_path=directory or "")
    place = auth_directory(config, None if store is None else Path(store).expanduser().absolute())
    authority, close = open_authority(config, place, SystemClock(), needs_a_user=False)
    try:
        yield authority
        for job in authority.jobs():
            job.run()
            job.done()
    finally:
        close()
