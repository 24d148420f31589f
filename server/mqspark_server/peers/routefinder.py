"""Fetches topic routes from the name servers, for consumers that leave the assignment of queues to the broker, and
addresses of brokers.

It asks one name server at a time, over a connection of its own, and the next one after a failure. A failed
look-up is repeated when the broker says that it is due. Must not know what a route is used for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mqspark.base.config import parse_addresses
from mqspark.base.logs import Outages, sparing
from mqspark.broker.broker import BrokerCore
from mqspark.errors import ClientError, ProtocolError
from mqspark.message import MASTER_ID
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import GetBrokerMemberGroupResponseBody, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark_server.net.outbound import PLAIN, Dialing, Outbound
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.routes")

ROUTE_TIMEOUT_S = 1.0


class RouteFinder:
    """``progressed`` is called when a route was learned: the broker may have answers to write."""

    def __init__(self, broker: BrokerCore, progressed: Callable[[], None], dialing: Dialing = PLAIN) -> None:
        self._dialing = dialing
        self._outages = Outages(log)
        self._broker = broker
        self._progressed = progressed
        self._addresses = parse_addresses(broker.config.namesrv_addr or "", key="namesrvAddr")
        self._connection: Outbound | None = None
        self._connecting = asyncio.Lock()
        self._wanted: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._addresses:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="mqspark-routes")

    def after_turn(self) -> None:
        for topic in self._broker.requests.routes.due():
            self._wanted.put_nowait(topic)

    async def _work(self) -> None:
        while True:
            topic = await self._wanted.get()
            try:
                route = await self.route_of(topic)
            except (OSError, ValueError, ClientError, ProtocolError) as error:
                self._outages.failed("", None, "the route of %s could not be found: %s", topic, error)
                continue
            except Exception:
                log.exception("looking for the route of %s failed", topic)
                continue
            self._outages.over("", "routes are found again")
            try:
                self._broker.requests.routes.learned(topic, route)
                self._progressed()
            except Exception:  # a bug here must not affect other topics
                log.exception("answering requests that waited for the route of %s failed", topic)

    async def route_of(self, topic: str) -> TopicRouteData | None:
        """None when there is no such topic. Raises OSError, ValueError, ClientError, ProtocolError."""
        if not self._addresses:
            return None
        answer = await self._request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"response code {answer.code}: {answer.remark}")
        return decode_body(TopicRouteData, answer.body)

    async def master_of(self, broker_name: str, *, or_slave: bool = False) -> str | None:
        """The address of a broker's master, or, if there is none and it may be a slave, of the slave with the smallest
        id; None when no name server has one. Raises OSError, ValueError, ClientError,
        ProtocolError."""
        if not self._addresses:
            return None
        ext = {"clusterName": self._broker.config.broker_cluster_name, "brokerName": broker_name}
        answer = await self._request(RequestCode.GET_BROKER_MEMBER_GROUP, ext)
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"response code {answer.code}: {answer.remark}")
        group = decode_body(GetBrokerMemberGroupResponseBody, answer.body).broker_member_group
        addresses = {} if group is None else group.broker_addrs
        if or_slave and addresses:
            return addresses[min(addresses)]
        return addresses.get(MASTER_ID)

    async def _request(self, code: int, ext: dict[str, str]) -> Command:
        async with self._connecting:
            connection = self._connection
            if connection is None or not connection.alive:
                address = self._addresses[0]
                self._addresses = [*self._addresses[1:], address]  # if this one fails, the next one is asked
                connection = self._connection = await self._dialing.connect(
                    address, self._connection_lost, ROUTE_TIMEOUT_S
                )
        try:
            return await connection.request(code, ext, timeout_s=ROUTE_TIMEOUT_S)
        except ClientError:
            connection.close()
            raise

    def _connection_lost(self) -> None:
        self._connection = None

    async def stop(self) -> None:
        await end_all(self._task)
        if self._connection is not None:
            self._connection.close()
