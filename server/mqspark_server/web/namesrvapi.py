"""The HTTP application of a name server: /health, /metrics and its brokers under /api/v1.

It is served when httpPort is set, and is read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Response
from fastapi.responses import JSONResponse
from prometheus_client.core import Metric

from mqspark.protocol.bodies.body import to_document
from mqspark_server.web.families import CONTENT_TYPE, Families, exposition, extension_calls
from mqspark_server.web.httpguard import ASGIApp, Guarded
from mqspark_server.web.problems import new_api

if TYPE_CHECKING:
    from mqspark.namesrv.namesrv import NameServer
    from mqspark_server.net.remotingserver import RemotingServer
    from mqspark_server.process.phases import ProcessLifecycle

_NODE = ("node_type", "node_id")


class NamesrvNode(Protocol):
    """A name server's process as HTTP sees it. A part that is None has not been started yet."""

    lifecycle: ProcessLifecycle
    address: str
    core: NameServer | None
    server: RemotingServer | None


def _metrics(app: NamesrvNode) -> Iterator[Metric]:
    core, server = app.core, app.server
    families = Families(("nameserver", app.address), _NODE, "mqspark_namesrv_")
    yield families.level("ready", "1 if the name server is serving", app.lifecycle.ready)
    if core is None or server is None:
        return
    live, counts = len(core.routes.live_brokers()), server.counts
    yield families.level("brokers", "live broker addresses, including slaves", live)
    yield families.level("topics", "topics that some broker has registered", len(core.routes.topic_names()))
    yield families.level("connections", "open connections", server.connections)
    text = "bytes of answers that peers have not read yet"
    yield families.level("unsent_bytes", text, server.unread.budget.total)
    yield families.count("connections_refused", "connections refused because of a limit", counts.refused)
    yield families.count("connections_dropped", "connections closed for unread answers", counts.dropped)
    yield families.count("protocol_errors", "connections closed for malformed frames", counts.malformed)
    yield families.spread("loop_lag_seconds", "how late the event loop runs its timers", server.lags)
    sizes = {table.name: table.bytes for table in core.tables}
    yield families.levels("table_bytes", "bytes of a table", "table", sizes)
    yield from extension_calls(core.extensions, Families(families.node, _NODE, "mqspark_"))


def create_namesrv_api(app: NamesrvNode, hosts: tuple[str, ...]) -> ASGIApp:
    """``hosts``: host names that requests may use, in addition to loopback's."""
    api = new_api("mqspark name server")

    @api.get("/health/ready", tags=["health"], responses={503: {"description": "not ready"}})
    async def ready() -> JSONResponse:
        """Whether routes are served."""
        good = app.lifecycle.ready
        body = {"status": "ready" if good else "not ready", **app.lifecycle.describe()}
        return JSONResponse(body, 200 if good else 503)

    @api.get("/metrics", tags=["metrics"], response_class=Response)
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(exposition(_metrics(app)), media_type=CONTENT_TYPE)

    @api.get("/api/v1/brokers", tags=["cluster"])
    async def brokers() -> dict[str, Any]:
        """The brokers and clusters that have registered."""
        if app.core is None:
            return {}
        document: dict[str, Any] = to_document(app.core.routes.cluster_info())
        return document

    return Guarded(api, hosts)
