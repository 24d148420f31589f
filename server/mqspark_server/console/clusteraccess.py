"""The cluster that the console shows, and a client that asks it with a visitor's keys.

Must not know a page: samples are taken before HTTP is used, without the packages that serve it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mqspark.client.admin import AdminClient
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import Picklable
from mqspark_server.net.webserver import WebServer

API_LINKS = (("HTTP API", "/docs"),)
BROKER_LINKS = (*API_LINKS, ("Metrics", "/metrics"), ("Health", "/health/ready"))
"""Other pages of a broker's HTTP server."""


@dataclass(frozen=True, slots=True)
class ClusterAt:
    """Where to ask. ``problem``: why nothing can be shown, and what to do about it. ``report``: the state of the
    store of this process."""

    namesrv: str
    options: ClientOptions
    problem: str | None = None
    report: Callable[[], dict[str, Any] | None] = lambda: None
    links: Sequence[tuple[str, str]] = ()
    """Other pages of this process: name and path."""
    job_server: WebServer | None = None
    own_credentials: Credentials | None = None
    """The keys of this process, for samples only: pages use the keys of their visitors."""

    def cluster_to_show(self) -> ClusterAt:
        return self


class ShownCluster(Protocol):
    """Whoever knows the cluster that a console shows."""

    def cluster_to_show(self) -> ClusterAt: ...


class Trouble(Picklable, Exception):
    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail


def admin_of(at: ClusterAt, credentials: Credentials | None, timeout_ms: int) -> AdminClient:
    """A client that asks with these keys, or without any: never with those in the environment of the process.
    Raises Trouble."""
    if at.problem is not None:
        raise Trouble(503, "The console cannot show this cluster", at.problem)
    options = dataclasses.replace(at.options, credentials=credentials or False)
    return AdminClient(at.namesrv, timeout_ms=timeout_ms, options=options)
