"""RocketMQ's own Proxy 5.5.0 before our name server and broker, and (slow) before a real RocketMQ: the unmodified gRPC
client, and the remoting client through the proxy. And the gRPC client without a proxy, served by our broker itself.

The proxy takes the part of a client with POP: it asks the broker for topics and groups, keeps receipts, changes
invisible times, passes on checks of transactions.
"""

import base64
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import driven
from tests.interop.driven import Client, Name, bodies, message
from tests.interop.driver import Driver, DriverError, JavaDriver, body_of
from tests.interop.driver import message as plain_message
from tests.interop.proxy import Proxy, fetch_proxy, running_proxy, served
from tests.interop.rocketmq import EITHER, SOON
from tests.interop.topics import create_group, create_topic, message_count
from tests.support.waiting import eventually

SETTINGS = {**SOON, "recallMessageEnable": "true", "enableLmq": True, "enableMultiDispatch": True}


@pytest.fixture(params=["without", *EITHER], scope="module")
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with served(request, tmp_path_factory.mktemp("served"), SETTINGS) as running:
        yield running


@pytest.fixture
def client(grpc: Driver, proxy: Proxy) -> Iterator[Client]:
    started = Client(grpc, proxy)
    yield started
    started.stop()


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


def test_what_is_not_acknowledged_comes_again_when_its_time_is_over(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic, group = create_topic(cluster, name("Again"), 1), create_group(cluster, name("again-readers"))
    client.send(client.producer(topic), *(message(topic, b"m-%d" % number) for number in range(3)))
    consumer = client.simple(topic, group)
    first, second, third = sorted(client.receive(consumer, 3), key=body_of)
    client.ack(consumer, first)
    client.driver.call("simple.change", handle=consumer, view=second["view"], invisible_ms=1000)
    (again,) = client.receive(consumer, 1)
    assert (body_of(again), again["attempt"]) == (b"m-1", 2)
    client.ack(consumer, again)
    with pytest.raises(DriverError):
        client.ack(consumer, second)
    client.ack(consumer, third)


def test_sql_and_tags_choose_messages(client: Client, name: Name) -> None:
    driven.choose(client, name)


def test_messages_of_a_group_come_one_after_the_other(client: Client, name: Name) -> None:
    driven.keep_order(client, name, 15, lambda topic, group: client.take(client.push(topic, group), 15))


def test_delayed_messages_come_late_or_are_taken_back(client: Client, name: Name) -> None:
    got = driven.take_back(client, name, 5_000)
    assert time.time() * 1000 >= got["delivery_timestamp"] > got["born_timestamp"]


def test_transactions_are_committed_rolled_back_and_asked_for(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("Deals"), attributes="+message.type=TRANSACTION")
    group = create_group(cluster, name("deals-readers"))
    consumer = client.push(topic, group)
    producer = client.producer(topic, checker="COMMIT")
    for body, end in ((b"committed", "commit"), (b"rolled back", "rollback"), (b"asked for", "none")):
        client.driver.call("producer.transact", handle=producer, message=message(topic, body), end=end)
    seen: Counter[bytes] = Counter()

    def have_both() -> bool:
        seen.update(bodies(client.take(consumer, 1, wait_s=1)))
        return len(seen) == 2

    eventually(have_both, "both to be delivered")
    asked = {base64.b64decode(body) for body in client.driver.call("producer.checked", handle=producer)}
    assert set(seen) == {b"committed", b"asked for"}
    assert b"asked for" in asked
    if cluster.kind == "mqspark":
        # A real broker may ask for what is decided, and deliver again what it is told.
        assert (set(seen.values()), asked) == ({1}, {b"asked for"})


@pytest.mark.slow("waits for retries in real time")
def test_failures_are_retried_by_the_policy_of_the_group_and_end_as_dead_letters(
    client: Client, name: Name
) -> None:
    driven.fail(client, name)


def test_in_order_what_never_succeeds_becomes_a_dead_letter_and_the_next_goes_on(
    client: Client, name: Name
) -> None:
    """The client itself forwards it, naming the receipt."""
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("FifoFailing"), 1, attributes="+message.type=FIFO")
    group = create_group(
        cluster, name("fifo-failing"), consumeMessageOrderly=True, retryMaxTimes=1,
        groupRetryPolicy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}},
    )  # fmt: skip
    client.send(client.producer(topic), *(message(topic, body, group="g") for body in (b"hopeless", b"next")))
    taken = client.take(client.push(topic, group, failures=9), 4)
    assert [body_of(got) for got in taken] == [b"hopeless", b"hopeless", b"next", b"next"]
    eventually(lambda: message_count(cluster, f"%DLQ%{group}", 1) == 2, "two dead letters")


