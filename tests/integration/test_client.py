"""The client against a real broker of ours over real sockets; what arrives is compared with what was sent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

import mqspark
from mqspark.aio import (
    AdminClient,
    AveragelyByCircle,
    ClientOptions,
    ConsumeFromWhere,
    ConsumeStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
)
from mqspark.client.consumer.queuecalls import QueueCalls
from mqspark.client.remoting.remoting import Channel
from mqspark.client.sync import LoopThread
from mqspark.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ConnectionLost,
    InvalidMessage,
    MessageTooLarge,
    NoRoute,
    RequestTimeout,
)
from mqspark.protocol import fastjson
from mqspark.protocol.bodies import ConsumerRunningInfo, decode_body, queue_of
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.testing import Broker, Cluster
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]
pytestmark = pytest.mark.anyio

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def create(broker: Cluster, topic: str, queues: int = 4) -> None:
    async with AdminClient(broker.namesrv) as admin:
        await admin.create_topic(topic, queues=queues)


async def send_numbers(broker: Cluster, topic: str, numbers: Iterable[int]) -> dict[MessageQueue, list[int]]:
    """What was acknowledged, by queue, in the order of the queue."""
    stored: dict[MessageQueue, list[tuple[int, int]]] = {}
    async with Producer(broker.namesrv, group="numbers") as producer:
        futures = [(number, await producer.send_async(Message.of(topic, str(number)))) for number in numbers]
        for number, future in futures:
            result = await future
            stored.setdefault(result.queue, []).append((result.queue_offset, number))
    return {queue: [number for _, number in sorted(items)] for queue, items in stored.items()}


def by_queue(messages: Iterable[MessageExt]) -> dict[MessageQueue, list[int]]:
    found: dict[MessageQueue, list[int]] = {}
    for message in messages:
        found.setdefault(message.queue, []).append(int(message.body))
    return found


class Seen:
    """A coroutine listener that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    async def __call__(self, message: MessageExt) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


# --- sending ------------------------------------------------------------------------------------------


