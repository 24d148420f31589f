"""What consumers and producers of an application may be told to do: the same scenario with the unmodified Java client
and with ours, on our broker and (slow) on a real RocketMQ."""

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqspark import (
    AutoBatch,
    ClientOptions,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    RetryLater,
)
from mqspark.client.consumer.allocate import (
    Allocation,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    Fixed,
    MachineRoomNearby,
)
from mqspark.errors import BrokerError
from mqspark.protocol.fastjson import loads
from tests.interop.driver import JavaDriver, JavaError, message
from tests.interop.members import POLL_S, WAIT_S, JavaMember, Member, Noted, Side
from tests.interop.topics import create_group, create_topic, message_count
from tests.support.clusters import Cluster
from tests.support.processes import free_port
from tests.support.remoting import ask
from tests.support.waiting import eventually

Name = Callable[[str], str]

pytestmark = [
    pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True),
    pytest.mark.parametrize(
        "cluster",
        [
            pytest.param("mqspark_dev", id="mqspark"),
            pytest.param("rocketmq", id="rocketmq", marks=pytest.mark.slow("a real RocketMQ starts first")),
        ],
        indirect=True,
    ),
]
GET_RUNNING_INFO, CONSUMER_CONNECTIONS, PRODUCER_CONNECTIONS, UPDATE_SETTINGS = 307, 203, 204, 25


@pytest.fixture(params=[False, True], ids=["java", "ours"])
def side(request: pytest.FixtureRequest, java: JavaDriver, cluster: Cluster) -> Iterator[Side]:
    side = Side(java, cluster, request.param)
    yield side
    side.stop()


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


def running_info(cluster: Cluster, group: str, client_id: str) -> dict[str, Any]:
    reply = ask(cluster.broker, GET_RUNNING_INFO, consumerGroup=group, clientId=client_id)
    assert reply.code == 0, reply
    return dict(json.loads(_quoted_queues(reply.body)))


def _quoted_queues(body: bytes) -> bytes:
    """``{{"queueId":0}:1}`` with its keys as text."""
    return json.dumps(loads(body)).encode()


# ---- allocation


def _room(client_id: str) -> str:
    return "even" if "even" in client_id else "odd"


def strategies(broker: str, topic: str) -> dict[str, tuple[Allocation, ...]]:
    """Those of our two members each, the last one's for our member beside Java's."""
    nearby = MachineRoomNearby(
        Averagely(), broker_room=lambda queue: ("even", "odd")[queue.queue_id % 2], client_room=_room
    )
    return {
        "AVG": (Averagely(),),
        "AVG_BY_CIRCLE": (AveragelyByCircle(),),
        "CONSISTENT_HASH": (ConsistentHash(),),
        "MACHINE_ROOM_NEARBY": (nearby,),
        "CONFIG": (Fixed([MessageQueue(topic, broker, number) for number in range(5, 8)]),),
    }


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("AVG", marks=pytest.mark.slow("CONSISTENT_HASH is the fast twin")),
        pytest.param("AVG_BY_CIRCLE", marks=pytest.mark.slow("CONSISTENT_HASH is the fast twin")),
        "CONSISTENT_HASH",
        "MACHINE_ROOM_NEARBY",
        "CONFIG",
    ],
)
def test_both_clients_allocate_alike(java: JavaDriver, cluster: Cluster, name: Name, strategy: str) -> None:
    """A member of either kind in one group: every queue has one owner, the one that the strategy names."""
    topic, group = create_topic(cluster, name("Allocated"), 8), create_group(cluster, name("allocated"))
    queues = [MessageQueue(topic, cluster.broker_name, number) for number in range(8)]
    (allocation,) = strategies(cluster.broker_name, topic)[strategy]
    given = {"queues": [list(queue) for queue in queues[:5]]} if strategy == "CONFIG" else {}
    sides = [Side(java, cluster, is_ours) for is_ours in (False, True)]
    try:
        theirs = sides[0].member(topic, group, allocation=strategy, instance=f"even-{group}", **given)
        ours = sides[1].member(topic, group, allocation=allocation, instance=f"odd-{group}")
        clients = sorted([theirs.client_id, ours.client_id])
        if strategy == "CONFIG":
            expected = {theirs.client_id: list(range(5)), ours.client_id: [5, 6, 7]}
        else:
            expected = {
                client: sorted(queue.queue_id for queue in allocation(client, queues, clients))
                for client in clients
            }
        assert sorted(itertools.chain(*expected.values())) == list(range(8))

        def owned() -> dict[str, list[int]]:
            return {one.client_id: sorted(one.queues(topic)) for one in (theirs, ours)}

        eventually(lambda: owned() == expected, f"{expected}")
    finally:
        for one in sides:
            one.stop()


