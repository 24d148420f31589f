"""What the gRPC service refuses: names, properties, sizes, floods. Nothing of it keeps others from being served."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.methods.grpcreceipts import MAX_ACKS
from mqspark_server.proxy.methods.grpcsending import MAX_BATCH
from mqspark_server.proxy.methods.telemetry import MAX_STREAMS
from tests.support.grpcclients import BareCaller, bare_caller, message, resource
from tests.support.waiting import eventually

DAY_MS = 24 * 3600 * 1000
MAX_CALLS, MAX_CONNECTIONS = 40, 12


def code_of(caller: BareCaller, *messages: pb.Message) -> int:
    return int(caller.SendMessage(pb.SendMessageRequest(messages=messages)).status.code)


def with_properties(topic: str, **properties: str) -> pb.Message:
    given = message(topic)
    given.user_properties.update(properties)
    return given


def delayed(topic: str, ahead_ms: int) -> pb.Message:
    given = message(topic, message_type=pb.DELAY)
    given.system_properties.delivery_timestamp.FromMilliseconds(int(time.time() * 1000) + ahead_ms)
    return given


def test_a_request_acknowledges_no_more_than_a_client_can_have(broker: Broker) -> None:
    asked = pb.AckMessageRequest(topic=resource("T"), group=resource("many"))
    asked.entries.extend([pb.AckMessageEntry()] * (MAX_ACKS + 1))
    with bare_caller(broker.grpc_address) as caller:
        told = caller.AckMessage(asked)
    assert (told.status.code, len(told.entries)) == (pb.BAD_REQUEST, 0)


def test_messages_that_the_proxy_refuses(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    normal, fifo, delay = (topic_of_type(f"rules-{kind}", kind) for kind in ("NORMAL", "FIFO", "DELAY"))
    refused: list[tuple[int, list[pb.Message]]] = [
        (pb.MESSAGE_CORRUPTED, []),
        (pb.BAD_REQUEST, [message(normal)] * (MAX_BATCH + 1)),
        (pb.MESSAGE_CORRUPTED, [message(normal), message(fifo)]),
        (pb.ILLEGAL_TOPIC, [message("with space")]),
        (pb.ILLEGAL_TOPIC, [message("t" * 128)]),
        (pb.ILLEGAL_TOPIC, [message("rmq_sys_wheel_timer")]),
        (pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, [message("absent")]),
        (pb.MESSAGE_BODY_EMPTY, [message(normal, b"")]),
        (pb.MESSAGE_BODY_TOO_LARGE, [message(normal, bytes((4 << 20) + 1))]),
        (pb.ILLEGAL_MESSAGE_ID, [message(normal, message_id=" ")]),
        (pb.ILLEGAL_MESSAGE_TAG, [message(normal, tag="a|b")]),
        (pb.ILLEGAL_MESSAGE_TAG, [message(normal, tag="\x01")]),
        (pb.ILLEGAL_MESSAGE_TAG, [message(normal, tag="  ")]),
        (pb.ILLEGAL_MESSAGE_KEY, [message(normal, keys=["a", "\x02"])]),
        (pb.ILLEGAL_MESSAGE_KEY, [message(normal, keys=[" "])]),
        (pb.ILLEGAL_MESSAGE_GROUP, [message(fifo, message_group="g" * 64)]),
        (pb.ILLEGAL_MESSAGE_GROUP, [message(fifo, message_group="\x01")]),
        (pb.ILLEGAL_MESSAGE_PROPERTY_KEY, [with_properties(normal, UNIQ_KEY="x")]),
        (pb.ILLEGAL_MESSAGE_PROPERTY_KEY, [with_properties(normal, TAGS="x")]),
        (pb.ILLEGAL_MESSAGE_PROPERTY_KEY, [with_properties(normal, ours="\x02")]),
        (pb.MESSAGE_PROPERTIES_TOO_LARGE, [with_properties(normal, ours="v" * (16 * 1024 + 1))]),
        (pb.MESSAGE_PROPERTIES_TOO_LARGE, [message(normal, keys=[""] * (16 * 1024 + 1))]),
        (pb.MESSAGE_PROPERTIES_TOO_LARGE, [with_properties(normal, **{f"k{n}": "v" for n in range(129)})]),
        (pb.ILLEGAL_DELIVERY_TIME, [delayed(delay, DAY_MS + 60_000)]),
    ]
    with bare_caller(broker.grpc_address) as caller:
        for expected, messages in refused:
            assert code_of(caller, *messages) == expected, (pb.Code.Name(expected), messages[:1])
        for taken in (
            message(normal),
            message(normal, message_type=pb.DELAY),
            message(fifo, message_group="g" * 63),
            delayed(delay, DAY_MS - 60_000),
            delayed(delay, -60_000),
        ):
            assert code_of(caller, taken) == pb.OK


def test_requests_of_any_size_are_refused_before_they_are_read(broker: Broker) -> None:
    with bare_caller(broker.grpc_address) as caller, pytest.raises(grpc.RpcError) as refused:
        code_of(caller, message("t", bytes(20 << 20)))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_request_that_is_compressed_as_a_whole_is_refused(broker: Broker) -> None:
    bomb = pb.SendMessageRequest(messages=[message("t", bytes(3 << 20))])
    with bare_caller(broker.grpc_address) as caller, pytest.raises(grpc.RpcError) as refused:
        caller.SendMessage(bomb, compression=grpc.Compression.Gzip)
    assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


@pytest.fixture(scope="module")
def narrow() -> Iterator[Broker]:
    """A broker with low limits."""
    settings = {
        "grpcEnable": True,
        "grpcMaxCalls": MAX_CALLS,
        "maxConnections": MAX_CONNECTIONS,
        "grpcMaxClientBytes": 200_000,
    }
    with Broker(settings=settings) as one:
        yield one


def answers(caller: BareCaller, **options: Any) -> bool:
    """Whether somebody else is served."""
    with contextlib.suppress(grpc.RpcError):
        return bool(
            caller.QueryRoute(pb.QueryRouteRequest(topic=resource("absent")), **options).status.code
            == pb.TOPIC_NOT_FOUND
        )
    return False


def test_calls_beyond_the_limit_are_refused_and_end_with_their_connection(narrow: Broker) -> None:
    over = threading.Event()

    def nothing_yet() -> Iterator[pb.TelemetryCommand]:
        over.wait()
        yield from ()

    with bare_caller(narrow.grpc_address) as other:
        with bare_caller(narrow.grpc_address) as flood:
            streams = []
            for number in range(3 * MAX_CALLS):
                flood.metadata["x-mq-client-id"] = f"flood@{number // MAX_STREAMS}"
                streams.append(flood.Telemetry(nothing_yet(), timeout=60))
            eventually(lambda: not answers(other))
            over.set()
            for stream in streams:
                stream.cancel()
        eventually(lambda: answers(other))


def test_connections_beyond_the_limit_are_refused(narrow: Broker) -> None:
    host, _, port = str(narrow.grpc_address).rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(4 * MAX_CONNECTIONS)]
    try:
        with bare_caller(narrow.grpc_address) as caller:
            eventually(lambda: answers(caller))
    finally:
        for each in silent:
            each.close()


def test_clients_beyond_the_memory_for_them_are_refused(narrow: Broker) -> None:
    codes = set()
    with bare_caller(narrow.grpc_address) as caller:
        for number in range(60):
            caller.metadata["x-mq-client-id"] = f"one-of-many@{number}"
            answer = caller.QueryRoute(pb.QueryRouteRequest(topic=resource("absent")))
            codes.add(int(answer.status.code))
    assert codes == {pb.TOPIC_NOT_FOUND, pb.TOO_MANY_REQUESTS}
