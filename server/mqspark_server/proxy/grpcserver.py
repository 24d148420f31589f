"""The port of the service: HTTP/2 and TLS within the bounds of remoting (``net/grpc``), and what its calls may take.

A request is refused above twice the largest message, which leaves room for batches. ``grpcMaxCalls`` bounds the calls
of all connections, ``maxConnections`` the connections.
"""

from __future__ import annotations

import socket

from mqspark.base.config import Limit
from mqspark_server.net.grpc.grpccounts import GrpcCounts
from mqspark_server.net.grpc.grpclistener import GrpcListener
from mqspark_server.net.servertls import Certificates
from mqspark_server.proxy.backend import ProxyBackend
from mqspark_server.proxy.grpcservice import MessagingService
from mqspark_server.settings.serverconfig import ServerConfig

MORE_THAN_MESSAGES = 16 * 1024
"""Bytes of a request besides its messages."""
UNREAD_FIELDS = frozenset({"x-mq-request-id"})
"""Each call has another one."""
STOP_S = 1.0


class GrpcServer:
    """A service at a bound port. Use ``await start()``."""

    def __init__(
        self, backend: ProxyBackend, config: ServerConfig, sock: socket.socket, tls: Certificates | None
    ) -> None:
        self._backend = backend
        self._config = config
        self._sock = sock
        self._tls = tls
        self.port: int = sock.getsockname()[1]
        self._listener: GrpcListener | None = None
        self.service: MessagingService | None = None

    async def start(self) -> None:
        """The socket is closed at the end. Raises OSError."""
        config = self._config
        limit = Limit(config, "grpc_max_client_bytes")
        self.service = MessagingService(self._backend, self.port, limit)
        self._listener = GrpcListener(
            self.service.methods,
            self._tls,
            name="gRPC",
            unread_fields=UNREAD_FIELDS,
            max_message_bytes=2 * self._backend.max_message_bytes + MORE_THAN_MESSAGES,
            max_calls=config.grpc_max_calls,
            max_age_s=config.grpc_max_connection_age_seconds,
            limits=config.connection_limits,
        )
        self.service.start()
        try:
            await self._listener.listen(self._sock)
        except BaseException:
            self._sock.close()
            raise

    @property
    def counts(self) -> GrpcCounts:
        """Zeros before the start."""
        listener, service = self._listener, self.service
        if listener is None or service is None:
            return GrpcCounts(0, 0, 0, 0, 0, 0, 0)
        seen = listener.counts
        return GrpcCounts(
            len(listener.sockets),
            listener.calls,
            len(service.clients),
            listener.begun_calls,
            seen.refused,
            seen.dropped,
            seen.malformed,
        )

    async def stop(self, *, abruptly: bool = False) -> None:
        """Calls get a moment to end, then they are cancelled; ``abruptly``: at once."""
        if self._listener is not None:
            await self._listener.close(None if abruptly else STOP_S)
        if self.service is not None:
            self.service.close()
