"""What is registered: schemas by id, subjects with their versions, compatibility levels, modes.

The records of the topic, applied in their order, make it; nothing else changes it. A version that is deleted keeps its
schema until it is deleted for good. Ids are given once: a schema has the same in all subjects.

Must not know where records are kept, and must not parse a schema.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mqspark.base.bounded import BoundedMap, Ledger, text_bytes
from mqspark.base.config import Bound
from mqspark.base.shares import NOBODY
from mqspark.broker.schemaregistry.schemarecords import (
    CONFIG,
    IDS,
    MODE,
    SCHEMA,
    IdsRecord,
    KeyedRecord,
    ModeRecord,
    RecordKey,
    RuleRecord,
    SchemaRecord,
)
from mqspark.schemas.parsedschema import Reference

VERSION_BYTES = 400
"""What a version weighs: its entry, its number in the list of its subject, its place in the list of its schema."""
_SUBJECT_BYTES = 100
_REFERENCE_BYTES = 250
"""A reference with its entry in the list of those who refer."""


@dataclass(frozen=True, slots=True)
class StoredSchema:
    id: int
    kind: str
    text: str
    references: tuple[Reference, ...]
    fingerprint: bytes

    @property
    def size_bytes(self) -> int:
        size = 200 + text_bytes(self.text, self.fingerprint)
        return size + sum(_REFERENCE_BYTES + text_bytes(each.name, each.subject) for each in self.references)


class Version(NamedTuple):
    subject: str
    number: int
    schema: StoredSchema
    deleted: bool

    @property
    def key(self) -> RecordKey:
        return RecordKey(SCHEMA, self.subject, self.number)

    def record(self, *, deleted: bool) -> KeyedRecord:
        schema = self.schema
        return version_record(self.subject, self.number, schema, deleted=deleted)


def version_record(subject: str, number: int, schema: StoredSchema, *, deleted: bool = False) -> KeyedRecord:
    content = SchemaRecord(
        schema.id, schema.kind, schema.text, schema.fingerprint, schema.references, deleted
    )
    return KeyedRecord(RecordKey(SCHEMA, subject, number), content)


class Subjects:
    def __init__(self, max_bytes: Bound) -> None:
        self.ledger = Ledger(
            "schemas",
            max_bytes,
            "StoredSchema.references",
            "Subjects._numbers",
            "Subjects._places",
            "Subjects._referrers",
        )
        self._schemas: BoundedMap[int, StoredSchema] = self.ledger.map(0, lambda schema: schema.size_bytes)
        self._ids: BoundedMap[bytes, int] = self.ledger.map(100)
        self._versions: BoundedMap[tuple[str, int], Version] = self.ledger.map(VERSION_BYTES)
        self._numbers: BoundedMap[str, list[int]] = self.ledger.map(_SUBJECT_BYTES)
        """The versions of a subject, deleted ones too, in ascending order."""
        self._places: dict[int, list[tuple[str, int]]] = {}
        """Id → the versions that have the schema."""
        self._referrers: dict[tuple[str, int], list[int]] = {}
        """Version → the ids of schemas that refer to it."""
        self._rules: BoundedMap[str, str] = self.ledger.map(50)
        self._modes: BoundedMap[str, str] = self.ledger.map(50)
        self.last_id = 0
        """The highest id that was ever given."""
        self.generation = 0
        """Another one after each change."""

    # --- what is there ---

    def names(self) -> Iterable[str]:
        """The names of all subjects, also of those whose versions are all deleted."""
        return self._numbers.keys()

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """In ascending order. ``deleted``: those that are deleted, too."""
        found = (self._versions[subject, number] for number in self._numbers.get(subject, ()))
        return [each for each in found if deleted or not each.deleted]

    def version(self, subject: str, number: int) -> Version | None:
        return self._versions.get((subject, number))

    def latest(self, subject: str, *, deleted: bool = False) -> Version | None:
        for number in reversed(self._numbers.get(subject, ())):
            version = self._versions[subject, number]
            if deleted or not version.deleted:
                return version
        return None

    def next_number(self, subject: str) -> int:
        return self._numbers.get(subject, [0])[-1] + 1

    def count(self, subject: str) -> int:
        return len(self._numbers.get(subject, ()))

    def schema(self, schema_id: int) -> StoredSchema | None:
        return self._schemas.get(schema_id)

    def like(self, fingerprint: bytes) -> StoredSchema | None:
        schema_id = self._ids.get(fingerprint)
        return None if schema_id is None else self._schemas[schema_id]

    def places(self, schema_id: int) -> Iterator[Version]:
        """The versions that have a schema."""
        for place in self._places.get(schema_id, ()):
            yield self._versions[place]

    def referrers(self, subject: str, number: int) -> list[int]:
        """The ids of schemas that refer to a version and that a version has which is not deleted."""
        found = self._referrers.get((subject, number), ())
        return sorted(each for each in found if any(not place.deleted for place in self.places(each)))

    def is_referred(self, subject: str, number: int) -> bool:
        return (subject, number) in self._referrers

    def rule(self, subject: str) -> str | None:
        """The level that was set for the subject; the empty name stands for all."""
        return self._rules.get(subject)

    def mode(self, subject: str) -> str | None:
        return self._modes.get(subject)

    def admit(self, record: KeyedRecord) -> None:
        """Raises TableFull if a record that adds something has no room."""
        size = VERSION_BYTES + _SUBJECT_BYTES + text_bytes(record.key.subject)
        content = record.content
        if isinstance(content, SchemaRecord):
            schema = _stored(content)
            size += 0 if schema.id in self._schemas else schema.size_bytes
        self.ledger.admit(size)

    # --- what changes it ---

    def apply(self, record: KeyedRecord, owner: str = NOBODY) -> None:
        """A record of the topic. What is stored already is not refused. ``owner``: the user to whom it belongs what the
        record adds."""
        self.generation += 1
        key, content = record
        match key.kind, content:
            case _, SchemaRecord():
                self._put(key, content, owner)
            case _, RuleRecord():
                self._rules.keep(key.subject, content.compatibility, owner)
            case _, ModeRecord():
                self._modes.keep(key.subject, content.mode, owner)
            case _, IdsRecord():
                self.last_id = max(self.last_id, content.last)
            case str(kind), None if kind == SCHEMA:
                self._remove((key.subject, key.version))
            case str(kind), None if kind == CONFIG:
                self._rules.pop(key.subject, None)
            case str(kind), None if kind == MODE:
                self._modes.pop(key.subject, None)

    def clear(self) -> None:
        """Before all records are applied again."""
        self.generation += 1
        for table in (self._schemas, self._ids, self._versions, self._numbers, self._rules, self._modes):
            table.clear()
        self._places.clear()
        self._referrers.clear()
        self.last_id = 0

    def removal(self, version: Version) -> list[KeyedRecord]:
        """The records that delete a version for good. The id of its schema is not given again."""
        records = [KeyedRecord(version.key, None)]
        if version.schema.id == self.last_id:
            records.insert(0, KeyedRecord(RecordKey(IDS), IdsRecord(self.last_id)))
        return records

    def _put(self, key: RecordKey, content: SchemaRecord, owner: str) -> None:
        place = key.subject, key.version
        old = self._versions.get(place)
        if old is not None and old.schema.id != content.id:
            self._remove(place)
            old = None
        schema = self._schemas.get(content.id)
        if schema is None:
            schema = _stored(content)
            self._schemas.keep(schema.id, schema, owner)
            self._ids.keep(schema.fingerprint, schema.id, owner)
            self._places[schema.id] = []
            for each in schema.references:
                self._referrers.setdefault((each.subject, each.version), []).append(schema.id)
        self._versions.keep(place, Version(*place, schema, content.deleted), owner)
        self.last_id = max(self.last_id, schema.id)
        if old is None:
            self._places[schema.id].append(place)
            if key.subject not in self._numbers:
                self._numbers.keep(key.subject, [])
            insort(self._numbers[key.subject], key.version)

    def _remove(self, place: tuple[str, int]) -> None:
        version = self._versions.pop(place, None)
        if version is None:
            return
        numbers = self._numbers[version.subject]
        numbers.remove(version.number)
        if not numbers:
            del self._numbers[version.subject]
        schema = version.schema
        places = self._places[schema.id]
        places.remove(place)
        if not places:
            del self._places[schema.id], self._schemas[schema.id]
            if self._ids.get(schema.fingerprint) == schema.id:
                del self._ids[schema.fingerprint]
            for each in schema.references:
                referred = each.subject, each.version
                self._referrers[referred].remove(schema.id)
                if not self._referrers[referred]:
                    del self._referrers[referred]


def _stored(content: SchemaRecord) -> StoredSchema:
    return StoredSchema(
        content.id, content.schema_type, content.schema, content.references, content.fingerprint
    )
