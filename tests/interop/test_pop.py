"""The unmodified Java push consumer in POP mode, on our broker and (slow) on a real RocketMQ: the broker assigns, all
is consumed, failures are retried, and what a killed consumer held comes back. Check points outlive a change of broker.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqspark import ConsumeFromWhere, ConsumeStatus, MessageExt, PopConsumer
from mqspark.protocol import fastjson
from mqspark.protocol.receipts import Receipt, parse_message_offsets, parse_start_offsets, real_topic
from mqspark.record.record import decode_records
from tests.interop.driver import JavaDriver, body_of, java_driver
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.processes import free_port
from tests.support.remoting import RawConnection
from tests.support.waiting import eventually

Name = Callable[[str], str]

# POP's request codes do not fit the 16 bits of ROCKETMQ headers.
with_json = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

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
    return java.push(cluster.namesrv, topic, group, server_assigns=True, **settings)


def send(java: JavaDriver, cluster: Cluster, topic: str, count: int, prefix: str = "m") -> list[bytes]:
    handle = java.call("producer.start", namesrv=cluster.namesrv, group="pop-producer")["handle"]
    java.call(
        "producer.send_many", handle=handle, mode="sync", topic=topic, tags="TagA", prefix=prefix, count=count
    )
    java.call("producer.stop", handle=handle)
    return [f"{prefix}-{number}".encode() for number in range(count)]


def take(java: JavaDriver, handle: int, count: int) -> Counter[bytes]:
    received = java.take(handle, count, timeout_ms=55_000)
    return Counter(body_of(message) for message in received)


@with_json
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
            received += Counter(body_of(message) for message in java.take(handle, 1, timeout_ms=200))
    progress = java.mqadmin("consumerProgress", "-n", cluster.namesrv, "-g", group)
    for handle in (one, two):
        java.call("push.stop", handle=handle)
    assert received == Counter([*before, *after])
    assert topic in progress


@pytest.mark.slow("a JVM of its own; tests/integration/consumers/test_client_pop.py is the fast twin")
@with_json
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


@pytest.mark.slow("two members that share; test_all_is_consumed_once_by_two is the fast twin")
@with_json
def test_our_consumer_beside_the_java_one(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """In one group: each message goes to one of them. On the real broker one message fails here, too."""
    topic = create_topic(cluster, name("PopBoth"))
    group = pop_group(java, cluster, topic, name("pop-both"))
    lock, received = threading.Lock(), Counter[bytes]()
    fails = cluster.kind == "rocketmq"
    failed: set[bytes] = set()

    def listen(message: MessageExt) -> object:
        with lock:
            received[message.body] += 1
            if fails and not failed:
                failed.add(message.body)
                return ConsumeStatus.RECONSUME_LATER
        return None

    ours = PopConsumer(
        cluster.namesrv, group=group, listener=listen, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    ours.subscribe(topic)
    theirs = popper(java, cluster, topic, group)
    with ours:
        sent = send(java, cluster, topic, 200)
        wanted = Counter(sent)
        deadline = time.monotonic() + 60
        while sum(received.values()) < len(sent) + fails and time.monotonic() < deadline:
            messages = java.take(theirs, 1, timeout_ms=200)
            with lock:
                received.update(body_of(message) for message in messages)
    java.call("push.stop", handle=theirs)
    wanted.update(failed)
    assert received == wanted


# ---- one directory, both brokers

POP_MESSAGE, ACK_MESSAGE = 200050, 200051
TOPIC, GROUP = "PopMoves", "pop-movers"
HELD_MS = 25_000
MOVING = {
    "brokerName": "moving",
    "brokerClusterName": "Moving",
    "autoCreateTopicEnable": True,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "mappedFileSizeTimerLog": 1 << 20,
    "flushConsumerOffsetInterval": 500,
    "timerFlushIntervalMs": 1_000,
}


class Hands:
    """A consumer that pops and keeps what it got."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection

    def pop(self, most: int, invisible_ms: int = 60_000) -> dict[bytes, tuple[str, Receipt]]:
        reply = self._connection.request(
            POP_MESSAGE,
            consumerGroup=GROUP,
            topic=TOPIC,
            queueId=-1,
            maxMsgNums=most,
            invisibleTime=invisible_ms,
            pollTime=0,
            bornTime=int(time.time() * 1000),
            initMode=0,
            order=False,
        )
        assert reply.code in (0, 210), reply
        found: dict[bytes, tuple[str, Receipt]] = {}
        if reply.code == 0:
            starts = parse_start_offsets(reply.ext["startOffsetInfo"])
            messages = iter(decode_records(reply.body))
            for (retry, queue_id), offsets in parse_message_offsets(reply.ext["msgOffsetInfo"]).items():
                for offset in offsets:
                    receipt = Receipt(
                        starts[retry, queue_id],
                        int(reply.ext["popTime"]),
                        int(reply.ext["invisibleTime"]),
                        int(reply.ext["reviveQid"]),
                        retry,
                        "moving",
                        queue_id,
                        offset,
                    )
                    found[next(messages).body] = real_topic(TOPIC, GROUP, retry), receipt
        return found

    def pop_all(self, count: int, timeout_s: float = 60) -> set[bytes]:
        """And acknowledge; at least so many."""
        found: set[bytes] = set()
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            assert time.monotonic() < deadline, found
            for body, (topic, receipt) in self.pop(32).items():
                self.acknowledge(topic, receipt)
                found.add(body)
            time.sleep(0.1)
        return found

    def acknowledge(self, topic: str, receipt: Receipt) -> None:
        reply = self._connection.request(
            ACK_MESSAGE,
            consumerGroup=GROUP,
            topic=topic,
            queueId=receipt.queue_id,
            offset=receipt.offset,
            extraInfo=receipt.encode(),
        )
        assert reply.code == 0, reply