@pytest.mark.slow("waits for invisible times in real time")
def test_a_queue_of_ordered_messages_waits_for_those_that_are_out(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    topic = create_topic(cluster, name("FifoSimple"), 1, attributes="+message.type=FIFO")
    group = create_group(cluster, name("fifo-simple"), consumeMessageOrderly=True)
    producer = client.producer(topic)
    client.send(producer, *(message(topic, b"m-%d" % n, group="g") for n in range(3)))
    consumer = client.simple(topic, group)
    first = client.receive(consumer, 3)
    assert [body_of(got) for got in first] == [b"m-0", b"m-1", b"m-2"]
    client.send(producer, message(topic, b"m-3", group="g"))
    client.ack(consumer, *first[:2])
    assert client.receive(consumer, 1, wait_s=1) == []  # the third may still fail
    client.driver.call("simple.change", handle=consumer, view=first[2]["view"], invisible_ms=1000)
    again = client.receive(consumer, 2)
    assert [(body_of(got), got["attempt"]) for got in again] == [(b"m-2", 2), (b"m-3", 1)]
    client.ack(consumer, *again)


@pytest.mark.slow("starts a proxy of its own")
def test_a_proxy_that_puts_acknowledgements_together(
    grpc: Driver, proxy: Proxy, name: Name, tmp_path: Path
) -> None:
    if proxy.grpc == proxy.cluster.grpc:
        pytest.skip("it starts a proxy of its own, and does before the same broker")
    topic = create_topic(proxy.cluster, name("Together"), 1, attributes="+message.type=FIFO")
    group = create_group(proxy.cluster, name("together"), consumeMessageOrderly=True)
    with running_proxy(fetch_proxy(), tmp_path, proxy.cluster, {"enableBatchAck": True}) as batching:
        client = Client(grpc, batching)
        producer, consumer = client.producer(topic), client.simple(topic, group)
        for body in (b"first", b"second"):  # which waits until the first is acknowledged
            client.send(producer, message(topic, body, group="g"))
            (got,) = client.receive(consumer, 1)
            assert body_of(got) == body
            client.ack(consumer, got)
        client.stop()


def test_the_highest_priority_comes_first(client: Client, name: Name) -> None:
    driven.hurry(client, name)


def test_refusals_say_what_is_wrong(client: Client, name: Name) -> None:
    cluster = client.proxy.cluster
    normal = create_topic(cluster, name("Typed"), attributes="+message.type=NORMAL")
    producer = client.producer(normal)
    with pytest.raises(DriverError, match="FIFO"):
        client.send(producer, message(normal, b"m", group="g"))
    with pytest.raises(DriverError, match=r"40402|NotFound"):
        client.send(producer, message(name("Missing"), b"m"))


# ---- the remoting client, for which the proxy is name server and broker

with_json = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)


class Remoting:
    """What the Java driver started, stopped with the test."""

    def __init__(self, java: JavaDriver, proxy: Proxy) -> None:
        self.java, self.proxy = java, proxy
        self._started: list[tuple[str, int]] = []

    def start(self, noun: str, **options: Any) -> int:
        handle = int(self.java.call(f"{noun}.start", namesrv=self.proxy.remoting, **options)["handle"])
        self._started.append((noun, handle))
        return handle

    def push(self, topic: str, group: str, **options: Any) -> int:
        settings = {"model": "CLUSTERING", "expression": "*", "from": "CONSUME_FROM_FIRST_OFFSET", **options}
        return self.start("push", topic=topic, group=group, **settings)

    def take(self, consumer: int, count: int, wait_s: float = 45) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = self.java.call(
            "push.take", handle=consumer, count=count, timeout_ms=int(wait_s * 1000)
        )
        return taken

    def stop(self) -> None:
        for noun, handle in self._started:
            self.java.call(f"{noun}.stop", handle=handle)


