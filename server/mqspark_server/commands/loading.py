"""Command groups whose commands are imported when they are called, and that suggest a name for a misspelt one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

import click

from mqspark.base.config import did_you_mean

HELP = {"help_option_names": ["-h", "--help"]}


class LazyCommands(click.Group):
    """A group of commands given by their modules.

    ``lazy``: name → ("package.module:attribute" below this package, the help line). Commands can also be added the
    usual way.
    """

    def __init__(
        self, *arguments: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in self._lazy:
                rows.append((name, self._lazy[name][1]))
            else:
                command = self.commands[name]
                if not command.hidden:
                    rows.append((name, command.get_short_help_str(90)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def noun(name: str, text: str, lazy: Mapping[str, tuple[str, str]] | None = None) -> LazyCommands:
    """A command group for a noun; its commands are verbs."""
    return LazyCommands(name, help=text, lazy=lazy, context_settings=HELP)
