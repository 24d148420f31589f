"""gRPC clients of any language by their drivers, which understand the same requests: see java/GrpcDriver.java."""

import base64
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.interop.driver import Driver, body_of
from tests.interop.proxy import Proxy
from tests.interop.topics import create_group, create_topic, message_count
from tests.support.waiting import eventually

Name = Callable[[str], str]

INVISIBLE_MS = 60_000


class Client:
    """gRPC clients by the driver's handles, stopped with the test."""

    def __init__(self, driver: Driver, proxy: Proxy) -> None:
        self.driver, self.proxy = driver, proxy
        self._handles: list[int] = []

    def start(self, verb: str, **options: Any) -> int:
        handle = int(self.driver.call(verb, endpoints=self.proxy.grpc, **options)["handle"])
        self._handles.append(handle)
        return handle

    def producer(self, *topics: str, **options: Any) -> int:
        return self.start("producer.start", topics=list(topics), **options)

    def send(self, producer: int, *messages: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = self.driver.call(
            "producer.send", handle=producer, messages=list(messages), **options
        )
        return sent

    def simple(self, topic: str, group: str, expression: str = "*", kind: str = "TAG") -> int:
        return self.start(
            "simple.start", group=group, await_ms=5_000, subscriptions={topic: [kind, expression]}
        )

    def push(self, topic: str, group: str, expression: str = "*", kind: str = "TAG", **options: Any) -> int:
        return self.start("push.start", group=group, subscriptions={topic: [kind, expression]}, **options)

    def receive(
        self, consumer: int, count: int, invisible_ms: int = INVISIBLE_MS, wait_s: float = 45
    ) -> list[dict[str, Any]]:
        """So many messages, if they come in time."""
        received: list[dict[str, Any]] = []
        deadline = time.monotonic() + wait_s
        while len(received) < count and time.monotonic() < deadline:
            received += self.driver.call("simple.receive", handle=consumer, max=32, invisible_ms=invisible_ms)
        return received

    def ack(self, consumer: int, *received: dict[str, Any]) -> None:
        for message in received:
            self.driver.call("simple.ack", handle=consumer, view=message["view"])

    def take(self, consumer: int, count: int, wait_s: float = 45) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = self.driver.call(
            "push.take", handle=consumer, count=count, timeout_ms=int(wait_s * 1000)
        )
        return taken

    def stop(self) -> None:
        """Nobody waits for it: a push consumer stops when its long polls are over."""
        for handle in self._handles:
            self.driver.submit("stop", handle=handle)


def message(topic: str, body: bytes, **fields: Any) -> dict[str, Any]:
    """A message in the driver's JSON form: tag, keys, group, delay_ms, properties."""
    return {"topic": topic, "body": base64.b64encode(body).decode(), **fields}


def bodies(received: list[dict[str, Any]]) -> Counter[bytes]:
    return Counter(map(body_of, received))


# --- what clients of all languages are asked to do


def choose(client: Client, name: Name) -> None:
    """By tags and by SQL."""
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Filtered"))
    sent = [message(topic, b"m-%d" % n, tag=f"Tag{n % 3}", properties={"n": str(n)}) for n in range(12)]
    client.send(client.producer(topic), *sent)
    for kind, expression, numbers in (
        ("TAG", "Tag0 || Tag2", [n for n in range(12) if n % 3 != 1]),
        ("SQL92", "n BETWEEN 4 AND 7 AND TAGS <> 'Tag1'", [5, 6]),
    ):
        consumer = client.simple(topic, create_group(cluster, name(f"filters-{kind}")), expression, kind)
        received = client.receive(consumer, len(numbers))
        client.ack(consumer, *received)
        assert bodies(received) == Counter(b"m-%d" % n for n in numbers), expression


def keep_order(
    client: Client, name: Name, count: int, take: Callable[[str, str], list[dict[str, Any]]]
) -> None:
    """The messages of a group, which ``take`` gets from a topic for a group of consumers."""
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Fifo"), attributes="+message.type=FIFO")
    group = create_group(cluster, name("fifo-readers"), consumeMessageOrderly=True)
    sent = [message(topic, b"%d-%d" % (n % 3, n), group=f"g{n % 3}") for n in range(count)]
    client.send(client.producer(topic), *sent)
    taken = take(topic, group)
    assert bodies(taken) == Counter(map(body_of, sent))
    for number in range(3):
        of_group = [body_of(got) for got in taken if got["group"] == f"g{number}"]
        assert of_group == [b"%d-%d" % (number, n) for n in range(number, count, 3)]


def take_back(client: Client, name: Name, delay_ms: int) -> dict[str, Any]:
    """One of two delayed messages; returns the other."""
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Recalled"), attributes="+message.type=DELAY")
    consumer = client.push(topic, create_group(cluster, name("recalled-readers")))
    producer = client.producer(topic)
    taken_back = message(topic, b"taken back", delay_ms=delay_ms - 1_000)
    kept, gone = client.send(producer, message(topic, b"kept", delay_ms=delay_ms), taken_back)
    handle = gone["recall_handle"]
    assert gone["id"] == client.driver.call(
        "producer.recall", handle=producer, topic=topic, recall_handle=handle
    )
    (got,) = client.take(consumer, 1)
    assert (got["id"], body_of(got)) == (kept["id"], b"kept")
    return got


def fail(client: Client, name: Name) -> None:
    """Until a message is a dead letter, by the retry policy of the group."""
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Failing"), 1)
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000]}}
    group = create_group(cluster, name("failing-readers"), retryMaxTimes=2, groupRetryPolicy=policy)
    client.send(client.producer(topic), message(topic, b"hopeless", tag="T", properties={"p": "v"}))
    taken = client.take(client.push(topic, group, failures=9), 3)
    assert [(body_of(got), got["attempt"]) for got in taken] == [(b"hopeless", n) for n in (1, 2, 3)]
    eventually(lambda: message_count(cluster, f"%DLQ%{group}", 1) == 1, "a dead letter")


def hurry(client: Client, name: Name) -> None:
    """The highest priority comes first."""
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Hurried"), 8, attributes="+message.type=PRIORITY")
    sent = [message(topic, b"%d" % priority, priority=priority) for priority in (3, 7, 1, 5)]
    client.send(client.producer(topic), *sent)
    consumer = client.simple(topic, create_group(cluster, name("hurried-readers")))
    received = client.receive(consumer, 4)
    client.ack(consumer, *received)
    assert [body_of(got) for got in received] == [b"7", b"5", b"3", b"1"]
