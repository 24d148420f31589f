"""Static topics, made and remapped by mqadmin: on our brokers, together with a RocketMQ broker, and in a store
directory that goes from one to the other."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mqspark import AdminClient, ConsumeFromWhere, Message, MessageExt, MessageQueue, Producer, PushConsumer
from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.reading.range_fetch import read_task
from mqspark.protocol import fastjson
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.reading.batch import BatchReader
from tests.interop.directories import SETTINGS
from tests.interop.driver import JavaDriver, JavaError, body_of
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.commands import mqspark
from tests.support.waiting import eventually

TOPIC = "Static"
LOGIC = "__syslo__global__"
NAMES = {"brokerClusterName": "StaticCluster"}

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)


def logic_queue(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, LOGIC, number)


@pytest.mark.slow(
    "Java's consumer looks its route up every 30 s; fast: test_nothing_is_lost_or_reordered_while_queues_move"
)
def test_mqadmin_makes_and_remaps_a_static_topic(java: JavaDriver, tmp_path: Path) -> None:
    with ExitStack() as running:
        namesrv = running.enter_context(mqspark_namesrv(tmp_path / "namesrv"))
        for name in ("left", "right"):
            running.enter_context(mqspark_broker(tmp_path / name, namesrv, {**NAMES, "brokerName": name}))
        printed = java.mqadmin("updateStaticTopic", "-b", "left", "-qn", "2", "-t", TOPIC, "-n", namesrv)
        assert "The new mapping data is written to file" in printed
        producer = java.call("producer.start", namesrv=namesrv, group="p")["handle"]
        queues = java.call("producer.queues", handle=producer, topic=TOPIC)
        assert queues == [[TOPIC, LOGIC, 0], [TOPIC, LOGIC, 1]]
        many = {"topic": TOPIC, "mode": "sync", "tags": "T"}
        java.call("producer.send_many", handle=producer, count=10, prefix="a", **many)
        consumer = java.push(namesrv, TOPIC, "g")
        first = java.take(consumer, 10)
        printed = java.mqadmin("remappingStaticTopic", "-b", "right", "-t", TOPIC, "-n", namesrv)
        assert ".after" in printed
        route = java.mqadmin("topicRoute", "-t", TOPIC, "-n", namesrv)
        assert f'"{LOGIC}"' not in route
        assert route.count('"totalQueues":2') == 2
        # A producer that starts now has the new route; the old one has it within 30 s.
        fresh = java.call("producer.start", namesrv=namesrv, group="q")["handle"]
        results = java.call("producer.send_many", handle=fresh, count=10, prefix="b", **many)
        assert {result["queue_offset"] for result in results} == set(range(10_000, 10_005))
        second = java.take(consumer, 10, timeout_ms=60_000)
        assert [sorted(map(body_of, some)) for some in (first, second)] == [
            [b"%s-%d" % (prefix, number) for number in range(10)] for prefix in (b"a", b"b")
        ]
        assert {(one["broker"], one["queue_id"]) for one in second} == {(LOGIC, 0), (LOGIC, 1)}
        status = java.mqadmin("topicStatus", "-t", TOPIC, "-n", namesrv)
        rows = [line.split()[:4] for line in status.splitlines() if line.startswith(LOGIC)]
        assert sorted(rows) == [[LOGIC, "0", "0", "10005"], [LOGIC, "1", "0", "10005"]]
        printed = java.mqadmin("deleteTopic", "-c", NAMES["brokerClusterName"], "-t", TOPIC, "-n", namesrv)
        assert "success" in printed
        with pytest.raises(JavaError, match=TOPIC):
            java.call("producer.queues", handle=fresh, topic=TOPIC + "Gone")


def read_by_spark(namesrv: str) -> dict[int, list[tuple[int, bytes]]]:
    """Offset and body of every message, by logic queue, as a batch of Spark reads them."""
    options = ReadOptions.parse({"nameserver": namesrv, "topic": TOPIC}, streaming=False)
    found: dict[int, list[tuple[int, bytes]]] = {}
    for partition in BatchReader(options, ("partition", "offset", "value")).partitions():
        for batch in read_task(partition.task):
            for row in batch.to_pylist():
                found.setdefault(row["partition"], []).append((row["offset"], row["value"]))
    return {number: sorted(rows) for number, rows in found.items()}


@pytest.mark.slow(
    "a Java consumer starts and waits; fast: test_a_stream_follows_its_queues_from_broker_to_broker"
)
def test_javas_consumer_goes_on_where_a_query_stopped(java: JavaDriver, tmp_path: Path) -> None:
    with ExitStack() as running:
        namesrv = running.enter_context(mqspark_namesrv(tmp_path / "namesrv"))
        for name in ("left", "right"):
            running.enter_context(mqspark_broker(tmp_path / name, namesrv, {**NAMES, "brokerName": name}))
        java.mqadmin("updateStaticTopic", "-b", "left", "-qn", "2", "-t", TOPIC, "-n", namesrv)

        def send(*bodies: bytes) -> None:
            with Producer(namesrv, group="p", send_timeout_ms=30_000) as producer:
                for body in bodies:
                    for number in range(2):
                        producer.send(Message.of(TOPIC, body), queue=logic_queue(number))

        send(b"1", b"2")
        java.mqadmin("remappingStaticTopic", "-b", "right", "-t", TOPIC, "-n", namesrv)
        send(b"3")
        options = {"nameserver": namesrv, "topic": TOPIC, "group": "shared"}
        cluster = ClusterQueues(ReadOptions.parse(options, streaming=False))
        cluster.publish(cluster.latest(cluster.queues()), {})
        cluster.client.close()
        assert read_by_spark(namesrv) == {
            number: [(0, b"1"), (1, b"2"), (10_000, b"3")] for number in range(2)
        }
        consumer = java.push(namesrv, TOPIC, "shared")
        send(b"4")
        received = java.take(consumer, 3, timeout_ms=8_000)
        assert [body_of(one) for one in received] == [b"4", b"4"], "nothing that the query had read"
        java.call("push.stop", handle=consumer)


@contextmanager
def mixed_cluster(kind: str, jars: Jars, folder: Path) -> Iterator[tuple[str, list[Cluster]]]:
    with ExitStack() as running:
        if kind == "mqspark":
            namesrv = running.enter_context(mqspark_namesrv(folder / "namesrv"))
        else:
            namesrv = running.enter_context(rocketmq_namesrv(jars, folder / "namesrv"))
        ours = mqspark_broker(folder / "ours", namesrv, {**NAMES, "brokerName": "broker-python"})
        theirs = rocketmq_broker(
            jars, folder / "theirs", namesrv, settings={**NAMES, "brokerName": "broker-java"}
        )
        yield namesrv, [running.enter_context(ours), running.enter_context(theirs)]


@pytest.mark.slow("a RocketMQ broker and name server start; fast: test_a_static_topic_by_rocketmqs_verbs")
def test_our_commands_make_and_remap_a_static_topic_of_both_kinds_of_brokers(
    java: JavaDriver, jars: Jars, tmp_path: Path
) -> None:
    with mixed_cluster("rocketmq", jars, tmp_path) as (namesrv, _):
        both = ("-b", "broker-python,broker-java")
        made = mqspark("mqadmin", "updateStaticTopic", *both, "-t", TOPIC, "-qn", "2", "-n", namesrv)
        assert made.code == 0, made.err
        assert [line.split()[1:] for line in made.lines[1:]] == [["0", "broker-java"], ["1", "broker-python"]]
        with Producer(namesrv, group="p", send_timeout_ms=30_000) as producer:
            for place, target in enumerate(("broker-java", "broker-python", "broker-java")):
                moved = mqspark("mqadmin", "remappingStaticTopic", "-b", target, "-t", TOPIC, "-n", namesrv)
                assert moved.code == 0, moved.err
                assert {line.split()[2] for line in moved.lines[1:]} == {target}
                for number in range(2):
                    producer.send(Message.of(TOPIC, b"%d" % place), queue=logic_queue(number))
        # What Java's tool thinks of it: it moves one queue back.
        printed = java.mqadmin("remappingStaticTopic", *both, "-t", TOPIC, "-n", namesrv)
        assert ".after" in printed
        assert {number: [body for _, body in rows] for number, rows in read_by_spark(namesrv).items()} == {
            0: [b"0", b"1", b"2"],
            1: [b"0", b"1", b"2"],
        }


@pytest.mark.slow(
    "a RocketMQ broker starts, and queues move three times; fast: test_nothing_is_lost_or_reordered_while_queues_move"
)
@pytest.mark.parametrize("kind", ["mqspark", "rocketmq"])
def test_queues_move_between_both_kinds_of_brokers_under_load(
    java: JavaDriver, jars: Jars, tmp_path: Path, kind: str
) -> None:
    numbers = range(4)
    sent: dict[int, list[int]] = {number: [] for number in numbers}
    got: dict[int, list[bytes]] = {number: [] for number in numbers}
    stopped = threading.Event()
    failures: list[BaseException] = []

    def send(number: int) -> None:
        try:
            with Producer(namesrv, group=f"p{number}", send_timeout_ms=30_000) as producer:
                while not stopped.is_set():
                    message = Message.of(TOPIC, b"%d" % len(sent[number]))
                    result = producer.send(message, queue=logic_queue(number))
                    sent[number].append(result.queue_offset)
                    time.sleep(0.005)
        except BaseException as error:
            failures.append(error)

    def listen(message: MessageExt) -> None:
        got[message.queue_id].append(message.body)

    with mixed_cluster(kind, jars, tmp_path) as (namesrv, brokers):
        java.mqadmin(
            "updateStaticTopic", "-b", "broker-python,broker-java", "-qn", "4", "-t", TOPIC, "-n", namesrv
        )
        for broker in brokers:
            for group in ("ours", "javas"):
                java.mqadmin("updateSubGroup", "-b", broker.broker, "-g", group, "-o", "true", "-n", namesrv)
        theirs = java.push(namesrv, TOPIC, "javas")
        consumer = PushConsumer(
            namesrv,
            group="ours",
            listener=listen,
            ordered=True,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC)
        senders = [threading.Thread(target=send, args=(number,)) for number in numbers]
        with consumer:
            for sender in senders:
                sender.start()
            for turn, target in enumerate(("broker-java", "broker-python", "broker-java,broker-python"), 1):
                wanted = 100 * turn
                eventually(lambda wanted=wanted: min(map(len, got.values())) > wanted, "queues are read")
                printed = java.mqadmin("remappingStaticTopic", "-b", target, "-t", TOPIC, "-n", namesrv)
                assert ".after" in printed
            eventually(lambda: min(map(len, got.values())) > 500, "queues are read after the last move")
            stopped.set()
            for sender in senders:
                sender.join(60)
            assert failures == []
            eventually(lambda: all(len(got[each]) >= len(sent[each]) for each in numbers), "all is read")
        expected = {number: [b"%d" % each for each in range(len(sent[number]))] for number in numbers}
        assert got == expected, "each once, in order"
        count = sum(map(len, sent.values()))
        received = java.take(theirs, count, timeout_ms=90_000)
        assert {(one["queue_id"], body_of(one)) for one in received} == {
            (number, body) for number, bodies in expected.items() for body in bodies
        }
        java.call("push.stop", handle=theirs)
        read = read_by_spark(namesrv)
        assert {number: [body for _, body in rows] for number, rows in read.items()} == expected
        for number, offsets in sent.items():  # -1 while a queue moves
            assert all(
                known in (-1, offset) for (offset, _), known in zip(read[number], offsets, strict=True)
            )


@pytest.mark.slow("a RocketMQ broker starts and stops; fast: test_a_mapping_survives")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_static_topic_moves_with_its_directory(
    java: JavaDriver, jars: Jars, tmp_path: Path, stop: signal.Signals
) -> None:
    settings = {**SETTINGS, "flushDiskType": "SYNC_FLUSH"}
    with mqspark_namesrv(tmp_path / "namesrv") as namesrv:

        def send(body: bytes) -> None:
            with Producer(namesrv, group="p", send_timeout_ms=30_000) as producer:
                for number in range(2):
                    producer.send(Message.of(TOPIC, body), queue=logic_queue(number))

        def check(*bodies: bytes) -> None:
            with AdminClient(namesrv) as admin:
                for number in range(2):
                    queue = logic_queue(number)
                    eventually(
                        lambda queue=queue: admin.queue_bounds(queue) == (0, len(bodies)), "all is there"
                    )
                    assert [message.body for message in admin.read(queue, 0).messages] == list(bodies)

        path = tmp_path / "broker/store/config/topicQueueMapping.json"
        with mqspark_broker(tmp_path / "broker", namesrv, settings) as ours:
            java.mqadmin("updateStaticTopic", "-b", "moving", "-qn", "2", "-t", TOPIC, "-n", namesrv)
            send(b"ours")
            check(b"ours")
            if stop is signal.SIGKILL:
                os.kill(ours.broker_pid, stop)
        before = fastjson.loads(path.read_bytes())
        with rocketmq_broker(
            jars, tmp_path / "broker", namesrv, settings=settings, stop_signal=signal.SIGTERM
        ):
            check(b"ours")
            send(b"theirs")
            printed = java.mqadmin(
                "updateStaticTopic", "-b", "moving", "-qn", "3", "-t", TOPIC, "-n", namesrv
            )
            assert "The new mapping data" in printed
        after = fastjson.loads(path.read_bytes())
        topics = [document["topicQueueMappingInfoMap"][TOPIC] for document in (before, after)]
        assert [topic.keys() for topic in topics] == [topics[0].keys()] * 2, "the same fields"
        assert [len(topic["hostedQueues"]) for topic in topics] == [2, 3]
        with mqspark_broker(tmp_path / "broker", namesrv, settings):
            check(b"ours", b"theirs")
            send(b"again")
            check(b"ours", b"theirs", b"again")
            with Producer(namesrv, group="q") as producer:
                assert producer.send(Message.of(TOPIC, b"new"), queue=logic_queue(2)).queue_offset == 0
