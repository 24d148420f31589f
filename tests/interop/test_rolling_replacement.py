"""A RocketMQ cluster becomes one of ours, node by node and under load, and then RocketMQ's again: docs/migration.md.

Nobody is configured anew: every node keeps its address and its files, and clients know the name server's address alone.
Every acknowledged message is stored exactly once and reaches every consumer, whichever kind of broker took it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqspark import LitePullConsumer, Message, MessageQueue, Producer, SendStatus
from mqspark.errors import MQError
from tests.interop.driver import JavaDriver, JavaError, message
from tests.interop.jars import Jars
from tests.interop.members import JavaMember, Member, OurMember
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import QUEUES, create_topic
from tests.support.clusters import Cluster, brokers_known_to, mqspark_broker, mqspark_namesrv
from tests.support.processes import HOST, free_port
from tests.support.remoting import ask, log_end
from tests.support.waiting import eventually

NAME, TOPIC = "rolled", "Rolling"
GET_ALL_TOPIC_CONFIG, GET_BROKER_HA_STATUS, UPDATE_BROKER_CONFIG = 21, 907, 25
SETTINGS = {
    "brokerClusterName": "Rolled",
    "brokerName": NAME,
    "registerNameServerPeriod": 10_000,
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 22,
    "mappedFileSizeConsumeQueue": 6000 * 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "mappedFileSizeTimerLog": 1 << 20,
    "slaveReadEnable": True,
}
ROLES: dict[int, dict[str, object]] = {
    0: {"brokerId": 0, "brokerRole": "SYNC_MASTER"},
    1: {"brokerId": 1, "brokerRole": "SLAVE"},
}
OURS, THEIRS = "mqspark", "rocketmq"


class Node:
    """One machine: a directory and an address, and now and then a broker of either kind on them."""

    def __init__(self, jars: Jars, folder: Path, namesrv: str) -> None:
        self._jars, self._folder, self._namesrv = jars, folder, namesrv
        self._port = free_port(neighbours=2)
        self._running = ExitStack()
        self.broker: Cluster | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port}"

    def run(self, kind: str, role: int) -> Cluster:
        self.stop()
        settings = {**SETTINGS, **ROLES[role], "listenPort": self._port}
        starting: AbstractContextManager[Cluster]
        if kind == OURS:
            starting = mqspark_broker(self._folder, self._namesrv, settings)
        else:
            starting = rocketmq_broker(
                self._jars, self._folder, self._namesrv, settings=settings, stop_signal=signal.SIGTERM
            )
        self.broker = self._running.enter_context(starting)
        eventually(
            lambda: brokers_known_to(self._namesrv).get(NAME, {}).get(str(role)) == self.address,
            f"broker {role} of {kind} to be known",
        )
        return self.broker

    def stop(self) -> None:
        """Cleanly."""
        self._running.close()
        self.broker = None

    def log_end(self) -> int:
        return log_end(self.address)


class Load:
    """A producer that sends one numbered message after the other, each once, and notes what became of them."""

    def __init__(self, name: str, send: Callable[[MessageQueue, bytes], bool]) -> None:
        self.acknowledged: set[bytes] = set()
        self.sent = 0
        self.longest_pause_s = 0.0
        """Between two acknowledgements."""
        self._name, self._send = name, send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._over.wait(0.02):
            body = b"%s-%d" % (self._name.encode(), self.sent)
            queue = MessageQueue(TOPIC, NAME, self.sent % QUEUES)
            self.sent += 1
            try:
                if self._send(queue, body):
                    self.acknowledged.add(body)
                    now_s = time.monotonic()
                    self.longest_pause_s, last_s = max(self.longest_pause_s, now_s - last_s), now_s
            except (MQError, JavaError):
                continue  # perhaps stored

    def await_more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        eventually(
            lambda: len(self.acknowledged) >= wanted,
            lambda: f"{self._name} has {len(self.acknowledged)} of {wanted} acknowledgements",
            120,
        )

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class Reader:
    """What a push consumer was given."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.read: Counter[bytes] = Counter()

    def stop(self) -> None:
        self._member.do("stop")

    def has(self, wanted: set[bytes]) -> bool:
        self.read.update(self._member.take(1, 1.0))
        return self.read.keys() >= wanted


