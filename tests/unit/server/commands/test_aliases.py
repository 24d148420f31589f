"""ls and rm are other names of list, delete and remove in every group of commands."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete

from mqspark_server.cli import cli
from tests.support.commands import mqspark


def groups(command: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if isinstance(child, click.Group) and name != "mqadmin":
            yield (*path, name)
            yield from groups(child, (*path, name))


def verbs(path: tuple[str, ...]) -> list[str]:
    command: click.Command | None = cli
    for word in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert isinstance(command, click.Group)
    return command.list_commands(click.Context(command))


def completed(*words: str) -> set[str]:
    *before, last = words
    return {item.value for item in ShellComplete(cli, {}, "mqspark", "_X").get_completions(before, last)}


@pytest.mark.parametrize("path", list(groups()), ids=" ".join)
def test_short_names_are_known_shown_and_completed(path: tuple[str, ...]) -> None:
    own = verbs(path)
    assert not {"ls", "rm"} & set(own), "they are other names, everywhere"
    shown = mqspark(*path, "--help").out
    for name, short in (("list", "ls"), ("delete", "rm"), ("remove", "rm")):
        if name in own:
            help_text = mqspark(*path, name, "--help").out
            assert mqspark(*path, short, "--help").out == help_text.replace(f" {name} ", f" {short} ", 1)
            assert f"  {name}, {short}  " in shown
            assert short in completed(*path, short[:1])
            assert name in completed(*path, name[:1])
    assert ("remove" in own) + ("delete" in own) < 2
    if {"remove", "delete"} & set(own):
        for name in ("remove", "delete"):
            assert mqspark(*path, name, "--help").code == 0
    else:
        unknown = mqspark(*path, "rm")
        assert unknown.code == 2
        assert "rm" not in completed(*path, "r")


def test_dead_letters_are_listed_by_both_names() -> None:
    assert [mqspark("dlq", name, "--help").code for name in ("ls", "list")] == [0, 0]
