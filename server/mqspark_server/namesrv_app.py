"""A name server as a process: its core, its port, and the thread that saves its table."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mqspark.clock import Clock, SystemClock
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.session import Session
from mqspark_server.diskwork import Housekeeper, Worker
from mqspark_server.net.addresses import bind, cannot_listen
from mqspark_server.phases import Phase, ProcessLifecycle
from mqspark_server.settings.reported import more_of_namesrv
from mqspark_server.settings.settings import WILDCARDS, NamesrvSettings, foreign_keys, local_address
from mqspark_server.settings.settingsfile import settings_file
from mqspark_server.startup import Ends, remoting_server

if TYPE_CHECKING:  # imported where users have to log in, or with a controller
    from mqspark.auth.authority import Authority
    from mqspark_server.controller_app import ControllerApp

__all__ = ["NameServerApp"]

log = logging.getLogger("mqspark.app")


class NameServerApp:
    def __init__(self, settings: NamesrvSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.lifecycle = ProcessLifecycle(self.clock)
        self.address = ""
        """``host:port`` for clients on this host, once started."""
        self.core: NameServer | None = None
        self.controller: ControllerApp | None = None
        """With enableControllerInNamesrv: a core and a port of its own."""
        self._ends = Ends()

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
        sock = bind("name server", host, config.listen_port)
        ends.on_stop(sock.close)
        port = sock.getsockname()[1]
        self.lifecycle.advance(Phase.STARTING)
        outbox: list[Session] = []
        authority: Authority | None = None
        if self.settings.auth.authentication_enabled:
            from mqspark_server.authfiles import auth_directory, open_authority

            directory = auth_directory(self.settings.auth, None)
            authority, close = open_authority(self.settings.auth, directory, self.clock)
            ends.on_stop(close)
        core = self.core = NameServer(
            self.settings.namesrv,
            self.clock,
            outbox=outbox,
            foreign_keys=foreign_keys(NamesrvConfig),
            shell_settings=more_of_namesrv(config, port, self.settings.file),
            authority=authority,
            settings_file=settings_file(self.settings.file),
        )
        if self.settings.controller is not None:
            from mqspark_server.controller_app import ControllerApp

            gate = None if authority is None else authority.gate
            self.controller = ControllerApp(
                self.settings.controller, clock=self.clock, guard=None if gate is None else gate.guard
            )
            ends.on_stop(self.controller.stop)
            await self.controller.start()
        worker = Worker("mqspark-namesrv")
        ends.on_stop(worker.close)
        housekeeper = Housekeeper(core, worker, lambda: server.write_outbox())

        ends.on_stop(housekeeper.finish)
        server = remoting_server("namesrv", core, outbox, config, housekeeper.after_turn)
        ends.on_stop(server.close)
        try:
            await server.listen(sock)
        except OSError as error:
            raise cannot_listen("name server", host, port, error) from None
        server.start()
        housekeeper.start()
        self.address = f"{local_address() if host in WILDCARDS else host}:{port}"
        self.lifecycle.advance(Phase.READY)
        log.info("name server at %s", self.address)

    async def stop(self) -> None:
        """May be called at any time and more than once."""
        if self.lifecycle.phase >= Phase.STOPPING:
            return
        self.lifecycle.advance(Phase.STOPPING)
        try:
            await self._ends.stop()
        finally:
            self.lifecycle.advance(Phase.STOPPED)
