"""The classes of ``messaging.proto``, from its descriptor ``messaging.binpb``.

protoc's own module in Python would work only with the version of protobuf that made it, and newer ones; a descriptor
works with all. The types are in ``messaging_pb2.pyi``, from protoc, too.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,  # noqa: F401 - the descriptor refers to it, and to the next
    message_factory,
    timestamp_pb2,  # noqa: F401
)
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


def _descriptor() -> object:
    described = descriptor_pb2.FileDescriptorSet.FromString(
        Path(__file__).with_name("messaging.binpb").read_bytes()
    )
    return descriptor_pool.Default().AddSerializedFile(described.file[0].SerializeToString())


DESCRIPTOR = _descriptor()
for _name, _type in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_type)
    globals()[_name].__module__ = __name__
for _name, _type in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_type)
    globals().update({value.name: value.number for value in _type.values})
