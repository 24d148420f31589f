"""What tests of decoders share."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from mqspark.arrow.payload.bodyrows import BodyDecoder
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.avro.avrotypes import AvroType

_INNER = pa.struct([("x", pa.int32()), ("m", pa.map_(pa.string(), pa.int64()))])
FULL_COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
        ("price", pa.decimal128(20, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("inner", _INNER),
        ("list", pa.list_(pa.field("element", _INNER))),
        ("map", pa.map_(pa.string(), pa.list_(pa.field("element", pa.float64())))),
    ]
)
_AT = datetime.datetime(2024, 2, 29, 1, 2, 3, 456, tzinfo=datetime.UTC)
FULL_ROW: dict[str, Any] = {
    "id": -1 << 60,
    "small": 7,
    "name": "é",
    "raw": b"\0\xff",
    "ok": False,
    "price": Decimal("-12.345"),
    "day": _AT.date(),
    "at": _AT,
    "local": _AT.replace(tzinfo=None),
    "inner": {"x": 1, "m": [("a", 1), ("b", None)]},
    "list": [None, {"x": None, "m": []}],
    "map": [("k", [1.5, None]), ("", None)],
}


def read(decoder: BodyDecoder, bodies: list[bytes | None]) -> list[dict[str, Any] | str]:
    """Each body's row, or the reason why it has none. Columns are checked as Arrow's own."""
    found = decoder.decode(pa.array(bodies, pa.binary()))
    assert len(found.reasons) == len(bodies)
    for column, field in zip(found.columns, decoder.schema, strict=True):
        column.validate(full=True)
        assert column.type == field.type
    rows = pa.RecordBatch.from_arrays(found.columns, schema=decoder.schema).to_pylist()
    for row, reason in zip(rows, found.reasons.to_pylist(), strict=True):
        assert reason is None or all(value is None for value in row.values())
    return [
        row if reason is None else reason for row, reason in zip(rows, found.reasons.to_pylist(), strict=True)
    ]


def avro(schema: Any) -> AvroType:
    return AvroSchema(json.dumps(schema)).root


def record(**fields: Any) -> dict[str, Any]:
    """An Avro record; a field is a type, or a type and a default."""
    made = []
    for name, kind in fields.items():
        each = {"name": name, "type": kind}
        if isinstance(kind, tuple):
            each = {"name": name, "type": kind[0], "default": kind[1]}
        made.append(each)
    return {"type": "record", "name": "Row", "fields": made}


def avro_body(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return out.getvalue()
