"""The fields of the first type of a schema with their types, as catalogs and graphs of lineage show them."""

from __future__ import annotations

import json
from typing import Any

from mqspark.schemas.parsedschema import AVRO, Schema
from mqspark.schemas.protobuf.protoschema import ProtobufSchema
from mqspark.schemas.protobuf.prototext import SCALARS

_SCALAR_NAMES = {number: name for name, number in SCALARS.items()}
_ANY = "any"


def fields_of(schema: Schema) -> list[tuple[str, str]]:
    """Name and type of each; none of a schema that is no record. Raises InvalidSchema for a file without a message."""
    if isinstance(schema, ProtobufSchema):
        message = schema.pool.FindMessageTypeByName(schema.message_name(()))
        return [(each.name, _proto_type(each)) for each in message.fields]
    document = json.loads(schema.text)
    if not isinstance(document, dict):
        return []
    if schema.kind == AVRO:
        return [(each["name"], _avro_type(each["type"])) for each in document.get("fields", ())]
    properties = document.get("properties")
    if not isinstance(properties, dict):
        return []
    return [(name, _json_type(each)) for name, each in properties.items()]


def _proto_type(field: Any) -> str:
    named = field.message_type or field.enum_type
    found = str(named.full_name) if named is not None else _SCALAR_NAMES[field.type]
    return f"repeated {found}" if field.is_repeated else found


def _avro_type(found: Any) -> str:
    if isinstance(found, list):
        return " | ".join(map(_avro_type, found))
    if isinstance(found, dict):
        return str(found.get("logicalType") or found.get("name") or _avro_type(found["type"]))
    return str(found)


def _json_type(found: Any) -> str:
    kind = found.get("type", _ANY) if isinstance(found, dict) else _ANY
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
