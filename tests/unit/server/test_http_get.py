"""A GET of a server that the settings name: what it may answer, how long and how much, and where it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mqspark.errors import ConfigError
from mqspark_server.net.webserver import NotAnswered, WebServer
from mqspark_server.settings.settings import broker_settings, override_layer


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[tuple[WebServer, list[bytes]]]:
    """A server that answers the head of a request with bytes; None: it says nothing."""
    heads: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        said = answer(heads[-1])
        if said is None:
            await over.wait()
        else:
            writer.write(said)
        writer.transport.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield WebServer("127.0.0.1", server.sockets[0].getsockname()[1]), heads
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_it_asks_and_reads() -> None:
    def answer(head: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n"

    async with answering(answer) as (server, heads):
        assert await server.get("/api/v1/jobs?x=1") == b"[1]"
    (head,) = heads
    assert head.startswith(b"GET /api/v1/jobs?x=1 HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{server.port}\r\n".encode() in head
    assert b"cookie" not in head.lower()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            "the status 302",
        ),
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", "the status 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[1]", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 40_000, "does not speak HTTP"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"", "does not speak HTTP"),
        (None, "does not answer within 0.2 s"),
    ],
)
async def test_what_is_no_answer(said: bytes | None, why: str) -> None:
    timeout_s = 0.2 if said is None else 20
    async with answering(lambda head: said) as (server, heads):
        with pytest.raises(NotAnswered, match=why):
            await server.get("/", max_bytes=100, timeout_s=timeout_s)
    assert len(heads) == 1


async def test_nobody_is_there() -> None:
    async with answering(lambda head: b"") as (server, _):
        pass
    with pytest.raises(NotAnswered, match=str(server.port)):
        await server.get("/")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8687", "http://127.0.0.1:8687"),
        ("http://jobs/", "http://jobs:80"),
        ("https://jobs.example", "https://jobs.example:443"),
        ("http://[::1]:8687", "http://[::1]:8687"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    assert str(WebServer.parse(url, "key")) == shown


@pytest.mark.parametrize(
    "url",
    [
        "jobs:8687",
        "ftp://jobs",
        "http://",
        "http://jobs:port",
        "http://jobs:99999",
        "http://user:secret@jobs",
        "http://jobs/path",
        "http://jobs?x=1",
        "http://jobs/#x",
        "http://jo bs",
        "http://jobs..example",
        f"http://{'x' * 64}.example",
        "http://jobs\r\nx: y",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="httpJobServer"):
        broker_settings({}, override_layer([f"httpJobServer={url}"]), use_environment=False)
