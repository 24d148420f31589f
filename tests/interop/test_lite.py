"""Lite topics: the unmodified gRPC LitePushConsumer through the unmodified proxy, and mqadmin's commands, on our broker
and (slow) on a real RocketMQ."""

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.driver import Driver, JavaDriver
from tests.interop.proxy import Proxy, fetch_grpc_client, fetch_proxy, grpc_driver, running_proxy
from tests.interop.rocketmq import EITHER, either_cluster
from tests.interop.topics import create_group, create_topic
from tests.support.maven import ToolMissing

Name = Callable[[str], str]

SETTINGS = {"enableLmq": True, "enableMultiDispatch": True, "liteEventCheckInterval": 1000}


@pytest.fixture(params=EITHER, scope="module")
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    try:
        jars = fetch_proxy()
    except ToolMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("lite")
    with (
        either_cluster(request, folder / "cluster", SETTINGS) as cluster,
        running_proxy(jars, folder / "proxy", cluster) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    try:
        jars = fetch_grpc_client()
    except ToolMissing as missing:
        pytest.skip(str(missing))
    with grpc_driver(jars, tmp_path_factory.mktemp("grpc")) as driver:
        yield driver


class LiteClients:
    """Producers and lite push consumers by the driver's handles."""

    def __init__(self, grpc: Driver, proxy: Proxy, topic: str) -> None:
        self.grpc, self.proxy, self.topic = grpc, proxy, topic
        self.producer = self._start("producer.start", topics=[topic])

    def _start(self, verb: str, **options: Any) -> int:
        return int(self.grpc.call(verb, endpoints=self.proxy.grpc, **options)["handle"])

    def consumer(self, group: str, *lite_topics: str) -> int:
        handle = self._start("lite.start", topic=self.topic, group=group)
        for name in lite_topics:
            self.grpc.call("lite.subscribe", handle=handle, topic=name)
        return handle

    def send(self, lite_topic: str, *texts: str) -> None:
        messages = [
            {"topic": self.topic, "lite_topic": lite_topic, "body": base64.b64encode(text.encode()).decode()}
            for text in texts
        ]
        self.grpc.call("producer.send", handle=self.producer, messages=messages)

    def take(self, handle: int, count: int, timeout_ms: int = 30_000) -> list[str]:
        views = self.grpc.call("push.take", handle=handle, count=count, timeout_ms=timeout_ms)
        return [base64.b64decode(view["body"]).decode() for view in views]


@pytest.fixture
def lite(grpc: Driver, proxy: Proxy, name: Name) -> LiteClients:
    topic = create_topic(proxy.cluster, name("LiteParent"), 4, attributes="+message.type=LITE")
    time.sleep(1.5)  # until the proxy knows it
    return LiteClients(grpc, proxy, topic)


def lite_group(lite: LiteClients, group: str, **attributes: str) -> str:
    given = {"+lite.bind.topic": lite.topic, **{f"+{key}": value for key, value in attributes.items()}}
    create_group(lite.proxy.cluster, group, attributes=given)
    time.sleep(1.5)
    return group


def test_a_consumer_gets_its_lite_topics_alone(lite: LiteClients, name: Name) -> None:
    consumer = lite.consumer(lite_group(lite, name("lite-readers")), "chat-1", "chat-2")
    assert sorted(lite.grpc.call("lite.topics", handle=consumer)) == ["chat-1", "chat-2"]
    lite.send("chat-1", *(f"one {number}" for number in range(5)))
    lite.send("chat-2", "two 0")
    lite.send("chat-3", "nobody's")
    received = lite.take(consumer, 6)
    assert sorted(received) == [*(f"one {number}" for number in range(5)), "two 0"]
    lite.grpc.call("lite.unsubscribe", handle=consumer, topic="chat-2")
    lite.send("chat-2", "no longer")
    assert lite.take(consumer, 1, 3_000) == []
    lite.grpc.call("stop", handle=consumer)


def test_an_exclusive_lite_topic_moves_to_the_newcomer(lite: LiteClients, name: Name) -> None:
    group = lite_group(lite, name("lite-exclusive"), **{"lite.sub.model": "Exclusive"})
    first = lite.consumer(group, "session")
    lite.send("session", "for the first")
    assert lite.take(first, 1) == ["for the first"]
    second = lite.consumer(group, "session")
    deadline = time.monotonic() + 20
    while lite.grpc.call("lite.topics", handle=first) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert lite.grpc.call("lite.topics", handle=first) == []
    lite.send("session", "for the second")
    assert lite.take(second, 1) == ["for the second"]
    for handle in (first, second):
        lite.grpc.call("stop", handle=handle)


@pytest.mark.parametrize("java", ["JSON"], indirect=True)
def test_mqadmin_sees_lite_topics(lite: LiteClients, java: JavaDriver, name: Name) -> None:
    group = lite_group(lite, name("lite-seen"))
    consumer = lite.consumer(group, "seen")
    lite.send("seen", "one", "two")
    assert sorted(lite.take(consumer, 2)) == ["one", "two"]
    cluster = lite.proxy.cluster

    def mqadmin(command: str, *arguments: str) -> str:
        return str(java.mqadmin(command, "-n", cluster.namesrv, *arguments))

    assert lite.topic in mqadmin("getBrokerLiteInfo", "-b", cluster.broker, "-d")
    parent = mqadmin("getParentTopicInfo", "-p", lite.topic)
    assert group in parent
    topic = mqadmin("getLiteTopicInfo", "-p", lite.topic, "-l", "seen")
    assert cluster.broker_name in topic
    of_group = mqadmin("getLiteGroupInfo", "-p", lite.topic, "-g", group, "-l", "seen")
    assert cluster.broker_name in of_group
    assert "error" not in mqadmin(
        "triggerLiteDispatch", "-p", lite.topic, "-g", group, "-b", cluster.broker_name
    )
    lite.grpc.call("stop", handle=consumer)
