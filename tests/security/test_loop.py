"""One connection that would have the event loop for itself: pipelined requests that each cost milliseconds, answers
that take long, a peer that leaves before its requests are handled. Others must be served in between.

What is counted is the attacker's requests handled while somebody else waits for one answer, not the time of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from mqspark.protocol.command import Command, encode_request, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.dispatch import dispatch
from mqspark.protocol.session import Session
from mqspark.protocol.slices import MAX_RUNNING, LongWork, Slices
from mqspark_server.tcp import RemotingServer, bind_socket

pytestmark = pytest.mark.anyio

CHEAP, COSTLY, LONG = 1, 2, 3
COST_S = 0.002
REQUESTS = 1_000


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Core:
    """Requests that cost nothing, that cost COST_S, and that take a hundred slices of COST_S."""

    def __init__(self) -> None:
        self.costly = 0
        self.slices = 0
        self.ended: list[int] = []
        """Costly requests handled when a session ended."""
        self.long_work = LongWork()

    def connected(self, session: Session) -> None: ...

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

    def turn(self) -> None: ...

    def tick(self) -> int:
        return 1000


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
async def serving(**options: Any) -> AsyncIterator[Harness]:
    core = Core()
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
        assert worst <= 30  # 60 ms; all of them without turns


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
        assert worst <= 120
        for attacker, count in zip(attackers, had, strict=True):
            await attacker.answers(30 - count)  # nobody starves


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
