"""Name servers of which some are frozen: they accept connections and never answer."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqspark.client.remoting.nameservers import NameServers
from mqspark.errors import ConnectionLost, NotNow
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark_server.net.outbound import PLAIN
from mqspark_server.peers import brokergroup, escaping
from mqspark_server.peers.brokergroup import BrokerGroup
from mqspark_server.proxy.backends.clusterroutes import ClusterRoutes
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from tests.support.scripted import SILENCE, Scripted, namesrv


async def three(stack: AsyncExitStack, *servers: Scripted) -> list[str]:
    for each in servers:
        await stack.enter_async_context(each.serving())
    return [each.address for each in servers]


def hung() -> Scripted:
    return Scripted(lambda _: SILENCE)


async def test_a_proxy_passes_over_frozen_name_servers_once() -> None:
    first, second = hung(), hung()
    async with AsyncExitStack() as stack:
        lively = namesrv({})
        routes = ClusterRoutes(await three(stack, first, second, lively), PLAIN)
        for number in range(3):
            await routes.route(f"T{number}")
        assert len(lively.asked) == 3
        assert len(first.asked) == len(second.asked) == 1
        routes.close()


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY])
async def test_a_proxy_asks_other_name_servers_when_one_cannot_answer_now(code: int) -> None:
    async with AsyncExitStack() as stack:
        lively = namesrv({})
        servers = await three(stack, Scripted(lambda _: (code, None, b"")), lively)
        routes = ClusterRoutes(servers, PLAIN)
        await routes.route("T")
        alone = ClusterRoutes(servers[:1], PLAIN)
        with pytest.raises(GrpcRefusal):
            await alone.route("T")
        assert len(lively.asked) == 1
        routes.close()
        alone.close()


def registrar(addresses: list[str]) -> Any:
    return SimpleNamespace(addresses=addresses, known_to=[], dialing=PLAIN)


def core() -> Any:
    config = SimpleNamespace(broker_cluster_name="c", broker_name="a", address="127.0.0.1:10911")
    return SimpleNamespace(config=config, state=SimpleNamespace(random=random.Random(1)))


async def test_a_master_that_comes_back_waits_for_no_frozen_name_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brokergroup, "REQUEST_TIMEOUT_S", 3_600.0)
    alone = BrokerMemberGroup(cluster="c", broker_name="a", broker_addrs={0: "127.0.0.1:10911"})
    body = encode_body(GetBrokerMemberGroupResponseBody(broker_member_group=alone))
    lively = Scripted(lambda _: (0, None, body))
    async with AsyncExitStack() as stack:
        servers = await three(stack, hung(), hung(), lively)
        group = BrokerGroup(core(), cast(Any, SimpleNamespace()), registrar(servers))
        await group.come_back(cast(Any, None))  # no slave has any progress
        await group.stop()
    assert lively.codes() == [RequestCode.GET_BROKER_MEMBER_GROUP]


async def test_what_any_name_server_says_counts_and_silence_does_not() -> None:
    async def ask(address: str) -> str:
        if address == "frozen":
            await asyncio.Event().wait()
        if address == "away":
            raise ConnectionLost(address)
        if address == "busy":
            raise NotNow(address)
        return address

    assert await NameServers(["frozen", "a", "away", "b"]).all_answers(ask) == ["a", "b"]
    with pytest.raises(NotNow):
        await NameServers(["busy", "away"]).all_answers(ask)


async def test_what_an_acting_slave_may_not_store_waits_for_no_frozen_name_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(escaping, "ESCAPE_TIMEOUT_S", 3_600.0)
    other = Scripted(lambda _: (0, None, b""))
    lively = namesrv({"b": other})
    is_stored = asyncio.Event()
    escapee = SimpleNamespace(
        position=1, topic="T", like="T", place=None, body=b"", among=list, header=lambda *_: SentTo()
    )
    bridge = SimpleNamespace(
        take=lambda: [escapee], is_waiting=lambda _: True, stored=lambda *_, **__: is_stored.set()
    )
    async with AsyncExitStack() as stack:
        servers = await three(
            stack, hung(), Scripted(lambda _: (ResponseCode.SYSTEM_ERROR, None, b"")), lively
        )
        await stack.enter_async_context(other.serving())
        sending = escaping.Escaping(core(), [cast(Any, bridge)], registrar(servers), lambda: None)
        sending.after_turn()
        await is_stored.wait()
        await sending.stop()
    assert other.codes() == [RequestCode.SEND_MESSAGE_V2]


class SentTo(dict[str, str]):
    queue_id = 0
