"""Two brokers of a cluster, each with the service: clients that know one of them reach the queues of both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mqspark.client.sync import AdminClient
from mqspark.testing import Cluster
from mqspark_server.proxy import messaging_pb2 as pb
from tests.interop.python.starts import started
from tests.support.grpcclients import bare_caller, endpoints, resource, rocketmq_producer

QUEUES = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, settings={"grpcEnable": True}) as running:
        yield running


@pytest.fixture(scope="module")
def doors(cluster: Cluster) -> list[str]:
    """The addresses of the services, in the order of the brokers."""
    return [address for address in cluster.grpc_addresses if address is not None]


def routed(address: str, topic: str) -> set[tuple[str, int, int]]:
    """The queues of a topic, as a service gives them: the port of each, its broker and its number."""
    request = pb.QueryRouteRequest(topic=resource(topic), endpoints=endpoints(address))
    with bare_caller(address) as caller:
        route = caller.QueryRoute(request)
    assert route.status.code == pb.OK
    return {
        (each.broker.name, each.id, each.broker.endpoints.addresses[0].port) for each in route.message_queues
    }


def test_a_route_names_the_service_of_each_broker(cluster: Cluster, doors: list[str]) -> None:
    names = [app.config.broker_name for app in cluster.apps]
    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic("both", queues=QUEUES)
        admin.create_topic("second", queues=QUEUES, brokers=names[1:])
    ports = [int(door.rpartition(":")[2]) for door in doors]
    both = {(name, queue, port) for name, port in zip(names, ports, strict=True) for queue in range(QUEUES)}
    assert routed(doors[0], "both") == routed(doors[1], "both") == both
    assert routed(doors[0], "second") == {each for each in both if each[0] == names[1]}
    with bare_caller(doors[0]) as caller:
        request = pb.QueryAssignmentRequest(
            topic=resource("both"), group=resource("group"), endpoints=endpoints(doors[0])
        )
        assignments = [each.message_queue.broker for each in caller.QueryAssignment(request).assignments]
    assert sorted((each.name, each.endpoints.addresses[0].port) for each in assignments) == sorted(
        zip(names, ports, strict=True)
    )


def test_rocketmqs_own_client_sends_to_both_and_receives_from_both(
    cluster: Cluster, doors: list[str]
) -> None:
    from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, SimpleConsumer

    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic("shared", queues=QUEUES)
    sent = {b"%d" % number for number in range(4 * QUEUES)}
    with rocketmq_producer(doors[0], "shared") as producer:
        for body in sent:
            given = Message()
            given.topic, given.body = "shared", body
            producer.send(given)
    with AdminClient(cluster.namesrv) as admin:
        used = {queue.broker_name for queue, at in admin.topic_stats("shared").items() if at.max_offset}
    assert len(used) == len(doors)
    configuration = ClientConfiguration(doors[1], Credentials(), "", 5)
    consumer = started(lambda: SimpleConsumer(configuration, "sharing", {"shared": FilterExpression("*")}, 5))
    try:
        received: set[bytes] = set()
        while received < sent:
            for message in consumer.receive(32, 30):
                received.add(message.body)
                consumer.ack(message)
    finally:
        consumer.shutdown()
    assert received == sent
