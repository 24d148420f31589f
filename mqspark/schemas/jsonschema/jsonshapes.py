"""What kind of values a JSON Schema is about, so that two of them can be compared kind by kind.

A schema says several things at once, such as ``type`` and ``anyOf``: then its shape is that of an ``allOf`` of what it
says. A list of types is an ``anyOf``. Keywords of one type without ``type`` are about that type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqspark.schemas.jsonschema.jsonreferences import Documents

ANY, NOTHING = "any", "nothing"
ENUM, CONST, NOT, COMBINED = "enum", "const", "not", "combined"
ALL_OF, ANY_OF, ONE_OF = "allOf", "anyOf", "oneOf"
STRING, NUMBER, OBJECT, ARRAY, BOOLEAN, NULL = "string", "number", "object", "array", "boolean", "null"

_KEYWORDS = {
    STRING: {"minLength", "maxLength", "pattern", "format"},
    NUMBER: {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    ARRAY: {
        "items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "prefixItems",
        "unevaluatedItems",
    },
    OBJECT: {
        "properties", "required", "minProperties", "maxProperties", "dependencies", "patternProperties",
        "additionalProperties", "propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    },
}  # fmt: skip
_TYPES = {
    "string": STRING, "number": NUMBER, "integer": NUMBER, "object": OBJECT, "array": ARRAY, "boolean": BOOLEAN,
    "null": NULL,
}  # fmt: skip
_MAX_REFERENCES = 300


@dataclass(frozen=True, slots=True, eq=False)
class JsonShape:
    kind: str
    node: Any
    """The object with the keywords."""
    criterion: str = ""
    parts: tuple[Any, ...] = ()
    """What a combined one consists of: schemas, or shapes of what one schema says."""
    whole: bool = False
    """A number that is an integer."""


class Shapes:
    """Those of one schema, each made once: pairs of them are remembered by identity."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._made = dict[int, JsonShape]()
        self._boolean = {True: JsonShape(ANY, {}), False: JsonShape(NOTHING, {})}

    def of(self, node: Any) -> JsonShape:
        """``node``: a schema, or a shape."""
        if isinstance(node, JsonShape):
            return node
        for _ in range(_MAX_REFERENCES):
            if not isinstance(node, dict) or "$ref" not in node:
                break
            node = next(self._documents.targets(node), True)
        if not isinstance(node, dict):
            return self._boolean[bool(node)]
        if id(node) not in self._made:
            self._made[id(node)] = self._shape(node)
        return self._made[id(node)]

    def _shape(self, node: dict[str, Any]) -> JsonShape:
        found = list[JsonShape]()
        if isinstance(values := node.get("enum"), list):
            found.append(JsonShape(ENUM, node, parts=tuple(values)))
        found += [
            JsonShape(COMBINED, node, criterion, tuple(parts))
            for criterion in (ALL_OF, ANY_OF, ONE_OF)
            if isinstance(parts := node.get(criterion), list) and parts
        ]
        if "not" in node:
            found.append(JsonShape(NOT, node))
        if "const" in node:
            found.append(JsonShape(CONST, node))
        found += self._of_types(node)
        if not found:
            return JsonShape(ANY, node)
        return found[0] if len(found) == 1 else JsonShape(COMBINED, node, ALL_OF, tuple(found))

    @staticmethod
    def _of_types(node: dict[str, Any]) -> list[JsonShape]:
        """An enumeration says the type by its values."""
        named = node.get("type")
        if isinstance(named, list):
            shapes = tuple(_of_type(name, node) for name in named if name in _TYPES)
            return [*shapes] if len(shapes) == 1 else [JsonShape(COMBINED, node, ANY_OF, shapes)]
        if isinstance(named, str) and named in _TYPES:
            return [] if "enum" in node or "const" in node else [_of_type(named, node)]
        return [
            JsonShape(kind, node) for kind, keywords in _KEYWORDS.items() if not keywords.isdisjoint(node)
        ]


def _of_type(name: str, node: dict[str, Any]) -> JsonShape:
    return JsonShape(_TYPES[name], node, whole=name == "integer")