async def test_a_message_arrives_as_it_was_sent(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    message = Message.of(
        mq_topic, "körper ☃", tags="TagÄ", keys=["k1", "k2"], properties={"名": '值 "x"\\'}, flag=7
    )
    before = dict(message.properties)
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        result = await producer.send(message)
    assert message.properties == before
    assert (result.status, result.queue_offset) == (SendStatus.SEND_OK, 0)
    assert result.queue.topic == mq_topic
    (got,) = await drain(mq_broker, mq_topic, 1)
    assert (got.body.decode(), got.tags, got.keys, got.flag) == ("körper ☃", "TagÄ", "k1 k2", 7)
    assert got.properties["名"] == '值 "x"\\'
    assert (got.message_id, got.offset_message_id) == (result.message_id, result.offset_message_id)
    assert (got.queue, got.queue_offset) == (result.queue, result.queue_offset)


async def drain(broker: Cluster, topic: str, count: int) -> list[MessageExt]:
    """The first ``count`` messages of a topic, by a group of their own."""
    found: list[MessageExt] = []
    async with LitePullConsumer(
        broker.namesrv, group=f"drain-{time.monotonic_ns()}", consume_from=FIRST, auto_commit=False
    ) as consumer:
        await consumer.assign(await consumer.fetch_message_queues(topic))
        while len(found) < count:
            batch = await consumer.poll(10_000)
            assert batch, f"{len(found)} of {count} messages"
            found += batch
    return found


async def test_large_bodies_travel_compressed(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    bodies = [b"a" * 4_095, b"b" * 4_096, b"c" * 500_000, bytes(range(256)) * 8_000]
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        for body in bodies:
            await producer.send(Message.of(mq_topic, body))
    got = await drain(mq_broker, mq_topic, len(bodies))
    assert [message.body for message in got] == bodies
    assert [message.sys_flag & 0x701 for message in got] == [0, 0x301, 0x301, 0x301]


async def test_a_batch_is_stored_together_with_its_own_ids(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    messages = [Message.of(mq_topic, f"{n}", tags=f"T{n}", keys=f"k{n}") for n in range(50)]
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        result = await producer.send_batch(messages)
    got = await drain(mq_broker, mq_topic, 50)
    assert [(m.body, m.tags, m.keys) for m in got] == [(m.body, m.tags, m.keys) for m in messages]
    assert {message.queue for message in got} == {result.queue}
    assert [message.message_id for message in got] == result.message_ids
    assert ",".join(message.offset_message_id for message in got) == result.offset_message_id


async def test_hash_key_selector_and_queue_choose(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 4)
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        queues = await producer.queues(mq_topic)
        # "orderId".hashCode() is -1207110391 in Java, 5000000000L's is 705032705.
        assert (await producer.send(Message.of(mq_topic, "x"), hash_key="orderId")).queue == queues[3]
        assert (await producer.send(Message.of(mq_topic, "x"), hash_key=5_000_000_000)).queue == queues[1]
        assert (await producer.send(Message.of(mq_topic, "x"), hash_key=6)).queue == queues[2]
        chosen = await producer.send(Message.of(mq_topic, "x"), selector=lambda all_, message: all_[0])
        assert chosen.queue == queues[0]
        assert (await producer.send(Message.of(mq_topic, "x"), queue=queues[2])).queue == queues[2]
        with pytest.raises(InvalidMessage) as caught:
            await producer.send(Message.of(mq_topic, "x"), queue=queues[0]._replace(queue_id=9))
        assert caught.value.field == "queue"
        spread = Counter([(await producer.send(Message.of(mq_topic, "x"))).queue for _ in range(8)])
        assert set(spread.values()) == {2}


async def test_oneway(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 2)
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        for number in range(100):
            await producer.send_oneway(Message.of(mq_topic, str(number)))
        got = await drain(mq_broker, mq_topic, 100)
    assert sorted(int(message.body) for message in got) == list(range(100))


async def test_sending_creates_an_unknown_topic(mq_broker: Broker, mq_topic: str) -> None:
    async with Producer(mq_broker.namesrv, group="pg", default_topic_queues=3) as producer:
        await producer.send(Message.of(mq_topic, "first"))
        async with AdminClient(mq_broker.namesrv) as admin:
            await until_async(lambda: admin.topic_route(mq_topic), NoRoute)
            assert len((await admin.topic_route(mq_topic)).publish_queues) == 3
    assert [message.body for message in await drain(mq_broker, mq_topic, 1)] == [b"first"]


async def until_async(attempt: Callable[[], object], error: type[Exception], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await attempt()  # type: ignore[misc]
        except error:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        else:
            return


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message.of("", b"x"), InvalidMessage),
        (Message.of("a b", b"x"), InvalidMessage),
        (Message.of("T" * 128, b"x"), InvalidMessage),
        (Message.of("SCHEDULE_TOPIC_XXXX", b"x"), InvalidMessage),
        (Message.of("T", b""), InvalidMessage),
        (Message.of("T", b"x" * (4 * 1024 * 1024 + 1)), MessageTooLarge),
        (Message.of("T", b"x", properties={"a": ""}), InvalidMessage),
        (Message.of("T", b"x", properties={"": "a"}), InvalidMessage),
        (Message.of("T", b"x", properties={"a\x01": "b"}), InvalidMessage),
        (Message.of("T", b"x", properties={"a": "b" * 40_000}), MessageTooLarge),
        (Message.of("T", b"x", properties={"TRAN_MSG": "true"}), InvalidMessage),
    ],
)
async def test_what_no_broker_would_take_is_refused_at_once(
    mq_broker: Broker, message: Message, error: type[Exception]
) -> None:
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        with pytest.raises(error):
            await producer.send(message)


async def test_bad_batches_are_refused(mq_broker: Broker) -> None:
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        for messages in (
            [],
            [Message.of("T", b"x"), Message.of("U", b"x")],
            [Message.of("T", b"x"), Message.of("T", b"x", properties={"WAIT": "false"})],
            [Message.of("%RETRY%g", b"x")],
            [Message.of("T", b"x"), Message.of("T", b"")],
        ):
            with pytest.raises(InvalidMessage):
                await producer.send_batch(messages)
        with pytest.raises(MessageTooLarge):
            await producer.send_batch([Message.of("T", b"x" * 1_000_000)] * 5)


async def test_no_route_when_brokers_create_no_topics() -> None:
    with Broker(settings={"autoCreateTopicEnable": "false"}) as broker:
        async with Producer(broker.namesrv, group="pg") as producer:
            with pytest.raises(NoRoute) as caught:
                await producer.send(Message.of("Nowhere", b"x"))
    assert caught.value.topic == "Nowhere"


async def test_a_dead_name_server_is_passed_over(
    mq_broker: Broker, mq_topic: str, unused_address: str
) -> None:
    await create(mq_broker, mq_topic)
    for namesrv in (f"{unused_address};{mq_broker.namesrv}", [mq_broker.namesrv, unused_address]):
        async with Producer(namesrv, group="pg") as producer:
            assert (await producer.send(Message.of(mq_topic, "x"))).status is SendStatus.SEND_OK


async def test_without_any_name_server_the_error_names_it(unused_address: str) -> None:
    async with Producer(unused_address, group="pg") as producer:
        with pytest.raises(ConnectionLost) as caught:
            await producer.send(Message.of("T", b"x"))
    assert caught.value.address == unused_address
    consumer = PushConsumer(unused_address, group="g", listener=Seen())
    consumer.subscribe("T")
    with pytest.raises(ConnectionLost):
        await consumer.start()


async def test_a_stopped_producer_says_so(mq_broker: Broker) -> None:
    producer = Producer(mq_broker.namesrv, group="pg")
    await producer.start()
    await producer.stop()
    await producer.stop()
    with pytest.raises(ClientError, match="not started"):
        await producer.send(Message.of("T", b"x"))


async def test_namesrv_comes_from_the_environment(
    mq_broker: Broker, mq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", mq_broker.namesrv)
    async with AdminClient() as admin:
        assert await admin.cluster_info()
    monkeypatch.setenv("NAMESRV_ADDR", "")
    with pytest.raises(ConfigError) as caught:
        await AdminClient().start()
    assert caught.value.key == "namesrv"


@pytest.fixture
def unused_address() -> str:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


async def test_more_than_the_limit_waits_for_room(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    async with Producer(mq_broker.namesrv, group="pg", max_in_flight=4) as producer:
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            future = await producer.send_async(Message.of(mq_topic, str(number)))
            most = max(most, producer._window.count)
            await future

        await asyncio.gather(*(one(number) for number in range(200)))
    assert 1 < most <= 4
    got = await drain(mq_broker, mq_topic, 200)
    assert sorted(int(message.body) for message in got) == list(range(200))


async def test_stop_waits_for_what_is_in_flight(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    producer = Producer(mq_broker.namesrv, group="pg")
    await producer.start()
    futures = [await producer.send_async(Message.of(mq_topic, str(n))) for n in range(100)]
    await producer.stop()
    assert all(future.done() and future.result().status is SendStatus.SEND_OK for future in futures)


async def test_a_lost_broker_costs_a_retry_on_the_other_not_a_message() -> None:
    with Cluster(2) as cluster:
        await create(cluster, "Two", 2)
        async with Producer(cluster.namesrv, group="pg") as producer:
            assert len(await producer.queues("Two")) == 4
            await producer.send(Message.of("Two", "warm"))
            await producer.send(Message.of("Two", "warm"))
            dead = cluster.apps[0]
            await asyncio.to_thread(cluster.run, dead.stop())
            results = [await producer.send(Message.of("Two", str(n))) for n in range(20)]
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            assert len({result.queue.broker_name for result in results}) == 1


async def test_a_silent_server_times_out_and_a_closing_one_is_lost() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4_096):
            continue
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with AdminClient(address, timeout_ms=100) as admin:
        with pytest.raises(RequestTimeout) as late:
            await admin.cluster_info()
        assert (late.value.address, late.value.timeout_ms) == (address, 100)
    silent.close()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    closing = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{closing.sockets[0].getsockname()[1]}"
    async with AdminClient(address) as admin:
        with pytest.raises(ConnectionLost) as lost:
            await admin.cluster_info()
        assert lost.value.address == address
    closing.close()


async def test_garbage_from_a_server_closes_the_connection() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\xff\xff\xff\xffgarbage")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with AdminClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as admin:
        with pytest.raises(ConnectionLost):
            await admin.cluster_info()
    server.close()


# --- push ---------------------------------------------------------------------------------------------


async def test_ten_thousand_messages_arrive_once_and_in_order_of_their_queue(
    mq_broker: Broker, mq_topic: str
) -> None:
    await create(mq_broker, mq_topic)
    sent = await send_numbers(mq_broker, mq_topic, range(10_000))
    assert sum(len(numbers) for numbers in sent.values()) == 10_000
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="once", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(seen.messages) >= 10_000, "10,000 messages")
        await asyncio.sleep(0.05)
        assert by_queue(seen.messages) == sent
        assert {q: n for q, n in consumer.progress().items() if q.topic == mq_topic} == {
            queue: len(numbers) for queue, numbers in sent.items()
        }
    async with AdminClient(mq_broker.namesrv) as admin:
        assert await admin.group_lag("once", mq_topic) == 0
        assert set((await admin.group_offsets("once")).keys()) >= set(sent)


async def test_a_thread_listener_gets_everything_once(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    sent = await send_numbers(mq_broker, mq_topic, range(3_000))
    seen: list[MessageExt] = []
    threads = set()

    def listen(messages: list[MessageExt]) -> ConsumeStatus:
        threads.add(threading.current_thread())
        assert len({message.queue for message in messages}) == 1
        assert len(messages) <= 7
        seen.extend(messages)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        mq_broker.namesrv, group="th", batch_listener=listen, batch_size=7, concurrency=4, consume_from=FIRST
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(seen) >= 3_000, "3,000 messages")
    assert {queue: sorted(numbers) for queue, numbers in by_queue(seen).items()} == {
        queue: sorted(numbers) for queue, numbers in sent.items()
    }
    assert threading.main_thread() not in threads
    assert len(threads) <= 4
    assert not any(thread.is_alive() for thread in threads)


async def test_a_restarted_consumer_continues_where_it_was(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    bodies: list[bytes] = []
    for start in (0, 500, 1_000):
        await send_numbers(mq_broker, mq_topic, range(start, start + 500))
        seen = Seen()
        consumer = PushConsumer(mq_broker.namesrv, group="again", listener=seen, consume_from=FIRST)
        consumer.subscribe(mq_topic)
        async with consumer:
            await eventually_async(lambda seen=seen: len(seen.messages) >= 500, "500 messages")  # type: ignore[misc]
        bodies += seen.bodies
    assert sorted(int(body) for body in bodies) == list(range(1_500))


async def test_stopping_in_the_middle_loses_nothing(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 2)
    await send_numbers(mq_broker, mq_topic, range(200))
    first, second = Seen(), Seen()

    async def slow(message: MessageExt) -> None:
        await asyncio.sleep(0.005)
        await first(message)

    consumer = PushConsumer(
        mq_broker.namesrv, group="middle", listener=slow, concurrency=3, consume_from=FIRST
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(first.messages) >= 60, "60 messages")
    assert len(first.messages) < 200
    consumer = PushConsumer(mq_broker.namesrv, group="middle", listener=second, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(
            lambda: {*first.bodies, *second.bodies} == {b"%d" % n for n in range(200)}, "all"
        )
    # At most what was running when the first one stopped may have been committed late.
    assert len(first.messages) + len(second.messages) <= 200 + 3


async def test_two_consumers_share_and_the_survivor_takes_over(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 4)
    seen: list[Seen] = [Seen(), Seen()]
    consumers = [
        PushConsumer(mq_broker.namesrv, group="pair", listener=listener, consume_from=FIRST)
        for listener in seen
    ]
    for consumer in consumers:
        consumer.subscribe(mq_topic)
        await consumer.start()

    def shares() -> list[int]:
        return [sum(q.topic == mq_topic for q in consumer.assignment()) for consumer in consumers]

    await eventually_async(lambda: shares() == [2, 2], "two queues each")
    assert not set(consumers[0].assignment()) & set(consumers[1].assignment())
    sent = await send_numbers(mq_broker, mq_topic, range(1_000))
    await eventually_async(lambda: sum(len(s.messages) for s in seen) >= 1_000, "1,000 messages")
    assert by_queue(seen[0].messages) | by_queue(seen[1].messages) == sent
    assert sum(len(s.messages) for s in seen) == 1_000
    await consumers[0].stop()
    await eventually_async(lambda: shares() == [0, 4], "all queues at the survivor")
    await send_numbers(mq_broker, mq_topic, range(1_000, 1_400))
    await eventually_async(lambda: len(seen[1].messages) + len(seen[0].messages) >= 1_400, "the rest")
    await consumers[1].stop()
    assert sorted(int(body) for s in seen for body in s.bodies) == list(range(1_400))


async def test_all_members_use_the_given_allocation(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 4)
    consumers = [
        PushConsumer(mq_broker.namesrv, group="circle", listener=Seen(), allocation=AveragelyByCircle())
        for _ in range(2)
    ]
    for consumer in consumers:
        consumer.subscribe(mq_topic)
        await consumer.start()

    def shares() -> list[list[int]]:
        return sorted(
            [q.queue_id for q in consumer.assignment() if q.topic == mq_topic] for consumer in consumers
        )

    await eventually_async(lambda: shares() == [[0, 2], [1, 3]], "every second queue each")
    for consumer in consumers:
        await consumer.stop()


class FailsAtFirst(AveragelyByCircle):
    calls = 0

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        self.calls += 1
        if self.calls <= 2:
            raise RuntimeError("a strategy of the program's own")
        return super().__call__(client_id, queues, clients)


async def test_a_faulty_allocation_is_asked_again(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 2)
    allocation = FailsAtFirst()
    consumer = PushConsumer(mq_broker.namesrv, group="faulty", listener=Seen(), allocation=allocation)
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(
            lambda: len([q for q in consumer.assignment() if q.topic == mq_topic]) == 2, "both queues"
        )
    assert allocation.calls > 2


async def test_only_the_subscribed_tags_arrive(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 2)
    # "Aa" and "BB" have one hash in Java: the broker cannot tell them apart, the client must.
    tags = ["Aa", "BB", "other", None] * 25
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        for number, tag in enumerate(tags):
            await producer.send(Message.of(mq_topic, str(number), tags=tag))
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="tags", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic, "Aa || other")
    async with consumer:
        await eventually_async(lambda: len(seen.messages) >= 50, "50 messages")
        async with Producer(mq_broker.namesrv, group="pg") as producer:
            await producer.send(Message.of(mq_topic, "no", tags="BB"))
            await producer.send(Message.of(mq_topic, "yes", tags="other"))
        await eventually_async(lambda: b"yes" in seen.bodies, "the last one")
        await eventually_async(
            lambda: sum(n for q, n in consumer.progress().items() if q.topic == mq_topic) == 102, "end"
        )
    assert sorted(seen.bodies) == sorted(
        [b"%d" % n for n, t in enumerate(tags) if t in ("Aa", "other")] + [b"yes"]
    )
    async with AdminClient(mq_broker.namesrv) as admin:
        assert await admin.group_lag("tags", mq_topic) == 0


FLIGHTS = [
    {"carrier": carrier, "delay": str(delay), **({"note": "late"} if delay > 60 else {})}
    for delay in range(-10, 90, 5)
    for carrier in ("AA", "UA", "Käfer")
]
SQL = "delay BETWEEN 0 AND 70 AND carrier IN ('AA', 'Käfer') AND (note IS NULL OR delay > 65)"
WANTED = sorted(
    b"%d" % number
    for number, flight in enumerate(FLIGHTS)
    if 0 <= int(flight["delay"]) <= 70
    and flight["carrier"] != "UA"
    and ("note" not in flight or int(flight["delay"]) > 65)
)


async def send_flights(broker: Cluster, topic: str) -> None:
    await create(broker, topic, 2)
    async with Producer(broker.namesrv, group="pg") as producer:
        for number, flight in enumerate(FLIGHTS):
            await producer.send(Message.of(topic, str(number), properties=flight))


async def test_only_what_the_filter_takes_arrives(mq_broker: Broker, mq_topic: str) -> None:
    await send_flights(mq_broker, mq_topic)
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="sql", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic, sql=SQL)
    async with consumer:
        await eventually_async(lambda: len(seen.messages) >= len(WANTED), "the old ones")
        async with Producer(mq_broker.namesrv, group="pg") as producer:  # while the pulls are parked
            await producer.send(Message.of(mq_topic, "no", properties={"carrier": "UA", "delay": "1"}))
            await producer.send(Message.of(mq_topic, "no", properties={"carrier": "AA", "delay": "soon"}))
            await producer.send(Message.of(mq_topic, "yes", properties={"carrier": "AA", "delay": "1"}))
        await eventually_async(lambda: b"yes" in seen.bodies, "the new one")
    assert sorted(seen.bodies) == sorted([*WANTED, b"yes"])


async def test_a_filter_is_replaced_while_it_runs(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="sql2", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic, sql="colour = 'red'")
    async with consumer, Producer(mq_broker.namesrv, group="pg") as producer:
        await producer.send(Message.of(mq_topic, "red", properties={"colour": "red"}))
        await eventually_async(lambda: seen.bodies == [b"red"], "red")
        consumer.subscribe(mq_topic, sql="colour = 'blue'")
        # The pull that waits keeps its filter, so red may come once more.
        number = 0
        while b"blue" not in seen.bodies:
            number += 1
            assert number < 500
            await producer.send(Message.of(mq_topic, "blue", properties={"colour": "blue"}))
            await producer.send(Message.of(mq_topic, "red", properties={"colour": "red"}))
            await asyncio.sleep(0.02)
        reds = seen.bodies.count(b"red")
        await producer.send(Message.of(mq_topic, "red", properties={"colour": "red"}))
        await producer.send(Message.of(mq_topic, "end", properties={"colour": "blue"}))
        await eventually_async(lambda: b"end" in seen.bodies, "the end")
        assert seen.bodies.count(b"red") == reds


async def test_a_lite_pull_consumer_filters_too(mq_broker: Broker, mq_topic: str) -> None:
    await send_flights(mq_broker, mq_topic)
    consumer = LitePullConsumer(mq_broker.namesrv, group="sql-lite", consume_from=FIRST)
    consumer.subscribe(mq_topic, sql=SQL)
    bodies: list[bytes] = []
    async with consumer:
        deadline = time.monotonic() + 15
        while len(bodies) < len(WANTED) and time.monotonic() < deadline:
            bodies += [message.body for message in await consumer.poll(200)]
        bodies += [message.body for message in await consumer.poll(100)]
    assert sorted(bodies) == WANTED


def test_the_blocking_consumers_take_a_filter(mq_broker: Broker, mq_topic: str) -> None:
    with mqspark.Producer(mq_broker.namesrv, group="pg") as producer:
        for number in range(4):
            producer.send(Message.of(mq_topic, str(number), properties={"n": str(number)}))
    with mqspark.LitePullConsumer(mq_broker.namesrv, group="sql-sync", consume_from=FIRST) as consumer:
        consumer.subscribe(mq_topic, sql="n > 1")
        bodies: list[bytes] = []
        deadline = time.monotonic() + 15
        while len(bodies) < 2 and time.monotonic() < deadline:
            bodies += [message.body for message in consumer.poll(200)]
    assert sorted(bodies) == [b"2", b"3"]


async def test_a_filter_that_does_not_compile_ends_the_start(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    consumer = PushConsumer(mq_broker.namesrv, group="sql3", listener=print)
    consumer.subscribe(mq_topic, sql="a != 5")
    with pytest.raises(BrokerError, match="Invalid MessageSelector") as refused:
        await consumer.start()
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    consumer.subscribe(mq_topic, sql="a <> 5")
    await consumer.start()
    await consumer.stop()


@pytest.mark.parametrize(("tags", "sql"), [("A", "a > 1"), ("*", ""), ("*", "  ")])
def test_a_subscription_by_tags_and_by_filter(tags: str, sql: str) -> None:
    consumer = PushConsumer("127.0.0.1:1", group="g", listener=print)
    with pytest.raises(ConfigError) as refused:
        consumer.subscribe("T", tags, sql=sql)
    assert refused.value.key == "sql"


@pytest.fixture
def no_broker_takes_a_message_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*arguments: object) -> None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "not now")

    monkeypatch.setattr(QueueCalls, "send_back", refuse)


@pytest.mark.usefixtures("no_broker_takes_a_message_back")
async def test_a_failed_message_comes_again_and_holds_the_commit(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(10))
    tries: Counter[bytes] = Counter()
    held = asyncio.Event()

    async def listen(message: MessageExt) -> ConsumeStatus:
        tries[message.body] += 1
        assert message.reconsume_times == tries[message.body] - 1
        if message.body == b"3" and tries[b"3"] == 1:
            raise ValueError("this time not")
        if message.body == b"4" and tries[b"4"] == 1:
            raise asyncio.CancelledError
        if message.body == b"6" and not held.is_set():
            return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    queue = MessageQueue(mq_topic, "dev", 0)
    consumer = PushConsumer(
        mq_broker.namesrv, group="fail", listener=listen, consume_from=FIRST, retry_delay_ms=50
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: tries[b"6"] >= 3 and tries[b"9"] == 1, "three tries of 6")
        assert next(n for q, n in consumer.progress().items() if q.topic == mq_topic) == 6
        held.set()
        await eventually_async(
            lambda: consumer.progress().get(await_queue(consumer, mq_topic)) == 10, "everything"
        )
    assert tries[b"3"] == tries[b"4"] == 2
    assert all(count == 1 for body, count in tries.items() if body not in (b"3", b"4", b"6"))
    assert queue.queue_id == 0


def await_queue(consumer: PushConsumer, topic: str) -> MessageQueue:
    return next(queue for queue in consumer.assignment() if queue.topic == topic)


@pytest.mark.usefixtures("no_broker_takes_a_message_back")
async def test_a_message_that_never_succeeds_is_still_there_after_a_restart(
    mq_broker: Broker, mq_topic: str
) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(5))
    seen = Seen()

    def refuse(message: MessageExt) -> ConsumeStatus | None:
        return ConsumeStatus.RECONSUME_LATER if message.body == b"2" else None

    for listener, done in ((refuse, lambda: True), (seen, lambda: len(seen.messages) == 3)):
        consumer = PushConsumer(mq_broker.namesrv, group="keep", listener=listener, consume_from=FIRST)
        consumer.subscribe(mq_topic)
        async with consumer:
            await eventually_async(lambda consumer=consumer: any(consumer.progress().values()), "progress")  # type: ignore[misc]
            await eventually_async(done, "redelivery")
    assert seen.bodies == [b"2", b"3", b"4"]


