"""Typed columns: ``payloadFormat=json``, ``avro`` or ``protobuf``. A message is a row: columns of the message, columns
of its body, and why the body has none.

On the driver ``columns_of_source`` says which columns a read has, and ``TypedRows`` what a worker needs to make them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from mqspark.arrow.messagecolumns import COLUMNS, PLACE
from mqspark.arrow.payload.bodyrows import BodyDecoder, slices
from mqspark.base.textfile import text_of
from mqspark.errors import ConfigError, InvalidMessage, InvalidSchema, NoSchemaRegistry, SchemaRefused
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.avro.avrotypes import AvroType
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import AVRO as AVRO_SCHEMA
from mqspark.schemas.parsedschema import JSON as JSON_SCHEMA
from mqspark.schemas.parsedschema import PROTOBUF as PROTOBUF_SCHEMA
from mqspark.schemas.parsedschema import Schema
from mqspark.schemas.parsing import parse
from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from pyspark_pymq.payloadoptions import AVRO, DROPMALFORMED, FAILFAST, JSON, PERMISSIVE, PayloadOptions
from pyspark_pymq.schema import checked_column, spark_schema
from pyspark_pymq.typed.arrowrows import arrow_schema_of, spark_schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from mqspark.client.remoting.credentials import Credentials
    from mqspark.client.typed.registeredschemas import RegisteredSchemas

_MAX_FILE_BYTES = 16 << 20


def columns_of_source(
    options: PayloadOptions, columns: tuple[str, ...], topic: str | None
) -> StructType | str:
    """The columns of a read without ``.schema(...)``: as DDL where the user's is DDL, which only Spark's JVM reads."""
    prefix = options.message_prefix
    source = _source(options, topic)
    if source is None:
        text = _ddl(options)
        message = [f"`{prefix}{name}` {_ddl_type(COLUMNS[name])}" for name in columns]
        reason = [f"`{options.reason_column}` string"] if options.reason_column else []
        return ", ".join([*message, text, *reason])
    from pyspark.sql.types import StringType, StructType

    found = StructType()
    for field, name in zip(spark_schema(COLUMNS, columns).fields, columns, strict=True):
        found.add(prefix + name, field.dataType)
    for field in spark_schema_of(_columns(options, source)).fields:
        found.add(field)
    return found.add(options.reason_column, StringType()) if options.reason_column else found


def _ddl_type(kind: str) -> str:
    return "timestamp_ltz" if kind == "timestamp" else kind  # timestamp is what the session's settings say


def _ddl(options: PayloadOptions) -> str:
    text = schema_text(options).strip().rstrip(",")
    if not text:
        raise ConfigError.of(
            "payloadSchema",
            "required with payloadFormat=json, as DDL like 'id bigint, price double' or as a JSON "
            "Schema; or give schemaRegistry, or the columns by .schema(...)",
        )
    return text


@dataclass(frozen=True)
class ProtobufSource:
    descriptors: bytes
    """A FileDescriptorSet."""
    message: str
    """Full name."""


@dataclass(frozen=True)
class JsonSource:
    columns: pa.Schema
    """The columns of a JSON Schema."""


Source = AvroType | ProtobufSource | JsonSource | None
"""Where columns come from, as a worker gets it; None: JSON that has no other schema than Spark's."""


def _source(options: PayloadOptions, topic: str | None) -> Source:
    """Raises ConfigError."""
    try:
        if options.format == JSON:
            return _json_source(options, topic)
        if options.format == AVRO:
            return avro_root(_schema(options, topic, AVRO_SCHEMA))
        if options.registry is None:
            return given_protobuf(options)
        return protobuf_source(_schema(options, topic, PROTOBUF_SCHEMA), options.message)
    except InvalidSchema as error:
        raise refused(error, options) from None


def _json_source(options: PayloadOptions, topic: str | None) -> JsonSource | None:
    """Raises ConfigError, InvalidSchema."""
    if options.registry is None and not schema_text(options).lstrip().startswith("{"):
        return None  # DDL, or no text
    return JsonSource(json_columns(_schema(options, topic, JSON_SCHEMA)))


def _schema(options: PayloadOptions, topic: str | None, kind: str) -> Schema:
    """Raises ConfigError, InvalidSchema."""
    if options.registry is None:
        return parse(kind, schema_text(options))
    return registered_schema(options, topic, kind)[1]


def registered_schemas(options: PayloadOptions) -> RegisteredSchemas:
    """Those of ``schemaRegistry``. Raises ConfigError."""
    from mqspark.client.typed.registeredschemas import RegisteredSchemas
    from mqspark.client.typed.registryclient import RegistryClient

    keys: Credentials | Literal[False] | None = False
    if options.registry_keys is not None:
        keys = options.registry_keys.credentials()
    return RegisteredSchemas(RegistryClient(options.registry or "", credentials=keys))


