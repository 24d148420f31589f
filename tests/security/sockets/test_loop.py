"""One connection that would have the event loop for itself: pipelined requests that each cost milliseconds, answers
that take long, a peer that leaves before its requests are handled. Others must be served in between.

What is counted is the attacker's requests handled while somebody else waits for one answer, not the time of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import struct
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from mqspark.protocol.command import Command, encode_request, encode_response
from mqspark.protocol.connection import SLICE_BYTES, SLICE_COMMANDS, Connection
from mqspark.protocol.dispatch import dispatch
from mqspark.protocol.session import Session
from mqspark.protocol.slices import MAX_RUNNING, LongWork, Slices
from mqspark_server.net.addresses import bind_socket
from mqspark_server.net.guards import CONNECTION_S
from mqspark_server.net.remotingserver import RING_S, WORK_S, WRITES_AT_ONCE, RemotingServer
from tests.support.toycore import ToyCore

CHEAP, COSTLY, LONG = 1, 2, 3
COST_S = 0.0005
REQUESTS = 1_000


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Core(ToyCore):
    """Requests that cost nothing, that cost COST_S, and that take a hundred slices of COST_S."""

    def __init__(self) -> None:
        self.costly = 0
        self.slices = 0
        self.ended: list[int] = []
        """Costly requests handled when a session ended."""
        self.long_work = LongWork()

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        handlers = {CHEAP: self.cheap, COSTLY: self.cost, LONG: self.long}
        dispatch(handlers, session, commands, self.long_work)

    def cheap(self, session: Session, command: Command) -> bytes:
        return encode_response(command.opaque, 0)

    def cost(self, session: Session, command: Command) -> bytes:
        burn(COST_S)
        self.costly += 1
        return encode_response(command.opaque, 0)

    def long(self, session: Session, command: Command) -> Slices:
        for _ in range(100):
            burn(COST_S)
            self.slices += 1
            yield
        return encode_response(command.opaque, 0)

    @property
    def work_waits(self) -> bool:
        return len(self.long_work) > 0

    def work(self) -> bool:
        return self.long_work.step()

    def disconnected(self, session: Session) -> None:
        self.ended.append(self.costly)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.wire = Connection()

    def send(self, code: int, opaques: Iterable[int], *, oneway: bool = False) -> None:
        self.writer.write(b"".join(encode_request(code, opaque, oneway=oneway) for opaque in opaques))

    async def answers(self, count: int) -> list[int]:
        """The opaques of the next answers."""
        got: list[int] = []
        while len(got) < count:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 60)
            assert data
            got += [command.opaque for command in self.wire.receive_data(data)]
        return got


class Harness:
    def __init__(self, core: Core, server: RemotingServer, port: int) -> None:
        self.core, self.server, self.port = core, server, port
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@contextlib.asynccontextmanager
async def serving(core: Core | None = None, **options: Any) -> AsyncIterator[Harness]:
    core = core or Core()
    outbox: list[Session] = []
    server = RemotingServer(core, outbox, name="toy", **options)
    listener = await server.listen(bind_socket("127.0.0.1", 0))
    server.start()
    harness = Harness(core, server, listener.port)
    try:
        yield harness
    finally:
        for client in harness.clients:
            client.writer.close()
            await asyncio.gather(client.writer.wait_closed(), return_exceptions=True)
        await server.close(abruptly=True)


async def test_pipelined_costly_requests_leave_others_their_turns() -> None:
    async with serving() as harness:
        attacker, client = await harness.client(), await harness.client()
        attacker.send(COSTLY, range(REQUESTS))
        await attacker.answers(1)
        worst = 0
        for opaque in range(10):
            before = harness.core.costly
            client.send(CHEAP, [opaque])
            assert await client.answers(1) == [opaque]
            worst = max(worst, harness.core.costly - before)
        assert harness.core.costly < REQUESTS
        assert worst <= 30  # 24 ms; all of them without turns


async def test_what_arrives_after_a_turn_in_the_ring_has_only_the_rest_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, handled = 0.0, list[int]()

    class Counted(Core):
        def received(self, session: Session, commands: Iterable[Command]) -> None:
            before = self.costly
            super().received(session, commands)
            handled.append(self.costly - before)

        def cost(self, session: Session, command: Command) -> bytes:
            nonlocal now
            now += COST_S
            self.costly += 1
            if command.opaque == 0:  # the next requests are in the socket before these have been handled
                more = b"".join(encode_request(COSTLY, opaque) for opaque in range(5, 10))
                os.write(attacker.writer.get_extra_info("socket").fileno(), more)
            return encode_response(command.opaque, 0)

    monkeypatch.setattr("mqspark_server.net.remotingserver.monotonic", lambda: now)
    monkeypatch.setattr("mqspark_server.net.remotingconnection.monotonic", lambda: now)
    async with serving(Counted()) as harness:
        attacker = await harness.client()
        attacker.send(COSTLY, range(5))
        assert await attacker.answers(10) == list(range(10))
    assert CONNECTION_S == 2.5 * COST_S
    assert handled == [3, 1, 1, 2, 1, 2]


async def test_pipelined_costly_requests_are_all_answered_in_order() -> None:
    async with serving() as harness:
        attacker = await harness.client()
        attacker.send(COSTLY, range(100))
        attacker.send(CHEAP, range(100, 400))
        assert await attacker.answers(400) == list(range(400))


async def test_many_connections_with_costly_requests_share_the_time_of_one_iteration() -> None:
    async with serving() as harness:
        attackers = [await harness.client() for _ in range(20)]
        client = await harness.client()
        for attacker in attackers:
            attacker.send(COSTLY, range(30))
        had = [len(await attacker.answers(1)) for attacker in attackers]
        worst = 0
        for opaque in range(10):
            before = harness.core.costly
            client.send(CHEAP, [opaque])
            assert await client.answers(1) == [opaque]
            worst = max(worst, harness.core.costly - before)
        assert worst <= 50
        for attacker, count in zip(attackers, had, strict=True):
            await attacker.answers(30 - count)  # nobody starves


async def test_waiting_commands_and_long_work_share_the_time_of_one_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, spent = 0.0, [0.0]

    class Counted(Core):
        def cost(self, session: Session, command: Command) -> bytes:
            nonlocal now
            now += COST_S
            spent[-1] += COST_S
            return encode_response(command.opaque, 0)

        def work(self) -> bool:
            nonlocal now
            now += COST_S
            spent[-1] += COST_S
            return super().work()

        def turn(self) -> None:
            spent.append(0.0)

        def long(self, session: Session, command: Command) -> Slices:
            for _ in range(20):
                yield
            return encode_response(command.opaque, 0)

    monkeypatch.setattr("mqspark_server.net.remotingserver.monotonic", lambda: now)
    monkeypatch.setattr("mqspark_server.net.remotingconnection.monotonic", lambda: now)
    async with serving(Counted()) as harness:
        attackers = [await harness.client() for _ in range(10)]
        for attacker in attackers[1:]:
            attacker.send(COSTLY, range(30))
        attackers[0].send(LONG, [1])
        for attacker in attackers[1:]:
            await attacker.answers(30)
        assert await attackers[0].answers(1) == [1]
    in_ring_only = sorted(spent)[: -len(attackers)]  # each was read once
    assert CONNECTION_S == RING_S == 2 * WORK_S
    assert len(in_ring_only) > 2 * len(attackers)
    assert RING_S < max(in_ring_only) <= RING_S + 2 * COST_S


async def test_long_work_that_speaks_to_many_connections_rests_for_the_writes() -> None:
    class Telling(Core):
        def __init__(self) -> None:
            super().__init__()
            self.sessions: list[Session] = []
            self.told = [0]

        def connected(self, session: Session) -> None:
            self.sessions.append(session)

        def turn(self) -> None:
            self.told.append(0)

        def long(self, session: Session, command: Command) -> Slices:
            for each in self.sessions:
                each.send(encode_response(7, 0))
                self.told[-1] += 1
                yield
            return encode_response(command.opaque, 0)

    core = Telling()
    async with serving(core) as harness:
        clients = [await harness.client() for _ in range(3 * WRITES_AT_ONCE)]
        clients[0].send(LONG, [1])
        assert await clients[0].answers(2) == [7, 1]
        assert [await client.answers(1) for client in clients[1:]] == [[7]] * (len(clients) - 1)
    assert sum(core.told) == len(clients)
    assert max(core.told) <= WRITES_AT_ONCE


async def test_a_long_answer_is_made_between_the_turns_of_others() -> None:
    async with serving() as harness:
        attacker, client = await harness.client(), await harness.client()
        attacker.send(LONG, [1])
        while not harness.core.slices:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        worst = 0
        for opaque in range(5):
            before = harness.core.slices
            client.send(CHEAP, [opaque])
            assert await client.answers(1) == [opaque]
            worst = max(worst, harness.core.slices - before)
        assert harness.core.slices < 100
        assert worst <= 30
        assert await attacker.answers(1) == [1]


async def test_long_work_takes_a_millisecond_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    turns: list[int] = []

    class Counted(Core):
        def work(self) -> bool:
            nonlocal now
            now += 0.4 * WORK_S
            turns[-1] += 1
            return super().work()

        def turn(self) -> None:
            turns.append(0)

        def long(self, session: Session, command: Command) -> Slices:
            for _ in range(100):
                yield
            return encode_response(command.opaque, 0)

    monkeypatch.setattr("mqspark_server.net.remotingserver.monotonic", lambda: now)
    monkeypatch.setattr("mqspark_server.net.remotingconnection.monotonic", lambda: now)
    async with serving(Counted()) as harness:
        client = await harness.client()
        client.send(LONG, [1])
        assert await client.answers(1) == [1]
    assert max(turns) == 2, "a third slice would end too late"
    assert WORK_S <= 0.001


async def test_a_connection_has_one_long_answer_at_a_time() -> None:
    async with serving() as harness:
        attacker = await harness.client()
        attacker.send(LONG, range(3))
        attacker.send(CHEAP, [3])
        while not harness.core.slices:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        assert len(harness.core.long_work) == 1
        assert await attacker.answers(4) == [0, 1, 2, 3]


async def test_long_answers_of_peers_that_left_are_dropped() -> None:
    async with serving() as harness:
        for _ in range(2 * MAX_RUNNING):
            attacker = await harness.client()
            attacker.send(LONG, [1])
            await attacker.writer.drain()
        while len(harness.core.long_work) < 2 * MAX_RUNNING:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        for attacker in harness.clients:
            attacker.writer.close()
        while len(harness.core.long_work):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        assert harness.core.slices < 100 * MAX_RUNNING


async def test_requests_of_a_peer_that_left_are_handled_between_the_turns_of_others() -> None:
    """They are: a consumer's last offsets are one-way requests right before it closes."""
    async with serving() as harness:
        attacker, client = await harness.client(), await harness.client()
        attacker.send(COSTLY, range(300), oneway=True)
        await attacker.writer.drain()
        attacker.writer.close()
        worst = 0
        for opaque in range(10):
            before = harness.core.costly
            client.send(CHEAP, [opaque])
            assert await client.answers(1) == [opaque]
            worst = max(worst, harness.core.costly - before)
        assert worst <= 30
        while not harness.core.ended:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        assert harness.core.ended == [300]  # the session ends after the last of them


