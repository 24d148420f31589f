"""Ordered pops: made by the unmodified Java client's own code, as the Proxy makes them, and by our consumer, on our
broker and (slow) on a real RocketMQ."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from mqspark import ConsumeFromWhere, Message, MessageExt, MessageQueue, PopConsumer, Producer, RetryLater
from tests.interop.driver import JavaDriver, body_of
from tests.interop.topics import create_group, create_topic, message_count
from tests.support.clusters import Cluster
from tests.support.waiting import eventually

Name = Callable[[str], str]

# POP's request codes do not fit the 16 bits of ROCKETMQ headers.
pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

INVISIBLE_MS = 60_000


class Popper:
    """A member of a group that pops in order by hand."""

    def __init__(self, java: JavaDriver, cluster: Cluster, topic: str, group: str) -> None:
        started = java.call("producer.start", namesrv=cluster.namesrv, group=f"{group}-by-hand")
        self._java = java
        self._place = {
            "handle": started["handle"],
            "topic": topic,
            "group": group,
            "broker": cluster.broker,
            "broker_name": cluster.broker_name,
        }

    def pop(self, attempt: str, most: int = 2) -> list[dict[str, Any]]:
        arguments = {"attempt": attempt, "max": most, "invisible_ms": INVISIBLE_MS}
        return list(self._java.call("ordered.pop", **self._place, **arguments))

    def take(self, attempt: str) -> list[dict[str, Any]]:
        """What is there to pop. A request that reaches the broker half a second late finds nothing."""
        popped: list[dict[str, Any]] = []

        def found() -> bool:
            popped.extend(self.pop(attempt))
            return bool(popped)

        eventually(found, "messages")
        return popped

    def do(self, message: dict[str, Any], **more: int) -> str:
        named = {
            "queue_id": message["queue_id"],
            "offset": message["queue_offset"],
            "receipt": message["properties"]["POP_CK"],
        }
        return str(self._java.call("ordered.do", **self._place, **named, **more))


def bodies(popped: list[dict[str, Any]]) -> list[bytes]:
    return [body_of(message) for message in popped]


def test_java_pops_in_order(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("InOrder"), 1), create_group(cluster, name("in-order"))
    with Producer(cluster.namesrv, group=name("p"), send_timeout_ms=30_000) as producer:
        for body in (b"0", b"1", b"2", b"3"):
            producer.send(Message.of(topic, body))
    eventually(lambda: message_count(cluster, topic, 1) == 4, "all stored")
    popper = Popper(java, cluster, topic, group)
    first = popper.take("one")
    assert bodies(first) == [b"0", b"1"]
    assert popper.pop("two") == [], "the queue is blocked"
    again = popper.take("one")
    assert bodies(again) == [b"0", b"1"], "an attempt is repeated"
    assert [message["reconsume_times"] for message in again] == [0, 0]
    assert popper.do(again[1]) == "OK"
    assert popper.pop("two") == [], "one is open yet"
    assert popper.do(again[0]) == "OK"
    rest = popper.take("two")
    assert bodies(rest) == [b"2", b"3"]
    for message in rest:
        assert popper.do(message, invisible_ms=10) == "OK"
    late = popper.take("three")
    assert bodies(late) == [b"2", b"3"]
    assert [message["reconsume_times"] for message in late] == [1, 1]
    for message in late:
        assert popper.do(message) == "OK"
    assert popper.pop("four") == []


def test_our_consumers_pop_in_order(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """Two members, failures in between: each queue in its order, and nothing is left for a third."""
    topic, group = create_topic(cluster, name("Ordered"), 2), create_group(cluster, name("ordered"))
    printed = java.mqadmin(
        "setConsumeMode", "-b", cluster.broker, "-t", topic, "-g", group, "-m", "POP", "-q", "0"
    )
    assert "success" in printed, printed
    sent = {number: [b"%d-%d" % (number, step) for step in range(30)] for number in range(2)}
    with Producer(cluster.namesrv, group=name("p"), send_timeout_ms=30_000) as producer:
        for number, contents in sent.items():
            for body in contents:
                producer.send(Message.of(topic, body), queue=MessageQueue(topic, cluster.broker_name, number))
    done: dict[int, list[bytes]] = {0: [], 1: []}
    failed: set[bytes] = set()
    lock = threading.Lock()

    def listen(message: MessageExt) -> RetryLater | None:
        with lock:
            if message.body.endswith(b"7") and message.body not in failed:
                failed.add(message.body)
                return RetryLater(suspend_ms=10)
            done[message.queue_id].append(message.body)
        return None

    members = [
        PopConsumer(
            cluster.namesrv,
            group=group,
            listener=listen,
            ordered=True,
            pop_batch_size=4,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        for _ in range(2)
    ]
    for member in members:
        member.subscribe(topic)
        member.start()
    eventually(lambda: all(len(done[number]) >= len(sent[number]) for number in sent), "all")
    for member in members:
        member.stop()
    assert done == sent
    assert len(failed) == 6
    assert Popper(java, cluster, topic, group).pop("third") == []
