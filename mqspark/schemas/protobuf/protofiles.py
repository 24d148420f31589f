"""A .proto file among those that it imports: its types by name, and the checked descriptors.

Files of ``google/protobuf/`` are known; all others are references. Facts: descriptor.proto, "Name resolution".
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.parsedschema import MAX_NAME_LENGTH, MAX_SCHEMA_DEPTH, PROTOBUF, needs_extra
from mqspark.schemas.protobuf.prototext import ENUM, GROUP, MESSAGE

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_KNOWN_FOLDER = "google/protobuf/"
_KNOWN = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
    "wrappers",
)  # fmt: skip


class TypeEntry(NamedTuple):
    """``found``: a DescriptorProto or EnumDescriptorProto."""

    name: str
    """Full name, without a dot in front."""
    package: str
    found: Any
    is_message: bool
    file: str

    @property
    def local_name(self) -> str:
        return self.name.removeprefix(f"{self.package}.") if self.package else self.name


def known_file(name: str) -> FileDescriptorProto | None:
    """One that comes with Protobuf. Raises ConfigError without the extra."""
    short = name.removeprefix(_KNOWN_FOLDER).removesuffix(".proto")
    if not name.startswith(_KNOWN_FOLDER) or short not in _KNOWN:
        return None
    try:
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise needs_extra(PROTOBUF, error) from None
    made = descriptor_pb2.FileDescriptorProto()
    importlib.import_module(f"google.protobuf.{short}_pb2").DESCRIPTOR.CopyToProto(made)
    return made


def all_files(
    root: FileDescriptorProto, needed: Mapping[str, FileDescriptorProto]
) -> list[FileDescriptorProto]:
    """Those that a file imports, directly or not, each before what imports it; the file itself last.

    Raises InvalidSchema for an import that is neither known nor needed, and for a circle."""
    order: list[FileDescriptorProto] = []
    state = dict[str, int]()

    def found(name: str) -> FileDescriptorProto:
        file = needed.get(name)
        if file is None:
            file = known_file(name)
        if file is None:
            raise InvalidSchema(f"the import {name[:200]!r} is none of the references", kind=PROTOBUF)
        return file

    waiting: list[tuple[str, FileDescriptorProto, bool]] = [("", root, False)]
    while waiting:
        name, file, leaving = waiting.pop()
        if leaving:
            state[name] = 2
            order.append(file)
        elif state.get(name) != 2:
            state[name] = 1
            waiting.append((name, file, True))
            for inner in reversed(file.dependency):
                if state.get(inner) == 1:
                    raise InvalidSchema(f"the import {inner[:200]!r} leads back to itself", kind=PROTOBUF)
                if state.get(inner) != 2:
                    waiting.append((inner, found(inner), False))
    return order


def types_of(file: FileDescriptorProto) -> Iterator[TypeEntry]:
    """Raises SchemaTooLarge."""
    package = file.package
    _check_length(package)
    waiting: list[tuple[str, Any, bool]] = [
        *((package, each, True) for each in file.message_type),
        *((package, each, False) for each in file.enum_type),
    ]
    while waiting:
        scope, each, is_message = waiting.pop()
        name = f"{scope}.{each.name}" if scope else each.name
        _check_length(name)
        yield TypeEntry(name, package, each, is_message, file.name)
        if is_message:
            waiting += [(name, inner, True) for inner in each.nested_type]
            waiting += [(name, inner, False) for inner in each.enum_type]


def _check_length(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise SchemaTooLarge("letters of a full name", MAX_NAME_LENGTH, kind=PROTOBUF)
    if name.count(".") > MAX_SCHEMA_DEPTH:  # a name is looked for in each part
        raise SchemaTooLarge("parts of a full name", MAX_SCHEMA_DEPTH, kind=PROTOBUF)


def resolve_names(file: FileDescriptorProto, types: Mapping[str, TypeEntry]) -> None:
    """Give every name of a type its full form, with a dot in front. Raises InvalidSchema."""
    waiting: list[tuple[str, Any]] = [(file.package, file)]
    while waiting:
        scope, each = waiting.pop()
        is_file = each is file
        for field in (*(() if is_file else each.field), *each.extension):
            if field.type_name:
                entry = _resolved(field.type_name, scope, types)
                field.type_name = f".{entry.name}"
                if not entry.is_message:
                    field.type = ENUM
                elif field.type != GROUP:
                    field.type = MESSAGE
            if field.extendee:
                field.extendee = f".{_resolved(field.extendee, scope, types).name}"
        messages = each.message_type if is_file else each.nested_type
        waiting += [(f"{scope}.{inner.name}" if scope else inner.name, inner) for inner in messages]
    for service in file.service:
        for method in service.method:
            for attribute in ("input_type", "output_type"):
                entry = _resolved(getattr(method, attribute), file.package, types)
                setattr(method, attribute, f".{entry.name}")


def _resolved(name: str, scope: str, types: Mapping[str, TypeEntry]) -> TypeEntry:
    """From the innermost scope outwards."""
    if name.startswith("."):
        found = types.get(name[1:])
    else:
        while (found := types.get(f"{scope}.{name}" if scope else name)) is None and scope:
            scope = scope.rpartition(".")[0]
    if found is None:
        raise InvalidSchema(
            f"the type {name[:200]!r} is neither in the file nor in its imports", kind=PROTOBUF
        )
    return found


def checked_pool(files: list[FileDescriptorProto]) -> Any:
    """A pool with all of them, checked by Protobuf's own library. Raises InvalidSchema."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for file in files:
        try:
            pool.Add(file)
        except TypeError as error:
            problem = str(error).partition(": ")[2] or str(error)
            raise InvalidSchema(problem[:400], kind=PROTOBUF) from None
    return pool
