"""Typed columns of a write (``payloadFormat=json``, ``avro``, ``protobuf``): the message keeps its own, others become
its body.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from mqspark.errors import ConfigError, InvalidSchema, NoSchemaRegistry, SchemaRefused
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import AVRO as AVRO_SCHEMA
from mqspark.schemas.parsedschema import JSON as JSON_SCHEMA
from mqspark.schemas.parsedschema import PROTOBUF as PROTOBUF_SCHEMA
from mqspark.schemas.parsedschema import Reference, Schema
from mqspark.schemas.parsing import parse
from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from mqspark.schemas.schemaprefix import encode_prefix
from pyspark_pymq.payloadoptions import AVRO, JSON, PROTOBUF, PayloadOptions
from pyspark_pymq.typed.arrowrows import arrow_schema_of
from pyspark_pymq.typed.typedcolumns import (
    ProtobufSource,
    avro_root,
    descriptor_of,
    given_protobuf,
    protobuf_source,
    registered_schema,
    registered_schemas,
    schema_text,
    subject_of,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KINDS = {AVRO: AVRO_SCHEMA, JSON: JSON_SCHEMA, PROTOBUF: PROTOBUF_SCHEMA}


@dataclass(frozen=True)
class TypedBodies:
    """Makes the bodies of a write in a worker. It is pickled."""

    format: str
    texts: tuple[tuple[str, str], ...]
    """Avro, JSON: the schemas that the schema needs, each before what needs it, and the schema: names and texts."""
    protobuf: ProtobufSource | None
    prefix: bytes
    body: pa.Schema
    """The columns of bodies."""
    message: dict[str, str]
    """Columns of the message: name in the row to name in the sink."""

    @classmethod
    def planned(
        cls, options: PayloadOptions, schema: StructType, columns: Container[str], topic: str | None
    ) -> tuple[TypedBodies, StructType]:
        """``columns``: those of the sink. Also returns the columns that the sink gets. Raises ConfigError."""
        from pyspark.sql.types import BinaryType, StructType

        message: dict[str, str] = {}
        body, left = StructType(), StructType()
        for field in schema.fields:
            name = field.name.removeprefix(options.message_prefix)
            has_prefix = field.name.startswith(options.message_prefix)
            if has_prefix and name in columns and name != "value":
                message[field.name] = name
                left.add(name, field.dataType)
            else:
                body.add(field)
        if not body.fields:
            raise ConfigError.of("payloadFormat", "no column is left for the body")
        arrow = arrow_schema_of(body.toNullable())
        if options.format == JSON:
            from mqspark.arrow.payload.jsonbodies import JsonBodies

            JsonBodies(arrow)  # what no reader could read is not written
        key = "schemaRegistry" if options.registry else "payloadSchema"
        try:
            texts, protobuf, prefix = _schema_of(options, arrow, topic)
        except InvalidSchema as error:
            raise ConfigError.of(key, f"{error.problem}") from None
        return cls(options.format, texts, protobuf, prefix, arrow, message), left.add("value", BinaryType())

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows with ``value`` and the message's columns. Raises InvalidMessage."""
        writing = self._writing()
        for batch in batches:
            # Times have the session's zone.
            arrays = [batch.column(each.name).cast(each.type) for each in self.body]
            values = writing.bodies(pa.RecordBatch.from_arrays(arrays, schema=self.body))
            made = {name: batch.column(given) for given, name in self.message.items()}
            yield pa.RecordBatch.from_pydict(made | {"value": pa.array(values, pa.binary())})

    def _writing(self) -> BodyWriting:
        from mqspark.arrow.payload.bodywriting import AvroWriting, JsonWriting

        if self.format == AVRO:
            return AvroWriting([text for _, text in self.texts], self.prefix)
        if self.protobuf is not None:
            from mqspark.arrow.payload.protowriting import ProtobufWriting

            return ProtobufWriting(descriptor_of(self.protobuf), self.body.names, self.prefix)
        schema: JsonSchema | None = None
        needed: list[tuple[Reference, JsonSchema]] = []
        for name, text in self.texts:
            schema = JsonSchema(text, needed)
            needed.append((Reference(name, name, 1), schema))
        return JsonWriting(schema, self.prefix)


class BodyWriting(Protocol):
    def bodies(self, rows: pa.RecordBatch) -> list[bytes]:
        """Raises InvalidMessage."""


def _schema_of(
    options: PayloadOptions, body: pa.Schema, topic: str | None
) -> tuple[tuple[tuple[str, str], ...], ProtobufSource | None, bytes]:
    """The schema of bodies as a worker needs it, and their prefix. Raises ConfigError, InvalidSchema."""
    if options.format == PROTOBUF:
        return (), *_protobuf(options, body, topic)
    if options.format == JSON and not (options.registry or options.schema or options.schema_file):
        return (), None, b""
    number, schema = _named(options, body, topic)
    if isinstance(schema, JsonSchema):
        from mqspark.arrow.payload.bodywriting import check_json_columns

        check_json_columns(schema, body)
    else:
        from mqspark.arrow.payload.bodywriting import check_columns

        check_columns(avro_root(schema), body)
    # A JSON Schema that was made of the columns has nothing more to check.
    is_theirs = options.format == AVRO or not options.register
    needed = [(name, each.text) for name, each in schema.all_needed.items()]
    texts = ((*needed, ("", schema.text))) if is_theirs else ()
    return texts, None, b"" if number is None else encode_prefix(number)


def _protobuf(options: PayloadOptions, body: pa.Schema, topic: str | None) -> tuple[ProtobufSource, bytes]:
    from mqspark.arrow.payload.protowriting import check_protobuf_columns, indexes_of

    if options.registry is None:
        source, prefix = given_protobuf(options), b""
    else:
        number, schema = _named(options, body, topic)
        source = protobuf_source(schema, options.message)
        if number is None or not isinstance(schema, ProtobufSchema):
            raise InvalidSchema("it is not Protobuf", kind=PROTOBUF_SCHEMA)
        prefix = encode_prefix(number, indexes_of(schema, source.message))
    check_protobuf_columns(descriptor_of(source), body)
    return source, prefix


def _named(options: PayloadOptions, body: pa.Schema, topic: str | None) -> tuple[int | None, Schema]:
    """The schema of the options or the registry, and its id there. Raises ConfigError, InvalidSchema."""
    kind = _KINDS[options.format]
    if options.registry is None:
        return None, parse(kind, schema_text(options))
    if not options.register:
        return registered_schema(options, topic, kind)
    subject = subject_of(options, topic)
    name = re.sub(r"\W", "_", f"row_{topic}", flags=re.ASCII)
    schema = parse(kind, _text_of(kind, body, name))
    try:
        return registered_schemas(options).registered(subject, kind, schema.text), schema
    except (SchemaRefused, NoSchemaRegistry) as error:
        raise ConfigError.of("registerSchema", f"{subject}: {error}") from None


def _text_of(kind: str, body: pa.Schema, name: str) -> str:
    """A schema of the columns. Raises InvalidSchema."""
    if kind == AVRO_SCHEMA:
        from mqspark.arrow.payload.bodywriting import avro_text_of

        return avro_text_of(body, name)
    if kind == JSON_SCHEMA:
        from mqspark.arrow.payload.jsonschemacolumns import json_schema_text_of

        return json_schema_text_of(body, name)
    from mqspark.arrow.payload.protowriting import proto_text_of

    return proto_text_of(body, name)
