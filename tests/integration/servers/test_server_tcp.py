"""The socket shell with a toy core: what a peer can do to it, and what other peers notice of that."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.dispatch import dispatch, ok
from mqspark.protocol.session import Session, Take
from mqspark.protocol.slices import LongWork
from mqspark_server.net.addresses import bind_pair, bind_socket
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.net.remotingconnection import RemotingConnection
from mqspark_server.net.remotingserver import TURN_BYTES, RemotingServer
from tests.support.toycore import ToyCore
from tests.support.waiting import eventually_async

ECHO = int(RequestCode.GET_BROKER_RUNTIME_INFO)
SEND = int(RequestCode.SEND_MESSAGE_V2)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class EchoCore(ToyCore):
    """Answers every request with its own body, ``answer_bytes`` of it when set; remembers what it saw."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.ended: list[Session] = []
        self.turns = 0
        self.received_commands = 0
        self.answer: bytes | None = None

    def connected(self, session: Session) -> None:
        self.sessions.append(session)

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        for command in commands:
            self.received_commands += 1
            if command.code == 1:
                raise RuntimeError("a fault in the core")
            if command.code == 2:
                session.close()
                continue
            body = bytes(command.body) if self.answer is None else self.answer
            session.send(encode_response(command.opaque, 0, None, body))

    def disconnected(self, session: Session) -> None:
        self.ended.append(session)

    def turn(self) -> None:
        self.turns += 1


