"""Whether the default of a field is a value of its type, written as JSON."""

from __future__ import annotations

import math
import sys
from typing import Any

from mqspark.errors import SchemaTooLarge
from mqspark.schemas.avro.avrotypes import AvroType
from mqspark.schemas.parsedschema import AVRO

_MAX_COMPARED = 200_000
_MAX_DOUBLE = sys.float_info.max


class AvroDefaults:
    """Remembers what it has compared, while the values and types live: unions in records in unions would be compared
    as often as there are ways to them."""

    def __init__(self) -> None:
        self._known = dict[tuple[int, int], bool]()

    def fit(self, value: Any, of: AvroType) -> bool:
        """Whether a JSON value is one of this type. That of a union fits one of its branches. Raises RecursionError,
        SchemaTooLarge."""
        if not isinstance(value, list | dict):
            return any(_fits(value, each) for each in (of.parts if of.type == "union" else (of,)))
        pair = id(value), id(of)
        if pair not in self._known:
            if len(self._known) >= _MAX_COMPARED:
                raise SchemaTooLarge("defaults times the types that they may have", _MAX_COMPARED, kind=AVRO)
            self._known[pair] = self._fits_inside(value, of)
        return self._known[pair]

    def _fits_inside(self, value: Any, of: AvroType) -> bool:
        if of.type == "union":
            return any(self.fit(value, branch) for branch in of.parts)
        if of.type == "record" and isinstance(value, dict):
            inner = [(value[each.name], each.type) for each in of.fields if each.name in value]
            if any(each.name not in value and not each.has_default for each in of.fields):
                return False
        elif of.type == "map" and isinstance(value, dict):
            inner = [(each, of.parts[0]) for each in value.values()]
        elif of.type == "array" and isinstance(value, list):
            inner = [(each, of.parts[0]) for each in value]
        else:
            return False
        return all(self.fit(each, kind) for each, kind in inner)


def _fits(value: Any, of: AvroType) -> bool:
    """Whether a value without others inside is one of this type."""
    kind = of.type
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        return _is_whole(value) and -(1 << bits) <= value < 1 << bits
    if kind in ("float", "double"):
        return _is_number(value) and -_MAX_DOUBLE <= value <= _MAX_DOUBLE
    if not isinstance(value, str):
        return False
    if kind == "string":
        return True
    if kind == "enum":
        return value in of.symbols
    is_bytes = all(character <= "\xff" for character in value)
    return is_bytes and (kind == "bytes" or (kind == "fixed" and len(value) == of.size))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value) and value == int(value))
