"""HTTP beside a broker: health, metrics, a small API. Never on the hot path.

Holds the listening socket from the start, and loads FastAPI and uvicorn (half a second and some 35 MB) in a
thread when the first connection comes: a broker without HTTP requests does not pay for it. The application itself
is in ``api``.

``callers`` identifies callers; ``httpguard`` refuses requests of web pages of another origin and closes slow
connections. With a certificate the port accepts only TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from mqspark.base.logs import sparing
from mqspark.base.names import bracketed
from mqspark_server.net.addresses import bind, listening
from mqspark_server.net.servertls import Certificates
from mqspark_server.process.diskwork import Worker
from mqspark_server.process.processapp import Ends

if TYPE_CHECKING:
    import uvicorn

log = sparing("mqspark.http")

BACKLOG = 128


def load_server(build: Callable[[], Any], max_connections: int, tls: Certificates | None) -> uvicorn.Server:
    """Build the ASGI application, in a worker thread, and load what the first requests would load on the loop."""
    import uvicorn
    from fastapi.concurrency import run_in_threadpool

    from mqspark_server.web.httpguard import HEAD_BYTES, bounded_protocol

    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sparing("uvicorn.error")

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the process handles signals

    config = uvicorn.Config(
        build(),
        http=bounded_protocol(max_connections, tls),
        ws="none",
        h11_max_incomplete_event_size=HEAD_BYTES,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,  # any client could forge these headers
        timeout_graceful_shutdown=1,
    )
    config.load()
    asyncio.run(run_in_threadpool(int))  # what waits for threads is loaded by its first use
    return Server(config)


class HttpServer:
    def __init__(
        self,
        ends: Ends,
        what: str,
        host: str,
        port: int,
        build: Callable[[], Any],
        worker: Worker,
        max_connections: int,
        tls: Certificates | None = None,
    ) -> None:
        """It listens at this port. ``ends`` stop it and free the port. ``what`` names it in errors. Raises OSError,
        ConfigError."""
        self._sock = bind(what, host, port)
        ends.always(self._sock.close)
        self._load = partial(load_server, build, max_connections, tls)
        self._scheme = "http" if tls is None else "https"
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._server: uvicorn.Server | None = None
        with listening(what, self._sock):
            self._sock.listen(BACKLOG)
        self._loop.add_reader(self._sock, self._first_connection)
        self._waiting = True
        ends.always(self.stop)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._sock.getsockname()[:2]
        return host, port

    @property
    def url(self) -> str:
        host, port = self.address
        return f"{self._scheme}://{bracketed(host)}:{port}"

    def _first_connection(self) -> None:
        self._stop_reading_socket()
        self._task = self._loop.create_task(self._serve(), name="mqspark-http")

    def _stop_reading_socket(self) -> None:
        if self._waiting:
            self._loop.remove_reader(self._sock)
            self._waiting = False

    async def _serve(self) -> None:
        try:
            server = self._server = await self._worker.run(self._load)
        except ImportError as error:
            log.error("no HTTP: %s; install mqspark[server]", error)
            return
        if not self._stopping:  # it may have been stopped meanwhile
            await server.serve(sockets=[self._sock])

    async def stop(self) -> None:
        self._stopping = True
        self._stop_reading_socket()
        if self._server is not None:
            self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._sock.close()
