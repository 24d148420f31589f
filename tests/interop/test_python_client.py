"""Our client on a real RocketMQ 5.5.0, with the unmodified Java client at the other end, and both in one group."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqspark import (
    AdminClient,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
)
from mqspark.errors import BrokerError, ClientError, InvalidMessage
from tests.interop.driver import JavaDriver, body_of, message
from tests.interop.topics import QUEUES, create_group, create_topic, max_offset, message_count
from tests.support.clusters import Cluster
from tests.support.inbox import Inbox
from tests.support.waiting import eventually

Name = Callable[[str], str]

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)
on_rocketmq = pytest.mark.parametrize("cluster", ["rocketmq"], indirect=True)
on_both = pytest.mark.parametrize("cluster", ["rocketmq", "mqspark_dev"], indirect=True)


def java_pull_all(java: JavaDriver, cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    group = create_group(cluster, "python-interop-puller")
    handle = java.call("pull.start", namesrv=cluster.namesrv, group=group)["handle"]
    messages = []
    for queue_id in range(QUEUES):
        offset, end = 0, max_offset(cluster, topic, queue_id)
        while offset < end:
            queue = [topic, cluster.broker_name, queue_id]
            result = java.call("pull.pull", handle=handle, queue=queue, expression="*", offset=offset, max=32)
            messages += result["messages"]
            offset = result["next"]
    java.call("pull.stop", handle=handle)
    return messages


def poll_all(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    received: list[MessageExt] = []
    deadline = time.monotonic() + 30
    while len(received) < count and time.monotonic() < deadline:
        received += consumer.poll(timeout_ms=500)
    return received


# ---- producing


@on_rocketmq
def test_java_reads_every_field_that_we_send(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("PyFields"))
    queue = MessageQueue(topic, cluster.broker_name, 2)
    body = "bytes \x00\x01 and text: Grüße, 你好, 🚀".encode()
    properties = {"origin": "JFK", "größe": "übergroß", "emoji": "🛩"}
    with Producer(cluster.namesrv, group=name("py-producer")) as producer:
        sent = producer.send(
            Message.of(topic, body, tags="TagÄ", keys=["k1", "k2"], properties=properties, flag=42),
            queue=queue,
        )
    assert (sent.status, sent.queue, sent.queue_offset) == (SendStatus.SEND_OK, queue, 0)
    (got,) = java_pull_all(java, cluster, topic)
    assert body_of(got) == body
    assert (got["queue_id"], got["queue_offset"]) == (2, 0)
    assert (got["tags"], got["keys"], got["flag"]) == ("TagÄ", "k1 k2", 42)
    assert {key: got["properties"].get(key) for key in properties} == properties
    assert got["msg_id"] == sent.message_id
    assert len(sent.message_id) == 32


@on_rocketmq
def test_every_way_of_sending(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("PyModes"))
    expected: Counter[bytes] = Counter()

    def new(stem: str, number: int) -> Message:
        body = f"{stem}-{number}".encode()
        expected[body] += 1
        return Message.of(topic, body, tags=stem)

    with Producer(cluster.namesrv, group=name("py-producer"), send_timeout_ms=30_000) as producer:
        futures = [producer.send_async(new("async", number)) for number in range(500)]
        places = {(sent.queue, sent.queue_offset) for sent in (future.result(30) for future in futures)}
        assert len(places) == 500
        for number in range(20):
            producer.send_oneway(new("oneway", number))
        batch = producer.send_batch([new("batch", number) for number in range(64)])
        assert len(batch.message_ids) == 64
        keyed = {producer.send(new("keyed", number), hash_key="same").queue for number in range(8)}
        assert len(keyed) == 1
        zipped = b"0123456789abcdef" * 4096
        expected[zipped] += 1
        producer.send(Message.of(topic, zipped))
        eventually(lambda: message_count(cluster, topic) == expected.total(), "all stored")
        with pytest.raises(InvalidMessage):
            producer.send(Message.of(topic, b"x"), queue=MessageQueue(topic, cluster.broker_name, 99))
    received = java_pull_all(java, cluster, topic)
    assert Counter(map(body_of, received)) == expected
    (large,) = [got for got in received if body_of(got) == zipped]
    assert large["store_size"] < len(zipped) / 4


@on_rocketmq
def test_an_unknown_topic_is_created(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = name("PyAuto")
    with Producer(cluster.namesrv, group=name("py-producer")) as producer:
        assert producer.send(Message.of(topic, b"first")).status is SendStatus.SEND_OK
        assert len(producer.queues(topic)) == 4


# ---- consuming


@on_rocketmq
@pytest.mark.parametrize("algorithm", ["ZLIB", "LZ4", "ZSTD"])
def test_we_read_every_field_that_java_sends(
    java: JavaDriver, cluster: Cluster, name: Name, algorithm: str
) -> None:
    topic, group = create_topic(cluster, name("JavaFields")), create_group(cluster, name("py-reader"))
    handle = java.call(
        "producer.start",
        namesrv=cluster.namesrv,
        group="java-producer",
        compress_over=1024,
        compress_type=algorithm,
    )["handle"]
    place = MessageQueue(topic, cluster.broker_name, 1)
    bodies = [b"small \x00", "Grüße 🚀".encode() * 3000]
    sent = [
        java.call(
            "producer.send", handle=handle, mode="sync", queue=list(place),
            message=message(topic, body, tags="T", keys="k1 k2", flag=7, properties={"größe": "ß"}),
        )
        for body in bodies
    ]  # fmt: skip
    with LitePullConsumer(cluster.namesrv, group=group) as consumer:
        consumer.assign([place])
        consumer.seek_to_begin(place)
        received = poll_all(consumer, 2)
    assert [got.body for got in received] == bodies
    for got, one in zip(received, sent, strict=True):
        assert (got.message_id, got.offset_message_id) == (one["msg_id"], one["offset_msg_id"])
        assert (got.queue, got.queue_offset) == (place, one["queue_offset"])
        assert (got.tags, got.keys, got.flag, got.properties["größe"]) == ("T", "k1 k2", 7, "ß")
        assert got.store_host == cluster.broker
        assert 0 < got.born_timestamp_ms <= got.store_timestamp_ms


@on_rocketmq
def test_a_push_group_reads_its_tags_and_resumes(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("PyPush")), name("py-push")
    handle = java.call("producer.start", namesrv=cluster.namesrv, group="java-producer")["handle"]

    def send(tags: str, prefix: str) -> None:
        java.call(
            "producer.send_many", handle=handle, topic=topic, mode="async", count=40, prefix=prefix, tags=tags
        )

    def consume(expected: Counter[bytes]) -> None:
        inbox = Inbox()
        start = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer = PushConsumer(cluster.namesrv, group=group, listener=inbox, consume_from=start)
        consumer.subscribe(topic, "Aa || C")
        with consumer:
            eventually(lambda: inbox.bodies() == expected, f"{expected.total()} messages")

    # "Aa" and "BB" have the same hash: the broker lets both pass, the client drops one.
    for tags in ("Aa", "BB", "C", "D"):
        send(tags, tags)
    consume(Counter(f"{tags}-{number}".encode() for tags in ("Aa", "C") for number in range(40)))
    send("C", "again")
    consume(Counter(f"again-{number}".encode() for number in range(40)))


@pytest.mark.slow("queues move; test_consumers.py has the two beside each other on our broker")
@on_both
def test_our_consumer_and_javas_share_one_group(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("Mixed")), name("mixed-group")
    inbox = Inbox()
    theirs = java.push(cluster.namesrv, topic, group)

    def java_owns() -> list[int]:
        return [queue[2] for queue in java.call("push.queues", handle=theirs, topic=topic)]

    def java_consumed() -> int:
        return sum(java.call("push.consumed", handle=theirs, topic=topic).values())

    start = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    ours = PushConsumer(cluster.namesrv, group=group, listener=inbox, consume_from=start)
    ours.subscribe(topic)
    with Producer(cluster.namesrv, group=name("py-producer")) as producer, ours:

        def we_own() -> list[int]:
            return [queue.queue_id for queue in ours.assignment() if queue.topic == topic]

        eventually(lambda: (len(java_owns()), len(we_own())) == (2, 2), "two queues each")
        assert sorted(java_owns() + we_own()) == [0, 1, 2, 3]
        bodies = [b"mixed-%d" % number for number in range(200)]
        for future in [producer.send_async(Message.of(topic, body)) for body in bodies]:
            future.result(30)
        # RocketMQ acknowledges a message before its queue has it.
        eventually(lambda: message_count(cluster, topic) == 200, "200 messages in the queues")
        share = sum(max_offset(cluster, topic, queue_id) for queue_id in java_owns())
        from_java = java.take(theirs, share, timeout_ms=20_000)
        eventually(lambda: len(inbox.messages) == 200 - share, "our share")
        assert Counter(map(body_of, from_java)) + inbox.bodies() == Counter(bodies)

        # A listener has a message before its offset counts: a consumer that stops between hands it on once more.
        eventually(lambda: java_consumed() == share, "all that Java was given is consumed")
        java.call("push.stop", handle=theirs)
        eventually(lambda: sorted(we_own()) == [0, 1, 2, 3], "we own all four when the other has gone")
        after = [b"after-%d" % number for number in range(30)]
        producer.send_batch([Message.of(topic, body) for body in after])
        # Java sends its last offsets without waiting, and they may arrive after its goodbye: some of its messages then
        # arrive here too, each once (docs/rocketmq/client.md#start-offsets).
        javas = Counter(map(body_of, from_java))
        ours_alone = Counter([*bodies, *after]) - javas
        eventually(lambda: inbox.bodies() - javas == ours_alone, lambda: inbox.bodies() - javas - ours_alone)


@on_rocketmq
def test_broadcast_keeps_its_offsets_here(
    java: JavaDriver, cluster: Cluster, name: Name, tmp_path: Path
) -> None:
    topic, group = create_topic(cluster, name("PyBroadcast")), name("py-broadcast")
    with Producer(cluster.namesrv, group=name("py-producer")) as producer:
        for number in range(40):
            producer.send(Message.of(topic, b"one-%d" % number))

        def run(folder: str, expected: set[bytes]) -> None:
            inbox = Inbox()
            consumer = PushConsumer(
                cluster.namesrv, group=group, listener=inbox, message_model=MessageModel.BROADCASTING,
                consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, local_offsets_directory=tmp_path / folder,
            )  # fmt: skip
            consumer.subscribe(topic)
            with consumer:
                eventually(lambda: inbox.bodies() == Counter(expected), f"{len(expected)} messages")

        first = {b"one-%d" % number for number in range(40)}
        run("a", first)
        producer.send(Message.of(topic, b"two"))
        run("a", {b"two"})
        run("b", first | {b"two"})


@pytest.mark.slow(
    "offsets travel with a delay; test_consumers.py and test_client_identity.py have it on our broker"
)
@on_rocketmq
def test_offsets_that_we_commit_are_javas_too(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("PyLite")), create_group(cluster, name("py-lite"))
    with Producer(cluster.namesrv, group=name("py-producer")) as producer:
        for number in range(60):
            producer.send(Message.of(topic, b"%d" % number))
    with LitePullConsumer(
        cluster.namesrv,
        group=group,
        auto_commit=False,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ) as consumer:
        consumer.subscribe(topic)
        received = poll_all(consumer, 60)
        assert sorted(int(got.body) for got in received) == list(range(60))
        consumer.commit()
        queues = consumer.fetch_message_queues(topic)
        assert [consumer.committed(queue) for queue in queues] == [
            max_offset(cluster, topic, queue.queue_id) for queue in queues
        ]
    place = MessageQueue(topic, cluster.broker_name, 0)
    theirs = java.call(
        "lite.start", namesrv=cluster.namesrv, group=group, queues=[list(place)], auto_commit=False,
        **{"from": "CONSUME_FROM_FIRST_OFFSET"},
    )["handle"]  # fmt: skip
    committed = java.call("lite.do", handle=theirs, verb="committed", queue=list(place))
    assert committed == max_offset(cluster, topic, 0)
    java.call("lite.stop", handle=theirs)

    with LitePullConsumer(cluster.namesrv, group=group, auto_commit=False) as consumer:
        consumer.assign([place])
        consumer.seek(place, 3)
        again = poll_all(consumer, max_offset(cluster, topic, 0) - 3)
        assert [got.queue_offset for got in again] == list(range(3, max_offset(cluster, topic, 0)))
        stamp = again[2].store_timestamp_ms
        first = next(
            got.queue_offset for got in received if got.queue == place and got.store_timestamp_ms >= stamp
        )
        assert consumer.offset_for_timestamp(place, stamp) == first


# ---- administration


@on_rocketmq
def test_admin_client(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = name("PyAdmin"), name("py-admin")
    with AdminClient(cluster.namesrv) as admin:
        info = admin.cluster_info()
        assert cluster.broker_name in info.broker_addr_table

        def version() -> str:
            try:
                return admin.broker_runtime_info(cluster.broker)["brokerVersionDesc"]
            except BrokerError as error:  # in its first second it has no sample for its statistics
                return str(error)

        eventually(lambda: version() == "V5_5_1", version)
        assert admin.broker_config(cluster.broker)["brokerName"] == cluster.broker_name
        route = admin.create_topic(topic, queues=3, cluster=cluster.cluster_name)
        assert route is not None
        assert topic in admin.topic_list()
        admin.create_group(group, cluster=cluster.cluster_name)
        with Producer(cluster.namesrv, group=name("py-producer")) as producer:
            for number in range(9):
                queue = MessageQueue(topic, cluster.broker_name, number % 3)
                producer.send(Message.of(topic, b"x"), queue=queue)

        def offsets() -> dict[int, tuple[int, int]]:
            stats = admin.topic_stats(topic)
            return {queue.queue_id: (each.min_offset, each.max_offset) for queue, each in stats.items()}

        # It knows of a message in a queue some time after it has answered the send.
        eventually(lambda: offsets() == {0: (0, 3), 1: (0, 3), 2: (0, 3)}, offsets)
        place = MessageQueue(topic, cluster.broker_name, 1)
        admin.update_offset(group, place, 2)
        eventually(lambda: admin.query_offset(group, place) == 2, "the offset is stored")
        assert admin.group_offsets(group, topic)[place].committed == 2
        admin.delete_group(group, cluster=cluster.cluster_name)
        admin.delete_topic(topic, cluster=cluster.cluster_name)
        assert topic not in admin.topic_list()
        with pytest.raises(ClientError):
            admin.topic_route(topic)
