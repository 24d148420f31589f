"""A RocketMQ slave of a master of ours."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqspark import LitePullConsumer, Message, Producer, SendStatus
from tests.interop.driver import JavaDriver, body_of
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, brokers_known_to, mqspark_broker, mqspark_namesrv
from tests.support.remoting import ask
from tests.support.waiting import eventually

GET_ALL_TOPIC_CONFIG, GET_ALL_CONSUMER_OFFSET, GET_BROKER_HA_STATUS = 21, 43, 907
TOPIC = "Replicated"
PAIR = {"brokerClusterName": "Pair", "brokerName": "pair", "mappedFileSizeCommitLog": 1 << 20}
START_S = 60.0
"""A busy machine's time for a Java broker."""

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)


@dataclass(frozen=True, slots=True)
class Master:
    namesrv: str
    cluster: Cluster

    def is_followed(self) -> bool:
        info = json.loads(ask(self.cluster.broker, GET_BROKER_HA_STATUS).body)
        return any(slave["inSync"] for slave in info["haConnectionInfo"])


@contextmanager
def master(folder: Path, **settings: object) -> Iterator[Master]:
    with ExitStack() as running:
        namesrv = running.enter_context(mqspark_namesrv(folder / "namesrv"))
        cluster = running.enter_context(mqspark_broker(folder / "master", namesrv, {**PAIR, **settings}))
        yield Master(namesrv, cluster)


@contextmanager
def slave(jars: Jars, folder: Path, namesrv: str) -> Iterator[Cluster]:
    settings = {**PAIR, "brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": True}
    with rocketmq_broker(jars, folder / "slave", namesrv, settings=settings, registered=False) as running:
        yield running


def logs(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}


SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 3_000}


@pytest.mark.slow(
    "a Java broker starts; test_slave_of_rocketmq.py, which has the same wire, is the fast twin"
)
@pytest.mark.parametrize("starts", [1, 2])
def test_a_rocketmq_slave_has_the_log_of_our_master(
    java: JavaDriver, jars: Jars, tmp_path: Path, starts: int
) -> None:
    with (
        master(tmp_path, **SYNC) as first,
        Producer(first.namesrv, group="P", send_timeout_ms=30_000) as producer,
    ):
        create_topic(first.cluster, TOPIC)
        assert producer.send(Message(TOPIC, b"alone")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        with slave(jars, tmp_path, first.namesrv) as second:
            eventually(first.is_followed, "a slave", START_S)
            for number in range(3_000):
                body = random.Random(number).randbytes(1_000)
                assert producer.send(Message(TOPIC, body)).status is SendStatus.SEND_OK
            ours, theirs = logs(first.cluster.store), logs(second.store)
            assert len(ours) > 3
            for name, content in ours.items():
                assert theirs[name] == content, name
            printed = java.mqadmin("haStatus", "-b", first.cluster.broker, "-n", first.namesrv)
            assert "#SlaveNum\t1" in printed.replace(" ", ""), printed
            os.kill(second.broker_pid, signal.SIGKILL)
            eventually(lambda: not first.is_followed(), "the end of the slave")
            assert producer.send(Message(TOPIC, b"alone again")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        if starts == 1:
            return
        with slave(jars, tmp_path, first.namesrv) as second:
            eventually(first.is_followed, "the slave again", START_S)
            assert producer.send(Message(TOPIC, b"together")).status is SendStatus.SEND_OK
            ours, theirs = logs(first.cluster.store), logs(second.store)
            for name, content in ours.items():
                assert theirs[name] == content, name


@pytest.mark.slow("a RocketMQ slave asks once a minute")
def test_consumers_go_on_at_the_slave_when_our_master_dies(
    java: JavaDriver, jars: Jars, tmp_path: Path
) -> None:
    with master(tmp_path) as first, slave(jars, tmp_path, first.namesrv) as second:
        create_topic(first.cluster, TOPIC)
        for group in ("half", "java"):
            create_group(first.cluster, group)
        with Producer(first.namesrv, group="P") as producer:
            for number in range(200):
                producer.send(Message(TOPIC, b"%d" % number))
        read = set()
        with LitePullConsumer(first.namesrv, group="half", auto_commit=False) as consumer:
            consumer.subscribe(TOPIC)
            while len(read) < 100:
                read |= {message.body for message in consumer.poll(1_000)}
            consumer.commit()

        def is_told() -> bool:
            topics = ask(second.broker, GET_ALL_TOPIC_CONFIG).body
            offsets = ask(second.broker, GET_ALL_CONSUMER_OFFSET).body
            return TOPIC.encode() in topics and f"{TOPIC}@half".encode() in offsets

        eventually(is_told, "topics and offsets at the slave, which asks once a minute", 120)
        eventually(
            lambda: "1" in brokers_known_to(first.namesrv)["pair"], "the slave's registration", START_S
        )
        os.kill(first.cluster.broker_pid, signal.SIGKILL)
        eventually(lambda: list(brokers_known_to(first.namesrv)["pair"]) == ["1"], "the end of the master")

        everything = {b"%d" % number for number in range(200)}
        with LitePullConsumer(first.namesrv, group="half") as consumer:
            consumer.subscribe(TOPIC)
            rest: set[bytes] = set()
            deadline = time.monotonic() + 60
            while read | rest < everything and time.monotonic() < deadline:
                rest |= {message.body for message in consumer.poll(1_000)}
        assert read | rest == everything
        assert not read & rest, "it went on where it was"
        handle = java.push(first.namesrv, TOPIC, "java")
        received = java.take(handle, 200, timeout_ms=60_000)
        assert {body_of(one) for one in received} == everything
        java.call("push.stop", handle=handle)
