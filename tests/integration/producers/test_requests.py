"""Requests and replies with our client on a broker of ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

import mqspark
from mqspark.aio import AdminClient, ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from mqspark.errors import BrokerError, ClientError, InvalidMessage, NoRoute, RequestTimeout
from mqspark.testing import Broker, Cluster
from tests.support.waiting import eventually_async


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Broker() as running:
        yield running


@asynccontextmanager
async def echo(cluster: Cluster, topic: str, group: str) -> AsyncIterator[list[MessageExt]]:
    """Someone who answers everything with ``re: …``, except what says ``silence``."""
    async with AdminClient(cluster.namesrv) as admin:
        await admin.create_topic(topic)
    seen: list[MessageExt] = []
    async with Producer(cluster.namesrv, group=f"{group}-replies", compress_from_bytes=100) as replies:

        async def answer(request: MessageExt) -> None:
            seen.append(request)
            if request.body != b"silence":
                await replies.reply(request, b"re: " + request.body)

        consumer = PushConsumer(
            cluster.namesrv,
            group=group,
            listener=answer,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(topic)
        async with consumer:
            yield seen


async def test_every_request_gets_its_own_reply(broker: Cluster) -> None:
    async with echo(broker, "Ask", "g-ask") as seen:
        async with Producer(broker.namesrv, group="asking") as producer:
            first = await producer.request(Message.of("Ask", "0", tags="A", properties={"a": "b"}), 45_000)
            assert first.body == b"re: 0"
            assert first.properties["MSG_TYPE"] == "reply"
            assert first.properties["CORRELATION_ID"] == seen[0].properties["CORRELATION_ID"]
            assert {"ARRIVE_TIME", "PUSH_REPLY_TIME"} <= first.properties.keys()
            assert (seen[0].tags, seen[0].properties["a"], seen[0].properties["TTL"]) == ("A", "b", "45000")
            replies = await asyncio.gather(
                *(producer.request(Message.of("Ask", str(n)), 45_000) for n in range(50))
            )
            assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(50)]
            long = b"x" * 5_000
            assert (await producer.request(Message.of("Ask", long), 45_000)).body == b"re: " + long


async def test_without_a_reply(broker: Cluster) -> None:
    async with echo(broker, "Silent", "g-silent") as seen:
        async with Producer(broker.namesrv, group="asking2") as producer:
            with pytest.raises(RequestTimeout, match="consumer of topic Silent"):
                await producer.request(Message.of("Silent", "silence"), 500)
            waiting = asyncio.create_task(producer.request(Message.of("Silent", "silence"), 45_000))
            await eventually_async(lambda: len(seen) == 2, "the second request at its consumer")
        with pytest.raises(ClientError, match="stopped"):
            await waiting


async def test_nobody_waits_any_more(broker: Cluster) -> None:
    async with echo(broker, "Gone", "g-gone") as seen:
        async with Producer(broker.namesrv, group="asking3") as producer:
            with pytest.raises(RequestTimeout):
                await producer.request(Message.of("Gone", "silence"), 1_000)
            started = time.monotonic()
            while not seen:
                assert time.monotonic() - started < 45
                await asyncio.sleep(0.01)
            # Late, but its client is there and takes it.
            await producer.reply(seen[0], b"late")
        async with Producer(broker.namesrv, group="replying") as other:
            with pytest.raises(BrokerError, match="not found"):
                await other.reply(seen[0], b"too late")
            seen[0].properties.pop("CORRELATION_ID")
            with pytest.raises(InvalidMessage, match="not a request"):
                await other.reply(seen[0], b"x")


async def test_what_cannot_be_sent(broker: Cluster) -> None:
    async with Producer(broker.namesrv, group="asking4") as producer:
        with pytest.raises(InvalidMessage):
            await producer.request(Message.of("T", b""))
        assert not producer._requests
    with pytest.raises(ClientError):
        await producer.request(Message.of("T", b"x"))
    with Broker(settings={"autoCreateTopicEnable": "false"}) as strict:
        async with Producer(strict.namesrv, group="asking5") as producer:
            with pytest.raises(NoRoute):
                await producer.request(Message.of("Nowhere", b"x"))


def test_blocking(broker: Cluster) -> None:
    with mqspark.AdminClient(broker.namesrv) as admin:
        admin.create_topic("AskSync")
    with mqspark.Producer(broker.namesrv, group="sync-replies") as replies:

        def answer(request: MessageExt) -> None:
            replies.reply(request, request.body[::-1])

        consumer = mqspark.PushConsumer(
            broker.namesrv,
            group="g-sync",
            listener=answer,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe("AskSync")
        with consumer, mqspark.Producer(broker.namesrv, group="sync-asking") as producer:
            assert producer.request(Message.of("AskSync", "stressed"), 45_000).body == b"desserts"