class Client:
    """A blocking-style asyncio client: frames out, commands in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.connection = Connection()
        self.commands: list[Command] = []

    async def request(self, opaque: int, body: bytes = b"", code: int = ECHO) -> Command:
        self.writer.write(encode_request(code, opaque, None, body))
        return await self.next()

    async def next(self) -> Command:
        while not self.commands:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 60)
            if not data:
                raise EOFError
            self.commands += self.connection.receive_data(data)
        return self.commands.pop(0)

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


class Harness:
    def __init__(self, server: RemotingServer, core: EchoCore, port: int) -> None:
        self.server, self.core, self.port = server, core, port
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(
    core: EchoCore | None = None,
    take: Take | None = None,
    after: Callable[[str], None] = lambda what: None,
    **limits: Any,
) -> AsyncIterator[Harness]:
    """``after`` is told what each turn was: "turn", or "taken" when all of it was taken."""
    core = core or EchoCore()
    outbox: list[Session] = []
    server = RemotingServer(
        core,
        outbox,
        name="toy",
        take=take,
        after_turn=lambda: after("turn"),
        after_taken=lambda: after("taken"),
        limits=ConnectionLimits(**limits),
    )
    listener = await server.listen(bind_socket("127.0.0.1", 0))
    server.start()
    harness = Harness(server, core, listener.port)
    try:
        yield harness
    finally:
        for client in harness.clients:
            await client.close()
        await server.close()
        assert server.connections == 0


async def test_a_first_request_with_too_long_a_header_is_answered_and_the_connection_goes_on() -> None:
    class Served(EchoCore):
        def received(self, session: Session, commands: Iterable[Command]) -> None:
            dispatch({ECHO: lambda session, command: ok(command)}, session, commands, LongWork())

    async with serving(Served()) as harness:
        client = await harness.client()
        for opaque, code in enumerate((SEND, ECHO)):
            client.writer.write(encode_request(code, opaque, {"i": "\u4e2d" * 200_000}, b"a body"))
        client.writer.write(encode_request(SEND, 2, {"i": "v" * 300_000}, oneway=True))
        refused = [await client.next(), await client.next()]
        assert [(each.opaque, each.code) for each in refused] == [
            (0, ResponseCode.MESSAGE_ILLEGAL),
            (1, ResponseCode.SYSTEM_ERROR),
        ]
        assert "600" in (refused[0].remark or "")
        assert (await client.request(3)).code == ResponseCode.SUCCESS


async def test_answers_of_a_chunk_come_in_order_and_cost_one_turn() -> None:
    async with serving() as harness:
        client = await harness.client()
        await client.request(0)
        before = harness.core.turns
        client.writer.write(b"".join(encode_request(ECHO, n, None, b"%d" % n) for n in range(50)))
        got = [await client.next() for _ in range(50)]
        assert [(c.opaque, bytes(c.body)) for c in got] == [(n, b"%d" % n) for n in range(50)]
        assert harness.core.turns - before <= 3


async def test_a_tick_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    class FaultyCore(EchoCore):
        ticks = 0

        def tick(self) -> int:
            self.ticks += 1
            if self.ticks == 2:
                raise RuntimeError("a fault in the core")
            return 1

    core = FaultyCore()
    async with serving(core):
        await eventually_async(lambda: core.ticks > 2)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "toy: a tick failed and is retried"
    ]


async def test_much_is_answered_before_the_loop_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mqspark_server.net.remotingconnection.CONNECTION_S", 60
    )  # another rule, and one of time
    async with serving() as harness:
        client = await harness.client()
        await client.request(1)
        (connection,) = harness.server.sockets
        before, turns = harness.core.turns, []
        for opaque in (2, 3, 4, 5):
            connection.data_received(encode_request(ECHO, opaque, None, bytes(TURN_BYTES // 2)))
            turns.append(harness.core.turns - before)
        assert turns == [0, 1, 1, 2]
        assert [(await client.next()).opaque for _ in range(4)] == [2, 3, 4, 5]


async def test_a_large_answer_is_written_in_pieces_with_others_served_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqspark_server.net.remotingconnection.PIECE_BYTES", 300_000)
    written: list[tuple[int, int]] = []
    iterations = 0

    def note(connection: RemotingConnection, out: list[bytes | memoryview], size: int) -> None:
        written.append((iterations, size))
        assert sum(map(len, out)) == size
        write_out(connection, out, size)

    def count() -> None:
        nonlocal iterations
        iterations += 1
        asyncio.get_running_loop().call_soon(count)

    write_out = RemotingConnection.write_out
    monkeypatch.setattr(RemotingConnection, "write_out", note)
    async with serving() as harness:
        harness.core.answer = bytes(range(256)) * 12_000
        asyncio.get_running_loop().call_soon(count)
        reader = await harness.client()
        reader.writer.write(encode_request(ECHO, 1) + encode_request(ECHO, 2))
        for opaque in (1, 2):
            answer = await reader.next()
            assert (answer.opaque, bytes(answer.body)) == (opaque, harness.core.answer)
    assert max(size for _, size in written) == 300_000
    assert len({iteration for iteration, _ in written}) == len(written) > 20


async def test_a_piece_that_cannot_be_written_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pieces: Counter[RemotingConnection] = Counter()
    faulty: list[RemotingConnection] = []

    def write(connection: RemotingConnection, out: list[bytes | memoryview], size: int) -> None:
        pieces[connection] += 1
        if connection in faulty and pieces[connection] == 3:
            raise RuntimeError("a fault in a transport")
        write_out(connection, out, size)

    write_out = RemotingConnection.write_out
    monkeypatch.setattr(RemotingConnection, "write_out", write)
    async with serving() as harness:
        harness.core.answer = bytes(8 << 20)
        first = await harness.client()
        await eventually_async(lambda: len(harness.server.sockets) == 1)
        faulty += harness.server.sockets
        others = [await harness.client() for _ in range(4)]
        for client in (first, *others):
            client.writer.write(encode_request(ECHO, 1))
        for client in others:
            assert len((await client.next()).body) == 8 << 20
        assert len(await first.reader.read()) < 8 << 20
    assert [record.getMessage().split(" for ")[0] for record in caplog.records if record.exc_info] == [
        "toy: an answer"
    ]


@pytest.mark.parametrize("end", ["the peer sends no more", "the server stops"])
async def test_the_rest_of_a_large_answer_comes_before_the_end(end: str) -> None:
    async with serving() as harness:
        harness.core.answer = bytes(8 << 20)
        client = await harness.client()
        client.writer.write(encode_request(ECHO, 1))
        if end == "the server stops":
            await eventually_async(lambda: harness.core.received_commands == 1)
            closing = asyncio.ensure_future(harness.server.close())
        else:
            client.writer.write_eof()
        assert len((await client.next()).body) == 8 << 20
        assert await client.reader.read() == b""
        if end == "the server stops":
            await closing


async def test_a_frame_may_come_byte_by_byte() -> None:
    async with serving() as harness:
        client = await harness.client()
        for byte in encode_request(ECHO, 7, {"k": "v"}, b"body"):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        answer = await client.next()
        assert (answer.opaque, bytes(answer.body)) == (7, b"body")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">i", -1) + b"\0" * 16,
        struct.pack(">II", 1 << 30, 16) + b"\0" * 16,
        struct.pack(">II", 20, 0xFFFFFF) + b"\0" * 16,
        struct.pack(">II", 12, 8) + b"not json",
    ],
    ids=["http", "negative length", "huge frame", "huge header", "undecodable header"],
)
async def test_garbage_ends_that_connection_and_no_other(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as harness:
        good, bad = await harness.client(), await harness.client()
        await good.request(1)
        with caplog.at_level(logging.WARNING, "mqspark.tcp"):
            bad.writer.write(garbage)
            assert await asyncio.wait_for(bad.reader.read(), 60) == b""
        assert any("closed:" in record.getMessage() for record in caplog.records)
        assert harness.server.counts.malformed == 1
        assert bytes((await good.request(2, b"still here")).body) == b"still here"
        await eventually_async(lambda: len(harness.core.ended) == 1)
        assert not harness.core.ended[0].open


async def test_a_slow_reader_is_not_read_from_and_gets_everything_in_the_end() -> None:
    high_water = 256 * 1024
    async with serving(high_water_bytes=high_water) as harness:
        harness.core.answer = b"x" * 64 * 1024
        slow = socket.create_connection(("127.0.0.1", harness.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        total = 4000  # 256 MB of answers, if they were all made at once
        await loop.sock_sendall(slow, b"".join(encode_request(ECHO, n) for n in range(total)))
        other = await harness.client()
        for n in range(20):
            await other.request(n)
        handled = harness.core.received_commands - 20
        assert handled < total / 2, "answers were made for a peer that does not read"
        got, connection = 0, Connection()
        while got < total:
            got += len(connection.receive_data(await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 60)))
        slow.close()
        assert got == total


async def test_a_half_closed_connection_is_closed_and_forgotten() -> None:
    async with serving() as harness:
        client = await harness.client()
        await client.request(1)
        client.writer.write_eof()
        assert await asyncio.wait_for(client.reader.read(), 60) == b""
        await eventually_async(lambda: harness.server.connections == 0 and len(harness.core.ended) == 1)


async def test_a_reset_in_the_middle_of_a_frame_is_forgotten() -> None:
    async with serving() as harness:
        sock = socket.create_connection(("127.0.0.1", harness.port))
        await eventually_async(lambda: harness.server.connections == 1)
        sock.sendall(encode_request(ECHO, 1, None, b"x" * 1000)[:500])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        await eventually_async(lambda: harness.server.connections == 0)


async def test_what_a_peer_sent_before_it_went_away_is_heard() -> None:
    """A consumer's last offset commits: one-way, right before it closes, with our answers unread."""
    async with serving() as harness:
        harness.core.answer = b"a" * 300_000
        for count in (1, 3, 200):
            before = harness.core.received_commands
            sock = socket.create_connection(("127.0.0.1", harness.port))
            sock.sendall(encode_request(ECHO, 0, None))
            await eventually_async(lambda now=before + 1: harness.core.received_commands == now)
            # All of it reaches the kernel while our loop stands still; the close resets the connection.
            sock.sendall(b"".join(encode_request(ECHO, n, None, b"x" * 100) for n in range(count)))
            sock.close()
            harness.core.sessions[-1].send(b"an answer that meets the closed socket")
            harness.server.write_outbox()
            await eventually_async(lambda: harness.server.connections == 0)
            assert harness.core.received_commands == before + 1 + count
        assert len(harness.core.ended) == 3