def registered_schema(options: PayloadOptions, topic: str | None, kind: str) -> tuple[int, Schema]:
    """The version that the options name, and its id. Raises ConfigError."""
    subject = subject_of(options, topic)
    try:
        number, schema = registered_schemas(options).of_subject(subject, options.version)
        if schema.kind != kind:
            raise InvalidSchema(f"it is a schema of type {schema.kind}, not {kind}", kind=kind)
    except (InvalidSchema, SchemaRefused, NoSchemaRegistry) as error:
        text = error.problem if isinstance(error, InvalidSchema) else str(error)
        raise ConfigError.of("schemaRegistry", f"{subject}: {text}") from None
    return number, schema


def avro_root(schema: Schema) -> AvroType:
    """Raises InvalidSchema."""
    if not isinstance(schema, AvroSchema):
        raise InvalidSchema("it is not Avro", kind=AVRO_SCHEMA)
    return schema.root


def json_columns(schema: Schema) -> pa.Schema:
    """Raises InvalidSchema."""
    from mqspark.arrow.payload.jsonschemacolumns import columns_of_json

    if not isinstance(schema, JsonSchema):
        raise InvalidSchema("it is no JSON Schema", kind=JSON_SCHEMA)
    return columns_of_json(schema)


def given_protobuf(options: PayloadOptions) -> ProtobufSource:
    """The schema of the option or the file. Raises ConfigError, InvalidSchema."""
    if options.schema is None and not str(options.schema_file).endswith(".proto"):
        if options.message is None:
            raise ConfigError.of("payloadMessage", "required with a set of descriptors")
        return ProtobufSource(_file(options), options.message)
    return protobuf_source(parse(PROTOBUF_SCHEMA, schema_text(options)), options.message)


def protobuf_source(schema: Schema, message: str | None) -> ProtobufSource:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    if not isinstance(schema, ProtobufSchema):
        raise InvalidSchema("it is not Protobuf", kind=PROTOBUF_SCHEMA)
    return ProtobufSource(
        FileDescriptorSet(file=schema.files).SerializeToString(), message or schema.message_name(())
    )


def schema_text(options: PayloadOptions) -> str:
    """The text of the option or the file. Raises ConfigError."""
    if options.schema_file is None:
        return options.schema or ""
    return text_of(
        _file(options), f"payloadSchemaFile: {options.schema_file}", _MAX_FILE_BYTES, "payloadSchemaFile"
    )


def _file(options: PayloadOptions) -> bytes:
    try:
        with open(str(options.schema_file), "rb") as file:
            found = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError.of("payloadSchemaFile", f"{error}") from None
    if len(found) > _MAX_FILE_BYTES:
        raise ConfigError.of("payloadSchemaFile", f"more than {_MAX_FILE_BYTES} bytes")
    return found


def refused(error: InvalidSchema, options: PayloadOptions) -> ConfigError:
    key = "schemaRegistry" if options.registry else "payloadSchema"
    return ConfigError.of(key, f"{error}")


def subject_of(options: PayloadOptions, topic: str | None) -> str:
    """Confluent's name of a topic's subject, unless the option names one. Raises ConfigError."""
    if options.subject is not None:
        return options.subject
    if topic is None:
        raise ConfigError.of("schemaSubject", "required unless one topic is read")
    return f"{topic}-value"


def _columns(options: PayloadOptions, source: Source) -> pa.Schema:
    """All that bodies have. Raises ConfigError."""
    if isinstance(source, JsonSource):
        return source.columns
    return _decoder(options, source, pa.schema([])).schema


def _decoder(options: PayloadOptions, source: Source, schema: pa.Schema, subject: str = "") -> BodyDecoder:
    """Raises ConfigError. ``schema``: the columns that JSON is read for."""
    try:
        if options.registry is not None:
            return _registry_decoder(options, source, schema, subject)
        if isinstance(source, AvroType):
            from mqspark.arrow.payload.avrobodies import AvroBodies

            return AvroBodies(source)
        if isinstance(source, ProtobufSource):
            from mqspark.arrow.payload.protobodies import ProtobufBodies

            return ProtobufBodies(descriptor_of(source))
        from mqspark.arrow.payload.jsonbodies import JsonBodies

        return JsonBodies(schema)
    except InvalidSchema as error:
        raise refused(error, options) from None


def _registry_decoder(
    options: PayloadOptions, source: Source, schema: pa.Schema, subject: str
) -> BodyDecoder:
    from mqspark.arrow.reading.registrybodies import RegistryBodies

    bodies = RegistryBodies(registered_schemas(options), subject)
    if isinstance(source, AvroType):
        return bodies.avro(source)
    if isinstance(source, ProtobufSource):
        return bodies.protobuf(descriptor_of(source))
    return bodies.json(schema)


