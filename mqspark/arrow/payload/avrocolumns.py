"""The columns of an Avro schema.

| Avro | column |
|---|---|
| boolean, int, long, float, double, string, bytes | the same |
| enum | string |
| fixed | binary |
| array, map, record | array, map with text keys, struct |
| union with null | the other branch, nullable |
| union of int and long; of float and double | bigint; double |
| other unions | struct with a field ``member0``, ``member1`` for each branch that is not null; one of them is set |
| date | date |
| timestamp-millis, timestamp-micros | timestamp |
| local-timestamp-millis, local-timestamp-micros | timestamp_ntz |
| decimal of up to 38 digits | decimal |
| uuid, time-millis, time-micros, timestamp-nanos, others | their base type |

It is the mapping of Spark's ``from_avro``. A schema that contains itself has no columns. Must not know bodies.
"""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa

from mqspark.arrow.payload.bodyrows import MAX_COLUMNS, MAX_DIGITS
from mqspark.errors import InvalidSchema
from mqspark.schemas.avro.avrotypes import AvroType
from mqspark.schemas.parsedschema import AVRO

_BASES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


class AvroColumns:
    """Finds the types of columns. Raises InvalidSchema."""

    def __init__(self) -> None:
        self._inside: list[str] = []
        self._found = 0

    def type_of(self, of: AvroType) -> pa.DataType:
        """The type of a column."""
        self._found += 1
        if self._found > MAX_COLUMNS:
            _refuse(f"the schema has more than {MAX_COLUMNS} columns, nested ones included")
        if of.type == "record":
            return self._struct(of)
        if of.type == "union":
            return self._union(of)
        if of.type in ("array", "map"):
            inner = self.type_of(items_of(of))
            return pa.map_(pa.string(), inner) if of.type == "map" else pa.list_(pa.field("element", inner))
        return _simple(of)

    def _struct(self, of: AvroType) -> pa.StructType:
        if of.name in self._inside:
            _refuse(f"{of.name} contains itself, which no columns can hold")
        self._inside.append(of.name)
        found = pa.struct([pa.field(each.name, self.type_of(each.type)) for each in of.fields])
        self._inside.pop()
        return found

    def _union(self, of: AvroType) -> pa.DataType:
        types = [self.type_of(each) for each in members(of)]
        if not types:
            return pa.null()
        if len(types) == 1:
            return types[0]
        if set(types) == {pa.int32(), pa.int64()}:
            return pa.int64()
        if set(types) == {pa.float32(), pa.float64()}:
            return pa.float64()
        return pa.struct([pa.field(f"member{at}", each) for at, each in enumerate(types)])


def items_of(of: AvroType) -> AvroType:
    """The items of an array, the values of a map."""
    return of.parts[0]


def members(of: AvroType) -> list[AvroType]:
    """The branches of a union that are not null."""
    return [each for each in of.parts if each.type != "null"]


def factor(of: AvroType) -> int:
    """What a number is multiplied by in its column."""
    logical = str(of.properties.get("logicalType"))
    return 1000 if (of.type, logical) in _LOGICAL and logical.endswith("millis") else 1


def _simple(of: AvroType) -> pa.DataType:
    logical = of.properties.get("logicalType")
    if logical == "decimal" and of.type in ("bytes", "fixed"):
        digits, scale = of.properties.get("precision"), of.properties.get("scale", 0)
        if (
            not isinstance(digits, int)
            or not isinstance(scale, int)
            or not 0 <= scale <= digits
            or digits < 1
        ):
            _refuse("a decimal has a precision from 1 on, and a scale up to it")
        if digits > MAX_DIGITS:
            _refuse(f"a decimal of {digits} digits is more than the {MAX_DIGITS} of a column")
        return pa.decimal128(digits, scale)
    return _LOGICAL.get((of.type, str(logical)), _BASES[of.type])


def may_be_empty(of: AvroType) -> bool:
    """Whether a value may have no bytes at all."""
    if of.type == "record":
        return all(may_be_empty(each.type) for each in of.fields)
    return of.type == "null" or (of.type == "fixed" and of.size == 0)


def _refuse(text: str) -> NoReturn:
    raise InvalidSchema(text, kind=AVRO)
