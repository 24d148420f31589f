"""The unmodified Go client (apache/rocketmq-client-go v2) on our broker; slow: the same on a real RocketMQ."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqspark import ClientOptions, Message, Producer
from mqspark.message import MessageExt
from tests.interop.driver import Driver, DriverError, Program, body_of, message
from tests.interop.handles import (
    FIRST,
    SEND_OK,
    bodies,
    check_compressed,
    check_order,
    counted,
    group_offset,
    our_consumer,
    send,
    send_all,
    start,
    started,
    take,
)
from tests.interop.other_clients import GO
from tests.interop.topics import QUEUES, create_group, create_topic, max_offset, message_count
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.processes import free_port
from tests.support.remoting import ask
from tests.support.waiting import eventually

Name = Callable[[str], str]

FOUND, NO_NEW, NO_MATCH, ILLEGAL = range(4)
COMMIT, ROLLBACK, UNKNOWN = 1, 2, 3
CONSUMERS, PRODUCERS, RESET_OFFSET, CONSUMER_STATUS, RUNNING_INFO, CONSUME_DIRECTLY = (
    38,
    204,
    222,
    223,
    307,
    309,
)


@pytest.fixture(scope="module")
def go(drivers: Callable[[Program], Driver]) -> Driver:
    return drivers(GO)


@contextmanager
def push(go: Driver, cluster: Cluster, topic: str, group: str, **settings: Any) -> Iterator[int]:
    arguments = {"expression": "*", "from": FIRST, **settings}
    with started(go, "push", cluster, group, topics=[topic], **arguments) as handle:
        yield handle


def pull_from(
    go: Driver, cluster: Cluster, handle: int, topic: str, queue: int, offset: int
) -> dict[str, Any]:
    result: dict[str, Any] = go.call(
        "pull.from", handle=handle, topic=topic, broker_name=cluster.broker_name, queue_id=queue, offset=offset,
        count=32,
    )  # fmt: skip
    return result


def pull_all(go: Driver, cluster: Cluster, topic: str, queues: int = QUEUES) -> list[dict[str, Any]]:
    """Every message of the topic, as the Go client reads it."""
    group = create_group(cluster, "go-reader")
    messages = []
    with started(go, "pull", cluster, group, topic=topic, expression="*") as handle:
        for queue in range(queues):
            offset, end = 0, max_offset(cluster, topic, queue)
            while offset < end:
                result = pull_from(go, cluster, handle, topic, queue, offset)
                assert result["status"] == FOUND, result
                messages += result["messages"]
                offset = result["next"]
    return messages


# ---- producing


def test_every_field_of_a_message_arrives(go: Driver, soon: Cluster, name: Name) -> None:
    topic = create_topic(soon, name("GoFields"))
    before_ms = int(time.time() * 1000)
    body = "bytes \x00\x01\x02 and text: Grüße, 你好, 🚀".encode()
    properties = {"origin": "JFK", "größe": "übergroß", "emoji": "🛩"}
    with started(go, "producer", soon, "go-fields", selector="manual") as producer:
        sent = send(
            go, producer, topic, body, tags="TagÄ", keys=["k1", "k2"], flag=42, properties=properties,
            broker_name=soon.broker_name, queue_id=2,
        )  # fmt: skip
    assert (sent["topic"], sent["broker_name"], sent["queue_id"], sent["queue_offset"]) == (
        topic,
        soon.broker_name,
        2,
        0,
    )
    assert (sent["region"], sent["trace_on"]) == ("DefaultRegion", True)
    (got,) = pull_all(go, soon, topic)
    assert body_of(got) == body
    assert (got["topic"], got["queue_id"], got["queue_offset"]) == (topic, 2, 0)
    assert (got["tags"], got["keys"], got["flag"]) == ("TagÄ", "k1 k2", 42)
    assert {key: got["properties"].get(key) for key in properties} == properties
    assert got["properties"]["UNIQ_KEY"] == sent["msg_id"] == got["msg_id"]
    assert got["properties"]["CLUSTER"] == soon.cluster_name
    assert (got["sys_flag"], got["reconsume_times"]) == (0, 0)
    assert got["store_host"] == soon.broker
    assert sent["offset_msg_id"] == got["offset_msg_id"]
    assert before_ms <= got["born_timestamp"] <= got["store_timestamp"] <= time.time() * 1000 + 1


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_send_modes(go: Driver, soon: Cluster, name: Name, mode: str) -> None:
    topic = create_topic(soon, name("GoModes"))
    given = bodies(mode, 20)
    with started(go, "producer", soon, "go-modes") as producer:
        sent = [
            go.call("producer.send", handle=producer, mode=mode, message=message(topic, body))
            for body in given
        ]
        eventually(lambda: message_count(soon, topic) == len(given), "all stored")
    received = pull_all(go, soon, topic)
    assert counted(received) == Counter(given)
    if mode != "oneway":
        acknowledged = {(one["queue_id"], one["queue_offset"]): one["msg_id"] for one in sent}
        stored = {(one["queue_id"], one["queue_offset"]): one["msg_id"] for one in received}
        assert acknowledged == stored


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_a_batch_is_stored_as_its_messages(go: Driver, soon: Cluster, name: Name, mode: str) -> None:
    topic = create_topic(soon, name("GoBatch"))
    batch = [message(topic, body, tags="B", keys=[body.decode()]) for body in bodies("batch", 10)]
    with started(go, "producer", soon, "go-batches") as producer:
        sent = go.call("producer.send_batch", handle=producer, mode=mode, messages=batch)
        eventually(lambda: message_count(soon, topic) == len(batch), "all stored")
    if mode != "oneway":
        assert (sent["status"], sent["queue_offset"]) == (SEND_OK, 0)
        assert len(sent["offset_msg_id"].split(",")) == len(batch)
    received = pull_all(go, soon, topic)
    assert [body_of(one) for one in received] == bodies("batch", 10)
    assert [(one["tags"], one["keys"]) for one in received] == [
        ("B", f"batch-{number}") for number in range(10)
    ]
    assert [one["queue_offset"] for one in received] == list(range(10))


def test_large_bodies_travel_compressed(go: Driver, soon: Cluster, name: Name) -> None:
    topic = create_topic(soon, name("GoLarge"))
    large = [b"compressible " * 4000, bytes(range(256)) * 8000]
    send_all(go, soon, topic, large)
    check_compressed(soon, topic, name("go-large"), large)
    assert sorted(body_of(one) for one in pull_all(go, soon, topic)) == sorted(large)


def test_an_unknown_topic_is_made_by_the_first_send(go: Driver, soon: Cluster, name: Name) -> None:
    topic = name("GoUnknown")
    send_all(go, soon, topic, [b"first"])
    assert counted(pull_all(go, soon, topic)) == Counter([b"first"])


def test_what_is_too_large_is_refused(go: Driver, soon: Cluster, name: Name) -> None:
    topic = create_topic(soon, name("GoTooLarge"))
    with started(go, "producer", soon, "go-too-large", compress_over=1 << 30) as producer:
        with pytest.raises(DriverError, match="CODE: 13"):
            send(go, producer, topic, b"x" * (4 << 20) + b"y")
        send(go, producer, topic, b"x" * (3 << 20))


def test_delay_levels(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoDelay")), create_group(soon, name("go-delay"))
    with push(go, soon, topic, group) as consumer:
        before_ms = int(time.time() * 1000)
        send_all(go, soon, topic, [b"late"], delay_level=1)
        (got,) = take(go, consumer, 1)
    assert body_of(got) == b"late"
    assert got["store_timestamp"] - before_ms >= 1000
    assert got["properties"]["DELAY"] == "1"


# ---- push


def test_tags_and_where_a_group_goes_on(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoPush")), create_group(soon, name("go-push"))
    with started(go, "producer", soon, "go-push-producer") as producer:
        for number in range(40):
            send(go, producer, topic, b"%d" % number, tags="ABCD"[number % 4])
    with push(go, soon, topic, group, expression="A || C") as consumer:
        assert {int(body_of(one)) for one in take(go, consumer, 20)} == set(range(0, 40, 2))
    send_all(go, soon, topic, bodies("later", 4), tags="C")
    with push(go, soon, topic, group, expression="A || C") as consumer:
        received = take(go, consumer, 4)
        assert counted(received + take(go, consumer, 1, 300)) == Counter(bodies("later", 4))


def test_sql_filter(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoSql")), create_group(soon, name("go-sql"))
    with started(go, "producer", soon, "go-sql-producer") as producer:
        for number in range(20):
            send(go, producer, topic, b"%d" % number, properties={"a": str(number)}, tags="AB"[number % 2])
    with push(go, soon, topic, group, sql="a BETWEEN 5 AND 9 AND TAGS = 'A' OR a = 19") as consumer:
        received = take(go, consumer, 3) + take(go, consumer, 1, 300)
    assert {int(body_of(one)) for one in received} == {6, 8, 19}


def test_two_members_share_and_one_takes_over(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoShare")), create_group(soon, name("go-share"))
    with ExitStack() as members:
        first = members.enter_context(push(go, soon, topic, group))
        with push(go, soon, topic, group) as second:
            halves: list[dict[str, Any]] = []

            def both_work() -> bool:
                send_all(go, soon, topic, bodies("probe", 8))
                got = [take(go, handle, 8, 300) for handle in (first, second)]
                halves[:] = got[0] + got[1]
                return all(len({one["queue_id"] for one in part}) == 2 for part in got) and len(halves) == 8

            eventually(both_work, "both have two queues", 60)
            assert counted(halves) == Counter(bodies("probe", 8))
        send_all(go, soon, topic, bodies("after", 8))
        assert counted(take(go, first, 8)) == Counter(bodies("after", 8))


def test_a_group_of_go_and_ours(go: Driver, soon: Cluster, name: Name) -> None:
    """Both allocate alike, or some queue would have two readers or none."""
    topic, group = create_topic(soon, name("GoMixed")), create_group(soon, name("go-mixed"))
    got: list[MessageExt] = []
    with push(go, soon, topic, group) as theirs, our_consumer(soon, topic, group, got.append):

        def shared() -> bool:
            got.clear()
            send_all(go, soon, topic, bodies("probe", 8))
            received = take(go, theirs, 4, 1_000) + take(go, theirs, 1, 300)
            of_theirs, of_ours = {one["queue_id"] for one in received}, {one.queue_id for one in got}
            return (len(of_theirs), len(of_ours), len(of_theirs | of_ours)) == (2, 2, 4) and len(
                received
            ) == len(got) == 4

        eventually(shared, "each has two queues", 60)


def test_failed_messages_come_back_and_end_as_dead_letters(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoRetry")), create_group(soon, name("go-retry"))
    retry = create_topic(soon, f"%RETRY%{group}", 1)  # else the client learns of it after half a minute
    with started(go, "producer", soon, "go-retry-producer") as producer:
        sent = send(go, producer, topic, b"twice", tags="T", properties={"failures": "1"})
        send(go, producer, topic, b"never", properties={"failures": "9"})
    with push(go, soon, topic, group, max_reconsume=1, delay_level=1) as consumer:
        received = take(go, consumer, 4)
        eventually(lambda: message_count(soon, f"%DLQ%{group}", 1) == 1, "the dead letter")
    assert counted(received) == Counter({b"twice": 2, b"never": 2})
    (again,) = (one for one in received if body_of(one) == b"twice" and one["reconsume_times"])
    assert (again["topic"], again["reconsume_times"], again["tags"]) == (topic, 1, "T")
    assert again["properties"]["RETRY_TOPIC"] == topic
    assert again["properties"]["ORIGIN_MESSAGE_ID"] == sent["offset_msg_id"]
    assert again["msg_id"] == sent["msg_id"]
    assert max_offset(soon, retry, 0) == 2


def test_in_order(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoOrder")), create_group(soon, name("go-order"))
    with started(go, "producer", soon, "go-order-producer", selector="hash") as producer:
        for number in range(30):
            failing = {"failures": "2"} if number == 7 else {}
            send(
                go, producer, topic, b"%d" % number, sharding_key=f"key-{number % 3}",
                properties={"key": str(number % 3), **failing},
            )  # fmt: skip
    with push(go, soon, topic, group, orderly=True) as consumer:
        received = take(go, consumer, 32)
    check_order(received, 2)


def test_every_broadcast_consumer_gets_everything(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoBroadcast")), create_group(soon, name("go-broadcast"))
    with ExitStack() as running:
        members = [
            running.enter_context(push(go, soon, topic, group, model="BROADCASTING")) for _ in range(2)
        ]
        send_all(go, soon, topic, bodies("all", 12))
        for member in members:
            assert counted(take(go, member, 12)) == Counter(bodies("all", 12))
    assert all(group_offset(soon, group, topic, queue) is None for queue in range(QUEUES))


@pytest.mark.parametrize("place", ["FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"])
def test_a_new_group_gets_all_of_a_young_queue(go: Driver, soon: Cluster, name: Name, place: str) -> None:
    """Whatever its consumers want: of a queue with its first message in memory brokers say that it begins at 0."""
    topic, group = create_topic(soon, name("GoBegin"), 1), create_group(soon, name("go-begin"))
    send_all(go, soon, topic, bodies("old", 5))
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(time.time() + 60))
    with push(go, soon, topic, group, **{"from": f"CONSUME_FROM_{place}"}, timestamp=stamp) as consumer:
        assert counted(take(go, consumer, 5)) == Counter(bodies("old", 5))


@pytest.mark.slow("the Go client looks every 30 s")
def test_suspend_and_resume(go: Driver, soon: Cluster, name: Name) -> None:
    """A suspended consumer looks every 30 s whether it is resumed."""
    topic, group = create_topic(soon, name("GoSuspend"), 1), create_group(soon, name("go-suspend"))
    with push(go, soon, topic, group) as consumer:
        send_all(go, soon, topic, bodies("before", 3))
        assert counted(take(go, consumer, 3)) == Counter(bodies("before", 3))
        go.call("push.suspend", handle=consumer)
        send_all(go, soon, topic, [b"parked"])  # comes by the pull that is parked
        assert counted(take(go, consumer, 1)) == Counter([b"parked"])
        send_all(go, soon, topic, bodies("meanwhile", 3))
        assert not take(go, consumer, 1, 500)
        go.call("push.resume", handle=consumer)
        assert counted(take(go, consumer, 3)) == Counter(bodies("meanwhile", 3))


# ---- pull


def test_pull_consumer(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoPull"), 1), create_group(soon, name("go-pull"))
    queue = {"topic": topic, "broker_name": soon.broker_name, "queue_id": 0}
    send_all(go, soon, topic, bodies("pull", 10), tags="T")
    with started(go, "pull", soon, group, topic=topic, expression="T", **{"from": FIRST}) as consumer:
        result = pull_from(go, soon, consumer, topic, 0, 4)
        assert (result["status"], result["next"], result["min"], result["max"]) == (FOUND, 10, 0, 10)
        assert [body_of(one) for one in result["messages"]] == bodies("pull", 10)[4:]
        beyond = pull_from(go, soon, consumer, topic, 0, 99)
        assert (beyond["status"], beyond["next"]) == (ILLEGAL, 10)
        go.call("pull.update_offset", handle=consumer, offset=7, **queue)
        eventually(lambda: group_offset(soon, group, topic, 0) == 7, "the offset is committed")
        assert go.call("pull.current_offset", handle=consumer, **queue) == 7
    other = create_group(soon, name("go-poll"))
    with started(go, "pull", soon, other, topic=topic, expression="*", **{"from": FIRST}) as consumer:
        assert counted(take(go, consumer, 10, verb="pull.poll")) == Counter(bodies("pull", 10))
    eventually(lambda: group_offset(soon, other, topic, 0) == 10, "the polled offset is committed")


@pytest.mark.slow("the Go client waits 20 s for nothing")
def test_pulls_from_where_the_group_is(go: Driver, soon: Cluster, name: Name) -> None:
    """It pulls from the next queue, the retry topic's included, and there it waits 20 s for nothing."""
    topic, group = create_topic(soon, name("GoNext"), 1), create_group(soon, name("go-next"))
    send_all(go, soon, topic, bodies("next", 3))
    with started(go, "pull", soon, group, topic=topic, expression="*", **{"from": FIRST}) as consumer:
        pulled = [go.call("pull.pull", handle=consumer, count=2) for _ in range(2)]
    assert bodies("next", 2) in [[body_of(one) for one in result["messages"]] for result in pulled]


