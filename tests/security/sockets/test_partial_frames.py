"""Frames that are begun and not ended, and connections that say nothing: neither keeps honest peers out."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from mqspark.protocol.command import encode_request
from mqspark_server.net.descriptors import PROCESS
from tests.integration.servers.test_server_tcp import ECHO
from tests.security.sockets.test_unread import SOCKETS, answered, connected, serving
from tests.support.waiting import eventually_async

MB = 1 << 20


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(autouse=True)
def _no_sockets_are_left() -> Iterator[None]:
    taken = PROCESS.connections
    yield
    while SOCKETS:
        SOCKETS.pop().close()
    assert PROCESS.connections == taken


async def is_over(sock: socket.socket) -> bool:
    try:
        return not await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 20), 0.2)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def test_large_old_frames_go_before_those_of_honest_peers() -> None:
    """A few frames that want one byte each would keep everybody else's from ever being complete."""
    loop = asyncio.get_running_loop()
    frame = encode_request(ECHO, 1, None, bytes(MB))
    async with serving(b"ok", max_buffered_bytes=16 * MB) as (server, _, port):
        hostile = []
        for _ in range(15):
            hostile.append(await connected(port))
            await loop.sock_sendall(hostile[-1], frame[:-1])
        await eventually_async(lambda: server.partial.budget.total > 14 * MB)
        honest = encode_request(ECHO, 1, None, bytes(3 * MB))
        for _ in range(8):
            sock = await connected(port)
            await loop.sock_sendall(sock, honest[:-1])
            await asyncio.sleep(0.05)
            await loop.sock_sendall(sock, honest[-1:])
            assert await asyncio.wait_for(loop.sock_recv(sock, 100), 20), "an honest peer was reset"
            assert server.partial.budget.total <= 16 * MB
        assert server.counts.dropped > 0
        assert await is_over(hostile[0])


async def test_small_old_frames_go_before_a_large_new_one() -> None:
    loop = asyncio.get_running_loop()
    async with serving(b"ok", max_buffered_bytes=4 * MB) as (server, _, port):
        begun = encode_request(ECHO, 1, None, bytes(200_000))[:60_000]
        for _ in range(65):
            await loop.sock_sendall(await connected(port), begun)
        await eventually_async(lambda: server.partial.budget.total > 3.8e6)
        await asyncio.sleep(2)
        frame = encode_request(ECHO, 1, None, bytes(2 * MB))
        sock = await connected(port)
        await loop.sock_sendall(sock, frame[:-1])
        await eventually_async(lambda: server.counts.dropped > 10)
        await loop.sock_sendall(sock, frame[-1:])
        assert await asyncio.wait_for(loop.sock_recv(sock, 100), 20), "an honest peer was reset"


async def test_first_frames_have_a_smaller_bound_than_those_of_peers_that_are_known() -> None:
    loop = asyncio.get_running_loop()
    frame = encode_request(ECHO, 1, None, bytes(MB))
    async with serving(b"ok", max_buffered_bytes=64 * MB, max_stranger_bytes=4 * MB) as (server, _, port):
        known = []
        for _ in range(8):
            known.append(await connected(port))
            await loop.sock_sendall(known[-1], encode_request(ECHO, 1, None))
            assert await loop.sock_recv(known[-1], 100)
            await loop.sock_sendall(known[-1], frame[:-1])
        await eventually_async(lambda: server.partial.budget.total > 7.9 * MB)
        for _ in range(12):
            await loop.sock_sendall(await connected(port), frame[:-1])
            assert server.partial.strangers.total <= 4 * MB
        await eventually_async(lambda: server.counts.dropped >= 8)
        for sock in known:
            await loop.sock_sendall(sock, frame[-1:])
            assert await asyncio.wait_for(loop.sock_recv(sock, 100), 20), "a known peer was reset"
        newcomer = await connected(port)
        await loop.sock_sendall(newcomer, frame)
        assert await asyncio.wait_for(loop.sock_recv(newcomer, 100), 20), "an honest first frame was refused"


async def test_a_frame_that_does_not_go_on_ends() -> None:
    loop = asyncio.get_running_loop()
    async with serving(b"ok", partial_frame_s=1) as (server, _, port):
        frame = encode_request(ECHO, 1, None, bytes(100_000))
        for sent in (1, 7, 40, 900):
            await loop.sock_sendall(await connected(port), frame[:sent])
        await eventually_async(lambda: server.connections == 4)
        await eventually_async(lambda: server.connections == 0, 10)
        assert server.counts.dropped == 4
        assert server.partial.budget.total == 0


async def test_a_byte_now_and_then_keeps_no_frame_alive() -> None:
    loop = asyncio.get_running_loop()
    async with serving(b"ok", partial_frame_s=1) as (server, _, port):
        sock = await connected(port)
        frame = encode_request(ECHO, 1, None, bytes(100_000))
        started = time.monotonic()
        await loop.sock_sendall(sock, frame[:20])
        await eventually_async(lambda: server.connections == 1)
        for byte in frame[20:]:
            if server.connections == 0 or time.monotonic() - started > 15:
                break
            await asyncio.gather(loop.sock_sendall(sock, bytes([byte])), return_exceptions=True)
            await asyncio.sleep(0.05)
        assert server.connections == 0


async def test_a_slow_honest_frame_comes_in_however_long_it_takes() -> None:
    loop = asyncio.get_running_loop()
    async with serving(b"ok", partial_frame_s=1) as (server, _, port):
        sock = await connected(port)
        frame = encode_request(ECHO, 1, None, bytes(40_000))
        for start in range(0, len(frame), 1_500):
            await loop.sock_sendall(sock, frame[start : start + 1_500])
            await asyncio.sleep(0.1)
        assert await asyncio.wait_for(loop.sock_recv(sock, 100), 20)
        assert server.counts.dropped == 0


async def test_who_has_said_nothing_goes_for_those_who_have_something_to_say() -> None:
    async with serving(b"ok", max_connections=8) as (server, _, port):
        for _ in range(8):
            await connected(port)
        await eventually_async(lambda: server.connections == 8)
        for _ in range(12):
            await answered(port)
        assert server.connections <= 8


async def test_known_peers_stay_and_strangers_are_refused() -> None:
    loop = asyncio.get_running_loop()
    async with serving(b"ok", max_connections=4) as (server, _, port):
        known = []
        for _ in range(4):
            known.append(await connected(port))
            await loop.sock_sendall(known[-1], encode_request(ECHO, 1, None))
            assert await loop.sock_recv(known[-1], 100)
        stranger = await connected(port)
        assert await is_over(stranger)
        assert server.counts.refused == 1
        for sock in known:
            await loop.sock_sendall(sock, encode_request(ECHO, 2, None))
            assert await loop.sock_recv(sock, 100)


async def test_an_address_has_no_more_than_its_share() -> None:
    async with serving(b"ok", max_connections_per_address=3) as (server, _, port):
        mine = [await connected(port) for _ in range(3)]
        await eventually_async(lambda: server.connections == 3)
        assert await is_over(await connected(port))
        other = socket.socket()
        SOCKETS.append(other)
        other.bind(("127.0.0.2", 0))
        other.setblocking(False)
        await asyncio.get_running_loop().sock_connect(other, ("127.0.0.1", port))
        await eventually_async(lambda: server.connections == 4)
        mine[0].close()
        await eventually_async(lambda: server.connections == 3)
        await answered(port)
        await eventually_async(lambda: server.connections == 3)
        mine[0] = await connected(port)
        await eventually_async(lambda: server.connections == 4)
        assert await is_over(await connected(port)), "who has gone is not counted, and nobody twice"
