"""Parameters of commands, declared once: as annotations of the function that a command calls.

``queues: Annotated[int, QUEUES, Option("Per broker.", "-q")] = 8`` is the option ``-q`` or ``--queues`` within limits,
``topic: Annotated[str, Argument()]`` an argument. ``X | None`` may be absent, a tuple be repeated; a bool is a flag.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from mqspark_server.shown.nouns import WholeNumbers

F = TypeVar("F", bound=Callable[..., Any])


class Argument:
    """``more``: as click.Argument takes it."""

    def __init__(self, **more: Any) -> None:
        self._more = more

    def parameter(
        self, name: str, is_many: bool, is_optional: bool, found: dict[str, Any]
    ) -> click.Parameter:
        found |= {"nargs": -1} if is_many else {"required": not is_optional}
        return click.Argument([name], **found | self._more)


class Option:
    """``text``: for the help. ``names``: all, or short ones beside that of the parameter. ``more``: as click.Option
    takes it. A default is shown."""

    def __init__(self, text: str, *names: str, **more: Any) -> None:
        self._names, self._more = names, {"help": text, **more}

    def parameter(
        self, name: str, is_many: bool, is_optional: bool, found: dict[str, Any]
    ) -> click.Parameter:
        given = found | self._more
        own = [] if any(each.startswith("--") for each in self._names) else [f"--{name.replace('_', '-')}"]
        if is_many:
            found["multiple"] = True
        elif found.get("type") is bool:
            found = {"is_flag": True, **({"default": None} if is_optional else {})}
        elif "default" in given:
            found["show_default"] = True
        else:
            found["required"] = not is_optional
        return click.Option([*self._names, *own, name], **found | self._more)


class DeclaredCommand(click.Command):
    """A command whose function declares its parameters; before others that decorators have given it."""

    def __init__(
        self,
        name: str | None,
        *,
        callback: Callable[..., Any],
        params: list[click.Parameter] | None = None,
        **more: Any,
    ) -> None:
        function = inspect.unwrap(callback)
        super().__init__(name, callback=callback, params=[*declared_by(function), *(params or [])], **more)


def declaring(*kinds: type) -> Callable[[F], F]:
    """Gives a command the annotated fields of classes as parameters, too."""

    def declared(function: F) -> F:
        given = function.__dict__.setdefault("__click_params__", [])
        given += [each for kind in reversed(kinds) for each in reversed([*declared_by(kind)])]
        return function

    return declared


def declared_by(owner: Any) -> Iterator[click.Parameter]:
    """``owner``: a function or a class."""
    defaults = vars(owner) if isinstance(owner, type) else _defaults(owner)
    for name, hint in get_type_hints(owner, include_extras=True).items():
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        mark = next((mark for mark in marks if isinstance(mark, Argument | Option)), None)
        if mark is None:
            continue
        inner = [one for one in get_args(kind) if one is not types.NoneType] if _is_union(kind) else [kind]
        is_many = get_origin(inner[0]) is tuple
        found = {"type": _type(get_args(inner[0])[0] if is_many else inner[0], marks)}
        if name in defaults:
            found["default"] = defaults[name]
        yield mark.parameter(name, is_many, _is_union(kind), found)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    given = inspect.signature(function).parameters
    return {name: each.default for name, each in given.items() if each.default is not each.empty}


def _is_union(kind: Any) -> bool:
    """X | None."""
    return get_origin(kind) in (Union, types.UnionType)


def _type(kind: Any, marks: list[Any]) -> Any:
    for mark in marks:
        if isinstance(mark, WholeNumbers):
            return click.IntRange(*mark)
        if isinstance(mark, click.ParamType):
            return mark
    return click.Choice(get_args(kind), case_sensitive=False) if get_origin(kind) is Literal else kind


# --- what several commands take ---

Name = Annotated[str, Argument()]
MaybeName = Annotated[str | None, Argument()]
OnlyBrokers = Annotated[tuple[str, ...], Option("Only this broker. Repeatable.", "--broker", metavar="NAME")]
OnlyQueues = Annotated[
    tuple[str, ...], Option("Only this queue. Repeatable.", "--queue", metavar="BROKER:ID")
]
Yes = Annotated[bool, Option("Do not ask for confirmation.", "-y")]
ServerConfig = Annotated[str | None, Option("TOML, or RocketMQ's broker.conf.", "-c", metavar="FILE")]
Assignments = Annotated[
    tuple[str, ...], Option("One setting; overrides the file. Repeatable.", "--set", metavar="KEY=VALUE")
]
StoreDirectory = Annotated[str, click.Path(exists=True, file_okay=False), Argument(metavar="DIR")]
