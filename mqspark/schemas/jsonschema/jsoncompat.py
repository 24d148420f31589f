"""Whether readers with one JSON Schema take what was valid for another one (SchemaDiff of Confluent's registry).

What a property means for that depends on the content model of its object. An open one takes any other property, so
that nothing may be said about one later, and each may go; a closed one takes none, so that new ones come freely, and
none may go; between these, ``patternProperties`` or a schema for the others decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from mqspark.schemas.jsonschema.jsonprices import Price, compiled, text_price
from mqspark.schemas.jsonschema.jsonreferences import Documents
from mqspark.schemas.jsonschema.jsonshapes import (
    ALL_OF,
    ANY,
    ANY_OF,
    ARRAY,
    COMBINED,
    CONST,
    ENUM,
    NOT,
    NOTHING,
    NUMBER,
    OBJECT,
    ONE_OF,
    STRING,
    JsonShape,
    Shapes,
)
from mqspark.schemas.pairs import Pairs, Problem
from mqspark.schemas.parsedschema import MAX_NAME_LENGTH

_UPPER = {
    STRING: {"maxLength": "MAX_LENGTH"},
    NUMBER: {"maximum": "MAXIMUM", "exclusiveMaximum": "EXCLUSIVE_MAXIMUM"},
    OBJECT: {"maxProperties": "MAX_PROPERTIES"},
    ARRAY: {"maxItems": "MAX_ITEMS", "maxContains": "MAX_CONTAINS"},
}
"""Keywords that a reader must not have alone or lower."""
_LOWER = {
    STRING: {"minLength": "MIN_LENGTH"},
    NUMBER: {"minimum": "MINIMUM", "exclusiveMinimum": "EXCLUSIVE_MINIMUM"},
    OBJECT: {"minProperties": "MIN_PROPERTIES"},
    ARRAY: {"minItems": "MIN_ITEMS", "minContains": "MIN_CONTAINS"},
}

_UNITS_OF_PAIR = 100
"""What a pattern does with a name counts as comparisons, too: so many units of ``jsonprices`` as one."""


class JsonComparison:
    """ "Reader" is the schema that readers check with, "writer" the one that values were valid for."""

    def __init__(self, reader: Documents, writer: Documents, me: str, other: str) -> None:
        self._shapes = (Shapes(reader), Shapes(writer))
        self._me, self._other = me, other
        self._pairs = Pairs()
        self._turned = False
        """Inside ``not``, where the two change sides."""
        self._patterns = dict[str, tuple[Any, Price]]()

    def problems(self, reader: Any, writer: Any) -> list[Problem]:
        return self._pairs.solve(lambda: self._found(reader, writer, "#"))

    def _found(self, reader: Any, writer: Any, where: str) -> list[Problem]:
        mine, others = self._shapes[::-1] if self._turned else self._shapes
        to, of = mine.of(reader), others.of(writer)
        return self._pairs.found((id(to), id(of)), lambda: self._compare(to, of, where[:MAX_NAME_LENGTH]))

    def _problem(self, kind: str, where: str, sentence: str) -> Problem:
        """``sentence``: with {reader} and {writer}; names in it come by ``where``."""
        return (
            kind,
            where,
            sentence.format(reader=f"the {self._me} schema", writer=f"the {self._other} schema"),
        )

    def _compare(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        if reader.kind == ANY or writer.kind == NOTHING:
            return []
        if (reader.kind == COMBINED) != (writer.kind == COMBINED) and self._fits_a_part(
            reader, writer, where
        ):
            return []
        if reader.kind != writer.kind:
            sentence = f"{{reader}} is about {_words(reader)}, {{writer}} about {_words(writer)}"
            return [self._problem("TYPE_CHANGED", where, sentence)]
        if reader.kind == COMBINED:
            return self._of_combined(reader, writer, where)
        if reader.kind == NOT:
            return self._of_not(reader, writer, where)
        if reader.kind in (ENUM, CONST):
            return self._of_values(reader, writer, where)
        found = self._of_bounds(reader, writer, where)
        if reader.kind == NUMBER:
            found += self._of_numbers(reader, writer, where)
        elif reader.kind == STRING:
            found += self._of_patterns(reader, writer, where)
        elif reader.kind == OBJECT:
            found += self._of_objects(reader, writer, where)
        elif reader.kind == ARRAY:
            found += self._of_arrays(reader, writer, where)
        return found

    def _fits_a_part(self, reader: JsonShape, writer: JsonShape, where: str) -> bool:
        if reader.kind == COMBINED:
            if len(reader.parts) == 1 or reader.criterion in (ANY_OF, ONE_OF):
                return any(not self._found(part, writer, where) for part in reader.parts)
            return False
        if len(writer.parts) == 1 or writer.criterion == ALL_OF:
            return any(not self._found(reader, part, where) for part in writer.parts)
        return False

    def _of_combined(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        if reader.criterion != writer.criterion and not _extends(reader, writer):
            sentence = f"{{reader}} has {reader.criterion} where {{writer}} has {writer.criterion}"
            return [self._problem("COMBINED_TYPE_CHANGED", where, sentence)]
        readers, writers = _each_once(reader.parts), _each_once(writer.parts)
        found: list[Problem] = []
        if len(readers) > len(writers) and reader.criterion == ALL_OF:
            sentence = f"{{reader}} asks for {len(readers)} schemas, {{writer}} for {len(writers)}"
            found.append(self._problem("PRODUCT_TYPE_EXTENDED", where, sentence))
        if len(readers) < len(writers) and writer.criterion != ALL_OF:
            sentence = f"{{reader}} allows {len(readers)} schemas, {{writer}} {len(writers)}"
            found.append(self._problem("SUM_TYPE_NARROWED", where, sentence))
        fits = [
            [
                n
                for n, part in enumerate(readers)
                if not self._found(part, each, f"{where}/{writer.criterion}/{m}")
            ]
            for m, each in enumerate(writers)
        ]
        if _matched(fits) < min(len(readers), len(writers)):
            sentence = "the schemas of {reader} and of {writer} do not go together one by one"
            found.append(self._problem("COMBINED_TYPE_SUBSCHEMAS_CHANGED", where, sentence))
        return found

    def _of_not(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        self._turned = not self._turned
        try:
            widened = self._found(writer.node["not"], reader.node["not"], f"{where}/not")
        finally:
            self._turned = not self._turned
        if not widened:
            return []
        return [self._problem("NOT_TYPE_EXTENDED", f"{where}/not", "{reader} refuses more than {writer}")]

    def _of_values(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        if reader.kind == CONST:
            if _key(reader.node["const"]) == _key(writer.node["const"]):
                return []
            return [self._problem("ENUM_ARRAY_CHANGED", f"{where}/const", "{reader} and {writer} differ")]
        allowed, written = set(map(_key, reader.parts)), set(map(_key, writer.parts))
        if written <= allowed:
            return []
        kind = "ENUM_ARRAY_NARROWED" if allowed <= written else "ENUM_ARRAY_CHANGED"
        return [
            self._problem(
                kind, f"{where}/enum", f"{{reader}} lacks {len(written - allowed)} values of {{writer}}"
            )
        ]

    def _of_bounds(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        found: list[Problem] = []
        for table, step, sign in ((_UPPER, "DECREASED", 1), (_LOWER, "INCREASED", -1)):
            for keyword, name in table.get(reader.kind, {}).items():
                to, of = _number(reader.node, keyword), _number(writer.node, keyword)
                if to is None or to == of:
                    continue
                if of is None:
                    kind, sentence = f"{name}_ADDED", "{reader} has a limit, {writer} has none"
                elif sign * to < sign * of:
                    kind, sentence = f"{name}_{step}", f"the limit is {to} in {{reader}}, {of} in {{writer}}"
                else:
                    continue
                found.append(self._problem(kind, f"{where}/{keyword}", sentence))
        return found

    def _of_numbers(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        found: list[Problem] = []
        to, of = _step_of(reader.node), _step_of(writer.node)
        at = f"{where}/multipleOf"
        if to is not None and of is None:
            found.append(
                self._problem("MULTIPLE_OF_ADDED", at, "{reader} takes multiples alone, {writer} does not")
            )
        elif to is not None and of is not None and of % to:
            kind = "MULTIPLE_OF_EXPANDED" if to % of == 0 else "MULTIPLE_OF_CHANGED"
            steps = reader.node["multipleOf"], writer.node["multipleOf"]
            sentence = f"it is {steps[0]} in {{reader}}, {steps[1]} in {{writer}}"
            found.append(self._problem(kind, at, sentence))
        if reader.whole and not writer.whole:
            found.append(self._problem("TYPE_NARROWED", where, "{reader} takes integers, {writer} numbers"))
        return found

    def _of_patterns(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        to, of = reader.node.get("pattern"), writer.node.get("pattern")
        if to is None or to == of:
            return []
        kind = "PATTERN_ADDED" if of is None else "PATTERN_CHANGED"
        return [self._problem(kind, f"{where}/pattern", "{reader} has a pattern that {writer} does not have")]

    # --- objects ---

    def _of_objects(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        to, of = reader.node, writer.node
        found = self._of_dependencies(to, of, f"{where}/dependencies")
        mine, others = _map(to, "properties"), _map(of, "properties")
        required, were_required = _texts(to, "required"), _texts(of, "required")
        for name in dict.fromkeys((*others, *mine)):
            at = f"{where}/properties/{_step(name)}"
            if name not in mine:
                found += self._of_removed(to, name, others[name], at)
            elif name not in others:
                found += self._of_added(of, name, mine[name], name in required, at)
            else:
                if name in required and name not in were_required and not _has_default(mine[name]):
                    sentence = "{reader} requires the property, {writer} does not, and it has no default"
                    at_required = f"{where}/required/{_step(name)}"
                    found.append(self._problem("REQUIRED_ATTRIBUTE_ADDED", at_required, sentence))
                found += self._found(mine[name], others[name], at)
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            found += self._of_others(keyword, to, of, where)
        return found

    def _of_removed(self, reader: dict[str, Any], name: str, old: Any, at: str) -> list[Problem]:
        if _is_open(reader, "additionalProperties", "unevaluatedProperties", "patternProperties"):
            return []
        rest = self._rest(reader, name)
        if rest is not None:
            found = self._found(rest, old, at)
            if found:
                kind = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
                sentence = "{reader} lacks the property, and what it says about others does not take that of {writer}"
                found = [*found, self._problem(kind, at, sentence)]
            return found
        if old is False:
            return []
        sentence = "{reader} lacks the property of {writer}, and takes no other ones (closed content model)"
        return [self._problem("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", at, sentence)]

    def _of_added(
        self, writer: dict[str, Any], name: str, new: Any, required: bool, at: str
    ) -> list[Problem]:
        default = _has_default(new)
        if _is_open(writer, "additionalProperties", "unevaluatedProperties", "patternProperties"):
            if _is_anything(new):
                return []
            kind = "OPTIONAL_PROPERTY"
            if required:
                kind = "REQUIRED_PROPERTY_WITH_DEFAULT" if default else "REQUIRED_PROPERTY"
            sentence = "{reader} has the property, {writer} takes any value for it (open content model)"
            return [self._problem(f"{kind}_ADDED_TO_OPEN_CONTENT_MODEL", at, sentence)]
        found: list[Problem] = []
        rest = self._rest(writer, name)
        if rest is not None and (problems := self._found(new, rest, at)):
            kind = "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            sentence = "{reader} has the property, and does not take all that {writer} takes for others"
            found = [*problems, self._problem(kind, at, sentence)]
        if required and not default:
            sentence = "{reader} requires the property, {writer} lacks it, and it has no default"
            found.append(self._problem("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", at, sentence))
        return found

    def _rest(self, node: dict[str, Any], name: str) -> Any:
        """What a partly open content model says about a property that it does not name, or None."""
        for pattern, schema in _map(node, "patternProperties").items():
            if self._matches(pattern, name):
                return schema
        return _rest_of(node, "additionalProperties", "unevaluatedProperties")

    def _matches(self, pattern: str, name: str) -> bool:
        """By the engine that checks payloads, which is bounded."""
        if pattern not in self._patterns:
            self._patterns[pattern] = compiled(pattern), text_price(pattern)
        validator, price = self._patterns[pattern]
        pair = ("pattern", pattern, name)

        def compare() -> list[Problem]:
            self._pairs.spend(price.of_text(name) / _UNITS_OF_PAIR)
            return [] if validator.is_valid(name) else [("PATTERN", "", name)]

        return not self._pairs.found(pair, compare)

    def _of_others(
        self, keyword: str, reader: dict[str, Any], writer: dict[str, Any], where: str
    ) -> list[Problem]:
        """What is said about properties or items that have no schema of their own."""
        at, name = f"{where}/{keyword}", _upper_name(keyword)
        to, of = reader.get(keyword, True), writer.get(keyword, True)
        if _is_anything(to) or of is False:
            return []
        if to is False:
            return [
                self._problem(f"{name}_REMOVED", at, "{reader} takes none that have no schema, {writer} does")
            ]
        if _is_anything(of):
            return [
                self._problem(f"{name}_NARROWED", at, "{reader} has a schema for them, {writer} has none")
            ]
        return self._found(to, of, at)

    def _of_dependencies(self, reader: dict[str, Any], writer: dict[str, Any], where: str) -> list[Problem]:
        found: list[Problem] = []
        mine, others = _dependencies(reader), _dependencies(writer)
        for name, to in mine.items():
            at, of = f"{where}/{_step(name)}", others.get(name)
            if isinstance(to, list):
                if not isinstance(of, list):
                    sentence = "{reader} requires properties beside this one, {writer} does not"
                    found.append(self._problem("DEPENDENCY_ARRAY_ADDED", at, sentence))
                elif not set(map(str, to)) <= set(map(str, of)):
                    extended = set(map(str, of)) <= set(map(str, to))
                    kind = "DEPENDENCY_ARRAY_EXTENDED" if extended else "DEPENDENCY_ARRAY_CHANGED"
                    sentence = "{reader} requires properties beside this one that {writer} does not require"
                    found.append(self._problem(kind, at, sentence))
            elif of is None or isinstance(of, list):
                sentence = "{reader} has a schema for objects with this property, {writer} has none"
                found.append(self._problem("DEPENDENCY_SCHEMA_ADDED", at, sentence))
            else:
                found += self._found(to, of, at)
        return found

    # --- arrays ---

    def _of_arrays(self, reader: JsonShape, writer: JsonShape, where: str) -> list[Problem]:
        to, of = reader.node, writer.node
        (mine, to_rest), (others, of_rest) = _items(to), _items(of)
        found: list[Problem] = []
        for index in range(max(len(mine), len(others))):
            at = f"{where}/items/{index}"
            if index >= len(mine):
                found += self._of_removed_item(to_rest, others[index], at)
            elif index >= len(others):
                found += self._of_added_item(of_rest, mine[index], at)
            else:
                found += self._found(mine[index], others[index], at)
        if not mine and not others:
            found += self._found(to_rest, of_rest, f"{where}/items")
        else:
            pair = ({"additionalItems": to_rest}, {"additionalItems": of_rest})
            found += self._of_others("additionalItems", *pair, where)
        found += self._of_others("unevaluatedItems", to, of, where)
        if to.get("uniqueItems") is True and of.get("uniqueItems") is not True:
            sentence = "{reader} takes no item twice, {writer} does"
            found.append(self._problem("UNIQUE_ITEMS_ADDED", f"{where}/uniqueItems", sentence))
        return found

    def _of_removed_item(self, rest: Any, old: Any, at: str) -> list[Problem]:
        if _is_anything(rest) or old is False:
            return []
        if rest is False:
            sentence = "{reader} lacks the item of {writer}, and takes no other ones (closed content model)"
            return [self._problem("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", at, sentence)]
        found = self._found(rest, old, at)
        if found:
            kind = "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            sentence = "{reader} lacks the item, and what it says about others does not take that of {writer}"
            found = [*found, self._problem(kind, at, sentence)]
        return found

    def _of_added_item(self, rest: Any, new: Any, at: str) -> list[Problem]:
        if rest is False or _is_anything(new):
            return []
        if _is_anything(rest):
            sentence = "{reader} has a schema for the item, {writer} takes any value (open content model)"
            return [self._problem("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", at, sentence)]
        found = self._found(new, rest, at)
        if found:
            kind = "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            sentence = (
                "{reader} has a schema for the item, and does not take all that {writer} takes for others"
            )
            found = [*found, self._problem(kind, at, sentence)]
        return found


def _words(shape: JsonShape) -> str:
    if shape.kind == COMBINED:
        return f"{shape.criterion} of {len(shape.parts)}"
    return "integers" if shape.whole else f"{shape.kind} values"


def _extends(reader: JsonShape, writer: JsonShape) -> bool:
    """Whether another criterion only takes more."""
    one, other = len(reader.parts) == 1, len(writer.parts) == 1
    return (
        reader.criterion == ANY_OF
        or (one and other)
        or (other and reader.criterion == ONE_OF)
        or (one and writer.criterion == ALL_OF)
    )


def _key(value: Any) -> str:
    """A value as JSON compares it: 1.0 is 1, and the order of an object's keys means nothing."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{_key(each)}" for name, each in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_key, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return repr(value)