def send_raw(connection: RawConnection, bodies: set[bytes]) -> None:
    for body in sorted(bodies):
        connection.send(TOPIC, body, g=int(time.time() * 1000))


def saved_offsets(store: Path, topic: str, group: str) -> dict[str, int]:
    """What a killed broker will remember: queue → offset."""
    path = store / "config/consumerOffset.json"
    table = fastjson.loads(path.read_bytes())["offsetTable"] if path.exists() else {}
    return dict(table.get(f"{topic}@{group}", {}))


def revived(store: Path) -> dict[str, int]:
    """Queue → the last check point or acknowledgement that a killed broker will not look at again."""
    return saved_offsets(store, "rmq_sys_REVIVE_LOG_Moving", "CID_RMQ_SYS_REVIVE_GROUP")


def timers_read_ms(store: Path) -> int:
    """Until when timer messages were delivered, check points among them, as far as a killed broker will know."""
    path = store / "config/timercheck"
    return int.from_bytes(path.read_bytes()[:8], "big") if path.exists() else 0


@pytest.mark.slow("a real broker starts twice")
def test_check_points_move_with_their_directory(newest_jars: Jars, tmp_path: Path) -> None:
    """Handed out by one broker, which is killed; the other one makes it visible again, and only that."""
    folder, namesrv = tmp_path / "broker", f"127.0.0.1:{free_port()}"
    waiting: set[bytes] = set()
    held: set[bytes] = set()
    for turn in range(4):
        if turn % 2 == 0:
            broker = mqspark_broker(folder, namesrv, MOVING, stop_signal=signal.SIGKILL)
        else:
            broker = rocketmq_broker(newest_jars, folder, namesrv, settings=MOVING, registered=False)
        seen = revived(folder / "store")
        with broker as cluster, RawConnection(cluster.broker) as connection:
            hands = Hands(connection)
            expected = waiting | held
            if expected:
                assert hands.pop_all(len(expected)) == expected
                eventually(lambda: revived(cluster.store) != seen, "the broker to note what it revived")  # noqa: B023
                if cluster.kind == "rocketmq":  # what it has not noted is delivered again
                    now_ms = time.time_ns() // 1_000_000
                    eventually(lambda: timers_read_ms(cluster.store) >= now_ms, "it to note its timers")  # noqa: B023
            sent = {b"%d-%d" % (turn, number) for number in range(6)}
            send_raw(connection, sent)
            popped: dict[bytes, tuple[str, Receipt]] = {}
            deadline = time.monotonic() + 30
            while not popped:
                assert time.monotonic() < deadline
                popped = hands.pop(4, HELD_MS)
            done, *rest = popped
            hands.acknowledge(*popped[done])
            waiting, held = sent - popped.keys(), set(rest)
            committed = max(receipt.offset for _, receipt in popped.values()) + 1
            eventually(
                lambda: saved_offsets(cluster.store, TOPIC, GROUP).get("0") == committed,  # noqa: B023
                "the broker to note what it handed out",
            )
