"""The types of Avro."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})


@dataclass(slots=True, eq=False)
class AvroType:
    """A recursive type is one object, that is found again inside itself."""

    type: str
    """A primitive, "record", "enum", "fixed", "array", "map" or "union"."""
    name: str = ""
    """Full name of a named type."""
    doc: str | None = None
    aliases: list[str] = field(default_factory=list)
    """Full names."""
    fields: list[AvroField] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    default: str | None = None
    """A symbol."""
    size: int = 0
    parts: list[AvroType] = field(default_factory=list)
    """Branches of a union; one: the items of an array, the values of a map."""
    properties: dict[str, Any] = field(default_factory=dict)
    """What the language does not define, and logicalType with what belongs to it."""

    @property
    def inner(self) -> list[AvroType]:
        """The types that it is made of."""
        return self.parts or [each.type for each in self.fields]

    @property
    def fullname(self) -> str:
        return self.name or self.type

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale; None for what is no decimal, or not a sound one, whose logical type readers ignore."""
        if self.type not in ("bytes", "fixed") or not self.is_decimal:
            return None
        precision, scale = self.properties.get("precision"), self.properties.get("scale", 0)
        if (
            type(precision) is not int
            or type(scale) is not int
            or not max(1, scale) <= precision
            or scale < 0
        ):
            return None
        if self.type == "fixed" and precision > math.log10(2) * (8 * self.size - 1):
            return None
        return precision, scale

    @property
    def is_decimal(self) -> bool:
        return self.properties.get("logicalType") == "decimal"

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(slots=True, eq=False)
class AvroField:
    name: str
    type: AvroType
    doc: str | None = None
    order: str = "ascending"
    aliases: list[str] = field(default_factory=list)
    has_default: bool = False
    default: Any = None
    properties: dict[str, Any] = field(default_factory=dict)


def all_types(root: AvroType) -> list[AvroType]:
    """Each once."""
    found, waiting = dict[int, AvroType](), [root]
    while waiting:
        each = waiting.pop()
        if id(each) not in found:
            found[id(each)] = each
            waiting += each.inner
    return list(found.values())
