"""Clients that share an identity, with namespaces of version 2 and short heartbeats, on a real RocketMQ and on ours;
what mqadmin says of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mqspark import (
    AdminClient,
    ClientOptions,
    ConsumeFromWhere,
    ConsumeStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.errors import BrokerError
from tests.interop.driver import JavaDriver
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster
from tests.support.waiting import eventually

Name = Callable[[str], str]

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.mark.slow("four members by JVM; the test of what mqadmin shows is the fast twin")
def test_one_identity_two_groups(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Shared"))
    options = ClientOptions(
        instance_name=name("shared"),
        client_ip="127.0.0.1",
        heartbeat_v2=True,
        heartbeat_interval_ms=200,
        namespace_v2="interop",
    )
    inboxes: dict[str, list[bytes]] = {
        create_group(cluster, name("one")): [],
        create_group(cluster, name("two")): [],
    }
    consumers = []
    for group, inbox in inboxes.items():
        consumer = PushConsumer(
            cluster.namesrv,
            group=group,
            listener=lambda message, inbox=inbox: inbox.append(message.body),
            consume_from=FIRST,
            options=options,
        )
        consumer.subscribe(topic, "A")
        consumers.append(consumer)
    first, second = consumers
    one, two = inboxes
    with AdminClient(cluster.namesrv) as admin, second:
        with first, Producer(cluster.namesrv, group=name("p"), options=options) as producer:
            beats = first._aio._group.instance._heartbeats
            eventually(
                lambda: cluster.broker in beats._known, "a broker that needs no subscriptions any more"
            )
            for number in range(12):
                producer.send(Message.of(topic, b"%d" % number, tags="AB"[number % 3 == 0]))
            eventually(
                lambda: all(len(inbox) >= 8 for inbox in inboxes.values()), "8 messages for each group"
            )
            for group in inboxes:
                connection = admin.group_members(group)
                (member,) = connection.connection_set
                assert member.client_id == first.client_id == second.client_id
                filters = {each.topic: each.sub_string for each in connection.subscription_table.values()}
                assert filters[topic] == "A"
                assert topic in java.mqadmin("consumerConnection", "-g", group, "-n", cluster.namesrv)
        eventually(lambda: not online(admin, one), "the end of the group that left")
        assert online(admin, two)
        with Producer(cluster.namesrv, group=name("p"), options=options) as producer:
            producer.send(Message.of(topic, b"last", tags="A"))
        eventually(lambda: b"last" in inboxes[two], "the last message")
    wanted = [b"%d" % number for number in range(12) if number % 3]
    assert sorted(inboxes[one]) == sorted(wanted)
    assert sorted(inboxes[two]) == sorted([*wanted, b"last"])


def online(admin: AdminClient, group: str) -> bool:
    try:
        return bool(admin.group_members(group).connection_set)
    except BrokerError:
        return False


def test_mqadmin_shows_who_pulled_and_what_was_decided(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic, trace_topic = create_topic(cluster, name("Traced")), create_topic(cluster, name("Trace"))
    group, sender = create_group(cluster, name("pulls")), name("decides")
    with TransactionProducer(
        cluster.namesrv,
        group=sender,
        check=lambda _: None,
        execute=lambda _: TransactionState.COMMIT,
        send_timeout_ms=30_000,
        trace=True,
        trace_topic=trace_topic,
    ) as producer:
        sent = producer.send_in_transaction(Message.of(topic, b"traced", keys="the-key"))
    consumer = LitePullConsumer(
        cluster.namesrv, group=group, consume_from=FIRST, trace=True, trace_topic=trace_topic
    )
    consumer.subscribe(topic)
    with consumer:
        got: list[MessageExt] = []
        eventually(lambda: bool(got) or bool(got.extend(consumer.poll(1_000))), "the message")
    assert got[0].message_id == sent.message_id
    printed = ""

    def shown() -> bool:
        nonlocal printed
        printed = java.mqadmin(
            "queryMsgTraceById", "-i", sent.message_id, "-t", trace_topic, "-n", cluster.namesrv
        )
        return "Pub" in printed and group in printed

    eventually(shown, "the trace")
    rows = [line.split() for line in printed.splitlines() if line.startswith(("Pub", "Sub", "End"))]
    kinds = {row[0] for row in rows}
    assert {"Pub", "Sub"} <= kinds, printed
    assert sender in printed


def test_an_ordered_listener_commits_by_itself(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("ByHand")), create_group(cluster, name("by-hand"))
    seen: list[bytes] = []
    lock = threading.Lock()

    def listen(message: MessageExt) -> ConsumeStatus:
        with lock:
            seen.append(message.body)
            rolled = seen.count(b"2")
        if message.body == b"2":
            return ConsumeStatus.ROLLBACK if rolled == 1 else ConsumeStatus.COMMIT
        return ConsumeStatus.CONSUME_SUCCESS

    with Producer(cluster.namesrv, group=name("p"), send_timeout_ms=30_000) as producer:
        place = producer.queues(topic)[0]
        for number in range(5):
            producer.send(Message.of(topic, b"%d" % number), queue=place)
    consumer = PushConsumer(
        cluster.namesrv,
        group=group,
        listener=listen,
        ordered=True,
        auto_commit=False,
        consume_from=FIRST,
        suspend_queue_ms=10,
    )
    consumer.subscribe(topic)
    with consumer:
        eventually(lambda: b"4" in seen, "the last message")
    assert seen == [b"0", b"1", b"2", b"0", b"1", b"2", b"3", b"4"]
    with AdminClient(cluster.namesrv) as admin:
        assert admin.query_offset(group, place) == 3
