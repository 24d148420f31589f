"""Producers and consumers of gRPC and of remoting on the same topics: what either sends, both get.

The callers are bare ones with the calls of RocketMQ's clients; the clients of remoting are ours.
"""

from __future__ import annotations

import gzip
import queue
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from mqspark.client.delivery.results import TransactionState
from mqspark.message import Message, MessageExt
from mqspark.protocol.bodies.topic_bodies import (
    CustomizedRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from mqspark.testing import Broker
from mqspark.testing.clients import Clients
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import (
    BareCaller,
    bare_caller,
    message,
    receive_request,
    resource,
    stored_messages,
)
from tests.support.waiting import eventually

WAIT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Asks soon how transactions ended."""
    settings = {
        "grpcEnable": True,
        "recallMessageEnable": True,
        "enablePropertyFilter": True,
        "transactionTimeOut": 300,
        "transactionCheckInterval": 300,
    }
    with Broker(settings=settings) as one:
        yield one


@pytest.fixture
def clients(broker: Broker) -> Iterator[Clients]:
    with Clients(broker.namesrv) as made:
        yield made


@pytest.fixture
def caller(broker: Broker) -> Iterator[BareCaller]:
    with bare_caller(broker.grpc_address) as made:
        yield made


class Taken:
    """What a listener of remoting gets."""

    def __init__(self) -> None:
        self.messages: queue.Queue[MessageExt] = queue.Queue()

    def __call__(self, message: MessageExt) -> None:
        self.messages.put(message)

    def take(self, count: int) -> list[MessageExt]:
        return [self.messages.get(timeout=WAIT_S) for _ in range(count)]


def topic_of(clients: Clients, name: str, kind: str = "NORMAL", queues: int = 4) -> str:
    clients.admin().create_topic(name, queues=queues, attributes={"message.type": kind})
    return name


def group_of(clients: Clients, name: str, **config: object) -> str:
    """A group that begins with the first message."""
    clients.admin().create_group(name, config=SubscriptionGroupConfig(**config))
    return name


def send(caller: BareCaller, *messages: pb.Message) -> pb.SendResultEntry:
    answer = caller.SendMessage(pb.SendMessageRequest(messages=messages))
    assert answer.status.code == pb.OK, answer.status
    (entry,) = answer.entries
    return entry


def popped(caller: BareCaller, request: pb.ReceiveMessageRequest) -> list[pb.Message]:
    responses = list(caller.ReceiveMessage(request))
    assert responses[0].status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), responses[0]
    return [each.message for each in responses if each.HasField("message")]


def acknowledge(caller: BareCaller, topic: str, group: str, *given: pb.Message) -> None:
    request = pb.AckMessageRequest(topic=resource(topic), group=resource(group))
    for each in given:
        handle = each.system_properties.receipt_handle
        request.entries.add(message_id=each.system_properties.message_id, receipt_handle=handle)
    assert caller.AckMessage(request).status.code == pb.OK


def receive(
    caller: BareCaller, topic: str, group: str, count: int, expression: str = "*", sql: bool = False
) -> list[pb.Message]:
    """Receive and acknowledge ``count`` messages."""
    request = receive_request(topic, group)
    request.filter_expression.type = pb.SQL if sql else pb.TAG
    request.filter_expression.expression = expression
    received: list[pb.Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(received) < count and time.monotonic() < deadline:
        got = popped(caller, request)
        if got:
            acknowledge(caller, topic, group, *got)
        received += got
    assert len(received) == count
    return received


def bodies(messages: list[pb.Message] | list[MessageExt]) -> Counter[bytes]:
    return Counter(each.body for each in messages)


def test_both_choose_by_tags_and_by_properties(clients: Clients, caller: BareCaller) -> None:
    topic = topic_of(clients, "chosen")
    by_tag, by_sql = Taken(), Taken()
    clients.push_consumer(topic, by_tag, tags="blue || red")
    clients.push_consumer(topic, by_sql, sql="size > 3 AND color = 'blue'")
    for group in ("tagged", "sized"):
        group_of(clients, group)
    producer = clients.producer()
    for name, color, size in (("a", "blue", 4), ("b", "blue", 2), ("c", "green", 9), ("d", "red", 1)):
        properties = {"size": str(size), "color": color}
        producer.send(Message.of(topic, f"remoting {name}", tags=color, keys=name, properties=properties))
        given = message(topic, f"grpc {name}".encode(), tag=color, keys=[name])
        given.user_properties.update(properties)
        send(caller, given)
    tagged = Counter(f"{kind} {name}".encode() for kind in ("remoting", "grpc") for name in "abd")
    sized = Counter([b"remoting a", b"grpc a"])
    received = receive(caller, topic, "tagged", 6, "blue || red")
    assert bodies(received) == tagged
    assert bodies(by_tag.take(6)) == tagged
    chosen = receive(caller, topic, "sized", 2, "size > 3 AND color = 'blue'", sql=True)
    assert bodies(chosen) == sized
    assert [dict(each.user_properties) for each in chosen] == [{"size": "4", "color": "blue"}] * 2
    assert {(each.system_properties.tag, *each.system_properties.keys) for each in chosen} == {("blue", "a")}
    of_remoting = by_sql.take(2)
    assert bodies(of_remoting) == sized
    assert {(each.tags, each.keys, each.properties["size"]) for each in of_remoting} == {("blue", "a", "4")}


def test_batches_and_compressed_bodies_of_both_are_read_by_both(clients: Clients, caller: BareCaller) -> None:
    topic = topic_of(clients, "packed")
    taken = Taken()
    clients.push_consumer(topic, taken)
    group_of(clients, "unpacking")
    producer = clients.producer(compress_from_bytes=100)
    long = b"a body that is compressed " * 50
    producer.send_batch([Message(topic, b"remoting 1"), Message(topic, b"remoting 2")])
    producer.send(Message(topic, b"remoting " + long))
    send(caller, message(topic, b"grpc 1"), message(topic, b"grpc 2"))
    send(caller, message(topic, gzip.compress(b"grpc " + long), body_encoding=pb.GZIP))
    expected = Counter(kind + rest for kind in (b"remoting ", b"grpc ") for rest in (b"1", b"2", long))
    received = receive(caller, topic, "unpacking", 6)
    assert {each.system_properties.body_encoding for each in received} == {pb.IDENTITY}
    assert bodies(received) == expected
    assert bodies(taken.take(6)) == expected


def test_groups_of_messages_keep_their_order_for_both(clients: Clients, caller: BareCaller) -> None:
    topic = topic_of(clients, "lined-up", "FIFO")
    group = group_of(clients, "in-line", consume_message_orderly=True)
    taken = Taken()
    clients.push_consumer(topic, taken, ordered=True)
    producer = clients.producer()
    for number in range(6):
        of = number % 2
        send(
            caller, message(topic, b"grpc %d-%d" % (of, number), message_group=f"g{of}", message_type=pb.FIFO)
        )
        producer.send(Message(topic, b"remoting %d-%d" % (of, number)), hash_key=f"g{of}")
    lines = Counter(b"%s %d-%d" % (kind, n % 2, n) for kind in (b"grpc", b"remoting") for n in range(6))
    received = receive(caller, topic, group, 12)
    of_remoting = taken.take(12)
    assert bodies(received) == bodies(of_remoting) == lines
    for got in ([each.body for each in received], [each.body for each in of_remoting]):
        for line in (b"grpc 0", b"grpc 1", b"remoting 0", b"remoting 1"):
            own = [body for body in got if body.startswith(line)]
            assert own == sorted(own)
    groups = {each.body[:6]: each.system_properties.message_group for each in received}
    assert (groups[b"grpc 0"], groups[b"grpc 1"], groups[b"remoti"]) == ("g0", "g1", "")


def test_a_queue_in_order_waits_for_what_a_client_of_the_other_kind_has(
    clients: Clients, caller: BareCaller
) -> None:
    """One group, whose members are of both kinds: the next message comes when the first is acknowledged."""
    topic = topic_of(clients, "one-line", "FIFO", queues=1)
    group = group_of(clients, "one-liners", consume_message_orderly=True)
    for body in (b"1", b"2", b"3"):
        send(caller, message(topic, body, message_group="g", message_type=pb.FIFO))
    request = receive_request(topic, group)
    request.batch_size = 1
    (first,) = popped(caller, request)
    taken = Taken()
    clients.pop_consumer(topic, taken, group=group, ordered=True)
    time.sleep(0.5)
    assert taken.messages.empty()
    acknowledge(caller, topic, group, first)
    assert [first.body, *(each.body for each in taken.take(2))] == [b"1", b"2", b"3"]


def test_delays_of_both_and_recalls_by_the_other(clients: Clients, caller: BareCaller) -> None:
    topic = topic_of(clients, "delayed-by-both", "DELAY")
    group = group_of(clients, "late-readers")
    taken = Taken()
    clients.push_consumer(topic, taken)
    producer = clients.producer()
    now_ms = int(time.time() * 1000)

    def later(body: bytes, delay_ms: int) -> pb.Message:
        given = message(topic, body, message_type=pb.DELAY)
        given.system_properties.delivery_timestamp.FromMilliseconds(now_ms + delay_ms)
        return given

    recalled_by_remoting = send(caller, later(b"never", 3_000))
    recalled_by_grpc = producer.send(Message.of(topic, b"never", deliver_at_ms=now_ms + 3_000))
    send(caller, later(b"grpc", 2_000))
    producer.send(Message.of(topic, b"remoting", deliver_at_ms=now_ms + 2_000))
    send(caller, later(b"the last", 4_000))
    producer.send(Message.of(topic, b"remoting by level", delay_level=1))
    assert producer.recall(topic, recalled_by_remoting.recall_handle) == recalled_by_remoting.message_id
    handle = recalled_by_grpc.recall_handle
    answer = caller.RecallMessage(pb.RecallMessageRequest(topic=resource(topic), recall_handle=handle))
    assert (answer.status.code, answer.message_id) == (pb.OK, recalled_by_grpc.message_id)
    expected = Counter([b"grpc", b"remoting", b"remoting by level", b"the last"])
    received = receive(caller, topic, group, 4)
    assert bodies(received) == bodies(taken.take(4)) == expected
    assert {each.system_properties.message_type for each in received} == {pb.DELAY}
    due = {
        each.body: each.system_properties.delivery_timestamp.ToMilliseconds()
        for each in received
        if each.system_properties.HasField("delivery_timestamp")
    }
    assert due == {b"grpc": now_ms + 2_000, b"remoting": now_ms + 2_000, b"the last": now_ms + 4_000}


def test_transactions_of_both_end_in_one_topic(clients: Clients, caller: BareCaller) -> None:
    """Each producer is asked for its own transactions."""
    topic = topic_of(clients, "dealt", "TRANSACTION")
    group = group_of(clients, "dealers")
    taken, asked_of_remoting = Taken(), []

    def check(half: MessageExt) -> TransactionState:
        asked_of_remoting.append(half.body)
        return TransactionState.COMMIT

    clients.push_consumer(topic, taken)
    producer = clients.transaction_producer(check=check, topics=[topic])
    said: queue.Queue[pb.TelemetryCommand | None] = queue.Queue()
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[resource(topic)]))
    said.put(pb.TelemetryCommand(settings=settings))
    stream = caller.Telemetry(iter(said.get, None), timeout=60)
    assert next(stream).HasField("settings")
    for body, ends in ((b"kept", pb.COMMIT), (b"dropped", pb.ROLLBACK), (b"left", None)):
        sent = send(caller, message(topic, b"grpc " + body, message_type=pb.TRANSACTION))
        if ends is not None:
            end(caller, topic, sent.message_id, sent.transaction_id, ends, pb.SOURCE_CLIENT)
    for body, state in (
        (b"kept", TransactionState.COMMIT),
        (b"dropped", TransactionState.ROLLBACK),
        (b"left", TransactionState.UNKNOWN),
    ):
        producer.send_in_transaction(Message(topic, b"remoting " + body), execute=lambda _, s=state: s)
    orphan = next(stream).recover_orphaned_transaction_command
    assert orphan.message.body == b"grpc left"
    message_id = orphan.message.system_properties.message_id
    end(caller, topic, message_id, orphan.transaction_id, pb.COMMIT, pb.SOURCE_SERVER_CHECK)
    expected = Counter([b"grpc kept", b"grpc left", b"remoting kept", b"remoting left"])
    assert bodies(taken.take(4)) == expected
    assert bodies(receive(caller, topic, group, 4)) == expected
    assert asked_of_remoting == [b"remoting left"]
    said.put(None)
    stream.cancel()


def end(
    caller: BareCaller,
    topic: str,
    message_id: str,
    transaction_id: str,
    how: pb.TransactionResolution,
    who: pb.TransactionSource,
) -> None:
    request = pb.EndTransactionRequest(
        topic=resource(topic),
        message_id=message_id,
        transaction_id=transaction_id,
        resolution=how,
        source=who,
    )
    assert caller.EndTransaction(request).status.code == pb.OK


def test_dead_letters_of_both_are_read_by_both(broker: Broker, clients: Clients, caller: BareCaller) -> None:
    topic = topic_of(clients, "deadly")
    policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[1_000]))
    of_grpc = group_of(clients, "failing-grpc", retry_max_times=0, group_retry_policy=policy)
    of_remoting = group_of(clients, "failing-remoting", retry_max_times=0, group_retry_policy=policy)

    def fail(_: MessageExt) -> None:
        raise ValueError("the listener does not like it")

    clients.push_consumer(topic, fail, group=of_remoting, max_reconsume_times=0)
    sent = send(caller, message(topic, b"grpc"))
    clients.producer().send(Message(topic, b"remoting"))
    request = receive_request(topic, of_grpc)
    got: list[pb.Message] = []
    while len(got) < 2:
        got += popped(caller, request)
    for each in got:
        forwarded = caller.ForwardMessageToDeadLetterQueue(
            pb.ForwardMessageToDeadLetterQueueRequest(
                group=resource(of_grpc),
                topic=resource(topic),
                receipt_handle=each.system_properties.receipt_handle,
                message_id=each.system_properties.message_id,
                max_delivery_attempts=1,
                delivery_attempt=1,
            )
        )
        assert forwarded.status.code == pb.OK
    for group in (of_grpc, of_remoting):
        dead = f"%DLQ%{group}"
        taken = Taken()
        eventually(lambda dead=dead: len(stored_messages(broker, dead, 1)) == 2, "two dead letters", WAIT_S)
        clients.push_consumer(dead, taken)
        letters = taken.take(2)
        assert bodies(letters) == Counter([b"grpc", b"remoting"])
        assert {each.properties["RETRY_TOPIC"] for each in letters} == {topic}
        received = receive(caller, dead, group_of(clients, f"reads-dead-of-{group}"), 2)
        assert bodies(received) == Counter([b"grpc", b"remoting"])
        ids = {each.body: each.system_properties.message_id for each in received}
        assert ids[b"grpc"] == sent.message_id


def test_priorities_of_both(clients: Clients, caller: BareCaller) -> None:
    topic = topic_of(clients, "hurried", "PRIORITY")
    group = group_of(clients, "hurrying")
    producer = clients.producer()
    for priority in (0, 3, 1):
        send(caller, message(topic, b"grpc", priority=priority, message_type=pb.PRIORITY))
        producer.send(Message.of(topic, b"remoting", priority=priority))
    received = receive(caller, topic, group, 6)
    order = [each.system_properties.priority for each in received]
    assert order == [3, 3, 1, 1, 0, 0]
    assert bodies(received) == Counter({b"grpc": 3, b"remoting": 3})
    taken = Taken()
    clients.pop_consumer(topic, taken)
    assert bodies(taken.take(6)) == Counter({b"grpc": 3, b"remoting": 3})


def test_what_a_member_gives_back_comes_to_a_member_of_the_other_kind(
    clients: Clients, caller: BareCaller
) -> None:
    topic = topic_of(clients, "passed-on", queues=1)
    policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[200]))
    group = group_of(clients, "passing-on", group_retry_policy=policy)
    send(caller, message(topic, b"hot"))
    (first,) = popped(caller, receive_request(topic, group))
    assert first.system_properties.delivery_attempt == 1
    changed = pb.ChangeInvisibleDurationRequest(
        group=resource(group), topic=resource(topic), receipt_handle=first.system_properties.receipt_handle
    )
    changed.invisible_duration.FromMilliseconds(100)
    assert caller.ChangeInvisibleDuration(changed).status.code == pb.OK
    taken = Taken()
    clients.pop_consumer(topic, taken, group=group)
    (again,) = taken.take(1)
    assert (again.body, again.message_id, again.reconsume_times) == (
        b"hot", first.system_properties.message_id, 1,
    )  # fmt: skip
