"""Command groups whose commands are imported when they are called, that know other names of some of them, and that
suggest a name for a misspelt one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from mqspark.base.config import did_you_mean
from mqspark_server.commands.parameters import DeclaredCommand

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

HELP = {"help_option_names": ["-h", "--help"]}
_SENTENCE = 200
"""Characters of the first sentence of a help text, which lists show whole."""
_SHORT = {"list": "ls", "delete": "rm", "remove": "rm"}
"""Names of verbs that help and completion show, too."""
_ALSO = {"ls": ("list",), "rm": ("delete", "remove"), "delete": ("remove",), "remove": ("delete",)}
"""Other name of a verb → what it may be called here."""


class LazyCommands(click.Group):
    """A group of commands given by their modules.

    ``lazy``: name → ("package.module:attribute" below this package, the help line). Commands can also be added the
    usual way.
    """

    command_class = DeclaredCommand
    group_class = type
    """Groups within are of the same class."""

    def __init__(
        self, *arguments: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = self.commands.keys() | self._lazy.keys()
        if cmd_name not in own:
            cmd_name = next((each for each in _ALSO.get(cmd_name, ()) if each in own), cmd_name)
        place = self._lazy.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place[0].partition(":")
        command = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
        return cast(click.Command, command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            advice = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise click.UsageError(f"no command {name!r}{advice}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = super().shell_complete(ctx, incomplete)
        own = self.list_commands(ctx)
        short = {_SHORT[name]: name for name in own if name in _SHORT and _SHORT[name].startswith(incomplete)}
        return found + [CompletionItem(each, help=f"the same as {name}") for each, name in short.items()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            label = ", ".join(filter(None, (name, _SHORT.get(name))))
            if name in self._lazy:
                rows.append((label, self._lazy[name][1]))
            else:
                command = self.commands[name]
                if not command.hidden:
                    rows.append((label, command.get_short_help_str(_SENTENCE)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
