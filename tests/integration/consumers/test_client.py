"""Lite pull, admin and blocking clients against a real broker of ours; what arrives is compared with what was sent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable

import pytest

import mqspark
from mqspark.aio import AdminClient, LitePullConsumer, Message, MessageExt, MessageQueue, Producer, SendStatus
from mqspark.client.remoting.channel import Channel
from mqspark.errors import BrokerError, ClientError, ConfigError, InvalidMessage, NoRoute
from mqspark.protocol.codes import ResponseCode
from mqspark.testing import Broker
from tests.integration.client.client_kit import FIRST, by_queue, cached_by, create, send_numbers
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]


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
    consumer = LitePullConsumer(
        mq_broker.namesrv, group="ltags", consume_from=FIRST, max_cached_messages=20, pull_batch_size=10
    )
    async with consumer, AdminClient(mq_broker.namesrv) as admin:
        consumer.subscribe(mq_topic, ["odd"])
        counts = [0]
        while max(counts, default=0) < 20:
            await asyncio.sleep(0.05)
            counts = await cached_by(admin, "ltags")
        await asyncio.sleep(0.05)
        assert max(await cached_by(admin, "ltags")) < 30
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
    assert [record for record in caplog.records if record.name.startswith("mqspark.client")] == []


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
