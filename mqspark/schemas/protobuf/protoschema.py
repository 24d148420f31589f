"""Protobuf schemas: a .proto text, or a FileDescriptorProto in base64, which some clients register.

Both are one schema if they say the same: what is compared and kept is the text that is printed of the descriptor. A
descriptor that says what no text can is none.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.parsedschema import MAX_NODES, PROTOBUF, Check, Effort, Needed, Schema
from mqspark.schemas.protobuf.protocheck import PayloadChecks, WireChecks
from mqspark.schemas.protobuf.protocompat import ProtoComparison
from mqspark.schemas.protobuf.protofiles import TypeEntry, all_files, checked_pool, resolve_names, types_of
from mqspark.schemas.protobuf.protoprint import print_proto
from mqspark.schemas.protobuf.prototext import SCALARS, descriptors, read_proto

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_FILE_NAME = "schema.proto"


class ProtobufSchema(Schema):
    kind = PROTOBUF

    def __init__(self, text: str, needed: Needed = ()) -> None:
        super().__init__(text, needed)
        self.file = self._read(text)
        """The FileDescriptorProto, with full names of types."""
        others = {
            name: each.file for name, each in self.all_needed.items() if isinstance(each, ProtobufSchema)
        }
        for name, file in others.items():
            if file.name != name:
                others[name] = _renamed(file, name)
        self.files = all_files(self.file, others)
        """With what it imports, each file before those that import it."""
        self.types = dict[str, TypeEntry]()
        for file in self.files:
            self.types.update((entry.name, entry) for entry in types_of(file))
        if (
            len(self.types) + sum(len(entry.found.field) for entry in self.types.values() if entry.is_message)
            > MAX_NODES
        ):
            raise SchemaTooLarge("types and fields", MAX_NODES, kind=PROTOBUF)
        resolve_names(self.file, self.types)
        self.pool = checked_pool(self.files)
        """A DescriptorPool with them."""
        lenient = frozenset(file.name for file in self.files if file.syntax in ("", "proto2"))
        self._payload_checks = PayloadChecks(lenient)
        self._checks = dict[str, WireChecks]()
        """By full name of the message."""

    def _read(self, text: str) -> FileDescriptorProto:
        file = self._decoded("".join(text.split()))
        if file is None:
            file = read_proto(text)
        file.name = _FILE_NAME
        while file.name in self.all_needed:
            file.name = f"_{file.name}"
        return file

    @staticmethod
    def _decoded(text: str) -> FileDescriptorProto | None:
        """None: the text is no base64. Raises InvalidSchema."""
        if _BASE64.fullmatch(text) is None:
            return None
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            return None
        pb = descriptors()
        from google.protobuf.message import DecodeError

        try:
            made = pb.FileDescriptorProto.FromString(data)
        except DecodeError:
            raise InvalidSchema("the base64 is no FileDescriptorProto", kind=PROTOBUF) from None
        if _has_bytes_as_text(made):
            raise InvalidSchema("a text of the FileDescriptorProto is not UTF-8", kind=PROTOBUF)
        try:
            printed = print_proto(made)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            raise InvalidSchema(
                "the FileDescriptorProto says what no .proto text can", kind=PROTOBUF
            ) from None
        return read_proto(printed)

    @cached_property
    def canonical(self) -> str:
        return print_proto(self.file)

    @property
    def normalized(self) -> str:
        """What has no order is printed in one already."""
        return self.canonical

    @property
    def serialized(self) -> str:
        """In base64 (``format=serialized``)."""
        return base64.b64encode(self.file.SerializeToString(deterministic=True)).decode()

    def message_name(self, indexes: Sequence[int]) -> str:
        """Full name of the message that a path of indexes leads to; the first one of the file without a path.

        Raises InvalidSchema."""
        found: Any = None
        messages, parts = self.file.message_type, [self.file.package] if self.file.package else []
        for index in indexes or (0,):
            if index >= len(messages):
                where = "/".join(map(str, indexes)) or "0"
                raise InvalidSchema("the file has no such message", kind=PROTOBUF, where=f"indexes {where}")
            found = messages[index]
            parts.append(found.name)
            messages = found.nested_type
        return ".".join(parts)

    def check(self, indexes: Sequence[int] = ()) -> Check:
        return self._checks_of(indexes).alone

    def batch_check(self, effort: Effort, indexes: Sequence[int] = ()) -> Check:
        return self._checks_of(indexes).of_batch(effort)

    def _checks_of(self, indexes: Sequence[int]) -> WireChecks:
        name = self.message_name(indexes)
        checks = self._checks.get(name)
        if checks is None:
            checks = self._checks[name] = self._payload_checks.of(self.pool.FindMessageTypeByName(name))
        return checks

    def incompatibilities_of(self, writer: Schema, me: str, other: str) -> list[tuple[str, str, str]]:
        if not isinstance(writer, ProtobufSchema):
            raise TypeError(f"{writer} is no Protobuf schema")
        return ProtoComparison(self.types, writer.types, me, other).problems(self.file, writer.file)


def _has_bytes_as_text(found: Any) -> bool:
    """What Protobuf gives for a text of proto2 that is not UTF-8."""
    waiting = [found]
    while waiting:
        for field, value in waiting.pop().ListFields():
            values = value if field.is_repeated else [value]
            if field.message_type is not None:
                waiting += values
            elif field.type == SCALARS["string"] and any(isinstance(each, bytes) for each in values):
                return True
    return False


def _renamed(file: FileDescriptorProto, name: str) -> FileDescriptorProto:
    made = type(file)()
    made.CopyFrom(file)
    made.name = name
    return made
