"""``mqspark namesrv run``, ``broker run``, ``host run``, ``controller run``, ``console`` and ``mqspark dev``: the
servers.

A server prints one READY line on standard output once it serves, logs to standard error, and runs until SIGTERM
or SIGINT. ``dev`` also prints what to try next, on standard error. Exit codes: 0 after a clean stop, 1 when it
cannot start or stop cleanly, 2 for invalid settings.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import logging
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, cast

import click

from mqspark.base.logs import JsonLines, OneLine, sparing
from mqspark_server.commands.clustercommand import Connecting, connection_of, noun
from mqspark_server.commands.parameters import Assignments, DeclaredCommand, Option, ServerConfig, declaring
from mqspark_server.process.collector import Collector
from mqspark_server.process.stalls import StallWatch

if TYPE_CHECKING:
    from mqspark_server.broker_app import BrokerApp
    from mqspark_server.controller_app import ControllerApp
T = TypeVar("T")
DEV_PORT = 10911
"""RocketMQ's port of a broker."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_FROM_HEAP_BYTES = 32 << 20
_KEPT_BYTES = 64 << 20
"""Freed memory that the heap keeps instead of returning it to the system."""
_RETURNED_BYTES = 4 << 20
"""Freed memory beyond that before some is returned: a quarter of a millisecond in the kernel. Without a bound it would
be all that is kept, some four milliseconds, in whatever callback frees the last block."""


SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while another one waits for it: Python's own 5 ms are what the event loop
would wait at each return from the kernel while a worker encodes or counts something."""


class _App(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _settings(make: Callable[..., T], base: Any, config: str | None, assignments: Iterable[str]) -> T:
    """The settings of a server, whose log is on standard error from now on. Raises ConfigError."""
    from mqspark_server.settings.settings import consent_to_anonymous, layers_of

    layers = layers_of(config, assignments)
    settings: Any = make(base, *layers)
    warning = consent_to_anonymous(settings.server, settings.auth, *layers)
    log_to_stderr(settings.server.log_level, settings.server.log_format, warning)
    return cast(T, settings)


@click.command("run", cls=DeclaredCommand)
def namesrv_run(config: ServerConfig, assignments: Assignments) -> None:
    """Run a name server until SIGTERM or SIGINT."""
    from mqspark_server.namesrv_app import NameServerApp
    from mqspark_server.settings.settings import namesrv_production, namesrv_settings

    settings = _settings(namesrv_settings, namesrv_production(), config, assignments)
    app = NameServerApp(settings)
    serve(app, lambda: _ready(namesrv=app.address, **_of_controller(app.controller), http=app.http_url))


def _ready(**places: object) -> str:
    """The line of a server that serves; without those that it does not have."""
    return " ".join(["READY", *(f"{name}={each}" for name, each in places.items() if each is not None)])


def _of_controller(app: ControllerApp | None) -> dict[str, object]:
    return {} if app is None else {"controller": app.address, "store": app.store}


def _broker_ready(namesrv: str, app: BrokerApp) -> str:
    http = app.http_url or "-"
    return _ready(namesrv=namesrv, broker=app.address, http=http, grpc=app.grpc_address, store=app.store_path)


@click.command("run", cls=DeclaredCommand)
def controller_run(config: ServerConfig, assignments: Assignments) -> None:
    """Run a controller until SIGTERM or SIGINT."""
    from mqspark_server.controller_app import ControllerApp
    from mqspark_server.settings.settings import controller_settings

    settings = _settings(controller_settings, {}, config, assignments)
    app = ControllerApp(settings)
    serve(app, lambda: _ready(**_of_controller(app)))


@click.command("run", cls=DeclaredCommand)
def broker_run(config: ServerConfig, assignments: Assignments) -> None:
    """Run a broker until SIGTERM or SIGINT."""
    from mqspark_server.controlled_app import controlled_or_plain
    from mqspark_server.settings.settings import broker_settings, production

    settings = _settings(broker_settings, production(), config, assignments)
    app = controlled_or_plain(settings)
    serve(app, lambda: _broker_ready(app.config.namesrv_addr or "-", app))


@click.command("run", cls=DeclaredCommand)
def host_run(
    brokers: Annotated[int, click.IntRange(1, 256), Option("Number of brokers.")],
    store: Annotated[
        str | None, Option("Directory of all stores.  [default: storePathRootDir]", metavar="DIR")
    ],
    page_port: Annotated[
        int | None,
        click.IntRange(0, 65535),
        Option("Port of the page with health and metrics; 0: any free port.  [default: listenPort + 5]"),
    ],
    leave_out: Annotated[bool, Option("Start also if messages of a broker above --brokers stay unserved.")],
    config: ServerConfig,
    assignments: Assignments,
) -> None:
    """Run several brokers on this host, each a process, until SIGTERM or SIGINT. One that ends is started again.

    They share the settings: broker N has N at the end of its name, ports 10 N higher, and its store in broker-N.
    """
    from mqspark_server.hosting.brokerhost import BrokerHost
    from mqspark_server.hosting.hostplan import HostPlan
    from mqspark_server.settings.settings import consent_to_anonymous, layers_of, production

    layers = layers_of(config, assignments)
    plan = HostPlan(brokers, production(), layers, store=store, page_port=page_port)
    consent_to_anonymous(plan.base.server, plan.base.auth, *layers)  # each broker logs the warning
    log_to_stderr(plan.base.server.log_level, plan.base.server.log_format)
    app = BrokerHost(plan, config=config, assignments=assignments, leave_out=leave_out)
    serve(app, lambda: app.ready_line)


proxy = noun("proxy", "RocketMQ's gRPC service before a cluster.")


@proxy.command("run")
def proxy_run(
    nameserver: Annotated[str, Option("Separated by semicolons.", "-n", metavar="HOST:PORT")],
    config: ServerConfig,
    assignments: Assignments,
) -> None:
    """Serve gRPC clients of a cluster until SIGTERM or SIGINT.

    The settings are those of a server's sockets, TLS, log and users; listenPort is 8081 by default. Before brokers with
    users it needs authenticationEnabled, and innerClientAuthenticationCredentials as the brokers have them.
    """
    if importlib.util.find_spec("google.protobuf") is None:
        raise click.UsageError("mqspark proxy needs protobuf: pip install 'mqspark[grpc]'")
    from mqspark_server.proxy.proxyapp import ProxyApp
    from mqspark_server.settings.settings import proxy_settings

    settings = _settings(proxy_settings, {}, config, assignments)
    app = ProxyApp(nameserver, settings)
    serve(app, lambda: f"READY grpc={app.address}")


_GrpcPort = Annotated[
    int | None,
    Option(
        "For RocketMQ's gRPC clients. 0: any free port.  [default: 8081, or that of another broker port + 4]"
    ),
]
_Brokers = Annotated[
    int,
    click.IntRange(1, 9),
    Option("Number of brokers. With several, each is a process, on every tenth port."),
]
_PagePort = Annotated[
    int | None,
    click.IntRange(0, 65535),
    Option(
        "With several brokers, the port of the page with their health and metrics.  [default: broker port + 5]"
    ),
]


@click.command(cls=DeclaredCommand)
def dev(
    *,
    store: Annotated[str | None, Option("Store directory.  [default: a temporary one]", metavar="DIR")],
    namesrv_port: Annotated[int, Option("0: any free port.")] = 9876,
    broker_port: Annotated[int, Option("0: any free port.")] = DEV_PORT,
    http_port: Annotated[int | None, Option("0: any free port.  [default: broker port + 3]")],
    grpc_port: _GrpcPort,
    brokers: _Brokers = 1,
    page_port: _PagePort,
    replication: Annotated[
        Literal["controller"] | None,
        Option("Make the brokers replicas, with a controller that elects the master."),
    ],
    config: ServerConfig,
    assignments: Assignments,
) -> None:
    """Run a name server and a broker in one process, on loopback. Topics are created on first use.

    With --brokers, run a small cluster of processes. A killed process is restarted after ten seconds.
    """
    from mqspark.base.config import MAX_PORT
    from mqspark_server.settings.serverconfig import GRPC_PORT_DISTANCE
    from mqspark_server.settings.settings import PROXY_PORT, file_layer, override_layer

    file, overrides = file_layer(config) if config else None, override_layer(assignments)
    if replication is not None and brokers < 2:
        raise click.UsageError(f"--replication {replication} needs two brokers or more: --brokers 3")
    if grpc_port is None:
        grpc_port = (
            PROXY_PORT if broker_port == DEV_PORT else broker_port and broker_port + GRPC_PORT_DISTANCE
        )
        grpc_port = grpc_port if grpc_port <= MAX_PORT else 0
    # Who installs the server alone has no gRPC; then the READY line has none.
    served = grpc_port if importlib.util.find_spec("grpc") is not None else None
    places: dict[str, Any] = {
        "store": store,
        "namesrv_port": namesrv_port,
        "broker_port": broker_port,
        "http_port": http_port,
        "grpc_port": served,
    }
    if brokers > 1:
        from mqspark_server.dev_processes import ProcessCluster

        cluster = ProcessCluster(
            **places,
            page_port=page_port,
            brokers=brokers,
            replicated=replication is not None,
            config=config,
            file=file,
            assignments=assignments,
            overrides=overrides,
        )
        log_to_stderr(cluster.log_level, cluster.log_format)
        serve(
            cluster,
            lambda: cluster.ready_line,
            lambda: f"{cluster.hint}\n{_first_steps(cluster.namesrv_address)}",
        )
        return
    from mqspark_server.dev_cluster import DevCluster

    app = DevCluster(**places, layers=[*([file] if file is not None else []), overrides])
    log_to_stderr(app.log_level, app.log_format)
    serve(
        app,
        lambda: _broker_ready(app.namesrv.address, app.brokers[0]),
        lambda: f"{_first_steps(app.namesrv.address)}{_token_of(app.brokers[0])}",
    )


@click.command(cls=DeclaredCommand)
@declaring(Connecting)
def console(
    *,
    port: Annotated[int, click.IntRange(0, 65535), Option("0: any free port.")] = 8686,
    job_server: Annotated[str | None, Option("Also show the jobs of this mqspark job serve.", metavar="URL")],
    **given: Any,
) -> None:
    """Serve pages about a cluster for a browser, until SIGTERM or SIGINT."""
    from mqspark_server.console.consoleapp import ConsoleApp
    from mqspark_server.net.webserver import WebServer

    if given["cluster"] is not None:
        raise click.UsageError("the console shows all clusters of its name servers: omit --cluster")
    namesrv, options, _, _ = connection_of(given)
    jobs_at = WebServer.parse(job_server, "--job-server") if job_server is not None else None
    app = ConsoleApp(namesrv, options, port, jobs_at)
    log_to_stderr("INFO")
    serve(
        app,
        lambda: f"READY console={app.url}",
        lambda: (
            f"log in with your keys, or with {app.token} to use the keys of this process"
            if app.has_keys
            else f"to make changes, log in with your keys, or, on a cluster without users, with {app.token}"
        ),
    )


def _token_of(broker: BrokerApp) -> str:
    if broker.http_url is None or broker.settings.auth.authentication_enabled:
        return ""
    return (
        f"\nconsole: {broker.http_url}/console; token for changes there or over HTTP: {broker.loopback_token}"
    )


def _first_steps(namesrv: str) -> str:
    """Two lines to try: the first in a shell, the second in ``pyspark``."""
    return (
        f"try: python -c \"from mqspark import *; p = Producer('{namesrv}', group='hello'); p.start();"
        " print(p.send(Message.of('Hello', 'hi'))); p.stop()\"\n"
        f"then in pyspark: spark.read.format('pymq').option('nameserver', '{namesrv}').load('Hello').show()"
    )


def log_to_stderr(level: str, form: str = "text", warning: str | None = None) -> None:
    """``form``: text or json (logFormat)."""
    handler = logging.StreamHandler(sys.stderr)
    text = OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(level=level, handlers=[handler])
    sparing("asyncio")  # asyncio logs each failed accept, for example
    if warning is not None:
        logging.getLogger("mqspark.app").warning("%s", warning)


def serve(app: _App, ready_line: Callable[[], str], hint: Callable[[], str] | None = None) -> None:
    # Raise the limit of open files: each connection and each mapped queue file needs a descriptor.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _keep_freed_memory()
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run_until_signalled(app, ready_line, hint))


def _keep_freed_memory() -> None:
    """Keep glibc's malloc from returning every large buffer to the system. Mapping fresh pages for the next buffer
    costs more than the work on it: with this, a batch of 4,000 small messages is stored in half the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES + _RETURNED_BYTES)
        mallopt(_M_TOP_PAD, _KEPT_BYTES)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run_until_signalled(
    app: _App, ready_line: Callable[[], str], hint: Callable[[], str] | None
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    starting, asked = loop.create_task(app.start()), loop.create_task(stop.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not starting.done():
        starting.cancel()  # cleans up after itself
        await asyncio.wait((starting,))
        if starting.cancelled():
            return
    await starting
    collector, stalls = Collector(), StallWatch()
    try:
        collector.start(loop)
        stalls.start(loop)
        click.echo(ready_line())
        if hint is not None:
            click.echo(hint(), err=True)
        await stop.wait()
    finally:
        stalls.stop()
        collector.stop()
        await app.stop()
