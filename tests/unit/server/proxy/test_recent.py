"""What a proxy has learned lately, answers that did not come, and connections that come too late."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

from mqspark.errors import ConnectionLost
from mqspark.protocol.codes import RequestCode
from mqspark_server.net.outbound import Dialing, Outbound
from mqspark_server.proxy.backends.clusterroutes import BrokerServer, Recent
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from tests.unit.outbound_kit import connected


class Asked:
    def __init__(self) -> None:
        self.asked: list[asyncio.Future[int]] = []

    def __call__(self, name: str) -> asyncio.Future[int]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


async def test_one_question_serves_all_who_ask_meanwhile_and_for_a_while() -> None:
    ask = Asked()
    recent = Recent(ask)
    waiting = [asyncio.ensure_future(recent.find("a")) for _ in range(3)]
    await asyncio.sleep(0)
    assert recent.known("a") is None
    ask.asked[0].set_result(7)
    assert await asyncio.gather(*waiting) == [7, 7, 7]
    assert await recent.find("a") == 7
    assert len(ask.asked) == 1


async def test_an_answer_is_kept_without_the_task_that_got_it() -> None:
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    async def ask(name: str) -> str:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))
        await asyncio.sleep(0)
        return name.upper()

    recent = Recent(ask)
    assert await recent.find("a") == await recent.find("a") == "A"
    await asyncio.sleep(0)
    assert [task() for task in tasks] == [None]


async def test_the_oldest_answer_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark_server.proxy.backends.clusterroutes.MAX_KNOWN", 2)
    asked: list[str] = []

    async def ask(name: str) -> str:
        asked.append(name)
        return name

    recent = Recent(ask)
    for name in ("a", "b", "a", "c", "b", "a"):
        await recent.find(name)
    assert asked == ["a", "b", "c", "a"]


async def test_a_failure_is_forgotten_though_all_who_asked_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    ask = Asked()
    recent = Recent(ask)
    gone = asyncio.ensure_future(recent.find("a"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    ask.asked.pop().set_exception(ConnectionError("an old story"))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(recent.find("a"))
    await asyncio.sleep(0)
    ask.asked.pop().set_result(8)
    assert await again == 8
    assert "never retrieved" not in caplog.text


async def test_a_connection_that_comes_after_its_client_has_left_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outbound, wire = connected()
    go_on = asyncio.Event()

    async def connect(dialing: Dialing, address: str, **_: Any) -> Outbound:
        await go_on.wait()
        return outbound

    monkeypatch.setattr(Dialing, "connect", connect)
    server = BrokerServer(["host:1"], Dialing())
    asked = asyncio.ensure_future(server.request(RequestCode.GET_MAX_OFFSET, None))
    await asyncio.sleep(0)
    server.close()
    go_on.set()
    with pytest.raises((GrpcRefusal, ConnectionLost)):
        await asked
    assert wire.closed
