"""The other brokers of a cluster, for the service in a broker: their queues, and the doors to their services.

A broker passes on requests to none of them. Its clients get the whole route, and call each broker's own service, as
those of RocketMQ's proxy in local mode (LocalTopicRouteService).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mqspark.base.logs import sparing
from mqspark.broker.broker import GRPC_PORT
from mqspark.errors import ProtocolError
from mqspark.message import parse_number
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import KVTable, TopicRouteData
from mqspark.protocol.codes import RequestCode
from mqspark_server.proxy.backend import Doors
from mqspark_server.proxy.backends.clusterroutes import ClusterRoutes, Recent
from mqspark_server.proxy.grpcstatus import GrpcRefusal, checked
from mqspark_server.settings.serverconfig import GRPC_PORT_DISTANCE

log = sparing("mqspark.grpc")


class OtherBrokers:
    def __init__(self, routes: ClusterRoutes, own: str, port: int | None) -> None:
        """``own``: the name of the broker of this process. ``port``: that of its service, if it was given."""
        self._routes = routes
        self._own = own
        self._port = port
        self._doors = Recent(self._ask_door)

    async def route(self, topic: str) -> TopicRouteData | None:
        """The queues of the others; None if there are none."""
        try:
            route = await self._routes.route_or_none(topic)
        except GrpcRefusal as refusal:
            log.warning("clients of gRPC get the queues of this broker alone: %s", refusal)
            return None
        if route is None:
            return None
        queues = [each for each in route.queue_datas if each.broker_name != self._own]
        brokers = [each for each in route.broker_datas if each.broker_name != self._own]
        return TopicRouteData(broker_datas=brokers, queue_datas=queues) if queues else None

    async def doors(self, brokers: Iterable[str]) -> Doors:
        """The doors to the others among these brokers."""
        names = [each for each in brokers if each != self._own]
        doors = await asyncio.gather(*map(self._doors.find, names))
        return dict(zip(names, doors, strict=True))

    async def _ask_door(self, broker: str) -> tuple[str, int]:
        """The door that the broker itself names. That of one that names none is where clients of RocketMQ's proxy look
        for it, at the same port as here; or as far from its port as here."""
        host, _, port = self._routes.master_of(broker).rpartition(":")
        told = None
        try:
            answer = checked(await self._routes.ask_broker(broker, RequestCode.GET_BROKER_RUNTIME_INFO, {}))
            told = parse_number(decode_body(KVTable, answer.body).table.get(GRPC_PORT))
        except (GrpcRefusal, ProtocolError) as error:
            log.warning("the port of %s for gRPC is guessed: %s", broker, error)
        return host.strip("[]"), told or self._port or int(port) + GRPC_PORT_DISTANCE

    def close(self) -> None:
        self._routes.close()
