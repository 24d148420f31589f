"""The shared part of one client identity: name servers, routes, heartbeats, requests by servers.

Producers and consumers are its ``InstanceMember``s. Facts: RocketMQ's MQClientInstance and ClientConfig. Must not
know how messages are sent, pulled or consumed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from asyncio.staggered import staggered_race
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mqspark.base.clock import SystemClock
from mqspark.base.logs import Outages, escaping
from mqspark.client.life.lifecycle import Tasks
from mqspark.client.life.timers import Timers
from mqspark.client.remoting.channel import Channel
from mqspark.client.remoting.client_options import STREAM_FIELDS, ClientOptions, client_id_of, resolve_namesrv
from mqspark.client.remoting.credentials import signer_of
from mqspark.client.remoting.heartbeats import Heartbeats
from mqspark.client.remoting.longanswers import near, topic_names
from mqspark.client.remoting.nameservers import NEXT_NAMESRV_S, NOT_NOW, NameServers
from mqspark.client.remoting.remoting import Remoting, level_of
from mqspark.client.remoting.silence import SilenceWatch
from mqspark.client.remoting.tls import tls_context
from mqspark.client.remoting.topic_routes import TopicRoute, address_of, is_logic_broker
from mqspark.errors import (
    BadRoute,
    BrokerError,
    ClientError,
    ConfigError,
    ConnectionLost,
    MQError,
    NoRoute,
    NoSuchTopic,
    NotANameServer,
    ProtocolError,
)
from mqspark.message import DEFAULT_TOPIC, MASTER_ID, MessageQueue, no_such_topic
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import ConsumerData
from mqspark.protocol.bodies.topic_bodies import TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, Fields
from mqspark.protocol.headers.client_headers import UnregisterClientRequestHeader
from mqspark.protocol.headers.cluster_headers import GetRouteInfoRequestHeader
from mqspark.protocol.headers.header import to_ext
from mqspark.protocol.zones import zone_fields

log = escaping(__name__)

MAX_ANSWERING_BYTES = 64 << 20
"""Limit of concurrently handled requests by brokers; beyond it the client answers that it is busy."""
_ASKED_OF_NAME_SERVERS = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""A request that every name server answers and no broker does."""
LAST_BEAT_S = 1.0
"""How long a member that leaves waits for answers to heartbeats. RocketMQ handles heartbeats apart from unregistering
and from the ends of connections: one that it handles late keeps the client in its group for two minutes."""
_NAMES_LIFE_MS = 5_000
_REQUEST_BYTES = 8_192
"""Estimated bytes of a task and its data."""


class InstanceMember:
    """A producer, consumer or admin as its instance sees it."""

    producer_group: str | None = None
    consumer_group: str | None = None

    def topics(self) -> Collection[str]:
        """Topics whose routes are refreshed."""
        return ()

    def consumer_data(self) -> ConsumerData | None:
        return None

    def route_changed(self, route: TopicRoute) -> None:
        """A route was added or has changed."""

    def group_changed(self) -> None:
        """Members joined or left the group, or a connection is new."""

    def asked(self, channel: Channel, request: Command) -> bool:
        """Offer a request by a server; returns whether this member handles it."""
        return False

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        """Response code, body and remark for a request that no member handled."""
        return ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b"", f"this client does not answer {request.code}"


