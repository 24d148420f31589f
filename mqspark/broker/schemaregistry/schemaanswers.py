"""What the schema registry answers (Confluent's API), and the records of what is changed.

An operation is a generator: it yields what takes time (``Step``), to be computed away from the broker's thread, and
returns a RegistryOutcome. Operations that change something run one after the other, so that each sees what the one
before has made of the subjects.

Must not know records' places, sessions or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mqspark.broker.schemaregistry.schemaquestions import (
    LATEST,
    RegistryAnswer,
    RegistryQuestion,
    SchemaProblem,
    WantedSchema,
    invalid_schema,
)
from mqspark.broker.schemaregistry.schemarecords import (
    CONFIG,
    MODE,
    KeyedRecord,
    ModeRecord,
    RecordKey,
    RuleRecord,
)
from mqspark.broker.schemaregistry.subjects import StoredSchema, Subjects, Version, version_record
from mqspark.errors import InvalidSchema, TableFull
from mqspark.schemas.compatibility import (
    BACKWARD,
    NONE,
    RULES,
    TRANSITIVE,
    Incompatibility,
    incompatibilities,
)
from mqspark.schemas.parsedschema import (
    AVRO,
    KINDS,
    MAX_REFERENCES,
    MAX_SCHEMA_DEPTH,
    PROTOBUF,
    Reference,
    Schema,
)
from mqspark.schemas.parsing import parse
from mqspark.schemas.protobuf.protoschema import ProtobufSchema

SERIALIZED = "serialized"
FORMATS = ("", "default", SERIALIZED)
READWRITE, READONLY = "READWRITE", "READONLY"
MODES = (READWRITE, READONLY)
MAX_VERSIONS = 1_000
"""The versions of one subject: a transitive level compares a schema with all of them."""
MAX_COMPARED_MS = 20_000
"""How long one request may compare versions."""
_LISTED_AT_ONCE = 500
"""Entries of a list between two pauses."""
_LISTED_LENGTH = 4 << 20
"""Characters of all schemas in one answer."""

Step = Callable[[], Any] | None
"""A function of values alone; None: a pause, because others wait."""


class RegistryOutcome(NamedTuple):
    answer: RegistryAnswer
    records: Sequence[KeyedRecord] = ()


Operating = Generator[Step, Any, RegistryOutcome]


class Source(NamedTuple):
    """The text of a schema, with those that it needs."""

    kind: str
    text: str
    needed: tuple[tuple[Reference, Source], ...] = ()

    def parsed(self) -> Schema:
        """Raises InvalidSchema, ConfigError."""
        return self._parsed({})

    def texts(self) -> list[str]:
        """The texts of this one and of those that it needs, each once: what is needed twice at each level would be
        visited twice as often at each."""
        found: dict[int, Source] = {}
        left = [self]
        while left:
            source = left.pop()
            if id(source) not in found:
                found[id(source)] = source
                left += [each for _, each in source.needed]
        return [each.text for each in found.values()]

    def _parsed(self, known: dict[int, Schema]) -> Schema:
        """``known``: a source that several need is parsed once."""
        schema = known.get(id(self))
        if schema is None:
            needed = [(reference, source._parsed(known)) for reference, source in self.needed]
            schema = known[id(self)] = parse(self.kind, self.text, needed)
        return schema


def _shaped(source: Source, normalize: bool) -> Schema:
    schema = source.parsed()
    if normalize and schema.normalized != schema.canonical:
        schema = source._replace(text=schema.normalized).parsed()
    return schema


def _serialized(source: Source) -> str:
    schema = source.parsed()
    return schema.serialized if isinstance(schema, ProtobufSchema) else schema.text


def _compared(rule: str, new: Schema, old: Source) -> list[Incompatibility]:
    return incompatibilities(rule.removesuffix(TRANSITIVE), new, [old.parsed()])


class SchemaAnswers:
    """``monotonic_ms``: a clock."""

    def __init__(self, subjects: Subjects, monotonic_ms: Callable[[], int]) -> None:
        self._subjects = subjects
        self._monotonic_ms = monotonic_ms
        self._operations: dict[str, Callable[[RegistryQuestion], Operating]] = {
            "list_subjects": self._list_subjects,
            "find_schema": self._find_schema,
            "delete_subject": self._delete_subject,
            "list_versions": self._list_versions,
            "register": self._register,
            "get_version": self._get_version,
            "delete_version": self._delete_version,
            "get_version_text": self._get_version_text,
            "list_referrers": self._list_referrers,
            "list_schemas": self._list_schemas,
            "list_types": self._list_types,
            "get_schema": self._get_schema,
            "get_schema_text": self._get_schema_text,
            "list_id_subjects": self._list_id_subjects,
            "list_id_versions": self._list_id_versions,
            "get_rule": self._get_rule,
            "set_rule": self._set_rule,
            "remove_rule": self._remove_rule,
            "get_subject_rule": self._get_rule,
            "set_subject_rule": self._set_rule,
            "remove_subject_rule": self._remove_rule,
            "get_mode": self._get_mode,
            "set_mode": self._set_mode,
            "remove_mode": self._remove_mode,
            "get_subject_mode": self._get_mode,
            "set_subject_mode": self._set_mode,
            "remove_subject_mode": self._remove_mode,
            "check_all": self._check_all,
            "check_version": self._check_version,
            "list_contexts": self._list_contexts,
        }

    def begin(self, question: RegistryQuestion) -> Operating:
        """The operation raises SchemaProblem."""
        return self._operations[question.operation.name](question)

    # --- subjects and versions ---

    def _list_subjects(self, asked: RegistryQuestion) -> Operating:
        prefix = asked.prefix
        deleted, only = asked.is_on("deleted"), asked.is_on("deletedOnly")
        found: list[str] = []
        for name in (yield from self._shown(asked, prefix)):
            is_there = self._subjects.latest(name) is not None
            if (not is_there) if only else (is_there or deleted):
                found.append(name)
        return RegistryOutcome(RegistryAnswer(_page(found, asked)))

    def _shown(self, asked: RegistryQuestion, prefix: str) -> Generator[Step, Any, list[str]]:
        """The names with a prefix that the caller may read, in their order."""
        found = []
        for number, name in enumerate(list(self._subjects.names()), 1):
            if name.startswith(prefix) and asked.may_read(name):
                found.append(name)
            if number % _LISTED_AT_ONCE == 0:
                yield None
        return sorted(found)

    def _list_versions(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        deleted, only = asked.is_on("deleted"), asked.is_on("deletedOnly")
        found = self._subjects.versions(asked.subject, deleted=deleted or only)
        numbers = [each.number for each in found if each.deleted or not only]
        if not numbers:
            raise self._no_subject(asked.subject)
        return RegistryOutcome(RegistryAnswer(_page(numbers, asked)))

    def _get_version(self, asked: RegistryQuestion) -> Operating:
        version = self._version(asked)
        schema = yield from self._formatted(asked, version.schema)
        return RegistryOutcome(RegistryAnswer(_described(version._replace(schema=schema))))

    def _get_version_text(self, asked: RegistryQuestion) -> Operating:
        schema = yield from self._formatted(asked, self._version(asked).schema)
        return RegistryOutcome(RegistryAnswer(schema.text.encode()))

    def _list_referrers(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        version = self._version(asked)
        return RegistryOutcome(RegistryAnswer(self._subjects.referrers(version.subject, version.number)))

    def _find_schema(self, asked: RegistryQuestion) -> Operating:
        source = self._source(asked.schema)
        deleted = asked.is_on("deleted")
        schema = yield from self._shape(source, normalize=asked.is_on("normalize"))
        versions = self._subjects.versions(asked.subject, deleted=deleted)
        if not versions:
            raise self._no_subject(asked.subject)
        for version in reversed(versions):
            if version.schema.fingerprint == schema.fingerprint:
                shown = yield from self._formatted(asked, version.schema)
                return RegistryOutcome(RegistryAnswer(_described(version._replace(schema=shown))))
        raise SchemaProblem(404, 40403, "Schema not found")

    def _list_schemas(self, asked: RegistryQuestion) -> Operating:
        prefix, deleted = asked.prefix, asked.is_on("deleted")
        latest_only = asked.is_on("latestOnly")
        offset, limit = _bounds(asked)
        skipped = size = 0
        found: list[dict[str, Any]] = []
        for name in (yield from self._shown(asked, prefix)):
            yield None
            versions = self._subjects.versions(name, deleted=deleted)
            for version in versions[-1:] if latest_only else versions:
                if skipped < offset:
                    skipped += 1
                elif len(found) < limit:
                    found.append(_described(version))
                    size += len(version.schema.text)
                    if size > _LISTED_LENGTH:
                        raise SchemaProblem(
                            422, 422, "the schemas are too many for one answer: give offset and limit"
                        )
        return RegistryOutcome(RegistryAnswer(found))

    # --- schemas by id ---

    def _get_schema(self, asked: RegistryQuestion) -> Operating:
        schema = yield from self._formatted(asked, self._schema(asked))
        document = _told(schema)
        if asked.is_on("fetchMaxId"):
            document["maxId"] = self._subjects.last_id
        return RegistryOutcome(RegistryAnswer(document))

    def _get_schema_text(self, asked: RegistryQuestion) -> Operating:
        schema = yield from self._formatted(asked, self._schema(asked))
        return RegistryOutcome(RegistryAnswer(schema.text.encode()))

    def _list_id_subjects(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        found = {version.subject for version in self._places(asked)}
        return RegistryOutcome(RegistryAnswer(sorted(found)))

    def _list_id_versions(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        found = sorted((version.subject, version.number) for version in self._places(asked))
        return RegistryOutcome(
            RegistryAnswer([{"subject": subject, "version": number} for subject, number in found])
        )

    def _places(self, asked: RegistryQuestion) -> Iterable[Version]:
        wanted, deleted = asked.options.get("subject"), asked.is_on("deleted")
        for version in self._subjects.places(self._schema(asked).id):
            is_wanted = (deleted or not version.deleted) and wanted in (None, "", version.subject)
            if is_wanted and asked.may_read(version.subject):
                yield version

    def _schema(self, asked: RegistryQuestion) -> StoredSchema:
        """Raises SchemaProblem, also for a schema of which the caller may read no subject."""
        schema = self._subjects.schema(asked.id)
        if schema is None or not any(
            asked.may_read(each.subject) for each in self._subjects.places(schema.id)
        ):
            raise SchemaProblem(404, 40403, f"Schema {asked.id} not found")
        return schema

    def _list_types(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        return RegistryOutcome(RegistryAnswer(list(KINDS)))

    def _list_contexts(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        return RegistryOutcome(RegistryAnswer(["."]))

    # --- changes ---

    def _register(self, asked: RegistryQuestion) -> Operating:
        subject, wanted = asked.subject, asked.schema
        self._check_writable(subject)
        schema = yield from self._shape(self._source(wanted), normalize=asked.is_on("normalize"))
        earlier = self._subjects.versions(subject)
        for version in reversed(earlier):
            if version.schema.fingerprint == schema.fingerprint:
                return RegistryOutcome(RegistryAnswer(_described(version)))
        number = self._subjects.next_number(subject)
        if wanted.version not in (0, number):
            raise invalid_schema(f"the next version of {subject} is {number}, not {wanted.version}")
        if self._subjects.count(subject) >= MAX_VERSIONS:
            raise invalid_schema(
                f"{subject} has {MAX_VERSIONS} versions, which is the limit: delete old ones for good"
            )
        rule = self._rule_of(subject)
        reasons = yield from self._compare(rule, schema, earlier)
        if reasons:
            raise SchemaProblem(
                409,
                409,
                "Schema being registered is incompatible with an earlier schema for subject"
                f' "{subject}", details: [{"; ".join(reasons)}] ({rule})',
            )
        stored = self._subjects.like(schema.fingerprint) or StoredSchema(
            self._subjects.last_id + 1,
            schema.kind,
            schema.canonical,
            schema.references,
            schema.fingerprint,
        )
        record = version_record(subject, number, stored)
        self._admit(record)
        return RegistryOutcome(
            RegistryAnswer(_described(Version(subject, number, stored, deleted=False))), [record]
        )

    def _delete_subject(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        subject, for_good = asked.subject, asked.is_on("permanent")
        self._check_writable(subject)
        versions = self._subjects.versions(subject, deleted=True)
        if not versions:
            raise self._no_subject(subject)
        living = [each for each in versions if not each.deleted]
        if for_good and living:
            raise SchemaProblem(
                404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted"
            )
        if not for_good and not living:
            raise SchemaProblem(
                404, 40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
            )
        chosen = versions if for_good else living
        for version in chosen:
            self._check_unreferred(version)
        records = [record for version in chosen for record in self._deletion(version, for_good=for_good)]
        if for_good:
            for kind, value in ((CONFIG, self._subjects.rule(subject)), (MODE, self._subjects.mode(subject))):
                records += [KeyedRecord(RecordKey(kind, subject), None)] if value is not None else []
        return RegistryOutcome(RegistryAnswer([version.number for version in chosen]), records)

    def _delete_version(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        subject, for_good = asked.subject, asked.is_on("permanent")
        self._check_writable(subject)
        version = self._version(asked, deleted=True)
        if for_good and not version.deleted:
            raise SchemaProblem(
                404,
                40407,
                f"Subject '{subject}' Version {version.number} was not deleted first before being permanently deleted",
            )
        if not for_good and version.deleted:
            raise SchemaProblem(
                404,
                40406,
                f"Subject '{subject}' Version {version.number} was soft deleted. Set permanent=true to delete"
                " permanently",
            )
        self._check_unreferred(version)
        return RegistryOutcome(RegistryAnswer(version.number), self._deletion(version, for_good=for_good))

    def _deletion(self, version: Version, *, for_good: bool) -> list[KeyedRecord]:
        return self._subjects.removal(version) if for_good else [version.record(deleted=True)]

    def _check_unreferred(self, version: Version) -> None:
        if self._subjects.is_referred(version.subject, version.number):
            raise SchemaProblem(
                422,
                42206,
                f"One or more references exist to the schema {version.subject} version {version.number}",
            )

    # --- levels and modes ---

    def _get_rule(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        rule = self._subjects.rule(asked.subject)
        if rule is None and asked.subject and not asked.is_on("defaultToGlobal"):
            raise SchemaProblem(
                404, 40408, f"Subject '{asked.subject}' does not have subject-level compatibility configured"
            )
        return RegistryOutcome(RegistryAnswer({"compatibilityLevel": rule or self._rule_of("")}))

    def _set_rule(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        rule = asked.word("compatibility")
        if rule not in RULES:
            raise SchemaProblem(
                422,
                42203,
                f"Invalid compatibility level. Valid values are {', '.join(map(str.lower, RULES))}",
            )
        for name, value in asked.fields.items():
            if name != "compatibility" and value not in (None, False, "", {}):
                raise SchemaProblem(422, 42203, f"this registry keeps no {name[:40]}: leave it out")
        record = KeyedRecord(RecordKey(CONFIG, asked.subject), RuleRecord(rule))
        self._admit(record)
        return RegistryOutcome(RegistryAnswer({"compatibility": rule}), [record])

    def _remove_rule(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        rule = self._subjects.rule(asked.subject)
        if rule is None and asked.subject:
            raise SchemaProblem(
                404, 40408, f"Subject '{asked.subject}' does not have subject-level compatibility configured"
            )
        records = [] if rule is None else [KeyedRecord(RecordKey(CONFIG, asked.subject), None)]
        return RegistryOutcome(RegistryAnswer({"compatibilityLevel": rule or BACKWARD}), records)

    def _rule_of(self, subject: str) -> str:
        return self._subjects.rule(subject) or self._subjects.rule("") or BACKWARD

    def _get_mode(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        mode = self._subjects.mode(asked.subject)
        if mode is None and asked.subject and not asked.is_on("defaultToGlobal"):
            raise self._no_mode(asked.subject)
        return RegistryOutcome(RegistryAnswer({"mode": mode or self._mode_of("")}))

    def _set_mode(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        mode = asked.word("mode")
        if mode not in MODES:
            raise SchemaProblem(422, 42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
        record = KeyedRecord(RecordKey(MODE, asked.subject), ModeRecord(mode))
        self._admit(record)
        return RegistryOutcome(RegistryAnswer({"mode": mode}), [record])

    def _remove_mode(self, asked: RegistryQuestion) -> Operating:
        yield from ()
        mode = self._subjects.mode(asked.subject)
        if mode is None and asked.subject:
            raise self._no_mode(asked.subject)
        records = [] if mode is None else [KeyedRecord(RecordKey(MODE, asked.subject), None)]
        return RegistryOutcome(RegistryAnswer({"mode": mode or READWRITE}), records)

    def _mode_of(self, subject: str) -> str:
        return self._subjects.mode(subject) or self._subjects.mode("") or READWRITE

    def _check_writable(self, subject: str) -> None:
        if self._mode_of(subject) == READONLY:
            raise SchemaProblem(422, 42205, f"Subject {subject} is in read-only mode")

    @staticmethod
    def _no_mode(subject: str) -> SchemaProblem:
        return SchemaProblem(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")

    # --- compatibility ---

    def _check_all(self, asked: RegistryQuestion) -> Operating:
        return (
            yield from self._check(
                asked, self._subjects.versions(asked.subject), self._rule_of(asked.subject)
            )
        )

    def _check_version(self, asked: RegistryQuestion) -> Operating:
        earlier: list[Version] = []
        if asked.version != LATEST or self._subjects.latest(asked.subject) is not None:
            earlier = [self._version(asked)]
        rule = self._rule_of(asked.subject).removesuffix(TRANSITIVE)
        return (yield from self._check(asked, earlier, rule))

    def _check(self, asked: RegistryQuestion, earlier: Sequence[Version], rule: str) -> Operating:
        verbose = asked.is_on("verbose")
        source = self._source(asked.schema)
        schema = yield from self._shape(source, normalize=asked.is_on("normalize"))
        reasons = yield from self._compare(rule, schema, earlier)
        document: dict[str, Any] = {"is_compatible": not reasons}
        if verbose:
            document["messages"] = reasons
        return RegistryOutcome(RegistryAnswer(document))

    def _compare(
        self, rule: str, schema: Schema, earlier: Sequence[Version]
    ) -> Generator[Step, Any, list[str]]:
        """Why the schema may not follow the versions: what the newest that refuses says. Raises SchemaProblem."""
        if rule == NONE:
            return []
        end_ms = self._monotonic_ms() + MAX_COMPARED_MS
        for version in reversed(earlier if rule.endswith(TRANSITIVE) else earlier[-1:]):
            if self._monotonic_ms() > end_ms:
                raise SchemaProblem(
                    503,
                    50002,
                    f"the versions of {version.subject} could not be compared in {MAX_COMPARED_MS} ms",
                )
            old = self._source_of(version.schema, {}, ())
            reasons: list[Incompatibility] = yield partial(_compared, rule, schema, old)
            if reasons:
                return [f"{each} (version {version.number})" for each in reasons]
        return []

    def _shape(self, source: Source, *, normalize: bool) -> Generator[Step, Any, Schema]:
        """Raises SchemaProblem."""
        try:
            schema: Schema = yield partial(_shaped, source, normalize)
        except InvalidSchema as error:
            raise invalid_schema(str(error)) from None
        return schema

    def _source(self, wanted: WantedSchema) -> Source:
        """Raises SchemaProblem."""
        return Source(wanted.kind, wanted.text, self._needed(wanted.references, {}, ()))

    def source(self, schema: StoredSchema) -> Source:
        """Raises SchemaProblem."""
        return self._source_of(schema, {}, ())

    def _source_of(self, schema: StoredSchema, known: dict[int, Source], path: tuple[int, ...]) -> Source:
        """``known``: those found before, by id; ``path``: who needs it. Raises SchemaProblem."""
        source = known.get(schema.id)
        if source is None:
            if schema.id in path or len(path) > MAX_SCHEMA_DEPTH:
                raise invalid_schema(f"the references lead in a circle or more than {MAX_SCHEMA_DEPTH} deep")
            needed = self._needed(schema.references, known, (*path, schema.id))
            if len(known) > MAX_REFERENCES:
                raise invalid_schema(f"the schema needs more than {MAX_REFERENCES} others")
            source = known[schema.id] = Source(schema.kind, schema.text, needed)
        return source

    def _needed(
        self, references: Iterable[Reference], known: dict[int, Source], path: tuple[int, ...]
    ) -> tuple[tuple[Reference, Source], ...]:
        needed = []
        for each in references:
            version = self._subjects.version(each.subject, each.version)
            if version is None:
                raise invalid_schema(
                    f'No schema reference found for subject "{each.subject}" and version {each.version}'
                )
            needed.append((each, self._source_of(version.schema, known, path)))
        return tuple(needed)

    # --- shared ---

    def _formatted(self, asked: RegistryQuestion, schema: StoredSchema) -> Generator[Step, Any, StoredSchema]:
        """With the text that the caller wants: Protobuf also as a descriptor. Raises SchemaProblem."""
        wanted = asked.options.get("format", "")
        if wanted not in FORMATS:
            raise SchemaProblem(422, 422, f"format is none of {', '.join(filter(None, FORMATS))}")
        if wanted == SERIALIZED and schema.kind == PROTOBUF:
            text: str = yield partial(_serialized, self._source_of(schema, {}, ()))
            schema = replace(schema, text=text)
        return schema

    def _version(self, asked: RegistryQuestion, *, deleted: bool = False) -> Version:
        """The version of the path. Raises SchemaProblem."""
        wanted, subject = asked.version, asked.subject
        deleted = deleted or asked.is_on("deleted")
        if self._subjects.latest(subject, deleted=deleted) is None:
            raise self._no_subject(subject)
        found = (
            self._subjects.latest(subject) if wanted == LATEST else self._subjects.version(subject, wanted)
        )
        if found is None or (found.deleted and not deleted):
            raise SchemaProblem(404, 40402, f"Version {asked.version_text} not found.")
        return found

    def _admit(self, record: KeyedRecord) -> None:
        try:
            self._subjects.admit(record)
        except TableFull as error:
            raise no_room(error) from None

    @staticmethod
    def _no_subject(subject: str) -> SchemaProblem:
        return SchemaProblem(404, 40401, f"Subject '{subject}' not found.")


def no_room(error: TableFull) -> SchemaProblem:
    return SchemaProblem(507, 50004, str(error))


def _told(schema: StoredSchema) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": schema.text}
    if schema.kind != AVRO:
        document["schemaType"] = schema.kind
    if schema.references:
        document["references"] = [each._asdict() for each in schema.references]
    return document


def _described(version: Version) -> dict[str, Any]:
    place = {"subject": version.subject, "version": version.number, "id": version.schema.id}
    return {**place, **_told(version.schema)}


def _bounds(asked: RegistryQuestion) -> tuple[int, int]:
    """``offset`` and ``limit`` of a list; without a limit, or with one below 0, all."""
    limit = asked.whole("limit", LATEST)
    return max(0, asked.whole("offset", 0)), (1 << 31 if limit < 0 else limit)


def _page(found: list[Any], asked: RegistryQuestion) -> list[Any]:
    offset, limit = _bounds(asked)
    return found[offset : offset + limit]


def problem_answer(problem: SchemaProblem) -> RegistryAnswer:
    document: Mapping[str, Any] = {"error_code": problem.code, "message": problem.message}
    return RegistryAnswer(document, problem.status)
