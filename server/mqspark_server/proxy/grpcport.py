"""The port of the service: accepts connections, within the bounds of remoting, ends their TLS, and passes their bytes
to grpc, which listens where only this process comes.

Plain text and TLS share the port, as in RocketMQ's proxy: the first byte of a connection decides, since no HTTP/2
connection begins with that of a handshake. So the settings of TLS are those of remoting, with changed files, lists of
revoked certificates and encrypted keys, none of which grpc has.

grpc sees the address of a peer in the name from which its bytes come (``address_in``).
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import tempfile
from pathlib import Path
from typing import cast

from mqspark.base.logs import sparing
from mqspark_server.net.addresses import bind, listening
from mqspark_server.net.opensockets import ConnectionCounts, OpenSockets
from mqspark_server.net.servertls import HANDSHAKE_BYTE, Certificates

log = sparing("mqspark.grpc")

FIRST_BYTE_S = 10.0
"""How long a new connection may be silent."""
HANDSHAKE_S = 10.0
CLOSE_S = 5.0
"""How long a peer may take to read the last bytes of a connection."""
RETRY_S = 0.1
"""Pause after a failed accept, as without descriptors."""
HIGH_WATER_BYTES = 256 * 1024
"""Unread bytes in one direction above which the other side is not read."""


class _Side(asyncio.Protocol):
    """One side of a connection: what it receives is written to the other."""

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair
        self.transport: asyncio.Transport | None = None
        self.lost = asyncio.get_running_loop().create_future()
        self.other: _Side | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        elif self.transport is not None:  # the other side is being connected
            self._early += data
            self.transport.pause_reading()

    def join(self, other: _Side) -> None:
        """Pass on to ``other`` from now on, beginning with what came before."""
        self.other = other
        if self._early and self.transport is not None:
            early, self._early = self._early, b""
            self.data_received(early)
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self._pair.close()


class _Pair:
    """A connection: the client's side, and grpc's."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.evicted = False
        self.outer, self.inner = _Side(self), _Side(self)
        self.closed = asyncio.get_running_loop().create_future()
        self._serving = asyncio.current_task()

    def join(self) -> None:
        self.outer.join(self.inner)
        self.inner.join(self.outer)

    def close(self) -> None:
        for side in (self.outer, self.inner):
            if side.transport is not None:
                side.transport.close()
        if not self.closed.done():
            self.closed.set_result(None)

    def end(self) -> None:
        """End it wherever it is."""
        if self._serving is not None:
            self._serving.cancel()

    def abort(self) -> None:
        for side in (self.outer, self.inner):
            if side.transport is not None:
                side.transport.abort()


class GrpcPort:
    """``inner`` is where grpc has to listen."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: Certificates | None,
        *,
        max_connections: int,
        max_per_address: int,
        backlog: int,
    ) -> None:
        """Raises OSError when the address cannot be bound."""
        self._socket = bind("gRPC", host, port)
        self.port: int = self._socket.getsockname()[1]
        self._tls = tls
        self._directory = Path(tempfile.mkdtemp(prefix="mqspark-grpc-"))
        """Only this user may come in."""
        self.inner = f"unix:{self._directory / 'grpc'}"
        self.counts = ConnectionCounts()
        self._open: OpenSockets[_Pair] = OpenSockets(
            self.counts,
            lambda pair, _: pair.end(),
            max_connections=max_connections,
            max_per_address=max_per_address,
            backlog=backlog,
        )
        self._numbers = itertools.count()
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept connections. Raises OSError."""
        with listening("gRPC", self._socket):
            self._socket.listen(self._open.backlog)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name="mqspark-grpc-accept")

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("a gRPC connection cannot be accepted: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            task = loop.create_task(self._serve(accepted, peer[:2]), name="mqspark-grpc-connection")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        pair = _Pair(peer[0])
        problem = self._open.admit(pair, accepted.fileno(), pair.address)
        if problem is not None:
            accepted.close()
            log.info("a gRPC connection of %s is refused: %s", pair.address, problem)
            return
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._connect(pair, accepted, peer)
            self._open.know(pair)
            await pair.closed
            pair.close()
            async with asyncio.timeout(CLOSE_S):  # what grpc has written before it closed
                await pair.outer.lost
        except (OSError, TimeoutError) as error:
            self.counts.malformed += 1
            log.info("a gRPC connection of %s ends: %s", pair.address, error or type(error).__name__)
        finally:
            pair.abort()
            if pair.outer.transport is None:
                accepted.close()
            self._open.forget(pair, pair.address)

    async def _connect(self, pair: _Pair, accepted: socket.socket, peer: tuple[str, int]) -> None:
        """Raises OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(FIRST_BYTE_S):
            is_tls = await _first_byte(accepted) == HANDSHAKE_BYTE
        if is_tls and self._tls is None:
            raise ConnectionRefusedError("TLS, which this server does not speak")
        if not is_tls and self._tls is not None and self._tls.settings.required:
            raise ConnectionRefusedError("plain text, where TLS is required")
        await loop.connect_accepted_socket(
            lambda: pair.outer,
            accepted,
            ssl=self._tls.context() if is_tls and self._tls is not None else None,
            ssl_handshake_timeout=HANDSHAKE_S if is_tls else None,
        )
        name = self._directory / f"{next(self._numbers)},{peer[0]},{peer[1]}"
        inner = socket.socket(socket.AF_UNIX)
        try:
            inner.setblocking(False)
            inner.bind(str(name))
            await loop.sock_connect(inner, self.inner.removeprefix("unix:"))
            await loop.create_unix_connection(lambda: pair.inner, sock=inner)
        except BaseException:
            inner.close()
            raise
        finally:
            name.unlink(missing_ok=True)  # grpc has seen it
        pair.join()

    async def stop(self) -> None:
        """Close all connections."""
        self._open.refuse_all()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        self._socket.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        shutil.rmtree(self._directory, ignore_errors=True)


async def _first_byte(accepted: socket.socket) -> int:
    """Leaves it to be read. Raises ConnectionResetError when the peer has closed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(accepted)
    first = accepted.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionResetError("closed before its first byte")
    return first[0]


def address_in(name: str) -> tuple[str, int] | None:
    """The address of the peer whose bytes come from the socket of this name; None for another one."""
    words = name.rpartition("/")[2].split(",")
    if len(words) != 3 or not words[2].isdecimal():
        return None
    return words[1], int(words[2])
