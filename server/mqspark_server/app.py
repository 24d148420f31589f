"""The composition root: connects sockets, threads, store and core of each process.

    NameServerApp      a name server
    BrokerApp          a broker with its store and HTTP
    DevCluster         a name server and brokers in one loop: ``mqspark dev``, ``mqspark.testing``

Each has ``await start()``, which raises OSError, StoreError or ConfigError and leaves nothing behind when it
does, and ``await stop()``, which may be called at any time and more than once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import logging
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.clock import Clock, SystemClock
from mqspark.errors import ConfigError, StoreReadOnly
from mqspark.message import encode_host
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.session import Session
from mqspark.store.config import StoreConfig
from mqspark.store.disk.kernelsync import KernelSync
from mqspark.store.recovery.recovery import RecoveryReport
from mqspark.store.store import MessageStore
from mqspark_server.diskwork import Flusher, Housekeeper, Worker
from mqspark_server.following import Following
from mqspark_server.net.descriptors import PROCESS
from mqspark_server.net.lateness import Overload
from mqspark_server.net.slaveport import ReplicationServer
from mqspark_server.net.tcp import RemotingServer, bind_pair, bind_socket
from mqspark_server.phases import Phase, ProcessLifecycle
from mqspark_server.registrar import Registrar
from mqspark_server.routefinder import RouteFinder
from mqspark_server.settings.settings import (
    DEVELOPMENT,
    BrokerSettings,
    Layer,
    NamesrvSettings,
    ServerConfig,
    broker_settings,
    foreign_keys,
    local_address,
    namesrv_settings,
)
from mqspark_server.web.http import HttpServer

__all__ = ["BrokerApp", "DevCluster", "NameServerApp"]

log = logging.getLogger("mqspark.app")

MAX_PORT = 65535
HTTP_PORT_DISTANCE = 3
"""httpPort is listenPort + 3 by default; +1 is RocketMQ's HA port."""

_NEVER_MS = 60_000
"""The tick interval of a stopped process."""

_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound


def _cannot_listen(what: str, host: str, port: int, error: OSError) -> OSError:
    return OSError(error.errno, f"{what} cannot listen on {host}:{port}: {error.strerror}")


def _kernel_sync() -> KernelSync | None:
    try:
        return KernelSync()
    except OSError as error:
        log.info("the kernel does not support asynchronous sync (%s): a thread is used", error)
        return None


def _remoting(
    name: str,
    core: BrokerCore | NameServer,
    outbox: list[Session],
    config: ServerConfig,
    after_turn: Callable[[], None],
    overload: Overload | None = None,
) -> RemotingServer:
    return RemotingServer(
        core,
        outbox,
        name=name,
        idle_s=config.server_channel_max_idle_time_seconds,
        max_connections=config.max_connections,
        high_water_bytes=config.write_buffer_high_water_mark,
        max_buffered_bytes=config.max_buffered_bytes,
        max_unsent_bytes=config.max_unsent_bytes,
        unread_s=config.unread_timeout_seconds,
        partial_frame_s=config.partial_frame_timeout_seconds,
        max_connections_per_address=config.max_connections_per_address,
        backlog=config.server_socket_backlog,
        after_turn=after_turn,
        overload=overload,
    )


