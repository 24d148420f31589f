"""Every typed header and body of the protocol, by the name of its class."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import msgspec

from mqspark.protocol import bodies, headers
from mqspark.protocol.bodies.body import Body
from mqspark.protocol.headers.header import Header


def _structs(package: ModuleType) -> Iterator[type[msgspec.Struct]]:
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(info.name)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__:
                yield kind


STRUCTS = [*_structs(headers), *_structs(bodies)]
"""All classes, including the parts of bodies that are not bodies themselves."""
HEADERS = {kind.__name__: kind for kind in STRUCTS if issubclass(kind, Header)}
BODIES = {kind.__name__: kind for kind in STRUCTS if issubclass(kind, Body) and kind is not Body}