class ClientInstance:
    """One client id, its connections, its routes, its heartbeats: shared by all members of that identity, opened with
    the first and closed with the last (MQClientManager, MQClientInstance). Belongs to one event loop.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        options: ClientOptions,
        *,
        keep_default_name: bool = False,
        is_stream: bool = False,
    ) -> None:
        self.options = options
        self.clock = options.clock or SystemClock()
        self.timers = Timers(self.clock)
        self.namesrv = resolve_namesrv(namesrv)
        self.client_id = client_id_of(
            self.namesrv, options, keep_default_name=keep_default_name, is_stream=is_stream
        )
        self.signer = signer_of(options.credentials)
        self.remoting = Remoting(
            connect_timeout_ms=options.connect_timeout_ms,
            on_request=self._requested,
            on_lost=self._connection_lost,
            greet=self._send_first_heartbeat,
            fields={**options.fields, **STREAM_FIELDS} if is_stream else options.fields,
            signer=self.signer,
            tls=tls_context(options.tls),
        )
        self._members: list[InstanceMember] = []
        self._routes: dict[str, TopicRoute] = {}
        """In the order of their last change."""
        self._names: list[str] = []
        self._names_at_ms = self.clock.monotonic_ms() - _NAMES_LIFE_MS
        """For errors: names of topics, and when they were asked for."""
        self._brokers: dict[str, dict[int, str]] = {}
        self.outages = Outages(log)
        """Outages of what its members ask for again and again."""
        self._answering_bytes = 0
        """Tasks that handle requests by brokers."""
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        # Clients spread over the name servers; one stays with the one that works.
        self._name_servers = NameServers(
            self.namesrv, zlib.crc32(self.client_id.encode()) % len(self.namesrv)
        )
        self._tasks = Tasks(self.client_id)
        self.silence = SilenceWatch(self.remoting, self, self._tasks)
        """Watches the brokers that members send to, or wait at for messages."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeats = Heartbeats(self.client_id, with_fingerprint=options.heartbeat_v2)
        self._beats: set[asyncio.Future[Command]] = set()
        """Heartbeats that wait for an answer."""

    # --- life -------------------------------------------------------------------------------------------

    @classmethod
    def enter(
        cls,
        member: InstanceMember,
        namesrv: str | Sequence[str] | None,
        options: ClientOptions,
        *,
        keep_default_name: bool = False,
        is_stream: bool = False,
    ) -> ClientInstance:
        """The instance of that identity, with ``member`` in it; ``leave`` must follow. For the running loop.

        Raises ConfigError without a name server, when the identity has a member of the same kind and group already,
        or when it is in use with other options or on another event loop.
        """
        new = cls(namesrv, options, keep_default_name=keep_default_name, is_stream=is_stream)
        loop = asyncio.get_running_loop()
        with _lock:
            instance = _instances.get(new.client_id)
            if instance is None or instance._loop is None or instance._loop.is_closed():
                instance = _instances[new.client_id] = new
                new._loop = loop
            else:
                instance._check_same(new, loop)
            instance.join(member)
        if instance is new:
            new.timers.start()
            new._tasks.keep(new._refresh_routes_forever)
            new._tasks.keep(new._heartbeat_forever)
        elif member.consumer_group is None:
            # Brokers must learn of the new member. A consumer sends its own heartbeat.
            instance._tasks.spawn(instance.heartbeat())
        return instance

    def _check_same(self, other: ClientInstance, loop: asyncio.AbstractEventLoop) -> None:
        """Whether ``other`` would be the same instance. Raises ConfigError."""
        if self._loop is not loop:
            what = "on another event loop"
        elif sorted(self.namesrv) != sorted(other.namesrv):
            what = f"with other name servers, {';'.join(self.namesrv)}"
        elif replace(self.options, namespace="") != replace(other.options, namespace=""):
            what = "with other options"
        else:
            return
        raise ConfigError(
            f"client id {self.client_id} is in use in this process {what}; give one of the two another instance_name"
            " (ClientOptions)",
            key="instance_name",
        )

    def join(self, member: InstanceMember) -> None:
        """Raises ConfigError when the identity already has a member of the same kind and group: brokers would confuse
        the two."""
        for kind, group, taken in (
            ("producer", member.producer_group, {each.producer_group for each in self._members}),
            ("consumer", member.consumer_group, {each.consumer_group for each in self._members}),
        ):
            if group is not None and group in taken:
                raise ConfigError(
                    f"the {kind} group {group} has a member {self.client_id} in this process already; give one of them"
                    " another group, or another instance_name (ClientOptions)",
                    key="instance_name",
                )
        self._members.append(member)

    async def leave(self, member: InstanceMember) -> None:
        """Unregister the member's group at the brokers; the last member closes everything. Never raises."""
        if member not in self._members:
            return
        self._members.remove(member)
        last = not self._members
        if last:
            with _lock:
                if _instances.get(self.client_id) is self:
                    del _instances[self.client_id]
            self.timers.stop()
            self.silence.stop()
        if self._beats:
            await asyncio.wait(self._beats, timeout=LAST_BEAT_S)
        if last:
            await self._tasks.cancel()
        await self._unregister(member)
        if last:
            await self.remoting.close()

    # --- name servers -----------------------------------------------------------------------------------

    async def ask_namesrv(
        self, code: int, header: Fields = None, *, timeout_ms: int | None = None
    ) -> Command:
        """Ask the name servers by their rule (``NameServers``). One that cannot answer now leaves that to the others.

        Raises BrokerError for a response code other than success, NotANameServer when a broker answers,
        ConnectionLost or RequestTimeout when none answers.
        """
        ask = partial(self._ask_one, code, header, timeout_ms=timeout_ms or self.options.request_timeout_ms)
        try:
            outcome = await self._name_servers.first_answer(ask)
        except ConnectionLost as last:
            why = last.reason if len(self.namesrv) == 1 else last
            raise ConnectionLost(
                ";".join(self.namesrv),
                f"no name server answers ({why}); is one running there, and is the address right (namesrv, or"
                " NAMESRV_ADDR of the environment)?",
                made=False,
            ) from None
        if isinstance(outcome, Command):
            return outcome
        raise outcome

    async def _ask_one(
        self, code: int, header: Fields, address: str, *, timeout_ms: int
    ) -> Command | BrokerError:
        """An answer, also a refusal that the others would repeat. Raises other refusals, ConnectionLost or
        RequestTimeout."""
        try:
            return await self.remoting.invoke(address, code, header, timeout_ms=timeout_ms)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code in _ASKED_OF_NAME_SERVERS:
                raise NotANameServer(address, error.remark) from None
            if error.code in NOT_NOW:
                raise
            return error

    def failed(self, what: Hashable, error: Exception, text: str, *arguments: object) -> None:
        """A line about a request that failed, unless the log knows (``Outages``, ``level_of``)."""
        self.outages.failed(what, error, text, *arguments, level=level_of(error))

    # --- routes -----------------------------------------------------------------------------------------

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The cached route, otherwise the name server's. Raises NoRoute, ConnectionLost, RequestTimeout,
        BrokerError.
        """
        known = self._routes.get(topic)
        if known is not None and not refresh:
            return known
        task = self._fetching.get(topic)
        if task is None or task.cancelled():
            task = asyncio.get_running_loop().create_task(self._fetch_route(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetched(topic, done))
        return await asyncio.shield(task)

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        if self._fetching.get(topic) is task:
            del self._fetching[topic]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it

    async def template_route(self, topic: str, max_queues: int) -> TopicRoute:
        """The route for a topic that does not exist yet: the brokers that have TBW102.

        Raises NoRoute when there is none, i.e. when no broker creates topics automatically.
        """
        try:
            data = await self._ask_route(DEFAULT_TOPIC)
        except NoRoute:
            raise await self._no_such_topic(topic) from None
        route = TopicRoute.of(topic, data, max_queues=max_queues)
        self._store(route)
        return route

    def cached_route(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    async def _ask_route(self, topic: str) -> TopicRouteData:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        header = {**to_ext(GetRouteInfoRequestHeader(topic=topic)), **zone_fields(os.environ)}
        try:
            response = await self.ask_namesrv(code, header)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            elsewhere = await self._ask_others(error.address, code, header)
            if elsewhere is None:
                raise no_such_topic(topic) from None
            response = elsewhere
        try:
            return decode_body(TopicRouteData, response.body)
        except ProtocolError as error:
            raise BadRoute(topic, str(error)) from None

    async def _ask_others(self, asked: str | None, code: int, header: Fields) -> Command | None:
        """What another name server knows that the one that was asked does not, which may be cut off from the brokers,
        or has just started; None if none of them answers soon with success."""
        others = [address for address in self.namesrv if address != asked]
        timeout_ms = int(NEXT_NAMESRV_S * 1000)
        found: Command | None
        found, which, _ = await staggered_race(
            [partial(self.remoting.invoke, each, code, header, timeout_ms=timeout_ms) for each in others], 0
        )
        if which is None:
            return None
        self._name_servers.prefer(others[which])
        log.info("name server %s is asked from now on: it knows more than %s", others[which], asked)
        return found

    async def _no_such_topic(self, topic: str) -> NoSuchTopic:
        """The error, with similar names as far as the name server tells them now. Nobody types the name of a topic of
        a group."""
        if topic.startswith("%"):
            return no_such_topic(topic)
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._names_at_ms >= _NAMES_LIFE_MS:
            self._names_at_ms = now_ms
            try:
                answer = await self.ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                listed = await topic_names(answer.body)
            except (ClientError, ProtocolError) as error:
                log.info("no similar names: %s", error)
                listed = []
            self._names = [name for name in listed if not name.startswith("%")]
        return no_such_topic(topic, near(self._names, topic))

    async def _fetch_route(self, topic: str) -> TopicRoute:
        try:
            route = TopicRoute.of(topic, await self._ask_route(topic))
        except NoSuchTopic:
            raise await self._no_such_topic(topic) from None
        self._store(route)
        return route

    def _store(self, route: TopicRoute) -> None:
        if self._routes.get(route.topic) != route:
            self._routes.pop(route.topic, None)
            self._routes[route.topic] = route
            self._index_brokers()
            for member in self._members:
                member.route_changed(route)

    def _index_brokers(self) -> None:
        """When two routes disagree about a broker, the newer one counts."""
        self._brokers = {
            name: addresses for route in self._routes.values() for name, addresses in route.brokers.items()
        }

    def broker_address(self, broker_name: str) -> str | None:
        """The address of the master, or of any other with the name; None when no route has the name."""
        return address_of(self._brokers.get(broker_name), MASTER_ID)

    def names(self, address: str) -> bool:
        """Whether a broker is at this address, as far as the routes say."""
        return any(address in addresses.values() for addresses in self._brokers.values())

    def topic_at(self, address: str) -> str | None:
        """The topic whose route names this address and has changed last; None if no route does."""
        for topic, route in reversed(self._routes.items()):
            if any(address in addresses.values() for addresses in route.brokers.values()):
                return topic
        return None

    def broker_of(self, queue: MessageQueue) -> str:
        """The name of the broker that serves the queue: of a logic queue the one that leads it now."""
        route = self._routes.get(queue.topic) if is_logic_broker(queue.broker_name) else None
        return queue.broker_name if route is None else route.broker_of(queue)

    async def has_moved(self, queue: MessageQueue, error: BrokerError) -> bool:
        """Whether the error says that the broker does not lead the logic queue. Then the route is looked up again;
        raises what ``route`` raises."""
        moved = error.code == ResponseCode.NOT_LEADER_FOR_QUEUE
        if moved:
            await self.route(queue.topic, refresh=True)
        return moved

    def replicas(self, broker_name: str) -> Mapping[int, str]:
        """The addresses of all brokers with the name, by their ids; empty when no route names it."""
        return self._brokers.get(broker_name, {})

    def broker_version(self, address: str) -> int | None:
        """Version of the broker in its last answer to a heartbeat (an ordinal of MQVersion); None before the first."""
        return self._heartbeats.version(address)

    async def _refresh_routes_forever(self) -> None:
        while True:
            await asyncio.sleep(self.options.route_interval_ms / 1000)
            wanted = dict.fromkeys(topic for member in self._members for topic in member.topics())
            for topic in self._routes.keys() - wanted.keys():
                del self._routes[topic]  # otherwise its addresses would be used when they are stale
            self._index_brokers()
            for topic in wanted:
                try:
                    await self.route(topic, refresh=True)
                except NoRoute:
                    continue  # not created yet, or deleted: what was known stays, as in every RocketMQ client
                except ClientError as error:
                    self.failed(("route", topic), error, "cannot refresh the route of %s: %s", topic, error)
                else:
                    self.outages.over(("route", topic), "the route of %s is refreshed again", topic)

    # --- heartbeats -------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Send a heartbeat to every broker in the routes. Errors are logged; the next heartbeat repairs them."""
        addresses = self._heartbeat_addresses()
        if addresses and self._grouped():
            await asyncio.gather(*(self._beat(address) for address in addresses))

    def _grouped(self) -> bool:
        """Whether a member must be known to brokers."""
        return any(member.producer_group or member.consumer_group for member in self._members)

    def _heartbeat_addresses(self) -> Collection[str]:
        consuming = any(member.consumer_group is not None for member in self._members)
        return dict.fromkeys(
            address
            for route in self._routes.values()
            for addresses in route.brokers.values()
            for number, address in addresses.items()
            if consuming or number == MASTER_ID
        )

    async def _beat(self, address: str) -> None:
        try:
            channel = self.remoting.channel(address)
            if channel is None:
                await self.remoting.connect(address)  # sends a heartbeat
            else:
                await self._send_heartbeat(channel)
        except ClientError as error:
            self.failed(("heartbeat", address), error, "heartbeat to %s failed: %s", address, error)

    async def knock(self, address: str, timeout_ms: int) -> None:
        """Send a heartbeat over the connection to ``address``, if there is one. Raises ClientError."""
        channel = self.remoting.channel(address)
        if channel is not None:
            await self._send_heartbeat(channel, timeout_ms)

    async def _send_heartbeat(self, channel: Channel, timeout_ms: int | None = None) -> None:
        """Raises ClientError."""
        body, fingerprint = self._heartbeats.next(channel.address, self._members)
        timeout_ms = timeout_ms or self.options.request_timeout_ms
        beat = asyncio.ensure_future(channel.request(RequestCode.HEART_BEAT, None, body, timeout_ms))
        self._beats.add(beat)
        beat.add_done_callback(self._beats.discard)
        answer = await beat
        self.remoting.answered(channel.address)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address=channel.address)
        self._heartbeats.answered(channel.address, fingerprint, answer)
        self.outages.over(("heartbeat", channel.address), "heartbeats to %s are taken again", channel.address)

    async def _send_first_heartbeat(self, channel: Channel) -> None:
        """Send a heartbeat first on a new connection: a broker forgets the client with its old connection, and must
        know a consumer's subscriptions before it pulls."""
        if channel.address in self.namesrv or not self._grouped():
            return
        self._heartbeats.forget(channel.address)
        try:
            await self._send_heartbeat(channel)
        except ClientError as error:
            address = channel.address
            self.failed(("heartbeat", address), error, "heartbeat to %s failed: %s", address, error)
            return
        for member in self._members:
            member.group_changed()

    async def _heartbeat_forever(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_interval_ms / 1000)
            self.remoting.close_idle(self.options.idle_timeout_ms)
            await self.heartbeat()

    async def _unregister(self, member: InstanceMember) -> None:
        if member.producer_group is None and member.consumer_group is None:
            return
        header = UnregisterClientRequestHeader(
            client_id=self.client_id,
            producer_group=member.producer_group,
            consumer_group=member.consumer_group,
        )
        requests = [
            channel.request(RequestCode.UNREGISTER_CLIENT, header, b"", self.options.request_timeout_ms)
            for address in self.remoting.addresses()
            if address not in self.namesrv and (channel := self.remoting.channel(address)) is not None
        ]
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.info("could not unregister: %s", outcome)

    # --- requests of servers ----------------------------------------------------------------------------

    def _connection_lost(self, address: str) -> None:
        log.info("%s lost its connection to %s", self.client_id, address)

    def _requested(self, channel: Channel, request: Command) -> None:
        try:
            members = self._addressed(request)
        except MQError as error:
            log.warning("a request from %s cannot be read: %s", channel.address, error)
            channel.respond(request, ResponseCode.SYSTEM_ERROR, remark=str(error))
            return
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            for member in members:
                member.group_changed()
        elif not any(member.asked(channel, request) for member in members):
            size_bytes = _REQUEST_BYTES + len(request.body)
            if self._answering_bytes + size_bytes > MAX_ANSWERING_BYTES:
                remark = "the client is busy with other requests"
                channel.respond(request, ResponseCode.SYSTEM_BUSY, remark=remark)
                return
            self._answering_bytes += size_bytes
            self._tasks.spawn(self._answer_one(channel, request, members, size_bytes))

    def _addressed(self, request: Command) -> list[InstanceMember]:
        """The member that a request is for: the consumer of the named group, otherwise all."""
        group = request.ext.get("consumerGroup") or request.ext.get("group")
        if group is None:
            return list(self._members)
        return [member for member in self._members if member.consumer_group == group]

    async def _answer_one(
        self, channel: Channel, request: Command, members: Collection[InstanceMember], size_bytes: int
    ) -> None:
        try:
            await self._answer(channel, request, members)
        finally:
            self._answering_bytes -= size_bytes

    async def _answer(self, channel: Channel, request: Command, members: Collection[InstanceMember]) -> None:
        if not members:
            group = request.ext.get("consumerGroup") or request.ext.get("group")
            remark = f"consumer group {group} has no member in client {self.client_id}"
            channel.respond(request, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        code: int = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        body, remark = b"", f"code {request.code} is unknown"
        for member in members:
            try:
                answer = await member.answer(request)
            except Exception as error:
                log.exception("cannot answer request %s of %s", request.code, channel.address)
                answer = (ResponseCode.SYSTEM_ERROR, b"", f"{type(error).__name__}: {error}")
            if answer[0] != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                code, body, remark = answer[0], answer[1], answer[2] or ""
                break
        channel.respond(request, code, body, remark or None)


_lock = threading.Lock()
_instances: dict[str, ClientInstance] = {}
"""All open instances of this process, by client id."""


def _forget_parent() -> None:
    """A forked child inherits the objects but neither the threads nor the loops."""
    global _lock
    _lock = threading.Lock()
    _instances.clear()


os.register_at_fork(after_in_child=_forget_parent)
