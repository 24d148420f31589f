"""Flow control of cold reads: the unmodified Java clients and mqadmin on our broker and on a real RocketMQ."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqspark import ConsumeFromWhere, LitePullConsumer, MessageExt, PushConsumer
from tests.interop.driver import JavaDriver, body_of
from tests.interop.rocketmq import EITHER, either_cluster
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster
from tests.support.remoting import RawConnection

Name = Callable[[str], str]

GET_COLD_DATA_FLOW_CTR_INFO = 2003
KIB = 1 << 10

pytestmark = pytest.mark.slow("what a group may read is counted by periods of five seconds")
with_json = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)


@pytest.fixture(params=EITHER, scope="module")
def cold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster to which everything is cold."""
    settings = {
        "coldDataFlowControlEnable": True,
        "accessMessageInMemoryHotRatio": 0,
        "cgColdReadThreshold": 10 * KIB,
    }
    with either_cluster(request, tmp_path_factory.mktemp("cold"), settings) as cluster:
        yield cluster


def fill(cluster: Cluster, topic: str, count: int) -> Counter[bytes]:
    bodies = [b"%04d" % number * (KIB // 4) for number in range(count)]
    with RawConnection(cluster.broker) as connection:
        for body in bodies:
            connection.send(topic, body, g=int(time.time() * 1000))
    return Counter(bodies)


def shown(cluster: Cluster) -> dict[str, dict[str, int]]:
    with RawConnection(cluster.broker) as connection:
        reply = connection.request(GET_COLD_DATA_FLOW_CTR_INFO)
    assert reply.code == 0, reply
    table: dict[str, dict[str, int]] = json.loads(reply.body)["runtimeTable"]
    return table


@with_json
def test_a_push_consumer_gets_its_share_of_each_period(java: JavaDriver, cold: Cluster, name: Name) -> None:
    topic, group = create_topic(cold, name("Cold"), 1), create_group(cold, name("cold-readers"))
    sent = fill(cold, topic, 60)
    time.sleep(1)
    began = time.monotonic()
    started = java.push(cold.namesrv, topic, group, pull_batch=8)
    first = java.take(started, 1)
    assert group in shown(cold)
    rest = java.take(started, 60 - len(first), timeout_ms=55_000)
    took_s = time.monotonic() - began
    java.call("push.stop", handle=started)
    assert Counter(body_of(message) for message in [*first, *rest]) == sent
    assert took_s > 8, "60 KiB at 10 KiB, and what one pull is more, in five seconds"


@with_json
def test_a_threshold_of_its_own_lets_a_group_read_all(java: JavaDriver, cold: Cluster, name: Name) -> None:
    topic, group = create_topic(cold, name("Cold"), 1), create_group(cold, name("cold-readers"))
    sent = fill(cold, topic, 60)
    printed = java.mqadmin(
        "updateColdDataFlowCtrGroupConfig", "-b", cold.broker, "-g", group, "-v", str(KIB * KIB)
    )
    assert "success" in printed, printed
    time.sleep(1)
    started = java.push(cold.namesrv, topic, group, pull_batch=8)
    taken, most = list[dict[str, Any]](), 0
    while len(taken) < 60 and (more := java.take(started, 1)):
        taken += more
        most = max(most, shown(cold)[group]["coldAcc"])
    java.call("push.stop", handle=started)
    assert Counter(body_of(message) for message in taken) == sent
    assert most > 22 * KIB, "in one period, and otherwise 10 KiB and what one pull is more"
    printed = java.mqadmin("getColdDataFlowCtrInfo", "-b", cold.broker)
    assert group in printed, printed


def test_our_push_consumer_gets_its_share_of_each_period(cold: Cluster, name: Name) -> None:
    topic, group = create_topic(cold, name("Cold"), 1), create_group(cold, name("cold-readers"))
    sent = fill(cold, topic, 60)
    time.sleep(1)
    received: Counter[bytes] = Counter()

    def listen(message: MessageExt) -> None:
        received[message.body] += 1

    consumer = PushConsumer(
        cold.namesrv,
        group=group,
        listener=listen,
        pull_batch_size=8,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    began = time.monotonic()
    with consumer:
        while received.total() < 60 and time.monotonic() - began < 100:
            time.sleep(0.1)
    assert received == sent
    assert time.monotonic() - began > 8


def test_our_lite_pull_consumer_is_held_and_loses_nothing(cold: Cluster, name: Name) -> None:
    topic, group = create_topic(cold, name("Cold"), 1), create_group(cold, name("cold-readers"))
    sent = fill(cold, topic, 40)
    time.sleep(1)
    received: Counter[bytes] = Counter()
    consumer = LitePullConsumer(
        cold.namesrv, group=group, pull_batch_size=8, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer.subscribe(topic)
    began = time.monotonic()
    with consumer:
        while received.total() < 40 and time.monotonic() - began < 100:
            received.update(message.body for message in consumer.poll(timeout_ms=500))
    assert received == sent
    assert time.monotonic() - began > 5
