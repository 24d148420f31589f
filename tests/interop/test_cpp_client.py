"""The unmodified C++ client (librocketmq 1.2, by its Python binding) on our broker; slow: the same on a real RocketMQ.

The binding has neither transactions nor SQL92 filters nor requests; a consumer that stops may wait for its long
polls, so a consumer lives as long as the driver.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqspark.message import MessageExt
from tests.interop.driver import Driver, Program, body_of, message
from tests.interop.handles import (
    SEND_OK,
    bodies,
    check_compressed,
    check_order,
    committed,
    counted,
    group_offset,
    our_consumer,
    send,
    send_all,
    start,
    started,
    stored,
    take,
)
from tests.interop.other_clients import CPP
from tests.interop.topics import QUEUES, create_group, create_topic, message_count
from tests.support.clusters import Cluster
from tests.support.remoting import ask
from tests.support.waiting import eventually

Name = Callable[[str], str]

CONSUMERS, RUNNING_INFO = 38, 307


@pytest.fixture(scope="module")
def cpp(drivers: Callable[[Program], Driver]) -> Driver:
    return drivers(CPP)


def push(
    cpp: Driver, cluster: Cluster, topic: str, group: str, expression: str = "*", **settings: Any
) -> int:
    return start(cpp, "push", cluster, group, subscriptions={topic: expression}, **settings)


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "orderly", "oneway_orderly"])
def test_send_modes(cpp: Driver, soon: Cluster, name: Name, mode: str) -> None:
    topic = create_topic(soon, name("CppModes"))
    given = bodies(mode, 20)
    with started(cpp, "producer", soon, "cpp-modes") as producer:
        sent = [
            cpp.call(
                "producer.send", handle=producer, mode=mode, shard=number,
                message=message(topic, body, tags="TagÄ", keys="k1 k2", properties={"größe": "übergroß"}),
            )
            for number, body in enumerate(given)
        ]  # fmt: skip
        eventually(lambda: message_count(soon, topic) == len(given), "all stored")
    found = stored(soon, topic)
    assert Counter(one.body for one in found) == Counter(given)
    assert {(one.tags, one.keys, one.properties["größe"]) for one in found} == {("TagÄ", "k1 k2", "übergroß")}
    if not mode.startswith("oneway"):
        assert {one["status"] for one in sent} == {SEND_OK}
        acknowledged = {
            one["msg_id"]: (body, one["queue_offset"]) for one, body in zip(sent, given, strict=True)
        }
        assert {one.message_id: (one.body, one.queue_offset) for one in found} == acknowledged
    if "orderly" in mode:
        queues = [sorted(int(one.body.rpartition(b"-")[2]) % QUEUES for one in found if one.queue_id == queue)
                  for queue in range(QUEUES)]  # fmt: skip
        assert all(len(set(keys)) == 1 for keys in queues)


def test_a_batch_is_stored_as_its_messages(cpp: Driver, soon: Cluster, name: Name) -> None:
    topic = create_topic(soon, name("CppBatch"))
    batch = [message(topic, body, tags="B", keys=body.decode()) for body in bodies("batch", 10)]
    with started(cpp, "producer", soon, "cpp-batches") as producer:
        sent = cpp.call("producer.send_batch", handle=producer, messages=batch)
    assert (sent["status"], sent["queue_offset"]) == (SEND_OK, 0)
    found = stored(soon, topic)
    if soon.kind == "rocketmq":  # the client says batch=1, which Java takes for false
        (whole,) = found
        assert all(body in whole.body for body in bodies("batch", 10))
        return
    assert [(one.body, one.tags, one.keys, one.queue_offset) for one in found] == [
        (body, "B", body.decode(), number) for number, body in enumerate(bodies("batch", 10))
    ]


def test_large_bodies_travel_compressed(cpp: Driver, soon: Cluster, name: Name) -> None:
    topic = create_topic(soon, name("CppLarge"))
    large = [b"compressible " * 4000, bytes(range(1, 256)) * 8000]
    consumer = push(cpp, soon, topic, create_group(soon, name("cpp-large")))
    send_all(cpp, soon, topic, large)
    assert counted(take(cpp, consumer, 2)) == Counter(large)
    check_compressed(soon, topic, name("our-large"), large)


def test_an_unknown_topic_is_made_by_the_first_send(cpp: Driver, soon: Cluster, name: Name) -> None:
    topic = name("CppUnknown")
    send_all(cpp, soon, topic, [b"first"])
    assert [one.body for one in stored(soon, topic)] == [b"first"]


@pytest.mark.slow("the C++ client commits its offsets every five seconds")
def test_tags_and_offsets(cpp: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("CppPush")), create_group(soon, name("cpp-push"))
    consumer = push(cpp, soon, topic, group, "A || C")
    with started(cpp, "producer", soon, "cpp-push-producer") as producer:
        for number in range(40):
            send(cpp, producer, topic, b"%d" % number, tags="ABCD"[number % 4], keys="k")
    received = take(cpp, consumer, 20)
    assert {int(body_of(one)) for one in received} == set(range(0, 40, 2))
    assert not take(cpp, consumer, 1, 300)
    ids = {(one.queue_id, one.queue_offset): one.message_id for one in stored(soon, topic)}
    assert all(ids[one["queue_id"], one["queue_offset"]] == one["msg_id"] for one in received)
    eventually(lambda: committed(soon, group, topic) >= 36, "its offsets are committed")


@pytest.mark.slow("the first retry is due after ten seconds")
def test_failed_messages_come_back(cpp: Driver, soon: Cluster, name: Name) -> None:
    """By the group's table of delays: the first time after ten seconds."""
    topic, group = create_topic(soon, name("CppRetry")), create_group(soon, name("cpp-retry"))
    create_topic(soon, f"%RETRY%{group}", 1)  # else the client learns of it after half a minute
    consumer = push(cpp, soon, topic, group)
    with started(cpp, "producer", soon, "cpp-retry-producer") as producer:
        send(cpp, producer, topic, b"twice", tags="T", properties={"failures": "1"})
        sent = send(cpp, producer, topic, b"fine")
    first = take(cpp, consumer, 2)
    assert counted(first) == Counter([b"twice", b"fine"])
    (again,) = take(cpp, consumer, 1)
    assert (body_of(again), again["topic"], again["tags"], again["reconsume_times"]) == (
        b"twice",
        topic,
        "T",
        1,
    )
    assert again["msg_id"] != sent["msg_id"]


