"""Requests to other servers: what is written when, and how waiting for an answer ends."""

from __future__ import annotations

import asyncio

import pytest

import mqspark_server.net.outbound as outbound_module
from mqspark.errors import ConnectionLost, RequestTimeout
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command, encode_request, encode_response
from mqspark_server.net.memory_budget import MemoryBudget
from mqspark_server.net.outbound import FEW_PENDING, NOTED_BYTES, Outbound
from tests.support.wires import Wire
from tests.unit.outbound_kit import connected

CODE = RequestCode.GET_MAX_OFFSET


def test_requests_of_a_turn_are_one_write() -> None:
    async def scene() -> None:
        outbound, wire = connected()
        waiting = [outbound.submit(CODE, {"n": str(n)}, b"", timeout_s=60) for n in range(5)]
        assert not wire.writes
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        answers = [encode_response(opaque, 0, {"of": str(opaque)}) for opaque in reversed(wire.opaques())]
        outbound.data_received(b"".join(answers))
        assert [(await each).ext["of"] for each in waiting] == [str(each) for each in wire.opaques()]
        outbound.tell(CODE, None, b"")
        outbound.close()  # what was said before is written
        assert len(wire.writes) == 2
        outbound.connection_lost(None)

    asyncio.run(scene())


def test_late_answers_end_the_wait_one_by_one() -> None:
    async def scene() -> None:
        outbound, wire = connected()
        long = outbound.submit(CODE, None, b"", timeout_s=60)
        short = outbound.submit(CODE, None, b"", timeout_s=0.01)
        with pytest.raises(RequestTimeout, match="within 10 ms"):
            await short
        late, on_time = wire.opaques()[1], wire.opaques()[0]
        outbound.data_received(encode_response(late, 0) + encode_response(on_time, 0))
        assert (await long).opaque == on_time
        outbound.connection_lost(None)

    asyncio.run(scene())


def test_a_connection_on_which_nothing_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a firewall has forgotten it: neither end is told."""
    monkeypatch.setattr(outbound_module, "SILENT_S", 0.2)

    async def scene() -> None:
        outbound, wire = connected()
        held = outbound.submit(CODE, None, b"", timeout_s=60)
        for heard in (False, True):
            with pytest.raises(RequestTimeout):
                await outbound.submit(CODE, None, b"", timeout_s=0.01)
            assert not wire.closed, "it was not silent for long enough"
            await asyncio.sleep(0.2)
            if not heard:
                outbound.data_received(encode_response(wire.opaques()[1], 0))
        outbound.submit(CODE, None, b"", timeout_s=0.01).cancel()
        await asyncio.sleep(0.05)
        assert not wire.closed, "nobody waits for it"
        with pytest.raises(RequestTimeout):
            await outbound.submit(CODE, None, b"", timeout_s=0.01)
        assert wire.is_aborted
        with pytest.raises(ConnectionLost, match="silent"):
            await held
        outbound.connection_lost(None)

    asyncio.run(scene())


def test_the_end_of_a_connection_fails_all_requests() -> None:
    async def scene() -> None:
        outbound, _ = connected(as_error=lambda error: ValueError(f"told: {error}"))
        waiting = outbound.submit(CODE, None, b"", timeout_s=60)
        outbound.connection_lost(OSError("reset"))
        for each in (waiting, outbound.submit(CODE, None, b"", timeout_s=60)):
            with pytest.raises(ValueError, match="told: connection to host:1 was lost"):
                await each
        assert not outbound.alive
        with pytest.raises(ConnectionLost):
            outbound.tell(CODE, None, b"")

    asyncio.run(scene())


def test_requests_that_are_given_up_do_not_pile_up() -> None:
    async def scene() -> None:
        outbound, _ = connected()
        kept = outbound.submit(CODE, None, b"", timeout_s=60)
        for _ in range(5 * FEW_PENDING):
            outbound.submit(CODE, None, b"", timeout_s=60).cancel()
        assert outbound.pending <= FEW_PENDING + 1
        assert not kept.done()
        outbound.connection_lost(None)
        with pytest.raises(ConnectionLost):
            await kept

    asyncio.run(scene())


class Broken:
    """A waiting one that fails when it is told anything."""

    def done(self) -> bool:
        return False

    def set_result(self, answer: Command, /) -> None:
        raise RuntimeError("broken")

    def set_exception(self, error: Exception, /) -> None:
        raise RuntimeError("broken")


def test_who_cannot_be_told_keeps_nobody_else_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        outbound, wire = connected()
        for timeout_s in (60, 0.01, 60):
            outbound.ask(Broken(), CODE, None, b"", timeout_s=timeout_s)
        late, answered, lost = (outbound.submit(CODE, None, b"", timeout_s=each) for each in (0.01, 60, 60))
        with pytest.raises(RequestTimeout):
            await late
        opaques = wire.opaques()
        outbound.data_received(encode_response(opaques[0], 0) + encode_response(opaques[4], 0))
        assert (await answered).opaque == opaques[4]
        outbound.connection_lost(None)
        with pytest.raises(ConnectionLost):
            await lost

    asyncio.run(scene())
    assert "RuntimeError: broken" in caplog.text


def test_peers_that_do_not_read_hold_a_bounded_number_of_bytes() -> None:
    async def scene() -> None:
        unread: MemoryBudget[Outbound] = MemoryBudget(4 * NOTED_BYTES)
        (slow, slow_wire), (quick, quick_wire) = connected(unread=unread), connected(unread=unread)
        answer = slow.submit(CODE, None, b"", timeout_s=60)

        async def tell(outbound: Outbound, wire: Wire, unread_bytes: int) -> None:
            outbound.tell(CODE, None, b"")
            wire.unread_bytes = unread_bytes
            await asyncio.sleep(0)

        await tell(quick, quick_wire, 3 * NOTED_BYTES)
        await tell(slow, slow_wire, NOTED_BYTES)
        assert unread.total == 4 * NOTED_BYTES
        quick_wire.unread_bytes = 0
        await tell(slow, slow_wire, 4 * NOTED_BYTES)
        assert not slow_wire.is_aborted
        await tell(slow, slow_wire, 4 * NOTED_BYTES + 1)
        assert (slow_wire.is_aborted, quick_wire.is_aborted) == (True, False)
        with pytest.raises(ConnectionLost, match="has not read"):
            await answer
        slow.connection_lost(None)
        assert (unread.total, len(unread)) == (0, 0)
        quick.connection_lost(None)

    asyncio.run(scene())


def test_a_request_of_a_peer_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails(command: Command) -> None:
        raise RuntimeError("broken")

    async def scene() -> None:
        outbound, wire = connected(on_request=fails)
        waiting = outbound.submit(CODE, None, b"", timeout_s=60)
        await asyncio.sleep(0)
        outbound.data_received(encode_request(CODE, 1, None) + encode_response(wire.opaques()[0], 0))
        assert (await waiting).code == 0
        outbound.connection_lost(None)

    asyncio.run(scene())
    assert "RuntimeError: broken" in caplog.text
