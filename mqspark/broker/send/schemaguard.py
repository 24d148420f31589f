"""Whether what is sent to a topic fits the topic's schemas, before it is stored (``schemaValidation`` of the topic).

The subject of a topic is ``TOPIC-value``. A body begins with the prefix of a registry's serializer: then the schema
with its id is one of the subject, and the rest fits it. A body without a prefix fits the latest schema of the
subject if that is a JSON Schema; Avro and Protobuf cannot be told from a prefix.

Must not parse a schema: ``Schemas`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqspark.base.logs import sparing
from mqspark.broker.stats.stats import Stats
from mqspark.broker.tables.attributes import VALIDATION_REJECT
from mqspark.broker.tables.topics import Topic
from mqspark.errors import InvalidMessage, InvalidSchema
from mqspark.message import COMPRESSED
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.record.batchitems import split_batch
from mqspark.record.compression import decompress
from mqspark.schemas.parsedschema import JSON, PROTOBUF, TOO_MUCH_TOGETHER, Check, Effort, Flaw, Schema
from mqspark.schemas.schemaprefix import PREFIX_BYTES, Prefix, decode_prefix
from mqspark.store.config import StoreConfig

_log = sparing(__name__)

_MAX_KNOWN = 1_000
_SHOWN = 300
_MAX_INFLATED = 8 << 20
"""Bytes of the compressed bodies that are looked at together."""


class Schemas(Protocol):
    """What is registered, as one broker knows it."""

    @property
    def generation(self) -> int:
        """Another one after each change."""
        ...

    def by_id(self, schema_id: int) -> Schema | None:
        """Raises Refusal while it is being parsed, and when it cannot be."""
        ...

    def of_subject(self, subject: str, schema_id: int) -> Sequence[int]:
        """The ids of its versions that are not deleted, the oldest first. Raises Refusal until they are known, and
        while it is not certain that ``schema_id`` is not among them; 0: that there is none at all."""
        ...


def subject_of(topic: str) -> str:
    return f"{topic}-value"


class _Checks:
    """Those of bodies that are looked at together: these may take as long as one."""

    def __init__(self, count: int) -> None:
        self._effort = Effort() if count > 1 else None
        self._last: tuple[Schema, tuple[int, ...], Check] | None = None

    @property
    def are_spent(self) -> bool:
        return self._effort is not None and self._effort.left <= 0

    def note_inflated(self, size: int) -> None:
        if self._effort is not None:
            self._effort.left -= size / _MAX_INFLATED

    def of(self, schema: Schema, indexes: tuple[int, ...]) -> Check:
        if self._effort is None:
            return schema.check(indexes)
        last = self._last
        if last is None or last[0] is not schema or last[1] != indexes:
            last = self._last = schema, indexes, schema.batch_check(self._effort, indexes)
        return last[2]


class SchemaGuard:
    def __init__(self, stats: Stats, config: StoreConfig) -> None:
        self.schemas: Schemas | None = None
        """None on a broker that neither keeps a registry nor belongs to a cluster that may."""
        self._stats = stats
        self._config = config
        self._generation = -1
        self._known = dict[tuple[str, bytes], int]()
        """Topic and the first bytes of a body → the id of the schema that these name; at most ``_MAX_KNOWN``. The
        schemas are only where their bytes are counted."""

    def check(self, topic: Topic, sys_flag: int, body: bytes | memoryview) -> None:
        """Checks one message. Raises Refusal."""
        found = self._found(topic, [body], sys_flag)
        if found is not None:
            self._answer(topic, str(found[1]), 1)

    def first_unfit(self, topic: Topic, sys_flag: int, bodies: Sequence[bytes | memoryview]) -> int | None:
        """Place of the first message with this flag that ``check`` has to look at; None: all fit."""
        schemas, at = self._current(), 0
        if schemas is None:
            return 0
        try:
            if not sys_flag & COMPRESSED and self._fit_together(schemas, topic.name, bodies):
                return None
            checks = _Checks(len(bodies))
            for at, body in enumerate(bodies):
                if self._flaw(schemas, topic.name, body, sys_flag, checks) is not None:
                    return at
        except Refusal:
            return at
        return None

    def _current(self) -> Schemas | None:
        schemas = self.schemas
        if schemas is not None and schemas.generation != self._generation:
            self._known.clear()
            self._generation = schemas.generation
        return schemas

    def check_batch(self, topic: Topic, sys_flag: int, body: bytes | memoryview) -> None:
        """Checks the batch in one half message. Raises Refusal."""
        try:
            bodies = [each for _, each, _ in split_batch(body)]
        except InvalidMessage as error:
            self._answer(topic, str(error), 1)
        else:
            self.check_members(topic, sys_flag, bodies)

    def check_members(self, topic: Topic, sys_flag: int, bodies: Sequence[bytes]) -> None:
        """Checks a batch whose members have this flag: one that does not fit refuses all. Raises Refusal."""
        found = self._found(topic, bodies, sys_flag)
        if found is not None:
            index, flaw, count = found
            self._answer(topic, f"message {index} of the batch: {flaw}", count)

    def _answer(self, topic: Topic, reason: str, count: int) -> None:
        self._stats.unfit(topic.name, count)
        reason = reason if len(reason) <= _SHOWN else f"{reason[:_SHOWN]}..."
        if topic.validation == VALIDATION_REJECT:
            remark = f"the message does not fit the schemas of topic {topic.name}: {reason}"
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, remark)
        _log.warning("a message does not fit the schemas of topic %s: %s", topic.name, reason)

    def _found(
        self, topic: Topic, bodies: Sequence[bytes | memoryview], sys_flag: int
    ) -> tuple[int, Flaw, int] | None:
        """As ``_flaws``. A warning stores also what cannot be checked."""
        try:
            return self._flaws(topic.name, bodies, sys_flag)
        except Refusal as refusal:
            if topic.validation == VALIDATION_REJECT:
                raise
            _log.warning("messages of topic %s are stored unchecked: %s", topic.name, refusal.remark)
            return None

    def _flaws(
        self, topic: str, bodies: Sequence[bytes | memoryview], sys_flag: int
    ) -> tuple[int, Flaw, int] | None:
        """Place of the first body that does not fit, why, and how many do not. Raises Refusal."""
        schemas = self._current()
        if schemas is None:
            reason = "this broker keeps no schema registry (schemaRegistryEnable) and has no name server to find one"
            return 0, Flaw("", reason), len(bodies)
        if not sys_flag & COMPRESSED and self._fit_together(schemas, topic, bodies):
            return None
        first: tuple[int, Flaw] | None = None
        count = 0
        checks = _Checks(len(bodies))
        for index, body in enumerate(bodies):
            flaw = self._flaw(schemas, topic, body, sys_flag, checks)
            if flaw is not None:
                count += 1
                first = first or (index, flaw)
        return None if first is None else (*first, count)

    def _fit_together(self, schemas: Schemas, topic: str, bodies: Sequence[bytes | memoryview]) -> bool:
        """Whether all are of one schema, and fit it. False may mean that they have to be looked at one by one."""
        if len(bodies) < 2:
            return False
        head = bytes(bodies[0][:PREFIX_BYTES])
        prefix = decode_prefix(head)
        found = self._schema(schemas, topic, head, prefix)
        if isinstance(found, Flaw) or found.kind == PROTOBUF:
            return False
        return found.fits_all(bodies, b"" if prefix is None else head)

    def _flaw(
        self, schemas: Schemas, topic: str, body: bytes | memoryview, sys_flag: int, checks: _Checks
    ) -> Flaw | None:
        if checks.are_spent:
            return Flaw("", TOO_MUCH_TOGETHER)
        try:
            if sys_flag & COMPRESSED:
                body = self._inflated(body, sys_flag, checks)
            head = bytes(body[:PREFIX_BYTES])
            found = self._schema(schemas, topic, head, decode_prefix(head))
            if isinstance(found, Flaw):
                return found
            prefix = decode_prefix(body, indexed=found.kind == PROTOBUF)
            if prefix is None:
                return checks.of(found, ())(body)
            return checks.of(found, prefix.indexes)(body[prefix.payload_at :])
        except (InvalidMessage, InvalidSchema, ValueError) as error:
            return Flaw("", str(error))

    def _inflated(self, body: bytes | memoryview, sys_flag: int, checks: _Checks) -> bytes:
        """Raises InvalidMessage."""
        size = most = self._config.max_message_size
        try:
            inflated = decompress(body, sys_flag >> 8 & 7, most)
            size = len(inflated)
        finally:
            checks.note_inflated(size)
        return inflated

    def _schema(self, schemas: Schemas, topic: str, head: bytes, prefix: Prefix | None) -> Schema | Flaw:
        """The schema that a body with these first bytes, of this prefix, must fit."""
        key = topic, head if prefix is not None else b""
        known = self._known.get(key)
        if known is not None:
            schema = schemas.by_id(known)
            if schema is not None:
                return schema
        found = self._named(schemas, topic, 0 if prefix is None else prefix.schema_id)
        if isinstance(found, Flaw):
            return found
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = found[0]
        return found[1]

    def _named(self, schemas: Schemas, topic: str, schema_id: int) -> tuple[int, Schema] | Flaw:
        """``schema_id``: 0 for a body without a prefix."""
        subject = subject_of(topic)
        ids = schemas.of_subject(subject, schema_id)
        if not ids:
            return Flaw("", f"subject {subject} has no schema")
        if schema_id and schema_id not in ids:
            return Flaw("", f"schema {schema_id} is none of subject {subject}")
        found = schemas.by_id(schema_id or ids[-1])
        if found is None:
            return Flaw("", f"schema {schema_id or ids[-1]} is not registered")
        if not schema_id and found.kind != JSON:
            return Flaw("", "the body has no id of a schema in front")
        return schema_id or ids[-1], found
