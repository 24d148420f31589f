"""The unmodified Go client (apache/rocketmq-client-go v2) on our broker; slow: the same on a real RocketMQ."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.clusters import Cluster
from tests.interop.driver import Driver, body_of, message
from tests.interop.jars import ToolMissing
from tests.interop.other_clients import go_driver, go_program
from tests.interop.topics import QUEUES, create_group, create_topic, max_offset, message_count

Name = Callable[[str], str]

SEND_OK = 0
PULL_FOUND = 0
FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    try:
        program = go_program()
    except ToolMissing as missing:
        pytest.skip(str(missing))
    with go_driver(program, tmp_path_factory.mktemp("go")) as driver:
        yield driver


def start(go: Driver, what: str, cluster: Cluster, group: str, **settings: Any) -> int:
    return int(go.call(f"{what}.start", namesrv=cluster.namesrv, group=group, **settings)["handle"])


def push(go: Driver, cluster: Cluster, topic: str, group: str, **settings: Any) -> int:
    arguments = {"expression": "*", "from": FROM_FIRST, **settings}
    return start(go, "push", cluster, group, topics=[topic], **arguments)


def take(go: Driver, handle: int, count: int, timeout_ms: int = 45_000) -> list[dict[str, Any]]:
    received: list[dict[str, Any]] = go.call("push.take", handle=handle, count=count, timeout_ms=timeout_ms)
    return received


def pull_all(go: Driver, cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    group = create_group(cluster, f"go-reader-of-{topic}")
    handle = start(go, "pull", cluster, group, topic=topic, expression="*")
    messages = []
    for queue_id in range(QUEUES):
        offset, end = 0, max_offset(cluster, topic, queue_id)
        while offset < end:
            result = go.call(
                "pull.from", handle=handle, topic=topic, broker_name=cluster.broker_name, queue_id=queue_id,
                offset=offset, count=32,
            )  # fmt: skip
            assert result["status"] == PULL_FOUND, result
            messages += result["messages"]
            offset = result["next"]
    go.call("stop", handle=handle)
    return messages


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_send_modes(go: Driver, soon: Cluster, name: Name, mode: str) -> None:
    topic = create_topic(soon, name(f"GoModes-{mode}"))
    handle = start(go, "producer", soon, name("go-modes"))
    bodies = [f"{mode}-{number}".encode() for number in range(20)]
    sent = [
        go.call("producer.send", handle=handle, mode=mode, message=message(topic, body)) for body in bodies
    ]
    received = pull_all(go, soon, topic)
    assert Counter(map(body_of, received)) == Counter(bodies)
    if mode != "oneway":
        assert {one["status"] for one in sent} == {SEND_OK}
        acknowledged = {(one["queue_id"], one["queue_offset"]): one["msg_id"] for one in sent}
        stored = {(one["queue_id"], one["queue_offset"]): one["msg_id"] for one in received}
        assert acknowledged == stored


def test_push(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoPush")), create_group(soon, name("go-push"))
    handle = start(go, "producer", soon, name("go-push-producer"))
    for number in range(40):
        go.call("producer.send", handle=handle, message=message(topic, b"%d" % number, tags="AB"[number % 2]))
    assert message_count(soon, topic) == 40
    consumer = push(go, soon, topic, group, expression="A")
    assert {int(body_of(one)) for one in take(go, consumer, 20)} == set(range(0, 40, 2))
    go.call("stop", handle=consumer)
