"""Every help page is whole: no sentence is cut, every option says what it is for."""

from __future__ import annotations

import click
import pytest

from mqspark_server.cli import cli


def commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group) and command.name != "mqadmin":
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found += commands(child, f"{path} {name}")
    return found


@pytest.mark.parametrize(("path", "command"), commands(cli, "mqspark"))
def test_a_help_page_is_whole(path: str, command: click.Command) -> None:
    page = command.get_help(click.Context(command, info_name=path))
    for line in page.splitlines():
        assert not line.endswith("...") or line.startswith("Usage:"), line
        assert not line.endswith("e.g."), line
    assert command.help, f"{path} says nothing"
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            assert each.help, f"{path} {each.opts} says nothing"
