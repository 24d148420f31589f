"""The registered schemas as checks of messages need them: parsed, and kept.

A text of up to ``SMALL_BYTES`` is parsed at its first message. A larger one is parsed elsewhere; until then senders are
told to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from mqspark.base.bounded import Memo
from mqspark.broker.schemaregistry.schemaanswers import Source
from mqspark.broker.schemaregistry.schemacopy import later
from mqspark.broker.schemaregistry.schemaquestions import SchemaProblem
from mqspark.broker.schemaregistry.subjects import StoredSchema, Subjects
from mqspark.errors import ConfigError, InvalidSchema
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.schemas.parsedschema import JSON, Schema

SMALL_BYTES = 4 << 10
"""With the texts of the schemas that it needs: some milliseconds."""
MAX_PARSED_BYTES = 128 << 20
MAX_PARSING = 8
_PARTS = 2
"""The largest that is kept is so large a part of all."""
_OBJECTS_PER_BYTE = 60
_LEARNED_BYTES = 112 << 10
"""What a JSON Schema learns of bodies (``jsonalike``)."""
_FAILURE_BYTES = 4 << 10
_PATTERN_BYTES = 8 << 10
"""A compiled regular expression takes so much."""

_Compute = Callable[[Callable[[], Any], Callable[[Any, Exception | None], None]], None]


class ParsedSchemas:
    """``mqspark.broker.send.schemaguard.Schemas``."""

    def __init__(
        self,
        subjects: Subjects,
        source: Callable[[StoredSchema], Source],
        compute: _Compute,
        catch_up: Callable[[], None],
        check_missing: Callable[[str, int], None],
    ) -> None:
        """``catch_up`` applies what is stored; it raises Refusal when there is more. ``check_missing(subject, id)``: as
        of ``SchemaCopy``."""
        self._subjects = subjects
        self._source = source
        self._compute = compute
        self._catch_up = catch_up
        self._check_missing = check_missing
        self._parsed: Memo[bytes, Schema | InvalidSchema | ConfigError] = Memo(
            "schemas.parsed",
            self._obtained,
            max_bytes=MAX_PARSED_BYTES,
            weigh=lambda _, found: _weight(found) if isinstance(found, Schema) else _FAILURE_BYTES,
            parts=_PARTS,
            holds=("ParsedSchemas._parsed",),
        )
        """By fingerprint: an id may become another schema's when the log is taken back."""
        self._parsing = dict[bytes, Schema | InvalidSchema | ConfigError | None]()
        """Fingerprints of large ones; None until the result has come. At most ``MAX_PARSING``."""
        self.bounded = self._parsed

    @property
    def generation(self) -> int:
        return self._subjects.generation

    def of_subject(self, subject: str, schema_id: int) -> Sequence[int]:
        """As ``Schemas.of_subject``."""
        self._catch_up()
        ids = [version.schema.id for version in self._subjects.versions(subject)]
        if not ids or (schema_id and schema_id not in ids):
            self._check_missing(subject, schema_id)
        return ids

    def by_id(self, schema_id: int) -> Schema | None:
        """Raises Refusal while it is being parsed, and when it cannot be."""
        stored = self._subjects.schema(schema_id)
        if stored is None:
            return None
        found: Schema | Exception
        try:
            found = self._parsed[stored.fingerprint]
        except SchemaProblem as error:
            found = error
        if not isinstance(found, Exception):  # an abstract class is ten times slower to ask for
            return found
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"schema {schema_id} cannot be used: {found}")

    def _obtained(self, fingerprint: bytes) -> Schema | InvalidSchema | ConfigError:
        """Raises Refusal, SchemaProblem."""
        result = self._parsing.get(fingerprint)
        if result is not None:
            del self._parsing[fingerprint]
            return result
        stored = self._subjects.like(fingerprint)
        if stored is None:
            raise later("the schema was removed")
        source = self._source(stored)
        weight = _weight_of_texts(source.texts())
        if weight > MAX_PARSED_BYTES // _PARTS:
            return InvalidSchema(
                f"it would take {weight >> 20} MiB, and what checks messages has {MAX_PARSED_BYTES // _PARTS >> 20}",
                kind=stored.kind,
            )
        if weight <= SMALL_BYTES * _OBJECTS_PER_BYTE:
            return _parsed(source)
        if fingerprint not in self._parsing:
            if len(self._parsing) >= MAX_PARSING:
                self._parsing = {each: found for each, found in self._parsing.items() if found is None}
            if len(self._parsing) < MAX_PARSING:
                self._parsing[fingerprint] = None
                self._compute(partial(_parsed, source), partial(self._done, fingerprint))
        raise later(f"schema {stored.id} is being parsed")

    def _done(self, fingerprint: bytes, result: Any, error: Exception | None) -> None:
        if fingerprint in self._parsing:
            self._parsing[fingerprint] = result if error is None else InvalidSchema(str(error), kind="any")


def _parsed(source: Source) -> Schema | InvalidSchema | ConfigError:
    try:
        return source.parsed()
    except (InvalidSchema, ConfigError) as error:
        return error


def _weight(schema: Schema) -> int:
    texts = _weight_of_texts([schema.text, *(each.text for each in schema.all_needed.values())])
    return texts + (_LEARNED_BYTES if schema.kind == JSON else 0)


def _weight_of_texts(texts: Iterable[str]) -> int:
    """The bytes of what is made of them: measured, the most of all languages."""
    return sum(_OBJECTS_PER_BYTE * len(text) + _PATTERN_BYTES * text.count('"pattern') for text in texts)