@contextmanager
def spark_lines(namesrv: str, folder: Path) -> Iterator[Callable[[], list[str]]]:
    """A stream of the topic into text files: "queue:offset:body"."""
    os.environ.setdefault("SPARK_LOCAL_IP", HOST)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("rolling").master("local[1]")  # type: ignore[attr-defined]
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": HOST,
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        frame = spark.readStream.format("pymq").option("nameserver", namesrv).option("topic", TOPIC)
        frame = frame.option("startingOffsets", "earliest").option("group", "spark").load()
        rows = frame.selectExpr("concat_ws(':', partition, offset, cast(value as string)) value")
        out = str(folder / "out")
        writer = rows.writeStream.format("text").option("path", out)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()

        def read() -> list[str]:
            assert query.exception() is None, query.exception()
            return [row.value for row in spark.read.text(out).collect()]

        try:
            yield read
        finally:
            query.stop()
    finally:
        spark.stop()


def in_sync(master: Node, slave: Node) -> bool:
    """Whether the slave has, up to a moment, what its master has."""
    status = json.loads(ask(master.address, GET_BROKER_HA_STATUS).body)
    known = TOPIC.encode() in bytes(ask(slave.address, GET_ALL_TOPIC_CONFIG).body)
    return known and int(status["inSyncSlaveNums"]) >= 1 and slave.log_end() > master.log_end() - 10_000


def wait_for_slave(master: Node, slave: Node) -> None:
    """From now on the slave has what is acknowledged, and soon what was before."""
    answer = ask(master.address, UPDATE_BROKER_CONFIG, b"inSyncReplicas=2\n")
    assert answer.code == 0, answer
    end = master.log_end()
    eventually(lambda: slave.log_end() >= end, "the slave to have what was acknowledged")


def everything(namesrv: str) -> Counter[bytes]:
    """All messages of the topic, as a consumer that begins at the beginning reads them."""
    found: Counter[bytes] = Counter()
    with LitePullConsumer(namesrv, group="everything") as consumer:
        queues = consumer.fetch_message_queues(TOPIC)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        idle_s = time.monotonic() + 10
        while time.monotonic() < idle_s:
            for each in consumer.poll(1_000):
                found[each.body] += 1
                idle_s = time.monotonic() + 5
    return found