async def test_a_read_full_of_tiny_frames_is_parsed_between_the_turns_of_others() -> None:
    async with serving() as harness:
        attacker = await harness.client()
        frames = 20_000
        body = b'{"code":1,"opaque":%d}'
        headers = [body % opaque for opaque in range(frames)]
        received = b"".join(struct.pack(">iI", 4 + len(header), len(header)) + header for header in headers)
        parsed: list[int] = []
        parse = Connection.receive_data

        def count(wire: Connection, data: bytes) -> list[Command]:
            commands = parse(wire, data)
            if wire is not attacker.wire:
                parsed.append(len(commands))
            return commands

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "receive_data", count)
            attacker.writer.write(received)
            assert await attacker.answers(frames) == list(range(frames))
        assert sum(parsed) == frames
        assert max(parsed) <= SLICE_COMMANDS + SLICE_BYTES // 18


async def test_tiny_frames_are_handled_although_their_peer_has_left() -> None:
    async with serving() as harness:
        attacker = await harness.client()
        attacker.send(COSTLY, range(10), oneway=True)
        attacker.send(CHEAP, range(5_000), oneway=True)
        attacker.send(COSTLY, range(10), oneway=True)
        await attacker.writer.drain()
        attacker.writer.close()
        while not harness.core.ended:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        assert harness.core.ended == [20]


