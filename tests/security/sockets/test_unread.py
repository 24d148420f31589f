"""Peers that ask and do not read: what they are to be sent is bounded for each of them and for all together, before it
is made, and given up when they do not read for a while."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import Session
from mqspark_server.net import remotingconnection
from mqspark_server.net.addresses import bind_socket
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.net.memory_budget import MemoryBudget, Pace
from mqspark_server.net.remotingserver import RemotingServer
from tests.integration.servers.test_server_tcp import ECHO, EchoCore
from tests.security.processes import BrokerProcess
from tests.support.waiting import eventually_async
from tests.unit.broker_kit import Bench, send_ext

MB = 1 << 20


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def serving(answer: bytes, **limits: Any) -> AsyncIterator[tuple[RemotingServer, EchoCore, int]]:
    core = EchoCore()
    core.answer = answer
    server = RemotingServer(core, [], name="toy", limits=ConnectionLimits(**limits))
    listener = await server.listen(bind_socket("127.0.0.1", 0))
    server.start()
    try:
        yield server, core, listener.port
    finally:
        await server.close()
        assert server.unread.budget.total == server.partial.budget.total == 0


SOCKETS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _no_sockets_are_left() -> Iterator[None]:
    yield
    while SOCKETS:
        SOCKETS.pop().close()


async def connected(port: int) -> socket.socket:
    """Not read from; with a small window."""
    sock = socket.socket()
    SOCKETS.append(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


async def answered(port: int, count: int = 1) -> None:
    """An honest peer's requests."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Connection()
    for number in range(count):
        writer.write(encode_request(ECHO, number, None))
        commands = []
        while not commands:
            data = await asyncio.wait_for(reader.read(1 << 20), 20)
            assert data, "an honest peer was dropped"
            commands = connection.receive_data(data)
    writer.close()
    await writer.wait_closed()


def pipelined(count: int) -> bytes:
    return b"".join(encode_request(ECHO, number, None) for number in range(count))


async def test_one_that_does_not_read_is_made_one_answer_above_its_mark() -> None:
    async with serving(bytes(4 * MB), high_water_bytes=4 * MB) as (server, core, port):
        sock = await connected(port)
        await asyncio.get_running_loop().sock_sendall(sock, pipelined(64))
        await asyncio.sleep(0.3)
        assert core.received_commands <= 4  # the kernel takes some, too
        assert server.unread.budget.total <= 8 * MB + 4096
        await answered(port)


async def test_all_that_do_not_read_have_a_bound_together_and_others_are_served() -> None:
    answer = bytes(MB)
    async with serving(answer, max_unsent_bytes=32 * MB) as (server, _, port):
        hostile, peak = [], 0
        for _ in range(60):
            sock = await connected(port)
            hostile.append(sock)
            await asyncio.get_running_loop().sock_sendall(sock, pipelined(64))
            await asyncio.sleep(0.01)
            peak = max(peak, server.unread.budget.total)
        assert peak <= 34 * MB
        assert server.counts.dropped > 0 or server.unread.budget.total <= 32 * MB
        await answered(port, 5)


async def test_one_that_does_not_read_is_dropped_and_its_memory_is_free() -> None:
    async with serving(bytes(MB), unread_s=1) as (server, core, port):
        sock = await connected(port)
        await asyncio.get_running_loop().sock_sendall(sock, pipelined(64))
        await eventually_async(lambda: server.unread.budget.total > 3 * MB)
        await eventually_async(lambda: server.connections == 0)
        assert server.counts.dropped == 1
        assert server.unread.budget.total == 0
        await eventually_async(lambda: len(core.ended) == 1)


async def test_one_that_reads_a_byte_now_and_then_is_dropped_too() -> None:
    async with serving(bytes(MB), unread_s=1) as (server, _, port):
        sock = await connected(port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, pipelined(64))
        await eventually_async(lambda: server.connections == 1)
        started = time.monotonic()
        while server.connections and time.monotonic() - started < 20:
            await asyncio.wait_for(loop.sock_recv(sock, 1), 5)
            await asyncio.sleep(0.1)
        assert server.counts.dropped == 1


async def test_a_slow_reader_gets_everything_however_long_it_takes() -> None:
    async with serving(bytes(256 * 1024), unread_s=1.5, high_water_bytes=MB) as (server, _, port):
        sock = await connected(port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, pipelined(12))
        connection, got = Connection(), 0
        while got < 12:
            data = await asyncio.wait_for(loop.sock_recv(sock, 64 * 1024), 20)
            assert data
            got += len(connection.receive_data(data))
            # In all longer than unread_s; each, even on a busy machine, far shorter.
            await asyncio.sleep(0.05)
        assert server.counts.dropped == 0


async def test_an_idle_one_with_unread_answers_is_closed_for_good() -> None:
    async with serving(bytes(MB), idle_s=0.3) as (server, _, port):
        sock = await connected(port)
        await asyncio.get_running_loop().sock_sendall(sock, pipelined(8))
        await eventually_async(lambda: server.unread.budget.total > 0)
        await eventually_async(lambda: server.connections == 0 and server.unread.budget.total == 0)


async def test_one_that_is_closed_for_garbage_keeps_no_answers() -> None:

    async with serving(bytes(MB)) as (server, _, port):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(remotingconnection, "LINGER_S", 0.2)
            sock = await connected(port)
            await asyncio.get_running_loop().sock_sendall(sock, pipelined(2))
            await eventually_async(lambda: server.unread.budget.total > 0)
            await asyncio.get_running_loop().sock_sendall(sock, b"GET / HTTP/1.1\r\n\r\n")
            await eventually_async(lambda: server.connections == 0 and server.unread.budget.total == 0)