async def test_flow_control_bounds_what_is_cached(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(1_000))
    gate = asyncio.Event()
    seen = Seen()

    async def listen(message: MessageExt) -> None:
        await gate.wait()
        await seen(message)

    consumer = PushConsumer(
        mq_broker.namesrv,
        group="flow",
        listener=listen,
        consume_from=FIRST,
        concurrency=2,
        pull_batch_size=16,
        max_cached_messages=100,
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        reader = consumer._readers
        await eventually_async(
            lambda: any(r.process.message_count > 100 for r in reader.values()), "a full queue"
        )
        await asyncio.sleep(0.2)
        assert max(r.process.message_count for r in reader.values()) <= 116
        gate.set()
        await eventually_async(lambda: len(seen.messages) == 1_000, "everything")
    assert sorted(int(body) for body in seen.bodies) == list(range(1_000))


async def test_suspended_consumers_pull_no_more(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    seen = Seen()
    consumer = PushConsumer(
        mq_broker.namesrv, group="susp", listener=seen, consume_from=FIRST, suspend_ms=100
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: any(q.topic == mq_topic for q in consumer.assignment()), "assignment")
        consumer.suspend()
        await asyncio.sleep(0.3)  # the pull that was parked at the broker comes back empty
        await send_numbers(mq_broker, mq_topic, range(3))
        await asyncio.sleep(0.2)
        assert seen.messages == []
        consumer.resume()
        await eventually_async(lambda: len(seen.messages) == 3, "the messages")


async def test_a_parked_pull_is_woken_by_a_message(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="woken", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    async with consumer, Producer(mq_broker.namesrv, group="pg") as producer:
        await eventually_async(lambda: any(q.topic == mq_topic for q in consumer.assignment()), "assignment")
        await producer.send(Message.of(mq_topic, "warm"))
        await eventually_async(lambda: len(seen.messages) == 1, "the first")
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await producer.send(Message.of(mq_topic, "hot"))
        await eventually_async(lambda: len(seen.messages) == 2, "the second")
        assert time.monotonic() - began < 2, "it waited for the end of the long poll"


async def test_subscriptions_change_while_running(mq_broker: Broker, mq_topic: str) -> None:
    other = f"{mq_topic}-other"
    await create(mq_broker, mq_topic, 2)
    await create(mq_broker, other, 2)
    await send_numbers(mq_broker, mq_topic, range(10))
    await send_numbers(mq_broker, other, range(100, 110))
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="change", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(seen.messages) == 10, "the first topic")
        consumer.subscribe(other)
        await eventually_async(lambda: len(seen.messages) == 20, "the second topic")
        consumer.unsubscribe(mq_topic)
        await eventually_async(
            lambda: all(q.topic != mq_topic for q in consumer.assignment()), "no more of the first"
        )
    assert sorted(int(body) for body in seen.bodies) == [*range(10), *range(100, 110)]


async def test_consume_from_last_and_from_a_time(mq_topic: str) -> None:
    # A young queue is read from 0 whatever the group asked for, unless the broker has forgotten offset 0;
    # so the decision is tested through a topic whose group is told "nothing stored".
    with Broker() as broker:
        await create(broker, mq_topic, 1)
        await send_numbers(broker, mq_topic, range(5))
        await asyncio.sleep(0.02)
        between_ms = int(time.time() * 1000)
        await asyncio.sleep(0.02)
        await send_numbers(broker, mq_topic, range(5, 10))
        for where, expected in (
            (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 10),
            (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0),
            (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 5),
        ):
            consumer = PushConsumer(
                broker.namesrv,
                group=f"from-{expected}",
                listener=Seen(),
                consume_from=where,
                consume_timestamp_ms=between_ms,
            )
            consumer.subscribe(mq_topic)
            async with consumer:
                group = consumer._group
                group.offsets = NothingStored()
                assert await group.start_offset(MessageQueue(mq_topic, "dev", 0)) == expected


class NothingStored:
    async def read(self, queue: MessageQueue) -> int | None:
        return None

    async def write(self, offsets: object) -> None:
        return None

    write_at_last = write


async def test_broadcasting_reads_everything_everywhere_and_keeps_offsets_here(
    mq_broker: Broker, mq_topic: str, tmp_path: Path
) -> None:
    await create(mq_broker, mq_topic, 2)
    sent = await send_numbers(mq_broker, mq_topic, range(100))

    def consumer(name: str, seen: Seen) -> PushConsumer:
        made = PushConsumer(
            mq_broker.namesrv,
            group="bc",
            listener=seen,
            message_model=MessageModel.BROADCASTING,
            consume_from=FIRST,
            local_offsets_directory=tmp_path,
            options=ClientOptions(instance_name=name, client_ip="10.0.0.1"),
        )
        made.subscribe(mq_topic)
        return made

    one, two, again = Seen(), Seen(), Seen()
    async with consumer("one", one), consumer("two", two):
        await eventually_async(lambda: len(one.messages) == len(two.messages) == 100, "100 messages each")
    assert by_queue(one.messages) == by_queue(two.messages) == sent
    path = tmp_path / "10.0.0.1@one" / "bc" / "offsets.json"
    table = fastjson.loads(path.read_bytes())["offsetTable"]
    assert {queue_of(key): offset for key, offset in table.items()} == {
        queue: len(numbers) for queue, numbers in sent.items()
    }
    async with consumer("one", again):
        await send_numbers(mq_broker, mq_topic, range(100, 110))
        await eventually_async(lambda: len(again.messages) == 10, "only the new ones")
    assert sorted(int(body) for body in again.bodies) == list(range(100, 110))


@pytest.mark.parametrize("same_port", [True, False], ids=["same port", "another port"])
async def test_a_consumer_survives_its_broker_restarting(tmp_path: Path, same_port: bool) -> None:
    seen = Seen()
    with Broker(store=tmp_path) as broker:
        namesrv_port = int(broker.namesrv.rpartition(":")[2])
        broker_port = int(broker.address.rpartition(":")[2])
        await create(broker, "Restart", 2)
        await send_numbers(broker, "Restart", range(50))
        consumer = PushConsumer(broker.namesrv, group="surv", listener=seen, consume_from=FIRST)
        consumer.subscribe("Restart")
        await consumer.start()
        await eventually_async(lambda: len(seen.messages) == 50, "before")
        await consumer._persist()
    if not same_port:
        broker_port = 0
    with Broker(store=tmp_path, namesrv_port=namesrv_port, broker_port=broker_port) as broker:
        await send_numbers(broker, "Restart", range(50, 100))
        await eventually_async(lambda: len(set(seen.bodies)) == 100, "after")
        await consumer.stop()
    assert sorted({int(body) for body in seen.bodies}) == list(range(100))


async def test_an_offset_out_of_range_moves_to_where_the_broker_says(
    mq_broker: Broker, mq_topic: str
) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(5))
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="moved", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    async with AdminClient(mq_broker.namesrv) as admin:
        await admin.create_group("moved")
        (queue,) = (await admin.topic_route(mq_topic)).subscribe_queues
        await admin.update_offset("moved", queue, 999)
        async with consumer:
            await eventually_async(lambda: consumer.progress().get(queue) == 5, "the end of the queue")
            await send_numbers(mq_broker, mq_topic, range(5, 8))
            await eventually_async(lambda: len(seen.messages) == 3, "new messages")
        assert await admin.query_offset("moved", queue) == 8


async def test_the_broker_can_look_into_a_consumer(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(3))
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="look", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic, "*")
    async with consumer, AdminClient(mq_broker.namesrv) as admin:
        await eventually_async(lambda: len(seen.messages) == 3, "messages")
        members = await admin.group_members("look")
        assert [member.client_id for member in members.connection_set] == [consumer.client_id]
        assert members.connection_set[0].language == "PYTHON"
        assert set(members.subscription_table) == {mq_topic, "%RETRY%look"}
        code, body, _ = await consumer.answer(
            Command(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                ext={"consumerGroup": "look", "clientId": consumer.client_id, "jstackEnable": "true"},
            )
        )
        assert code == ResponseCode.SUCCESS
        info = decode_body(ConsumerRunningInfo, body)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
        assert {queue_of(key).topic for key in info.mq_table} == {mq_topic, "%RETRY%look"}
        assert info.jstack


