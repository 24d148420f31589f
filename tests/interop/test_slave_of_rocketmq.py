"""A slave of ours behind a RocketMQ master."""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqspark import Message, Producer, SendStatus
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import create_group, create_topic, max_offset
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.remoting import ask, log_end
from tests.support.waiting import eventually

GET_ALL_TOPIC_CONFIG, GET_ALL_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET = 21, 43, 15
GET_ALL_SUBSCRIPTION_GROUPS, GET_BROKER_HA_STATUS = 201, 907
TOPIC = "Replicated"
SEGMENT = 1 << 20
PAIR = {
    "brokerClusterName": "Pair",
    "brokerName": "pair",
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 6000 * 20,
}
SLAVE = {**PAIR, "brokerId": 1, "brokerRole": "SLAVE"}


@contextmanager
def master(jars: Jars, folder: Path, namesrv: str, **settings: object) -> Iterator[Cluster]:
    with rocketmq_broker(jars, folder / "master", namesrv, settings={**PAIR, **settings}) as running:
        yield running


def until_copied(first: Cluster, second: Cluster) -> None:
    eventually(
        lambda: log_end(second.broker) == log_end(first.broker) > 0,
        lambda: f"{log_end(second.broker)} of {log_end(first.broker)}",
    )


def acknowledged(master: Cluster) -> list[int]:
    """How far its slaves have told the master that they are."""
    info = json.loads(ask(master.broker, GET_BROKER_HA_STATUS).body)
    return [slave["slaveAckOffset"] for slave in info["haConnectionInfo"]]


def content(store: Path, folder: str) -> dict[str, bytes]:
    """Files of a store directory without the zeros at their ends."""
    root = store / folder
    found = {
        str(path.relative_to(root)): path.read_bytes().rstrip(b"\0")
        for path in root.rglob("0*")
        if path.is_file()
    }
    return {name: data for name, data in found.items() if data}


def send(producer: Producer, count: int) -> None:
    for number in range(count):
        body = random.Random(number).randbytes(3_500)
        message = Message.of(TOPIC, body, tags=f"t{number % 3}", keys=[f"k{number}"])
        assert producer.send(message).status is SendStatus.SEND_OK


@pytest.mark.slow("a real RocketMQ starts; tests/integration/replicas/test_slave.py has a master of ours")
def test_our_slave_is_a_copy_of_a_rocketmq_master(jars: Jars, tmp_path: Path) -> None:
    with rocketmq_namesrv(jars, tmp_path / "namesrv") as namesrv, master(jars, tmp_path, namesrv) as first:
        create_topic(first, TOPIC)
        create_group(first, "G")
        with Producer(namesrv, group="P") as producer:
            send(producer, 1_100)
            with mqspark_broker(tmp_path / "slave", namesrv, SLAVE, stop_signal=signal.SIGKILL) as second:
                until_copied(first, second)
                eventually(
                    lambda: acknowledged(first) == [log_end(first.broker)], lambda: acknowledged(first)
                )
                assert content(second.store, "commitlog") == content(first.store, "commitlog")
                assert len(content(first.store, "commitlog")) > 3, "the whole log, not the last segment"
                send(producer, 150)
                os.kill(second.broker_pid, signal.SIGKILL)
            send(producer, 150)
            reply = ask(
                first.broker,
                UPDATE_CONSUMER_OFFSET,
                consumerGroup="G",
                topic=TOPIC,
                queueId=0,
                commitOffset=7,
            )
            assert reply.code == 0
            with mqspark_broker(tmp_path / "slave", namesrv, SLAVE) as second:
                until_copied(first, second)
                for folder in ("commitlog", f"consumequeue/{TOPIC}"):
                    assert content(second.store, folder) == content(first.store, folder)
                for queue_id in range(4):
                    assert max_offset(second, TOPIC, queue_id) == max_offset(first, TOPIC, queue_id) > 0

                def is_told() -> bool:
                    return (
                        TOPIC.encode() in ask(second.broker, GET_ALL_TOPIC_CONFIG).body
                        and b'"G"' in ask(second.broker, GET_ALL_SUBSCRIPTION_GROUPS).body
                        and f"{TOPIC}@G".encode() in ask(second.broker, GET_ALL_CONSUMER_OFFSET).body
                    )

                eventually(is_told, "topics, groups and offsets at the slave")


@pytest.mark.slow("a second Java broker; tests/integration/replicas has sync masters of ours")
def test_a_rocketmq_sync_master_waits_for_our_slave(jars: Jars, tmp_path: Path) -> None:
    # A busy machine's time for a slave's flush and its acknowledgement.
    sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 10_000}
    with (
        rocketmq_namesrv(jars, tmp_path / "namesrv") as namesrv,
        master(jars, tmp_path, namesrv, **sync) as first,
    ):
        create_topic(first, TOPIC)
        with Producer(namesrv, group="P", send_timeout_ms=30_000) as producer:
            assert producer.send(Message(TOPIC, b"alone")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
            settings = {**SLAVE, "flushDiskType": "SYNC_FLUSH"}
            with mqspark_broker(tmp_path / "slave", namesrv, settings) as second:
                eventually(
                    lambda: producer.send(Message(TOPIC, b"x")).status is SendStatus.SEND_OK,
                    "our slave to follow",
                )
                for number in range(50):
                    assert producer.send(Message(TOPIC, b"%d" % number)).status is SendStatus.SEND_OK
                assert log_end(second.broker) == log_end(first.broker)


@pytest.mark.slow("a third start of a Java broker")
def test_a_rocketmq_broker_takes_over_the_directory_of_our_slave(jars: Jars, tmp_path: Path) -> None:
    with rocketmq_namesrv(jars, tmp_path / "namesrv") as namesrv:
        with master(jars, tmp_path, namesrv) as first:
            create_topic(first, TOPIC)
            with Producer(namesrv, group="P") as producer:
                send(producer, 150)
                with mqspark_broker(tmp_path / "slave", namesrv, SLAVE) as second:
                    until_copied(first, second)
                    eventually(
                        lambda: TOPIC.encode() in ask(second.broker, GET_ALL_TOPIC_CONFIG).body,
                        "the topic at the slave",
                    )
                    ends = [max_offset(first, TOPIC, queue_id) for queue_id in range(4)]
                    store = second.store
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        with rocketmq_broker(jars, tmp_path / "again", namesrv, settings={**PAIR, **paths}) as promoted:
            assert [max_offset(promoted, TOPIC, queue_id) for queue_id in range(4)] == ends
            with Producer(namesrv, group="P") as producer:
                send(producer, 20)