class NameServerApp:
    def __init__(self, settings: NamesrvSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.lifecycle = ProcessLifecycle(self.clock)
        self.address = ""
        """``host:port`` for clients on this host, once started."""
        self.core: NameServer | None = None
        self._server: RemotingServer | None = None
        self._worker: Worker | None = None
        self._housekeeper: Housekeeper | None = None

    async def start(self) -> None:
        """Raises OSError, StoreError or ConfigError; nothing is left behind then."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.settings.server
        if self.settings.unused:
            log.info("settings without an effect here: %s", ", ".join(self.settings.unused))
        self.lifecycle.advance(Phase.BINDING)
        host, port = config.bind_address, config.listen_port
        try:
            sock = bind_socket(host, port)
        except OSError as error:
            raise _cannot_listen("name server", host, port, error) from None
        port = sock.getsockname()[1]
        self.lifecycle.advance(Phase.STARTING)
        try:
            outbox: list[Session] = []
            self.core = NameServer(
                self.settings.namesrv,
                self.clock,
                outbox=outbox,
                foreign_keys=foreign_keys(NamesrvConfig),
            )
            self._worker = Worker("mqspark-namesrv")
            self._housekeeper = Housekeeper(self.core, self._worker)
            self._server = _remoting("namesrv", self.core, outbox, config, self._housekeeper.after_turn)
            await self._server.listen(sock)
        except OSError as error:
            sock.close()
            raise _cannot_listen("name server", host, port, error) from None
        except BaseException:
            sock.close()
            raise
        self._server.start()
        self._housekeeper.start()
        self.address = f"{local_address() if host in _WILDCARDS else host}:{port}"
        self.lifecycle.advance(Phase.READY)
        log.info("name server at %s", self.address)

    async def stop(self) -> None:
        if self.lifecycle.phase >= Phase.STOPPING:
            return
        self.lifecycle.advance(Phase.STOPPING)
        if self._server is not None:
            await self._server.close()
        if self._housekeeper is not None and self.core is not None:
            await self._housekeeper.stop()
            await self._housekeeper.run(self.core.jobs())
        if self._worker is not None:
            self._worker.close()
        self.lifecycle.advance(Phase.STOPPED)


class BrokerApp:
    """One broker.

    ``settings`` are not changed; ``address`` and ``http_url`` have the ports that are bound.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self.lifecycle = ProcessLifecycle(self.clock)
        self.config = dataclasses.replace(settings.broker)
        self.store_config = dataclasses.replace(settings.store)
        self.address = ""
        """``host:port`` for clients, once started."""
        self.http_url: str | None = None
        self.broker: BrokerCore | None = None
        self.store: MessageStore | None = None
        self.registrar: Registrar | None = None
        self._route_finder: RouteFinder | None = None
        self.server: RemotingServer | None = None
        self.housekeeper: Housekeeper | None = None
        self._flusher: Flusher | None = None
        self._replication: ReplicationServer | None = None
        self.following: Following | None = None
        """Set on a slave."""
        self._flush_worker: Worker | None = None
        self._worker: Worker | None = None
        self._http: HttpServer | None = None
        self._sockets: list[socket.socket] = []
        self._opened = False
        self._reserved = 0
        self.recovery: dict[str, Any] | None = None
        """Result of the recovery at start."""

    @property
    def store_path(self) -> Path:
        return Path(self.store_config.store_path_root_dir)

    async def start(self) -> None:
        """Raises OSError, StoreError or ConfigError; nothing is left behind then."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        server_config = self.settings.server
        if self.settings.unused:
            log.info("settings without an effect here: %s", ", ".join(self.settings.unused))
        self.lifecycle.advance(Phase.BINDING)
        main, fast = self._bind_remoting()
        slaves = self._bind_replication()
        self._flush_worker, self._worker = Worker("mqspark-flush"), Worker("mqspark-housekeeping")
        if server_config.http_enable:
            self._http = self._start_http(main.getsockname()[1])
            self.http_url = self._http.url

        self.lifecycle.advance(Phase.RECOVERING)
        store = self.store = MessageStore(
            self.store_config,
            self.clock,
            store_host=encode_host(await self._own_address(), self.config.listen_port),
        )
        self._reserved = store.descriptors
        if server_config.http_enable:
            self._reserved += server_config.http_max_connections
        PROCESS.reserve(self._reserved)
        report = await self._flush_worker.run(self._open_store)
        self.recovery = dataclasses.asdict(report)
        log.info("store %s recovered: %s", self.store_path, report)

        self.lifecycle.advance(Phase.STARTING)
        outbox: list[Session] = []
        broker = self.broker = BrokerCore(
            self.config,
            self.store_config,
            store,
            self.clock,
            random=self._chance,
            outbox=outbox,
            foreign_keys=foreign_keys(BrokerConfig, StoreConfig),
        )
        server = self.server = _remoting(
            self.config.broker_name, broker, outbox, server_config, self._after_turn, broker.overload
        )
        self._flusher = Flusher(broker, store, self._flush_worker, self._flushed, _kernel_sync())
        self.housekeeper = Housekeeper(broker, self._worker, server.write_outbox)
        self.registrar = Registrar(broker, server.write_outbox)
        self._route_finder = RouteFinder(broker, server.write_outbox)
        self._replication = ReplicationServer(broker.replicas, self._replicated)
        if broker.follower is not None:
            self.following = Following(broker.follower, self.registrar, server.schedule)
        self._sockets.clear()
        await self._listen(server, main, fast=False)
        if fast is not None:
            await self._listen(server, fast, fast=True)
        await self._listen_for_slaves(self._replication, slaves)
        self._flusher.start()
        self.housekeeper.start()
        server.start()

        self.lifecycle.advance(Phase.REGISTERING)
        await self.registrar.start()
        self._route_finder.start()
        if self.following is not None:
            self.following.start()
        self.lifecycle.advance(Phase.READY)
        log.info("broker %s serves at %s, store %s", self.config.broker_name, self.address, self.store_path)

    async def _own_address(self) -> str:
        """The IP address of brokerIP1: records and message ids hold addresses, not names."""
        name = self.config.broker_ip1.strip("[]")
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(name.partition("%")[0]))
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"setting brokerIP1={name} is not the address of a host: {error}", key="brokerIP1"
            ) from None
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # IPv4 first
        return str(found[0][4][0])

    def _open_store(self) -> RecoveryReport:
        # Set in the worker's thread, because the waiting task may have been cancelled meanwhile.
        assert self.store is not None  # noqa: S101 - narrows the type
        report = self.store.open()
        self._opened = True
        mode, wanted = self.store_path.stat().st_mode & 0o777, self.settings.store.directory_mode
        if mode & ~wanted:
            log.warning(
                "other users can read %s (mode %04o): chmod %04o, or set storeDirectoryMode",
                self.store_path,
                mode,
                wanted,
            )
        return report

    def _bind_remoting(self) -> tuple[socket.socket, socket.socket | None]:
        host, port = self.settings.server.bind_address, self.config.listen_port
        fast: socket.socket | None = None
        try:
            if self.settings.server.fast_port_enable:
                main, fast = bind_pair(host, port)
                if fast is None:
                    log.warning("port %d is in use: there is no fast port (listenPort - 2)", port - 2)
            else:
                main = bind_socket(host, port)
        except OSError as error:
            raise _cannot_listen("broker", host, port, error) from None
        self._sockets = [main] if fast is None else [main, fast]
        self.config.listen_port = main.getsockname()[1]
        self.address = self.config.address
        return main, fast

    async def _listen(self, server: RemotingServer, sock: socket.socket, *, fast: bool) -> None:
        host, port = sock.getsockname()[:2]
        try:
            await server.listen(sock, fast=fast)
        except OSError as error:  # two processes may have bound the port; one of them listens
            sock.close()
            raise _cannot_listen("broker", host, port, error) from None

    async def _listen_for_slaves(self, replication: ReplicationServer, sock: socket.socket) -> None:
        host, port = sock.getsockname()[:2]
        try:
            await replication.listen(sock)
        except OSError as error:
            sock.close()
            raise _cannot_listen("broker's replication", host, port, error) from None

    def _start_http(self, listen_port: int) -> HttpServer:
        config = self.settings.server
        port = config.http_port
        if port is None:
            port = listen_port + HTTP_PORT_DISTANCE if self.settings.broker.listen_port else 0
            if port > MAX_PORT:
                raise ConfigError(
                    f"there is no port {port} (listenPort + 3) for HTTP: set httpPort", key="httpPort"
                )
        if self._worker is None:
            raise RuntimeError("the worker comes first")
        try:
            sock = bind_socket(config.http_bind_address, port)
        except OSError as error:
            raise _cannot_listen("HTTP", config.http_bind_address, port, error) from None
        http = HttpServer(sock, self._build_api, self._worker, config.http_max_connections)
        try:
            http.start()
        except OSError as error:
            sock.close()
            raise _cannot_listen("HTTP", config.http_bind_address, port, error) from None
        return http

    def _build_api(self) -> object:
        from mqspark_server.web.api import create_api

        return create_api(self)

    def _bind_replication(self) -> socket.socket:
        """Bind haListenPort. Slaves learn the port from a name server, so unless it is set, any port is used when
        listenPort + 1 is taken."""
        host, port = self.settings.server.bind_address, self.config.ha_listen_port
        if port:
            try:
                sock = bind_socket(host, port)
            except OSError as error:
                raise _cannot_listen("broker's replication", host, port, error) from None
        else:
            try:
                sock = bind_socket(host, self.config.listen_port + 1)
            except (OSError, OverflowError):
                sock = bind_socket(host, 0)
        self._sockets.append(sock)
        self.config.ha_listen_port = sock.getsockname()[1]
        return sock

    def _flushed(self) -> None:
        if self.server is not None and self._replication is not None:
            self._replication.turned()
            if self.following is not None:
                self.following.turned()
            self.server.write_outbox()

    def _replicated(self) -> None:
        if self.server is not None and self.broker is not None:
            self.broker.replicated()
            self.server.write_outbox()

    def _after_turn(self) -> None:
        if self._flusher is not None and self.registrar is not None and self.housekeeper is not None:
            self._flusher.after_turn()
            if self._replication is not None:
                self._replication.turned()
            if self.following is not None:
                self.following.turned()
            self.registrar.after_turn()
            self.housekeeper.after_turn()
        if self._route_finder is not None:
            self._route_finder.after_turn()

    async def tick(self, ahead_ms: int) -> int:
        """For callers that move the clock: do what is due and sync what that stored, until nothing is due.
        Connected clients count as alive, because they cannot know how much time has passed; ``ahead_ms`` is the
        total shift.

        Returns the ms until more may be due. The broker must be ready, or killed or stopped, in which case
        nothing happens.
        """
        while True:
            broker, store, server, flusher = self.broker, self.store, self.server, self._flusher
            if self.lifecycle.phase != Phase.READY or not (broker and store and server and flusher):
                return _NEVER_MS
            broker.state.ahead_ms = ahead_ms
            broker.state.clients.seen_all()
            broker.state.locks.renew_all(broker.state.clients.is_member)
            puts = store.put_count
            wait_ms = server.tick()
            await flusher.sync()
            if wait_ms > 0 and store.put_count == puts:
                return wait_ms

    async def kill(self) -> None:
        """Simulate SIGKILL as seen from outside: connections break, nothing more is answered, saved or synced,
        and the next start on these files recovers. The files and the ports are free afterwards."""
        if self.lifecycle.phase >= Phase.STOPPING:
            return
        self.lifecycle.advance(Phase.STOPPING)
        if self.following is not None:
            await self.following.stop()
        if self._flusher is not None:
            await self._flusher.abandon()
        if self._replication is not None:
            self._replication.close(abruptly=True)
        if self.server is not None:
            await self.server.close(abruptly=True)
        if self._route_finder is not None:
            await self._route_finder.stop()
        if self.registrar is not None:
            await self.registrar.abandon()
        if self._http is not None:
            await self._http.stop()
        if self.housekeeper is not None:
            await self.housekeeper.stop()
        for worker in (self._worker, self._flush_worker):
            if worker is not None:
                worker.close()
        if self.store is not None:
            self.store.abandon()
        self._give_descriptors_back()
        self.lifecycle.advance(Phase.STOPPED)

    async def stop(self) -> None:
        """Stop accepting, unregister, sync, answer, close, save, checkpoint, in this order.

        Raises StoreReadOnly at the end if the store had failed: its ``abort`` file stays, and the next start
        recovers.
        """
        if self.lifecycle.phase >= Phase.STOPPING:
            return
        failure: StoreReadOnly | None = None
        self.lifecycle.advance(Phase.STOPPING)
        if self.server is not None:
            self.server.stop_accepting()
        if self.following is not None:
            await self.following.stop()
        if self._route_finder is not None:
            await self._route_finder.stop()
        if self.registrar is not None:
            await self.registrar.stop()
        if self.server is not None and self.broker is not None and self._flusher is not None:
            self.broker.quiesce()
            self.broker.turn()
            await self._flusher.stop()
            if self._replication is not None:
                self._replication.close()
            await self.server.close()
        if self._http is not None:
            await self._http.stop()
        if self.housekeeper is not None and self.broker is not None:
            await self.housekeeper.stop()
            await self.housekeeper.run(self.broker.shutdown())
        if self._flush_worker is not None:
            await self._flush_worker.run(lambda: None)  # wait for an opening in progress
        if self.store is not None and self._opened and self._flush_worker is not None:
            self._opened = False
            try:
                await self._flush_worker.run(self.store.close)
            except StoreReadOnly as error:
                failure = error
        for worker in (self._worker, self._flush_worker):
            if worker is not None:
                worker.close()
        for sock in self._sockets:
            sock.close()
        self._give_descriptors_back()
        self.lifecycle.advance(Phase.STOPPED)
        if failure is not None:
            raise failure

    def _give_descriptors_back(self) -> None:
        PROCESS.reserve(-self._reserved)
        self._reserved = 0


class DevCluster:
    """A name server and brokers in this process and on this event loop.

    ``store`` None: a temporary directory, removed at the end. With several brokers each has a directory of its
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
            namesrv_settings({"listenPort": namesrv_port, "bindAddress": first.bind_address})
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
        return BrokerApp(settings, clock=self.clock, chance=self._chance)

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
