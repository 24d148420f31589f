"""What one client identity needs whatever it does: name servers, routes, heartbeats, the server's own
requests.

Producers and consumers are its ``Member``s. Facts: RocketMQ's MQClientInstance and ClientConfig; reference
client-semantics §1. Must not know how messages are sent, pulled or consumed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import zlib
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mqspark.client.remoting import Channel, Remoting, split_address
from mqspark.client.routes import MASTER_ID, TopicRoute
from mqspark.clock import Clock, SystemClock
from mqspark.errors import BrokerError, ClientError, ConfigError, ConnectionLost, NoRoute, RequestTimeout
from mqspark.message import DEFAULT_TOPIC
from mqspark.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    TopicRouteData,
    decode_body,
    encode_body,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, Fields
from mqspark.protocol.headers import GetRouteInfoRequestHeader, UnregisterClientRequestHeader

__all__ = ["ClientInstance", "ClientOptions", "Member", "resolve_namesrv"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What producers, consumers and admins have in common (ClientConfig's defaults)."""

    instance_name: str = "DEFAULT"
    """Part of the client id. ``DEFAULT`` becomes ``pid#time``, except for broadcasting consumers, whose local
    offsets are kept under the client id: two of them in one group on one host need two names."""
    client_ip: str | None = None
    """Part of the client id; by default the address from which the first name server is reached."""
    namespace: str = ""
    """Topics and groups are this application's own: ``Orders`` is ``<namespace>%Orders`` for the cluster. Producers and
    consumers heed it; administration is by the cluster's names."""
    connect_timeout_ms: int = 3_000
    request_timeout_ms: int = 3_000
    """For routes, heartbeats, member lists."""
    route_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000


class Member(Protocol):
    """A producer or consumer as its instance sees it."""

    def topics(self) -> Collection[str]:
        """Whose routes are to be kept fresh."""

    def producer_data(self) -> ProducerData | None: ...

    def consumer_data(self) -> ConsumerData | None: ...

    def route_changed(self, route: TopicRoute) -> None: ...

    def group_changed(self) -> None:
        """Members came or went, or a connection of ours is new."""

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        """Response code, body and remark for a request by the server."""


def resolve_namesrv(namesrv: str | Sequence[str] | None) -> list[str]:
    """``host:port`` addresses from a list, a text with semicolons, or the environment's NAMESRV_ADDR.

    Raises ConfigError when there is none.
    """
    if namesrv is None:
        namesrv = os.environ.get("NAMESRV_ADDR", "")
    parts = namesrv.replace(",", ";").split(";") if isinstance(namesrv, str) else namesrv
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        raise ConfigError(
            "no name server: give namesrv='host:port;host:port' or set NAMESRV_ADDR", key="namesrv"
        )
    for address in addresses:
        host, separator, port = address.rpartition(":")
        if not separator or not host or not port.isdigit():
            raise ConfigError(f"name server {address!r} is not of the form host:port", key="namesrv")
    return addresses


def local_address(towards: str) -> str:
    """The address of the interface that packets to ``towards`` leave by; sends none."""
    try:
        host, port = split_address(towards)
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ConnectionLost):
        return "127.0.0.1"


