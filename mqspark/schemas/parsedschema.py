"""What a schema is, whatever its language.

Names and meanings are those of Confluent's Schema Registry: ``AVRO``, ``JSON`` and ``PROTOBUF``; a reference has a name
in the text of the schema, and a subject and version where the other schema is registered.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from mqspark.errors import ConfigError, InvalidSchema, SchemaTooLarge

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
KINDS = (AVRO, JSON, PROTOBUF)

MAX_TEXT_BYTES = 1 << 20
MAX_REFERENCES = 1_000
"""Schemas that one schema needs, with those that they need in turn."""
MAX_TOTAL_BYTES = 4 << 20
"""Text of a schema and of all that it needs."""
MAX_NODES = 20_000
"""Types, fields and values in one text."""
MAX_SCHEMA_DEPTH = 100
"""Types inside each other, in one text."""
MAX_NAME_LENGTH = 2_000
"""Letters of a full name, of the URI of a JSON Schema, or of a path in a sentence: thousands of types may be in one
package, and each repeats its name."""
MAX_PROBLEMS = 100
"""What is told of two schemas, and of two types in them: a type that is met twice at each level would be told of twice
as often at each."""


class Reference(NamedTuple):
    """``name``: an Avro full name, a URI or a path of an import, as the text of the schema has it."""

    name: str
    subject: str
    version: int


ENDS_EARLY = "the payload ends early"


class Flaw(NamedTuple):
    """Why a payload does not fit its schema."""

    field: str
    """``customer.address[2].zip``; the empty text is the payload itself."""
    problem: str

    def __str__(self) -> str:
        return f"field {self.field}: {self.problem}" if self.field else self.problem


TOO_MUCH_TOGETHER = "the bodies of its batch up to this one take too long to check: send smaller batches"


class Effort:
    """What it may still cost to check the bodies of a batch, as a part of what one body may."""

    __slots__ = ("left", "unseen")

    def __init__(self) -> None:
        self.left = 1.0
        self.unseen = 1.0
        """The same of bodies that are not looked at for what they cost, but judged by their bytes."""


Check = Callable[[bytes | memoryview], Flaw | None]
"""Whether a payload, without its prefix, fits. It is fast when it does."""

Needed = Sequence[tuple[Reference, "Schema"]]
"""The references of a schema, each with the schema that it names."""


class Schema(ABC):
    """A parsed schema. Two of them are equal when the registry has one id for both."""

    kind: str

    def __init__(self, text: str, needed: Needed) -> None:
        """Raises SchemaTooLarge."""
        self.text = text
        self.references = tuple(reference for reference, _ in needed)
        self.needed = dict[str, Schema]()
        """The schemas of the references by name."""
        self.size_bytes = size_in_bytes(text, self.kind)
        """Bytes of the text."""
        self._note_needed(needed)

    def _note_needed(self, needed: Needed) -> None:
        if len(needed) > MAX_REFERENCES:
            raise SchemaTooLarge(f"{len(needed)} references", MAX_REFERENCES, kind=self.kind)
        for reference, schema in needed:
            if schema.kind != self.kind:
                problem = f"reference {reference.name!r} names a schema of type {schema.kind}"
                raise InvalidSchema(problem, kind=self.kind)
            if reference.name in self.needed:
                raise InvalidSchema(f"two references have the name {reference.name!r}", kind=self.kind)
            self.needed[reference.name] = schema
        self.all_needed = dict[str, Schema]()
        """Those that the references need in turn, too; each before what needs it."""
        for name, schema in self.needed.items():
            for inner, other in (*schema.all_needed.items(), (name, schema)):
                if self.all_needed.setdefault(inner, other) != other:
                    problem = f"the name {inner!r} stands for two schemas among those that this one needs"
                    raise InvalidSchema(problem, kind=self.kind)
        if len(self.all_needed) > MAX_REFERENCES:
            what = f"{len(self.all_needed)} schemas, with those that the references need"
            raise SchemaTooLarge(what, MAX_REFERENCES, kind=self.kind)
        total = self.size_bytes + sum(schema.size_bytes for schema in self.all_needed.values())
        if total > MAX_TOTAL_BYTES:
            what = f"{total} bytes, with the schemas that it needs"
            raise SchemaTooLarge(what, MAX_TOTAL_BYTES, kind=self.kind)

    @property
    @abstractmethod
    def canonical(self) -> str:
        """The text as the registry stores and compares it: spaces and the order of an Avro type's attributes do not
        matter, names, order and documentation of fields do."""

    @property
    @abstractmethod
    def normalized(self) -> str:
        """``canonical``, with one order for what has none (``normalize=true``)."""

    @abstractmethod
    def check(self, indexes: Sequence[int] = ()) -> Check:
        """How payloads are checked. ``indexes``: the message of a Protobuf schema; the first one by default.

        Raises InvalidSchema if there is no such message, and if the schema is one that no payload is checked by."""

    @abstractmethod
    def batch_check(self, effort: Effort, indexes: Sequence[int] = ()) -> Check:
        """``check`` for bodies of one batch, whatever their schemas."""

    def fits_all(self, bodies: Sequence[bytes | memoryview], head: bytes) -> bool:
        """Whether many bodies begin with ``head``, and what follows fits. False may mean that this cannot be said at
        once: then ``check`` says it of each. Not for Protobuf."""
        check, start = self.batch_check(Effort()), len(head)
        return all(body[:start] == head and check(body[start:]) is None for body in bodies)

    @abstractmethod
    def incompatibilities_of(self, writer: Schema, me: str, other: str) -> list[tuple[str, str, str]]:
        """Why a reader with this schema does not understand what was written with ``writer``: type, path, sentence.
        ``me``, ``other``: what a sentence calls the two, "new" or "old"."""

    @cached_property
    def fingerprint(self) -> bytes:
        """Equal for the same schema: language, canonical text, references."""
        parts = (
            self.kind,
            self.canonical,
            *(f"{each.name}\n{each.subject}\n{each.version}" for each in self.references),
        )
        return hashlib.sha256("\0".join(parts).encode()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.fingerprint.hex()[:12]}>"


def size_in_bytes(text: str, kind: str) -> int:
    """Raises SchemaTooLarge, InvalidSchema."""
    if len(text) <= MAX_TEXT_BYTES:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidSchema("the text has half of a surrogate pair", kind=kind) from None
        if size <= MAX_TEXT_BYTES:
            return size
    raise SchemaTooLarge(f"a text of {len(text)} characters", MAX_TEXT_BYTES, kind=kind)


def needs_extra(kind: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f"schemas of type {kind} need the package {error.name}: pip install 'mqspark[schemas]'", key="schemas"
    )
