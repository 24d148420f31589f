"""Priority topics: the unmodified Java client and ours, on our broker and (slow) on a real RocketMQ."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark import ConsumeFromWhere, Message, MessageExt, PopConsumer, Producer
from mqspark.message import PRIORITY
from mqspark.protocol import fastjson
from mqspark.protocol.receipts import parse_message_offsets
from mqspark.record.record import decode_records
from tests.interop.driver import JavaDriver, message
from tests.interop.jars import Jars
from tests.interop.rocketmq import EITHER, either_cluster, rocketmq_broker
from tests.interop.test_pop import MOVING, pop_group, popper
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.processes import free_port
from tests.support.remoting import (
    GET_MAX_OFFSET,
    UPDATE_AND_CREATE_TOPIC,
    RawConnection,
    topic_fields,
)
from tests.support.waiting import eventually

Name = Callable[[str], str]

# POP's request codes do not fit the 16 bits of ROCKETMQ headers.
with_json = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

QUEUES = 8
POP_MESSAGE = 200050
DOWNWARDS = list(range(QUEUES - 1, -1, -1))


@pytest.fixture(params=EITHER, scope="module")
def separate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose retries have queues of their own and come first, and whose queue 0 is the highest."""
    settings = {
        "useSeparateRetryQueue": True,
        "popFromRetryProbabilityForPriority": 100,
        "priorityOrderAsc": False,
    }
    with either_cluster(request, tmp_path_factory.mktemp("separate"), settings) as cluster:
        yield cluster


def priority_topic(cluster: Cluster, topic: str, queues: int = QUEUES) -> str:
    return create_topic(cluster, topic, queues, attributes="+message.type=PRIORITY")


def send(connection: RawConnection, topic: str, priority: object, body: bytes = b"m") -> dict[str, str]:
    text = f"{PRIORITY}\x01{priority}\x02"
    return connection.send(topic, body, 0, text, g=int(time.time() * 1000)).ext


def pop(
    connection: RawConnection,
    topic: str,
    group: str,
    most: int = 32,
    invisible_ms: int = 60_000,
    wait_ms: int = 0,
) -> list[MessageExt]:
    reply = connection.request(
        POP_MESSAGE, consumerGroup=group, topic=topic, queueId=-1, maxMsgNums=most, invisibleTime=invisible_ms,
        pollTime=wait_ms, bornTime=int(time.time() * 1000), initMode=0, order=False,
    )  # fmt: skip
    assert reply.code in (0, 210), reply
    if reply.code:
        return []
    messages = decode_records(reply.body)
    assert sum(map(len, parse_message_offsets(reply.ext["msgOffsetInfo"]).values())) == len(messages)
    return messages