@pytest.mark.slow("a Java cluster starts twice; tests/interop/test_slave_of_rocketmq.py has its parts")
@pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)
@pytest.mark.timeout(1_200)
def test_a_cluster_is_replaced_node_by_node_and_back(jars: Jars, java: JavaDriver, tmp_path: Path) -> None:
    port = free_port()
    namesrv, server = f"{HOST}:{port}", ExitStack()

    def run_namesrv(kind: str) -> None:
        server.close()
        folder, settings = tmp_path / f"namesrv-{kind}-{time.monotonic_ns()}", {"listenPort": port}
        folder.mkdir()
        known: AbstractContextManager[str] = (
            mqspark_namesrv(folder, settings)
            if kind == OURS
            else rocketmq_namesrv(jars, folder, settings=settings)
        )
        assert server.enter_context(known) == namesrv

    first, second = (Node(jars, tmp_path / name, namesrv) for name in ("first", "second"))
    with ExitStack() as ends:
        ends.callback(server.close)
        ends.callback(first.stop)
        ends.callback(second.stop)
        run_namesrv(THEIRS)
        create_topic(first.run(THEIRS, 0), TOPIC)
        second.run(THEIRS, 1)
        ours = ends.enter_context(Producer(namesrv, group="ours", send_timeout_ms=5_000, retries=0))
        theirs = java.call("producer.start", namesrv=namesrv, group="theirs", timeout_ms=5_000)["handle"]

        def send_ours(queue: MessageQueue, body: bytes) -> bool:
            return ours.send(Message(TOPIC, body), queue=queue).status is SendStatus.SEND_OK

        def send_theirs(queue: MessageQueue, body: bytes) -> bool:
            answer: Any = java.call(
                "producer.send",
                handle=theirs,
                mode="sync",
                message=message(TOPIC, body),
                queue=[queue.topic, queue.broker_name, queue.queue_id],
            )
            return bool(answer["status"] == "SEND_OK")

        readers = {
            "ours": Reader(OurMember(java, namesrv, TOPIC, "read-by-ours")),
            "java": Reader(JavaMember(java, namesrv, TOPIC, "read-by-java")),
        }
        for reader in readers.values():
            ends.callback(reader.stop)
        lines = ends.enter_context(spark_lines(namesrv, tmp_path / "spark"))
        loads = [Load("ours", send_ours), Load("java", send_theirs)]
        for load in loads:
            ends.callback(load.stop)

        def goes_on() -> None:
            """Everybody sends and reads, and what was acknowledged so far reaches everybody."""
            for load in loads:
                load.await_more(20)
            wanted = set().union(*(load.acknowledged for load in loads))
            for name, reader in readers.items():
                eventually(
                    lambda reader=reader: reader.has(wanted),  # type: ignore[misc]
                    lambda name=name: f"{name} lacks {len(wanted - readers[name].read.keys())} messages",  # type: ignore[misc]
                    120,
                )

        pauses: list[float] = []

        def hand_over(master: Node, slave: Node, kind: str) -> None:
            """The slave's node becomes the master, and the master's a slave of the kind."""
            eventually(lambda: in_sync(master, slave), "the slave to be in sync", 120)
            wait_for_slave(master, slave)
            for load in loads:
                load.longest_pause_s = 0.0
            master.stop()
            slave.run(kind, 0)
            goes_on()
            pauses.extend(round(load.longest_pause_s, 1) for load in loads)
            master.run(kind, 1)

        goes_on()
        eventually(
            lines, "Spark to read", 120
        )  # a query that begins while nobody knows the topic ends at once
        run_namesrv(OURS)
        eventually(lambda: len(brokers_known_to(namesrv).get(NAME, {})) == 2, "both to register again")
        goes_on()
        second.run(OURS, 1)  # our slave follows RocketMQ's master
        goes_on()
        hand_over(first, second, OURS)
        goes_on()
        assert {node.broker.kind for node in (first, second) if node.broker} == {OURS}

        first.run(THEIRS, 1)  # RocketMQ's slave follows our master
        goes_on()
        hand_over(second, first, THEIRS)
        goes_on()
        run_namesrv(THEIRS)
        eventually(lambda: len(brokers_known_to(namesrv).get(NAME, {})) == 2, "both to register again")
        goes_on()

        for load in loads:
            load.stop()
        acknowledged = set().union(*(load.acknowledged for load in loads))
        goes = {name: reader.has(acknowledged) for name, reader in readers.items()}
        for name, reader in readers.items():
            eventually(lambda reader=reader: reader.has(acknowledged), f"{name}: {goes[name]}", 60)  # type: ignore[misc]
        stored = everything(namesrv)
        assert acknowledged <= stored.keys(), f"{len(acknowledged - stored.keys())} messages are lost"
        twice = {body: count for body, count in stored.items() if count > 1}
        assert not twice, f"stored twice: {twice}"
        eventually(
            lambda: {line.split(":", 2)[2].encode() for line in lines()} >= acknowledged,
            "Spark to have everything",
            120,
        )
        places = Counter(line.rsplit(":", 1)[0] for line in lines())
        assert max(places.values()) == 1, "Spark has a queue offset twice"
        sent = sum(load.sent for load in loads)
        again = {name: sum(reader.read.values()) - len(reader.read) for name, reader in readers.items()}
        print(f"{len(acknowledged)} of {sent} sends acknowledged, pauses of {pauses} s, read again: {again}")
