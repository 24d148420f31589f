"""The HTTP application of a name server: /health, /metrics and its brokers under /api/v1.

It is served when httpPort is set, and is read-only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from mqspark.protocol.bodies.body import to_document
from mqspark_server.web.families import extension_calls
from mqspark_server.web.httpguard import ASGIApp, Guarded
from mqspark_server.web.problems import answer_on

if TYPE_CHECKING:
    from mqspark.namesrv.namesrv import NameServer
    from mqspark_server.net.tcp import RemotingServer
    from mqspark_server.process.phases import ProcessLifecycle

_NODE = ("node_type", "node_id")


class NamesrvNode(Protocol):
    """A name server's process as HTTP sees it. A part that is None has not been started yet."""

    lifecycle: ProcessLifecycle
    address: str
    core: NameServer | None
    server: RemotingServer | None


class _Families:
    """Collected for each scrape."""

    def __init__(self, app: NamesrvNode) -> None:
        self._app = app

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        core, server = self._app.core, self._app.server
        node = ("nameserver", self._app.address)
        ready = GaugeMetricFamily("mqspark_namesrv_ready", "1 if the name server is serving", labels=_NODE)
        ready.add_metric(node, float(self._app.lifecycle.ready))
        families: list[Metric] = [ready]
        if core is None or server is None:
            return families
        for name, text, value in (
            ("brokers", "live broker addresses, including slaves", len(core.routes.live_brokers())),
            ("topics", "topics that some broker has registered", len(core.routes.topic_names())),
            ("connections", "open connections", server.connections),
            ("unsent_bytes", "bytes of answers that peers have not read yet", server.unread.budget.total),
        ):
            gauge = GaugeMetricFamily(f"mqspark_namesrv_{name}", text, labels=_NODE)
            gauge.add_metric(node, value)
            families.append(gauge)
        for name, text, value in (
            ("connections_refused", "connections refused because of a limit", server.counts.refused),
            ("connections_dropped", "connections closed for unread answers", server.counts.dropped),
            ("protocol_errors", "connections closed for malformed frames", server.counts.malformed),
        ):
            counter = CounterMetricFamily(f"mqspark_namesrv_{name}", text, labels=_NODE)
            counter.add_metric(node, value)
            families.append(counter)
        lag = HistogramMetricFamily(
            "mqspark_namesrv_loop_lag_seconds", "how late the event loop runs its timers", labels=_NODE
        )
        lag.add_metric(node, server.lags.buckets(), server.lags.total)
        families.append(lag)
        size = GaugeMetricFamily("mqspark_namesrv_table_bytes", "bytes of a table", labels=(*_NODE, "table"))
        for table in core.tables:
            size.add_metric((*node, table.name), table.bytes)
        families.append(size)
        families += extension_calls(core.extensions, node, _NODE)
        return families


def create_namesrv_api(app: NamesrvNode, hosts: tuple[str, ...]) -> ASGIApp:
    """``hosts``: host names that requests may use, in addition to loopback's."""
    from importlib.metadata import version

    # FastAPI's own pages of documentation would load scripts from elsewhere.
    api = FastAPI(
        title="mqspark name server",
        version=version("mqspark"),
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    answer_on(api)

    @api.get("/health/live", tags=["health"])
    async def live() -> dict[str, str]:
        """The process runs and its event loop turns."""
        return {"status": "live"}

    @api.get("/health/ready", tags=["health"], responses={503: {"description": "not ready"}})
    async def ready() -> JSONResponse:
        """Whether routes are served."""
        good = app.lifecycle.ready
        body = {"status": "ready" if good else "not ready", **app.lifecycle.describe()}
        return JSONResponse(body, 200 if good else 503)

    @api.get("/metrics", tags=["metrics"], response_class=Response)
    async def metrics() -> Response:
        """Prometheus text."""
        registry = CollectorRegistry()
        registry.register(_Families(app))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @api.get("/api/v1/brokers", tags=["cluster"])
    async def brokers() -> dict[str, Any]:
        """The brokers and clusters that have registered."""
        if app.core is None:
            return {}
        document: dict[str, Any] = to_document(app.core.routes.cluster_info())
        return document

    return Guarded(api, hosts)
