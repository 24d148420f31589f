"""A development cluster of several brokers in which each part is a process (``mqspark dev --brokers N``).

A part that dies is restarted after a pause, so that a user can kill the master and watch the others take over.

Must not know the inside of a part: it runs ``mqspark namesrv run``, ``controller run`` and ``broker run``, and asks the
controller for the master.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqspark.errors import ConfigError, MQError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.replica_bodies import BrokerReplicasInfo, ReplicasInfo
from mqspark.protocol.codes import RequestCode
from mqspark_server.broker_app import LOOPBACK_TOKEN_VARIABLE
from mqspark_server.hosting.brokerhost import PageServer
from mqspark_server.hosting.childserver import ChildServer, PartFailed
from mqspark_server.hosting.hostplan import PAGE_PORT_DISTANCE, PORT_STEP
from mqspark_server.hosting.supervisor import Pauses, Supervisor
from mqspark_server.net.outbound import PLAIN
from mqspark_server.process.tasks import end_all
from mqspark_server.settings.settings import DEVELOPMENT, Layer, broker_settings

log = logging.getLogger("mqspark.dev")

RESTART_S = 10.0
"""How long a killed part stays down: longer than an election takes."""
START_S = 60.0
STOP_S = 20.0
_POLL_S = 0.25
_ASK_S = 1.0
_REPLICAS = "dev"
_CONTROLLER_STEP = 2


class ProcessCluster:
    """A name server, ``brokers`` brokers and, if ``replicated``, a controller. ``store`` None: a temporary directory,
    removed at the end; each part has a directory of its own below it. A port of 0 is any free one; otherwise brokers
    take every tenth port from ``broker_port`` on, the controller takes ``namesrv_port + 2``, and the page with the
    health and metrics of all brokers ``page_port``, by default ``broker_port + 5``.
    """

    def __init__(
        self,
        *,
        store: str | None,
        namesrv_port: int,
        broker_port: int,
        http_port: int | None,
        grpc_port: int | None,
        page_port: int | None,
        brokers: int,
        replicated: bool,
        config: str | None,
        file: Layer | None,
        assignments: Sequence[str],
        overrides: Layer,
    ) -> None:
        """``file`` is the content of ``config``, ``overrides`` that of ``assignments``. Raises ConfigError."""
        if store == "":
            raise ConfigError("the store directory must not be empty", key="store")
        layers = [*([file] if file is not None else []), overrides]
        checked = broker_settings(
            {**DEVELOPMENT, "storePathRootDir": tempfile.gettempdir()}, *layers, use_environment=False
        )
        if checked.server.server_tls is not None or checked.auth.authentication_enabled:
            raise ConfigError(
                "several brokers run without TLS and users: start name server, controller and brokers by hand for that",
                key="brokers",
            )
        self.log_level, self.log_format = checked.server.log_level, checked.server.log_format
        self._bind = checked.server.bind_address
        self._has_page = checked.server.http_enable
        self._store, self._temporary = (
            store,
            None if store is not None else tempfile.mkdtemp(prefix="mqspark-"),
        )
        self._replicated = replicated
        self._namesrv = self._single("namesrv", namesrv_port, kvConfigPath="kvConfig.json")
        port = namesrv_port and namesrv_port + _CONTROLLER_STEP
        self._controller = self._single("controller", port, controllerStorePath="controller")
        profile = {
            **DEVELOPMENT,
            **({"minInSyncReplicas": 2} if replicated else {}),
            **({} if grpc_port is None else {"grpcEnable": True}),
        }
        given = file.values if file is not None else {}
        defaults = {key: value for key, value in profile.items() if key not in given}
        self._brokers = [
            ChildServer(
                f"{_REPLICAS}-{number}",
                ("broker", "run"),
                {
                    "brokerName": _REPLICAS if replicated else f"{_REPLICAS}-{number}",
                    "storePathRootDir": str(self._directory / f"{_REPLICAS}-{number}"),
                    "schemaRegistryEnable": number == 0 or replicated,
                    **_ports(number, broker_port, http_port, grpc_port),
                },
                defaults,
                config,
                assignments,
            )
            for number in range(brokers)
        ]
        self._loopback_token = os.environ.get(LOOPBACK_TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        environment[LOOPBACK_TOKEN_VARIABLE] = self._loopback_token
        self._supervisor = Supervisor(
            Pauses(RESTART_S, RESTART_S), environment, start_s=START_S, stop_s=STOP_S
        )
        self._page = PageServer(self._brokers, checked.server)
        self._page_port = (
            page_port if page_port is not None else broker_port and broker_port + PAGE_PORT_DISTANCE
        )
        self._reporting: asyncio.Task[None] | None = None
        self._master: str | None = None

    def _single(self, kind: str, port: int, **paths: str) -> ChildServer:
        """A name server or controller. ``paths`` are below the cluster's directory."""
        places = {key: str(self._directory / path) for key, path in paths.items()}
        return ChildServer(kind, (kind, "run"), {"bindAddress": self._bind, "listenPort": port, **places})

    @property
    def _directory(self) -> Path:
        return Path(self._store or self._temporary or "")

    async def start(self) -> None:
        """Raises PartFailed or OSError; nothing is left running then."""
        try:
            if self._has_page:
                self._page.start(self._page_port)
            await self._supervisor.start(self._namesrv)
            common: dict[str, Any] = {"namesrvAddr": self._namesrv.address}
            if self._replicated:
                await self._supervisor.start(self._controller)
                common |= {"enableControllerMode": True, "controllerAddr": self._controller.address}
            for part in self._brokers:
                part.settings |= common
            await self._supervisor.start(*self._brokers)
            if self._replicated:
                await self._until_in_sync()
                self._reporting = asyncio.get_running_loop().create_task(self._report_master())
            self._supervisor.keep(*self._parts)
        except BaseException:
            with contextlib.suppress(PartFailed):
                await self.stop()
            raise

    @property
    def _parts(self) -> list[ChildServer]:
        return [self._namesrv, *([self._controller] if self._replicated else []), *self._brokers]

    # --- the master ---

    async def _replicas(self) -> ReplicasInfo | None:
        """The replicas as the controller reports them; None if it does not answer."""
        try:
            connection = await PLAIN.connect(self._controller.address, timeout_s=_ASK_S)
            try:
                answer = await connection.request(
                    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
                    None,
                    encode_body([_REPLICAS]),
                    timeout_s=_ASK_S,
                )
            finally:
                connection.close()
            table = decode_body(BrokerReplicasInfo, answer.body).replicas_info_table
        except (OSError, MQError):
            return None
        return table.get(_REPLICAS)

    async def _until_in_sync(self) -> None:
        """Wait until every replica may be elected. A kill before that could leave no candidate."""
        try:
            async with asyncio.timeout(START_S):
                while True:
                    found = await self._replicas()
                    if found is not None and len(found.in_sync_replicas) == len(self._brokers):
                        self._master = found.master_address
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise PartFailed(f"not all brokers were in sync within {START_S:.0f} s") from None

    async def _report_master(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            found = await self._replicas()
            if found is not None and found.master_address and found.master_address != self._master:
                self._master = found.master_address
                log.warning("%s", self.describe_master())

    def describe_master(self) -> str:
        for part in self._brokers:
            if part.address == self._master:
                return f"the master is {part.name} at {self._master} (pid {part.pid})"
        return f"the master is {self._master}"

    # --- what a user sees ---

    @property
    def namesrv_address(self) -> str:
        return self._namesrv.address

    @property
    def ready_line(self) -> str:
        brokers = ",".join(part.address for part in self._brokers)
        controller = f" controller={self._controller.address}" if self._replicated else ""
        return (
            f"READY namesrv={self.namesrv_address}{controller} broker={brokers} http={self._page.url}"
            f"{self._grpc_field} store={self._directory}"
        )

    @property
    def _grpc_field(self) -> str:
        addresses = [part.fields["grpc"] for part in self._brokers if "grpc" in part.fields]
        return f" grpc={','.join(addresses)}" if addresses else ""

    @property
    def hint(self) -> str:
        lines = [
            f"{part.name}: pid {part.pid}, http {part.fields.get('http', '-')}" for part in self._brokers
        ]
        if self._replicated:
            lines.append(f"{self.describe_master()}: kill -9 it, and watch another one take over")
            lines.append(f"token for changes in a console (/console) or over HTTP: {self._loopback_token}")
        return "\n".join(lines)

    async def stop(self) -> None:
        """The controller stops first: a cluster that ends must not elect a master. Raises PartFailed if a part did not
        end cleanly."""
        self._page.is_stopping = True
        await end_all(self._reporting)
        master = [part for part in self._brokers if part.fields.get("broker") == self._master]
        others = [part for part in self._brokers if part not in master]
        try:
            await self._supervisor.stop([self._controller], others, master, [self._namesrv])
        finally:
            await self._page.stop()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)


def _ports(number: int, broker_port: int, http_port: int | None, grpc_port: int | None) -> dict[str, int]:
    step = PORT_STEP * number
    # With ports chosen by the system, listenPort + 1 may be taken by another process when the broker restarts.
    ports = {"listenPort": broker_port + step} if broker_port else {"listenPort": 0, "haListenPort": 0}
    if http_port is not None:
        ports["httpPort"] = http_port + step if http_port else 0
    if grpc_port is not None:
        ports["grpcServerPort"] = grpc_port + step if grpc_port else 0
    return ports
