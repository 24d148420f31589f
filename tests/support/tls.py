"""A TLS end in front of a server that speaks none: what comes in is passed on, both ways."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["tls_in_front"]

CHUNK_BYTES = 1 << 16


@contextmanager
def tls_in_front(context: ssl.SSLContext, places: dict[tuple[str, int], tuple[str, int]]) -> Iterator[None]:
    """Listens with TLS at each place and passes on to the other, in a thread of its own."""
    loop = asyncio.new_event_loop()
    up, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        servers = [
            await asyncio.start_server(
                lambda reader, writer, target=target: _pass_on(reader, writer, target), *place, ssl=context
            )
            for place, target in places.items()
        ]
        up.set()
        await stop.wait()
        for server in servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="tls")
    thread.start()
    try:
        assert up.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]
) -> None:
    behind_reader, behind_writer = await asyncio.open_connection(*target)
    try:
        await asyncio.gather(_pump(reader, behind_writer), _pump(behind_reader, writer))
    finally:
        for end in (behind_writer, writer):
            end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
