"""``schema=FromRegistry(url)`` of a read: columns of a topic's schema in a schema registry.

Each body is decoded by the schema that its prefix names, and its values become the columns of one version: Avro by its
schema resolution, Protobuf by numbers of fields, JSON by names. Must not know messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from mqspark.arrow.payload.bodyrows import BodyDecoder
from mqspark.arrow.payload.prefixedbodies import PrefixedBodies
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.tls import Tls
from mqspark.client.typed.registeredschemas import RegisteredSchemas
from mqspark.client.typed.registryclient import RegistryClient
from mqspark.client.typed.serializer import subject_of
from mqspark.errors import ConfigError, InvalidMessage, InvalidSchema
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import Schema
from mqspark.schemas.protobuf.protoschema import ProtobufSchema

S = TypeVar("S", bound=Schema)

MAX_IDS = 2_000
"""That the bodies of one read may name."""


class FromRegistry:
    """The schema of a topic in a schema registry. The version is chosen when it is first used, and stays.

    >>> mqspark.arrow.read("127.0.0.1:9876", "Orders", schema=FromRegistry("http://127.0.0.1:10914"))
    """

    def __init__(
        self,
        registry: str | Sequence[str] | RegistryClient,
        *,
        version: int | None = None,
        subject: str | None = None,
        message: str | None = None,
        credentials: Credentials | Literal[False] | None = None,
        tls: Tls | None = None,
    ) -> None:
        """``registry``: the URL of a broker's HTTP port or of a console, or several. ``version``: of the subject, None
        the latest one. ``subject``: None: ``TOPIC-value``. ``message``: full name of a Protobuf message, None the first
        of the file. ``credentials``: None: those of the environment. Raises ConfigError."""
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
            raise ConfigError(f"version: a whole number from 1 on, not {version!r:.40}", key="version")
        if not isinstance(registry, RegistryClient):
            registry = RegistryClient(registry, credentials=credentials, tls=tls)
        self._schemas = RegisteredSchemas(registry)
        self._version = version
        self._subject = subject
        self._message = message
        self._chosen = dict[str, Schema]()
        """The version of each subject that was asked for: one a topic."""
        self._lock = threading.Lock()

    def decoder(self, topics: Sequence[str]) -> BodyDecoder:
        """For bodies of a topic. Raises ConfigError unless one topic or a subject is named; InvalidSchema for a schema
        without columns; SchemaRefused, NoSchemaRegistry."""
        if self._subject is None and len(topics) != 1:
            raise ConfigError("schema: FromRegistry needs a subject unless one topic is read", key="schema")
        subject = self._subject or subject_of(topics[0])
        with self._lock:
            if subject not in self._chosen:
                self._chosen[subject] = self._schemas.of_subject(subject, self._version)[1]
            schema = self._chosen[subject]
        if isinstance(schema, AvroSchema):
            return self._avro(schema, subject)
        if isinstance(schema, JsonSchema):
            return self._json(schema, subject)
        return self._protobuf(schema, subject)

    def _avro(self, reader: AvroSchema, subject: str) -> BodyDecoder:
        from mqspark.arrow.payload.avrobodies import AvroBodies

        columns = AvroBodies(reader.root).schema

        def decoder_of(schema_id: int) -> BodyDecoder:
            return AvroBodies(self._written(schema_id, subject, reader).root, reader.root)

        return PrefixedBodies(columns, _remembered(decoder_of))

    def _json(self, reader: JsonSchema, subject: str) -> BodyDecoder:
        from mqspark.arrow.payload.jsonbodies import JsonBodies
        from mqspark.arrow.payload.jsonschemacolumns import columns_of_json

        plain = JsonBodies(columns_of_json(reader))

        def decoder_of(schema_id: int) -> BodyDecoder:
            self._check(schema_id, subject)
            return plain

        return PrefixedBodies(plain.schema, _remembered(decoder_of), plain)

    def _protobuf(self, reader: Schema, subject: str) -> BodyDecoder:
        from mqspark.arrow.payload.protobodies import ProtobufBodies, check_written

        if not isinstance(reader, ProtobufSchema):
            raise InvalidSchema("it is not Protobuf", kind=reader.kind)
        name = self._message or reader.message_name(())
        if name not in reader.types or not reader.types[name].is_message:
            raise ConfigError(f"message: the schema has no message {name[:200]!r}", key="message")
        descriptor = reader.pool.FindMessageTypeByName(name)

        def decoder_of(schema_id: int) -> BodyDecoder:
            writer = self._written(schema_id, subject, reader)
            if name in writer.types:
                check_written(descriptor, writer.pool.FindMessageTypeByName(name))
            return ProtobufBodies(descriptor, writer.message_name)

        return PrefixedBodies(ProtobufBodies(descriptor).schema, _remembered(decoder_of))

    def _written(self, schema_id: int, subject: str, reader: S) -> S:
        """Raises InvalidSchema for an id that no body of the subject may have."""
        self._check(schema_id, subject)
        try:
            found = self._schemas.by_id(schema_id)
        except InvalidMessage as error:
            raise InvalidSchema(str(error), kind=reader.kind) from None
        if not isinstance(found, type(reader)):
            raise InvalidSchema(f"it is a schema of type {found.kind}, not {reader.kind}", kind=reader.kind)
        return found

    def _check(self, schema_id: int, subject: str) -> None:
        try:
            self._schemas.check_is_of(schema_id, subject)
        except InvalidMessage as error:
            raise InvalidSchema(str(error).partition(": ")[2], kind=self._chosen[subject].kind) from None


def _remembered(make: Callable[[int], BodyDecoder]) -> Callable[[int], BodyDecoder]:
    """What is known of an id is kept for a read."""
    known: dict[int, BodyDecoder | InvalidSchema] = {}

    def decoder_of(schema_id: int) -> BodyDecoder:
        found = known.get(schema_id)
        if found is None:
            if len(known) >= MAX_IDS:
                raise InvalidSchema(f"bodies name more than {MAX_IDS} schemas", kind="any")
            try:
                found = make(schema_id)
            except InvalidSchema as error:
                found = error
            known[schema_id] = found
        if isinstance(found, InvalidSchema):
            raise found
        return found

    return decoder_of
