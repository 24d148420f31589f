"""``mqspark host run``: several brokers on this host, each a process, kept running by this one.

Must not know what a broker does. The brokers end when this process ends, however that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import ssl
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mqspark.errors import StoreLocked
from mqspark.store.disk.files import OsFiles, is_locked_directory
from mqspark_server.broker_app import LOOPBACK_TOKEN_VARIABLE
from mqspark_server.hosting.childserver import ChildServer, PartFailed
from mqspark_server.hosting.supervisor import Pauses, Supervisor
from mqspark_server.net.servertls import Certificates
from mqspark_server.process.diskwork import Worker
from mqspark_server.process.processapp import Ends
from mqspark_server.web.http import HttpServer

if TYPE_CHECKING:
    from mqspark_server.hosting.hostplan import HostPlan
    from mqspark_server.settings.serverconfig import ServerConfig

log = logging.getLogger("mqspark.host")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
STOP_S = 45.0
"""How long all brokers together may take to stop; a service manager gives this process 60 s."""
FREE_S = 30.0
"""How long the brokers of a supervisor that was killed may take to leave their directories."""
_POLL_S = 0.1
PAGE_CONNECTIONS = 32


class PageServer:
    """The page of several brokers, in the process of their supervisor. ``config`` says where HTTP listens, and with
    which certificate."""

    def __init__(self, brokers: Sequence[ChildServer], config: ServerConfig, *own_hosts: str) -> None:
        self.brokers = brokers
        self.is_stopping = False
        self.url = "-"
        self._config = config
        self._hosts = (*config.http_allowed_hosts.split(";"), config.http_bind_address, *own_hosts)
        self._ends = Ends()

    def start(self, port: int) -> None:
        """Raises OSError. ``port`` 0: any free one."""
        config = self._config
        worker = Worker("mqspark-host")
        self._ends.always(worker.close)
        tls = None if config.http_tls is None else Certificates(config.http_tls)
        what, build = "the page of this host", partial(self._build, worker)
        at = config.http_bind_address, port
        self.url = HttpServer(self._ends, what, *at, build, worker, PAGE_CONNECTIONS, tls).url

    def _build(self, worker: Worker) -> object:
        from mqspark_server.hosting.hostpage import create_host_api

        return create_host_api(self, worker, self._hosts)

    def broker_tls(self) -> ssl.SSLContext | None:
        from mqspark_server.hosting.hostpage import pinned

        tls = self._config.http_tls
        return None if tls is None else pinned(tls.cert_path)

    async def stop(self) -> None:
        await self._ends.stop()


class BrokerHost:
    """``config`` and ``assignments``: what the brokers get of the command line. ``leave_out``: messages of brokers that
    are no longer among them may stay unserved."""

    def __init__(
        self, plan: HostPlan, *, config: str | None, assignments: Sequence[str], leave_out: bool = False
    ) -> None:
        self._plan = plan
        self._leave_out = leave_out
        self.brokers = [
            ChildServer(each.name, ("broker", "run"), dict(each.own), {}, config, assignments)
            for each in plan.brokers
        ]
        token = os.environ.get(LOOPBACK_TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        self._supervisor = Supervisor(
            Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            {**os.environ, LOOPBACK_TOKEN_VARIABLE: token},
            start_s=None,
            stop_s=STOP_S,
        )
        self._page = PageServer(self.brokers, plan.base.server, plan.base.broker.broker_ip1)
        self._lock_fd = -1

    async def start(self) -> None:
        """Raises ConfigError, StoreError, OSError or PartFailed; nothing is left running then."""
        plan = self._plan
        try:
            self._lock()
            plan.check_directory(leave_out=self._leave_out)
            await self._until_free()
            if plan.base.server.http_enable:
                self._page.start(plan.page_port)
            if not plan.base.broker.namesrv_addr:
                log.warning(
                    "no name server is set (namesrvAddr): clients find these brokers by their addresses only"
                )
            await self._supervisor.start(*self.brokers)
            for each in self.brokers:
                log.info(
                    "%s (pid %d) serves at %s, HTTP %s",
                    each.name,
                    each.pid,
                    each.address,
                    each.fields["http"],
                )
            self._supervisor.keep(*self.brokers)
        except BaseException:
            with contextlib.suppress(PartFailed):  # what is raised says more
                await self.stop()
            raise

    def _lock(self) -> None:
        """A second supervisor would start the same brokers."""
        parent = self._plan.parent
        files = OsFiles(directory_mode=self._plan.base.store.directory_mode)
        files.make_directory(parent, durable=True)
        self._lock_fd = files.lock_directory(parent)

    async def _until_free(self) -> None:
        """Wait for brokers whose supervisor was killed, and that are stopping. Raises StoreLocked."""
        loop = asyncio.get_running_loop()
        end_s, waits = loop.time() + FREE_S, False
        for each in self._plan.brokers:
            while each.directory.is_dir() and is_locked_directory(each.directory):
                if loop.time() > end_s:
                    raise StoreLocked(str(each.directory), "")
                if not waits:
                    log.info("waiting for the process that has %s", each.directory)
                    waits = True
                await asyncio.sleep(_POLL_S)

    @property
    def ready_line(self) -> str:
        namesrv = self._plan.base.broker.namesrv_addr or "-"
        brokers = ",".join(each.address for each in self.brokers)
        return f"READY namesrv={namesrv} broker={brokers} http={self._page.url} store={self._plan.parent}"

    async def stop(self) -> None:
        """Raises PartFailed if a broker did not stop cleanly."""
        self._page.is_stopping = True
        try:
            await self._supervisor.stop(self.brokers)
        finally:
            await self._page.stop()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1
