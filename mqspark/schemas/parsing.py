"""From the text of a schema to the schema."""

from __future__ import annotations

from mqspark.errors import InvalidSchema
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import Needed, Schema
from mqspark.schemas.protobuf.protoschema import ProtobufSchema

_CLASSES: dict[str, type[AvroSchema | JsonSchema | ProtobufSchema]] = {
    each.kind: each for each in (AvroSchema, JsonSchema, ProtobufSchema)
}


def parse(kind: str, text: str, references: Needed = ()) -> Schema:
    """``references``: each with the schema that its subject and version have.

    Raises InvalidSchema (also for a kind that is none), SchemaTooLarge, and ConfigError without the extra."""
    if kind not in _CLASSES:
        raise InvalidSchema(f"the type is none of {', '.join(_CLASSES)}", kind=kind[:80])
    return _CLASSES[kind](text, references)