# ---- where a group begins


@pytest.mark.parametrize(
    "start",
    ["LAST_OFFSET", pytest.param("TIMESTAMP", marks=pytest.mark.slow("LAST_OFFSET is the fast twin"))],
)
def test_a_new_group_gets_all_of_a_young_queue(side: Side, name: Name, start: str) -> None:
    """Whatever its consumers want: of a queue with its first message in memory brokers say that it begins at 0."""
    topic, group = create_topic(side.cluster, name("Begin"), 1), create_group(side.cluster, name("begin"))
    side.send(topic, bodies("old", 5))
    between_ms = int(time.time() * 1000) + 1_000
    if start == "TIMESTAMP":
        time.sleep(2.0)  # a timestamp has the resolution of a second
    side.send(topic, bodies("new", 5))
    eventually(lambda: message_count(side.cluster, topic, 1) == 10, "all stored")
    timestamp = {"timestamp": between_ms} if start == "TIMESTAMP" else {}
    member = side.member(topic, group, **{"from": f"CONSUME_FROM_{start}"}, **timestamp)
    side.send(topic, bodies("later", 2))
    assert member.take(12) == Counter(bodies("old", 5) + bodies("new", 5) + bodies("later", 2))


# ---- suspending, subscribing


def test_suspend_and_resume(side: Side, name: Name) -> None:
    topic, group = (
        create_topic(side.cluster, name("Suspended"), 1),
        create_group(side.cluster, name("suspended")),
    )
    member = side.member(topic, group)
    side.send(topic, bodies("before", 3))
    assert member.take(3) == Counter(bodies("before", 3))
    member.do("suspend")
    side.send(topic, bodies("one", 1))  # may still come by a pull that is parked
    early = member.take(1, 1.0)
    side.send(topic, bodies("meanwhile", 5))
    assert member.take(1, 1.0) == Counter()
    member.do("resume")
    assert early + member.take(6 - early.total()) == Counter(bodies("one", 1) + bodies("meanwhile", 5))


def test_unsubscribe_and_subscribe(side: Side, name: Name) -> None:
    kept, dropped = (
        create_topic(side.cluster, name("Kept"), 1),
        create_topic(side.cluster, name("Dropped"), 1),
    )
    group = create_group(side.cluster, name("changing"))
    member = side.member(kept, group, expression="A")
    member.do("subscribe", dropped, "*")
    side.send(kept, bodies("a", 2), tags="A")
    side.send(kept, bodies("b", 2), tags="B")
    side.send(dropped, bodies("d", 2))
    assert member.take(4) == Counter(bodies("a", 2) + bodies("d", 2))
    member.do("unsubscribe", dropped)
    member.do("subscribe", kept, "A || B")

    def subscribed() -> dict[str, str]:
        reply = ask(side.cluster.broker, CONSUMER_CONNECTIONS, consumerGroup=group)
        table = json.loads(_quoted_queues(reply.body))["subscriptionTable"]
        return {topic: data["subString"] for topic, data in table.items() if not topic.startswith("%RETRY%")}

    eventually(lambda: subscribed() == {kept: "A || B"}, "the broker knows")
    eventually(lambda: member.queues(dropped) == [], "the queue is given up")
    # A pull that is parked goes by the old tags: this one ends it.
    side.send(kept, bodies("end", 1), tags="A")
    assert member.take(1) == Counter(bodies("end", 1))
    side.send(dropped, bodies("lost", 2))
    side.send(kept, bodies("more", 2), tags="B")
    assert member.take(2) == Counter(bodies("more", 2))
    assert member.take(1, 1.0) == Counter()


