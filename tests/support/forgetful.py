"""A proxy between two processes of this machine that forgets connections, as a firewall or a NAT does after a restart:
both ends keep them, and nothing arrives any more. New connections work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

READ_BYTES = 1 << 16


class Forgetful:
    def __init__(self, target: Callable[[], str]) -> None:
        """``target``: the address that is connected to."""
        self._target = target
        self._forgotten: set[asyncio.Task[None]] = set()
        self._links: set[asyncio.Task[None]] = set()
        self.address = ""

    @property
    def links(self) -> int:
        """Connections that neither end has closed."""
        return len(self._links)

    def forget(self) -> int:
        """All connections of now; returns their number."""
        self._forgotten |= self._links
        return len(self._links)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Forgetful]:
        server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            links = list(self._links)
            for task in links:
                task.cancel()
            await asyncio.gather(*links, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        host, _, port = self._target().rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            try:
                ways = [self._copy(link, reader, far_writer), self._copy(link, far_reader, writer)]
                await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
            finally:
                far_writer.close()
        except OSError:
            pass
        finally:
            self._links.discard(link)
            self._forgotten.discard(link)
            writer.close()

    async def _copy(
        self, link: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if link not in self._forgotten:
                    writer.write(data)
                    await writer.drain()
