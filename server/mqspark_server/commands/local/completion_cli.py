"""``mqspark completion SHELL``: the script for completion of commands, topics and groups."""

from __future__ import annotations

from typing import Annotated, Literal

import click
from click.shell_completion import get_completion_class

from mqspark_server.commands.parameters import Argument, DeclaredCommand
from mqspark_server.commands.refusals import CommandFailed


@click.command(cls=DeclaredCommand)
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Argument()]) -> None:
    """Print the completion script for a shell.

    \b
    bash: eval "$(mqspark completion bash)"        in ~/.bashrc
    zsh:  eval "$(mqspark completion zsh)"         in ~/.zshrc
    fish: mqspark completion fish > ~/.config/fish/completions/mqspark.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise CommandFailed(f"click has no completion for {shell}")
    script = kind(click.get_current_context().find_root().command, {}, "mqspark", "_MQSPARK_COMPLETE")
    click.echo(script.source_template % script.source_vars())
