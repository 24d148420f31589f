"""The records of the schema registry: messages of ``SCHEMAS_TOPIC``, of which compaction keeps the last of each key.

    SCHEMA/<version>/<subject>   one version: id, language, text, references, fingerprint, whether it is deleted
    CONFIG/<subject>             a compatibility level; without a subject that of all
    MODE/<subject>               READWRITE or READONLY; likewise
    IDS                          the highest id that was given, while no version has it any more

A record without a body takes back the one before. A subject has no slash.

Must not know what is registered.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from mqspark.errors import InvalidMessage
from mqspark.message import parse_number
from mqspark.schemas.parsedschema import Reference

SCHEMA, CONFIG, MODE, IDS = "SCHEMA", "CONFIG", "MODE", "IDS"


class SchemaRecord(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    id: int
    schema_type: str
    schema: str
    fingerprint: bytes
    references: tuple[Reference, ...] = ()
    deleted: bool = False


class RuleRecord(msgspec.Struct, frozen=True):
    compatibility: str


class ModeRecord(msgspec.Struct, frozen=True):
    mode: str


class IdsRecord(msgspec.Struct, frozen=True):
    last: int


Content = SchemaRecord | RuleRecord | ModeRecord | IdsRecord
_TYPES: dict[str, type[Content]] = {
    SCHEMA: SchemaRecord,
    CONFIG: RuleRecord,
    MODE: ModeRecord,
    IDS: IdsRecord,
}


class RecordKey(NamedTuple):
    kind: str
    subject: str = ""
    version: int = 0

    def encode(self) -> str:
        if self.kind == SCHEMA:
            return f"{SCHEMA}/{self.version}/{self.subject}"
        return IDS if self.kind == IDS else f"{self.kind}/{self.subject}"


class KeyedRecord(NamedTuple):
    """``content``: None takes back."""

    key: RecordKey
    content: Content | None

    @property
    def body(self) -> bytes:
        return b"" if self.content is None else msgspec.json.encode(self.content)


def decode_record_of(key: str, body: bytes | memoryview) -> KeyedRecord:
    """Raises InvalidMessage."""
    kind, _, rest = key.partition("/")
    if kind not in _TYPES:
        raise InvalidMessage(f"the key {key[:80]!r} is of no record of schemas", field="key")
    version = 0
    if kind == SCHEMA:
        number, _, rest = rest.partition("/")
        version = parse_number(number) or 0
        if version <= 0:
            raise InvalidMessage(f"the key {key[:80]!r} has no version", field="key")
    named = RecordKey(kind, rest, version)
    if not body:
        return KeyedRecord(named, None)
    try:
        return KeyedRecord(named, msgspec.json.decode(body, type=_TYPES[kind]))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidMessage(f"the record {key[:80]!r} cannot be read: {error}", field="body") from None
