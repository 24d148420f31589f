"""A controller as a process, or as part of a name server's process: its core, its port, and the thread that saves its
state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mqspark.base.clock import Clock, SystemClock
from mqspark.controller.config import ControllerConfig
from mqspark.controller.controller import Controller, Guard, unguarded
from mqspark.controller.elected import ElectedController
from mqspark.controller.statefile import StateFile
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.session import Session
from mqspark_server.net.addresses import bind, listening
from mqspark_server.peers.notifier import Notifier
from mqspark_server.process.diskwork import Housekeeper, Worker
from mqspark_server.process.phases import Phase
from mqspark_server.process.processapp import ProcessApp, dialing, remoting_server
from mqspark_server.settings.entrypoints import load_extensions
from mqspark_server.settings.settings import WILDCARDS, ControllerSettings, foreign_keys, local_address

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority

log = logging.getLogger("mqspark.app")

DEFAULT_DIRECTORY = "mqsparkController"


class ControllerApp(ProcessApp):
    """``address`` is given to brokers."""

    def __init__(
        self, settings: ControllerSettings, *, clock: Clock | None = None, guard: Guard | None = None
    ) -> None:
        """``guard``: that of the enclosing process, if it has users."""
        super().__init__(clock or SystemClock(), settings.unused)
        self.settings = settings
        self._guard = guard
        self.core: Controller | ElectedController | None = None
        path = settings.controller.controller_store_path
        self.store_path = Path(path) if path else Path.home() / DEFAULT_DIRECTORY
        """The directory of an embedded state."""

    @property
    def store(self) -> str:
        """Where the state is, as text for people."""
        config = self.settings.controller
        return f"{';'.join(config.endpoints)}{config.etcd_prefix}" if config.in_etcd else str(self.store_path)

    async def _start(self) -> None:
        config, ends = self.settings.server, self._ends
        self.lifecycle.advance(Phase.BINDING)
        host = config.bind_address
        sock = bind("controller", host, config.listen_port)
        ends.on_stop(sock.close)
        port = sock.getsockname()[1]
        self.lifecycle.advance(Phase.STARTING)
        given = self.settings.controller.advertised_address()
        self.address = given or f"{local_address() if host in WILDCARDS else host}:{port}"
        outbox: list[Session] = []
        worker = Worker("mqspark-controller")
        ends.on_stop(worker.close)
        authority: Authority | None = None
        guard = self._guard
        auth = self.settings.auth
        if guard is None and auth.authentication_enabled:
            extensions = load_extensions(self.clock, "", provider=auth.authentication_provider)
            store = None if self.settings.controller.in_etcd else self.store_path
            authority = await self._open_authority(auth, store, worker, extensions)
        if authority is not None:
            from mqspark.auth.access import NoFacts

            guard = partial(authority.guard, facts=NoFacts())
        core = self.core = self._new_core(outbox, guard or unguarded)
        notifier = Notifier(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, dialing(config, self.settings.auth))
        ends.on_stop(notifier.stop)

        def progressed() -> None:
            server.write_outbox()
            for notice in core.take_notices():
                notifier.send(notice.address, notice.header, notice.body)

        keepers = [Housekeeper(core, worker, progressed)]
        if authority is not None:
            keepers.append(Housekeeper(authority, worker, progressed))

        def after_turn() -> None:
            for keeper in keepers:
                keeper.after_turn()

        async def save() -> None:
            for keeper in keepers:
                await keeper.finish()

        server = remoting_server("controller", core, outbox, config, after_turn)
        ends.on_stop(server.close)
        if isinstance(core, ElectedController):
            await self._campaign(core, progressed)
        ends.on_stop(save)
        with listening("controller", sock):
            await server.listen(sock)
        server.start()
        for keeper in keepers:
            keeper.start()
        self.lifecycle.advance(Phase.READY)
        log.info("controller at %s, its state in %s", self.address, self.store)

    def _new_core(self, outbox: list[Session], guard: Guard) -> Controller | ElectedController:
        config, keys = self.settings.controller, foreign_keys(ControllerConfig)
        if config.in_etcd:
            return ElectedController(
                config, self.clock, self.address, outbox=outbox, foreign_keys=keys, guard=guard
            )
        state = StateFile(self.store_path)
        self._ends.on_stop(state.close)
        state.lock()
        return Controller(
            config, self.clock, state, self.address, outbox=outbox, foreign_keys=keys, guard=guard
        )

    async def _campaign(self, core: ElectedController, progressed: Callable[[], None]) -> None:
        from mqspark_server.etcd.election import Election
        from mqspark_server.etcd.etcdclient import etcd_client

        config = self.settings.controller
        etcd = etcd_client(config)
        self._ends.on_stop(etcd.close)
        election = Election(etcd, config, self.clock, self.address, core, progressed)
        self._ends.on_stop(election.stop)
        await election.start()
