"""The POP consumer on our broker, over real sockets; the broker's time is moved by hand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest

import mqspark
from mqspark.aio import (
    AdminClient,
    ConsumeFromWhere,
    ConsumeStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    PopConsumer,
    Producer,
    RetryLater,
)
from mqspark.errors import ConfigError
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo
from mqspark.testing import Broker, Cluster, FakeClock
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
REVIVAL_MS = 6_000


@pytest.fixture
def broker(mq_clock: FakeClock) -> Iterator[Broker]:
    with Broker(clock=mq_clock) as broker:
        yield broker


def moving(clock: FakeClock, condition: Callable[[], bool], step_ms: int = 500) -> Callable[[], bool]:
    """The condition; each time that it does not hold, this clock goes on."""

    def holds() -> bool:
        if condition():
            return True
        clock.advance(step_ms)
        return False

    return holds


async def prepare(broker: Broker, topic: str, bodies: Iterable[str], *, queues: int = 4) -> str:
    """A topic with messages; the name of a group that pops them."""
    group = f"pop-{topic}"
    async with AdminClient(broker.namesrv) as admin, Producer(broker.namesrv, group="p") as producer:
        await admin.create_topic(topic, queues=queues)
        await admin.set_consume_mode(topic, group, "POP")
        for body in bodies:
            await producer.send(Message.of(topic, body, tags="T"))
    return group


def name_of(broker: Broker) -> str:
    return broker.apps[0].config.broker_name


def ends_at(broker: Broker, queue: MessageQueue) -> int:
    store = broker.apps[0].store
    assert store is not None
    return broker.call(lambda: store.offsets.max_offset(queue.topic, queue.queue_id))


def consumer(
    broker: Broker, group: str, topic: str, listener: Callable[..., object], **more: object
) -> PopConsumer:
    made = PopConsumer(broker.namesrv, group=group, listener=listener, consume_from=FIRST, **more)  # type: ignore[arg-type]
    made.subscribe(topic)
    return made


async def test_more_members_than_queues_share_all_messages(
    broker: Broker, mq_topic: str, mq_clock: FakeClock
) -> None:
    names = [str(number) for number in range(200)]
    group = await prepare(broker, mq_topic, names, queues=1)
    seen: Counter[str] = Counter()
    by_member: list[int] = [0, 0, 0]

    def listener(number: int) -> Callable[[MessageExt], object]:
        async def listen(message: MessageExt) -> None:
            assert message.topic == mq_topic
            seen[message.body.decode()] += 1
            by_member[number] += 1
            await asyncio.sleep(0.001)

        return listen

    members = [consumer(broker, group, mq_topic, listener(number), pop_batch_size=4) for number in range(3)]
    for member in members:
        await member.start()
    await eventually_async(lambda: len(seen) == len(names), "everything once")
    await eventually_async(
        lambda: all(
            member.assignment() == [MessageQueue(mq_topic, name_of(broker), -1)] for member in members
        ),
        "all of them pop",
    )
    for member in members:
        await member.stop()
    # What was acknowledged never comes again.
    async with consumer(broker, group, mq_topic, listener(0)):
        mq_clock.advance(80_000)
        assert seen == Counter(names)


async def test_failed_messages_come_again(broker: Broker, mq_topic: str, mq_clock: FakeClock) -> None:
    group = await prepare(broker, mq_topic, ["good", "raises", "later", "slow retry"])
    seen: list[tuple[str, int, int]] = []

    async def listen(message: MessageExt) -> object:
        body = message.body.decode()
        seen.append((body, message.reconsume_times, mq_clock.now_ms()))
        if body == "raises" and message.reconsume_times < 1:
            raise ValueError("not now")
        if body == "later" and message.reconsume_times < 1:
            return ConsumeStatus.RECONSUME_LATER
        if body == "slow retry" and message.reconsume_times < 1:
            return RetryLater(delay_level=2)
        return None

    async with consumer(broker, group, mq_topic, listen):
        await eventually_async(moving(mq_clock, lambda: len(seen) == 7, 5_000), "three of four again")
        begin = {body: at for body, times, at in seen if times == 0}
        again = {body: at - begin[body] for body, times, at in seen if times == 1}
        assert begin.keys() - again.keys() == {"good"}
        assert again["raises"] >= 10_000
        assert again["later"] >= 10_000
        assert again["slow retry"] >= 60_000


async def test_what_fails_too_often_is_a_dead_letter(
    broker: Broker, mq_topic: str, mq_clock: FakeClock
) -> None:
    group = await prepare(broker, mq_topic, ["bad", "hopeless"])
    seen: Counter[str] = Counter()

    async def listen(message: MessageExt) -> object:
        seen[message.body.decode()] += 1
        return RetryLater(delay_level=-1) if message.body == b"hopeless" else ConsumeStatus.RECONSUME_LATER

    async with consumer(broker, group, mq_topic, listen, max_reconsume_times=1):
        await eventually_async(moving(mq_clock, lambda: seen["bad"] == 2), "a second time")
        letters: list[MessageExt] = []
        async with LitePullConsumer(broker.namesrv, group="undertaker") as reader:
            place = MessageQueue(f"%DLQ%{group}", name_of(broker), 0)
            await eventually_async(lambda: ends_at(broker, place) == 2, "two dead letters")
            await reader.assign([place])
            await reader.seek_to_begin(place)
            deadline = time.monotonic() + 30
            while len(letters) < 2 and time.monotonic() < deadline:
                letters += await reader.poll(200)
    assert sorted(letter.body for letter in letters) == [b"bad", b"hopeless"]
    assert seen == Counter({"bad": 2, "hopeless": 1})


async def test_a_listener_that_takes_too_long_has_no_say(
    broker: Broker, mq_topic: str, mq_clock: FakeClock
) -> None:
    group = await prepare(broker, mq_topic, ["slow"])
    release = asyncio.Event()
    seen: list[int] = []

    async def listen(message: MessageExt) -> None:
        seen.append(message.reconsume_times)
        if message.reconsume_times == 0:
            await release.wait()

    async with consumer(broker, group, mq_topic, listen, invisible_ms=1_000):
        await eventually_async(moving(mq_clock, lambda: seen == [0, 1]), "the message again")
        release.set()


async def test_what_was_not_begun_is_let_go_at_the_end(
    broker: Broker, mq_topic: str, mq_clock: FakeClock
) -> None:
    started_ms = mq_clock.now_ms()
    group = await prepare(broker, mq_topic, [str(number) for number in range(8)], queues=1)
    begun: list[str] = []
    release = asyncio.Event()

    async def hold(message: MessageExt) -> None:
        begun.append(message.body.decode())
        await release.wait()

    first = consumer(broker, group, mq_topic, hold, concurrency=1, invisible_ms=3_600_000)
    await first.start()
    await eventually_async(lambda: len(begun) == 1, "the first message")
    stopping = asyncio.create_task(first.stop())
    await asyncio.sleep(0)
    release.set()
    await stopping
    rest: list[str] = []

    async def take(message: MessageExt) -> None:
        rest.append(message.body.decode())

    async with consumer(broker, group, mq_topic, take):
        await eventually_async(moving(mq_clock, lambda: len(rest) == 8 - len(begun)), "what was not begun")
    assert sorted([*begun, *rest]) == [str(number) for number in range(8)]
    assert mq_clock.now_ms() < started_ms + 60_000


async def test_a_group_that_pulls_must_be_switched_first(broker: Broker, mq_topic: str) -> None:
    async with AdminClient(broker.namesrv) as admin:
        await admin.create_topic(mq_topic)
    made = consumer(broker, "pullers", mq_topic, lambda message: None)
    with pytest.raises(ConfigError, match="set_consume_mode"):
        await made.start()


async def test_tags_and_filters(mq_broker: Broker, mq_topic: str) -> None:
    group = await prepare(mq_broker, mq_topic, [])
    seen: list[bytes] = []
    made = PopConsumer(
        mq_broker.namesrv, group=group, listener=lambda message: seen.append(message.body), consume_from=FIRST
    )
    made.subscribe(mq_topic, "A || B")
    async with made, Producer(mq_broker.namesrv, group="p") as producer:
        for tag in "ABCAB":
            await producer.send(Message.of(mq_topic, tag, tags=tag))
        await eventually_async(lambda: len(seen) == 4, "A and B")
        info = await running_info(mq_broker, made)
        assert list(info.mq_pop_table)
        assert sorted(seen) == [b"A", b"A", b"B", b"B"]


async def running_info(broker: Broker, made: PopConsumer) -> ConsumerRunningInfo:
    async with AdminClient(broker.namesrv) as admin:
        return await admin.running_info(made.group, made.client_id)


def test_without_a_loop(mq_broker: Broker, mq_topic: str) -> None:
    group = f"pop-{mq_topic}"
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        admin.create_topic(mq_topic)
        admin.set_consume_mode(mq_topic, group, "POP")
    seen: list[bytes] = []
    done = threading.Event()

    def listen(message: MessageExt) -> None:
        seen.append(message.body)
        if len(seen) == 50:
            done.set()

    popper = mqspark.PopConsumer(mq_broker.namesrv, group=group, listener=listen, consume_from=FIRST)
    popper.subscribe(mq_topic)
    with popper, mqspark.Producer(mq_broker.namesrv, group="p") as producer:
        for number in range(50):
            producer.send(Message.of(mq_topic, str(number)))
        assert done.wait(60)
        assert popper.assignment() == [MessageQueue(mq_topic, name_of(mq_broker), -1)]
    assert Counter(seen) == Counter(str(number).encode() for number in range(50))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"pop_batch_size": 33}, "pop_batch_size"),
        ({"invisible_ms": 10}, "invisible_ms"),
        ({"max_reconsume_times": -1}, "max_reconsume_times"),
        ({"consume_from": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP}, "consume_from"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PopConsumer("127.0.0.1:1", group="g", listener=lambda message: None, **settings)  # type: ignore[arg-type]
    assert caught.value.key == key


async def test_two_brokers_tell_of_each_other(mq_topic: str) -> None:
    """Whichever of them is asked, the assignment names both."""
    with Cluster(brokers=2) as cluster:
        group = f"pop-{mq_topic}"
        async with AdminClient(cluster.namesrv) as admin:
            await admin.create_topic(mq_topic, queues=2)
            await admin.set_consume_mode(mq_topic, group, "POP")
        seen: Counter[bytes] = Counter()

        async def listen(message: MessageExt) -> None:
            seen[message.body] += 1

        made = PopConsumer(
            cluster.namesrv, group=group, listener=listen, consume_from=FIRST, rebalance_interval_ms=20
        )
        made.subscribe(mq_topic)
        async with made, Producer(cluster.namesrv, group="p") as producer:
            places = await producer.queues(mq_topic)
            for number, place in enumerate([*places, *places]):
                await producer.send(Message.of(mq_topic, str(number)), queue=place)
            await eventually_async(lambda: len(seen) == 8, "messages of both")
            names = {app.config.broker_name for app in cluster.apps}
            assert len(names) == 2
            for _ in range(10):  # each rebalance asks one of the brokers, by chance
                assert set(made.assignment()) == {MessageQueue(mq_topic, broker, -1) for broker in names}
                await asyncio.sleep(0.03)
        assert set(seen.values()) == {1}


async def test_the_trace_of_a_popped_message(broker: Broker, mq_topic: str) -> None:
    group = await prepare(broker, mq_topic, ["x"])
    trace_topic = f"trace-{mq_topic}"
    async with AdminClient(broker.namesrv) as admin:
        await admin.create_topic(trace_topic)
    seen: list[MessageExt] = []
    async with consumer(broker, group, mq_topic, seen.append, trace=True, trace_topic=trace_topic):
        await eventually_async(lambda: bool(seen), "the message")
    async with LitePullConsumer(broker.namesrv, group="tracing", consume_from=FIRST) as reader:
        await reader.assign(await reader.fetch_message_queues(trace_topic))
        records: list[list[str]] = []
        while len(records) < 2:
            for message in await reader.poll(30_000):
                records += [text.split("\x01") for text in message.body.decode().split("\x02")[:-1]]
    before, after = records
    assert (before[0], before[3], before[5]) == ("SubBefore", group, seen[0].message_id)
    assert (after[0], after[1], after[4], after[8]) == ("SubAfter", before[4], "true", group)


async def test_in_order_by_one_member_at_a_time(broker: Broker, mq_topic: str, mq_clock: FakeClock) -> None:
    """Three members, failures in between: each queue's messages are consumed in their order."""
    group = await prepare(broker, mq_topic, [], queues=2)
    sent = {0: [f"0-{number}" for number in range(40)], 1: [f"1-{number}" for number in range(40)]}
    done: dict[int, list[str]] = {0: [], 1: []}
    attempts: Counter[str] = Counter()
    running: Counter[int] = Counter()

    async def listen(message: MessageExt) -> object:
        body = message.body.decode()
        running[message.queue_id] += 1
        assert running[message.queue_id] == 1
        await asyncio.sleep(0.001)
        running[message.queue_id] -= 1
        attempts[body] += 1
        if body.endswith("7") and attempts[body] < 3:
            return RetryLater(suspend_ms=10)
        if body == "0-20":
            raise ValueError("never")
        assert message.reconsume_times == attempts[body] - 1
        done[message.queue_id].append(body)
        return None

    members = [
        consumer(
            broker,
            group,
            mq_topic,
            listen,
            ordered=True,
            pop_batch_size=5,
            suspend_queue_ms=20,
            max_reconsume_times=2,
        )
        for _ in range(3)
    ]
    for member in members:
        await member.start()
    async with Producer(broker.namesrv, group="p") as producer:
        for queue_id, bodies in sent.items():
            for body in bodies:
                queue = MessageQueue(mq_topic, name_of(broker), queue_id)
                await producer.send(Message.of(mq_topic, body, tags="T"), queue=queue)
    sent[0].remove("0-20")
    await eventually_async(lambda: done == sent, "everything in order")
    assert attempts["0-20"] == 3
    for member in members:
        await member.stop()
    dead = MessageQueue(f"%DLQ%{group}", name_of(broker), 0)
    assert ends_at(broker, dead) == 1


async def test_in_order_what_is_not_begun_goes_to_others_at_once(
    broker: Broker, mq_topic: str, mq_clock: FakeClock
) -> None:
    """A member that stops gives back its queue; the one message at which it was is acknowledged."""
    group = await prepare(broker, mq_topic, ["a", "b", "c"], queues=1)
    seen: list[str] = []
    begun, gate = asyncio.Event(), asyncio.Event()

    async def hold(message: MessageExt) -> None:
        begun.set()
        await gate.wait()

    async def listen(message: MessageExt) -> None:
        seen.append(message.body.decode())

    first = consumer(broker, group, mq_topic, hold, ordered=True)
    await first.start()
    await begun.wait()
    async with consumer(broker, group, mq_topic, listen, ordered=True):
        await asyncio.sleep(0.3)
        assert seen == []
        stopping = asyncio.create_task(first.stop())
        gate.set()
        await stopping
        await eventually_async(moving(mq_clock, lambda: len(seen) == 2), "the other two")
    assert seen == ["b", "c"]
