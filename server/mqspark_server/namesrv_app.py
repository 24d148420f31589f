"""A name server as a process: its core, its port, the thread that saves its table, and its notices to brokers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from mqspark.base.clock import Clock, SystemClock
from mqspark.errors import ConfigError, StoreLocked
from mqspark.extensions import RpcHook
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.session import Session
from mqspark.store.disk.files import OsFiles
from mqspark_server.net.addresses import bind, listening
from mqspark_server.peers.notifier import Notifier
from mqspark_server.process.diskwork import Housekeeper, Worker
from mqspark_server.process.phases import Phase
from mqspark_server.process.processapp import ProcessApp, dialing, remoting_server
from mqspark_server.settings.entrypoints import load_extensions
from mqspark_server.settings.reported import more_of_namesrv
from mqspark_server.settings.settings import WILDCARDS, NamesrvSettings, foreign_keys, local_address
from mqspark_server.settings.settingsfile import settings_file
from mqspark_server.web.http import HttpServer

if TYPE_CHECKING:  # imported where users have to log in, or with a controller
    from mqspark_server.controller_app import ControllerApp
    from mqspark_server.net.remotingserver import RemotingServer

log = logging.getLogger("mqspark.app")


class NameServerApp(ProcessApp):
    """``address`` is the one for clients on this host."""

    def __init__(self, settings: NamesrvSettings, *, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock(), settings.unused)
        self.settings = settings
        self.core: NameServer | None = None
        self.server: RemotingServer | None = None
        self.http_url: str | None = None
        """With httpPort."""
        self.controller: ControllerApp | None = None
        """With enableControllerInNamesrv: a core and a port of its own."""

    async def _start(self) -> None:
        config, ends = self.settings.server, self._ends
        extensions = load_extensions(
            self.clock,
            config.extensions,
            roles=(RpcHook,),
            provider=self.settings.auth.authentication_provider,
        )
        self.lifecycle.advance(Phase.BINDING)
        host = config.bind_address
        sock = bind("name server", host, config.listen_port)
        ends.on_stop(sock.close)
        port = sock.getsockname()[1]
        self.lifecycle.advance(Phase.STARTING)
        if self.settings.namesrv.kv_config_path:
            self._lock_table(Path(self.settings.namesrv.kv_config_path))
        outbox: list[Session] = []
        worker = Worker("mqspark-namesrv")
        ends.on_stop(worker.close)
        authority = await self._open_authority(self.settings.auth, None, worker, extensions)
        core = self.core = NameServer(
            self.settings.namesrv,
            self.clock,
            outbox=outbox,
            foreign_keys=foreign_keys(NamesrvConfig),
            shell_settings=more_of_namesrv(config, port, self.settings.file),
            authority=authority,
            settings_file=settings_file(self.settings.file),
            extensions=extensions,
        )
        if self.settings.controller is not None:
            from mqspark_server.controller_app import ControllerApp

            gate = None if authority is None else authority.gate
            self.controller = ControllerApp(
                self.settings.controller, clock=self.clock, guard=None if gate is None else gate.guard
            )
            ends.on_stop(self.controller.stop)
            await self.controller.start()
        housekeeper = Housekeeper(core, worker, lambda: server.write_outbox())

        ends.on_stop(housekeeper.finish)
        notifier = Notifier(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, dialing(config, self.settings.auth))
        ends.on_stop(notifier.stop)

        def after_turn() -> None:
            housekeeper.after_turn()
            notices = core.routes.take_notices()
            if self.lifecycle.ready:  # connections closed by a stop do not mean that brokers are gone
                for address, header in notices:
                    notifier.send(address, header)

        server = self.server = remoting_server(
            "namesrv", core, outbox, config, after_turn, extensions=extensions
        )
        ends.on_stop(server.close)
        with listening("name server", sock):
            await server.listen(sock)
        server.start()
        housekeeper.start()
        self.address = f"{local_address() if host in WILDCARDS else host}:{port}"
        self._start_http(worker)
        self.lifecycle.advance(Phase.READY)
        log.info("name server at %s", self.address)

    def _lock_table(self, path: Path) -> None:
        """Another name server of this user would have the same file by default, and each would overwrite what the
        other has saved."""
        files, lock = OsFiles(), path.with_name(path.name + ".lock")
        try:
            files.make_directory(path.parent)
            fd = files.lock(lock, alone=False)
        except StoreLocked as error:
            raise ConfigError(
                f"kvConfigPath: {path} is in use{error.holder}: name servers overwrite each other's table in one file;"
                ' set kvConfigPath to another file, or to "" to keep the table in memory',
                key="kvConfigPath",
            ) from None
        except OSError as error:
            log.warning("the key-value table will not be saved in %s: %s", path, error)
            return
        self._ends.always(lambda: files.unlock(lock, fd))

    def _start_http(self, worker: Worker) -> None:
        config = self.settings.server
        if config.http_port is None:
            return
        at, most = (config.http_bind_address, config.http_port), config.http_max_connections
        self.http_url = HttpServer(self._ends, "HTTP", *at, self._build_api, worker, most).url

    def _build_api(self) -> object:
        from mqspark_server.web.namesrvapi import create_namesrv_api

        config = self.settings.server
        return create_namesrv_api(self, (*config.http_allowed_hosts.split(";"), config.http_bind_address))