def test_in_order(cpp: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("CppOrder")), create_group(soon, name("cpp-order"))
    with started(cpp, "producer", soon, "cpp-order-producer") as producer:
        for number in range(30):
            failing = {"failures": "1"} if number == 7 else {}
            made = message(topic, b"%d" % number, properties={"key": str(number % 3), **failing})
            cpp.call("producer.send", handle=producer, mode="orderly", shard=number % 3, message=made)
    received = take(cpp, push(cpp, soon, topic, group, orderly=True), 31)
    check_order(received, 1)


def test_every_broadcast_consumer_gets_everything(cpp: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("CppBroadcast")), create_group(soon, name("cpp-broadcast"))
    member = push(cpp, soon, topic, group, model="BROADCASTING")
    got: list[MessageExt] = []
    with our_consumer(soon, topic, create_group(soon, name("our-broadcast")), got.append):
        send_all(cpp, soon, topic, bodies("all", 12))
        assert counted(take(cpp, member, 12)) == Counter(bodies("all", 12))
        eventually(lambda: len(got) == 12, "all at our consumer")
    assert all(group_offset(soon, group, topic, queue) is None for queue in range(QUEUES))


def test_a_member_that_dies_is_replaced(cpp: Driver, soon: Cluster, name: Name, tmp_path: Path) -> None:
    """The client looks for its queues every ten seconds."""
    topic, group = create_topic(soon, name("CppShare")), create_group(soon, name("cpp-share"))
    with CPP.running(tmp_path / "other") as other:
        push(other, soon, topic, group)
        survivor = push(cpp, soon, topic, group)
    send_all(cpp, soon, topic, bodies("after", 8))
    assert counted(take(cpp, survivor, 8)) == Counter(bodies("after", 8))


def test_a_tool_looks_into_a_consumer(cpp: Driver, soon: Cluster, name: Name) -> None:
    """It has an answer to this question alone; to that for a direct consumption (309) it says nothing."""
    topic, group = create_topic(soon, name("CppLooked"), 1), create_group(soon, name("cpp-looked"))
    consumer = push(cpp, soon, topic, group)
    send_all(cpp, soon, topic, [b"looked"])
    take(cpp, consumer, 1)
    (member,) = json.loads(ask(soon.broker, CONSUMERS, consumerGroup=group).body)["consumerIdList"]
    info = ask(soon.broker, RUNNING_INFO, consumerGroup=group, clientId=member, jstackEnable=False)
    assert (info.code, f'"topic" : "{topic}"' in info.body.decode()) == (0, True), info


def test_pull_consumer(cpp: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("CppPull"), 1), create_group(soon, name("cpp-pull"))
    with started(cpp, "producer", soon, "cpp-pull-producer") as producer:
        for number, body in enumerate(bodies("pull", 10)):
            send(cpp, producer, topic, body, tags="AB"[number % 2])
    consumer = start(cpp, "pull", soon, group)
    (queue,) = cpp.call("pull.queues", handle=consumer, topic=topic)
    assert queue == [topic, soon.broker_name, 0]

    def pull(expression: str, offset: int) -> dict[str, Any]:
        result: dict[str, Any] = cpp.call(
            "pull.pull", handle=consumer, queue=queue, expression=expression, offset=offset, count=32
        )
        return result

    result = pull("*", 4)
    assert (result["status"], result["next"], result["min"], result["max"]) == ("FOUND", 10, 0, 10)
    assert [body_of(one) for one in result["messages"]] == bodies("pull", 10)[4:]
    assert [body_of(one) for one in pull("B", 0)["messages"]] == bodies("pull", 10)[1::2]
    assert (pull("C", 0)["status"], pull("C", 0)["next"]) == ("NO_MATCHED_MSG", 10)
    assert (pull("*", 99)["status"], pull("*", 99)["next"]) == ("OFFSET_ILLEGAL", 10)
    assert (pull("*", 10)["status"], pull("*", 10)["next"]) == ("NO_NEW_MSG", 10)
