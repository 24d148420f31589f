"""What a client leaves behind when it stops: no connection, whatever the connections were waiting for."""

from __future__ import annotations

import asyncio

import pytest

from mqspark.client.remoting.remoting import Remoting
from mqspark.errors import ConnectionLost
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from tests.support.scripted import SILENCE, Answer, Scripted
from tests.support.waiting import eventually_async

WAITS, GOES = 28, 29


async def test_a_channel_that_still_waits_for_answers_is_closed_with_its_client() -> None:
    """The server has asked to go away, so that it is no longer among the channels for new requests."""

    def script(command: Command) -> Answer:
        return SILENCE if command.code == WAITS else (ResponseCode.GO_AWAY, None, b"")

    remoting = Remoting(connect_timeout_ms=3_000, on_request=lambda channel, request: None)
    async with Scripted(script).serving() as server:
        waiting = asyncio.ensure_future(remoting.invoke(server.address, WAITS, timeout_ms=60_000))
        await eventually_async(lambda: server.codes() == [WAITS])
        going = (ResponseCode.GO_AWAY,)
        await remoting.invoke(server.address, GOES, timeout_ms=3_000, accept=going)
        assert len(server.writers) == 2, "the channel that waits, and the one for new requests"
        await remoting.close()
        with pytest.raises(ConnectionLost):
            await waiting
        await eventually_async(lambda: not server.writers)


async def test_a_connection_that_is_being_made_is_closed_with_its_client() -> None:
    remoting = Remoting(connect_timeout_ms=3_000, on_request=lambda channel, request: None)
    async with Scripted(lambda command: SILENCE).serving() as server:
        opening = asyncio.ensure_future(remoting.connect(server.address))
        await asyncio.sleep(0)
        await remoting.close()
        with pytest.raises(ConnectionLost, match="stopped"):
            await opening
        assert remoting.connecting() == []
        await eventually_async(lambda: not server.writers)
