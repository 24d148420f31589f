"""A broker as a process: its store, its core, sockets, threads, name servers and HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import logging
import os
import random
import secrets
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqspark.base.clock import Clock, SystemClock, local_utc_offset_ms
from mqspark.base.config import MAX_PORT, parse_addresses
from mqspark.base.names import bracketed
from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.admission import Admission
from mqspark.broker.replication.term import Term
from mqspark.broker.schemaregistry.schemaregistry import Compute
from mqspark.errors import ConfigError
from mqspark.message import encode_host
from mqspark.protocol.dispatch import Handler
from mqspark.protocol.extending import Extensions
from mqspark.protocol.session import Session
from mqspark.store.config import StoreConfig
from mqspark.store.recovery.recoveryreport import RecoveryReport
from mqspark.store.store import MessageStore
from mqspark_server.compacting.compactrunner import CompactRunner
from mqspark_server.compacting.mastercopy import MasterCopy
from mqspark_server.net.addresses import BrokerSockets, listening, resolve_broker_ip
from mqspark_server.net.descriptors import PROCESS
from mqspark_server.net.replicationserver import ReplicationServer
from mqspark_server.net.servertls import Certificates, client_context
from mqspark_server.node import BrokerParts
from mqspark_server.peers.brokergroup import BrokerGroup
from mqspark_server.peers.escaping import Escaping
from mqspark_server.peers.following import Following
from mqspark_server.peers.peerlink import PeerLink
from mqspark_server.peers.registrar import FIRST_TIMEOUT_S, UNREGISTER_TIMEOUT_S, Registrar
from mqspark_server.peers.routefinder import RouteFinder
from mqspark_server.peers.schemafollower import SchemaFollower
from mqspark_server.process.diskwork import Flusher, Housekeeper, Worker, open_kernel_sync
from mqspark_server.process.phases import Phase
from mqspark_server.process.processapp import ProcessApp, dialing, remoting_server
from mqspark_server.process.schemawork import SchemaWorker
from mqspark_server.process.tasks import end_all
from mqspark_server.proxy.grpcdoor import GrpcDoor
from mqspark_server.settings.entrypoints import load_extensions
from mqspark_server.settings.reported import more_of_broker
from mqspark_server.settings.serverconfig import GRPC_PORT_DISTANCE
from mqspark_server.settings.settings import BrokerSettings, foreign_keys
from mqspark_server.settings.settingsfile import settings_file
from mqspark_server.web.http import HttpServer

if TYPE_CHECKING:  # imported where users have to log in
    from collections.abc import Callable

    from mqspark.auth.authority import Authority
    from mqspark.client.admin import AdminClient
    from mqspark.client.remoting.credentials import Credentials
    from mqspark_server.brokerspans import BrokerSpans
    from mqspark_server.console.clusteraccess import ClusterAt
    from mqspark_server.console.history.sampler import Sampler
    from mqspark_server.net.grpc.grpccounts import GrpcCounts
    from mqspark_server.net.outbound import Dialing
    from mqspark_server.net.remotingserver import RemotingServer
    from mqspark_server.proxy.backend import ProxyBackend
    from mqspark_server.tiered.archivetier import ArchivedMessages

log = logging.getLogger("mqspark.app")

HTTP_PORT_DISTANCE = 3
"""httpPort is listenPort + 3 by default; +1 is RocketMQ's HA port."""
LOOPBACK_TOKEN_VARIABLE = "MQSPARK_HTTP_TOKEN"  # noqa: S105 - its name
"""Environment variable with the token for changes over HTTP on a broker without users."""

SAMPLES_AFTER_S = 5.0
"""Delay of the console's charts after a start, so that they do not slow it down."""
_NEVER_MS = 60_000
"""The tick interval of a stopped process."""


