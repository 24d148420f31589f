"""Typed columns of a write (``payloadFormat=json``, ``avro``): the message keeps its own, others become its body."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mqspark.errors import ConfigError, InvalidSchema
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.parsedschema import AVRO as AVRO_SCHEMA
from mqspark.schemas.parsedschema import Schema
from mqspark.schemas.schemaprefix import encode_prefix
from pyspark_pymq.cluster.payload import arrow_schema_of
from pyspark_pymq.cluster.registry import Registry
from pyspark_pymq.cluster.typedcolumns import avro_root, schema_text, subject_of
from pyspark_pymq.payloadoptions import AVRO, PayloadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TypedBodies:
    """Makes the bodies of a write in a worker. It is pickled."""

    format: str
    texts: tuple[str, ...]
    """Avro: the schemas that the schema needs, and the schema."""
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
            raise ConfigError("payloadFormat: no column is left for the body", key="payloadFormat")
        arrow = arrow_schema_of(body.toNullable())
        texts, prefix = _avro(options, arrow, topic) if options.format == AVRO else ((), b"")
        if options.format != AVRO:
            from mqspark.arrow.payload.jsonbodies import JsonBodies

            JsonBodies(arrow)  # what no reader could read is not written
        return cls(options.format, texts, prefix, arrow, message), left.add("value", BinaryType())

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows with ``value`` and the message's columns. Raises InvalidMessage."""
        from mqspark.arrow.payload.bodywriting import AvroWriting, JsonWriting

        writing = AvroWriting(self.texts, self.prefix) if self.format == AVRO else JsonWriting()
        for batch in batches:
            # Times have the session's zone.
            arrays = [batch.column(each.name).cast(each.type) for each in self.body]
            values = writing.bodies(pa.RecordBatch.from_arrays(arrays, schema=self.body))
            made = {name: batch.column(given) for given, name in self.message.items()}
            yield pa.RecordBatch.from_pydict(made | {"value": pa.array(values, pa.binary())})


def _avro(options: PayloadOptions, body: pa.Schema, topic: str | None) -> tuple[tuple[str, ...], bytes]:
    """The texts of the schema and the prefix of bodies. Raises ConfigError."""
    from mqspark.arrow.payload.bodywriting import avro_text_of, check_columns

    key = "schemaRegistry" if options.registry else "payloadSchema"
    try:
        schema: Schema
        number: int | None = None
        if options.registry is None:
            schema = AvroSchema(schema_text(options))
        elif options.register:
            name = re.sub(r"\W", "_", f"row_{topic}", flags=re.ASCII)
            schema = AvroSchema(avro_text_of(body, name))
            number = Registry(options.registry, AVRO_SCHEMA).registered(
                subject_of(options, topic), schema.text
            )
        else:
            number, schema = Registry(options.registry, AVRO_SCHEMA).of_subject(
                subject_of(options, topic), options.version
            )
        check_columns(avro_root(schema), body)
    except InvalidSchema as error:
        raise ConfigError(f"{key}: {error.problem}", key=key) from None
    texts = tuple(each.text for each in schema.all_needed.values())
    return (*texts, schema.text), b"" if number is None else encode_prefix(number)