# --- lite pull ----------------------------------------------------------------------------------------


async def test_lite_pull_iterates_everything_once(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    sent = await send_numbers(mq_broker, mq_topic, range(2_000))
    got: list[MessageExt] = []
    async with LitePullConsumer(mq_broker.namesrv, group="iter", consume_from=FIRST) as consumer:
        consumer.subscribe(mq_topic)
        async for message in consumer:
            got.append(message)
            if len(got) == 2_000:
                break
    assert by_queue(got) == sent
    async with AdminClient(mq_broker.namesrv) as admin:
        assert await admin.group_lag("iter", mq_topic) == 0


async def test_what_was_being_worked_on_when_it_failed_is_not_committed(
    mq_broker: Broker, mq_topic: str
) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(10))

    async def work() -> None:
        async with LitePullConsumer(mq_broker.namesrv, group="exc", consume_from=FIRST) as consumer:
            consumer.subscribe(mq_topic)
            async for message in consumer:
                if message.body == b"7":
                    raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        await work()
    async with LitePullConsumer(mq_broker.namesrv, group="exc", consume_from=FIRST) as consumer:
        consumer.subscribe(mq_topic)
        assert [message.body for message in await consumer.poll()] == [b"7", b"8", b"9"]


async def test_commit_position_and_committed(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(20))
    async with LitePullConsumer(
        mq_broker.namesrv, group="com", consume_from=FIRST, auto_commit=False, pull_batch_size=8
    ) as consumer:
        (queue,) = await consumer.fetch_message_queues(mq_topic)
        await consumer.assign([queue])
        assert consumer.assignment() == [queue]
        assert [len(await consumer.poll()) for _ in range(2)] == [8, 8]
        assert consumer.position(queue) == 16
        await consumer.commit()
        assert await consumer.committed(queue) == 16
        await consumer.commit({queue: 3})
        assert await consumer.committed(queue) == 3
        assert await consumer.poll()
    async with LitePullConsumer(mq_broker.namesrv, group="com", consume_from=FIRST) as consumer:
        await consumer.assign([queue])
        assert (await consumer.poll())[0].body == b"3"


