"""A listener of gRPC on a real socket: whom it closes by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest

from mqspark_server.net.addresses import bind
from mqspark_server.net.grpc.grpcconnection import RETIRE_S
from mqspark_server.net.grpc.grpclistener import GrpcListener
from mqspark_server.net.grpc.messagereader import message_bytes
from mqspark_server.net.http2.http2frames import (
    ACK,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    LAST_STREAM,
    PING,
    RST_STREAM,
    frame,
)
from tests.unit.grpc_kit import Text, listener_of, method
from tests.unit.http2_kit import BEGIN, Sent, data, frames_of, request, request_block

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


async def heard(reader: asyncio.StreamReader, kind: int) -> list[Sent]:
    """What the server says up to a frame of this kind."""
    said: list[Sent] = []
    while not said or said[-1].kind != kind:
        head = await reader.readexactly(HEAD_BYTES)
        said += frames_of(head + await reader.readexactly(int.from_bytes(head[:3], "big")))
    return said


def u32_bytes(number: int) -> bytes:
    return number.to_bytes(4, "big")


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


async def test_an_old_connection_is_asked_to_end_and_its_calls_get_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening(max_age_s=IDLE_S) as (listener, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(BEGIN + call_on(1))
        said = await heard(reader, PING)
        assert [each.payload[:4] for each in said if each.kind == GOAWAY] == [u32_bytes(LAST_STREAM)]
        writer.write(call_on(3) + frame(PING, ACK, 0, said[-1].payload))  # begun before it knew
        said = await heard(reader, GOAWAY)
        assert said[-1].payload[:4] == u32_bytes(3)
        writer.write(call_on(5))
        assert (await heard(reader, RST_STREAM))[-1].stream == 5
        assert listener.calls == 2
        monkeypatch.setattr("mqspark_server.net.grpc.grpclistener.monotonic", lambda: monotonic() + RETIRE_S)
        said = frames_of(await reader.read())
        assert {each.stream for each in said if each.kind == HEADERS} == {1, 3}
        assert listener.calls == 0
        writer.close()


async def test_an_old_connection_without_calls_is_closed_when_its_peer_knows() -> None:
    async with listening(max_age_s=IDLE_S) as (listener, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(BEGIN)
        ping = (await heard(reader, PING))[-1]
        await asyncio.sleep(3 * IDLE_S)
        assert len(listener.sockets) == 1
        writer.write(frame(PING, ACK, 0, ping.payload))
        assert frames_of(await reader.read())[-1].kind == GOAWAY
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
