"""Settings given as keywords: a constructor takes whole values, and any of their fields by name.

Each settings class has a TypedDict with the same fields, so that type checkers know the keywords; a test compares
them. Must not know any particular setting.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, replace
from textwrap import dedent, indent
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mqspark.base.config import did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAMES = frozenset({"__init__.namesrv", "__init__.group", "__init__.listener", "subscribe.topic"})
"""Arguments of which checks of their own say more than that they have another type."""

K = TypeVar("K", bound="type[DataclassInstance]")
S = TypeVar("S", bound="DataclassInstance")
O = TypeVar("O", bound="DataclassInstance")  # noqa: E741 - options
F = TypeVar("F", bound=Callable[..., None])


@overload
def changed(value: S, changes: Mapping[str, Any], /) -> S: ...
@overload
def changed(settings: S, options: O, changes: Mapping[str, Any], /) -> tuple[S, O]: ...
def changed(*arguments: Any) -> Any:
    """The value or values, with the fields in ``changes`` replaced. Raises TypeError for an unknown name, and what the
    values raise for an invalid field."""
    *values, changes = arguments
    names = [{field.name for field in fields(value)} for value in values]
    known = set().union(*names)
    for name in changes:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}{did_you_mean(name, known)}")
    found = [
        replace(value, **mine)
        if (mine := {name: changes[name] for name in changes if name in own})
        else value
        for value, own in zip(values, names, strict=True)
    ]
    return found[0] if len(found) == 1 else tuple(found)


class _Description:
    """The docstring of a settings class, with the texts that follow its fields. They are in the source alone, which is
    read when somebody asks; without a source there is the docstring."""

    def __init__(self, kind: type[DataclassInstance], text: str) -> None:
        self._kind = kind
        self._text = inspect.cleandoc(text)

    def __get__(self, instance: object, owner: type) -> str:
        texts: dict[str, str] = {}
        for kind in reversed(self._kind.__mro__[:-1]):
            try:
                texts |= _field_texts(kind)
            except (OSError, TypeError, SyntaxError):
                return self._text
        lines = [
            f"{field.name}: {field.type}{_default(field)}\n" + indent(texts.get(field.name, ""), "    ")
            for field in fields(self._kind)
        ]
        return "\n\n".join([self._text, "Fields:", *lines])


def _field_texts(kind: type) -> dict[str, str]:
    """The texts that follow the fields of a class itself, by the fields."""
    (body,) = ast.parse(dedent(inspect.getsource(kind))).body
    if not isinstance(body, ast.ClassDef):
        return {}
    return {
        node.target.id: inspect.cleandoc(text.value.value)
        for node, text in itertools.pairwise(body.body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _default(field: Field[Any]) -> str:
    return "" if field.default is MISSING else f" = {field.default!r}"


def described(kind: K) -> K:
    """Decorate a settings class: ``help`` shows what each field is."""
    kind.__doc__ = _Description(kind, kind.__doc__ or "")  # type: ignore[assignment] # read as a text
    return kind


def spelled_out(*kinds: type[DataclassInstance]) -> Callable[[F], F]:
    """Decorate a constructor with ``**changes``: ``help`` and ``inspect`` show the fields of ``kinds`` in its place."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        named = [
            one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        for kind in kinds:
            for field in fields(kind):
                default = field.default if field.default_factory is MISSING else field.default_factory()
                named.append(
                    inspect.Parameter(
                        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type
                    )
                )
        function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined] # read by inspect
        return function

    return decorate
