"""Whoever asks another server again and again writes a line when that one goes, and one when it is back."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.base.logs import forget
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.escape import Escapee
from mqspark.broker.statictopic.peers import Question
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header
from mqspark_server.compacting import mastercopy
from mqspark_server.net.outbound import PLAIN, Dialing
from mqspark_server.peers import brokergroup, escaping, notifier
from mqspark_server.peers.brokergroup import BrokerGroup
from mqspark_server.peers.escaping import Escaping
from mqspark_server.peers.notifier import Notifier
from mqspark_server.peers.peerlink import PeerLink
from mqspark_server.peers.routefinder import RouteFinder
from tests.support.scripted import route_of
from tests.support.waiting import eventually_async

TRIES = 20
ADDRESS = "127.0.0.1:1"
CONFIG = BrokerConfig(namesrv_addr=ADDRESS, sync_broker_member_group_period=1)


class Other:
    """The server that is asked, and the connections to it."""

    def __init__(self) -> None:
        self.is_away = True
        self.tried = 0
        self.alive = True

    async def connect(self, *_: object, **__: object) -> Any:
        self.tried += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise ConnectionRefusedError(111, "refused")
        return self

    async def request(self, code: int, *_: object, **__: object) -> Command:
        self.tried += 1
        if code == RequestCode.GET_BROKER_MEMBER_GROUP:
            group = BrokerMemberGroup(broker_addrs={0: ADDRESS})
            return Command(0, body=encode_body(GetBrokerMemberGroupResponseBody(broker_member_group=group)))
        return Command(0, body=route_of({"b": ADDRESS}))

    def tell(self, *_: object) -> None:
        self.tried += 1

    def close(self) -> None: ...


Ask = Callable[[], None]


@asynccontextmanager
async def notices(other: Other) -> AsyncIterator[Ask]:
    sender = Notifier(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, PLAIN)
    yield lambda: sender.send(ADDRESS, Header())
    await sender.stop()


@asynccontextmanager
async def routes(other: Other) -> AsyncIterator[Ask]:
    known = SimpleNamespace(due=lambda: ["T"], learned=lambda *_: None)
    core: Any = SimpleNamespace(config=CONFIG, requests=SimpleNamespace(routes=known))
    finder = RouteFinder(core, lambda: None)
    finder.start()
    yield finder.after_turn
    await finder.stop()


@asynccontextmanager
async def questions(other: Other) -> AsyncIterator[Ask]:
    waiting: list[tuple[int, Question]] = []
    peers = SimpleNamespace(
        due=lambda: [waiting.pop()] if waiting else [], failed=lambda *_: None, answered=lambda *_: None
    )
    core: Any = SimpleNamespace(state=SimpleNamespace(peers=peers), config=CONFIG)
    link = PeerLink(core, RouteFinder(core, lambda: None), lambda: None)

    def ask() -> None:
        waiting.append((1, Question("b", RequestCode.GET_MAX_OFFSET, {})))
        link.after_turn()

    yield ask
    await link.stop()


def registrar() -> Any:
    return SimpleNamespace(addresses=[ADDRESS], known_to=[ADDRESS], dialing=PLAIN)


@asynccontextmanager
async def members(other: Other) -> AsyncIterator[Ask]:
    acting: Any = SimpleNamespace(members=SimpleNamespace(heard=lambda *_: None), ask=None)
    group = BrokerGroup(SimpleNamespace(config=CONFIG), acting, registrar())  # type: ignore[arg-type]
    group.start()
    yield lambda: None  # it asks by itself
    await group.stop()


@asynccontextmanager
async def escapes(other: Other) -> AsyncIterator[Ask]:
    message = Escapee(7, "T", "T", "g", 0, 0, 0, 0, "", b"")
    waiting: list[Escapee] = []
    bridge: Any = SimpleNamespace(
        take=lambda: [waiting.pop()] if waiting else [],
        is_waiting=lambda _: True,
        stored=lambda *_, **__: None,
    )
    state = SimpleNamespace(random=random.Random(1))
    core: Any = SimpleNamespace(state=state, config=CONFIG)
    sender = Escaping(core, [bridge], registrar(), lambda: None)

    def ask() -> None:
        waiting.append(message)
        sender.after_turn()

    yield ask
    await sender.stop()


class Copy(mastercopy.MasterCopy):
    other: Other

    async def look(self) -> None:
        await self.other.connect()


@asynccontextmanager
async def older_values(other: Other) -> AsyncIterator[Ask]:
    config = SimpleNamespace(store_path_root_dir=str(Path()))
    store: Any = SimpleNamespace(files=None, config=config)
    copy = Copy(store, lambda: other.connect())
    copy.other = other
    copy.start()
    yield lambda: None
    await copy.stop()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    found = Other()
    monkeypatch.setattr(Dialing, "connect", found.connect)
    monkeypatch.setattr(notifier, "LINGER_S", 0.0)
    for module, names in (
        (brokergroup, ()),
        (escaping, ("ESCAPE_RETRY_S", "ESCAPE_ROUTE_S")),
        (mastercopy, ("COPY_LOOK_S", "COPY_RETRY_S")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 0.001)
    forget()
    yield found
    forget()


@pytest.mark.parametrize(
    ("begin", "gone", "back"),
    [
        (notices, "could not be sent to the broker at 127.0.0.1:1", "notices reach the broker"),
        (routes, "the route of T could not be found", "routes are found again"),
        (questions, "broker b does not answer request", "broker b answers again"),
        (members, "does not answer which brokers are alive", "says again which brokers are alive"),
        (escapes, "is not stored at another broker yet", "are stored at another broker again"),
        (older_values, "are not copied from the master now", "are copied from the master again"),
    ],
)
async def test_two_lines_an_outage(
    begin: Any, gone: str, back: str, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    with caplog.at_level(logging.DEBUG, "mqspark"):
        async with begin(other) as ask:

            async def asked_until(is_so: Callable[[], bool]) -> None:
                await eventually_async(lambda: (ask(), is_so())[1])

            await asked_until(lambda: other.tried > TRIES)
            assert len(lines()) == 1, lines()
            assert gone in lines()[0]
            other.is_away = False
            await asked_until(lambda: len(lines()) > 1)
            other.tried = 0
            await asked_until(lambda: other.tried > 3)
    assert len(lines()) == 2, lines()
    assert back in lines()[1]
