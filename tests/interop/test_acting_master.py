"""Slaves that act as masters, among brokers and name servers of ours and of RocketMQ."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from mqspark import LitePullConsumer, Message, Producer, SendStatus
from mqspark.errors import MQError
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import create_topic
from tests.support import acting
from tests.support.clusters import brokers_known_to, mqspark_broker, mqspark_namesrv
from tests.support.remoting import ask
from tests.support.waiting import eventually

GET_ALL_TOPIC_CONFIG, GET_ROUTE, NAME, TOPIC = 21, 105, "pair", "Read"


def is_acknowledged(producer: Producer, body: bytes) -> bool:
    try:
        return producer.send(Message(TOPIC, body)).status is SendStatus.SEND_OK
    except MQError:
        return False


@pytest.mark.slow("two Java brokers start; tests/unit/test_namesrv.py is the fast twin")
def test_consumers_find_a_rocketmq_slave_that_acts_as_master(jars: Jars, tmp_path: Path) -> None:
    settings = {
        "brokerClusterName": "Pair",
        "brokerName": NAME,
        "enableSlaveActingMaster": True,
        "totalReplicas": 2,
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": 2,
        "minInSyncReplicas": 2,
        "slaveTimeout": 10_000,
    }
    slave_settings = {**settings, "brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": True}
    with (
        mqspark_namesrv(
            tmp_path / "namesrv", {"supportActingMaster": True, "notifyMinBrokerIdChanged": True}
        ) as namesrv,
        rocketmq_broker(jars, tmp_path / "0", namesrv, settings=settings) as master,
        rocketmq_broker(jars, tmp_path / "1", namesrv, settings=slave_settings) as slave,
    ):
        both = {"0": master.broker, "1": slave.broker}
        eventually(lambda: brokers_known_to(namesrv)[NAME] == both, "both brokers")
        create_topic(master, TOPIC)
        bodies = {b"%d" % number for number in range(100)}
        with Producer(namesrv, group="P", send_timeout_ms=30_000) as producer:
            for body in bodies:
                eventually(partial(is_acknowledged, producer, body), "the slave to have it")
        eventually(
            lambda: ask(slave.broker, GET_ALL_TOPIC_CONFIG).body.count(TOPIC.encode()) > 0,
            "the topic at the slave",
            120,
        )
        os.kill(master.broker_pid, signal.SIGKILL)

        def is_acting() -> bool:
            return f'"0":"{slave.broker}"'.encode() in ask(namesrv, GET_ROUTE, topic=TOPIC).body

        eventually(is_acting, "the slave in the master's place")
        assert brokers_known_to(namesrv)[NAME] == {"1": slave.broker}
        with LitePullConsumer(namesrv, group="G") as consumer:
            consumer.subscribe(TOPIC)
            read: set[bytes] = set()

            def has_read() -> bool:
                read.update(message.body for message in consumer.poll(1_000))
                return read >= bodies

            eventually(has_read, lambda: f"{len(bodies - read)} messages are missing")


THEIR_SLAVE = {**acting.SLAVE, "syncBrokerMemberGroupPeriod": 500}
NAMESRV = {"supportActingMaster": True, "notifyMinBrokerIdChanged": True}


@pytest.mark.slow("Java brokers start; tests/unit/test_broker_acting.py is the fast twin")
def test_our_slave_acts_for_a_rocketmq_master(jars: Jars, tmp_path: Path) -> None:
    """All others are RocketMQ's. Its master pulls our slave's progress before it comes back."""
    theirs = {**acting.MASTER, **acting.QUICK_CHECKS, "timerFlushIntervalMs": 1_000}
    with (
        rocketmq_namesrv(jars, tmp_path / "namesrv", settings=NAMESRV) as namesrv,
        mqspark_broker(tmp_path / "1", namesrv, acting.SLAVE) as slave,
        rocketmq_broker(
            jars, tmp_path / "other", namesrv, settings={**acting.OTHER, **acting.QUICK_CHECKS}
        ) as other,
    ):
        acting.deliver_once(
            namesrv,
            lambda: rocketmq_broker(jars, tmp_path / "0", namesrv, settings=theirs, registered=False),
            slave,
            other,
            create_topic,
            15.0,
        )


@pytest.mark.slow("a Java broker starts; tests/unit/test_broker_acting.py is the fast twin")
def test_a_rocketmq_slave_acts_for_our_master(jars: Jars, tmp_path: Path) -> None:
    """All others are ours. Our master pulls its progress before it comes back."""
    with (
        mqspark_namesrv(tmp_path / "namesrv", NAMESRV) as namesrv,
        mqspark_broker(tmp_path / "other", namesrv, {**acting.OTHER, **acting.QUICK_CHECKS}) as other,
        rocketmq_broker(jars, tmp_path / "1", namesrv, settings=THEIR_SLAVE, registered=False) as slave,
    ):
        acting.deliver_once(
            namesrv,
            lambda: mqspark_broker(tmp_path / "0", namesrv, {**acting.MASTER, **acting.QUICK_CHECKS}),
            slave,
            other,
            create_topic,
            15.0,
        )