async def test_auto_commit_counts_what_the_next_poll_confirms(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(20))
    async with LitePullConsumer(
        mq_broker.namesrv, group="auto", consume_from=FIRST, auto_commit_interval_ms=20, pull_batch_size=10
    ) as consumer:
        (queue,) = await consumer.fetch_message_queues(mq_topic)
        await consumer.assign([queue])
        assert len(await consumer.poll()) == 10
        await asyncio.sleep(0.1)
        assert await consumer.committed(queue) == 0
        assert len(await consumer.poll()) == 10
        await asyncio.sleep(0.1)
        assert await consumer.committed(queue) == 10


async def test_seek(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(50))
    await asyncio.sleep(0.02)
    between_ms = int(time.time() * 1000)
    await asyncio.sleep(0.02)
    await send_numbers(mq_broker, mq_topic, range(50, 60))
    async with LitePullConsumer(
        mq_broker.namesrv, group="seek", consume_from=FIRST, auto_commit=False
    ) as consumer:
        (queue,) = await consumer.fetch_message_queues(mq_topic)
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(queue, 1)
        await consumer.assign([queue])
        assert (await consumer.poll())[0].body == b"0"
        await consumer.seek(queue, 42)
        assert (await consumer.poll())[0].body == b"42"
        await consumer.seek_to_begin(queue)
        assert (await consumer.poll())[0].body == b"0"
        await consumer.seek_to_timestamp(queue, between_ms)
        assert (await consumer.poll())[0].body == b"50"
        assert await consumer.offset_for_timestamp(queue, between_ms) == 50
        await consumer.seek_to_end(queue)
        assert await consumer.poll(100) == []
        for offset in (-1, 61):
            with pytest.raises(ClientError, match="not within 0 and 60"):
                await consumer.seek(queue, offset)
        await consumer.seek(queue, 58)
        assert [message.body async for message in take(consumer, 2)] == [b"58", b"59"]


