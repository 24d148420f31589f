"""The page of a host: it asks every broker, passes the caller's credentials on, and says who does not answer."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from mqspark_server.hosting import hostpage
from mqspark_server.hosting.childserver import ChildServer
from mqspark_server.hosting.hostpage import HostPage
from mqspark_server.process.diskwork import Worker
from mqspark_server.web.problems import Problem

READY = (200, json.dumps({"status": "ready", "state": "ready", "sendsRefused": None, "secret": 1}))


class Host:
    def __init__(self, brokers: Sequence[ChildServer]) -> None:
        self.brokers = brokers
        self.is_stopping = False

    def broker_tls(self) -> ssl.SSLContext | None:
        return None


Answering = Callable[[str], tuple[int, str]]
"""Status and body of the answer to the head of a request."""


@asynccontextmanager
async def page_of(*answers: Answering) -> AsyncIterator[tuple[HostPage, Host]]:
    """Brokers a-0, a-1 ... that answer like this."""
    servers, brokers = [], []
    for number, answer in enumerate(answers):

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answering = answer
        ) -> None:
            status, body = answer((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        child = ChildServer(f"a-{number}", ("broker", "run"), {}, serves=True, problem="")
        child.fields["http"] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        brokers.append(child)
    worker, host = Worker("page"), Host(brokers)
    try:
        yield HostPage(host, worker), host
    finally:
        worker.close()
        for server in servers:
            server.close()


async def test_it_is_ready_when_all_are() -> None:
    async with page_of(lambda _: READY, lambda _: READY) as (page, host):
        good, body = await page.health(None)
        assert (good, body["status"], body["notReady"]) == (True, "ready", [])
        assert body["brokers"] == {
            "a-0": {"status": "ready", "state": "ready"},
            "a-1": {"status": "ready", "state": "ready"},
        }
        host.is_stopping = True
        good, body = await page.health(None)
        assert (good, body["status"]) == (False, "not ready")


async def test_it_names_who_is_not_ready_and_why() -> None:
    refusing = (
        503,
        json.dumps({"status": "not ready", "state": "ready", "sendsRefused": "the disk is full"}),
    )
    async with page_of(
        lambda _: READY, lambda _: refusing, lambda _: (500, "oops"), lambda _: (200, "[1]"), lambda _: READY
    ) as (page, host):
        host.brokers[4].serves, host.brokers[4].problem = False, "it ended by SIGKILL and starts again"
        good, body = await page.health(None)
    assert not good
    assert body["notReady"] == ["a-1", "a-2", "a-3", "a-4"]
    assert body["brokers"]["a-1"] == {
        "status": "not ready",
        "state": "ready",
        "sendsRefused": "the disk is full",
    }
    assert body["brokers"]["a-2"]["problem"] == "it answers with the status 500"
    assert body["brokers"]["a-3"]["status"] == "not ready"
    assert body["brokers"]["a-4"]["problem"] == "it ended by SIGKILL and starts again"


async def test_a_broker_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostpage, "HEALTH_S", 0.05)
    silent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with page_of(lambda _: READY) as (page, host):
        host.brokers[0].fields["http"] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        good, body = await page.health(None)
    silent.set()
    server.close()
    assert not good
    assert "does not answer within 0.05 s" in body["brokers"]["a-0"]["problem"]


async def test_metrics_are_those_of_all_that_answer() -> None:
    text = "# TYPE sent counter\nsent 3.0\n"
    async with page_of(lambda _: (200, text), lambda _: (500, "oops")) as (page, host):
        host.brokers[1].restarts = 2
        found = (await page.metrics(None)).decode().splitlines()
    assert 'sent{broker="a-0"} 3.0' in found
    assert [line for line in found if line.startswith("mqspark_host_broker_up{")] == [
        'mqspark_host_broker_up{broker="a-0"} 1.0',
        'mqspark_host_broker_up{broker="a-1"} 0.0',
    ]
    assert 'mqspark_host_broker_restarts_total{broker="a-1"} 2.0' in found


async def test_metrics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is for all brokers together."""
    monkeypatch.setattr(hostpage, "MAX_METRICS_BYTES", 2_000)
    large, small = "x 1\n" * 300, "y 1\n" * 200
    async with page_of(lambda _: (200, large), lambda _: (200, small)) as (page, _host):
        found = (await page.metrics(None)).decode()
    assert "\nx{" not in found
    assert '\ny{broker="a-1"} 1' in found


async def test_brokers_decide_what_a_caller_sees() -> None:
    heads: list[str] = []

    def guarded(head: str) -> tuple[int, str]:
        heads.append(head)
        return (200, "x 1\n") if "authorization: basic abc" in head.lower() else (401, "{}")

    async with page_of(guarded, guarded) as (page, _host):
        with pytest.raises(Problem, match="refuses its metrics") as refused:
            await page.metrics(None)
        assert (refused.value.status, list(refused.value.headers)) == (401, ["WWW-Authenticate"])
        assert b'x{broker="a-1"} 1' in await page.metrics("Basic abc")
        with pytest.raises(Problem):
            await page.metrics("Basic \xe9")  # it is passed on as it came
    assert not any("uthorization" in head for head in heads[:2])
