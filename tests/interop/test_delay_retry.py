"""Delay levels, timer messages, recall, retries and dead letters: the unmodified Java client on our broker, and on a
real one, where the same must hold."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.driver import JSON_FIRST, JavaDriver, JavaError, body_of, message
from tests.interop.rocketmq import EITHER, either_cluster
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster

Name = Callable[[str], str]

pytestmark = pytest.mark.parametrize("java", JSON_FIRST, ids=["json", "binary"], indirect=True)

# Retries wait levels 3, 4, ...: a second each.
SETTINGS = {"messageDelayLevel": "1s 2s 1s 1s 1s 1h", "recallMessageEnable": "true"}
LEVELS_MS = (1_000, 2_000, 1_000, 1_000, 1_000, 3_600_000)
WAIT_MS = 50_000
NOISE = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}


@pytest.fixture(params=EITHER, scope="module")
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose first levels are short."""
    with either_cluster(request, tmp_path_factory.mktemp("delays"), SETTINGS) as running:
        yield running


def push(java: JavaDriver, cluster: Cluster, topic: str, group: str, **options: Any) -> int:
    create_group(cluster, group)
    # So that the consumer finds it at once and not with its next look, 20 s later.
    create_topic(cluster, f"%RETRY%{group}", 1)
    return java.push(cluster.namesrv, topic, group, **options)


def wait_for_route(java: JavaDriver, producer: int, topic: str) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while True:
        try:
            java.call("producer.queues", handle=producer, topic=topic)
        except JavaError:
            assert time.monotonic() < deadline, f"nobody knows {topic}"
            time.sleep(0.2)
        else:
            return


def take(java: JavaDriver, consumer: int, count: int, timeout_ms: int = WAIT_MS) -> list[dict[str, Any]]:
    return java.take(consumer, count, timeout_ms)


def properties_of(received: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in received["properties"].items() if key not in NOISE}


@pytest.fixture
def producer(java: JavaDriver, quick: Cluster, name: Name) -> Iterator[int]:
    handle = java.call("producer.start", namesrv=quick.namesrv, group=name("delay-producer"))["handle"]
    yield handle
    java.call("producer.stop", handle=handle)


def send(java: JavaDriver, producer: int, topic: str, body: str, **when: int) -> dict[str, Any]:
    sent: dict[str, Any] = java.call(
        "producer.send",
        handle=producer,
        mode="sync",
        message=message(topic, body.encode(), tags="T", keys=body, **when),
    )
    assert sent["status"] == "SEND_OK"
    return sent


