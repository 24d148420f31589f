"""The lite pull consumer's finer points: filters on assigned queues, what is fetched ahead, queues that come."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from mqspark.aio import (
    AdminClient,
    ConsumeFromWhere,
    Interceptor,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
)
from mqspark.client.consumer import queuecalls
from mqspark.errors import ClientError, ConfigError
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo, GetConsumerStatusBody
from mqspark.protocol.bodies.body import decode_body, queue_key
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.testing import Broker
from tests.integration.client.client_kit import cached_by
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def fill(
    broker: Broker, topic: str, count: int, *, queues: int = 1, body: bytes = b""
) -> list[MessageQueue]:
    """``count`` messages to each queue, tagged and numbered."""
    async with (
        AdminClient(broker.namesrv) as admin,
        Producer(broker.namesrv, group="fill", send_timeout_ms=30_000) as producer,
    ):
        places = list((await admin.create_topic(topic, queues=queues)).publish_queues)
        for place in places:
            for number in range(count):
                message = Message.of(
                    topic, body or b"%d" % number, tags="even" if number % 2 == 0 else "odd",
                    properties={"n": str(number)},
                )  # fmt: skip
                await producer.send(message, queue=place)
        return places


async def poll_all(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    received: list[MessageExt] = []
    deadline = time.monotonic() + 60
    while len(received) < count and time.monotonic() < deadline:
        received += await consumer.poll(200)
    return received


async def test_assigned_queues_are_filtered_by_tags(mq_broker: Broker, mq_topic: str) -> None:
    (place,) = await fill(mq_broker, mq_topic, 10)
    async with LitePullConsumer(mq_broker.namesrv, group="lite-tags", consume_from=FIRST) as consumer:
        await consumer.assign([place], "odd")
        assert [got.body for got in await poll_all(consumer, 5)] == [b"1", b"3", b"5", b"7", b"9"]
        assert consumer.position(place) == 10
        with pytest.raises(ConfigError):
            await consumer.assign([place], "odd", sql="n > 3")


async def test_assigned_queues_are_filtered_by_sql(mq_topic: str) -> None:
    with Broker(settings={"enablePropertyFilter": True}) as broker:
        (place,) = await fill(broker, mq_topic, 10)
        async with LitePullConsumer(broker.namesrv, group="lite-sql", consume_from=FIRST) as consumer:
            await consumer.assign([place], sql="n > 6 OR n = 2")
            assert [got.body for got in await poll_all(consumer, 4)] == [b"2", b"7", b"8", b"9"]
            with pytest.raises(ClientError):
                await consumer.assign([place], sql="n >")


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max_cached_messages": 50}, 54),
        ({"max_cached_bytes": 4_000}, 50),
        ({"max_span": 20}, 25),
        ({"max_cached_messages_in_all": 30}, 45),
    ],
)
async def test_what_is_fetched_ahead_is_bounded(
    mq_broker: Broker, mq_topic: str, limits: dict[str, Any], most: int
) -> None:
    places = await fill(mq_broker, mq_topic, 150, queues=2, body=b"x" * 100)
    consumer = LitePullConsumer(
        mq_broker.namesrv, group="lite-limits", consume_from=FIRST, pull_batch_size=4, **limits
    )
    async with consumer, AdminClient(mq_broker.namesrv) as admin:
        await consumer.assign(places)
        before, counts = [], await cached_by(admin, "lite-limits")
        while counts != before or not counts or 0 in counts:
            await asyncio.sleep(0.1)
            before, counts = counts, await cached_by(admin, "lite-limits")
        assert max(counts) <= most
        received = await poll_all(consumer, 300)
    assert len({(got.queue, got.queue_offset) for got in received}) == len(received) == 300


@pytest.mark.parametrize(("asked", "given"), [(32, 32), (100, 100)])
async def test_larger_pulls_for_who_asks_for_them(
    mq_broker: Broker, mq_topic: str, monkeypatch: pytest.MonkeyPatch, asked: int, given: int
) -> None:
    places = await fill(mq_broker, mq_topic, 250, queues=1)
    decode = queuecalls.decode_pull
    pulled = []

    def counted(*arguments: Any, **options: Any) -> Any:
        messages, rest = decode(*arguments, **options)
        pulled.append(len(messages))
        return messages, rest

    monkeypatch.setattr(queuecalls, "decode_pull", counted)
    consumer = LitePullConsumer(
        mq_broker.namesrv, group="lite-bulk", consume_from=FIRST, pull_batch_size=asked
    )
    async with consumer:
        await consumer.assign(places)
        received = await poll_all(consumer, 250)
    assert [got.queue_offset for got in received] == list(range(250))
    assert max(pulled) == given


async def test_a_listener_hears_of_new_queues(mq_broker: Broker, mq_topic: str) -> None:
    places = await fill(mq_broker, mq_topic, 3, queues=1)
    consumer = LitePullConsumer(
        mq_broker.namesrv, group="lite-watch", consume_from=FIRST, queues_interval_ms=50
    )
    heard: list[list[MessageQueue]] = []

    async def follow(topic: str, queues: list[MessageQueue]) -> None:
        heard.append(queues)
        await consumer.assign(queues)

    consumer.on_queues_changed(mq_topic, follow)
    async with consumer, AdminClient(mq_broker.namesrv) as admin:
        await consumer.assign(places)
        assert len(await poll_all(consumer, 3)) == 3
        await admin.create_topic(mq_topic, queues=3)
        await eventually_async(lambda: bool(heard), "the listener's call")
        assert [[queue.queue_id for queue in queues] for queues in heard] == [[0, 1, 2]]
        await eventually_async(lambda: len(consumer.assignment()) == 3, "all assigned")
        consumer.on_queues_changed(mq_topic, None)
        async with Producer(mq_broker.namesrv, group="fill", send_timeout_ms=30_000) as producer:
            await producer.send(Message.of(mq_topic, b"new"), queue=heard[0][2])
        assert [got.body for got in await poll_all(consumer, 1)] == [b"new"]


async def test_broadcasting_keeps_offsets_here(mq_broker: Broker, mq_topic: str, tmp_path: Path) -> None:
    await fill(mq_broker, mq_topic, 6)
    for expected in (6, 0):
        consumer = LitePullConsumer(
            mq_broker.namesrv,
            group="lite-broadcast",
            consume_from=FIRST,
            message_model=MessageModel.BROADCASTING,
            local_offsets_directory=tmp_path,
        )
        consumer.subscribe(mq_topic)
        async with consumer:
            await eventually_async(lambda consumer=consumer: bool(consumer.assignment()), "queues")  # type: ignore[misc]
            received = await (poll_all(consumer, 6) if expected else consumer.poll(300))
            assert len(received) == expected


async def test_tools_see_a_pull_consumers_queues(mq_broker: Broker, mq_topic: str) -> None:
    (place,) = await fill(mq_broker, mq_topic, 10)
    async with LitePullConsumer(
        mq_broker.namesrv, group="lite-look", consume_from=FIRST, pull_batch_size=4
    ) as consumer:
        await consumer.assign([place])
        received = await consumer.poll()
        await consumer.commit()
        code, body, _ = await consumer.answer(
            Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_texts={"consumerGroup": "g", "clientId": "c"})
        )
        info = decode_body(ConsumerRunningInfo, body)
        assert (code, info.properties["PROP_CONSUME_TYPE"]) == (ResponseCode.SUCCESS, "CONSUME_ACTIVELY")
        assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
        assert info.mq_table[queue_key(place)].commit_offset == len(received)
        _, body, _ = await consumer.answer(
            Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_texts={"topic": mq_topic, "group": "g"})
        )
        status = decode_body(GetConsumerStatusBody, body).message_queue_table
        assert status == {queue_key(place): len(received)}


class Odd(Interceptor):
    def wanted(self, message: MessageExt) -> bool:
        return int(message.body) % 2 == 1


async def test_an_interceptor_chooses_what_is_handed_out(mq_broker: Broker, mq_topic: str) -> None:
    (place,) = await fill(mq_broker, mq_topic, 11)
    async with LitePullConsumer(
        mq_broker.namesrv, group="lite-odd", consume_from=FIRST, interceptors=[Odd()], pull_batch_size=3
    ) as consumer:
        await consumer.assign([place])
        assert [got.body for got in await poll_all(consumer, 5)] == [b"1", b"3", b"5", b"7", b"9"]
        await consumer.commit()
        await eventually_async(lambda: consumer.position(place) == 11, "what is not wanted counts, too")


async def test_polls_that_find_nothing_leave_nothing_behind(mq_broker: Broker, mq_topic: str) -> None:
    async with AdminClient(mq_broker.namesrv) as admin:
        await admin.create_topic(mq_topic, queues=1)
    consumer = LitePullConsumer(mq_broker.namesrv, group=f"idle-{mq_topic}")
    consumer.subscribe(mq_topic)
    async with consumer, Producer(mq_broker.namesrv, group="p") as producer:
        for _ in range(20):
            assert await consumer.poll(1) == []
        cut_short = asyncio.ensure_future(consumer.poll(60_000))
        await asyncio.sleep(0.01)
        cut_short.cancel()
        await asyncio.gather(cut_short, return_exceptions=True)
        assert not consumer._waiters
        waiting = [asyncio.ensure_future(consumer.poll(60_000)) for _ in range(2)]
        await asyncio.sleep(0.01)
        await producer.send(Message.of(mq_topic, "1"))
        done, (left,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [[message.body for message in each.result()] for each in done] == [[b"1"]]
        await producer.send(Message.of(mq_topic, "2"))
        assert [message.body for message in await left] == [b"2"]