async def test_garbage_after_many_tiny_frames_closes_the_connection() -> None:
    async with serving() as harness:
        attacker, client = await harness.client(), await harness.client()
        attacker.writer.write(
            b"".join(encode_request(CHEAP, opaque) for opaque in range(3_000)) + b"\xff" * 64
        )
        while await asyncio.wait_for(attacker.reader.read(1 << 16), 60):
            continue
        assert harness.server.counts.malformed == 1
        client.send(CHEAP, [1])
        assert await client.answers(1) == [1]


async def test_connections_leave_nothing_for_the_collector() -> None:
    """It visits rarely what it has visited once."""
    count = 5
    async with serving() as harness:
        gc.collect()
        gc.disable()
        others = {id(each) for each in gc.get_objects() if isinstance(each, Session)}
        try:
            for opaque in range(count):
                client = await harness.client()
                client.send(CHEAP, [opaque])
                client.send(LONG, [opaque])
                assert await client.answers(2) == [opaque, opaque]
                client.writer.close()
            while len(harness.core.ended) < count:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            left = [each for each in gc.get_objects() if isinstance(each, Session) and id(each) not in others]
            assert left == []
        finally:
            gc.enable()


@pytest.mark.parametrize("piece", [1 << 20, 40_000, 777])
def test_frames_parsed_in_slices_are_the_same(piece: int) -> None:
    sizes = [0, 1, 3000, 70_000, *[0] * 2_000, 20_000, *[5] * 1_500]
    received = b"".join(encode_request(1, opaque, None, b"x" * size) for opaque, size in enumerate(sizes))
    wire = Connection(in_slices=True)
    got: list[tuple[int, int]] = []
    for at in range(0, len(received), piece):
        data = received[at : at + piece]
        while data or wire.unparsed:
            got += [(command.opaque, len(command.body)) for command in wire.receive_data(data)]
            data = b""
    assert got == list(enumerate(sizes))
    assert wire.buffered_bytes == 0