def test_levels_and_timers(java: JavaDriver, quick: Cluster, producer: int, name: Name) -> None:
    """Each arrives, whole, when it is due by the broker's clock and not before. (It is that of this machine.)"""
    topic = create_topic(quick, name("Delayed"))
    consumer = push(java, quick, topic, name("delayed"))
    due_ms, sent = {}, {}
    for body, when, delay_ms in (
        ("level 1", {"delay_level": 1}, LEVELS_MS[0]),
        ("level 2", {"delay_level": 2}, LEVELS_MS[1]),
        ("in ms", {"delay_ms": 1_300}, 1_300),
        ("in s", {"delay_sec": 2}, 2_000),
    ):
        now_ms = time.time_ns() // 1_000_000
        sent[body] = send(java, producer, topic, body, **when)
        due_ms[body] = now_ms + delay_ms
    due_ms["at"] = time.time_ns() // 1_000_000 + 2_600
    sent["at"] = send(java, producer, topic, "at", deliver_ms=due_ms["at"])
    received = {body_of(one).decode(): one for one in take(java, consumer, 5)}
    assert set(received) == set(due_ms)
    for body, one in received.items():
        assert one["store_timestamp"] >= due_ms[body], body
        assert one["topic"] == topic
        assert (one["tags"], one["keys"], one["reconsume_times"]) == ("T", body, 0)
        assert one["queue_id"] == sent[body]["queue"][2]
        assert one["msg_id"] == sent[body]["msg_id"]
        expected = {"CLUSTER", "KEYS", "MSG_REGION", "REAL_QID", "REAL_TOPIC", "TAGS", "TRACE_ON", "UNIQ_KEY"}
        if body.startswith("level"):
            expected |= {"DELAY"}
            assert sent[body]["recall_handle"] is None
        else:
            timer = {"in ms": "TIMER_DELAY_MS", "in s": "TIMER_DELAY_SEC", "at": "TIMER_DELIVER_MS"}[body]
            expected |= {timer, "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
            assert sent[body]["recall_handle"]
        assert set(properties_of(one)) - {"WAIT"} == expected
    assert take(java, consumer, 1, 1_100) == []
    java.call("push.stop", handle=consumer)


def test_times_too_far_ahead_are_refused(java: JavaDriver, quick: Cluster, producer: int, name: Name) -> None:
    topic = create_topic(quick, name("TooFar"))
    with pytest.raises(JavaError) as refused:
        send(java, producer, topic, "x", delay_sec=3 * 86_400 + 60)
    assert refused.value.code == 13
    assert "the delay time should not be bigger than the max delay 259200000ms" in refused.value.text


def test_recall(java: JavaDriver, quick: Cluster, producer: int, name: Name) -> None:
    topic = create_topic(quick, name("Recalled"))
    consumer = push(java, quick, topic, name("recalled"))
    gone = send(java, producer, topic, "gone", delay_ms=2_500)
    send(java, producer, topic, "stays", delay_ms=2_500)
    recalled = java.call("producer.recall", handle=producer, topic=topic, recall_handle=gone["recall_handle"])
    assert recalled == gone["msg_id"]
    assert [body_of(one) for one in take(java, consumer, 1)] == [b"stays"]
    assert take(java, consumer, 1, 1_100) == []
    java.call("push.stop", handle=consumer)


def test_retries_end_as_a_dead_letter(java: JavaDriver, quick: Cluster, producer: int, name: Name) -> None:
    topic, group = create_topic(quick, name("Failing")), name("failing")
    consumer = push(java, quick, topic, group, failures=99, max_reconsume=2)
    sent = send(java, producer, topic, "bad")
    attempts = take(java, consumer, 3)
    assert [body_of(one) for one in attempts] == [b"bad"] * 3
    assert [one["reconsume_times"] for one in attempts] == [0, 1, 2]
    assert [one["topic"] for one in attempts] == [topic] * 3
    for earlier, later in itertools.pairwise(attempts):
        assert later["store_timestamp"] - earlier["store_timestamp"] >= 1_000
        assert later["born_timestamp"] == earlier["born_timestamp"]
        assert later["msg_id"] == sent["msg_id"]
    retry = f"%RETRY%{group}"
    expected = {
        "KEYS": "bad",
        "TAGS": "T",
        "UNIQ_KEY": sent["msg_id"],
        "CLUSTER": quick.cluster_name,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "WAIT": "false",
        "RETRY_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": sent["offset_msg_id"],
        "REAL_TOPIC": retry,
        "REAL_QID": "0",
    }
    assert properties_of(attempts[1]) == expected | {"DELAY": "3"}
    assert properties_of(attempts[2]) == expected | {"DELAY": "4"}
    dead = f"%DLQ%{group}"
    wait_for_route(java, producer, dead)
    reader = push(java, quick, dead, name("undertaker"))
    (letter,) = take(java, reader, 1)
    assert body_of(letter) == b"bad"
    assert letter["reconsume_times"] == 3
    assert properties_of(letter) == expected | {"DELAY": "0"}
    assert take(java, consumer, 1, 1_100) == []
    for handle in (consumer, reader):
        java.call("push.stop", handle=handle)
    rows = java.mqadmin("topicStatus", "-n", quick.namesrv, "-t", dead).splitlines()
    (row,) = [line.split() for line in rows if line.startswith(quick.broker_name)]
    assert row[1:4] == ["0", "0", "1"]
    status = java.mqadmin("brokerStatus", "-n", quick.namesrv, "-b", quick.broker)
    levels = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("scheduleMessage"))
    done, end = (
        next(value for key, value in levels.items() if key.strip() == "scheduleMessageOffset_3")
        .strip()
        .split(",")
    )
    assert int(done) == int(end) >= 1


def test_a_message_that_is_well_the_second_time(
    java: JavaDriver, quick: Cluster, producer: int, name: Name
) -> None:
    topic, group = create_topic(quick, name("Second")), name("second")
    consumer = push(java, quick, topic, group, failures=1)
    for number in range(20):
        send(java, producer, topic, f"m{number}")
    attempts = take(java, consumer, 40)
    assert sorted((body_of(one), one["reconsume_times"]) for one in attempts) == sorted(
        (f"m{number}".encode(), times) for number in range(20) for times in (0, 1)
    )
    assert take(java, consumer, 1, 1_100) == []
    java.call("push.stop", handle=consumer)
