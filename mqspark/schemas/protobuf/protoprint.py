"""A descriptor of Protobuf as text, in one order: what the registry stores and compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqspark.schemas.protobuf.prototext import (
    ENUM,
    GROUP,
    MAX_ENUM,
    MAX_FIELD,
    MESSAGE,
    OPTIONAL,
    REPEATED,
    REQUIRED,
    SCALARS,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_NAMES = {number: name for name, number in SCALARS.items()}
_LABELS = {OPTIONAL: "optional ", REQUIRED: "required ", REPEATED: "repeated "}
_PLAIN = {"\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def print_proto(found: FileDescriptorProto) -> str:
    return _Printer(found).file()


class _Printer:
    def __init__(self, found: FileDescriptorProto) -> None:
        self._found = found
        self._lines: list[str] = []
        self._indent = ""

    def file(self) -> str:
        found = self._found
        if found.syntax == "editions":
            name = found.DESCRIPTOR.fields_by_name["edition"].enum_type.values_by_number[found.edition].name
            self._line(f'edition = "{name.removeprefix("EDITION_")}";')
        else:
            self._line(f'syntax = "{found.syntax or "proto2"}";')
        if found.package:
            self._line(f"package {found.package};")
        for index, name in enumerate(found.dependency):
            modifier = "public " if index in found.public_dependency else ""
            modifier = "weak " if index in found.weak_dependency else modifier
            self._line(f"import {modifier}{_quoted(name)};")
        self._options(found.options)
        for message in found.message_type:
            self._message(message)
        for enum in found.enum_type:
            self._enum(enum)
        self._extensions(found.extension, found.message_type)
        for service in found.service:
            self._service(service)
        return "\n".join(self._lines) + "\n"

    def _line(self, text: str) -> None:
        self._lines.append(self._indent + text)

    def _open(self, text: str) -> None:
        self._line(f"{text} {{")
        self._indent += "  "

    def _close(self) -> None:
        self._indent = self._indent[2:]
        self._line("}")

    def _options(self, options: Any) -> None:
        for each in _set_options(options):
            self._line(f"option {each};")

    def _message(self, found: Any, head: str = "") -> None:
        self._open(head or f"message {found.name}")
        self._options(found.options)
        self._reserved(found, 1, MAX_FIELD)
        for each in found.extension_range:
            self._line(f"extensions {_range(each.start, each.end - 1, MAX_FIELD)};")
        by_name = {each.name: each for each in found.nested_type}
        printed = set[int]()
        for field in found.field:
            self._field_of(field, found, by_name, printed)
        groups = {_last(field.type_name) for field in (*found.field, *found.extension) if field.type == GROUP}
        for message in found.nested_type:
            if not message.options.map_entry and message.name not in groups:
                self._message(message)
        for enum in found.enum_type:
            self._enum(enum)
        self._extensions(found.extension, found.nested_type)
        self._close()

    def _field_of(self, field: Any, message: Any, by_name: dict[str, Any], printed: set[int]) -> None:
        if not field.HasField("oneof_index") or field.proto3_optional:
            self._field(field, by_name)
            return
        index = field.oneof_index
        if index in printed:
            return
        printed.add(index)
        self._open(f"oneof {message.oneof_decl[index].name}")
        self._options(message.oneof_decl[index].options)
        for each in message.field:
            if each.HasField("oneof_index") and each.oneof_index == index and not each.proto3_optional:
                self._field(each, by_name, label="")
        self._close()

    def _field(self, field: Any, by_name: dict[str, Any], label: str | None = None) -> None:
        entry = by_name.get(_last(field.type_name)) if field.type == MESSAGE else None
        if label is None:
            implied = self._found.syntax in ("proto3", "editions") and field.label == OPTIONAL
            label = "" if implied and not field.proto3_optional else _LABELS[field.label]
        of = _NAMES.get(field.type) or field.type_name
        if entry is not None and entry.options.map_entry:
            key, value = entry.field
            label, of = "", f"map<{_NAMES[key.type]}, {_NAMES.get(value.type) or value.type_name}>"
        if field.type == GROUP and (group := by_name.get(_last(field.type_name))) is not None:
            self._message(group, f"{label}group {group.name} = {field.number}{_in_brackets(field)}")
            return
        self._line(f"{label}{of} {field.name} = {field.number}{_in_brackets(field)};")

    def _extensions(self, fields: Any, messages: Any) -> None:
        by_name = {each.name: each for each in messages}
        for field in fields:
            self._open(f"extend {field.extendee}")
            self._field(field, by_name)
            self._close()

    def _reserved(self, found: Any, behind: int, most: int) -> None:
        for each in found.reserved_range:
            self._line(f"reserved {_range(each.start, each.end - behind, most)};")
        for name in found.reserved_name:
            self._line(f"reserved {name if self._found.syntax == 'editions' else _quoted(name)};")

    def _enum(self, found: Any) -> None:
        self._open(f"enum {found.name}")
        self._options(found.options)
        self._reserved(found, 0, MAX_ENUM)
        for value in found.value:
            self._line(f"{value.name} = {value.number}{_in_brackets(value)};")
        self._close()

    def _service(self, found: Any) -> None:
        self._open(f"service {found.name}")
        self._options(found.options)
        for each in found.method:
            sent = f"{'stream ' if each.client_streaming else ''}{each.input_type}"
            answered = f"{'stream ' if each.server_streaming else ''}{each.output_type}"
            head = f"rpc {each.name}({sent}) returns ({answered})"
            if _set_options(each.options):
                self._open(head)
                self._options(each.options)
                self._close()
            else:
                self._line(f"{head};")
        self._close()


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _range(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == most else last}"


def _quoted(text: str) -> str:
    return '"' + "".join(_PLAIN.get(each, each) for each in text) + '"'


def _in_brackets(found: Any) -> str:
    shown = list[str]()
    if found.DESCRIPTOR.name == "FieldDescriptorProto":
        if found.HasField("default_value"):
            quoted = found.type in (SCALARS["string"], SCALARS["bytes"])
            shown.append(f"default = {_quoted(found.default_value) if quoted else found.default_value}")
        if found.HasField("json_name") and found.json_name != default_json_name(found.name):
            shown.append(f"json_name = {_quoted(found.json_name)}")
    shown += _set_options(found.options)
    return f" [{', '.join(shown)}]" if shown else ""


def default_json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _set_options(options: Any, prefix: str = "") -> list[str]:
    """``name = value``, by name. Those of extensions are not among them."""
    shown = list[str]()
    for field, value in sorted(options.ListFields(), key=lambda found: str(found[0].name)):
        name = prefix + field.name
        if field.is_extension or field.name in ("uninterpreted_option", "map_entry"):
            continue
        if field.message_type is not None:
            if not field.is_repeated:
                shown += _set_options(value, f"{name}.")
            continue
        shown += [f"{name} = {_value(field, each)}" for each in (value if field.is_repeated else [value])]
    return shown


def _value(field: Any, value: Any) -> str:
    if field.type == ENUM:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)
