"""The service before a cluster, as a process of its own: each client has its own connections to the brokers, which see
it as a client of remoting. It keeps nothing that another one beside it would have to know.

Before a cluster with users its requests are signed by its own account, and it judges clients itself
(``clusterusers``). Without an account they are not signed, and brokers with users refuse them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from mqspark.auth.config import AuthConfig
from mqspark.base.clock import Clock, SystemClock
from mqspark.broker.pop.ackrun import AckRun
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import (
    SubscriptionGroupConfig,
    TopicConfigAndQueueMapping,
    TopicRouteData,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.admin_headers import (
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Session
from mqspark_server.net.outbound import Outbound
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S, Doors, GrpcCaller, OnRequest, Rights
from mqspark_server.proxy.backends.clusteracks import acknowledge
from mqspark_server.proxy.backends.clusterroutes import BrokerServer, ClusterRoutes, Recent
from mqspark_server.proxy.backends.clustersends import ClusterSends
from mqspark_server.proxy.backends.clusterusers import ClusterUsers
from mqspark_server.proxy.backends.readytopics import ReadyTopic, ReadyTopics
from mqspark_server.proxy.grpcstatus import GrpcRefusal, checked, refusal_of


class ClusterLink:
    """One client's connections to brokers."""

    def __init__(self, cluster: ClusterBackend, caller: GrpcCaller, on_request: OnRequest) -> None:
        self.direct = ClusterSends(cluster.ready_topic, self._connection)
        self._routes = cluster.routes
        self._caller = caller
        self._on_request = on_request
        self._users = cluster.users
        self._session = Session(0, *caller.address, [])
        self.rights = (
            Rights(None, self._session) if self._users is None else self._users.rights(self._session)
        )
        self._brokers: dict[str, tuple[str, BrokerServer]] = {}
        """Name of a broker → address of its master, and the connection: as many as the cluster has."""

    def request(
        self,
        broker: str,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> Awaitable[Command]:
        server = self._server(broker)
        if self._users is not None:
            return self._judged(self._users, broker, code, header, body, timeout_s)
        return server.request(code, header, body, timeout_s=timeout_s)

    async def _judged(
        self,
        users: ClusterUsers,
        broker: str,
        code: int,
        header: Header | Mapping[str, str] | None,
        body: bytes,
        timeout_s: float,
    ) -> Command:
        server = self._server(broker)
        await users.check(self._session, code, header, body, server.request, broker)
        return await server.request(code, header, body, timeout_s=timeout_s)

    def acknowledge(self, broker: str, run: AckRun) -> bool:
        connection = None if self._users is not None else self._connection(broker)
        if connection is None:
            return False
        acknowledge(connection, run)
        return True

    def at_turn_end(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def _connection(self, broker: str) -> Outbound | None:
        """None: it has to be opened first, or there is none."""
        try:
            return self._server(broker).connection
        except GrpcRefusal:
            return None

    def answer(self, broker: str, frame: bytes) -> None:
        known = self._brokers.get(broker)
        if known is not None:
            known[1].answer(frame)

    def _server(self, broker: str) -> BrokerServer:
        address = self._routes.master_of(broker)
        known = self._brokers.get(broker)
        if known is not None and known[0] == address:
            return known[1]
        if known is not None:
            known[1].close()
        server = self._routes.server(
            [address],
            lambda command: self._on_request(broker, command),
            self._caller,
            for_user=self._users is not None,
        )
        self._brokers[broker] = address, server
        return server

    async def announce(self, topics: Iterable[str], heartbeat: bytes) -> None:
        brokers: dict[str, None] = {}
        for topic in topics:
            route = await self._routes.route_or_none(topic)
            brokers.update({each.broker_name: None for each in route.queue_datas} if route else {})
        code = RequestCode.HEART_BEAT
        if not brokers and self._users is not None:
            # Nobody is told, but what it says of itself has to be true all the same.
            await self._users.check(self._session, code, None, heartbeat, self._routes.ask_any)
        for broker in brokers:
            checked(await self.request(broker, code, None, heartbeat, timeout_s=ANSWER_TIMEOUT_S))

    def close(self) -> None:
        if self._users is not None:
            self._users.left(self._session)
        for _, server in self._brokers.values():
            server.close()


class ClusterBackend:
    """The brokers that the name servers know."""

    def __init__(self, routes: ClusterRoutes, max_message_bytes: int, auth: AuthConfig) -> None:
        """Raises ConfigError."""
        self.max_message_bytes = max_message_bytes
        self.clock: Clock = SystemClock()
        self.routes = routes
        self.users = (
            ClusterUsers(auth, routes.ask_any, routes.ask_broker) if auth.authentication_enabled else None
        )
        """None: everybody may do what the brokers let this process do."""
        self._types = Recent(self._ask_type)
        self._ready = ReadyTopics(routes.recent, self._types)
        self._groups = Recent(self._ask_group)

    def link(self, caller: GrpcCaller, on_request: OnRequest) -> ClusterLink:
        return ClusterLink(self, caller, on_request)

    def ready_topic(self, name: str) -> ReadyTopic | None:
        """None: something has to be asked for, or every request is judged."""
        return None if self.users is not None else self._ready.find(name)

    async def route(self, topic: str) -> TopicRouteData:
        return await self.routes.route(topic)

    async def whole_route(self, topic: str) -> tuple[TopicRouteData, Doors]:
        """All brokers are reached here."""
        return await self.routes.route(topic), {}

    async def message_type(self, topic: str) -> str:
        return await self._types.find(topic)

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        return await self._groups.find(name)

    async def _ask_type(self, topic: str) -> str:
        route = await self.routes.route_or_none(topic)
        if route is None or not route.queue_datas:
            return "UNSPECIFIED"
        header = GetTopicConfigRequestHeader(topic=topic)
        answer = await self.routes.ask_broker(
            route.queue_datas[0].broker_name, RequestCode.GET_TOPIC_CONFIG, header
        )
        config = decode_body(TopicConfigAndQueueMapping, checked(answer).body)
        return config.attributes.get("message.type", "NORMAL")

    async def _ask_group(self, group: str) -> SubscriptionGroupConfig | None:
        """As any broker has it: groups are created on all."""
        header = GetSubscriptionGroupConfigRequestHeader(group=group)
        answer = await self.routes.ask_any(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer)
        return decode_body(SubscriptionGroupConfig, answer.body)

    def close(self) -> None:
        if self.users is not None:
            self.users.close()
        self.routes.close()
