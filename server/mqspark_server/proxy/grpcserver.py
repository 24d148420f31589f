"""The engine of the service: grpc's asyncio server, its port, its TLS and its bounds.

Bounds: a request is refused above twice the largest message, and so is one that is compressed as a whole, which no
client of RocketMQ does: it could be a thousand times as large in memory. A connection has MAX_STREAMS calls at once;
``max_calls`` bounds those of all connections.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from mqspark_server.net.addresses import cannot_listen
from mqspark_server.proxy.backend import ProxyBackend
from mqspark_server.proxy.grpcservice import MessagingService

MAX_STREAMS = 4_096
MAX_METADATA_BYTES = 16 * 1024
MAX_CONNECTION_IDLE_MS = 120_000
STOP_S = 1.0
_ONLY_IDENTITY = 1
"""The bits of the compressions that are accepted: none."""


class GrpcServer:
    """A service at an address. Use ``await start()``; then ``port`` is the one that is bound."""

    def __init__(
        self,
        backend: ProxyBackend,
        host: str,
        port: int,
        *,
        max_calls: int,
        max_client_bytes: Callable[[], int],
    ) -> None:
        self._backend = backend
        self._host = host
        self.port = port
        self._max_calls = max_calls
        self._max_client_bytes = max_client_bytes
        self._server: Any = None
        self.service: MessagingService | None = None

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    async def start(self) -> None:
        """Raises OSError."""
        most = 2 * self._backend.max_message_bytes + MAX_METADATA_BYTES
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=self._max_calls,
            options=[
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.compression_enabled_algorithms_bitset", _ONLY_IDENTITY),
                ("grpc.max_connection_idle_ms", MAX_CONNECTION_IDLE_MS),
                ("grpc.so_reuseport", 0),
            ],
        )
        try:
            self.port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:  # grpc tells the reason in its own log only
            raise cannot_listen("gRPC", self._host, self.port, _reason(self._host, self.port)) from error
        self.service = MessagingService(self._backend, self.port, self._max_client_bytes)
        self._server.add_generic_rpc_handlers((self.service.handler,))
        self.service.clients.start()
        await self._server.start()

    async def stop(self) -> None:
        """Calls get a moment to end, then they are cancelled."""
        await self._end(STOP_S)

    async def kill(self) -> None:
        """Cancel all calls."""
        await self._end(None)

    async def _end(self, grace_s: float | None) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
        if self.service is not None:
            self.service.clients.close()


def _reason(host: str, port: int) -> OSError:
    """Why the address cannot be bound."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.bind((host, port))
    except OSError as error:
        return error
    return OSError(0, "unknown reason")
