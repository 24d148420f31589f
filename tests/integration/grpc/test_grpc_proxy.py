"""``mqspark proxy run``: a process of its own before a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import bare_caller, message, resource, rocketmq_producer, stored_messages
from tests.support.processes import mqspark_command, process, ready_line, set_options


@pytest.fixture(scope="module")
def proxy(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy before the broker."""
    log = tmp_path_factory.mktemp("proxy") / "log"
    command = [*mqspark_command(), "proxy", "run", "-n", broker.namesrv]
    command += set_options({"listenPort": 0, "bindAddress": "127.0.0.1"})
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["grpc"]


def test_a_producer_sends_through_the_proxy(
    broker: Broker, proxy: str, topic_of_type: Callable[..., str]
) -> None:
    from rocketmq import Message

    topic = topic_of_type("proxied")
    with rocketmq_producer(proxy, topic) as producer:
        given = Message()
        given.topic, given.body = topic, b"through"
        receipt = producer.send(given)
    (stored,) = stored_messages(broker, topic)
    assert (stored.body, stored.properties["UNIQ_KEY"]) == (b"through", receipt.message_id)


def test_the_proxy_knows_topics_and_their_types(
    broker: Broker, proxy: str, topic_of_type: Callable[..., str]
) -> None:
    topic = topic_of_type("delayed", "DELAY", queues=2)
    with bare_caller(proxy) as caller:
        route = caller.QueryRoute(pb.QueryRouteRequest(topic=resource(topic)))
        assert [list(each.accept_message_types) for each in route.message_queues] == [[pb.DELAY]] * 2
        absent = caller.QueryRoute(pb.QueryRouteRequest(topic=resource("absent")))
        assert absent.status.code == pb.TOPIC_NOT_FOUND
        refused = caller.SendMessage(pb.SendMessageRequest(messages=[message(topic)]))
        assert refused.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
