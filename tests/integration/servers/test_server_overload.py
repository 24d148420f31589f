"""How long what a busy server reads has waited, and what it makes of that."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

import mqspark_server.net.lateness
import mqspark_server.net.remotingconnection
import mqspark_server.net.remotingserver
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import Session
from mqspark.testing import Broker
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.net.remotingconnection import RemotingConnection
from mqspark_server.net.remotingserver import RemotingServer
from tests.support.remoting import send_fields, topic_fields
from tests.support.toycore import ToyCore

WORK_S = 1 / 16


class Transport(asyncio.Transport):
    """Takes everything, goes nowhere."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def abort(self) -> None: ...


class BusyCore(ToyCore):
    """Needs WORK_S for every request, by the clock that it moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        self.now += WORK_S * len(list(commands))


class Patience:
    """Lets everything pass and notes how long it has waited."""

    patience_ms = 200

    def __init__(self) -> None:
        self.ages_ms: list[int] = []

    def sift(self, session: Session, commands: list[Command], age_ms: int) -> list[Command]:
        self.ages_ms.append(age_ms)
        return commands


class Harness:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, connections: int) -> None:
        self.core, self.patience = BusyCore(), Patience()
        for module in (
            mqspark_server.net.remotingserver,
            mqspark_server.net.remotingconnection,
            mqspark_server.net.lateness,
        ):
            monkeypatch.setattr(module, "monotonic", lambda: self.core.now)
        self.server = RemotingServer(self.core, [], name="toy", overload=self.patience)
        self.connections = []
        for _ in range(connections):
            connection = RemotingConnection(self.server, False)
            connection.connection_made(Transport())
            self.connections.append(connection)
        self.server.turn()

    def turn(self, readable: int) -> list[int]:
        """One iteration in which so many connections have a request; the ages of which the overload was told."""
        self.patience.ages_ms.clear()
        for connection in self.connections[:readable]:
            connection.data_received(encode_request(RequestCode.SEND_MESSAGE_V2, 1))
        self.server.turn()
        return list(self.patience.ages_ms)


async def test_what_comes_late_in_long_turns_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch, 8)
    assert harness.turn(8) == []  # once is a hiccup
    assert harness.turn(8) == [250, 312, 375, 437]
    assert harness.turn(8) == [250, 312, 375, 437]
    assert harness.turn(3) == []
    assert harness.turn(8) == []  # it had caught up


async def test_long_turns_with_a_pause_between_are_no_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch, 8)
    for _ in range(3):
        assert harness.turn(8) == []
        harness.core.now += 1.0


def test_an_overloaded_broker_stores_what_it_acknowledges_and_no_more() -> None:
    """Far more sends at once than may wait for the 1 ms that they are given."""
    sends, connections = 400, 24
    codes: Counter[int] = Counter()
    remarks: set[str] = set()
    lock = threading.Lock()

    def blast(address: tuple[str, int], queue_id: int) -> None:
        ext = send_fields("Busy", queue_id)
        frames = [
            encode_request(RequestCode.SEND_MESSAGE_V2, number, ext, b"x" * 900) for number in range(sends)
        ]
        wire = Connection()
        answers: list[Command] = []
        with socket.create_connection(address, timeout=60) as sock:
            for frame in frames:  # many small writes, so that the broker reads many chunks
                sock.sendall(frame)
            while len(answers) < sends:
                answers += wire.receive_data(sock.recv(1 << 16))
        with lock:
            codes.update(answer.code for answer in answers)
            remarks.update(answer.remark for answer in answers if answer.remark)

    with Broker(settings={"waitTimeMillsInSendQueue": "1"}) as broker:
        host, _, port = broker.address.rpartition(":")
        address = (host, int(port))
        with socket.create_connection(address, timeout=60) as sock:  # makes the topic
            sock.sendall(encode_request(RequestCode.UPDATE_AND_CREATE_TOPIC, 1, topic_fields("Busy", 4)))
            sock.recv(1 << 16)
        threads = [
            threading.Thread(target=blast, args=(address, number % 4)) for number in range(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        stored = 0
        with socket.create_connection(address, timeout=60) as sock:
            for queue_id in range(4):
                ext = {"topic": "Busy", "queueId": str(queue_id)}
                sock.sendall(encode_request(RequestCode.GET_MAX_OFFSET, queue_id, ext))
                (answer,) = Connection().receive_data(sock.recv(1 << 16))
                stored += int(answer.ext["offset"])
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}, codes
    assert codes.total() == sends * connections
    assert codes[ResponseCode.SUCCESS] == stored
    assert all(remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy") for remark in remarks), remarks


def test_a_connection_that_is_dropped_while_it_ends_is_counted_once() -> None:
    """What its peer had sent before is too much to keep."""

    class Ending(Transport):
        socket: socket.socket | None = None

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return self.socket if name == "socket" else super().get_extra_info(name, default)

    async def end_one_of_two() -> RemotingServer:
        limits = ConnectionLimits(max_buffered_bytes=64 << 10)
        server, transport = RemotingServer(BusyCore(), [], name="toy", limits=limits), Ending()
        staying, ending = RemotingConnection(server, False), RemotingConnection(server, False)
        staying.connection_made(Transport())
        ending.connection_made(transport)
        transport.socket, theirs = socket.socketpair()
        transport.socket.setblocking(False)
        theirs.sendall(encode_request(RequestCode.SEND_MESSAGE_V2, 1) * 500)
        with transport.socket, theirs:
            ending.connection_lost(ConnectionResetError())
        return server

    server = asyncio.run(end_one_of_two())
    assert (server.counts.dropped, server.connections, server.sockets.by_address["127.0.0.1"]) == (1, 1, 1)
