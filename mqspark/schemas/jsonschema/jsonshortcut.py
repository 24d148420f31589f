"""A type of msgspec for a plain JSON Schema, so that many payloads are decoded and checked in one go.

What the decoder takes fits the schema; what it refuses may fit as well, and is looked at again. So a keyword that is
not here, a property that the schema does not name, or a whole number written as 1.0 only costs time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import msgspec

from mqspark.base.jsonvalues import finite_float
from mqspark.errors import InvalidSchema
from mqspark.schemas.jsonschema.jsonreferences import ANYTHING, Documents
from mqspark.schemas.jsontexts import lines_of_objects

SILENT = frozenset({
    "$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "definitions", "$defs",
})  # fmt: skip
"""Keywords that say nothing about values."""
_MAX_FIELDS = 500
_MAX_BYTES_WITH_NUMBERS = 128 << 10
"""The most of all payloads together: a float with a type is decoded without ``finite_float``, and may take 7 µs."""
_MAX_BOUND = 1 << 53
"""Up to here a number is the same as a float."""
_LIMITS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_LENGTHS = {"minLength": "min_length", "maxLength": "max_length"}
_COUNTS = {"minItems": "min_length", "maxItems": "max_length"}


class _NotPlain(Exception):
    pass


class PayloadLines:
    """Decodes payloads one a line (``lines_of_objects``)."""

    def __init__(self, of: Any, *, has_numbers: bool) -> None:
        self._decode = msgspec.json.Decoder(of, float_hook=finite_float).decode_lines
        self._most_bytes = _MAX_BYTES_WITH_NUMBERS if has_numbers else sys.maxsize

    def take(self, bodies: Sequence[bytes | memoryview], head: bytes) -> bool:
        """Each body is ``head`` and a payload. False: one of them may not fit."""
        if start := len(head):
            if any(body[:start] != head for body in bodies):
                return False
            bodies = [body[start:] for body in bodies]
        if sum(map(len, bodies)) > self._most_bytes:
            return False
        lines = lines_of_objects(list(bodies))
        try:
            return lines is not None and len(self._decode(lines)) == len(bodies)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False


def lines_of(root: Any, documents: Documents) -> PayloadLines | None:
    """None: the schema is not plain."""
    if isinstance(root, dict) and "draft-04" in str(root.get("$schema")):
        return None  # there 1.0 is no integer
    try:
        types = _ShortcutTypes(documents)
        return PayloadLines(types.of(root, ()), has_numbers=types.has_numbers)
    except (_NotPlain, TypeError, ValueError, InvalidSchema):
        return None


class _ShortcutTypes:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._fields = 0
        self.has_numbers = False

    def of(self, node: Any, path: tuple[int, ...]) -> Any:
        """``path``: the schemas around it."""
        if node is ANYTHING:  # a meta-schema, which the validator knows
            raise _NotPlain
        if node is True or node == {}:
            return Any
        if not isinstance(node, dict) or id(node) in path:
            raise _NotPlain
        path = (*path, id(node))
        said = node.keys() - SILENT
        if said == {"$ref"}:
            return self.of(next(self._documents.targets(node)), path)
        if said == {"anyOf"} and len(parts := node["anyOf"]) == 2 and {"type": "null"} in parts:
            other = parts[0] if parts[1] == {"type": "null"} else parts[1]
            return self.of(other, path) | None
        if said == {"const"} and isinstance(node["const"], str):
            return Literal[node["const"]]
        if "enum" in said and said <= {"enum", "type"}:
            return self._enum(node)
        kind = node.get("type")
        if isinstance(kind, list) and said == {"type"} and kind:
            return reduce(or_, (self._typed({"type": each}, {"type"}, path) for each in kind))
        return self._typed(node, said, path)

    @staticmethod
    def _enum(node: dict[str, Any]) -> Any:
        values = node["enum"]
        if (
            not values
            or not all(type(each) is str for each in values)
            or node.get("type", "string") != "string"
        ):
            raise _NotPlain
        return Literal[tuple(values)]

    def _typed(self, node: dict[str, Any], said: set[str], path: tuple[int, ...]) -> Any:
        kind = node.get("type")
        if kind == "string":
            return _limited(str, node, said, _LENGTHS)
        if kind == "integer":
            return _limited(int, node, said, _LIMITS)
        if kind == "number":
            self.has_numbers = True
            return _limited(float, node, said, _LIMITS)
        if kind == "boolean" and said == {"type"}:
            return bool
        if kind == "null" and said == {"type"}:
            return None
        if kind == "array":
            items = self.of(node.get("items", True), path)
            return _limited(list[items], node, said - {"items"}, _COUNTS)  # type: ignore[valid-type]
        if kind == "object" and said <= {"type", "properties", "required", "additionalProperties"}:
            return self._object(node, path)
        raise _NotPlain

    def _object(self, node: dict[str, Any], path: tuple[int, ...]) -> Any:
        properties, required = node.get("properties", {}), set(node.get("required", ()))
        rest = node.get("additionalProperties", True)
        self._fields += len(properties)
        if not required <= properties.keys() or self._fields > _MAX_FIELDS:
            raise _NotPlain
        if not properties:
            if rest is False:
                raise _NotPlain
            values = self.of(rest, path)
            return dict[str, values]  # type: ignore[valid-type]
        if not isinstance(rest, bool):
            raise _NotPlain
        fields: list[Any] = []
        names = {}
        for number, name in enumerate(sorted(properties, key=lambda name: name not in required)):
            names[f"f{number}"] = name
            of = self.of(properties[name], path)
            if name in required:
                fields.append((f"f{number}", of))
            else:
                fields.append((f"f{number}", of | msgspec.UnsetType, msgspec.UNSET))
        return msgspec.defstruct("Value", fields, rename=names, forbid_unknown_fields=True, gc=False)


def _limited(of: Any, node: dict[str, Any], said: set[str], limits: dict[str, str]) -> Any:
    found = said - {"type"}
    if not found:
        return of
    if not found <= limits.keys():
        raise _NotPlain
    bounds = {limits[name]: node[name] for name in found}
    if any(isinstance(each, bool) or abs(each) > _MAX_BOUND for each in bounds.values()):
        raise _NotPlain
    return Annotated[of, msgspec.Meta(**bounds)]
