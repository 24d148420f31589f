"""The messages of the gRPC service: compiled from their file, and equal to those of RocketMQ's own client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from mqspark_server.proxy import messaging_pb2

SERVER = Path(__file__).parents[4] / "server"
PLACE = "mqspark_server/proxy/messaging"


def test_compiling_the_file_again_changes_nothing(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{SERVER}"),
            *(f"--descriptor_set_out={tmp_path / 'messaging.binpb'}", f"--pyi_out={tmp_path}"),
            f"{PLACE}.proto",
        ],
        check=True,
    )
    made = (tmp_path / "messaging.binpb").read_bytes()
    assert made == (SERVER / f"{PLACE}.binpb").read_bytes()
    assert (tmp_path / f"{PLACE}_pb2.pyi").read_text() == (SERVER / f"{PLACE}_pb2.pyi").read_text()


def shape(message: Descriptor) -> dict[str, object]:
    """What is on the wire, by the numbers of fields."""

    def kind(field: FieldDescriptor) -> object:
        if field.message_type is None:
            return field.type if field.enum_type is None else field.enum_type.name
        if field.message_type.GetOptions().map_entry:
            return shape(field.message_type)
        return field.message_type.name

    return {
        field.name: (field.number, field.type, field.is_repeated, field.has_presence, kind(field))
        for field in message.fields
    }


def values(enum: EnumDescriptor) -> dict[str, int]:
    return {each.name: each.number for each in enum.values}


def test_one_process_has_the_classes_of_rocketmq_too_and_they_agree() -> None:
    import rocketmq.grpc_protocol.admin_pb2  # noqa: F401 - registers its messages beside ours

    pool = descriptor_pool.Default()
    ours = messaging_pb2.DESCRIPTOR
    for name, message in ours.message_types_by_name.items():
        theirs = pool.FindMessageTypeByName(f"apache.rocketmq.v2.{name}")
        newer = set(shape(message)) - set(shape(theirs))
        assert {key: each for key, each in shape(message).items() if key not in newer} == shape(theirs), name
    for name, enum in ours.enum_types_by_name.items():
        their_values = values(pool.FindEnumTypeByName(f"apache.rocketmq.v2.{name}"))
        assert their_values.items() <= values(enum).items(), name
    for name, service in ours.services_by_name.items():
        served = {each.name: each for each in service.methods}
        for method in pool.FindServiceByName(f"apache.rocketmq.v2.{name}").methods:
            own = served[method.name]
            assert own.server_streaming == method.server_streaming
            assert own.client_streaming == method.client_streaming
            assert own.input_type.name == method.input_type.name
            assert own.output_type.name == method.output_type.name
