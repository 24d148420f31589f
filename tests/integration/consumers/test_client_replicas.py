"""Consumers and the replicas of a broker: what a broker suggests, a master that is gone, a slave that is behind; and
producers beside a silent broker. Scripted servers over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mqspark.aio import (
    ClientOptions,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
)
from mqspark.client.remoting.topic_routes import BrokerReplica, replica_of
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import GetConsumerListByGroupResponseBody
from mqspark.protocol.bodies.topic_bodies import BrokerData, QueueData, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.testing import FakeClock
from tests.support.scripted import SILENCE, Answer, Scripted, broker, cluster, refusal, sends
from tests.support.waiting import eventually_async

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
QUEUE = MessageQueue("T", "pair", 0)
OPTIONS = ClientOptions(route_interval_ms=60_000, instance_name="one")


def pulled(next_offset: int, *, suggests: int = 0, code: int = ResponseCode.PULL_NOT_FOUND) -> Answer:
    fields = {
        "suggestWhichBrokerId": str(suggests),
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": "100",
    }
    return code, fields, b""


class Pair:
    """A master and a slave, each with a script for pulls of queue 0 of topic T, and what a name server says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pulls: dict[int, Callable[[int], Answer]] = {}
        self.master, self.slave = self._replica(0), self._replica(1)
        self.known = {0, 1}
        """The ids in the route."""
        self.members: list[str] = []

    def _replica(self, broker_id: int) -> Scripted:
        def script(command: Command) -> Answer:
            if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                body = encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=self.members))
                return 0, {}, body
            if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
                return 0, {"offset": "0"}, b""
            if command.code in PULLS:
                if command.ext["topic"] != "T":
                    return SILENCE
                return self.pulls[broker_id](int(command.ext["queueOffset"]))
            return 0, {}, b""

        return Scripted(script)

    def route(self, command: Command) -> Answer:
        addresses = {0: self.master.address, 1: self.slave.address}
        body = TopicRouteData(
            broker_datas=[
                BrokerData(
                    cluster="c",
                    broker_name="pair",
                    broker_addrs={number: addresses[number] for number in self.known},
                )
            ],
            queue_datas=[QueueData(broker_name="pair", read_queue_nums=1, write_queue_nums=1, perm=6)],
        )
        return 0, None, encode_body(body)

    def asked_for(self, one: Scripted) -> list[int]:
        """The offsets of the pulls of topic T."""
        return [
            int(command.ext["queueOffset"])
            for command in one.asked
            if command.code in PULLS and command.ext["topic"] == "T"
        ]

    @asynccontextmanager
    async def consuming(self, kind: str) -> AsyncIterator[PushConsumer | LitePullConsumer]:
        async def listen(message: object) -> None:
            raise AssertionError("there is no message")

        options = dataclasses.replace(OPTIONS, clock=self.clock.running)
        async with Scripted(self.route).serving() as names:
            if kind == "push":
                push = PushConsumer(
                    names.address, group="g", listener=listen, consume_from=FIRST, options=options,
                    rebalance_interval_ms=100,
                )  # fmt: skip
                push.subscribe("T")
                async with push:
                    self.members = [push.client_id]
                    yield push
            else:
                async with LitePullConsumer(names.address, group="g", options=options) as lite:
                    await lite.assign([QUEUE])
                    yield lite


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_a_consumer_reads_where_the_broker_suggests_and_returns(kind: str) -> None:
    pair = Pair()
    pair.pulls[0] = lambda offset: pulled(offset + 1, suggests=1 if offset == 0 else 0)
    pair.pulls[1] = lambda offset: pulled(offset + 1, suggests=1 if offset < 3 else 0)
    async with pair.master.serving(), pair.slave.serving(), pair.consuming(kind):
        await eventually_async(lambda: len(pair.asked_for(pair.master)) >= 3, "pulls at the master")
        assert pair.asked_for(pair.slave)[:3] == [1, 2, 3]
        assert pair.asked_for(pair.master)[:3] == [0, 4, 5]
    committing = [
        command for command in pair.slave.asked if command.code in PULLS and int(command.ext["sysFlag"]) & 1
    ]
    assert not committing, "a slave is given no offset to commit"


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_a_slave_that_is_behind_moves_nobody_back(kind: str) -> None:
    pair = Pair()
    pair.pulls[0] = lambda offset: pulled(50, suggests=1)
    answers = [
        pulled(20, code=ResponseCode.PULL_OFFSET_MOVED),
        pulled(20, code=ResponseCode.PULL_RETRY_IMMEDIATELY),
    ]
    pair.pulls[1] = lambda offset: answers.pop(0) if answers else SILENCE
    async with pair.master.serving(), pair.slave.serving(), pair.consuming(kind):
        await eventually_async(lambda: len(pair.asked_for(pair.slave)) >= 3, "pulls at the slave")
    assert set(pair.asked_for(pair.slave)) <= {50}
    assert all(offset in (0, 50) for offset in pair.asked_for(pair.master)[:3])


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_while_the_master_does_not_answer_its_slave_is_read(kind: str) -> None:
    """The name server still names the master."""
    pair = Pair()
    pair.pulls[0] = lambda offset: pulled(offset + 1)
    pair.pulls[1] = lambda offset: pulled(offset + 1)
    async with pair.slave.serving():
        async with contextlib.AsyncExitStack() as stack:
            serving = pair.master.serving()
            await serving.__aenter__()
            await stack.enter_async_context(pair.consuming(kind))
            await eventually_async(lambda: len(pair.asked_for(pair.master)) >= 3, "pulls at the master")
            assert not pair.asked_for(pair.slave)
            await serving.__aexit__(None, None, None)
            await eventually_async(lambda: len(pair.asked_for(pair.slave)) >= 20, "pulls at the slave")
    at_slave = pair.asked_for(pair.slave)
    assert at_slave == list(range(at_slave[0], at_slave[0] + len(at_slave))), "it goes on where it was"
    assert at_slave[0] >= max(pair.asked_for(pair.master))


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_when_the_master_is_back_it_is_read_again(kind: str) -> None:
    pair = Pair()
    reachable = False
    pair.pulls[0] = lambda offset: pulled(offset + 1) if reachable else None  # None closes the connection
    pair.pulls[1] = lambda offset: pulled(offset + 1)
    async with pair.master.serving(), pair.slave.serving(), pair.consuming(kind):
        await eventually_async(lambda: len(pair.asked_for(pair.slave)) >= 5, "pulls at the slave")
        assert len(pair.asked_for(pair.master)) == 1, "for a while the master is left alone"
        reachable = True
        pair.clock.advance(10_001)
        await eventually_async(lambda: len(pair.asked_for(pair.master)) >= 5, "pulls at the master")
        at_slave = len(pair.asked_for(pair.slave))
        await eventually_async(lambda: len(pair.asked_for(pair.master)) >= 20, "pulls at the master")
    assert len(pair.asked_for(pair.slave)) == at_slave
    assert pair.asked_for(pair.master)[1] > pair.asked_for(pair.master)[0]


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_a_slave_that_refuses_does_not_keep_readers_from_the_master(kind: str) -> None:
    pair = Pair()
    pair.pulls[0] = lambda offset: pulled(offset + 1) if pair.asked_for(pair.slave) else None
    pair.pulls[1] = lambda offset: refusal(ResponseCode.SYSTEM_BUSY)
    async with pair.master.serving(), pair.slave.serving(), pair.consuming(kind):
        await eventually_async(lambda: len(pair.asked_for(pair.master)) >= 5, "pulls at the master")
    assert pair.asked_for(pair.slave) == [0], (
        "the master was asked again at once, not when its ten seconds were over"
    )


