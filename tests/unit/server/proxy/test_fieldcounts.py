"""Large requests of many tiny fields are refused before the parser makes objects of them; honest ones are not."""

from __future__ import annotations

import pytest

from mqspark_server.net.grpc.grpcwords import GrpcAbort, GrpcCode
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.fieldcounts import MAX_FIELDS, counter
from mqspark_server.proxy.content.wirefields import sized
from tests.support.grpcclients import resource

check = counter(pb.SendMessageRequest.DESCRIPTOR)


def message(number: int, **more: str) -> pb.Message:
    system = pb.SystemProperties(
        message_id=f"id-{number}",
        tag="tag",
        keys=["k1", "k2"],
        born_host="10.0.0.1",
        message_type=pb.NORMAL,
        body_digest=pb.Digest(type=pb.CRC32, checksum="0"),
    )
    system.born_timestamp.GetCurrentTime()
    return pb.Message(
        topic=resource("T"), body=b"\x12\x92" * 50, user_properties=more, system_properties=system
    )


@pytest.mark.parametrize(
    "data",
    [
        pb.SendMessageRequest(
            messages=[message(0, **{f"k{n}": "v" for n in range(20_000)})]
        ).SerializeToString(),
        b"\x0a\x00" * (MAX_FIELDS + 1),
        b"\x8a\x80\x00\x00" * (MAX_FIELDS + 1),
        b"\x0a" + sized(b"\x1a" + sized(b"\x12\x00" * MAX_FIELDS)),
        b"\x78\x01" * (MAX_FIELDS + 1),
        b"\x0b\x0c" * MAX_FIELDS,
    ],
    ids=["properties", "messages", "overlong tags", "keys", "unknown", "groups"],
)
def test_many_fields_are_refused(data: bytes) -> None:
    with pytest.raises(GrpcAbort, match="fields") as refused:
        check(data)
    assert refused.value.code == GrpcCode.RESOURCE_EXHAUSTED


def test_long_packed_lists_are_refused() -> None:
    data = pb.ReceiveMessageRequest(
        message_queue=pb.MessageQueue(accept_message_types=[pb.NORMAL] * (MAX_FIELDS + 1))
    ).SerializeToString()
    with pytest.raises(GrpcAbort, match="fields"):
        counter(pb.ReceiveMessageRequest.DESCRIPTOR)(data)


def test_batches_and_large_bodies_are_not() -> None:
    few = {f"property-{n}": "value" for n in range(4)}
    check(pb.SendMessageRequest(messages=[message(n, **few) for n in range(1_024)]).SerializeToString())
    large = message(0)
    large.body = b"\x12\x00" * (2 << 20)
    check(pb.SendMessageRequest(messages=[large]).SerializeToString())


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\xff", b"\x0a\xff\xff\xff\xff\xff\x7f", b"\xff" * 40, b"\x0a\x7f\x0a", b"\x09\x00"],
)
def test_what_is_malformed_is_left_to_the_parser(data: bytes) -> None:
    check(data)
