"""The unmodified Java client 5.5.0 on our broker: every message, offset and answer as on a real one.

Each test runs with JSON and with ROCKETMQ headers, and (slow) on a real RocketMQ too: what it expects is what
that does.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.driver import JavaDriver, JavaError, body_of, message
from tests.interop.topics import QUEUES, create_group, create_topic, dispatched, max_offset, message_count
from tests.support.clusters import Cluster
from tests.support.waiting import eventually

Name = Callable[[str], str]

COMPRESSION_TYPE_BITS = {"LZ4": 0x1 << 8, "ZSTD": 0x2 << 8, "ZLIB": 0x3 << 8}


def producer(java: JavaDriver, cluster: Cluster, **settings: Any) -> int:
    started = java.call("producer.start", namesrv=cluster.namesrv, group="interop-producer", **settings)
    return int(started["handle"])


def puller(java: JavaDriver, cluster: Cluster, group: str = "interop-puller") -> int:
    create_group(cluster, group)
    return int(java.call("pull.start", namesrv=cluster.namesrv, group=group)["handle"])


def push(java: JavaDriver, cluster: Cluster, topic: str, group: str, **settings: Any) -> int:
    arguments = {"model": "CLUSTERING", "from": "CONSUME_FROM_FIRST_OFFSET", "expression": "*", **settings}
    started = java.call("push.start", namesrv=cluster.namesrv, topic=topic, group=group, **arguments)
    return int(started["handle"])


def take(java: JavaDriver, handle: int, count: int, timeout_ms: int = 45_000) -> list[dict[str, Any]]:
    """What the listener got. The Java client looks again at a queue whose first look failed after 20 s."""
    received: list[dict[str, Any]] = java.call("push.take", handle=handle, count=count, timeout_ms=timeout_ms)
    return received


def pull_all(java: JavaDriver, cluster: Cluster, topic: str, queues: int = QUEUES) -> list[dict[str, Any]]:
    """Every message of the topic, by raw pulls from offset 0 of each queue to its end."""
    handle = puller(java, cluster)
    messages = []
    for queue_id in range(queues):
        queue = [topic, cluster.broker_name, queue_id]
        offset, end = 0, max_offset(cluster, topic, queue_id)
        while offset < end:
            result = java.call("pull.pull", handle=handle, queue=queue, expression="*", offset=offset, max=32)
            assert result["status"] == "FOUND", result
            messages += result["messages"]
            offset = result["next"]
    java.call("pull.stop", handle=handle)
    return messages


BOTH_HEADERS = pytest.mark.parametrize("java", ["JSON", "ROCKETMQ"], ids=["json", "binary"], indirect=True)
"""In `make test`, too."""


# ---- producing


@BOTH_HEADERS
def test_every_field_of_a_message_arrives(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Fields"))
    handle = producer(java, cluster)
    before_ms = int(time.time() * 1000)
    body = "bytes \x00\x01\x02 and text: Grüße, 你好, 🚀".encode()
    properties = {"origin": "JFK", "größe": "übergroß", "emoji": "🛩"}
    sent = java.call(
        "producer.send", handle=handle, mode="sync", queue=[topic, cluster.broker_name, 2],
        message=message(topic, body, tags="TagÄ", keys="k1 k2", flag=42, properties=properties),
    )  # fmt: skip
    assert (sent["status"], sent["queue"], sent["queue_offset"]) == (
        "SEND_OK",
        [topic, cluster.broker_name, 2],
        0,
    )
    assert (sent["region"], sent["trace_on"]) == ("DefaultRegion", True)

    (got,) = pull_all(java, cluster, topic)

    assert body_of(got) == body
    assert (got["topic"], got["queue_id"], got["queue_offset"]) == (topic, 2, 0)
    assert (got["tags"], got["keys"], got["flag"]) == ("TagÄ", "k1 k2", 42)
    assert {key: got["properties"].get(key) for key in properties} == properties
    assert got["properties"]["UNIQ_KEY"] == sent["msg_id"] == got["msg_id"]
    assert got["properties"]["CLUSTER"] == cluster.cluster_name
    assert got["sys_flag"] == 0
    assert got["store_host"].lstrip("/") == cluster.broker
    assert before_ms <= got["born_timestamp"] <= got["store_timestamp"] <= time.time() * 1000 + 1
    assert got["reconsume_times"] == 0
    handle_2 = puller(java, cluster)
    seen = java.call(
        "pull.do", handle=handle_2, verb="view_message", topic=topic, msg_id=sent["offset_msg_id"]
    )
    assert (body_of(seen), seen["physical_offset"]) == (body, got["physical_offset"])


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_send_modes(java: JavaDriver, cluster: Cluster, name: Name, mode: str) -> None:
    topic = create_topic(cluster, name("Modes"))
    handle = producer(java, cluster)
    bodies = [f"{mode}-{number}".encode() for number in range(20)]
    sent = [
        java.call("producer.send", handle=handle, mode=mode, message=message(topic, body, keys=f"k{body!r}"))
        for body in bodies
    ]
    eventually(lambda: message_count(cluster, topic) == len(bodies), "every message stored")
    received = pull_all(java, cluster, topic)
    assert Counter(map(body_of, received)) == Counter(bodies)
    if mode != "oneway":
        acknowledged = {(one["queue"][2], one["queue_offset"]): one["msg_id"] for one in sent}
        stored = {(one["queue_id"], one["queue_offset"]): one["msg_id"] for one in received}
        assert acknowledged == stored


def test_many_asynchronous_sends_are_dense_and_in_place(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic = create_topic(cluster, name("Many"))
    handle = producer(java, cluster)
    count = 1_000 if cluster.kind == "mqspark" else 100  # RocketMQ refuses what has waited for 200 ms
    sent = java.call(
        "producer.send_many", handle=handle, topic=topic, mode="async", count=count, prefix="m", tags="T"
    )
    assert {one["status"] for one in sent} == {"SEND_OK"}
    for queue_id in range(QUEUES):
        offsets = sorted(one["queue_offset"] for one in sent if one["queue"][2] == queue_id)
        assert offsets == list(range(max_offset(cluster, topic, queue_id)))
    stored = {(one["queue_id"], one["queue_offset"]): body_of(one) for one in pull_all(java, cluster, topic)}
    assert stored == {
        (one["queue"][2], one["queue_offset"]): f"m-{number}".encode() for number, one in enumerate(sent)
    }


@BOTH_HEADERS
def test_a_batch_is_stored_as_its_messages(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Batch"))
    handle = producer(java, cluster)
    batch = [
        message(topic, b"b%d" % number, tags=f"T{number}", keys=f"K{number}", flag=number)
        for number in range(50)
    ]
    sent = java.call(
        "producer.send_batch", handle=handle, messages=batch, queue=[topic, cluster.broker_name, 1]
    )
    assert (sent["status"], sent["queue_offset"]) == ("SEND_OK", 0)
    assert len(sent["offset_msg_id"].split(",")) == 50
    received = pull_all(java, cluster, topic)
    assert [
        (body_of(one), one["tags"], one["keys"], one["flag"], one["queue_offset"]) for one in received
    ] == [(b"b%d" % number, f"T{number}", f"K{number}", number, number) for number in range(50)]
    assert {one["queue_id"] for one in received} == {1}


def test_batches_of_a_batch_topic(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """A topic made by mqadmin with queue.type=BatchCQ keeps a batch as one record; its consumers see messages."""
    topic, group = name("BatchCq"), name("batch-cq-group")
    java.mqadmin(
        *("updateTopic", "-n", cluster.namesrv, "-b", cluster.broker, "-t", topic, "-r", "1", "-w", "1"),
        *("-a", "+queue.type=BatchCQ,+message.type=NORMAL"),
    )
    handle = producer(java, cluster)
    queue = [topic, cluster.broker_name, 0]
    bodies = []
    for base, count in ((0, 5), (6, 3)):
        batch = [message(topic, b"b%d" % number, tags="A") for number in range(base, base + count)]
        sent = java.call("producer.send_batch", handle=handle, messages=batch, queue=queue)
        assert (sent["status"], sent["queue_offset"]) == ("SEND_OK", base)
        bodies += [body_of(one) for one in batch]
        if not base:
            single = message(topic, b"single", tags="A")
            java.call("producer.send", handle=handle, mode="sync", message=single)
            bodies.append(b"single")
    eventually(lambda: max_offset(cluster, topic, 0) == 9, "the queue to follow the log")
    received = pull_all(java, cluster, topic, queues=1)
    assert [(body_of(one), one["queue_offset"]) for one in received] == list(
        zip(bodies, range(9), strict=True)
    )
    consumer = push(java, cluster, topic, group)
    assert Counter(body_of(one) for one in take(java, consumer, 9)) == Counter(bodies)
    java.call("push.stop", handle=consumer)


def test_a_sharding_key_always_meets_its_queue(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Shard"))
    handle = producer(java, cluster)
    queues: dict[str, set[int]] = {}
    for number in range(40):
        key = f"key-{number % 8}"
        sent = java.call(
            "producer.send", handle=handle, mode="sync", sharding_key=key, message=message(topic, b"x")
        )
        queues.setdefault(key, set()).add(sent["queue"][2])
    assert all(len(found) == 1 for found in queues.values()), queues
    assert len(set.union(*queues.values())) > 1


@BOTH_HEADERS
@pytest.mark.parametrize("algorithm", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_bodies(java: JavaDriver, cluster: Cluster, name: Name, algorithm: str) -> None:
    topic = create_topic(cluster, name("Compressed"))
    handle = producer(java, cluster, compress_over=1024, compress_type=algorithm)
    body = b"0123456789abcdef" * 4096
    java.call("producer.send", handle=handle, mode="sync", message=message(topic, body))
    (got,) = pull_all(java, cluster, topic)
    assert body_of(got) == body
    # The client clears the compressed bit when it has decompressed the body; the type bits it leaves.
    assert got["sys_flag"] == COMPRESSION_TYPE_BITS[algorithm]
    assert got["store_size"] < len(body) / 4


def test_a_large_and_an_empty_looking_body(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Large"), queues=1)
    handle = producer(java, cluster, compress_over=8 << 20)
    bodies = [bytes(range(256)) * 12000, b"\x00"]
    for body in bodies:
        java.call("producer.send", handle=handle, mode="sync", message=message(topic, body))
    assert [body_of(one) for one in pull_all(java, cluster, topic, queues=1)] == bodies


def test_an_unknown_topic_is_created_by_the_first_send(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic = name("Auto")
    handle = producer(java, cluster)
    sent = java.call("producer.send", handle=handle, mode="sync", message=message(topic, b"first"))
    assert sent["status"] == "SEND_OK"
    assert len(java.call("producer.queues", handle=handle, topic=topic)) == 4
    assert [body_of(one) for one in pull_all(java, cluster, topic)] == [b"first"]


def test_a_producer_creates_a_topic(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = name("Created")
    handle = producer(java, cluster)
    java.call("producer.create_topic", handle=handle, key="TBW102", topic=topic, queues=3)
    queues = java.call("producer.queues", handle=handle, topic=topic)
    assert queues == [[topic, cluster.broker_name, queue_id] for queue_id in range(3)]


def test_the_vip_channel(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Vip"))
    handle = producer(java, cluster, vip=True)
    sent = java.call("producer.send", handle=handle, mode="sync", message=message(topic, b"fast port"))
    assert sent["status"] == "SEND_OK"
    assert [body_of(one) for one in pull_all(java, cluster, topic)] == [b"fast port"]


def test_a_queue_that_does_not_exist_is_refused(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Refused"))
    handle = producer(java, cluster)
    with pytest.raises(JavaError) as refused:
        java.call(
            "producer.send", handle=handle, mode="sync", queue=[topic, cluster.broker_name, 99],
            message=message(topic, b"nowhere"),
        )  # fmt: skip
    assert (refused.value.type, refused.value.code) == ("MQBrokerException", 29)


@BOTH_HEADERS
@pytest.mark.parametrize("characters", [20_000, 100_000])
def test_properties_that_are_too_long_are_refused_and_the_connection_goes_on(
    java: JavaDriver, cluster: Cluster, name: Name, characters: int
) -> None:
    topic = create_topic(cluster, name("Long"))
    handle = producer(java, cluster)
    long = message(topic, b"long", properties={"a": "\u4e2d" * characters})
    with pytest.raises(JavaError) as refused:
        java.call("producer.send", handle=handle, mode="sync", message=long)
    assert (refused.value.type, refused.value.code) == ("MQBrokerException", 13)
    sent = java.call("producer.send", handle=handle, mode="sync", message=message(topic, b"short"))
    assert sent["status"] == "SEND_OK"


# ---- push consumers


@BOTH_HEADERS
def test_clustering_consumer_gets_its_tags_from_the_first_message(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic, group = create_topic(cluster, name("Tags")), name("tags-group")
    handle = producer(java, cluster)
    # "Aa" and "BB" have the same hash: the broker lets both pass, the client drops the other one.
    for tags in ["Aa", "BB", "C", "D"]:
        java.call(
            "producer.send_many", handle=handle, topic=topic, mode="async", count=25, prefix=tags, tags=tags
        )
    consumer = push(java, cluster, topic, group, expression="Aa || C")
    received = take(java, consumer, 50)
    assert Counter(map(body_of, received)) == Counter(
        f"{tags}-{number}".encode() for tags in ["Aa", "C"] for number in range(25)
    )
    # A message sent now reaches the parked pull.
    java.call("producer.send", handle=handle, mode="sync", message=message(topic, b"later", tags="C"))
    assert [body_of(one) for one in take(java, consumer, 1)] == [b"later"]
    java.call("push.stop", handle=consumer)


def test_a_restarted_group_goes_on_where_it_was(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("Resume")), name("resume-group")
    handle = producer(java, cluster)
    java.call(
        "producer.send_many", handle=handle, topic=topic, mode="async", count=40, prefix="one", tags="T"
    )
    first = push(java, cluster, topic, group)
    assert len(take(java, first, 40)) == 40
    java.call("push.stop", handle=first)  # persists its offsets
    java.call(
        "producer.send_many", handle=handle, topic=topic, mode="async", count=30, prefix="two", tags="T"
    )
    second = push(java, cluster, topic, group)
    received = take(java, second, 30)
    received += take(java, second, 1, timeout_ms=1000)
    bodies = Counter(map(body_of, received))
    again = [body for body in bodies if body.startswith(b"one-")]
    assert len(again) < 10, "it began anew"  # what was being confirmed as it stopped may come again
    assert bodies - Counter(again) == Counter(b"two-%d" % number for number in range(30))
    java.call("push.stop", handle=second)


def test_two_consumers_share_the_queues_and_one_takes_over(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic, group = create_topic(cluster, name("Share")), name("share-group")
    handle = producer(java, cluster)
    one = push(java, cluster, topic, group)
    two = push(java, cluster, topic, group)

    def owned(consumer: int) -> list[int]:
        return [queue[2] for queue in java.call("push.queues", handle=consumer, topic=topic)]

    eventually(lambda: sorted([len(owned(one)), len(owned(two))]) == [2, 2], "two queues each")
    assert sorted(owned(one) + owned(two)) == [0, 1, 2, 3]
    java.call("producer.send_many", handle=handle, topic=topic, mode="async", count=200, prefix="s", tags="T")
    eventually(lambda: message_count(cluster, topic) == 200, "stored")
    shares = [
        sum(max_offset(cluster, topic, queue_id) for queue_id in owned(consumer)) for consumer in (one, two)
    ]
    assert [len(take(java, one, shares[0])), len(take(java, two, shares[1]))] == shares

    java.call("push.stop", handle=one)
    eventually(lambda: owned(two) == [0, 1, 2, 3], "the other owns all four")
    java.call("producer.send_many", handle=handle, topic=topic, mode="async", count=40, prefix="t", tags="T")
    assert {body_of(got) for got in take(java, two, 40)} == {b"t-%d" % number for number in range(40)}
    java.call("push.stop", handle=two)


def test_every_broadcast_consumer_gets_everything(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("Broadcast")), name("broadcast-group")
    handle = producer(java, cluster)
    consumers = [push(java, cluster, topic, group, model="BROADCASTING") for _ in range(2)]
    java.call("producer.send_many", handle=handle, topic=topic, mode="async", count=60, prefix="b", tags="T")
    expected = Counter(b"b-%d" % number for number in range(60))
    for consumer in consumers:
        assert Counter(map(body_of, take(java, consumer, 60))) == expected
        java.call("push.stop", handle=consumer)


def test_an_orderly_consumer_gets_each_queue_in_order(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("Orderly")), name("orderly-group")
    handle = producer(java, cluster)
    consumer = push(java, cluster, topic, group, orderly=True)
    java.call("producer.send_many", handle=handle, topic=topic, mode="sync", count=100, prefix="o", tags="T")
    received = take(java, consumer, 100, timeout_ms=40_000)
    assert len(received) == 100
    for queue_id in range(QUEUES):
        offsets = [one["queue_offset"] for one in received if one["queue_id"] == queue_id]
        assert offsets == list(range(len(offsets)))
    java.call("push.stop", handle=consumer)


def test_heartbeats_without_subscriptions_keep_them(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """Heartbeat V2: a fingerprint stands for the subscriptions that the broker already has."""
    topic, group = create_topic(cluster, name("HeartbeatV2")), name("heartbeat-group")
    handle = producer(java, cluster)
    consumer = push(java, cluster, topic, group, expression="A || B", heartbeat_v2=True)
    for prefix in ("first", "second"):
        java.call(
            "producer.send_many", handle=handle, topic=topic, mode="async", count=20, prefix=prefix, tags="B"
        )
        received = take(java, consumer, 20)
        assert Counter(map(body_of, received)) == Counter(
            f"{prefix}-{number}".encode() for number in range(20)
        )
        time.sleep(2.5)  # a few heartbeats, one a second
        printed = java.mqadmin("consumerConnection", "-g", group, "-n", cluster.namesrv)
        assert [topic, "A", "||", "B"] in [line.split() for line in printed.splitlines()]
    java.call("push.stop", handle=consumer)


@pytest.mark.parametrize("start", ["CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"])
def test_a_new_group_on_a_young_queue_starts_at_its_beginning(
    java: JavaDriver, cluster: Cluster, name: Name, start: str
) -> None:
    """For a group without an offset the broker answers 0 while the queue's first message is in memory."""
    topic, group = create_topic(cluster, name("Young")), name("young-group")
    handle = producer(java, cluster)
    java.call("producer.send_many", handle=handle, topic=topic, mode="async", count=20, prefix="y", tags="T")
    eventually(lambda: message_count(cluster, topic) == 20, "stored")
    consumer = push(
        java, cluster, topic, group, **{"from": start, "timestamp": int(time.time() * 1000) + 5000}
    )
    assert len(take(java, consumer, 20)) == 20
    java.call("push.stop", handle=consumer)


