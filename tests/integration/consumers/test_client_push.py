"""Push consumers against brokers: everything once and in order, shared, filtered, retried, bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
)
from mqspark.client.consumer import queuecalls
from mqspark.client.consumer.queuecalls import QueueCalls
from mqspark.errors import BrokerError, ConfigError
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo
from mqspark.protocol.bodies.body import decode_body, queue_of
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.testing import Broker, Cluster
from tests.integration.client.client_kit import FIRST, Seen, by_queue, cached, create, send_numbers
from tests.support.waiting import eventually_async

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


@pytest.mark.parametrize(("asked", "most"), [(16, 116), (256, 132)])
async def test_flow_control_bounds_what_is_cached(
    mq_broker: Broker, mq_topic: str, asked: int, most: int
) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(1_000))
    gate = asyncio.Event()
    seen = Seen()

    async def listen(message: MessageExt) -> None:
        await gate.wait()
        await seen(message)

    consumer = PushConsumer(
        mq_broker.namesrv,
        group=f"flow-{asked}",
        listener=listen,
        consume_from=FIRST,
        concurrency=2,
        pull_batch_size=asked,
        max_cached_messages=100,
    )
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(
            lambda: any(count > 100 for count in cached(consumer.running_info())), "a full queue"
        )
        await asyncio.sleep(0.2)
        assert max(cached(consumer.running_info())) <= most
        gate.set()
        await eventually_async(lambda: len(seen.messages) == 1_000, "everything")
    assert sorted(int(body) for body in seen.bodies) == list(range(1_000))


async def test_a_backlog_comes_in_larger_pulls(
    mq_broker: Broker, mq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(mq_broker, mq_topic, 1)
    await send_numbers(mq_broker, mq_topic, range(400))
    decode = queuecalls.decode_pull
    pulled = []

    def counted(*arguments: Any, **options: Any) -> Any:
        messages, rest = decode(*arguments, **options)
        pulled.append(len(messages))
        return messages, rest

    monkeypatch.setattr(queuecalls, "decode_pull", counted)
    seen = Seen()
    consumer = PushConsumer(mq_broker.namesrv, group="backlog", listener=seen, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    async with consumer:
        await eventually_async(lambda: len(seen.messages) == 400, "everything")
    assert pulled == [32, 256, 112]
    assert [int(body) for body in seen.bodies] == list(range(400))


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
        assert time.monotonic() - began < 10, "it waited for the end of the long poll"


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
        consumer = PushConsumer(
            broker.namesrv, group="surv", listener=seen, consume_from=FIRST, persist_interval_ms=50
        )
        consumer.subscribe("Restart")
        await consumer.start()
        await eventually_async(lambda: len(seen.messages) == 50, "before")
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
        # The first heartbeat makes the group's retry topic, so its queue may come later than the others.
        await eventually_async(
            lambda: {queue.topic for queue in consumer.assignment()} == {mq_topic, "%RETRY%look"},
            "the retry queue",
        )
        members = await admin.group_members("look")
        assert [member.client_id for member in members.connection_set] == [consumer.client_id]
        assert members.connection_set[0].language == "PYTHON"
        assert set(members.subscription_table) == {mq_topic, "%RETRY%look"}
        code, body, _ = await consumer.answer(
            Command(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                ext_texts={"consumerGroup": "look", "clientId": consumer.client_id, "jstackEnable": "true"},
            )
        )
        assert code == ResponseCode.SUCCESS
        info = decode_body(ConsumerRunningInfo, body)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
        assert {queue_of(key).topic for key in info.mq_table} == {mq_topic, "%RETRY%look"}
        assert info.jstack
