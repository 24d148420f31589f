"""RocketMQ's own gRPC clients for Go, JavaScript, Python and Rust, unmodified, served by our broker; slow: by
RocketMQ's proxy before a real RocketMQ, or a test here would test a fancy of its own. For Java: ``test_proxy``."""

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import driven
from tests.interop.driven import Client, Name, bodies, message
from tests.interop.driver import Driver, DriverError, Program, body_of
from tests.interop.other_clients import GRPC_GO, GRPC_JS, GRPC_PYTHON, GRPC_RUST
from tests.interop.proxy import Proxy, served, unproxied
from tests.interop.rocketmq import EITHER, SOON
from tests.interop.topics import create_group, create_topic

LITE = {"enableLmq": "true", "enableMultiDispatch": "true"}
SETTINGS = {**SOON, **LITE, "recallMessageEnable": "true"}

PROGRAMS = {"go": GRPC_GO, "js": GRPC_JS, "python": GRPC_PYTHON, "rust": GRPC_RUST}

slow = pytest.mark.slow("in each language; the Java and Python clients show it in the fast suite")


@pytest.fixture(params=["without", *EITHER[1:]], scope="module")
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Our broker, which needs no proxy; or RocketMQ's."""
    with served(request, tmp_path_factory.mktemp("served"), SETTINGS) as running:
        yield running


@pytest.fixture
def client(
    request: pytest.FixtureRequest, drivers: Callable[[Program], Driver], proxy: Proxy
) -> Iterator[Client]:
    """A client of the language that the test's parameter names."""
    made = Client(drivers(PROGRAMS[request.param]), proxy)
    yield made
    made.stop()


in_each = pytest.mark.parametrize(
    "client",
    [
        "go",
        "js",
        "python",
        pytest.param("rust", marks=pytest.mark.slow("its client takes minutes to compile")),
    ],
    indirect=True,
)
in_those_that_push = pytest.mark.parametrize("client", ["go", "js", "python"], indirect=True)
"""Rust's client has no push consumer, takes nothing back, changes no invisible time, and knows no lite topics."""