async def test_what_only_a_slave_was_told_is_told_the_master_later() -> None:
    pair = Pair()
    pair.known = {1}
    pair.pulls[1] = lambda offset: pulled(7) if offset == 0 else SILENCE
    async with pair.master.serving(), pair.slave.serving(), pair.consuming("lite") as lite:
        assert isinstance(lite, LitePullConsumer)
        await eventually_async(lambda: len(pair.asked_for(pair.slave)) == 2, "progress")
        await lite.commit()
        pair.known = {0, 1}
        await lite.fetch_message_queues("T")
        await lite.commit()
        await lite.commit()

    def told(one: Scripted) -> list[str]:
        return [c.ext["commitOffset"] for c in one.asked if c.code == RequestCode.UPDATE_CONSUMER_OFFSET]

    assert told(pair.slave) == ["7"]
    assert told(pair.master) == ["7"], "once it is there, and once only"


def test_the_replica_for_an_id() -> None:
    addresses = {3: "c:1", 0: "a:1", 2: "b:1"}
    assert replica_of(addresses) == BrokerReplica(0, "a:1")
    assert replica_of(addresses, 1) == BrokerReplica(2, "b:1"), "the next"
    assert replica_of(addresses, 5) == BrokerReplica(0, "a:1")
    assert replica_of({3: "c:1", 2: "b:1"}) == BrokerReplica(2, "b:1"), "the lowest, without a master"
    assert replica_of({}) is None


# --- producers ------------------------------------------------------------------------------------------


async def test_a_silent_broker_leaves_time_for_another() -> None:
    a, b = broker(then=SILENCE), broker(then=SILENCE)
    async with (
        cluster(a=a, b=b) as address,
        Producer(address, group="g", attempt_timeout_ms=300, send_timeout_ms=30_000) as producer,
    ):
        b.script = broker().script
        for _ in range(4):
            result = await producer.send(Message.of("T", "x"))
            assert (result.status, result.queue.broker_name) == (SendStatus.SEND_OK, "b")
    assert sends(a) <= 1, "a broker that was silent is left alone for a while"


async def test_the_last_attempt_has_all_the_time_that_is_left() -> None:
    a = broker(SILENCE, refusal(2))
    late = asyncio.get_running_loop().time()
    async with (
        cluster(a=a) as address,
        Producer(address, group="g", attempt_timeout_ms=200, send_timeout_ms=20_000, retries=2) as producer,
    ):
        result = await producer.send(Message.of("T", "x"))
    assert (result.status, sends(a)) == (SendStatus.SEND_OK, 3)
    assert asyncio.get_running_loop().time() - late < 15