# ---- lite pull consumer


def lite(java: JavaDriver, cluster: Cluster, group: str, **settings: Any) -> int:
    arguments = {"auto_commit": False, "from": "CONSUME_FROM_FIRST_OFFSET", **settings}
    return int(java.call("lite.start", namesrv=cluster.namesrv, group=group, **arguments)["handle"])


def poll(java: JavaDriver, handle: int, count: int, timeout_ms: int = 20_000) -> list[dict[str, Any]]:
    received: list[dict[str, Any]] = java.call("lite.poll", handle=handle, count=count, timeout_ms=timeout_ms)
    return received


def test_lite_pull_subscription_commits_and_resumes(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("Lite")), name("lite-group")
    sender = producer(java, cluster)
    java.call("producer.send_many", handle=sender, topic=topic, mode="async", count=100, prefix="a", tags="T")
    first = lite(java, cluster, group, topic=topic, expression="*")
    assert {body_of(one) for one in poll(java, first, 100)} == {b"a-%d" % number for number in range(100)}
    java.call("lite.do", handle=first, verb="commit")
    queues = java.call("lite.do", handle=first, verb="queues", topic=topic)
    assert queues == [[topic, cluster.broker_name, queue_id] for queue_id in range(QUEUES)]
    for queue in queues:
        committed = java.call("lite.do", handle=first, verb="committed", queue=queue)
        assert committed == max_offset(cluster, topic, queue[2])
    java.call("lite.stop", handle=first)

    java.call("producer.send_many", handle=sender, topic=topic, mode="async", count=40, prefix="b", tags="T")
    second = lite(java, cluster, group, topic=topic, expression="*")
    received = poll(java, second, 40) + poll(java, second, 1, timeout_ms=1000)
    assert Counter(map(body_of, received)) == Counter(b"b-%d" % number for number in range(40))
    java.call("lite.stop", handle=second)