@in_each
def test_messages_arrive_as_they_were_sent(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic, group = create_topic(cluster, name("Sent")), create_group(cluster, name("sent-readers"))
    producer = client.producer(topic)
    sent = [
        message(topic, f"Grüße {n} 🚀".encode(), tag="TagA", keys=[f"k-{n}", "all"], properties={"größe": str(n)})
        for n in range(6)
    ]  # fmt: skip
    receipts = client.send(producer, *sent[:3]) + client.send(producer, *sent[3:], together=True)
    consumer = client.simple(topic, group)
    received = client.receive(consumer, 6)
    client.ack(consumer, *received)
    expected = {
        receipt["id"]: (item["body"], item["tag"], sorted(item["keys"]), item["properties"])
        for receipt, item in zip(receipts, sent, strict=True)
    }
    assert {
        got["id"]: (got["body"], got["tag"], sorted(got["keys"]), got["properties"]) for got in received
    } == expected
    assert {(got["topic"], got["attempt"]) for got in received} == {(topic, 1)}
    now_ms = time.time() * 1000
    assert all(now_ms - 60_000 < got["born_timestamp"] < now_ms + 1 for got in received)


@slow
@in_each
def test_what_is_not_acknowledged_comes_again(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic, group = create_topic(cluster, name("Again"), 1), create_group(cluster, name("again-readers"))
    client.send(client.producer(topic), *(message(topic, b"m-%d" % n) for n in range(3)))
    consumer = client.simple(topic, group)
    first, second, third = sorted(client.receive(consumer, 3, invisible_ms=10_000), key=body_of)
    client.ack(consumer, first, third)
    (again,) = client.receive(consumer, 1)
    assert (body_of(again), again["attempt"], again["id"]) == (b"m-1", 2, second["id"])
    client.ack(consumer, again)


@slow
@in_those_that_push
def test_invisible_times_change(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic, group = create_topic(cluster, name("Changed"), 1), create_group(cluster, name("changed-readers"))
    client.send(client.producer(topic), message(topic, b"m"))
    consumer = client.simple(topic, group)
    (first,) = client.receive(consumer, 1)
    client.driver.call("simple.change", handle=consumer, view=first["view"], invisible_ms=1000)
    (again,) = client.receive(consumer, 1, wait_s=45)  # it was invisible for a minute
    assert (body_of(again), again["attempt"]) == (b"m", 2)
    client.ack(consumer, again)


@slow
@in_each
def test_sql_and_tags_choose_messages(client: Client, name: Name) -> None:
    driven.choose(client, name)


@slow
@in_each
def test_messages_of_a_group_come_one_after_the_other(client: Client, name: Name) -> None:
    def take(topic: str, group: str) -> list[dict[str, Any]]:
        consumer = client.simple(topic, group)
        received: list[dict[str, Any]] = []
        while len(received) < 9:
            some = client.receive(consumer, 1)
            assert some, f"{len(received)} of 9 came"
            client.ack(consumer, *some)
            received += some
        return received

    driven.keep_order(client, name, 9, take)


@slow
@in_those_that_push
def test_push_consumers_keep_the_order_of_a_group(client: Client, name: Name) -> None:
    driven.keep_order(client, name, 15, lambda topic, group: client.take(client.push(topic, group), 15))


@slow
@in_each
def test_delayed_messages_come_late(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Delayed"), attributes="+message.type=DELAY")
    group = create_group(cluster, name("delayed-readers"))
    consumer = client.simple(topic, group)
    (sent,) = client.send(client.producer(topic), message(topic, b"late", delay_ms=4_000))
    (got,) = client.receive(consumer, 1)
    assert (got["id"], body_of(got)) == (sent["id"], b"late")
    assert time.time() * 1000 >= got["delivery_timestamp"] > got["born_timestamp"]


@slow
@in_those_that_push
def test_delayed_messages_are_taken_back(client: Client, name: Name) -> None:
    driven.take_back(client, name, 6_000)


@slow
@in_each
def test_transactions_are_committed_rolled_back_and_asked_for(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Deals"), attributes="+message.type=TRANSACTION")
    group = create_group(cluster, name("deals-readers"))
    producer = client.producer(topic, checker="COMMIT")
    for body, end in ((b"committed", "commit"), (b"rolled back", "rollback"), (b"asked for", "none")):
        client.driver.call("producer.transact", handle=producer, message=message(topic, body), end=end)
    consumer = client.simple(topic, group)
    received = client.receive(consumer, 2)
    client.ack(consumer, *received)
    asked = {base64.b64decode(body) for body in client.driver.call("producer.checked", handle=producer)}
    assert set(bodies(received)) >= {b"committed", b"asked for"}
    assert b"asked for" in asked
    if cluster.kind == "mqspark":
        # A real broker may ask for what is decided, and deliver what it is told then.
        assert (bodies(received), asked) == (Counter([b"committed", b"asked for"]), {b"asked for"})


@slow
@in_those_that_push
def test_failures_are_retried_by_the_policy_of_the_group_and_end_as_dead_letters(
    client: Client, name: Name
) -> None:
    driven.fail(client, name)


@slow
@in_those_that_push
def test_lite_topics_are_read_by_those_who_subscribe(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("LiteParent"), 1, attributes="+message.type=LITE")
    group = create_group(cluster, name("lite-readers"), attributes={"+lite.bind.topic": topic})
    consumer = client.start("lite.start", topic=topic, group=group)
    client.driver.call("lite.subscribe", handle=consumer, topic="chat-1")
    producer = client.producer(topic)
    client.send(
        producer, message(topic, b"one", lite_topic="chat-1"), message(topic, b"two", lite_topic="chat-2")
    )
    (got,) = client.take(consumer, 1)
    assert (body_of(got), got["lite_topic"]) == (b"one", "chat-1")
    assert client.take(consumer, 1, wait_s=2) == []


@slow
@pytest.mark.parametrize("client", ["go", "python"], indirect=True)
def test_the_highest_priority_comes_first(client: Client, name: Name) -> None:
    """JavaScript's client sends such messages as normal ones, and Rust's gives none."""
    driven.hurry(client, name)


@slow
@in_each
def test_refusals_say_what_is_wrong(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    normal = create_topic(cluster, name("Typed"), attributes="+message.type=NORMAL")
    producer = client.producer(normal)
    with pytest.raises(DriverError):
        client.send(producer, message(normal, b"m", group="g"))
    with pytest.raises(DriverError):
        client.send(producer, message(name("Missing"), b"m"))


@slow
def test_tls_as_the_go_client_speaks_it_by_default(
    drivers: Callable[[Program], Driver], tmp_path: Path
) -> None:
    """With the certificate that a broker makes for development, which it does not check."""
    settings = {**SETTINGS, "tls.test.mode.enable": "true", "tls.server.mode": "permissive"}
    with unproxied(tmp_path, settings) as proxy:
        client = Client(drivers(GRPC_GO), proxy)
        topic, group = create_topic(proxy.cluster, "Secret"), create_group(proxy.cluster, "secret-readers")
        producer = client.start("producer.start", topics=[topic], tls=True)
        client.send(producer, message(topic, b"m"))
        consumer = client.start(
            "simple.start", group=group, await_ms=5_000, subscriptions={topic: ["TAG", "*"]}, tls=True
        )
        (got,) = client.receive(consumer, 1)
        assert body_of(got) == b"m"
        client.ack(consumer, got)
