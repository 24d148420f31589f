"""The service in a broker's own process: each client is a connection inside the process, so its rights, limits and
figures are those of a connection of remoting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mqspark.base.clock import Clock
from mqspark.broker.broker import BrokerCore
from mqspark.broker.pop.ackrun import AckRun
from mqspark.message import MASTER_ID
from mqspark.protocol.bodies.topic_bodies import (
    BrokerData,
    QueueData,
    SubscriptionGroupConfig,
    TopicRouteData,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header
from mqspark_server.net.remotingserver import RemotingServer
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S, Doors, GrpcCaller, OnRequest, Rights
from mqspark_server.proxy.backends.directlink import DirectLink
from mqspark_server.proxy.backends.otherbrokers import OtherBrokers
from mqspark_server.proxy.grpcstatus import GrpcRefusal, checked, too_late


class BrokerLink:
    """One client's connection to the broker of this process."""

    def __init__(
        self, core: BrokerCore, server: RemotingServer, caller: GrpcCaller, on_request: OnRequest
    ) -> None:
        self._core = core
        self._server = server
        self._broker_name = core.config.broker_name
        self._peer = server.local_peer(caller.address)
        self._peer.language, self._peer.version = caller.language, caller.version
        self.direct = DirectLink(core, server, self._peer.session)
        self.rights = Rights(core.gate, self._peer.session)
        self._peer.on_request = lambda command: on_request(self._broker_name, command)

    async def request(
        self,
        broker: str,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> Command:
        if broker != self._broker_name:
            raise GrpcRefusal(pb.BAD_REQUEST, f"this server is not a proxy of the broker {broker}")
        try:
            return await self._peer.request(code, header, body, timeout_s=timeout_s)
        except TimeoutError:
            raise too_late() from None
        except ConnectionError as error:
            raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error)) from None

    def acknowledge(self, broker: str, run: AckRun) -> bool:
        if broker != self._broker_name or not self._core.acknowledge(self._peer.session, run):
            return False
        self._server.schedule()
        return True

    def at_turn_end(self, work: Callable[[], None]) -> None:
        self._server.before_turn(work)

    def answer(self, broker: str, frame: bytes) -> None:
        self._peer.answer(frame)

    async def announce(self, topics: Iterable[str], heartbeat: bytes) -> None:
        code = RequestCode.HEART_BEAT
        checked(await self.request(self._broker_name, code, None, heartbeat, timeout_s=ANSWER_TIMEOUT_S))

    def close(self) -> None:
        self._peer.close()


class BrokerBackend:
    """The broker of this process, and the way to the services of the others of its cluster."""

    def __init__(self, core: BrokerCore, server: RemotingServer, others: OtherBrokers | None) -> None:
        """``others`` None: the broker has no name server."""
        self._core = core
        self._server = server
        self._others = others

    @property
    def max_message_bytes(self) -> int:
        return self._core.state.store_config.max_message_size

    @property
    def clock(self) -> Clock:
        return self._core.state.clock

    def link(self, caller: GrpcCaller, on_request: OnRequest) -> BrokerLink:
        return BrokerLink(self._core, self._server, caller, on_request)

    async def route(self, topic: str) -> TopicRouteData:
        known, config = self._core.state.topics.get(topic), self._core.config
        if known is None:
            raise GrpcRefusal(
                pb.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {topic}"
            )
        queues = QueueData(
            broker_name=config.broker_name,
            read_queue_nums=known.config.read_queue_nums,
            write_queue_nums=known.config.write_queue_nums,
            perm=known.config.perm & config.broker_permission,
            topic_sys_flag=known.config.topic_sys_flag,
        )
        broker = BrokerData(
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_addrs={MASTER_ID: config.address},
        )
        return TopicRouteData(broker_datas=[broker], queue_datas=[queues])

    async def whole_route(self, topic: str) -> tuple[TopicRouteData, Doors]:
        others = None if self._others is None else await self._others.route(topic)
        if self._others is None or others is None:
            return await self.route(topic), {}
        if topic in self._core.state.topics:
            own = await self.route(topic)
            others.broker_datas[:0], others.queue_datas[:0] = own.broker_datas, own.queue_datas
        return others, await self._others.doors(each.broker_name for each in others.broker_datas)

    async def message_type(self, topic: str) -> str:
        known = self._core.state.topics.get(topic)
        return "UNSPECIFIED" if known is None else known.config.attributes.get("message.type", "NORMAL")

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        return self._core.state.subscriptions.configured(name)

    def close(self) -> None:
        if self._others is not None:
            self._others.close()
