"""Many calls at the same time over one connection, and many that wait."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable

import httpx

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from tests.support.barehttp2 import (
    BEGIN,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME,
    HEADERS,
    SETTINGS,
    frame,
    header_block,
)
from tests.support.grpcclients import bare_caller, receive_request, resource
from tests.support.processes import resident_bytes

CALLS = 2_000
BUSY_S = 1.0
WAITING = 1_000
"""Calls that wait; a group may have 1,024 of them (popPollingSize)."""
MOST_BYTES = 20 << 10
"""Memory of each call that waits: 10,000 of them have 200 MB."""


def test_calls_that_come_while_the_server_is_busy_are_all_served(broker: Broker) -> None:
    refused = pb.ReceiveMessageRequest(group=resource("not a group"))
    refused.message_queue.topic.name = "topic"
    with bare_caller(broker.grpc_address) as caller:
        list(caller.ReceiveMessage(refused))  # the connection is there
        busy = threading.Thread(target=lambda: broker.call(lambda: time.sleep(BUSY_S)))
        busy.start()
        streams = [caller.ReceiveMessage(refused, timeout=120) for _ in range(CALLS)]
        codes = {next(stream).status.code for stream in streams}
        busy.join()
    assert codes == {pb.ILLEGAL_CONSUMER_GROUP}


def call(stream: int, method: str, request: bytes) -> bytes:
    message = struct.pack(">BI", 0, len(request)) + request
    block = header_block(f"/{SERVICE}/{method}", x_mq_client_id="waiting", grpc_timeout="60S")
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, message)


def wait_for_end(bare: socket.socket, stream: int) -> None:
    """Read up to the end of this stream's answer."""
    said = b""
    while True:
        said += bare.recv(1 << 16)
        at = 0
        while len(said) - at >= FRAME.size:
            high, low, kind, flags, of = FRAME.unpack_from(said, at)
            if (kind, of) == (HEADERS, stream) and flags & END_STREAM:
                return
            assert (kind, of) == (HEADERS, stream) or of in (0, stream), "a call that has not waited"
            at += FRAME.size + (high << 8 | low)
        said = said[at:]


def test_calls_that_wait_take_little_memory_and_nobody_else_waits(
    broker: Broker, topic_of_type: Callable[..., str]
) -> None:
    waiting = receive_request(topic_of_type("WaitedFor"), "Waiters").SerializeToString()
    other = pb.QueryRouteRequest(topic=resource("absent")).SerializeToString()
    host, _, port = str(broker.grpc_address).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as bare:
        bare.sendall(BEGIN + frame(SETTINGS, 0, 0) + call(1, "QueryRoute", other))
        wait_for_end(bare, 1)
        before = resident_bytes()
        for stream in range(3, 3 + 2 * WAITING, 2):
            bare.sendall(call(stream, "ReceiveMessage", waiting))
        last = 3 + 2 * WAITING
        bare.sendall(call(last, "QueryRoute", other))
        wait_for_end(bare, last)
        assert resident_bytes() - before < WAITING * MOST_BYTES
        shown = httpx.get(f"{broker.http_url}/metrics", timeout=20).text
    figures = dict(re.findall(r"^rocketmq_(grpc_\w+){.*} (\S+)$", shown, re.MULTILINE))
    assert 0 < float(figures["grpc_calls_open"]) <= WAITING  # on a slow machine some have ended
    assert float(figures["grpc_calls_total"]) >= WAITING + 2
    assert float(figures["grpc_connections"]) >= 1
    assert float(figures["grpc_clients"]) >= 1
