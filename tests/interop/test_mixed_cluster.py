"""A broker of each kind in one cluster, under a name server of either kind."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqspark import Message, Producer
from tests.interop.driver import JavaDriver, body_of
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import message_count
from tests.support.clusters import Cluster, brokers_known_to, mqspark_broker, mqspark_namesrv
from tests.support.waiting import eventually

CLUSTER = "MixedCluster"

pytestmark = [
    pytest.mark.slow("a RocketMQ broker starts; each server alone with Java's clients is the fast twin"),
    pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True),
]


@dataclass(frozen=True, slots=True)
class Mixed:
    namesrv: str
    ours: Cluster
    theirs: Cluster


@pytest.fixture(params=["mqspark", "rocketmq"])
def mixed(request: pytest.FixtureRequest, jars: Jars, tmp_path: Path) -> Iterator[Mixed]:
    with ExitStack() as running:
        if request.param == "mqspark":
            namesrv = running.enter_context(mqspark_namesrv(tmp_path / "namesrv"))
        else:
            namesrv = running.enter_context(rocketmq_namesrv(jars, tmp_path / "namesrv"))
        names = {"brokerClusterName": CLUSTER}
        ours = running.enter_context(
            mqspark_broker(tmp_path / "ours", namesrv, {**names, "brokerName": "broker-python"})
        )
        assert "broker-python" in brokers_known_to(namesrv), "known as soon as it is ready"
        theirs = running.enter_context(
            rocketmq_broker(
                jars, tmp_path / "theirs", namesrv, settings={**names, "brokerName": "broker-java"}
            )
        )
        yield Mixed(namesrv, ours, theirs)


def test_one_cluster_of_both_kinds(java: JavaDriver, mixed: Mixed) -> None:
    namesrv, ours, theirs = mixed.namesrv, mixed.ours, mixed.theirs
    assert brokers_known_to(namesrv) == {
        "broker-python": {"0": ours.broker},
        "broker-java": {"0": theirs.broker},
    }
    printed = java.mqadmin("updateTopic", "-c", CLUSTER, "-t", "Mixed", "-r", "4", "-w", "4", "-n", namesrv)
    for broker in (ours, theirs):
        assert f"create topic to {broker.broker} success." in printed

    producer = java.call("producer.start", namesrv=namesrv, group="mixed-producer")["handle"]
    queues = java.call("producer.queues", handle=producer, topic="Mixed")
    assert queues == [
        ["Mixed", name, number] for name in ("broker-java", "broker-python") for number in range(4)
    ]
    java.call(
        "producer.send_many", handle=producer, topic="Mixed", mode="sync", count=80, prefix="m", tags="T"
    )
    assert (message_count(ours, "Mixed"), message_count(theirs, "Mixed")) == (40, 40)

    for broker in (ours, theirs):
        printed = java.mqadmin("updateSubGroup", "-b", broker.broker, "-g", "mixed-readers", "-n", namesrv)
        assert "success" in printed
    consumer = java.push(namesrv, "Mixed", "mixed-readers")
    received = java.take(consumer, 80)
    assert Counter(map(body_of, received)) == Counter(b"m-%d" % number for number in range(80))
    assert Counter(one["broker"] for one in received) == {"broker-python": 40, "broker-java": 40}

    java.mqadmin("wipeWritePerm", "-b", "broker-java", "-n", namesrv)
    fresh = java.call("producer.start", namesrv=namesrv, group="mixed-producer-2")["handle"]
    queues = java.call("producer.queues", handle=fresh, topic="Mixed")
    assert {queue[1] for queue in queues} == {"broker-python"}
    java.mqadmin("addWritePerm", "-b", "broker-java", "-n", namesrv)

    # The broker that is killed leaves with its connection, the one that is stopped says goodbye.
    with Producer(namesrv, group="mixed-producer-3", send_timeout_ms=30_000) as survivor:
        sent = {survivor.send(Message.of("Mixed", b"before")).queue.broker_name for _ in range(16)}
        assert sent == {"broker-java", "broker-python"}
        stored = message_count(ours, "Mixed")
        os.kill(theirs.broker_pid, signal.SIGKILL)
        for _ in range(16):
            assert survivor.send(Message.of("Mixed", b"after")).queue.broker_name == "broker-python"
        assert message_count(ours, "Mixed") == stored + 16
    eventually(lambda: list(brokers_known_to(namesrv)) == ["broker-python"], "the killed broker is gone")
    java.call("producer.send_many", handle=fresh, topic="Mixed", mode="sync", count=20, prefix="n", tags="T")
    assert message_count(ours, "Mixed") == stored + 16 + 20
    os.kill(ours.broker_pid, signal.SIGTERM)
    eventually(lambda: brokers_known_to(namesrv) == {}, "the stopped broker is gone")
    java.call("push.stop", handle=consumer)
