"""QueryRoute and QueryAssignment: the queues of a topic, and the way to each of them (RouteActivity)."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator

from mqspark.message import PERM_READ, PERM_WRITE
from mqspark.protocol.bodies.topic_bodies import QueueData, TopicRouteData
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import Doors
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.content.resources import group_of, topic_of
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal

MAX_ADDRESSES = 64
"""Limit of the addresses that a client names as those of its proxies; each queue of a route has all of them."""

MAX_HOST_LENGTH = 255
"""As in the DNS."""
MAX_ANSWER_BYTES = 4 << 20
"""Limit of what an answer repeats for each queue: clients take no larger ones."""
ACCEPTED: dict[str, tuple[pb.MessageType, ...]] = {
    "NORMAL": (pb.NORMAL,),
    "FIFO": (pb.FIFO,),
    "DELAY": (pb.DELAY,),
    "TRANSACTION": (pb.TRANSACTION,),
    "PRIORITY": (pb.PRIORITY,),
    "LITE": (pb.LITE,),
    "MIXED": (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION),
}
"""The types of messages that a topic takes, by its attribute ``message.type``."""

QUEUES_AT_ONCE = 512
"""Queues that are added to an answer in one turn of the loop: less than a millisecond."""


async def query_route(call: GrpcCall, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
    topic = topic_of(request.topic)
    route, doors = await call.whole_route(topic)
    accepted = ACCEPTED.get(await call.backend.message_type(topic), (pb.MESSAGE_TYPE_UNSPECIFIED,))
    here = _endpoints(call, request, route)
    response = pb.QueryRouteResponse(status=OK)
    for queues in route.queue_datas:
        broker = _broker(queues.broker_name, doors, here)
        for queue_id, permission in _queues(queues):
            response.message_queues.add(
                topic=request.topic,
                id=queue_id,
                permission=permission,
                broker=broker,
                accept_message_types=accepted,
            )
            if len(response.message_queues) % QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
    return response


async def query_assignment(call: GrpcCall, request: pb.QueryAssignmentRequest) -> pb.QueryAssignmentResponse:
    """POP: each member of a group gets all brokers. A FIFO group gets them queue by queue."""
    topic, group = topic_of(request.topic), group_of(request.group)
    route, doors = await call.whole_route(topic)
    config = await call.backend.group(group)
    here = _endpoints(call, request, route)
    response = pb.QueryAssignmentResponse(status=OK)
    for queues in route.queue_datas:
        if not queues.perm & PERM_READ or queues.read_queue_nums <= 0:
            continue
        broker = _broker(queues.broker_name, doors, here)
        is_fifo = config is not None and config.consume_message_orderly
        for queue_id in range(queues.read_queue_nums) if is_fifo else (-1,):
            queue = pb.MessageQueue(
                topic=request.topic, id=queue_id, permission=_permission(queues.perm), broker=broker
            )
            response.assignments.add(message_queue=queue)
            if len(response.assignments) % QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
    if not response.assignments:
        raise GrpcRefusal(pb.FORBIDDEN, "no readable queue")
    return response


def _endpoints(
    call: GrpcCall, request: pb.QueryRouteRequest | pb.QueryAssignmentRequest, route: TopicRouteData
) -> pb.Endpoints:
    """The hosts by which the client has reached this server, or says so, with the port of this server. The answer
    repeats them, and the topic's name, for each queue of the route."""
    asked = request.endpoints
    if len(asked.addresses) > MAX_ADDRESSES:
        raise GrpcRefusal(pb.ILLEGAL_ACCESS_POINT, f"more than {MAX_ADDRESSES} addresses")
    if any(len(each.host) > MAX_HOST_LENGTH for each in asked.addresses):
        raise GrpcRefusal(pb.ILLEGAL_ACCESS_POINT, f"a host has more than {MAX_HOST_LENGTH} characters")
    here = pb.Endpoints(
        scheme=asked.scheme,
        addresses=[pb.Address(host=each.host, port=call.shared.port) for each in asked.addresses],
    )
    queues = sum(max(each.read_queue_nums, each.write_queue_nums) for each in route.queue_datas)
    if (here.ByteSize() + request.topic.ByteSize()) * queues > MAX_ANSWER_BYTES:
        text = f"the addresses and the topic's name are too long to be repeated for {queues} queues"
        raise GrpcRefusal(pb.ILLEGAL_ACCESS_POINT, text)
    return here


def _broker(name: str, doors: Doors, here: pb.Endpoints) -> pb.Broker:
    """A broker with the way to it: its own service, or this one."""
    door = doors.get(name)
    if door is None:
        return pb.Broker(name=name, id=0, endpoints=here)
    address = pb.Address(host=door[0], port=door[1])
    return pb.Broker(name=name, id=0, endpoints=pb.Endpoints(scheme=_scheme(door[0]), addresses=[address]))


def _scheme(host: str) -> pb.AddressScheme:
    try:
        return pb.IPv6 if ipaddress.ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        return pb.DOMAIN_NAME


def _permission(perm: int) -> pb.Permission:
    if perm & PERM_READ:
        return pb.READ_WRITE if perm & PERM_WRITE else pb.READ
    return pb.WRITE if perm & PERM_WRITE else pb.NONE


def _queues(queues: QueueData) -> Iterator[tuple[int, pb.Permission]]:
    """The number of each queue and what it permits. Queues that can both be read and written are the first ones."""
    readable = queues.read_queue_nums if queues.perm & PERM_READ else 0
    writable = queues.write_queue_nums if queues.perm & PERM_WRITE else 0
    if not readable and not writable:
        for queue_id in range(max(1, queues.read_queue_nums, queues.write_queue_nums)):
            yield queue_id, pb.NONE
    for queue_id in range(max(readable, writable)):
        if queue_id < min(readable, writable):
            yield queue_id, pb.READ_WRITE
        else:
            yield queue_id, pb.READ if readable > writable else pb.WRITE
