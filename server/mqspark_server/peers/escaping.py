"""Sends the messages that an acting slave may not store to masters of other names, until each is stored.

Each message has a task; the bridges limit their number. Routes are requested from the name servers and cached for some
seconds. Must not know the kinds of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from mqspark.base.logs import Outages, sparing
from mqspark.broker.broker import BrokerCore
from mqspark.broker.pop.acting_pops import RevivePlace
from mqspark.broker.replication.escape import EscapeBridge, Escapee, OtherMaster, escape_targets, is_stored
from mqspark.client.remoting.nameservers import NOT_NOW, NameServers
from mqspark.errors import NotNow
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark_server.net.outbound import REQUEST_ERRORS, Outbound
from mqspark_server.peers.registrar import Registrar
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.escaping", lines=10)

ESCAPE_TIMEOUT_S = 3.0
"""EscapeBridge.SEND_TIMEOUT."""
ESCAPE_RETRY_S = 0.5
GIVE_UP_S = 10.0
"""How long to retry when only one broker may store a message: an acknowledgement, without which its message is
delivered again."""
ESCAPE_ROUTE_S = 5.0
"""How long a route is cached."""
MAX_ROUTES = 1_000
MAX_CONNECTIONS = 64
SENDS_AT_ONCE: Final = 64
"""Limit of concurrent sends."""


class Escaping:
    def __init__(
        self,
        core: BrokerCore,
        bridges: Sequence[EscapeBridge],
        registrar: Registrar,
        progressed: Callable[[], None],
    ) -> None:
        """``progressed`` is called when other brokers have stored more."""
        self._core = core
        self._progressed = progressed
        self._bridges = bridges
        self._registrar = registrar
        self._name_servers = NameServers(registrar.addresses)
        self._routes: dict[str, tuple[float, list[OtherMaster]]] = {}
        self._connections: dict[str, Outbound] = {}
        self._outages = Outages(log)
        self._connecting: dict[str, asyncio.Future[Outbound]] = {}
        """Address → connection attempt; never more than messages being sent."""
        self._places = asyncio.Semaphore(SENDS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def after_turn(self) -> None:
        for bridge in self._bridges:
            for message in bridge.take():
                task = asyncio.get_running_loop().create_task(self._send_until_stored(bridge, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send_until_stored(self, bridge: EscapeBridge, message: Escapee) -> None:
        turn = self._core.state.random.randrange(1 << 16)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while bridge.is_waiting(message.position):
            try:
                async with self._places:
                    if await self._send(bridge, message, turn):
                        what = "messages for %s are stored at another broker again"
                        self._outages.over(message.topic, what, message.topic)
                        return
            except REQUEST_ERRORS as error:
                what = "a message for %s is not stored at another broker yet: %s"
                self._outages.failed(message.topic, None, what, message.topic, error)
            if message.place is not None and loop.time() - began_s > GIVE_UP_S:
                bridge.stored(message.position, is_lost=True)
                self._progressed()
                return
            turn += 1
            await asyncio.sleep(ESCAPE_RETRY_S)

    async def _send(self, bridge: EscapeBridge, message: Escapee, turn: int) -> bool:
        found = await self._targets(message)
        target = found[turn % len(found)]
        connection = await self.connected(target.address)
        header = message.header(target, self._core.state.random)
        answer = await connection.request(
            RequestCode.SEND_MESSAGE_V2, header, message.body, timeout_s=ESCAPE_TIMEOUT_S
        )
        verdict = is_stored(answer.code)
        if verdict is None:
            log.error(
                "a message for %s is lost, because %s refuses it: %s",
                message.topic,
                target.address,
                (answer.remark or "")[:200],
            )
        elif not verdict:
            raise NotNow(f"{target.address} answers {answer.code}: {(answer.remark or '')[:200]}")
        place = None if verdict is None else RevivePlace(target.name, header.queue_id)
        bridge.stored(message.position, place, is_lost=verdict is None)
        self._progressed()
        return True

    async def _targets(self, message: Escapee) -> list[OtherMaster]:
        """The brokers that may store the message; never empty. Raises NotNow."""
        for topic in dict.fromkeys((message.topic, message.like)):
            found = message.among(await self._route(topic))
            if found:
                return found if topic == message.topic else [each._replace(queues=1) for each in found]
        raise NotNow("no broker of another name accepts sends for it")

    async def _route(self, topic: str) -> list[OtherMaster]:
        now_s = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and now_s < known[0]:
            return known[1]
        if not self._registrar.addresses:
            raise NotNow("no name server is configured")
        answer = await self._name_servers.first_answer(partial(self._ask_route, topic))
        found: list[OtherMaster] = []
        if answer.code == ResponseCode.SUCCESS:
            route = decode_body(TopicRouteData, answer.body)
            found = escape_targets(route, self._core.config.broker_name)
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        self._routes[topic] = now_s + (ESCAPE_ROUTE_S if found else ESCAPE_RETRY_S), found
        return found

    async def _ask_route(self, topic: str, server: str) -> Command:
        connection = await self.connected(server)
        answer = await connection.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, timeout_s=ESCAPE_TIMEOUT_S
        )
        if answer.code in NOT_NOW:
            raise NotNow(f"{server} answers {answer.code}: {(answer.remark or '')[:200]}")
        return answer

    async def connected(self, address: str) -> Outbound:
        """A connection. There is one attempt per address at a time, so a silent broker does not delay the others."""
        connection = self._connections.get(address)
        if connection is not None and connection.alive:
            return connection
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = self._connecting[address] = asyncio.ensure_future(
                self._registrar.dialing.connect(address, timeout_s=ESCAPE_TIMEOUT_S)
            )
            attempt.add_done_callback(lambda done: self._connected_to(address, done))
        return await asyncio.shield(attempt)

    def _connected_to(self, address: str, attempt: asyncio.Future[Outbound]) -> None:
        del self._connecting[address]
        if attempt.cancelled() or attempt.exception() is not None:
            return
        while len(self._connections) >= MAX_CONNECTIONS:
            self._connections.pop(next(iter(self._connections))).close()
        self._connections[address] = attempt.result()

    async def stop(self) -> None:
        await end_all(*self._tasks, *self._connecting.values())
        for connection in self._connections.values():
            connection.close()
