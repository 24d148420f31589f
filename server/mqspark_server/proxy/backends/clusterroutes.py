"""What name servers and brokers say to a service that asks for all its clients: routes, masters, and what it learns of
one name at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

from mqspark.client.remoting.nameservers import NOT_NOW, NameServers
from mqspark.errors import MQError, RequestTimeout
from mqspark.message import MASTER_ID
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo, TopicRouteData
from mqspark.protocol.codes import CURRENT_VERSION, Language, RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.cluster_headers import GetRouteInfoRequestHeader
from mqspark.protocol.headers.header import Header
from mqspark_server.net.memory_budget import MemoryBudget
from mqspark_server.net.outbound import Dialing, Outbound
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S, GrpcCaller
from mqspark_server.proxy.grpcstatus import GrpcRefusal, checked

FRESH_S = 10.0
"""How long what was learned of a topic, a group or a broker is used."""
MAX_KNOWN = 10_000
"""Names that are remembered of a kind; beyond it the oldest is forgotten."""
MAX_UNREAD_BYTES = 256 << 20
"""Requests of all clients that brokers have not read."""

V = TypeVar("V")


class Recent(Generic[V]):
    """What was asked for within FRESH_S, once for all that ask at the same time.

    Answers are kept without the tasks that got them: a task that has ended keeps its coroutine and context, six more
    objects a name for the garbage collector to visit.
    """

    def __init__(self, ask: Callable[[str], Awaitable[V]]) -> None:
        self._ask = ask
        self._asked: dict[str, asyncio.Future[V]] = {}
        """What somebody is asked now: no more than the requests that wait for it."""
        self._known: dict[str, tuple[float, V]] = {}

    async def find(self, name: str) -> V:
        known = self.known(name)
        if known is not None:
            return known[1]
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.ensure_future(self._ask(name))
            asked.add_done_callback(partial(self._answered, name, monotonic() + FRESH_S))
        return await asyncio.shield(asked)

    def _answered(self, name: str, due_s: float, asked: asyncio.Future[V]) -> None:
        """A failure is not remembered, so that the next caller asks again. All who have asked may be gone by now."""
        del self._asked[name]
        self._known.pop(name, None)
        if asked.cancelled() or asked.exception() is not None:
            return
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[name] = due_s, asked.result()

    def known(self, name: str) -> tuple[float, V] | None:
        """What was answered within FRESH_S, and until when it is used; None: it has to be found."""
        known = self._known.get(name)
        return known if known is not None and monotonic() < known[0] else None


def _refused(error: Exception) -> GrpcRefusal:
    """What a caller is told of a broker that does not answer."""
    if isinstance(error, RequestTimeout):
        return GrpcRefusal(pb.PROXY_TIMEOUT, f"{error.address} did not answer in time")
    return GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error))


class BrokerServer:
    """A connection to one of several addresses, opened when it is needed."""

    def __init__(
        self,
        addresses: Iterable[str],
        dialing: Dialing,
        on_request: Callable[[Command], None] = lambda _: None,
        caller: GrpcCaller | None = None,
    ) -> None:
        """``caller``: whose requests these are; None: this process's own."""
        self._addresses = list(addresses)
        self._language = Language.JAVA if caller is None else caller.language
        self._version = CURRENT_VERSION if caller is None else caller.version
        self._dialing = dialing
        self._on_request = on_request
        self._connection: Outbound | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    def request(
        self,
        code: int,
        header: Header | Mapping[str, str] | None,
        body: bytes = b"",
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Awaitable[Command]:
        """The answer. Raises GrpcRefusal, now or when it is awaited."""
        connection = self.connection
        if connection is None:
            return self._request_first(code, header, body, timeout_s)
        try:
            return connection.submit(code, header, body, timeout_s=timeout_s)
        except (ValueError, MQError) as error:
            raise _refused(error) from None

    async def _request_first(
        self, code: int, header: Header | Mapping[str, str] | None, body: bytes, timeout_s: float
    ) -> Command:
        """Connect before. Raises GrpcRefusal."""
        try:
            connection = await self._connected()
            return await connection.submit(code, header, body, timeout_s=timeout_s)
        except (OSError, ValueError, MQError) as error:
            raise _refused(error) from None

    @property
    def connection(self) -> Outbound | None:
        """None: it has to be opened first."""
        connection = self._connection
        return connection if connection is not None and connection.alive else None

    def answer(self, frame: bytes) -> None:
        """A response to a request that came over this connection."""
        if self._connection is not None:
            self._connection.answer(frame)

    async def _connected(self) -> Outbound:
        async with self._connecting:
            if self._connection is None or not self._connection.alive:
                address = self._addresses[0]
                self._addresses = [*self._addresses[1:], address]  # the next one, if this one fails
                self._connection = await self._dialing.connect(
                    address,
                    timeout_s=ANSWER_TIMEOUT_S,
                    on_request=self._on_request,
                    language=self._language,
                    version=self._version,
                    as_error=_refused,
                )
                if self._is_closed:  # meanwhile
                    self._connection.close()
            return self._connection

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()


class ClusterRoutes:
    """The topics and the brokers that the name servers know."""

    def __init__(self, namesrv: Iterable[str], dialing: Dialing) -> None:
        self._dialing = dialing._replace(unread=MemoryBudget(MAX_UNREAD_BYTES))
        addresses = list(namesrv)
        self._name_servers = NameServers(addresses)
        self._names = {each: self.server([each]) for each in addresses}
        self._masters: dict[str, str] = {}
        """Name of a broker → address of its master, from the routes: as many as the cluster has."""
        self._own: dict[str, BrokerServer] = {}
        """Connections for what is not asked for a client."""
        self.recent = Recent(self._ask_route)

    def server(
        self,
        addresses: Iterable[str],
        on_request: Callable[[Command], None] = lambda _: None,
        caller: GrpcCaller | None = None,
        *,
        for_user: bool = False,
    ) -> BrokerServer:
        """``for_user``: the caller has proved to be its user, who holds what its requests add at brokers."""
        dialing = self._dialing
        if caller is not None and for_user and dialing.signer is not None:
            dialing = dialing._replace(signer=dialing.signer.on_behalf_of(caller.user))
        return BrokerServer(addresses, dialing, on_request, caller)

    def master_of(self, broker: str) -> str:
        """The address of the broker's master. Raises GrpcRefusal."""
        address = self._masters.get(broker)
        if address is None:
            raise GrpcRefusal(pb.BAD_REQUEST, f"no route names a master of the broker {broker}")
        return address

    async def route(self, topic: str) -> TopicRouteData:
        """Raises GrpcRefusal when the topic does not exist."""
        return await self.recent.find(topic)

    async def route_or_none(self, topic: str) -> TopicRouteData | None:
        """None: there is no such topic."""
        try:
            return await self.route(topic)
        except GrpcRefusal as refusal:
            if refusal.code == pb.TOPIC_NOT_FOUND:
                return None
            raise

    async def _ask_route(self, topic: str) -> TopicRouteData:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        answer = await self._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        route = decode_body(TopicRouteData, checked(answer).body)
        self._note_masters(route.broker_datas)
        with_master = [each for each in route.queue_datas if each.broker_name in self._masters]
        return TopicRouteData(broker_datas=route.broker_datas, queue_datas=with_master)

    async def _ask_name_servers(self, code: int, header: Header | None) -> Command:
        """The answer of one. Raises GrpcRefusal."""

        async def ask(address: str) -> Command:
            answer = await self._names[address].request(code, header)
            return checked(answer) if answer.code in NOT_NOW else answer

        return await self._name_servers.first_answer(ask)

    async def ask_any(self, code: int, header: Header | Mapping[str, str]) -> Command:
        """The answer of the first broker that can be reached. Raises GrpcRefusal."""
        failed = GrpcRefusal(pb.INTERNAL_SERVER_ERROR, "the name servers know no broker")
        for broker in await self._brokers():
            try:
                return await self.ask_broker(broker, code, header)
            except GrpcRefusal as refusal:
                failed = refusal
        raise failed

    async def _brokers(self) -> list[str]:
        """The names of brokers with a master."""
        answer = checked(await self._ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO, None))
        known = decode_body(ClusterInfo, answer.body).broker_addr_table.values()
        self._note_masters(known)
        return [each.broker_name for each in known if MASTER_ID in each.broker_addrs]

    def _note_masters(self, brokers: Iterable[BrokerData]) -> None:
        for each in brokers:
            if MASTER_ID in each.broker_addrs:
                self._masters[each.broker_name] = each.broker_addrs[MASTER_ID]

    async def ask_broker(self, broker: str, code: int, header: Header | Mapping[str, str]) -> Command:
        """Raises GrpcRefusal."""
        address = self.master_of(broker)
        if address not in self._own:
            self._own[address] = self.server([address])
        return await self._own[address].request(code, header)

    def close(self) -> None:
        for server in (*self._names.values(), *self._own.values()):
            server.close()
