"""A broker that has too much to do refuses sends with SYSTEM_BUSY: what the clients of both kinds make of that."""

import itertools
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqspark import LitePullConsumer, Message, MessageQueue, Producer, SendStatus
from mqspark.errors import BrokerError
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.connection import Connection
from tests.interop.driver import JavaDriver, JavaError, message
from tests.interop.jars import Jars
from tests.interop.members import WAIT_S
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import QUEUES, create_topic, message_count
from tests.support.clusters import Cluster, mqspark_broker, mqspark_cluster
from tests.support.remoting import SEND_MESSAGE_V2, ask, request_frame
from tests.support.waiting import eventually

Name = Callable[[str], str]

UPDATE_SETTINGS = 25
BUSY = int(ResponseCode.SYSTEM_BUSY)
CROWD, AT_ONCE = 4, 300

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)


@contextmanager
def overloaded(broker: str, topic: str) -> Iterator[None]:
    """More sends at once, all the time until the block ends, than the broker can handle in a millisecond."""
    ended = threading.Event()
    ext = {"a": "crowd", "b": topic, "c": "TBW102", "d": QUEUES, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}
    frames = b"".join(
        request_frame(SEND_MESSAGE_V2, number, {**ext, "e": number % QUEUES}, b"x")
        for number in range(AT_ONCE)
    )

    def send(connection: socket.socket) -> None:
        wire = Connection()
        while not ended.is_set():
            connection.sendall(frames)
            answers = 0
            while answers < AT_ONCE:
                answers += len(wire.receive_data(connection.recv(1 << 20)))

    host, _, port = broker.rpartition(":")
    with ExitStack() as stack, ThreadPoolExecutor(CROWD) as threads:
        tasks = []
        for _ in range(CROWD):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))
            tasks.append(threads.submit(send, connection))
        try:
            yield
        finally:
            ended.set()
        for task in tasks:
            task.result()


def stored(cluster: Cluster, topic: str) -> Counter[bytes]:
    """All bodies of the topic."""
    count = message_count(cluster, topic)
    got: Counter[bytes] = Counter()
    with LitePullConsumer(cluster.namesrv, group=f"reads-{topic}") as consumer:
        queues = [MessageQueue(topic, cluster.broker_name, number) for number in range(QUEUES)]
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)

        def read() -> bool:
            got.update(one.body for one in consumer.poll(100))
            return got.total() >= count

        eventually(read, f"{count} messages")
    return got


@pytest.mark.slow(
    "a broker that is overloaded; tests/integration/servers/test_server_overload.py is the fast twin"
)
def test_java_is_refused_by_our_overloaded_broker(
    java: JavaDriver, jars: Jars, tmp_path: Path, name: Name
) -> None:
    """Asynchronously it reports a refusal at once, synchronously it sends again, three times in all. What it was told
    to be stored is stored once, and nothing of what it was told not to be."""
    topic, group = name("Busy"), name("busy")
    numbers = itertools.count()
    sent: Counter[str] = Counter()
    acknowledged: Counter[bytes] = Counter()
    refused: dict[str, list[JavaError]] = {"async": [], "sync": []}

    with mqspark_cluster(tmp_path / "cluster", "--set", "waitTimeMillsInSendQueue=1") as cluster:
        create_topic(cluster, topic)
        create_topic(cluster, name("Crowd"))
        producer = {
            mode: java.call(
                "producer.start",
                namesrv=cluster.namesrv,
                group=f"{group}-{mode}",
                timeout_ms=60_000,
                hooks=True,
            )["handle"]
            for mode in refused
        }

        def send(mode: str, count: int) -> None:
            calls: list[tuple[bytes, Future[Any]]] = []
            for _ in range(count):
                body = b"m-%d" % next(numbers)
                one = message(topic, body)
                calls.append(
                    (body, java.submit("producer.send", handle=producer[mode], mode=mode, message=one))
                )
            sent[mode] += count
            for body, call in calls:
                try:
                    assert call.result(2 * WAIT_S)["status"] == "SEND_OK"
                    acknowledged[body] += 1
                except JavaError as error:
                    refused[mode].append(error)

        def sent_again() -> bool:
            return Counter(java.call("hooked", group=f"{group}-sync"))["before"] > sent["sync"]

        def overload_is_felt() -> bool:
            if not refused["async"]:
                send("async", 50)
            if not sent_again():
                send("sync", 50)
            return bool(refused["async"]) and sent_again()

        with overloaded(cluster.broker, name("Crowd")):
            eventually(overload_is_felt, "refusals")
        for mode in refused:
            send(mode, 10)
            java.call("producer.stop", handle=producer[mode])
        there = stored(cluster, topic)
    assert there - acknowledged == Counter()
    assert acknowledged - there == Counter()
    for mode, kind, text in (
        ("async", "MQBrokerException", "busy"),
        ("sync", "MQClientException", "Send [3] times"),
    ):
        assert all(
            (error.type, error.code) == (kind, BUSY) and text in error.text for error in refused[mode]
        ), refused


