"""The HTTP application of a host of several brokers: /health and /metrics of all of them.

Each broker answers for itself: a caller's credentials are passed on to it, and decide what it shows.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from mqspark.base.logs import sparing
from mqspark_server.hosting.childserver import ChildServer
from mqspark_server.hosting.mergedmetrics import LABEL, merge_metrics
from mqspark_server.net.webserver import NotAnswered, WebAnswer, WebServer
from mqspark_server.process.diskwork import Worker
from mqspark_server.web.families import CONTENT_TYPE, Families, exposition
from mqspark_server.web.httpguard import ASGIApp, Guarded
from mqspark_server.web.problems import Problem, new_api

log = sparing("mqspark.host.page", lines=10)

MAX_METRICS_BYTES = 64 << 20
"""Limit of what all brokers of a host answer to one scrape; each gets an equal part."""
MAX_HEALTH_BYTES = 1 << 20
SCRAPE_S = 10.0
HEALTH_S = 5.0
_OK = 200
_REFUSED = (401, 403, 429)
_SHOWN = ("state", "sendsRefused", "registrationProblem")
"""What the page repeats of a broker's own report of its health."""


class HostNode(Protocol):
    """The supervisor as HTTP sees it."""

    brokers: Sequence[ChildServer]

    @property
    def is_stopping(self) -> bool: ...

    def broker_tls(self) -> ssl.SSLContext | None:
        """What to trust where the brokers' HTTP uses TLS. Raises OSError."""


class HostPage:
    """What the paths show. One scrape is under way at a time, so that their sizes do not add up."""

    def __init__(self, host: HostNode, worker: Worker) -> None:
        self._host = host
        self._worker = worker
        self._scraping = asyncio.Lock()

    async def metrics(self, authorization: str | None) -> bytes:
        """Raises Problem if a broker refuses the caller."""
        async with self._scraping:
            brokers = self._host.brokers
            limit = MAX_METRICS_BYTES // len(brokers)
            answers = await self._ask_all("/metrics", authorization, SCRAPE_S, limit)
            texts: list[tuple[str, str]] = []
            for broker, answer in zip(brokers, answers, strict=True):
                if isinstance(answer, str):
                    log.warning("no metrics of %s: %s", broker.name, answer)
                    continue
                if answer.status in _REFUSED:
                    raise _refusal(broker.name, answer)
                if answer.status == _OK:
                    texts.append((broker.name, answer.body.decode("utf-8", "replace")))
            read = {name for name, _ in texts}
            families = Families((), (), "mqspark_host_")
            is_read = {each.name: float(each.name in read) for each in brokers}
            restarts = {each.name: each.restarts for each in brokers}
            own = exposition(
                (
                    families.levels(
                        "broker_up", "1 if this broker's metrics are on this page", LABEL, is_read
                    ),
                    families.counts("broker_restarts", "starts of this broker after an end", LABEL, restarts),
                )
            )
            merged = await self._worker.run(partial(merge_metrics, texts))
            return own + merged.encode()

    async def health(self, authorization: str | None) -> tuple[bool, dict[str, Any]]:
        """Whether all brokers are ready, and what is the matter with each that is not."""
        brokers: dict[str, dict[str, Any]] = {}
        answers = await self._ask_all("/health/ready", authorization, HEALTH_S, MAX_HEALTH_BYTES)
        for broker, answer in zip(self._host.brokers, answers, strict=True):
            brokers[broker.name] = _health_of(answer)
        late = [name for name, each in brokers.items() if each["status"] != "ready"]
        good = not late and not self._host.is_stopping
        return good, {"status": "ready" if good else "not ready", "notReady": late, "brokers": brokers}

    async def _ask_all(
        self, target: str, authorization: str | None, timeout_s: float, max_bytes: int
    ) -> list[WebAnswer | str]:
        """The answer of each broker, or why there is none."""
        headers = [] if authorization is None else [("Authorization", authorization)]
        try:
            trust = self._host.broker_tls()
        except OSError as error:
            return [f"its certificate cannot be read: {error}"] * len(self._host.brokers)

        async def ask(broker: ChildServer) -> WebAnswer | str:
            if not broker.serves:
                return broker.problem
            server = WebServer.parse(broker.fields["http"], "http")
            try:
                return await server.ask(
                    target, headers, timeout_s=timeout_s, max_bytes=max_bytes, trust=trust
                )
            except NotAnswered as error:
                return str(error)

        return list(await asyncio.gather(*(ask(broker) for broker in self._host.brokers)))


def _health_of(answer: WebAnswer | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"status": "not ready", "problem": answer}
    try:
        said = json.loads(answer.body)
        shown = {key: said[key] for key in _SHOWN if said.get(key) is not None}
    except (ValueError, AttributeError):
        return {"status": "not ready", "problem": f"it answers with the status {answer.status}"}
    return {"status": "ready" if answer.status == _OK else "not ready", **shown}


def _refusal(name: str, answer: WebAnswer) -> Problem:
    challenge = {"WWW-Authenticate": 'Bearer realm="mqspark"'} if answer.status == _REFUSED[0] else None
    return Problem(answer.status, f"{name} refuses its metrics to this caller", challenge)


def create_host_api(host: HostNode, worker: Worker, hosts: tuple[str, ...]) -> ASGIApp:
    """``hosts``: host names that requests may use, in addition to loopback's."""
    api = new_api("mqspark host")
    page = HostPage(host, worker)

    @api.get("/health", tags=["health"], responses={503: {"description": "not ready"}})
    @api.get("/health/ready", tags=["health"], responses={503: {"description": "not ready"}})
    async def ready(request: Request) -> JSONResponse:
        """Whether all brokers are ready; which are not, and why. A broker with users gives its reasons only to callers
        who may Get its cluster."""
        good, body = await page.health(request.headers.get("authorization"))
        return JSONResponse(body, _OK if good else 503)

    @api.get("/metrics", tags=["metrics"], response_class=Response)
    async def metrics(request: Request) -> Response:
        """Prometheus text of all brokers, with a label for the broker."""
        text = await page.metrics(request.headers.get("authorization"))
        return Response(text, media_type=CONTENT_TYPE)

    return Guarded(api, hosts)


def pinned(certificates: str) -> ssl.SSLContext:
    """Trusts a server that shows a certificate of this file, under any name. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may have no authority
    context.load_verify_locations(certificates)
    return context