# ---- limits and settings of a client


def test_no_more_is_pulled_than_may_be_cached(side: Side, name: Name) -> None:
    topic, group = create_topic(side.cluster, name("Cached"), 1), create_group(side.cluster, name("cached"))
    side.send(topic, bodies("m", 100))
    member = side.member(topic, group, cached=20, pull_batch=8, waits=True)

    def cached() -> int:
        table = running_info(side.cluster, group, member.client_id)["mqTable"]
        return sum(info["cachedMsgCount"] for key, info in table.items() if f'"{topic}"' in key)

    eventually(lambda: cached() > 20, "the limit is reached")
    most = 0
    for _ in range(10):
        most = max(most, cached())
        time.sleep(POLL_S)
    assert 20 < most <= 20 + 8
    member.do("let_go")
    assert member.take(100) == Counter(bodies("m", 100))


def test_a_bounded_number_in_flight(side: Side, name: Name) -> None:
    topic = create_topic(side.cluster, name("InFlight"))
    side.send(topic, bodies("m", 300), **({"max_in_flight": 10} if side.is_ours else {"in_flight": 10}))
    member = side.member(topic, create_group(side.cluster, name("in-flight")))
    assert member.take(300) == Counter(bodies("m", 300))


def test_single_sends_in_batches(side: Side, name: Name) -> None:
    topic = create_topic(side.cluster, name("AutoBatch"))
    options: dict[str, Any] = {"auto_batch": AutoBatch()} if side.is_ours else {"auto_batch": True}
    side.send(topic, bodies("m", 200), **options)
    member = side.member(topic, create_group(side.cluster, name("auto-batch")))
    assert member.take(200) == Counter(bodies("m", 200))


def test_hooks_around_sends_and_listeners(side: Side, name: Name) -> None:
    topic, group = create_topic(side.cluster, name("Hooked")), create_group(side.cluster, name("hooked"))
    noted = Noted()
    side.send(topic, bodies("m", 3), **({"interceptors": [noted]} if side.is_ours else {"hooks": True}))
    calls = noted.calls if side.is_ours else side.java.call("hooked", group=f"features-{topic}")
    assert Counter(calls) == Counter({"before": 3, "after SEND_OK": 3})
    member = side.member(topic, group, hooks=True)
    assert member.take(3) == Counter(bodies("m", 3))
    eventually(lambda: len(member.hooked()) == 6, "the hooks")
    assert Counter(member.hooked()) == Counter({"before": 3, "after CONSUME_SUCCESS": 3})


def test_a_dead_name_server_is_passed_over(side: Side, name: Name) -> None:
    topic, group = create_topic(side.cluster, name("Failover")), create_group(side.cluster, name("failover"))
    several = f"127.0.0.1:{free_port()};{side.cluster.namesrv}"

    def works(call: Callable[[], object]) -> bool:
        try:
            call()
        except (
            JavaError
        ) as error:  # a call of Java's client fails when it picks the dead one; the next picks another
            if "connect to" not in error.text:
                raise
            return False
        return True

    eventually(lambda: works(lambda: side.send(topic, bodies("m", 1), namesrv=several)), "a send")
    members: list[Member] = []
    eventually(
        lambda: works(lambda: members.append(side.member(topic, group, namesrv=several))), "a consumer"
    )
    assert members[0].take(1) == Counter(bodies("m", 1))


def test_one_identity_has_one_connection(side: Side, name: Name) -> None:
    topic, group = create_topic(side.cluster, name("Shared")), create_group(side.cluster, name("shared"))
    member = side.member(topic, group, instance=group)
    shared: dict[str, Any] = (
        {"options": ClientOptions(instance_name=group)} if side.is_ours else {"instance": group}
    )
    side.send(topic, bodies("m", 4), **shared)
    assert member.take(4) == Counter(bodies("m", 4))

    def connections(code: int, **fields: str) -> set[tuple[str, str]]:
        reply = ask(side.cluster.broker, code, **fields)
        found = json.loads(reply.body)["connectionSet"] if reply.code == 0 else []
        return {(each["clientId"], each["clientAddr"]) for each in found}

    def as_producer() -> set[tuple[str, str]]:
        return connections(PRODUCER_CONNECTIONS, producerGroup=f"features-{topic}")

    eventually(lambda: len(as_producer()) == 1, "the producer is known")
    assert connections(CONSUMER_CONNECTIONS, consumerGroup=group) == as_producer()
    assert {client for client, _ in as_producer()} == {member.client_id}


