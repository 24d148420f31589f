"""Our clients on a static topic, while its queues move from broker to broker."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ConnectionLost, MQError
from mqspark.testing import Cluster
from tests.support.static_topics import StaticTopicTool
from tests.support.waiting import eventually

TOPIC = "Logic"
QUEUES = 2
LOGIC = "__syslo__global__"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(
        2, store=tmp_path, settings={"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s 1s 1s 1s"}
    ) as running:
        yield running


@pytest.fixture
def tool(cluster: Cluster) -> Iterator[StaticTopicTool]:
    masters = {app.config.broker_name: app.address for app in cluster.apps}
    tool = StaticTopicTool(cluster.namesrv, masters, TOPIC)
    tool.create(QUEUES, next(iter(masters)))
    yield tool
    tool.close()


def brokers(tool: StaticTopicTool) -> tuple[str, str]:
    first, second = tool.masters
    return first, second


def test_what_a_route_of_a_static_topic_means(cluster: Cluster, tool: StaticTopicTool) -> None:
    first, second = brokers(tool)
    with AdminClient(cluster.namesrv) as admin:
        route = admin.topic_route(TOPIC)
        queues = [MessageQueue(TOPIC, LOGIC, number) for number in range(QUEUES)]
        assert list(route.publish_queues) == list(route.subscribe_queues) == queues
        assert {route.broker_of(queue) for queue in queues} == {first}
        tool.remap(second)
        assert {admin.topic_route(TOPIC).broker_of(queue) for queue in queues} == {second}
    client = BlockingClient(cluster.namesrv)
    (address,) = (app.address for app in cluster.apps if app.config.broker_name == second)
    mapping = client.topic_mapping(address, TOPIC)
    assert mapping is not None
    assert [part.bname for part in mapping.hosted_queues[0]] == [first, second]
    assert client.topic_mapping(address, "Unknown") is None
    client.close()


def test_nothing_is_lost_or_reordered_while_queues_move(cluster: Cluster, tool: StaticTopicTool) -> None:
    first, second = brokers(tool)
    sent: dict[int, list[int]] = {number: [] for number in range(QUEUES)}
    got: dict[int, list[int]] = {number: [] for number in range(QUEUES)}
    places: set[tuple[int, int]] = set()
    stopped = threading.Event()
    failures: list[BaseException] = []

    def send(queue_id: int) -> None:
        queue = MessageQueue(TOPIC, LOGIC, queue_id)
        try:
            with Producer(cluster.namesrv, group=f"p{queue_id}", send_timeout_ms=20_000) as producer:
                while not stopped.is_set():
                    number = len(sent[queue_id])
                    result = producer.send(Message.of(TOPIC, b"%d" % number), queue=queue)
                    assert result.queue == queue
                    sent[queue_id].append(result.queue_offset)
        except BaseException as error:
            failures.append(error)

    def listen(message: MessageExt) -> None:
        assert message.broker_name == LOGIC
        got[message.queue_id].append(int(message.body))
        places.add((message.queue_id, message.queue_offset))

    consumer = PushConsumer(
        cluster.namesrv, group="readers", listener=listen, ordered=True, consume_from=FIRST
    )
    consumer.subscribe(TOPIC)
    senders = [threading.Thread(target=send, args=(number,)) for number in sent]
    with consumer:
        for sender in senders:
            sender.start()
        for number, target in enumerate((second, first, second), 1):
            eventually(
                lambda at_least=number * 40: all(len(each) > at_least for each in got.values()), "read"
            )
            tool.remap(target)
        eventually(lambda: all(len(each) > 160 for each in got.values()), "read after the last move")
        stopped.set()
        for sender in senders:
            sender.join(30)
        assert failures == []
        eventually(lambda: all(len(got[each]) >= len(sent[each]) for each in sent), "everything is read")
    for queue_id, offsets in sent.items():
        assert got[queue_id] == list(range(len(offsets))), "each once, in order"
        known = [offset for offset in offsets if offset >= 0]  # -1 while a queue moves
        assert known == sorted(known)
        assert {(queue_id, offset) for offset in known} <= places
    with AdminClient(cluster.namesrv) as admin:
        for queue_id in sent:
            queue = MessageQueue(TOPIC, LOGIC, queue_id)
            assert admin.query_offset("readers", queue) == admin.queue_bounds(queue)[1]
            assert admin.queue_bounds(queue)[0] == 0
        progress = {
            queue: each for queue, each in admin.group_offsets("readers").items() if queue.topic == TOPIC
        }
        assert list(progress) == [MessageQueue(TOPIC, LOGIC, number) for number in range(QUEUES)]
        assert {each.lag for each in progress.values()} == {0}


def test_an_earlier_part_is_waited_for_while_its_broker_is_away(
    cluster: Cluster, tool: StaticTopicTool
) -> None:
    _, second = brokers(tool)
    queue = MessageQueue(TOPIC, LOGIC, 0)
    got: list[bytes] = []
    consumer = PushConsumer(
        cluster.namesrv,
        group="waiting",
        listener=lambda message: got.append(message.body),
        ordered=True,
        consume_from=FIRST,
    )
    consumer.subscribe(TOPIC)
    with Producer(cluster.namesrv, group="p", send_timeout_ms=20_000) as producer:
        for number in range(5):
            producer.send(Message.of(TOPIC, b"%d" % number), queue=queue)
        tool.remap(second)
        cluster.kill(0)
        for number in range(5, 10):
            message = Message.of(TOPIC, b"%d" % number)
            try:
                producer.send(message, queue=queue)
            except ConnectionLost:  # it had the old route, to a broker that no longer took messages
                producer.send(message, queue=queue)
        with consumer:
            producer.send(Message.of(TOPIC, b"other"), queue=MessageQueue(TOPIC, LOGIC, 1))
            cluster.restart(0)
            eventually(lambda: len(got) >= 11, "everything is read once the broker is back")
    assert [body for body in got if body != b"other"] == [b"%d" % number for number in range(10)]


def test_a_failed_message_comes_back_wherever_its_queue_is(cluster: Cluster, tool: StaticTopicTool) -> None:
    _, second = brokers(tool)
    seen: list[tuple[bytes, int]] = []

    def listen(message: MessageExt) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.reconsume_times == 0:
            raise ValueError("not now")

    with Producer(cluster.namesrv, group="p") as producer:
        producer.send(Message.of(TOPIC, b"before"))
        tool.remap(second)
        producer.send(Message.of(TOPIC, b"after"))
    consumer = PushConsumer(cluster.namesrv, group="failing", listener=listen, consume_from=FIRST)
    consumer.subscribe(TOPIC)
    with consumer:
        eventually(lambda: {(b"before", 1), (b"after", 1)} <= set(seen), "both come again", 60)


def test_pop_takes_the_messages_of_all_parts(cluster: Cluster, tool: StaticTopicTool) -> None:
    """POP knows physical queues only, as at RocketMQ's brokers."""
    _, second = brokers(tool)
    got: set[bytes] = set()
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send(Message.of(TOPIC, b"before"))
        tool.remap(second)
        producer.send_batch(
            [Message.of(TOPIC, b"one"), Message.of(TOPIC, b"two")], queue=MessageQueue(TOPIC, LOGIC, 1)
        )
    with AdminClient(cluster.namesrv) as admin:
        admin.create_group("pops")
        admin.set_consume_mode(TOPIC, "pops", "POP")
    consumer = PopConsumer(
        cluster.namesrv, group="pops", listener=lambda message: got.add(message.body), consume_from=FIRST
    )
    consumer.subscribe(TOPIC)
    with consumer:
        eventually(lambda: got == {b"before", b"one", b"two"}, lambda: got)


