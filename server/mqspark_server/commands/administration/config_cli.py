"""``mqspark config``: the settings of running brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

from mqspark.config import did_you_mean
from mqspark_server.commands.loading import noun
from mqspark_server.commands.output import Column, Output
from mqspark_server.commands.refusals import Missing
from mqspark_server.commands.shell import ClusterShell, assume_yes, clustered, confirm

__all__ = ["assignments", "config", "shown_settings"]

config = noun("config", "Settings of running brokers, under RocketMQ's names.")
_COLUMNS = (Column("server", "SERVER"), Column("key", "KEY"), Column("value", "VALUE"))
_DIFFERENCES = (*_COLUMNS, Column("default", "DEFAULT"))
_brokers = click.option(
    "--broker", "brokers", multiple=True, metavar="NAME", help="Only this one. Repeatable."
)


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE texts as a table. Raises click.UsageError."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"{text[:80]!r} is not of the form KEY=VALUE")
        found[key.strip()] = value
    return found


def shown_settings(output: Output, server: str, settings: Mapping[str, str], keys: Sequence[str]) -> None:
    """Print the settings of one server, or those named. Raises Missing."""
    for key in keys:
        if key not in settings:
            raise Missing("setting", key, settings, f"{server} does not show it")
    rows = [{"server": server, "key": key, "value": settings[key]} for key in (keys or sorted(settings))]
    output.rows(_COLUMNS, rows)


@config.command("get")
@click.argument("keys", nargs=-1)
@_brokers
@clustered
async def config_get(shell: ClusterShell, keys: tuple[str, ...], brokers: tuple[str, ...]) -> None:
    """The settings of every master, or those named."""
    for name, addresses in (await shell.brokers(brokers)).items():
        shown_settings(shell.output, name, await shell.admin.broker_config(addresses[min(addresses)]), keys)


@config.command("set")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@_brokers
@assume_yes
@clustered
async def config_set(
    shell: ClusterShell, settings: tuple[str, ...], brokers: tuple[str, ...], yes: bool
) -> None:
    """Change settings of every master (or of --broker) while it runs. An mqspark broker forgets them when it stops."""
    changes = assignments(settings)
    servers = {name: each[min(each)] for name, each in (await shell.brokers(brokers)).items()}
    for name, address in servers.items():
        known = await shell.admin.broker_config(address)
        for key in changes:
            # RocketMQ's brokers accept any key without a word.
            if key not in known and (advice := did_you_mean(key, known)):
                raise click.UsageError(f"broker {name} has no setting {key!r}{advice}")
    confirm(f"Set {', '.join(settings)} at {', '.join(servers)}?", yes)
    for name, address in servers.items():
        await shell.admin.update_broker_config(address, changes)
        shell.output.done(f"{name}: {', '.join(settings)}", {"server": name, "set": changes})


@config.command("diff")
@_brokers
@clustered
async def config_diff(shell: ClusterShell, brokers: tuple[str, ...]) -> None:
    """Settings that differ from mqspark's defaults for mqspark broker run."""
    defaults = _defaults()
    rows = []
    for name, addresses in (await shell.brokers(brokers)).items():
        found = await shell.admin.broker_config(addresses[min(addresses)])
        rows += [
            {"server": name, "key": key, "value": found[key], "default": default}
            for key, default in sorted(defaults.items())
            if key in found and found[key] != default
        ]
    shell.output.rows(_DIFFERENCES, rows, empty="everything is as it is by default")


def _defaults() -> dict[str, str]:
    from mqspark.config import to_properties
    from mqspark_server.settings.settings import broker_settings, production

    settings = broker_settings(production())
    return {**to_properties(settings.store), **to_properties(settings.broker)}
