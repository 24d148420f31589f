"""What becomes of messages that fail, take too long, or have to keep their order: push consumers on our broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from mqspark.aio import (
    AdminClient,
    ClientOptions,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumeStatus,
    Interceptor,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    RetryLater,
    SendContext,
    TransactionProducer,
    TransactionState,
)
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.testing import Broker, Cluster
from tests.integration.client.client_kit import cached
from tests.support.draws import some
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def create(cluster: Cluster, topic: str, queues: int = 1) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=queues)


async def send(cluster: Cluster, topic: str, numbers: range, queues: int = 1) -> None:
    """Each number to the queue of its remainder, in order."""
    async with Producer(cluster.namesrv, group="numbers", send_timeout_ms=30_000) as producer:
        places = await producer.queues(topic)
        for number in numbers:
            await producer.send(Message.of(topic, str(number)), queue=places[number % queues])


def own(consumer: PushConsumer, topic: str) -> list[MessageQueue]:
    return [queue for queue in consumer.assignment() if queue.topic == topic]


async def test_a_queue_of_batches_begins_at_0_before_its_first_message(
    mq_broker: Broker, mq_topic: str
) -> None:
    async with AdminClient(mq_broker.namesrv) as admin:
        await admin.create_topic(mq_topic, queues=1, attributes={"queue.type": "BatchCQ"})
    async with LitePullConsumer(mq_broker.namesrv, group=f"lite-{mq_topic}") as lite:
        (place,) = await lite.fetch_message_queues(mq_topic)
        await lite.assign([place])
        await lite.seek_to_begin(place)
        assert lite.position(place) == 0
        with closing(BlockingClient(mq_broker.namesrv)) as blocking:
            assert await asyncio.to_thread(blocking.min_offsets, mq_broker.address, [place]) == [0]
        await send(mq_broker, mq_topic, range(1))
        received: list[MessageExt] = []
        while not received:
            received = await lite.poll(30_000)
        assert [(got.queue_offset, got.body) for got in received] == [(0, b"0")]


async def test_a_queue_rests_between_pulls_that_found_messages(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    await send(mq_broker, mq_topic, range(4))
    arrived: list[float] = []
    loop = asyncio.get_running_loop()

    async def listen(message: MessageExt) -> None:
        arrived.append(loop.time())

    push = PushConsumer(
        mq_broker.namesrv, group="rests", listener=listen, consume_from=FIRST, pull_batch_size=1,
        pull_interval_ms=200,
    )  # fmt: skip
    push.subscribe(mq_topic)
    async with push:
        await eventually_async(lambda: len(arrived) == 4, "all messages")
    lite = LitePullConsumer(
        mq_broker.namesrv, group="rests-too", consume_from=FIRST, pull_batch_size=1, pull_interval_ms=200
    )
    lite.subscribe(mq_topic)
    began, got = loop.time(), 0
    async with lite:
        while got < 4:
            got += len(await lite.poll())
    assert arrived[-1] - arrived[0] > 3 * 0.19
    assert loop.time() - began > 3 * 0.19


async def test_a_failed_message_comes_back_from_the_broker(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    await send(mq_broker, mq_topic, range(8))
    seen: list[tuple[int, int]] = []

    async def listen(messages: list[MessageExt]) -> RetryLater | ConsumeStatus | None:
        seen.extend((int(message.body), message.reconsume_times) for message in messages)
        assert all(message.topic == mq_topic for message in messages)
        if messages[0].body == b"0":
            return RetryLater(delay_level=1, consumed=2)
        return None

    group = f"back-{mq_topic}"
    consumer = PushConsumer(
        mq_broker.namesrv, group=group, batch_listener=listen, batch_size=4, concurrency=1, consume_from=FIRST
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(seen) == 10, "eight messages and two of them again")
        await eventually_async(
            lambda: consumer.progress()[own(consumer, mq_topic)[0]] == 8, "progress past all"
        )
    assert seen[:8] == [(number, 0) for number in range(8)]
    assert sorted(seen[8:]) == [(2, 1), (3, 1)]


async def test_a_listener_that_takes_too_long_has_failed(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    await send(mq_broker, mq_topic, range(3))
    release = asyncio.Event()
    seen: Counter[bytes] = Counter()

    async def listen(message: MessageExt) -> None:
        seen[message.body] += 1
        if message.body == b"1":
            await release.wait()
            raise ValueError("too late to matter")

    group = f"slow-{mq_topic}"
    consumer = PushConsumer(
        mq_broker.namesrv, group=group, listener=listen, consume_from=FIRST, consume_timeout_ms=200
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(seen) == 3, "three messages")
        (queue,) = own(consumer, mq_topic)
        await eventually_async(lambda: consumer.progress()[queue] == 3, "the slow one is sent back")
        release.set()
        await asyncio.sleep(0)
    assert seen == Counter([b"0", b"1", b"2"])


async def test_in_order_a_failed_message_is_repeated_before_the_next(
    mq_broker: Broker, mq_topic: str
) -> None:
    await create(mq_broker, mq_topic)
    await send(mq_broker, mq_topic, range(6))
    seen: list[tuple[int, int]] = []

    def listen(message: MessageExt) -> object:
        seen.append((int(message.body), message.reconsume_times))
        if message.body == b"1" and message.reconsume_times < 2:
            return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        if message.body == b"3":
            raise ValueError("never")
        return RetryLater(suspend_ms=10) if (message.body, message.reconsume_times) == (b"4", 0) else None

    group = f"order-{mq_topic}"
    consumer = PushConsumer(
        mq_broker.namesrv,
        group=group,
        listener=listen,
        consume_from=FIRST,
        ordered=True,
        suspend_queue_ms=10,
        max_reconsume_times=2,
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        (wanted,) = [(5, 0)]
        await eventually_async(lambda: wanted in seen, "the last message")
        await eventually_async(
            lambda: consumer.progress()[own(consumer, mq_topic)[0]] == 6, "progress past all"
        )
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (5, 0)]
    async with LitePullConsumer(mq_broker.namesrv, group="letters") as letters:
        (place,) = await letters.fetch_message_queues(f"%DLQ%{group}")
        await letters.assign([place])
        await letters.seek_to_begin(place)
        assert [message.body for message in await letters.poll(30_000)] == [b"3"]


async def test_a_lost_lock_stops_a_queue_until_it_is_back(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    seen: list[int] = []

    async def listen(message: MessageExt) -> None:
        seen.append(int(message.body))

    group = f"lost-{mq_topic}"
    consumer = PushConsumer(
        mq_broker.namesrv,
        group=group,
        listener=listen,
        consume_from=FIRST,
        ordered=True,
        lock_interval_ms=50,
        persist_interval_ms=60_000,
    )
    consumer.subscribe(mq_topic)
    async with consumer, AdminClient(mq_broker.namesrv) as admin:
        await eventually_async(lambda: len(own(consumer, mq_topic)) == 1, "the queue")
        (queue,) = own(consumer, mq_topic)
        await send(mq_broker, mq_topic, range(3))
        await eventually_async(lambda: seen == [0, 1, 2], "three messages")
        core = mq_broker.apps[0].parts.core
        assert core is not None
        locks = core.state.locks

        def steal() -> None:
            locks.unlock(group, consumer.client_id, [queue])
            assert locks.lock(group, "thief", [queue]) == [queue]

        mq_broker.call(steal)
        await eventually_async(lambda: queue not in consumer.progress(), "it is noticed")
        await send(mq_broker, mq_topic, range(3, 5))
        # The other one consumed the fourth, and a little of what we had.
        await admin.update_offset(group, queue, 4)
        await asyncio.sleep(0.3)
        assert seen == [0, 1, 2]
        mq_broker.call(lambda: locks.unlock(group, "thief", [queue]))
        await eventually_async(lambda: len(seen) == 4, "it goes on where the group is")
    assert seen == [0, 1, 2, 4]


@pytest.mark.parametrize("as_thread", some([False, True], 1))
async def test_order_survives_members_that_come_and_go(mq_topic: str, as_thread: bool) -> None:
    queues, total = 4, 400
    with Cluster(brokers=2) as cluster:
        await create(cluster, mq_topic, queues)
        seen: list[tuple[MessageQueue, int]] = []
        at: Counter[MessageQueue] = Counter()

        def note(message: MessageExt) -> None:
            at[message.queue] += 1
            assert at[message.queue] == 1, f"two listeners at {message.queue}"
            seen.append((message.queue, message.queue_offset))

        def leave(message: MessageExt) -> None:
            at[message.queue] -= 1

        async def listen_on_loop(message: MessageExt) -> None:
            note(message)
            await asyncio.sleep(0.002)
            leave(message)

        def listen_in_thread(message: MessageExt) -> None:
            note(message)
            time.sleep(0.002)
            leave(message)

        def member() -> PushConsumer:
            consumer = PushConsumer(
                cluster.namesrv,
                group="moving",
                listener=listen_in_thread if as_thread else listen_on_loop,
                consume_from=FIRST,
                ordered=True,
                pull_batch_size=8,
            )
            consumer.subscribe(mq_topic)
            return consumer

        async with Producer(cluster.namesrv, group="numbers", send_timeout_ms=30_000) as producer:
            members = [member()]
            await members[0].start()
            places = await producer.queues(mq_topic)
            assert len(places) == 2 * queues
            for number in range(total):
                await producer.send(Message.of(mq_topic, str(number)), queue=places[number % len(places)])
                if number % 100 == 50:
                    members.append(member())
                    await members[-1].start()
                elif number % 100 == 99:
                    await members.pop(0).stop()
            await eventually_async(lambda: len({*seen}) == total, f"all {total}")

            def owned() -> Counter[MessageQueue]:
                return Counter(queue for each in members for queue in own(each, mq_topic))

            await eventually_async(lambda: owned() == Counter(places), "one owner for each queue")
            for each in members:
                await each.stop()
    for place in places:
        offsets = [offset for queue, offset in seen if queue == place]
        assert offsets == sorted(offsets), "somebody went back"
    assert len(seen) == total, "something came twice although everybody said good-bye"


async def test_what_a_topic_may_have_cached_is_divided_among_its_queues(
    mq_broker: Broker, mq_topic: str
) -> None:
    await create(mq_broker, mq_topic, 4)
    await send(mq_broker, mq_topic, range(400), 4)
    gate = asyncio.Event()
    seen: Counter[bytes] = Counter()

    async def listen(message: MessageExt) -> None:
        await gate.wait()
        seen[message.body] += 1

    consumer = PushConsumer(
        mq_broker.namesrv,
        group=f"share-{mq_topic}",
        listener=listen,
        consume_from=FIRST,
        pull_batch_size=4,
        max_cached_messages_per_topic=40,
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(
            lambda: sum(count > 10 for count in cached(consumer.running_info())) == 4, "full"
        )
        await asyncio.sleep(0.2)
        assert max(cached(consumer.running_info())) <= 14
        gate.set()
        await eventually_async(lambda: len(seen) == 400, "everything")
    assert set(seen.values()) == {1}


class Stamp(Interceptor):
    def __init__(self) -> None:
        self.sends: list[SendContext] = []
        self.calls: list[ConsumeContext] = []

    def before_send(self, context: SendContext) -> None:
        for message in context.messages:
            message.properties["stamp"] = context.group

    def after_send(self, context: SendContext) -> None:
        self.sends.append(context)

    def wanted(self, message: MessageExt) -> bool:
        return message.body != b"unwanted"

    def after_consume(self, context: ConsumeContext) -> None:
        self.calls.append(context)


async def test_interceptors_see_sends_and_deliveries(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    stamp = Stamp()
    seen: list[MessageExt] = []
    message = Message.of(mq_topic, b"one")
    async with Producer(
        mq_broker.namesrv, group="stamped", send_timeout_ms=30_000, interceptors=[stamp]
    ) as producer:
        result = await producer.send(message)
        await producer.send_batch([Message.of(mq_topic, b"two"), Message.of(mq_topic, b"unwanted")])
        with pytest.raises(InvalidMessage):
            await producer.send(message, queue=MessageQueue(mq_topic, "nowhere", 0))
    assert message.properties == {}
    assert [len(context.messages) for context in stamp.sends] == [1, 2, 1]
    assert stamp.sends[0].result == result
    assert stamp.sends[0].broker_address == mq_broker.address
    assert (stamp.sends[0].region, stamp.sends[0].error) == ("DefaultRegion", None)
    assert isinstance(stamp.sends[2].error, InvalidMessage)

    consumer = PushConsumer(
        mq_broker.namesrv,
        group=f"stamp-{mq_topic}",
        listener=seen.append,
        consume_from=FIRST,
        interceptors=[stamp],
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(
            lambda: consumer.progress().get(MessageQueue(mq_topic, "dev", 0)) == 3, "all three"
        )
    assert sorted(got.body for got in seen) == [b"one", b"two"]
    assert {got.properties["stamp"] for got in seen} == {"stamped"}
    assert [context.success for context in stamp.calls] == [True, True]


async def test_the_trace_of_a_message_is_in_the_trace_topic(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, mq_topic)
    trace_topic = f"trace-{mq_topic}"
    await create(mq_broker, trace_topic)
    seen: list[MessageExt] = []
    async with Producer(
        mq_broker.namesrv, group="traced", send_timeout_ms=30_000, trace=True, trace_topic=trace_topic
    ) as producer:
        result = await producer.send(Message.of(mq_topic, b"one", tags="T", keys="key"))
    consumer = PushConsumer(
        mq_broker.namesrv,
        group=f"traced-{mq_topic}",
        listener=seen.append,
        consume_from=FIRST,
        trace=True,
        trace_topic=trace_topic,
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(seen) == 1, "the message")
    async with LitePullConsumer(mq_broker.namesrv, group="tracing", consume_from=FIRST) as reader:
        await reader.assign(await reader.fetch_message_queues(trace_topic))
        records: list[bytes] = []
        while len(records) < 3:
            for message in await reader.poll(30_000):
                assert message.keys == f"{result.message_id} key"
                records += message.body.split(b"\x02")[:-1]
    assert [record.split(b"\x01")[0] for record in records] == [b"Pub", b"SubBefore", b"SubAfter"]
    assert all(result.message_id.encode() in record for record in records)


async def traced(broker: Broker, trace_topic: str, kinds: list[str]) -> list[list[str]]:
    """The fields of as many records as there are ``kinds``, in the order of the kinds."""
    async with LitePullConsumer(broker.namesrv, group=f"of-{trace_topic}", consume_from=FIRST) as reader:
        await reader.assign(await reader.fetch_message_queues(trace_topic))
        records: list[list[str]] = []
        while len(records) < len(kinds):
            for message in await reader.poll(30_000):
                records += [text.split("\x01") for text in message.body.decode().split("\x02")[:-1]]
    assert sorted(record[0] for record in records) == sorted(kinds)
    return sorted(records, key=lambda record: kinds.index(record[0]))


async def test_the_trace_of_what_a_program_pulls(mq_broker: Broker, mq_topic: str) -> None:
    trace_topic = f"trace-{mq_topic}"
    await create(mq_broker, mq_topic)
    await create(mq_broker, trace_topic)
    await send(mq_broker, mq_topic, range(1))
    consumer = LitePullConsumer(
        mq_broker.namesrv, group=f"pulls-{mq_topic}", consume_from=FIRST, trace=True, trace_topic=trace_topic
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        message = await anext(consumer)
    before, after = await traced(mq_broker, trace_topic, ["SubBefore", "SubAfter"])
    assert (before[3], before[5]) == (f"pulls-{mq_topic}", message.message_id)
    assert (after[1], after[2], after[4], after[8]) == (
        before[4],
        message.message_id,
        "true",
        f"pulls-{mq_topic}",
    )


async def test_the_trace_of_a_transaction(mq_broker: Broker, mq_topic: str) -> None:
    trace_topic = f"trace-{mq_topic}"
    await create(mq_broker, mq_topic)
    await create(mq_broker, trace_topic)
    async with TransactionProducer(
        mq_broker.namesrv,
        group="decides",
        check=lambda _: None,
        send_timeout_ms=30_000,
        trace=True,
        trace_topic=trace_topic,
    ) as producer:
        sent = await producer.send_in_transaction(
            Message.of(mq_topic, b"one", keys="key"), execute=lambda _: TransactionState.COMMIT
        )
    pub, end = await traced(mq_broker, trace_topic, ["Pub", "EndTransaction"])
    assert (pub[5], pub[11]) == (sent.message_id, "1"), "a half message"
    assert end[3:8] == ["decides", mq_topic, sent.message_id, "null", "key"]
    assert end[9:] == ["2", sent.message_id, "COMMIT_MESSAGE", "false"]


async def test_a_namespace_is_a_world_of_its_own(mq_broker: Broker, mq_topic: str) -> None:
    await create(mq_broker, f"NS%{mq_topic}", 2)
    await create(mq_broker, mq_topic, 2)
    options = ClientOptions(namespace="NS")
    tries: list[MessageExt] = []

    async def listen(message: MessageExt) -> RetryLater | None:
        tries.append(message)
        return RetryLater(delay_level=1) if message.reconsume_times == 0 else None

    group = f"space-{mq_topic}"
    consumer = PushConsumer(
        mq_broker.namesrv, group=group, listener=listen, consume_from=FIRST, options=options
    )
    consumer.subscribe(mq_topic)
    async with (
        consumer,
        Producer(mq_broker.namesrv, group="space", send_timeout_ms=30_000, options=options) as producer,
    ):
        places = await producer.queues(mq_topic)
        assert {place.topic for place in places} == {mq_topic}
        sent = await producer.send(Message.of(mq_topic, b"one"), queue=places[1])
        chosen = await producer.send(
            Message.of(mq_topic, b"two"), selector=lambda queues, _: next(q for q in queues if q == places[0])
        )
        assert (sent.queue, chosen.queue) == (places[1], places[0])
        await eventually_async(lambda: len(tries) == 4, "both, twice")
        assert {message.topic for message in tries} == {mq_topic}
        assert {message.properties["INSTANCE_ID"] for message in tries} == {"NS"}
        assert set(own(consumer, mq_topic)) == set(places)
        await eventually_async(lambda: all(consumer.progress()[place] == 1 for place in places), "progress")
    async with AdminClient(mq_broker.namesrv) as admin:
        offsets = await admin.group_offsets(f"NS%{group}", f"NS%{mq_topic}")
        assert sorted(offset.committed for offset in offsets.values()) == [1, 1]
        assert all(offset.max_offset == 0 for offset in (await admin.topic_stats(mq_topic)).values())

    async with LitePullConsumer(
        mq_broker.namesrv, group=f"lite-{mq_topic}", auto_commit=False, options=options
    ) as lite:
        assert await lite.fetch_message_queues(mq_topic) == places
        await lite.assign(places)
        assert lite.assignment() == places
        await lite.seek_to_begin(places[0])
        await lite.seek(places[1], 0)
        received: list[MessageExt] = []
        while len(received) < 2:
            received += await lite.poll(30_000)
        assert {(got.body, got.queue) for got in received} == {(b"one", places[1]), (b"two", places[0])}
        assert lite.position(places[0]) == 1
        await lite.commit({places[0]: 1})
        assert await lite.committed(places[0]) == 1
        assert await lite.offset_for_timestamp(places[0], 0) == 0


async def test_two_members_of_one_name_are_refused(mq_broker: Broker, mq_topic: str, tmp_path: Path) -> None:
    await create(mq_broker, mq_topic)

    def member() -> PushConsumer:
        consumer = PushConsumer(
            mq_broker.namesrv,
            group=f"twice-{mq_topic}",
            listener=lambda message: None,
            message_model=MessageModel.BROADCASTING,
            local_offsets_directory=tmp_path,
        )
        consumer.subscribe(mq_topic)
        return consumer

    first, second = member(), member()
    async with first:
        with pytest.raises(ConfigError, match="instance_name"):
            await second.start()
    async with second:
        assert second.client_id == first.client_id


@pytest.mark.parametrize("ordered", some([False, True], 1))
async def test_nothing_is_lost_when_the_broker_restarts(mq_topic: str, tmp_path: Path, ordered: bool) -> None:
    total = 300
    seen: list[int] = []
    namesrv_port = broker_port = 0
    sent = 0
    consumer: PushConsumer | None = None

    async def listen(message: MessageExt) -> None:
        await asyncio.sleep(0.001)
        seen.append(int(message.body))

    try:
        for number in range(3):
            with Broker(store=tmp_path, namesrv_port=namesrv_port, broker_port=broker_port) as broker:
                namesrv_port = int(broker.namesrv.rpartition(":")[2])
                broker_port = int(broker.address.rpartition(":")[2])
                if consumer is None:
                    await create(broker, mq_topic)
                    consumer = PushConsumer(
                        broker.namesrv,
                        group="restarting",
                        listener=listen,
                        consume_from=FIRST,
                        ordered=ordered,
                        persist_interval_ms=200,
                    )
                    consumer.subscribe(mq_topic)
                    await consumer.start()
                await send(broker, mq_topic, range(sent, sent + total // 3))
                sent += total // 3
                enough = sent if number == 2 else sent - 50
                await eventually_async(lambda enough=enough: len({*seen}) >= enough, f"{enough} messages")  # type: ignore[misc]
                if number == 2:
                    await consumer.stop()
                    async with AdminClient(broker.namesrv) as admin:
                        (queue,) = (await admin.topic_route(mq_topic)).subscribe_queues
                        assert await admin.query_offset("restarting", queue) == total
    finally:
        if consumer is not None:
            await consumer.stop()
    assert {*seen} == set(range(total))
    if ordered:
        first_time = list(dict.fromkeys(seen))
        assert first_time == sorted(first_time)


@pytest.mark.parametrize("model", [MessageModel.CLUSTERING, MessageModel.BROADCASTING])
async def test_lists_in_order(mq_broker: Broker, mq_topic: str, tmp_path: Path, model: MessageModel) -> None:
    await create(mq_broker, mq_topic, 2)
    await send(mq_broker, mq_topic, range(40), 2)
    seen: dict[int, list[int]] = {0: [], 1: []}
    failed: set[bytes] = set()

    def listen(messages: list[MessageExt]) -> ConsumeStatus:
        assert 1 <= len(messages) <= 3
        assert len({message.queue for message in messages}) == 1
        if messages[0].body not in failed and int(messages[0].body) % 5 == 0:
            failed.add(messages[0].body)
            return ConsumeStatus.RECONSUME_LATER
        seen[messages[0].queue_id].extend(int(message.body) for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        mq_broker.namesrv,
        group=f"lists-{mq_topic}",
        batch_listener=listen,
        batch_size=3,
        ordered=True,
        message_model=model,
        consume_from=FIRST,
        suspend_queue_ms=10,
        local_offsets_directory=tmp_path,
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: sum(map(len, seen.values())) == 40, "everything")
        await eventually_async(
            lambda: [consumer.progress()[place] for place in own(consumer, mq_topic)] == [20, 20], "progress"
        )
    assert seen == {0: list(range(0, 40, 2)), 1: list(range(1, 40, 2))}
    assert failed


async def test_an_ordered_listener_commits_by_itself(mq_broker: Broker, mq_topic: str) -> None:
    async with AdminClient(mq_broker.namesrv) as admin, Producer(mq_broker.namesrv, group="p") as producer:
        await admin.create_topic(mq_topic, queues=1)
        for number in range(8):
            await producer.send(Message.of(mq_topic, str(number)))
    seen: list[int] = []

    def listener(message: MessageExt) -> ConsumeStatus:
        number = int(message.body)
        seen.append(number)
        if number == 2 and seen.count(2) == 1:
            return ConsumeStatus.ROLLBACK
        if number == 4 and seen.count(4) == 1:
            return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeStatus.COMMIT if number % 3 == 2 else ConsumeStatus.CONSUME_SUCCESS

    def consumer() -> PushConsumer:
        made = PushConsumer(
            mq_broker.namesrv,
            group="by-hand",
            listener=listener,
            ordered=True,
            auto_commit=False,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            suspend_queue_ms=10,
        )
        made.subscribe(mq_topic)
        return made

    async with consumer() as first:
        await eventually_async(lambda: 7 in seen, "the last message")
        (done,) = (offset for queue, offset in first.progress().items() if queue.topic == mq_topic)
        assert done == 6, "nobody has committed 6 and 7"
    assert seen == [0, 1, 2, 0, 1, 2, 3, 4, 4, 5, 6, 7]
    seen.clear()
    async with consumer():
        await eventually_async(lambda: 7 in seen, "the last message, again")
    assert seen == [6, 7]


def test_only_an_ordered_listener_can_commit_by_itself() -> None:
    with pytest.raises(ConfigError, match="ordered"):
        PushConsumer("127.0.0.1:1", group="g", listener=print, auto_commit=False)
