"""Whether readers with one Protobuf file understand what writers with another one wrote (SchemaDiff of Confluent's
registry).

Fields are told apart by number; a name may change. Kinds of scalars that are written alike may replace each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqspark.schemas.pairs import Pairs, Problem
from mqspark.schemas.protobuf.protofiles import TypeEntry
from mqspark.schemas.protobuf.prototext import ENUM, GROUP, MESSAGE, REPEATED, REQUIRED, SCALARS

_GENERAL, _TEXT = "whole numbers", "text or bytes"
_KINDS = {
    **{SCALARS[name]: _GENERAL for name in ("int32", "int64", "uint32", "uint64", "bool")},
    **{SCALARS[name]: "signed numbers" for name in ("sint32", "sint64")},
    **{SCALARS[name]: _TEXT for name in ("string", "bytes")},
    **{SCALARS[name]: "four bytes" for name in ("fixed32", "sfixed32")},
    **{SCALARS[name]: "eight bytes" for name in ("fixed64", "sfixed64")},
    SCALARS["float"]: "float",
    SCALARS["double"]: "double",
    ENUM: _GENERAL,
}
"""Scalars of one kind are written alike."""


class ProtoComparison:
    """Compares two files, each with the types that it and its imports have."""

    def __init__(
        self, reader: Mapping[str, TypeEntry], writer: Mapping[str, TypeEntry], me: str, other: str
    ) -> None:
        self._readers, self._writers = reader, writer
        self._me, self._other = f"the {me} schema", f"the {other} schema"
        self._pairs = Pairs()

    def problems(self, reader: Any, writer: Any) -> list[Problem]:
        """``reader``, ``writer``: FileDescriptorProto."""

        def compare() -> list[Problem]:
            found: list[Problem] = []
            if reader.package != writer.package:
                sentence = (
                    f"the package is {reader.package!r} in {self._me}, {writer.package!r} in {self._other}"
                )
                found.append(("PACKAGE_CHANGED", "#/", sentence))
            return found + self._of_types(reader.message_type, writer.message_type, "#")

        return self._pairs.solve(compare)

    def _of_types(self, readers: Any, writers: Any, where: str) -> list[Problem]:
        found: list[Problem] = []
        mine = {each.name: each for each in readers if not each.options.map_entry}
        for each in writers:
            at = f"{where}/{each.name}"
            if each.name in mine:
                found += self._found(mine[each.name], each, at)
            elif not each.options.map_entry:
                found.append(("MESSAGE_REMOVED", at, f"{self._me} lacks the message of {self._other}"))
        return found

    def _found(self, reader: Any, writer: Any, where: str) -> list[Problem]:
        return self._pairs.found((id(reader), id(writer)), lambda: self._of_messages(reader, writer, where))

    def _of_messages(self, reader: Any, writer: Any, where: str) -> list[Problem]:
        mine = {field.number: field for field in reader.field}
        others = {field.number: field for field in writer.field}
        oneofs, written = _oneofs(reader), _oneofs(writer)
        found = self._of_oneofs(reader, mine.keys(), others.keys(), oneofs, written, where)
        for number in sorted(others.keys() - mine.keys()):
            found += self._of_removed(others[number], writer, mine.keys(), written, where)
        for number in sorted(mine):
            at = f"{where}/{number}"
            if number in others:
                found += self._of_fields(mine[number], others[number], at)
            elif mine[number].label == REQUIRED:
                sentence = f"{self._me} requires the field {mine[number].name}, {self._other} lacks it"
                found.append(("REQUIRED_FIELD_ADDED", at, sentence))
        return found + self._of_types(reader.nested_type, writer.nested_type, where)

    def _of_oneofs(
        self, reader: Any, mine: Any, others: Any, oneofs: dict[int, int], written: dict[int, int], where: str
    ) -> list[Problem]:
        """Fields that a writer sets together, and of which a reader keeps one."""
        found: list[Problem] = []
        for index, oneof in enumerate(reader.oneof_decl):
            members = [number for number in mine if oneofs.get(number) == index and number in others]
            alone = [number for number in members if number not in written]
            groups = len(alone) + len({written[number] for number in members if number in written})
            if groups > 1:
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(alone) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                numbers = ", ".join(map(str, sorted(members)))
                sentence = (
                    f"{self._me} takes one of the fields {numbers}, {self._other} writes several of them"
                )
                found.append((kind, f"{where}/{oneof.name}", sentence))
        return found

    def _of_removed(
        self, field: Any, writer: Any, mine: Any, written: dict[int, int], where: str
    ) -> list[Problem]:
        """A oneof may go with all its fields."""
        index = written.get(field.number)
        if index is None:
            if field.label != REQUIRED:
                return []
            sentence = f"{self._me} lacks the field {field.name}, which {self._other} requires"
            return [("REQUIRED_FIELD_REMOVED", f"{where}/{field.number}", sentence)]
        if not any(number in mine for number, each in written.items() if each == index):
            return []
        oneof = writer.oneof_decl[index].name
        sentence = f"{self._me} lacks the field {field.name} of the oneof {oneof} of {self._other}"
        return [("ONEOF_FIELD_REMOVED", f"{where}/{oneof}/{field.number}", sentence)]

    def _of_fields(self, reader: Any, writer: Any, where: str) -> list[Problem]:
        to, of = self._kind(reader, self._readers), self._kind(writer, self._writers)
        if to != of:
            sentence = f"the field {reader.name} is a {to} in {self._me}, a {of} in {self._other}"
            return [("FIELD_KIND_CHANGED", where, sentence)]
        if to == "scalar":
            return self._of_scalars(reader, writer, where)
        mine, others = self._entry(reader, self._readers), self._entry(writer, self._writers)
        if to == "map":
            pairs = zip(mine.found.field, others.found.field, strict=True)
            return [each for pair in pairs for each in self._of_fields(*pair, where)]
        if mine.local_name != others.local_name:
            sentence = (
                f"the field {reader.name} is a {mine.local_name} in {self._me}, a {others.local_name} in"
            )
            return [("FIELD_NAMED_TYPE_CHANGED", where, f"{sentence} {self._other}")]
        return self._found(mine.found, others.found, f"#/{mine.local_name.replace('.', '/')}")

    def _of_scalars(self, reader: Any, writer: Any, where: str) -> list[Problem]:
        to, of = _KINDS[reader.type], _KINDS[writer.type]
        if to != of:
            sentence = f"the field {reader.name} is written as {to} by {self._me}, as {of} by {self._other}"
            return [("FIELD_SCALAR_KIND_CHANGED", where, sentence)]
        if (reader.label == REPEATED) != (writer.label == REPEATED) and to != _TEXT:
            sentence = (
                f"the field {reader.name} is a list of numbers in one of {self._me} and {self._other} alone"
            )
            return [("FIELD_NUMERIC_LABEL_CHANGED", where, sentence)]
        return []

    def _kind(self, field: Any, types: Mapping[str, TypeEntry]) -> str:
        if field.type not in (MESSAGE, GROUP):
            return "scalar"
        return "map" if self._entry(field, types).found.options.map_entry else "message"

    @staticmethod
    def _entry(field: Any, types: Mapping[str, TypeEntry]) -> TypeEntry:
        return types[field.type_name.removeprefix(".")]


def _oneofs(message: Any) -> dict[int, int]:
    """Index of the oneof by number of a field. What proto3 calls optional is in none."""
    return {
        field.number: field.oneof_index
        for field in message.field
        if field.HasField("oneof_index") and not field.proto3_optional
    }
