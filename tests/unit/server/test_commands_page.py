"""docs/command-line.md names every command, and every example on it is one."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from mqspark_server.cli import cli
from tests.unit.server.commands_table import PAGE, tables

TEXT = PAGE.path.read_text()
SHELL = "\n".join(re.findall(r"```(?:text|console)\n(.*?)```", TEXT, re.DOTALL))
EXAMPLES = [
    found[1]
    for line in SHELL.splitlines()
    if (found := re.match(r"(?:\$ )?(?:echo .* \| )?(mqspark .*)", line))
]


def test_the_tables_are_made_of_the_commands() -> None:
    PAGE.check(tables())


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_typed(example: str) -> None:
    """Its command, arguments and options exist; nothing is run."""
    words = shlex.split(example.replace("...", ""))[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="mqspark")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, words[0]
        command, words = found, words[1:]
    command.make_context("mqspark", words, parent=context)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 25
