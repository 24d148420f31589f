"""``schema=`` of a read: the fields of bodies as columns, beside those of the message. Must not know a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from mqspark.arrow.messagecolumns import PLACE
from mqspark.arrow.payload.bodyrows import BodyDecoder, slices
from mqspark.arrow.reading.fromregistry import FromRegistry
from mqspark.errors import ConfigError, InvalidMessage, InvalidSchema
from mqspark.schemas.avro.avroschema import AvroSchema

VALUE = "value"


class TypedRead:
    """``schema``: a pyarrow.Schema, for JSON, a schema of Avro, or FromRegistry. Raises ConfigError for any other, and
    what ``FromRegistry.decoder`` raises."""

    def __init__(self, schema: object, topics: Sequence[str], reason_column: str | None) -> None:
        self._decoder = _decoder(schema, topics)
        self._reason_column = reason_column
        reasons = [] if reason_column is None else [pa.field(reason_column, pa.string())]
        self.fields: list[pa.Field] = [*self._decoder.schema, *reasons]
        """The columns that it adds."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of messages that it reads."""
        return (VALUE,) if self._reason_column is not None else (VALUE, *PLACE)

    def rows(self, batches: Iterable[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The ``wanted`` columns of batches that have ``needs``. Raises InvalidMessage for a body that does not fit the
        schema, unless there is a column for the reason."""
        for batch in batches:
            for first, count in slices(batch.column(VALUE), len(self._decoder.schema)):
                yield self._row(batch.slice(first, count), wanted)

    def _row(self, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
        found = self._decoder.decode(batch.column(VALUE))
        if self._reason_column is None and found.reasons.null_count < len(batch):
            _fail(batch, found.reasons)
        made = dict(zip(batch.schema.names, batch.columns, strict=True))
        made |= zip(self._decoder.schema.names, found.columns, strict=True)
        if self._reason_column is not None:
            made[self._reason_column] = found.reasons
        return pa.RecordBatch.from_arrays([made[name] for name in wanted.names], schema=wanted)


def _decoder(schema: object, topics: Sequence[str]) -> BodyDecoder:
    try:
        if isinstance(schema, FromRegistry):
            return schema.decoder(topics)
        if isinstance(schema, pa.Schema):
            from mqspark.arrow.payload.jsonbodies import JsonBodies

            return JsonBodies(schema)
        if isinstance(schema, AvroSchema):
            from mqspark.arrow.payload.avrobodies import AvroBodies

            return AvroBodies(schema.root)
    except (InvalidSchema, ConfigError) as error:
        text = str(error).removeprefix("payloadSchema: ")  # Spark's name for it
        raise ConfigError.of("schema", f"{text}") from None
    raise ConfigError.of(
        "schema",
        "a pyarrow.Schema for bodies of JSON, mqspark.schemas.parsing.parse('AVRO', ...) or FromRegistry(url), "
        f"not {type(schema).__name__}",
    )


def _fail(batch: pa.RecordBatch, reasons: pa.StringArray) -> None:
    at = reasons.is_valid().index(True).as_py()
    topic, queue, offset = (batch.column(name)[at] for name in PLACE)
    raise InvalidMessage(
        f"schema: the message at offset {offset} of queue {queue} of {topic}: {reasons[at]}; with reason_column its "
        "columns are null",
        field="value",
    )
