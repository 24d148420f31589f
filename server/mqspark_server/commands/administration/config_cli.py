"""``mqspark config``: the settings of running brokers, and of files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from mqspark_server.actions.settingactions import ChangeSettings
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.output import Output, OutputFormat, columns, remark
from mqspark_server.commands.parameters import Argument, Assignments, Name, OnlyBrokers, Option, Yes
from mqspark_server.commands.refusals import Missing

if TYPE_CHECKING:
    from mqspark_server.settings.settings import Layer

config = noun("config", "Settings of brokers, under RocketMQ's names.")
Keys = Annotated[tuple[str, ...], Argument(required=False)]
Changes = Annotated[tuple[str, ...], Argument(required=True, metavar="KEY=VALUE...")]
_COLUMNS = columns("server, key, value")
_DIFFERENCES = columns(*_COLUMNS, "default")


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """Parse KEY=VALUE texts. Raises click.UsageError."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"{text[:80]!r} is not of the form KEY=VALUE")
        found[key.strip()] = value
    return found


def shown_settings(output: Output, servers: Mapping[str, Mapping[str, str]], keys: Sequence[str]) -> None:
    """Print the settings of servers, by server name; only ``keys`` if there are any. Raises Missing."""
    rows = []
    for server, settings in servers.items():
        for key in keys:
            if key not in settings:
                raise Missing("setting", key, settings, f"{server} does not show it")
        rows += [{"server": server, "key": key, "value": settings[key]} for key in (keys or sorted(settings))]
    output.rows(_COLUMNS, rows)


@config.command("get")
async def config_get(shell: ClusterShell, keys: Keys, brokers: OnlyBrokers) -> None:
    """Show all settings of every master, or only KEYS."""
    shown_settings(shell.output, await _settings_of(shell, brokers), keys)


@config.command("set")
async def config_set(shell: ClusterShell, settings: Changes, brokers: OnlyBrokers, yes: Yes) -> None:
    """Change settings of every running master, or only of --broker. mqspark saves them if it runs with -c FILE."""
    changes = assignments(settings)
    servers = (await shell.brokers(brokers)).items()
    await shell.carry_out_all([ChangeSettings(name, each[min(each)], changes) for name, each in servers], yes)


@config.command("diff")
async def config_diff(shell: ClusterShell, brokers: OnlyBrokers) -> None:
    """Show settings that differ from the defaults of mqspark broker run."""
    from mqspark_server.settings.settings import broker_settings, production

    settings = broker_settings(production())
    defaults = _properties(settings.store, settings.broker)
    servers = await _settings_of(shell, brokers)
    known = {name: {key: found[key] for key in defaults if key in found} for name, found in servers.items()}
    _show_differences(shell.output, known, defaults)


async def _settings_of(shell: ClusterShell, brokers: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """The settings of the masters, by name."""
    servers = (await shell.brokers(brokers)).items()
    return {name: await shell.admin.broker_config(each[min(each)]) for name, each in servers}


def _show_differences(
    output: Output, servers: Mapping[str, Mapping[str, str]], defaults: Mapping[str, str]
) -> None:
    rows = [
        {"server": name, "key": key, "value": value, "default": defaults.get(key, "")}
        for name, found in servers.items()
        for key, value in sorted(found.items())
        if value != defaults.get(key, "")
    ]
    output.rows(_DIFFERENCES, rows, empty="everything is as it is by default")


def _properties(*parts: Any) -> dict[str, str]:
    """RocketMQ key → text. For a secret, only whether it is set; a URL without its user."""
    from mqspark.base.config import rocketmq_key, to_properties
    from mqspark.base.logs import shown_setting

    found: dict[str, str] = {}
    for part in parts:
        secrets = {rocketmq_key(each) for each in dataclasses.fields(part) if not each.repr}
        for key, value in to_properties(part).items():
            is_hidden = key in secrets and value and "://" not in value
            found[key] = "(set)" if is_hidden else shown_setting(value)
    return found


def _parts_of(kind: str, layers: Sequence[Layer]) -> tuple[Any, list[Any]]:
    """The settings of a server, and the settings objects that they consist of."""
    from mqspark_server.settings import settings

    found: Any
    if kind == "namesrv":
        found = settings.namesrv_settings(settings.namesrv_production(), *layers)
    elif kind == "controller":
        found = settings.controller_settings({}, *layers)
    else:
        found = settings.broker_settings(settings.production(), *layers, use_environment=False)
    return found, [getattr(found, each) for each in ("server", kind, "store", "auth") if hasattr(found, each)]


@config.command("check")
def config_check(
    file: Name,
    kind: Annotated[
        str | None,
        click.Choice(["broker", "namesrv", "controller"]),
        Option("Kind of server.  [default: by the file's name, else broker]", "--of"),
    ],
    assigned: Assignments,
    output: OutputFormat,
) -> None:
    """Check whether a server would start with a settings file, and show what it changes. Contacts no server."""
    from mqspark_server.settings.entrypoints import find_extensions
    from mqspark_server.settings.settings import consent_to_anonymous, file_layer, override_layer

    path = Path(file)
    if kind is None:
        if path.name == "jobs.toml":
            raise click.UsageError(f"a file of jobs is checked by: mqspark job list -c {path}")
        kind = path.stem if path.stem in ("namesrv", "controller") else "broker"
    layers = [file_layer(path), override_layer(assigned)]
    settings, parts = _parts_of(kind, layers)
    find_extensions(
        settings.server.extensions,
        observers=settings.broker.message_store_plug_in if kind == "broker" else "",
        provider=settings.auth.authentication_provider,
    )
    warning = consent_to_anonymous(settings.server, settings.auth, *layers)
    defaults = _properties(*_parts_of(kind, [])[1])
    _show_differences(Output(output), {path.name: _properties(*parts)}, defaults)
    for key in sorted(set(settings.unused)):
        remark(f"without effect: {key}")
    if warning is not None:
        remark(warning)
