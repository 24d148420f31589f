"""Bodies of one subject of a schema registry: each is decoded by the schema that its prefix names, and its values
become the columns of one version. Avro by its schema resolution, Protobuf by numbers of fields, JSON by names.

Must not know messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from mqspark.arrow.payload.bodyrows import BodyDecoder
from mqspark.arrow.payload.prefixedbodies import PrefixedBodies
from mqspark.client.typed.registeredschemas import RegisteredSchemas
from mqspark.errors import InvalidMessage, InvalidSchema
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.avro.avrotypes import AvroType
from mqspark.schemas.parsedschema import AVRO, JSON, PROTOBUF, Schema
from mqspark.schemas.protobuf.protoschema import ProtobufSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

S = TypeVar("S", bound=Schema)

MAX_IDS = 2_000
"""That the bodies of one read may name."""


class RegistryBodies:
    """Makes decoders. They raise SchemaRefused and NoSchemaRegistry; a body whose id none of the subject has gets the
    reason instead of values."""

    def __init__(self, schemas: RegisteredSchemas, subject: str) -> None:
        self._schemas = schemas
        self._subject = subject

    def avro(self, reader: AvroType) -> BodyDecoder:
        """Raises ConfigError or InvalidSchema for a schema without columns."""
        from mqspark.arrow.payload.avrobodies import AvroBodies

        columns = AvroBodies(reader).schema

        def decoder_of(schema_id: int) -> BodyDecoder:
            return AvroBodies(self._written(schema_id, AvroSchema, AVRO).root, reader)

        return PrefixedBodies(columns, _remembered(decoder_of))

    def json(self, columns: pa.Schema) -> BodyDecoder:
        """A body names its fields, so the schema that it was written with does not matter; whose it is does."""
        from mqspark.arrow.payload.jsonbodies import JsonBodies

        plain = JsonBodies(columns)

        def decoder_of(schema_id: int) -> BodyDecoder:
            self._check(schema_id, JSON)
            return plain

        return PrefixedBodies(plain.schema, _remembered(decoder_of), plain)

    def protobuf(self, descriptor: Descriptor) -> BodyDecoder:
        from mqspark.arrow.payload.protobodies import ProtobufBodies, check_written

        def decoder_of(schema_id: int) -> BodyDecoder:
            writer = self._written(schema_id, ProtobufSchema, PROTOBUF)
            if descriptor.full_name in writer.types:
                check_written(descriptor, writer.pool.FindMessageTypeByName(descriptor.full_name))
            return ProtobufBodies(descriptor, writer.message_name)

        return PrefixedBodies(ProtobufBodies(descriptor).schema, _remembered(decoder_of))

    def _written(self, schema_id: int, kind: type[S], name: str) -> S:
        """Raises InvalidSchema for an id that no body of the subject may have."""
        self._check(schema_id, name)
        try:
            found = self._schemas.by_id(schema_id)
        except InvalidMessage as error:
            raise _of_id(error, name) from None
        if not isinstance(found, kind):
            raise InvalidSchema(f"it is a schema of type {found.kind}, not {name}", kind=name)
        return found

    def _check(self, schema_id: int, name: str) -> None:
        try:
            self._schemas.check_is_of(schema_id, self._subject)
        except InvalidMessage as error:
            raise _of_id(error, name) from None


def _of_id(error: InvalidMessage, kind: str) -> InvalidSchema:
    """Without the id, which readers say themselves."""
    return InvalidSchema(str(error).partition(": ")[2], kind=kind)


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