def pop_when_there(
    connection: RawConnection, topic: str, group: str, count: int, **more: int
) -> list[MessageExt]:
    """One pop that gets so many messages, which may still be on their way to their queues."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        found = pop(connection, topic, group, **more)
        if found:
            assert len(found) == count, found
            return found
        time.sleep(0.2)
    raise AssertionError("nothing came")


@with_json
def test_java_sends_and_pops_by_priority(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = priority_topic(cluster, name("Priority")), name("priority-readers")
    pop_group(java, cluster, topic, group)
    handle = java.call("producer.start", namesrv=cluster.namesrv, group="priority-producer")["handle"]
    for priority in (0, 5, 7, 3, 99):
        sent = java.call(
            "producer.send", handle=handle, mode="sync", message=message(topic, b"m", priority=priority)
        )
        assert sent["queue"][2] == min(priority, QUEUES - 1)
    delayed = java.call(
        "producer.send", handle=handle, mode="sync", message=message(topic, b"m", priority=6, delay_sec=1)
    )
    assert delayed["status"] == "SEND_OK"
    java.call("producer.stop", handle=handle)
    time.sleep(0.5)
    consumer = popper(java, cluster, topic, group, threads=1)
    received = java.take(consumer, 6)
    java.call("push.stop", handle=consumer)
    priorities = [one["properties"].get(PRIORITY) for one in received]
    assert priorities.count(None) == 1  # a delayed message has none
    assert [priority for priority in priorities if priority is not None] == ["7", "99", "5", "3", "0"]


@with_json
def test_our_client_sends_and_pops_by_priority(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = priority_topic(cluster, name("Priority")), name("priority-ours")
    pop_group(java, cluster, topic, group)
    received: list[int | None] = []
    lock = threading.Lock()

    def listen(message: MessageExt) -> None:
        with lock:
            received.append(message.priority)

    with Producer(cluster.namesrv, group="p") as producer:
        for priority in (0, 5, 7, 3, 99):
            sent = producer.send(Message.of(topic, b"m", priority=priority))
            assert sent.queue.queue_id == min(priority, QUEUES - 1)
    time.sleep(0.5)
    consumer = PopConsumer(
        cluster.namesrv,
        group=group,
        listener=listen,
        concurrency=1,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    with consumer:
        eventually(lambda: len(received) == 5)
    assert received == [7, 99, 5, 3, 0]


def test_what_is_no_priority(cluster: Cluster, name: Name) -> None:
    topic = priority_topic(cluster, name("Priority"))
    with RawConnection(cluster.broker) as connection:
        for bad in ("-1", "high", "2147483648", "1.5"):
            assert send(connection, topic, bad)["queueId"] == "0"
        for good, queue_id in (("+5", "5"), ("006", "6"), ("-0", "0"), ("2147483647", "7")):
            assert send(connection, topic, good)["queueId"] == queue_id


def test_an_attribute_of_the_group_says_how_often(cluster: Cluster, name: Name) -> None:
    topic, group = priority_topic(cluster, name("Priority")), name("priority-unfair")
    create_group(cluster, group, attributes={"+priority.factor": "0"})
    with RawConnection(cluster.broker) as connection:
        for priority in range(QUEUES):
            for _ in range(12):
                send(connection, topic, priority)
        first = pop_when_there(connection, topic, group, 1, most=1)
        queues = {first[0].queue_id, *(pop(connection, topic, group, 1)[0].queue_id for _ in range(11))}
        assert len(queues) > 2
        create_group(cluster, group, attributes={"+priority.factor": "100"})
        assert pop(connection, topic, group, 1)[0].queue_id == QUEUES - 1


@pytest.mark.slow("waits for retries; tests/unit/broker/pop/test_broker_priority.py is the fast twin")
def test_retries_have_queues_of_their_own(separate: Cluster, name: Name) -> None:
    topic, group = priority_topic(separate, name("Priority")), name("priority-separate")
    create_group(separate, group)
    upwards = list(range(QUEUES))
    with RawConnection(separate.broker) as connection:
        for priority in DOWNWARDS:
            send(connection, topic, priority)
        time.sleep(0.5)
        first = pop_when_there(connection, topic, group, QUEUES, invisible_ms=3_000)
        assert [one.priority for one in first] == upwards
        time.sleep(8)
        back = pop_when_there(connection, topic, group, QUEUES, invisible_ms=3_000)
        assert [(one.priority, one.queue_id, one.reconsume_times) for one in back] == [
            (priority, priority, 1) for priority in upwards
        ]
        # The topic grows, and the queues of the retries with it.
        fields = topic_fields(topic, 2 * QUEUES, attributes="+message.type=PRIORITY")
        reply = connection.request(UPDATE_AND_CREATE_TOPIC, **fields)
        assert reply.code == 0
        send(connection, topic, 2 * QUEUES - 1)
        time.sleep(8)
        grown = pop_when_there(connection, topic, group, QUEUES + 1, invisible_ms=3_000)
        assert [one.queue_id for one in grown] == [*upwards, 2 * QUEUES - 1]
        time.sleep(8)
        again = pop_when_there(connection, topic, group, QUEUES + 1)
        assert [one.queue_id for one in again] == [*upwards, 2 * QUEUES - 1]
        assert again[-1].reconsume_times == 1


# ---- one directory, both brokers

PRIORITY_MOVING = {**MOVING, "useSeparateRetryQueue": True, "popFromRetryProbabilityForPriority": 100}


def _take(connection: RawConnection, turn: int, invisible_ms: int) -> list[MessageExt]:
    """The messages of a round, in the order in which they come. A killed RocketMQ may hand out others again."""
    found: list[MessageExt] = []
    deadline = time.monotonic() + 60
    while len(found) < QUEUES:
        assert time.monotonic() < deadline, found
        popped = pop(connection, "PriorityMoves", "movers", invisible_ms=invisible_ms)
        found += [one for one in popped if one.body.startswith(b"%d-" % turn)]
        if not popped:
            time.sleep(0.2)
    return found


def _round(connection: RawConnection, turn: int, held: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """What the last round held comes back by priority; then what this one holds, the broker being about to die."""
    if held:
        # They come back one by one: who takes the first before the last is there does not see their order.
        eventually(lambda: _revived(connection) >= QUEUES * turn, timeout_s=60)
        back = _take(connection, turn - 1, 600_000)
        assert [(one.priority, one.body) for one in back] == held
        assert {one.reconsume_times for one in back} == {1}
    for priority in range(QUEUES):
        send(connection, "PriorityMoves", priority, b"%d-%d" % (turn, priority))
    # Only of queues that all have their message is the first handed out by priority.
    eventually(lambda: _ends(connection, "PriorityMoves") == [turn + 1] * QUEUES)
    popped = _take(connection, turn, 15_000)
    assert [one.priority for one in popped] == DOWNWARDS
    return [(one.priority or 0, one.body) for one in popped]


def _revived(connection: RawConnection) -> int:
    """How many messages have come back to the group's queues of retries."""
    return sum(_ends(connection, "%RETRY%movers_PriorityMoves"))


