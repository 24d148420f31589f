"""``mqspark console``: the console of a cluster as a process of its own, on loopback."""

from __future__ import annotations

import dataclasses
import os
import secrets
from functools import partial
from typing import TYPE_CHECKING

from mqspark.base.clock import SystemClock
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.credentials import Credentials
from mqspark_server.net.webserver import WebServer
from mqspark_server.process.diskwork import Worker
from mqspark_server.process.processapp import ProcessApp
from mqspark_server.web.http import HttpServer

if TYPE_CHECKING:
    from fastapi import APIRouter

    from mqspark_server.console.clusteraccess import ClusterAt

HOST = "127.0.0.1"
MAX_CONNECTIONS = 64
TOKEN_VARIABLE = "MQSPARK_HTTP_TOKEN"  # noqa: S105 - its name


class ConsoleApp(ProcessApp):
    """``port`` 0: any free one. ``job_server``: whose jobs are shown.

    The keys of ``options`` or of the environment are used for the samples of the charts, and for visitors with the
    token. Raises ConfigError if the environment has only one of the two keys.
    """

    def __init__(
        self, namesrv: str, options: ClientOptions, port: int, job_server: WebServer | None = None
    ) -> None:
        super().__init__(SystemClock(), ())
        given = options.credentials
        self._own = Credentials.from_environment() if given is None else given or None
        self._namesrv = namesrv
        self._options = dataclasses.replace(options, credentials=False)
        self._port = port
        self._job_server = job_server
        self.url = ""
        self.token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        """Lets its holder use the keys of the console, and change a cluster without users."""

    @property
    def has_keys(self) -> bool:
        return self._own is not None

    async def _start(self) -> None:
        from mqspark_server.console.clusteraccess import API_LINKS, ClusterAt
        from mqspark_server.console.doors import ClusterDoor
        from mqspark_server.console.history.sampler import Sampler
        from mqspark_server.console.pages import console_router

        at = ClusterAt(
            self._namesrv,
            self._options,
            links=API_LINKS,
            job_server=self._job_server,
            own_credentials=self._own,
        )
        door = ClusterDoor(self._namesrv, self._options, self.token, self.clock, self._own)
        sampler = Sampler(at, self.clock)
        console = console_router(at, door, self.clock, sampler)
        build, worker = partial(_pages, console, at), Worker("mqspark-console")
        self._ends.always(worker.close)
        http = HttpServer(self._ends, "HTTP", HOST, self._port, build, worker, MAX_CONNECTIONS)
        self.url = f"{http.url}/console"
        self._ends.always(sampler.stop)
        sampler.begin()


def _pages(console: APIRouter, at: ClusterAt) -> object:
    from fastapi import FastAPI
    from fastapi.responses import RedirectResponse

    from mqspark_server.console.apidocs import brokers_docs
    from mqspark_server.console.clusteraccess import admin_of
    from mqspark_server.web.httpguard import Guarded
    from mqspark_server.web.schemaapi import SchemaRelay, schema_router

    app = FastAPI(openapi_url=None)
    relay = SchemaRelay(partial(admin_of, at))
    for router in (console, brokers_docs(at.links), schema_router(lambda _: relay)):
        app.router.routes.extend(router.routes)  # as they are: see web/api.py

    @app.get("/")
    async def enter() -> RedirectResponse:
        return RedirectResponse("/console")

    return Guarded(app, ())
