"""Fields of forms and addresses: each says what it may be, and is read and refused by that.

A page or a change declares them once, as annotations:
``topic: TopicName``, ``page: Annotated[int, WholeNumbers(1, 9)]``;
a bool is a tick, a Literal a choice. Must not know which pages there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin

import msgspec

from mqspark.errors import InvalidMessage
from mqspark.message import check_group, check_topic
from mqspark_server.console.visitors import Form
from mqspark_server.shown.nouns import MAX_NAME

T = TypeVar("T", bound=msgspec.Struct)


class FormField(Protocol):
    def read(self, name: str, values: Sequence[str]) -> Any:
        """``values``: what was sent under this name, often one. Raises InvalidMessage."""
        ...


@dataclass(frozen=True, slots=True)
class TextField:
    """Text as it is."""

    def read(self, name: str, values: Sequence[str]) -> str:
        return values[0] if values else ""


@dataclass(frozen=True, slots=True)
class LineField:
    """Text without the blanks around it."""

    most: int = MAX_NAME
    check: Callable[[str], object] | None = None
    """Raises InvalidMessage for a text that is no such name."""

    def read(self, name: str, values: Sequence[str]) -> str:
        text = values[0].strip() if values else ""
        if len(text) > self.most:
            raise InvalidMessage(f"{name}: at most {self.most} characters", field=name)
        if self.check is not None:
            self.check(text)
        return text


@dataclass(frozen=True, slots=True)
class ChoiceField:
    options: Sequence[str]

    def read(self, name: str, values: Sequence[str]) -> str:
        if not values or values[0] not in self.options:
            raise InvalidMessage(f"{name}: choose one of {', '.join(self.options)}", field=name)
        return values[0]


class TickField:
    def read(self, name: str, values: Sequence[str]) -> bool:
        return bool(values and values[0])


@dataclass(frozen=True, slots=True)
class ListField:
    """All values of one name. ``options``: others are left out; empty: all are taken."""

    options: Sequence[str] = ()

    def read(self, name: str, values: Sequence[str]) -> tuple[str, ...]:
        return tuple(each for each in values if not self.options or each in self.options)


Text = Annotated[str, TextField()]
Line = Annotated[str, LineField()]
TopicName = Annotated[str, LineField(check=check_topic)]
GroupName = Annotated[str, LineField(check=check_group)]


def fields_of(kind: type[msgspec.Struct]) -> dict[str, FormField]:
    """By the name of the attribute."""
    return {each.name: _field_of(each.type) for each in msgspec.structs.fields(kind)}


def _field_of(kind: Any) -> FormField:
    if kind is bool:
        return TickField()
    if get_origin(kind) is Literal:
        return ChoiceField(get_args(kind))
    field: FormField = get_args(kind)[1]
    return field


class FormReader(Generic[T]):
    """Makes a ``kind`` of what was sent. A field that is absent or blank has its default, if there is one; blanks are a
    text."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._fields = [
            (each.name, each.encode_name, _field_of(each.type), each.required)
            for each in msgspec.structs.fields(kind)
        ]

    def read(self, given: Form) -> T:
        """Raises InvalidMessage."""
        found = {}
        for attribute, name, field, is_required in self._fields:
            values = given.all(name)
            is_given = any(values) if isinstance(field, TextField) else any(map(str.strip, values))
            if is_required or is_given:
                found[attribute] = field.read(name, values)
        return self._kind(**found)