def _ends(connection: RawConnection, topic: str) -> list[int]:
    """Where its queues end; without those that there are not."""
    ends = (connection.request(GET_MAX_OFFSET, topic=topic, queueId=queue_id) for queue_id in range(QUEUES))
    return [int(end.ext["offset"]) for end in ends if end.code == 0]


def _settled(cluster: Cluster, turn: int) -> bool:
    """Whether the offsets of the group behind this round's messages are on disk, as a killed broker will remember them;
    else the next one hands them out as new ones."""
    path = cluster.store / "config/consumerOffset.json"
    table: dict[str, Any] = fastjson.loads(path.read_bytes())["offsetTable"] if path.exists() else {}
    offsets = table.get("PriorityMoves@movers", {}).values()
    return len(offsets) == QUEUES and min(offsets) > turn


def _live(folder: Path, brokers: list[Any]) -> None:
    held: list[tuple[int, bytes]] = []
    for turn, start in enumerate(brokers):
        with start(folder, f"127.0.0.1:{free_port()}") as cluster:
            if turn == 0:
                priority_topic(cluster, "PriorityMoves")
                create_group(cluster, "movers")
            with RawConnection(cluster.broker) as connection:
                held = _round(connection, turn, held)
            eventually(lambda cluster=cluster, turn=turn: _settled(cluster, turn))
            time.sleep(1.5)


def _ours(folder: Path, namesrv: str) -> Any:
    return mqspark_broker(folder, namesrv, PRIORITY_MOVING, stop_signal=signal.SIGKILL)


@pytest.mark.slow("two rounds of POP's invisible times")
def test_priorities_outlive_a_kill(tmp_path: Path) -> None:
    _live(tmp_path, [_ours, _ours])


@pytest.mark.slow("a real broker starts twice")
def test_priorities_move_with_their_directory(newest_jars: Jars, tmp_path: Path) -> None:
    def theirs(folder: Path, namesrv: str) -> Any:
        return rocketmq_broker(newest_jars, folder, namesrv, settings=PRIORITY_MOVING, registered=False)

    _live(tmp_path, [_ours, theirs, _ours, theirs])
