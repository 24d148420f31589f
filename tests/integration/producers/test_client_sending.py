"""Producers against brokers: what is sent arrives, what cannot be sent is said at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import pytest

from mqspark.aio import (
    AdminClient,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendResult,
    SendStatus,
)
from mqspark.errors import (
    ClientError,
    ConfigError,
    ConnectionLost,
    InvalidMessage,
    MessageTooLarge,
    NoRoute,
    RequestTimeout,
)
from mqspark.testing import Broker, Cluster
from tests.integration.client.client_kit import FIRST, Seen, create

# --- sending ------------------------------------------------------------------------------------------


async def test_a_message_arrives_as_it_was_sent(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic, 1)
    message = Message.of(
        mq_topic,
        "körper ☃",
        tags="TagÄ",
        keys=["k1", "k2"],
        properties={"名": '值 "x"\\', "odd": "a\x01b"},
        flag=7,
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
    assert got.properties["odd"] == "a\x01b", "RocketMQ's clients send such values"
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
        futures: list[asyncio.Future[SendResult]] = []

        async def one(number: int) -> None:
            nonlocal most
            future = await producer.send_async(Message.of(mq_topic, str(number)))
            futures.append(future)
            most = max(most, sum(not each.done() for each in futures))
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
