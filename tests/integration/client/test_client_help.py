"""What a newcomer is told who forgets something."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest

import mqspark
from mqspark import AdminClient, LitePullConsumer, Message, MessageQueue, Producer, PushConsumer, aio
from mqspark.client.blocking import BlockingClient
from mqspark.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ConnectionLost,
    InvalidMessage,
    NoRoute,
    NoSuchTopic,
)
from mqspark.testing import Broker
from tests.support.processes import run_to_end
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]

NOWHERE = "127.0.0.1:9"


@pytest.fixture(scope="module")
def strict() -> Iterator[Broker]:
    """A broker that creates nothing by itself."""
    with Broker(settings={"autoCreateTopicEnable": False, "autoCreateSubscriptionGroup": False}) as broker:
        yield broker


def push(namesrv: str = NOWHERE, **more: Any) -> PushConsumer:
    return PushConsumer(namesrv, group="g", listener=print, **more)


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda: Producer(group="g").start(), ConfigError, "namesrv='host:port.*NAMESRV_ADDR"),
        (lambda: Producer("localhost", group="g").start(), ConfigError, "'localhost' is not of the form host:port"),
        (lambda: Producer(NOWHERE, group="g").send(Message("T", b"x")), ClientError, "Producer is not started.*`with`"),
        (lambda: push().start(), ConfigError, r"group g has no topic: subscribe\(topic\)"),
        (lambda: PushConsumer(NOWHERE, group="g"), ConfigError, "either listener or batch_listener"),
        (lambda: push(consume_from="first"), ConfigError, "consume_from='first' is none of .*FIRST_OFFSET"),
        (lambda: push(message_model="CLUSTER"), ConfigError, "message_model='CLUSTER' is none of BROADCASTING"),
        (lambda: push().client_id, ClientError, "not started"),
        (lambda: LitePullConsumer(NOWHERE, group="g").poll(), ClientError, "not started"),
        (lambda: next(LitePullConsumer(NOWHERE, group="g")), ClientError, "not started"),
        (lambda: Message.of("T", {"a": 1}), InvalidMessage, "bytes or text, not dict.*json.dumps"),
        (lambda: Message.of("T", None), InvalidMessage, "not NoneType"),
        (lambda: Producer(cast(str, 5), group="g").start(), ConfigError, "namesrv=5 is neither text nor a list"),
        (lambda: Producer([cast(str, 5)], group="g").start(), ConfigError, r"namesrv=\[5\] is neither text nor"),
        (lambda: Producer(NOWHERE, group=cast(str, None)).start(), InvalidMessage, "group is text, not NoneType"),
        (lambda: PushConsumer(NOWHERE, group="g", listener=cast(Any, 5)), ConfigError, "a listener is a function"),
        (lambda: push().subscribe(cast(str, 5)), InvalidMessage, "topic or group is text, not int"),
    ],
)  # fmt: skip
def test_what_can_never_work_is_said_at_once(
    act: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        act()


def test_a_missing_name_server_is_named() -> None:
    with (
        Producer(NOWHERE, group="g") as producer,
        pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:9: no name server answers .*NAMESRV_ADDR"),
    ):
        producer.send(Message("T", b"x"))


async def test_everything_that_needs_a_start_says_so() -> None:
    producer, lite, admin = (
        aio.Producer(NOWHERE, group="g"),
        aio.LitePullConsumer(NOWHERE, group="g"),
        aio.AdminClient(NOWHERE),
    )
    for work in (
        producer.send(Message("T", b"x")),
        producer.send_async(Message("T", b"x")),
        producer.send_oneway(Message("T", b"x")),
        producer.send_batch([Message("T", b"x")]),
        producer.request(Message("T", b"x")),
        producer.queues("T"),
        lite.poll(),
        lite.commit(),
        lite.fetch_message_queues("T"),
        lite.committed(MessageQueue("T", "b", 0)),
        lite.offset_for_timestamp(MessageQueue("T", "b", 0), 0),
        anext(lite),
        admin.topic_list(),
    ):
        with pytest.raises(ClientError, match=r"not started.*`async with` or await start"):
            await work


def test_a_missing_topic(strict: Broker) -> None:
    with Producer(strict.namesrv, group="p") as producer, AdminClient(strict.namesrv) as admin:
        for act in (
            lambda: producer.send(Message("Missing", b"x")),
            lambda: producer.send_batch([Message("Missing", b"x")]),
            lambda: producer.send_async(Message("Missing", b"x")).result(),
            lambda: admin.topic_route("Missing"),
        ):
            with pytest.raises(
                NoRoute, match=r"^there is no topic 'Missing'; mqspark topic create Missing creates it$"
            ) as caught:
                act()
            assert caught.value.topic == "Missing"


def test_what_is_no_message(strict: Broker) -> None:
    with Producer(strict.namesrv, group="p") as producer, AdminClient(strict.namesrv) as admin:
        admin.create_topic("Known", queues=1)
        with pytest.raises(InvalidMessage, match=r"bytes, not str: Message\.of takes text"):
            producer.send(Message("Known", "text"))  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="at least one byte"):
            producer.send(Message("Known", b""))
        with pytest.raises(ClientError, match=r"selector chose no queue.*IndexError"):
            producer.send(Message("Known", b"x"), selector=lambda queues, _: queues[7])
        assert producer.send(Message("Known", b"x")).queue_offset == 0


@pytest.mark.parametrize("kind", ["push", "lite", "pop"])
async def test_a_missing_group(strict: Broker, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with aio.AdminClient(strict.namesrv) as admin:
        await admin.create_topic("Known", queues=1)
    made: dict[str, Callable[[], aio.PushConsumer | aio.LitePullConsumer | aio.PopConsumer]] = {
        "push": lambda: aio.PushConsumer(strict.namesrv, group="nobody", listener=print),
        "lite": lambda: aio.LitePullConsumer(strict.namesrv, group="nobody"),
        "pop": lambda: aio.PopConsumer(strict.namesrv, group="nobody", listener=print),
    }
    consumer = made[kind]()
    consumer.subscribe("Known")
    with caplog.at_level(logging.WARNING, "mqspark.client"):
        async with consumer:
            await eventually_async(lambda: "AdminClient.create_group" in caplog.text, "advice")
    assert "autoCreateSubscriptionGroup" in caplog.text


def test_a_pull_without_a_subscription(strict: Broker) -> None:
    with LitePullConsumer(strict.namesrv, group="g") as consumer:
        with pytest.raises(ClientError, match=r"nothing to read: subscribe\(topic\) or assign"):
            consumer.poll()
        with pytest.raises(ClientError, match="nothing to read"):
            next(consumer)


def test_hints_come_with_refusals() -> None:
    assert "AdminClient.create_group" in str(BrokerError(26, "subscription group [g] does not exist"))
    assert "brokerPermission" in str(BrokerError(16, None, address="b:1"))
    assert str(BrokerError(999, "other")) == "response code 999: other"


def test_one_import_has_everything_twice() -> None:
    names = set(mqspark.__all__)
    assert {
        "Producer",
        "TransactionProducer",
        "PushConsumer",
        "LitePullConsumer",
        "PopConsumer",
        "Message",
    } <= names
    twice = {name for name in names if getattr(mqspark, name) is not getattr(aio, name)}
    assert twice == {name for name in names if name.endswith(("Producer", "Consumer", "AdminClient"))}


def test_a_program_that_stops_nothing_ends(mq_broker: Broker) -> None:
    code = """
