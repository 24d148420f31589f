"""The containers that live objects of ours hold: each as ``Class.attribute``, a global of a module as
``module.name``."""

from __future__ import annotations

import array
import collections
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

OURS = ("mqspark", "mqspark_server")
CONTAINERS = (dict, list, set, bytearray, array.array, collections.deque)
LOOKED_AT = 200
"""Elements of one container: they are alike."""


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in OURS and not cls.__module__.startswith("mqspark.testing")


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for name in getattr(thing, "__struct_fields__", ()):
        yield name, getattr(thing, name)
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{cls.__name__.lstrip('_')}{name}"
            try:
                yield name, getattr(thing, name)
            except AttributeError:
                continue


def _parts(thing: Any) -> Iterable[Any]:
    """What is reached from something that is no object of ours."""
    if isinstance(thing, dict):
        items = list(thing.items())[:LOOKED_AT]
        return [part for item in items for part in item]
    if isinstance(thing, (list, tuple, set, frozenset, collections.deque)):
        return list(thing)[:LOOKED_AT]
    if isinstance(thing, types.MethodType):
        return [thing.__self__]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, types.FunctionType):
        cells = thing.__closure__ or ()
        return [cell.cell_contents for cell in cells if _is_set(cell)]
    return ()


def _is_set(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def containers_of(roots: Iterable[Any]) -> dict[str, Any]:
    """Every mutable container that an object of ours has as an attribute, to the largest example of it."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    kept: list[Any] = []  # so that no identity comes twice
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type, types.ModuleType)):
            continue
        seen.add(id(thing))
        kept.append(thing)
        if not _is_ours(type(thing)):
            waiting += _parts(thing)
            continue
        name = type(thing).__name__
        if isinstance(thing, CONTAINERS):  # a subclass of ours is its own container
            found[name] = thing
            waiting += _parts(thing)
        for attribute, value in list(_attributes(thing)):
            waiting.append(value)
            if isinstance(value, CONTAINERS) and not _is_ours(type(value)):
                key = f"{name}.{attribute}"
                if key not in found or len(value) > len(found[key]):
                    found[key] = value
    return found


def globals_of() -> dict[str, Any]:
    """Containers and caches that modules of ours have as globals, those that are constants by their names left out."""
    found: dict[str, Any] = {}
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] not in OURS or module_name.startswith("mqspark.testing"):
            continue
        for name, value in vars(module).items():
            is_cache = hasattr(value, "cache_info")
            is_table = isinstance(value, CONTAINERS) and not name.lstrip("_").isupper()
            if name.startswith("__") or not (is_cache or is_table):
                continue
            if is_cache and value.__module__ != module_name:
                continue
            found[f"{module_name}.{name}"] = value
        for cls in [value for value in vars(module).values() if isinstance(value, type)]:
            if cls.__module__ == module_name:
                for name, value in vars(cls).items():
                    if hasattr(value, "cache_info"):
                        found[f"{module_name}.{cls.__name__}.{name}"] = value
    return found
