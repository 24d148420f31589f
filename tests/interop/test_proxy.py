"""RocketMQ's own Proxy 5.5.0 before our name server and broker, and (slow) before a real RocketMQ: the unmodified gRPC
client, and the remoting client through the proxy.

The proxy takes the part of a client with POP: it asks the broker for topics and groups, keeps receipts, changes
invisible times, passes on checks of transactions.
"""

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop import jars as jar_cache
from tests.interop.clusters import mqspark_cluster, rocketmq_cluster
from tests.interop.driver import Driver, DriverError, body_of
from tests.interop.proxy import Proxy, fetch_grpc_client, fetch_proxy, grpc_driver, running_proxy
from tests.interop.topics import create_group, create_topic

Name = Callable[[str], str]

# What takes seconds in production takes less here. A real broker asks again for what is decided if it asks too often.
SOON = {"transactionTimeOut": 1000, "transactionCheckInterval": 500, "transactionOpBatchInterval": 100}
PATIENT = {"transactionCheckInterval": 2500}

INVISIBLE_MS = 10_000
"""The shortest that the proxy allows for what it hands out."""


@pytest.fixture(scope="module", params=["mqspark", pytest.param("rocketmq", marks=pytest.mark.slow)])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    try:
        jars = fetch_proxy()
    except jar_cache.ToolMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("proxied")
    if request.param == "rocketmq":
        started = rocketmq_cluster(
            request.getfixturevalue("jars"), folder / "cluster", settings=SOON | PATIENT
        )
    else:
        settings = [word for key, value in SOON.items() for word in ("--set", f"{key}={value}")]
        started = mqspark_cluster(folder / "cluster", *settings)
    with started as cluster, running_proxy(jars, folder / "proxy", cluster) as running:
        yield running


@pytest.fixture(scope="module")
def grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    try:
        jars = fetch_grpc_client()
    except jar_cache.ToolMissing as missing:
        pytest.skip(str(missing))
    with grpc_driver(jars, tmp_path_factory.mktemp("grpc")) as driver:
        yield driver


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
        for handle in self._handles:
            self.driver.call("stop", handle=handle)


@pytest.fixture
def client(grpc: Driver, proxy: Proxy) -> Iterator[Client]:
    started = Client(grpc, proxy)
    yield started
    started.stop()


def message(topic: str, body: bytes, **fields: Any) -> dict[str, Any]:
    """A message in the driver's JSON form: tag, keys, group, delay_ms, properties."""
    return {"topic": topic, "body": base64.b64encode(body).decode(), **fields}


def bodies(received: list[dict[str, Any]]) -> Counter[bytes]:
    return Counter(map(body_of, received))


def test_messages_arrive_as_they_were_sent(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic, group = create_topic(cluster, name("Normal")), create_group(cluster, name("normal-readers"))
    producer = client.producer(topic)
    sent = [
        message(topic, b"m-%d" % number, tag="TagA", keys=[f"k-{number}", "all"], properties={"n": number})
        for number in range(20)
    ]
    receipts = client.send(producer, *sent[:10]) + client.send(producer, *sent[10:], together=True)
    consumer = client.simple(topic, group)
    received = client.receive(consumer, 20)
    client.ack(consumer, *received)
    expected = {
        receipt["id"]: (item["body"], item["tag"], item["keys"], {"n": str(item["properties"]["n"])})
        for receipt, item in zip(receipts, sent, strict=True)
    }
    assert {
        got["id"]: (got["body"], got["tag"], got["keys"], got["properties"]) for got in received
    } == expected
    assert {got["attempt"] for got in received} == {1}
    assert client.receive(consumer, 1, wait_s=1) == []


def test_what_is_not_acknowledged_comes_again_when_its_time_is_over(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic, group = create_topic(cluster, name("Again"), 1), create_group(cluster, name("again-readers"))
    client.send(client.producer(topic), *(message(topic, b"m-%d" % number) for number in range(3)))
    consumer = client.simple(topic, group)
    first, second, third = sorted(client.receive(consumer, 3, invisible_ms=60_000), key=body_of)
    client.ack(consumer, first)
    client.driver.call("simple.change", handle=consumer, view=second["view"], invisible_ms=10_000)
    (again,) = client.receive(consumer, 1)
    assert (body_of(again), again["attempt"]) == (b"m-1", 2)
    client.ack(consumer, again)
    with pytest.raises(DriverError):
        client.ack(consumer, second)
    client.ack(consumer, third)


def test_sql_and_tags_choose_messages(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Filtered"))
    client.send(
        client.producer(topic),
        *(message(topic, b"m-%d" % n, tag=f"Tag{n % 3}", properties={"n": n}) for n in range(12)),
    )
    for kind, expression, numbers in (
        ("TAG", "Tag0 || Tag2", [n for n in range(12) if n % 3 != 1]),
        ("SQL92", "n BETWEEN 4 AND 7 AND TAGS <> 'Tag1'", [5, 6]),
    ):
        consumer = client.simple(topic, create_group(cluster, name(f"filters-{kind}")), expression, kind)
        received = client.receive(consumer, len(numbers))
        client.ack(consumer, *received)
        assert bodies(received) == Counter(b"m-%d" % n for n in numbers), expression