class ClientInstance:
    """One client id, its connections, its routes. ``start`` and ``stop`` belong to the running loop."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        options: ClientOptions,
        *,
        keep_default_name: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.namesrv = resolve_namesrv(namesrv)
        name = options.instance_name
        if name == "DEFAULT" and not keep_default_name:
            name = f"{os.getpid()}#{time.monotonic_ns()}"
        self.client_id = f"{options.client_ip or local_address(self.namesrv[0])}@{name}"
        self.remoting = Remoting(
            connect_timeout_ms=options.connect_timeout_ms,
            on_request=self._requested,
            on_lost=self._lost,
            greet=self._greet,
        )
        self._members: list[Member] = []
        self._routes: dict[str, TopicRoute] = {}
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        # Clients spread over the name servers; one stays with the one that works.
        self._namesrv_index = zlib.crc32(self.client_id.encode()) % len(self.namesrv)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._versions: dict[str, int] = {}
        self._listeners: dict[int, list[Callable[[Channel, Command], bool]]] = {}

    # --- life -------------------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        self._members.append(member)

    def listen(self, code: int, listener: Callable[[Channel, Command], bool]) -> None:
        """Requests of this code go to ``listener`` as they come, which says whether it takes care of one; only if
        none does, members are asked to ``answer``."""
        self._listeners.setdefault(code, []).append(listener)

    async def start(self) -> None:
        self.spawn(self._refresh_routes_forever())
        self.spawn(self._heartbeat_forever())

    async def stop(self) -> None:
        """Says good-bye to the brokers, then closes everything. Never raises."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._unregister()
        await self.remoting.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that ``stop`` cancels; its failure is logged, not lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of %s failed", self.client_id, exc_info=error)

    # --- name servers -----------------------------------------------------------------------------------

    async def ask_namesrv(
        self, code: int, header: Fields = None, body: bytes = b"", *, timeout_ms: int | None = None
    ) -> Command:
        """Ask the name server at hand, and the others in turn when it does not answer.

        Raises BrokerError for a response code other than success, ConnectionLost or RequestTimeout when none
        answers.
        """
        timeout_ms = timeout_ms or self.options.request_timeout_ms
        for attempt in range(len(self.namesrv)):
            address = self.namesrv[self._namesrv_index]
            try:
                return await self.remoting.invoke(address, code, header, body, timeout_ms=timeout_ms)
            except (ConnectionLost, RequestTimeout) as error:
                self._namesrv_index = (self._namesrv_index + 1) % len(self.namesrv)
                if attempt == len(self.namesrv) - 1:
                    raise
                log.warning("%s; trying name server %s", error, self.namesrv[self._namesrv_index])
        raise AssertionError("there is always a name server")

    # --- routes -----------------------------------------------------------------------------------------

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The cached route, else the name server's. Raises NoRoute, ConnectionLost, RequestTimeout,
        BrokerError.
        """
        known = self._routes.get(topic)
        if known is not None and not refresh:
            return known
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch_route(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetched(topic, done))
        return await asyncio.shield(task)

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may have

    async def template_route(self, topic: str, max_queues: int) -> TopicRoute:
        """Where a topic that does not exist yet would be created: the brokers that have TBW102.

        Raises NoRoute when there is none, i.e. when no broker creates topics by itself.
        """
        try:
            data = await self._ask_route(DEFAULT_TOPIC)
        except NoRoute as error:
            raise NoRoute(topic, str(error)) from None
        route = TopicRoute.of(topic, data, max_queues=max_queues)
        self._store(route)
        return route

    def cached_route(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    async def _ask_route(self, topic: str) -> TopicRouteData:
        try:
            response = await self.ask_namesrv(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic)
            )
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NoRoute(topic) from None
            raise
        return decode_body(TopicRouteData, response.body)

    async def _fetch_route(self, topic: str) -> TopicRoute:
        route = TopicRoute.of(topic, await self._ask_route(topic))
        self._store(route)
        return route

    def _store(self, route: TopicRoute) -> None:
        if self._routes.get(route.topic) != route:
            self._routes[route.topic] = route
            for member in self._members:
                member.route_changed(route)

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """From any route that names the broker."""
        for route in self._routes.values():
            address = route.address(broker_name, broker_id)
            if address is not None:
                return address
        return None

    def broker_version(self, address: str) -> int | None:
        """What its last answer to a heartbeat said (an ordinal of MQVersion); None before the first."""
        return self._versions.get(address)

    async def _refresh_routes_forever(self) -> None:
        while True:
            await asyncio.sleep(self.options.route_interval_ms / 1000)
            wanted = {topic for member in self._members for topic in member.topics()}
            for topic in self._routes.keys() - wanted:
                del self._routes[topic]  # or its addresses would grow stale and still be believed
            for topic in wanted:
                try:
                    await self.route(topic, refresh=True)
                except NoRoute:
                    continue  # not created yet, or deleted: what was known stays, as in every RocketMQ client
                except ClientError as error:
                    log.warning("cannot refresh the route of %s: %s", topic, error)

    # --- heartbeats -------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Tell every broker that the routes name who we are. Errors are logged; the next one heals."""
        addresses = self._heartbeat_addresses()
        if addresses:
            await asyncio.gather(*(self._beat(address) for address in addresses))

    def _heartbeat_addresses(self) -> set[str]:
        consuming = any(member.consumer_data() is not None for member in self._members)
        return {
            address
            for route in self._routes.values()
            for addresses in route.brokers.values()
            for number, address in addresses.items()
            if consuming or number == MASTER_ID
        }

    async def _beat(self, address: str) -> None:
        try:
            if self.remoting.channel(address) is None:
                await self.remoting.connect(address)  # greets
            else:
                answer = await self.remoting.invoke(
                    address,
                    RequestCode.HEART_BEAT,
                    body=self._heartbeat_body(),
                    timeout_ms=self.options.request_timeout_ms,
                )
                self._versions[address] = answer.version
        except ClientError as error:
            log.warning("heartbeat to %s failed: %s", address, error)

    def _heartbeat_body(self) -> bytes:
        producers = [member.producer_data() for member in self._members]
        consumers = [member.consumer_data() for member in self._members]
        return encode_body(
            HeartbeatData(
                client_id=self.client_id,
                producer_data_set=[data for data in producers if data is not None],
                consumer_data_set=[data for data in consumers if data is not None],
            )
        )

    async def _greet(self, channel: Channel) -> None:
        """First words on a new connection: a broker forgets us with the old one, and must know a consumer's
        subscriptions before it pulls."""
        if channel.address in self.namesrv or not self._members:
            return
        greeting = channel.request(
            RequestCode.HEART_BEAT, None, self._heartbeat_body(), self.options.request_timeout_ms
        )
        try:
            self._versions[channel.address] = (await greeting).version
        except ClientError as error:
            log.warning("heartbeat to %s failed: %s", channel.address, error)
            return
        for member in self._members:
            member.group_changed()

    async def _heartbeat_forever(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_interval_ms / 1000)
            await self.heartbeat()

    async def _unregister(self) -> None:
        requests = []
        for member in self._members:
            producer = member.producer_data()
            consumer = member.consumer_data()
            header = UnregisterClientRequestHeader(
                client_id=self.client_id,
                producer_group=producer.group_name if producer else None,
                consumer_group=consumer.group_name if consumer else None,
            )
            for address in self._heartbeat_addresses():
                channel = self.remoting.channel(address)
                if channel is not None:
                    timeout_ms = self.options.request_timeout_ms
                    requests.append(channel.request(RequestCode.UNREGISTER_CLIENT, header, b"", timeout_ms))
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.info("could not unregister: %s", outcome)

    # --- what servers say -------------------------------------------------------------------------------

    def _lost(self, address: str) -> None:
        log.info("%s lost its connection to %s", self.client_id, address)

    def _requested(self, channel: Channel, request: Command) -> None:
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            for member in self._members:
                member.group_changed()
        elif not any(listener(channel, request) for listener in self._listeners.get(request.code, ())):
            self.spawn(self._answer(channel, request))

    async def _answer(self, channel: Channel, request: Command) -> None:
        # A request carries its group; with one member an instance needs no look-up.
        code: int = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        body, remark = b"", f"code {request.code} is unknown"
        for member in self._members:
            try:
                answer = await member.answer(request)
            except Exception as error:
                log.exception("cannot answer request %s of %s", request.code, channel.address)
                answer = (ResponseCode.SYSTEM_ERROR, b"", f"{type(error).__name__}: {error}")
            if answer[0] != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                code, body, remark = answer[0], answer[1], answer[2] or ""
                break
        channel.respond(request, code, body, remark or None)
