"""``mqspark console``: the console of a cluster as a process of its own, on loopback."""

from __future__ import annotations

import dataclasses
import os
import secrets
from typing import TYPE_CHECKING

from mqspark.base.clock import SystemClock
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.credentials import Credentials
from mqspark_server.net.addresses import bind
from mqspark_server.net.httpget import WebServer
from mqspark_server.process.diskwork import Worker
from mqspark_server.web.http import HttpServer

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient
    from mqspark_server.console.history.sampler import Sampler
    from mqspark_server.console.pages import Console

HOST = "127.0.0.1"
MAX_CONNECTIONS = 64
TOKEN_VARIABLE = "MQSPARK_HTTP_TOKEN"  # noqa: S105 - its name


class ConsoleApp:
    """``port`` 0: any free one. ``job_server``: whose jobs are shown.

    The keys of ``options`` or of the environment are used for the samples of the charts, and for visitors with the
    token. Raises ConfigError if the environment has only one of the two keys.
    """

    def __init__(
        self, namesrv: str, options: ClientOptions, port: int, job_server: WebServer | None = None
    ) -> None:
        given = options.credentials
        self._own = Credentials.from_environment() if given is None else given or None
        self._namesrv = namesrv
        self._options = dataclasses.replace(options, credentials=False)
        self._port = port
        self._job_server = job_server
        self._worker: Worker | None = None
        self._http: HttpServer | None = None
        self._console: Console | None = None
        self._sampler: Sampler | None = None
        self.token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        """Lets its holder use the keys of the console, and change a cluster without users."""

    @property
    def has_keys(self) -> bool:
        return self._own is not None

    @property
    def url(self) -> str:
        return "" if self._http is None else f"{self._http.url}/console"

    async def start(self) -> None:
        from mqspark_server.console.clusteraccess import API_LINKS, ClusterAt
        from mqspark_server.console.doors import ClusterDoor
        from mqspark_server.console.history.sampler import Sampler
        from mqspark_server.console.pages import Console

        sock = bind("HTTP", HOST, self._port)
        at = ClusterAt(
            self._namesrv,
            self._options,
            links=API_LINKS,
            job_server=self._job_server,
            own_credentials=self._own,
        )
        clock = SystemClock()
        door = ClusterDoor(self._namesrv, self._options, self.token, clock, self._own)
        self._sampler = Sampler(at, clock)
        self._console = Console(at, door, clock, self._sampler)
        self._worker = Worker("mqspark-console")
        self._http = HttpServer(sock, self._build, self._worker, MAX_CONNECTIONS)
        self._http.start()
        self._sampler.begin()

    def _build(self) -> object:
        from fastapi import FastAPI
        from fastapi.responses import RedirectResponse

        from mqspark_server.console.apidocs import brokers_docs
        from mqspark_server.console.clusteraccess import API_LINKS
        from mqspark_server.web.httpguard import Guarded
        from mqspark_server.web.schemaapi import SchemaRelay, schema_router

        app = FastAPI(openapi_url=None)
        relay = SchemaRelay(self._admin_with)
        if self._console is not None:
            for router in (self._console.router, brokers_docs(API_LINKS), schema_router(lambda _: relay)):
                app.router.routes.extend(router.routes)  # as they are: see web/api.py

        @app.get("/")
        async def enter() -> RedirectResponse:
            return RedirectResponse("/console")

        return Guarded(app, ())

    def _admin_with(self, credentials: Credentials | None) -> AdminClient:
        """A client of the cluster with a caller's keys."""
        from mqspark_server.console.clusteraccess import ClusterAt, admin_of
        from mqspark_server.web.schemaapi import TIMEOUT_MS

        return admin_of(ClusterAt(self._namesrv, self._options), credentials, TIMEOUT_MS)

    async def stop(self) -> None:
        if self._sampler is not None:
            await self._sampler.stop()
        if self._http is not None:
            await self._http.stop()
        if self._worker is not None:
            self._worker.close()
