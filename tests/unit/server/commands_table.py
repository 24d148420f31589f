"""The tables of docs/command-line.md, made of the commands themselves:

python -m tests.unit.server.commands_table
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from mqspark_server.cli import cli
from mqspark_server.commands.administration.mqadmin_cli import VERBS
from tests.support.madepages import DOCS, MadePage

PAGE = MadePage(DOCS / "command-line.md", "tests.unit.server.commands_table")
COMMON = {
    *("nameserver", "context_name", "cluster", "credentials_file", "timeout_s", "output"),
    *("tls", "tls_ca", "tls_cert", "tls_key", "tls_verify"),
}
"""Options that the page explains once."""
LEFT_OUT = frozenset({"store", "job", "dev", "mqadmin"})
"""Nouns with a page or a section of their own."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by the words that call it."""
    root = click.Context(cli, info_name="mqspark")
    for noun in cli.list_commands(root):
        command = cli.get_command(root, noun)
        assert command is not None
        if noun in LEFT_OUT:
            continue
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=noun, parent=root)
            if command.invoke_without_command:
                yield noun, command
            for verb in command.list_commands(context):
                found = command.get_command(context, verb)
                assert found is not None
                yield f"{noun} {verb}", found
        else:
            yield noun, command


def words(command: click.Command) -> str:
    """Arguments as they are typed."""
    shown = []
    for each in command.params:
        if isinstance(each, click.Argument):
            name = (each.metavar or (each.name or "").upper()).removesuffix("...")
            shown.append((name if each.required else f"[{name}]") + ("..." if each.nargs == -1 else ""))
    return " ".join(shown)


def options(command: click.Command) -> str:
    shown = [
        f"`{each.opts[-1]}`"
        for each in command.params
        if isinstance(each, click.Option) and each.name not in COMMON
    ]
    return " ".join(shown)


def tables() -> str:
    lines = ["| command | what it does | options |", "|---|---|---|"]
    for name, command in commands():
        first = (command.help or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|").strip()
        lines.append(f"| `mqspark {f'{name} {words(command)}'.strip()}` | {first} | {options(command)} |")
    verbs = ", ".join(f"`{verb}`" for verb in sorted(VERBS))
    known = textwrap.wrap(f"`mqspark mqadmin` knows {verbs}.", 140, break_long_words=False)
    return "\n".join([*lines, "", *known, ""])


if __name__ == "__main__":
    PAGE.write(tables())