def test_a_transaction_ends_where_it_began(cluster: Cluster, tool: StaticTopicTool) -> None:
    _, second = brokers(tool)

    def execute(message: Message) -> TransactionState:
        tool.remap(second)
        return TransactionState.COMMIT

    with TransactionProducer(
        cluster.namesrv, group="tx", execute=execute, check=lambda message: TransactionState.UNKNOWN
    ) as producer:
        producer.send_in_transaction(Message.of(TOPIC, b"both"))
    with AdminClient(cluster.namesrv) as admin:
        queues = admin.topic_route(TOPIC).subscribe_queues

        def bodies() -> list[bytes]:
            return [message.body for queue in queues for message in admin.read(queue, 0).messages]

        eventually(lambda: bodies() == [b"both"], "the commit is readable")


@pytest.mark.slow("brokers are killed and queues move for half a minute; fast: the tests above")
def test_what_is_acknowledged_is_read_in_order_through_moves_and_kills(
    cluster: Cluster, tool: StaticTopicTool
) -> None:
    chance = random.Random(7)
    acked: dict[int, list[int]] = {number: [] for number in range(QUEUES)}
    got: dict[int, list[int]] = {number: [] for number in range(QUEUES)}
    stopped = threading.Event()
    broken: list[BaseException] = []

    def send(queue_id: int) -> None:
        queue, number = MessageQueue(TOPIC, LOGIC, queue_id), 0
        try:
            with Producer(cluster.namesrv, group=f"p{queue_id}", send_timeout_ms=5_000) as producer:
                while not stopped.is_set():
                    try:
                        producer.send(Message.of(TOPIC, b"%d" % number), queue=queue)
                        acked[queue_id].append(number)
                    except MQError:
                        stopped.wait(0.05)  # stored or not, nobody knows: the next message has another number
                    number += 1
        except BaseException as error:
            broken.append(error)

    def listen(message: MessageExt) -> None:
        got[message.queue_id].append(int(message.body))

    consumer = PushConsumer(
        cluster.namesrv, group="readers", listener=listen, ordered=True, consume_from=FIRST
    )
    consumer.subscribe(TOPIC)
    senders = [threading.Thread(target=send, args=(number,)) for number in acked]
    with consumer:
        for sender in senders:
            sender.start()
        for _ in range(6):
            before = min(map(len, acked.values()))
            victim = chance.randrange(2)
            cluster.kill(victim)
            stopped.wait(chance.uniform(0, 1))
            cluster.restart(victim)
            tool.remap(brokers(tool)[chance.randrange(2)])
            eventually(lambda before=before: min(map(len, acked.values())) > before + 20, "sends go on")
        stopped.set()
        for sender in senders:
            sender.join(60)
        assert broken == []
        last = {number: numbers[-1] for number, numbers in acked.items()}
        eventually(lambda: all(last[number] in got[number] for number in acked), "the last message is read")
    for number, numbers in got.items():
        first_seen = list(dict.fromkeys(numbers))
        assert first_seen == sorted(first_seen), "in order, apart from repetitions"
        assert set(acked[number]) <= set(first_seen), "nothing is lost"