def _each_once(parts: Iterable[Any]) -> list[Any]:
    return list({id(each) if isinstance(each, JsonShape) else _key(each): each for each in parts}.values())


def _matched(fits: list[list[int]]) -> int:
    """The most pairs, each side used once. ``fits``: for each of one side those of the other one."""
    taken = dict[int, int]()

    def place(one: int, tried: set[int]) -> bool:
        for other in fits[one]:
            if other not in tried:
                tried.add(other)
                if other not in taken or place(taken[other], tried):
                    taken[other] = one
                    return True
        return False

    return sum(place(one, set()) for one in range(len(fits)))


def _number(node: dict[str, Any], keyword: str) -> int | float | None:
    """None: there is none. A draft that does not know a keyword takes anything for it."""
    value = node.get(keyword)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _step_of(node: dict[str, Any]) -> Fraction | None:
    """``multipleOf`` as it is written: as a float, 0.3 is no multiple of 0.1."""
    value = _number(node, "multipleOf")
    return Fraction(str(value)) if value is not None and value > 0 else None


def _map(node: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = node.get(keyword)
    return value if isinstance(value, dict) else {}


def _texts(node: dict[str, Any], keyword: str) -> set[str]:
    value = node.get(keyword)
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def _dependencies(node: dict[str, Any]) -> dict[str, Any]:
    return {
        **_map(node, "dependencies"),
        **_map(node, "dependentRequired"),
        **_map(node, "dependentSchemas"),
    }


def _items(node: dict[str, Any]) -> tuple[list[Any], Any]:
    """The schemas by place, and that of all others."""
    prefix, items = node.get("prefixItems"), node.get("items", True)
    if isinstance(prefix, list):
        return prefix, items
    if isinstance(items, list):
        return items, node.get("additionalItems", True)
    return [], items


def _is_anything(schema: Any) -> bool:
    return schema is True or schema == {}


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _rest_of(node: dict[str, Any], *keywords: str) -> Any:
    """The schema for what has none of its own, or None for any or no value."""
    for keyword in keywords:
        schema = node.get(keyword)
        if schema is False:
            return None
        if schema is not None and not _is_anything(schema):
            return schema
    return None


def _is_open(node: dict[str, Any], additional: str, unevaluated: str, patterns: str) -> bool:
    return (
        _is_anything(node.get(additional, True))
        and not node.get(patterns)
        and (additional in node or _is_anything(node.get(unevaluated, True)))
    )


def _upper_name(keyword: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in keyword)


def _step(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:77]}..."