async def test_what_it_is_sent_unasked_counts() -> None:
    """Notifications, questions of tools, replies: others choose when and how large."""
    async with serving(b"", max_unsent_bytes=8 * MB) as (server, core, port):
        await connected(port)
        await eventually_async(lambda: len(core.sessions) == 1)
        (session,) = core.sessions
        for _ in range(64):
            session.send(bytes(MB))
            server.write_outbox()
            await asyncio.sleep(0)
            assert server.unread.budget.total <= 9 * MB
        await eventually_async(lambda: server.connections == 0)
        assert not session.open


async def test_commands_that_wait_for_a_reader_count_as_memory() -> None:
    async with serving(bytes(64 * 1024), high_water_bytes=64 * 1024) as (server, _, port):
        sock = await connected(port)
        sending = asyncio.get_running_loop().sock_sendall(sock, pipelined(200_000))
        task = asyncio.ensure_future(sending)
        await eventually_async(lambda: server.partial.budget.total > 0)
        await asyncio.sleep(0.3)
        (connection,) = server.sockets
        waiting = len(connection._waiting)
        assert waiting > 10
        assert server.partial.budget.total >= 512 * waiting
        assert server.partial.budget.total < 32 * MB
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_parked_pulls_of_one_that_does_not_read_are_put_off(tmp_path: Path) -> None:
    """One message wakes all of them; each would be answered with up to 256 KiB."""
    bench = Bench(tmp_path, auto_create_topic_enable=True)
    producer, reader, hostile = bench.peer(), bench.peer(), bench.peer()
    producer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"first")
    hostile.session.room = 64 * 1024
    for _ in range(50):
        hostile.give_pull(offset=1, sysFlag="6")
    reader.give_pull(offset=1, sysFlag="6")
    bench.broker.turn()
    producer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), bytes(100_000))
    answers = hostile.heard()
    assert len(answers) == 50
    assert [answer.code for answer in answers].count(ResponseCode.SUCCESS) == 1
    assert {answer.code for answer in answers[1:]} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
    assert answers[1].ext["nextBeginOffset"] == "1"
    assert [answer.code for answer in reader.heard()] == [ResponseCode.SUCCESS]


def test_an_answer_to_a_query_by_key_is_views_of_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_topic_enable=True)
    peer = bench.peer()
    for _ in range(8):
        peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(properties="KEYS\x01k\x02"), bytes(100_000))
    header = {"topic": "T", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    peer.give(RequestCode.QUERY_MESSAGE, header)
    while bench.broker.work():
        pass
    bench.broker.turn()
    assert sum(len(each) for each in peer.session.out if isinstance(each, bytes)) < 1024
    (answer,) = peer.heard()
    assert len(answer.body) > 800_000


def test_memory_of_a_broker_whose_clients_query_and_do_not_read(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", unreadTimeoutSeconds=2) as broker:
        body = bytes(range(256)) * 960
        for number in range(64):
            assert broker.send(body, "KEYS\x01k\x02", number % 4).code == ResponseCode.SUCCESS
        header = {
            "topic": "T",
            "key": "k",
            "maxNum": "64",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 60),
        }
        answer = broker.ask(RequestCode.QUERY_MESSAGE, header)
        assert answer.code == ResponseCode.SUCCESS
        assert len(answer.body) > 64 * len(body)
        before = broker.memory_bytes
        query = b"".join(encode_request(RequestCode.QUERY_MESSAGE, n, header) for n in range(64))
        hostile = [broker.connect() for _ in range(8)]
        SOCKETS.extend(hostile)
        for sock in hostile:
            sock.sendall(query)
        peak = before
        end = time.monotonic() + 2
        while time.monotonic() < end:
            peak = max(peak, broker.memory_bytes)
            assert broker.send(b"honest").code == ResponseCode.SUCCESS
        assert peak - before < 64 * MB
        time.sleep(3)
        for sock in hostile:
            assert is_dropped(sock)
        assert broker.send(b"honest").code == ResponseCode.SUCCESS
        assert broker.memory_bytes - before < 64 * MB
        log = broker.stop()
    assert "Traceback" not in log
    assert log.count("were not read for") == 1


def is_dropped(sock: socket.socket) -> bool:
    """Nothing else is known of the other end of a connection from which nothing is read."""
    sock.settimeout(10)
    try:
        sock.sendall(b"\0" * 8)
        time.sleep(0.1)
        sock.sendall(b"\0" * 8)
    except ConnectionError:
        return True
    return False


def test_the_worst_goes_first() -> None:
    budget: MemoryBudget[str] = MemoryBudget(100)
    budget.keep("large and new", 60, 99.9)
    budget.keep("small and old", 5, 0.0)
    budget.keep("large and old", 50, 50.0)
    assert budget.total == 115
    assert budget.surplus(100.0) == ["large and old"]
    budget.keep("large and old", 0, 100.0)
    assert budget.surplus(100.0) == []
    budget.keep("small and old", 60, 100.0)
    assert budget.surplus(100.0) == ["small and old"]
    budget.keep("small and old", 60, 100.0, afresh=True)
    assert budget.surplus(100.0)[0] == "large and new"


def test_pace() -> None:
    pace = Pace(10, 5)
    assert not pace.is_too_slow(0, 100.0)
    assert not pace.is_too_slow(30, 105.0)
    assert pace.is_too_slow(49, 105.1)
    assert not pace.is_too_slow(50, 105.1)
    assert not pace.is_too_slow(50, 110.0)
    pace.rest()
    assert not pace.is_too_slow(50, 200.0)


def test_a_session_knows_how_much_room_it_has() -> None:
    session = Session(1, "127.0.0.1", 5, [])
    session.room = 100
    session.send(bytes(60), memoryview(bytes(50)))
    assert session.room == -10
