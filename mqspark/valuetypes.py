"""Whether the fields of a value have the types of their annotations, for programs without a type checker.

``"false"`` is true and ``"3"`` is no number: a setting of another type would be something else than its author meant.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from mqspark.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["check_fields", "check_value"]


def check_fields(value: DataclassInstance) -> None:
    """Raises ConfigError, whose ``key`` names the first field of another type."""
    hints = _hints(type(value))
    for field in fields(value):
        check_value(field.name, getattr(value, field.name), hints[field.name])


def check_value(key: str, value: object, hint: Any) -> None:
    """Raises ConfigError unless the value has the type ``hint``."""
    if not _fits(value, hint):
        raise ConfigError(f"{key}={value!r:.80} is {type(value).__name__}, not {_name(hint)}", key=key)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin is Callable or hint is Callable:
        return callable(value)
    if hint is int:  # True and False are numbers to Python, but no author means them
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is Sequence:
        return (
            isinstance(value, Sequence)
            and not isinstance(value, (str, bytes))
            and all(_fits(each, arguments[0]) for each in value)
        )
    if origin is Mapping:
        return isinstance(value, Mapping)
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if name == "__call__" or name[0] != "_")
    return isinstance(value, origin or hint)


def _name(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_name(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(repr(each) for each in get_args(hint))
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
