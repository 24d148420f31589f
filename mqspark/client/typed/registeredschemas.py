"""The schemas of a registry, as one reader or writer needs them: by id, and by subject.

An id is one schema for ever, so what is known of it is kept; so are, for a while, the ids that are not known. Threads
may share it: each thing is asked for once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mqspark.client.typed.registryclient import RegistryClient
from mqspark.errors import InvalidMessage, InvalidSchema, NoSchemaRegistry, SchemaRefused
from mqspark.protocol.schemaoperations import DELETED
from mqspark.schemas.parsedschema import AVRO, KINDS, MAX_REFERENCES, MAX_SCHEMA_DEPTH, Reference, Schema
from mqspark.schemas.parsing import parse

MAX_REFUSED_S = 10.0
"""How long an id that is not known is not asked for again."""
_MAX_REFUSED = 1_000
_UNKNOWN = "it is not registered"


class RegisteredSchemas:
    def __init__(self, client: RegistryClient, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now_s = now_s
        self._refused = dict[tuple[int, str], tuple[float, str]]()
        """Ids that are not known, or not of a subject, until when, and why; at most ``_MAX_REFUSED``."""
        self._lock = threading.RLock()

    def by_id(self, schema_id: int) -> Schema:
        """Raises InvalidMessage if there is none; SchemaRefused, NoSchemaRegistry, ConfigError without the extra."""
        self._check_asked(schema_id)
        with self._lock:
            try:
                return self._schema(self._client.ask("get_schema", schema_id=schema_id))
            except SchemaRefused as error:
                if error.status != 404:
                    raise
                problem = _UNKNOWN
            except InvalidSchema as error:
                problem = error.problem
            raise self.refuse(schema_id, problem)

    def check_is_of(self, schema_id: int, subject: str) -> None:
        """Raises InvalidMessage if the schema is none of the subject, deleted ones included."""
        self._check_asked(schema_id, subject)
        with self._lock:
            try:
                found = self._client.ask("list_id_versions", schema_id=schema_id, options=DELETED)
            except SchemaRefused as error:
                if error.status != 404:
                    raise
                raise self.refuse(schema_id, _UNKNOWN, subject) from None
            if not isinstance(found, list) or all(_subject_in(each) != subject for each in found):
                raise self.refuse(schema_id, f"it is none of subject {subject}", subject)

    def refuse(self, schema_id: int, problem: str, subject: str = "") -> InvalidMessage:
        """What to raise for an id, now and for a while. ``subject``: of this one alone."""
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        text = f"schema {schema_id}: {problem}"
        self._refused[schema_id, subject] = self._now_s() + MAX_REFUSED_S, text
        return InvalidMessage(text, field="value")

    def _check_asked(self, schema_id: int, subject: str = "") -> None:
        """Raises InvalidMessage for an id that was refused a moment ago."""
        refused = self._refused.get((schema_id, subject))
        if refused is not None and self._now_s() < refused[0]:
            raise InvalidMessage(refused[1], field="value")

    def of_subject(self, subject: str, version: int | None = None) -> tuple[int, Schema]:
        """A version, None the latest one, and its id. Raises SchemaRefused if there is none, InvalidSchema."""
        with self._lock:
            found = self._client.ask("get_version", subject=subject, version=version or "latest")
            return _id_in(found), self._schema(found)

    def registered(
        self, subject: str, kind: str, text: str, references: Sequence[Reference] = (), *, new: bool = True
    ) -> int:
        """The id of a schema in a subject; ``new``: it becomes the next version if it is none yet. Raises SchemaRefused
        if it is not compatible, or without ``new`` not there."""
        document = _document(kind, text, references)
        operation = "register" if new else "find_schema"
        with self._lock:
            return _id_in(self._client.ask(operation, subject=subject, document=document))

    def version_of(self, subject: str, kind: str, text: str, references: Sequence[Reference] = ()) -> int:
        """The number that a schema has in a subject. Raises SchemaRefused if it has none."""
        document = _document(kind, text, references)
        with self._lock:
            found = self._client.ask("find_schema", subject=subject, document=document)
        return _number_in(found, "version")

    def _schema(self, found: Any) -> Schema:
        return self._parsed(found, 0, [0], {})

    def _parsed(
        self, found: Any, depth: int, asked: list[int], known: dict[tuple[str, int], Schema]
    ) -> Schema:
        """``asked``: how many schemas were asked for, for this one."""
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise NoSchemaRegistry("the answer has no schema: this is no schema registry")
        kind = found.get("schemaType") or AVRO
        if kind not in KINDS:
            raise InvalidSchema(f"its type is none of {', '.join(KINDS)}", kind=str(kind)[:80])
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidSchema(f"references are more than {MAX_SCHEMA_DEPTH} deep", kind=kind)
        needed = []
        for each in found.get("references") or ():
            try:
                reference = Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
            except (LookupError, TypeError, ValueError):
                raise InvalidSchema("a reference has no name, subject or version", kind=kind) from None
            place = reference.subject, reference.version
            if place not in known:
                asked[0] += 1
                if asked[0] > MAX_REFERENCES:
                    raise InvalidSchema(f"it needs more than {MAX_REFERENCES} schemas", kind=kind)
                inner = self._client.ask("get_version", subject=place[0], version=place[1], options=DELETED)
                known[place] = self._parsed(inner, depth + 1, asked, known)
            needed.append((reference, known[place]))
        return parse(kind, found["schema"], needed)


def _document(kind: str, text: str, references: Sequence[Reference]) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": text}
    if kind != AVRO:
        document["schemaType"] = kind
    if references:
        document["references"] = [each._asdict() for each in references]
    return document


def _subject_in(found: Any) -> object:
    return found.get("subject") if isinstance(found, dict) else None


def _id_in(found: Any) -> int:
    return _number_in(found, "id")


def _number_in(found: Any, name: str) -> int:
    number = found.get(name) if isinstance(found, dict) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise NoSchemaRegistry(f"the answer has no {name}: this is no schema registry")
    return number