@pytest.fixture
def remoting(java: JavaDriver, proxy: Proxy) -> Iterator[Remoting]:
    if proxy.grpc == proxy.cluster.grpc:
        pytest.skip("no proxy is between: test_java_client and others")
    started = Remoting(java, proxy)
    yield started
    started.stop()


@pytest.mark.slow("starts RocketMQ's proxy and a client; test_java_client.py has that client without one")
@with_json
def test_the_remoting_client_sends_and_consumes_through_the_proxy(remoting: Remoting, name: Name) -> None:
    cluster = remoting.proxy.cluster
    topic = create_topic(cluster, name("Plain"))
    producer = remoting.start("producer", group=name("plain-senders"))
    items = [plain_message(topic, b"m-%d" % n, tags="A" if n % 2 else "B") for n in range(8)]
    for mode, item in zip(("sync", "async", "oneway"), items, strict=False):
        remoting.java.call("producer.send", handle=producer, mode=mode, message=item)
    sent = remoting.java.call("producer.send_batch", handle=producer, messages=items[3:])
    assert sent["status"] == "SEND_OK"
    everything = remoting.push(topic, create_group(cluster, name("plain-all")))
    chosen = remoting.push(topic, create_group(cluster, name("plain-a")), expression="A")
    in_order = remoting.push(topic, create_group(cluster, name("plain-orderly")), orderly=True, failures=1)
    assert bodies(remoting.take(everything, 8)) == Counter(map(body_of, items))
    assert bodies(remoting.take(chosen, 4)) == Counter(b"m-%d" % n for n in (1, 3, 5, 7))
    assert bodies(remoting.take(in_order, 16)) == Counter({b"m-%d" % n: 2 for n in range(8)})


@pytest.mark.slow("starts RocketMQ's proxy; test_priority.py is the fast twin, without it")
@with_json
def test_priorities_go_through_the_proxy(remoting: Remoting, name: Name) -> None:
    cluster = remoting.proxy.cluster
    topic = create_topic(cluster, name("Priority"), 8, attributes="+message.type=PRIORITY")
    producer = remoting.start("producer", group=name("priority-senders"))
    for priority in (0, 5, 99):
        item = plain_message(topic, b"%d" % priority, priority=priority)
        sent = remoting.java.call("producer.send", handle=producer, mode="sync", message=item)
        assert sent["queue"][2] == min(priority, 7)
    received = remoting.take(remoting.push(topic, create_group(cluster, name("priority-readers"))), 3)
    assert {body_of(got): got["properties"]["_SYS_MSG_PRIORITY_"] for got in received} == {
        b"0": "0",
        b"5": "5",
        b"99": "99",
    }


@pytest.mark.slow("waits for checks in real time")
@with_json
def test_the_remoting_clients_transactions_go_through_the_proxy(remoting: Remoting, name: Name) -> None:
    cluster = remoting.proxy.cluster
    topic = create_topic(cluster, name("PlainDeals"), attributes="+message.type=TRANSACTION")
    producer = remoting.start("transaction", group=name("plain-dealers"))
    consumer = remoting.push(topic, create_group(cluster, name("plain-deals-readers")))
    seen: Counter[bytes] = Counter()

    def deal() -> bool:
        # The proxy passes answers to checks on; what a remoting producer says at once it drops.
        for body, local, answer in (
            (b"yes", "COMMIT_MESSAGE", "COMMIT_MESSAGE"),
            (b"no", "ROLLBACK_MESSAGE", "ROLLBACK_MESSAGE"),
            (b"later", "UNKNOW", "COMMIT_MESSAGE"),
        ):
            properties = {"local": local, "checks": answer}
            item = plain_message(topic, body, properties=properties)
            remoting.java.call("transaction.send", handle=producer, message=item)
        seen.update(bodies(remoting.take(consumer, 2, wait_s=4)))
        return len(seen) > 1

    # It forgets the group of a producer from which it has had no heartbeat yet, until the next message.
    eventually(deal, "both to be delivered")
    assert set(seen) == {b"yes", b"later"}