async def take(consumer: LitePullConsumer, count: int):  # type: ignore[no-untyped-def]
    async for message in consumer:
        yield message
        count -= 1
        if not count:
            return


async def test_seeking_within_an_iteration_drops_the_rest_of_the_batch(
    mq_broker: Broker, mq_topic: str
) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(20))
    got = []
    async with LitePullConsumer(mq_broker.namesrv, group="jump", consume_from=FIRST) as consumer:
        (queue,) = await consumer.fetch_message_queues(mq_topic)
        await consumer.assign([queue])
        async for message in consumer:
            got.append(int(message.body))
            if message.body == b"3":
                await consumer.seek(queue, 17)
            if message.body == b"19":
                break
    assert got == [0, 1, 2, 3, 17, 18, 19]


async def test_pause_and_resume(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 2)
    sent = await send_numbers(mq_broker, mq_topic, range(20))
    async with LitePullConsumer(mq_broker.namesrv, group="pause", consume_from=FIRST) as consumer:
        first, second = await consumer.fetch_message_queues(mq_topic)
        consumer.pause(first)
        await consumer.assign([first, second])
        assert by_queue(await consumer.poll()) == {second: sent[second]}
        assert await consumer.poll(200) == []
        consumer.resume(first)
        assert by_queue(await consumer.poll()) == {first: sent[first]}


