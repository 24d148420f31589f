"""A controller as a process, or as a part of a name server's: its core, its port, the thread that saves its state, and
the connections over which brokers are told of new masters."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from mqspark.clock import Clock, SystemClock
from mqspark.controller.config import ControllerConfig
from mqspark.controller.controller import Controller, Notice
from mqspark.controller.elected import ElectedController
from mqspark.controller.statefile import StateFile
from mqspark.errors import ClientError
from mqspark.logs import sparing
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.session import Session
from mqspark_server.diskwork import Housekeeper, Worker
from mqspark_server.net.addresses import bind, cannot_listen
from mqspark_server.net.outbound import Outbound
from mqspark_server.net.servertls import client_context
from mqspark_server.phases import Phase, ProcessLifecycle
from mqspark_server.settings.settings import WILDCARDS, ControllerSettings, foreign_keys, local_address
from mqspark_server.startup import Ends, remoting_server

__all__ = ["ControllerApp"]

log = logging.getLogger("mqspark.app")
_notice_log = sparing("mqspark.notices")

DEFAULT_DIRECTORY = "mqsparkController"
LINGER_S = 1.0
"""For which a connection stays after its notice: nobody says when the broker has read it."""
MAX_SENDING = 256
"""Notices that are being sent at once. Brokers that get none ask within some seconds."""


class Notifier:
    """Sends notices to brokers, one-way, each over a connection of its own: it is rare."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._sending: dict[str, asyncio.Task[None]] = {}

    def send(self, notice: Notice) -> None:
        older = self._sending.pop(notice.address, None)
        if older is not None:
            older.cancel()
        elif len(self._sending) >= MAX_SENDING:
            _notice_log.warning("the broker at %s is not told of its new master now", notice.address)
            return
        task = asyncio.get_running_loop().create_task(self._send(notice), name="mqspark-notice")
        self._sending[notice.address] = task
        task.add_done_callback(lambda done: self._sent(notice.address, done))

    def _sent(self, address: str, task: asyncio.Task[None]) -> None:
        if self._sending.get(address) is task:
            del self._sending[address]

    async def _send(self, notice: Notice) -> None:
        try:
            connection = await Outbound.connect(notice.address, lambda: None, tls=self._tls)
            try:
                connection.tell(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, notice.header, notice.body)
                await asyncio.sleep(LINGER_S)
            finally:
                connection.close()
        except (OSError, ValueError, ClientError) as error:
            _notice_log.warning("the broker at %s is not told of its new master: %s", notice.address, error)

    async def stop(self) -> None:
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ControllerApp:
    def __init__(self, settings: ControllerSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.lifecycle = ProcessLifecycle(self.clock)
        self.address = ""
        """``host:port`` as brokers are told, once started."""
        self.core: Controller | ElectedController | None = None
        path = settings.controller.controller_store_path
        self.store_path = Path(path) if path else Path.home() / DEFAULT_DIRECTORY
        """Of an embedded state."""
        self._ends = Ends()

    @property
    def store(self) -> str:
        """Where the state is, for people."""
        config = self.settings.controller
        return f"{';'.join(config.endpoints)}{config.etcd_prefix}" if config.in_etcd else str(self.store_path)

    async def start(self) -> None:
        """Raises OSError, StoreError or ConfigError; nothing is left behind then."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config, ends = self.settings.server, self._ends
        if self.settings.unused:
            log.info("settings without an effect here: %s", ", ".join(self.settings.unused))
        self.lifecycle.advance(Phase.BINDING)
        host = config.bind_address
        sock = bind("controller", host, config.listen_port)
        ends.on_stop(sock.close)
        port = sock.getsockname()[1]
        self.lifecycle.advance(Phase.STARTING)
        given = self.settings.controller.advertised_address()
        self.address = given or f"{local_address() if host in WILDCARDS else host}:{port}"
        outbox: list[Session] = []
        core = self.core = self._new_core(outbox)
        worker = Worker("mqspark-controller")
        ends.on_stop(worker.close)
        client_tls = config.client_tls
        notifier = Notifier(None if client_tls is None else client_context(client_tls))
        ends.on_stop(notifier.stop)

        def progressed() -> None:
            server.write_outbox()
            for notice in core.take_notices():
                notifier.send(notice)

        housekeeper = Housekeeper(core, worker, progressed)

        async def save() -> None:
            await housekeeper.stop()
            await housekeeper.run(core.jobs())

        server = remoting_server("controller", core, outbox, config, housekeeper.after_turn)
        ends.on_stop(server.close)
        if isinstance(core, ElectedController):
            await self._campaign(core, progressed)
        ends.on_stop(save)
        try:
            await server.listen(sock)
        except OSError as error:
            raise cannot_listen("controller", host, port, error) from None
        server.start()
        housekeeper.start()
        self.lifecycle.advance(Phase.READY)
        log.info("controller at %s, its state in %s", self.address, self.store)

    def _new_core(self, outbox: list[Session]) -> Controller | ElectedController:
        config, keys = self.settings.controller, foreign_keys(ControllerConfig)
        if config.in_etcd:
            return ElectedController(config, self.clock, self.address, outbox=outbox, foreign_keys=keys)
        state = StateFile(self.store_path)
        self._ends.on_stop(state.close)
        state.lock()
        return Controller(config, self.clock, state, self.address, outbox=outbox, foreign_keys=keys)

    async def _campaign(self, core: ElectedController, progressed: Callable[[], None]) -> None:
        from mqspark_server.etcd.client import etcd_client
        from mqspark_server.etcd.election import Election

        config = self.settings.controller
        etcd = etcd_client(config)
        self._ends.on_stop(etcd.close)
        election = Election(etcd, config, self.clock, self.address, core, progressed)
        self._ends.on_stop(election.stop)
        await election.start()

    async def stop(self) -> None:
        """May be called at any time and more than once."""
        if self.lifecycle.phase >= Phase.STOPPING:
            return
        self.lifecycle.advance(Phase.STOPPING)
        try:
            await self._ends.stop()
        finally:
            self.lifecycle.advance(Phase.STOPPED)
