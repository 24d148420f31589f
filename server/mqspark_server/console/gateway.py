"""``mqspark console``: the console of a cluster as a process of its own, on loopback."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.identity import ClientOptions
from mqspark.clock import SystemClock
from mqspark.errors import ConfigError
from mqspark_server.net.addresses import bind
from mqspark_server.net.httpget import WebServer
from mqspark_server.process.diskwork import Worker
from mqspark_server.web.http import HttpServer

if TYPE_CHECKING:
    from mqspark_server.console.pages import Console

__all__ = ["ConsoleApp"]

HOST = "127.0.0.1"
MAX_CONNECTIONS = 64
TOKEN_VARIABLE = "MQSPARK_HTTP_TOKEN"  # noqa: S105 - its name


class ConsoleApp:
    """``port`` 0: any free one. ``job_server``: whose jobs are shown. Raises ConfigError for keys, with which every
    page would have their rights."""

    def __init__(
        self, namesrv: str, options: ClientOptions, port: int, job_server: WebServer | None = None
    ) -> None:
        if options.credentials is not None or Credentials.from_environment() is not None:
            raise ConfigError(
                "the console takes no keys, because its pages would have their rights: log in on its page",
                key="credentials",
            )
        self._namesrv = namesrv
        self._options = options
        self._port = port
        self._job_server = job_server
        self._worker: Worker | None = None
        self._http: HttpServer | None = None
        self._console: Console | None = None
        self.token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        """Lets its holder change what a cluster without users has."""

    @property
    def url(self) -> str:
        return "" if self._http is None else f"{self._http.url}/console"

    async def start(self) -> None:
        from mqspark_server.console.doors import ClusterDoor
        from mqspark_server.console.pages import ClusterAt, Console

        sock = bind("HTTP", HOST, self._port)
        at = ClusterAt(self._namesrv, self._options, job_server=self._job_server)
        clock = SystemClock()
        door = ClusterDoor(self._namesrv, self._options, self.token, clock)
        self._console = Console(lambda: at, door, clock)
        self._worker = Worker("mqspark-console")
        self._http = HttpServer(sock, self._build, self._worker, MAX_CONNECTIONS)
        self._http.start()
        self._console.begin()

    def _build(self) -> object:
        from fastapi import FastAPI
        from fastapi.responses import RedirectResponse

        from mqspark_server.web.httpguard import Guarded

        app = FastAPI(openapi_url=None)
        if self._console is not None:
            app.include_router(self._console.router)

        @app.get("/")
        async def enter() -> RedirectResponse:
            return RedirectResponse("/console")

        return Guarded(app, ())

    async def stop(self) -> None:
        if self._console is not None:
            await self._console.stop()
        if self._http is not None:
            await self._http.stop()
        if self._worker is not None:
            self._worker.close()
