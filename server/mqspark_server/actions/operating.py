"""An act: something that an operator changes in a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from mqspark.base.config import did_you_mean
from mqspark.base.logs import printable
from mqspark.errors import ClientError
from mqspark_server.shown.nouns import MAX_NAME
from mqspark_server.survey.surveying import Row

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient
    from mqspark.client.producer.producer import Producer


Facts = list[tuple[str, str]]


class Operated(Protocol):
    """A cluster, asked with the keys of who acts."""

    @property
    def admin(self) -> AdminClient: ...

    @property
    def cluster(self) -> str | None:
        """Only this one of those that the name servers know; None: all."""
        ...

    def producer(self) -> Producer: ...


class Why(Enum):
    """Why an action is not done; the value is a title."""

    ABSENT = "There is no such thing"
    EXISTS = "It exists already"
    UNCHANGED = "Nothing would change"
    NOT_POSSIBLE = "This cannot be done"


class NotDone(ClientError):
    """``noun``, ``name``: of what is there or is not."""

    def __init__(self, why: Why, text: str, *, noun: str = "", name: str = "") -> None:
        super().__init__(text)
        self.why, self.noun, self.name = why, noun, name


def absent(noun: str, name: str, known: Iterable[str]) -> NotDone:
    text = f"there is no {noun} {printable(name, MAX_NAME)!r}{did_you_mean(name, known)}"
    return NotDone(Why.ABSENT, text, noun=noun, name=name)


@dataclass(slots=True)
class Preview:
    """What an action would do. ``button``: the verb. Of the rows people see ``columns``, under these titles."""

    title: str
    button: str
    facts: Facts = field(default_factory=list)
    columns: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    is_dangerous: bool = False
    """Whether it is asked for everywhere."""

    @property
    def question(self) -> str:
        """With the facts, in one line."""
        return " ".join((self.title, *(f"{name}: {value}." for name, value in self.facts)))


@dataclass(frozen=True, slots=True)
class Done:
    """``text``: a sentence that begins with a noun and has no full stop. ``row``: for programs."""

    text: str
    row: Row = field(default_factory=dict)
    left: str = ""
    """What was not done, and why."""


class Act(msgspec.Struct, frozen=True):
    """Its fields are its parameters, which its texts have in braces."""

    title: ClassVar[str]
    button: ClassVar[str]
    done: ClassVar[str]
    is_dangerous: ClassVar[bool] = False

    async def facts(self, at: Operated) -> Facts:
        """What to know before. Raises InvalidMessage, MQError."""
        return []

    async def act(self, at: Operated) -> Row | None:
        """The row for programs; None: the parameters. Raises InvalidMessage, MQError."""
        raise NotImplementedError

    async def preview(self, at: Operated) -> Preview:
        """Raises InvalidMessage, MQError."""
        facts = await self.facts(at)
        return Preview(self.title.format(self), self.button, facts, is_dangerous=self.is_dangerous)

    async def apply(self, at: Operated) -> Done:
        """Raises InvalidMessage, MQError."""
        row = await self.act(at)
        return Done(self.done.format(self), msgspec.structs.asdict(self) if row is None else row)