# ---- what a group is allowed


def test_a_group_may_be_forbidden_to_consume(side: Side, name: Name) -> None:
    topic, group = create_topic(side.cluster, name("Forbidden"), 1), name("forbidden")

    def allow(consume: bool) -> None:
        body = json.dumps({"groupName": group, "consumeEnable": consume, "retryQueueNums": 1}).encode()
        assert ask(side.cluster.broker, 200, body).code == 0

    allow(False)
    side.send(topic, bodies("m", 3))
    member = side.member(topic, group)
    assert member.take(1, 1.0) == Counter()
    allow(True)
    assert member.take(3) == Counter(bodies("m", 3))


# ---- messages for later


@pytest.mark.slow("waits for delays in real time; test_delay_retry.py is the fast twin")
def test_our_delays_timers_and_recall(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """What test_delay_retry.py says of Java's producer and consumer."""
    topic, group = create_topic(cluster, name("Late")), create_group(cluster, name("late"))
    assert ask(cluster.broker, UPDATE_SETTINGS, b"recallMessageEnable=true\n").code == 0
    received: dict[bytes, MessageExt] = {}

    def listen(got: MessageExt) -> None:
        received[got.body] = got

    consumer = PushConsumer(
        cluster.namesrv, group=group, listener=listen, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer.subscribe(topic)
    with consumer, Producer(cluster.namesrv, group=name("late"), send_timeout_ms=30_000) as producer:
        now_ms = time.time_ns() // 1_000_000
        due_ms = {b"level": now_ms + 1_000, b"in ms": now_ms + 1_500, b"at": now_ms + 2_600}
        sent = {
            b"level": producer.send(Message.of(topic, b"level", keys="k", delay_level=1)),
            b"in ms": producer.send(Message.of(topic, b"in ms", keys="k", delay_ms=1_500)),
            b"at": producer.send(Message.of(topic, b"at", keys="k", deliver_at_ms=due_ms[b"at"])),
        }
        gone = producer.send(Message.of(topic, b"gone", delay_ms=2_500))
        assert gone.recall_handle is not None
        assert producer.recall(topic, gone.recall_handle) == gone.message_id
        producer.send(Message.of(topic, b"the last", delay_ms=5_000))
        eventually(lambda: b"the last" in received, "all but one")
        with pytest.raises(BrokerError, match="max delay"):
            producer.send(Message.of(topic, b"too late", delay_ms=4 * 86_400_000))
    assert set(received) == {*due_ms, b"the last"}
    for body, due in due_ms.items():
        assert received[body].store_timestamp_ms >= due
        assert (received[body].keys, received[body].message_id) == ("k", sent[body].message_id)
        assert (received[body].topic, received[body].queue) == (topic, sent[body].queue)


@pytest.mark.slow("waits for a timeout in real time")
def test_our_listener_that_takes_too_long(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """Its message goes back to the broker and comes again, while it still works on it."""
    topic, group = create_topic(cluster, name("Slow"), 1), create_group(cluster, name("slow"))
    create_topic(cluster, f"%RETRY%{group}", 1)
    times: list[int] = []
    gate = threading.Event()

    def listen(got: MessageExt) -> RetryLater | None:
        times.append(got.reconsume_times)
        if got.reconsume_times == 0:
            gate.wait(WAIT_S)
        return None

    consumer = PushConsumer(
        cluster.namesrv,
        group=group,
        listener=listen,
        consume_timeout_ms=500,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    with consumer, Producer(cluster.namesrv, group=name("late"), send_timeout_ms=30_000) as producer:
        producer.send(Message.of(topic, b"slow"))
        eventually(lambda: times == [0, 1], "the second attempt")
        gate.set()


@pytest.mark.slow("Java's shortest limit is a minute")
def test_javas_listener_that_takes_too_long(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """Its shortest limit is a minute, and it looks once a minute: the second attempt is due after 70 to 130 s."""
    topic, group = create_topic(cluster, name("Slow"), 1), create_group(cluster, name("slow"))
    create_topic(cluster, f"%RETRY%{group}", 1)
    side = Side(java, cluster, is_ours=False)
    try:
        member = side.member(topic, group, hangs=True, timeout_min=1)
        side.send(topic, [b"slow"])
        assert member.take(2, 240.0) == Counter({b"slow": 2})
    finally:
        side.stop()


# ---- trace, and pulling by hand


def test_mqadmin_shows_javas_trace(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """What test_consumers.py says of ours."""
    topic, group, trace = create_topic(cluster, name("Trc")), name("trc"), name("TrcTopic")
    create_topic(cluster, trace)
    producer = java.call("producer.start", namesrv=cluster.namesrv, group=name("tracing"), trace_topic=trace)
    sent = java.call(
        "producer.send", handle=producer["handle"], mode="sync", message=message(topic, b"traced", keys="k")
    )
    member = JavaMember(java, cluster.namesrv, topic, group, trace_topic=trace)
    assert member.take(1) == Counter([b"traced"])

    def shown() -> bool:
        command = ["queryMsgTraceById", "-i", sent["msg_id"], "-t", trace, "-n", cluster.namesrv]
        printed = str(java.call("mqadmin", arguments=command)["out"])
        rows = [line.split() for line in printed.splitlines() if line.startswith(("Pub", "Sub"))]
        return sorted(row[0] for row in rows) == ["Pub", "Sub"] and all("success" in row for row in rows)

    eventually(shown, "both halves of the trace")
    member.do("stop")


@pytest.mark.slow("waits in real time; test_java_client.py is the fast twin")
def test_our_lite_pull_goes_where_it_is_told(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    """What test_java_client.py says of Java's: seeks, pauses, times, and a change of the queues."""
    topic, group = create_topic(cluster, name("Lite"), 1), create_group(cluster, name("lite"))
    place = MessageQueue(topic, cluster.broker_name, 0)
    side = Side(java, cluster, is_ours=True)
    side.send(topic, bodies("m", 10))
    changes: list[set[int]] = []
    options = ClientOptions(route_interval_ms=500)
    with LitePullConsumer(cluster.namesrv, group=group, queues_interval_ms=500, options=options) as consumer:
        consumer.on_queues_changed(topic, lambda topic, queues: changes.append({q.queue_id for q in queues}))
        consumer.assign([place])

        def read(count: int) -> list[int]:
            got: list[int] = []
            deadline = time.monotonic() + WAIT_S
            while len(got) < count and time.monotonic() < deadline:
                got += [one.queue_offset for one in consumer.poll(200)]
            return got

        consumer.seek_to_begin(place)
        assert read(10) == list(range(10))
        consumer.seek(place, 7)
        assert read(3) == [7, 8, 9]
        consumer.seek_to_end(place)
        assert consumer.poll(300) == []
        consumer.pause(place)
        side.send(topic, bodies("late", 1))  # may still come by a pull that is parked
        early = [one.queue_offset for one in consumer.poll(2_000)]
        side.send(topic, bodies("later", 2))
        assert consumer.poll(500) == []
        consumer.resume(place)
        assert early + read(3 - len(early)) == [10, 11, 12]
        assert consumer.offset_for_timestamp(place, 0) == 0
        consumer.seek_to_timestamp(place, int(time.time() * 1000) + 3_600_000)
        assert consumer.position(place) == 13
        eventually(lambda: consumer.committed(place) == 13 or bool(consumer.poll(10)), "auto-commit")
        create_topic(cluster, topic, 2)
        eventually(lambda: bool(changes) and changes[-1] == {0, 1}, "the second queue is heard of")
    side.stop()