def test_lite_pull_assignment_seeks_pauses_and_looks_up_times(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic, group = create_topic(cluster, name("Assign")), name("assign-group")
    create_group(cluster, group)
    sender = producer(java, cluster)
    queue = [topic, cluster.broker_name, 3]
    for number in range(50):
        java.call(
            "producer.send", handle=sender, mode="sync", queue=queue, message=message(topic, b"%d" % number)
        )
    consumer = lite(java, cluster, group, topic=topic, queues=[queue])

    received = poll(java, consumer, 50)
    assert [int(body_of(one)) for one in received] == list(range(50))
    java.call("lite.do", handle=consumer, verb="seek", queue=queue, offset=45)
    assert [int(body_of(one)) for one in poll(java, consumer, 5)] == [45, 46, 47, 48, 49]
    java.call("lite.do", handle=consumer, verb="seek_to_begin", queue=queue)
    assert [int(body_of(one)) for one in poll(java, consumer, 50)] == list(range(50))
    java.call("lite.do", handle=consumer, verb="seek_to_end", queue=queue)
    assert poll(java, consumer, 1, timeout_ms=500) == []

    java.call("lite.do", handle=consumer, verb="pause", queue=queue)
    java.call("producer.send", handle=sender, mode="sync", queue=queue, message=message(topic, b"50"))
    # What a parked pull had already asked for may still come; after it, nothing until resumed.
    late = [int(body_of(one)) for one in poll(java, consumer, 1, timeout_ms=1000)]
    java.call("lite.do", handle=consumer, verb="resume", queue=queue)
    if not late:
        late = [int(body_of(one)) for one in poll(java, consumer, 1)]
    assert late == [50]

    at = received[20]["store_timestamp"]
    first = next(one["queue_offset"] for one in received if one["store_timestamp"] == at)
    found = java.call("lite.do", handle=consumer, verb="offset_for_timestamp", queue=queue, timestamp=at)
    assert found == first
    java.call("lite.stop", handle=consumer)


# ---- raw pulls and offsets


@BOTH_HEADERS
def test_what_a_pull_answers(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Pull"))
    sender, handle = producer(java, cluster), puller(java, cluster)
    queue = [topic, cluster.broker_name, 0]

    def pull(offset: int, expression: str = "*", count: int = 32) -> dict[str, Any]:
        result: dict[str, Any] = java.call(
            "pull.pull", handle=handle, queue=queue, expression=expression, offset=offset, max=count
        )
        return result

    def summary(result: dict[str, Any]) -> tuple[Any, ...]:
        return result["status"], result["next"], result["min"], result["max"], len(result["messages"])

    assert summary(pull(0)) == ("NO_NEW_MSG", 0, 0, 0, 0)
    assert summary(pull(7)) == ("OFFSET_ILLEGAL", 0, 0, 0, 0)
    for number in range(10):
        body = message(topic, b"%d" % number, tags="Even" if number % 2 == 0 else "Odd")
        java.call("producer.send", handle=sender, mode="sync", queue=queue, message=body)
    dispatched(cluster)
    assert summary(pull(0)) == ("FOUND", 10, 0, 10, 10)
    assert summary(pull(2, count=3)) == ("FOUND", 5, 0, 10, 3)
    assert summary(pull(10)) == ("NO_NEW_MSG", 10, 0, 10, 0)
    assert summary(pull(11)) == ("OFFSET_ILLEGAL", 10, 0, 10, 0)
    assert [int(body_of(one)) for one in pull(0, "Odd")["messages"]] == [1, 3, 5, 7, 9]
    assert summary(pull(0, "None")) == ("NO_MATCHED_MSG", 10, 0, 10, 0)


def test_a_blocking_pull_is_woken_by_a_send(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Wake"))
    sender, handle = producer(java, cluster), puller(java, cluster)
    queue = [topic, cluster.broker_name, 0]
    # The producer learns the route before, so that the send itself is quick.
    java.call(
        "producer.send",
        handle=sender,
        mode="sync",
        queue=[topic, cluster.broker_name, 1],
        message=message(topic, b"0"),
    )
    waiting = java.submit(
        "pull.pull", handle=handle, queue=queue, expression="*", offset=0, max=32, block=True
    )
    time.sleep(0.5)  # it must be parked at the broker, and nothing tells when it is
    assert not waiting.done()
    began = time.monotonic()
    java.call("producer.send", handle=sender, mode="sync", queue=queue, message=message(topic, b"woken"))
    result = waiting.result(30)
    assert time.monotonic() - began < 5, "a poll, not a wake-up"
    assert (result["status"], [body_of(one) for one in result["messages"]]) == ("FOUND", [b"woken"])


def test_offsets_of_queues_and_groups(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("Offsets")), name("offsets-group")
    sender, handle = producer(java, cluster), puller(java, cluster, group)
    queue = [topic, cluster.broker_name, 1]

    def ask(verb: str, **arguments: Any) -> Any:
        return java.call("pull.do", handle=handle, verb=verb, queue=queue, **arguments)

    assert [ask("max_offset"), ask("min_offset")] == [0, 0]
    assert ask("search_offset", timestamp=int(time.time() * 1000)) == 0
    for number in range(12):
        java.call(
            "producer.send", handle=sender, mode="sync", queue=queue, message=message(topic, b"%d" % number)
        )
        time.sleep(0.003)  # store times that differ
    stored = java.call("pull.pull", handle=handle, queue=queue, expression="*", offset=0, max=32)["messages"]
    assert len(stored) == 12
    assert [ask("max_offset"), ask("min_offset")] == [12, 0]
    for one in stored:
        expected = next(
            other["queue_offset"] for other in stored if other["store_timestamp"] >= one["store_timestamp"]
        )
        assert ask("search_offset", timestamp=one["store_timestamp"]) == expected
    assert ask("search_offset", timestamp=0) == 0
    assert ask("search_offset", timestamp=int(time.time() * 1000) + 60_000) == 12
    assert 0 < ask("earliest_store_time") <= stored[0]["store_timestamp"]

    ask("update_offset", offset=7)
    eventually(lambda: ask("fetch_offset") == 7, "the group's offset is stored")
    assert java.call("pull.do", handle=handle, verb="queues", topic=topic) == [
        [topic, cluster.broker_name, queue_id] for queue_id in range(QUEUES)
    ]