import sys, json
from mqspark import LitePullConsumer, Message, Producer, PushConsumer
producer = Producer(sys.argv[1], group="p")
producer.start()
result = producer.send(Message("Careless", b"x"), timeout_ms=30_000)
for consumer in (PushConsumer(sys.argv[1], group="c1", listener=len), LitePullConsumer(sys.argv[1], group="c2")):
    consumer.subscribe("Careless")
    consumer.start()
print(json.dumps(result.status.name))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, mq_broker.namesrv], capture_output=True, timeout=120, check=True
    )
    assert json.loads(done.stdout) == "SEND_OK"


@pytest.mark.parametrize("what", [None, b"x", "x", []])
def test_what_is_sent_is_a_message(mq_broker: Broker, what: Any) -> None:
    with Producer(mq_broker.namesrv, group="g", max_in_flight=1) as producer:
        for send in (producer.send, producer.send_async):
            with pytest.raises(InvalidMessage, match=r"a Message, not .*Message\.of"):
                send(what)
        assert (
            producer.send(Message.of("T", b"x")).status.name == "SEND_OK"
        )  # none of them takes room in flight


FORKING = """
import os, sys
from mqspark import Message, Producer
from mqspark.errors import ClientError

namesrv = sys.argv[1]
with Producer(namesrv, group="g") as producer:
    producer.send(Message.of("T", b"parent"))
    child = os.fork()
    if child == 0:
        said = []
        for send in (producer.send, producer.send_async, producer.send):
            try:
                send(Message.of("T", b"child"))
            except ClientError as error:
                said.append("before the process was forked" in str(error))
        with Producer(namesrv, group="g") as mine:
            mine.send(Message.of("T", b"child"))
        os._exit(0 if said == [True] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    producer.send(Message.of("T", b"parent"))
"""


def test_a_forked_child_is_told_that_its_client_is_not_there(mq_broker: Broker) -> None:
    done = run_to_end([sys.executable, "-W", "ignore", "-c", FORKING, mq_broker.namesrv])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_topic_is_said_as_the_command_line_says_it(strict: Broker) -> None:
    with AdminClient(strict.namesrv) as admin, Producer(strict.namesrv, group="similar") as producer:
        admin.create_topic("Invoices", queues=1)
        blocking = BlockingClient(strict.namesrv)
        with closing(blocking):
            for topic, text in (
                ("Invoicse", "there is no topic 'Invoicse'; did you mean 'Invoices'?"),
                ("Unlike", "there is no topic 'Unlike'; mqspark topic create Unlike creates it"),
            ):
                for act in (
                    lambda topic=topic: producer.send(Message(topic, b"x")),
                    lambda topic=topic: admin.topic_route(topic),
                    lambda topic=topic: blocking.route(topic),
                    lambda topic=topic: blocking.publish_route(topic),
                ):
                    with pytest.raises(NoSuchTopic) as caught:
                        act()
                    assert str(caught.value) == text
                    assert caught.value.topic == topic
