"""A listener of gRPC on a real socket: whom it closes by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mqspark_server.net.addresses import bind
from mqspark_server.net.grpc.grpclistener import GrpcListener
from mqspark_server.net.grpc.messagereader import message_bytes
from mqspark_server.net.http2.http2frames import ACK, GOAWAY, PING, frame
from tests.unit.grpc_kit import Text, listener_of, method
from tests.unit.http2_kit import BEGIN, data, frames_of, request, request_block

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
IDLE_S = 0.05


async def wait(request: Text, call: Any) -> Text:
    await asyncio.get_running_loop().create_future()
    return request


@contextlib.asynccontextmanager
async def listening(**limits: Any) -> AsyncIterator[tuple[GrpcListener, int]]:
    listener = listener_of([("/service/Method", method(wait))], **limits)
    sock = bind("gRPC", HOST, 0)
    port = sock.getsockname()[1]
    await listener.listen(sock)
    try:
        yield listener, port
    finally:
        await listener.close(None)


def call_on(stream: int) -> bytes:
    return request(stream, block=request_block(content_type="application/grpc")) + data(
        stream, message_bytes(b""), ended=True
    )


async def test_a_silent_connection_without_calls_is_closed() -> None:
    async with listening(idle_s=IDLE_S) as (listener, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(BEGIN)
        said = frames_of(await reader.read())
        assert said[-1].kind == GOAWAY
        assert listener.counts.idle == 1
        writer.close()


async def test_a_silent_connection_with_calls_is_kept_as_long_as_it_answers_pings() -> None:
    async with listening(idle_s=IDLE_S) as (listener, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(BEGIN + call_on(1))
        pings = 0
        while pings < 3:
            for each in frames_of(await reader.read(1 << 16)):
                if each.kind == PING:
                    pings += 1
                    writer.write(frame(PING, ACK, 0, each.payload))
        assert listener.calls == 1
        with contextlib.suppress(ConnectionError):  # now it answers none
            await reader.read()
        assert listener.calls == 0
        assert listener.counts.dropped == 1
        writer.close()


async def test_connections_beyond_the_limit_make_room_only_when_they_have_not_begun() -> None:
    async with listening(max_connections=2) as (listener, port):
        first_reader, first = await asyncio.open_connection(HOST, port)
        first.write(BEGIN)
        await first_reader.read(1)
        silent_reader, silent = await asyncio.open_connection(HOST, port)
        last_reader, last = await asyncio.open_connection(HOST, port)
        last.write(BEGIN)
        assert await last_reader.read(1)
        with contextlib.suppress(ConnectionError):
            assert await silent_reader.read() == b""
        assert listener.counts.dropped == 1
        for writer in (first, silent, last):
            writer.close()
