"""``mqspark proxy run``: RocketMQ's gRPC service before a cluster, ours or RocketMQ's, as a process of its own."""

from __future__ import annotations

from mqspark.base.clock import SystemClock
from mqspark.base.config import parse_addresses
from mqspark.base.names import bracketed
from mqspark_server.process.phases import Phase
from mqspark_server.process.processapp import ProcessApp, dialing
from mqspark_server.proxy.backends.clusterbackend import ClusterBackend
from mqspark_server.proxy.backends.clusterroutes import ClusterRoutes
from mqspark_server.proxy.backends.clusterusers import check_auth_of_proxy
from mqspark_server.proxy.grpcdoor import bind_grpc
from mqspark_server.proxy.grpcserver import GrpcServer
from mqspark_server.settings.settings import ProxySettings

MAX_MESSAGE_BYTES = 4 << 20
"""What producers are told, and what is refused here: RocketMQ's brokers have the same limit by default."""


class ProxyApp(ProcessApp):
    """``address`` has the port that is bound."""

    def __init__(self, namesrv: str, settings: ProxySettings) -> None:
        """Raises ConfigError for addresses that are none, and for settings of users that a proxy does not keep."""
        check_auth_of_proxy(settings.auth)
        super().__init__(SystemClock(), settings.unused)
        self._addresses = parse_addresses(namesrv, key="namesrvAddr")
        self._settings = settings

    async def _start(self) -> None:
        self.lifecycle.advance(Phase.BINDING)
        config = self._settings.server
        auth = self._settings.auth
        routes = ClusterRoutes(self._addresses, dialing(config, auth))
        backend = ClusterBackend(routes, MAX_MESSAGE_BYTES, auth)
        self._ends.always(backend.close)
        if backend.users is not None:
            await backend.users.start()
        server = GrpcServer(backend, config, *bind_grpc(config, config.bind_address, config.listen_port))
        self._ends.on_stop(server.stop)
        self._ends.on_kill(lambda: server.stop(abruptly=True))
        await server.start()
        self.address = f"{bracketed(config.bind_address)}:{server.port}"
        self.lifecycle.advance(Phase.READY)
