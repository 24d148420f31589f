"""Whether a reader with one Avro schema understands what a writer with another one wrote.

Facts: Avro's specification, "Schema Resolution"; SchemaCompatibility (Avro) for the names of the problems.
"""

from __future__ import annotations

from mqspark.schemas.avro.avrotypes import AvroField, AvroType
from mqspark.schemas.pairs import Pairs, Problem

_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
_MAX_LISTED = 20


class Resolution:
    def __init__(self, me: str, other: str) -> None:
        """``me``, ``other``: what sentences call the reader's and the writer's schema."""
        self._me = me
        self._other = other
        self._pairs = Pairs()

    def problems(self, reader: AvroType, writer: AvroType) -> list[Problem]:
        return self._pairs.solve(lambda: self._found(reader, writer, ""))

    def _found(self, reader: AvroType, writer: AvroType, where: str) -> list[Problem]:
        return self._pairs.found((id(reader), id(writer)), lambda: self._compare(reader, writer, where))

    def _compare(self, reader: AvroType, writer: AvroType, where: str) -> list[Problem]:
        if writer.type == "union":
            return self._of_union(reader, writer, where)
        if reader.type == "union":
            if any(not self._found(branch, writer, f"{where}/{n}") for n, branch in enumerate(reader.parts)):
                return []
            return [self._lacks_branch(writer, where)]
        if reader.type != writer.type:
            if writer.type in _PROMOTIONS.get(reader.type, ()):
                return []
            return [
                (
                    "TYPE_MISMATCH",
                    where,
                    f"the {self._me} schema has {reader.fullname} where the {self._other} schema has {writer.fullname}",
                )
            ]
        if reader.type == "array" or reader.type == "map":
            step = "items" if reader.type == "array" else "values"
            return self._found(reader.parts[0], writer.parts[0], f"{where}/{step}")
        if not reader.name:
            return []
        return self._of_named(reader, writer, where)

    def _of_union(self, reader: AvroType, writer: AvroType, where: str) -> list[Problem]:
        found: list[Problem] = []
        for index, branch in enumerate(writer.parts):
            problems = self._found(reader, branch, where)
            if problems and reader.type == "union":
                found.append(self._lacks_branch(branch, f"{where}/{index}"))
            else:
                found += problems
        return found

    def _lacks_branch(self, writer: AvroType, where: str) -> Problem:
        sentence = f"the union of the {self._me} schema has no type for {writer.fullname} of the {self._other} schema"
        return "MISSING_UNION_BRANCH", where, sentence

    def _of_named(self, reader: AvroType, writer: AvroType, where: str) -> list[Problem]:
        found: list[Problem] = []
        if reader.short_name != writer.short_name and writer.name not in reader.aliases:
            sentence = f"the name is {reader.name} in the {self._me} schema, {writer.name} in the {self._other} schema"
            found.append(("NAME_MISMATCH", f"{where}/name", sentence))
        if reader.type == "fixed":
            if reader.size != writer.size:
                sentence = (
                    f"the {self._me} schema has {reader.size} bytes, the {self._other} schema {writer.size}"
                )
                found.append(("FIXED_SIZE_MISMATCH", f"{where}/size", sentence))
        elif reader.type == "enum":
            missing = set(writer.symbols) - set(reader.symbols)
            if missing and reader.default is None:
                listed = ", ".join(sorted(missing)[:_MAX_LISTED])
                sentence = (
                    f"the {self._me} schema lacks symbols of the {self._other} schema and a default: {listed}"
                )
                found.append(("MISSING_ENUM_SYMBOLS", f"{where}/symbols", sentence))
        else:
            found += self._of_records(reader, writer, where)
        return found

    def _of_records(self, reader: AvroType, writer: AvroType, where: str) -> list[Problem]:
        found: list[Problem] = []
        written = {field.name: field for field in writer.fields}
        for index, field in enumerate(reader.fields):
            at = f"{where}/fields/{index}"
            source = self._source(field, written)
            if source is not None:
                found += self._found(field.type, source.type, f"{at}/type")
            elif not field.has_default:
                sentence = (
                    f"the field {field.name} of the {self._me} schema has no default and is not in the"
                    f" {self._other} schema"
                )
                found.append(("READER_FIELD_MISSING_DEFAULT_VALUE", at, sentence))
        return found

    @staticmethod
    def _source(field: AvroField, written: dict[str, AvroField]) -> AvroField | None:
        """The writer's field of this name, or of one of its aliases."""
        for name in (field.name, *field.aliases):
            if name in written:
                return written[name]
        return None
