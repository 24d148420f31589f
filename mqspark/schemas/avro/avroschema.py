"""Avro schemas: the text parsed to types, and printed as Avro's own Java library prints it.

Facts: Avro's specification, "Schema Declaration" and "Schema Resolution"; Schema.Parser, Schema.toString (Avro).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.avro.avrocheck import payload_checks
from mqspark.schemas.avro.avrocompat import Resolution
from mqspark.schemas.avro.avrodefaults import AvroDefaults
from mqspark.schemas.avro.avrotypes import NAMED, PRIMITIVES, AvroField, AvroType, all_types
from mqspark.schemas.jsontexts import check_nesting, compact, json_document
from mqspark.schemas.parsedschema import (
    AVRO,
    MAX_NAME_LENGTH,
    MAX_NODES,
    MAX_SCHEMA_DEPTH,
    Check,
    Effort,
    Needed,
    Schema,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_NAME = 1_000
_MAX_NESTING = 3 * MAX_SCHEMA_DEPTH
"""Values of the text inside each other: a record is an object in the list of fields of another one."""
_ORDERS = ("ascending", "descending", "ignore")
_OF_TYPES = frozenset({
    "type", "name", "namespace", "doc", "fields", "items", "values", "size", "symbols", "aliases",
})  # fmt: skip
"""Attributes that are part of the language; others are properties, which are kept."""
_OF_FIELDS = frozenset({"name", "type", "doc", "default", "order", "aliases"})


class AvroSchema(Schema):
    kind = AVRO

    def __init__(self, text: str, needed: Needed = ()) -> None:
        super().__init__(text, needed)
        self.names = dict[str, AvroType]()
        """Types by full name: of this text, and of the schemas that it needs."""
        for schema in self.all_needed.values():
            if isinstance(schema, AvroSchema):
                self.names.update(schema.names)
        self._of_others = frozenset(self.names)
        try:
            self.root = _AvroSchemaReader(self.names).read(_decoded(text))
            self._check, self._batch_check = payload_checks(self.root)
        except RecursionError:
            raise SchemaTooLarge(
                "types inside each other by their names", MAX_SCHEMA_DEPTH, kind=AVRO
            ) from None

    @cached_property
    def canonical(self) -> str:
        return compact(_printed(self.root, "", set(self._of_others)))

    @cached_property
    def sound_text(self) -> str:
        """For readers that refuse a schema where Avro ignores a logical type."""
        return compact(_printed(self.root, "", set(self._of_others), sound=True))

    @cached_property
    def normalized(self) -> str:
        return compact(_sorted(json.loads(self.canonical)))

    def check(self, indexes: Sequence[int] = ()) -> Check:
        if indexes:
            raise InvalidSchema("an Avro schema has no indexes of messages", kind=AVRO)
        return self._check

    def batch_check(self, effort: Effort, indexes: Sequence[int] = ()) -> Check:
        self.check(indexes)
        return self._batch_check(effort)

    def incompatibilities_of(self, writer: Schema, me: str, other: str) -> list[tuple[str, str, str]]:
        if not isinstance(writer, AvroSchema):
            raise TypeError(f"{writer} is no Avro schema")
        return Resolution(me, other).problems(self.root, writer.root)


def _decoded(text: str) -> Any:
    """A text that is no JSON is the name of a type."""
    bare = text.strip()
    if _NAME.match(bare.rpartition(".")[2]) and "." not in bare[-1:]:
        return bare
    found = json_document(text, AVRO)
    check_nesting(found, _MAX_NESTING, AVRO)
    return found


class _AvroSchemaReader:
    """Makes types of one text."""

    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names
        self._defaults = AvroDefaults()
        self._nodes = self._depth = 0
        self._path: list[str] = []

    def read(self, found: Any) -> AvroType:
        root = self._type(found, "")
        for each in all_types(root):
            self._check_defaults(each)
        return root

    def _type(self, found: Any, space: str) -> AvroType:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise SchemaTooLarge("types, fields and values", MAX_NODES, kind=AVRO)
        if isinstance(found, str):
            return self._by_name(found, space)
        if isinstance(found, list):
            return self._union(found, space)
        if not isinstance(found, dict):
            raise self._invalid(f"a type is a name, an object or a list, not {_short(found)}")
        return self._object_type(found, space)

    def _by_name(self, name: str, space: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not space else f"{space}.{name}"
        known = self._names.get(full) or self._names.get(name)
        if known is None:
            raise self._invalid(f"the type {_short(name)} is neither defined before nor in a reference")
        return known

    def _union(self, found: list[Any], space: str) -> AvroType:
        branches = []
        seen = set[str]()
        for index, each in enumerate(found):
            with_path = self._inside(str(index), each, space)
            if with_path.type == "union":
                raise self._invalid("a union is directly inside a union")
            if with_path.fullname in seen:
                raise self._invalid(f"a union has {with_path.fullname} twice")
            seen.add(with_path.fullname)
            branches.append(with_path)
        return AvroType("union", parts=branches)

    def _inside(self, step: str, found: Any, space: str) -> AvroType:
        self._path.append(step)
        self._depth += 1
        if self._depth > MAX_SCHEMA_DEPTH:
            raise SchemaTooLarge("types inside each other", MAX_SCHEMA_DEPTH, kind=AVRO)
        made = self._type(found, space)
        self._depth -= 1
        self._path.pop()
        return made

    def _object_type(self, found: dict[str, Any], space: str) -> AvroType:
        kind = found.get("type")
        if isinstance(kind, dict | list) and set(found) == {"type"}:
            return self._inside("type", kind, space)
        if not isinstance(kind, str):
            raise self._invalid(f"the type of an object is {_short(kind)}")
        kind = "record" if kind == "error" else kind
        if kind in PRIMITIVES:
            return AvroType(kind, properties=_properties(found, _OF_TYPES))
        if kind == "array":
            made = AvroType(kind, properties=_properties(found, _OF_TYPES))
            made.parts = [self._inside("items", self._attribute(found, "items"), space)]
            return made
        if kind == "map":
            made = AvroType(kind, properties=_properties(found, _OF_TYPES))
            made.parts = [self._inside("values", self._attribute(found, "values"), space)]
            return made
        if kind in NAMED:
            return self._named(kind, found, space)
        if "name" in found:
            raise self._invalid(f"a named type is a record, an enum or a fixed, not {_short(kind)}")
        return self._by_name(kind, space)

    def _attribute(self, found: dict[str, Any], name: str) -> Any:
        if name not in found:
            raise self._invalid(f"{_short(found.get('type'))} needs {name!r}")
        return found[name]

    def _named(self, kind: str, found: dict[str, Any], space: str) -> AvroType:
        full = self._full_name(self._attribute(found, "name"), found.get("namespace"), space)
        if full in self._names:
            raise self._invalid(f"the name {full} is defined twice")
        inner = full.rpartition(".")[0]
        made = AvroType(kind, name=full, doc=self._text(found, "doc"))
        made.properties = _properties(found, _OF_TYPES)
        made.aliases = [self._full_name(each, None, inner) for each in self._names_in(found, "aliases")]
        if kind == "record":
            self._names[full] = made
            self._fields(made, self._attribute(found, "fields"), inner)
        elif kind == "enum":
            made.symbols = self._symbols(found)
            made.default = made.properties.pop("default", None)
            if made.default is not None and made.default not in made.symbols:
                raise self._invalid(f"the default of enum {full} is none of its symbols")
        else:
            size = self._attribute(found, "size")
            if type(size) is not int or not 0 <= size < 1 << 31:
                raise self._invalid(f"the size of fixed {full} is {_short(size)}")
            made.size = size
        self._names[full] = made
        return made

    def _fields(self, record: AvroType, found: Any, space: str) -> None:
        if not isinstance(found, list):
            raise self._invalid("the fields of a record are a list")
        seen = set[str]()
        for index, each in enumerate(found):
            self._path += ("fields", str(index))
            if not isinstance(each, dict):
                raise self._invalid(f"a field is an object, not {_short(each)}")
            name = self._attribute(each, "name")
            self._check_name(name)
            if name in seen:
                raise self._invalid(f"record {record.fullname} has the field {name} twice")
            seen.add(name)
            field = AvroField(name, self._inside("type", self._attribute(each, "type"), space))
            field.doc = self._text(each, "doc")
            field.order = each.get("order", "ascending")
            if field.order not in _ORDERS:
                raise self._invalid(f"the order of a field is {_short(field.order)}")
            field.aliases = self._names_in(each, "aliases")
            field.has_default = "default" in each
            field.default = each.get("default")
            field.properties = _properties(each, _OF_FIELDS)
            record.fields.append(field)
            del self._path[-2:]

    def _symbols(self, found: dict[str, Any]) -> list[str]:
        symbols = self._attribute(found, "symbols")
        if not isinstance(symbols, list):
            raise self._invalid("the symbols of an enum are a list")
        self._nodes += len(symbols)
        for each in symbols:
            self._check_name(each)
        if len(set(symbols)) != len(symbols):
            raise self._invalid("an enum has a symbol twice")
        return symbols

    def _check_defaults(self, record: AvroType) -> None:
        for field in record.fields:
            if field.has_default and not self._defaults.fit(field.default, field.type):
                self._path = [record.fullname, field.name]
                problem = f"the default {_short(field.default)} does not fit the type {field.type.fullname}"
                raise self._invalid(problem)

    def _full_name(self, name: Any, namespace: Any, space: str) -> str:
        if not isinstance(name, str):
            raise self._invalid(f"a name is {_short(name)}")
        if "." in name:
            namespace, _, name = name.rpartition(".")
        elif namespace is None:
            namespace = space
        if not isinstance(namespace, str):
            raise self._invalid(f"a namespace is {_short(namespace)}")
        self._check_name(name)
        if not namespace and name in PRIMITIVES:
            raise self._invalid(f"the name {name} is that of a primitive type")
        for part in namespace.split(".") if namespace else ():
            self._check_name(part)
        full = f"{namespace}.{name}" if namespace else name
        if len(full) > MAX_NAME_LENGTH:
            raise SchemaTooLarge("letters of a full name", MAX_NAME_LENGTH, kind=AVRO)
        return full

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str) or len(name) > _MAX_NAME or not _NAME.match(name):
            raise self._invalid(f"the name {_short(name)} is not made of letters, digits and _ alone")

    def _names_in(self, found: dict[str, Any], attribute: str) -> list[str]:
        names = found.get(attribute, [])
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise self._invalid(f"{attribute!r} is no list of names")
        self._nodes += len(names)
        return names

    def _text(self, found: dict[str, Any], attribute: str) -> str | None:
        text = found.get(attribute)
        if text is not None and not isinstance(text, str):
            raise self._invalid(f"{attribute!r} is no text")
        return text

    def _invalid(self, problem: str) -> InvalidSchema:
        return InvalidSchema(problem, kind=AVRO, where="/" + "/".join(self._path))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _properties(found: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in known}


# --- printing ---


def _printed(of: AvroType, space: str, known: set[str], *, sound: bool = False) -> Any:
    """``sound``: without the logical type of decimals that are none."""
    properties = of.properties
    if sound and of.is_decimal and of.decimal is None:
        properties = {name: value for name, value in properties.items() if name != "logicalType"}
    if of.type == "union":
        return [_printed(each, space, known, sound=sound) for each in of.parts]
    if of.type in PRIMITIVES:
        return {"type": of.type, **properties} if properties else of.type
    if of.type in ("array", "map"):
        name = "items" if of.type == "array" else "values"
        return {"type": of.type, name: _printed(of.parts[0], space, known, sound=sound), **properties}
    own, _, short = of.name.rpartition(".")
    if of.name in known:
        return short if own == space else of.name
    known.add(of.name)
    made: dict[str, Any] = {"type": of.type, "name": short}
    if own != space:
        made["namespace"] = own
    if of.doc is not None:
        made["doc"] = of.doc
    if of.type == "record":
        made["fields"] = [_printed_field(field, own, known, sound=sound) for field in of.fields]
    elif of.type == "enum":
        made["symbols"] = of.symbols
        if of.default is not None:
            made["default"] = of.default
    else:
        made["size"] = of.size
    made |= properties
    if of.aliases:
        made["aliases"] = [_relative(each, own) for each in of.aliases]
    return made


def _printed_field(field: AvroField, space: str, known: set[str], *, sound: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.name, "type": _printed(field.type, space, known, sound=sound)}
    if field.doc is not None:
        made["doc"] = field.doc
    if field.has_default:
        made["default"] = field.default
    if field.order != "ascending":
        made["order"] = field.order
    if field.aliases:
        made["aliases"] = field.aliases
    return made | field.properties


def _relative(name: str, space: str) -> str:
    own, _, short = name.rpartition(".")
    return short if own == space else name


def _sorted(found: Any) -> Any:
    """Properties by name, behind what is part of the language."""
    if isinstance(found, list):
        return [_sorted(each) for each in found]
    if not isinstance(found, dict):
        return found
    known = _OF_TYPES | _OF_FIELDS
    names = [*(name for name in found if name in known), *sorted(name for name in found if name not in known)]
    return {name: found[name] if name == "default" else _sorted(found[name]) for name in names}