@pytest.mark.slow("a real broker starts first")
def test_we_are_refused_by_a_java_broker(
    java: JavaDriver, jars: Jars, tmp_path: Path, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose pool of write buffers is used up refuses all sends until it is told not to."""
    caplog.set_level(logging.DEBUG, "mqspark.client.producer.sending")

    def retries() -> int:
        count = sum(" failed: " in record.getMessage() for record in caplog.records)
        caplog.clear()
        return count

    pool = {
        "transientStorePoolEnable": True,
        "transientStorePoolSize": 1,
        "fastFailIfNoBufferInStorePool": True,
    }
    with ExitStack() as running:
        namesrv = running.enter_context(rocketmq_namesrv(jars, tmp_path / "namesrv"))
        theirs = running.enter_context(rocketmq_broker(jars, tmp_path / "theirs", namesrv, settings=pool))
        topic = create_topic(theirs, name("Refused"))
        producer = running.enter_context(Producer(namesrv, group=name("refused"), send_timeout_ms=30_000))
        queue = MessageQueue(topic, theirs.broker_name, 1)
        assert producer.send(Message.of(topic, b"the last buffer")).status is SendStatus.SEND_OK

        def refused(send: Callable[[], object]) -> None:
            with pytest.raises(BrokerError, match="REJECTREQUEST") as caught:
                send()
            assert (caught.value.code, caught.value.address) == (BUSY, theirs.broker)

        refused(lambda: producer.send(Message.of(topic, b"tried three times")))
        assert retries() == 2
        refused(lambda: producer.send_async(Message.of(topic, b"also")).result(WAIT_S))
        assert retries() == 2
        refused(lambda: producer.send(Message.of(topic, b"for one queue"), queue=queue))
        refused(lambda: producer.send(Message.of(topic, b"by choice"), selector=lambda queues, _: queues[0]))
        assert retries() == 0

        # Where another broker serves the topic, it gets them all.
        settings = {"brokerClusterName": theirs.cluster_name, "brokerName": "python-b"}
        ours = running.enter_context(mqspark_broker(tmp_path / "ours", namesrv, settings))
        create_topic(ours, topic)
        elsewhere = running.enter_context(Producer(namesrv, group=name("elsewhere"), send_timeout_ms=30_000))
        bodies = [f"m-{number}".encode() for number in range(20)]
        results = [elsewhere.send(Message.of(topic, body)) for body in bodies]
        assert {result.queue.broker_name for result in results} == {"python-b"}
        assert message_count(ours, topic) == len(bodies)
        assert message_count(theirs, topic) == 1

        assert ask(theirs.broker, UPDATE_SETTINGS, b"transientStorePoolEnable=false\n").code == 0
        assert producer.send(Message.of(topic, b"again"), queue=queue).status is SendStatus.SEND_OK
        eventually(lambda: message_count(theirs, topic) == 2, "the queue follows the log")