async def test_nothing_is_heard_after_garbage() -> None:
    async with serving() as harness:
        sock = socket.create_connection(("127.0.0.1", harness.port))
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + encode_request(ECHO, 1, None))
        sock.close()
        await eventually_async(lambda: len(harness.core.ended) == 1)
        assert harness.core.received_commands == 0


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with serving(idle_s=0.3) as harness:
        idle, busy = await harness.client(), await harness.client()
        await idle.request(0)
        for n in range(12):
            await busy.request(n)
            await asyncio.sleep(0.1)
        assert await asyncio.wait_for(idle.reader.read(), 60) == b""
        assert harness.server.connections == 1


async def test_connections_over_the_limit_are_refused_and_freed_ones_count_again() -> None:
    async with serving(max_connections=2) as harness:
        first, second = await harness.client(), await harness.client()
        await first.request(1)
        await second.request(1)
        third = await harness.client()
        with pytest.raises((EOFError, ConnectionError)):
            await third.request(1)
        assert harness.server.counts.refused == 1
        await first.close()
        await eventually_async(lambda: harness.server.connections == 1)
        fourth = await harness.client()
        assert (await fourth.request(4)).opaque == 4


async def test_incomplete_frames_of_all_connections_together_are_bounded() -> None:
    async with serving(max_buffered_bytes=1_000_000) as harness:
        half = encode_request(ECHO, 1, None, b"x" * 900_000)[:600_000]
        first, second, good = await harness.client(), await harness.client(), await harness.client()
        first.writer.write(half)
        await eventually_async(lambda: harness.server.buffered_bytes == 600_000)
        second.writer.write(half)
        with pytest.raises((EOFError, ConnectionError)):
            await first.next()  # of two equal ones the older
        assert (await good.request(1)).opaque == 1
        await eventually_async(lambda: harness.server.buffered_bytes == 600_000)
        await second.close()
        await eventually_async(lambda: harness.server.buffered_bytes == 0)


