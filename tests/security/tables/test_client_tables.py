"""Brokers and name servers that make their clients' tables grow: answers nobody asked for, checks with large messages,
requests without end, names that are never the same."""

from __future__ import annotations

import asyncio
import socket
import threading
import tracemalloc

import pytest

from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.producer import transaction
from mqspark.client.producer.faults import FaultTable
from mqspark.client.remoting import channel as channels
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.heartbeats import Heartbeats
from mqspark.client.remoting.instance import MAX_ANSWERING_BYTES, ClientInstance, InstanceMember
from mqspark.errors import RequestTimeout
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request, encode_response
from mqspark.protocol.connection import Connection
from mqspark.record.record import encode_record
from tests.support.clocks import ManualClock

MIB = 1 << 20


def test_answers_that_nobody_asked_for_are_dropped() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            receiver = Connection()
            commands: list[Command] = []
            while not commands:
                commands = receiver.receive_data(peer.recv(1 << 16))
            for number in range(200):
                peer.sendall(encode_response(1_000_000 + number, 0, None, bytes(MIB)))
            peer.sendall(encode_response(commands[0].opaque, 0, None, b"answer"))
            for opaque in (commands[0].opaque, commands[0].opaque + 1):  # again, and before it is asked
                peer.sendall(encode_response(opaque, 0, None, b"too much"))
            peer.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    connection = BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}")
    tracemalloc.start()
    try:
        answer = connection.wait(connection.send(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert bytes(answer.body) == b"answer"
        assert tracemalloc.get_traced_memory()[1] < 32 * MIB
        with pytest.raises(RequestTimeout):
            connection.wait(77, timeout_ms=300)
        assert connection._answers == {}
        assert connection._wanted == set()
    finally:
        tracemalloc.stop()
        connection.close()
        thread.join()
        listener.close()


class Channel:
    address = "b:1"

    def __init__(self) -> None:
        self.codes: list[int] = []

    def respond(self, request: Command, code: int, body: bytes = b"", remark: str | None = None) -> None:
        self.codes.append(code)


def request(code: int, body: bytes = b"") -> Command:
    (command,) = Connection().receive_data(encode_request(code, 1, {"consumerGroup": "CG"}, body))
    return command


class Slow(InstanceMember):
    consumer_group = "CG"

    def __init__(self) -> None:
        self.is_over = asyncio.Event()

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        await self.is_over.wait()
        return ResponseCode.SUCCESS, b"", None


async def test_requests_of_brokers_that_are_being_answered_have_a_bound() -> None:
    client = ClientInstance("127.0.0.1:1", ClientOptions())
    member, channel = Slow(), Channel()
    client._members.append(member)
    for _ in range(200):
        client._requested(channel, request(RequestCode.CONSUME_MESSAGE_DIRECTLY, bytes(MIB)))  # type: ignore[arg-type]
    assert len(client._tasks._tasks) <= MAX_ANSWERING_BYTES // MIB
    assert set(channel.codes) == {ResponseCode.SYSTEM_BUSY}
    member.is_over.set()
    await asyncio.gather(*client._tasks._tasks)
    assert client._answering_bytes == 0
    assert channel.codes.count(ResponseCode.SUCCESS) == 200 - channel.codes.count(ResponseCode.SYSTEM_BUSY)


async def test_checks_that_wait_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 of them may wait, and each may bring a message of 4 MB."""
    monkeypatch.setattr(transaction, "MAX_WAITING_CHECK_BYTES", 10 * MIB)
    producer = transaction.TransactionProducer("127.0.0.1:1", group="PG", check=lambda message: None)
    producer._running = True
    producer._concurrency = 0  # nobody checks any
    record = encode_record(topic="T", body=bytes(MIB), properties={"PGROUP": "PG"})
    for _ in range(50):
        asked = request(RequestCode.CHECK_TRANSACTION_STATE, record)
        assert producer._asked(Channel(), asked)  # type: ignore[arg-type]
    assert 10 * MIB <= producer._waiting_check_bytes < 12 * MIB
    assert len(producer._waiting_checks) == 10


def test_what_is_remembered_of_brokers_has_a_bound() -> None:
    clock = ManualClock()
    faults, statistics = FaultTable(clock), ConsumeStatistics(clock)
    heartbeats = Heartbeats("c", with_fingerprint=True)
    (answer,) = Connection().receive_data(encode_response(1, 0, {"IS_SUPPORT_HEART_BEAT_V2": "true"}))
    for number in range(25_000):
        faults.record(f"broker-{number}", 5_000, isolate=True)
        statistics.consumed(f"topic-{number}", 1, 0, 1.0)
        heartbeats.answered(f"10.0.0.1:{number}", number + 1, answer)
    assert len(faults._until_ms) <= 1_001
    assert not faults.available("broker-24999")
    assert len(statistics._topics) <= 10_000
    statistics.consumed("x" * 30_000, 1, 0, 1.0)
    assert "x" * 30_000 not in statistics._topics
    assert max(map(len, (heartbeats._versions, heartbeats._supporting, heartbeats._known))) <= 10_000
    assert heartbeats.version("10.0.0.1:24999") is not None


class Deaf(asyncio.Transport):
    """To a server that reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.Protocol | None = None
        self.size = self.high = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.size += len(data)
        if self.size > self.high and self.protocol is not None:
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return False


async def test_requests_of_a_server_that_reads_no_answer_cost_nothing_more() -> None:
    """They would fill the client's memory with answers, each with a remark as long as the server likes."""

    def refuse(channel: channels.Channel, asked: Command) -> None:
        channel.respond(asked, ResponseCode.SYSTEM_ERROR, remark=f"no group {asked.ext['consumerGroup']}")

    transport = Deaf()
    channel = channels.Channel("b:1", asyncio.get_running_loop(), refuse, lambda lost: None)
    transport.protocol = channel
    channel.connection_made(transport)
    frames = encode_request(999, 1, {"consumerGroup": "g" * 10_000}) * 100
    for _ in range(100):
        channel.data_received(frames)
        await asyncio.sleep(0)
    assert transport.high < transport.size < transport.high + MIB
    channel.resume_writing()
    before = transport.size
    channel.data_received(frames)
    await asyncio.sleep(0)
    assert transport.size > before, "who reads again is answered again"
