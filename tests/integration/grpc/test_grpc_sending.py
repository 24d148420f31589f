"""SendMessage and the routes that it needs: with RocketMQ's own client for Python, and with bare calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import (
    bare_caller,
    endpoints,
    message,
    resource,
    rocketmq_producer,
    stored_messages,
)


def test_rocketmqs_own_producer_sends(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    from rocketmq import Message

    topic = topic_of_type("sent")
    with rocketmq_producer(broker.grpc_address, topic) as producer:
        given = Message()
        given.topic, given.body, given.tag, given.keys = topic, b"hello", "blue", "k1"
        given.add_property("colour", "deep")
        receipt = producer.send(given)
    (stored,) = stored_messages(broker, topic)
    assert stored.body == b"hello"
    assert stored.properties["UNIQ_KEY"] == receipt.message_id
    assert (stored.tags, stored.keys, stored.properties["colour"]) == ("blue", "k1", "deep")


def test_a_route_names_this_server_for_each_queue(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    topic = topic_of_type("routed", "FIFO", queues=3)
    with bare_caller(broker.grpc_address) as caller:
        route = caller.QueryRoute(
            pb.QueryRouteRequest(topic=resource(topic), endpoints=endpoints("127.0.0.1:1"))
        )
        assert route.status.code == pb.OK
        assert [each.id for each in route.message_queues] == [0, 1, 2]
        port = int(str(broker.grpc_address).rpartition(":")[2])
        for queue in route.message_queues:
            assert queue.permission == pb.READ_WRITE
            assert list(queue.accept_message_types) == [pb.FIFO]
            assert [(each.host, each.port) for each in queue.broker.endpoints.addresses] == [
                ("127.0.0.1", port)
            ]
        for name, code in {
            "absent": pb.TOPIC_NOT_FOUND,
            "": pb.ILLEGAL_TOPIC,
            "a b": pb.ILLEGAL_TOPIC,
        }.items():
            answer = caller.QueryRoute(pb.QueryRouteRequest(topic=resource(name)))
            assert answer.status.code == code, name


def test_a_message_of_another_type_is_refused(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    topic = topic_of_type("ordered", "FIFO")
    with bare_caller(broker.grpc_address) as caller:
        answer = caller.SendMessage(pb.SendMessageRequest(messages=[message(topic)]))
        assert answer.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        in_order = message(topic, message_group="g", message_type=pb.FIFO)
        assert caller.SendMessage(pb.SendMessageRequest(messages=[in_order])).status.code == pb.OK


def test_a_call_without_a_client_id_is_refused(broker: Broker) -> None:
    with bare_caller(broker.grpc_address, x_mq_client_id="") as caller:
        answer = caller.QueryRoute(pb.QueryRouteRequest(topic=resource("any")))
        assert answer.status.code == pb.CLIENT_ID_REQUIRED


def test_a_start_that_rocketmqs_own_client_spoils_is_made_again(
    broker: Broker,
    topic_of_type: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its first call has ended when the client adds the callback."""
    from rocketmq import Message
    from rocketmq.v5.client.connection import RpcClient

    ask = RpcClient.query_topic_route_async
    starts = itertools.count()

    def ended_at_first(*arguments: Any, **named: Any) -> Any:
        answer = ask(*arguments, **named)
        if next(starts) == 0:
            answer.result(20)
        return answer

    monkeypatch.setattr(RpcClient, "query_topic_route_async", ended_at_first)
    topic = topic_of_type("again")

    def send() -> None:
        with rocketmq_producer(broker.grpc_address, topic) as producer:
            given = Message()
            given.topic, given.body = topic, b"hello"
            producer.send(given)

    with ThreadPoolExecutor(1) as thread:  # which has no event loop
        thread.submit(send).result()
    assert [each.body for each in stored_messages(broker, topic)] == [b"hello"]
    assert "start 1 of RocketMQ's client is made again" in capfd.readouterr().err