def test_pulls_with_filters(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoPullSql"), 1), create_group(soon, name("go-pull-sql"))
    with started(go, "producer", soon, "go-pull-producer") as producer:
        for number in range(6):
            send(go, producer, topic, b"%d" % number, properties={"a": str(number)}, tags="AB"[number % 2])
    with started(go, "pull", soon, group, topic=topic, sql="a > 3") as consumer:
        result = pull_from(go, soon, consumer, topic, 0, 0)
        assert [body_of(one) for one in result["messages"]] == [b"4", b"5"]
    with started(go, "pull", soon, group, topic=topic, expression="B") as consumer:
        result = pull_from(go, soon, consumer, topic, 0, 0)
        assert [body_of(one) for one in result["messages"]] == [b"1", b"3", b"5"]


# ---- requests, transactions


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("echo", ["go", "ours"])
def test_requests_and_replies(go: Driver, soon: Cluster, name: Name, mode: str, echo: str) -> None:
    topic, group = create_topic(soon, name("GoAsk")), create_group(soon, name("go-echo"))
    asking = name("go-asking")
    with ExitStack() as running:
        if echo == "go":
            running.enter_context(push(go, soon, topic, group, echo=True))
        else:
            replies = running.enter_context(Producer(soon.namesrv, group="replies-to-go"))

            def answer(asked: MessageExt) -> None:
                replies.reply(asked, b"re: " + asked.body)

            running.enter_context(our_consumer(soon, topic, group, answer))
        producer = running.enter_context(started(go, "producer", soon, asking))
        # Its first heartbeat comes after a second, the next one after 31, to brokers that it has a route to; before
        # that nobody knows where a reply has to go.
        send(go, producer, create_topic(soon, name("GoFirst")), b"for the route")
        eventually(
            lambda: ask(soon.broker, PRODUCERS, producerGroup=asking).code == 0, "the client is known", 45
        )
        for body in (b"one", b"two " * 2000):
            reply = go.call(
                "producer.request", handle=producer, mode=mode, message=message(topic, body),
                timeout_ms=30_000,
            )  # fmt: skip
            assert body_of(reply) == b"re: " + body
            assert reply["properties"]["MSG_TYPE"] == "reply"
        if echo == "go" and mode == "sync":
            with Producer(soon.namesrv, group="asking-go") as ours:
                assert ours.request(Message.of(topic, b"ours"), 30_000).body == b"re: ours"


CASES = {
    # body: what the local transaction says, what checks are told, how often it is asked at least, whether it appears
    "commit": ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", 0, True),
    "rollback": ("ROLLBACK_MESSAGE", "COMMIT_MESSAGE", 0, False),
    "unknown, then commit": ("UNKNOW", "COMMIT_MESSAGE", 1, True),
    "unknown, then rollback": ("UNKNOW", "ROLLBACK_MESSAGE", 1, False),
    "unknown twice, then commit": ("UNKNOW", "UNKNOW,COMMIT_MESSAGE", 2, True),
}


def test_transactions(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoTransactions")), create_group(soon, name("go-transactions"))
    with started(go, "transaction", soon, name("go-transactional")) as producer:
        ids = {}
        for body, (local, checks, _, _) in CASES.items():
            properties = {"local": local, "checks": checks}
            sent = go.call(
                "transaction.send", handle=producer,
                message=message(topic, body.encode(), tags="T", properties=properties),
            )  # fmt: skip
            assert (sent["status"], sent["state"]) == (
                SEND_OK,
                {"COMMIT_MESSAGE": COMMIT, "ROLLBACK_MESSAGE": ROLLBACK, "UNKNOW": UNKNOWN}[local],
            )
            ids[sent["msg_id"]] = body
        visible = {body.encode() for body, (*_, appears) in CASES.items() if appears}
        with push(go, soon, topic, group) as consumer:
            received = take(go, consumer, len(visible))
            asked = [ids[one["msg_id"]] for one in go.call("transaction.checked", handle=producer)]
            received += take(go, consumer, 1, 3_000 if soon.kind == "rocketmq" else 700)
    assert counted(received) == Counter(visible)
    assert {one["msg_id"] for one in received} <= set(ids)
    for body, (_, _, at_least, _) in CASES.items():
        assert asked.count(body) >= at_least, (body, asked)


# ---- administration, tools


def test_admin(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = name("GoMade"), create_group(soon, name("go-listed"))
    with started(go, "admin", soon, "") as admin:
        go.call("admin.create_topic", handle=admin, topic=topic, broker=soon.broker, queues=3)
        assert topic in go.call("admin.topics", handle=admin)
        queues = go.call("admin.queues", handle=admin, topic=topic)
        assert sorted(queue["queueId"] for queue in queues) == [0, 1, 2]
        assert {(queue["topic"], queue["brokerName"]) for queue in queues} == {(topic, soon.broker_name)}
        groups = go.call("admin.groups", handle=admin, broker=soon.broker)
        found = groups[group]
        assert (found["GroupName"], found["ConsumeEnable"], found["RetryMaxTimes"]) == (group, True, 16)
        go.call("admin.delete_topic", handle=admin, topic=topic, broker=soon.broker)
        assert topic not in go.call("admin.topics", handle=admin)


def test_tools_look_into_a_consumer(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoLooked"), 1), create_group(soon, name("go-looked"))
    send_all(go, soon, topic, bodies("looked", 3), tags="T")
    with push(go, soon, topic, group) as consumer:
        first = take(go, consumer, 3)[0]
        (member,) = json.loads(ask(soon.broker, CONSUMERS, consumerGroup=group).body)["consumerIdList"]
        info = ask(soon.broker, RUNNING_INFO, consumerGroup=group, clientId=member, jstackEnable=False)
        assert info.code == 0, info
        assert b'"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in info.body
        assert topic.encode() in info.body
        done = ask(
            soon.broker, CONSUME_DIRECTLY, consumerGroup=group, clientId=member, msgId=first["offset_msg_id"],
            brokerName=soon.broker_name,
        )  # fmt: skip
        assert done.code == 0, done
        assert json.loads(done.body)["autoCommit"] is True
        assert body_of(take(go, consumer, 1)[0]) == body_of(first)
        status = ask(soon.broker, CONSUMER_STATUS, topic=topic, group=group, clientAddr=member)
        place = f'{{"brokerName":"{soon.broker_name}","queueId":0,"topic":"{topic}"}}:3'
        assert (status.code, place in status.body.decode()) == (0, True), status


@pytest.mark.slow("the Go client pauses for ten seconds")
def test_a_reset_reaches_a_consumer(go: Driver, soon: Cluster, name: Name) -> None:
    """The client waits ten seconds before it does what it is told, and begins with its next rebalance."""
    topic, group = create_topic(soon, name("GoReset"), 1), create_group(soon, name("go-reset"))
    send_all(go, soon, topic, bodies("reset", 5))
    with push(go, soon, topic, group) as consumer:
        assert counted(take(go, consumer, 5)) == Counter(bodies("reset", 5))
        reply = ask(soon.broker, RESET_OFFSET, topic=topic, group=group, timestamp=0, isForce=True)
        assert reply.code == 0, reply
        assert counted(take(go, consumer, 5, 60_000)) == Counter(bodies("reset", 5))


# ---- trace, hooks, namespaces


def test_trace_and_interceptors(go: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("GoTraced")), create_group(soon, name("go-traced"))
    traces, sender = create_topic(soon, name("GoTraces")), name("go-tracing")
    with started(go, "producer", soon, sender, trace_topic=traces, hooks=True) as producer:
        with push(go, soon, topic, group, trace_topic=traces, hooks=True) as consumer:
            sent = send(go, producer, topic, b"traced", tags="T", keys=["the-key"])
            take(go, consumer, 1)
            eventually(
                lambda: go.call("hooked", group=group) == ["before", "after"], "the listener's interceptor"
            )
            assert go.call("hooked", group=sender) == ["before", "after"]

            def lines() -> list[list[str]]:
                kept = b"".join(body_of(one) for one in pull_all(go, soon, traces))
                return [line.split("\x01") for line in kept.decode().split("\x02") if line]

            eventually(
                lambda: {line[0] for line in lines()} == {"Pub", "SubBefore", "SubAfter"}, "all traces"
            )
            (pub,) = (line for line in lines() if line[0] == "Pub")
    assert pub[2:8] == ["DefaultRegion", sender, topic, sent["msg_id"], "T", "the-key"]


def test_namespaces(go: Driver, soon: Cluster, name: Name) -> None:
    space, topic, group = name("space"), name("GoNamed"), name("go-named")
    create_topic(soon, f"{space}%{topic}"), create_group(soon, f"{space}%{group}")
    with started(go, "producer", soon, name("go-naming"), namespace=space) as producer:
        send(go, producer, topic, b"inside")
    assert message_count(soon, f"{space}%{topic}") == 1
    with push(go, soon, topic, group, namespace=space) as consumer:
        assert counted(take(go, consumer, 1)) == Counter([b"inside"])
    got: list[MessageExt] = []
    with our_consumer(soon, topic, name("our-named"), got.append, options=ClientOptions(namespace=space)):
        eventually(lambda: len(got) == 1, "our consumer in the same namespace")
    assert (got[0].topic, got[0].body) == (topic, b"inside")


# ---- a broker that goes and comes back


@pytest.mark.slow("the Go client gives up lost pulls after 30 s")
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_clients_outlive_the_broker(go: Driver, tmp_path: Path, blow: signal.Signals) -> None:
    """The client gives up the pulls of a lost connection after 30 s."""
    settings = {
        "brokerClusterName": "GoCluster",
        "brokerName": "broker-g",
        "listenPort": free_port(neighbours=2),
        "flushDiskType": "SYNC_FLUSH",
    }
    topic, group, acknowledged, over = "GoRestart", "go-restart", set[bytes](), threading.Event()
    with ExitStack() as running:
        namesrv = running.enter_context(mqspark_namesrv(tmp_path / "namesrv"))
        life = running.enter_context(ExitStack())
        cluster = life.enter_context(mqspark_broker(tmp_path / "broker", namesrv, settings, stop_signal=blow))
        create_topic(cluster, topic), create_group(cluster, group)
        producer = start(go, "producer", cluster, "go-restart-producer")
        consumer = start(go, "push", cluster, group, topics=[topic], expression="*", **{"from": FIRST})

        def sending() -> None:
            number = 0
            while not over.is_set():
                number += 1
                body = b"restart-%d" % number
                try:
                    send(go, producer, topic, body)
                    acknowledged.add(body)
                except DriverError:
                    time.sleep(0.05)

        thread = threading.Thread(target=sending, daemon=True)
        thread.start()
        eventually(lambda: len(acknowledged) >= 30, "sends before")
        life.close()
        before = len(acknowledged)
        cluster = running.enter_context(mqspark_broker(tmp_path / "broker", namesrv, settings))
        eventually(lambda: len(acknowledged) >= before + 30, "sends after", 60)
        over.set()
        thread.join(30)
        seen: set[bytes] = set()

        def all_consumed() -> bool:
            seen.update(map(body_of, take(go, consumer, 1, 500)))
            return acknowledged <= seen

        eventually(all_consumed, "every acknowledged message consumed", 60)
