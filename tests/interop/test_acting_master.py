"""Slaves that act as masters, among brokers and name servers of ours and of RocketMQ."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from mqspark import LitePullConsumer, Message, Producer, SendStatus
from mqspark.errors import MQError
from mqspark.protocol.receipts import Receipt, parse_message_offsets, parse_start_offsets
from mqspark.record.record import decode_records
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import create_group, create_topic
from tests.support import acting
from tests.support.clusters import Cluster, brokers_known_to, mqspark_broker, mqspark_namesrv
from tests.support.remoting import ask, log_end
from tests.support.waiting import eventually

GET_ALL_TOPIC_CONFIG, GET_ROUTE, NAME, TOPIC = 21, 105, "pair", "Read"
POP_MESSAGE, ACK_MESSAGE, INVISIBLE_MS, POP_GROUP = 200050, 200051, 25_000, "PopG"


def is_acknowledged(producer: Producer, body: bytes) -> bool:
    try:
        return producer.send(Message(TOPIC, body)).status is SendStatus.SEND_OK
    except MQError:
        return False


@pytest.mark.slow("two Java brokers start; tests/unit/namesrv/test_namesrv.py is the fast twin")
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


@pytest.mark.slow("Java brokers start; tests/unit/broker/replication/test_acting.py is the fast twin")
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


@pytest.mark.slow("a Java broker starts; tests/unit/broker/replication/test_acting.py is the fast twin")
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


def popped(broker: Cluster, topic: str, group: str) -> dict[bytes, dict[str, object]]:
    """Body → the header of its acknowledgement."""
    reply = ask(
        broker.broker, POP_MESSAGE, consumerGroup=group, topic=topic, queueId=-1, maxMsgNums=32,
        invisibleTime=INVISIBLE_MS, pollTime=0, bornTime=int(time.time() * 1000), initMode=0, expType="TAG",
        exp="*", order=False,
    )  # fmt: skip
    if reply.code != 0:
        return {}
    ext, found = reply.ext, {}
    starts = parse_start_offsets(ext["startOffsetInfo"])
    places = [
        (retry, queue_id, offset)
        for (retry, queue_id), offsets in parse_message_offsets(ext["msgOffsetInfo"]).items()
        for offset in offsets
    ]
    for message, (retry, queue_id, offset) in zip(decode_records(reply.body), places, strict=True):
        receipt = Receipt(
            starts[retry, queue_id],
            int(ext["popTime"]),
            int(ext["invisibleTime"]),
            int(ext["reviveQid"]),
            retry,
            NAME,
            queue_id,
            offset,
        )
        found[message.body] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "offset": offset,
            "extraInfo": receipt.encode(),
        }
    return found


def pop_and_lose(
    namesrv: str, start_master: Callable[[], AbstractContextManager[Cluster]], slave: Cluster, other: Cluster
) -> None:
    """What an acting slave hands out, and nobody acknowledges, comes again through the broker that has its check
    points; what is acknowledged does not."""
    bodies = {b"%d" % number for number in range(8)}
    with start_master() as master:
        eventually(lambda: brokers_known_to(namesrv).get(NAME) == {"0": master.broker, "1": slave.broker})
        for broker in (master, other):
            create_topic(broker, acting.TOPIC)
            create_group(broker, POP_GROUP)
        eventually(
            lambda: acting.TOPIC.encode() in bytes(ask(slave.broker, GET_ALL_TOPIC_CONFIG).body),
            "the topic at the slave",
            120,
        )
        for body in sorted(bodies):
            acting.put(master, body, int(body) % 4)
        eventually(lambda: log_end(slave.broker) == log_end(master.broker), "the slave has everything")
        os.kill(master.broker_pid, signal.SIGKILL)
    eventually(lambda: acting.is_master(namesrv, slave), "the slave in the master's place")
    out: dict[bytes, dict[str, object]] = {}

    def has_all() -> bool:
        out.update(popped(slave, acting.TOPIC, POP_GROUP))
        return out.keys() == bodies

    eventually(has_all, lambda: f"popped: {sorted(out)}")
    done = {b"1", b"2", b"5"}
    for body in done:
        assert ask(slave.broker, ACK_MESSAGE, **out[body]).code == 0
    again: set[bytes] = set()

    def is_revived() -> bool:
        again.update(popped(other, acting.TOPIC, POP_GROUP))
        return again >= bodies - done

    eventually(is_revived, lambda: f"revived: {sorted(again)}", 150)
    end_s = time.monotonic() + 5
    while time.monotonic() < end_s:
        is_revived()
        time.sleep(0.5)
    assert again == bodies - done


@pytest.mark.slow("a Java broker starts; tests/unit/broker/pop/test_acting_pops.py is the fast twin")
def test_a_rocketmq_broker_revives_what_our_acting_slave_handed_out(jars: Jars, tmp_path: Path) -> None:
    with (
        mqspark_namesrv(tmp_path / "namesrv", NAMESRV) as namesrv,
        mqspark_broker(tmp_path / "1", namesrv, acting.SLAVE) as slave,
        rocketmq_broker(jars, tmp_path / "other", namesrv, settings=acting.OTHER) as other,
    ):
        pop_and_lose(namesrv, lambda: mqspark_broker(tmp_path / "0", namesrv, acting.MASTER), slave, other)


@pytest.mark.slow("a Java broker starts; tests/unit/broker/pop/test_acting_pops.py is the fast twin")
def test_our_broker_revives_what_a_rocketmq_acting_slave_handed_out(jars: Jars, tmp_path: Path) -> None:
    with (
        mqspark_namesrv(tmp_path / "namesrv", NAMESRV) as namesrv,
        mqspark_broker(
            tmp_path / "other", namesrv, {**acting.OTHER, "enableSlaveActingMaster": True}
        ) as other,
        rocketmq_broker(jars, tmp_path / "1", namesrv, settings=THEIR_SLAVE, registered=False) as slave,
    ):
        pop_and_lose(namesrv, lambda: mqspark_broker(tmp_path / "0", namesrv, acting.MASTER), slave, other)
