"""The port of gRPC in a broker: it listens from the start on, and what serves it is loaded in a thread when the first
peer comes (5 MB, a fifth of a second): many brokers have no clients of gRPC.

Must not know what a call does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqspark.base.logs import sparing
from mqspark_server.net.addresses import bind, listening
from mqspark_server.net.grpc.grpccounts import GrpcCounts
from mqspark_server.net.servertls import Certificates
from mqspark_server.process.diskwork import Worker
from mqspark_server.settings.serverconfig import ServerConfig

if TYPE_CHECKING:  # loaded when they are needed
    from mqspark_server.proxy.backend import ProxyBackend
    from mqspark_server.proxy.grpcserver import GrpcServer

log = sparing("mqspark.grpc")

GRPC_RETRY_S = 1.0
"""After a shortage, of descriptors or memory, the next peer is looked for so late."""


def bind_grpc(config: ServerConfig, host: str, port: int) -> tuple[socket.socket, Certificates | None]:
    """The port, and what its peers are shown. Raises OSError, and ConfigError for a certificate that cannot be used."""
    tls = None if config.server_tls is None else Certificates(config.server_tls, ("h2",))
    return bind("gRPC", host, port), tls


class GrpcDoor:
    """Use ``open``; then ``port`` is the one that is bound."""

    def __init__(
        self, config: ServerConfig, host: str, worker: Worker, load: Callable[[], Callable[[], ProxyBackend]]
    ) -> None:
        """``load`` is called in the worker's thread. What it returns makes the backend, on the loop."""
        self._config = config
        self._host = host
        self._worker = worker
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._tls: Certificates | None = None
        self._is_waiting = self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._backend: ProxyBackend | None = None
        self._server: GrpcServer | None = None
        self.port = 0

    def open(self, port: int) -> None:
        """Raises OSError, and ConfigError for a certificate that cannot be used."""
        self._sock, self._tls = bind_grpc(self._config, self._host, port)
        self.port = self._sock.getsockname()[1]
        with listening("gRPC", self._sock):
            self._sock.listen(self._config.server_socket_backlog)
        self._wait()

    def _wait(self) -> None:
        if self._sock is not None and not self._is_stopping:
            self._loop.add_reader(self._sock, self._first_peer)
            self._is_waiting = True

    def _first_peer(self) -> None:
        self._stop_waiting()
        self._task = self._loop.create_task(self._serve(), name="mqspark-grpc")

    def _stop_waiting(self) -> None:
        if self._is_waiting and self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._is_waiting = False

    async def _serve(self) -> None:
        try:
            new_backend, new_server = await self._worker.run(lambda: (self._load(), _load_server()))
            if self._sock is None or self._is_stopping:
                return
            self._backend = new_backend()
            self._server = new_server(self._backend, self._config, self._sock, self._tls)
            await self._server.start()
        except Exception as error:
            log.exception("gRPC cannot be served")
            if (
                isinstance(error, (OSError, MemoryError))
                and self._sock is not None
                and self._sock.fileno() >= 0
            ):
                self._loop.call_later(GRPC_RETRY_S, self._wait)
            else:
                self._close_socket()

    @property
    def counts(self) -> GrpcCounts:
        """Zeros before the first peer."""
        return GrpcCounts(*[0] * len(GrpcCounts._fields)) if self._server is None else self._server.counts

    async def stop(self, *, abruptly: bool = False) -> None:
        """Calls get a moment to end, then they are cancelled; ``abruptly``: at once."""
        self._is_stopping = True
        self._stop_waiting()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(abruptly=abruptly)
        self._close_socket()
        if self._backend is not None:
            self._backend.close()

    def _close_socket(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _load_server() -> type[GrpcServer]:
    from mqspark_server.proxy.grpcserver import GrpcServer

    return GrpcServer