async def test_lite_pull_tags_and_bounded_prefetch(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    async with Producer(mq_broker.namesrv, group="pg") as producer:
        for number in range(300):
            await producer.send_async(Message.of(mq_topic, str(number), tags="odd" if number % 2 else "even"))
    got: list[int] = []
    async with LitePullConsumer(
        mq_broker.namesrv, group="ltags", consume_from=FIRST, max_cached_messages=20, pull_batch_size=10
    ) as consumer:
        consumer.subscribe(mq_topic, ["odd"])
        await eventually_async(
            lambda: any(a.cached >= 20 for a in consumer._assigned.values()), "a full cache"
        )
        await asyncio.sleep(0.05)
        assert max(a.cached for a in consumer._assigned.values()) < 30
        while len(got) < 150:
            got += [int(message.body) for message in await consumer.poll()]
        await consumer.commit()
    assert got == list(range(1, 300, 2))


async def test_two_lite_pull_consumers_share(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 4)
    async with (
        LitePullConsumer(mq_broker.namesrv, group="share", consume_from=FIRST) as one,
        LitePullConsumer(mq_broker.namesrv, group="share", consume_from=FIRST) as two,
    ):
        one.subscribe(mq_topic)
        two.subscribe(mq_topic)
        await eventually_async(lambda: len(one.assignment()) == len(two.assignment()) == 2, "two queues each")
        assert not set(one.assignment()) & set(two.assignment())


async def test_subscribe_and_assign_exclude_each_other(mq_broker: Broker) -> None:
    consumer = LitePullConsumer(mq_broker.namesrv, group="g")
    consumer.subscribe("T")
    with pytest.raises(ConfigError):
        await consumer.assign([MessageQueue("T", "b", 0)])
    consumer = LitePullConsumer(mq_broker.namesrv, group="g")
    await consumer.assign([MessageQueue("T", "b", 0)])
    with pytest.raises(ConfigError):
        consumer.subscribe("T")
    with pytest.raises(ConfigError):
        await consumer.assign([])
    with pytest.raises(ClientError, match="not started"):
        await consumer.poll()


# --- admin --------------------------------------------------------------------------------------------


async def test_topics(mq_broker: Broker, mq_topic: str) -> None:
    async with AdminClient(mq_broker.namesrv) as admin:
        with pytest.raises(NoRoute):
            await admin.topic_route(mq_topic)
        route = await admin.create_topic(mq_topic, queues=3)
        assert [queue.queue_id for queue in route.publish_queues] == [0, 1, 2]
        assert (await admin.create_topic(mq_topic, queues=5)).publish_queues[-1].queue_id == 4
        assert mq_topic in await admin.topic_list()
        config = await admin.topic_config(mq_topic, mq_broker.address)
        assert (config.topic_name, config.read_queue_nums, config.perm) == (mq_topic, 5, 6)
        sent = await send_numbers(mq_broker, mq_topic, range(10))
        stats = await admin.topic_stats(mq_topic)
        assert {queue: offset.max_offset for queue, offset in stats.items()} == {
            queue: len(sent.get(queue, [])) for queue in route_queues(stats)
        }
        await admin.delete_topic(mq_topic)
        assert mq_topic not in await admin.topic_list()
        with pytest.raises(ConfigError):
            await admin.create_topic("TBW102")
        with pytest.raises(ConfigError, match="known: DefaultCluster"):
            await admin.create_topic(mq_topic, cluster="Elsewhere")


def route_queues(stats: Iterable[MessageQueue]) -> list[MessageQueue]:
    return list(stats)


async def test_cluster_brokers_and_groups(mq_broker: Broker, mq_topic: str) -> None:
    async with AdminClient(mq_broker.namesrv) as admin:
        info = await admin.cluster_info()
        (broker,) = info.broker_addr_table.values()
        assert broker.broker_addrs == {0: mq_broker.address}
        assert int((await admin.broker_runtime_info(mq_broker.address))["bootTimestamp"]) > 0
        assert "brokerName" in await admin.broker_config(mq_broker.address)
        await admin.create_topic(mq_topic, queues=2)
        await admin.create_group("made")
        first, second = (await admin.topic_route(mq_topic)).subscribe_queues
        assert await admin.query_offset("made", first) is None
        await send_numbers(mq_broker, mq_topic, range(10))
        await admin.update_offset("made", first, 2)
        offsets = await admin.group_offsets("made", mq_topic)
        assert (offsets[first].committed, offsets[first].lag, offsets[second].committed) == (2, 3, -1)
        assert await admin.group_lag("made", mq_topic) == 8
        with pytest.raises(BrokerError) as offline:
            await admin.group_members("made")
        assert offline.value.code == ResponseCode.CONSUMER_NOT_ONLINE
        await admin.delete_group("made")


# --- blocking -----------------------------------------------------------------------------------------


def test_blocking_client_does_it_all_and_leaves_nothing(mq_broker: Broker, mq_topic: str) -> None:
    before = set(threading.enumerate())
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        admin.create_topic(mq_topic, queues=2)
    with mqspark.Producer(mq_broker.namesrv, group="pg", max_in_flight=64) as producer:
        first = producer.send(Message.of(mq_topic, "0"))
        assert first.status is SendStatus.SEND_OK
        futures = [producer.send_async(Message.of(mq_topic, str(n))) for n in range(1, 500)]
        assert {future.result().status for future in futures} == {SendStatus.SEND_OK}
        producer.send_oneway(Message.of(mq_topic, "500"))
        producer.send_batch([Message.of(mq_topic, str(n)) for n in range(501, 600)])
        with pytest.raises(InvalidMessage):
            producer.send(Message.of(mq_topic, b""))
        assert len(producer.queues(mq_topic)) == 2
    seen: list[MessageExt] = []
    consumer = mqspark.PushConsumer(
        mq_broker.namesrv, group="bpush", listener=seen.append, consume_from=FIRST
    )
    consumer.subscribe(mq_topic)
    with consumer:
        deadline = time.monotonic() + 15
        while len(seen) < 600 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert consumer.assignment()
    assert sorted(int(message.body) for message in seen) == list(range(600))
    with mqspark.LitePullConsumer(mq_broker.namesrv, group="blite", consume_from=FIRST) as lite:
        lite.assign(lite.fetch_message_queues(mq_topic))
        got = []
        for message in lite:
            got.append(int(message.body))
            if len(got) == 600:
                break
        queue = lite.assignment()[0]
        lite.seek_to_begin(queue)
        assert lite.poll()
        lite.commit()
        assert lite.committed(queue) == lite.position(queue)
    assert sorted(got) == list(range(600))
    with pytest.raises(ClientError, match="not started"):
        producer.send(Message.of(mq_topic, "x"))
    assert LoopThread._current is None
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("mqspark")]


