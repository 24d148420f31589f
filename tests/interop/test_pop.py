"""The unmodified Java push consumer in POP mode, on our broker and (slow) on a real RocketMQ: the broker assigns, all
is consumed, failures are retried, and what a killed consumer held comes back."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.clusters import Cluster
from tests.interop.driver import JavaDriver, body_of, java_driver
from tests.interop.jars import Jars
from tests.interop.topics import create_group, create_topic

Name = Callable[[str], str]

# POP's request codes do not fit the 16 bits of ROCKETMQ headers.
pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

INVISIBLE_MS = 5_000
"""The shortest that the client allows."""


def pop_group(java: JavaDriver, cluster: Cluster, topic: str, group: str, share: int = 0) -> str:
    create_group(cluster, group)
    printed = java.mqadmin(
        "setConsumeMode", "-b", cluster.broker, "-t", topic, "-g", group, "-m", "POP", "-q", str(share)
    )
    assert "success" in printed, printed
    return group


def popper(java: JavaDriver, cluster: Cluster, topic: str, group: str, **settings: Any) -> int:
    started = java.call(
        "push.start", namesrv=cluster.namesrv, topic=topic, group=group, model="CLUSTERING", expression="*",
        server_assigns=True, **{"from": "CONSUME_FROM_FIRST_OFFSET"}, **settings,
    )  # fmt: skip
    return int(started["handle"])


def send(java: JavaDriver, cluster: Cluster, topic: str, count: int, prefix: str = "m") -> list[bytes]:
    handle = java.call("producer.start", namesrv=cluster.namesrv, group="pop-producer")["handle"]
    java.call(
        "producer.send_many",
        handle=handle,
        mode="async",
        topic=topic,
        tags="TagA",
        prefix=prefix,
        count=count,
    )
    java.call("producer.stop", handle=handle)
    return [f"{prefix}-{number}".encode() for number in range(count)]


def take(java: JavaDriver, handle: int, count: int) -> Counter[bytes]:
    received = java.call("push.take", handle=handle, count=count, timeout_ms=55_000)
    return Counter(body_of(message) for message in received)


def test_all_is_consumed_once_by_two(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Pop"))
    group = pop_group(java, cluster, topic, name("pop-readers"))
    before = send(java, cluster, topic, 100, "before")
    one, two = (popper(java, cluster, topic, group) for _ in range(2))
    received: Counter[bytes] = Counter()
    deadline = time.monotonic() + 60
    after = send(java, cluster, topic, 100, "after")
    while sum(received.values()) < 200 and time.monotonic() < deadline:
        for handle in (one, two):
            received += Counter(
                body_of(message) for message in java.call("push.take", handle=handle, count=1, timeout_ms=200)
            )
    for handle in (one, two):
        java.call("push.stop", handle=handle)
    assert received == Counter([*before, *after])


def test_failures_and_what_a_killed_consumer_held_come_back(
    java: JavaDriver, cluster: Cluster, name: Name, jars: Jars, tmp_path: Path
) -> None:
    failing = create_topic(cluster, name("PopFails"), 2)
    failing_group = pop_group(java, cluster, failing, name("pop-failing"))
    held = create_topic(cluster, name("PopHeld"), 2)
    held_group = pop_group(java, cluster, held, name("pop-held"))

    sent = send(java, cluster, failing, 5)
    failer = popper(java, cluster, failing, failing_group, failures=1)

    kept = send(java, cluster, held, 5)
    with java_driver(jars, tmp_path / "doomed", "JSON") as doomed:
        doomed_handle = popper(doomed, cluster, held, held_group, hangs=True, invisible_ms=INVISIBLE_MS)
        assert take(doomed, doomed_handle, 1)
        doomed.kill()
    heir = popper(java, cluster, held, held_group)
    assert take(java, heir, 5) == Counter(kept)

    # Each of them twice: the first time it fails and is put off for the client's first level, 10 s.
    assert take(java, failer, 10) == Counter([*sent, *sent])
    for handle in (failer, heir):
        java.call("push.stop", handle=handle)
