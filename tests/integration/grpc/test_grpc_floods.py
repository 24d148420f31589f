"""Bare HTTP/2 against the gRPC port: floods of frames, streams that are left half open. Others are served meanwhile,
and the server's memory stays where it was."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator

import grpc
import pytest

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from tests.support.barehttp2 import (
    BEGIN,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    header_block,
    literal,
)
from tests.support.grpcclients import bare_caller, resource
from tests.support.processes import resident_bytes

CANCEL = 8
FRAMES = 20_000
HALF_OPEN = 200
MOST_BYTES = 64 << 20
"""How much memory the floods may take in all."""


def block_of(method: str) -> bytes:
    return header_block(f"/{SERVICE}/{method}", x_mq_client_id="flood")


class Http2:
    """A connection that has begun; what the server says is dropped."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.write(BEGIN + frame(SETTINGS, 0, 0))

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def connection(broker: Broker) -> Iterator[Http2]:
    made = Http2(str(broker.grpc_address))
    with contextlib.closing(made):
        yield made


def serves(broker: Broker) -> bool:
    with bare_caller(broker.grpc_address) as caller:
        answer = caller.QueryRoute(pb.QueryRouteRequest(topic=resource("absent")), timeout=20)
        return bool(answer.status.code == pb.TOPIC_NOT_FOUND)


def resets() -> bytes:
    """CVE-2023-44487: each stream is cancelled as soon as it is open."""
    block = block_of("Telemetry")
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))
        for stream in range(1, FRAMES // 4, 2)
    )


FLOODS: dict[str, Callable[[], bytes]] = {
    "resets": resets,
    "pings": lambda: frame(PING, 0, 0, bytes(8)) * FRAMES,
    "settings": lambda: frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100)) * FRAMES,
    "windows": lambda: frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * FRAMES,
    "continued": lambda: (
        frame(HEADERS, 0, 1, block_of("Telemetry"))
        + frame(CONTINUATION, 0, 1, literal("x-more", "v" * 100)) * FRAMES
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_frames_keeps_nobody_from_being_served(
    broker: Broker, connection: Http2, flood: str
) -> None:
    before = resident_bytes()
    with contextlib.suppress(ConnectionError, TimeoutError):  # the server may close, or read no more
        connection.write(FLOODS[flood]())
    assert serves(broker)
    assert resident_bytes() - before < MOST_BYTES


@pytest.mark.parametrize("method", ["SendMessage", "ReceiveMessage", "Telemetry"])
def test_streams_that_are_left_half_open_end_with_their_connection(
    broker: Broker, connection: Http2, method: str
) -> None:
    message = bytes(1) + struct.pack(">I", 1000) + b"the beginning of a message"
    for stream in range(1, 2 * HALF_OPEN, 2):
        connection.write(frame(HEADERS, END_HEADERS, stream, block_of(method)))
        connection.write(frame(DATA, 0, stream, message))
    assert serves(broker)
    connection.close()
    assert serves(broker)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: mqspark\r\n\r\n",
        BEGIN + frame(DATA, 0, 1, b"for no stream"),
        BEGIN + frame(SETTINGS, 0, 0) + b"\xff" * 9,
        bytes(100),
    ],
    ids=["http1", "no-settings", "no-frame", "zeros"],
)
def test_what_is_no_http2_is_closed(broker: Broker, said: bytes) -> None:
    host, _, port = str(broker.grpc_address).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as bare:
        bare.sendall(said)
        with contextlib.suppress(ConnectionError):
            while bare.recv(1 << 16):
                pass
    assert serves(broker)


def test_a_request_of_many_tiny_fields_is_not_parsed(broker: Broker) -> None:
    properties = {f"k{number}": "v" for number in range(50_000)}
    request = pb.SendMessageRequest(messages=[pb.Message(topic=resource("T"), user_properties=properties)])
    with bare_caller(broker.grpc_address) as caller, pytest.raises(grpc.RpcError) as refused:
        caller.SendMessage(request, timeout=20)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "fields" in refused.value.details()
    assert serves(broker)