def test_many_threads_send_through_one_producer(mq_broker: Broker, mq_topic: str) -> None:
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        admin.create_topic(mq_topic)
    ids: list[str] = []
    with mqspark.Producer(mq_broker.namesrv, group="pg") as producer:

        def work() -> None:
            ids.extend(producer.send(Message.of(mq_topic, "x")).message_id for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(ids) == len(set(ids)) == 400
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        assert sum(offset.max_offset for offset in admin.topic_stats(mq_topic).values()) == 400


def test_importing_the_package_is_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys, mqspark; assert 'asyncio' not in sys.modules; mqspark.Producer; sys.modules['asyncio']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_channel_is_a_protocol_of_asyncio() -> None:
    assert issubclass(Channel, asyncio.Protocol)


def test_oneway_messages_of_a_blocking_producer_are_not_waited_for(
    mq_broker: Broker, mq_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        admin.create_topic(mq_topic, queues=2)
        with mqspark.Producer(mq_broker.namesrv, group="pg", max_in_flight=16) as producer:
            for number in range(500):
                producer.send_oneway(Message.of(mq_topic, str(number)))
            for wrong in (Message.of(mq_topic, b""), Message.of(mq_topic, "x", properties={"a": ""})):
                with pytest.raises(InvalidMessage):
                    producer.send_oneway(wrong)
            with pytest.raises(InvalidMessage):
                producer.send_oneway(Message.of("no topic", "x"))
        deadline = time.monotonic() + 30
        while sum(each.max_offset for each in admin.topic_stats(mq_topic).values()) < 500:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not caplog.records


def test_the_loop_of_a_blocking_client_may_not_wait_for_itself(mq_broker: Broker, mq_topic: str) -> None:
    errors: list[Exception] = []
    done = threading.Event()
    producer = mqspark.Producer(mq_broker.namesrv, group="pg")

    async def listen(message: MessageExt) -> None:
        for send in (producer.send, lambda each: producer.send_batch([each])):
            try:
                send(Message.of(mq_topic, "x"))
            except ClientError as error:
                errors.append(error)
        done.set()

    consumer = mqspark.PushConsumer(mq_broker.namesrv, group="bself", listener=listen, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    with producer:
        producer.send(Message.of(mq_topic, "x"))
        with consumer:
            assert done.wait(30)
    assert len(errors) == 2
