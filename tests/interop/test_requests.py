"""Requests and replies: the unmodified Java client and ours at either end, on a real RocketMQ and on our broker."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from mqspark import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from mqspark.errors import RequestTimeout
from tests.interop.driver import JSON_FIRST, JavaDriver, JavaError, body_of, message
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster

Name = Callable[[str], str]

pytestmark = [
    pytest.mark.parametrize("java", JSON_FIRST, ids=["json", "binary"], indirect=True),
    pytest.mark.parametrize(
        "cluster",
        [
            pytest.param("mqspark_dev", id="mqspark"),
            pytest.param("rocketmq", id="rocketmq", marks=pytest.mark.slow("a real RocketMQ starts first")),
        ],
        indirect=True,
    ),
]

TIMEOUT_MS = 30_000


@contextmanager
def java_echo(java: JavaDriver, cluster: Cluster, topic: str, group: str) -> Iterator[None]:
    started = java.call("echo.start", namesrv=cluster.namesrv, group=group, topic=topic)
    yield
    java.call("echo.stop", handle=started["handle"])


@contextmanager
def our_echo(java: JavaDriver, cluster: Cluster, topic: str, group: str) -> Iterator[None]:
    with Producer(cluster.namesrv, group=f"{group}-replies") as replies:

        def answer(request: MessageExt) -> None:
            replies.reply(request, b"re: " + request.body)

        consumer = PushConsumer(
            cluster.namesrv,
            group=group,
            listener=answer,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(topic)
        with consumer:
            yield


@pytest.mark.parametrize("echo", [java_echo, our_echo], ids=["java-replies", "python-replies"])
def test_our_requests(
    java: JavaDriver, cluster: Cluster, name: Name, echo: Callable[..., AbstractContextManager[None]]
) -> None:
    topic, group = create_topic(cluster, name("Ask")), create_group(cluster, name("echo"))
    with echo(java, cluster, topic, group), Producer(cluster.namesrv, group=name("asking")) as producer:
        for body in (b"one", b"two", "d\u00e9j\u00e0 vu ".encode() * 700):
            reply = producer.request(Message.of(topic, body, tags="T"), TIMEOUT_MS)
            assert reply.body == b"re: " + body
            assert reply.properties["MSG_TYPE"] == "reply"
            assert reply.topic == f"{cluster.cluster_name}_REPLY_TOPIC"


@pytest.mark.parametrize("echo", [java_echo, our_echo], ids=["java-replies", "python-replies"])
def test_requests_of_java(
    java: JavaDriver, cluster: Cluster, name: Name, echo: Callable[..., AbstractContextManager[None]]
) -> None:
    topic, group = create_topic(cluster, name("Ask")), create_group(cluster, name("echo"))
    with echo(java, cluster, topic, group):
        handle = java.call("producer.start", namesrv=cluster.namesrv, group=name("asking"))["handle"]
        for body in (b"one", b"two", "d\u00e9j\u00e0 vu ".encode() * 700):
            reply = java.call(
                "producer.request", handle=handle, message=message(topic, body), timeout_ms=TIMEOUT_MS
            )
            assert body_of(reply) == b"re: " + body
            assert reply["properties"]["MSG_TYPE"] == "reply"
        java.call("producer.stop", handle=handle)


def test_nobody_replies(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Ask"))
    with Producer(cluster.namesrv, group=name("asking")) as producer:
        with pytest.raises(RequestTimeout):
            producer.request(Message.of(topic, b"x"), 1_000)
    handle = java.call("producer.start", namesrv=cluster.namesrv, group=name("asking"))["handle"]
    with pytest.raises(JavaError) as caught:
        java.call("producer.request", handle=handle, message=message(topic, b"x"), timeout_ms=1_000)
    assert caught.value.type == "RequestTimeoutException"
    java.call("producer.stop", handle=handle)
