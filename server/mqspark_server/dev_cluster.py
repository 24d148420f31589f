"""A development cluster: a name server, brokers and perhaps a controller in this process and on this event loop
(``mqspark dev``, ``mqspark.testing``).

Must not know the parts of a process.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqspark.auth.config import AuthConfig
from mqspark.base.clock import Clock
from mqspark.base.config import known_keys
from mqspark.errors import ConfigError, StoreReadOnly
from mqspark_server.broker_app import BrokerApp
from mqspark_server.namesrv_app import NameServerApp
from mqspark_server.net.addresses import bind_socket
from mqspark_server.settings.settings import (
    DEVELOPMENT,
    BrokerSettings,
    Layer,
    broker_settings,
    controller_settings,
    namesrv_settings,
)

if TYPE_CHECKING:  # imported with a controller
    from mqspark_server.controller_app import ControllerApp

CONTROLLER = "controller"
"""The only kind of replication."""
IN_SYNC_S = 60.0
"""How long a start waits for all replicas to be in the SyncStateSet; usually some tenths of a second."""
_POLL_S = 0.02
_NOWHERE = "127.0.0.1:1"
"""Placeholder for the controller's address while settings are only checked."""


class DevCluster:
    """``store`` None: a temporary directory, removed at the end. With several brokers each has a directory of its
    own below ``store``. ``clock`` applies to the brokers; the name server uses the real one. ``replication``
    ``"controller"``: the brokers are replicas of one, and a controller elects their master.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        namesrv_port: int = 0,
        broker_port: int = 0,
        http_port: int | None = None,
        grpc_port: int | None = None,
        brokers: int = 1,
        slaves: int = 0,
        replication: str | None = None,
        layers: Sequence[Layer] = (),
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Raises ConfigError. ``grpc_port`` None: there is no gRPC unless ``layers`` enable it. ``layers`` override the
        development profile. ``slaves``: number per broker; their broker numbers follow those of the masters."""
        if store == "":
            raise ConfigError("the store directory must not be empty", key="store")
        if replication is not None:
            _check_replication(replication, brokers, slaves, clock)
        self._replicas = 0 if replication is None else brokers
        self.controller: ControllerApp | None = None
        self._store = store
        self._temporary: str | None = None
        self.clock = clock
        self._chance = chance
        self._layers = layers
        self._ports: list[dict[str, Any]] = [
            {
                "brokerName": "dev" if brokers == 1 or self._replicas else f"dev-{number}",
                "schemaRegistryEnable": number == 0 or bool(self._replicas),
                "listenPort": broker_port + 10 * number if broker_port else 0,
                **({} if http_port is None else {"httpPort": http_port + 10 * number if http_port else 0}),
                **(
                    {}
                    if grpc_port is None
                    else {"grpcEnable": True, "grpcServerPort": grpc_port + 10 * number if grpc_port else 0}
                ),
            }
            for number in range(brokers)
        ]
        self._roles: dict[int, Layer] = {}
        """Broker number → the settings that make it a slave."""
        for number in range(brokers):
            for slave in range(1, slaves + 1):
                role = Layer("slave", {"brokerRole": "SLAVE", "brokerId": slave})
                self._roles[len(self._ports)] = role
                name = self._ports[number]["brokerName"]
                ports = {} if http_port is None else {"httpPort": 0}
                keeps = {"schemaRegistryEnable": number == 0}
                self._ports.append({"brokerName": name, "listenPort": 0, **keeps, **ports})
        for number in range(len(self._ports)):  # errors in the settings are raised before anything starts
            self._broker_settings(number, "", store or tempfile.gettempdir())
        first = self._broker_settings(0, "", store or tempfile.gettempdir()).server
        self.log_level, self.log_format = first.log_level, first.log_format
        self.namesrv = NameServerApp(
            namesrv_settings(
                {"listenPort": namesrv_port, "bindAddress": first.bind_address, **first.tls_server_values}
            )
        )
        self.brokers: list[BrokerApp] = []
        self._reserved: dict[int, socket.socket] = {}
        """Ports of killed brokers, by broker number."""

    def _broker_settings(self, number: int, namesrv_address: str, store: str) -> BrokerSettings:
        name, role = self._ports[number]["brokerName"], self._roles.get(number)
        if role is not None:
            name = f"{name}-slave-{role.values['brokerId']}"
        elif self._replicas:
            name = f"{name}-{number}"
        directory = store if len(self._ports) == 1 and not self._replicas else str(Path(store) / name)
        profile = {
            **DEVELOPMENT,
            **self._ports[number],
            "namesrvAddr": namesrv_address,
            "storePathRootDir": directory,
        }
        if self._replicas:
            profile |= {
                "enableControllerMode": True,
                "controllerAddr": _NOWHERE if self.controller is None else self.controller.address,
                "minInSyncReplicas": 2,
            }
        roles = [] if role is None else [role]
        return broker_settings(profile, *self._layers, *roles, use_environment=False)

    async def start(self) -> None:
        """Raises OSError, StoreError or ConfigError; nothing is left behind then."""
        try:
            if self._store is None:
                self._temporary = tempfile.mkdtemp(prefix="mqspark-")
            await self.namesrv.start()
            if self._replicas:
                await self._start_controller()
            for number in range(len(self._ports)):
                self.brokers.append(self._new_broker(number))
                await self.brokers[number].start()
            if self._replicas:
                await self._until_in_sync()
        except BaseException:
            await self.stop()
            raise

    @property
    def _directory(self) -> str:
        store = self._store or self._temporary
        if store is None:
            raise RuntimeError("the cluster is not started")
        return store

    def _new_broker(self, number: int) -> BrokerApp:
        settings = self._broker_settings(number, self.namesrv.address, self._directory)
        if not settings.broker.enable_controller_mode:
            return BrokerApp(settings, clock=self.clock, chance=self._chance)
        from mqspark_server.controlled_app import ControlledApp

        return ControlledApp(settings, clock=self.clock, chance=self._chance)

    async def _start_controller(self) -> None:
        server = self._broker_settings(0, "", self._directory).server
        given = {key: value for layer in self._layers for key, value in layer.values.items()}
        values = {
            "listenPort": 0,
            "bindAddress": server.bind_address,
            "controllerStorePath": str(Path(self._directory) / CONTROLLER),
            **server.tls_server_values,
            **{key: value for key, value in given.items() if key in known_keys(AuthConfig)},
        }
        from mqspark_server.controller_app import ControllerApp

        self.controller = ControllerApp(controller_settings(values))
        await self.controller.start()

    async def _until_in_sync(self) -> None:
        """Wait until every replica may be elected. A kill before that could leave no candidate."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + IN_SYNC_S
        while len(self.sync_state_set) < self._replicas:
            if loop.time() > end_s:
                raise TimeoutError(
                    f"only the brokers {sorted(self.sync_state_set)} of {self._replicas} are in the SyncStateSet"
                    f" after {IN_SYNC_S:.0f} s"
                )
            await asyncio.sleep(_POLL_S)

    @property
    def master(self) -> int | None:
        """With replication: the number of the broker that is the master and accepts messages."""
        for number, app in enumerate(self.brokers):
            if app.lifecycle.ready and app.term is not None and app.term.holds:
                return number
        return None

    @property
    def sync_state_set(self) -> frozenset[int]:
        """With replication: the numbers of the brokers that the controller may elect, as known to the master. Empty
        without a master."""
        master = self.master
        term = None if master is None else self.brokers[master].term
        members = frozenset[int]() if term is None else term.sync_set
        return frozenset(
            number
            for number, app in enumerate(self.brokers)
            if app.term is not None and app.term.broker_id in members
        )

    async def kill(self, number: int) -> None:
        """``BrokerApp.kill``; the port stays taken for ``restart``."""
        app = self.brokers[number]
        await app.kill()
        if number not in self._reserved:
            self._reserved[number] = bind_socket(app.settings.server.bind_address, app.config.listen_port)

    async def restart(self, number: int) -> None:
        """Start a broker again on its files and ports; a running one is stopped first. Raises what ``stop`` and
        ``start`` raise."""
        old = self.brokers[number]
        await old.stop()
        self._ports[number]["listenPort"] = old.config.listen_port
        if old.http_url is not None:
            self._ports[number]["httpPort"] = int(old.http_url.rpartition(":")[2])
        if old.grpc_address is not None:
            self._ports[number]["grpcServerPort"] = int(old.grpc_address.rpartition(":")[2])
        self.brokers[number] = self._new_broker(number)
        await self.brokers[number].start()
        if (reserved := self._reserved.pop(number, None)) is not None:
            reserved.close()

    async def add(self) -> int:
        """Start one more broker and return its number. Raises what ``start`` raises, and ValueError for a cluster
        that started with one broker, which uses the store's directory itself."""
        number = len(self.brokers)
        if self._replicas:
            raise ValueError("a cluster of replicas does not grow")
        if number == 1:
            raise ValueError("a cluster that is to grow needs two brokers or more from the start")
        self._ports.append({"brokerName": f"dev-{number}", "listenPort": 0, "httpPort": 0})
        self.brokers.append(self._new_broker(number))
        await self.brokers[number].start()
        return number

    async def stop(self) -> None:
        """Raises StoreReadOnly at the end if a store had failed."""
        failure: StoreReadOnly | None = None
        master = self.master
        ending = list(reversed(self.brokers))
        if master is not None:  # the master stops last: the others copy its progress once more
            ending.append(ending.pop(len(ending) - 1 - master))
        if self.controller is not None:
            # The controller stops first: a cluster that ends must not elect a master.
            await self.controller.stop()
        for app in ending:
            try:
                await app.stop()
            except StoreReadOnly as error:
                failure = error
        await self.namesrv.stop()
        for sock in self._reserved.values():
            sock.close()
        self._reserved.clear()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        if failure is not None:
            raise failure

    async def __aenter__(self) -> DevCluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _check_replication(replication: str, brokers: int, slaves: int, clock: Clock | None) -> None:
    """Raises ConfigError."""
    if replication != CONTROLLER:
        raise ConfigError(f"replication={replication!r} is not {CONTROLLER!r}", key="replication")
    if slaves:
        raise ConfigError(
            f"replication={CONTROLLER!r} makes slaves of all brokers but one: leave out slaves={slaves}",
            key="slaves",
        )
    if brokers < 2:
        raise ConfigError(
            f"replication={CONTROLLER!r} needs two brokers or more, not brokers={brokers}", key="brokers"
        )
    if clock is not None:
        raise ConfigError(
            f"replication={CONTROLLER!r} needs the real clock: a master's lease depends on the answers of controllers;"
            " omit the clock",
            key="clock",
        )
