"""What consumers of a group rely on beyond messages: retries and dead letters, locks and order. Our client and the
unmodified Java client, on a real RocketMQ and on our broker."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from mqspark import (
    AdminClient,
    ClientOptions,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    RetryLater,
)
from tests.interop.driver import JavaDriver, body_of, message
from tests.interop.topics import QUEUES, create_group, create_topic
from tests.support.clusters import Cluster
from tests.support.inbox import Inbox
from tests.support.waiting import eventually

Name = Callable[[str], str]

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)
on_both = pytest.mark.parametrize(
    "cluster",
    [
        pytest.param("mqspark_dev", id="mqspark"),
        pytest.param("rocketmq", id="rocketmq", marks=pytest.mark.slow("a real RocketMQ starts first")),
    ],
    indirect=True,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def read_all(cluster: Cluster, topic: str, group: str, count: int) -> list[MessageExt]:
    """What is in queue 0 of a topic, read by another group."""
    place = MessageQueue(topic, cluster.broker_name, 0)
    received: list[MessageExt] = []
    with LitePullConsumer(cluster.namesrv, group=create_group(cluster, group)) as consumer:
        consumer.assign([place])
        consumer.seek_to_begin(place)
        deadline = time.monotonic() + 30
        while len(received) < count and time.monotonic() < deadline:
            received += consumer.poll(500)
    return received


@on_both
def test_failed_messages_come_back_and_end_as_dead_letters(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic, group = create_topic(cluster, name("Retry")), name("py-retry")
    tries: Counter[bytes] = Counter()

    def judge(got: MessageExt) -> object:
        tries[got.body] += 1
        if got.body == b"good" or (got.body == b"later" and got.reconsume_times == 2):
            return None
        return RetryLater(delay_level=-1 if got.body == b"dead" else 1)

    inbox = Inbox(judge)
    consumer = PushConsumer(
        cluster.namesrv, group=group, listener=inbox, consume_from=FIRST, max_reconsume_times=2
    )
    consumer.subscribe(topic, "T")
    with consumer, Producer(cluster.namesrv, group=name("py-producer"), send_timeout_ms=30_000) as producer:
        sent = {
            body: producer.send(
                Message.of(topic, body, tags="T", keys="k", properties={"a": "b"}, flag=3)
            ).message_id
            for body in (b"good", b"later", b"never", b"dead")
        }
        expected = Counter({b"good": 1, b"later": 3, b"never": 3, b"dead": 1})
        eventually(lambda: inbox.bodies() == expected, f"{expected}, not {inbox.bodies()}", 90)
        letters = {letter.body: letter for letter in read_all(cluster, f"%DLQ%{group}", name("dlq"), 2)}
        assert inbox.bodies() == expected
        eventually(
            lambda: all(
                consumer.progress()[queue] == 1 for queue in consumer.assignment() if queue.topic == topic
            ),
            "what was sent back is done here",
        )
    for got in inbox.messages:
        assert (got.topic, got.tags, got.keys, got.flag) == (topic, "T", "k", 3)
        assert got.properties["a"] == "b"
        assert got.message_id == sent[got.body]
    for body, count in expected.items():
        assert [got.reconsume_times for got in inbox.messages if got.body == body] == list(range(count))
    assert set(letters) == {b"never", b"dead"}
    for letter in letters.values():
        assert letter.properties["RETRY_TOPIC"] == topic
        assert letter.message_id == sent[letter.body]


@on_both
def test_order_is_kept_while_queues_move_between_our_consumer_and_javas(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic, group = create_topic(cluster, name("Order")), name("ordered")
    inbox = Inbox()
    ours = PushConsumer(cluster.namesrv, group=group, listener=inbox, consume_from=FIRST, ordered=True)
    ours.subscribe(topic)
    sent: Counter[int] = Counter()

    def send(producer: Producer, count: int) -> None:
        for number in range(count):
            queue = MessageQueue(topic, cluster.broker_name, number % QUEUES)
            producer.send(Message.of(topic, b"%d:%d" % (queue.queue_id, sent[queue.queue_id])), queue=queue)
            sent[queue.queue_id] += 1

    with Producer(cluster.namesrv, group=name("py-producer"), send_timeout_ms=30_000) as producer, ours:
        send(producer, 40)
        eventually(lambda: len(inbox.messages) == 40, "all to the only member")
        theirs = java.push(cluster.namesrv, topic, group, orderly=True)

        def java_owns() -> set[int]:
            return {queue[2] for queue in java.call("push.queues", handle=theirs, topic=topic)}

        def we_own() -> set[int]:
            return {queue.queue_id for queue in ours.assignment() if queue.topic == topic}

        # Messages keep coming while the queues change hands.
        deadline = time.monotonic() + 60
        while not (len(java_owns()) == len(we_own()) == 2 and not java_owns() & we_own()):
            assert time.monotonic() < deadline, (java_owns(), we_own())
            send(producer, 8)
        send(producer, 40)
        java_share = sum(sent[queue_id] for queue_id in java_owns())
        # What Java got before the queues moved is ours; it is asked until the sum is right.
        from_java: list[dict[str, object]] = []

        def all_there() -> bool:
            from_java.extend(java.take(theirs, 1, timeout_ms=200))
            seen = {body_of(got) for got in from_java} | set(inbox.bodies())
            return len(seen) == sum(sent.values())

        eventually(all_there, f"everything, {java_share} of it from queues that are Java's now")
        with AdminClient(cluster.namesrv) as admin:
            # Until then a pull of Java's may be on its way with what was committed before its last messages.
            eventually(
                lambda: all(
                    admin.query_offset(group, MessageQueue(topic, cluster.broker_name, queue_id)) == count
                    for queue_id, count in sent.items()
                ),
                "all is committed",
            )
        java.call("push.stop", handle=theirs)
        eventually(lambda: we_own() == set(range(QUEUES)), "we own all four again")
        send(producer, 40)
        eventually(
            lambda: len({*inbox.bodies()} | {body_of(got) for got in from_java}) == sum(sent.values()), "rest"
        )

    # In each queue nobody saw an earlier message after a later one, and a hand-over never went back behind what
    # the other had committed.
    for offsets in inbox.of_queues().values():
        assert offsets == sorted(offsets)
    java_order: dict[int, list[int]] = {}
    for got in from_java:
        queue_id, number = map(int, body_of(got).split(b":"))
        java_order.setdefault(queue_id, []).append(number)
    for numbers in java_order.values():
        assert numbers == sorted(numbers)
    counts = inbox.bodies() + Counter(body_of(got) for got in from_java)
    assert max(counts.values()) == 1, [body for body, count in counts.items() if count > 1]


@on_both
def test_tools_look_into_our_consumer_and_move_it(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("Look")), name("py-look")
    inbox = Inbox(lambda got: RetryLater(delay_level=1) if got.body == b"fail" else None)
    consumer = PushConsumer(cluster.namesrv, group=group, listener=inbox, consume_from=FIRST)
    consumer.subscribe(topic, "T || U")

    def admin(*arguments: str) -> str:
        return java.mqadmin(*arguments, "-n", cluster.namesrv)

    with Producer(cluster.namesrv, group=name("py-producer"), send_timeout_ms=30_000) as producer, consumer:
        sent = [producer.send(Message.of(topic, b"%d" % number, tags="T")) for number in range(12)]
        eventually(lambda: len(inbox.messages) == 12, "twelve messages")
        eventually(lambda: sum(consumer.progress().values()) == 12, "and their progress")

        printed = admin("consumerStatus", "-g", group, "-i", consumer.client_id, "-s")
        assert f"{'PROP_CONSUMEORDERLY':<40}: false" in printed
        assert "CONSUME_PASSIVELY" in printed
        assert "T || U" in printed
        rows = [line.split() for line in printed.splitlines() if line.startswith(topic)]
        owned = {(row[1], int(row[2])): int(row[3]) for row in rows if len(row) == 4 and row[3].isdigit()}
        assert set(owned) == {(cluster.broker_name, queue_id) for queue_id in range(QUEUES)}
        assert sum(owned.values()) == 12
        assert "File" in printed, "a stack trace was asked for"

        place = sent[3]
        printed = admin(
            "queryMsgById", "-i", place.offset_message_id, "-t", topic, "-g", group, "-d", consumer.client_id
        )
        assert "CR_SUCCESS" in printed, printed
        assert inbox.bodies()[b"3"] == 2
        assert inbox.messages[-1].message_id == place.message_id

        admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        eventually(lambda: len(inbox.messages) == 25, "all twelve once more")
        assert inbox.bodies() == Counter({b"%d" % number: 3 if number == 3 else 2 for number in range(12)})


@pytest.mark.parametrize("cluster", ["mqspark_dev"], indirect=True)
@pytest.mark.parametrize(
    "push",
    [False, pytest.param(True, marks=pytest.mark.slow("a reset consumer pauses for ten seconds"))],
    ids=["noted", "pushed"],
)  # a client to which a reset is pushed pauses for ten seconds
def test_tools_look_into_javas_consumer_through_our_broker(
    java: JavaDriver, cluster: Cluster, name: Name, push: bool
) -> None:
    topic, group = create_topic(cluster, name("JavaLook")), name("java-look")
    theirs = java.call(
        "push.start", namesrv=cluster.namesrv, topic=topic, group=group, model="CLUSTERING", expression="*",
        **{"from": "CONSUME_FROM_FIRST_OFFSET"},
    )  # fmt: skip

    def take(count: int) -> list[bytes]:
        got = java.take(theirs["handle"], count)
        return sorted(map(body_of, got))

    def admin(*arguments: str) -> str:
        return java.mqadmin(*arguments, "-n", cluster.namesrv)

    with Producer(cluster.namesrv, group=name("py-producer"), send_timeout_ms=30_000) as producer:
        sent = [producer.send(Message.of(topic, b"%d" % number)) for number in range(4)]
        assert take(4) == [b"0", b"1", b"2", b"3"]
        printed = admin("consumerStatus", "-g", group, "-i", theirs["client_id"])
        assert "PROP_CONSUMER_START_TIMESTAMP" in printed
        assert topic in printed
        printed = admin(
            "queryMsgById",
            "-i",
            sent[2].offset_message_id,
            "-t",
            topic,
            "-g",
            group,
            "-d",
            theirs["client_id"],
        )
        assert "CR_SUCCESS" in printed, printed
        assert take(1) == [b"2"]
        if push:
            # For RocketMQ there is nothing to reset before the group has committed; its client waits ten seconds.
            with AdminClient(cluster.namesrv) as ours:
                places = ours.topic_route(topic).subscribe_queues
                eventually(lambda: all(ours.query_offset(group, place) for place in places), "first commits")
            admin("updateBrokerConfig", "-b", cluster.broker, "-k", "useServerSideResetOffset", "-v", "false")
        try:
            admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
            assert take(4) == [b"0", b"1", b"2", b"3"]
        finally:
            admin("updateBrokerConfig", "-b", cluster.broker, "-k", "useServerSideResetOffset", "-v", "true")
    java.call("push.stop", handle=theirs["handle"])


@on_both
def test_mqadmin_shows_our_trace(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group, trace_topic = create_topic(cluster, name("Traced")), name("traced"), name("TraceTopic")
    create_topic(cluster, trace_topic)
    inbox = Inbox()
    consumer = PushConsumer(
        cluster.namesrv, group=group, listener=inbox, consume_from=FIRST, trace=True, trace_topic=trace_topic
    )
    consumer.subscribe(topic)
    producer = Producer(
        cluster.namesrv,
        group=name("py-producer"),
        send_timeout_ms=30_000,
        trace=True,
        trace_topic=trace_topic,
    )
    with producer:
        sent = producer.send(Message.of(topic, b"traced", tags="T", keys="the-key"))
    with consumer:
        eventually(lambda: len(inbox.messages) == 1, "the message")
    printed = ""

    def shown() -> bool:
        nonlocal printed
        printed = java.mqadmin(
            "queryMsgTraceById", "-i", sent.message_id, "-t", trace_topic, "-n", cluster.namesrv
        )
        return "Pub" in printed and group in printed

    eventually(shown, "the trace")
    assert producer.group in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith(("Pub", "Sub"))]
    assert sorted(row[0] for row in rows) == ["Pub", "Sub"], printed
    assert all("success" in row for row in rows), printed


@on_both
def test_a_namespace_is_javas_too(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group, options = name("Space"), name("space"), ClientOptions(namespace="Team")
    create_topic(cluster, f"Team%{topic}")
    inbox = Inbox()
    theirs = java.push(cluster.namesrv, topic, name("java-space"), namespace="Team")
    producer = java.call("producer.start", namesrv=cluster.namesrv, group="java-producer", namespace="Team")
    java.call("producer.send", handle=producer["handle"], mode="sync", message=message(topic, b"theirs"))
    consumer = PushConsumer(cluster.namesrv, group=group, listener=inbox, consume_from=FIRST, options=options)
    consumer.subscribe(topic)
    with (
        consumer,
        Producer(cluster.namesrv, group=name("py-producer"), send_timeout_ms=30_000, options=options) as ours,
    ):
        ours.send(Message.of(topic, b"ours"))
        eventually(lambda: len(inbox.messages) == 2, "both messages")
        received = java.take(theirs, 2)
    assert {got["topic"] for got in received} == {topic} == {got.topic for got in inbox.messages}
    assert {body_of(got) for got in received} == {b"ours", b"theirs"} == set(inbox.bodies())
    java.call("push.stop", handle=theirs)


@on_both
@pytest.mark.parametrize("is_ours", [False, True], ids=["java", "ours"])
def test_in_order_what_never_succeeds_becomes_a_dead_letter(
    java: JavaDriver, cluster: Cluster, name: Name, is_ours: bool
) -> None:
    topic, group = create_topic(cluster, name("OrderDead"), 1), name("order-dead")
    with Producer(cluster.namesrv, group=name("py-producer"), send_timeout_ms=30_000) as producer:
        for number in range(3):
            producer.send(Message.of(topic, b"%d" % number, keys="k"))
    if is_ours:
        inbox = Inbox(lambda got: RetryLater(suspend_ms=50))
        ours = PushConsumer(
            cluster.namesrv,
            group=group,
            listener=inbox,
            consume_from=FIRST,
            ordered=True,
            max_reconsume_times=1,
        )
        ours.subscribe(topic)
        with ours:
            eventually(lambda: len(inbox.messages) >= 6, "two deliveries each")
            letters = read_all(cluster, f"%DLQ%{group}", name("dlq"), 3)
        bodies = [got.body for got in inbox.messages]
    else:
        theirs = java.push(cluster.namesrv, topic, group, orderly=True, failures=9, max_reconsume=1)
        received = java.take(theirs, 6, timeout_ms=60_000)
        letters = read_all(cluster, f"%DLQ%{group}", name("dlq"), 3)
        java.call("push.stop", handle=theirs)
        bodies = list(map(body_of, received))
    assert bodies == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert [letter.body for letter in letters] == [b"0", b"1", b"2"]
    assert {letter.properties["RETRY_TOPIC"] for letter in letters} == {topic}
    assert {letter.keys for letter in letters} == {"k"}
