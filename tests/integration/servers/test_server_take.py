"""A core that takes requests without commands gets every byte once, and what it leaves becomes commands."""

from __future__ import annotations

import asyncio

import pytest

from mqspark.protocol.command import encode_request, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import Session
from mqspark_server.net.lonereads import LoneReads
from tests.integration.servers.test_server_tcp import ECHO, EchoCore, serving
from tests.support.waiting import eventually_async

TAKEN = 7


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class TakingCore(EchoCore):
    """Takes requests with the code TAKEN, and answers each with its body."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def take(self, session: Session, data: bytes, at: int) -> int:
        while len(data) - at >= 8:
            end = at + 4 + int.from_bytes(data[at : at + 4])
            if end > len(data):
                break
            (command,) = Connection().receive_data(data[at:end])
            if command.code != TAKEN:
                break
            if command.body == b"fault":
                raise RuntimeError("a fault in the core")
            self.taken += 1
            session.send(encode_response(command.opaque, 0, None, bytes(command.body)))
            at = end
        return at


@pytest.mark.parametrize("size", [1, 7, 100, 5000, 1 << 20])
async def test_every_frame_is_handled_once_and_in_order(size: int) -> None:
    core = TakingCore()
    async with serving(core, take=core.take) as harness:
        client = await harness.client()
        frames = [
            encode_request(
                TAKEN if n % 5 else ECHO, n, {"n": "x" * (n % 50)}, b"%d" % n * (1 + n % 70 * (n % 3))
            )
            for n in range(1, 61)
        ]
        frames.insert(30, encode_request(TAKEN, 100, None, bytes(200_000)))
        assert (await client.request(0, b"known")).body == b"known"
        assert (await client.request(0, b"taken", TAKEN)).body == b"taken"
        assert core.taken == 1
        stream = b"".join(frames) if size > 7 else b"".join(frames[:8])
        for at in range(0, len(stream), size):
            client.writer.write(stream[at : at + size])
            if size < 5000:
                await asyncio.sleep(0)
        count = 8 if size <= 7 else len(frames)
        answers = [await client.next() for _ in range(count)]
        asked = Connection().receive_data(stream)
        assert [(each.opaque, bytes(each.body)) for each in answers] == [
            (each.opaque, bytes(each.body)) for each in asked
        ]
        assert core.taken + core.received_commands == count + 2
        assert harness.server.buffered_bytes == 0


async def test_a_fault_of_the_core_ends_only_its_connection() -> None:
    core = TakingCore()
    async with serving(core, take=core.take) as harness:
        client, other = await harness.client(), await harness.client()
        for each in (client, other):
            assert (await each.request(1, b"known")).body == b"known"
        assert (await other.request(2, b"taken", TAKEN)).body == b"taken"
        with pytest.raises((EOFError, ConnectionError)):
            await client.request(2, b"fault", TAKEN)
        assert (await other.request(3, b"on", TAKEN)).body == b"on"
        assert core.taken == 2


async def test_a_connection_that_alone_sends_has_its_turns_at_once(caplog: pytest.LogCaptureFixture) -> None:
    core = TakingCore()

    def frame(*codes: int) -> bytes:
        return b"".join([encode_request(code, 9, None, b"x") for code in codes])

    afters: list[str] = []
    async with serving(core, take=core.take, after=afters.append) as harness:
        for _ in range(2):
            assert (await (await harness.client()).request(0, b"known")).body == b"known"
        second = harness.server.last_read
        assert second is not None
        (first,) = set(harness.server.sockets) - {second}
        turns: list[tuple[int, int]] = []
        afters.clear()
        for *reads, (connection, codes) in (
            [(first, [TAKEN])],  # the other one was read before it
            [(first, [TAKEN, TAKEN])],
            [(second, [TAKEN]), (first, [TAKEN])],  # both in one turn
            [(first, [TAKEN, ECHO])],  # what is left becomes a command, and waits for the turn
            [(first, [TAKEN])],
        ):
            for other, before in reads:
                other.data_received(frame(*before))
            begun = core.turns
            connection.data_received(frame(*codes))
            at_once = core.turns - begun
            await eventually_async(lambda: not harness.server.scheduled)
            turns.append((at_once, core.turns - begun))
        assert turns == [(0, 1), (1, 1), (0, 1), (0, 1), (1, 1)]
        assert afters == ["turn", "taken", "turn", "turn", "taken"]

        def failing() -> None:
            raise RuntimeError("a fault in the core")

        core.turn = failing  # type: ignore[method-assign]
        first.data_received(frame(TAKEN))
        del core.turn
        assert [each.getMessage() for each in caplog.records if each.exc_info] == ["toy: a turn failed"]
        first.data_received(frame(TAKEN))
        answers = [await harness.clients[0].next() for _ in range(9)]
        assert {bytes(each.body) for each in answers} == {b"x"}


@pytest.mark.parametrize(("source", "is_noted"), [("127.0.0.1", True), ("127.0.0.2", False)])
async def test_reads_of_a_peer_on_this_machine_are_looked_at(
    source: str, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(LoneReads, "note", lambda lone, size, now: sizes.append(size))
    core = TakingCore()
    async with serving(core, take=core.take) as harness:
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.port, local_addr=(source, 0))
        try:
            for number, code in enumerate((0, TAKEN, TAKEN)):
                frame = encode_request(code, number, None, b"x")
                writer.write(frame)
                answer = await reader.readexactly(4)
                await reader.readexactly(int.from_bytes(answer))
        finally:
            writer.close()
        assert core.taken == 2
        assert sizes == ([len(frame)] * 2 if is_noted else [])
