"""``mqspark proxy run``: a process of its own before a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import (
    BareCaller,
    bare_caller,
    message,
    receive_request,
    resource,
    rocketmq_producer,
    stored_messages,
)
from tests.support.processes import mqspark_command, process, ready_line, set_options


@contextmanager
def proxy_before(broker: Broker, log: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a proxy, and its process."""
    command = [*mqspark_command(), "proxy", "run", "-n", broker.namesrv]
    command += set_options({"listenPort": 0, "bindAddress": "127.0.0.1"})
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["grpc"], child


@pytest.fixture(scope="module")
def proxy(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy before the broker."""
    with proxy_before(broker, tmp_path_factory.mktemp("proxy") / "log") as (address, _):
        yield address


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


def given_to(caller: BareCaller, topic: str) -> list[pb.Message]:
    answers = list(caller.ReceiveMessage(receive_request(topic, "taking-over"), timeout=30))
    return [each.message for each in answers if each.HasField("message")]


def test_another_proxy_takes_over_from_one_that_is_killed(
    broker: Broker, proxy: str, topic_of_type: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_of_type("taken-over", queues=1)
    names = {"topic": resource(topic), "group": resource("taking-over")}
    with bare_caller(proxy) as caller:
        with proxy_before(broker, tmp_path / "log") as (address, child), bare_caller(address) as first:
            for body in (b"done", b"given back"):
                assert (
                    first.SendMessage(pb.SendMessageRequest(messages=[message(topic, body)])).status.code
                    == pb.OK
                )
            held = {each.body: each.system_properties.receipt_handle for each in given_to(first, topic)}
            waiting = first.ReceiveMessage(receive_request(topic, "taking-over"), timeout=30)
            child.kill()
            with pytest.raises(grpc.RpcError):
                list(waiting)
        entry = pb.AckMessageEntry(receipt_handle=held[b"done"])
        assert caller.AckMessage(pb.AckMessageRequest(entries=[entry], **names)).status.code == pb.OK
        change = pb.ChangeInvisibleDurationRequest(receipt_handle=held[b"given back"], **names)
        change.invisible_duration.FromMilliseconds(0)
        assert caller.ChangeInvisibleDuration(change).status.code == pb.OK
        assert [each.body for each in given_to(caller, topic)] == [b"given back"]