async def test_a_fault_of_the_core_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as harness:
        good, bad = await harness.client(), await harness.client()
        await good.request(1)
        with pytest.raises(EOFError):
            await bad.request(1, code=1)
        assert "could not be handled" in caplog.text
        assert (await good.request(2)).opaque == 2


async def test_a_session_that_the_core_closes_is_closed() -> None:
    async with serving() as harness:
        client = await harness.client()
        client.writer.write(encode_request(ECHO, 1, None, b"last words") + encode_request(2, 2))
        assert bytes((await client.next()).body) == b"last words"
        with pytest.raises(EOFError):
            await client.next()


async def test_work_before_a_turn_belongs_to_that_turn() -> None:
    async with serving() as harness:
        server, core, did = harness.server, harness.core, list[str]()

        def first() -> None:
            did.append(f"first {core.turns}")
            server.schedule()
            server.before_turn(lambda: did.append(f"second {core.turns}"))

        before = core.turns
        server.before_turn(first)
        for _ in range(5):
            await asyncio.sleep(0)
        assert did == [f"first {before}", f"second {before + 1}"]
        assert core.turns == before + 2


async def test_a_local_peer_is_answered_like_a_socket() -> None:
    async with serving() as harness:
        peer = harness.server.local_peer()
        answers = await asyncio.gather(*(peer.request(ECHO, None, b"%d" % n) for n in range(10)))
        assert [bytes(a.body) for a in answers] == [b"%d" % n for n in range(10)]
        peer.close()
        assert harness.core.ended == [peer.session]


async def test_a_local_peer_is_told_when_the_server_stops() -> None:
    async with serving() as harness:
        peer = harness.server.local_peer()
        unanswered = asyncio.create_task(peer.request(2))  # the core closes the session, and answers nothing
        await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await unanswered


async def test_a_session_knows_both_its_ends() -> None:
    async with serving() as harness:
        client = await harness.client()
        await client.request(1)
        address, port = client.writer.get_extra_info("sockname")
        session = harness.core.sessions[0]
        assert (session.peer, session.fast) == (f"{address}:{port}", False)
        assert session.local == f"127.0.0.1:{harness.port}"


def test_the_fast_port_is_two_below() -> None:
    main, fast = bind_pair("127.0.0.1", 0)
    try:
        assert fast is not None
        assert fast.getsockname()[1] == main.getsockname()[1] - 2
    finally:
        main.close()
        if fast is not None:
            fast.close()


def test_a_taken_fast_port_does_not_stop_the_broker() -> None:
    first, fast = bind_pair("127.0.0.1", 0)
    assert fast is not None
    fast.listen()
    port = first.getsockname()[1]
    first.close()
    main, none = bind_pair("127.0.0.1", port)
    assert none is None
    main.close()
    fast.close()
