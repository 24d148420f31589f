"""Receiving with RocketMQ's own client for Python: simple and push consumers, in order, of lite topics, beside clients
of remoting."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from mqspark.client.sync import AdminClient, PopConsumer, Producer, PushConsumer
from mqspark.message import Message, MessageExt
from mqspark.protocol.bodies.topic_bodies import (
    CustomizedRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.interop.python.starts import started
from tests.support.grpcclients import (
    bare_caller,
    receive_request,
    resource,
    rocketmq_producer,
    stored_messages,
)
from tests.support.waiting import eventually

TopicOfType = Callable[..., str]

WAIT_S = 20.0


def configuration(broker: Broker) -> Any:
    from rocketmq import ClientConfiguration, Credentials

    return ClientConfiguration(broker.grpc_address, Credentials(), "", 5)


def filters(subscriptions: Mapping[str, str]) -> dict[str, Any]:
    from rocketmq import FilterExpression

    return {topic: FilterExpression(tag) for topic, tag in subscriptions.items()}


@contextmanager
def running(make: Callable[[], Any]) -> Iterator[Any]:
    client = started(make)
    try:
        yield client
    finally:
        client.shutdown()


@contextmanager
def simple_consumer(broker: Broker, group: str, **subscriptions: str) -> Iterator[Any]:
    from rocketmq import SimpleConsumer

    with running(lambda: SimpleConsumer(configuration(broker), group, filters(subscriptions), 5)) as consumer:
        yield consumer


class Listened:
    """What the listener of a push consumer gets; ``fails`` says how often each body fails before it succeeds."""

    def __init__(self, fails: Mapping[bytes, int] | None = None) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self._left = dict(fails or {})
        self._lock = threading.Lock()

    def listener(self) -> Any:
        from rocketmq import ConsumeResult, MessageListener

        def consume(_: Any, message: Any) -> Any:
            with self._lock:
                left = self._left.get(message.body, 0)
                self._left[message.body] = left - 1
            self.messages.put(message)
            return ConsumeResult.FAILURE if left > 0 else ConsumeResult.SUCCESS

        return type("Listener", (MessageListener,), {"consume": consume})()

    def take(self, count: int) -> list[Any]:
        return [self.messages.get(timeout=WAIT_S) for _ in range(count)]


@contextmanager
def push_consumer(broker: Broker, group: str, listened: Listened, **subscriptions: str) -> Iterator[Any]:
    from rocketmq import PushConsumer as RocketMQPushConsumer

    with running(
        lambda: RocketMQPushConsumer(
            configuration(broker), group, listened.listener(), filters(subscriptions)
        )
    ) as consumer:
        yield consumer


def send(broker: Broker, topic: str, *bodies: bytes, **fields: str) -> None:
    from rocketmq import Message as RocketMQMessage

    with rocketmq_producer(broker.grpc_address, topic) as producer:
        for body in bodies:
            made = RocketMQMessage()
            made.topic, made.body = topic, body
            for name, value in fields.items():
                setattr(made, name, value)
            producer.send(made)


def create_group(broker: Broker, group: str, **config: Any) -> str:
    with AdminClient(broker.namesrv) as admin:
        admin.create_group(group, config=SubscriptionGroupConfig(**config))
    return group


def receive(consumer: Any, count: int, invisible_s: int = 10) -> list[Any]:
    received: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(received) < count and time.monotonic() < deadline:
        received += consumer.receive(32, invisible_s) or ()
    return received


def test_a_simple_consumer_receives_and_acknowledges(broker: Broker, topic_of_type: TopicOfType) -> None:
    topic = topic_of_type("simple")
    send(broker, topic, b"a", b"b", tag="blue", keys="k1")
    send(broker, topic, b"c", tag="red")
    with simple_consumer(broker, "simple-group", **{topic: "blue"}) as consumer:
        received = receive(consumer, 2)
        for message in received:
            consumer.ack(message)
    assert Counter(message.body for message in received) == Counter([b"a", b"b"])
    assert {(message.tag, *message.keys, message.topic) for message in received} == {("blue", "k1", topic)}


def test_a_changed_invisible_time_brings_a_message_again(broker: Broker, topic_of_type: TopicOfType) -> None:
    topic = topic_of_type("changed", queues=1)
    send(broker, topic, b"m")
    with simple_consumer(broker, "changing", **{topic: "*"}) as consumer:
        (first,) = receive(consumer, 1, invisible_s=600)
        consumer.change_invisible_duration(first, 1)
        (again,) = receive(consumer, 1)
        assert (again.message_id, again.delivery_attempt) == (first.message_id, 2)
        assert again.topic == topic
        consumer.ack(again)


def test_a_push_consumer_gets_failed_messages_again_and_then_they_are_dead_letters(
    broker: Broker, topic_of_type: TopicOfType
) -> None:
    topic = topic_of_type("pushed", queues=2)
    policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[1_000]))
    group = create_group(broker, "pushing", retry_max_times=1, group_retry_policy=policy)
    listened = Listened({b"fails once": 1, b"hopeless": 9})
    with push_consumer(broker, group, listened, **{topic: "*"}):
        send(broker, topic, b"good", b"fails once", b"hopeless")
        taken = listened.take(5)
        attempts = Counter((message.body, message.delivery_attempt) for message in taken)
        expected = [(b"good", 1), (b"fails once", 1), (b"fails once", 2), (b"hopeless", 1), (b"hopeless", 2)]
        assert attempts == Counter(expected)
        eventually(lambda: stored_messages(broker, f"%DLQ%{group}", 1), "a dead letter", WAIT_S)
    assert [each.body for each in stored_messages(broker, f"%DLQ%{group}", 1)] == [b"hopeless"]


def test_a_group_of_messages_comes_in_order(broker: Broker, topic_of_type: TopicOfType) -> None:
    topic = topic_of_type("in-order", "FIFO")
    group = create_group(broker, "ordered", consume_message_orderly=True)
    listened = Listened()
    with push_consumer(broker, group, listened, **{topic: "*"}):
        for number in range(9):
            send(broker, topic, b"%d-%d" % (number % 3, number), message_group=f"g{number % 3}")
        taken = [message.body for message in listened.take(9)]
    for number in range(3):
        of_group = [body for body in taken if body.startswith(b"%d-" % number)]
        assert of_group == [b"%d-%d" % (number, n) for n in range(number, 9, 3)]


def test_lite_topics_are_pushed_and_received(broker: Broker, topic_of_type: TopicOfType) -> None:
    from rocketmq import LitePushConsumer, LiteSimpleConsumer

    parent = topic_of_type("lite", "LITE")
    listened = Listened()
    groups = [
        create_group(broker, name, attributes={"+lite.bind.topic": parent})
        for name in ("lite-pushing", "lite-asking")
    ]
    with ExitStack() as stack:
        push = stack.enter_context(
            running(lambda: LitePushConsumer(configuration(broker), groups[0], parent, listened.listener()))
        )
        simple = stack.enter_context(
            running(lambda: LiteSimpleConsumer(parent, configuration(broker), groups[1], 5))
        )
        for consumer in (push, simple):
            # Names of one letter: this client subscribes to each letter of a name.
            consumer.subscribe_lite("w")
            consumer.subscribe_lite("l")
            consumer.unsubscribe_lite("l")
        send(broker, parent, b"1", b"2", lite_topic="w")
        send(broker, parent, b"3", lite_topic="l")
        assert [(message.body, message.lite_topic) for message in listened.take(2)] == [
            (b"1", "w"),
            (b"2", "w"),
        ]
        received = receive(simple, 2)
        assert [message.body for message in received] == [b"1", b"2"]
        for message in received:
            simple.ack(message)
    assert listened.messages.empty()


def test_clients_of_grpc_and_of_remoting_share_topics(broker: Broker, topic_of_type: TopicOfType) -> None:
    topic = topic_of_type("shared")
    taken: queue.Queue[bytes] = queue.Queue()
    remoting = PushConsumer(
        broker.namesrv, group="mixed-remoting", listener=lambda each: taken.put(each.body)
    )
    remoting.subscribe(topic)
    with (
        Producer(broker.namesrv, group="mixed-senders", compress_from_bytes=100) as producer,
        remoting,
        simple_consumer(broker, "mixed-grpc", **{topic: "*"}) as consumer,
    ):
        long = b"long and compressed " * 100
        producer.send(Message(topic, long))
        send(broker, topic, b"of grpc")
        received = receive(consumer, 2)
        assert Counter(message.body for message in received) == Counter([long, b"of grpc"])
        assert Counter(taken.get(timeout=WAIT_S) for _ in range(2)) == Counter([long, b"of grpc"])


def test_a_group_has_members_of_grpc_and_of_remotings_pop(broker: Broker, topic_of_type: TopicOfType) -> None:
    """Each message goes to one of them, whoever sent it."""
    topic, group = topic_of_type("one-group"), create_group(broker, "one-group")
    with AdminClient(broker.namesrv) as admin:
        admin.set_consume_mode(topic, group, "POP")
    popped: queue.Queue[bytes] = queue.Queue()
    others_have_some = threading.Event()

    def take(message: MessageExt) -> None:
        popped.put(message.body)
        others_have_some.wait(WAIT_S)

    remoting = PopConsumer(broker.namesrv, group=group, listener=take, max_unacknowledged=1, pop_batch_size=1)
    remoting.subscribe(topic)
    bodies = [b"%d" % number for number in range(12)]
    with (
        Producer(broker.namesrv, group="pop-senders") as producer,
        remoting,
        simple_consumer(broker, group, **{topic: "*"}) as consumer,
    ):
        producer.send(Message(topic, bodies[0]))
        assert eventually(popped.qsize)
        send(broker, topic, *bodies[1:6])
        for body in bodies[6:]:
            producer.send(Message(topic, body))
        received: list[Any] = consumer.receive(4, 30) or []
        others_have_some.set()
        deadline = time.monotonic() + WAIT_S
        while len(received) + popped.qsize() < len(bodies) and time.monotonic() < deadline:
            received += consumer.receive(32, 30) or []
        for message in received:
            consumer.ack(message)
    of_remoting = [popped.get() for _ in range(popped.qsize())]
    assert received
    assert of_remoting
    assert Counter([*(message.body for message in received), *of_remoting]) == Counter(bodies)


# --- bare calls -----------------------------------------------------------------------------------------------


def test_a_cancelled_stream_keeps_no_message(broker: Broker, topic_of_type: TopicOfType) -> None:
    topic = topic_of_type("cancelled", queues=1)
    with bare_caller(broker.grpc_address) as caller:
        stream = caller.ReceiveMessage(receive_request(topic, "cancelling"))
        stream.cancel()
        send(broker, topic, b"m")
        responses = list(caller.ReceiveMessage(receive_request(topic, "cancelling")))
    assert [each.message.body for each in responses if each.HasField("message")] == [b"m"]
    assert responses[0].status.code == pb.OK
    assert responses[-1].HasField("delivery_timestamp")


@pytest.mark.parametrize("entries", [1, 200])
def test_receipts_of_nobody_are_refused_one_by_one(
    broker: Broker, topic_of_type: TopicOfType, entries: int
) -> None:
    topic = topic_of_type("foreign")
    with bare_caller(broker.grpc_address) as caller:
        request = pb.AckMessageRequest(group=resource("foreign-group"), topic=resource(topic))
        for _ in range(entries):
            request.entries.add(message_id="id", receipt_handle="not a handle")
        answer = caller.AckMessage(request)
    assert (answer.status.code, len(answer.entries)) == (pb.INTERNAL_SERVER_ERROR, entries)
