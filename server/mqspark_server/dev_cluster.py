"""A development cluster: a name server and brokers in this process and on this event loop (``mqspark dev``,
``mqspark.testing``).

Must not know what a process is made of.
"""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqspark.clock import Clock
from mqspark.errors import ConfigError, StoreReadOnly
from mqspark_server.broker_app import BrokerApp
from mqspark_server.controlled_app import broker_app
from mqspark_server.namesrv_app import NameServerApp
from mqspark_server.net.addresses import bind_socket
from mqspark_server.settings.settings import (
    DEVELOPMENT,
    BrokerSettings,
    Layer,
    broker_settings,
    namesrv_settings,
)

__all__ = ["DevCluster"]


class DevCluster:
    """``store`` None: a temporary directory, removed at the end. With several brokers each has a directory of its
    own below ``store``. ``clock`` applies to the brokers; the name server uses the real one.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        namesrv_port: int = 0,
        broker_port: int = 0,
        http_port: int | None = None,
        brokers: int = 1,
        slaves: int = 0,
        layers: Sequence[Layer] = (),
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Raises ConfigError. ``layers`` override the development profile. ``slaves``: of each broker; their numbers
        follow those of the masters."""
        if store == "":
            raise ConfigError("the store directory must not be empty", key="store")
        self._store = store
        self._temporary: str | None = None
        self.clock = clock
        self._chance = chance
        self._layers = layers
        self._ports: list[dict[str, Any]] = [
            {
                "brokerName": "dev" if brokers == 1 else f"dev-{number}",
                "listenPort": broker_port + 10 * number if broker_port else 0,
                **({} if http_port is None else {"httpPort": http_port + 10 * number if http_port else 0}),
            }
            for number in range(brokers)
        ]
        self._roles: dict[int, Layer] = {}
        """What makes a broker a slave, by its number."""
        for number in range(brokers):
            for slave in range(1, slaves + 1):
                role = Layer("slave", {"brokerRole": "SLAVE", "brokerId": slave})
                self._roles[len(self._ports)] = role
                name = self._ports[number]["brokerName"]
                ports = {} if http_port is None else {"httpPort": 0}
                self._ports.append({"brokerName": name, "listenPort": 0, **ports})
        for number in range(len(self._ports)):  # errors in the settings are raised before anything starts
            self._broker_settings(number, "", store or tempfile.gettempdir())
        first = self._broker_settings(0, "", store or tempfile.gettempdir()).server
        self.log_level = first.log_level
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
        directory = store if len(self._ports) == 1 else str(Path(store) / name)
        profile = {
            **DEVELOPMENT,
            **self._ports[number],
            "namesrvAddr": namesrv_address,
            "storePathRootDir": directory,
        }
        roles = [] if role is None else [role]
        return broker_settings(profile, *self._layers, *roles, use_environment=False)

    async def start(self) -> None:
        """Raises OSError, StoreError or ConfigError; nothing is left behind then."""
        try:
            if self._store is None:
                self._temporary = tempfile.mkdtemp(prefix="mqspark-")
            await self.namesrv.start()
            for number in range(len(self._ports)):
                self.brokers.append(self._new_broker(number))
                await self.brokers[number].start()
        except BaseException:
            await self.stop()
            raise

    def _new_broker(self, number: int) -> BrokerApp:
        store = self._store or self._temporary
        if store is None:
            raise RuntimeError("the cluster is not started")
        settings = self._broker_settings(number, self.namesrv.address, store)
        return broker_app(settings, clock=self.clock, chance=self._chance)

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
        self.brokers[number] = self._new_broker(number)
        await self.brokers[number].start()
        if (reserved := self._reserved.pop(number, None)) is not None:
            reserved.close()

    async def add(self) -> int:
        """Start one more broker and return its number. Raises what ``start`` raises, and ValueError for a cluster
        that started with one broker, which uses the store's directory itself."""
        number = len(self.brokers)
        if number == 1:
            raise ValueError("a cluster that is to grow needs two brokers or more from the start")
        self._ports.append({"brokerName": f"dev-{number}", "listenPort": 0, "httpPort": 0})
        self.brokers.append(self._new_broker(number))
        await self.brokers[number].start()
        return number

    async def stop(self) -> None:
        """Raises StoreReadOnly at the end if a store had failed."""
        failure: StoreReadOnly | None = None
        for app in reversed(self.brokers):
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
