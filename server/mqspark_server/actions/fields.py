"""Fields of actions, and of pages: each says what it may be, and is read and refused by that.

They are declared once, as annotations:
``topic: TopicName``, ``page: Annotated[int, WholeNumbers(1, 9)]``;
a bool is a tick, a Literal a choice. What has no such annotation is in no form. Must not know which pages there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin

import msgspec

from mqspark.base.names import ID, NAME, Rule, check
from mqspark.errors import IllegalName, InvalidMessage
from mqspark.message import check_group, check_topic
from mqspark_server.shown.nouns import MAX_NAME, Setting

T = TypeVar("T", bound=msgspec.Struct)


class SentFields(Protocol):
    def getlist(self, name: str, /) -> Sequence[str]:
        """What was sent under this name."""
        ...


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
class NameField:
    """A name as it is, by one of the rules of ``mqspark.base.names``."""

    rule: Rule = NAME

    def read(self, name: str, values: Sequence[str]) -> str:
        text = values[0] if values else ""
        try:
            check(name, text, self.rule)
        except IllegalName as error:
            raise InvalidMessage(str(error), field=name) from None
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


class WordsField:
    """Words between blanks or commas."""

    def read(self, name: str, values: Sequence[str]) -> tuple[str, ...]:
        return tuple(" ".join(values).replace(",", " ").split())


@dataclass(frozen=True, slots=True)
class SettingsField:
    """Settings by their words, those that a form has. A tick that is not set is sent as a blank."""

    settings: Sequence[Setting]

    def of(self, given: SentFields) -> Mapping[str, int | bool]:
        """By the fields of RocketMQ's structs. Raises InvalidMessage."""
        found = {}
        for each in self.settings:
            values = given.getlist(each.word)
            if any(map(str.strip, values)) or (values and each.span is None):
                found[each.field] = each.read(each.word, values)
        return found


Text = Annotated[str, TextField()]
Line = Annotated[str, LineField()]
Name = Annotated[str, NameField()]
Id = Annotated[str, NameField(ID)]
TopicName = Annotated[str, LineField(check=check_topic)]
GroupName = Annotated[str, LineField(check=check_group)]


def fields_of(kind: type[msgspec.Struct]) -> dict[str, FormField | SettingsField]:
    """By the name of the attribute."""
    found = {each.name: _field_of(each.type) for each in msgspec.structs.fields(kind)}
    return {name: field for name, field in found.items() if field is not None}


def choices_of(*kinds: type[msgspec.Struct]) -> dict[str, Sequence[str]]:
    """What can be chosen in fields of these names."""
    known = [item for kind in kinds for item in fields_of(kind).items()]
    return {name: field.options for name, field in known if isinstance(field, ChoiceField | ListField)}


def _field_of(kind: Any) -> FormField | SettingsField | None:
    if kind is bool:
        return TickField()
    if get_origin(kind) is Literal:
        return ChoiceField(get_args(kind))
    return get_args(kind)[1] if get_origin(kind) is Annotated else None


class FormReader(Generic[T]):
    """Makes a ``kind`` of what was sent. A field that is absent or blank has its default, if there is one; blanks are a
    text."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        known = fields_of(kind)
        self._fields = [
            (each.name, each.encode_name, known[each.name], each.required)
            for each in msgspec.structs.fields(kind)
            if each.name in known
        ]

    def read(self, given: SentFields) -> T:
        """Raises InvalidMessage."""
        found: dict[str, Any] = {}
        for attribute, name, field, is_required in self._fields:
            if isinstance(field, SettingsField):
                found[attribute] = field.of(given)
                continue
            values = given.getlist(name)
            is_given = any(values) if isinstance(field, TextField) else any(map(str.strip, values))
            if is_required or is_given:
                found[attribute] = field.read(name, values)
        return self._kind(**found)
