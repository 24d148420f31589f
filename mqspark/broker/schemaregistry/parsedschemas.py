"""The registered schemas as checks of messages need them: parsed, and kept.

A text of up to ``SMALL_BYTES`` is parsed at its first message. A larger one is parsed elsewhere; until then senders are
told to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mqspark.base.bounded import Memo
from mqspark.broker.schemaregistry.schemaanswers import Source
from mqspark.broker.schemaregistry.schemaquestions import SchemaProblem
from mqspark.broker.schemaregistry.subjects import StoredSchema, Subjects
from mqspark.errors import ConfigError, InvalidSchema
from mqspark.protocol.codes import Reason, ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.schemas.parsedschema import Schema

SMALL_BYTES = 64 << 10
"""With the texts of the schemas that it needs: some milliseconds."""
MAX_PARSED_BYTES = 64 << 20
MAX_PARSING = 8
_OBJECTS_PER_BYTE = 30

_Compute = Callable[[Callable[[], Any], Callable[[Any, Exception | None], None]], None]


class ParsedSchemas:
    """``mqspark.broker.send.schemaguard.Schemas``."""

    def __init__(
        self,
        subjects: Subjects,
        source: Callable[[StoredSchema], Source],
        compute: _Compute,
        catch_up: Callable[[], bool],
    ) -> None:
        """``catch_up`` applies what is stored; False when there is more."""
        self._subjects = subjects
        self._source = source
        self._compute = compute
        self._catch_up = catch_up
        self._parsed: Memo[int, Schema] = Memo(
            "schemas.parsed",
            self._obtained,
            max_bytes=MAX_PARSED_BYTES,
            weigh=lambda _, schema: _OBJECTS_PER_BYTE * _size(schema),
            holds=("ParsedSchemas._parsed",),
        )
        self._parsing = dict[int, Schema | Exception | None]()
        """Ids of large ones; None until the result has come. At most ``MAX_PARSING``."""
        self.bounded = self._parsed

    @property
    def generation(self) -> int:
        return self._subjects.generation

    def of_subject(self, subject: str) -> Sequence[int]:
        """Raises Refusal until the records of the registry have been read."""
        if not self._catch_up():
            raise self._later("the records of the schema registry are being read")
        return [version.schema.id for version in self._subjects.versions(subject)]

    def by_id(self, schema_id: int) -> Schema | None:
        """Raises Refusal while it is being parsed, and when it cannot be."""
        if self._subjects.schema(schema_id) is None:
            return None
        return self._parsed[schema_id]

    def _obtained(self, schema_id: int) -> Schema:
        result = self._parsing.get(schema_id)
        if result is not None:
            del self._parsing[schema_id]
            if isinstance(result, Exception):
                raise self._cannot(schema_id, result)
            return result
        stored = self._subjects.schema(schema_id)
        if stored is None:
            raise self._later(f"schema {schema_id} was removed")
        try:
            source = self._source(stored)
            if source.size_bytes <= SMALL_BYTES:
                return source.parsed()
        except (SchemaProblem, InvalidSchema, ConfigError) as error:
            raise self._cannot(schema_id, error) from None
        if schema_id not in self._parsing:
            if len(self._parsing) >= MAX_PARSING:
                self._parsing = {number: found for number, found in self._parsing.items() if found is None}
            if len(self._parsing) < MAX_PARSING:
                self._parsing[schema_id] = None
                self._compute(source.parsed, partial(self._done, schema_id))
        raise self._later(f"schema {schema_id} is being parsed")

    def _done(self, schema_id: int, result: Any, error: Exception | None) -> None:
        if schema_id in self._parsing:
            self._parsing[schema_id] = result if error is None else error

    @staticmethod
    def _later(why: str) -> Refusal:
        return Refusal(ResponseCode.SYSTEM_BUSY, f"{why}; retry later", reason=Reason.NOT_NOW)

    @staticmethod
    def _cannot(schema_id: int, error: Exception) -> Refusal:
        return Refusal(ResponseCode.SYSTEM_ERROR, f"schema {schema_id} cannot be used: {error}")


def _size(schema: Schema) -> int:
    return schema.size_bytes + sum(each.size_bytes for each in schema.all_needed.values())
