"""All settings: which classes make up the settings of each kind of server, and what their declarations say.

Texts are the string literals below the fields. Python drops them when it compiles a class, so that a process has them
only when something reads them: they are taken from the source, as Sphinx and pydantic do.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mqspark.auth.config import AuthConfig
from mqspark.base.config import INT64_MAX, rocketmq_key
from mqspark.broker.config import BrokerConfig
from mqspark.controller.config import ControllerConfig
from mqspark.namesrv.config import NamesrvConfig
from mqspark.store.config import StoreConfig
from mqspark_server.settings.serverconfig import ServerConfig

SERVERS: Mapping[str, tuple[type[Any], ...]] = {
    "broker": (BrokerConfig, ServerConfig, StoreConfig, AuthConfig),
    "namesrv": (ServerConfig, NamesrvConfig, AuthConfig),
    "controller": (ServerConfig, ControllerConfig, AuthConfig),
}
CLASSES = tuple(dict.fromkeys(cls for classes in SERVERS.values() for cls in classes))


class DeclaredSetting(NamedTuple):
    key: str
    owner: type[Any]
    field: dataclasses.Field[Any]
    section: str

    @property
    def unit(self) -> str:
        found: str = self.field.metadata.get("unit", "")
        return found

    @property
    def text(self) -> str:
        """The text below the field."""
        return _texts(self.owner.__module__, self.owner.__name__).get(self.field.name, "").replace("``", "`")

    @property
    def meaning(self) -> str:
        """The text, after the unit of the value."""
        unit, text = self.unit, self.text
        return f"[{unit}] {text}".strip() if unit and not text.lower().startswith(f"{unit} ") else text

    @property
    def default(self) -> str:
        """Empty where there is none, or one that a start finds. Paths are below ``~``."""
        factory = self.field.default_factory
        return text_of(factory() if callable(factory) else self.field.default)

    @property
    def bounds(self) -> str:
        declared = self.field.metadata
        if "least" not in declared or isinstance(self.field.default, str):
            return ""
        is_open = declared.get("most", INT64_MAX) == INT64_MAX
        return f"from {declared['least']}" if is_open else f"{declared['least']} to {declared['most']}"

    def is_default(self, value: str) -> bool:
        """Whether a server that reports this value has the default. Its user may have another home."""
        default = self.default
        return text_of(value) == default or (default.startswith("~/") and value.endswith(default[1:]))


def text_of(value: Any) -> str:
    """As in a settings file. A path is the same whoever looks."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    return "" if value is None else str(value).replace(str(Path.home()), "~")


def settings_of(server: str) -> list[DeclaredSetting]:
    """The settings of a kind of server, section by section. The first class has what several have."""
    found: dict[str, DeclaredSetting] = {}
    for cls in SERVERS[server]:
        section = ""
        for field in dataclasses.fields(cls):
            section = field.metadata.get("section", section)
            if server in field.metadata.get("of", (server,)):
                key = rocketmq_key(field)
                found.setdefault(key, DeclaredSetting(key, cls, field, section))
    sections = list(dict.fromkeys(each.section for each in found.values()))
    return sorted(found.values(), key=lambda each: sections.index(each.section))


def spellings_of(server: str) -> set[str]:
    """Both spellings of all keys of a kind of server."""
    return {spelt for each in settings_of(server) for spelt in (each.key, each.field.name)}


@functools.cache
def _texts(module: str, name: str) -> dict[str, str]:
    """The texts below the fields of a class, by field name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
