"""The engine of the service: grpc's asyncio server, behind a port of ours, and its bounds.

Bounds: a request is refused above twice the largest message, and so is one that is compressed as a whole, which no
client of RocketMQ does: it could be a thousand times as large in memory. A connection has MAX_STREAMS calls at once;
``grpcMaxCalls`` bounds those of all connections, ``maxConnections`` the connections. Calls that have arrived while the
loop was busy wait for their turn: by default grpc would cancel some of them, chosen by chance, as soon as 1,000 wait.
"""

from __future__ import annotations

from typing import Any

import grpc.aio

from mqspark_server.net.servertls import Certificates
from mqspark_server.proxy.backend import ProxyBackend
from mqspark_server.proxy.grpcport import GrpcPort
from mqspark_server.proxy.grpcservice import MessagingService
from mqspark_server.settings.serverconfig import ServerConfig

MAX_STREAMS = 4_096
MAX_METADATA_BYTES = 16 * 1024
STOP_S = 1.0
_ONLY_IDENTITY = 1
"""The bits of the compressions that are accepted: none."""


class GrpcServer:
    """A service at an address of ``config``. Use ``await start()``; then ``port`` is the one that is bound."""

    def __init__(self, backend: ProxyBackend, config: ServerConfig, host: str, port: int) -> None:
        self._backend = backend
        self._config = config
        self._host = host
        self.port = port
        self._grpc: Any = None
        self._port: GrpcPort | None = None
        self.service: MessagingService | None = None

    async def start(self) -> None:
        """Raises OSError, and ConfigError for a certificate that cannot be used."""
        config = self._config
        tls = None if config.server_tls is None else Certificates(config.server_tls, ("h2",))
        port = self._port = GrpcPort(
            self._host,
            self.port,
            tls,
            max_connections=config.max_connections,
            max_per_address=config.max_connections_per_address,
            backlog=config.server_socket_backlog,
        )
        self.port = port.port
        self._grpc = grpc.aio.server(
            maximum_concurrent_rpcs=config.grpc_max_calls,
            options=[
                ("grpc.max_receive_message_length", 2 * self._backend.max_message_bytes + MAX_METADATA_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.server.max_pending_requests", config.grpc_max_calls),
                ("grpc.server.max_pending_requests_hard_limit", 2 * config.grpc_max_calls),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.compression_enabled_algorithms_bitset", _ONLY_IDENTITY),
                ("grpc.max_connection_idle_ms", 1000 * config.server_channel_max_idle_time_seconds),
            ],
        )
        self._grpc.add_insecure_port(port.inner)
        self.service = MessagingService(self._backend, port.port, lambda: config.grpc_max_client_bytes)
        self._grpc.add_generic_rpc_handlers((self.service.handler,))
        self.service.start()
        await self._grpc.start()
        port.start()

    async def stop(self) -> None:
        """Calls get a moment to end, then they are cancelled."""
        await self._end(STOP_S)

    async def kill(self) -> None:
        """Cancel all calls."""
        await self._end(None)

    async def _end(self, grace_s: float | None) -> None:
        if self._grpc is not None:
            await self._grpc.stop(grace_s)
        if self._port is not None:
            await self._port.stop()
        if self.service is not None:
            self.service.close()
