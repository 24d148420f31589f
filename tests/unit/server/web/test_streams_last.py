"""How long an answer over HTTP may take: a stream says that it is one, whatever its address is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from mqspark_server.web import events, httpguard
from mqspark_server.web.events import EVENTS, EventStream
from mqspark_server.web.httpguard import bounded_protocol
from mqspark_server.web.places import Places


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Two parts, with a pause between them."""
    if scope["path"] == "/file":
        place = Places("files are open").take("", "", 4, retry_s=1)
        await EventStream(parts(), place, "text/plain")(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    async for part in parts():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def parts() -> AsyncGenerator[bytes, None]:
    yield b"first"
    await asyncio.sleep(1)
    yield b"last"


async def asked(port: int, *paths: str) -> bytes:
    """All that is answered on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        for path in paths:
            end = b"" if path != paths[-1] else b"connection: close\r\n"
            writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % (path.encode(), end))
        try:
            return await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            return b""


async def test_a_stream_may_take_longer_than_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpguard, "ANSWER_S", 0.4)
    config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False)
    config.load()
    protocol, state = bounded_protocol(8), ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        stream, answer, named, behind = await asyncio.gather(
            asked(port, "/file"),
            asked(port, "/other"),
            asked(port, "/topics/tail"),
            asked(port, "/file", "/other"),
        )
    finally:
        server.close()
    assert b"last" in stream
    assert b"last" not in answer + named
    assert behind.count(b"last") == 1


@pytest.mark.parametrize("media_type", [EVENTS, "text/csv"])
@pytest.mark.parametrize("is_client_stuck", [False, True])
async def test_a_file_whose_time_is_over_does_not_end_as_if_it_were_whole(
    media_type: str, is_client_stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STUCK_S" if is_client_stuck else "STREAM_S", 0.05)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if is_client_stuck and message.get("more_body"):
            await asyncio.sleep(30)

    async def receive() -> Message:
        await asyncio.sleep(30)
        return {"type": "http.disconnect"}

    async def endless() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await asyncio.sleep(30)

    place = Places("files are open").take("", "", 1, retry_s=1)
    await EventStream(endless(), place, media_type)({"type": "http"}, receive, send)
    ends = [each for each in sent if each.get("more_body") is False]
    assert bool(ends) is (media_type == EVENTS)