class BrokerApp(ProcessApp):
    """``settings`` are not changed; ``address`` and ``http_url`` have the ports that are bound."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(clock or SystemClock(), settings.unused)
        self.settings = settings
        self._chance = chance or random.SystemRandom()
        self.config = dataclasses.replace(settings.broker)
        self.store_config = dataclasses.replace(settings.store)
        self.http_url: str | None = None
        self.grpc_address: str | None = None
        """``host:port`` for clients of gRPC, with grpcEnable."""
        self.grpc_counts: Callable[[], GrpcCounts] | None = None
        self.store: MessageStore | None = None
        """None before the recovery begins."""
        self.recovery: dict[str, Any] | None = None
        """Result of the recovery at start."""
        self.parts: BrokerParts | None = None
        """None before the store is recovered."""
        self.term: Term | None = None
        """In controller mode: this broker's part."""
        self.register_s, self.unregister_s = FIRST_TIMEOUT_S, UNREGISTER_TIMEOUT_S
        """How long a start and a stop wait for name servers, in seconds."""
        self.loopback_token = os.environ.get(LOOPBACK_TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        self.more_handlers: dict[int, Handler] = {}
        self.extensions: Extensions | None = None
        """The extensions that the settings name; None before the start."""
        self._sampler: Sampler | None = None
        """The sampler for the console's charts; None until this broker has served for some seconds."""
        self._spans: BrokerSpans | None = None
        """With openTelemetryEnable."""

    @property
    def store_path(self) -> Path:
        return Path(self.store_config.store_path_root_dir)

    # --- start ---

    async def _start(self) -> None:
        if self.extensions is None:
            self.extensions = load_extensions(
                self.clock,
                self.settings.server.extensions,
                observers=self.config.message_store_plug_in,
                provider=self.settings.auth.authentication_provider,
            )
        self.lifecycle.advance(Phase.BINDING)
        sockets = self._bind()
        flush_worker, worker = Worker("mqspark-flush"), Worker("mqspark-housekeeping")
        self._ends.always(flush_worker.close)
        self._ends.always(worker.close)
        http = self._start_http(worker) if self.settings.server.http_enable else None
        if http is not None:
            self._ends.always(self._stop_sampler)

        self.lifecycle.advance(Phase.RECOVERING)
        store = await self._recover(flush_worker, worker)

        self.lifecycle.advance(Phase.STARTING)
        authority = await self._open_authority(self.settings.auth, self.store_path, worker, self.extensions)
        archived = self._open_archive(store, worker) if self.config.archive_url else None
        parts = self.parts = self._assemble(store, flush_worker, worker, http, authority, archived)
        await self._listen(parts, sockets)
        parts.flusher.start()
        parts.housekeeper.start()
        parts.compaction.start()
        parts.server.start()
        if self.settings.server.grpc_enable:
            self._open_grpc(parts, worker)

        self.lifecycle.advance(Phase.REGISTERING)
        if parts.group is not None and (pre_online := parts.core.role.pre_online) is not None:
            await parts.group.come_back(pre_online)
            parts.core.go_online()
        await parts.registrar.start(self.register_s)
        if parts.group is not None:
            parts.group.start()
        parts.route_finder.start()
        if parts.schema_follower is not None:
            parts.schema_follower.start()
        if parts.following is not None:
            parts.following.start()
        if parts.master_copy is not None:
            parts.master_copy.start()
        self.lifecycle.advance(Phase.READY)
        if http is not None:
            self._start_samples(worker)
        log.info("broker %s serves at %s, store %s", self.config.broker_name, self.address, self.store_path)

    def _bind(self) -> BrokerSockets:
        server, config = self.settings.server, self.config
        sockets = BrokerSockets.bind(
            server.bind_address,
            config.listen_port,
            config.ha_listen_port or 0,
            with_fast=server.fast_port_enable,
        )
        self._ends.always(sockets.close)
        config.listen_port, config.ha_listen_port = sockets.port, sockets.slave_port
        if server.fast_port_enable and sockets.fast is None:
            log.warning("port %d is in use: there is no fast port (listenPort - 2)", sockets.port - 2)
        self.address = config.address
        return sockets

    def _start_http(self, worker: Worker) -> HttpServer:
        config = self.settings.server
        host, port = config.http_bind_address, config.http_port
        if port is None:
            port = self._port_beside(HTTP_PORT_DISTANCE, "HTTP", "httpPort")
        tls = None if config.http_tls is None else Certificates(config.http_tls)
        most = config.http_max_connections
        http = HttpServer(self._ends, "HTTP", host, port, self._build_api, worker, most, tls)
        self.http_url = http.url
        return http

    def _port_beside(self, distance: int, what: str, key: str) -> int:
        """0, any free one, if listenPort is. Raises ConfigError."""
        port = self.config.listen_port + distance if self.settings.broker.listen_port else 0
        if port > MAX_PORT:
            remark = f"there is no port {port} (listenPort + {distance}) for {what}: set {key}"
            raise ConfigError(remark, key=key)
        return port

    def _open_grpc(self, parts: BrokerParts, worker: Worker) -> None:
        if importlib.util.find_spec("google.protobuf") is None:
            raise ConfigError("grpcEnable needs protobuf: pip install 'mqspark[grpc]'", key="grpcEnable")
        config = self.settings.server
        port = config.grpc_server_port
        if port is None:
            port = self._port_beside(GRPC_PORT_DISTANCE, "gRPC", "grpcServerPort")
        addresses = parse_addresses(self.config.namesrv_addr or "", key="namesrvAddr")
        dialed = dialing(config, self.settings.auth)

        def load() -> Callable[[], ProxyBackend]:
            from mqspark_server.proxy.backends.brokerbackend import BrokerBackend
            from mqspark_server.proxy.backends.clusterroutes import ClusterRoutes
            from mqspark_server.proxy.backends.otherbrokers import OtherBrokers

            def new_backend() -> ProxyBackend:
                others = None
                if addresses:
                    routes = ClusterRoutes(addresses, dialed)
                    others = OtherBrokers(routes, self.config.broker_name, config.grpc_server_port)
                return BrokerBackend(parts.core, parts.server, others)

            return new_backend

        door = GrpcDoor(config, config.bind_address, worker, load)
        self._ends.on_stop(door.stop)
        self._ends.on_kill(lambda: door.stop(abruptly=True))
        door.open(port)
        self.grpc_counts = lambda: door.counts
        parts.core.grpc_port = door.port
        self.grpc_address = f"{bracketed(self.config.broker_ip1)}:{door.port}"

    def _build_api(self) -> object:
        from mqspark_server.console.apidocs import docs_router
        from mqspark_server.console.clusteraccess import BROKER_LINKS
        from mqspark_server.console.doors import BrokerDoor
        from mqspark_server.console.pages import console_router
        from mqspark_server.web.api import create_api

        door = BrokerDoor(self.settings.auth)
        console = console_router(self, door, self.clock, self._load_sampler())
        docs = docs_router(BROKER_LINKS, lambda request: request.app.openapi())
        return create_api(self, self._admin_with, [console, docs])

    def _admin_with(self, credentials: Credentials | None, timeout_ms: int) -> AdminClient:
        """A client of the cluster with a caller's keys."""
        from mqspark_server.console.clusteraccess import admin_of
        from mqspark_server.web.problems import Problem

        at = self.cluster_to_show()
        if at.problem is not None:
            raise Problem(503, at.problem)
        return admin_of(at, credentials, timeout_ms)

    def _load_sampler(self) -> Sampler:
        """In the thread of housekeeping, because it loads the client."""
        if self._sampler is None:
            from mqspark_server.console.history.sampler import Sampler

            self._sampler = Sampler(self, self.clock)
        return self._sampler

    async def _begin_samples(self, worker: Worker) -> None:
        """Start sampling for the console's charts, before the first page is opened."""
        await asyncio.sleep(SAMPLES_AFTER_S)
        sampler = await worker.run(self._load_sampler)
        auth = self.settings.auth
        if auth.inner_credentials is not None or not auth.authentication_enabled:  # else it would be refused
            sampler.begin()

    def _start_samples(self, worker: Worker) -> None:
        task = asyncio.get_running_loop().create_task(self._begin_samples(worker), name="mqspark-charts")

        async def stop() -> None:
            await end_all(task)

        self._ends.always(stop)

    async def _stop_sampler(self) -> None:
        if self._sampler is not None:
            await self._sampler.stop()

    def cluster_to_show(self) -> ClusterAt:
        """The cluster of the console: the name servers of this broker, queried with the visitor's keys."""
        from mqspark.client.remoting.client_options import ClientOptions
        from mqspark.client.remoting.credentials import Credentials
        from mqspark_server.console.clusteraccess import BROKER_LINKS, ClusterAt

        namesrv = self.config.namesrv_addr or ""
        problem = None if namesrv else "this broker has no name server: set namesrvAddr"
        client_tls = self.settings.server.client_tls
        options = ClientOptions(tls=False if client_tls is None else client_context(client_tls))
        keys = self.settings.auth.inner_credentials
        return ClusterAt(
            namesrv,
            options,
            problem,
            self._report_to_show,
            BROKER_LINKS,
            self.settings.server.job_server,
            None if keys is None else Credentials(*keys),
        )

    def _report_to_show(self) -> dict[str, Any]:
        # Sampling does not use it: loading the HTTP server here would delay messages for a second.
        from mqspark_server.web.api import store_report

        return store_report(self)

    async def _recover(self, flush_worker: Worker, worker: Worker) -> MessageStore:
        """An open store. It is opened in the thread that flushes; HTTP answers meanwhile."""
        own_ip = await resolve_broker_ip(self.config.broker_ip1)
        store = self.store = MessageStore(
            self.store_config, self.clock, store_host=encode_host(own_ip, self.config.listen_port)
        )
        reserved = store.data.descriptors
        if self.http_url is not None:
            reserved += self.settings.server.http_max_connections
        PROCESS.reserve(reserved)
        self._ends.always(partial(PROCESS.reserve, -reserved))

        async def close() -> None:
            for each in (worker, flush_worker):  # a job, or the opening of a start that was cancelled
                await each.run(lambda: None)
            await flush_worker.run(store.close)

        def abandon() -> None:
            for each in (worker, flush_worker):
                each.close()
            store.abandon()

        self._ends.on_stop(close)
        self._ends.on_kill(abandon)
        report = await flush_worker.run(store.open)
        self._note_recovery(report)
        await flush_worker.run(partial(self._handle_recovery, store, report))
        return store

    def _handle_recovery(self, store: MessageStore, report: RecoveryReport) -> None:
        """Draw conclusions from what a start has found, in the flush thread. Here everything valid is kept."""

    def _note_recovery(self, report: RecoveryReport) -> None:
        self.recovery = dataclasses.asdict(report)
        log.info("store %s recovered: %s", self.store_path, report)
        mode, wanted = self.store_path.stat().st_mode & 0o777, self.settings.store.directory_mode
        if mode & ~wanted:
            log.warning(
                "other users can read %s (mode %04o): chmod %04o, or set storeDirectoryMode",
                self.store_path,
                mode,
                wanted,
            )

    def _open_archive(self, store: MessageStore, worker: Worker) -> ArchivedMessages:
        """Let the store serve the archive. Storage that does not answer does not delay the start."""
        for package in ("pyarrow", "fsspec"):
            if importlib.util.find_spec(package) is None:
                raise ConfigError(
                    f"archiveUrl needs {package}: pip install 'mqspark[tiered]'", key="archiveUrl"
                )
        from mqspark_server.tiered.archivetier import ArchivedMessages, TierSettings

        config = self.config
        settings = TierSettings(
            url=config.archive_url,
            broker=config.broker_name,
            cache_directory=Path(config.archive_cache_path or self.store_path / "mqspark.archivecache"),
            cache_bytes=config.archive_cache_bytes,
            refresh_interval_ms=config.archive_refresh_interval,
            fetch_memory_bytes=config.archive_fetch_memory_bytes,
        )
        floors = store.root_file(self.store_path / "mqspark.archivefloors")
        archived = ArchivedMessages(settings, store, self.clock, floors, worker, self._archive_fetched)
        self._ends.always(archived.stop)
        archived.start()
        store.serve_older(archived)
        return archived

    def _archive_fetched(self, key: Hashable, queues: Sequence[tuple[str, int]]) -> None:
        if self.parts is not None:
            self.parts.core.older_fetched(key, queues)
            self.parts.server.schedule()

    def _new_core(
        self,
        store: MessageStore,
        outbox: list[Session],
        http: HttpServer | None,
        authority: Authority | None,
    ) -> BrokerCore:
        core = BrokerCore(
            self.config,
            store,
            self.clock,
            random=self._chance,
            outbox=outbox,
            foreign_keys=foreign_keys(BrokerConfig, StoreConfig),
            shell_settings=more_of_broker(self.settings.server, None if http is None else http.address),
            authority=authority,
            term=self.term,
            settings_file=settings_file(self.settings.file),
            more_handlers=self.more_handlers,
            extensions=self.extensions,
            utc_offset_ms=local_utc_offset_ms,
            compute=self._schema_compute(),
        )
        if self.config.open_telemetry_enable:
            from mqspark_server.brokerspans import BrokerSpans

            self._spans = BrokerSpans(core)
            core.handlers = self._spans.wrap(core.handlers)
        return core

    def _schema_compute(self) -> Compute | None:
        if not self.config.schema_registry_enable and not self.config.namesrv_addr:
            return None
        worker = SchemaWorker(self._schemas_computed)
        self._ends.always(worker.close)
        return worker.compute

    def _assemble(
        self,
        store: MessageStore,
        flush_worker: Worker,
        worker: Worker,
        http: HttpServer | None,
        authority: Authority | None,
        archived: ArchivedMessages | None,
    ) -> BrokerParts:
        """Connect the parts, and define in which order they end."""
        outbox: list[Session] = []
        core = self._new_core(store, outbox, http, authority)
        server = remoting_server(
            self.config.broker_name,
            core,
            outbox,
            self.settings.server,
            self._after_turn,
            core.requests.overload,
            self.extensions,
            core.take,
            core.turn_taken,
            self._after_taken,
        )
        core.state.stats.broken_and_idle = lambda: (server.counts.malformed, server.counts.idle)
        dialed = dialing(self.settings.server, self.settings.auth)
        registrar = Registrar(core, server.write_outbox, dialed)
        admission = Admission(self.config, authority, dialed.signer)
        following: Following | None = None
        role = core.role
        if role.follower is not None and role.metadata is not None:
            following = Following(
                role.follower,
                role.metadata,
                registrar,
                server.schedule,
                admission,
                role.healing,
                self.term,
                role.acting,
            )
        route_finder = RouteFinder(core, server.write_outbox, dialed)
        group = escaping = None
        if (acting := role.acting) is not None:

            def stored_elsewhere() -> None:
                acting.progressed()
                server.write_outbox()

            group = BrokerGroup(core, acting, registrar)
            escaping = Escaping(core, acting.bridges, registrar, stored_elsewhere)
        parts = BrokerParts(
            core=core,
            server=server,
            flusher=Flusher(core, store, flush_worker, self._flushed, open_kernel_sync()),
            housekeeper=Housekeeper(core, worker, server.write_outbox),
            registrar=registrar,
            route_finder=route_finder,
            peers=PeerLink(core, route_finder, server.write_outbox, dialed),
            slaves=ReplicationServer(role.replicas, self._replicated, admission, server.tls),
            following=following,
            group=group,
            escaping=escaping,
            archived=archived,
            compaction=CompactRunner(store, self.clock),
            master_copy=None if following is None else MasterCopy(store, following.connect),
            schema_follower=self._schema_follower(core, route_finder, server, dialed),
        )

        self._arrange_end(parts, http)
        return parts

    def _arrange_end(self, parts: BrokerParts, http: HttpServer | None) -> None:
        """Define in which order the parts end: stop accepting, unregister, sync, answer, close, save, checkpoint."""
        core, server = parts.core, parts.server

        async def save() -> None:
            await parts.housekeeper.stop()
            await parts.housekeeper.run(core.shutdown())

        async def drain() -> None:
            core.quiesce()
            core.turn()
            await parts.flusher.stop()
            parts.slaves.close()
            await server.close()

        async def cut_off() -> None:
            await parts.flusher.abandon()
            parts.slaves.close(abruptly=True)
            await server.close(abruptly=True)

        ends = self._ends
        ends.on_stop(save)
        ends.on_kill(parts.housekeeper.stop)
        ends.always(parts.compaction.stop)
        if parts.master_copy is not None:
            ends.always(parts.master_copy.stop)
        if http is not None:
            ends.always(http.stop)  # before the store: a page must not read a store that is being closed
        ends.on_stop(drain)
        ends.on_stop(lambda: parts.registrar.stop(self.unregister_s))
        ends.on_kill(parts.registrar.abandon)
        ends.always(parts.route_finder.stop)
        ends.always(parts.peers.stop)
        if parts.schema_follower is not None:
            ends.always(parts.schema_follower.stop)
        ends.on_stop(server.stop_accepting)
        ends.on_kill(cut_off)
        if parts.following is not None:
            ends.on_stop(parts.following.finish)
            ends.on_kill(parts.following.stop)
        if parts.group is not None and parts.escaping is not None:
            ends.always(parts.escaping.stop)
            ends.always(parts.group.stop)

    async def _listen(self, parts: BrokerParts, sockets: BrokerSockets) -> None:
        for sock in (sockets.main, sockets.fast):
            if sock is not None:
                with listening("broker", sock):
                    await parts.server.listen(sock, fast=sock is sockets.fast)
        with listening("broker's replication", sockets.slaves):
            await parts.slaves.listen(sockets.slaves)

    # --- what the parts tell each other ---

    def _schema_follower(
        self, core: BrokerCore, routes: RouteFinder, server: RemotingServer, dialed: Dialing
    ) -> SchemaFollower | None:
        copy = core.services.schemas.copy
        if copy is None or not self.config.namesrv_addr:
            return None
        return SchemaFollower(core, copy, routes, server.schedule, dialed)

    def _schemas_computed(self) -> None:
        if self.parts is not None:
            self.parts.server.schedule()

    def _flushed(self) -> None:
        self._end_spans()
        if self.parts is not None:
            self._replicate(self.parts)
            self.parts.server.write_outbox()

    def _replicate(self, parts: BrokerParts) -> None:
        parts.slaves.turned()
        if parts.following is not None:
            parts.following.turned()

    def _end_spans(self) -> None:
        if self._spans is not None:
            self._spans.progress()

    def _replicated(self) -> None:
        self._end_spans()
        if self.parts is not None:
            self.parts.core.replicated()
            self.parts.server.write_outbox()

    def _after_taken(self) -> None:
        """After a turn of plain sends alone, which change nothing but the log."""
        if self._spans is not None:
            self._spans.progress()
        parts = self.parts
        if parts is not None:
            parts.flusher.after_turn()
            self._replicate(parts)
            if parts.core.store.room_due:
                parts.housekeeper.after_turn()

    def _after_turn(self) -> None:
        """Most turns leave nothing to do, and to look costs less than to call."""
        self._end_spans()
        parts = self.parts
        if parts is not None:
            core = parts.core
            parts.flusher.after_turn()
            self._replicate(parts)
            if core.publication.due:
                parts.registrar.after_turn()
            parts.housekeeper.after_turn()
            if core.requests.routes.known:
                parts.route_finder.after_turn()
            if core.state.peers.unasked:
                parts.peers.after_turn()
            if parts.schema_follower is not None:
                parts.schema_follower.after_turn()
            if parts.escaping is not None:
                parts.escaping.after_turn()

    async def tick(self, ahead_ms: int) -> int:
        """For callers that move the clock: do what is due and sync what that stored, until nothing is due.
        Connected clients count as alive, because they cannot know how much time has passed; ``ahead_ms`` is the
        total shift.

        Returns the ms until more may be due. The broker must be ready, or killed or stopped, in which case
        nothing happens.
        """
        while True:
            parts = self.parts
            if self.lifecycle.phase != Phase.READY or parts is None:
                return _NEVER_MS
            state = parts.core.state
            state.ahead_ms = ahead_ms
            state.clients.seen_all()
            state.locks.renew_all(state.clients.is_member)
            puts = state.store.appender.put_count
            wait_ms = parts.server.tick()
            await parts.flusher.sync()
            if wait_ms > 0 and state.store.appender.put_count == puts:
                return wait_ms

    # --- end ---

    async def kill(self) -> None:
        """Simulate SIGKILL as seen from outside: connections break, nothing more is answered, saved or synced,
        and the next start on these files recovers. The files and the ports are free afterwards."""
        await self._end(self._ends.kill)