def descriptor_of(source: ProtobufSource) -> Any:
    """Raises ConfigError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(source.descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(source.message)
    except (DecodeError, TypeError) as error:
        raise ConfigError.of(
            "payloadSchemaFile", f"no set of descriptors with all imports ({error})"
        ) from None
    except KeyError:
        raise ConfigError.of("payloadMessage", f"the schema has no message {source.message!r}") from None


class TaskLetters(Protocol):
    """The dead letters of a task."""

    def add(self, batch: pa.RecordBatch, reasons: pa.StringArray) -> None:
        """The messages of a batch that have a reason."""

    def send(self) -> None:
        """What has not been sent."""


class LettersOfBodies(Protocol):
    """What makes dead letters of bad bodies. It is pickled."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of messages."""

    def letters(self) -> TaskLetters: ...


@dataclass(frozen=True)
class TypedRows:
    """Makes the rows of a read in a worker. It is pickled."""

    options: PayloadOptions
    source: Source
    subject: str
    schema: pa.Schema
    """All columns, as Spark expects them."""
    message: dict[str, str]
    """Columns of the message: name in the result to name in the source."""
    dead: LettersOfBodies | None = None
    """mode=DEADLETTER."""

    @classmethod
    def planned(
        cls,
        options: PayloadOptions,
        columns: tuple[str, ...],
        schema: StructType,
        topic: str | None,
        dead: LettersOfBodies | None = None,
    ) -> TypedRows:
        """``columns``: those of the message; ``schema``: what Spark expects. Raises ConfigError."""
        message: dict[str, str] = {}
        ours = {options.message_prefix + name: name for name in columns}
        seen: set[str] = set()
        for field in schema.fields:
            if field.name.lower() in seen:
                raise ConfigError.of(
                    "payloadSchema",
                    f"a column {field.name!r} is there twice, of the message and of its body perhaps; "
                    "give messagePrefix, or leave it out by columns",
                )
            seen.add(field.name.lower())
            if field.name in ours:
                message[field.name] = ours[field.name]
                checked_column(field, COLUMNS[ours[field.name]])
            else:
                checked_column(field, "string" if field.name == options.reason_column else None)
        arrow = arrow_schema_of(schema)
        source = _source(options, topic)
        subject = subject_of(options, topic) if options.registry else ""
        made = cls(options, source, subject, arrow, message, dead)
        made._check()
        return made

    def _body_fields(self) -> list[pa.Field]:
        return [
            field
            for field in self.schema
            if field.name not in self.message and field.name != self.options.reason_column
        ]

    def _decoder(self) -> BodyDecoder:
        return _decoder(self.options, self.source, pa.schema(self._body_fields()), self.subject)

    def _check(self) -> None:
        """Raises ConfigError for columns that bodies do not have."""
        found = _columns(self.options, self.source) if self.source is not None else self._decoder().schema
        self._decoder()
        for field in self._body_fields():
            place = found.get_field_index(field.name)
            if place < 0:
                raise ConfigError.of(
                    "schema", f"the body has no column {field.name!r}; it has {', '.join(found.names)[:500]}"
                )
            if found.field(place).type != field.type:
                raise ConfigError.of(
                    "schema",
                    f"column {field.name!r} is {found.field(place).type} in the body, not {field.type}; cast "
                    "it after the load",
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """What is read of messages."""
        more: tuple[str, ...] = PLACE if self.options.mode == FAILFAST else ()
        if self.dead is not None:
            more = self.dead.needed
        return tuple(dict.fromkeys((*self.message.values(), *more, "value")))

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of batches of ``columns``. Raises InvalidMessage if ``mode`` says so."""
        decoder = self._decoder()
        letters = None if self.dead is None else self.dead.letters()
        for batch in batches:
            for first, count in slices(batch.column("value"), len(decoder.schema)):
                yield from self._made(decoder, batch.slice(first, count), letters)
        if letters is not None:
            letters.send()

    def _made(
        self, decoder: BodyDecoder, batch: pa.RecordBatch, letters: TaskLetters | None
    ) -> Iterator[pa.RecordBatch]:
        found = decoder.decode(batch.column("value"))
        bad = len(batch) - found.reasons.null_count
        if bad and self.options.mode == FAILFAST:
            self._fail(batch, found.reasons)
        bodies = dict(zip(decoder.schema.names, found.columns, strict=True))
        arrays = []
        for field in self.schema:
            if field.name in self.message:
                arrays.append(batch.column(self.message[field.name]))
            elif field.name == self.options.reason_column:
                arrays.append(found.reasons)
            else:
                arrays.append(bodies[field.name])
        made = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if bad and letters is not None:
            letters.add(batch, found.reasons)
        if bad and (letters is not None or self.options.mode == DROPMALFORMED):
            made = made.filter(found.reasons.is_null())
        if made.num_rows:
            yield made

    def _fail(self, batch: pa.RecordBatch, reasons: pa.StringArray) -> None:
        at = reasons.is_valid().index(True).as_py()
        topic, queue, offset = (batch.column(name)[at] for name in PLACE)
        raise InvalidMessage(
            f"payloadFormat: the message at offset {offset} of queue {queue} of {topic}: {reasons[at]}; "
            f"mode={PERMISSIVE} makes its columns null, mode={DROPMALFORMED} leaves it out",
            field="value",
        )
