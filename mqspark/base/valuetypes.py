"""Whether fields and arguments have the types and ranges of their annotations, for programs without a type checker.

``"false"`` is true and ``"3"`` is no number: a setting of another type would be something else than its author meant.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from mqspark.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

K = TypeVar("K", bound=type)

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class InRange:
    """The range of a number, both ends included: ``Annotated[int, InRange(0, 9)]``."""

    least: int
    most: int | None = None

    def why_not(self, value: float) -> str:
        """Why a number is none of these, or ''."""
        if self.least <= value and (self.most is None or value <= self.most):
            return ""
        if self.most is not None:
            return f"is not between {self.least} and {self.most}"
        return {0: "is negative", 1: "must be positive"}.get(self.least, f"is less than {self.least}")


PositiveInt = Annotated[int, InRange(1)]
NonNegativeInt = Annotated[int, InRange(0)]


def check_fields(value: DataclassInstance) -> None:
    """Raises ConfigError, whose ``key`` names the first field of another type."""
    hints = _hints(type(value))
    for field in fields(value):
        check_value(field.name, getattr(value, field.name), hints[field.name])


def check_value(key: str, value: object, hint: Any) -> None:
    """Raises ConfigError unless the value has the type ``hint``, and is in its range."""
    if not _fits(value, hint):
        if isinstance(value, str) and not _is_text(value):
            why = "has a character that is half of one (a lone surrogate)"
        elif isinstance(value, int) and not _is_int64(value):
            why = "does not fit into 64 bits"
        else:
            why = f"is {type(value).__name__}, not {_name(hint)}"
        raise ConfigError(f"{key}={_shown(value):.80} {why}", key=key)
    if why := _out_of_range(value, hint):
        raise ConfigError(f"{key}={value} {why}", key=key)


def checked(*, but: Collection[str] = (), own: Collection[str] = ()) -> Callable[[K], K]:
    """Decorate a class: its constructor and public methods, except those named ``but`` that check by themselves, raise
    ConfigError for an argument of another type or out of range, whose ``key`` names it. ``own``: arguments
    (``method.argument``) that have errors of their own."""

    def decorate(kind: K) -> K:
        for name, function in list(vars(kind).items()):
            is_public = name == "__init__" or (name[0] != "_" and name not in but)
            if is_public and inspect.isfunction(function):
                methods = [each.rpartition(".") for each in own]
                setattr(
                    kind, name, _checked(function, {last for method, _, last in methods if method == name})
                )
        return kind

    return decorate


def _checked(function: Callable[..., Any], but: Collection[str]) -> Callable[..., Any]:
    own = list(inspect.signature(function).parameters.values())[1:]
    in_place = [each.name for each in own if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    rest = [each.name for each in own if each.kind is inspect.Parameter.VAR_POSITIONAL]
    if not own:
        return function

    def check(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        hints = _hints(function)
        names = itertools.chain(in_place, itertools.cycle(rest))
        for name, value in itertools.chain(zip(names, arguments, strict=False), named.items()):
            if name in hints and name not in but:
                check_value(name, value, hints[name])

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(self: object, *arguments: Any, **named: Any) -> Any:
            check(arguments, named)
            return await function(self, *arguments, **named)

        return later

    @functools.wraps(function)
    def now(self: object, *arguments: Any, **named: Any) -> Any:
        check(arguments, named)
        return function(self, *arguments, **named)

    return now


def _out_of_range(value: object, hint: Any) -> str:
    """Why a number is out of the range of its annotation, or ''."""
    if not isinstance(value, (int, float)):
        return ""
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, (_out_of_range(value, each) for each in get_args(hint))), "")
    ranges = getattr(hint, "__metadata__", ())
    return next(filter(None, (each.why_not(value) for each in ranges if isinstance(each, InRange))), "")


def _is_int64(value: int) -> bool:
    return _INT64_MIN <= value <= _INT64_MAX  # a range looks for an enum's member number by number


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # a number of too many digits
        return f"a number of {int(value).bit_length()} bits" if isinstance(value, int) else "a value"


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, arguments[0])
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
        return isinstance(value, int) and not isinstance(value, bool) and _is_int64(value)
    if hint is str:
        return isinstance(value, str) and _is_text(value)
    if hint is bytes:
        return isinstance(value, (bytes, bytearray, memoryview))
    if origin in (Sequence, Collection, Iterable):
        if not isinstance(value, origin) or isinstance(value, (str, bytes, bytearray, memoryview)):
            return False
        # What can be read only once is left for its user.
        return not isinstance(value, Collection) or all(_fits(each, arguments[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(name, arguments[0]) and _fits(each, arguments[1]) for name, each in value.items()
        )
    if _is_named_tuple(hint):
        return isinstance(value, hint) and all(
            _fits(getattr(value, name), kind) for name, kind in _hints(hint).items()
        )
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if name == "__call__" or name[0] != "_")
    return isinstance(value, origin or hint)


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _name(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _name(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_name(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(repr(each) for each in get_args(hint))
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
