"""A network between processes of this machine whose links can be cut, each direction separately.

Every node listens at one address and advertises another one, where a proxy in this process listens. The proxy finds the
connecting process by the socket's inode in /proc, so it knows both nodes of a link. Data sent over a cut link arrives
when the link is restored, as if it had been retransmitted. A connection opened over a cut link is accepted, but no data
arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Self

OUTSIDE = "outside"
"""Any process that is not a node: the test and its clients."""
READ_BYTES = 1 << 16


class Partitions:
    """A context manager. Nodes are identified by the folders of their files."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = {node: str(folder).encode() for node, folder in folders.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="partitions")
        self._cut: set[tuple[str, str]] = set()
        self._mended = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        """Both ends of all links."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: object) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)  # type: ignore[arg-type]

    async def _stop(self) -> None:
        # A server that is closed leaves the sockets open that it is just accepting: these become tasks of ours first.
        for server in self._servers:
            for sock in server.sockets:
                self._loop.remove_reader(sock.fileno())
        await asyncio.gather(
            *(asyncio.all_tasks() - self._tasks - {asyncio.current_task()}), return_exceptions=True
        )
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in self._transports:  # one that is closed waits for its peer to read
            transport.abort()

    def _noted(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- links ---

    def listen(self, node: str, host: str, target: str, port: int) -> None:
        """Forward connections to ``host:port`` to the node, which listens at ``target:port``."""

        async def start() -> None:
            def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self._transports.add(writer.transport)
                self._noted(asyncio.create_task(self._serve_link(node, target, port, reader, writer)))

            self._servers.append(await asyncio.start_server(accepted, host, port))

        self._call(start()).result()

    def cut(self, links: Iterable[tuple[str, str]]) -> None:
        """Cut links, each given as (from, to); either may be OUTSIDE."""
        self._cut.update(links)

    def mend(self) -> None:
        """All links."""
        self._cut.clear()

        def tell() -> None:
            self._mended.set()
            self._mended = asyncio.Event()

        self._loop.call_soon_threadsafe(tell)

    async def _open(self, *links: tuple[str, str]) -> None:
        while any(link in self._cut for link in links):
            await self._mended.wait()

    async def _serve_link(
        self,
        node: str,
        target: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        source = self._node_of(writer)
        there, back = (source, node), (node, source)
        try:
            await self._open(there, back)
            try:
                far_reader, far_writer = await asyncio.open_connection(target, port)
            except OSError:
                writer.transport.abort()
                return
            self._transports.add(far_writer.transport)
            try:
                async with asyncio.TaskGroup() as group:
                    self._noted(group.create_task(self._copy_bytes(there, reader, far_writer)))
                    self._noted(group.create_task(self._copy_bytes(back, far_reader, writer)))
            finally:
                far_writer.close()
        finally:
            writer.close()

    async def _copy_bytes(
        self, link: tuple[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = await reader.read(READ_BYTES)
                await self._open(link)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    # --- identification of nodes ---

    def _node_of(self, writer: asyncio.StreamWriter) -> str:
        number = _socket_number(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        if number is not None:
            for process in Path("/proc").glob("[0-9]*"):
                node = self._node_at(process)
                if node is not None and _has(process, number):
                    return node
        return OUTSIDE

    def _node_at(self, process: Path) -> str | None:
        """By its command line, or by the files that it has open: one that was forked has its parent's command line."""
        try:
            named = (process / "cmdline").read_bytes()
            named += b"".join(os.readlink(each).encode() + b"/" for each in (process / "fd").iterdir())
        except OSError:
            return None
        return next((node for node, folder in self._folders.items() if folder + b"/" in named), None)


def _hex_address(address: tuple[str, int]) -> str:
    host, port = address
    return bytes(reversed([int(part) for part in host.split(".")])).hex().upper() + f":{port:04X}"


def _socket_number(local: tuple[str, int], remote: tuple[str, int]) -> str | None:
    """The inode of the socket at the other end of a connection of this machine."""
    wanted = f" {_hex_address(local[:2])} {_hex_address(remote[:2])} "
    for line in Path("/proc/net/remotingserver").read_text().splitlines():
        if wanted in line:
            return line.split()[9]
    return None


def _has(process: Path, number: str) -> bool:
    wanted = re.compile(rf"socket:\[{number}\]")
    try:
        return any(wanted.fullmatch(str(each.readlink())) for each in (process / "fd").iterdir())
    except OSError:
        return False
