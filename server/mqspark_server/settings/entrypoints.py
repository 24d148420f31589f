"""Loads the extensions that the settings of a server name, from entry points of installed packages.

No other entry point runs. An extension that cannot be loaded, or is not what its setting asks for, keeps the server
from starting.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from mqspark.base.clock import Clock
from mqspark.base.logs import printable
from mqspark.errors import ConfigError
from mqspark.extensions import AuthenticationProvider, StoreObserver
from mqspark.protocol.extending import EVERY_ROLE, Extensions

if TYPE_CHECKING:  # imported only when an extension is named
    from importlib.metadata import EntryPoint

GROUP = "mqspark.extensions"
MAX_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def load_extensions(
    clock: Clock,
    names: str,
    *,
    roles: Collection[type] = EVERY_ROLE,
    observers: str = "",
    provider: str = "",
) -> Extensions | None:
    """None when nothing is named. ``names``, ``observers``: ``name,name``, as in the settings ``extensions`` and
    ``messageStorePlugIn``; ``provider``: of ``authenticationProvider``. ``roles``: those that this kind of server
    calls. Raises ConfigError."""
    loaded: dict[str, object] = {}
    found = Extensions(clock)

    def take(name: str, key: str, wanted: Collection[type]) -> None:
        if name not in loaded:
            loaded[name] = _load(name, key)
        if not found.add(name, loaded[name], wanted):
            have = " or ".join(sorted(role.__name__ for role in wanted))
            raise ConfigError(
                f"{key}={name}: the extension does not implement {have} (mqspark.extensions)", key=key
            )

    for name in _names(names, "extensions"):
        take(name, "extensions", roles)
    for name in _names(observers, "messageStorePlugIn"):
        if not any(each.counts.name == name for each in found.observers):  # it is named in both settings
            take(name, "messageStorePlugIn", (StoreObserver,))
    if provider.strip():
        take(provider.strip(), "authenticationProvider", (AuthenticationProvider,))
    for name in _names(names, "extensions"):
        if isinstance(loaded[name], AuthenticationProvider) and name != provider.strip():
            raise ConfigError(
                f"extensions={name}: name an AuthenticationProvider in authenticationProvider",
                key="extensions",
            )
    return found if loaded else None


def find_extensions(names: str, *, observers: str = "", provider: str = "") -> None:
    """Raises ConfigError unless there is an entry point of each name; runs none of them. The parameters are those of
    ``load_extensions``."""
    given = {"extensions": names, "messageStorePlugIn": observers, "authenticationProvider": provider}
    for key, text in given.items():
        for name in _names(text, key):
            _find(name, key)


def _names(text: str, key: str) -> list[str]:
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{key} names {printable(name, MAX_NAME)} twice", key=key)
    return names


def _find(name: str, key: str) -> EntryPoint:
    """Raises ConfigError."""
    from importlib.metadata import entry_points

    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{key}={printable(name, MAX_NAME)}: this is not a valid name of an entry point", key=key
        )
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise ConfigError(
            f"{key}={name}: no installed package has an entry point of this name in the group {GROUP}",
            key=key,
        )
    if len({point.value for point in found}) > 1:
        values = ", ".join(sorted(point.value for point in found))
        raise ConfigError(f"{key}={name}: several packages provide it: {values}", key=key)
    return found[0]


def _load(name: str, key: str) -> object:
    """Raises ConfigError."""
    point = _find(name, key)
    try:
        extension: object = point.load()()
    except Exception as error:
        raise ConfigError(
            f"{key}={name}: {point.value} cannot be loaded: {type(error).__name__}: {printable(str(error))}",
            key=key,
        ) from error
    for attribute in dir(type(extension)):
        if not attribute.startswith("_") and inspect.iscoroutinefunction(getattr(type(extension), attribute)):
            raise ConfigError(
                f"{key}={name}: {attribute} is a coroutine function, and would never be awaited", key=key
            )
    return extension
